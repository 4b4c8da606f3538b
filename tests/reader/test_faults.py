"""Failing system calls, one at a time, in a real process: see tests/support/disks/faults.c."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import PRELUDE
from tests.torture.experiment import ROOT

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)

SCRIPT = """
import errno, json
def told(work):
    try:
        work()
    except (OSError, fr.FastRecordError) as err:
        number = getattr(err, "errno", None)
        return [type(err).__name__, number, getattr(err, "filename", None), str(err), getattr(err, "__notes__", [])]
    return None
def labels(path="a.frec"):
    with fr.Reader(path) as reader:
        assert reader.verify()["ok"]
        return reader.column("label").tolist()
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with the failing calls."""
    out = tmp_path_factory.mktemp("faults") / "faults.so"
    source = ROOT / "tests" / "support" / "disks" / "faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", out, source, "-ldl"], check=True)
    return out


def run(shim: Path, folder: Path, script: str, **fault: object) -> Any:
    """Run a script with a failing call; return its JSON output."""
    variables = {f"FAULT_{name.upper()}": str(value) for name, value in ({"path": ".frec"} | fault).items()}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + SCRIPT + textwrap.dedent(script)],
        cwd=folder,
        env=os.environ | variables | {"LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_calls_that_are_interrupted_or_do_a_part_only_change_nothing(shim: Path, tmp_path: Path) -> None:
    script = """
        write("a.frec", 60, 5_000)
        with fr.Writer("a.frec", mode="a") as writer:
            writer.append(record(60, 300_000))
        fr.files.add_field("a.frec", "more", fr.bytes_(), [bytes([i]) * 3_000 for i in range(61)])
        fr.files.merge(["a.frec", "a.frec"], "b.frec")
        fr.files.compact("a.frec")
        found = []
        for path in ("a.frec", "b.frec"):
            with fr.Reader(path, access="pread") as reader:
                assert reader.verify()["ok"]
                found.append([len(reader), sum(len(bytes(row["data"])) + len(row["more"]) for row in reader)])
        print(json.dumps(found))
    """
    size = 60 * 5_000 + 300_000 + 61 * 3_000
    assert run(shim, tmp_path, script, trouble=1) == [[61, size], [122, 2 * size]]


# For the calls of the second commit. A failed call never counts as done, even if the next succeeds.
@pytest.mark.parametrize(
    ("call", "at", "number"),
    [
        ("pwrite64", 6, errno.EIO),
        ("pwrite64", 7, errno.EDQUOT),
        ("pwrite64", 8, errno.EIO),
        ("fdatasync", 3, errno.EIO),
        ("fdatasync", 4, errno.EIO),
        ("fdatasync", 4, errno.ENOSPC),
    ],
)
def test_the_first_error_says_what_is_safe_and_the_file_has_it(
    shim: Path, tmp_path: Path, call: str, at: int, number: int
) -> None:
    script = """
        writer = fr.Writer("a.frec", SCHEMA)
        writer.append(record(0))
        writer.commit()
        def more():
            for i in range(1, 5):
                writer.append(record(i))
            writer.commit()
        first, later = told(more), [told(writer.commit), told(lambda: writer.append(record(9))), told(writer.close)]
        del writer
        before = labels()
        with fr.Writer("a.frec", mode="a") as writer:
            writer.append(record(7))
        print(json.dumps([first, later, before, labels()]))
    """
    first, later, before, after = run(shim, tmp_path, script, call=call, at=at, errno=number)
    path = str(tmp_path / "a.frec")
    assert first[:4] == ["OSError", number, path, f"[Errno {number}] {os.strerror(number)}: {path!r}"]
    (note,) = first[4]
    assert note.startswith(f"{path}: the file is good up to its last commit (1 record)")
    assert note.endswith("open it again to continue")
    assert ("make room" in note) == (number in (errno.ENOSPC, errno.EDQUOT))
    for again in later:
        assert again[0] == "FastRecordError"
        assert "the writer stopped after a failed write" in again[3]
        assert "the file is good up to its last commit (1 record)" in again[3]
    # The footer was written before the last sync: a reader of the running system may see it.
    assert before in ([0], [0, 1, 2, 3, 4])
    assert ("the one that was being written" in note) == ((call, at) in (("fdatasync", 4), ("pwrite64", 8)))
    assert after == [*before, 7]


def test_a_file_whose_first_commit_fails_is_not_left(shim: Path, tmp_path: Path) -> None:
    script = """
        def work():
            with fr.Writer("a.frec", SCHEMA) as writer:
                writer.append(record(0))
        print(json.dumps([told(work), os.listdir()]))
    """
    folder = tmp_path / "x.frec.d"  # its sync fails, too
    folder.mkdir()
    for call, at in (("pwrite64", 1), ("pwrite64", 2), ("fdatasync", 1), ("fdatasync", 2), ("fsync", 1)):
        error, left = run(shim, folder, script, call=call, at=at, errno=errno.EIO)
        assert error[:2] == ["OSError", errno.EIO]
        if at == 2 or call == "fsync":
            assert error[2] == str(folder / "a.frec")
            assert error[4] == [f"{folder / 'a.frec'}: nothing was committed, and no file is left; write it again"]
        assert left == []


def test_a_file_that_can_not_be_renamed_is_kept_under_its_temporary_name(shim: Path, tmp_path: Path) -> None:
    script = """
        write("a.frec", 3)
        def work():
            with fr.Writer("a.frec", SCHEMA, "w") as writer:
                writer.append(record(8))
        error, names = told(work), sorted(os.listdir())
        print(json.dumps([error, [labels(name) for name in names], names]))
    """
    error, found, names = run(shim, tmp_path, script, call="rename", at=1, errno=errno.EIO)
    assert error[0] == "OSError"
    assert (
        f"cannot be replaced (Input/output error (os error 5)): the finished file is {tmp_path / names[1]}" in error[3]
    )
    assert found == [[0, 1, 2], [8]]


def test_a_file_that_can_not_be_read_or_cut_is_not_appended_to_and_stays_as_it_is(shim: Path, tmp_path: Path) -> None:
    script = """
        with fr.Writer("a.frec", SCHEMA) as writer:
            writer.append(record(0))
        with open("a.frec", "ab") as file:
            file.write(bytes(5000))
        before = open("a.frec", "rb").read()
        error = told(lambda: fr.Writer("a.frec", mode="a"))
        same = open("a.frec", "rb").read() == before
        with fr.Writer("a.frec", mode="a") as writer:
            writer.append(record(1))
        print(json.dumps([error, same, labels()]))
    """
    for call, at in (("pread64", 1), ("pread64", 2), ("pread64", 3), ("pread64", 4), ("ftruncate64", 1)):
        error, same, found = run(shim, tmp_path, script, call=call, at=at, errno=errno.EIO)
        assert error[:3] == ["OSError", errno.EIO, "a.frec"]
        assert (same, found) == (True, [0, 1])
        (tmp_path / "a.frec").unlink()


@pytest.mark.parametrize(
    ("how", "compression"), [("reader[3]", None), ('reader.read_batch([3], ["data"])', "zstd"), ("into(3)", None)]
)
def test_a_payload_that_can_not_be_read_is_an_error_that_names_its_record(
    shim: Path, tmp_path: Path, how: str, compression: str | None
) -> None:
    script = f"""
        schema = fr.Schema({{"data": fr.bytes_(compression={compression!r}), "label": "int64"}})
        with fr.Writer("a.frec", schema) as writer:
            for number in range(5):
                writer.append({{"data": bytes([number]) * 200, "label": number}})
        reader = fr.Reader("a.frec", access="pread")
        def into(record):
            reader.read_batch_into([record], "data", bytearray(1000))
        {how.replace("3", "2")}  # the index is loaded by now
        os.environ |= {{"FAULT_CALL": "pread64", "FAULT_AT": "1", "FAULT_ERRNO": "5"}}
        print(json.dumps([told(lambda: {how}), told(lambda: {how})]))
    """
    texts = []
    # Earlier reads check that the file has not been replaced.
    for at in (1, 3, 5):
        error, again = run(shim, tmp_path, script.replace('"FAULT_AT": "1"', f'"FAULT_AT": "{at}"'))
        if error is not None:
            assert error[:3] == ["OSError", errno.EIO, "a.frec"]
            assert again is None, "the next read may succeed"
            texts.append(error[3])
        (tmp_path / "a.frec").unlink()
    assert "[Errno 5] Input/output error (record 3, field data): 'a.frec'" in texts
