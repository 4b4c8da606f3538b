"""Compacting: the same records without dead bytes, in place or in a new file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.support.child import run_child
from tests.support.commands import failed, good
from tests.support.rewriting import commits, metadata, rows, write_rows


@pytest.fixture
def worn(tmp_path: Path) -> Path:
    """A file of 60 commits with a torn tail."""
    path = write_rows(tmp_path / "worn.frec", 600, classes=["cat"], largest=600, commit_bytes=3_000, x=1)
    with path.open("ab") as file:
        file.write(b"torn" * 5_000)
    return path


def records(path: Path) -> list[dict[str, Any]]:
    with fr.Reader(path) as reader:
        return [{**record, "data": bytes(record["data"])} for record in reader]


def test_only_the_records_stay(worn: Path, tmp_path: Path) -> None:
    before, size = records(worn), worn.stat().st_size
    assert commits(worn) > 50

    def stop(done: int, total: int) -> None:
        if done == total:
            raise RuntimeError("now")

    with pytest.raises(RuntimeError, match="now"):
        fr.files.compact(worn, progress=stop)
    assert records(worn) == before
    summary = fr.files.compact(worn)
    assert records(worn) == before
    assert len(rows(worn)) == 600
    assert (commits(worn), metadata(worn)) == (1, {"classes": ["cat"], "x": 1})
    assert (summary.paths, summary.bytes) == ([str(worn)], worn.stat().st_size)
    payloads = sum(len(record["data"]) + len(record["key"]) for record in before)
    assert worn.stat().st_size < payloads + 600 * (32 + 32 + 8 + 8) + 40_000 < size / 2
    assert os.listdir(tmp_path) == ["worn.frec"]
    assert fr.files.compact(worn, verify=True).bytes == summary.bytes
    with fr.Writer(worn, None, "a") as writer:
        assert writer.append({"data": b"new", "label": 0, "key": "new"}) == 600


def test_a_copy_leaves_the_file(worn: Path, tmp_path: Path) -> None:
    before = worn.read_bytes()
    out = tmp_path / "out.frec"
    assert fr.files.compact(worn, out).paths == [str(out)]
    assert worn.read_bytes() == before
    assert records(out) == records(worn)
    with pytest.raises(FileExistsError, match="exists already"):
        fr.files.compact(worn, out)
    with pytest.raises(fr.FastRecordError, match="is the file to read from"):
        fr.files.compact(worn, worn, overwrite=True)


def test_readers_of_the_old_file_go_on(worn: Path) -> None:
    with fr.Reader(worn) as reader:
        view = reader[7]["data"]
        expected = bytes(view)
        fr.files.compact(worn)
        assert bytes(view) == bytes(reader[7]["data"]) == expected
        with pytest.raises(fr.FastRecordError, match="was replaced"):
            reader.refresh()


def test_a_file_that_a_writer_has_is_refused(worn: Path, tmp_path: Path) -> None:
    before = len(records(worn))
    with fr.Writer(worn, None, "a") as writer:
        with pytest.raises(fr.errors.LockedError, match="another writer has it open"):
            fr.files.compact(worn)
        writer.append({"data": b"", "label": 0, "key": "kept"})
        # The committed records may be copied meanwhile.
        assert fr.files.compact(worn, tmp_path / "out.frec").records == before
    assert len(records(worn)) == before + 1


def test_what_is_committed_just_before_the_lock_is_kept(tmp_path: Path) -> None:
    script = """
    from fastrecord.files.copy_job import Job
    write("a.frec", 10)
    run = Job.run
    def late(job, *arguments, **options):
        with fr.Writer("a.frec", None, "a") as writer:
            writer.append(record(10))
        return run(job, *arguments, **options)
    Job.run = late
    print(fr.files.compact("a.frec").records, len(fr.Reader("a.frec")))
    """
    assert run_child(script, tmp_path) == "11 11\n"


def test_an_incomplete_file_stays_incomplete(tmp_path: Path) -> None:
    part = write_rows(tmp_path / "part.frec", 5, complete=False)
    with pytest.raises(fr.FastRecordError, match="packing is not complete"):
        fr.files.compact(part)
    fr.files.compact(part, allow_incomplete=True)
    with fr.Reader(part) as reader:
        assert (len(reader), reader.complete) == (5, False)


def test_the_command_compacts_through_a_link_and_reports(worn: Path, tmp_path: Path) -> None:
    before, out, link = records(worn), tmp_path / "out.frec", tmp_path / "link.frec"
    link.symlink_to(worn)
    assert good("compact", worn, out).startswith(f"{out}: 600 records in 1 ")
    assert good("compact", link, "--verify").startswith(f"{link}: 600 records in 1 classes, ")
    assert link.is_symlink()
    assert records(worn) == records(out) == before
    summary = json.loads(good("compact", worn, "--json"))
    assert (summary["records"], summary["paths"]) == (600, [str(worn)])
    with fr.Writer(worn, None, "a"):
        assert "another writer" in failed("compact", worn)
