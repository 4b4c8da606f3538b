"""The subcommands that make files from files: merge, split, shuffle, compact."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import path_type, quiet_option, summary_option
from fastrecord.cli.text import bytes_text, parse_size, progress_of_total, say

if TYPE_CHECKING:
    from fastrecord.operations.copy_job import CopySummary

_Command = Callable[..., Any]


def _shared(command: _Command) -> _Command:
    """Add the shared options to a command."""
    options = [
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace what is to be written if it exists, at the end: until then the old file stays, so both need "
            "room. Default: refuse.",
        ),
        click.option(
            "--allow-incomplete",
            is_flag=True,
            help="Take what is there: a file whose own import was stopped, or is under way; shards of which some are "
            "missing. Default: refuse.",
        ),
        click.option(
            "--verify",
            is_flag=True,
            help="Compare the checksum of each payload on the way; slower. (Checksums are copied in any case, and "
            "`fastrecord verify` finds later what was damaged before.)",
        ),
        quiet_option,
        summary_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _print(summary: CopySummary, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(summary.to_dict()))
        return
    for path, count in zip(summary.paths, summary.counts, strict=True) if len(summary.paths) > 1 else ():
        say(f"{path}: {count:,} records")
    where = summary.paths[0] if len(summary.paths) == 1 else f"{len(summary.paths):,} files"
    classes = "" if summary.classes is None else f" in {len(summary.classes):,} classes"
    speed = bytes_text(summary.bytes / max(summary.seconds, 1e-9))
    say(
        f"{where}: {summary.records:,} records{classes}, {bytes_text(summary.source_bytes)} -> "
        f"{bytes_text(summary.bytes)}, {summary.seconds:.1f} s, {speed}/s"
    )
    if summary.differing:
        keys = ", ".join(summary.differing)
        say(f"metadata that is not the same in all files, taken from the first that has it: {keys}")


@click.command()
@click.argument("files", nargs=-1, required=True, type=path_type, metavar="FILE...")
@click.option("--out", "-o", required=True, type=path_type, metavar="OUT", help="File to write.")
@_shared
def merge(files: tuple[str, ...], out: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of all FILEs, one file after the other, into OUT. Nothing is decoded; FILEs stay as they are.

    All have the same fields; the first one's order of them is OUT's. Classes are matched by name: those of the first
    FILE keep their numbers, new names come behind, and the int64 field `label` is renumbered. Of other metadata that
    differs the first FILE's value is taken, and the key is listed.

    Until all is copied nothing can be read of OUT; after an error or Ctrl-C it is absent (with --overwrite, the old
    one).
    """
    from fastrecord.operations.rewrite import merge as merge_files

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = merge_files(files, out, progress=show, **options)
    _print(summary, as_json=as_json)


def _listed(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:  # noqa: ARG001
    return None if value is None else [part.strip() for part in value.split(",")]


@click.command()
@click.argument("file", type=path_type)
@click.argument("out", nargs=-1, type=path_type, metavar="[OUT...]")
@click.option("--out", "-o", "named", type=path_type, metavar="OUT", multiple=True, help="The same as OUT.")
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write N files, each a run of the records; their numbers of records differ by one at most.",
)
@click.option(
    "--shard-size",
    callback=parse_size,
    metavar="SIZE",
    help="Write as many files as needed for none to exceed SIZE, say 4GiB (unless one record alone does).",
)
@click.option(
    "--fractions",
    callback=_listed,
    metavar="LIST",
    help="Write one file for each share, say 0.9,0.1: so much of the records, chosen at random, none twice. Less than "
    "1 in all leaves records out.",
)
@click.option(
    "--names",
    callback=_listed,
    metavar="LIST",
    help="With --fractions: what the files are called, say train,val for train.frec and val.frec.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Of the choice for --fractions: the same seed makes the same files.",
)
@_shared
def split(file: str, out: tuple[str, ...], named: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of FILE into several files, in the order that they have in FILE. FILE stays as it is.

    OUT is one name, of which train.frec stands for train-00000-of-00002.frec and so on; or as many paths as there are
    files. Default: FILE's name. The files of --fractions serve different ends and are not numbered: give --names (OUT
    is then the folder to write into, by default FILE's), or a path for each.

    Until all is copied nothing can be read of the new files; after an error or Ctrl-C none of them is left.
    """
    from fastrecord.operations.rewrite import split as split_file

    if sum(options[name] is not None for name in ("shards", "shard_size", "fractions")) != 1:
        raise click.UsageError("give one of --shards, --shard-size and --fractions")
    out += named
    names = None if not out else out[0] if len(out) == 1 else out
    try:
        with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
            summary = split_file(file, names, progress=show, **options)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    _print(summary, as_json=as_json)


@click.command()
@click.argument("file", type=path_type)
@click.argument("out", type=path_type, required=False)
@click.option("--out", "-o", "named", type=path_type, metavar="OUT", help="The same as OUT.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Of the order: the same seed makes the same order.",
)
@_shared
def shuffle(file: str, out: str | None, named: str | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of FILE in random order into OUT, for disks that are slow at all but reading on and on.

    FILE stays as it is. FILE is read all over the place, and asked for ahead; OUT is written from start to end, and its
    payloads lie in the order of its records. Read in that order, OUT is shuffled without a seek.

    Until all is copied nothing can be read of OUT; after an error or Ctrl-C it is absent (with --overwrite, the old
    one).
    """
    from fastrecord.operations.rewrite import shuffle as shuffle_file

    if out is not None and named is not None:
        raise click.UsageError("OUT is given twice")
    out = named if out is None else out
    if out is None:
        raise click.UsageError("name the file to write: OUT, or --out OUT")
    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = shuffle_file(file, out, progress=show, **options)
    _print(summary, as_json=as_json)


@click.command()
@click.argument("file", type=path_type)
@click.option("--out", "-o", type=path_type, metavar="OUT", help="File to write instead of FILE, which stays as it is.")
@_shared
def compact(file: str, out: str | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write FILE anew without what no record names: old indexes, replaced columns, a torn tail.

    FILE is replaced at the end, when all is copied: until then the old one stays, so both need room. Readers that have
    it open go on with the old one; a FILE that a writer has open is refused. After an error or Ctrl-C FILE is as it
    was.
    """
    from fastrecord.operations.rewrite import compact as compact_file

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = compact_file(file, out, progress=show, **options)
    _print(summary, as_json=as_json)
