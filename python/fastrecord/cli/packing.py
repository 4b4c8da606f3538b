"""The commands pack and import, which differ in the format that they expect. They pack nothing themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import click

from fastrecord.cli.command import arguments, json_option, quiet_option
from fastrecord.cli.text import bytes_text, progress_bar, say, shard_lines, speed
from fastrecord.options import Command, as_flags, derived, made
from fastrecord.packing.options import BadFiles, Fields, Input, Output
from fastrecord.recode import Recode

if TYPE_CHECKING:
    from fastrecord.packing.pack import Preview
    from fastrecord.packing.summary import PackProgress, PackSummary

_SHOWN = 20
_WIDTH = 60
_BAD_FILES = (
    "For a file that is not an image, or a record that cannot be read: stop and name it, or skip and list it. Default: "
    "stop."
)
_STAGES = {"sizes": "looking up sizes", "pack": ""}


def _options(form: str) -> Callable[[Command], Command]:
    """Add the options of both commands, which differ in the default format."""

    def add(command: Command) -> Command:
        for option in reversed(
            (
                arguments("SRC... [OUT]", ["source", "out"]),
                click.option("--dry-run", is_flag=True, help="Show the fields and the first records. Write nothing."),
                derived(Input, "format", "settings", format={"default": form}),
                derived(Fields),
                derived(Recode),
                derived(Output, "mode", "shards", "shard_size", "staging"),
                click.option("--bad-files", type=click.Choice(get_args(BadFiles)), help=_BAD_FILES),
                quiet_option,
                json_option,
            )
        ):
            command = option(command)
        return command

    return add


@click.command()
@_options("folder")
def pack(**options: Any) -> None:
    """Pack the images below SRC into OUT, byte for byte unless an option changes them.

    SRC has one folder per class, as for torchvision's ImageFolder. The sorted folder names become labels 0, 1, ..., and
    records have ImageFolder's order. Each record holds the image, its label, and its path relative to SRC as its key.
    `--set list=FILE.csv` names the files to pack, `--format pairs LR_DIR HR_DIR OUT` packs pairs of images of two
    folders, and other formats come in as with `fastrecord import`.

    An existing OUT is refused without --append, --resume or --overwrite. A commit every GiB makes the packed records
    durable: after a kill, Ctrl-C or a full disk OUT can be read up to its last commit, is marked as incomplete, and
    --resume continues from there. After an error before the first commit OUT is absent.

    OUT may be a URL: s3://bucket/train/ becomes a data set of shards, and s3://bucket/train.frec one file. Shards are
    made here one by one and sent; the data set is there, or has changed, when the last one is.
    """
    _run(**options)


@click.command("import")
@_options("auto")
def import_(**options: Any) -> None:
    """Store the records of another format in OUT: tar shards, LMDB, TFRecord, HDF5, parquet and more.

    SRC is a file, a folder or a pattern in quotes, such as 'train-{000..146}.tar'. Several SRC are read one after the
    other. Labels that are names are numbered by sorted name.

    As with `fastrecord pack`, a commit every GiB makes the records durable, and --resume continues after a kill,
    Ctrl-C, a full disk or a damaged record of SRC.
    """
    _run(**options)


def _run(
    source: list[str],
    out: str | None,
    *,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    bad_files: BadFiles | None,
    **options: Any,
) -> None:
    """Run one of the commands."""
    from fastrecord.packing.pack import pack, preview

    given = made(Input, options, source=list(source))
    fields, recode, output = made(Fields, options), made(Recode, options), made(Output, options)
    bad_files = bad_files or "stop"
    try:
        if dry_run:
            _show(preview(given, fields=fields, bad_files=bad_files), as_json=as_json)
            return
        if out is None:
            raise click.UsageError("Missing argument 'OUT'.")
        with _progress(quiet=quiet) as show:
            summary = pack(given, out, fields=fields, recode=recode, output=output, bad_files=bad_files, progress=show)
    except ValueError as err:
        raise click.UsageError(as_flags(str(err), Fields, Recode, Output)) from err
    if as_json:
        say(json.dumps(summary.to_dict()))
        return
    if summary.recognised is not None:
        say(f"format: {summary.format} ({summary.recognised})")
    say(*(f"left out: {each}" for each in summary.left_out))
    _print(summary, resumed=output.mode == "resume", packed=recode.packed)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[PackProgress], None]]:
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


def _print(summary: PackSummary, *, resumed: bool, packed: bool) -> None:
    """Print what a pack has done.

    Args:
        summary: The result.
        resumed: Whether it continued an earlier pack.
        packed: Whether JPEGs were to be stored as packed coefficients.
    """
    from fastrecord.packing.summary import foreign_text

    where = summary.paths[0] if len(summary.paths) == 1 else f"{summary.paths[0]} to {summary.paths[-1]}"
    classes = "" if summary.classes is None else f" in {len(summary.classes):,} classes"
    if summary.scale is not None:
        classes = f" of scale {summary.scale}"
    if resumed and summary.packed == 0 and summary.written == 0:
        say(f"{where}: complete already, {summary.records:,} records{classes}")
        say(*shard_lines(summary.manifest, summary.not_named))
        return
    new = "" if summary.packed == summary.records else f" ({summary.packed:,} of them new)"
    say(
        f"{where}: {summary.records:,} records{new}{classes}, {bytes_text(summary.bytes)}, "
        f"{speed(summary.written, summary.seconds)}"
    )
    say(*shard_lines(summary.manifest, summary.not_named))
    if summary.recoded is not None:
        say(_recoded_text(summary.recoded, packed=packed))
    if summary.foreign:
        say(foreign_text(summary.foreign))
    if summary.skipped:
        say(f"skipped {len(summary.skipped):,} bad records:")
        for key, reason in summary.skipped[:_SHOWN]:
            say(f"  {key}: {reason}")
        if len(summary.skipped) > _SHOWN:
            say(f'  and {len(summary.skipped) - _SHOWN:,} more; the file\'s metadata lists all, under "skipped"')
    if summary.empty_classes:
        say(f"classes without a record: {', '.join(summary.empty_classes)}")
    if summary.ignored:
        say(f"left out {summary.ignored:,} files beside the class folders")


def _recoded_text(recoded: dict[str, int], *, packed: bool) -> str:
    names = {
        "smaller": "made smaller",
        "raw": "raw",
        "kept": "kept byte for byte",
        "crop_index": "with a crop index",
    }
    counts = [f"{recoded[key]:,} {name}" for key, name in names.items() if recoded[key] or key == "kept"]
    if packed:
        others = recoded["images"] - recoded["packed"]
        made = [f"{recoded['smaller']:,} made smaller"] if recoded["smaller"] else []
        counts = [*made, f"{recoded['packed']:,} packed", *([f"{others:,} not"] if others else [])]
    sizes = f"{bytes_text(recoded['bytes_in'])} became {bytes_text(recoded['bytes_out'])}"
    return f"of {recoded['images']:,} images {', '.join(counts)}; {sizes}"


def _show(preview: Preview, *, as_json: bool) -> None:
    from fastrecord.look.values import short_text

    types = {name: kind for name, kind, *_ in preview.fields}

    def texts(record: dict[str, Any]) -> dict[str, str]:
        return {name: short_text(value, types[name], _WIDTH) for name, value in record.items()}

    if as_json:
        fields = [{"name": n, "type": str(t), "from": f, "origin": o} for n, t, f, o in preview.fields]
        rows = [texts(record) for record in preview.first]
        data = {"format": preview.format, "why": preview.why, "records": preview.records, "fields": fields}
        more = {"numbers": preview.numbers, "bad": preview.bad, "nulls": preview.nulls, "left_out": preview.left_out}
        say(json.dumps(data | {"classes": preview.classes, "first": rows} | more))
        return
    say(f"format: {preview.format}" + (f" ({preview.why})" if preview.why else ""))
    if preview.records is not None:
        say(f"records: {preview.records:,}")
    if preview.classes is not None:
        say(f"classes: {preview.classes:,}")
    width = max(len(name) for name, *_ in preview.fields)
    say("fields:")
    for name, kind, given, origin in preview.fields:
        say(f"  {name:{width}}  {kind}  from {given}" + (f" ({origin})" if origin else ""))
    for name, count in preview.nulls.items():
        say(f"nulls: {count:,} in {name}: --fill {name}=VALUE, or --bad-files skip")
    say(*(f"left out: {each}" for each in preview.left_out))
    records = {**dict(zip(preview.numbers, preview.first, strict=True)), **preview.bad}
    for number, record in sorted(records.items()):
        say(f"record {number}:" if isinstance(record, dict) else f"record {number}: bad: {record}")
        say(*(f"  {name:{width}}  {text}" for name, text in texts(record).items()) if isinstance(record, dict) else ())
