"""`Destination`: moves batches from the core's threads to plain or pinned memory, or to a device.

Does not choose records.
"""

from __future__ import annotations

from typing import Any

import torch

from fastrecord.loader.delivery import Delivery
from fastrecord.transforms import Normalize

# Values that one call of torch normalises, which cannot be interrupted: about 10 ms of work, in the
# CPU cache.
_VALUES_AT_ONCE = 1 << 21


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

    def send(self, value: Any) -> Any:
        """Return a value with all its tensors, also in lists and tuples, on the device."""
        if not (self.pinned or self.copies):
            return value
        if isinstance(value, torch.Tensor):
            value = value.pin_memory() if self.pinned else value
            return self.receive(self.copy(value)) if self.copies else value
        if isinstance(value, (list, tuple)):
            items = [self.send(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

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
