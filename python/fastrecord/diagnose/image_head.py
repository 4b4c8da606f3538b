"""Facts from the first bytes of an image, and of the side bytes after it: their types."""

from __future__ import annotations

# Kinds of side bytes: docs/format.md.
CROP_READY = 1
CROP_INDEX = 2


def image_format(head: bytes) -> str:
    """Return the usual name of an image's type."""
    known = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WebP", b"GIF8": "GIF", b"BM": "BMP", b"P6": "PPM"}
    return next((name for start, name in known.items() if head.startswith(start)), "other")
