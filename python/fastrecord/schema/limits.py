"""What is refused because it is too large, by readers and by writers: the numbers that the core goes by."""

from __future__ import annotations

from dataclasses import dataclass

from fastrecord._core import all_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of this version, read-only; docs/format.md, section 9, has the reason of each.

    What is not here is bounded by the file's size: a list's items, the length of texts, arrays and bytes.

    Attributes:
        max_records: Records of a file.
        max_fields: Fields of a schema.
        max_name_bytes: Bytes of a field's name in UTF-8.
        max_metadata_bytes: Bytes of a file's metadata as JSON, the schema included.
        max_dims: Dimensions of an array.
        max_image_bytes: Bytes of a value of type image.
        max_pixels: Pixels of an image to decode, unless `max_pixels=` of the loader or of `decode_image` says another.
        max_crop_ready_pixels: Pixels of an image to make crop-ready; larger ones stay as they are.
        max_jpeg_side: Pixels of a side of a JPEG that is written.
        max_jpeg_scans: Scans of a progressive JPEG.
        max_image_workspace: Bytes that decoding an image other than a JPEG may take besides its pixels.
        max_side_bytes: Bytes behind an image for its decoder's use.
        max_dictionary_bytes: Bytes of a dictionary of a compressed field.
        small_value_bytes: Bytes of a value that any compressed payload may become, however short.
        max_expansion: How many times as long as its payload a larger value may be.
        max_lz4_bytes: Bytes of a value that lz4 compresses; larger ones are stored as they are.
    """

    max_records: int
    max_fields: int
    max_name_bytes: int
    max_metadata_bytes: int
    max_dims: int
    max_image_bytes: int
    max_pixels: int
    max_crop_ready_pixels: int
    max_jpeg_side: int
    max_jpeg_scans: int
    max_image_workspace: int
    max_side_bytes: int
    max_dictionary_bytes: int
    small_value_bytes: int
    max_expansion: int
    max_lz4_bytes: int


LIMITS = Limits(**all_limits())
