"""An S3 server, and data sets in it."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord._core import crc32c
from tests.support import packing
from tests.support.machines.stores import Server, started

SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "key": fr.string()})
SHARDS, EACH, BYTES = 3, 40, 30_000


@dataclass(frozen=True)
class Data:
    """A data set of shards, on this machine and in the store."""

    folder: Path
    url: str

    @property
    def total(self) -> int:
        return SHARDS * EACH

    def payload(self, record: int) -> bytes:
        return payload(record)


def payload(record: int) -> bytes:
    return np.random.default_rng(record).bytes(BYTES)


def write_shards(folder: Path, *, shards: int = SHARDS, each: int = EACH) -> Path:
    def record(number: int) -> dict[str, Any]:
        return {"data": payload(number), "label": number % 7, "key": f"record-{number}"}

    return packing.write_shards(folder, SCHEMA, shards, each, record)


def lose_place(path: Path, record: int) -> None:
    """Give a record an unknown codec, and the next one a checksum with which that of the column is as before."""
    content, delta = bytearray(path.read_bytes()), bytes([0xFF, *bytes(27)])
    at = content.index(struct.pack("<QQQ", content.index(payload(record)[:64]), BYTES, BYTES)) + 28
    content[at] ^= delta[0]
    crc = int.from_bytes(content[at + 28 : at + 32], "little") ^ crc32c(delta) ^ crc32c(bytes(len(delta)))
    content[at + 28 : at + 32] = crc.to_bytes(4, "little")
    path.write_bytes(content)


def data_of(url: str, server: Server, cache: Path | None = None, size: int | str | None = None) -> fr.FastRecordDataset:
    """Open the values of a data set in the store."""
    return fr.FastRecordDataset(url, fields=("data",), store=fr.Store(server.options, cache, size))


@pytest.fixture(scope="session")
def running_server() -> Iterator[Server]:
    with started() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Server:
    running_server.reset()
    return running_server


@pytest.fixture
def environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, which the environment of this process names as that of `s3://`."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    options = server.options
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    return server


@pytest.fixture(scope="session")
def stored(running_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = write_shards(tmp_path_factory.mktemp("stored") / "train")
    return Data(folder, running_server.put_folder("train", folder))


def assert_once(server: Server) -> None:
    """Check that no byte of a shard was asked for twice, except by the gaps between parts."""
    names = {request.path for request in server.requests if request.path.endswith(".frec")}
    assert names
    for name in names:
        seen: Counter[int] = Counter()
        for start, stop in server.stretches(name):
            seen.update(range(start // 512, stop // 512))
        twice = [block for block, times in seen.items() if times > 1]
        # Neighbours share blocks of bytes.
        assert len(twice) <= 0.05 * len(seen), (name, len(twice), len(seen))
