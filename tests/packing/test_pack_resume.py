"""Large packs: shards, and the state after a kill, Ctrl-C or a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.packing.summary import PackProgress, PackSummary
from tests.conftest import encode
from tests.support.packing import is_complete, keys, metadata, pack_with, records, write

FILES = 1200  # three chunks: 64, 1024 and the rest


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 images in 3 class folders, and two files that are not images. Read only."""
    data = encode(1)[:-2]
    files = {f"{'abc'[i % 3]}/{i:04d}.jpg": data + i.to_bytes(2, "little") + b"\xff\xd9" for i in range(FILES - 2)}
    return write(tmp_path_factory.mktemp("many"), files | {"a/0000.txt": b"no image", "c/zz.txt": b""})


@pytest.fixture(scope="session")
def undisturbed(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "many.frec"
    pack_with(many, out, bad_files="skip")
    return out


# Shards


def test_shards_are_runs_of_the_input_with_all_classes_each(many: Path, undisturbed: Path, tmp_path: Path) -> None:
    summary = pack_with(many, tmp_path / "out.frec", shards=7, bad_files="skip")
    paths = [tmp_path / f"out-{i:05d}-of-00007.frec" for i in range(7)]
    assert [Path(path) for path in summary.paths] == paths
    assert sorted(os.listdir(tmp_path)) == ["dataset.json", *(path.name for path in paths)]
    assert [row for path in paths for row in records(path)] == records(undisturbed)
    counts = [len(keys(path)) + len(metadata(path)["skipped"]) for path in paths]
    assert max(counts) - min(counts) <= 1
    for path in paths:
        assert metadata(path)["classes"] == ["a", "b", "c"]
        assert is_complete(path)
    assert sorted(summary.skipped) == [(row["key"], row["reason"]) for row in metadata(undisturbed)["skipped"]]
    assert (summary.records, summary.bytes) == (FILES - 2, sum(path.stat().st_size for path in paths))


def test_no_shard_exceeds_the_size_asked_for(many: Path, undisturbed: Path, tmp_path: Path) -> None:
    limit = undisturbed.stat().st_size // 5
    summary = pack_with(many, tmp_path / "out.frec", shard_size=limit, bad_files="skip")
    sizes = [os.path.getsize(path) for path in summary.paths]
    assert len(sizes) > 3
    assert max(sizes) <= limit
    assert min(sizes[:-1]) > limit / 2
    assert [row for path in summary.paths for row in records(Path(path))] == records(undisturbed)


def test_a_record_above_the_shard_size_gets_a_shard_of_its_own(small: Path, tmp_path: Path) -> None:
    assert len(pack_with(small, tmp_path / "out.frec", shard_size=1).paths) == 5


def test_more_shards_than_files_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(fr.FastRecordError, match="6 shards of 5 records"):
        pack_with(small, tmp_path / "out.frec", shards=6)


def test_shards_of_another_division_are_refused_by_name(small: Path, tmp_path: Path) -> None:
    pack_with(small, tmp_path / "out.frec", shards=2)
    each: list[dict[str, Any]] = [{}, {"mode": "overwrite"}, {"mode": "resume"}]
    for options in each:
        with pytest.raises(fr.FastRecordError, match=r"out-00000-of-00002\.frec: 2 shard"):
            pack_with(small, tmp_path / "out.frec", shards=3, **options)
    with pytest.raises(FileExistsError, match=r"out-00000-of-00002\.frec: exists"):
        pack_with(small, tmp_path / "out.frec", shards=2)


# Kill, Ctrl-C, full disk: a child process ends itself at a fixed moment.

CHILD = """
import os, signal, sys
from tests.support.packing import pack_with

src, out, at, commit_bytes, how, mode, shards = sys.argv[1:]

def end(progress):
    if progress.files >= int(at) and progress.bytes > 0:
        os.kill(os.getpid(), getattr(signal, how))

options = {} if shards == "0" else {"shards": int(shards)}
if mode:
    options["mode"] = mode
pack_with(src, out, bad_files="skip", commit_bytes=int(commit_bytes), progress=end, **options)
"""


def killed(
    src: Path, out: Path, *, at: int, commit_bytes: int = 1, how: str = "SIGKILL", mode: str = "", shards: int = 0
) -> subprocess.CompletedProcess[str]:
    arguments = [str(src), str(out), str(at), str(commit_bytes), how, mode, str(shards)]
    return subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def resume(src: Path, out: Path, **options: Any) -> PackSummary:
    return pack_with(src, out, mode="resume", bad_files="skip", **options)


def assert_same(out: Path, expected: Path) -> None:
    assert records(out) == records(expected)
    assert metadata(out) == metadata(expected)
    with fr.Reader(out) as reader:
        assert reader.complete
        assert reader.verify()["ok"]
        assert reader.tail_bytes == 0


@pytest.mark.parametrize(
    ("at", "commit_files", "committed"),
    [(64, 1, 63), (1200, 500, 1087), (1200, 5000, None)],
)
def test_a_killed_pack_resumes_to_the_file_of_an_undisturbed_one(
    many: Path, undisturbed: Path, tmp_path: Path, at: int, commit_files: int, committed: int | None
) -> None:
    out = tmp_path / "many.frec"
    commit_bytes = commit_files * (many / "a" / "0000.jpg").stat().st_size
    assert killed(many, out, at=at, commit_bytes=commit_bytes).returncode == -signal.SIGKILL
    if committed is None:
        with pytest.raises(fr.errors.CorruptFileError, match="holds no commit"):
            fr.Reader(out)
    else:
        assert len(keys(out)) == committed
        assert not is_complete(out)
    summary = resume(many, out)
    assert (summary.packed, summary.records) == (FILES - 2 - (committed or 0), FILES - 2)
    assert [key for key, _ in summary.skipped] == ["a/0000.txt", "c/zz.txt"]
    assert_same(out, undisturbed)


def test_killed_shards_resume_without_touching_those_that_are_done(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    assert killed(many, out, at=500, shards=3).returncode == -signal.SIGKILL
    done = tmp_path / "out-00000-of-00003.frec"
    before = done.stat().st_mtime_ns
    assert not (tmp_path / "out-00002-of-00003.frec").exists()
    summary = resume(many, out, shards=3)
    assert done.stat().st_mtime_ns == before
    undisturbed = pack_with(many, tmp_path / "all.frec", shards=3, bad_files="skip")
    for path, expected in zip(summary.paths, undisturbed.paths, strict=True):
        assert_same(Path(path), Path(expected))
    assert (summary.records, summary.skipped) == (undisturbed.records, undisturbed.skipped)
    assert 0 < summary.packed < summary.records


def test_a_killed_append_resumes(many: Path, small: Path, tmp_path: Path) -> None:
    out, expected = tmp_path / "out.frec", tmp_path / "expected.frec"
    for path in (out, expected):
        pack_with(small, path)
    pack_with(many, expected, mode="append", bad_files="skip")
    assert killed(many, out, at=64, mode="append").returncode == -signal.SIGKILL
    assert len(keys(out)) == 5 + 63
    with pytest.raises(fr.FastRecordError, match="not complete: `--resume` finishes that one first"):
        pack_with(many, out, mode="append")
    assert resume(many, out).packed == FILES - 2 - 63
    assert_same(out, expected)


def test_resuming_what_is_complete_changes_nothing(many: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "many.frec"
    out.write_bytes(undisturbed.read_bytes())
    summary = resume(many, out)
    assert (summary.packed, summary.records, len(summary.skipped)) == (0, FILES - 2, 2)
    assert out.read_bytes() == undisturbed.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda src: write(src, {"ant/00.jpg": encode(1)}),
            r"record 1 is 'ant/1\.jpg', where the input has 'ant/00\.jpg'",
        ),
        (lambda src: (src / "ant" / "0.jpg").unlink(), r"record 0 is 'ant/0\.jpg', where the input has 'ant/1\.jpg'"),
        (lambda src: write(src, {"cow/1.jpg": encode(1)}), "its pack began with other classes: new 'cow'"),
        (lambda src: (src / "bee").rename(src / "wasp"), "its pack began with other classes: new 'wasp'"),
        (lambda src: write(src, {"bee/9.jpg": encode(1)}), r"'bee/9\.jpg' is not in the file"),
        (lambda src: (src / "bee" / "2.jpg").unlink(), r"record 4 is 'bee/2\.jpg', where the input has nothing"),
    ],
)
def test_another_input_is_not_resumed(
    small: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    pack_with(small, tmp_path / "out.frec")
    before = (tmp_path / "out.frec").read_bytes()
    change(small)
    ways_out = "`--append` adds files to it, `--overwrite` replaces it"
    with pytest.raises(
        fr.FastRecordError, match=rf"out\.frec: is complete, and was .* input: .*{message}.*: {ways_out}"
    ):
        resume(small, tmp_path / "out.frec")
    assert (tmp_path / "out.frec").read_bytes() == before


def test_a_pack_begun_with_another_input_is_not_resumed(small: Path, tmp_path: Path) -> None:
    def stop(state: PackProgress) -> None:
        if state.files == 5:
            raise RuntimeError

    out = tmp_path / "out.frec"
    with pytest.raises(RuntimeError):
        pack_with(small, out, commit_bytes=1, progress=stop)
    (small / "bee" / "1.jpg").rename(small / "bee" / "5.jpg")
    message = r"was begun with another input: record 3 is 'bee/1\.jpg', where the input has 'bee/2\.jpg': give that one"
    with pytest.raises(fr.FastRecordError, match=message):
        resume(small, out)
    (small / "bee" / "5.jpg").rename(small / "bee" / "1.jpg")
    write(small, {"bee/6.jpg": encode(6)})
    assert (resume(small, out).packed, keys(out)[-1]) == (1, "bee/6.jpg")


def test_other_labels_are_not_resumed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("bee/1.jpg,1\nant/0.jpg,2\n", encoding="utf-8")
    pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text("bee/1.jpg,1\nant/0.jpg,3\n", encoding="utf-8")
    with pytest.raises(fr.FastRecordError, match=r"record 1, 'ant/0\.jpg', has the label 2, the input says 3"):
        resume(small, tmp_path / "out.frec", list=tmp_path / "list.csv")


def test_a_file_that_pack_did_not_write_is_not_resumed(small: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "out.frec").write_bytes(packed.read_bytes())
    with pytest.raises(fr.FastRecordError, match="was not written by `fastrecord pack`"):
        resume(small, tmp_path / "out.frec")


def test_a_damaged_file_is_not_begun_anew_by_resume(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(small, out)
    damaged = out.read_bytes()[:-4096]
    out.write_bytes(damaged)
    with pytest.raises(fr.errors.CorruptFileError, match="truncated"):
        resume(small, out)
    assert out.read_bytes() == damaged


def interrupting(times: int) -> Callable[[PackProgress], None]:
    def progress(state: PackProgress) -> None:
        if state.files == 64:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return progress


def test_ctrl_c_commits_what_is_packed_and_resume_goes_on(many: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "many.frec"
    with pytest.raises(KeyboardInterrupt, match="63 records are committed: `--resume` continues from there"):
        pack_with(many, out, bad_files="skip", progress=interrupting(1))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(keys(out)) == 63
    assert not is_complete(out)
    resume(many, out)
    assert_same(out, undisturbed)


def test_a_second_ctrl_c_does_not_wait_for_the_commit(many: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        pack_with(many, tmp_path / "out.frec", bad_files="skip", progress=interrupting(2))
    assert caught.value.__notes__ == [f"{tmp_path / 'out.frec'}: nothing was committed, and no file is left"]
    assert not (tmp_path / "out.frec").exists()


def test_ctrl_c_while_overwriting_leaves_the_old_file(many: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    out.write_bytes(packed.read_bytes())
    with pytest.raises(KeyboardInterrupt) as caught:
        pack_with(many, out, mode="overwrite", bad_files="skip", progress=interrupting(1))
    assert caught.value.__notes__ == [f"{out}: the file is as it was before, with 12 records"]
    assert out.read_bytes() == packed.read_bytes()
    assert os.listdir(tmp_path) == ["out.frec"]


def test_ctrl_c_at_the_last_record_says_that_all_is_packed(small: Path, tmp_path: Path) -> None:
    def progress(state: PackProgress) -> None:
        if state.files == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="the pack is complete"):
        pack_with(small, tmp_path / "out.frec", progress=progress)
    assert is_complete(tmp_path / "out.frec")


def test_an_error_of_the_callback_keeps_what_is_committed(many: Path, tmp_path: Path) -> None:
    def progress(state: PackProgress) -> None:
        if state.files > 64:
            raise RuntimeError("enough")

    out = tmp_path / "out.frec"
    with pytest.raises(RuntimeError, match="enough") as caught:
        pack_with(many, out, bad_files="skip", commit_bytes=60_000, progress=progress)
    assert len(keys(out)) == 1087
    assert "1,087 records: `--resume` continues from there" in caught.value.__notes__[0]


FULL = """
import resource, sys
from tests.support.packing import pack_with

src, out, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    pack_with(src, out, bad_files="skip", commit_bytes=1)
except OSError as err:
    print(err.errno, err.filename, *err.__notes__, sep="\\n")
"""


def test_a_file_that_cannot_grow_stays_readable_to_its_last_commit(
    many: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.frec"
    limit = undisturbed.stat().st_size // 2
    child = subprocess.run(
        [sys.executable, "-c", FULL, str(many), str(out), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    number, name, note = child.stdout.splitlines()
    assert (os.strerror(int(number)), name) == ("File too large", str(out))
    assert note == f"{out}: the file is readable up to its last commit, 63 records: `--resume` continues from there"
    assert keys(out) == keys(undisturbed)[:63]
    resume(many, out)
    assert_same(out, undisturbed)
