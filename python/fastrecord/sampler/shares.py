"""`Shares`: which positions of each global batch the nodes and ranks have.

Ranks 0 to r - 1 are on node 0, the next r on node 1, and so on, as torchrun numbers them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastrecord.sampler.affinity import Affinity, divide
from fastrecord.sampler.epoch import Epoch

Numbers = NDArray[np.int64]

# Positions that are divided at a time, and windows of blocks whose division is kept.
_CHUNK = 1 << 20
_WINDOWS = 4


@dataclass
class Shares:
    """Divides global batches among nodes, and a node's part among its ranks.

    Without an affinity, rank r has every `ranks`-th position of a batch, from the r-th on. With one,
    each node gets the records that should be read there, as long as its share of the batch has room;
    the rest go where there is room. The nodes' shares are as large as without an affinity.

    An order by blocks is divided in two steps. Of each window, a node gets whole blocks, as many as
    its share; of each batch, first the records of these blocks.

    Attributes:
        ranks, nodes: Their numbers; `nodes` divides `ranks`.
        affinity: Which node should read a record.
    """

    ranks: int
    nodes: int
    affinity: Affinity | None = None
    _windows: OrderedDict[tuple[int, int, int], tuple[Numbers, Numbers]] = field(default_factory=OrderedDict)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_windows": OrderedDict()}

    def of_node(self, epoch: Epoch, first: int, stop: int, node: int) -> Numbers:
        """Return a node's positions of batches [first, stop), ascending, before they wrap around.

        int64 (N,).
        """
        size, each = epoch.global_batch_size, self.ranks // self.nodes
        start, stop = first * size, min(stop * size, epoch.used)
        if self.nodes == 1:
            return np.arange(start, stop, dtype=np.int64)
        if self.affinity is None:
            own = np.arange(node * each, (node + 1) * each, dtype=np.int64)
            # Global batches are multiples of the number of ranks.
            positions = (np.arange(start, stop, self.ranks, dtype=np.int64)[:, None] + own).ravel()
            return positions[positions < stop]
        batches = max(1, _CHUNK // size)
        parts = []
        for at in range(start, stop, batches * size):
            positions = np.arange(at, min(at + batches * size, stop), dtype=np.int64)
            parts.append(positions[self._nodes_of(self.affinity, epoch, positions) == node])
        return np.concatenate([*parts, np.empty(0, np.int64)])

    def of_rank(self, epoch: Epoch, first: int, stop: int, rank: int) -> Numbers:
        """Return a rank's positions of batches [first, stop), as `of_node`, int64 (N,)."""
        size, each = epoch.global_batch_size, self.ranks // self.nodes
        own = self.of_node(epoch, first, stop, rank // each)
        batches = own // size
        # The number of each position in its node's part of its batch.
        starts = np.searchsorted(batches, batches)
        mine: Numbers = own[(np.arange(len(own)) - starts) % each == rank % each]
        return mine

    def _nodes_of(self, affinity: Affinity, epoch: Epoch, positions: Numbers) -> Numbers:
        """Return the node of each position of whole batches, int64 (N,).

        Args:
            affinity: Which node should read a record.
            epoch: The epoch.
            positions: Neighbours, from the first of a batch on, int64 (N,).
        """
        size = epoch.global_batch_size
        wanted = self._wanted(affinity, epoch, positions % epoch.positions)
        full = len(positions) // size * size
        parts = []
        for part, items in ((wanted[:full], size), (wanted[full:], len(wanted) - full)):
            if len(part):
                # Ranks that come first have one more, if the batch does not divide evenly.
                ranks = items // self.ranks + (np.arange(self.ranks) < items % self.ranks)
                shares = ranks.reshape(self.nodes, -1).sum(axis=1)
                parts.append(divide(part.reshape(-1, items), shares).ravel())
        return np.concatenate([*parts, np.empty(0, np.int64)])

    def _wanted(self, affinity: Affinity, epoch: Epoch, positions: Numbers) -> Numbers:
        """Return the node that should read the record at each position, int64 (N,)."""
        indices, order = epoch.indices(positions), epoch.blocks
        if order is None:
            return affinity.of(epoch.seed, indices)
        wanted = np.empty(len(positions), np.int64)
        at = 0
        while at < len(positions):
            start, stop = order.window(int(positions[at]))
            run = positions[at : at + stop - start]
            # Positions ascend, but may wrap around once.
            count = int(np.argmin((run >= positions[at]) & (run < stop))) or len(run)
            blocks, nodes = self._window(affinity, epoch, start, stop)
            wanted[at : at + count] = nodes[np.searchsorted(blocks, indices[at : at + count] // epoch.block_records)]
            at += count
        return wanted

    def _window(self, affinity: Affinity, epoch: Epoch, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """Return the blocks of a window, ascending, and the node of each."""
        key, records = (epoch.seed, epoch.number, start), epoch.block_records
        if key not in self._windows:
            blocks = np.unique(epoch.indices(np.arange(start, stop, dtype=np.int64)) // records)
            # The nodes that have one block more take turns.
            turns = (np.arange(self.nodes) - start // records) % self.nodes
            shares = len(blocks) // self.nodes + (turns < len(blocks) % self.nodes)
            wanted = affinity.of(epoch.seed, blocks * records)
            self._windows[key] = blocks, divide(wanted[None], shares)[0]
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        return self._windows[key]
