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
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastrecord as fr
from tests.conftest import encode
from tests.support.machines.stores import Fault, Request, Server, before, started
from tests.support.packing import pack_with, records, write
from tests.torture.experiment import Experiment, Outcome
from tests.torture.processes import apart, print_outcome

# "cut" half of the answer comes; "lost" the store has done it, and nothing comes; "silent" neither.
KINDS = ("500", "503", "cut", "lost", "silent", "flip")
_MOST_FAILURES = 20
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

    def once(self, here: Path, url: str) -> None:
        del here  # the copy is in the store
        fr.files.copy(self._src, url, store=fr.Store(self.options))

    def look(self, here: Path, url: str) -> None:
        del here
        _compare(self.server.objects(url.rpartition("/")[2]), self._whole)


class _Fetches(_Job):
    """A copy from the store."""

    name = "copies from a store"

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._url = server.put_folder("train", folder / "train")
        self._whole = {path.name: path.read_bytes() for path in (folder / "train").iterdir()}

    def once(self, here: Path, url: str) -> None:
        del url
        fr.files.copy(self._url, here / "back", store=fr.Store(self.options))

    def look(self, here: Path, url: str) -> None:
        del url
        _compare({path.name: path.read_bytes() for path in (here / "back").iterdir()}, self._whole)


class _Packs(_Job):
    """A pack over a data set that is there: it sends, replaces the manifest, and deletes."""

    name = "packs"

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._src = folder / "images"
        data = encode(1)[:-2]
        write(self._src, {f"{'ab'[i % 2]}/{i}.jpg": data + bytes([i]) + b"\xff\xd9" for i in range(8)})
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

    def once(self, here: Path, url: str) -> None:
        del url
        dataset = fr.FastRecordDataset(
            self._url, fields=("number", "data"), store=fr.Store(self.options, cache=here / "cache")
        )
        loader = fr.FastRecordLoader(dataset, 7, threads=1)
        self._seen = {
            number: bytes(value)
            for batch in loader
            for number, value in zip(batch["number"].tolist(), batch["data"], strict=True)
        }

    def look(self, here: Path, url: str) -> None:
        del here, url
        _compare(self._seen, {number: _data(number) for number in range(_SHARDS * _EACH)})


def _compare(found: Mapping[Any, bytes], expected: Mapping[Any, bytes]) -> None:
    wrong = [name for name in found.keys() & expected.keys() if found[name] != expected[name]]
    if wrong or found.keys() != expected.keys():
        raise AssertionError(f"damaged: {wrong}; lost or too many: {sorted(found.keys() ^ expected.keys())}")


def _data(number: int) -> bytes:
    # The second shard is sent in two parts.
    return random.Random(number).randbytes(2000 if number < _EACH else 300_000)


def _write(folder: Path) -> None:
    folder.mkdir()
    for shard in range(_SHARDS):
        with fr.Writer(folder / f"train-{shard:05}-of-{_SHARDS:05}.frec", _SCHEMA) as writer:
            for number in range(shard * _EACH, (shard + 1) * _EACH):
                writer.append({"number": number, "data": _data(number)})
    fr.files.write_manifest(folder)


def _kth(server: Server, kind: str, k: int) -> Callable[[], None]:
    """Return what lets the k-th request from then on fail."""

    def add() -> None:
        lock, seen = threading.Lock(), [0]

        def match(request: Request) -> bool:
            del request
            with lock:
                seen[0] += 1
                return seen[0] == k

        server.reset()
        server.faults.append(Fault(kind, 1, match))

    return add


def run_here(count: int) -> Outcome:
    """Break this many answers at least; a job that has begun is broken at each of its requests."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    # Of another server: its port, and the secret key. Its access key is "test", and its bucket "bucket".
    place = os.environ.get("FASTRECORD_S3", "").split()
    with before(int(place[0]), place[1]) if place else started() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "train")
        jobs: list[Callable[[Server, Path], _Job]] = [_Sends, _Fetches, _Packs, _Trains]
        kinds = KINDS if count > len(KINDS) else KINDS[:1]
        for make in jobs if count > len(KINDS) else jobs[:1]:
            job = make(server, folder)
            made = job.run(server.reset)
            for kind in kinds:
                k = 1
                while k <= made and len(failures) < _MOST_FAILURES:
                    try:
                        made = max(made, job.run(_kth(server, kind, k)))
                        counts[f"of {job.name}"] += 1
                    except (AssertionError, OSError, fr.FastRecordError) as error:
                        failures.append(f"{job.name}, {kind}, request {k}: {type(error).__name__}: {error}")
                    k += 1
            counts["ended with an error, and were right at the next call"] += job.errors
    told = ", ".join(f"{broken} {what}" for what, broken in counts.items())
    broken_answers = sum(number for what, number in counts.items() if what.startswith("of "))
    return Outcome(broken_answers, failures, f"{told}; each by {', '.join(kinds)}")


def run(count: int) -> Outcome:
    """See the module docstring; runs in a child process."""
    return apart("stores.store_faults", count)


EXPERIMENT = Experiment(
    name="store-faults",
    promise=7,
    what="answers broken, each request of a job in turn",
    where="tests/torture/stores/store_faults.py",
    short=3,
    long=200,
    run=run,
)

if __name__ == "__main__":
    print_outcome(run_here)
