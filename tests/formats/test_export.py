"""Exporting: what is left after errors and kills, shards, and what is refused. All formats write this way."""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.files.export import export
from fastrecord.interchange import Card
from tests.support.commands import failed, flip, good
from tests.support.rewriting import SCHEMA, write_rows

pytestmark = pytest.mark.usefixtures("jsonlines")
Row = tuple[bytes, int, str]


def rows_of(*paths: Path) -> list[Row]:
    found = []
    for path in paths:
        with fr.Reader(path) as reader:
            found += [(bytes(record["data"]), record["label"], record["key"]) for record in reader]
    return found


def lines_of(path: Path) -> tuple[Card, list[Row]]:
    first, *lines = path.read_bytes().splitlines()
    card = Card.from_json(first)
    assert card is not None
    records = [json.loads(line) for line in lines]
    return card, [(base64.b64decode(record["data"]), record["label"], record["key"]) for record in records]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "site")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.frec", 50, classes=["a", "b"], note="kept")


def test_all_records_come_out_in_order_with_their_metadata(rows: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    summary = fr.export(
        rows, tmp_path / "out.jsonl", "jsonlines", progress=lambda done, total: told.append((done, total))
    )
    card, found = lines_of(tmp_path / "out.jsonl")
    assert found == rows_of(rows)
    assert (card.schema, card.metadata) == (SCHEMA, {"classes": ["a", "b"], "note": "kept"})
    assert told[-1] == (50, 50)
    size = (tmp_path / "out.jsonl").stat().st_size
    assert summary.to_dict() == {
        "path": str(tmp_path / "out.jsonl"),
        "format": "jsonlines",
        "records": 50,
        "fields": ["data", "label", "key"],
        "dropped": [],
        "files": 1,
        "bytes": size,
        "source_bytes": rows.stat().st_size,
        "seconds": summary.seconds,
    }
    assert names(tmp_path) == ["in.frec", "out.jsonl"]


def test_records_of_any_size_come_out_whole(tmp_path: Path) -> None:
    sizes = [0, 9 << 20, 1, 5 << 20, 5 << 20, *[10] * 5000, 3]
    with fr.Writer(tmp_path / "in.frec", SCHEMA) as writer:
        for number, size in enumerate(sizes):
            writer.append({"data": bytes([number % 251]) * size, "label": number, "key": ""})
    good("export", tmp_path / "in.frec", tmp_path / "out.jsonl", "--format", "jsonlines")
    assert lines_of(tmp_path / "out.jsonl")[1] == rows_of(tmp_path / "in.frec")


def test_shards_hold_at_most_the_size_that_is_asked_for(rows: Path, tmp_path: Path) -> None:
    text = good("export", rows, tmp_path / "out", "-f", "jsonlines", "--shard-size", "10kB", "-q")
    files = sorted((tmp_path / "out").iterdir())
    assert text.startswith(f"{tmp_path / 'out'}: 50 records in {len(files)} files, ")
    assert [path.name for path in files] == [f"out-{number:05d}.jsonl" for number in range(len(files))]
    parts = [lines_of(path)[1] for path in files]
    assert [row for part in parts for row in part] == rows_of(rows)
    sizes = [[len(data) + 8 + len(key) for data, _, key in part] for part in parts]
    assert all(sum(part) <= 10_000 for part in sizes)
    # No shard could take the first record of the next one.
    assert all(sum(part) + after[0] > 10_000 for part, after in pairwise(sizes))


def test_a_record_above_the_shard_size_has_a_shard_of_its_own(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "in.frec", SCHEMA) as writer:
        for size in (10, 10_000, 10, 10, 9_000):
            writer.append({"data": bytes(size), "label": 0, "key": ""})
    export(tmp_path / "in.frec", tmp_path / "x.jsonl", "jsonlines", shard_size=100)
    counts = [len(lines_of(path)[1]) for path in sorted((tmp_path / "x.jsonl").iterdir())]
    assert (names(tmp_path / "x.jsonl")[0], counts) == ("x-00000.jsonl", [1, 1, 2, 1])


def test_shards_of_a_set_come_out_in_their_order(rows: Path, tmp_path: Path) -> None:
    good("split", rows, "-o", tmp_path / "part.frec", "--shards", 3)
    parts = sorted(tmp_path.glob("part-*"))
    good("export", tmp_path / "part-*.frec", tmp_path / "out.jsonl", "-f", "jsonlines")
    card, found = lines_of(tmp_path / "out.jsonl")
    assert found == rows_of(*parts) == rows_of(rows)
    assert card.metadata == {"classes": ["a", "b"], "note": "kept"}
    export([parts[1], parts[0]], tmp_path / "two.jsonl", "jsonlines", allow_incomplete=True)
    assert lines_of(tmp_path / "two.jsonl")[1] == rows_of(parts[1], parts[0])
    parts[1].unlink()
    message = failed("export", tmp_path / "part-*.frec", tmp_path / "few.jsonl", "-f", "jsonlines")
    assert "part-00001-of-00003.frec: is missing" in message
    assert not (tmp_path / "few.jsonl").exists()


def test_files_of_other_fields_or_classes_are_refused(rows: Path, tmp_path: Path) -> None:
    other = write_rows(tmp_path / "other.frec", 3, classes=["b", "a"])
    with fr.Writer(tmp_path / "third.frec", {"data": fr.bytes_()}) as writer:
        writer.append({"data": b""})
    with pytest.raises(
        fr.errors.SchemaError, match=r"other.frec: has other classes than .*in.frec: `fastrecord merge`"
    ):
        export([rows, other], tmp_path / "out", "jsonlines")
    with pytest.raises(fr.errors.SchemaError, match=r"third.frec: no field 'label', which .*in.frec has"):
        export([rows, tmp_path / "third.frec"], tmp_path / "out", "jsonlines")
    assert names(tmp_path) == ["in.frec", "other.frec", "third.frec"]


def test_all_fields_that_a_format_cannot_hold_are_named_at_once(tmp_path: Path) -> None:
    path, out = tmp_path / "in.frec", tmp_path / "out"
    with fr.Writer(path, {"a": fr.array("int64", (2,)), "b": "int64", "c": fr.list_("int64")}) as writer:
        writer.append({"a": np.zeros(2, np.int64), "b": 7, "c": [1]})
    message = failed("export", path, out, "-f", "jsonlines")
    assert message == (
        f"error: {path}: JSON Lines cannot hold these fields: 'a': JSON has no array(int64, (2,)); "
        "'c': JSON has no list(int64): `--drop a --drop c` (drop=['a', 'c']) leaves them out; or choose another "
        "format [FR757]\n"
    )
    text = good("export", path, out, "-f", "jsonlines", "--drop", "a", "--drop", "c")
    assert text.endswith("; left out: a, c\n")
    assert json.loads(out.read_bytes().splitlines()[1]) == {"b": 7}
    assert "no field 'd' to leave out: it has a, b, c" in failed("export", path, out, "-f", "jsonlines", "--drop=d")
    every = ["--drop=a", "--drop=b", "--drop=c"]
    assert "every field is to be left out" in failed("export", path, out, "-f", "jsonlines", *every)
    with pytest.raises(TypeError, match="drop is a sequence of names"):
        export(path, out, "jsonlines", drop="a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-f", "jsonlines", "--set", "level=3"], "JSON Lines has no setting 'level': its settings are none"),
        (["-f", "jsonlines", "--set", "level"], "'level' is not NAME=VALUE"),
        (["-f", "jsonlines", "--shard-size", "0"], "--shard-size is from 1"),
        ([], "Missing option '--format'"),
    ],
)
def test_wrong_usage_ends_with_status_2(rows: Path, tmp_path: Path, options: list[str], message: str) -> None:
    assert message in failed("export", rows, tmp_path / "out", *options, status=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "in.frec: No such file or directory"), (b"other", "in.frec: "), (b"cut", "in.frec: ")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "in.frec"
    if content == b"cut":
        write_rows(path, 40)
        os.truncate(path, path.stat().st_size // 2)
    elif content is not None:
        path.write_bytes(content)
    text = failed("export", path, tmp_path / "out", "-f", "jsonlines")
    assert text.startswith(f"error: {tmp_path}")
    assert message in text
    assert not (tmp_path / "out").exists()


def test_an_incomplete_file_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.frec", 3, complete=False)
    message = failed("export", tmp_path / "in.frec", tmp_path / "out", "-f", "jsonlines")
    assert "its packing is not complete" in message
    good("export", tmp_path / "in.frec", tmp_path / "out", "-f", "jsonlines", "--allow-incomplete")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("options", [[], ["--shard-size", "1kB"]])
def test_a_damaged_record_is_named_and_nothing_half_done_stays(
    packed: Path, tmp_path: Path, options: list[str], overwrite: bool
) -> None:
    flip(packed, tmp_path / "bad.frec", record=7)
    if overwrite:
        good("export", packed, tmp_path / "out", "-f", "jsonlines", *options)
        options = [*options, "--overwrite"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("out*") if path.is_file()}
    message = failed("export", tmp_path / "bad.frec", tmp_path / "out", "-f", "jsonlines", *options)
    assert f"error: {tmp_path / 'bad.frec'}: record 7, field image: " in message
    assert "[FR302]" in message
    left = "is as it was before" if overwrite else "nothing is written"
    assert message.endswith(f"{tmp_path / 'out'}: {left}\n")
    assert {path: path.read_bytes() for path in tmp_path.rglob("out*") if path.is_file()} == before
    assert names(tmp_path) == ["bad.frec", "out"][: 1 + overwrite]


def test_what_exists_is_replaced_only_on_request(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    out.chmod(0o640)
    message = failed("export", rows, out, "-f", "jsonlines")
    assert message == f"error: {out}: exists already: `--overwrite` (overwrite=True) replaces it\n"
    assert out.read_text() == "mine"
    good("export", rows, out, "-f", "jsonlines", "--overwrite")
    assert (lines_of(out)[1], out.stat().st_mode & 0o777) == (rows_of(rows), 0o640)
    # A file by a folder of shards, these by other shards, and these by a file.
    for size, count in (("10kB", 9), ("20kB", 5)):
        good("export", rows, out, "-f", "jsonlines", "--overwrite", "--shard-size", size)
        assert abs(len(names(out)) - count) < 3
    good("export", rows, out, "-f", "jsonlines", "--overwrite")
    assert lines_of(out)[1] == rows_of(rows)
    assert names(tmp_path) == ["in.frec", "out"]


def test_a_folder_of_other_things_is_never_replaced(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    message = failed("export", rows, tmp_path / "home", "-f", "jsonlines", "--overwrite")
    assert "exists already, a folder whose 'thesis.txt' may be another thing than an export to JSON Lines" in message
    assert names(tmp_path / "home") == ["thesis.txt"]
    (tmp_path / "home" / "thesis.txt").unlink()
    good("export", rows, tmp_path / "home", "-f", "jsonlines", "--overwrite")


def test_the_file_that_is_read_is_never_replaced(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(rows)
    before = rows.read_bytes()
    for out in (rows, tmp_path / "link", tmp_path):
        message = failed("export", rows, out, "-f", "jsonlines", "--overwrite")
        assert f"error: {out}: is or holds {rows}, which is to be read: choose another place [FR742]" in message
    assert rows.read_bytes() == before


def test_a_link_leads_to_what_is_replaced(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "link").symlink_to("there/file")
    good("export", rows, tmp_path / "link", "-f", "jsonlines", "--overwrite")
    assert (tmp_path / "link").is_symlink()
    assert lines_of(tmp_path / "there" / "file")[1] == rows_of(rows)


def test_places_that_take_no_file_are_refused(rows: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "out"
    assert failed("export", rows, missing, "-f", "jsonlines") == f"error: {missing}: No such file or directory\n"
    os.mkfifo(tmp_path / "pipe")
    message = failed("export", rows, tmp_path / "pipe", "-f", "jsonlines", "--overwrite")
    assert f"{tmp_path / 'pipe'}: is neither a file nor a folder" in message


def test_an_empty_file_exports_no_records(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.frec", 0)
    good("export", tmp_path / "in.frec", tmp_path / "out", "-f", "jsonlines")
    assert lines_of(tmp_path / "out")[1] == []


def test_shards_that_do_not_reach_the_disk_are_an_error(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    # However many there are: only of small files all are synced at once.
    module = sys.modules[export.__module__]
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(module, "_SMALL", 1, raising=False)
    with pytest.raises(OSError, match="Input/output error"):
        export(rows, tmp_path / "out", "jsonlines", shard_size=10_000)
    assert names(tmp_path) == ["in.frec"]


def test_a_failing_progress_function_cancels_the_export(rows: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError(f"{done} of {total}")

    with pytest.raises(RuntimeError, match="50 of 50"):
        export(rows, tmp_path / "out", "jsonlines", progress=stop)
    assert names(tmp_path) == ["in.frec"]


SLOW = """
import sys, time
from fastrecord.files import export
def progress(done, total):
    print("half", flush=True)
    time.sleep(60)
try:
    export.export("in.frec", "out", "jsonlines", overwrite=True, progress=progress)
except KeyboardInterrupt as err:
    print(err)
"""


@pytest.fixture
def slow(rows: Path, jsonlines: Path) -> Callable[[], subprocess.Popen[str]]:
    """Start an export in another process that stops when its records are written, before the end."""

    def start() -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": f"{jsonlines}:{os.environ.get('PYTHONPATH', '')}"}
        child = subprocess.Popen(
            [sys.executable, "-c", SLOW], cwd=rows.parent, env=env, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        return child

    return start


@pytest.mark.parametrize("existing", [False, True])
def test_ctrl_c_leaves_what_was_there(slow: Callable[[], Any], rows: Path, existing: bool) -> None:
    if existing:
        export(rows, rows.parent / "out", "jsonlines", drop=["label"])
    before = names(rows.parent)
    content = (rows.parent / "out").read_bytes() if existing else b""
    with slow() as child:
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == f"out: {'is as it was before' if existing else 'nothing is written'}\n"
    assert child.returncode == 0
    assert names(rows.parent) == before
    assert not existing or (rows.parent / "out").read_bytes() == content


def test_the_next_export_removes_what_a_killed_one_left_and_leaves_a_running_one_alone(
    slow: Callable[[], Any], rows: Path
) -> None:
    with slow() as killed, slow() as running:
        killed.kill()
        killed.wait()
        left = [name for name in names(rows.parent) if name.startswith("out.tmp-")]
        assert len(left) == 2
        assert not (rows.parent / "out").exists()
        good("export", rows, rows.parent / "out", "-f", "jsonlines")
        after = [name for name in names(rows.parent) if name.startswith("out.tmp-")]
        assert len(after) == 1
        assert after[0] in left
        running.send_signal(signal.SIGINT)
    assert names(rows.parent) == ["in.frec", "out"]
    assert lines_of(rows.parent / "out")[1] == rows_of(rows)


def test_what_a_kill_between_two_renames_took_away_comes_back(rows: Path, tmp_path: Path) -> None:
    export(rows, tmp_path / "out", "jsonlines", shard_size=10_000)
    before = names(tmp_path / "out")
    (tmp_path / "out.tmp-01234567").mkdir()
    (tmp_path / "out").rename(tmp_path / "out.tmp-01234567" / "out.old")
    message = failed("export", rows, tmp_path / "out", "-f", "jsonlines")
    assert "exists already" in message
    assert names(tmp_path / "out") == before
    assert names(tmp_path) == ["in.frec", "out"]
