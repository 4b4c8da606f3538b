"""Image decoding of single records, with errors that name the record.

Does not crop or resize; the loader does.
"""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import get_worker_info

from fastrecord._core import DecodeError, FastRecordError, Reader, all_limits, decode_records, foreign_kind
from fastrecord.dataset.decoding import Decoding
from fastrecord.errors import Code
from fastrecord.look.pictures import PIL_ERRORS, narrow
from fastrecord.schema.roles import read_key

# Errors of the core for images that Pillow may decode.
NOT_DECODED = (Code.UNKNOWN_IMAGE, Code.IMAGE_KIND)
# The package to install and import for Pillow to support a kind.
_PLUGINS = {"HEIC": "pillow-heif", "HEIF": "pillow-heif", "JPEG XL": "pillow-jxl-plugin"}
_ORIENTATION = 0x0112
_TURN_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def place(reader: Reader, record: int, field: str) -> dict[str, Any]:
    """Return the location of a value, as an error has it."""
    return {"path": reader.path, "record": record, "field": field, "key": read_key(reader, record)}


def if_bytes(reader: Reader, field: str, code: str | None) -> str | None:
    """Return the way out of an error about a value that is not an image, if its field is of type bytes."""
    if reader.schema[field].name != "bytes" or code not in (Code.UNKNOWN_IMAGE, Code.PILLOW):
        return None
    return f"without an image field, a bytes field is decoded as images: fields=({field!r}, ...) reads it as bytes"


def decode_pil(payload: bytes, reader: Reader, record: int, field: str) -> Image.Image:
    """Return an image in RGB.

    Raises:
        DecodeError: Pillow cannot decode it, or it is grey of more than 8 bits.
    """
    try:
        # The same steps as ImageFolder's loader: open, then convert, which loads.
        with Image.open(io.BytesIO(payload)) as image:
            return narrow(as_stored(image), image.format or "image", "reject").convert("RGB")
    except DecodeError as error:
        vars(error).update(place(reader, record, field))
        error.way_out = "give decode=fastrecord.Decoding(sixteen_bit=...), or decode=None for the bytes"
        raise
    except UnidentifiedImageError:
        reason = f"no known image type: {len(payload)} bytes that begin with {payload[:8]!r}"
    except PIL_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
    way_out = if_bytes(reader, field, Code.PILLOW)
    raise Code.PILLOW.error(reason, **place(reader, record, field), way_out=way_out)


def as_stored(image: Image.Image) -> Image.Image:
    """Return an opened image, loaded and in its stored orientation: Pillow rotates TIFFs."""
    number = getattr(image, "tag_v2", {}).get(_ORIENTATION)
    image.load()
    # Pillow removes the tag after it has rotated the image.
    turned = number is not None and _ORIENTATION not in getattr(image, "tag_v2", {})
    return image.transpose(_TURN_BACK[number]) if turned and number in _TURN_BACK else image


def decode_native(
    reader: Reader, records: NDArray[np.int64], field: str, *, decoding: Decoding, verify: bool | Literal["once"]
) -> list[torch.Tensor]:
    """Return the images of some records of one file, decoded by the core, uint8 (3, H, W) in RGB.

    Pillow decodes the kinds that the core does not support, if `decoding` allows it.

    Raises:
        CorruptFileError: a checksum differs.
        DecodeError: the image format is not supported.
    """
    threads = None if get_worker_info() is None else 1  # the other workers use the other CPUs
    try:
        images = decode_records(reader, records, field, verify=verify, decoding=decoding, threads=threads)
    except FastRecordError as error:
        if len(records) > 1:
            # Decode again one by one to report the first failing record by its key.
            one_by_one = [records[i : i + 1] for i in range(len(records))]
            return [decode_native(reader, one, field, decoding=decoding, verify=verify)[0] for one in one_by_one]
        record = int(records[0])
        error.key, error.way_out = read_key(reader, record), if_bytes(reader, field, error.code)
        if not (isinstance(error, DecodeError) and error.code in NOT_DECODED and decoding.decoder == "auto"):
            raise
        try:
            data = bytes(reader.get(record, field, verify=verify, copy=True))
            images = [np.array(decode_foreign(data, decoding, error)[0])]
        except DecodeError as err:
            vars(err).update(place(reader, record, field))
            raise
    return [torch.from_numpy(image).permute(2, 0, 1) for image in images]


def decode_foreign(data: bytes, decoding: Decoding, failure: DecodeError) -> tuple[Image.Image, str, str]:
    """Return an image that Pillow decodes, in RGB; its mode before; and Pillow's name of its format.

    Args:
        data: The bytes.
        decoding: How images are decoded.
        failure: The core's error, which is raised if Pillow does not open it either.

    Raises:
        DecodeError: without the place of the image.
    """
    most = all_limits()["max_pixels"] if decoding.max_pixels is None else decoding.max_pixels
    try:
        with Image.open(io.BytesIO(data)) as opened:
            name = opened.format or "unknown"
            if opened.width * opened.height > most:
                size = f"{opened.width} x {opened.height} pixels"
                limit = f"the limit of {most}: fastrecord.Decoding(max_pixels=...) sets another"
                raise Code.IMAGE_PIXELS.error(f"{size} are more than {limit}")
            if decoding.exif_orientation:
                opened.load()  # applies the orientation of some formats
                image = ImageOps.exif_transpose(opened)
            else:
                image = as_stored(opened)
            return narrow(image, name, decoding.sixteen_bit).convert("RGB"), image.mode, name
    except DecodeError:
        raise
    except PIL_ERRORS as error:
        if (kind := foreign_kind(data)) is not None:
            reason = str(error).split(" <")[0]
            more = f" (the package {_PLUGINS[kind]} may add that)" if kind in _PLUGINS else ""
            failure.text += f", and Pillow does not open it: {reason}{more}"
        raise failure from None
