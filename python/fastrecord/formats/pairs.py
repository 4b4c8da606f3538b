"""Pairs of images of one scene at two resolutions, in two folders, matched by name.

A record has the smaller image `lr`, the larger image `hr`, and a key: the path of the larger image in
its folder, without extension. Images are stored as their files, byte for byte, or as arrays, uint8
(height, width, 3), with exactly the pixels of `fastrecord.decode_image`. Arrays have a fixed shape if
all images of that side have one size.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from fastrecord._core import DecodeError, decode_image, default_threads, image_size
from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Rows, Setting, Source, SourceField
from fastrecord.interchange.files.listing import UNREADABLE, FileSource, files_below, path_of
from fastrecord.names import name_some
from fastrecord.schema import FieldType, array
from fastrecord.store.threads import Threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_YES = ("yes", "no")
_SIDES = "lr", "hr"
# Suffixes that super-resolution data sets add to the smaller images: 0001x4.png beside 0001.png.
_SCALE_SUFFIX = re.compile(r"[_-]?x[2348]$", re.IGNORECASE)
# The header with width and height is within this prefix, except in JPEGs with much metadata.
_HEAD_BYTES = 64 << 10
_REPORT_EVERY = 1000
# Bytes of a pair besides its images: alignment, and the second image's index entry.
_OVERHEAD = 2 * 63 + 2 * (32 + 4 + 4)
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


class PairSource(FileSource):
    """The pairs of two folders. The sizes of all images are read first.

    Files match if their paths are equal without extension. A file of `lr` without a match is tried
    without a final x2, x3, x4 or x8 (with or without `_` or `-` before it). The match is used if
    exactly one file has that name. Pairs have the order of the larger images: sorted folders, and
    sorted names in each.

    The size of each larger image is a whole multiple of its partner's. The factor is "scale" in the
    metadata.

    Args:
        lr: Folder of the smaller images.
        hr: Folder of the larger ones.
        settings: The format's.

    Raises:
        NotADirectoryError, FileNotFoundError, PermissionError: a folder cannot be read; the error
            has its name.
        FastRecordError: no two files match, both folders are the same, a link leads back to a
            folder above it, or a name is not valid UTF-8.
    """

    def __init__(self, lr: str, hr: str, settings: Mapping[str, str]) -> None:
        self._decode, self._any_scale = settings.get("decode") == "yes", settings.get("any_scale") == "yes"
        self._sixteen_bit = settings.get("sixteen_bit")
        if self._sixteen_bit is not None and not self._decode:
            raise ValueError("files are stored unchanged: sixteen_bit belongs to decode=yes")
        if os.path.samefile(lr, hr):
            raise Code.SAME_FOLDER.error(f"{lr} and {hr} are one folder: name one of smaller and one of larger images")
        self.paths, self.home, self.fields = [lr, hr], hr, []
        self.keys, self.bad = [], {}
        # Paths of both images in their folders, empty for one without a partner.
        self._names: list[tuple[str, str]] = []
        # Key -> reason for files without a partner; `bad` has them, too.
        self._unmatched: dict[str, str] = {}
        self._match()
        # Height and width of the smaller and the larger image of each pair, int64 (N, 4), by `prepare`.
        self._sizes: NDArray[np.int64]

    def place(self, number: int) -> str:
        """Return the paths of a pair."""
        names = zip(self.paths, self._names[number], strict=True)
        return " and ".join(path_of(folder, name) for folder, name in names if name)

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
        if self._unmatched and not skip:
            self._refuse_unmatched()
        self._measure(progress)
        if not skip:
            self.refuse_bad()
        self.facts = {"scale": self._scale(stored, skip=skip)}
        types = [FieldType("image")] * 2
        if self._decode:
            sizes = self._sizes[self._good()]
            types = [_pixels(sizes[:, :2]), _pixels(sizes[:, 2:])]
        self.fields = [
            SourceField("lr", types[0], "the smaller images"),
            SourceField("hr", types[1], "the larger images"),
            SourceField("key", FieldType("string"), "paths without extension"),
        ]

    def stored_bytes(self, number: int) -> int:
        """See `FileSource.stored_bytes`."""
        if self.keys[number] in self.bad:
            return 0
        if self._decode:
            return _OVERHEAD + 3 * int(self._sizes[number].reshape(2, 2).prod(1).sum())
        return _OVERHEAD + sum(os.stat(path).st_size for _, path in self._files(number))

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        keys, bad = self.keys, self.bad
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

    # Matching

    def _match(self) -> None:
        """Find the pairs, and the files that are in none."""
        bad: tuple[dict[str, str], dict[str, str]] = {}, {}
        stems = [_stems(folder, known) for folder, known in zip(self.paths, bad, strict=True)]
        for key, *sides in _matched(*stems):
            names = [side[0] if side else "" for side in sides]
            self.keys.append(key)
            self._names.append((names[0], names[1]))
            if reason := next(filter(None, map(_mismatch, sides, self.paths)), None):
                self._unmatched[key] = self.bad[key] = reason
                continue
            for side, name, known in zip(_SIDES, names, bad, strict=True):
                if name in known:
                    self.bad.setdefault(key, f"{side}: {known[name]}")
        if len(self._unmatched) == len(self.keys):
            low, high = (sum(map(len, each.values())) for each in stems)
            raise Code.NO_PARTNER.error(
                f"none of the {low:,} files in {self.paths[0]} has a partner among the {high:,} in {self.paths[1]}: "
                "partners have the same path except for the ending, or for x2, x3, x4 or x8 at the end of the smaller "
                "image's name"
            )

    def _refuse_unmatched(self) -> None:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for key, reason in self._unmatched.items():
            by_reason[reason].append(key)
        found = "; ".join(f"{reason}: {name_some(keys)}" for reason, keys in by_reason.items())
        raise Code.NO_PARTNER.error(
            f"{self.paths[0]} and {self.paths[1]}: {len(self._unmatched):,} of {len(self.keys):,} names have "
            f"no partner: {found}: add what is missing, or leave these out with `--bad-files skip`"
        )

    # Sizes

    def _measure(self, progress: Callable[[int], None]) -> None:
        """Read the sizes of all images; files that are not images are added to `bad`."""
        import numpy as np

        self._sizes = np.zeros((len(self.keys), 4), np.int64)
        for number, key in enumerate(self.keys):
            if number % _REPORT_EVERY == 0:
                progress(number)
            sizes: list[int] = []
            for side, path in self._files(number) if key not in self.bad else ():
                size = _size(path)
                if isinstance(size, str):
                    self.bad[key] = f"{side}: {size}"
                    break
                sizes += size[::-1]
            self._sizes[number, : len(sizes)] = sizes

    def _good(self) -> NDArray[np.bool_]:
        """Return which pairs are not known to be bad, bool (N,)."""
        import numpy as np

        return np.fromiter((key not in self.bad for key in self.keys), np.bool_, len(self.keys))

    def _scale(self, stored: Mapping[str, Any] | None, *, skip: bool) -> int | None:
        """Return the scale of the pairs; skip or refuse pairs that have another."""
        scale, others = self._common_scale()
        before = None if stored is None else stored.get("scale")
        if self._any_scale:
            return scale if not len(others) and (stored is None or before == scale) else None
        if stored is not None and before != scale:
            texts = ("no one scale" if each is None else f"the scale {each}" for each in (before, scale))
            raise Code.OTHER_SCALE.error(
                f"{self.paths[1]}: the pairs that are stored have {next(texts)}, those to append {next(texts)}: "
                "any_scale (--set any_scale=yes) adds them anyway"
            )
        for number in others.tolist():
            height, width, high, wide = self._sizes[number].tolist()
            what = "no whole number of" if scale is None else f"not {scale}"
            swapped = ": are the folders in the wrong order?" if high < height else ""
            reason = f"hr is {high} x {wide}, which is {what} times lr, {height} x {width}{swapped}"
            if not skip or scale is None:
                raise Code.OTHER_SCALE.error(
                    f"{self.place(number)}: {reason}: any_scale (--set any_scale=yes) takes pairs of any sizes, "
                    "`--bad-files skip` leaves out pairs of another scale than most"
                )
            self.bad[self.keys[number]] = reason
        return scale

    def _common_scale(self) -> tuple[int | None, NDArray[np.int64]]:
        """Return the most frequent scale of good pairs (None: not a whole number), and the pairs of other scales."""
        import numpy as np

        good = np.flatnonzero(self._good())
        small, large = self._sizes[good, :2], self._sizes[good, 2:]
        scales = np.where((large % small == 0).all(1), large[:, 0] // small[:, 0], 0)
        scales[(large != scales[:, None] * small).any(1)] = 0
        values, counts = np.unique(scales, return_counts=True)
        scale = int(values[counts.argmax()]) if len(values) else 0
        return scale or None, good[scales != scale] if scale else good[scales == 0]

    # Loading

    def _files(self, number: int) -> Iterator[tuple[str, str]]:
        """Yield side and path of both images."""
        for side, folder, name in zip(_SIDES, self.paths, self._names[number], strict=True):
            yield side, path_of(folder, name)

    def _stop(self, start: int) -> int:
        """Return where a run ends that begins at a pair."""
        stop, size = start, 0
        while stop < min(start + _RUN, len(self.keys)) and (stop == start or size < _RUN_BYTES):
            size += 3 * int(self._sizes[stop].reshape(2, 2).prod(1).sum())
            stop += 1
        return stop

    def _load(self, number: int) -> tuple[Any, Any] | str:
        """Return both images, or what is wrong with one."""
        values: list[Any] = []
        for side, path in self._files(number):
            try:
                with open(path, "rb", buffering=0) as file:
                    data = file.readall()
                values.append(decode_image(data, sixteen_bit=self._sixteen_bit or "reject") if self._decode else data)
            except OSError as err:
                return f"{side}: {UNREADABLE}: {err.strerror or err}"
            except DecodeError as err:
                return f"{side}: {err.text}"
        return values[0], values[1]


def _stems(folder: str, bad: dict[str, str]) -> dict[str, list[str]]:
    """Return path without extension -> paths."""
    stems = defaultdict(list)
    for name in files_below(folder, "", bad):
        stems[os.path.splitext(name)[0]].append(name)
    return stems


def _matched(small: dict[str, list[str]], large: dict[str, list[str]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each key with all matching files of both folders."""
    suffixed: dict[str, list[str]] = defaultdict(list)
    alone = []
    for stem, lows in small.items():
        base = _SCALE_SUFFIX.sub("", stem)
        if stem not in large and base in large and base not in small:
            suffixed[base] += lows
        elif stem not in large:
            alone.append((stem, lows))
    for stem, highs in large.items():
        yield stem, small.get(stem) or suffixed[stem], highs
    for stem, lows in alone:
        yield stem, lows, []


def _mismatch(names: list[str], folder: str) -> str | None:
    """Return why the files of one side are not an image of a pair; None if there is one."""
    title = os.path.basename(os.path.abspath(folder))
    if not names:
        return f"no file of that name in {title}"
    return f"several files of {title} match: {name_some(names)}" if len(names) > 1 else None


def _size(path: str) -> tuple[int, int] | str:
    """Return width and height of an image, or an error text."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD_BYTES)
            size = image_size(head)
            if size is None and len(head) == _HEAD_BYTES:
                size = image_size(head + file.readall())
    except OSError as err:
        return f"{UNREADABLE}: {err.strerror or err}"
    return size or ("not an image of a known type, or its header is damaged" if head else "not an image: it is empty")


def _pixels(sizes: Any) -> FieldType:
    """Return the type of images of some sizes, (N, 2)."""
    import numpy as np

    distinct = np.unique(sizes, axis=0).tolist()
    return array("uint8", (*distinct[0], 3) if len(distinct) == 1 else (None, None, 3))
