"""Writers whose file is unclosed, deleted, moved, or open in place of a standard stream."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

import fastrecord as fr
from tests.support.child import run_child
from tests.writer.test_writer import GOOD, SCHEMA, labels, write


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log records about unclosed writers."""
    return [r.getMessage() for r in caplog.records if r.name == "fastrecord.core.writer" and r.levelname == "WARNING"]


@pytest.mark.parametrize(("mode", "count"), [("x", 3), ("a", 3), ("w", 5)])
def test_a_writer_that_is_collected_unclosed_warns_with_the_number_of_lost_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, count: int
) -> None:
    path = tmp_path / "a.frec"
    if mode != "x":
        write(path, range(4))
    writer = fr.Writer(path, SCHEMA, mode)
    for label in (4, 5):
        writer.append({**GOOD, "label": label})
    writer.commit()
    for label in (6, 7, 8):
        writer.append({**GOOD, "label": label})
    text = rf"a\.frec: the writer was never closed: {count} uncommitted records are lost: use a `with` block"
    with caplog.at_level(logging.WARNING, "fastrecord"), pytest.warns(ResourceWarning, match=text):
        del writer
    assert [f": {count} uncommitted records are lost" in line for line in lost(caplog)] == [True]
    assert labels(path) == {"x": [4, 5], "a": [0, 1, 2, 3, 4, 5], "w": [0, 1, 2, 3]}[mode]


def test_a_writer_that_loses_nothing_or_has_said_so_is_collected_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    closed, aborted, committed = (fr.Writer(tmp_path / f"{name}.frec", SCHEMA) for name in "abc")
    for writer in (closed, aborted, committed):
        writer.append(GOOD)
    closed.close()
    aborted.abort()
    committed.commit()
    with caplog.at_level(logging.WARNING, "fastrecord"):
        del closed, aborted, committed, writer
        fr.Writer(tmp_path / "a.frec", mode="a")
    assert not list(recwarn)
    assert not lost(caplog)


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "cycle = [writer]; cycle.append(cycle)"])
def test_a_writer_that_is_open_as_the_interpreter_ends_warns(tmp_path: Path, end: str) -> None:
    script = f"""
        import logging, warnings
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
        warnings.filterwarnings("always", category=ResourceWarning)
        warnings.showwarning = lambda message, category, *_: print(category.__name__, message)
        writer = fr.Writer("a.frec", SCHEMA)
        writer.append(record(0))
        {end}
    """
    lost = "1 uncommitted record is lost: use a `with` block, or call close()"
    text = f"a.frec: the writer was never closed: {lost}"
    told = run_child(script, tmp_path).splitlines()
    assert told == [f"WARNING fastrecord.core.writer {text}", f"ResourceWarning {text}"]


def test_a_forked_child_does_not_warn_of_its_parents_writer(tmp_path: Path) -> None:
    script = """
        writer = fr.Writer("a.frec", SCHEMA)
        writer.append(record(0))
        child = os.fork()
        if child == 0:
            del writer
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.close()
        print(len(fr.Reader("a.frec")))
    """
    assert run_child(script, tmp_path) == "1\n"


def commit_after(path: Path, change: object, mode: str = "x") -> str:
    """Commit a record, change something, commit another record; return the error."""
    assert callable(change)
    writer = fr.Writer(path, SCHEMA, mode)
    writer.append({**GOOD, "label": 7})
    writer.commit()
    change()
    writer.append({**GOOD, "label": 8})
    with pytest.raises(fr.FastRecordError) as caught:
        writer.commit()
    assert caught.value.code == "FR607"
    with pytest.raises(fr.FastRecordError, match=r"writes nothing more: open another writer \[FR603\]"):
        writer.append(GOOD)
    writer.abort()
    return str(caught.value)


@pytest.mark.parametrize("mode", ["x", "a"])
def test_a_commit_to_a_file_that_was_removed_is_an_error_that_says_what_is_lost(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.frec"
    if mode == "a":
        write(path, range(2))
    error = commit_after(path, path.unlink, mode)
    count = 4 if mode == "a" else 2
    assert error == (f"{path}: the file was removed or moved: its {count} records are lost: write them again [FR607]")
    assert not path.exists()


def test_a_commit_to_a_file_that_was_moved_is_an_error_that_says_where_the_records_are(tmp_path: Path) -> None:
    path, moved = tmp_path / "a.frec", tmp_path / "b.frec"
    error = commit_after(path, lambda: path.rename(moved))
    where = f"its 2 records are in {moved}: open that file to continue [FR607]"
    assert error == f"{path}: the file was removed or moved: {where}"
    assert labels(moved) == [7, 8]


def test_a_commit_to_a_file_that_was_replaced_is_an_error_and_leaves_the_other_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "a.frec", write(tmp_path / "other.frec", range(3))
    error = commit_after(path, lambda: other.replace(path))
    assert error.startswith(f"{path}: another file has this name now: its 2 records are lost")
    assert labels(path) == [0, 1, 2]


def test_a_folder_that_was_removed_or_moved_is_noticed_by_close(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for change in (lambda: folder.rename(tmp_path / "moved"), lambda: shutil.rmtree(folder)):
        folder.mkdir()
        writer = fr.Writer(folder / "a.frec", SCHEMA)
        writer.append(GOOD)
        change()
        with pytest.raises(fr.FastRecordError, match=r"the file was removed or moved: .*\[FR607\]$"):
            writer.close()
    assert labels(tmp_path / "moved" / "a.frec") == [GOOD["label"]]


def test_a_replacement_whose_temporary_file_was_removed_says_so_and_the_old_file_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "a.frec", range(2))
    writer = fr.Writer(path, SCHEMA, "w")
    writer.append(GOOD)
    (temporary,) = tmp_path.glob("a.frec.tmp-*")
    temporary.unlink()
    with pytest.raises(fr.FastRecordError, match=r"\.tmp-.*: its 1 record is lost: write them again"):
        writer.close()
    assert labels(path) == [0, 1]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_no_reader_writer_or_temporary_file_gets_the_descriptor_of_a_standard_stream(
    tmp_path: Path, closed: list[int]
) -> None:
    script = f"""
        import pathlib
        write("a.frec", 3)
        for fd in {closed}:
            os.close(fd)
        kept = [fr.Writer("b.frec", SCHEMA), fr.Writer("a.frec", SCHEMA, "w"), fr.Reader("a.frec")]
        kept += [fr.Reader("a.frec", access="pread")]
        kept[0].append(record(0))
        taken = [fd for fd in {closed} if os.path.exists(f"/proc/self/fd/{{fd}}")]
        for fd in {closed}:
            try:
                os.write(fd, b"a message of a library")
            except OSError:
                pass
        for writer in kept[:2]:
            writer.close()
        pathlib.Path("taken").write_text(repr(taken))
        fr.Reader("b.frec").verify()["ok"] or os._exit(3)
    """
    run_child(script, tmp_path)
    assert (tmp_path / "taken").read_text() == "[]"


@pytest.mark.parametrize("mode", ["x", "a", "w"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_writer_refuses_what_is_not_a_regular_file_and_leaves_it(
    tmp_path: Path, kind: str, mode: str, linked: bool
) -> None:
    node = irregular(tmp_path / "node", kind)
    path = node
    if linked:
        path = tmp_path / "link"
        path.symlink_to(node)
    before = os.lstat(node)
    with pytest.raises((OSError, fr.errors.CorruptFileError), match=r"node|link"):
        fr.Writer(path, SCHEMA, mode)
    assert os.path.samestat(os.lstat(node), before)
    assert path.is_symlink() == linked
    assert len(list(tmp_path.iterdir())) == 1 + linked


def irregular(path: Path, kind: str) -> Path:
    """Make a path that is not a regular file; a device node is a private copy of /dev/null."""
    if kind == "folder":
        path.mkdir()
    elif kind == "device" and os.geteuid() == 0:
        os.mknod(path, 0o020666, os.makedev(1, 3))
    else:
        os.mkfifo(path)
    return path


def test_a_file_that_exists_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.frec", range(1))
    with pytest.raises(FileExistsError, match=r"mode=.a. \(add to it\), mode=.w. \(replace it\) or another") as caught:
        fr.Writer(path, SCHEMA)
    assert (caught.value.filename, str(caught.value.strerror)[:11]) == (str(path), "File exists")
    with pytest.raises(FileExistsError, match=r"another path"):
        fr.Writer.from_sample(path, GOOD)


def test_appending_leaves_an_interrupted_import_incomplete_until_told(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, SCHEMA, complete=False) as writer:
        writer.append(GOOD)
    with fr.Writer(path, mode="a") as writer:
        assert not writer.complete
        writer.append(GOOD)
    fr.files.add_field(path, "score2", "float32", [1.0, 2.0])
    fr.files.drop_field(path, "score2")
    assert not fr.Reader(path).complete
    with fr.Writer(path, mode="a", complete=True):
        pass
    assert fr.Reader(path).complete
    with fr.Writer(path, mode="a") as writer:
        writer.append(GOOD)
    assert fr.Reader(path).complete


def test_metadata_of_a_writer_that_appends_is_added_to_what_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, SCHEMA, metadata={"classes": ["cat", "dog"], "source": "first"}) as writer:
        writer.append(GOOD)
    with fr.Writer(path, mode="a", metadata={"source": "second", "license": None}) as writer:
        writer.append(GOOD)
    merged = {"classes": ["cat", "dog"], "source": "second", "license": None}
    assert fr.Reader(path).metadata == merged
    with fr.Writer(path, mode="a") as writer:
        writer.metadata = {"source": "third"}
    assert fr.Reader(path).metadata == {"source": "third"}
