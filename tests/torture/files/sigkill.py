"""Kills everything that writes at random moments: the files are whole, and the next run resumes."""

from __future__ import annotations

import os
import shutil
import time
from abc import abstractmethod
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import fastrecord as fr
from fastrecord._core import add_crop_index, side_kinds
from tests.conftest import encode
from tests.support.packing import metadata, pack_with, write, write_many
from tests.support.pictures import jpeg
from tests.torture.experiment import Experiment, Outcome
from tests.torture.killing import Killer, Story, Victim

_SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "key": fr.string()})
_ROWS = 1500

# Victims.


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


def _index(conn: Connection, path: str) -> None:
    conn.send(None)
    add_crop_index(path, "image", commit_records=10)


def _nothing(conn: Connection) -> None:
    conn.send(None)


def _row(number: int) -> dict[str, Any]:
    data = np.random.default_rng(number).bytes(number * 37 % 3000)
    return {"data": data, "label": number, "key": f"row {number}"}


def _vector(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).standard_normal(64, dtype=np.float32)


def _write_rows(path: Path, numbers: range, size: int = 0) -> None:
    """Write some rows of this many extra bytes each, with occasional commits."""
    with fr.Writer(path, _SCHEMA) as writer:
        for number in numbers:
            row = _row(number)
            writer.append(row | {"data": row["data"] + bytes(size)})
            if number % 100 == 0:
                writer.commit()


def _records(path: Path) -> list[tuple[Any, ...]]:
    with fr.Reader(path, verify=True) as reader:
        return [tuple(v.tobytes() if hasattr(v, "tobytes") else v for v in row.values()) for row in reader]


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


class _Task(Story):
    """Something that writes out.frec, maybe beginning from a copy of in.frec; an undisturbed run is the model."""

    def __init__(self, killer: Killer, folder: Path) -> None:
        super().__init__(killer, folder)
        expected = folder / "undisturbed"
        expected.mkdir()
        self.make()
        self.before(expected)
        victims = self.begin(expected)
        started = time.monotonic()
        for victim in victims:
            victim.end()
        self.seconds = time.monotonic() - started
        self.result = self.read(expected / "out.frec")

    def make(self) -> None:
        """Make the input."""

    def before(self, here: Path) -> None:
        if (given := self.folder / "in.frec").exists():
            shutil.copy(given, here / "out.frec")

    def begin(self, here: Path) -> list[Victim]:
        return [self.killer.start(*self.victim(here / "out.frec"))]

    @abstractmethod
    def victim(self, out: Path) -> tuple[Any, ...]:
        """Return a function and its arguments."""

    def read(self, out: Path) -> list[Any]:
        """Return what is compared."""
        return _records(out)

    @cached_property
    def given(self) -> list[Any]:
        """What in.frec has."""
        return self.read(self.folder / "in.frec")

    def finish(self, here: Path) -> None:
        super().finish(here)
        if left := sorted(path.name for path in here.rglob("*") if ".tmp" in path.name):
            raise AssertionError(f"it has left {left}")

    def compare(self, here: Path) -> None:
        with fr.Reader(here / "out.frec") as reader:
            report = reader.verify()
            if not report["ok"] or not reader.complete or reader.tail_bytes:
                raise AssertionError(f"{report['errors'] or 'incomplete, or with a tail'}")
        if self.read(here / "out.frec") != self.result:
            raise AssertionError("the result differs from an undisturbed run")


class _Pack(_Task):
    name = "pack"
    options: ClassVar[dict[str, Any]] = {"commit_bytes": 1}

    def make(self) -> None:
        write_many(self.folder / "src", 3000)

    def victim(self, out: Path) -> tuple[Any, ...]:
        return _go_on_with_pack, str(self.folder / "src"), str(out), self.options | {"mode": "resume"}

    def look(self, here: Path) -> str:
        phase = _phase(here / "out.frec")
        if phase == "between two commits":
            found = self.read(here / "out.frec")
            if found != self.result[: len(found)]:
                raise AssertionError("what a kill has left are not the first records")
        return phase

    def compare(self, here: Path) -> None:
        super().compare(here)
        if metadata(here / "out.frec") != metadata(self.folder / "undisturbed" / "out.frec"):
            raise AssertionError("the metadata differ from an undisturbed run")


class _PackAppend(_Pack):
    """An append to a complete file: the same `resume` continues it."""

    name = "pack --append"

    def make(self) -> None:
        super().make()
        write(self.folder / "first", {f"b/first {i}.jpg": encode(i) for i in range(5)})
        pack_with(self.folder / "first", self.folder / "in.frec")

    def victim(self, out: Path) -> tuple[Any, ...]:
        with fr.Reader(out) as reader:
            begun = not reader.complete or len(reader) > 5
        target, src, path, options = super().victim(out)
        return target, src, path, options if begun else options | {"mode": "append"}

    def look(self, here: Path) -> str:
        phase = super().look(here)
        with fr.Reader(here / "out.frec") as reader:
            return "before the first commit" if len(reader) == 5 else phase


class _Appends(_Task):
    name = "Writer.append"

    def before(self, here: Path) -> None:
        fr.Writer(here / "out.frec", _SCHEMA).close()

    def victim(self, out: Path) -> tuple[Any, ...]:
        return _append_rows, str(out), _ROWS

    def look(self, here: Path) -> str:
        rows = self.read(here / "out.frec")
        if len(rows) < (promised := max(self.promised, default=0)):
            raise AssertionError(f"{promised} records were committed, {len(rows)} are there")
        if (len(rows) % 50 and len(rows) != _ROWS) or rows != self.result[: len(rows)]:
            raise AssertionError(f"{len(rows)} records that no commit had")
        return "before the first commit" if not rows else "between two commits"


class _AddField(_Task):
    name = "Writer.add_field"

    def make(self) -> None:
        _write_rows(self.folder / "in.frec", range(_ROWS))

    def victim(self, out: Path) -> tuple[Any, ...]:
        with fr.Reader(out) as reader:
            return (_nothing,) if "vector" in reader.schema else (_add_field, str(out))

    def look(self, here: Path) -> str:
        with fr.Reader(here / "out.frec") as reader:
            if not reader.verify()["ok"]:
                raise AssertionError(f"{reader.verify()['errors']}")
            added = "vector" in reader.schema
        if self.read(here / "out.frec") != (self.result if added else self.given):
            raise AssertionError("the file is neither as it was, nor has it the new field")
        return "after the last commit" if added else "before the first commit"


class _Merge(_Task):
    """Makes a new file, which appears only when it is complete."""

    name = "merge"

    def make(self) -> None:
        for i in range(3):
            _write_rows(self.folder / f"{i}.frec", range(300 * i, 300 * (i + 1)), 10_000)

    def victim(self, out: Path) -> tuple[Any, ...]:
        sources = [str(self.folder / f"{i}.frec") for i in range(3)]
        return _command, "merge", "--quiet", *(["--overwrite"] if out.exists() else []), *sources, "-o", str(out)

    def look(self, here: Path) -> str:
        phase = _phase(here / "out.frec")
        if phase == "after the last commit":
            self.compare(here)
        return phase


class _Compact(_Task):
    """Replaces a file: the path has the old or the new one at any moment."""

    name = "compact"

    def make(self) -> None:
        _write_rows(self.folder / "in.frec", range(600), 10_000)

    def victim(self, out: Path) -> tuple[Any, ...]:
        return _command, "compact", "--quiet", str(out)

    def look(self, here: Path) -> str:
        self.compare(here)
        with fr.Reader(here / "out.frec") as reader:
            return "after the last commit" if reader.commit == 1 else "before the first commit"


class _Index(_Task):
    """Adds to a file in many commits; the next run continues."""

    name = "index"

    def make(self) -> None:
        with fr.Writer(self.folder / "in.frec", {"image": fr.image()}) as writer:
            for number in range(300):
                writer.append({"image": jpeg(100 + number % 100, 128)})

    def victim(self, out: Path) -> tuple[Any, ...]:
        return _index, str(out)

    def indexed(self, here: Path) -> int:
        """Return the number of images with an index: the first ones, and all are as they were."""
        with fr.Reader(here / "out.frec") as reader:
            kinds = (side_kinds(reader, "image", range(len(reader))) == 2).tolist()
        done = int(sum(kinds))
        if self.read(here / "out.frec") != self.given or not all(kinds[:done]):
            raise AssertionError(f"an image has changed, or the index of {done} images has gaps")
        return done

    def look(self, here: Path) -> str:
        return "between two commits" if self.indexed(here) else "before the first commit"

    def compare(self, here: Path) -> None:
        super().compare(here)
        if self.indexed(here) != len(self.given):
            raise AssertionError("an image has no index")


class _Extract(_Task):
    """Writes files that each appear when they are complete."""

    name = "extract"

    def make(self) -> None:
        with fr.Writer(self.folder / "rows.frec", _SCHEMA) as writer:
            for number in range(_ROWS):
                writer.append(_row(number) | {"key": f"{'abc'[number % 3]}/{number:04d}.bin"})

    def victim(self, out: Path) -> tuple[Any, ...]:
        return _command, "extract", "--quiet", "--overwrite", str(self.folder / "rows.frec"), str(out)

    def look(self, here: Path) -> str:
        found = self.read(here / "out.frec")
        if not set(found) <= set(self.result):
            raise AssertionError("a file is there that is not whole")
        if not found:
            return "before there was a file"
        return "between two files" if len(found) < len(self.result) else "after the last file"

    def read(self, out: Path) -> list[tuple[str, bytes]]:
        paths = (path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".fastrecord-"))
        return sorted((path.relative_to(out).as_posix(), path.read_bytes()) for path in paths)

    def compare(self, here: Path) -> None:
        if self.read(here / "out.frec") != self.result or len(self.result) != _ROWS:
            raise AssertionError("the files differ from an undisturbed run")


# More than half of the kills hit packs.
_STORIES: tuple[type[_Task], ...] = (
    *(_Pack, _PackAppend, _Appends, _AddField, _Merge, _Compact, _Index, _Extract),
    *(_Pack, _PackAppend, _Pack, _PackAppend, _Pack),
)


def run(count: int) -> Outcome:
    """Kill this many processes."""
    preload = "tests.torture.files.sigkill", "fastrecord.cli.packing.pack", "fastrecord.files.rewrite"
    return Killer(count, *preload).run(_STORIES)


EXPERIMENT = Experiment("sigkill", 1, "SIGKILLs", 8, 500, run)
