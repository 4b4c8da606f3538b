"""Records of a data set as images, one by one, with errors that name them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch.utils.data import get_worker_info

from fastrecord._core import CorruptFileError, DecodeError, FastRecordError, Reader, decode_records
from fastrecord.errors import extended
from fastrecord.schema.roles import key_suffix

# What Pillow's plugins raise for broken images.
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


def place(reader: Reader, record: int, field: str) -> str:
    """Return where a value lies, for a message."""
    return f"{reader.path}: record {record}{key_suffix(reader, record)}, field {field}"


def decode_pil(payload: bytes, reader: Reader, record: int, field: str) -> Image.Image:
    """Return an image in RGB.

    Raises:
        DecodeError: Pillow can not decode it.
    """
    try:
        # As ImageFolder's loader does it: open, then convert, which loads.
        with Image.open(io.BytesIO(payload)) as image:
            return as_stored(image).convert("RGB")
    except UnidentifiedImageError:
        reason = f"no known image type: {len(payload)} bytes that begin with {payload[:8]!r}"
    except PIL_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
    raise DecodeError(f"{place(reader, record, field)}: {reason} [FR512]")


def as_stored(image: Image.Image) -> Image.Image:
    """Return an opened image, loaded, with rows and columns as they are stored: Pillow turns TIFFs by itself."""
    number = getattr(image, "tag_v2", {}).get(_ORIENTATION)
    image.load()
    # Pillow takes the tag away when it has turned the image.
    turned = number is not None and _ORIENTATION not in getattr(image, "tag_v2", {})
    return image.transpose(_TURN_BACK[number]) if turned and number in _TURN_BACK else image


def decode_native(
    reader: Reader,
    records: NDArray[np.int64],
    field: str,
    *,
    verify: bool | Literal["once"],
    sixteen_bit: str = "reject",
) -> list[torch.Tensor]:
    """Return the images of some records of one file, decoded by the core, uint8 (3, H, W) in RGB.

    Raises:
        CorruptFileError: a checksum differs. DecodeError: not an image that is known.
    """
    threads = None if get_worker_info() is None else 1  # the other CPUs are the other workers'
    try:
        images = decode_records(reader, records, field, verify=verify, sixteen_bit=sixteen_bit, threads=threads)
    except FastRecordError as error:
        if len(records) > 1:
            # Again, one by one, so that the first that fails is reported with its key.
            one_by_one = [records[i : i + 1] for i in range(len(records))]
            return [decode_native(reader, one, field, verify=verify, sixteen_bit=sixteen_bit)[0] for one in one_by_one]
        kind = CorruptFileError if isinstance(error, CorruptFileError) else DecodeError
        raise kind(extended(error, key_suffix(reader, int(records[0])))) from None
    return [torch.from_numpy(image).permute(2, 0, 1) for image in images]
