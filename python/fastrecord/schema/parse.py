"""`parse_type`: a field type from text, as `fastrecord info` shows it and `--type` takes it."""

from __future__ import annotations

import re

from fastrecord.schema import SIZES, FieldType, array, list_

_PLAIN = ["image", "bytes", "string", "json", *SIZES]
_ARRAY = re.compile(r"array\(\s*\"?(\w+)\"?\s*,\s*\(([^()]*)\)\s*\)")
_LIST = re.compile(r"list_?\((.*)\)")


def parse_type(text: str) -> FieldType:
    """Return the type that a text names: `int64`, `array(float32, (3, None))`, `list(string)`.

    Raises:
        ValueError: the text names no type; says which texts do.
    """
    text = text.strip()
    if text in _PLAIN:
        return FieldType(text)
    if found := _ARRAY.fullmatch(text):
        dims = [dim.strip() for dim in found[2].split(",") if dim.strip()]
        if all(dim.isdecimal() or dim in ("None", "?") for dim in dims):
            return array(found[1], tuple(int(dim) if dim.isdecimal() else None for dim in dims))
    if found := _LIST.fullmatch(text):
        return list_(parse_type(found[1]))
    raise ValueError(f"{text!r} is no type: types are {', '.join(_PLAIN)}, array(float32, (3, None)) and list(int64)")
