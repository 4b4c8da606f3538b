"""The command verify: prints verification reports. Verifies nothing itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastrecord._core import CorruptFileError, FastRecordError, Reader
from fastrecord.cli.command import arguments, json_option, quiet_option
from fastrecord.cli.sources import SHARDS_AT_ONCE
from fastrecord.cli.text import bytes_text, describe, progress_of_total, say
from fastrecord.dataset.manifest import NAME, is_one_file
from fastrecord.errors import code_of, parsed
from fastrecord.store import is_url
from fastrecord.store.address import Url
from fastrecord.store.threads import in_order

if TYPE_CHECKING:
    from fastrecord.files.manifest import ManifestFinding

# Differences from a manifest that leave its data set as it is.
_HARMLESS = ("extra", "grown")


@click.command()
@arguments("FILE...", ["files"])
@click.option(
    "--deep",
    is_flag=True,
    help="Also check the values: decode all pixels of every image, decompress compressed values, check texts, JSON and "
    "lists. Takes as long as an epoch of decoding without crops.",
)
@quiet_option
@json_option
@click.pass_context
def verify(ctx: click.Context, files: tuple[str, ...], deep: bool, quiet: bool, as_json: bool) -> None:
    """Read each FILE from end to end and check every checksum, record by record. Changes nothing.

    Damage is reported by record and field, and by key if there is one, up to 1,000 values per file. Bytes after the
    last commit, which a killed writer leaves, are reported but are not damage. A FILE may also be a data set: a folder
    of files, or its dataset.json. Its shards are then compared with the manifest, too. A URL is read once, and no copy
    of it stays; --deep makes one of a file at a time.

    Exit status: 0 all files are good; 1 a file is damaged or cannot be read; 2 wrong usage.
    """
    good = True
    for file in files:
        if is_one_file(file):
            found = _verify(file, deep=deep, quiet=quiet)
            good &= bool(_report(file, *found, deep=deep, as_json=as_json, good_too=True)["ok"])
        else:
            good &= _data_set(file, deep=deep, quiet=quiet, as_json=as_json)
    if not good:
        ctx.exit(1)


def _data_set(path: str, *, deep: bool, quiet: bool, as_json: bool) -> bool:
    """Verify the files of a data set, and compare them with its manifest; return whether all is good."""
    from fastrecord.dataset.shards import Named, find_sets
    from fastrecord.files.manifest import check_manifest

    try:
        (first, *_) = sets = find_sets(path)
        named = first if isinstance(first, Named) else None
        paths = [name for part in sets for name in (part.paths if isinstance(part, Named) else part[:1])]
        if named is not None and isinstance(named.folder, Url):
            paths = [named.folder.file(name) for name in named.manifest.columns["name"]]
        findings = [] if named is None else check_manifest(named.folder)
    except (FastRecordError, OSError) as err:
        say(f"error: {describe(err)}", err=True)
        if as_json:
            say(json.dumps({"file": path, "ok": False, "errors": [describe(err)], "codes": [code_of(describe(err))]}))
        else:
            say(f"{path}: cannot be read")
        return False
    wrong = [one for one in findings if one.kind not in _HARMLESS]
    if not as_json:
        for one in findings:
            level = "note" if one.kind in _HARMLESS else "error"
            text = f"{level}: {os.path.join(os.path.dirname(paths[0]), one.name)}: {one.kind}: {one.message}"
            say(text, err=level == "error")
    unreadable = {one.name for one in findings if one.kind in ("missing", "unreadable")}
    records = size = 0
    damaged = []
    readable = [file for file in paths if os.path.basename(file) not in unreadable]  # the others have been named
    verified: Iterator[tuple[dict[str, Any], bool]] = map(partial(_verify, deep=deep, quiet=quiet), readable)
    if is_url(path):
        verified = in_order(partial(_verify, deep=deep, quiet=True), readable, SHARDS_AT_ONCE, "fastrecord-verify")
    for file, found in zip(readable, verified, strict=True):
        result = _report(file, *found, deep=deep, as_json=as_json, good_too=False)
        records, size = records + result["records"], size + result["bytes"]
        damaged += [] if result["ok"] else [os.path.basename(file)]
    refused = None if wrong or damaged else _refused(path)
    if refused is not None:
        say(f"error: {refused}", err=True)
    ok = not (wrong or damaged or refused)
    if as_json:
        about = {"file": path, "ok": ok, "records": records, "bytes": size, "shards": len(paths)}
        if refused is not None:
            about |= {"errors": [refused], "codes": [code_of(refused)]}
        say(json.dumps(about | {"damaged_shards": damaged, "findings": [one.to_dict() for one in findings]}))
    elif ok:
        manifest = "" if named is None else f", as its {NAME} names them"
        say(f"{path}: good: {len(paths):,} shards{manifest}: {records:,} records, {bytes_text(size)}")
    elif refused is not None:
        say(f"{path}: not good as one data set: {len(paths):,} shards")
    else:
        bad = len({*damaged, *(one.name for one in wrong)})
        way = "" if named is None or not wrong else _way_out(named.folder, wrong)
        say(f"{path}: not good: {bad:,} of {len(paths):,} shards{way}")
    return ok


def _refused(path: str) -> str | None:
    """Return why the files cannot be opened as one data set."""
    from fastrecord.dataset.selection import Selection
    from fastrecord.dataset.shards import Shards

    try:
        with closing(Shards.open_alike(path)) as shards:
            shards.refuse_incomplete()
            Selection.whole(shards)
    except (FastRecordError, OSError) as err:
        return describe(err)
    return None


def _way_out(folder: str, wrong: list[ManifestFinding]) -> str:
    differ = sum(one.kind not in ("missing", "unreadable") for one in wrong)
    what = "that exist" if not differ else "as they are now"
    return f": put back the shards that {NAME} names, or let `fastrecord manifest {folder}` name the ones {what}"


def _report(
    file: str, result: dict[str, Any], opened: bool, *, deep: bool, as_json: bool, good_too: bool
) -> dict[str, Any]:
    """Print the report on a file; return it."""
    result["codes"] = [code_of(error) for error in result["errors"]]
    if as_json:
        say(json.dumps(result))
        return result
    keys = {value["error"]: value["key"] for value in result["damaged"]}
    for error in result["errors"]:
        key = keys.get(error)
        said = parsed(error)
        said.text += "" if key is None else f" (key {key})"
        say(f"error: {said}", err=True)
    images = f", {result['decoded']:,} images decoded" if deep else ""
    if result["undecoded"]:
        images += (
            f", {result['undecoded']:,} of kinds that fastrecord does not decode: only their checksums were checked"
        )
    if result["ok"]:
        size = bytes_text(result["bytes"])
        if good_too:
            say(f"{file}: good: {result['records']:,} records, {size}{images}{_tail(result)}")
    elif not opened:
        say(f"{file}: cannot be read")
    else:
        count = len(result["errors"])
        say(f"{file}: damaged: {count:,} error{'s' if count > 1 else ''}{_tail(result)}")
    return result


def _verify(file: str, *, deep: bool, quiet: bool) -> tuple[dict[str, Any], bool]:
    """Return the report, and whether the file could be read, even if it is damaged."""
    try:
        with progress_of_total(quiet=quiet, unit="B", unit_scale=True, desc=file) as show:
            if is_url(file):
                from fastrecord.store.verification import open_url, verify

                return {"file": file} | verify(open_url(file), show, deep=deep), True
            with Reader(file) as reader:
                return {"file": file} | reader.verify(progress=show, deep=deep), True
    except (FastRecordError, OSError) as err:
        nothing = {"records": 0, "bytes": 0, "damaged": [], "decoded": 0, "undecoded": 0, "tail_bytes": 0}
        damaged = isinstance(err, CorruptFileError) and (is_url(file) or os.path.isfile(file))
        return {"file": file, "ok": False, "errors": [describe(err)]} | nothing, damaged


def _tail(result: dict[str, Any]) -> str:
    return f"; {result['tail_bytes']:,} bytes after the last commit" if result["tail_bytes"] else ""
