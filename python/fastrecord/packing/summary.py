"""`PackProgress` and `PackSummary`: how far a pack is, and what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class PackProgress:
    """Progress of a pack.

    Attributes:
        files: Input files, or records of another format, done, packed or skipped, including earlier
            runs.
        total: Their number in the input; None if it is not known.
        bytes: Bytes that this run has written.
        stage: "sizes" during the lookup of the sizes of pairs, then "pack".
    """

    files: int
    total: int | None
    bytes: int
    stage: Literal["sizes", "pack"] = "pack"


@dataclass(slots=True)
class PackSummary:
    """Result of a pack.

    Attributes:
        paths: The files written, in order.
        records: Total number of records in them.
        packed: Number of records that this run added.
        bytes: Total size of the files.
        written: Bytes that this run has written.
        classes: Class names, position = label; None if labels are plain numbers or absent.
        empty_classes: Classes of the input without any packed file.
        skipped: (key, reason) for each input file that was left out.
        ignored: Files beside the class folders, which have no class.
        foreign: Kind -> number of images of this run that fastrecord itself cannot decode, such as
            AVIF. The loader has Pillow decode them, one by one.
        recoded: Counts of this run if images were to be changed: the number of `images`, and how
            many were `kept` byte for byte, made `smaller` or `raw`, have a `crop_index`, or are
            `packed`, from which readers restore the bytes that were kept or made; `bytes_in` of the
            input files and `bytes_out` as stored.
        scale: Ratio of the sizes of the larger and smaller images of pairs; None without pairs, or
            without a common scale.
        format: Format of the source of an import; None for a pack.
        recognised: Why the source was taken for it; None if the caller named the format.
        left_out: What the source of an import holds and does not give, and why.
        manifest: The `dataset.json` that names the files as shards of one data set; None without one.
        not_named: Why no `dataset.json` names the new shards; None if one does, or the output is one file.
        seconds: Wall time.
    """

    paths: list[str] = field(default_factory=list)
    records: int = 0
    packed: int = 0
    bytes: int = 0
    written: int = 0
    classes: list[str] | None = None
    empty_classes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0
    foreign: dict[str, int] = field(default_factory=dict)
    recoded: dict[str, int] | None = None
    scale: int | None = None
    format: str | None = None
    recognised: str | None = None
    left_out: list[str] = field(default_factory=list)
    manifest: str | None = None
    not_named: str | None = None
    seconds: float = 0.0

    def count(self, foreign: Mapping[str, int], recoded: Mapping[str, int] | None = None) -> None:
        """Add counts to `foreign` and `recoded`."""
        self.foreign = _sum(self.foreign, foreign)
        if recoded is not None:
            self.recoded = _sum(self.recoded or {}, recoded)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self) | {"skipped": [{"key": key, "reason": reason} for key, reason in self.skipped]}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def foreign_text(kinds: Mapping[str, int]) -> str:
    """Return a text about images of kinds that the core cannot decode."""
    names = ", ".join(f"{kind}: {number:,}" for kind, number in sorted(kinds.items()))
    return (
        f"{sum(kinds.values()):,} images are of kinds that fastrecord does not decode ({names}): the loader leaves "
        "them to Pillow, one by one, in the training loop's thread"
    )
