"""Messages of protocol buffers, written without their library.

Format: "Encoding" in the documentation of protocol buffers. `_core.read_examples` reads
them.
"""

from __future__ import annotations

_BYTES = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """Return a number of 64 bits as a varint; a negative one as its two's complement."""
    if 0 <= value < 0x80:
        return _BYTES[value]
    if value < 0:
        value += 1 << 64
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def head(number: int, length: int) -> bytes:
    """Return what comes before a field of `length` bytes."""
    return varint(number << 3 | 2) + varint(length)


def delimited(number: int, data: bytes) -> bytes:
    """Return a field of bytes: a string, a message, or packed numbers."""
    return head(number, len(data)) + data
