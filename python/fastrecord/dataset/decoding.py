"""`Decoding`: how images are decoded: what decodes them, and which images are refused.

Decodes nothing itself, and needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from fastrecord.checks import WORD, choice, flag, integer

Decoder: TypeAlias = Literal["auto", "native"]
Truncated: TypeAlias = Literal["reject", "accept"]
SixteenBit: TypeAlias = Literal["reject", "scale", "clip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a loader or a data set decodes images.

    Attributes:
        decoder: What decodes kinds of images that the core does not support, such as AVIF. "auto":
            Pillow, in the consumer's thread. "native": nothing; they are errors.
        truncated: "reject": an image that lacks some of its data is an error. "accept": the
            available part is decoded.
        sixteen_bit: 16-bit grey does not fit into 8 bits. "reject": it is an error. "scale":
            divided by 257 and rounded. "clip": values above 255 become white, as in Pillow.
        exif_orientation: Rotate images by their EXIF data (in TIFF, by their tag); torchvision does
            not.
        max_pixels: Larger images are errors. None: Pillow's limit.

    Raises:
        TypeError, ValueError: a value is not allowed; the message lists those that are.
    """

    decoder: Decoder = "auto"
    truncated: Truncated = "reject"
    sixteen_bit: SixteenBit = "reject"
    exif_orientation: bool = False
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        choice("decoder", self.decoder, get_args(Decoder))
        truncated: object = self.truncated
        if isinstance(truncated, bool):
            instead = "accept" if truncated else "reject"
            raise TypeError(f'truncated is "reject" or "accept", not a bool: write truncated="{instead}"')
        choice("truncated", self.truncated, get_args(Truncated))
        choice("sixteen_bit", self.sixteen_bit, get_args(SixteenBit))
        flag("exif_orientation", self.exif_orientation)
        if self.max_pixels is not None:
            integer("max_pixels", self.max_pixels, 1, WORD)
