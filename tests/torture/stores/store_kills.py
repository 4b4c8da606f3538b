"""Kills what reads through a cache, and what sends to a store, at random moments.

The store is a real S3 server on loopback, behind a proxy that is as slow as a network. After each
kill the cache is looked at from outside (`audit`). Then the next start reads everything, and what
it leaves is looked at again: no wrong record, no file, no block and no number of a killed process.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import fastrecord as fr
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import read_values
from tests.conftest import encode
from tests.support.machines.stores import Server, started
from tests.support.packing import pack_with, records, write
from tests.torture.experiment import Experiment, Outcome
from tests.torture.processes import apart, print_outcome
from tests.torture.stores import victims
from tests.torture.stores.audit import STATE, Truth, audit
from tests.torture.stores.victims import Reading

# Bytes a second of the network: an epoch takes about half a second.
_BANDWIDTH = 20e6
# Space for what three processes read at once, and less than half of the data.
_LIMIT = 2_000_000
_PATIENCE = 120
_MOST_FAILURES = 20


def _reporting(conn: Connection, target: Callable[..., None], *arguments: Any) -> None:
    """Run a victim, and send its error."""
    try:
        target(conn, *arguments)
    except BaseException:  # noqa: BLE001 - the killer hears of it
        with suppress(OSError):
            conn.send(traceback.format_exc()[-1500:])
        raise SystemExit(1) from None


class _Running:
    """A victim that has begun."""

    def __init__(self, context: Any, target: Callable[..., None], *arguments: Any) -> None:
        self.name = target.__name__
        self._conn, theirs = context.Pipe()
        self._process = context.Process(target=_reporting, args=(theirs, target, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        if not self._conn.poll(_PATIENCE) or (told := self._conn.recv()) is not None:
            self._process.kill()
            raise AssertionError(f"{self.name} did not begin: {told}")

    def send(self) -> None:
        """Let it go on."""
        self._conn.send(None)

    def kill(self) -> bool:
        """Kill it; return whether it was still running."""
        self._process.kill()
        self._process.join()
        killed = bool(self._process.exitcode == -signal.SIGKILL)
        if not killed:
            self.end()
        return killed

    def stop(self) -> None:
        """Kill it, if it is still running."""
        self._process.kill()
        self._process.join()

    def end(self) -> list[Any]:
        """Wait for its end; return what it has sent.

        Raises:
            AssertionError: it has failed, or does not end.
        """
        self._process.join(_PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"{self.name} does not end")
        told = []
        with suppress(EOFError):
            while self._conn.poll():
                told.append(self._conn.recv())
        if self._process.exitcode != 0:
            raise AssertionError(f"{self.name} ended with {self._process.exitcode}: {told[-1:]}")
        return told


class _Stage:
    """The store, its data set, and what kills.

    Args:
        server: The store.
        folder: For caches and copies.
        seed: Decides what is killed when.
        many: Whether there are many victims; only the loaders among them need torch, which takes seconds.
    """

    def __init__(self, server: Server, folder: Path, seed: int, *, many: bool = True) -> None:
        self.server, self.folder = server, folder
        self.rng = random.Random(seed)
        self.kills, self._many = 0, many
        self.counts: Counter[str] = Counter()
        self._running: list[_Running] = []
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["tests.torture.stores.victims", *(["torch"] if many else [])])
        victims.write_shards(folder / "train")
        self.truth = Truth(folder / "train")
        self.url = server.put_folder("train", folder / "train")
        server.bandwidth = _BANDWIDTH

    def start(self, target: Callable[..., None], *arguments: Any) -> _Running:
        """Start a victim."""
        self._running.append(_Running(self.context, target, *arguments))
        return self._running[-1]

    def end_all(self) -> None:
        """Kill what a story that has failed has left running."""
        for running in self._running:
            running.stop()
        self._running.clear()

    def rounds(self) -> int:
        """How often something is killed before it may finish."""
        return self.rng.choice((1, 1, 2, 3)) if self._many else 1

    def killed(self, what: str) -> None:
        """Count a kill."""
        self.kills += 1
        self.counts[what] += 1


class _Story(ABC):
    """Something that is killed.

    Attributes:
        seconds: How long it takes undisturbed.
    """

    name = ""

    def __init__(self, stage: _Stage) -> None:
        self.stage = stage
        self.seconds = 0.6

    @abstractmethod
    def once(self, here: Path) -> None:
        """Kill it once or several times, in an empty folder of its own, and check what remains.

        Raises:
            AssertionError: something is lost, doubled, wrong or left.
        """

    def kill_some(self, running: list[_Running]) -> list[_Running]:
        """Kill one or all of some victims at a random moment; return the survivors."""
        rng = self.stage.rng
        time.sleep(rng.uniform(0, 1.05 * self.seconds))
        count = rng.randint(1, len(running))
        survivors = list(running)
        for victim in rng.sample(running, count):
            survivors.remove(victim)
            if victim.kill():
                self.stage.killed(self.name)
                self.seconds *= 1.01
            else:
                self.seconds *= 0.9  # kills must fall within the run
        return survivors


class _Reads(_Story):
    """Processes that read through one cache.

    Args:
        stage: The store.
        limit: Bytes of the cache.
    """

    what = "downloaders"

    def __init__(self, stage: _Stage, limit: int | None) -> None:
        super().__init__(stage)
        self._limit = limit
        self.name = f"{self.what}, {'a cache with' if limit else 'without'} a limit"

    def once(self, here: Path) -> None:
        reading = Reading(self.stage.url, self.stage.server.options, str(here / "cache"), self._limit)
        for _ in range(self.stage.rounds()):
            for survivor in self.kill_some(self.begin(reading)):
                survivor.end()
            self.look(here, settled=False)
        self.next_start(reading)
        self.look(here, settled=True)

    def begin(self, reading: Reading) -> list[_Running]:
        """Start the victims."""
        seeds = (self.stage.rng.randrange(1 << 30) for _ in range(2))
        return [self.stage.start(victims.download, reading, seed) for seed in seeds]

    def next_start(self, reading: Reading) -> None:
        """Start what goes on."""
        self.stage.start(victims.download, reading, 0).end()

    def look(self, here: Path, *, settled: bool) -> None:
        """Look at the cache from outside."""
        if (here / "cache").exists():
            wrong = [*audit(here / "cache", self.stage.truth, self._limit, settled=settled)]
            if wrong:
                raise AssertionError("; ".join(wrong[:5]))


class _Ranks(_Reads):
    """Two ranks of a node with loaders, each with its share of the epochs."""

    what = "ranks"

    def begin(self, reading: Reading) -> list[_Running]:
        shuffle = self.stage.rng.choice((True, fr.Blocks(records=8, window=2)))
        return [self.stage.start(victims.rank, reading, number, 2, shuffle) for number in range(2)]

    def next_start(self, reading: Reading) -> None:
        victims.each_once([rank.end() for rank in self.begin(reading)])


class _Beside(_Reads):
    """Downloaders beside a process that has the cache open: no start is the first one."""

    what = "downloaders beside others"

    def once(self, here: Path) -> None:
        reading = Reading(self.stage.url, self.stage.server.options, str(here / "cache"), self._limit)
        other = self.stage.start(victims.hold_open, reading, 1)
        for _ in range(3):
            for survivor in self.kill_some(self.begin(reading)):
                survivor.end()
            self.look(here, settled=False)
        other.send()
        other.end()
        self.look(here, settled=False)
        used = int(np.fromfile(here / "cache" / STATE, np.int64)[1])
        self.next_start(reading)
        self.look(here, settled=True)
        after = int(np.fromfile(here / "cache" / STATE, np.int64)[1])
        # What killed processes had reserved may count until the limit is reached.
        if self._limit is None and used < after:
            raise AssertionError(f"{used:,} bytes were used, and after a new start {after:,}")


class _Sends(_Story):
    """`copy` to the store: shards that a data set has grown by, one of them sent in parts."""

    name = "copies to a store"

    def __init__(self, stage: _Stage) -> None:
        super().__init__(stage)
        self._whole = stage.folder / "grown"
        shutil.copytree(stage.folder / "train", self._whole)
        with fr.Writer(self._whole / "train-large.frec", victims.SCHEMA) as writer:
            for number in range(200):
                value = random.Random(number).randbytes(110_000)
                writer.append({"number": number, "data": value, "pixels": victims.pixels(number)})
        fr.files.write_manifest(self._whole)
        self._count = 0

    def once(self, here: Path) -> None:
        del here  # its copy is in the store
        store = self.stage.server
        self._count += 1
        name = f"sent-{self._count}"
        url = f"s3://bucket/{name}"
        old = self.stage.folder / "train"
        if self.stage.rng.random() < 0.5:
            fr.files.copy(old, url, store=fr.Store(store.options))
        for _ in range(self.stage.rounds()):
            for survivor in self.kill_some([self.stage.start(victims.send, str(self._whole), url, store.options)]):
                survivor.end()
            self._look(name, (old, self._whole))
        self.stage.start(victims.send, str(self._whole), url, store.options).end()
        self._look(name, (self._whole,))
        store.delete(name)

    def _look(self, name: str, allowed: Iterable[Path]) -> None:
        """Compare what the manifest in the store names with folders; nothing else may be there."""
        objects = self.stage.server.objects(name)
        whole = {path.name: path.read_bytes() for path in self._whole.iterdir()}
        for found, content in objects.items():
            if found != "dataset.json" and content != whole.get(found):
                raise AssertionError(f"{found}: {len(content):,} bytes, not those of the shard")
        if "dataset.json" not in objects:
            if self._whole in allowed and len([*allowed]) == 1:
                raise AssertionError("the copy has ended, and there is no manifest")
            return
        shards = Shards.open(f"s3://bucket/{name}", store=fr.Store(self.stage.server.options))
        if shards.ends.tolist() not in [Shards.open(folder).ends.tolist() for folder in allowed]:
            raise AssertionError(f"shards that end at {shards.ends}")


class _Packs(_Story):
    """`pack` into the store."""

    name = "packs into a store"
    files = 800

    def __init__(self, stage: _Stage) -> None:
        super().__init__(stage)
        self._src = stage.folder / "images"
        data = encode(1)[:-2]
        names = (f"{'abc'[i % 3]}/{i:04d}.jpg" for i in range(self.files))
        write(self._src, {name: data + i.to_bytes(2, "little") + b"\xff\xd9" for i, name in enumerate(names)})
        pack_with(self._src, stage.folder / "packed.frec")
        self._expected = records(stage.folder / "packed.frec")
        self._count = 0

    def once(self, here: Path) -> None:
        store = self.stage.server
        self._count += 1
        name = f"packed-{self._count}"
        arguments = victims.pack, str(self._src), f"s3://bucket/{name}", str(here), store.options
        for _ in range(self.stage.rounds()):
            for survivor in self.kill_some([self.stage.start(*arguments)]):
                survivor.end()
            if "dataset.json" in store.objects(name):
                self._look(name)
        self.stage.start(*arguments).end()
        self._look(name)
        if left := [path.name for path in here.iterdir()]:
            raise AssertionError(f"the staging folder has {left}")
        store.delete(name)

    def _look(self, name: str) -> None:
        """Compare the data set with an undisturbed pack; nothing else may be there."""
        shards = Shards.open(f"s3://bucket/{name}", store=fr.Store(self.stage.server.options))
        found = read_values(shards, np.arange(int(shards.ends[-1])), ["image", "label", "key"], verify=True)
        rows = [*zip(map(bytes, found["image"]), found["label"].tolist(), found["key"], strict=True)]
        if rows != self._expected:
            raise AssertionError(f"{len(rows)} records, not those of an undisturbed pack")
        named = {f"{reader.path}".rpartition("/")[2] for reader in shards.readers} | {"dataset.json"}
        if strange := set(self.stage.server.objects(name)) ^ named:
            raise AssertionError(f"left behind or missing: {sorted(strange)}")


class _Fetches(_Story):
    """`copy` from the store to a folder."""

    name = "copies from a store"

    def __init__(self, stage: _Stage) -> None:
        super().__init__(stage)
        self.seconds = 0.3

    def once(self, here: Path) -> None:
        whole = {path.name: path.read_bytes() for path in (self.stage.folder / "train").iterdir()}
        out, options = here / "out", self.stage.server.options
        for _ in range(self.stage.rounds()):
            for survivor in self.kill_some([self.stage.start(victims.send, self.stage.url, str(out), options)]):
                survivor.end()
            found = {path.name: path.read_bytes() for path in out.glob("*") if path.is_file()}
            if wrong := [name for name, content in found.items() if name in whole and content != whole[name]]:
                raise AssertionError(f"{wrong} are not whole")
            if "dataset.json" in found and not whole.keys() <= found.keys():
                raise AssertionError(f"there is a manifest, and only {sorted(found)}")
        self.stage.start(victims.send, self.stage.url, str(out), options).end()
        if (left := {path.name: path.read_bytes() if path.is_file() else b"" for path in out.iterdir()}) != whole:
            raise AssertionError(f"in the end there are {sorted(left)}")


def run_here(count: int) -> Outcome:
    """Kill this many processes."""
    seed = random.SystemRandom().randrange(1 << 32)
    failures: list[str] = []
    with (
        started() as server,
        tempfile.TemporaryDirectory() as name,
        tqdm(total=count, unit="kill", disable=None) as bar,
    ):
        stage = _Stage(server, Path(name), seed, many=count > 5)
        # Made when it is their turn: a few kills need not make the data of all.
        kinds: list[Callable[[], _Story]] = [
            partial(_Reads, stage, _LIMIT),
            partial(_Sends, stage),
            partial(_Ranks, stage, _LIMIT),
            partial(_Beside, stage, _LIMIT),
            partial(_Packs, stage),
            partial(_Fetches, stage),
            partial(_Ranks, stage, None),
            partial(_Reads, stage, None),
            partial(_Beside, stage, None),
        ]
        stories: list[_Story] = []
        number = 0
        while stage.kills < count and len(failures) < _MOST_FAILURES:
            if number < len(kinds):
                stories.append(kinds[number]())
            story = stories[number % len(kinds)]
            number += 1
            here = Path(tempfile.mkdtemp(dir=name))
            try:
                story.once(here)
            except (AssertionError, OSError, fr.FastRecordError) as error:
                failures.append(f"seed {seed}, kill {stage.kills}, {story.name}: {type(error).__name__}: {error}")
            stage.end_all()
            shutil.rmtree(here)
            server.faults.clear()
            server.requests.clear()
            bar.update(min(stage.kills, count) - bar.n)
        told = ", ".join(f"{killed} {kind}" for kind, killed in sorted(stage.counts.items()))
        return Outcome(stage.kills, failures, f"seed {seed}; {told}")


def run(count: int) -> Outcome:
    """See the module docstring; runs in a child process."""
    return apart("stores.store_kills", count)


EXPERIMENT = Experiment(
    name="store-kills",
    promise=7,
    what="SIGKILLs of downloaders, ranks, copies and packs",
    where="tests/torture/stores/store_kills.py, tests/torture/stores/audit.py",
    short=3,
    long=200,
    run=run,
)

if __name__ == "__main__":
    print_outcome(run_here)
