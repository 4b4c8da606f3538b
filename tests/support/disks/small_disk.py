"""Scenarios on a full disk: `python -m tests.support.disks.small_disk SCENARIO DISK WORK`, on a few MiB.

`tests/writer/test_small_disk.py` mounts one in its own namespace and runs them there.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.commands import failed, good
from tests.support.packing import metadata, pack_with, records, write
from tests.support.pictures import png
from tests.support.rewriting import SCHEMA, rows, write_rows

FULL = os.strerror(errno.ENOSPC)
SCENARIOS: dict[str, Callable[[Path, Path], None]] = {}
# Free bytes at the start: less than any result needs.
_FREE = 700_000


def scenario(function: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    SCENARIOS[function.__name__] = function
    return function


class Ballast:
    """A file that fills the disk except for some bytes."""

    def __init__(self, disk: Path, free: int = _FREE) -> None:
        self.disk, self.path = disk, disk / "ballast"
        room = os.statvfs(disk)
        with open(self.path, "wb") as file:
            file.write(bytes(max(room.f_bavail * room.f_frsize - free, 0)))

    def remove(self) -> None:
        self.path.unlink()

    def others(self) -> list[str]:
        """Return the other files."""
        return sorted(path.relative_to(self.disk).as_posix() for path in self.disk.rglob("*") if path.is_file())[1:]


def noise(side: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)


def images(folder: Path, count: int = 24) -> Path:
    """Make images of about 60 KB each, in two classes."""
    return write(folder, {f"{'ab'[i % 2]}/{i:02d}.png": png(noise(144, i)) for i in range(count)})


def assert_same(found: Path, expected: Path) -> None:
    assert records(found) == records(expected)
    assert metadata(found) == metadata(expected)
    with fr.Reader(found) as reader:
        assert reader.complete
        assert reader.verify()["ok"]
        assert reader.tail_bytes == 0


@scenario
def pack(disk: Path, work: Path) -> None:
    src, out = images(work / "src"), disk / "out.frec"
    good("pack", src, work / "out.frec")
    ballast = Ballast(disk)
    told = failed("pack", src, out)
    assert f"error: {out}: {FULL}" in told
    assert f"{out}: nothing was committed, and no file is left: make room, then pack again" in told
    assert ballast.others() == []
    ballast.remove()
    good("pack", "--resume", src, out)
    assert_same(out, work / "out.frec")


@scenario
def pack_with_commits(disk: Path, work: Path) -> None:
    src, out = images(work / "src", 80), disk / "out.frec"
    for path in src.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:30_000])  # the checks of pack still accept it
    pack_with(src, work / "out.frec", commit_bytes=1)
    ballast = Ballast(disk, 2_100_000)  # enough room for the first 64 files
    with pytest.raises(OSError, match=FULL) as caught:
        pack_with(src, out, commit_bytes=1)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(out))
    whole = (
        f"{out}: the file is readable up to its last commit, 64 records: "
        "make room, then `--resume` continues from there"
    )
    assert caught.value.__notes__ == [whole]
    assert records(out) == records(work / "out.frec")[:64]
    told = failed("pack", "--resume", src, out)
    assert FULL in told
    assert whole in told
    ballast.remove()
    good("pack", "--resume", src, out)
    assert_same(out, work / "out.frec")


@scenario
def pack_append(disk: Path, work: Path) -> None:
    src, out, first = images(work / "src"), disk / "out.frec", write(work / "first", {"b/first.png": png(noise(9, 1))})
    for path in (out, work / "out.frec"):
        good("pack", first, path)
    good("pack", "--append", src, work / "out.frec")
    before, ballast = out.read_bytes(), Ballast(disk)
    told = failed("pack", "--append", src, out)
    assert FULL in told
    assert f"{out}: the file is as it was before, with 1 records" in told
    assert records(out) == records(work / "out.frec")[:1]
    assert out.stat().st_size == len(before), "a full disk is kept full by a tail"
    ballast.remove()
    good("pack", "--append", src, out)
    assert_same(out, work / "out.frec")


@scenario
def writer(disk: Path, _work: Path) -> None:
    out, schema = disk / "out.frec", fr.Schema({"data": fr.bytes_(), "number": "int64"})

    def row(number: int) -> dict[str, Any]:
        return {"data": np.random.default_rng(number).bytes(90_000), "number": number}

    ballast = Ballast(disk)
    file = fr.Writer(out, schema)
    for number in range(3):
        file.append(row(number))
    file.commit()
    good_to = "the file is good up to its last commit (3 records); make room, then open it again to continue"
    with pytest.raises(OSError, match=FULL) as caught:
        file.extend({"data": [row(i)["data"] for i in range(3, 30)], "number": range(3, 30)})
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (errno.ENOSPC, FULL, str(out))
    assert caught.value.__notes__ == [f"{out}: {good_to}"]
    for again in (lambda: file.append(row(9)), file.commit, file.close):
        with pytest.raises(fr.FastRecordError, match="the writer stopped after a failed write") as refused:
            again()
        assert str(refused.value).endswith(f"{good_to} [FR603]")
    with fr.Reader(out) as reader:
        assert (len(reader), reader.verify()["ok"], reader.tail_bytes) == (3, True, 0)
    ballast.remove()
    with fr.Writer(out, mode="a") as file:
        for number in range(len(file), 30):
            file.append(row(number))
    with fr.Reader(out) as reader:
        assert [bytes(record["data"]) for record in reader] == [row(i)["data"] for i in range(30)]


@scenario
def add_field(disk: Path, _work: Path) -> None:
    out, vectors = disk / "out.frec", np.random.default_rng(0).standard_normal((300, 1000), np.float32)
    write_rows(out, 300, largest=100)
    before, ballast = rows(out), Ballast(disk)
    size = out.stat().st_size
    with pytest.raises(OSError, match=FULL) as caught:
        fr.files.add_field(out, "vector", fr.array("float32", (1000,)), vectors)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(out))
    assert "the file is good up to its last commit (300 records); make room" in caught.value.__notes__[0]
    assert (rows(out), out.stat().st_size) == (before, size)
    ballast.remove()
    fr.files.add_field(out, "vector", fr.array("float32", (1000,)), vectors)
    assert rows(out) == before
    with fr.Reader(out) as reader:
        assert np.array_equal(reader.read_batch(range(300))["vector"], vectors)


def rewriting(command: str, disk: Path, work: Path, *, sources: int, outs: list[str]) -> None:
    paths = [write_rows(work / f"{i}.frec", 500, largest=4_000, seed=i) for i in range(sources)]
    options = ["--shards", len(outs)] if command == "split" else []
    expected, found = (
        [folder / name for name in outs] if command != "split" else [folder / "out.frec"] for folder in (work, disk)
    )
    good(command, *options, *paths, "-o", *expected)
    for existing in (False, True):
        if existing:
            for name in outs:
                write_rows(disk / name, 3, seed=8)
        old = {name: (disk / name).read_bytes() for name in outs if existing}
        ballast = Ballast(disk, 500_000)
        told = failed(command, *options, *(["--overwrite"] if existing else []), *paths, "-o", *found)
        assert f": {FULL}" in told
        replaced = "the old file is unchanged, and nothing of the new one is left; make room"
        assert (replaced if existing else "and no file is left; make room") in told
        assert ballast.others() == sorted(old)
        assert {name: (disk / name).read_bytes() for name in old} == old
        ballast.remove()
        good(command, *options, *(["--overwrite"] if existing else []), *paths, "-o", *found)
        for name in outs:
            assert rows(disk / name) == rows(work / name)
            (disk / name).unlink()
        (disk / "dataset.json").unlink(missing_ok=True)


SHARDS = ["out-00000-of-00002.frec", "out-00001-of-00002.frec"]
SCENARIOS["merge"] = partial(rewriting, "merge", sources=2, outs=["out.frec"])
SCENARIOS["split"] = partial(rewriting, "split", sources=1, outs=SHARDS)
SCENARIOS["select"] = partial(rewriting, "select", sources=1, outs=["out.frec"])


@scenario
def split_at_the_last_page(disk: Path, work: Path) -> None:
    source = write_rows(work / "in.frec", 60, largest=2_000)
    names = [f"out-{i:05d}-of-00003.frec" for i in range(3)]
    fr.files.split(source, work / "out.frec", shards=3)
    at_each_size(disk, names, work, rows, lambda: fr.files.split(source, disk / "out.frec", shards=3, overwrite=True))


def at_each_size(
    disk: Path, names: list[str], expected: Path, read: Callable[[Path], object], write: Callable[[], object]
) -> None:
    """Replace files with ever more free room: each path has its old or its new file."""
    for name in names:
        write_rows(disk / name, 3, seed=8)
    old = [(disk / name).read_bytes() for name in names]
    pages = sum((expected / name).stat().st_size for name in names) // 4096
    failures = []
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(fr.Reader(disk / name))  # open files keep their room
        for free in range(pages - 8, pages + 200):
            ballast = Ballast(disk, free * 4096)
            try:
                write()
            except OSError as err:
                failures.append(err.errno)
                if any("only the manifest" in note for note in getattr(err, "__notes__", ())):
                    assert [read(disk / name) for name in names] == [read(expected / name) for name in names]
                    old = [(disk / name).read_bytes() for name in names]
            else:
                break
            finally:
                ballast.remove()
            assert sorted(os.listdir(disk)) == names
            assert [(disk / name).read_bytes() for name in names] == old
    assert set(failures) == {errno.ENOSPC}
    assert len(failures) > 5
    assert [read(disk / name) for name in names] == [read(expected / name) for name in names]


@scenario
def compact(disk: Path, work: Path) -> None:
    rewriting("compact", disk, work, sources=1, outs=["out.frec"])
    path = write_rows(disk / "in.frec", 500, largest=3_000, commit_bytes=10_000)
    before, ballast = rows(path), Ballast(disk, 500_000)
    told = failed("compact", path)
    assert f"{path}: {FULL}" in told
    assert "the old file is unchanged, and nothing of the new one is left; make room" in told
    assert (rows(path), ballast.others()) == (before, ["in.frec"])
    ballast.remove()
    good("compact", path)
    with fr.Reader(path) as reader:
        assert reader.commit == 1
    assert rows(path) == before


@scenario
def extract(disk: Path, work: Path) -> None:
    path = write_rows(work / "in.frec", 300, largest=8_000)
    good("extract", path, work / "out")
    ballast = Ballast(disk)
    told = failed("extract", path, disk / "out")
    assert f": {FULL}" in told
    written = ballast.others()
    done = [name for name in written if (disk / name).read_bytes() != (work / name).read_bytes()]
    assert (done, 0 < len(written) < 300) == ([], True)
    assert f"{disk / 'out'}: {len(written)} of 300 records are written, each one whole" in told
    ballast.remove()
    good("extract", "--overwrite", path, disk / "out")
    names = sorted(path.relative_to(work).as_posix() for path in (work / "out").rglob("*") if path.is_file())
    assert [name for name in names if (disk / name).read_bytes() != (work / name).read_bytes()] == []


@scenario
def export(disk: Path, work: Path) -> None:
    path, out = write_rows(work / "in.frec", 300, largest=8_000), disk / "out"
    for name in registry.names(writes=True):
        if name == "folder":  # it takes images only
            continue
        kind = registry.load(name)
        command = ("export", path, out, "-f", name, *(f"--drop={field}" for field in kind.refuse(SCHEMA)))
        sharded = ["--shard-size", "100kB"] if kind.shards else []
        for options in (sharded, ["--overwrite"]):
            ballast = Ballast(disk)
            before = ballast.others()
            told = failed(*command, *options)
            assert FULL in told, name
            left = "is as it was before" if "--overwrite" in options else "nothing is written"
            assert told.endswith(f"\n{out}: {left}\n"), name
            assert ballast.others() == before, name
            ballast.remove()
            out.mkdir(exist_ok=True)
        good(*command, "--overwrite")
        shutil.rmtree(out) if out.is_dir() else out.unlink()


@scenario
def cache(disk: Path, work: Path) -> None:
    write_rows(work / "in.frec", 400, largest=8_000)
    options: dict[str, Any] = {"fields": ("data",), "store": fr.Store(cache=disk / "cache", cache_size="1GB")}
    ballast = Ballast(disk)
    dataset = fr.FastRecordDataset((work / "in.frec").as_uri(), **options)
    for _ in range(2):
        with pytest.raises(fr.FastRecordError, match=r"/cache: the disk is full, with cache_size=1,000,000,000.*FR212"):
            dataset.__getitems__(range(400))
    ballast.remove()
    here = fr.FastRecordDataset(work / "in.frec", fields=("data",))
    assert [*dataset.__getitems__(range(400))] == [*here.__getitems__(range(400))]


@scenario
def copy(disk: Path, work: Path) -> None:
    write_rows(work / "in.frec", 400, largest=8_000)
    ballast = Ballast(disk)
    for _ in range(2):
        told = failed("copy", (work / "in.frec").as_uri(), disk / "out.frec")
        assert f"error: {disk / 'out.frec'}: {FULL}" in told
        assert ballast.others() == []
    ballast.remove()
    good("copy", (work / "in.frec").as_uri(), disk / "out.frec")
    assert (disk / "out.frec").read_bytes() == (work / "in.frec").read_bytes()


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
