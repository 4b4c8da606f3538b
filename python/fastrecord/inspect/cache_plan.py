"""`plan_cache`: what the caches of nodes will download, decided for each record.

Reads the sizes of records, no payloads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import payload_fields, payload_parts
from fastrecord.checks import byte_count, integer
from fastrecord.sampler.node import NodeOrder
from fastrecord.store.plan import CachePlan, Order, plan_nodes

if TYPE_CHECKING:
    from fastrecord.dataset.dataset import FastRecordDataset
    from fastrecord.sampler.batch_sampler import FastRecordBatchSampler


def plan_cache(
    sampler: FastRecordBatchSampler,
    data: FastRecordDataset,
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
    sampler._check_data(data)
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
    return plan_nodes(orders, _record_bytes(data), limit, epochs, ranks)


def _record_bytes(data: FastRecordDataset) -> NDArray[np.int64]:
    """Return the bytes that a sample reads of each row, as they are stored, int64 (rows,).

    Values that lie in columns, such as numbers, do not count.
    """
    shards, fields = data.selection.shards, data.selection.fields
    sizes = np.zeros(len(shards), np.int64)
    for number, (reader, stop) in enumerate(zip(shards.readers, shards.ends, strict=True)):
        supply, own = shards.supply(number), sizes[stop - len(reader) : stop]
        if supply is not None:
            own += supply.sizes(fields)
            continue
        for name in {*payload_fields(reader)}.intersection(fields):
            parts = payload_parts(reader, name, np.arange(len(reader))).reshape(-1, 4)
            own += parts[:, 1] + parts[:, 3]
    return sizes
