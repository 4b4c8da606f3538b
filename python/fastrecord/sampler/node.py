"""`NodeOrder`: which records one node uses in which step; and the plan of its cache from that.

Reads no payloads.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.checks import byte_count, integer
from fastrecord.sampler.affinity import Affinity
from fastrecord.sampler.blocks import Blocks
from fastrecord.sampler.shares import Shares
from fastrecord.store.plan import CachePlan, Order, Visits, plan_nodes

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
        size, used = sampler.global_batch_size, sampler.whole(0).used
        self.batches = max(1, _STEP_RECORDS * nodes // size)
        self.steps = -(-used // (self.batches * size))
        self.together = 1
        if sampler.shuffle is False or isinstance(sampler.shuffle, Blocks):
            blocks = sampler.shuffle or Blocks()
            self.together = blocks.filled(getattr(data, "snapshots", ())).records or 1

    def visits(self, epoch: int) -> Visits:
        """Return the visits of an epoch."""
        whole = self._sampler.whole(epoch)
        size, n = whole.global_batch_size, whole.positions
        positions = self._shares.of_node(whole, 0, -(-whole.used // size), self._node)
        last = positions // (size * self.batches)
        indices = whole.rows(positions % n)
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


def plan_cache(
    sampler: FastRecordBatchSampler,
    data: Any,
    *,
    cache_size: int | str | None,
    epochs: int = 3,
    nodes: int | None = None,
    ranks: int | None = None,
) -> CachePlan:
    """Return what the caches of the nodes will download in each epoch, from empty ones on.

    A cache knows the order of all epochs beforehand, and gives up first what is needed again last
    (docs/scale.md). The plan is computed by the code that later decides: for 1.28 million records in
    some seconds an epoch. It reads the sizes of all records, so it opens every shard. `fastrecord
    plan --cache` estimates without a data set.

    Args:
        sampler: The sampler, of any rank.
        data: The FastRecordDataset that it was made for.
        cache_size: Bytes of a node's cache, or text such as "500GiB"; None: without limit.
        epochs: Epochs to plan, from 0 on.
        nodes: Number of nodes, each with a cache of its own. Default: the sampler's with an
            affinity, else 1.
        ranks: Number of ranks on all nodes. Default: the sampler's world size. The global batches
            are the sampler's in any case.

    Raises:
        ValueError: the cache is too small for what a step needs at once (the error names the least
            size), `nodes` does not divide `ranks`, or `ranks` not the global batch size; the sampler
            is for other records.
        TypeError: an argument has another type.
    """
    sampler.check_data(data)
    limit = None if cache_size is None else byte_count("cache_size", cache_size)
    epochs = integer("epochs", epochs, 1)
    ranks = integer("ranks", sampler.world_size if ranks is None else ranks, 1)
    nodes = integer("nodes", sampler.nodes if nodes is None else nodes, 1)
    if ranks % nodes or sampler.global_batch_size % ranks:
        raise ValueError(
            f"nodes divides ranks, and ranks divides the global batch size, but they are {nodes}, {ranks} and "
            f"{sampler.global_batch_size}"
        )
    orders: list[Order] = [NodeOrder(sampler, data, node, nodes=nodes, ranks=ranks) for node in range(nodes)]
    return plan_nodes(orders, record_bytes(data), limit, epochs, ranks)


def record_bytes(data: Any) -> NDArray[np.int64]:
    """Return the payload bytes of each row of a data set, int64 (rows,)."""
    sizes: NDArray[np.int64] = data.record_bytes()
    return sizes
