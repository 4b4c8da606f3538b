"""The commands that look into files: stats, browse, diff."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastrecord import inspect
from fastrecord.cli.command import command
from fastrecord.cli.text import bytes_text

if TYPE_CHECKING:
    from fastrecord.inspect.compare import Comparison
    from fastrecord.inspect.page import BrowseSummary
    from fastrecord.inspect.statistics import ClassStats, Distribution, FieldStats, FileStats, ImageStats

# Classes, empty classes and kinds of images that a table names.
_NAMED = 5


@command(inspect.stats, "FILE...", plot=inspect.plot_stats)
def stats(found: FileStats) -> Iterator[str]:
    """Show what the records of all FILEs together are like: bytes, image sizes, classes, duplicates.

    A FILE may also be a data set: a folder of files. Reads the index of all records, and the first bytes of a sample
    of the images; changes nothing. All FILEs need the same fields.
    """
    more = f" and {len(found.files) - 1:,} more" if len(found.files) > 1 else ""
    yield f"{found.files[0]}{more}: {found.records:,} records, {bytes_text(found.bytes)}"
    width = max(len("field"), *(len(field.name) for field in found.fields))
    columns = ("min", "median", "p99", "max", "sum", "stored", "ratio")
    yield f"  {'field':<{width}}{''.join(f'{column:>10}' for column in columns)}  type"
    for field in found.fields:
        yield f"  {field.name:<{width}}{''.join(f'{cell:>10}' for cell in _cells(field))}  {field.type}"
    for field in found.fields:
        if field.duplicates is not None and field.duplicates.records:
            same = "" if field.duplicates.compared else " (equal checksums and lengths)"
            yield (
                f"  duplicates in {field.name}: {field.duplicates.records:,} records repeat an earlier value, "
                f"{field.duplicates.groups:,} different values{same}"
            )
        if field.images is not None:
            yield from _image_lines(field.name, field.images, found)
    if found.classes is not None:
        yield from _class_lines(found.classes)


def _cells(field: FieldStats) -> Iterator[str]:
    sizes = field.bytes
    for size in () if sizes is None else (sizes.min, sizes.median, sizes.p99, sizes.max, sizes.sum):
        yield bytes_text(size)
    yield from ["-"] * (5 if sizes is None else 0)
    yield bytes_text(field.stored)
    yield "-" if field.ratio is None else f"{field.ratio:.2f}"


def _image_lines(name: str, images: ImageStats, found: FileStats) -> Iterator[str]:
    yield f"  images in {name}"
    rows = [("width", images.width), ("height", images.height), ("aspect", images.aspect)]
    for title, numbers in rows:
        if numbers is not None:
            yield f"    {title:<12} {_distribution_text(numbers)}"
    if images.common_sizes:
        sizes = (f"{width} x {height} ({count:,})" for width, height, count in images.common_sizes)
        yield f"    {'most common':<12} {', '.join(sizes)}"
    for title, counts in (("formats", images.formats), ("modes", images.modes), ("subsampling", images.subsampling)):
        if counts:
            yield f"    {title:<12} {_shares_text(counts, images.sampled)}"
    others = {
        "progressive": images.progressive,
        "packed": images.packed,
        "with a crop index": images.crop_index,
        "unreadable": images.unreadable,
    }
    found_others = {name: count for name, count in others.items() if count}
    if found_others:
        yield f"    {'others':<12} {_shares_text(found_others, images.sampled)}"
    sample = f"{images.sampled:,} of {found.records:,} records, at random with seed {found.seed}"
    if images.sampled == found.records:
        sample = f"all {found.records:,} records"
    yield f"    {'sample':<12} {sample}, for all lines from formats on"


def _distribution_text(numbers: Distribution) -> str:
    named = {"min": numbers.min, "median": numbers.median, "p99": numbers.p99, "max": numbers.max}
    return ", ".join(f"{name} {value:,.6g}" for name, value in named.items())


def _shares_text(counts: dict[str, int], total: int) -> str:
    return ", ".join(f"{name} {100 * count / max(total, 1):.4g} %" for name, count in counts.items())


def _class_lines(classes: ClassStats) -> Iterator[str]:
    counts = sorted(classes.counts.items(), key=lambda one: -one[1])
    filled = [one for one in counts if one[1]]
    yield (
        f"  classes in {classes.field}: {len(counts):,}, the largest with {classes.largest:,} records, the smallest "
        f"with {classes.smallest:,}: imbalance {classes.imbalance:.4g}"
    )
    if len(filled) > 2 * _NAMED:
        most, least = filled[:_NAMED], filled[-_NAMED:]
        yield f"    {'largest':<12} {', '.join(f'{name} {count:,}' for name, count in most)}"
        yield f"    {'smallest':<12} {', '.join(f'{name} {count:,}' for name, count in least)}"
    else:
        yield f"    {'records':<12} {', '.join(f'{name} {count:,}' for name, count in filled)}"
    if classes.empty:
        more = f" and {len(classes.empty) - _NAMED:,} more" if len(classes.empty) > _NAMED else ""
        yield f"    {'empty':<12} {', '.join(classes.empty[:_NAMED])}{more}"
    if classes.unlabelled:
        yield f"    {'no class':<12} {classes.unlabelled:,} records have a negative label"


@command(inspect.browse, "FILE...")
def browse(summary: BrowseSummary) -> Iterator[str]:
    """Write one HTML page that shows records of FILEs: images, labels, keys, and a histogram of the classes.

    The page needs no network and no other file, and has less than 5 MB; images are encoded again, as small as that
    takes. A damaged value appears as its error. In the page a click shows all fields, and classes and words filter.
    """
    damaged = f", {summary.damaged:,} of them damaged" if summary.damaged else ""
    yield (
        f"{summary.out}: {summary.shown:,} of {summary.matching:,} matching records{damaged}, "
        f"{bytes_text(summary.bytes)}"
    )


@command(inspect.diff, "A B", failed=lambda found: not found.same)
def diff(found: Comparison) -> Iterator[str]:
    """Show which records were added, removed or changed from A to B.

    Records are paired by key; without keys, by position. Values are compared by checksum, or themselves where they may
    be compressed in two ways. A and B may be folders of files. Compression, crop indexes and metadata besides classes
    are not compared.

    Exit status: 0 no difference; 1 differences; 2 wrong usage, or A or B cannot be read.
    """
    marks = {"removed": "-", "added": "+", "changed": "~"}
    for one in found.changes:
        number = one.a if one.b is None else one.b
        fields = f"  ({', '.join(one.fields)})" if one.fields else ""
        yield f"{marks[one.change]} {f'record {number:,}' if one.key is None else one.key}{fields}"
    for change, mark in marks.items():
        rest = getattr(found, change) - sum(one.change == change for one in found.changes)
        if rest:
            yield f"{mark} ... and {rest:,} more {change} (--limit lists more)"
    for title, names in (
        ("fields added", found.fields_added),
        ("fields removed", found.fields_removed),
        ("fields of another type", [f"{name} ({a}, now {b})" for name, (a, b) in found.fields_retyped.items()]),
        ("classes added", found.classes_added),
        ("classes removed", found.classes_removed),
        ("changed in", [f"{name} {count:,}" for name, count in found.changed_fields.items()]),
    ):
        if names:
            yield f"{title}: {', '.join(names)}"
    paired = "paired by key" if found.by == "key" else "paired by position: without keys in both"
    a, b = found.records
    yield (
        f"{found.added:,} added, {found.removed:,} removed, {found.changed:,} changed; {a:,} and {b:,} records, "
        f"{paired}"
    )
    if found.reordered:
        ignored = "" if found.order else "; only --order counts that as a difference"
        yield f"the records are in a different order{ignored}"
    if found.renumbered:
        yield "classes have other numbers; labels are compared by class name"
