"""Pairs of images of one scene at two resolutions, in two folders, matched by name.

A record has the smaller image `lr`, the larger image `hr`, and a key: the path of the larger image in
its folder, without extension. Images are stored as their files, byte for byte, or as arrays, uint8
(height, width, 3), with exactly the pixels of `fastrecord.decode_image`. Arrays have a fixed shape if
all images of that side have one size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from fastrecord._core import DecodeError, decode_image, default_threads
from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Rows, Setting, Source, SourceField
from fastrecord.interchange.files.listing import UNREADABLE
from fastrecord.interchange.files.pair_listing import PairListing, common_scale, list_pairs, measure
from fastrecord.names import name_some
from fastrecord.schema import FieldType, array
from fastrecord.store.threads import Threads

_YES = ("yes", "no")
# Pairs that are loaded together, and the bytes of their pixels at most, unless a pair has more.
_RUN, _RUN_BYTES = 32, 64 << 20


class Pairs(Format):
    """Two folders of images."""

    name = "pairs"
    title = "pairs of images"
    settings: Mapping[str, Setting] = {
        "decode": Setting("store pixels, as arrays uint8 (height, width, 3), of 3 bytes a pixel", _YES),
        "any_scale": Setting(
            "accept pairs of any sizes; by default all need the same scale, a whole number, and the metadata has it",
            _YES,
        ),
        "sixteen_bit": Setting(
            "with decode=yes, how 16-bit grey becomes 8-bit: scale divides by 257, clip makes all values above 255 "
            "white, as Pillow does; by default such a pair is a bad one",
            ("scale", "clip"),
        ),
    }

    def recognise(self, found: Found) -> str | None:  # noqa: ARG002 - two folders have no sign
        """Return None: this format is named by the caller."""
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Match the files of two folders: the smaller images first."""
        if isinstance(source, str) or len(source) != 2:
            raise ValueError("pairs are in two folders: give the one of the smaller images, then the other")
        return PairSource(source[0], source[1], settings)


class PairSource(Source):
    """The pairs of two folders. The sizes of all images are read first.

    The size of each larger image is a whole multiple of its partner's. The factor is "scale" in the
    metadata.
    """

    def __init__(self, lr: str, hr: str, settings: Mapping[str, str]) -> None:
        self._decode, self._any_scale = settings.get("decode") == "yes", settings.get("any_scale") == "yes"
        self._sixteen_bit = settings.get("sixteen_bit")
        if self._sixteen_bit is not None and not self._decode:
            raise ValueError("files are stored unchanged: sixteen_bit belongs to decode=yes")
        self.listing: PairListing = list_pairs(lr, hr, decode=self._decode)
        self.paths, self.home, self.keys, self.fields = [lr, hr], hr, self.listing.keys, []

    def count(self) -> int:
        """Return the number of pairs."""
        return len(self.listing)

    def place(self, number: int) -> str:
        """Return the paths of a pair."""
        return self.listing.describe(number)

    def entry(self, compression: str | None) -> dict[str, Any]:
        """Return how pairs are stored."""
        settings = {"decode": self._decode, "compression": compression, "sixteen_bit": self._sixteen_bit}
        return {"pairs": {name: value for name, value in settings.items() if value}}

    def refuse_output(self, out: str) -> None:
        """Refuse a place in one of the folders."""
        place = os.path.realpath(out)
        for folder in self.paths:
            if os.path.commonpath([place, os.path.realpath(folder)]) == os.path.realpath(folder):
                raise Code.OUTPUT_IS_INPUT.error(
                    f"{out}: lies in {folder}, which it is made from: choose a path outside"
                )

    def prepare(self, stored: Mapping[str, Any] | None, *, skip: bool, progress: Callable[[int], None]) -> None:
        """Read the sizes of all images, and find the scale of the pairs."""
        if self.listing.unmatched and not skip:
            self._refuse_unmatched()
        measure(self.listing, progress)
        if self.listing.bad and not skip:
            self.listing.refuse_bad()
        self.facts = {"scale": self._scale(stored, skip=skip)}
        types = [FieldType("image")] * 2
        if self._decode:
            sizes = self.listing.sizes[self.listing.good()]
            types = [_pixels(sizes[:, :2]), _pixels(sizes[:, 2:])]
        self.fields = [
            SourceField("lr", types[0], "the smaller images"),
            SourceField("hr", types[1], "the larger images"),
            SourceField("key", FieldType("string"), "paths without extension"),
        ]

    def sizes(self) -> Iterator[int]:
        """Yield the size of each pair, with its key."""
        for position, key in enumerate(self.listing.keys):
            try:
                images = self.listing.stored_bytes(position)
            except OSError:
                images = 0  # reading it later reports the error
            yield images + len(key.encode())

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        keys, bad = self.listing.keys, self.listing.bad
        with closing(Threads(default_threads(), "fastrecord-pairs")) as pool:
            while start < len(keys):
                stop = self._stop(start)
                numbers = [number for number in range(start, stop) if keys[number] not in bad]
                found = dict(zip(numbers, pool.map(self._load, numbers), strict=True))
                reasons = {number: bad[keys[number]] for number in range(start, stop) if number not in found}
                reasons |= {number: pair for number, pair in found.items() if isinstance(pair, str)}
                good = [number for number in numbers if number not in reasons]
                columns = {"lr": [found[i][0] for i in good], "hr": [found[i][1] for i in good]}
                columns["key"] = [keys[i] for i in good]
                yield Rows(start, stop - start, {name: columns[name] for name in names}, reasons)
                start = stop

    def _refuse_unmatched(self) -> None:
        by_reason: dict[str, list[str]] = {}
        for key, reason in self.listing.unmatched.items():
            by_reason.setdefault(reason, []).append(key)
        found = "; ".join(f"{reason}: {name_some(keys)}" for reason, keys in by_reason.items())
        raise Code.NO_PARTNER.error(
            f"{self.paths[0]} and {self.paths[1]}: {len(self.listing.unmatched):,} of {len(self.listing):,} names have "
            f"no partner: {found}: add what is missing, or leave these out with `--bad-files skip`"
        )

    def _scale(self, stored: Mapping[str, Any] | None, *, skip: bool) -> int | None:
        """Return the scale of the pairs; skip or refuse pairs that have another."""
        scale, others = common_scale(self.listing)
        before = None if stored is None else stored.get("scale")
        if self._any_scale:
            return scale if not len(others) and (stored is None or before == scale) else None
        if stored is not None and before != scale:
            texts = ("no one scale" if each is None else f"the scale {each}" for each in (before, scale))
            raise Code.OTHER_SCALE.error(
                f"{self.paths[1]}: the pairs that are stored have {next(texts)}, those to append {next(texts)}: "
                "any_scale (--set any_scale=yes) adds them anyway"
            )
        for position in others.tolist():
            height, width, high, wide = self.listing.sizes[position].tolist()
            what = "no whole number of" if scale is None else f"not {scale}"
            swapped = ": are the folders in the wrong order?" if high < height else ""
            reason = f"hr is {high} x {wide}, which is {what} times lr, {height} x {width}{swapped}"
            if not skip or scale is None:
                raise Code.OTHER_SCALE.error(
                    f"{self.place(position)}: {reason}: any_scale (--set any_scale=yes) takes pairs of any sizes, "
                    "`--bad-files skip` leaves out pairs of another scale than most"
                )
            self.listing.bad[self.listing.keys[position]] = reason
        return scale

    def _stop(self, start: int) -> int:
        """Return where a run ends that begins at a pair."""
        stop, size = start, 0
        while stop < min(start + _RUN, len(self.listing)) and (stop == start or size < _RUN_BYTES):
            height, width, high, wide = self.listing.sizes[stop].tolist()
            size += 3 * (height * width + high * wide)
            stop += 1
        return stop

    def _load(self, number: int) -> tuple[Any, Any] | str:
        """Return both images, or what is wrong with one."""
        values: list[Any] = []
        for side, path in zip(("lr", "hr"), self.listing.paths(number), strict=True):
            try:
                with open(path, "rb", buffering=0) as file:
                    data = file.readall()
                values.append(decode_image(data, sixteen_bit=self._sixteen_bit or "reject") if self._decode else data)
            except OSError as err:
                return f"{side}: {UNREADABLE}: {err.strerror or err}"
            except DecodeError as err:
                return f"{side}: {err.text}"
        return values[0], values[1]


def _pixels(sizes: Any) -> FieldType:
    """Return the type of images of some sizes, (N, 2)."""
    import numpy as np

    distinct = np.unique(sizes, axis=0).tolist()
    return array("uint8", (*distinct[0], 3) if len(distinct) == 1 else (None, None, 3))
