"""Breaks the k-th answer of a store, for all k, of a pack, a copy either way, and an epoch.

A proxy before a real S3 server answers one request with 500 or 503, cuts or loses its answer, is silent,
or flips a bit of what passes. The job ends with the right result, or with an error that names the object,
and with the right result when it is called again. Nothing is damaged or left.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastrecord as fr
from tests.support.machines.stores import Fault, Request, Server, before, started
from tests.support.packing import pack_with, records, write_many, write_shards
from tests.torture.experiment import MOST_FAILURES, Experiment, Outcome, Rounds

# "cut" half of the answer comes; "lost" the store has done it, and nothing comes; "silent" neither.
KINDS = ("500", "503", "cut", "lost", "silent", "flip")
_SCHEMA = fr.Schema({"number": "int64", "data": fr.bytes_()})
_SHARDS, _EACH = 2, 30


class _Job(ABC):
    """Something that makes requests, and whose result can be compared.

    Attributes:
        name: What it is called in the table.
        errors: How often it ended with an error, and was right when it was called again.
    """

    name = ""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.options: Mapping[str, Any] = {**server.options, "silence_seconds": 0.5, "retry_seconds": 60}
        self.count = self.errors = 0

    @abstractmethod
    def once(self, here: Path, url: str) -> None:
        """Do it, in an empty folder and at an empty URL."""

    @abstractmethod
    def look(self, here: Path, url: str) -> None:
        """Check the result.

        Raises:
            AssertionError: it is not the right one.
        """

    def run(self, fault: Callable[[], None]) -> int:
        """Do it with faults; return the requests that it made.

        Raises:
            AssertionError: it is not right in the end.
        """
        self.count += 1
        name = f"{type(self).__name__}-{self.count}"
        here = Path(tempfile.mkdtemp(dir=self.folder))
        fault()
        try:
            try:
                self.once(here, f"s3://bucket/{name}")
                made = len(self.server.requests)
            except (fr.FastRecordError, OSError) as error:
                if "s3://bucket" not in str(error):
                    raise AssertionError(f"does not say where: {error!r}") from error
                made = len(self.server.requests)
                self.errors += 1
                self.once(here, f"s3://bucket/{name}")
            self.server.reset()
            self.look(here, f"s3://bucket/{name}")
            return made
        finally:
            self.server.reset()
            self.server.delete(name)
            shutil.rmtree(here)


class _Sends(_Job):
    """A copy to the store, one shard of it in parts."""

    name = "copies to a store"

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._src = folder / "train"
        self._whole = {path.name: path.read_bytes() for path in self._src.iterdir()}

    def once(self, _here: Path, url: str) -> None:
        fr.files.copy(self._src, url, store=fr.Store(self.options))

    def look(self, _here: Path, url: str) -> None:
        _compare(self.server.objects(url.rpartition("/")[2]), self._whole)


class _Fetches(_Job):
    """A copy from the store."""

    name = "copies from a store"

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._url = server.put_folder("train", folder / "train")
        self._whole = {path.name: path.read_bytes() for path in (folder / "train").iterdir()}

    def once(self, here: Path, _url: str) -> None:
        fr.files.copy(self._url, here / "back", store=fr.Store(self.options))

    def look(self, here: Path, _url: str) -> None:
        _compare({path.name: path.read_bytes() for path in (here / "back").iterdir()}, self._whole)


class _Packs(_Job):
    """A pack over a data set that is there: it sends, replaces the manifest, and deletes."""

    name = "packs"

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._src = write_many(folder / "images", 8)
        pack_with(self._src, folder / "packed.frec")
        self._expected = records(folder / "packed.frec")

    def run(self, fault: Callable[[], None]) -> int:
        url = f"s3://bucket/{type(self).__name__}-{self.count + 1}"
        self._pack(self.folder, url)
        self.server.reset()
        return super().run(fault)

    def _pack(self, here: Path, url: str) -> None:
        pack_with(self._src, url, shards=2, mode="overwrite", staging=here / "staging", store=fr.Store(self.options))

    def once(self, here: Path, url: str) -> None:
        self._pack(here, url)

    def look(self, here: Path, url: str) -> None:
        back = here / "back"
        summary = fr.files.copy(url, back, store=fr.Store(self.options))
        if summary.shards != 2:
            raise AssertionError(f"{summary.shards} shards")
        found = [row for path in sorted(back.glob("*.frec")) for row in records(path)]
        if found != self._expected:
            raise AssertionError(f"{len(found)} records, not those of an undisturbed pack")
        objects = self.server.objects(url.rpartition("/")[2])
        objects.pop("dataset.json")
        _compare(objects, {path.name: path.read_bytes() for path in back.glob("*.frec")})


class _Trains(_Job):
    """An epoch of a loader, through a cache."""

    name = "epochs"

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._url = server.put_folder("train", folder / "train")
        self._seen: dict[int, bytes] = {}

    def once(self, here: Path, _url: str) -> None:
        dataset = fr.FastRecordDataset(
            self._url, fields=("number", "data"), store=fr.Store(self.options, cache=here / "cache")
        )
        loader = fr.FastRecordLoader(dataset, 7, threads=1)
        self._seen = {
            number: bytes(value)
            for batch in loader
            for number, value in zip(batch["number"].tolist(), batch["data"], strict=True)
        }

    def look(self, _here: Path, _url: str) -> None:
        _compare(self._seen, {number: _data(number) for number in range(_SHARDS * _EACH)})


def _compare(found: Mapping[Any, bytes], expected: Mapping[Any, bytes]) -> None:
    wrong = [name for name in found.keys() & expected.keys() if found[name] != expected[name]]
    if wrong or found.keys() != expected.keys():
        raise AssertionError(f"damaged: {wrong}; lost or too many: {sorted(found.keys() ^ expected.keys())}")


def _data(number: int) -> bytes:
    # The second shard is sent in two parts.
    return random.Random(number).randbytes(2000 if number < _EACH else 300_000)


def _kth(server: Server, kind: str, k: int) -> Callable[[], None]:
    """Return what lets the k-th request from then on fail."""

    def add() -> None:
        lock, seen = threading.Lock(), [0]

        def match(_request: Request) -> bool:
            with lock:
                seen[0] += 1
                return seen[0] == k

        server.reset()
        server.faults.append(Fault(kind, 1, match))

    return add


def run(count: int) -> Outcome:
    """Break this many answers at least; a job that has begun is broken at each of its requests."""
    rounds = Rounds()
    # Of another server: its port, and the secret key. Its access key is "test", and its bucket "bucket".
    place = os.environ.get("FASTRECORD_S3", "").split()
    with before(int(place[0]), place[1]) if place else started() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder / "train", _SCHEMA, _SHARDS, _EACH, lambda row: {"number": row, "data": _data(row)})
        all_of_them = count > len(KINDS)
        jobs: list[Callable[[Server, Path], _Job]] = [_Sends, _Fetches, _Packs, _Trains]
        for make in jobs if all_of_them else jobs[:1]:
            job = make(server, folder)
            made = job.run(server.reset)
            for kind in KINDS if all_of_them else KINDS[:1]:
                k = 1
                while k <= made and len(rounds.failures) < MOST_FAILURES:
                    with rounds.trial(f"{job.name}, {kind}, request {k}"):
                        made = max(made, job.run(_kth(server, kind, k)))
                        rounds.counts[f"{kind} in {job.name}"] += 1
                        rounds.done += 1
                    k += 1
            rounds.counts["ended with an error, and were right at the next call"] += job.errors
    return rounds.outcome()


EXPERIMENT = Experiment(
    *("store-faults", 7, "answers broken, each request of a job in turn", 3, 200, run),
    apart=True,
)
