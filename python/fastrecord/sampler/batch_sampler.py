"""`FastRecordBatchSampler`: which records make up batch k of an epoch, as a pure function.

Does not read payloads; holds no permutation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch.distributed
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from fastrecord.checks import MOST, WORD, integer, local_ranks
from fastrecord.fixed import Fixed
from fastrecord.sampler.affinity import Affinity
from fastrecord.sampler.blocks import Blocks, Shuffle, check_shuffle
from fastrecord.sampler.draws import make_draw, repeated
from fastrecord.sampler.epoch import Epoch
from fastrecord.sampler.read_ahead import ReadAhead
from fastrecord.sampler.shares import Shares
from fastrecord.sampler.state import STATE_VERSION, DropLast, Last, State, check_drop_last, files_of


class FastRecordBatchSampler(Fixed, Sampler[list[int]]):
    """Yields this rank's share of each global batch: a `batch_sampler` for torch's DataLoader.

    A batch is a list of indices. B is `batch_size * world_size`. Global batch g of an epoch
    has positions [g * B, (g + 1) * B) of the epoch order. Rank r takes every `world_size`-th of
    them, starting with the r-th. So the global batches do not depend on the number of ranks, and
    each batch is computed without the batches before it. The sampler holds no permutation: a
    billion records take no memory.

    **Epochs.** An iteration begins when its first batch is requested, and covers one epoch: the
    epoch passed to `set_epoch`. Without `set_epoch` it is the next epoch if the previous iteration
    has yielded its last batch. If that iteration was stopped early, the same epoch starts again.

    **Resuming.** After `load_state_dict` the next iteration yields the rest of the epoch in which
    the state was saved. Later iterations are whole epochs. `len()` always counts a whole epoch.
    `set_epoch` with the epoch of the loaded state keeps the position; another epoch discards it.

    Args:
        data: Any object with a length; the length is read once, by the constructor. If it has
            `snapshots`, as FastRecordDataset does, states name its files. Of a `fastrecord.mix`,
            records are drawn by its shares, unless `shuffle` is False.
        batch_size: Records in a batch of this rank, at least 1.
        shuffle: True: the epoch order is a permutation drawn from (seed, epoch). False, for
            evaluation: the order of the records; an error with weights or balance, which draw at
            random. A `fastrecord.Blocks`, or "blocks" for its defaults, is for disks and mounts
            with slow random reads. Blocks are drawn from (seed, epoch) too.
        seed: In [0, 2**64).
        rank: This process's number in [0, world_size). Give both `rank` and `world_size`, or
            neither. By default the constructor reads both from torch.distributed; they are 0 and 1
            without a process group. If a group created later differs, iterating raises an
            error.
        world_size: Number of processes that share each global batch.
        affinity: "shard": each node mostly reads its own shards, so that the caches of the nodes
            share the data set. The global batches stay what they are; which rank has which record
            of a batch changes. A record goes to the node that has its shard, as long as that
            node's share of the batch has room, else to another one. Large shards are cut into
            parts that go to different nodes. None: records go to ranks in turns.
        nodes: With affinity: the number of nodes. Ranks 0 to r - 1 are on the first one, the next r
            on the second one, and so on. Default: world size / `LOCAL_WORLD_SIZE`, which torchrun
            sets.
        drop_last: What happens to a last global batch of fewer than B records. True: it is left out.
            `"pad"`: it is filled up from the start of the epoch order (repeatedly if there are fewer
            than B records in all). So fewer than B records repeat, and all ranks have the same
            number of batches, all of one size. `"exact"`: each record comes once over all ranks;
            the ranks' last batches differ in size, and some ranks may have one batch fewer. False
            is `"pad"` when shuffling over several ranks, else `"exact"`.
        weights: Draw records with replacement, with probability proportional to their weights: at
            least 0 and finite, (len(data),). Every position of the epoch order is drawn from (seed,
            epoch, position) alone.
        balance: Draw equally many records of every class: the name of a field such as "label", or
            the class of each record, (len(data),). Each round has every class once, in random
            order. A class's records come in random order, and no record repeats before all of its
            class have come.
        num_samples: With weights, balance or a mix: positions of an epoch. Default: `len(data)`.
        repeat: Repeated augmentation: each record comes this many times in a row, so mostly in one
            global batch. A crop depends on the position, so each time is another crop. An epoch has
            as many positions as without: the first `1 / repeat` of the epoch's order, and other
            records in the next epoch.

    Raises:
        TypeError: an argument has another type; `data` has no length.
        ValueError: a number is out of range; `data` is empty, or `drop_last` leaves no batch; only
            one of rank and world_size is given; weights are negative, not finite or all 0; `nodes`
            does not divide the world size, or is not known.
        SchemaError: `balance` does not name a field of classes.
    """

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: DropLast = False,
        weights: ArrayLike | None = None,
        balance: str | ArrayLike | None = None,
        num_samples: int | None = None,
        repeat: int = 1,
        affinity: Literal["shard"] | None = None,
        nodes: int | None = None,
    ) -> None:
        if not isinstance(data, Sized):
            raise TypeError(f"data is an object with a length, not {type(data).__name__}: a batch sampler needs len()")
        if (rank is None) != (world_size is None):
            raise ValueError(f"give both rank and world_size, or neither: rank={rank}, world_size={world_size}")
        self._follows_group = rank is None or world_size is None
        if rank is None or world_size is None:
            rank, world_size = process_group() or (0, 1)
        self._records = len(data)
        if self._records == 0:
            raise ValueError("data is empty: a batch sampler needs at least one record")
        self._batch_size = integer("batch_size", batch_size, 1)
        self._draw = make_draw(data, weights, balance, shuffle)
        # A loaded state must agree with the given blocks, and supplies the numbers not given.
        self._given = check_shuffle("shuffle", shuffle)
        if self._draw is not None and self._given is not True:
            raise ValueError(f"weights, balance and mixes draw records at random: leave out shuffle={shuffle!r}")
        if self._draw is None and num_samples is not None:
            raise ValueError("num_samples counts draws with replacement: give weights or balance too, or a mix")
        self._repeat = integer("repeat", repeat, 1, MOST)
        if self._repeat > 1 and self._given is not True:
            raise ValueError(f"repeat is for training on records in random order: leave out shuffle={shuffle!r}")
        self._draw = repeated(self._draw, self._records, self._repeat)
        # Positions of an epoch.
        self._n = self._records if num_samples is None else integer("num_samples", num_samples, 1, MOST)
        self._seed = integer("seed", seed, 0, WORD)
        self._world_size = integer("world_size", world_size, 1)
        self._rank = integer("rank", rank, 0, self._world_size)
        self._nodes = _nodes(affinity, nodes, self._world_size)
        self._shares: Shares | None = None
        if affinity is not None:
            self._shares = Shares(self._world_size, self._nodes, Affinity(data, self._nodes))
        # A loaded state must agree with a given choice, and makes it otherwise.
        self._last_given = check_drop_last("drop_last", drop_last) is not False
        self._last: Last = drop_last or ("pad" if self._given and self._world_size > 1 else "exact")
        if self._last is True and self._n < self.global_batch_size:
            size = f"{self._world_size} ranks x batch_size {self._batch_size} = {self.global_batch_size}"
            raise ValueError(f"drop_last leaves no batch: an epoch has {self._n} records, a global batch is {size}")
        self._snapshots: list[dict[str, Any]] = [dict(file) for file in getattr(data, "snapshots", ())]
        self._files = files_of(self._snapshots)
        self._view = _view(data)
        self._shuffle = self._given.filled(self._snapshots) if isinstance(self._given, Blocks) else self._given
        self._run = Run(epoch=0)

    def __len__(self) -> int:
        """Return the number of this rank's batches in a whole epoch, also after a resume."""
        return self._batches(self._rank, self._last)

    def _batches(self, rank: int, last: Last) -> int:
        """Return the number of batches of a rank; with "exact", only some ranks have a share of the last one."""
        full, rest = divmod(self._n, self.global_batch_size)
        return full + (last is not True and rest > (rank if last == "exact" else 0))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each batch; the class documents the epoch and the start."""
        run = self._begin()
        for span in self._spans(run):
            run.done += 1
            yield span.indices.tolist()

    def _begin(self) -> Run:
        """Begin an iteration: the next batch is number `run.done` of `run.epoch`.

        The caller takes batches from `_spans`, as far ahead as it likes. It increments `run.done`
        for each batch it hands out, because `epoch` and `state_dict` depend on it.

        Raises:
            RuntimeError: torch.distributed has another rank or world size than the sampler.
        """
        group = process_group()
        if self._follows_group and group is not None and group != (self._rank, self._world_size):
            raise RuntimeError(
                f"the sampler was made as rank {self._rank} of {self._world_size}, but torch.distributed now has rank "
                f"{group[0]} of {group[1]}: make it after init_process_group, or give it rank and world_size"
            )
        if self._run.begun:
            self._run = Run(epoch=self.epoch)
        # Each iteration keeps its own count: an older iteration that continues must not move the
        # position of a newer one.
        run = self._run
        run.begun = True
        return run

    def _spans(self, run: Run, batches: int = 1) -> Iterator[Span]:
        """Yield the batches of an iteration that are not done yet, several neighbours at a time.

        Args:
            run: A return value of `_begin`.
            batches: Maximum number of batches in a span.
        """
        epoch, size = self._epoch(run.epoch), self._batch_size
        ahead = self._read_ahead(epoch)
        for first in range(run.done, len(self), batches):
            stop = min(first + batches, len(self))
            positions = self._positions(first, stop, epoch)
            sizes = [size] * (stop - first)
            sizes[-1] = len(positions) - size * (len(sizes) - 1)
            coming = None if ahead is None else np.concatenate([ahead.indices(batch) for batch in range(first, stop)])
            yield Span(positions, epoch.indices(positions), sizes, coming)

    def _read_ahead(self, epoch: Epoch) -> ReadAhead | None:
        """Return what to prefetch; None without blocks, and for several nodes, whose caches read ahead."""
        if epoch.blocks is None or self._nodes > 1:
            return None
        return ReadAhead(epoch, epoch.blocks, self._rank, self._world_size)

    def positions(self, batch: int, *, epoch: int | None = None) -> NDArray[np.int64]:
        """Return this rank's positions in the epoch order of one batch.

        The result is int64 (records in the batch,). Positions that fill up a last batch wrap around
        to the start.

        Args:
            batch: Number of the batch in its epoch.
            epoch: It matters only with an affinity. Default: `self.epoch`.

        Raises:
            IndexError: `batch` is not in [0, len(self)).
            ValueError: `epoch` is negative.
        """
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} is out of range: an epoch of this rank has {len(self)}")
        return self._positions(batch, batch + 1, self._epoch(epoch))

    def _positions(self, first: int, stop: int, epoch: Epoch) -> NDArray[np.int64]:
        """Return this rank's positions of batches [first, stop), one batch after the other."""
        if self._shares is not None and self._nodes > 1:
            return self._shares.of_rank(epoch, first, stop, self._rank) % self._n
        # Global batches are multiples of the number of ranks, so a rank's shares of neighbouring
        # batches form one range. Positions that fill up the last batch wrap around to the start.
        size = epoch.global_batch_size
        positions = np.arange(first * size + self._rank, min(stop * size, epoch.used), self._world_size, dtype=np.int64)
        return positions % self._n

    def indices(self, batch: int, *, epoch: int | None = None) -> NDArray[np.int64]:
        """Return the indices of one batch of this rank, int64 (records in the batch,).

        No iteration is affected.

        Args:
            batch: Number of the batch in its epoch.
            epoch: Default: `self.epoch`.

        Raises:
            IndexError: `batch` is not in [0, len(self)).
            ValueError: `epoch` is negative.
        """
        return self._epoch(epoch).indices(self.positions(batch, epoch=epoch))

    def _epoch(self, number: int | None = None) -> Epoch:
        """Return an epoch of all ranks; by default the current one."""
        size, n = self.global_batch_size, self._n
        return Epoch(
            number=self.epoch if number is None else integer("epoch", number, 0, WORD),
            seed=self._seed,
            positions=n,
            used={True: n // size * size, "pad": -(-n // size) * size, "exact": n}[self._last],
            global_batch_size=size,
            shuffle=self._shuffle,
            draw=self._draw,
        )

    def _check_data(self, data: Sized) -> None:
        """Refuse a data set with other records than the sampler's.

        Raises:
            ValueError: its length differs, or it is another view of the files.
        """
        if self._records != len(data):
            raise ValueError(
                f"the batch sampler is for {self._records} records, the data set has {len(data)}: "
                "make it of this data set"
            )
        if self._snapshots and self._view != _view(data):
            raise ValueError(
                "the batch sampler is for other records of the files than the data set has: make it of this data set, "
                "or of a view made by the same steps"
            )

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
    def nodes(self) -> int:
        """Number of nodes that the affinity is for; 1 without an affinity."""
        return self._nodes

    @property
    def affinity(self) -> Literal["shard"] | None:
        """Whether nodes mostly read their own shards."""
        return None if self._shares is None else "shard"

    @property
    def num_samples(self) -> int:
        """Positions of an epoch: the number of records, or `num_samples` for weights or balance."""
        return self._n

    @property
    def repeat(self) -> int:
        """How many times in a row a record comes."""
        return self._repeat

    @property
    def seed(self) -> int:
        """The seed of the epoch orders; loading a state replaces it."""
        return self._seed

    @property
    def shuffle(self) -> bool | Blocks:
        """Whether the epoch order is a permutation; `Blocks` with their numbers if of blocks."""
        return self._shuffle

    # No `drop_last` attribute here. Lightning takes an object with batch_size and drop_last for
    # torch's BatchSampler, and rebuilds it around a sampler of its own; the records would then be
    # divided twice. Without the attribute, Lightning reports what to do instead.

    @property
    def sampler(self) -> FastRecordBatchSampler:
        """The sampler itself, for frameworks that call `batch_sampler.sampler.set_epoch`."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch of the current iteration; the next epoch once its last batch was yielded."""
        return self._run.epoch + self._handed_out_all()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        The same epoch again changes nothing during its iteration, or while a loaded state waits to
        be continued in it.

        Raises:
            TypeError: not an int.
            ValueError: negative.
        """
        epoch = integer("epoch", epoch, 0, WORD)
        if epoch != self._run.epoch or self._handed_out_all():
            self._run = Run(epoch=epoch)

    def state_dict(self, batches_done: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch, ready for JSON; `load_state_dict` continues from it.

        The state is the same on all ranks that have done equally many batches, and valid for all
        ranks. Save the state of rank 0.

        Args:
            batches_done: Batches of the newest epoch that this rank has consumed, counted from the
                epoch's start, also after a resume. A DataLoader with workers takes batches from the
                sampler ahead of the consumer, so only the consumer knows this number. Default: the
                batches yielded, which is right without workers.

        Raises:
            TypeError: `batches_done` is not an int.
            ValueError: it is not in [0, len(self)].
        """
        done = self._run.done if batches_done is None else integer("batches_done", batches_done, 0, len(self) + 1)
        over = done >= len(self) and (batches_done is not None or self._run.begun)
        blocks = self._shuffle if isinstance(self._shuffle, Blocks) else None
        return {
            "version": STATE_VERSION,
            "seed": self._seed,
            "epoch": self._run.epoch + over,
            "batches_done": 0 if over else done,
            "global_batch_size": self.global_batch_size,
            "shuffle": self._shuffle if blocks is None else "blocks",
            "block_records": None if blocks is None else blocks.records,
            "window_blocks": None if blocks is None else blocks.window,
            "drop_last": self._last,
            "records": self._records,
            "samples": self._n,
            "draw": None if self._draw is None else self._draw.recipe,
            "view": self._view,
            "snapshots": copy.deepcopy(self._files),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next iteration yields the remaining batches, in constant time.

        The sampler takes over the state's seed. It also takes over `drop_last` and blocks, unless they
        were given to the constructor. The world size may differ.

        Raises:
            TypeError, ValueError: the state is malformed, of another version, of other data, or of
                another global batch size (the message names the `batch_size` that fits); or it
                differs in shuffle, or in a given `drop_last` or blocks. Then nothing has changed.
        """
        loaded = State.parse(state)
        loaded.check_data(self._snapshots, self._records, self._view)
        loaded.check_draw(None if self._draw is None else self._draw.recipe, self._n)
        if loaded.global_batch_size != self.global_batch_size:
            here = f"here {self._world_size} ranks x batch_size {self._batch_size} = {self.global_batch_size}"
            fitting, rest = divmod(loaded.global_batch_size, self._world_size)
            advice = f"use batch_size={fitting}" if rest == 0 else "use a number of ranks that divides it"
            raise ValueError(f"the state has a global batch size of {loaded.global_batch_size}, {here}: {advice}")
        given = self._given
        if not (given.allows(loaded.shuffle) if isinstance(given, Blocks) else given == loaded.shuffle):
            raise ValueError(
                f"the state has shuffle={loaded.shuffle!r}, this sampler shuffle={given!r}: make them equal"
            )
        if self._last_given and loaded.drop_last != self._last:
            raise ValueError(
                f"the state has drop_last={loaded.drop_last!r}, this sampler drop_last={self._last!r}: make them equal"
            )
        # Count the batches of rank 0, which has the most: a state is valid for every rank, even for
        # one without batches left.
        batches = self._batches(0, loaded.drop_last)
        if loaded.batches_done >= batches:
            raise ValueError(f"the state leaves no batch: it has {loaded.batches_done} done, an epoch has {batches}")
        self._seed = loaded.seed
        self._last = loaded.drop_last
        self._shuffle = loaded.shuffle
        self._run = Run(epoch=loaded.epoch, done=loaded.batches_done)

    def __repr__(self) -> str:
        """Describe the data and the order."""
        draw = "" if self._draw is None else f", {self._draw.recipe['kind']}"
        ranks = f", rank={self._rank}, world_size={self._world_size}" if self._world_size > 1 else ""
        if self._shares is not None:
            ranks += f", affinity='shard', nodes={self._nodes}"
        return (
            f"{type(self).__name__}({self._records:,} records, {len(self):,} batches of {self._batch_size}, "
            f"shuffle={self._shuffle!r}{draw}, seed={self._seed}{ranks}, drop_last={self._last!r}, epoch={self.epoch})"
        )

    def _handed_out_all(self) -> bool:
        return self._run.begun and self._run.done >= len(self)


@dataclass(slots=True)
class Run:
    """One pass through an epoch: an iteration, or (not begun) the plan of the next one.

    Attributes:
        epoch: Its number.
        done: Batches handed out.
        begun: Whether an iteration has begun.
    """

    epoch: int
    done: int = 0
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring batches of one rank.

    Attributes:
        positions: Of the records in the epoch's order, int64 (N,).
        indices: The records, as numbers in the data, int64 (N,).
        sizes: Number of records of each batch; their sum is N.
        ahead: The indices to prefetch meanwhile, int64 (M,); None if the order is not by blocks.
    """

    positions: NDArray[np.int64]
    indices: NDArray[np.int64]
    sizes: list[int]
    ahead: NDArray[np.int64] | None


def process_group() -> tuple[int, int] | None:
    """Return rank and world size of torch.distributed's process group; None without a group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _nodes(affinity: Any, nodes: int | None, world_size: int) -> int:
    """Return the number of nodes for a sampler's arguments; 1 without an affinity."""
    if affinity is None:
        if nodes is not None:
            raise ValueError('nodes is for affinity="shard"')
        return 1
    if affinity != "shard":
        raise ValueError(f'affinity is "shard" or None, not {affinity!r}')
    if nodes is None:
        local = 1 if world_size == 1 else local_ranks()
        if local is None:
            raise ValueError("affinity needs the number of nodes: give nodes=, or start the ranks with torchrun")
        nodes = world_size // local
    nodes = integer("nodes", nodes, 1)
    if world_size % nodes:
        raise ValueError(f"nodes is a divisor of world_size, which is {world_size}, not {nodes}")
    return nodes


def _view(data: Sized) -> str | None:
    """Return a digest of the view that data are; None for all records of their files, or without files."""
    selection: Any = getattr(data, "selection", None)
    return None if selection is None else selection.rows.fingerprint
