"""The subcommands that look into files: stats, browse, diff, head."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fastrecord import inspect
from fastrecord._core import FastRecordError
from fastrecord.cli import describe
from fastrecord.cli.options import path_type, summary_option, text_type
from fastrecord.cli.sources import opened
from fastrecord.cli.text import bytes_text, say
from fastrecord.dataset.manifest import NAME, folder_of
from fastrecord.store import is_url

if TYPE_CHECKING:
    from fastrecord.inspect.compare import Comparison
    from fastrecord.inspect.statistics import ClassStats, Distribution, FieldStats, FileStats, ImageStats

# Classes, empty classes and kinds of images that a table names.
_NAMED = 5
_SEED = click.IntRange(min=0, max=(1 << 64) - 1)

files_argument = click.argument("files", nargs=-1, required=True, type=path_type, metavar="FILE...")


@click.command()
@files_argument
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=2000,
    show_default=True,
    help="Maximum number of images whose first bytes are read, for formats and modes.",
)
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Chooses them.")
@click.option("--plot", type=path_type, metavar="PICTURE", help="Also draw the statistics: .png, .svg or .pdf.")
@click.option("--overwrite", is_flag=True, help="Replace PICTURE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: files, records, bytes, fields, classes.")
def stats(files: tuple[str, ...], sample: int, seed: int, plot: str | None, overwrite: bool, as_json: bool) -> None:
    """Show what the records of all FILEs together are like: bytes, image sizes, classes, duplicates.

    A FILE may also be a data set: a folder of files. Reads the index of all records, and the first bytes of a sample
    of the images; changes nothing. All FILEs need the same fields.
    """
    from fastrecord.inspect.plots import require_plot

    if plot is not None:
        try:
            require_plot(plot, overwrite=overwrite)
        except ValueError as err:
            raise click.UsageError(str(err)) from err
    found = inspect.stats(files, sample=sample, seed=seed)
    if plot is not None:
        inspect.plot_stats(found, plot, overwrite=overwrite)
    say(*([json.dumps(found.to_dict())] if as_json else _stats_lines(found)))


def _stats_lines(found: FileStats) -> Iterator[str]:
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
        "crop-ready": images.crop_ready,
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


@click.command()
@files_argument
@click.option(
    "--out", "-o", type=path_type, metavar="HTML", help="The page. Default: the name of FILE with .html, here."
)
@click.option(
    "--n",
    type=click.IntRange(min=1, max=2000),
    default=200,
    show_default=True,
    help="Maximum number of records, chosen at random. Fewer records get larger images.",
)
@click.option("--class", "class_name", type=text_type, metavar="NAME", help="Only records of this class.")
@click.option(
    "--where",
    type=text_type,
    metavar="CONDITION",
    help="Only records that meet it, such as 'label == 3 and image.width > 500'.",
)
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Chooses the records.")
@click.option("--overwrite", is_flag=True, help="Replace HTML if it exists.")
@summary_option
def browse(files: tuple[str, ...], out: str | None, as_json: bool, **options: Any) -> None:
    """Write one HTML page that shows records of FILEs: images, labels, keys, and a histogram of the classes.

    The page needs no network and no other file, and has less than 5 MB; images are encoded again, as small as that
    takes. A damaged value appears as its error. In the page a click shows all fields, and classes and words filter.
    """
    summary = inspect.browse(files, out or f"{_name_of(files[0])}.html", **options)
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        damaged = f", {summary.damaged:,} of them damaged" if summary.damaged else ""
        say(
            f"{summary.out}: {summary.shown:,} of {summary.matching:,} matching records{damaged}, "
            f"{bytes_text(summary.bytes)}"
        )


def _name_of(file: str) -> str:
    """Return the name of a file, or of a data set's folder."""
    if is_url(file):
        return folder_of(file).name.removesuffix(".frec")
    from fastrecord.dataset.shards import find_files

    name = os.path.abspath(os.path.expanduser(file))
    if os.path.basename(name) == NAME:
        name = os.path.dirname(name)
    return os.path.basename(name if os.path.isdir(name) else find_files(file)[0]).removesuffix(".frec")


@click.command()
@click.argument("a", type=path_type)
@click.argument("b", type=path_type)
@click.option("--order", is_flag=True, help="Another order of the records is a difference, too.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Maximum number of records to list as added, as removed and as changed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def diff(ctx: click.Context, a: str, b: str, order: bool, limit: int, as_json: bool) -> None:
    """Show which records were added, removed or changed from A to B.

    Records are paired by key; without keys, by position. Values are compared by checksum, or themselves where they may
    be compressed in two ways. A and B may be folders of files. Compression, crop indexes and metadata besides classes
    are not compared.

    Exit status: 0 no difference; 1 differences; 2 wrong usage, or A or B cannot be read.
    """
    try:
        found = inspect.diff(a, b, order=order, limit=limit)
    except (FastRecordError, OSError) as err:
        say(f"error: {describe(err)}", err=True)
        ctx.exit(2)
    say(*([json.dumps(found.to_dict())] if as_json else _diff_lines(found)))
    if not found.same:
        ctx.exit(1)


def _diff_lines(found: Comparison) -> Iterator[str]:
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


@click.command()
@click.argument("file", type=path_type)
@click.option("-n", "count", type=click.IntRange(min=0), default=5, show_default=True, help="Number of records.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record and line.")
def head(file: str, count: int, as_json: bool) -> None:
    """Show the first records of FILE with all their fields: numbers and texts, and large values in short.

    FILE may also be a folder of shards, a data set, or the URL of a file or data set.
    """
    from fastrecord.look.values import short_text, summarize
    from fastrecord.schema.roles import find_label, holds_classes

    with opened(file) as records:
        schema = records.schema
        width = max((len(name) for name in schema), default=0)
        label = find_label(records.readers[0])
        classes = records.classes() if label is not None and holds_classes(schema[label]) else None
        records.bring(0, min(count, len(records)))
        for number in range(min(count, len(records))):
            ((shard, _, (record, *_)),) = records.runs(number, number + 1)
            # Copies: if the file is cut meanwhile, that is an error, not a signal.
            values = {name: records.readers[shard].get(record, name, copy=True) for name in schema}
            named = {}
            if classes is not None and label is not None:
                values[label] = classes.label(shard, values[label])
                named = classes.named(values[label])
            if as_json:
                shown = {name: summarize(value, schema[name]) for name, value in values.items()}
                say(json.dumps({"record": number, **shown, **named}))
                continue
            texts = {name: short_text(value, schema[name], 100) for name, value in values.items()}
            if label is not None and named:
                texts[label] += f" ({named['class']})"
            say(f"record {number:,}", *(f"  {name:<{width}}  {text}" for name, text in texts.items()))
