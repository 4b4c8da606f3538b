"""The formats that are known: the package's own, and others by entry points."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange.format import Format, Found
from fastrecord.interchange.paths import expand, refuse_pipe
from fastrecord.interchange.stored import is_folder, is_stored

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fastrecord.formats"
_log = logging.getLogger("fastrecord.formats")
# Name -> its module in fastrecord.formats, and its class. The order is the order in which a source
# is looked at: formats with an unmistakable sign come first.
_MODULES = {
    "litdata": "litdata:LitDataFormat",
    "mds": "mds:MdsFormat",
    "huggingface": "huggingface:HuggingFaceFormat",
    "zarr": "zarr:Zarr",
    "beton": "beton:BetonFormat",
    "arrayrecord": "arrayrecord:ArrayRecordFormat",
    "hdf5": "hdf5:Hdf5",
    "parquet": "parquet:ParquetFormat",
    "numpy": "numpy:Numpy",
    "lmdb": "lmdb:Lmdb",
    "cifar": "cifar:Cifar",
    "torch": "torch:Torch",
    "webdataset": "webdataset:TarFormat",
    "recordio": "recordio:RecordIOFormat",
    "tfrecord": "tfrecord:TFRecordFormat",
    "idx": "idx:Idx",
    "folder": "folder:FolderFormat",
    "pairs": "pairs:Pairs",
}


def names(*, writes: bool = False) -> list[str]:
    """Return the names of all formats, or of those that can be written."""
    if not writes:
        return sorted({*_MODULES, *_others()})
    return sorted(each.name for each in _loaded()[0] if each.writes)


def load(name: str) -> Format:
    """Return the format of a name.

    Raises:
        FastRecordError: the name is unknown, or its package cannot be imported.
    """
    if name in _MODULES:
        return _own(name)
    if name not in _others():
        raise Code.UNKNOWN_FORMAT.error(f"no format is called {name!r}: the formats are {', '.join(names())}")
    try:
        found = _others()[name].load()
    except Exception as err:
        raise Code.UNKNOWN_FORMAT.error(
            f"the format {name!r} of the package {_package(name)} cannot be imported: {type(err).__name__}: {err}"
        ) from err
    if not isinstance(found, Format):
        raise Code.UNKNOWN_FORMAT.error(
            f"the entry point {name!r} of the package {_package(name)} is not an instance of "
            "fastrecord.interchange.Format"
        )
    return found


def recognise(source: str | Sequence[str]) -> tuple[Format, str]:
    """Return the format of a source, and why it is taken for it.

    Raises:
        FastRecordError: it is of no known format.
        OSError: it cannot be read.
    """
    first = source if isinstance(source, str) else source[0]
    path = first if is_folder(first) or os.path.lexists(first) else expand(first)[0]
    refuse_pipe(path)
    found = Found.at(path)
    formats, broken = _loaded()
    for each in formats:
        why = _why(each, found)
        if why is not None:
            return each, why
    for each in formats:
        files = (file for file in found.names if file.endswith(each.suffixes))
        for file in islice(files, 1):
            why = _why(each, found.inside(file))
            if why is not None:
                return each, f"{file} in it: {why}"
    if not is_stored(path) and any(os.path.isdir(os.path.join(path, name)) for name in found.names):
        return load("folder"), "it holds folders, one for each class"
    inside = f"a folder with {', '.join(found.names[:5]) or 'nothing'}" if found.is_folder else f"{found.head[:16]!r}"
    error = Code.UNKNOWN_FORMAT.error(
        f"{path}: of no known format ({inside}): name the format with --format {'|'.join(names())}"
    )
    for reason in broken:
        error.add_note(reason.text)
    raise error


def _loaded() -> tuple[list[Format], list[FastRecordError]]:
    """Return the formats, those of other packages first, and why some cannot be imported."""
    formats, broken = [], []
    for name in [*_others(), *_MODULES]:
        try:
            formats.append(load(name))
        except FastRecordError as err:
            _log.warning("%s", err.text)
            broken.append(err)
    return formats, broken


def _why(each: Format, found: Found) -> str | None:
    # Some formats look at files beside it, which are not here.
    try:
        return each.recognise(found)
    except OSError:
        if each.stored or not is_stored(found.path):
            raise
        return None


@cache
def _own(name: str) -> Format:
    module, _, kind = _MODULES[name].partition(":")
    found: Format = getattr(import_module(f"fastrecord.formats.{module}"), kind)()
    return found


@cache
def _others() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes longer than a folder of images needs

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _MODULES}


def _package(name: str) -> str:
    package = _others()[name].dist
    return package.name if package is not None else "?"
