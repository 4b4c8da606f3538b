"""`Picture`: a value of a field as an image for a web page, of a bounded number of bytes.

Pillow decodes, because it decodes JPEGs at a fraction of their size. The pixels are for people to
look at; the loader's may differ.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from fastrecord._core import image_size
from fastrecord.errors import Code
from fastrecord.look.values import image_format, widened
from fastrecord.schema import FieldType

# Exceptions that Pillow's plugins raise for broken images.
PIL_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

# Types that every browser shows, and the modes that it shows as Pillow does.
_SHOWN_AS_IS = {"JPEG": "image/jpeg", "PNG": "image/png", "WebP": "image/webp", "GIF": "image/gif"}
_MODES = ("1", "L", "P", "RGB", "RGBA", "LA")
# Pixels of an image that a page holds as it is, and of one that is decoded at all: Pillow warns
# above the second number.
_MOST_AS_IS = 1 << 22
_MOST_PIXELS = 89_478_485
# Bytes per pixel of a small photograph as JPEG of this quality, for a first guess of its size.
_QUALITY, _BYTES_PER_PIXEL = 75, 0.2
_SIDES = (16, 2048)
# An array with a shorter side is a table of numbers rather than an image.
_LEAST_SIDE = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in a page.

    Attributes:
        url: The image as a `data:` URL.
        width: Width of the value, in pixels.
        height: Height of the value, in pixels.
        shown: Width and height of the image in the URL.
    """

    url: str
    width: int
    height: int
    shown: tuple[int, int]


def may_be_picture(kind: FieldType) -> bool:
    """Return whether some value of a field may be shown as an image."""
    if kind.name == "array":
        shape = kind.shape or ()
        channels = any(shape[at] in (1, 3, 4, None) for at in (0, -1)) if shape else False
        return _holds_pixels(kind) and (len(shape) == 2 or (len(shape) == 3 and channels))
    return kind.name in ("image", "bytes")


def make_picture(value: Any, kind: FieldType, most_bytes: int) -> Picture | None:
    """Return a value as an image of at most about `most_bytes` bytes; None if it is not an image.

    An encoded image that is not larger, of a type that browsers show, stays as it is. Others are
    made smaller and encoded again. Arrays are images with the shape (H, W), (H, W, C) or (C, H, W),
    with 1, 3 or 4 channels C and sides of at least 4; uint8, or floats from 0 to 1. Small ones are
    PNGs, without loss.

    Args:
        value: As `Reader.get` returns it.
        kind: The type of its field.
        most_bytes: Bytes of the encoded image. Only a noisy one of 16 pixels may have more.

    Raises:
        DecodeError: it is an image, but Pillow cannot decode it, or it is too large to be shown.
    """
    if value is None:
        return None
    if kind.name == "array":
        image = _array_image(np.asarray(value), kind)
        return None if image is None else _exact(image, most_bytes) or _encoded(image, image.size, most_bytes)
    if kind.name == "bytes" and image_format(bytes(value[:16])) == "other":
        return None
    return _decoded(value, most_bytes) if kind.name in ("image", "bytes") else None


def _holds_pixels(kind: FieldType) -> bool:
    return kind.dtype in ("uint8", "float16", "bfloat16", "float32", "float64")


def _array_image(array: Any, kind: FieldType) -> Image.Image | None:
    if not _holds_pixels(kind) or array.ndim not in (2, 3):
        return None
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    channels = array.shape[2] if array.ndim == 3 else 1
    if channels not in (1, 3, 4) or min(array.shape[:2]) < _LEAST_SIDE or array.size > _MOST_PIXELS:
        return None
    array = widened(array, kind)
    if array.dtype != np.uint8:
        # nan fails both comparisons
        if not (array.min() >= 0 and array.max() <= 1):
            return None
        array = (array.astype(np.float32) * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.ndim == 3 and channels == 1 else array))


def _decoded(value: Any, most_bytes: int) -> Picture:
    size = image_size(value)
    if size is not None and size[0] * size[1] > _MOST_PIXELS:
        raise Code.IMAGE_PIXELS.error(f"{size[0]} x {size[1]} pixels are too many to be shown")
    try:
        with Image.open(io.BytesIO(value)) as image:
            full = image.size
            media = _SHOWN_AS_IS.get(image_format(bytes(value[:16])))
            small = len(value) <= most_bytes and full[0] * full[1] <= _MOST_AS_IS
            if media is not None and small and image.mode in _MODES:
                image.load()  # refuses a damaged one
                return Picture(_url(media, bytes(value)), *full, full)
            side = _side(most_bytes, full)
            image.draft(None, (side, side))
            return _encoded(image, full, most_bytes)
    except UnidentifiedImageError:
        reason = f"no known image type: {len(value)} bytes that begin with {bytes(value[:8])!r}"
    except PIL_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
    raise Code.PILLOW.error(reason)


def _exact(image: Image.Image, most_bytes: int) -> Picture | None:
    """Return an image without loss, as masks and small images of few pixels need it; None if it is too large."""
    if image.width * image.height > 4 * most_bytes:
        return None
    file = io.BytesIO()
    image.save(file, "PNG")
    data = file.getvalue()
    return Picture(_url("image/png", data), *image.size, image.size) if len(data) <= most_bytes else None


def _side(most_bytes: int, size: tuple[int, int]) -> int:
    """Return the longer side with which an image probably has `most_bytes` bytes."""
    ratio = max(size) / max(min(size), 1)
    return int(min(max((most_bytes / _BYTES_PER_PIXEL * ratio) ** 0.5, _SIDES[0]), _SIDES[1]))


def narrow(image: Image.Image, kind: str, sixteen_bit: str) -> Image.Image:
    """Return an image whose grey values have 8 bits, by an option of `Decoding`; Pillow clips others.

    Raises:
        DecodeError: it has more bits, and `sixteen_bit` does not convert them.
    """
    if not image.mode.startswith(("I", "F")) or sixteen_bit == "clip":
        return image
    # Pillow's mode I of 32 bits also holds the 16 of a PGM, and in old versions those of a PNG.
    bits = 16 if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PPM", "PNG")) else 32
    if bits == 16 and sixteen_bit == "scale":
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    scale = 'sixteen_bit="scale" divides by 257, ' if bits == 16 else ""
    raise Code.SIXTEEN_BIT.error(
        f"a grey {kind} of {bits} bits, where an image has 8: {scale}"
        'sixteen_bit="clip" makes all above 255 white, as Pillow does'
    )


def _encoded(image: Image.Image, full: tuple[int, int], most_bytes: int) -> Picture:
    if image.mode.startswith("I;16"):
        image = narrow(image, "", "scale")
    plain = image if image.mode == "RGB" else image.convert("RGB")
    # Bilinear pixels do for looking, and small images of few pixels stay exact.
    side = _side(most_bytes, image.size)
    while True:
        small = plain.copy()
        small.thumbnail((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
        file = io.BytesIO()
        small.save(file, "JPEG", quality=_QUALITY)
        data = file.getvalue()
        if len(data) <= most_bytes or side <= _SIDES[0]:
            return Picture(_url("image/jpeg", data), *full, small.size)
        side = max(int(min(side, max(small.size)) * min(0.95 * (most_bytes / len(data)) ** 0.5, 0.9)), _SIDES[0])


def _url(media: str, data: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode('ascii')}"
