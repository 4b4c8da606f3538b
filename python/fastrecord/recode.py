"""`Recode`: how images are changed before they are stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from fastrecord.checks import choice, flag, integer

DEFAULT_QUALITY = 90
_MAX_SIDE = 65_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Recode:
    """How images are stored; by default unchanged, byte for byte.

    Attributes:
        short_side: Shrink images whose shorter side has more pixels, in proportion, with a Lanczos
            filter. They become JPEGs. Other images keep their bytes.
        max_side: The same for the longer side. At most one of the two is given.
        quality: Quality of these JPEGs, 1 to 100; 90 by default. Chroma is 4:2:0 if the source is a JPEG
            with subsampled chroma, else 4:4:4. Rows and columns stay as stored. Of the metadata,
            only the EXIF orientation is kept.
        raw: Store every image as its pixels, in binary PPM. These are the pixels as stored: the EXIF
            orientation is lost.
        crop_index: Store a crop index after each JPEG, so that a crop is decoded without most of its
            image. The bytes of the JPEG do not change. JPEGs that gain nothing get none. Not with
            `raw`.
        packed: Store JPEGs as packed coefficients, which decode several times as fast and take about a
            fifth more bytes. Readers give the JPEG back, byte for byte. JPEGs that would not come back
            the same stay as they are. Not with `raw` or `crop_index`.
        sixteen_bit: How 16-bit grey images are converted if they are decoded: "scale" divides by
            257 and rounds, "clip" turns all values above 255 white, as Pillow does. By default
            such an image is a bad one.

    Raises:
        TypeError, ValueError: a value is not allowed, or the settings contradict each other.
    """

    short_side: int | None = None
    max_side: int | None = None
    quality: int | None = None
    raw: bool = False
    crop_index: bool = False
    packed: bool = False
    sixteen_bit: Literal["scale", "clip"] | None = None

    def __post_init__(self) -> None:
        for name, high in (("short_side", _MAX_SIDE), ("max_side", _MAX_SIDE), ("quality", 100)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, integer(name, value, 1, high + 1))
        flag("raw", self.raw)
        flag("crop_index", self.crop_index)
        flag("packed", self.packed)
        shrinks = self.short_side is not None or self.max_side is not None
        if self.short_side is not None and self.max_side is not None:
            raise ValueError("give short_side or max_side, not both")
        if self.crop_index and self.raw:
            raise ValueError("pixels need no crop index: leave out crop_index")
        if self.packed and (self.raw or self.crop_index):
            raise ValueError("packed images are neither pixels nor need a crop index: leave out raw and crop_index")
        if shrinks and not self.raw:
            object.__setattr__(self, "quality", DEFAULT_QUALITY if self.quality is None else self.quality)
        elif self.quality is not None:
            raise ValueError("quality belongs to short_side or max_side, which make JPEGs")
        if self.sixteen_bit is not None:
            choice("sixteen_bit", self.sixteen_bit, ("scale", "clip"), ["None"])
            if not (self.raw or shrinks):
                raise ValueError("sixteen_bit belongs to raw, short_side or max_side, which decode images")

    @property
    def changes(self) -> bool:
        """Whether any image may be changed, or gets side bytes."""
        return bool(self.settings())  # none of them is set for nothing

    def settings(self) -> dict[str, Any]:
        """Return the settings that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}

    def entry(self) -> dict[str, Any]:
        """Return the entry for a file's metadata, without unset settings."""
        settings = self.settings()
        return {"recode": settings} if settings else {}

    @classmethod
    def from_json(cls, settings: object) -> Self:
        """Return the settings in a file's metadata.

        Raises:
            TypeError, ValueError: the entry is not valid.
        """
        if not isinstance(settings, dict):
            raise TypeError(f"settings are an object, not {settings!r}")
        return cls(**settings)

    def __str__(self) -> str:
        """Return the settings in command-line form; "no change to the images" without any."""
        words = []
        for name, value in self.settings().items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return " ".join(words) or "no change to the images"
