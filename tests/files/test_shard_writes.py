"""Writes of several processes: old or new after a kill at any moment, and nothing of another is removed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.files.publish import write_folder
from fastrecord.files.publish.local import LocalSet, find_shard
from fastrecord.files.publish.shard_write import ShardWrite, agreed_schema, new_name
from fastrecord.files.publish.shards import FoundShard
from tests.support.commands import failed, good

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SCHEMA = fr.Schema({"id": "int64"})


def shard(staging: str, *numbers: int) -> FoundShard:
    path = os.path.join(staging, new_name())
    with fr.Writer(path, SCHEMA) as writer:
        writer.extend({"id": list(numbers)})
    return find_shard(path)


def write(folder: Path, mode: Any, *numbers: int) -> None:
    """Write two shards, and one that is not committed."""
    with ShardWrite(folder, mode) as this:
        first, second = shard(this.staging, *numbers), shard(this.staging, *(number + 1 for number in numbers))
        shard(this.staging, 99)
        this.commit([first, second])


def numbers(folder: Path) -> list[int]:
    try:
        return list(fr.FastRecordDataset(folder).column("id"))
    except FileNotFoundError:
        return []


def in_child(work: Callable[[], object], *, steps: int | None = None) -> int:
    """Run work in a forked process that is killed before some step of its on the file system; return its status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    left = [0 if steps is None else steps]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    try:
        if steps is not None:
            for name in ("rename", "unlink", "link", "mkdir", "rmdir", "fsync", "write"):
                setattr(os, name, counted(getattr(os, name)))
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the parent sees the status
        os._exit(1)


@pytest.mark.parametrize("mode", ["error", "append", "append to files", "overwrite"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_data_set(mode: str, tmp_path: Path) -> None:
    seen = set()
    for steps in range(1, 200):
        folder = tmp_path / str(steps)
        folder.mkdir()
        old: list[int] = []
        (folder / "mine.txt").write_text("of the user")
        if mode != "error":
            with fr.Writer(folder / "old.frec", SCHEMA) as writer:
                writer.extend({"id": [1, 2]})
            old = [1, 2]
            if mode != "append to files":
                fr.files.write_manifest(folder)
        new = [7, 8] if mode in ("error", "overwrite") else [1, 2, 7, 8]
        status = in_child(lambda folder=folder: write(folder, mode.split()[0], 7), steps=steps)  # type: ignore[misc]
        found = numbers(folder)
        assert found in (old, new)
        seen.add(tuple(found))
        assert not os.WIFEXITED(status) or found == new
        fr.files.clean_manifest(folder)
        assert numbers(folder) == found
        names = sorted(os.listdir(folder))
        assert not [name for name in names if name.startswith(".")], names
        files = {"error": (0, 2), "overwrite": (1, 2)}.get(mode, (1, 3))
        assert sum(name.endswith(".frec") for name in names) == files[found == new]
        assert "mine.txt" in names
        assert mode != "error" or ("dataset.json" in names) == (found == new)
        assert fr.files.clean_manifest(folder) == []
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    else:
        raise AssertionError("the write took more steps than any test counted")
    assert seen == {tuple(old), tuple(new)}


def test_the_next_write_and_the_next_manifest_remove_what_a_killed_one_left(tmp_path: Path) -> None:
    next_ones: list[Callable[[Path], object]] = [lambda folder: write(folder, "append", 5), fr.files.write_manifest]
    for number, after in enumerate(next_ones):
        folder = tmp_path / str(number)
        write(folder, "error", 1)
        kept = set(os.listdir(folder))

        def moved_but_not_named(folder: Path = folder) -> None:
            LocalSet.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
            write(folder, "append", 3)

        assert os.WTERMSIG(in_child(moved_but_not_named)) == signal.SIGKILL
        left = set(os.listdir(folder)) - kept
        assert sum(name.endswith(".frec") for name in left) == 2
        assert numbers(folder) == [1, 2]
        after(folder)
        assert not left & set(os.listdir(folder))
        assert numbers(folder)[:2] == [1, 2]
        assert 3 not in numbers(folder)


def test_a_running_write_is_left_alone(tmp_path: Path) -> None:
    with ShardWrite(tmp_path, "error") as first:
        one = shard(first.staging, 1)
        found = fr.files.clean_manifest(tmp_path)
        assert [(each.kind, each.message) for each in found] == [("left", "its write is running")]
        with ShardWrite(tmp_path, "append") as second:
            second.commit([shard(second.staging, 2)])
        assert fr.files.write_manifest(tmp_path).records == 1
        assert os.path.exists(os.path.join(first.staging, one.entry.name))
        with pytest.raises(FileExistsError, match="append"):
            first.commit([one])
    assert numbers(tmp_path) == [2]
    assert fr.files.clean_manifest(tmp_path) == []


def test_a_write_of_another_machine_is_left_until_it_is_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = write_folder._this_machine()

    def begin(**machine: str) -> str:
        monkeypatch.setattr(write_folder, "_this_machine", lambda: this | machine)
        made = write_folder.WriteFolder.make(str(tmp_path))
        os.close(made._lock)  # as if its process had ended
        monkeypatch.setattr(write_folder, "_this_machine", lambda: this)
        return os.path.basename(made.path)

    other = begin(host="elsewhere", machine="0" * 32, boot="other")
    (found,) = fr.files.clean_manifest(tmp_path)
    assert (found.name, found.kind) == (other, "left")
    assert "'elsewhere' began it" in found.message
    assert (tmp_path / other).exists()
    if this["machine"]:
        rebooted = begin(boot="the one before")
        assert [(each.name, each.kind) for each in fr.files.clean_manifest(tmp_path) if each.name == rebooted] == [
            (rebooted, "removed")
        ]
    assert this["host"] == socket.gethostname()


def test_files_that_no_write_has_made_stay(tmp_path: Path) -> None:
    write(tmp_path, "error", 1)
    mine = [tmp_path / name for name in ("extra.frec", "shard-0123abcd-00000-of-00001.frec", ".write-mine", "note.txt")]
    for path in mine:
        path.write_bytes(b"of the user")
    (tmp_path / ".write-0123456789abcdefg").mkdir()
    assert fr.files.clean_manifest(tmp_path) == []
    assert all(path.exists() for path in mine)
    # A file that has taken a replaced shard's place is another one.
    with ShardWrite(tmp_path, "overwrite") as this:
        old = fr.FastRecordDataset(tmp_path).paths[0]
        this.commit([shard(this.staging, 5)])
        os.rename(old, old + ".moved")
        Path(old).write_bytes(b"a longer file of the user")
    assert Path(old).read_bytes() == b"a longer file of the user"
    assert numbers(tmp_path) == [5]


def test_shards_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "error", 1)
    before = (tmp_path / "dataset.json").read_bytes()
    with ShardWrite(tmp_path, "append") as this:
        path = os.path.join(this.staging, new_name())
        with fr.Writer(path, {"other": "int64"}) as writer:
            writer.append({"other": 1})
        with pytest.raises(fr.errors.SchemaError, match="its fields differ"):
            this.commit([find_shard(path)])
        lost = shard(this.staging, 2)
        os.unlink(os.path.join(this.staging, lost.entry.name))
        with pytest.raises(fr.FastRecordError, match="not on this machine"):
            this.commit([lost])
        changed = shard(this.staging, 3)
        with open(os.path.join(this.staging, changed.entry.name), "r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"damage")
        with pytest.raises(fr.FastRecordError, match="another than the one"):
            this.commit([changed])
        with pytest.raises(fr.FastRecordError, match="no records"):
            this.commit([])
    assert (tmp_path / "dataset.json").read_bytes() == before
    assert fr.files.clean_manifest(tmp_path) == []


def test_all_processes_of_a_write_have_the_fields_of_the_first(tmp_path: Path) -> None:
    other = fr.Schema({"id": "int32", "text": fr.string("zstd")})
    with ShardWrite(tmp_path, "error") as this:
        assert agreed_schema(this.staging, SCHEMA) == SCHEMA
        assert agreed_schema(this.staging, other) == SCHEMA
        staging = this.staging
        assert sorted(os.listdir(staging)) == ["owner.json", "schema.json"]
    with pytest.raises(FileNotFoundError, match="the write has ended"):
        agreed_schema(staging, SCHEMA)
    assert os.listdir(tmp_path) == []


def test_the_command_says_what_it_removed(tmp_path: Path) -> None:
    write(tmp_path, "error", 1)
    assert good("manifest", "--clean", tmp_path) == f"{tmp_path}: nothing to remove\n"

    def killed() -> None:
        with ShardWrite(tmp_path, "append") as this:
            shard(this.staging, 2)
            os.kill(os.getpid(), signal.SIGKILL)

    in_child(killed)
    (row,) = map(json.loads, good("manifest", "--clean", "--json", tmp_path).splitlines())
    assert row["kind"] == "removed"
    assert row["message"] == "the folder of a write that ended, with 1 shards"
    assert "one changes nothing" in failed("manifest", "--clean", "--check", tmp_path, status=2)
