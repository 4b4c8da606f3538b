"""`Destination`: moves batches from the core's threads to plain or pinned memory, or to a device.

Does not choose records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrecord.loader.delivery import Delivery
from fastrecord.loader.sample import Picture
from fastrecord.transforms import Normalize, ToFloat


class Destination:
    """Where batches go: memory of the core, pinned memory, or a device.

    Attributes:
        in_threads: What the core's threads apply to images. None: images stay bytes, or the device
            normalises them, after a copy of a quarter of the size.

    Raises:
        ValueError: pinned memory or CUDA is requested, but CUDA is not available.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.device = None if delivery.device is None else torch.device(delivery.device)
        self.copies = self.device is not None and self.device.type != "cpu"
        self._on_cuda = self.device is not None and self.device.type == "cuda"
        if (self._on_cuda or delivery.pin_memory is True) and not torch.cuda.is_available():
            raise ValueError("torch finds no CUDA device: leave device and pin_memory out of delivery, or use the CPU")
        can_pin = self.device is None and torch.cuda.is_available()
        self._pin = self._on_cuda or can_pin if delivery.pin_memory == "auto" else delivery.pin_memory
        # A process that is forked after CUDA was used cannot pin memory.
        self._pin_in_fork = delivery.pin_memory is True or self._on_cuda
        self._dtype = delivery.dtype
        self.in_threads = ToFloat(delivery.dtype) if delivery.dtype is not None and not self.copies else None
        self._stream: Any = None
        self._normalize: Normalize | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None, "_normalize": None}

    @property
    def pinned(self) -> bool:
        """Whether batches are made in pinned memory."""
        return self._pin and (self._pin_in_fork or not torch.cuda._is_in_bad_fork())

    @property
    def stream(self) -> Any:
        """The stream of the copies, created at first use; None without copies to CUDA."""
        if self._stream is None and self._on_cuda:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._stream

    def memory(self, kinds: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> list[torch.Tensor] | None:
        """Return pinned tensors of these types and shapes; None if the core's memory is to be used.

        torch keeps their memory for the next batch itself, once the copies out of it are done.
        """
        if not self.pinned:
            return None
        # torch then notices a later fork, which pinning alone does not make it do.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        # With the stream, CUDA has begun on the device. Otherwise pinning would begin it on the current
        # one, and every process would take memory of the first GPU.
        _ = self.stream
        return [torch.empty(shape, dtype=dtype, pin_memory=True) for dtype, shape in kinds]

    def send(self, value: Any) -> Any:
        """Return a value with all its tensors, also in lists and tuples, on the device."""
        if not (self.pinned or self.copies):
            return value
        sent: list[torch.Tensor] = []
        moved = self._move(value, sent)
        if sent:
            self.receive(sent, self.mark())
        return moved

    def _move(self, value: Any, sent: list[torch.Tensor]) -> Any:
        """Return a value with its tensors pinned or, after `receive`, on the device; `sent` takes the latter."""
        if isinstance(value, torch.Tensor):
            value = value.pin_memory() if self.pinned else value
            if self.copies:
                value = self.copy(value)
                sent.append(value)
        elif isinstance(value, (list, tuple)):
            items = [self._move(item, sent) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def current_stream(self) -> Any:
        """Return the stream that work is queued on now; None without copies to CUDA."""
        # The device may have been given without its number: the stream has it.
        return None if self.stream is None else torch.cuda.current_stream(self.stream.device)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy to the device on the copy stream; call `receive` before using it."""
        # The core reuses its memory as soon as no tensor has it: only a copy from pinned memory, which
        # torch keeps until then, may still be running.
        if self.stream is None:
            return tensor.to(self.device, non_blocking=self.pinned)
        with torch.cuda.stream(self.stream):
            return tensor.to(self.device, non_blocking=self.pinned)

    def mark(self) -> Any:
        """Return the end of the copies that were started so far, for `receive`."""
        return None if self.stream is None else self.stream.record_event()

    def receive(self, tensors: Sequence[torch.Tensor], mark: Any) -> None:
        """Make work queued from now on wait for the copies of tensors, and not for later ones.

        Args:
            tensors: Return values of `copy`.
            mark: What `mark` returned after these copies were started.
        """
        if mark is None:
            return
        current = self.current_stream()
        current.wait_event(mark)
        for tensor in tensors:
            # Its memory belongs to the copy stream, and must not be reused before the consumer's work
            # is done.
            tensor.record_stream(current)

    def show(self, images: torch.Tensor, picture: Picture) -> torch.Tensor:
        """Return images (B, [views,] H, W, C) as channels_last (B, [views,] C, H, W), normalised if requested."""
        if picture.shown_last:
            images = images.movedim(-1, -3)
        if self._dtype is None or not self.copies or not picture.is_plain:
            return images  # the threads have normalised them
        if self._normalize is None:
            self._normalize = Normalize(dtype=self._dtype).to(images.device)
        made: torch.Tensor = self._normalize(images)
        return made
