"""`NodeOrder`: which records one node uses in which step.

Reads no payloads.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.sampler.affinity import Affinity
from fastrecord.sampler.blocks import Blocks
from fastrecord.sampler.shares import Shares
from fastrecord.store.plan import Visits

if TYPE_CHECKING:
    from fastrecord.sampler.batch_sampler import FastRecordBatchSampler

# Records of a step, at least, unless a batch has more. More steps take longer to plan.
_STEP_RECORDS = 64


class NodeOrder:
    """The uses of all ranks of a node: the `Order` of its cache. Units are rows of the data set.

    A step is a global batch, or several neighbouring ones where they are small. With `shuffle="blocks"`
    and without a shuffle, neighbouring records come together: all that the node needs of a block is
    here before the first step that uses any of it, so that one request brings them. Each goes when
    it has been used itself.

    Args:
        sampler: Of any of the node's ranks.
        data: What it samples from.
        node: The node's number.
        nodes: Number of nodes. Default: the sampler's.
        ranks: Ranks of all nodes. Default: the sampler's. The global batches stay what they are.

    Attributes:
        batches: Batches of a step.
        together: Neighbouring rows that come together, at most.
        steps: Steps of an epoch.
        units: Number of rows.
    """

    def __init__(
        self,
        sampler: FastRecordBatchSampler,
        data: Sized,
        node: int = 0,
        *,
        nodes: int | None = None,
        ranks: int | None = None,
    ) -> None:
        self._sampler, self._node = sampler, node
        nodes = sampler.nodes if nodes is None else nodes
        affinity = None if sampler.affinity is None else Affinity(data, nodes)
        self._shares = Shares(sampler.world_size if ranks is None else ranks, nodes, affinity)
        selection: Any = getattr(data, "selection", None)
        self._rows = None if selection is None else selection.rows
        self.units = len(data) if selection is None else int(selection.shards.ends[-1])
        size, used = sampler.global_batch_size, sampler._epoch(0).used
        self.batches = max(1, _STEP_RECORDS * nodes // size)
        self.steps = -(-used // (self.batches * size))
        self.together = 1
        if sampler.shuffle is False or isinstance(sampler.shuffle, Blocks):
            blocks = sampler.shuffle or Blocks()
            self.together = blocks.filled(getattr(data, "snapshots", ())).records or 1

    def visits(self, epoch: int) -> Visits:
        """Return the visits of an epoch."""
        whole = self._sampler._epoch(epoch)
        size, n = whole.global_batch_size, whole.positions
        positions = self._shares.of_node(whole, 0, -(-whole.used // size), self._node)
        last = positions // (size * self.batches)
        indices = whole.indices(positions % n)
        rows = indices if self._rows is None else self._rows.take(indices)
        first = last
        if self.together > 1:
            # Positions that fill up the last batch come once more, alone.
            own = slice(0, int(np.searchsorted(positions, n)))
            first = np.r_[_brought(indices[own] // self.together, last[own]), last[own.stop :]]
        key = first * self.units + rows
        order = np.argsort(key, kind="stable")
        key = key[order]
        # Records that come several times in a step are one visit, which ends with the last of them.
        order = order[np.r_[key[1:] != key[:-1], np.ones(min(len(key), 1), bool)]]
        return Visits(rows[order], first[order], last[order])

    def step(self, epoch: int, batch: int) -> int:
        """Return the step of a batch, counted through the epochs as in `Decision`."""
        return epoch * self.steps + batch // self.batches


def _brought(groups: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the step before which the group of each record is brought, int64 (N,).

    It is the step of the group's first record, or an earlier one: as early as the records that are
    here are at no step more than they must be at the fullest one. So groups come steadily, while
    records that came before are used, instead of a whole window at once.

    Args:
        groups: Records that come together, int64 (N,), in the order of their use.
        steps: The steps of their use, int64 (N,), ascending.
    """
    _, places, numbers, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(places)
    come = np.cumsum(counts[order])
    # Records that came and are not used before the first use of each group.
    most = int((come - np.searchsorted(steps, steps[places[order]])).max(initial=0))
    brought = np.zeros(len(places), np.int64)
    late = come > most
    brought[order[late]] = steps[come[late] - most - 1] + 1
    return brought[numbers]
