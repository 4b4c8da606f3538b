"""PyTorch's .pt and .pth files, and .safetensors (https://github.com/huggingface/safetensors).

A file holds a tensor, a dict of tensors, or a list or tuple of tensors, as `TensorDataset.tensors`
is; rows along the first axis are records. Files of `torch.save` are loaded with `weights_only=True`,
so that they run no code, and mapped; the older kind that is no zip archive is read whole.
"""

from __future__ import annotations

import math
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Setting, Source, library, usual_type
from fastrecord.interchange.arrays import ArraySource, Column, Shard, jsonable, listed, not_held
from fastrecord.interchange.paths import expand
from fastrecord.interchange.source import EndError
from fastrecord.schema import FieldType, array

_LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LARGEST_LEGACY = 256 << 20
_LARGEST_HEADER = 100 << 20
_DEPTH = 8


class Torch(Format):
    """Files of tensors."""

    name = "torch"
    title = "PyTorch"
    suffixes = (".pt", ".pth", ".safetensors")
    settings: Mapping[str, Setting] = {
        "arrays": Setting("read these tensors, named with commas between them; by default all")
    }

    def recognise(self, found: Found) -> str | None:
        """Look for the archive or pickle of torch.save, and the header of safetensors."""
        if _LEGACY_MAGIC in found.head[:32]:
            return "it begins as a file of torch.save"
        if found.head.startswith(b"PK\x03\x04") and b"/data.pkl" in found.head[:256]:
            return "it is an archive of torch.save"
        if _is_safetensors(found.path, found.head):
            return "it begins with the header of safetensors"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open files."""
        return ArraySource(map(_open, expand(source, self.suffixes)), listed(settings, "arrays"))


def _is_safetensors(path: str, head: bytes) -> bool:
    if len(head) < 10 or head[8:9] != b"{":
        return False
    size = int.from_bytes(head[:8], "little")
    return 2 <= size <= min(_LARGEST_HEADER, os.path.getsize(path) - 8)


def _open(path: str) -> Shard:
    with open(path, "rb") as file:
        head = file.read(16)
    return _open_safetensors(path) if _is_safetensors(path, head) else _open_saved(path)


# safetensors


def _open_safetensors(path: str) -> Shard:
    safetensors = library("safetensors", "safetensors", "safetensors")
    try:
        file = safetensors.safe_open(path, framework="pt")
        with file:
            columns, metadata = {}, dict(file.metadata() or {})
            for name in file.keys():  # noqa: SIM118 - it is no dict
                held = file.get_slice(name)
                shape = tuple(held.get_shape())
                if shape:
                    columns[name] = _column(path, name, shape, held[0:0].dtype, partial(_items, held))
    except (OSError, RuntimeError, ValueError, safetensors.SafetensorError) as err:
        raise Code.SOURCE.error(f"{path}: {err}: copy the file again") from err
    return Shard(path, columns, metadata)


# torch.save


def _open_saved(path: str) -> Shard:
    import torch

    try:
        legacy = not zipfile.is_zipfile(path)
    except zipfile.BadZipFile as err:
        raise Code.SOURCE.error(f"{path}: {err}: copy the file again") from err
    if legacy and os.path.getsize(path) > _LARGEST_LEGACY:
        raise Code.SOURCE.error(
            f"{path}: not a zip archive, so it is cut short, or of a torch before 1.6, and too large to be read whole: "
            "copy it again, or save it again with torch.save"
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=not legacy)
    except Exception as err:  # torch raises what the bytes lead it to
        # Messages of torch advise to load the file unsafely.
        reason = str(err).partition("\n")[0].partition("Weights only load failed")[0].strip() or "it is refused"
        if isinstance(err, pickle.UnpicklingError):
            raise Code.PICKLE.error(
                f"{path}: it holds something else than tensors, which is not run: save the tensors alone, such as "
                f"torch.save(dataset.tensors, ...) ({_blocked(str(err)) or type(err).__name__})"
            ) from err
        raise Code.SOURCE.error(f"{path}: {reason} ({type(err).__name__}): copy the file again") from err
    columns: dict[str, Column | FastRecordError] = {}
    rest: dict[str, Any] = {}
    for name, value in _flat(found, os.path.splitext(os.path.basename(path))[0] or "data", path):
        if isinstance(value, torch.Tensor):
            if value.ndim:
                columns[name] = _tensor(path, name, value)
        else:
            rest[name] = value
    counts = {column.count for column in columns.values() if isinstance(column, Column)}
    for name, value in rest.items():
        kind = usual_type(value) if isinstance(value, (list, tuple)) and {len(value)} == counts and value else None
        if kind is not None:
            columns[name] = Column(kind, f"list {name}", len(value), 64, partial(_items, value))
    return Shard(path, columns, jsonable((name, value) for name, value in rest.items() if name not in columns))


def _flat(found: Any, name: str, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the parts of what was saved, with names."""
    import torch

    if isinstance(found, dict) and depth < _DEPTH:
        for key, value in found.items():
            inner = str(key) if depth == 0 else f"{name}/{key}"
            yield from _flat(value, inner, path, depth + 1)
    elif isinstance(found, (list, tuple)) and depth == 0:
        if len(found) > 1000:
            raise Code.SOURCE.error(
                f"{path}: a list of {len(found):,} values: save one tensor for each field, with a row for each record"
            )
        for at, value in enumerate(found):
            yield from _flat(value, str(at), path, depth + 1)
    elif isinstance(found, torch.Tensor) or depth > 0:
        yield name, found
    else:
        raise Code.SOURCE.error(f"{path}: it holds a {type(found).__name__}, not tensors")


def _tensor(path: str, name: str, value: Any) -> Column | FastRecordError:
    import torch

    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        return Code.SOURCE.error(f"{path}: tensor {name!r} is sparse, quantized or empty: save it dense")
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():
        return Code.SOURCE.error(f"{path}: tensor {name!r} repeats its numbers (expand): save it with .contiguous()")
    value = value.detach()
    return _column(path, name, tuple(value.shape), value.dtype, partial(_items, value))


def _column(path: str, name: str, shape: tuple[int, ...], dtype: Any, rows: Any) -> Column | FastRecordError:
    import torch

    title = str(dtype).removeprefix("torch.")
    try:
        kind = array(title, shape[1:]) if len(shape) > 1 else FieldType(array(title, ()).dtype or "")
    except TypeError:
        return not_held(path, f"tensor {name}", dtype)

    def read(start: int, end: int) -> Any:
        try:
            found = rows(start, end)
            # A copy: the file may change, and its mapping must not be what others read later.
            return found.clone() if dtype == torch.bfloat16 else found.contiguous().numpy().copy()
        except (RuntimeError, OSError, ValueError) as err:
            raise EndError(f"{name}: {err}") from err

    return Column(kind, f"tensor {name}", shape[0], math.prod(shape[1:]) * dtype.itemsize, read)


def _items(values: Any, start: int, end: int) -> Any:
    return values[start:end]


def _blocked(text: str) -> str:
    """Return the name that torch refused, from its message."""
    _, found, after = text.partition("Unsupported global: GLOBAL ")
    return after.split()[0] if found else ""
