"""A DataLoader of torch whose state is that of the batch it handed out last: `ResumableLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from fastrecord.sampler.batch_sampler import FastRecordBatchSampler


class ResumableLoader(DataLoader[Any]):
    """A DataLoader over a FastRecordBatchSampler that is resumed in the middle of an epoch, with workers too.

    Worker processes take batches from the sampler ahead of the training loop. This loader counts those that it has
    handed out: its states are the sampler's, as of the last of them. Lightning saves and loads them by itself. Takes
    what DataLoader takes; `batch_sampler` is a FastRecordBatchSampler.

    Raises:
        TypeError: when it is used, if the batch sampler is of another kind.
    """

    _start = 0
    _state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch says a class of its own
        """Iterate over an epoch, or over what is left of it after `load_state_dict`."""
        sampler = self._sampler()
        start, self._start = self._start, 0
        for done, batch in enumerate(super().__iter__(), start + 1):
            self._state = sampler.state_dict(batches_done=done)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the epoch stands, ready for JSON: what was handed out, not what workers are ahead."""
        return self._state or self._sampler().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken.

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
