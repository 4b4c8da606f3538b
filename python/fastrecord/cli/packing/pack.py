"""The subcommand pack: options and progress. Packs nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import path_type, quiet_option, summary_option
from fastrecord.cli.packing.options import (
    check_file_options,
    field_options,
    file_options,
    image_options,
    pack_progress,
    print_summary,
    take_recode,
)
from fastrecord.cli.text import say
from fastrecord.store import is_url

if TYPE_CHECKING:
    from fastrecord.pack.packer import PackSummary


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
@file_options
@click.option(
    "--list",
    "list_path",
    type=path_type,
    metavar="CSV",
    help="Pack the files that this list names, in its order. Columns: path (relative to SRC), and label (a number) or "
    "class (a name) or neither. A header row `path,label` or `path,class` may come first, and name more columns, which "
    "become fields: numbers, texts, or lists as JSON.",
)
@field_options
@click.option(
    "--allow-empty-classes", is_flag=True, help="Keep class folders without files as classes without records."
)
@image_options
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

    OUT may be a URL: s3://bucket/train/ becomes a data set of shards, and s3://bucket/train.frec one file. Shards are
    made here one by one and sent; the data set is there, or has changed, when the last one is.
    """
    if out is not None:
        paths += (out,)
    check_file_options(append, resume, overwrite, options, paths[-1] if paths else "")
    pairs = options["pairs"] is not None
    run = _pairs(paths, options) if pairs else _folder(paths, options, append=append)
    with pack_progress(quiet=quiet) as show:
        try:
            summary = run(append=append, resume=resume, overwrite=overwrite, progress=show)
        except ValueError as err:
            raise click.UsageError(str(err)) from err
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        what = "without a partner, or not two images" if pairs else "files that are not images or cannot be read"
        print_summary(summary, resumed=resume, skipped=what)


def _folder(paths: tuple[str, ...], options: dict[str, Any], *, append: bool) -> Callable[..., PackSummary]:
    """Return the function that packs a folder or the files of a list; refuse unfit options."""
    from fastrecord.pack.images import pack_folder

    src, out = _arguments(paths, "SRC", "OUT")
    del options["pairs"]
    for name in ("decode", "compression", "any_scale"):
        if options.pop(name):
            raise click.UsageError(f"--{name.replace('_', '-')} is for --pairs")
    take_recode(options)
    if append and options["classes_from"] is not None:
        raise click.UsageError("with --append OUT keeps its own classes: leave out --classes-from")
    if options["list_path"] is not None and is_url(src):
        raise click.UsageError("--list names files of this machine, and SRC is a URL: copy them here")
    if options["list_path"] is not None and options["allow_empty_classes"]:
        raise click.UsageError("--list has no class folders: leave out --allow-empty-classes")
    if options["list_path"] is None and (options["mapping"] or options["types"] or options["fill"]):
        raise click.UsageError("--map, --type and --fill are for the columns of --list")
    return partial(pack_folder, src, out, **options)


def _pairs(paths: tuple[str, ...], options: dict[str, Any]) -> Callable[..., PackSummary]:
    """Return the function that packs pairs of images; refuse unfit options."""
    from fastrecord.pack.pairs import pack_pairs

    (out,) = _arguments(paths, "OUT")
    low, high = options.pop("pairs")
    names = ("decode", "compression", "any_scale", "sixteen_bit", "bad_files", "shards", "shard_size", "staging")
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
