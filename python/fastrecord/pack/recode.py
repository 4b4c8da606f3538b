"""`Recode`: how a pack changes images before it stores them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

DEFAULT_QUALITY = 90
_MAX_SIDE = 65_500
_KEEP = ("exif", "icc", "other")


@dataclass(frozen=True, slots=True)
class Recode:
    """How images are stored; by default unchanged, byte for byte.

    Attributes:
        short_side: Images whose shorter side has more pixels are shrunk, and become JPEGs.
        max_side: Images whose longer side has more pixels are shrunk, and become JPEGs. At most one
            of the two is given.
        quality: Quality of these JPEGs, 1 to 100; None: 90.
        raw: Store all images as their pixels, in binary PPM.
        crop_ready: Rewrite JPEGs without loss, so that a crop is decoded without the rest of its
            image. The value selects the marker segments to keep: "all", "none" or a comma-separated
            list of exif, icc and other. None: do not rewrite.
        crop_index: Store a crop index after JPEGs, which keep their bytes. Not with `raw` or
            `crop_ready`.
        sixteen_bit: How 16-bit grey images are converted if they are decoded: "scale" divides by
            257, "clip" maps all values above 255 to white. None: it is an error.

    Raises:
        ValueError: the settings contradict each other; the message uses the names of the command
            line.
    """

    short_side: int | None = None
    max_side: int | None = None
    quality: int | None = None
    raw: bool = False
    crop_ready: str | None = None
    crop_index: bool = False
    sixteen_bit: str | None = None

    def __post_init__(self) -> None:
        sides = [pixels for pixels in (self.short_side, self.max_side) if pixels is not None]
        if len(sides) > 1:
            raise ValueError("give --short-side or --max-side, not both")
        if any(not 1 <= pixels <= _MAX_SIDE for pixels in sides):
            raise ValueError(f"--short-side and --max-side are 1 to {_MAX_SIDE} pixels, not {sides[0]}")
        if self.raw and self.crop_ready is not None:
            raise ValueError("--raw leaves no JPEG to make crop-ready: give --raw or --crop-ready")
        if self.crop_index and (self.raw or self.crop_ready is not None):
            raise ValueError("a crop-ready JPEG or raw pixels need no crop index: leave out --crop-index")
        if self.quality is not None:
            if self.raw or not sides:
                raise ValueError("--quality belongs to --short-side or --max-side, which make JPEGs")
            if not 1 <= self.quality <= 100:
                raise ValueError(f"--quality is 1 to 100, not {self.quality}")
        elif sides and not self.raw:
            object.__setattr__(self, "quality", DEFAULT_QUALITY)
        if self.sixteen_bit is not None:
            if self.sixteen_bit not in ("scale", "clip"):
                raise ValueError(f"--sixteen-bit is scale or clip, not {self.sixteen_bit!r}")
            if not (self.raw or sides):
                raise ValueError("--sixteen-bit belongs to --raw, --short-side or --max-side, which decode images")
        if self.crop_ready is not None:
            object.__setattr__(self, "crop_ready", _kept(self.crop_ready))

    @property
    def changes(self) -> bool:
        """Whether any image may be changed, or gets side bytes."""
        given = any(x is not None for x in (self.short_side, self.max_side, self.crop_ready))
        return self.raw or self.crop_index or given

    def keywords(self) -> dict[str, Any]:
        """Return the keywords for `Writer.append_files`, without unset ones."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}

    def entry(self) -> dict[str, Any]:
        """Return the entry for a file's metadata, without unset settings."""
        return {"recode": self.keywords()} if self.changes else {}

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
        for name, value in self.keywords().items():
            if name == "crop_ready":
                words += ["--crop-ready", *([] if value == "all" else ["--keep", value])]
            else:
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return " ".join(words) or "no change to the images"


def _kept(names: str) -> str:
    """Return a list of segments to keep in canonical form, for comparison."""
    if names in ("all", "none"):
        return names
    chosen = {name.strip() for name in names.split(",")}
    if not chosen <= set(_KEEP):
        raise ValueError(f"--keep is all, none, or some of {', '.join(_KEEP)} with commas between them, not {names!r}")
    return "all" if len(chosen) == len(_KEEP) else ",".join(name for name in _KEEP if name in chosen)
