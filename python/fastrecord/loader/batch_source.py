"""`SamplerSource` and `IterableSource`: which records a loader makes next, and their augmentation.

Batches come from any batch sampler. Reads no payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.checks import WORD, integer
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.rows import All, Rows
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler, process_group
from fastrecord.sampler.blocks import Shuffle

_STATE_VERSION = 1
# Key of a state, beside those of the sampler.
_OWN_SEED = "augmentation_seed"


@dataclass(slots=True)
class _Progress:
    """Progress of an iteration; `total` is set when the sampler ends."""

    epoch: int
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One batch, or several neighbouring batches that are made together.

    Attributes:
        seed, epoch, positions: Determine the augmentation; positions are int64 (N,).
        rows: Record numbers over all files, int64 (N,).
        sizes: Number of records of each batch; their sum is N.
        hand_out: Call it for each batch that goes to the consumer.
        number: Number of its first batch in the epoch.
        ahead: Record numbers of later batches to prefetch, ascending, int64 (N,).
    """

    seed: int
    epoch: int
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    sizes: list[int]
    hand_out: Callable[[], None]
    number: int
    ahead: NDArray[np.int64] | None = None


class SamplerSource:
    """Batches of a FastRecordBatchSampler, computed ahead; its state counts the batches handed out.

    Args:
        sampler: Samples the records of a data set.
        view: Maps them to records of the files.
        seed: Of the augmentation; None: the sampler's.
    """

    def __init__(self, sampler: FastRecordBatchSampler, view: Rows, seed: int | None = None) -> None:
        self.sampler = sampler
        self._view, self._seed = view, seed

    def groups(self, batches: int, records: int) -> Iterator[BatchRequest]:
        """Begin an iteration of the sampler.

        Args:
            batches: Maximum number of batches in a request.
            records: A request ends with the batch that reaches this number of records.
        """
        sampler = self.sampler
        batches = max(1, min(batches, -(-records // sampler.batch_size)))
        run = sampler._begin()
        number = run.done

        def hand_out() -> None:
            run.done += 1

        for span in sampler._spans(run, batches):
            rows = self._view.take(span.indices)
            coming = span.ahead
            if coming is not None and (len(span.sizes) > 1 or not isinstance(self._view, All)):
                # The order of the files may differ from the view's order.
                coming = np.sort(self._view.take(coming))
            seed = sampler.seed if self._seed is None else self._seed
            yield BatchRequest(seed, run.epoch, rows, span.positions, span.sizes, hand_out, number, coming)
            number += len(span.sizes)

    @property
    def epoch_records(self) -> int:
        """Records of this rank in a whole epoch, including records that fill up its last batch."""
        last = len(self.sampler) - 1
        return self.sampler.batch_size * last + len(self.sampler.positions(last)) if last >= 0 else 0

    @property
    def may_fall_short(self) -> bool:
        """Whether ranks may differ in their number of batches, so that one may skip empty ones."""
        return self.sampler._last == "exact"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, and the seed of the augmentation if it is another one."""
        own = {} if self._seed is None else {_OWN_SEED: self._seed}
        return self.sampler.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a sampler's state, or from one with a seed of the augmentation.

        Raises:
            TypeError, ValueError: it is malformed or does not fit.
        """
        given: object = state
        own = given.get(_OWN_SEED) if isinstance(given, Mapping) else None  # the sampler refuses others
        seed = None if own is None else integer(f"state: {_OWN_SEED}", own, 0, WORD)
        self.sampler.load_state_dict(state)
        self._seed = seed


class IterableSource:
    """Batches of any iterable of batches of record numbers, such as torch's BatchSampler.

    Args:
        batches: Iterated once an epoch, in this process.
        rows: Checks record numbers and converts them to an array.
        records: Number of records of the data set.
        seed: Of the augmentation; None: the iterable's, or its sampler's, else 0.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        rows: Callable[[Any], NDArray[np.int64]],
        *,
        records: int,
        seed: int | None = None,
    ) -> None:
        self.sampler = batches
        self._rows, self._records = rows, records
        self._seed = (_number(batches, "seed") or 0) if seed is None else seed
        self._progress = _Progress(epoch=0)
        self._skip = 0

    def _counted(self) -> int:
        """Return the epoch of a sampler that counts epochs, else the epoch counted here."""
        epoch = _number(self.sampler, "epoch")
        return self._next_epoch() if epoch is None else epoch

    def _next_epoch(self) -> int:
        progress = self._progress
        return progress.epoch + (progress.done == progress.total)

    def groups(self, batches: int, records: int) -> Iterator[BatchRequest]:
        """Iterate over the sampler without the batches that a loaded state counts as done.

        Args:
            batches: Maximum number of batches in a request.
            records: A request ends with the batch that reaches this number of records.
        """
        skip, self._skip = self._skip, 0
        progress = self._progress = _Progress(self._counted(), skip)
        rank, world_size = process_group() or (0, 1)

        def hand_out() -> None:
            progress.done += 1

        def request() -> BatchRequest:
            rows, positions = (
                np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*group, strict=True)
            )
            sizes = [len(part) for part, _ in group]
            return BatchRequest(self._seed, progress.epoch, rows, positions, sizes, hand_out, number - len(group))

        group: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        first = number = grouped = 0
        for batch in self.sampler:
            rows = self._rows(batch)
            if not len(rows):
                continue
            # Ranks draw different crops, whatever share of the records a sampler gives them.
            positions = (first + np.arange(len(rows), dtype=np.int64)) * world_size + rank
            first += len(rows)
            number += 1
            if number <= skip:
                continue
            group.append((rows, positions))
            grouped += len(rows)
            if len(group) >= batches or grouped >= records:
                yield request()
                group, grouped = [], 0
        if group:
            yield request()
        progress.total = max(number, skip)

    @property
    def epoch_records(self) -> int:
        """An estimate of this rank's records in a whole epoch; only the sampler's end shows it."""
        _, world_size = process_group() or (0, 1)
        return self._records // world_size

    @property
    def may_fall_short(self) -> bool:
        """Whether an empty batch may be left out: not if other ranks may wait for it."""
        _, world_size = process_group() or (0, 1)
        return world_size == 1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also of the sampler if it has `set_epoch`.

        Raises:
            TypeError: not an int.
            ValueError: negative.
        """
        epoch = integer("epoch", epoch, 0, WORD)
        if epoch != self._next_epoch():
            self._skip = 0
            self._progress = _Progress(epoch)
        for owner in (self.sampler, getattr(self.sampler, "sampler", None)):
            name_epoch = getattr(owner, "set_epoch", None)
            if name_epoch is not None:
                name_epoch(epoch)
                return

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of batches handed out."""
        progress = self._progress
        over = progress.done == progress.total
        return {
            "version": _STATE_VERSION,
            "seed": self._seed,
            "epoch": self._next_epoch(),
            "batches_done": 0 if over else progress.done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Skip the batches that are done in the next iteration; the sampler produces them again.

        Raises:
            TypeError, ValueError: the state is not a valid state of this kind.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a loader's state is a dict, not {type(state).__name__}")
        if state.get("version") != _STATE_VERSION or "global_batch_size" in state:
            raise ValueError("the state comes from another kind of batch sampler, or from another version")
        names = ("seed", "epoch", "batches_done")
        seed, epoch, done = (integer(f"state: {name}", state.get(name), 0, WORD) for name in names)
        self._seed = seed
        self.set_epoch(epoch)
        self._progress = _Progress(epoch, done)
        self._skip = done


def _number(batches: Any, name: str) -> int | None:
    """Return a batch sampler's attribute, or that attribute of its sampler; None without one."""
    for owner in (getattr(batches, "sampler", None), batches):
        value = getattr(owner, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WORD:
            return value
    return None


def make_source(
    dataset: FastRecordDataset,
    batch_size: int | None,
    batch_sampler: FastRecordBatchSampler | Iterable[Any] | None,
    shuffle: Shuffle | None,
    seed: int | None = None,
) -> SamplerSource | IterableSource:
    """Return the source of a loader's batches, for the arguments of FastRecordLoader.

    Raises:
        TypeError, ValueError: they contradict each other, one is missing, or the sampler is for
            other records.
    """
    if (batch_size is None) == (batch_sampler is None):
        raise ValueError("give one of batch_size and batch_sampler")
    if batch_size is not None:
        order = True if shuffle is None else shuffle
        sampler = FastRecordBatchSampler(dataset, batch_size, shuffle=order, seed=seed or 0)
        return SamplerSource(sampler, dataset.selection.rows)
    if shuffle:
        raise ValueError("shuffle is the batch sampler's: leave it out with batch_sampler=")
    if isinstance(batch_sampler, FastRecordBatchSampler):
        batch_sampler._check_data(dataset)
        return SamplerSource(batch_sampler, dataset.selection.rows, seed)
    if not isinstance(batch_sampler, Iterable):
        kind = type(batch_sampler).__name__
        raise TypeError(f"batch_sampler is an iterable of batches of record numbers, not {kind}")
    return IterableSource(batch_sampler, dataset.rows, records=len(dataset), seed=seed)
