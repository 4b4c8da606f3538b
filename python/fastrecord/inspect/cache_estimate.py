"""`estimate_cache`: what caches of the known future download, from closed formulas.

For data sets that are too large to list their records, or do not exist yet. docs/scale.md derives the
formulas; tests compare them with plans, which decide for each record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastrecord.inspect.findings import Answer
from fastrecord.inspect.plan_options import CacheOptions, CacheShuffle, Cluster, Data, Training
from fastrecord.inspect.tables import IMAGE_BYTES, IMAGES

# As the caches and samplers have them.
_BLOCK_BYTES = 4 << 20
_REQUEST = 8 << 20
_MOST_AHEAD = _PART_AHEAD = 16
# Requests that open a shard.
_OPEN = 3


@dataclass(frozen=True)
class CacheEstimate(Answer):
    """An estimate of what the caches of a run download.

    Attributes:
        images, image_bytes, gpus, nodes, batch, shuffle, affinity: As given.
        cache_bytes: Bytes of a node's cache.
        first_epoch_bytes: Bytes that all nodes download in the first epoch.
        epoch_bytes: The same for each later epoch.
        first_epoch_requests, epoch_requests: Requests of all nodes for records.
        open_requests: Requests of all nodes that open shards, at most, in the first epoch.
        least_cache_bytes: The least cache of a node.
        cache_for_all_bytes: The cache of a node with which later epochs download only what goes to
            other nodes than before; 0 if no size does it.
        spilled: Share of the records that go to another node than the one that should read them.
    """

    images: float
    image_bytes: float
    gpus: int
    nodes: int
    batch: int
    shuffle: CacheShuffle
    affinity: bool
    cache_bytes: float
    first_epoch_bytes: float
    epoch_bytes: float
    first_epoch_requests: float
    epoch_requests: float
    open_requests: float
    least_cache_bytes: float
    cache_for_all_bytes: float
    spilled: float


def estimate_cache(cluster: Cluster, training: Training, data: Data, options: CacheOptions) -> CacheEstimate:
    """Estimate what the caches of a run download, from averages.

    Args:
        cluster: Its GPUs and nodes count; each node has a cache of its own.
        training: Its batch counts.
        data: Its images and their bytes count.
        options: The caches and the order.

    Raises:
        ValueError: the cache is smaller than the least one, which the error names.
    """
    given = data.amounts() | options.amounts()
    images, image_bytes = given.get("images", IMAGES), given.get("image_bytes", IMAGE_BYTES)
    cache, shard_bytes = given["cache"], given["shard_bytes"]
    gpus, nodes, batch = cluster.gpus, cluster.nodes, training.batch
    shuffle, affinity, window = options.shuffle, options.affinity and nodes > 1, options.window
    block = options.block or 1 << max(0, int(_BLOCK_BYTES / image_bytes).bit_length() - 1)

    share = images * image_bytes / nodes
    step = min(gpus * batch / nodes * image_bytes, share)
    mixed = min(block * window * image_bytes / nodes, share) if shuffle == "blocks" else 0.0
    if shuffle == "none":
        mixed = min(block * image_bytes / nodes, share)
    least = mixed + step
    if cache < least:
        raise ValueError(f"cache is too small for this order: a node needs at least {math.ceil(least):,} bytes")
    ahead = min(_MOST_AHEAD, max(1, int(cache / (_PART_AHEAD * step))))
    while ahead and (mixed + (ahead + 1) * step) * 9 > cache * 8:
        ahead //= 2
    # What waits to be used, or has just been used, has no place for a later epoch; unless it has one.
    waiting = (mixed + (ahead + 1) * step) * max(0.0, 1 - cache / share)
    kept = max(0.0, cache - waiting)

    by_batch = spilled = 0.0
    again = share
    if nodes > 1 and affinity:
        by_batch = spill(gpus * batch, nodes)
        by_window = 0.0
        if shuffle == "blocks":
            records = min(block * window, images)
            by_batch *= _without_replacement(gpus * batch / records)
            by_window = spill(int(min(window, images / block)) or 1, nodes)
        spilled = 1 - (1 - by_batch) * (1 - by_window)
        again = share * (1 - spilled)
    elif nodes > 1:
        # One in `nodes` of the records comes to the same node in the next epoch. These are kept, and
        # others while there is room; one in `nodes` of the others comes in the epoch after that.
        again = min(share, (share + kept) / (nodes + 1))
    later = share - min(kept, again)

    run = image_bytes if shuffle == "full" or (nodes > 1 and not affinity) else block * image_bytes
    if shuffle == "none":
        run = max(run, step)  # the runs that a step begins are neighbours
    requests = [_requests(amount, share * by_batch, run, image_bytes) for amount in (share, later)]
    return CacheEstimate(
        images=images,
        image_bytes=image_bytes,
        gpus=gpus,
        nodes=nodes,
        batch=batch,
        shuffle=shuffle,
        affinity=affinity,
        cache_bytes=cache,
        first_epoch_bytes=share * nodes,
        epoch_bytes=later * nodes,
        first_epoch_requests=requests[0] * nodes,
        epoch_requests=requests[1] * nodes,
        open_requests=_OPEN * nodes * math.ceil(images * image_bytes / shard_bytes),
        least_cache_bytes=least,
        cache_for_all_bytes=share if nodes == 1 or affinity else 0.0,
        spilled=spilled,
    )


def spill(items: int, nodes: int) -> float:
    """Return the share of items for which their own node has no room.

    Each of the items wants one of the nodes at random, and each node has room for its share of them.
    That is half the mean deviation of a binomial distribution, which De Moivre found.
    """
    if nodes == 1:
        return 0.0
    chance = 1 / nodes
    at = math.floor(items * chance) + 1
    if at > items:
        return 0.0
    logarithm = math.lgamma(items + 1) - math.lgamma(at + 1) - math.lgamma(items - at + 1)
    logarithm += at * math.log(chance) + (items - at) * math.log1p(-chance)
    return at * (1 - chance) * math.exp(logarithm) / (items * chance)


def _without_replacement(windows: float) -> float:
    """Return how much less spills if batches are drawn from windows in which all nodes are equal.

    Args:
        windows: Windows that a batch covers, on average over where it begins.
    """
    return math.sqrt(1 - windows + windows**2 / 3 if windows <= 1 else 1 / (3 * windows))


def _requests(amount: float, single: float, run: float, image_bytes: float) -> float:
    """Return the requests for bytes: some belong to single records, the rest lie in runs."""
    single = min(single, amount)
    # Each is missing in the run of another node, which comes in two parts.
    alone = (2 if run > image_bytes else 1) * single / image_bytes
    return alone + (amount - single) / run * math.ceil(run / _REQUEST)
