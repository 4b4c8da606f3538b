"""Facts from the first bytes of an image: its type, and whether crops decode separately."""

from __future__ import annotations


def image_format(head: bytes) -> str:
    """Return the usual name of an image's type."""
    known = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WebP", b"GIF8": "GIF", b"BM": "BMP", b"P6": "PPM"}
    return next((name for start, name in known.items() if head.startswith(start)), "other")


def has_restarts(data: memoryview) -> bool:
    """Return whether the bytes are a JPEG whose header announces restart markers."""
    at = 2
    if bytes(data[:3]) != b"\xff\xd8\xff":
        return False
    while at + 6 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:  # up to the first scan
        if data[at + 1] == 0xDD:
            return bytes(data[at + 4 : at + 6]) != bytes(2)
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False
