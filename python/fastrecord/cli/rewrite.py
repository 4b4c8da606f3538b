"""The subcommands that make files from files: merge, split, shuffle, select, compact."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import output, path_type, quiet_option, summary_option, text_type
from fastrecord.cli.text import bytes_text, parse_size, progress_of_total, say, shard_lines

if TYPE_CHECKING:
    from fastrecord.files.copy_job import CopySummary

_Command = Callable[..., Any]


def _shared(command: _Command) -> _Command:
    """Add the shared options to a command."""
    options = [
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace existing outputs once all is copied. Old and new files need room together. Default: refuse "
            "existing files.",
        ),
        click.option(
            "--allow-incomplete",
            is_flag=True,
            help="Accept a file whose own packing was stopped or is in progress, and shard sets with missing shards. "
            "Default: refuse them.",
        ),
        click.option(
            "--verify",
            is_flag=True,
            help="Compare the checksum of each payload while copying; slower. Checksums are copied in any case, so "
            "`fastrecord verify` finds earlier damage later.",
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
    say(*shard_lines(summary.manifest, summary.not_named))
    if summary.differing:
        keys = ", ".join(summary.differing)
        say(f"metadata that differs between the files, taken from the first file that has it: {keys}")


@click.command()
@click.argument("files", nargs=-1, required=True, type=path_type, metavar="FILE...")
@click.option("--out", "-o", required=True, type=path_type, metavar="OUT", help="File to write.")
@_shared
def merge(files: tuple[str, ...], out: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of all FILEs, one file after the other, into OUT. Nothing is decoded; FILEs do not change.

    All FILEs need the same fields; OUT has them in the order of the first FILE. Classes are matched by name. The first
    FILE's classes keep their numbers, new names get the next ones, and the int64 field `label` is renumbered. Where
    other metadata differs, the first FILE's value counts, and the key is listed.

    OUT can be read only when everything is copied. After an error or Ctrl-C it is absent, or with --overwrite the old
    file.
    """
    from fastrecord.files.rewrite import merge as merge_files

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = merge_files(files, out, progress=show, **options)
    _print(summary, as_json=as_json)


def _listed(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:  # noqa: ARG001
    return None if value is None else [part.strip() for part in value.split(",")]


@click.command()
@click.argument("file", type=path_type)
@click.argument("out", nargs=-1, type=path_type, metavar="[OUT...]")
@click.option(
    "--out",
    "-o",
    "named",
    type=path_type,
    metavar="OUT",
    multiple=True,
    help="Another way to give OUT; may be repeated.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write N files, each a run of the records. Their numbers of records differ by at most one.",
)
@click.option(
    "--shard-size",
    callback=parse_size,
    metavar="SIZE",
    help="Write as many files as needed for none to exceed SIZE, such as 4GiB (unless one record alone does).",
)
@click.option(
    "--fractions",
    callback=_listed,
    metavar="LIST",
    help="Write one file for each share, such as 0.9,0.1, of records chosen at random, none twice. A sum below 1 "
    "leaves records out.",
)
@click.option(
    "--names",
    callback=_listed,
    metavar="LIST",
    help="With --fractions: names of the files, such as train,val for train.frec and val.frec.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Seed of the choice for --fractions: the same seed makes the same files.",
)
@_shared
def split(file: str, out: tuple[str, ...], named: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of FILE into several files, in the order that they have in FILE. FILE does not change.

    OUT is one name, where train.frec means train-00000-of-00002.frec and so on, or one path for each file. Default:
    FILE's name. The files of --fractions have different uses and are not numbered: give --names (OUT is then the
    folder to write into, by default FILE's), or a path for each.

    The new files can be read only when everything is copied. After an error or Ctrl-C none of them is left.
    """
    from fastrecord.files.rewrite import split as split_file

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
@output()
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Seed of the order: the same seed makes the same order.",
)
@_shared
def shuffle(file: str, out: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of FILE in random order into OUT, for disks that are fast only at sequential reads.

    FILE does not change. It is read at random, with prefetching; OUT is written sequentially, with its payloads in the
    order of its records. A sequential read of OUT then delivers shuffled records.

    OUT can be read only when everything is copied. After an error or Ctrl-C it is absent, or with --overwrite the old
    file.
    """
    from fastrecord.files.rewrite import shuffle as shuffle_file

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = shuffle_file(file, out, progress=show, **options)
    _print(summary, as_json=as_json)


def _read_keys(ctx: click.Context, param: click.Parameter, path: str | None) -> list[str] | None:  # noqa: ARG001
    if path is None:
        return None
    with click.open_file(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line for line in file.read().split("\n") if line]


@click.command()
@click.argument("file", type=path_type)
@output()
@click.option(
    "--where",
    type=text_type,
    metavar="CONDITION",
    help="Only records that meet this, such as 'label == \"cat\" and image.width > 500': comparisons (==, !=, <, <=, "
    ">, >=, in, not in) of fields with numbers, texts and names of classes, joined by and, or, not.",
)
@click.option(
    "--keys",
    callback=_read_keys,
    type=path_type,
    metavar="LIST",
    help="Only records whose key is in this file, one on a line; - is stdin.",
)
@click.option(
    "--drop-keys",
    callback=_read_keys,
    type=path_type,
    metavar="LIST",
    help="Only records whose key is not in this file.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write N files, each a run of the records, as `split --shards` does. Default: one file.",
)
@_shared
def select(file: str, out: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write some records of FILE into OUT, in their order, as they are stored. FILE does not change.

    FILE may also be a data set: a folder of files, or its dataset.json. A key of a list that no record has is an
    error. To delete records, write the others and replace FILE by OUT.

    OUT can be read only when everything is copied. After an error or Ctrl-C it is absent, or with --overwrite the old
    file.
    """
    from fastrecord.files.subset import select as select_records

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = select_records(file, out, progress=show, **options)
    _print(summary, as_json=as_json)


@click.command()
@click.argument("file", type=path_type)
@output(required=False)
@_shared
def compact(file: str, out: str | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Rewrite FILE without its unused bytes: old indexes, replaced columns, a torn tail.

    The new file replaces FILE once everything is copied, so both need room together. With OUT it is written there, and
    FILE does not change. Open readers continue with the old file; a FILE that a writer has open is refused. After an
    error or Ctrl-C FILE is as it was before.
    """
    from fastrecord.files.rewrite import compact as compact_file

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True) as show:
        summary = compact_file(file, out, progress=show, **options)
    _print(summary, as_json=as_json)
