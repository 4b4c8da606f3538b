"""The subcommand pack: options and progress. Packs nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import path_type, quiet_option, summary_option
from fastrecord.cli.text import bytes_text, parse_size, progress_bar, say

if TYPE_CHECKING:
    from fastrecord.pack.images import PackProgress, PackSummary

_SHOWN = 20
_STAGES = {"sizes": "looking up sizes", "pack": ""}


@click.command()
@click.argument("paths", type=path_type, nargs=-1, metavar="SRC OUT")
@click.option("--out", "-o", type=path_type, metavar="OUT", help="Another way to give OUT.")
@click.option(
    "--pairs",
    nargs=2,
    type=path_type,
    metavar="LR_DIR HR_DIR",
    help="Instead of SRC: pack pairs of small and large images from these two folders. Partners have the same path, "
    "except for the ending, or for x2, x3, x4 or x8 at the end of the small image's name. Fields are lr, hr and key.",
)
@click.option(
    "--decode",
    is_flag=True,
    help="With --pairs: store pixels, as arrays uint8 (height, width, 3). Loading decodes nothing then; 3 bytes "
    "per pixel.",
)
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "auto"]),
    help="With --decode: compress the pixels. auto measures the first ones and may choose none.",
)
@click.option(
    "--any-scale",
    is_flag=True,
    help="With --pairs: accept pairs of any sizes. By default all pairs need the same scale, a whole number, and "
    "other pairs are refused before anything is written.",
)
@click.option("--append", is_flag=True, help="Add to OUT. Its classes keep their numbers; new ones get the next.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue a killed or interrupted pack, or --append, of the same input: no record is read again or stored "
    "twice. Starts if OUT is absent, does nothing if OUT is complete, refuses if SRC has changed.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT, or all its shards, once packing has succeeded. Old and new files need room together.",
)
@click.option(
    "--list",
    "list_path",
    type=path_type,
    metavar="CSV",
    help="Pack the files that this list names, in its order. Columns: path (relative to SRC), and label (a number) or "
    "class (a name) or neither. A header row `path,label` or `path,class` may come first.",
)
@click.option(
    "--classes-from",
    type=path_type,
    metavar="FILE.frec",
    help="Give classes the label numbers that they have in FILE. A class that FILE does not name is an error.",
)
@click.option(
    "--bad-files",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="For a file that is not an image, or cannot be read: stop the pack and name it, or skip and list it.",
)
@click.option(
    "--allow-empty-classes", is_flag=True, help="Keep class folders without files as classes without records."
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write N files, OUT-00000-of-0000N.frec and so on, each a run of the input. They are one data set, so none "
    "may be missing later. Default: one file OUT.",
)
@click.option(
    "--shard-size",
    callback=parse_size,
    metavar="SIZE",
    help="Write as many files as needed for none to exceed SIZE, such as 4GiB. Looks up the size of each input first.",
)
@click.option(
    "--crop-ready",
    is_flag=True,
    help="Rewrite JPEGs without loss (the same pixels), so that a crop is decoded without the rest of its image. "
    "Training gets faster, packing slower; sizes stay about the same. Other formats, and JPEGs that are damaged, very "
    "small or of a rare kind, are not changed.",
)
@click.option(
    "--keep",
    metavar="WHAT",
    help="Marker segments that --crop-ready keeps: all, none, or some of exif, icc, other, such as exif,icc. Without "
    "exif an image loses its orientation. [default: all]",
)
@click.option(
    "--crop-index/--no-crop-index",
    default=None,
    help="Store a crop index after each JPEG, so that a crop is decoded without most of its image. The JPEGs keep "
    "their bytes. `fastrecord index` adds it to existing files. [default: no index]",
)
@click.option(
    "--short-side",
    type=click.IntRange(1, 65500),
    metavar="PX",
    help="Shrink images whose shorter side is above PX pixels, and store them as JPEGs. Others keep their bytes.",
)
@click.option(
    "--max-side",
    type=click.IntRange(1, 65500),
    metavar="PX",
    help="Shrink images whose longer side is above PX pixels, and store them as JPEGs. Others keep their bytes.",
)
@click.option(
    "--quality",
    type=click.IntRange(1, 100),
    metavar="Q",
    help="Quality of the JPEGs that --short-side or --max-side makes. [default: 90]",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Store all images as pixels (binary PPM, 3 bytes per pixel), shrunk if above --short-side or --max-side. "
    "Loading decodes nothing then, and OUT is many times larger than with JPEGs.",
)
@click.option(
    "--sixteen-bit",
    type=click.Choice(["scale", "clip"]),
    help="How to convert 16-bit grey where images are decoded (--short-side, --max-side, --raw, --decode): scale "
    "divides by 257, clip makes all values above 255 white, as Pillow does. By default it is a bad file.",
)
@quiet_option
@summary_option
def pack(
    paths: tuple[str, ...],
    out: str | None,
    append: bool,
    resume: bool,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Pack the images below SRC into OUT, byte for byte unless an option changes them.

    SRC has one folder per class, as for torchvision's ImageFolder. The sorted folder names become labels 0, 1, ..., and
    records have ImageFolder's order. Each record holds the image, its label, and its path relative to SRC as its key.
    With --pairs the input is two folders: `fastrecord pack --pairs LR_DIR HR_DIR OUT`.

    An existing OUT is refused without --append, --resume or --overwrite. A commit every GiB makes the packed records
    durable: after a kill, Ctrl-C or a full disk OUT can be read up to its last commit, is marked as incomplete, and
    --resume continues from there. After an error before the first commit OUT is absent.
    """
    if out is not None:
        paths += (out,)
    if append + resume + overwrite > 1:
        raise click.UsageError(
            "give one of --append, --resume and --overwrite: --resume also continues a killed --append"
        )
    if options["shards"] is not None and options["shard_size"] is not None:
        raise click.UsageError("give --shards or --shard-size, not both")
    if append and (options["shards"] is not None or options["shard_size"] is not None):
        raise click.UsageError("--append adds to one file: name it as OUT, without --shards or --shard-size")
    pairs = options["pairs"] is not None
    run = _pairs(paths, options) if pairs else _folder(paths, options, append=append)
    with progress_bar(quiet=quiet, unit=" records") as bar:

        def show(state: PackProgress) -> None:
            if bar is None:
                return
            if bar.total is None or bar.desc != _STAGES[state.stage]:
                bar.set_description_str(_STAGES[state.stage], refresh=False)
                bar.reset(total=state.total)
                bar.initial = bar.n = state.files
            if state.stage == "pack":
                seconds = max(bar.format_dict["elapsed"], 1e-9)
                bar.set_postfix_str(f"{bytes_text(state.bytes / seconds)}/s", refresh=False)
            bar.update(state.files - bar.n)

        summary = run(append=append, resume=resume, overwrite=overwrite, progress=show)
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        _print(summary, resumed=resume, pairs=pairs)


def _folder(paths: tuple[str, ...], options: dict[str, Any], *, append: bool) -> Callable[..., PackSummary]:
    """Return the function that packs a folder or the files of a list; refuse unfit options."""
    from fastrecord.pack.images import pack_folder
    from fastrecord.pack.recode import Recode

    src, out = _arguments(paths, "SRC", "OUT")
    del options["pairs"]
    for name in ("decode", "compression", "any_scale"):
        if options.pop(name):
            raise click.UsageError(f"--{name.replace('_', '-')} is for --pairs")
    crop_ready, keep = options.pop("crop_ready"), options.pop("keep")
    if keep is not None and not crop_ready:
        raise click.UsageError("--keep belongs to --crop-ready: give that too")
    options["crop_ready"] = (keep or "all") if crop_ready else None
    options["crop_index"] = bool(options["crop_index"])
    try:
        recode = Recode(**{name: options[name] for name in Recode.__dataclass_fields__})
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    if recode.changes and options["shard_size"] is not None:
        raise click.UsageError("changed images have no known size before packing: give --shards, not --shard-size")
    if append and options["classes_from"] is not None:
        raise click.UsageError("with --append OUT keeps its own classes: leave out --classes-from")
    if options["list_path"] is not None and options["allow_empty_classes"]:
        raise click.UsageError("--list has no class folders: leave out --allow-empty-classes")
    return partial(pack_folder, src, out, **options)


def _pairs(paths: tuple[str, ...], options: dict[str, Any]) -> Callable[..., PackSummary]:
    """Return the function that packs pairs of images; refuse unfit options."""
    from fastrecord.pack.pairs import pack_pairs

    (out,) = _arguments(paths, "OUT")
    low, high = options.pop("pairs")
    names = ("decode", "compression", "any_scale", "sixteen_bit", "bad_files", "shards", "shard_size")
    taken = {name: options.pop(name) for name in names}
    if taken["compression"] is not None:
        if not taken["decode"]:
            raise click.UsageError("images are compressed already: --compression is for --decode")
        if taken["shard_size"] is not None:
            raise click.UsageError(
                "compressed pixels have no known size before packing: give --shards, not --shard-size"
            )
    if taken["sixteen_bit"] is not None and not taken["decode"]:
        raise click.UsageError("files are stored as they are: --sixteen-bit is for --decode")
    given = [name for name, value in options.items() if value]
    if given:
        word = "list" if given[0] == "list_path" else given[0].replace("_", "-")
        raise click.UsageError(f"--{word} is not for --pairs: leave it out")
    return partial(pack_pairs, low, high, out, **taken)


def _arguments(paths: tuple[str, ...], *names: str) -> tuple[str, ...]:
    if len(paths) < len(names):
        raise click.UsageError(f"Missing argument '{names[len(paths)]}'.")
    if len(paths) > len(names):
        given = " ".join(paths[len(names) :])
        raise click.UsageError(f"Got unexpected extra argument ({given}): the arguments are {' '.join(names)}")
    return paths


def _print(summary: PackSummary, *, resumed: bool, pairs: bool) -> None:
    from fastrecord.pack.packer import foreign_text

    where = summary.paths[0] if len(summary.paths) == 1 else f"{summary.paths[0]} to {summary.paths[-1]}"
    classes = "" if summary.classes is None else f" in {len(summary.classes):,} classes"
    if summary.scale is not None:
        classes = f" of scale {summary.scale}"
    if resumed and summary.packed == 0 and summary.written == 0:
        say(f"{where}: complete already, {summary.records:,} records{classes}")
        return
    packed = "" if summary.packed == summary.records else f" ({summary.packed:,} of them new)"
    speed = bytes_text(summary.written / max(summary.seconds, 1e-9))
    say(
        f"{where}: {summary.records:,} records{packed}{classes}, {bytes_text(summary.bytes)}, "
        f"{summary.seconds:.1f} s, {speed}/s"
    )
    if summary.recoded is not None:
        say(_recoded_text(summary.recoded))
    if summary.foreign:
        say(foreign_text(summary.foreign))
    if summary.skipped:
        what = "without a partner, or not two images" if pairs else "files that are not images or cannot be read"
        say(f"skipped {len(summary.skipped):,} {what}:")
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
