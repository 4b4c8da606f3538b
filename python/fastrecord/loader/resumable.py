"""`ResumableLoader`: a DataLoader of torch whose state counts the batches it has yielded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from fastrecord.sampler.batch_sampler import FastRecordBatchSampler


class ResumableLoader(DataLoader[Any]):
    """A DataLoader over a FastRecordBatchSampler that resumes within an epoch, also with workers.

    Worker processes take batches from the sampler ahead of the training loop. This loader counts
    the batches that it has yielded, and its states are the sampler's states after the last of them.
    Lightning saves and loads them automatically. Takes the arguments of DataLoader; `batch_sampler`
    is a FastRecordBatchSampler.

    Raises:
        TypeError: on use, if the batch sampler is of another kind.
    """

    _start = 0
    _state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares a private class
        """Iterate over an epoch, or over the rest of it after `load_state_dict`."""
        sampler = self._sampler()
        start, self._start = self._start, 0
        for done, batch in enumerate(super().__iter__(), start + 1):
            self._state = sampler.state_dict(batches_done=done)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, ready for JSON; it counts yielded batches only."""
        return self._state or self._sampler().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next iteration.

        Raises:
            TypeError, ValueError: the state is malformed or does not fit; nothing has changed then.
        """
        self._sampler().load_state_dict(state)
        self._start, self._state = int(state["batches_done"]), dict(state)

    def _sampler(self) -> FastRecordBatchSampler:
        sampler = self.batch_sampler
        if not isinstance(sampler, FastRecordBatchSampler):
            kind = type(sampler).__name__
            raise TypeError(f"a ResumableLoader wants batch_sampler=FastRecordBatchSampler(...), not a {kind}")
        return sampler
