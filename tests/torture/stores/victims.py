"""The records, and the processes that read or send them until they are killed.

Each victim takes a connection to its killer first, and sends None when it begins.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import fastrecord as fr
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import read_values
from tests.support.packing import pack_with
from tests.torture import known

SHARDS, EACH = 4, 60
TOTAL = SHARDS * EACH
_KNOWN = ("data", "pixels")
FIELDS = ("number", *_KNOWN)
SCHEMA = fr.Schema({"number": "int64"} | {name: known.field_type(name) for name in _KNOWN})
_BATCH, _READ, _EPOCHS = 6, 40, 2
_SEED = 5


@dataclass(frozen=True)
class Reading:
    """How victims read.

    Attributes:
        url, options: The data set.
        cache: The folder.
        limit: Bytes of the cache at most.
    """

    url: str
    options: Mapping[str, Any]
    cache: str
    limit: int | None

    def dataset(self) -> fr.FastRecordDataset:
        """Open the data set."""
        return fr.FastRecordDataset(
            self.url, fields=FIELDS, store=fr.Store(self.options, cache=self.cache, cache_size=self.limit)
        )


def record(number: int) -> dict[str, Any]:
    """A record."""
    return {"number": number} | known.record(1, number, _KNOWN)


def check(numbers: Sequence[int], found: Mapping[str, Any], where: str) -> None:
    """Compare what was read with what was written.

    Raises:
        AssertionError: it differs; the message names the record.
    """
    for name in _KNOWN:
        known.compare(1, numbers, name, found[name], where)


def download(conn: Connection, reading: Reading, seed: int) -> None:
    """Read all records in some order, as a loader's threads do."""
    conn.send(None)
    shards = Shards.open(reading.url, store=fr.Store(reading.options, reading.cache, reading.limit))
    order = np.random.default_rng(seed).permutation(len(shards))
    for start in range(0, len(order), _READ):
        rows = order[start : start + _READ]
        found = read_values(shards, rows, list(FIELDS), verify=True)
        check(rows.tolist(), found, "a downloader")
        if found["number"].tolist() != rows.tolist():
            raise AssertionError(f"records {rows}: {found['number']}")


def hold_open(conn: Connection, reading: Reading, seed: int) -> None:
    """Have the cache open, so that no start of another process is the first one; then read all records."""
    shards = Shards.open(reading.url, store=fr.Store(reading.options, reading.cache, reading.limit))
    read_values(shards, np.arange(1), ["data"], verify=True)
    conn.send(None)
    conn.recv()
    download(conn, reading, seed)


def rank(conn: Connection, reading: Reading, number: int, ranks: int, shuffle: Any) -> None:
    """Read some epochs, as one of the ranks of a node; send the records of each epoch."""
    os.environ |= {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0"}
    conn.send(None)
    dataset = reading.dataset()
    sampler = fr.FastRecordBatchSampler(
        dataset, _BATCH, shuffle=shuffle, seed=_SEED, rank=number, world_size=ranks, drop_last="exact"
    )
    loader = fr.FastRecordLoader(dataset, batch_sampler=sampler, threads=1)
    for _ in range(_EPOCHS):
        seen: list[int] = []
        for batch in loader:
            numbers = batch["number"].tolist()
            check(numbers, batch, "a rank")
            seen += numbers
        conn.send(seen)


def each_once(parts: Iterable[Sequence[Sequence[int]]]) -> None:
    """Check that the ranks together have read each record once in each epoch.

    Raises:
        AssertionError: one is lost or came twice.
    """
    for epoch, shares in enumerate(zip(*parts, strict=True)):
        counts = Counter(number for share in shares for number in share)
        if counts != Counter(range(TOTAL)):
            wrong = {number: counts[number] for number in range(TOTAL) if counts[number] != 1}
            raise AssertionError(f"epoch {epoch}: records that did not come once: {wrong}")


def pack(conn: Connection, src: str, url: str, staging: str, options: Mapping[str, Any]) -> None:
    """Pack a folder of images into a store, or continue it."""
    conn.send(None)
    pack_with(src, url, shards=SHARDS, mode="resume", staging=staging, store=fr.Store(options))


def send(conn: Connection, src: str, dst: str, options: Mapping[str, Any]) -> None:
    """Copy a data set to a store, or from there."""
    conn.send(None)
    fr.files.copy(src, dst, overwrite=True, store=fr.Store(options))
