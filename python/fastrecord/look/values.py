"""`summarize` and `short_text`: a value of any field in a few words, as JSON and as one line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import image_size
from fastrecord.schema import FieldType
from fastrecord.terminal import bytes_text

# The kind of side bytes that are a crop index: docs/format.md.
CROP_INDEX = 2
# The codec of a JPEG that is stored as packed coefficients: docs/format.md.
PACKED_JPEG = 3

# Items of an array or a list, and bytes, that a summary repeats.
_ITEMS = 8
_BYTES = 16


def image_format(head: bytes) -> str:
    """Return the usual name of an image's type."""
    known = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WebP", b"GIF8": "GIF", b"BM": "BMP", b"P6": "PPM"}
    return next((name for start, name in known.items() if head.startswith(start)), "other")


def widened(values: NDArray[Any], kind: FieldType) -> NDArray[Any]:
    """Return an array in a numpy type: numpy sees bfloat16 as uint16, which becomes float32."""
    if kind.dtype != "bfloat16" or values.dtype != np.uint16:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


def summarize(value: Any, kind: FieldType) -> Any:
    """Return a value as JSON-able values: numbers, texts and JSON as they are, others in short.

    Args:
        value: As `Reader.get` returns it; None if the record has none.
        kind: The type of its field.

    Returns:
        For an image or bytes its `bytes`, and `format`, `width` and `height` of an image, or
        `starts`, the first bytes as hexadecimal digits. For an array `dtype`, `shape` and `values`,
        the first eight. For a list `items`, their number, and `values`, the first eight.
    """
    if value is None:
        return None
    if kind.name in ("image", "bytes"):
        head, about = bytes(value[:_BYTES]), {"bytes": len(value)}
        size = image_size(value) if kind.name == "image" or image_format(head) != "other" else None
        if kind.name == "image" or size is not None:
            sides = dict(zip(("width", "height"), size or (None, None), strict=True))
            return about | {"format": image_format(head)} | sides
        return about | {"starts": head.hex(" ")}
    if kind.name == "array":
        flat = widened(np.asarray(value).ravel()[:_ITEMS], kind)
        return {"dtype": kind.dtype, "shape": list(np.shape(value)), "values": [_number(n) for n in flat.tolist()]}
    if kind.item is not None:
        return {"items": len(value), "values": [summarize(item, kind.item) for item in value[:_ITEMS]]}
    return _number(value)


def _number(value: Any) -> Any:
    """Return a complex number as its two parts, for JSON; other values unchanged."""
    return [value.real, value.imag] if isinstance(value, complex) else value


def short_text(value: Any, kind: FieldType, width: int = 80) -> str:
    """Return a value as one line of at most `width` characters.

    Args:
        value: As `Reader.get` returns it.
        kind: The type of its field.
        width: At least 1.
    """
    if isinstance(value, str):
        value = value[: width + 1]
    text = _text(summarize(value, kind), kind)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _text(about: Any, kind: FieldType) -> str:
    if about is None:
        return "null" if kind.name == "json" else "(no value)"
    if kind.name in ("image", "bytes"):
        size = bytes_text(about["bytes"])
        if "starts" in about:
            return f"{size}: {about['starts']}" if about["bytes"] else size
        sides = f", {about['width']} x {about['height']}" if about["width"] else ""
        return f"{about['format']}{sides}, {size}"
    if kind.name == "array":
        shape = " x ".join(map(str, about["shape"])) or "one"
        more = ", ..." if np.prod(about["shape"]) > len(about["values"]) else ""
        numbers = ", ".join(_number_text(n) for n in about["values"])
        return f"{about['dtype']} {shape}{': ' * bool(numbers)}{numbers}{more}"
    if kind.item is not None:
        texts = [_text(item, kind.item) for item in about["values"]]
        texts += ["..."] if about["items"] > len(texts) else []
        return f"{about['items']:,} item{'s' * (about['items'] != 1)}{': ' * bool(texts)}{', '.join(texts)}"
    if kind.name == "string":
        return str(about)
    if kind.name == "json":
        return json.dumps(about, ensure_ascii=False)
    return _number_text(about)


def _number_text(value: Any) -> str:
    if isinstance(value, list):
        return str(complex(*value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
