"""Which records make up batch k of an epoch, as a pure function; a batch sampler for torch's DataLoader around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from fastrecord import _core
from fastrecord.checks import MOST, WORD, flag, integer
from fastrecord.fixed import Fixed
from fastrecord.sampler.draws import make_draw
from fastrecord.sampler.read_ahead import ReadAhead, default_block_records
from fastrecord.sampler.state import STATE_VERSION, TAILS, Shuffle, State, Tail, shuffle_kind

# Of 2 to 4 MiB each: at most 512 MiB are mixed, and as much again is read ahead.
_WINDOW_BLOCKS = 128


def batch_rows(n: int, *, batch: int, global_batch_size: int, rank: int, world_size: int) -> range:
    """Positions in the epoch order that one rank takes of one global batch; over all ranks each position comes once."""
    start = batch * global_batch_size
    stop = min(start + global_batch_size, n)
    return range(start + rank, stop, world_size)


def batch_count(n: int, *, global_batch_size: int, rank: int, tail: Tail) -> int:
    """Return the number of batches in one rank's epoch of n records.

    It is the same on all ranks with `"pad"` and `"drop"`. With `"exact"` the last global batch is a batch only for
    those ranks that have a share in it.
    """
    full, rest = divmod(n, global_batch_size)
    match tail:
        case "drop":
            return full
        case "pad":
            return full + (rest > 0)
        case "exact":
            return full + (rest > rank)


class FastRecordBatchSampler(Fixed, Sampler[list[int]]):
    """Yields this rank's share of each global batch as a list of record numbers: a `batch_sampler` for DataLoader.

    Global batch g of an epoch is positions [g * B, (g + 1) * B) of the epoch order, where B is `batch_size *
    world_size`; rank r takes every `world_size`-th of them from the r-th on. So the global batches do not depend on how
    many ranks share them, and any batch is computed without those before it. No permutation is held: a billion records
    take no memory.

    **Epochs.** An iteration begins when its first batch is asked for, and is one epoch: the one that `set_epoch` named.
    Without `set_epoch` it is the next epoch if the iteration before has handed out its last batch, and the same epoch
    again, from its start, if that was broken off.

    **Resuming.** After `load_state_dict` the next iteration yields the rest of the epoch that the state was saved in;
    those after it are whole. `len()` is always that of a whole epoch. `set_epoch` with the epoch of the loaded state
    keeps the place; with another one it drops it.

    Args:
        data: Anything with a length, which is taken once, here. If it has `snapshots`, as FastRecordDataset does,
            states name its files.
        batch_size: Records in a batch of this rank, at least 1.
        shuffle: True: the epoch order is a permutation drawn from (seed, epoch). False, to evaluate: the order of the
            records; an error with weights or balance, which draw at random. "blocks": for disks and mounts that hate
            random reads. Blocks of neighbouring records come in random order, and records are mixed within a window of
            blocks, both drawn from (seed, epoch); docs/order.md says what that does to randomness and to reads.
        block_records: With "blocks": neighbouring records in a block. Default: a power of two that makes blocks of 2 to
            4 MiB, at least 1; 64 for data that do not say their size.
        window_blocks: With "blocks": blocks that are mixed with each other. Default: 128.
        seed: In [0, 2**64).
        rank: This process's number in [0, world_size). Given together with `world_size`, or not at all: then both are
            taken here from torch.distributed, and are 0 and 1 if it has no process group yet. A group that is made
            later and says otherwise is an error when iterating.
        world_size: Number of processes that share each global batch.
        tail: What becomes of a last global batch of fewer than B records. `"pad"`: it is filled up from the start of
            the epoch order (over and over if there are fewer than B records in all), so that fewer than B records
            repeat and all ranks have equally many batches of equal size. `"drop"`: it is left out. `"exact"`: each
            record comes once over all ranks; the ranks' last batches differ in size, and some ranks may have one batch
            fewer. Default: `"pad"` when shuffling over several ranks, else `"exact"`.
        drop_last: True is `tail="drop"`, under the name that torch uses.
        weights: Draw records with replacement, each as often as its weight says: at least 0 and finite, (len(data),).
            Every position of the epoch order is drawn from (seed, epoch, position) alone.
        balance: Draw as many records of every class: the name of a field such as "label", or the class of each record,
            (len(data),). Classes come in turns, in random order in each round; a class's records come in random order,
            and none a second time before all have been.
        num_samples: With weights or balance: positions of an epoch. Default: `len(data)`.

    Raises:
        TypeError: an argument has another type; `data` has no length.
        ValueError: a number is out of range; `data` is empty, or `"drop"` leaves none of it; only one of rank and
            world_size is given; `drop_last` contradicts `tail`; blocks are described without `shuffle="blocks"`;
            weights are negative, not finite or all 0. SchemaError: `balance` names no field of classes.
    """

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        *,
        shuffle: Shuffle = True,
        block_records: int | None = None,
        window_blocks: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        drop_last: bool = False,
        weights: ArrayLike | None = None,
        balance: str | ArrayLike | None = None,
        num_samples: int | None = None,
    ) -> None:
        if not isinstance(data, Sized):
            raise TypeError(f"data has no len(), which a batch sampler needs: {type(data).__name__}")
        if (rank is None) != (world_size is None):
            raise ValueError(f"give both rank and world_size, or neither: rank={rank}, world_size={world_size}")
        self._follows_group = rank is None or world_size is None
        if rank is None or world_size is None:
            rank, world_size = process_group() or (0, 1)
        self._records = len(data)
        if self._records == 0:
            raise ValueError("data is empty: there is no record to make batches of")
        self._batch_size = integer("batch_size", batch_size, 1)
        self._draw = make_draw(data, weights, balance)
        self._shuffle = shuffle_kind("shuffle", shuffle)
        if self._draw is not None and self._shuffle is not True:
            raise ValueError(f"weights and balance draw records at random: leave out shuffle={shuffle!r}")
        if self._draw is None and num_samples is not None:
            raise ValueError("num_samples is of draws with replacement: give weights or balance too")
        # Positions of an epoch.
        self._n = self._records if num_samples is None else integer("num_samples", num_samples, 1, MOST)
        self._seed = integer("seed", seed, 0, WORD)
        self._world_size = integer("world_size", world_size, 1)
        self._rank = integer("rank", rank, 0, self._world_size)
        if tail is not None and tail not in TAILS:
            raise ValueError(f"tail is one of {', '.join(map(repr, TAILS))}, not {tail!r}")
        if flag("drop_last", drop_last):
            if tail not in (None, "drop"):
                raise ValueError(f"drop_last=True is tail='drop', but tail is {tail!r}: give one of them")
            tail = "drop"
        self._tail_given = tail is not None
        self._tail: Tail = tail or ("pad" if self._shuffle and self._world_size > 1 else "exact")
        if self._tail == "drop" and self._n < self.global_batch_size:
            size = f"{self._world_size} ranks x batch_size {self._batch_size} = {self.global_batch_size}"
            raise ValueError(f"tail='drop' leaves no batch: an epoch has {self._n} records, a global batch is {size}")
        self._snapshots: list[dict[str, Any]] = [dict(file) for file in getattr(data, "snapshots", ())]
        self._view: str | None = getattr(data, "fingerprint", None)
        given = {"block_records": block_records, "window_blocks": window_blocks}
        # What was given, a state has to agree with; what was not, it brings.
        self._blocks_given = {k: integer(k, value, 1, MOST) for k, value in given.items() if value is not None}
        if self._blocks_given and self._shuffle != "blocks":
            raise ValueError(
                f"{', '.join(self._blocks_given)}: only with shuffle='blocks', not shuffle={self._shuffle}"
            )
        self._block_records = self._blocks_given.get("block_records", default_block_records(self._snapshots))
        self._window_blocks = self._blocks_given.get("window_blocks", _WINDOW_BLOCKS)
        self._run = _Run(epoch=0, done=0)

    def __len__(self) -> int:
        """Return the number of this rank's batches in a whole epoch, whether or not the next iteration is one."""
        return batch_count(self._n, global_batch_size=self.global_batch_size, rank=self._rank, tail=self._tail)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the record numbers of one batch after the other; see the class for which epoch, and from where."""
        run = self._begin()
        while run.done < len(self):
            rows = self.rows(run.done, epoch=run.epoch)
            run.done += 1
            yield rows.tolist()

    def _begin(self) -> _Run:
        """Begin an iteration: the next batch is number `run.done` of `run.epoch`.

        Whoever iterates computes batches from `rows` and `positions`, as far ahead as it likes, and raises `run.done`
        by one when it hands a batch out: `epoch` and `state_dict` go by that.
        """
        group = process_group()
        if self._follows_group and group is not None and group != (self._rank, self._world_size):
            raise RuntimeError(
                f"the sampler was made as rank {self._rank} of {self._world_size}, but torch.distributed now says rank "
                f"{group[0]} of {group[1]}: make it after init_process_group, or give it rank and world_size"
            )
        if self._run.begun:
            self._run = _Run(epoch=self.epoch, done=0)
        # Each iteration counts for itself: one that goes on after another has begun must not move that one's place.
        run = self._run
        run.begun = True
        return run

    def _read_ahead(self, run: _Run) -> ReadAhead | None:
        """Return what names the records to ask for ahead of the batches of a run, if its order has a near future."""
        if self._shuffle != "blocks":
            return None
        size = self.global_batch_size
        used = self._n - self._n % size if self._tail == "drop" else self._n
        return ReadAhead(
            self._block_order(run.epoch), used, global_batch_size=size, rank=self._rank, world_size=self._world_size
        )

    def positions(self, batch: int) -> NDArray[np.int64]:
        """Return the positions in the epoch order that this rank takes of a batch, int64 (records in the batch,).

        Those that fill up a last batch have wrapped round to the start.

        Raises:
            IndexError: `batch` is not in [0, len(self)).
        """
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} is out of range: an epoch of this rank has {len(self)}")
        return self._span(batch, batch + 1)

    def _span(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the positions that this rank takes of batches [first, stop), one batch after the other."""
        size = self.global_batch_size
        # Padding: the epoch order goes on for as long as the batch needs, and what is beyond its end is at its start.
        n = stop * size if self._tail == "pad" else self._n
        share, last = (
            batch_rows(n, batch=batch, global_batch_size=size, rank=self._rank, world_size=self._world_size)
            for batch in (first, stop - 1)
        )
        # Global batches are multiples of the number of ranks: shares of neighbouring ones make one run.
        return np.arange(share.start, last.stop, share.step, dtype=np.int64) % self._n

    def rows(self, batch: int, *, epoch: int | None = None) -> NDArray[np.int64]:
        """Return the record numbers of one batch of this rank, int64 (records in the batch,). No iteration is touched.

        Args:
            batch: Number of the batch in its epoch.
            epoch: Default: `self.epoch`.

        Raises:
            IndexError: `batch` is not in [0, len(self)). ValueError: `epoch` is negative.
        """
        positions = self.positions(batch)
        return self._at(positions, self.epoch if epoch is None else integer("epoch", epoch, 0, WORD))

    def _at(self, positions: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Return the record numbers at positions of the order of an epoch."""
        if self._shuffle is False:
            return positions
        if self._draw is not None:
            return self._draw.rows(self._seed, number, positions)
        if self._shuffle == "blocks":
            return self._block_order(number).rows(positions)
        return _core.permute(self._n, self._seed, number, positions)

    def _block_order(self, epoch: int) -> _core.BlockOrder:
        return _core.BlockOrder(self._n, self._block_records, self._window_blocks, self._seed, epoch)

    @property
    def batch_size(self) -> int:
        """Records in a full batch of this rank."""
        return self._batch_size

    @property
    def global_batch_size(self) -> int:
        """Records in a full batch of all ranks together."""
        return self._batch_size * self._world_size

    @property
    def rank(self) -> int:
        """This process's number in [0, world_size)."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of processes that share each global batch."""
        return self._world_size

    @property
    def records(self) -> int:
        """Records of the data."""
        return self._records

    @property
    def num_samples(self) -> int:
        """Positions of an epoch: the records of the data, unless draws with replacement are given another number."""
        return self._n

    @property
    def seed(self) -> int:
        """What the epoch orders are drawn from; a loaded state brings its own."""
        return self._seed

    @property
    def shuffle(self) -> Shuffle:
        """Whether the epoch order is a permutation, and whether one of blocks."""
        return self._shuffle

    @property
    def block_records(self) -> int | None:
        """Neighbouring records in a block; None without blocks."""
        return self._block_records if self._shuffle == "blocks" else None

    @property
    def window_blocks(self) -> int | None:
        """Blocks whose records are mixed; None without blocks."""
        return self._window_blocks if self._shuffle == "blocks" else None

    @property
    def tail(self) -> Tail:
        """What becomes of a last global batch that is not full."""
        return self._tail

    # No `drop_last` here: what has batch_size and drop_last, Lightning takes for a BatchSampler like torch's and makes
    # anew around a sampler of its own: the records would be shared out twice. Without it, it says what to do instead.

    @property
    def sampler(self) -> FastRecordBatchSampler:
        """The sampler itself, for frameworks that call `batch_sampler.sampler.set_epoch`."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch of the iteration under way or, once that has handed out its last batch, the next one."""
        return self._run.epoch + self._handed_out_all()

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` that of the next iteration.

        The same epoch again changes nothing while that is under way or a loaded state waits to be continued in it.

        Raises:
            TypeError: no int. ValueError: negative.
        """
        epoch = integer("epoch", epoch, 0, WORD)
        if epoch != self._run.epoch or self._handed_out_all():
            self._run = _Run(epoch=epoch, done=0)

    def state_dict(self, batches_done: int | None = None) -> dict[str, Any]:
        """Return where the epoch stands, ready for JSON: what `load_state_dict` continues from.

        The state is the same on all ranks that have done equally many batches, and good for all; save that of rank 0.

        Args:
            batches_done: Batches of the epoch begun last that this rank has consumed, counted from the epoch's start,
                also after a resume. A DataLoader with workers takes batches from the sampler ahead of the consumer, so
                that only the consumer knows. Default: the batches handed out, which is right without workers.

        Raises:
            TypeError: `batches_done` is no int. ValueError: it is not in [0, len(self)].
        """
        done = self._run.done if batches_done is None else integer("batches_done", batches_done, 0, len(self) + 1)
        over = done >= len(self) and (batches_done is not None or self._run.begun)
        return {
            "version": STATE_VERSION,
            "seed": self._seed,
            "epoch": self._run.epoch + over,
            "batches_done": 0 if over else done,
            "global_batch_size": self.global_batch_size,
            "shuffle": self._shuffle,
            "block_records": self.block_records,
            "window_blocks": self.window_blocks,
            "tail": self._tail,
            "records": self._records,
            "samples": self._n,
            "draw": None if self._draw is None else self._draw.recipe(),
            "view": self._view,
            "snapshots": [{key: file[key] for key in ("file_id", "commit", "records")} for file in self._snapshots],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iteration yields the batches that were not done, in constant time.

        The state's seed is taken over, and its tail and blocks unless they were given to this sampler. The world size
        may differ.

        Raises:
            TypeError, ValueError: the state is malformed, of another version, of other data, of another global batch
                size (the message names the `batch_size` that fits), or differs in shuffle or in a tail or blocks that
                were given. Then nothing has changed.
        """
        loaded = State.parse(state)
        loaded.check_data(self._snapshots, self._records, self._view)
        loaded.check_draw(None if self._draw is None else self._draw.recipe(), self._n)
        if loaded.global_batch_size != self.global_batch_size:
            here = f"here {self._world_size} ranks x batch_size {self._batch_size} = {self.global_batch_size}"
            fitting, rest = divmod(loaded.global_batch_size, self._world_size)
            advice = f"use batch_size={fitting}" if rest == 0 else "use a number of ranks that divides it"
            raise ValueError(f"the state has a global batch size of {loaded.global_batch_size}, {here}: {advice}")
        if loaded.shuffle != self._shuffle:
            raise ValueError(
                f"the state has shuffle={loaded.shuffle!r}, this sampler shuffle={self._shuffle!r}: make them equal"
            )
        for name, given in self._blocks_given.items():
            then = getattr(loaded, name)
            if then != given:
                raise ValueError(f"the state has {name}={then}, this sampler {name}={given}: make them equal")
        if self._tail_given and loaded.tail != self._tail:
            raise ValueError(f"the state has tail={loaded.tail!r}, this sampler tail={self._tail!r}: make them equal")
        # Counted as rank 0 has them, which has most: a state is good for every rank, even one that has no batch left.
        batches = batch_count(self._n, global_batch_size=self.global_batch_size, rank=0, tail=loaded.tail)
        if loaded.batches_done >= batches:
            raise ValueError(f"the state leaves no batch: it has {loaded.batches_done} done, an epoch has {batches}")
        self._seed = loaded.seed
        self._tail = loaded.tail
        self._block_records = loaded.block_records or self._block_records
        self._window_blocks = loaded.window_blocks or self._window_blocks
        self._run = _Run(epoch=loaded.epoch, done=loaded.batches_done)

    def __repr__(self) -> str:
        """Describe what it makes batches of, and how."""
        draw = "" if self._draw is None else f", {self._draw.recipe()['kind']}"
        ranks = f", rank={self._rank}, world_size={self._world_size}" if self._world_size > 1 else ""
        return (
            f"{type(self).__name__}({self._records:,} records, {len(self):,} batches of {self._batch_size}, "
            f"shuffle={self._shuffle!r}{draw}, seed={self._seed}{ranks}, tail={self._tail!r}, epoch={self.epoch})"
        )

    def _handed_out_all(self) -> bool:
        return self._run.begun and self._run.done >= len(self)


@dataclass(slots=True)
class _Run:
    """One pass through an epoch: an iteration, or (not begun) what the next one will be."""

    epoch: int
    done: int
    begun: bool = False


def process_group() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed's process group, if there is one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
