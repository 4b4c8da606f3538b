"""`Limits`: sizes beyond which readers and writers refuse data. The core defines the numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fastrecord._core import all_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of this version, read-only; docs/format.md, section 9, explains each of them.

    Other sizes are limited by the file's size only: a list's items, the length of strings, arrays
    and bytes.

    Attributes:
        max_records: Records of a file.
        max_fields: Fields of a schema.
        max_name_bytes: Bytes of a field's name in UTF-8.
        max_metadata_bytes: Bytes of a file's metadata as JSON, the schema included.
        max_dims: Dimensions of an array.
        max_image_bytes: Bytes of a value of type image.
        max_pixels: Pixels of an image to decode, unless `max_pixels=` of the loader or of
            `decode_image` overrides it.
        max_crop_index_pixels: Pixels of an image with a crop index; larger ones get none.
        max_jpeg_side: Pixels of a side of a JPEG that is written.
        max_jpeg_scans: Scans of a progressive JPEG.
        max_image_workspace: Bytes that decoding an image other than a JPEG may take besides its
            pixels.
        max_side_bytes: Bytes after an image for its decoder's use.
        max_dictionary_bytes: Bytes of a dictionary of a compressed field.
        small_value_bytes: Size in bytes to which any compressed payload may expand, however short.
        max_expansion: Maximum ratio of a larger value's size to its payload.
        max_lz4_bytes: Bytes of a value that lz4 compresses; larger ones are stored uncompressed.
    """

    max_records: int
    max_fields: int
    max_name_bytes: int
    max_metadata_bytes: int
    max_dims: int
    max_image_bytes: int
    max_pixels: int
    max_crop_index_pixels: int
    max_jpeg_side: int
    max_jpeg_scans: int
    max_image_workspace: int
    max_side_bytes: int
    max_dictionary_bytes: int
    small_value_bytes: int
    max_expansion: int
    max_lz4_bytes: int


LIMITS = Limits(**all_limits())
