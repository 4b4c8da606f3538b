"""`Group`: neighbouring batches that the core's threads make together; one batch of images is one.

Does not decide what happens to failed records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import Loading
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.destination import Destination
from fastrecord.loader.foreign import Failures
from fastrecord.loader.outputs import Outputs
from fastrecord.loader.stats import Clock
from fastrecord.loader.views import Views
from fastrecord.transforms.view_info import ViewInfo


class Group:
    """Batches in progress. Their tensors are parts of one block of memory for each column.

    Attributes:
        request: The request.
        failures: Slots of failed rows in the group, in order, with their errors; set by `complete`.
        nbytes: Bytes of the tensors that the threads make.
    """

    def __init__(
        self,
        loading: Loading,
        request: BatchRequest,
        outputs: Outputs,
        destination: Destination,
        clock: Clock,
        holds: Sequence[Any] = (),
    ) -> None:
        self.request, self._outputs, self._destination = request, outputs, destination
        self._clock, self._holds = clock, holds
        self.failures: Failures = []
        self._kinds = [(dtype, (len(request.rows), *shape)) for dtype, shape in outputs.kinds.values()]
        self._memory = destination.memory(self._kinds)
        self.nbytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._kinds)
        # numpy does not have all of these dtypes.
        flat = None if self._memory is None else [tensor.view(-1).view(torch.uint8).numpy() for tensor in self._memory]
        self._submit = partial(
            loading.submit, request.seed, request.epoch, request.rows, request.positions, flat, request.ahead
        )
        self._load = self._submit()
        self._whole: list[torch.Tensor] | None = None
        self._mark: Any = None
        self._reached: Any = None

    def is_ready(self) -> bool:
        """Return whether `complete` would return without waiting for the threads."""
        return self._whole is not None or self._load.is_ready()

    def let_go(self) -> None:
        """Let the values go that are in the group's memory by now."""
        if self.is_ready():
            self._release()

    def _release(self) -> None:
        for hold in self._holds:
            hold.release()

    def complete(self) -> None:
        """Wait for the group and start its copy to the device. A second call does nothing."""
        if self._whole is not None:
            return
        made, failures = self._load.wait()
        if failures and (holds := self._outputs.mend(self.request.rows, failures)):
            self._holds = [*self._holds, *holds]
            self._load = self._submit()
            made, failures = self._load.wait()
        self._release()
        whole = self._memory
        if whole is None:
            whole = [_tensor(memory, *kind) for memory, kind in zip(made, self._kinds, strict=True)]
        self._memory = None
        if failures and self._outputs.foreign is not None:
            failed = [slot for slot, _ in failures]
            failures = self._outputs.foreign.fill(self.request, self._clock, self._load, whole, failures)
            if (mixer := self._outputs.mixer) is not None and not mixer.on_device:
                left = [slot for slot, _ in failures]
                mixer.fill(self.request, whole[0], set(failed) - set(left), left)
        self.failures = failures
        if self._destination.copies:
            whole = [self._destination.copy(tensor) for tensor in whole]
            self._mark = self._destination.mark()
        self._whole = whole

    def columns(self) -> list[Sequence[torch.Tensor]]:
        """Return each column's tensors, one for each batch; call it only once."""
        self.reach()
        if len(self.request.sizes) == 1:
            return [[whole] for whole in self._whole or ()]
        # The parts have their own version counters: an in-place change of one does not affect the
        # others.
        return [whole.unsafe_split_with_sizes(self.request.sizes) for whole in self._whole or ()]

    def reach(self) -> None:
        """Make the current stream wait for the copy of the group."""
        current = self._destination.current_stream()
        if current is not None and current != self._reached:
            self._reached = current
            self._destination.receive(self._whole or (), self._mark)

    def views(self, part: slice | NDArray[np.int64]) -> Mapping[str, ViewInfo]:
        """Return the part of its source that each image of the batch of these slots shows."""
        pictures = self._outputs.sample.pictures
        return Views(self._load, pictures, part) if pictures else {}

    def failures_in(self, start: int, stop: int) -> Failures:
        """Return the failures of the batch of rows [start, stop), with slots of that batch."""
        return [(slot - start, error) for slot, error in self.failures if start <= slot < stop]


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
