"""What a pack does to images on their way into the file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

DEFAULT_QUALITY = 90
_MAX_SIDE = 65_500
_KEEP = ("exif", "icc", "other")


@dataclass(frozen=True, slots=True)
class Recode:
    """How images are stored; by default as they come, byte for byte.

    Attributes:
        short_side: Images whose shorter side has more pixels are made smaller, and become JPEGs.
        max_side: Images whose longer side has more pixels are. At most one of the two is given.
        quality: Of these JPEGs, 1 to 100; None: 90.
        raw: Store all images as their pixels, in binary PPM.
        crop_ready: Rewrite JPEGs without loss, so that a crop is decoded without the rest of its image: which marker
            segments they keep, "all", "none" or names out of exif, icc and other with commas between. None: do not.
        sixteen_bit: Of images that are decoded for that, what becomes of grey of 16 bits: "scale" divides by 257,
            "clip" makes all above 255 white. None: it is an error.

    Raises:
        ValueError: the settings do not fit each other; the message uses the names of the command line.
    """

    short_side: int | None = None
    max_side: int | None = None
    quality: int | None = None
    raw: bool = False
    crop_ready: str | None = None
    sixteen_bit: str | None = None

    def __post_init__(self) -> None:
        sides = [pixels for pixels in (self.short_side, self.max_side) if pixels is not None]
        if len(sides) > 1:
            raise ValueError("give --short-side or --max-side, not both")
        if any(not 1 <= pixels <= _MAX_SIDE for pixels in sides):
            raise ValueError(f"--short-side and --max-side are 1 to {_MAX_SIDE} pixels, not {sides[0]}")
        if self.raw and self.crop_ready is not None:
            raise ValueError("--raw leaves no JPEG to make crop-ready: give --raw or --crop-ready")
        if self.quality is not None:
            if self.raw or not sides:
                raise ValueError("--quality is that of JPEGs which --short-side or --max-side makes smaller")
            if not 1 <= self.quality <= 100:
                raise ValueError(f"--quality is 1 to 100, not {self.quality}")
        elif sides and not self.raw:
            object.__setattr__(self, "quality", DEFAULT_QUALITY)
        if self.sixteen_bit is not None:
            if self.sixteen_bit not in ("scale", "clip"):
                raise ValueError(f"--sixteen-bit is scale or clip, not {self.sixteen_bit!r}")
            if not (self.raw or sides):
                raise ValueError("--sixteen-bit is for images that --raw, --short-side or --max-side decodes")
        if self.crop_ready is not None:
            object.__setattr__(self, "crop_ready", _kept(self.crop_ready))

    @property
    def changes(self) -> bool:
        """Whether any image may be stored otherwise than it comes."""
        return self.raw or any(x is not None for x in (self.short_side, self.max_side, self.crop_ready))

    def keywords(self) -> dict[str, Any]:
        """Return the keywords for `Writer.append_files`: what is set, nothing else."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}

    def entry(self) -> dict[str, Any]:
        """Return what a file's metadata says of it: what is set, nothing else."""
        return {"recode": self.keywords()} if self.changes else {}

    @classmethod
    def from_json(cls, settings: object) -> Self:
        """Return the settings that a file's metadata holds.

        Raises:
            TypeError, ValueError: they are none.
        """
        if not isinstance(settings, dict):
            raise TypeError(f"settings are an object, not {settings!r}")
        return cls(**settings)

    def __str__(self) -> str:
        """Return the settings as the command line has them; "no change to the images" if there are none."""
        words = []
        for name, value in self.keywords().items():
            if name == "crop_ready":
                words += ["--crop-ready", *([] if value == "all" else ["--keep", value])]
            else:
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return " ".join(words) or "no change to the images"


def _kept(names: str) -> str:
    """Return a list of segments to keep in the one form that it is compared in."""
    if names in ("all", "none"):
        return names
    chosen = {name.strip() for name in names.split(",")}
    if not chosen <= set(_KEEP):
        raise ValueError(
            f"--keep is all, none, or names out of {', '.join(_KEEP)} with commas between them, not {names!r}"
        )
    return "all" if len(chosen) == len(_KEEP) else ",".join(name for name in _KEEP if name in chosen)
