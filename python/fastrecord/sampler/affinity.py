"""`Affinity`: which node should read a record, so that the nodes' caches share a data set.

A pure function of the seed and the number of nodes: all ranks compute the same, without a message.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import permute

Numbers = NDArray[np.int64]

# Each node has at least about so many pieces of a data set. Shards are cut for it if they are few.
_PIECES = 64


class Affinity:
    """Gives each piece of a data set to one node: its shards, or parts of them if they are large.

    Pieces are dealt in an order drawn from the seed, so that each node has a random part of the data
    set, and each node gets the same number of records within one piece. It stays the same over all
    epochs: what a node has in its cache is what it reads again.

    Args:
        data: A FastRecordDataset, whose shards are the pieces; any other object with a length is one
            shard.
        nodes: Number of nodes.
    """

    def __init__(self, data: Sized, nodes: int) -> None:
        selection = getattr(data, "selection", None)
        self.nodes = nodes
        self._rows: Any = None if selection is None else selection.rows
        ends = np.array([len(data)], np.int64) if selection is None else np.asarray(selection.shards.ends, np.int64)
        starts = np.r_[0, ends[:-1]]
        most = max(1, int(ends[-1]) // (_PIECES * nodes))
        # Piece j of a shard ends at the j-th part of it.
        parts = np.maximum(-(-(ends - starts) // most), 1)
        at = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
        self._ends = np.repeat(starts, parts) + np.repeat(ends - starts, parts) * (at + 1) // np.repeat(parts, parts)
        self._owners: tuple[int, Numbers] | None = None

    def owners(self, seed: int) -> Numbers:
        """Return the node of each piece, int64 (pieces,)."""
        if self._owners is None or self._owners[0] != seed:
            count = len(self._ends)
            order = permute(count, seed, self.nodes, np.arange(count, dtype=np.int64))
            sizes = np.diff(self._ends, prepend=0)[order]
            # The node in whose share of all records the middle of the piece lies.
            middles = 2 * np.cumsum(sizes) - sizes
            owners = np.empty(count, np.int64)
            owners[order] = np.minimum(middles * self.nodes // (2 * int(self._ends[-1])), self.nodes - 1)
            self._owners = seed, owners
        return self._owners[1]

    def of(self, seed: int, indices: Numbers) -> Numbers:
        """Return the node that should read each record, int64 (N,).

        Args:
            seed: Of the sampler.
            indices: Of records in the data set, int64 (N,).
        """
        rows = indices if self._rows is None else self._rows.take(indices)
        return self.owners(seed)[np.searchsorted(self._ends, rows, side="right")]


def divide(wanted: Numbers, shares: Numbers) -> Numbers:
    """Return which node gets which item: the one that wants it, as long as its share has room.

    Items for which there is none go to nodes with room left, both in ascending order.

    Args:
        wanted: The node that wants each item of each group, int64 (groups, items).
        shares: Items that each node gets of a group, int64 (nodes,); their sum is the number of items.

    Returns:
        int64 (groups, items).
    """
    groups, items = wanted.shape
    nodes = len(shares)
    order = np.argsort(wanted, axis=1, kind="stable")
    sorted_nodes = np.take_along_axis(wanted, order, axis=1)
    flat = (wanted + nodes * np.arange(groups)[:, None]).ravel()
    counts = np.bincount(flat, minlength=groups * nodes).reshape(groups, nodes)
    starts = np.cumsum(counts, axis=1) - counts
    # Each item's number among those that its node wants.
    numbers = np.arange(items) - np.take_along_axis(starts, sorted_nodes, axis=1)
    over = np.empty((groups, items), bool)
    np.put_along_axis(over, order, numbers >= shares[sorted_nodes], axis=1)
    given = wanted.copy()
    room = np.maximum(shares - counts, 0)
    given[over] = np.repeat(np.tile(np.arange(nodes), groups), room.ravel())
    return given
