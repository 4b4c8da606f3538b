"""Images of every kind found in real folders, made from seeded noise over gradients."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SOI = b"\xff\xd8"


def pixels(width: int, height: int, channels: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Return noise over gradients that differ by channel, uint8 (height, width, channels)."""
    rng = np.random.default_rng(seed)
    x, y = np.linspace(0, 1, width)[None, :, None], np.linspace(0, 1, height)[:, None, None]
    slopes = rng.uniform(-1, 1, (2, channels))
    smooth = 127 + 60 * (slopes[0] * x + slopes[1] * y)
    noisy: NDArray[np.float64] = smooth + rng.normal(0, 12, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def picture(width: int = 61, height: int = 43, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return such an image in a Pillow mode."""
    image = Image.fromarray(pixels(width, height, seed=seed))
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(pixels(width, height, 1, seed + 1)[:, :, 0]))
    return image.convert(mode)


def save(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """Return the encoded bytes."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(width: int = 61, height: int = 43, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG; `options` are Pillow's."""
    return save(picture(width, height, mode), "JPEG", **({"quality": 90} | options))


def with_segment(data: bytes, marker: int, payload: bytes) -> bytes:
    """Return a JPEG with an extra segment directly after its start."""
    return SOI + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + data[2:]


def exif(orientation: int) -> bytes:
    """Return the payload of an APP1 segment with an orientation."""
    return b"Exif\0\0" + struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x112, 3, 1, orientation, 0, 0)


def frame(data: bytes) -> int:
    """Return the offset of a JPEG's frame header."""
    at = 2
    while data[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def resampled(data: bytes, old: int, new: int, width: int, height: int) -> bytes:
    """Return a JPEG with other sampling factors for its first component and another size.

    Both must have as many blocks per MCU and as many MCUs: then the scans are valid, if unusual.
    """
    at = frame(data)
    assert data[at + 11] == old
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 : at + 11] + bytes([new]) + data[at + 12 :]


def jpeg_411(**options: Any) -> bytes:
    """Return a JPEG with colours at a quarter of the width: MCUs of 32 x 8 instead of 16 x 16."""
    return resampled(jpeg(64, 64, subsampling="4:2:0", **options), 0x22, 0x41, 123, 29)


def jpeg_440(**options: Any) -> bytes:
    """Return a JPEG with colours at half of the height: MCUs of 8 x 16 instead of 16 x 8."""
    return resampled(jpeg(64, 64, subsampling="4:2:2", **options), 0x21, 0x12, 31, 125)


def jpeg_ycck() -> bytes:
    """Return a JPEG with four components and an Adobe marker for YCCK, not CMYK."""
    data = bytearray(jpeg(mode="CMYK"))
    at = data.index(b"Adobe") + 11
    assert data[at] == 0
    data[at] = 2
    return bytes(data)


# x, y, steps
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(
    values: NDArray[Any], *, transparent: bytes = b"", interlaced: bool = False, index_bits: int | None = None
) -> bytes:
    """Return a PNG of grey, grey with alpha, RGB or RGBA values, (H, W, 1 to 4), 8 or 16 bits.

    With `index_bits`, values (H, W, 1) are indices of that many bits into a palette.
    Pillow writes fewer kinds.
    """
    height, width, samples = values.shape
    depth = index_bits or 8 * values.dtype.itemsize
    stored = values.astype(values.dtype.newbyteorder(">"))
    parts = [stored[y::down, x::right] for x, y, right, down in (ADAM7 if interlaced else [(0, 0, 1, 1)])]
    if index_bits:
        bits = [np.unpackbits(part, axis=2)[:, :, 8 - index_bits :] for part in parts]
        parts = [np.packbits(part.reshape(len(part), -1), axis=1) for part in bits]
    lines = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    colour = 3 if index_bits else {1: 0, 2: 4, 3: 2, 4: 6}[samples]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    if transparent:
        chunks.insert(1, chunk(b"tRNS", transparent))
    if index_bits:
        chunks.insert(1, chunk(b"PLTE", bytes(3 << index_bits)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def wide(channels: int) -> NDArray[np.uint16]:
    """Return 16-bit values, (43, 61, channels)."""
    low = np.random.default_rng(1).integers(0, 256, (43, 61, channels))
    return (pixels(61, 43, channels).astype(np.uint16) << 8 | low).astype(np.uint16)


def reference(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Return Pillow's pixels, read as ImageFolder reads them."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


KINDS: dict[str, Callable[[], bytes]] = {
    "grey JPEG": lambda: jpeg(mode="L"),
    "CMYK JPEG, Adobe-inverted": lambda: jpeg(mode="CMYK"),
    "YCCK JPEG": jpeg_ycck,
    "RGB JPEG without a colour transform": lambda: jpeg(keep_rgb=True),
    "JPEG 4:4:4": lambda: jpeg(subsampling="4:4:4"),
    "JPEG 4:2:2": lambda: jpeg(subsampling="4:2:2"),
    "JPEG 4:2:0": lambda: jpeg(subsampling="4:2:0"),
    "JPEG 4:4:0": jpeg_440,
    "JPEG 4:1:1": jpeg_411,
    "progressive JPEG": lambda: jpeg(progressive=True),
    "progressive JPEG 4:1:1": lambda: jpeg_411(progressive=True),
    "progressive grey JPEG": lambda: jpeg(mode="L", progressive=True),
    "JPEG with optimised tables": lambda: jpeg(optimize=True),
    "JPEG with restart markers": lambda: jpeg(restart_marker_blocks=2),
    "JPEG of low quality": lambda: jpeg(quality=5),
    "JPEG of quality 100": lambda: jpeg(quality=100),
    "JPEG with an EXIF orientation": lambda: with_segment(jpeg(), 0xE1, exif(6)),
    "JPEG with garbage in EXIF": lambda: with_segment(jpeg(), 0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12"),
    "JPEG with a comment": lambda: with_segment(jpeg(), 0xFE, b"\xff\xd9 is not its end"),
    "JPEG with bytes after its end": lambda: jpeg() + bytes(500),
    "PNG": lambda: save(picture(), "PNG"),
    "grey PNG": lambda: save(picture(mode="L"), "PNG"),
    "PNG of 1 bit": lambda: save(picture(mode="1"), "PNG"),
    "grey PNG with alpha": lambda: save(picture(mode="LA"), "PNG"),
    "PNG with alpha": lambda: save(picture(mode="RGBA"), "PNG"),
    "PNG with a palette": lambda: save(picture(mode="P"), "PNG"),
    "PNG with a palette of 16 colours": lambda: save(picture().quantize(16), "PNG", bits=4),
    "PNG with a palette and a transparent colour": lambda: save(picture(mode="P"), "PNG", transparency=3),
    "PNG with a palette and alpha": lambda: save(picture(mode="P"), "PNG", transparency=bytes(range(256))),
    "PNG with a transparent colour": lambda: png(pixels(61, 43), transparent=bytes(6)),
    "grey PNG of 16 bits": lambda: png(wide(1)),
    "PNG of 16 bits": lambda: png(wide(3)),
    "PNG of 16 bits with alpha": lambda: png(wide(4)),
    "grey PNG of 16 bits with alpha": lambda: png(wide(2)),
    "interlaced PNG": lambda: png(pixels(61, 43), interlaced=True),
    "interlaced PNG of 16 bits with alpha": lambda: png(wide(4), interlaced=True),
    "interlaced PNG of 3 x 2": lambda: png(pixels(3, 2), interlaced=True),
    "PNG of several frames": lambda: save(picture(), "PNG", save_all=True, append_images=[picture(seed=5)]),
    "WebP": lambda: save(picture(), "WEBP", quality=80),
    "WebP with alpha": lambda: save(picture(mode="RGBA"), "WEBP", quality=80),
    "WebP of 33 x 1": lambda: save(picture(33, 1), "WEBP", quality=80),
    "WebP of 1 x 33": lambda: save(picture(1, 33), "WEBP", quality=80),
    "WebP of several frames": lambda: save(picture(), "WEBP", save_all=True, append_images=[picture(seed=5)]),
    "WebP without loss": lambda: save(picture(), "WEBP", lossless=True),
    "WebP without loss, with alpha": lambda: save(picture(mode="RGBA"), "WEBP", lossless=True, exact=True),
    "GIF": lambda: save(picture(mode="P"), "GIF"),
    "GIF of several frames": lambda: save(picture(mode="P"), "GIF", save_all=True, append_images=[picture(seed=5)]),
    "GIF with a transparent colour": lambda: save(picture(mode="P"), "GIF", transparency=3),
    "BMP": lambda: save(picture(), "BMP"),
    "grey BMP": lambda: save(picture(mode="L"), "BMP"),
    "BMP of 1 bit": lambda: save(picture(mode="1"), "BMP"),
    "BMP with alpha": lambda: save(picture(mode="RGBA"), "BMP"),
    "BMP with a palette": lambda: save(picture(mode="P"), "BMP"),
    "TIFF": lambda: save(picture(), "TIFF"),
    "TIFF, LZW": lambda: save(picture(), "TIFF", compression="tiff_lzw"),
    "TIFF, Deflate": lambda: save(picture(), "TIFF", compression="tiff_adobe_deflate"),
    "TIFF, PackBits": lambda: save(picture(), "TIFF", compression="packbits"),
    "CMYK TIFF": lambda: save(picture(mode="CMYK"), "TIFF"),
    "TIFF with alpha": lambda: save(picture(mode="RGBA"), "TIFF"),
    "TIFF of 16 bits": lambda: save(Image.fromarray(wide(1)[:, :, 0]), "TIFF"),
    "TIFF of 1 bit": lambda: save(picture(mode="1"), "TIFF"),
    "grey TIFF": lambda: save(picture(mode="L"), "TIFF"),
    "JPEG of several images (MPO)": lambda: save(picture(), "MPO"),
    "PPM": lambda: save(picture(), "PPM"),
    "PGM": lambda: save(picture(mode="L"), "PPM"),
}
for _size in [(1, 1), (1, 40), (40, 1), (2, 3), (7, 5), (8, 8), (9, 17), (15, 16), (33, 31)]:
    _name = f"of {_size[0]} x {_size[1]}"
    for _sampling in ("4:4:4", "4:2:2", "4:2:0"):
        KINDS[f"JPEG {_sampling} {_name}"] = partial(jpeg, *_size, subsampling=_sampling)
    KINDS[f"progressive JPEG {_name}"] = partial(jpeg, *_size, progressive=True)
    KINDS[f"PNG {_name}"] = partial(save, picture(*_size), "PNG")
