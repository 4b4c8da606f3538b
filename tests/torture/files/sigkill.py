"""Kills everything that writes at random moments: the files are whole, and the next run resumes."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

import fastrecord as fr
from fastrecord._core import add_crop_index, side_kinds
from tests.conftest import encode
from tests.support.packing import pack_with, records, write
from tests.support.pictures import jpeg
from tests.torture.experiment import Experiment, Outcome
from tests.torture.files.killing import Killer, Story, verify

_SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "key": fr.string()})
_ROWS = 1500
_MOST_FAILURES = 20

# Victims. Each reports when it begins, so that no kill falls into Python's startup.


def _go_on_with_pack(conn: Connection, src: str, out: str, options: dict[str, Any]) -> None:
    conn.send(None)
    pack_with(src, out, **options)


def _command(conn: Connection, *arguments: str) -> None:
    from fastrecord.cli import cli

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    conn.send(None)
    cli.main(list(arguments), prog_name="fastrecord", standalone_mode=False)


def _append_rows(conn: Connection, path: str, until: int) -> None:
    """Append rows, and report each commit when it is durable."""
    conn.send(None)
    with fr.Writer(path, mode="a") as writer:
        while len(writer) < until:
            writer.append(_row(len(writer)))
            if len(writer) % 50 == 0:
                writer.commit()
                conn.send(writer.committed)


def _add_field(conn: Connection, path: str) -> None:
    conn.send(None)
    with fr.Writer(path, mode="a") as writer, writer.add_field("vector", fr.array("float32", (64,))) as filler:
        for number in range(len(writer)):
            filler.append(_vector(number))


def _row(number: int) -> dict[str, Any]:
    data = np.random.default_rng(number).bytes(number * 37 % 3000)
    return {"data": data, "label": number, "key": f"row {number}"}


def _vector(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).standard_normal(64, dtype=np.float32)


def _phase(out: Path) -> str:
    if not out.exists():
        return "before there was a file"
    try:
        with fr.Reader(out) as reader:
            report = reader.verify()
            if not report["ok"]:
                raise AssertionError(f"{report['errors']}")
            return "after the last commit" if reader.complete else "between two commits"
    except fr.errors.CorruptFileError as err:
        # An unwritten superblock has its own error.
        if "holds no commit" in str(err) or out.stat().st_size == 0:
            return "before the first commit"
        raise


class _Pack(Story):
    name = "pack"
    files = 3000
    options: ClassVar[dict[str, Any]] = {"commit_bytes": 1}

    def make(self) -> None:
        data = encode(1)[:-2]
        names = (f"{'abc'[i % 3]}/{i:04d}.jpg" for i in range(self.files))
        write(self.src, {name: data + i.to_bytes(2, "little") + b"\xff\xd9" for i, name in enumerate(names)})

    @property
    def src(self) -> Path:
        return self.folder / "src"

    def victim(self, here: Path) -> tuple[Any, ...]:
        return _go_on_with_pack, str(self.src), str(here / "out.frec"), self.options | {"mode": "resume"}

    def look(self, here: Path) -> str:
        out = here / "out.frec"
        phase = _phase(out)
        if phase == "between two commits":
            found = records(out)
            if found != self.undisturbed[: len(found)]:
                raise AssertionError("what a kill has left are not the first records")
        return phase

    @cached_property
    def undisturbed(self) -> list[tuple[bytes, int | None, str]]:
        return records(self.expected / "out.frec")


class _PackCommand(_Pack):
    """The command itself, which commits only at its end for so few records."""

    name = "fastrecord pack"

    def victim(self, here: Path) -> tuple[Any, ...]:
        return _command, "pack", "--resume", "--quiet", str(self.src), str(here / "out.frec")


class _PackAppend(_Pack):
    """An append to a complete file: the same `resume` continues it."""

    name = "pack --append"

    def make(self) -> None:
        super().make()
        write(self.folder / "first", {f"b/first {i}.jpg": encode(i) for i in range(5)})
        pack_with(self.folder / "first", self.folder / "first.frec")

    def before(self, here: Path) -> None:
        shutil.copy(self.folder / "first.frec", here / "out.frec")

    def victim(self, here: Path) -> tuple[Any, ...]:
        out = here / "out.frec"
        with fr.Reader(out) as reader:
            begun = not reader.complete or len(reader) > 5
        return _go_on_with_pack, str(self.src), str(out), self.options | {"mode": "resume" if begun else "append"}

    def look(self, here: Path) -> str:
        phase = super().look(here)
        with fr.Reader(here / "out.frec") as reader:
            return "before the first commit" if len(reader) == 5 else phase


class _Appends(Story):
    name = "Writer.append"

    def before(self, here: Path) -> None:
        fr.Writer(here / "out.frec", _SCHEMA).close()

    def victim(self, here: Path) -> tuple[Any, ...]:
        return _append_rows, str(here / "out.frec"), _ROWS

    def look(self, here: Path) -> str:
        rows = _read_rows(here / "out.frec")
        if len(rows) < self.promised:
            raise AssertionError(f"{self.promised} records were committed, {len(rows)} are there")
        if (len(rows) % 50 and len(rows) != _ROWS) or rows != _read_rows(self.expected / "out.frec")[: len(rows)]:
            raise AssertionError(f"{len(rows)} records that no commit had")
        return "before the first commit" if not rows else "between two commits"

    def compare(self, here: Path) -> None:
        verify(here / "out.frec")
        if _read_rows(here / "out.frec") != _read_rows(self.expected / "out.frec"):
            raise AssertionError("the result differs from an undisturbed run")


def _read_rows(path: Path) -> list[tuple[Any, ...]]:
    with fr.Reader(path) as reader:
        batch = reader.read_batch(range(len(reader)), verify=True)
        values = [bytes(v) if isinstance(v, memoryview) else v for v in batch["data"]]
        rest = [list(map(repr, batch[name])) for name in reader.schema if name != "data"]
        return list(zip(values, *rest, strict=True))


class _AddField(_Appends):
    name = "Writer.add_field"

    def make(self) -> None:
        _write_rows(self.folder / "in.frec", range(_ROWS))

    def before(self, here: Path) -> None:
        shutil.copy(self.folder / "in.frec", here / "out.frec")

    def victim(self, here: Path) -> tuple[Any, ...]:
        out = here / "out.frec"
        with fr.Reader(out) as reader:
            done = "vector" in reader.schema
        return (_nothing,) if done else (_add_field, str(out))

    def look(self, here: Path) -> str:
        with fr.Reader(here / "out.frec") as reader:
            if not reader.verify()["ok"]:
                raise AssertionError(f"{reader.verify()['errors']}")
            added = "vector" in reader.schema
        given = _read_rows((self.expected if added else self.folder) / ("out.frec" if added else "in.frec"))
        if _read_rows(here / "out.frec") != given:
            raise AssertionError("the file is neither as it was, nor has it the new field")
        return "after the last commit" if added else "before the first commit"


def _nothing(conn: Connection) -> None:
    conn.send(None)


def _write_rows(path: Path, numbers: range, size: int = 0) -> None:
    """Write some rows of this many extra bytes each, with occasional commits."""
    with fr.Writer(path, _SCHEMA) as writer:
        for number in numbers:
            row = _row(number)
            writer.append(row | {"data": row["data"] + bytes(size)})
            if number % 100 == 0:
                writer.commit()


class _Merge(_Appends):
    """Makes a new file, which appears only when it is complete."""

    name = "merge"

    def make(self) -> None:
        for i in range(3):
            _write_rows(self.folder / f"{i}.frec", range(300 * i, 300 * (i + 1)), 10_000)

    def before(self, here: Path) -> None:
        pass

    def victim(self, here: Path) -> tuple[Any, ...]:
        out = here / "out.frec"
        sources = [str(self.folder / f"{i}.frec") for i in range(3)]
        return _command, "merge", "--quiet", *(["--overwrite"] if out.exists() else []), *sources, "-o", str(out)

    def look(self, here: Path) -> str:
        phase = _phase(here / "out.frec")
        if phase == "after the last commit":
            self.compare(here)
        return phase


class _Compact(_Appends):
    """Replaces a file: the path has the old or the new one at any moment."""

    name = "compact"

    def make(self) -> None:
        _write_rows(self.folder / "in.frec", range(600), 10_000)

    def before(self, here: Path) -> None:
        shutil.copy(self.folder / "in.frec", here / "out.frec")

    def victim(self, here: Path) -> tuple[Any, ...]:
        return _command, "compact", "--quiet", str(here / "out.frec")

    def look(self, here: Path) -> str:
        self.compare(here)
        with fr.Reader(here / "out.frec") as reader:
            return "after the last commit" if reader.commit == 1 else "before the first commit"


class _Index(_Appends):
    """Adds to a file in many commits; the next run continues."""

    name = "index"

    def make(self) -> None:
        with fr.Writer(self.folder / "in.frec", {"image": fr.image()}) as writer:
            for number in range(300):
                writer.append({"image": jpeg(100 + number % 100, 128)})

    def before(self, here: Path) -> None:
        shutil.copy(self.folder / "in.frec", here / "out.frec")

    def victim(self, here: Path) -> tuple[Any, ...]:
        return _index, str(here / "out.frec")

    def look(self, here: Path) -> str:
        images, kinds = _read_images(here / "out.frec")
        done = sum(kinds)
        if images != self.given or kinds != [True] * done + [False] * (len(images) - done):
            raise AssertionError(f"an image has changed, or the index of {done} images has gaps")
        return "before the first commit" if not done else "between two commits"

    @cached_property
    def given(self) -> list[bytes]:
        return _read_images(self.folder / "in.frec")[0]

    def compare(self, here: Path) -> None:
        verify(here / "out.frec")
        if _read_images(here / "out.frec") != (self.given, [True] * len(self.given)):
            raise AssertionError("an image has changed or has no index")


def _index(conn: Connection, path: str) -> None:
    conn.send(None)
    add_crop_index(path, "image", commit_records=10)


def _read_images(path: Path) -> tuple[list[bytes], list[bool]]:
    """Return the images, and which of them have an index."""
    with fr.Reader(path, verify=True) as reader:
        kinds = side_kinds(reader, "image", range(len(reader)))
        return [bytes(record["image"]) for record in reader], (kinds == 2).tolist()


class _Extract(Story):
    """Writes files that each appear when they are complete."""

    name = "extract"

    def make(self) -> None:
        names = (f"{'abc'[i % 3]}/{i:04d}.bin" for i in range(_ROWS))
        with fr.Writer(self.folder / "in.frec", _SCHEMA) as writer:
            for number, name in enumerate(names):
                writer.append(_row(number) | {"key": name})

    def victim(self, here: Path) -> tuple[Any, ...]:
        return _command, "extract", "--quiet", "--overwrite", str(self.folder / "in.frec"), str(here / "out")

    def look(self, here: Path) -> str:
        found = self.files(here)
        if not found.items() <= self.undisturbed.items():
            raise AssertionError("a file is there that is not whole")
        if not found:
            return "before there was a file"
        return "between two files" if len(found) < len(self.undisturbed) else "after the last file"

    def files(self, here: Path) -> dict[str, bytes]:
        out = here / "out"
        paths = (path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".fastrecord-"))
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}

    @cached_property
    def undisturbed(self) -> dict[str, bytes]:
        return self.files(self.expected)

    def compare(self, here: Path) -> None:
        if self.files(here) != self.undisturbed or len(self.undisturbed) != _ROWS:
            raise AssertionError("the files differ from an undisturbed run")


_STORIES: tuple[type[Story], ...] = (
    _Pack,
    _PackAppend,
    _PackCommand,
    _Appends,
    _AddField,
    _Merge,
    _Compact,
    _Index,
    _Extract,
)
# More than half of the kills hit packs.
_SHARES = (5, 4, 3, 2, 2, 2, 2, 2, 2)


def run(count: int, seed: int | None = None) -> Outcome:
    """Kill this many processes."""
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    killer = Killer(chosen)
    failures: list[str] = []
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, tqdm(total=count, unit=" kills", disable=None) as bar:
        stories: dict[type[Story], Story] = {}
        # Each once at first, so that a few kills also cover all kinds.
        order = list(_STORIES)
        while killer.kills < count and len(failures) < _MOST_FAILURES:
            kind = order.pop(0) if order else killer.rng.choices(_STORIES, _SHARES)[0]
            before = killer.kills
            try:
                if kind not in stories:
                    folder = Path(name, f"{len(stories)}")
                    folder.mkdir()
                    stories[kind] = kind(killer, folder)
                    stories[kind].prepare()
                stories[kind].once()
            except (AssertionError, OSError, fr.FastRecordError) as err:
                failures.append(f"seed {chosen}, kill {killer.kills}, {kind.name}: {type(err).__name__}: {err}")
            killed[kind.name] += killer.kills - before
            bar.update(min(killer.kills, count) - bar.n)
    kinds = ", ".join(f"{name} {number}" for name, number in killed.items())
    phases = ", ".join(f"{number} {phase}" for phase, number in sorted(killer.phases.items()))
    return Outcome(killer.kills, failures, f"seed {chosen}; {kinds}; {phases}")


SIGKILL = Experiment(
    name="sigkill",
    promise=1,
    what="SIGKILLs",
    where="tests/torture/files/sigkill.py",
    short=8,
    long=500,
    run=run,
)
