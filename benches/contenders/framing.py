"""One value of bytes for label, key and payload, for formats that store nothing but bytes."""

from __future__ import annotations

import struct
from typing import Any

_HEAD = struct.Struct("<qH")


def frame(payload: bytes, label: int, key: str) -> bytes:
    """Return label, length of the key, key and payload as one value."""
    name = key.encode()
    return b"".join((_HEAD.pack(label, len(name)), name, payload))


def unframe(value: Any) -> tuple[Any, int]:
    """Return the payload, as a part of a memoryview or of bytes, and the label."""
    label, length = _HEAD.unpack_from(value)
    return value[_HEAD.size + length :], label
