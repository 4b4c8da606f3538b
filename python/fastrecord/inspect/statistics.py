"""`stats`: what the records of a data set are like: sizes, images, classes, duplicates.

Reads the index of all records, and the first bytes of some images.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastrecord._core import FastRecordError, codecs, image_size, permute, side_kinds, value_bytes
from fastrecord.checks import WORD, integer
from fastrecord.dataset.columns import Columns
from fastrecord.dataset.labels import Labels
from fastrecord.dataset.shards import Paths, Shards
from fastrecord.inspect.findings import Answer
from fastrecord.look.pictures import PIL_ERRORS
from fastrecord.look.values import CROP_INDEX, PACKED_JPEG, image_format
from fastrecord.schema import FieldType
from fastrecord.schema.roles import find_label, holds_classes, lies_in_index, plain

# Bytes of an image whose header usually contains everything, and pixels above which Pillow warns.
_SHORT_HEAD, _HEAD = 1 << 13, 1 << 16
_MOST_PIXELS = 89_478_485
# Maximum number of records with equal checksums whose values are compared.
_COMPARED = 4096
_RATIOS = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0", (4, 1): "4:1:1", (4, 2): "4:1:0"}
_BINS = 40
_COMMON_SIZES = 5


@dataclass(frozen=True, slots=True)
class Distribution:
    """Some numbers in short.

    Attributes:
        min, median, p99, max: As they say; p99 is the 99th percentile. The lower one of two in the
            middle is the median.
        sum: Their sum.
        edges, counts: A histogram: `counts[i]` numbers are in `[edges[i], edges[i + 1])`; the last
            bin includes its end.
    """

    min: float
    median: float
    p99: float
    max: float
    sum: float
    edges: list[float]
    counts: list[int]

    @classmethod
    def of(cls, numbers: NDArray[Any]) -> Distribution | None:
        """Return the distribution of numbers (N,); None without numbers."""
        if not len(numbers):
            return None
        middle, high = (len(numbers) - 1) // 2, (len(numbers) - 1) * 99 // 100
        ordered = np.partition(numbers, [middle, high])
        middle_one, high_one = ordered[[middle, high]].tolist()
        least, most, total = numbers.min().item(), numbers.max().item(), numbers.sum().item()
        if least == most:
            return cls(least, least, least, least, total, [least, least], [len(numbers)])
        counts, edges = np.histogram(numbers, _BINS)
        return cls(least, middle_one, high_one, most, total, edges.tolist(), counts.tolist())


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Values that are in the field more than once.

    Attributes:
        groups: Different values that come more than once.
        records: Records whose value an earlier record has: what could be left out.
        compared: Whether the values themselves were compared, which is done if few records are
            concerned. Otherwise equal checksums and lengths count as equal values.
    """

    groups: int
    records: int
    compared: bool


@dataclass(frozen=True, slots=True)
class ImageStats:
    """What the images of a field are like.

    Attributes:
        width, height, aspect: Of all images; aspect is width / height. For a field of type bytes, of
            the sampled ones. None without images whose size is known.
        common_sizes: The most frequent sizes: width, height and number of images of each.
        sampled: Images whose first bytes were looked at, for the attributes below.
        formats: Format and number of images, such as "JPEG".
        modes: Pillow's mode and number of images: "RGB", "L" (grey), "CMYK".
        subsampling: Of the colours, and number of JPEGs: "4:2:0".
        progressive: Progressive JPEGs.
        crop_index: JPEGs with a crop index.
        packed: JPEGs stored as packed coefficients.
        unreadable: Images whose header cannot be read.
    """

    width: Distribution | None
    height: Distribution | None
    aspect: Distribution | None
    common_sizes: list[tuple[int, int, int]]
    sampled: int
    formats: dict[str, int]
    modes: dict[str, int]
    subsampling: dict[str, int]
    progressive: int
    crop_index: int
    packed: int
    unreadable: int


@dataclass(frozen=True, slots=True)
class FieldStats:
    """One field of all records.

    Attributes:
        name, type: Its name, and its type as text.
        bytes: Bytes of the values, decompressed.
        stored: Bytes that the values take in the files, without the index and side bytes.
        ratio: Bytes divided by stored bytes; 1 without compression, below 1 for packed images; None without
            values.
        duplicates: Equal values; None for numbers and small arrays, which lie in the index.
        images: None if the values are not images.
    """

    name: str
    type: str
    bytes: Distribution | None
    stored: int
    ratio: float | None
    duplicates: Duplicates | None
    images: ImageStats | None


@dataclass(frozen=True, slots=True)
class ClassStats:
    """The classes of the records.

    Attributes:
        field: The field of the labels.
        counts: Name (or number) of each class, in the order of the labels, and its records.
        largest, smallest: Records of the largest class, and of the smallest one that has any.
        imbalance: `largest / smallest`.
        empty: Names of classes without records.
        unlabelled: Records with a negative label, which means none.
    """

    field: str
    counts: dict[str, int]
    largest: int
    smallest: int
    imbalance: float
    empty: list[str]
    unlabelled: int


@dataclass(frozen=True, slots=True)
class FileStats(Answer):
    """What the records of a data set are like.

    Attributes:
        files: The paths.
        records: Records of all files.
        bytes: Bytes of all files, up to their newest commits.
        sample: The most records whose values were read; `images.sampled` says how many were.
        seed: What chose them.
        fields: Each field.
        classes: None if no field "label" holds classes.
    """

    files: list[str]
    records: int
    bytes: int
    sample: int
    seed: int
    fields: list[FieldStats]
    classes: ClassStats | None


def stats(path: Paths, *, sample: int = 2000, seed: int = 0) -> FileStats:
    """Return what the records of one or more files are like, taken together.

    Bytes, image sizes, classes and duplicates come from the index of all records. Formats, modes
    and subsampling come from the first bytes of a random sample of the images. Memory: up to 40
    bytes a record.

    Args:
        path: A .frec file, a folder of them, a glob pattern, or a sequence of these.
        sample: Maximum number of images whose first bytes are read.
        seed: Chooses them, in [0, 2**64).

    Raises:
        FileNotFoundError: nothing is at the path.
        SchemaError: files have different fields, or their classes cannot be matched.
        CorruptFileError: a file is not a valid .frec file, or its index is damaged.
    """
    sample, seed = integer("sample", sample, 0), integer("seed", seed, 0, WORD)
    with closing(Shards.open_alike(path)) as shards:
        kinds = {name: plain(kind) for name, kind in shards.schema.items()}
        total = len(shards)
        chosen = np.arange(min(sample, total), dtype=np.int64)
        rows = chosen if sample >= total else np.sort(permute(total, seed, 0, chosen))
        return FileStats(
            [os.fspath(reader.path) for reader in shards.readers],
            total,
            sum(reader.nbytes for reader in shards.readers),
            sample,
            seed,
            [_field(shards, name, kind, rows) for name, kind in kinds.items()],
            _classes(shards),
        )


def _field(shards: Shards, name: str, kind: FieldType, rows: NDArray[np.int64]) -> FieldStats:
    with warnings.catch_warnings(action="ignore"):  # Pillow's about damaged metadata
        images = _images(shards, name, kind, rows) if kind.name in ("image", "bytes") else None
    if kind.nbytes is not None and lies_in_index(kind):
        size, count = kind.nbytes, len(shards)
        alike = Distribution(size, size, size, size, size * count, [size, size], [count]) if count else None
        return FieldStats(name, str(kind), alike, size * count, 1, None, images)
    lengths = np.concatenate([reader.lengths(name) for reader in shards.readers])
    raw = int(lengths.sum())
    stored = sum(value_bytes(reader, name)[1] for reader in shards.readers)
    ratio = raw / stored if stored else None
    return FieldStats(
        name, str(kind), Distribution.of(lengths), stored, ratio, _duplicates(shards, name, lengths), images
    )


def _duplicates(shards: Shards, name: str, lengths: NDArray[np.int64]) -> Duplicates:
    """Find values with equal checksums and lengths; compare the values if they are few."""
    marks = np.concatenate([reader.checksums(name) for reader in shards.readers]).astype(np.uint64)
    marks = marks << np.uint64(32) | lengths.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    ordered = np.sort(marks)
    repeats = ordered[1:] == ordered[:-1]
    again = int(np.count_nonzero(repeats))
    if not again:
        return Duplicates(0, 0, compared=True)
    # A group begins where a mark equals the next one, but not the one before.
    groups = int(np.count_nonzero(repeats & ~np.concatenate([[False], repeats[:-1]])))
    if again + groups > _COMPARED:
        return Duplicates(groups, again, compared=False)
    rows = np.flatnonzero(np.isin(marks, ordered[1:][repeats]))
    found = Counter(_value_digest(shards, int(row), name) for row in rows)
    found.pop(None, None)
    return Duplicates(
        sum(count > 1 for count in found.values()), sum(count - 1 for count in found.values()), compared=True
    )


def _value_digest(shards: Shards, row: int, name: str) -> tuple[int, bytes] | None:
    """Return what only equal values share; None for a value that cannot be read."""
    shard, record = shards.locate(row)
    try:
        value = shards.readers[shard].get(record, name, copy=True)
    except (FastRecordError, OSError):
        return None
    if isinstance(value, np.ndarray):
        value = value.tobytes() + repr(value.shape).encode()
    data = value if isinstance(value, bytes | memoryview) else repr(value).encode("utf-8", "surrogatepass")
    return len(data), hashlib.blake2b(data, digest_size=16).digest()


def _images(shards: Shards, name: str, kind: FieldType, rows: NDArray[np.int64]) -> ImageStats | None:
    formats, modes, subsampling = Counter[str](), Counter[str](), Counter[str]()
    sides: list[tuple[int, int]] = []
    kinds: list[int] = []
    packed = 0
    progressive = unreadable = 0
    for shard, _, numbers in shards.split(rows):
        reader, supply, records = shards.readers[shard], shards.supply(shard), numbers.tolist()
        if supply is not None:
            reader.prefetch(records, name)
        if kind.name == "image":
            kinds += (
                side_kinds(reader, name, records) if supply is None else supply.side_kinds(name, records)
            ).tolist()
            packed += codecs(reader, name, records).tolist().count(PACKED_JPEG)
        for record in records:
            # Only the pages of the header are read, so a checksum is not compared.
            data = reader.get(record, name, verify=False)
            if data is None:
                continue
            size = image_size(data)
            head = _head(data, size)
            formats[image_format(bytes(data[:16]))] += 1
            sides += [] if size is None else [size]
            if head is None:
                unreadable += 1
                continue
            modes[head.mode] += 1
            subsampling.update(_subsampling(head))
            progressive += bool(head.info.get("progressive"))
    if kind.name == "bytes" and 2 * formats["other"] >= formats.total():
        return None
    if kind.name == "image":
        width, height = (
            np.concatenate([reader.column(f"{name}.{side}", copy=True) for reader in shards.readers])
            for side in ("width", "height")
        )
    else:
        width, height = np.array(sides, np.uint32).reshape(-1, 2).T
    known = (width > 0) & (height > 0)
    width, height = width[known].astype(np.int64), height[known].astype(np.int64)
    sizes, counts = np.unique(width << 32 | height, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:_COMMON_SIZES]
    return ImageStats(
        Distribution.of(width),
        Distribution.of(height),
        Distribution.of(width / np.maximum(height, 1)),
        [(int(sizes[at]) >> 32, int(sizes[at]) & 0xFFFFFFFF, int(counts[at])) for at in common],
        formats.total(),
        dict(formats.most_common()),
        dict(modes.most_common()),
        dict(subsampling.most_common()),
        progressive,
        kinds.count(CROP_INDEX),
        packed,
        unreadable,
    )


def _head(data: memoryview, size: tuple[int, int] | None) -> Image.Image | None:
    """Return an image of which Pillow has read the header alone; None if it cannot."""
    if size is not None and size[0] * size[1] > _MOST_PIXELS:
        return None
    for part in (data[:_SHORT_HEAD], data[:_HEAD], data):  # some formats have their header at the end
        try:
            with Image.open(io.BytesIO(part)) as image:
                return image
        except PIL_ERRORS:
            continue
    return None


def _subsampling(image: Image.Image) -> list[str]:
    """Return how much coarser the colours of a JPEG are than its first component; empty for others, and grey."""
    factors = [(across, down) for _, across, down, _ in getattr(image, "layer", [])]
    if len(factors) < 3:
        return []
    across, down = factors[0][0] / factors[1][0], factors[0][1] / factors[1][1]
    return [_RATIOS.get((across, down), f"{across:g} x {down:g}")]


def _classes(shards: Shards) -> ClassStats | None:
    field = find_label(shards.readers[0])
    if field is None or not (holds_classes(shards.schema[field]) or shards.schema[field].name == "string"):
        return None
    labels = Labels(shards, field, None)
    numbers, counts = np.unique(Columns(shards, labels).values(field, slice(None)), return_counts=True)
    found = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    names = labels.classes
    unlabelled = sum(count for number, count in found.items() if number < 0)
    by_number = {number: found.get(number, 0) for number in range(len(names))}
    by_number |= {number: count for number, count in found.items() if number >= 0}
    by_name = {(names[n] if n < len(names) else str(int(n))): count for n, count in by_number.items()}
    filled = [count for count in by_number.values() if count] or [0]
    empty = [name for name, count in by_name.items() if not count]
    largest, smallest = max(filled), min(filled)
    return ClassStats(field, by_name, largest, smallest, largest / smallest if smallest else 1.0, empty, unlabelled)
