"""Image decoding of single records, with errors that name the record.

Does not crop or resize; the loader does.
"""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch.utils.data import get_worker_info

from fastrecord._core import DecodeError, FastRecordError, Reader, decode_records
from fastrecord.dataset.decoding import Decoding
from fastrecord.errors import Code
from fastrecord.look.pictures import PIL_ERRORS, narrow
from fastrecord.schema.roles import read_key

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
    """Return the way out of an error about bytes that are no image, if their field has images by default."""
    if reader.schema[field].name != "bytes" or code not in (Code.UNKNOWN_IMAGE, Code.PILLOW):
        return None
    return f"a field of type bytes is taken for images if there is no other: fields=({field!r}, ...) reads it as it is"


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
        error.key, error.way_out = read_key(reader, int(records[0])), if_bytes(reader, field, error.code)
        raise
    return [torch.from_numpy(image).permute(2, 0, 1) for image in images]
