"""Zarr, versions 2 and 3 (https://zarr-specs.readthedocs.io), read by the package zarr.

The arrays of a group that have one first length are fields, their rows records, and attributes
metadata. Chunks that are missing are the fill value.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Setting, Source, library
from fastrecord.interchange.arrays import ArraySource, Column, Shard, described, listed
from fastrecord.interchange.infer import SAMPLE
from fastrecord.interchange.paths import several
from fastrecord.schema.infer import common_type

# Chunks are decompressed whole.
_LARGEST_CHUNK = 256 << 20
_DEPTH = 8


class Zarr(Format):
    """Folders of zarr."""

    name = "zarr"
    title = "Zarr"
    settings: Mapping[str, Setting] = {
        "group": Setting("read the arrays of this group, such as train; by default of the whole folder"),
        "arrays": Setting("read these arrays, named with commas between them; by default all"),
    }

    def recognise(self, found: Found) -> str | None:
        """Look for the files that describe groups and arrays."""
        signs = [name for name in ("zarr.json", ".zgroup", ".zarray") if name in found.names]
        return f"it is a folder with {signs[0]}" if signs else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open folders."""
        paths = several(source)
        for path in paths:
            os.stat(path)
        group = settings.get("group", "").strip("/")
        return ArraySource((_open(path, group) for path in paths), listed(settings, "arrays"))


def _open(path: str, group: str) -> Shard:
    zarr = library("zarr", "zarr", "Zarr")
    try:
        with warnings.catch_warnings():
            # About data types whose description may change.
            warnings.simplefilter("ignore")
            root = zarr.open(path, mode="r", path=group or None)
            if isinstance(root, zarr.Array):
                found = {os.path.basename(group or os.path.normpath(path)).removesuffix(".zarr") or "data": root}
            else:
                members = sorted(root.members(max_depth=_DEPTH))
                found = {name: each for name, each in members if isinstance(each, zarr.Array)}
            own = [] if isinstance(root, zarr.Array) else list(root.attrs.items())
            inner = {name: list(each.attrs.items()) for name, each in found.items()}
            columns = {name: _column(path, name, each) for name, each in found.items() if each.shape}
    except (FastRecordError, KeyboardInterrupt):
        raise
    except Exception as err:
        # zarr and its codecs raise what the files lead them to.
        raise Code.SOURCE.error(
            f"{path}: {group or 'it'} is not whole, or cannot be read ({type(err).__name__}: {err}): copy it again, "
            "or name another group with --set group=..."
        ) from err
    return Shard(path, columns, described(own, inner))


def _column(path: str, name: str, held: Any) -> Column | FastRecordError:
    if _has_pickles(held.metadata.to_dict()):
        raise Code.PICKLE.error(f"{path}: the chunks of array {name!r} are pickles, which are not run: write it again")
    count, dtype, origin = held.shape[0], held.dtype, f"array {name}"
    size = math.prod(held.chunks) * max(dtype.itemsize, 1)
    if size > _LARGEST_CHUNK:
        raise Code.SOURCE.error(f"{path}: array {name!r} has chunks of {size >> 20:,} MiB: write it with smaller ones")
    if dtype.kind in "OTUS" and len(held.shape) == 1:
        values = [""] if dtype.kind in "UT" else _values(held, 0, min(count, SAMPLE)) or [b""]
        kind = common_type(values)
        if kind is not None and kind.name in ("string", "bytes", "image"):
            return Column(kind, origin, count, dtype.itemsize, partial(_values, held), held.chunks[0])
    return Column.numbers(path, origin, held, partial(_numbers, held), held.chunks[0])


def _rows(held: Any, start: int, end: int) -> Any:
    try:
        return held[start:end]
    except KeyboardInterrupt:
        raise
    except Exception as err:
        # Codecs have exceptions of their own.
        raise ValueError(f"a chunk of {held.path or 'the array'} cannot be read ({type(err).__name__}: {err})") from err


def _numbers(held: Any, start: int, end: int) -> Any:
    return np.ascontiguousarray(_rows(held, start, end), held.dtype.newbyteorder("="))


def _values(held: Any, start: int, end: int) -> list[Any]:
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in _rows(held, start, end).tolist()]


def _has_pickles(metadata: Any, depth: int = 0) -> bool:
    if isinstance(metadata, Mapping):
        return any(_has_pickles(value, depth + 1) for key, value in metadata.items() if key != "attributes")
    if isinstance(metadata, (list, tuple)):
        return any(_has_pickles(value, depth + 1) for value in metadata)
    if isinstance(metadata, str):
        return "pickle" in metadata.lower()
    config = getattr(metadata, "get_config", None) or getattr(metadata, "to_dict", None)
    return depth < _DEPTH and config is not None and _has_pickles(config(), depth + 1)
