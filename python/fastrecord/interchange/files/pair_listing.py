"""`PairListing`: pairs of images from two folders, where equal names mean the same scene.

The folders have different resolutions. Reads image headers, no pixels.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastrecord._core import image_size
from fastrecord.errors import Code
from fastrecord.interchange.files.listing import UNREADABLE, Listing, files_below
from fastrecord.names import as_name, name_some

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Sizes = NDArray[np.int64]

# Suffixes that super-resolution data sets add to the smaller images: 0001x4.png beside 0001.png.
_SCALE_SUFFIX = re.compile(r"[_-]?x[2348]$", re.IGNORECASE)
# The header with width and height is within this prefix, except in JPEGs with much metadata.
_HEAD_BYTES = 64 << 10
_REPORT_EVERY = 1000
_SECOND_OVERHEAD = 2 * 63 + 2 * (32 + 4 + 4)


@dataclass(frozen=True, slots=True)
class PairListing(Listing):
    """The pairs of two folders, in packing order; `source` is the folder of the larger images.

    Attributes:
        lr_source: The folder of the smaller images.
        lr_names, hr_names: Path of each image in its folder; empty for a file without a partner.
        unmatched: Key -> reason for files without a partner; `bad` has them, too.
        sizes: Height and width of the smaller and the larger image of each pair, int64 (N, 4); 0
            before `measure`.
        decode: Whether pixels are stored.
    """

    lr_source: str = ""
    lr_names: list[str] = field(default_factory=list)
    hr_names: list[str] = field(default_factory=list)
    unmatched: dict[str, str] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=lambda: _no_sizes(0))
    decode: bool = False

    def paths(self, position: int) -> tuple[str, str]:
        """Return the paths of the smaller and the larger image."""
        names = ((self.lr_source, self.lr_names[position]), (self.source, self.hr_names[position]))
        low, high = (os.path.join(folder, *as_name(name).split("/")) for folder, name in names)
        return low, high

    def describe(self, position: int) -> str:
        """Return the name of a pair for errors: its paths."""
        names = ((self.lr_source, self.lr_names[position]), (self.source, self.hr_names[position]))
        return " and ".join(os.path.join(folder, *as_name(name).split("/")) for folder, name in names if name)

    def stored_bytes(self, position: int) -> int:
        """Return the size of a pair in bytes, with alignment and the second image's index entry."""
        if self.keys[position] in self.bad:
            return 0
        if self.decode:
            low, high = self.sizes[position].reshape(2, 2).prod(1).tolist()
            return _SECOND_OVERHEAD + 3 * int(low + high)
        return _SECOND_OVERHEAD + sum(os.stat(path).st_size for path in self.paths(position))

    def good(self) -> NDArray[np.bool_]:
        """Return which pairs are not known to be bad, bool (N,)."""
        import numpy as np

        return np.fromiter((key not in self.bad for key in self.keys), np.bool_, len(self.keys))


def _no_sizes(pairs: int) -> Sizes:
    import numpy as np

    return np.zeros((pairs, 4), np.int64)


def list_pairs(lr: str, hr: str, *, decode: bool = False) -> PairListing:
    """Match the files of two folders and their sub-folders by their paths without extension.

    A file of `lr` without a match is tried without a final x2, x3, x4 or x8 (with or without `_` or
    `-` before it). The match is used if exactly one file has that name. The key of a pair is the
    path of its larger image without extension. Pairs have the order of the larger images: sorted
    folders, and sorted names in each.

    Args:
        lr: Folder of the smaller images.
        hr: Folder of the larger ones.
        decode: Whether pixels are to be stored.

    Raises:
        NotADirectoryError, FileNotFoundError, PermissionError: a folder cannot be read; the error
            has its name.
        FastRecordError: no two files match, both folders are the same, a link leads back to a
            folder above it, or a name is not valid UTF-8.
    """
    if os.path.samefile(lr, hr):
        raise Code.SAME_FOLDER.error(f"{lr} and {hr} are one folder: name one of smaller and one of larger images")
    low_bad: dict[str, str] = {}
    high_bad: dict[str, str] = {}
    small, large = _stems(lr, low_bad), _stems(hr, high_bad)
    keys, names, bad, unmatched = [], [], {}, {}
    for key, lows, highs in _matched(small, large):
        low, high = lows[0] if lows else "", highs[0] if highs else ""
        keys.append(key)
        names.append((low, high))
        if reason := _mismatch(lows, highs, lr, hr):
            unmatched[key] = bad[key] = reason
        elif low in low_bad:
            bad[key] = f"lr: {low_bad[low]}"
        elif high in high_bad:
            bad[key] = f"hr: {high_bad[high]}"
    if len(unmatched) == len(keys):
        low_count, high_count = (sum(map(len, stems.values())) for stems in (small, large))
        raise Code.NO_PARTNER.error(
            f"none of the {low_count:,} files in {lr} has a partner among the {high_count:,} in {hr}: partners have "
            "the same path except for the ending, or for x2, x3, x4 or x8 at the end of the smaller image's name"
        )
    return PairListing(
        source=hr,
        keys=keys,
        labels=None,
        classes=None,
        bad=bad,
        lr_source=lr,
        lr_names=[low for low, _ in names],
        hr_names=[high for _, high in names],
        unmatched=unmatched,
        sizes=_no_sizes(len(keys)),
        decode=decode,
    )


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


def _mismatch(lows: list[str], highs: list[str], lr: str, hr: str) -> str | None:
    """Return why files are not a pair; None for a pair."""
    for names, folder in ((lows, lr), (highs, hr)):
        if not names:
            return f"no file of that name in {os.path.basename(os.path.abspath(folder))}"
        if len(names) > 1:
            return f"several files of {os.path.basename(os.path.abspath(folder))} match: {name_some(names)}"
    return None


def measure(listing: PairListing, progress: Callable[[int], None]) -> None:
    """Read the sizes of all images; files that are not images are added to `bad`.

    Args:
        listing: Its `sizes` are filled in.
        progress: Called with the number of pairs done.
    """
    for position, key in enumerate(listing.keys):
        if position % _REPORT_EVERY == 0:
            progress(position)
        if key in listing.bad:
            continue
        for at, side, path in zip((0, 2), ("lr", "hr"), listing.paths(position), strict=True):
            size = _size(path)
            if isinstance(size, str):
                listing.bad[key] = f"{side}: {size}"
                break
            listing.sizes[position, at : at + 2] = size[::-1]


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


def common_scale(listing: PairListing) -> tuple[int | None, NDArray[np.int64]]:
    """Return the common scale of the pairs, and the good pairs with another scale.

    Returns:
        The scale of most pairs, None if in most pairs the larger size is not a multiple of the
        smaller; the positions of the other pairs, int64 (M,).
    """
    import numpy as np

    good = np.flatnonzero(listing.good())
    small, large = listing.sizes[good, :2], listing.sizes[good, 2:]
    scales = np.where((large % small == 0).all(1), large[:, 0] // small[:, 0], 0)
    scales[(large != scales[:, None] * small).any(1)] = 0
    if len(scales) == 0:
        return None, good
    values, counts = np.unique(scales, return_counts=True)
    scale = int(values[counts.argmax()])
    return (scale, good[scales != scale]) if scale else (None, good[scales == 0])
