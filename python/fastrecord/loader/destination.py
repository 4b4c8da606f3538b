"""`Destination`: moves batches from the core's threads to plain or pinned memory, or to a device.

Does not choose records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastrecord import _core
from fastrecord.loader.batch_source import Request
from fastrecord.loader.delivery import Delivery
from fastrecord.transforms import Geometry, Normalize

# Values that one call of torch normalises, which cannot be interrupted: about 10 ms of work, in the
# CPU cache.
_VALUES_AT_ONCE = 1 << 21

Failures = list[tuple[int, Exception]]
Fill = Callable[[Sequence[torch.Tensor], Failures], Failures]


class Destination:
    """Where batches go: memory of the core, pinned memory, or a device.

    Raises:
        ValueError: pinned memory or CUDA is requested, but CUDA is not available.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.device = None if delivery.device is None else torch.device(delivery.device)
        self.copies = self.device is not None and self.device.type != "cpu"
        on_cuda = self.device is not None and self.device.type == "cuda"
        if (on_cuda or delivery.pin_memory is True) and not torch.cuda.is_available():
            raise ValueError("torch finds no CUDA device: leave device and pin_memory out of delivery, or use the CPU")
        self.pinned = on_cuda or (self.device is None and torch.cuda.is_available())
        if delivery.pin_memory != "auto":
            self.pinned = delivery.pin_memory
        self._normalize = None if delivery.dtype is None else Normalize(dtype=delivery.dtype).to(self.device or "cpu")
        self._stream: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}

    @property
    def stream(self) -> Any:
        """The stream of the copies, created at first use; None without copies to CUDA."""
        if self._stream is None and self.device is not None and self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._stream

    def begin(
        self, loading: _core.Loading, request: Request, outputs: Mapping[str, Geometry], fill: Fill | None = None
    ) -> Pending:
        """Start making a batch.

        `fill` is called with its images and failures, and returns the remaining failures.
        """
        shapes = [(len(request.rows), *geometry.output, 3) for geometry in outputs.values()]
        # torch keeps pinned memory for the next batch itself, once the copies out of it are done.
        memory = [torch.empty(shape, dtype=torch.uint8, pin_memory=True) for shape in shapes] if self.pinned else None
        flat = None if memory is None else [tensor.view(-1).numpy() for tensor in memory]
        load = loading.submit(request.seed, request.epoch, request.rows, request.positions, flat, request.ahead)
        return Pending(self, request, load, shapes, memory, fill)

    def send(self, value: Any) -> Any:
        """Return a tensor or array on the device; other values unchanged."""
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor):
            return value
        if self.pinned:
            value = value.pin_memory()
        return self.receive(self.copy(value)) if self.copies else value

    def send_all(self, value: Any) -> Any:
        """Return a value with all its tensors, also in lists and tuples, on the device."""
        if not (self.pinned or self.copies):
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(self.send_all(item) for item in value)
        return self.send(value) if isinstance(value, torch.Tensor) else value

    def current_stream(self) -> Any:
        """Return the stream that work is queued on now; None without copies to CUDA."""
        return None if self.stream is None else torch.cuda.current_stream(self.device)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy to the device on the copy stream; call `receive` before using it."""
        if self.stream is None:
            return tensor.to(self.device, non_blocking=True)
        with torch.cuda.stream(self.stream):
            return tensor.to(self.device, non_blocking=True)

    def receive(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make work queued from now on wait for the copy of a tensor."""
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            # Its memory belongs to the copy stream, and must not be reused before the consumer's
            # work is done.
            tensor.record_stream(current)
        return tensor

    def show(self, images: torch.Tensor) -> torch.Tensor:
        """Return images (B, H, W, 3) as channels_last (B, 3, H, W), normalised if requested."""
        shown = images.permute(0, 3, 1, 2)
        if self._normalize is None:
            return shown
        at_once = self.copies or shown.numel() <= _VALUES_AT_ONCE
        made: torch.Tensor = self._normalize(shown) if at_once else _in_parts(self._normalize, shown)
        return made


class Pending:
    """A batch in progress.

    Attributes:
        request: The request.
        images: For each output, uint8 (B, height, width, 3); set by `complete`.
        failures: Positions of records without an image, with their errors; set by `complete`.
    """

    def __init__(
        self,
        destination: Destination,
        request: Request,
        load: _core.Load,
        shapes: Iterable[tuple[int, ...]],
        memory: list[torch.Tensor] | None,
        fill: Fill | None,
    ) -> None:
        self.request = request
        self.images: list[torch.Tensor] = []
        self.failures: list[tuple[int, Exception]] = []
        self._destination, self._load, self._shapes, self._memory = destination, load, list(shapes), memory
        self._fill = fill

    def is_ready(self) -> bool:
        """Return whether `complete` would return without waiting for the threads."""
        return bool(self.images) or self._load.is_ready()

    def complete(self) -> None:
        """Wait for the batch and start its copy to the device. A second call does nothing."""
        if self.images:
            return
        made, failures = self._load.wait()
        images = self._memory
        if images is None:
            images = [
                torch.frombuffer(memory, dtype=torch.uint8).view(shape)
                for memory, shape in zip(made, self._shapes, strict=True)
            ]
        self._memory = None
        self.failures = self._fill(images, failures) if failures and self._fill is not None else failures
        self.images = [self._destination.copy(image) for image in images] if self._destination.copies else images


def _in_parts(normalize: Normalize, images: torch.Tensor) -> torch.Tensor:
    """Return images (B, 3, H, W) normalised on the CPU, in parts that Ctrl-C can interrupt."""
    images_at_once = max(1, _VALUES_AT_ONCE // max(1, images[:1].numel()))
    rows_at_once = max(1, _VALUES_AT_ONCE // max(1, images[:1, :, :1].numel()))
    made = torch.empty_like(images, dtype=normalize.dtype)
    for first in range(0, len(images), images_at_once):
        for top in range(0, images.shape[2], rows_at_once):
            part = (slice(first, first + images_at_once), slice(None), slice(top, top + rows_at_once))
            made[part] = normalize(images[part])
    return made
