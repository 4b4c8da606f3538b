"""The crop index of existing files: no image changes, and any end leaves a file to continue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord._core import add_crop_index, side_kinds
from fastrecord.transforms import RandomResizedCrop
from tests.support.commands import failed, good, run
from tests.support.pictures import jpeg, picture, save

SCHEMA = fr.Schema({"image": fr.image(), "label": "int64"})
# Eight images with an index, a small one and a PNG.
IMAGES = [jpeg(200 + 10 * i, 260) for i in range(8)] + [jpeg(40, 30), save(picture(200, 200), "PNG")]
KINDS = [2] * 8 + [0] * 2


def write(path: Path, images: list[bytes] = IMAGES, mode: str = "x") -> Path:
    with fr.Writer(path, SCHEMA, mode) as writer:
        for label, image in enumerate(images):
            writer.append({"image": image, "label": label})
    return path


def kinds(path: Path, field: str = "image") -> list[int]:
    with fr.Reader(path) as reader:
        numbers: list[int] = side_kinds(reader, field, range(len(reader))).tolist()
        return numbers


def images(path: Path) -> list[bytes]:
    with fr.Reader(path, verify=True) as reader:
        return [bytes(record["image"]) for record in reader]


def deep_errors(path: Path) -> list[str]:
    with fr.Reader(path) as reader:
        errors: list[str] = reader.verify(deep=True)["errors"]
        return errors


def batches(path: Path) -> list[np.ndarray[Any, Any]]:
    dataset = fr.FastRecordDataset(path)
    with fr.FastRecordLoader(dataset, 5, sample=[RandomResizedCrop(64)]) as loader:
        return [images.numpy() for images, _ in loader]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.frec")


def test_images_keep_their_bytes_and_a_second_call_has_nothing_to_do(path: Path) -> None:
    before = batches(path)
    seen: list[tuple[int, int]] = []
    summary = fr.files.index(path, progress=lambda done, total: seen.append((done, total)))
    assert (summary.images, summary.indexed, summary.present, summary.without) == (10, 8, 0, 2)
    assert summary.fields == ["image"]
    assert summary.bytes > 0
    assert seen[-1] == (10, 10)
    assert (images(path), kinds(path), deep_errors(path)) == (IMAGES, KINDS, [])
    assert all(np.array_equal(new, old) for new, old in zip(batches(path), before, strict=True))
    size = path.stat().st_size
    again = fr.files.index(path)
    assert (again.indexed, again.present, again.without, again.bytes) == (0, 8, 2, 0)
    assert path.stat().st_size == size


def test_open_readers_keep_their_snapshot(path: Path) -> None:
    with fr.Reader(path) as reader:
        fr.files.index(path)
        assert side_kinds(reader, "image", range(10)).tolist() == [0] * 10
        reader.refresh()
        assert side_kinds(reader, "image", range(10)).tolist() == KINDS


@pytest.mark.parametrize("records", [1, 4, 9])
def test_a_kill_leaves_the_last_commit_and_the_next_call_continues(path: Path, records: int) -> None:
    script = f"""
import os, signal
from fastrecord._core import add_crop_index
def kill(done):
    if done >= {records}:
        os.kill(os.getpid(), signal.SIGKILL)
add_crop_index({str(path)!r}, "image", commit_records=1, progress=kill)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == -9
    assert (images(path), deep_errors(path)) == (IMAGES, [])
    done = min(records, 8)
    assert kinds(path) == [2] * done + [0] * (10 - done)
    summary = fr.files.index(path)
    assert (summary.indexed, summary.present) == (8 - done, done)
    assert (images(path), kinds(path), deep_errors(path)) == (IMAGES, KINDS, [])


def test_ctrl_c_commits_what_is_done_and_says_how_to_continue(path: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="`fastrecord index` continues from there"):
        fr.files.index(path, progress=stop)
    assert (images(path), kinds(path)) == (IMAGES, [0] * 10)

    def stop_later(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_crop_index(path, "image", commit_records=1, progress=stop_later)
    assert kinds(path) == [2] * 3 + [0] * 7
    assert fr.files.index(path).indexed == 5


def test_records_that_were_appended_later_are_indexed_by_the_next_call(path: Path) -> None:
    fr.files.index(path)
    write(path, mode="a")
    assert kinds(path) == KINDS + [0] * 10
    assert fr.files.index(path).indexed == 8
    assert (images(path), kinds(path), deep_errors(path)) == (IMAGES * 2, KINDS * 2, [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("merge", "x.frec", "y.frec", "-o", "out.frec"),
        ("shuffle", "x.frec", "out.frec"),
        ("compact", "x.frec", "out.frec"),
        ("split", "x.frec", "--fractions", "1.0", "--names", "out"),
    ],
)
def test_files_made_of_a_file_keep_its_index(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "y.frec")
    fr.files.index(path)
    good(*arguments)
    out = tmp_path / "out.frec"
    expected = KINDS + [0] * 10 if arguments[0] == "merge" else KINDS
    assert sorted(kinds(out)) == sorted(expected)
    assert deep_errors(out) == []
    rest = fr.files.index(out)
    assert (rest.indexed, rest.present) == ((8, 8) if arguments[0] == "merge" else (0, 8))
    assert deep_errors(out) == []


def damage(path: Path) -> None:
    """Flip one of the last bits of the first record's index."""
    with fr.Reader(path) as reader:
        end = reader.nbytes
    before = path.read_bytes()
    fr.files.index(path)
    data = bytearray(path.read_bytes())
    first = next(at for at in range(len(before), end + 65536) if data[at] == 2)
    data[first + 3] ^= 1
    path.write_bytes(data)


def test_a_damaged_index_is_named_spares_the_images_and_is_rebuilt(path: Path, tmp_path: Path) -> None:
    damage(path)
    assert images(path) == IMAGES
    for options in ((), ("--deep",)):
        printed = failed("verify", path, *options)
        assert "record 0, field image: the side bytes are damaged" in printed
        assert "[FR311]" in printed
    with pytest.raises(fr.errors.CorruptFileError, match="FR311"):
        batches(path)
    # Nothing that a repair could save is lost.
    good("repair", path, tmp_path / "out.frec")
    assert not (tmp_path / "out.frec").exists()
    good("index", path, "--rebuild")
    assert (images(path), kinds(path), deep_errors(path)) == (IMAGES, KINDS, [])


def test_a_repaired_file_has_the_images_without_an_index(path: Path, tmp_path: Path) -> None:
    fr.files.index(path)
    data = bytearray(path.read_bytes())
    at = data.index(IMAGES[3])
    data[at + 2000] ^= 1
    path.write_bytes(data)
    failed("repair", path, tmp_path / "out.frec")
    assert kinds(tmp_path / "out.frec") == [0] * 9
    assert fr.files.index(tmp_path / "out.frec").indexed == 7
    assert deep_errors(tmp_path / "out.frec") == []


def test_a_damaged_image_is_named_and_those_before_it_are_done(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(IMAGES[3]) + 2000] ^= 1
    path.write_bytes(data)
    assert "record 3, field image" in failed("index", path)
    assert kinds(path) == [2] * 3 + [0] * 7


def test_all_fields_of_images_are_indexed_unless_one_is_named(tmp_path: Path) -> None:
    schema = fr.Schema({"lr": fr.image(), "hr": fr.image(), "key": fr.string()})
    for name in ("all.frec", "one.frec"):
        with fr.Writer(tmp_path / name, schema) as writer:
            for i, image in enumerate(IMAGES):
                writer.append({"lr": image, "hr": image, "key": str(i)})
    summary = fr.files.index(tmp_path / "all.frec")
    assert (summary.fields, summary.images, summary.indexed, summary.without) == (["lr", "hr"], 20, 16, 4)
    fr.files.index(tmp_path / "one.frec", field="hr")
    assert [kinds(tmp_path / name, field) for name in ("all.frec", "one.frec") for field in ("lr", "hr")] == [
        KINDS,
        KINDS,
        [0] * 10,
        KINDS,
    ]


def test_a_field_that_holds_no_images_is_refused(path: Path, tmp_path: Path) -> None:
    for field in ("label", "other"):
        with pytest.raises(
            fr.errors.SchemaError, match=f"no field '{field}' of type image: the file has \\['image'\\]"
        ):
            fr.files.index(path, field=field)
    with fr.Writer(tmp_path / "data.frec", {"data": fr.bytes_()}) as writer:
        writer.append({"data": b"x"})
    with pytest.raises(fr.errors.SchemaError, match="no field of type image: the file has none"):
        fr.files.index(tmp_path / "data.frec")


def test_a_file_without_records_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.frec", [])
    before = path.read_bytes()
    assert fr.files.index(path).images == 0
    assert path.read_bytes() == before


def test_a_file_that_a_writer_has_open_is_refused(path: Path) -> None:
    with fr.Writer(path, mode="a"), pytest.raises(fr.errors.LockedError):
        fr.files.index(path)


def test_the_command_indexes_each_file_and_continues_after_a_bad_one(path: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.frec")
    result = run("index", path, tmp_path / "absent.frec", other, "--json", "-q")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tmp_path / 'absent.frec'}: ")
    summaries = [json.loads(line) for line in result.stdout.splitlines()]
    assert [summary["path"] for summary in summaries] == [str(path), str(other)]
    assert list(summaries[0]) == [
        "path",
        "fields",
        "images",
        "indexed",
        "present",
        "without",
        "packed",
        "bytes",
        "seconds",
    ]
    assert kinds(path) == kinds(other) == KINDS
    assert "10 images: 0 indexed, 8 before, 2 without an index; 0 B" in good("index", path)


def test_info_says_how_many_images_have_an_index(path: Path) -> None:
    assert json.loads(good("info", "--json", path))["crops"] == {"image": {"sampled": 10, "crop_index": 0, "packed": 0}}
    assert "crops" not in good("info", path)
    good("index", path)
    assert json.loads(good("info", "--json", path))["crops"]["image"]["crop_index"] == 8
    assert "  stored    image 8 with a crop index, of 10 looked at" in good("info", path)
