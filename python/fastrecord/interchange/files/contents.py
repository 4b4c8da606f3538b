"""Values as the contents of files: how an image, a text or an array looks as a file of its own."""

from __future__ import annotations

import io
import json
import tokenize
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.schema import FieldType

# Ends of the names of image files, in lower case, without the dot.
IMAGE_ENDINGS = frozenset(
    {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif",
     "heic", "heif", "jxl", "jp2", "img"}
)  # fmt: skip
_BRANDS = {b"avif": ".avif", b"avis": ".avif", b"heic": ".heic", b"heix": ".heic", b"mif1": ".heif"}
_MAGIC = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
    (b"P5", ".pgm"),
    (b"P6", ".ppm"),
    (b"\xff\x0a", ".jxl"),
    (b"\0\0\0\x0cJXL ", ".jxl"),
)
NPY_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 16


def content(value: Any, kind: FieldType) -> tuple[bytes | memoryview, str]:
    """Return the file content and the file name extension for a value.

    Args:
        value: A value of a field of type image, bytes, string, json or array, as a reader returns
            it.
        kind: The field's type.
    """
    if kind.name == "array":
        return npy_bytes(as_floats(value) if kind.dtype == "bfloat16" else value), ".npy"
    data = to_bytes(value, kind)
    return data, {"string": ".txt", "json": ".json"}.get(kind.name) or ending(bytes(data[:16]))


def to_bytes(value: Any, kind: FieldType) -> bytes | memoryview:
    """Return a value of type image, bytes, string or json as bytes."""
    if kind.name == "string":
        return str(value).encode()
    return json.dumps(value, ensure_ascii=False).encode() if kind.name == "json" else value


def from_bytes(kind: FieldType) -> Callable[[memoryview], Any]:
    """Return what makes a value of the bytes of `to_bytes`; it raises `ValueError`."""
    if kind.name == "string":
        return lambda data: str(data, "utf-8")
    return (lambda data: json.loads(bytes(data))) if kind.name == "json" else lambda data: data


def stored_dtype(kind: FieldType) -> np.dtype[Any]:
    """Return the dtype of a field's numbers, little-endian; numpy has bfloat16 as uint16."""
    return np.dtype("uint16" if kind.dtype == "bfloat16" else kind.dtype).newbyteorder("<")


def ending(head: bytes) -> str:
    """Return the usual extension for the first 16 bytes of an image, `.bin` for other data."""
    if head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
        return _BRANDS[head[8:12]]
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return ".webp"
    return next((ending for magic, ending in _MAGIC if head.startswith(magic)), ".bin")


def as_floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return bfloat16 values as float32; numpy has their bits as uint16."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def as_bits(floats: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves of float32: the bits of bfloat16, without rounding."""
    return (np.ascontiguousarray(floats, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def flat_numbers(value: Any, kind: FieldType) -> NDArray[Any]:
    """Return the numbers of an array or a list of numbers as they are stored. Lists have bfloat16 as floats."""
    if kind.item is not None and kind.item.dtype == "bfloat16":
        value = as_bits(value)
    return np.ascontiguousarray(value, stored_dtype(kind.item or kind)).reshape(-1)


def of_stored(numbers: NDArray[Any], kind: FieldType) -> Any:
    """Return an array or a list of the numbers that `flat_numbers` has returned."""
    return as_floats(numbers).tolist() if kind.item is not None and kind.item.dtype == "bfloat16" else numbers


def npy_bytes(array: NDArray[Any]) -> memoryview:
    """Return an array as an .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getbuffer()


def npy_array(data: bytes | memoryview) -> NDArray[Any]:
    """Return the array of an .npy file, as a view of `data`.

    Raises:
        ValueError: it is damaged, or holds Python objects, which are never loaded.
    """
    view = memoryview(data)
    start = npy_start(bytes(view[:12]), len(view))
    dtype, shape, columns_first = npy_header(bytes(view[:start]))
    if dtype.hasobject:
        raise ValueError("an .npy file of Python objects, which are pickles and are not loaded")
    if dtype.kind not in "biufc":
        raise ValueError(f"an .npy file of {dtype}, {shape}: only arrays of numbers can be taken")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if start + count * dtype.itemsize != len(view):
        raise ValueError(
            f"an .npy file of {dtype}, {shape} has {start + count * dtype.itemsize:,} bytes, not {len(view):,}"
        )
    array = np.frombuffer(view, dtype, count, start)
    return array.reshape(shape[::-1]).T if columns_first else array.reshape(shape)


def npy_start(head: bytes, size: int) -> int:
    """Return where the numbers of an .npy file begin, by its first 12 bytes and its size.

    Raises:
        ValueError: it is not an .npy file, or its header is too long.
    """
    width = 2 if head[6:7] == b"\1" else 4
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    if len(head) < 12 or head[:6] != NPY_MAGIC or head[6] not in (1, 2, 3) or start > min(size, _LONGEST_HEADER):
        raise ValueError(f"not an .npy file: it begins with {head[:8]!r}, and has {size:,} bytes")
    return start


# Arrays of one field have few headers, and numpy takes 20 µs for each.
@lru_cache(1024)
def npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return dtype, shape, and whether columns come first, by all that comes before the numbers.

    Raises:
        ValueError: it is damaged.
    """
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    # Version 3 is version 2 in UTF-8.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, columns_first, dtype = read(file, max_header_size=_LONGEST_HEADER)
    except (
        ValueError,
        SyntaxError,
        tokenize.TokenError,
        TypeError,
        RecursionError,
        MemoryError,
        AttributeError,
    ) as err:
        raise ValueError(f"the header of an .npy file is damaged: {err}") from err
    if not all(0 <= dim < 1 << 48 for dim in shape):
        raise ValueError(f"the header of an .npy file is damaged: its shape is {shape}")
    return dtype, shape, columns_first
