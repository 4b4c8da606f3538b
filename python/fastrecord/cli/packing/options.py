"""Options of pack and import, and what both print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import parse_pairs, path_type
from fastrecord.cli.text import bytes_text, parse_size, progress_bar, say, shard_lines
from fastrecord.store import is_url

if TYPE_CHECKING:
    from fastrecord.pack.packer import PackProgress, PackSummary

_SHOWN = 20
_STAGES = {"sizes": "looking up sizes", "pack": ""}

_FILE_OPTIONS = (
    click.option("--append", is_flag=True, help="Add to OUT. Its classes keep their numbers; new ones get the next."),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue a killed or interrupted pack, or --append, of the same input: no record is read again or stored "
        "twice. Starts if OUT is absent, does nothing if OUT is complete, refuses if SRC has changed.",
    ),
    click.option(
        "--overwrite",
        is_flag=True,
        help="Replace OUT, or all its shards, once packing has succeeded. Old and new files need room together.",
    ),
    click.option(
        "--classes-from",
        type=path_type,
        metavar="FILE.frec",
        help="Give classes the label numbers that they have in FILE. A class that FILE does not name is an error.",
    ),
    click.option(
        "--bad-files",
        type=click.Choice(["stop", "skip"]),
        default="stop",
        show_default=True,
        help="For a file that is not an image, or cannot be read: stop the pack and name it, or skip and list it.",
    ),
)
_IMAGE_OPTIONS = (
    click.option(
        "--shards",
        type=click.IntRange(min=1),
        metavar="N",
        help="Write N files, OUT-00000-of-0000N.frec and so on, each a run of the input. They are one data set, which "
        "dataset.json names beside them, so none may be missing later. Default: one file OUT.",
    ),
    click.option(
        "--shard-size",
        callback=parse_size,
        metavar="SIZE",
        help="Write as many files as needed for none to exceed SIZE, such as 4GiB. Looks up the size of each input "
        "first.",
    ),
    click.option(
        "--crop-ready",
        is_flag=True,
        help="Rewrite JPEGs without loss (the same pixels), so that a crop is decoded without the rest of its image. "
        "Training gets faster, packing slower; sizes stay about the same. Other formats, and JPEGs that are damaged, "
        "very small or of a rare kind, are not changed.",
    ),
    click.option(
        "--keep",
        metavar="WHAT",
        help="Marker segments that --crop-ready keeps: all, none, or some of exif, icc, other, such as exif,icc. "
        "Without exif an image loses its orientation. [default: all]",
    ),
    click.option(
        "--crop-index/--no-crop-index",
        default=None,
        help="Store a crop index after each JPEG, so that a crop is decoded without most of its image. The JPEGs keep "
        "their bytes. `fastrecord index` adds it to existing files. [default: no index]",
    ),
    click.option(
        "--short-side",
        type=click.IntRange(1, 65500),
        metavar="PX",
        help="Shrink images whose shorter side is above PX pixels, and store them as JPEGs. Others keep their bytes.",
    ),
    click.option(
        "--max-side",
        type=click.IntRange(1, 65500),
        metavar="PX",
        help="Shrink images whose longer side is above PX pixels, and store them as JPEGs. Others keep their bytes.",
    ),
    click.option(
        "--quality",
        type=click.IntRange(1, 100),
        metavar="Q",
        help="Quality of the JPEGs that --short-side or --max-side makes. [default: 90]",
    ),
    click.option(
        "--raw",
        is_flag=True,
        help="Store all images as pixels (binary PPM, 3 bytes per pixel), shrunk if above --short-side or --max-side. "
        "Loading decodes nothing then, and OUT is many times larger than with JPEGs.",
    ),
    click.option(
        "--staging",
        type=path_type,
        metavar="DIR",
        help="If OUT is a URL: where shards are made before they are sent, at most three at a time. [default: the "
        "system's folder for temporary files]",
    ),
    click.option(
        "--sixteen-bit",
        type=click.Choice(["scale", "clip"]),
        help="How to convert 16-bit grey where images are decoded (--short-side, --max-side, --raw, --decode): scale "
        "divides by 257, clip makes all values above 255 white, as Pillow does. By default it is a bad file.",
    ),
)
_FIELD_OPTIONS = (
    click.option(
        "--map",
        "mapping",
        multiple=True,
        callback=parse_pairs,
        metavar="NAME=FIELD,...",
        help="Store only these fields of SRC, under these names: image=jpg,label=cls,key=__key__.",
    ),
    click.option(
        "--type",
        "types",
        multiple=True,
        callback=parse_pairs,
        metavar="NAME=TYPE",
        help="Store a field as another type: int32, string, 'array(float32, (3, None))'. May be repeated.",
    ),
    click.option(
        "--fill",
        multiple=True,
        callback=parse_pairs,
        metavar="NAME=VALUE",
        help="Store VALUE in the place of a null: label=-1, caption=none, boxes=[]. May be repeated. By default a "
        "record with a null is a bad one.",
    ),
)


def field_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about the fields of a source."""
    return _with(command, _FIELD_OPTIONS)


def file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about existing files, classes and bad input."""
    return _with(command, _FILE_OPTIONS)


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about shards and about how images are stored."""
    return _with(command, _IMAGE_OPTIONS)


def _with(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def check_file_options(append: bool, resume: bool, overwrite: bool, options: dict[str, Any], out: str = "") -> None:
    """Refuse options that contradict each other, or do not fit OUT."""
    if append + resume + overwrite > 1:
        raise click.UsageError(
            "give one of --append, --resume and --overwrite: --resume also continues a killed --append"
        )
    if options["shards"] is not None and options["shard_size"] is not None:
        raise click.UsageError("give --shards or --shard-size, not both")
    if options["staging"] is not None and not is_url(out):
        raise click.UsageError("--staging is for an OUT in an object store: leave it out")
    if append and (options["shards"] is not None or options["shard_size"] is not None) and not is_url(out):
        raise click.UsageError("--append adds to one file: name it as OUT, without --shards or --shard-size")


def take_recode(options: dict[str, Any]) -> None:
    """Replace the options about images by the arguments of a pack; refuse unfit ones."""
    from fastrecord.recode import Recode

    crop_ready, keep = options.pop("crop_ready"), options.pop("keep")
    if keep is not None and not crop_ready:
        raise click.UsageError("--keep belongs to --crop-ready: give that too")
    options["crop_ready"] = (keep or "all") if crop_ready else None
    options["crop_index"] = bool(options["crop_index"])
    names = Recode.__dataclass_fields__
    try:
        recode = Recode(**{name: options[name] for name in names})
    except ValueError as err:
        flags = re.sub(rf"\b({'|'.join(names)})\b", lambda name: f"--{name[0].replace('_', '-')}", str(err))
        raise click.UsageError(flags) from err
    if recode.changes and options["shard_size"] is not None:
        raise click.UsageError("changed images have no known size before packing: give --shards, not --shard-size")


@contextmanager
def pack_progress(*, quiet: bool) -> Iterator[Callable[[PackProgress], None]]:
    """Show the progress of a pack on stderr; yield a function that updates it."""
    with progress_bar(quiet=quiet, unit=" records") as bar:

        def show(state: PackProgress) -> None:
            if bar is None:
                return
            if bar.desc != _STAGES[state.stage] or bar.total != state.total:
                bar.set_description_str(_STAGES[state.stage], refresh=False)
                bar.reset(total=state.total)
                bar.initial = bar.n = state.files
            if state.stage == "pack":
                seconds = max(bar.format_dict["elapsed"], 1e-9)
                bar.set_postfix_str(f"{bytes_text(state.bytes / seconds)}/s", refresh=False)
            bar.update(state.files - bar.n)

        yield show


def print_summary(summary: PackSummary, *, resumed: bool, skipped: str) -> None:
    """Print what a pack has done.

    Args:
        summary: The result.
        resumed: Whether it continued an earlier pack.
        skipped: What the skipped files are, for people.
    """
    from fastrecord.pack.packer import foreign_text

    where = summary.paths[0] if len(summary.paths) == 1 else f"{summary.paths[0]} to {summary.paths[-1]}"
    classes = "" if summary.classes is None else f" in {len(summary.classes):,} classes"
    if summary.scale is not None:
        classes = f" of scale {summary.scale}"
    if resumed and summary.packed == 0 and summary.written == 0:
        say(f"{where}: complete already, {summary.records:,} records{classes}")
        say(*shard_lines(summary.manifest, summary.not_named))
        return
    packed = "" if summary.packed == summary.records else f" ({summary.packed:,} of them new)"
    speed = bytes_text(summary.written / max(summary.seconds, 1e-9))
    say(
        f"{where}: {summary.records:,} records{packed}{classes}, {bytes_text(summary.bytes)}, "
        f"{summary.seconds:.1f} s, {speed}/s"
    )
    say(*shard_lines(summary.manifest, summary.not_named))
    if summary.recoded is not None:
        say(_recoded_text(summary.recoded))
    if summary.foreign:
        say(foreign_text(summary.foreign))
    if summary.skipped:
        say(f"skipped {len(summary.skipped):,} {skipped}:")
        for key, reason in summary.skipped[:_SHOWN]:
            say(f"  {key}: {reason}")
        if len(summary.skipped) > _SHOWN:
            say(f'  and {len(summary.skipped) - _SHOWN:,} more; the file\'s metadata lists all, under "skipped"')
    if summary.empty_classes:
        say(f"classes without a record: {', '.join(summary.empty_classes)}")
    if summary.ignored:
        say(f"left out {summary.ignored:,} files beside the class folders")


def _recoded_text(recoded: dict[str, int]) -> str:
    names = {
        "smaller": "made smaller",
        "crop_ready": "crop-ready",
        "raw": "raw",
        "kept": "kept byte for byte",
        "crop_index": "with a crop index",
    }
    counts = ", ".join(f"{recoded[key]:,} {name}" for key, name in names.items() if recoded[key] or key == "kept")
    sizes = f"{bytes_text(recoded['bytes_in'])} became {bytes_text(recoded['bytes_out'])}"
    return f"of {recoded['images']:,} images {counts}; {sizes}"
