"""Kills what reads through a cache, and what sends to a store, at random moments.

The store is a real S3 server on loopback, behind a proxy that is as slow as a network. After each
kill the cache is looked at from outside (`audit`). Then the next start reads everything, and what
it leaves is looked at again: no wrong record, no file, no block and no number of a killed process.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import fastrecord as fr
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import read_values
from tests.support.machines.stores import Server, started
from tests.support.packing import pack_with, records, write_many, write_shards
from tests.torture.experiment import Experiment, Outcome
from tests.torture.killing import Killer, Story, Victim
from tests.torture.stores import victims
from tests.torture.stores.audit import STATE, Truth, audit
from tests.torture.stores.victims import Reading

# Bytes a second of the network: an epoch takes about half a second.
_BANDWIDTH = 20e6
# Space for what three processes read at once, and less than half of the data.
_LIMIT = 2_000_000


class _Store:
    """The store, and its data set of shards, which is also in a folder."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.options, self.train = server, server.options, folder
        write_shards(folder, victims.SCHEMA, victims.SHARDS, victims.EACH, victims.record)
        self.truth = Truth(folder)
        self.url = server.put_folder("train", folder)
        server.bandwidth = _BANDWIDTH


class _Story(Story):
    """A story about the store."""

    def __init__(self, store: _Store, killer: Killer, folder: Path) -> None:
        super().__init__(killer, folder)
        self.store = store

    def url(self, here: Path) -> str:
        """Return where this round writes in the store."""
        return f"s3://bucket/{here.name}"


class _Reads(_Story):
    """Processes that read through one cache.

    Args:
        limit: Bytes of the cache.
    """

    what = "downloaders"

    def __init__(self, limit: int | None, store: _Store, killer: Killer, folder: Path) -> None:
        super().__init__(store, killer, folder)
        self._limit = limit
        self.name = f"{self.what}, {'a cache with' if limit else 'without'} a limit"

    def reading(self, here: Path) -> Reading:
        """Return how victims read."""
        return Reading(self.store.url, self.store.options, str(here / "cache"), self._limit)

    def begin(self, here: Path) -> list[Victim]:
        seeds = (self.killer.draw.randrange(1 << 30) for _ in range(2))
        return [self.killer.start(victims.download, self.reading(here), seed) for seed in seeds]

    def look(self, here: Path) -> str:
        return self.audit(here, settled=False)

    def finish(self, here: Path) -> None:
        self.killer.start(victims.download, self.reading(here), 0).end()

    def compare(self, here: Path) -> None:
        self.audit(here, settled=True)

    def audit(self, here: Path, *, settled: bool) -> str:
        """Look at the cache from outside."""
        if not (here / "cache").exists():
            return "before there was a cache"
        if wrong := [*audit(here / "cache", self.store.truth, self._limit, settled=settled)]:
            raise AssertionError("; ".join(wrong[:5]))
        return "beside a cache"


class _Ranks(_Reads):
    """Two ranks of a node with loaders, each with its share of the epochs."""

    what = "ranks"

    def begin(self, here: Path) -> list[Victim]:
        shuffle = self.killer.draw.choice((True, fr.Blocks(records=8, window=2)))
        return [self.killer.start(victims.rank, self.reading(here), number, 2, shuffle) for number in range(2)]

    def finish(self, here: Path) -> None:
        victims.each_once([rank.end() for rank in self.begin(here)])


class _Beside(_Reads):
    """Downloaders beside a process that has the cache open: no start is the first one."""

    what = "downloaders beside others"

    def before(self, here: Path) -> None:
        self._other = self.killer.start(victims.hold_open, self.reading(here), 1)

    def finish(self, here: Path) -> None:
        self._other.send()
        self._other.end()
        self.look(here)
        used = self._used(here)
        super().finish(here)
        # What killed processes had reserved may count until the limit is reached.
        if self._limit is None and used < (after := self._used(here)):
            raise AssertionError(f"{used:,} bytes were used, and after a new start {after:,}")

    def _used(self, here: Path) -> int:
        return int(np.fromfile(here / "cache" / STATE, np.int64)[1])


class _Sends(_Story):
    """`copy` to the store: shards that a data set has grown by, one of them sent in parts."""

    name = "copies to a store"

    def __init__(self, store: _Store, killer: Killer, folder: Path) -> None:
        super().__init__(store, killer, folder)
        self._whole = folder / "grown"
        shutil.copytree(store.train, self._whole)
        with fr.Writer(self._whole / "train-large.frec", victims.SCHEMA) as writer:
            for number in range(200):
                writer.append(victims.record(number) | {"data": random.Random(number).randbytes(110_000)})
        fr.files.write_manifest(self._whole)

    def before(self, here: Path) -> None:
        if self.killer.draw.random() < 0.5:
            fr.files.copy(self.store.train, self.url(here), store=fr.Store(self.store.options))

    def begin(self, here: Path) -> list[Victim]:
        return [self.killer.start(victims.send, str(self._whole), self.url(here), self.store.options)]

    def look(self, here: Path) -> str:
        """Compare what the manifest in the store names with folders; nothing else may be there."""
        objects = self.store.server.objects(here.name)
        whole = {path.name: path.read_bytes() for path in self._whole.iterdir()}
        for found, content in objects.items():
            if found != "dataset.json" and content != whole.get(found):
                raise AssertionError(f"{found}: {len(content):,} bytes, not those of the shard")
        if "dataset.json" not in objects:
            return "before there was a manifest"
        shards = Shards.open(self.url(here), store=fr.Store(self.store.options))
        for folder, phase in ((self.store.train, "before the new manifest"), (self._whole, "after the manifest")):
            if shards.ends.tolist() == Shards.open(folder).ends.tolist():
                return phase
        raise AssertionError(f"shards that end at {shards.ends}")

    def compare(self, here: Path) -> None:
        if (phase := self.look(here)) != "after the manifest":
            raise AssertionError(f"the copy has ended {phase}")
        self.store.server.delete(here.name)


class _Packs(_Story):
    """`pack` into the store."""

    name = "packs into a store"

    def __init__(self, store: _Store, killer: Killer, folder: Path) -> None:
        super().__init__(store, killer, folder)
        pack_with(write_many(folder / "images", 800), folder / "packed.frec")
        self._expected = records(folder / "packed.frec")

    def begin(self, here: Path) -> list[Victim]:
        words = str(self.folder / "images"), self.url(here), str(here), self.store.options
        return [self.killer.start(victims.pack, *words)]

    def look(self, here: Path) -> str:
        """Compare the data set with an undisturbed pack; nothing else may be there."""
        objects = self.store.server.objects(here.name)
        if "dataset.json" not in objects:
            return "before there was a manifest"
        shards = Shards.open(self.url(here), store=fr.Store(self.store.options))
        found = read_values(shards, np.arange(int(shards.ends[-1])), ["image", "label", "key"], verify=True)
        rows = [*zip(map(bytes, found["image"]), found["label"].tolist(), found["key"], strict=True)]
        if rows != self._expected:
            raise AssertionError(f"{len(rows)} records, not those of an undisturbed pack")
        named = {f"{reader.path}".rpartition("/")[2] for reader in shards.readers} | {"dataset.json"}
        if strange := set(objects) ^ named:
            raise AssertionError(f"left behind or missing: {sorted(strange)}")
        return "after the manifest"

    def compare(self, here: Path) -> None:
        if (phase := self.look(here)) != "after the manifest":
            raise AssertionError(f"the pack has ended {phase}")
        if left := [path.name for path in here.iterdir()]:
            raise AssertionError(f"the staging folder has {left}")
        self.store.server.delete(here.name)


class _Fetches(_Story):
    """`copy` from the store to a folder."""

    name = "copies from a store"

    def __init__(self, store: _Store, killer: Killer, folder: Path) -> None:
        super().__init__(store, killer, folder)
        self._whole = {path.name: path.read_bytes() for path in store.train.iterdir()}

    def begin(self, here: Path) -> list[Victim]:
        return [self.killer.start(victims.send, self.store.url, str(here / "out"), self.store.options)]

    def look(self, here: Path) -> str:
        found = {path.name: path.read_bytes() for path in (here / "out").glob("*") if path.is_file()}
        if wrong := [name for name, content in found.items() if self._whole.get(name, content) != content]:
            raise AssertionError(f"{wrong} are not whole")
        if "dataset.json" not in found:
            return "before there was a manifest"
        if not self._whole.keys() <= found.keys():
            raise AssertionError(f"there is a manifest, and only {sorted(found)}")
        return "after the manifest"

    def compare(self, here: Path) -> None:
        left = {path.name: path.read_bytes() if path.is_file() else b"" for path in (here / "out").iterdir()}
        if left != self._whole:
            raise AssertionError(f"in the end there are {sorted(left)}")


def run(count: int) -> Outcome:
    """Kill this many processes."""
    # Only the loaders need torch, which takes seconds.
    killer = Killer(count, "tests.torture.stores.victims", *(["torch"] if count > 5 else []))
    with started() as server, tempfile.TemporaryDirectory() as folder:
        store = _Store(server, Path(folder, "train"))

        def after() -> None:
            server.faults.clear()
            server.requests.clear()

        limited, unlimited = (
            [partial(kind, limit, store) for kind in (_Reads, _Ranks, _Beside)] for limit in (_LIMIT, None)
        )
        sends, packs, fetches = (partial(kind, store) for kind in (_Sends, _Packs, _Fetches))
        return killer.run([limited[0], sends, *limited[1:], packs, fetches, *unlimited], after)


EXPERIMENT = Experiment(
    *("store-kills", 7, "SIGKILLs of downloaders, ranks, copies and packs", 3, 200, run),
    where="tests/torture/stores/store_kills.py, tests/torture/stores/audit.py",
    apart=True,
)
