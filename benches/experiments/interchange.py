"""Import and export against `fastrecord pack` and the formats' own libraries; packing against tar.

Whatever writes ends with a sync, and what it wrote before is removed before each round. The page
cache is warm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fastrecord as fr
from benches.harness import Bench, Contender, Missing
from benches.support import libraries

SIZE = 110_000
ARRAYS = 50_000
HERE = "benches.experiments.interchange:"
PACK, READ, WRITE = "fastrecord pack", "the library's read", "the library's writer"

# The formats, as the page names them, and the libraries that write and read them here. RecordIO's is
# not kept up: its source is written by our export, and nothing else reads it.
FORMATS = {
    "WebDataset": ("webdataset", "webdataset"),
    "LMDB": ("lmdb", "lmdb"),
    "TFRecord": ("tfrecord", "tfrecord"),
    "RecordIO": ("recordio", ""),
    "Parquet": ("parquet", "pyarrow"),
    "HDF5": ("hdf5", "h5py"),
}


class Pack:
    """`fastrecord pack` of a folder of images."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, root: str, out: str) -> None:
        self._root, self._out = root, out

    def turn(self) -> None:
        """Pack, which ends with a sync."""
        fr.pack(self._root, self._out)


class Tar:
    """`tar cf` of a folder of images."""

    def __init__(self, *, root: str, out: str) -> None:
        if shutil.which("tar") is None:
            raise Missing("tar is not installed")
        told = subprocess.run(["tar", "--version"], check=True, capture_output=True, text=True)
        self.version = told.stdout.partition("\n")[0]
        self._root, self._out = Path(root), out

    def turn(self) -> None:
        """Make the archive, and sync."""
        subprocess.run(["tar", "cf", self._out, "-C", self._root.parent, self._root.name], check=True)
        libraries.sync(self._out)


class Import:
    """`fastrecord import`."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, source: str, out: str, name: str, records: int) -> None:
        self._source, self._out, self._name, self._records = source, out, name, records

    def turn(self) -> None:
        """Import, which ends with a sync."""
        found = fr.pack(fr.Input(self._source, self._name), self._out).records
        if found != self._records:
            raise ValueError(f"{found} records, not {self._records}")


class Export:
    """`fastrecord export`."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, source: str, out: str, name: str) -> None:
        self._source, self._out, self._name = source, out, name

    def turn(self) -> None:
        """Export, and sync."""
        drop = ["key"] if self._name == "recordio" else []
        fr.export(self._source, self._out, self._name, drop=drop)
        libraries.sync(self._out)


class LibraryRead:
    """A format's own library, which turns each value into bytes and writes nothing."""

    def __init__(self, *, name: str, library: str, source: str, records: int) -> None:
        self.version = version_of(library)
        self._name, self._source, self._records = name, source, records

    def turn(self) -> None:
        """Read all images."""
        found = libraries.READ[self._name](self._source)
        if found != self._records:
            raise ValueError(f"{found} images, not {self._records}")


class LibraryWrite:
    """A format's own library, fed from memory."""

    def __init__(self, *, name: str, library: str, root: str, out: str) -> None:
        self.version = version_of(library)
        self._name, self._root, self._out = name, root, out
        libraries.images(root)

    def turn(self) -> None:
        """Write all images, and sync."""
        libraries.WRITE[self._name](self._root, self._out)
        libraries.sync(self._out)


class Items:
    """`pack` of arrays like CIFAR-10's, as items of some kind."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, out: str, kind: str, count: int) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = np.arange(count) % 10
        self._out = out
        self._items: Any = list(zip(pixels, labels.tolist(), strict=True))
        if kind == "TensorDataset":
            import torch
            from torch.utils.data import TensorDataset

            self._items = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
        elif kind == "dicts":
            self._items = [{"image": image, "label": label} for image, label in self._items]

    def turn(self) -> None:
        """Pack the items."""
        fr.pack(self._items, self._out)


def version_of(library: str) -> str:
    """Return the name and version of a library.

    Raises:
        Missing: it is not installed.
    """
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        raise Missing(f"{library} is not installed") from None


def run(bench: Bench) -> None:
    """Measure packing, imports and exports."""
    records = 10_000 if bench.full else 1000
    folder = bench.folder / f"interchange-{records}"
    root = make_images(folder, records)
    packed = folder / "images.frec"
    if not packed.exists():
        fr.pack(root, packed)
    for path in root.glob("*/*"):
        path.read_bytes()
    out, other = folder / "out", folder / "other"
    peer = Contender("tar cf", f"{HERE}Tar", {"root": str(root), "out": str(other)})
    ours = Contender("fastrecord", f"{HERE}Pack", {"root": str(root), "out": str(out)})
    case = f"pack files of {SIZE // 1000} KB, and sync"
    measure(bench, case, [ours, peer], records, "images/s")
    payload = sum(path.stat().st_size + 8 + len(str(path.relative_to(root))) for path in root.glob("*/*"))
    bench.row(f"bytes: {case}", "images, labels and keys alone", "bytes", [payload], yardstick=True)
    bench.row(f"bytes: {case}", "fastrecord", "bytes", [packed.stat().st_size])
    for known, (name, library) in FORMATS.items():
        source = source_of(bench, known, folder)
        if source is None:
            continue
        settings = {"source": str(source), "out": str(out), "name": name, "records": records}
        contenders = [Contender("fastrecord", f"{HERE}Import", settings)]
        contenders.append(Contender(PACK, f"{HERE}Pack", {"root": str(root), "out": str(other)}))
        if library:
            settings = {"name": name, "library": library, "source": str(source), "records": records}
            contenders.append(Contender(READ, f"{HERE}LibraryRead", settings))
        measure(bench, f"import from {known}", contenders, records, "images/s", yardstick=True)
    for known, (name, library) in FORMATS.items():
        settings = {"source": str(packed), "out": str(out), "name": name}
        contenders = [Contender("fastrecord", f"{HERE}Export", settings)]
        if library:
            settings = {"name": name, "library": library, "root": str(root), "out": str(other)}
            contenders.append(Contender(WRITE, f"{HERE}LibraryWrite", settings))
        measure(bench, f"export to {known}", contenders, records, "images/s")
    contenders = [
        Contender(f"fastrecord, {kind}", f"{HERE}Items", {"out": str(out), "kind": kind, "count": ARRAYS})
        for kind in ("tuples", "dicts", "TensorDataset")
    ]
    measure(bench, f"pack of {ARRAYS:,} arrays of 3 KB", contenders, ARRAYS, "arrays/s")


def make_images(folder: Path, records: int) -> Path:
    """Return the folder of images: files of 110 KB in 100 class folders, each a JPEG header and noise.

    Packing and importing keep their bytes.
    """
    root = folder / "images"
    if not root.exists():
        head = BytesIO()
        Image.new("RGB", (500, 375)).save(head, "JPEG")
        noise = np.random.default_rng(0).integers(0, 256, 2 * SIZE, np.uint8).tobytes()
        shutil.rmtree(folder, ignore_errors=True)
        for number in range(records):
            path = folder / "images.tmp" / f"n{number % 100:08d}" / f"{number:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            start = number * 7919 % SIZE
            path.write_bytes((head.getvalue() + noise[start : start + SIZE])[:SIZE])
        (folder / "images.tmp").rename(root)
    return root


def source_of(bench: Bench, known: str, folder: Path) -> Path | None:
    """Return the images in a format, written by its library if it has one; None if that is missing."""
    name, library = FORMATS[known]
    path, made = folder / f"source.{name}", folder / f"made.{name}"
    if path.exists():
        return path
    remove(made)
    writer = Contender(
        "writer", f"{HERE}Export", {"source": str(folder / "images.frec"), "out": str(made), "name": name}
    )
    if library:
        settings = {"name": name, "library": library, "root": str(folder / "images"), "out": str(made)}
        writer = Contender("writer", f"{HERE}LibraryWrite", settings)
    with bench.contest([writer]) as contest:
        contest.each("turn")
        for why in contest.missing.values():
            bench.not_measured(f"import from {known}", "fastrecord", why)
            return None
    return made.rename(path)


def measure(bench: Bench, case: str, contenders: Sequence[Contender], records: int, unit: str, **settings: Any) -> None:
    """Let contenders take turns; then look at the bytes that the first one writes, and its memory."""
    outs = {
        contender.name: Path(str(contender.settings["out"])) for contender in contenders if "out" in contender.settings
    }

    def clean(name: str) -> None:
        if name in outs:
            remove(outs[name])
        os.sync()

    with bench.contest(contenders) as contest:
        answers = contest.rounds("turn", rounds=bench.rounds, before=clean)
        bench.rows(case, answers, contest, records=records, unit=unit, **settings)
        first = contenders[0].name
        if first in contest.names:
            clean(first)
            answer = contest.call(first, "turn", memory=True)
            if answer is not None:
                bench.row(f"memory: {case}", first, "bytes", [answer.most_bytes - answer.before_bytes])
    for name in outs:
        clean(name)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
