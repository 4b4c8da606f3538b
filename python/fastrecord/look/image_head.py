"""Facts from the first bytes of an image, and of the side bytes after it: their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Kinds of side bytes: docs/format.md.
CROP_READY = 1
CROP_INDEX = 2

# Markers of a JPEG: frame headers (C4, C8 and CC are something else), and markers without a length.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_BARE = {0x01, *range(0xD0, 0xD9)}
_SCAN, _END = 0xDA, 0xD9
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


@dataclass(frozen=True, slots=True)
class JpegHead:
    """What a JPEG's frame header says.

    Attributes:
        mode: "L", "RGB" or "CMYK", as Pillow names them; a number of components without a name.
        subsampling: Of the colours: "4:2:0" and so on; None for grey.
        progressive: Whether it has a progressive frame.
    """

    mode: str
    subsampling: str | None
    progressive: bool


def image_format(head: bytes) -> str:
    """Return the usual name of an image's type."""
    known = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WebP", b"GIF8": "GIF", b"BM": "BMP", b"P6": "PPM"}
    return next((name for start, name in known.items() if head.startswith(start)), "other")


def read_jpeg_head(data: bytes | memoryview) -> JpegHead | None:
    """Return what the frame header of a JPEG says (ITU-T T.81, B.2); None if there is none.

    Args:
        data: The JPEG. Only the headers up to the frame's are touched.
    """
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _BARE:  # a fill byte, or a marker alone
            at += 1 if marker == 0xFF else 2
            continue
        if marker in (_SCAN, _END):
            return None
        length = data[at + 2] << 8 | data[at + 3]
        if marker in _FRAMES:
            return _frame(bytes(data[at + 4 : at + 2 + length]), progressive=marker in _PROGRESSIVE)
        at += 2 + length
    return None


def _frame(header: bytes, *, progressive: bool) -> JpegHead | None:
    count = header[5] if len(header) > 5 else 0
    sampling = header[7 : 6 + 3 * count : 3]
    factors = [(both >> 4, both & 15) for both in sampling]
    if not factors or len(factors) != count or not all(h and v for h, v in factors):
        return None
    return JpegHead(_MODES.get(count, f"{count} components"), _subsampling(factors), progressive)


_RATIOS: dict[tuple[float, float], Literal["4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "4:1:0"]] = {
    (1, 1): "4:4:4",
    (2, 1): "4:2:2",
    (2, 2): "4:2:0",
    (1, 2): "4:4:0",
    (4, 1): "4:1:1",
    (4, 2): "4:1:0",
}


def _subsampling(factors: list[tuple[int, int]]) -> str | None:
    """Return how much coarser the colours are than the first component."""
    if len(factors) < 3:
        return None
    across, down = factors[0][0] / factors[1][0], factors[0][1] / factors[1][1]
    return _RATIOS.get((across, down), f"{across:g} x {down:g}")
