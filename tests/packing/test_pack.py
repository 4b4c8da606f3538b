"""Packing folders: the stored data, refused input, and the fate of existing files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

import fastrecord as fr
from fastrecord.packing.summary import PackProgress
from tests.conftest import encode
from tests.support.packing import is_complete, keys, metadata, pack_with, records, write


def test_records_are_the_files_byte_for_byte_in_the_order_of_image_folder(tmp_path: Path) -> None:
    names = [
        "b/10.jpg",
        "b/9.jpg",
        "b/x/1.jpg",
        "b/x-1/1.jpg",
        "b/x/y/1.jpg",
        "b/x.jpg",
        "B/1.jpg",
        "ä/ö.jpg",
        "a-b/1.jpg",
    ]
    source = write(tmp_path / "src", {name: encode(i) for i, name in enumerate(names)})
    write(tmp_path / "else", {"1.jpg": encode(90), "deep/2.jpg": encode(91)})
    (source / "link").symlink_to(tmp_path / "else")
    (source / "b" / "link").symlink_to(tmp_path / "else" / "deep")
    (source / "a-b" / "link.jpg").symlink_to(tmp_path / "else" / "1.jpg")
    pack_with(source, tmp_path / "out.frec")
    folder = ImageFolder(str(source))
    expected = [(Path(path).read_bytes(), label, os.path.relpath(path, source)) for path, label in folder.samples]
    assert len(expected) == len(names) + 4
    assert records(tmp_path / "out.frec") == expected
    assert metadata(tmp_path / "out.frec")["classes"] == folder.classes


def test_a_packed_file_is_complete_and_names_its_folder_but_no_path(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    seen: list[PackProgress] = []
    write(small, {"README": b"about", "extra.jpg": encode(5)})
    summary = pack_with(small, out, progress=seen.append)
    assert is_complete(out)
    assert metadata(out) == {
        "classes": ["ant", "bee"],
        "skipped": [],
        "packs": [{"source": "small", "fastrecord": fr.__version__, "first_record": 0, "skipped": 0}],
    }
    assert (summary.records, summary.packed, summary.skipped, summary.empty_classes) == (5, 5, [], [])
    assert summary.bytes == out.stat().st_size
    # Files beside the class folders are left out.
    assert (summary.ignored, len(keys(out))) == (2, 5)
    assert (seen[0].files, seen[-1].files, {state.total for state in seen}) == (0, 5, {5})
    assert seen[-1].bytes > 0


# Bad input


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [("bee/1.txt", b"hello", "not an image"), ("bee/1", b"", "empty"), ("bee/odd.jpg", None, "broken link")],
)
def test_a_bad_file_stops_the_pack_with_its_name(
    small: Path, tmp_path: Path, name: str, data: bytes | None, reason: str
) -> None:
    out = tmp_path / "out.frec"
    (small / name).symlink_to("nowhere") if data is None else write(small, {name: data})
    with pytest.raises(fr.FastRecordError, match=reason) as caught:
        pack_with(small, out)
    assert str(caught.value).count(str(small)) == 1
    assert str(small / name) in str(caught.value)
    assert "--bad-files skip" in str(caught.value)
    assert not out.exists()
    if data is not None:
        assert caught.value.__notes__ == [f"{out}: nothing was committed, and no file is left"]


def test_skipped_files_are_listed_and_the_others_keep_their_order(small: Path, tmp_path: Path) -> None:
    good = [os.path.relpath(path, small) for path, _ in ImageFolder(str(small)).samples]
    write(small, {"ant/.DS_Store": b"Bud1", "bee/1.txt": b"hello", "bee/empty.jpg": b""})
    (small / "bee" / "broken.jpg").symlink_to(small / "nowhere")
    os.mkfifo(small / "bee" / "pipe.jpg")
    summary = pack_with(small, tmp_path / "out.frec", bad_files="skip")
    assert keys(tmp_path / "out.frec") == good
    assert [key for key, _ in summary.skipped] == [
        "ant/.DS_Store", "bee/1.txt", "bee/broken.jpg", "bee/empty.jpg", "bee/pipe.jpg",
    ]  # fmt: skip
    reasons = dict(summary.skipped)
    assert (reasons["bee/broken.jpg"], reasons["bee/pipe.jpg"]) == ("broken link", "not a regular file")
    assert "empty" in reasons["bee/empty.jpg"]
    assert metadata(tmp_path / "out.frec")["skipped"] == summary.to_dict()["skipped"]
    assert is_complete(tmp_path / "out.frec")


def test_a_folder_without_any_image_is_an_error_even_if_bad_files_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "src", {"a/1.txt": b"1", "b/2.txt": b"2"})
    with pytest.raises(fr.FastRecordError, match=r"none of its 2 inputs is good; the first, a/1\.txt: not an"):
        pack_with(tmp_path / "src", tmp_path / "out.frec", bad_files="skip")
    assert not (tmp_path / "out.frec").exists()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("empty", fr.FastRecordError, "empty: the folder is empty"),
        ("hollow", fr.FastRecordError, "no file in any of its 1 class folder"),
        ("flat", fr.FastRecordError, r"flat: no class folders, only 1 file: .*--set list=CSV"),
        ("loop", fr.FastRecordError, "loop/a/again: the link leads back"),
        ("nowhere", FileNotFoundError, "nowhere"),
        ("flat/1.jpg", NotADirectoryError, r"1\.jpg"),
    ],
)
def test_a_source_without_classes_of_files_is_refused_by_name(
    tmp_path: Path, source: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow" / "a" / "deep").mkdir(parents=True)
    write(tmp_path, {"flat/1.jpg": encode(1), "loop/a/1.jpg": encode(1)})
    (tmp_path / "loop" / "a" / "again").symlink_to(tmp_path / "loop" / "a")
    with pytest.raises(error, match=message):
        pack_with(tmp_path / source, tmp_path / "out.frec", format="folder", allow_empty_classes="yes")


def test_an_empty_class_folder_is_refused_by_name_and_allowed_on_request(small: Path, tmp_path: Path) -> None:
    (small / "anx").mkdir()
    with pytest.raises(fr.FastRecordError, match=r"empty class folder 'anx'.*--set allow_empty_classes=yes"):
        pack_with(small, tmp_path / "out.frec")
    summary = pack_with(small, tmp_path / "out.frec", allow_empty_classes="yes")
    assert (summary.classes, summary.empty_classes) == (["ant", "anx", "bee"], ["anx"])
    assert [label for _, label, _ in records(tmp_path / "out.frec")] == [0, 0, 2, 2, 2]


def test_an_output_folder_that_is_absent_is_named(small: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pack_with(small, tmp_path / "nowhere" / "out.frec")


@pytest.fixture
def closed_folder(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An unreadable class folder. Root reads anything, so it becomes another user."""
    monkeypatch.chdir(tmp_path)  # only root can enter the parent folders
    root = os.geteuid() == 0
    for path in (tmp_path, small):
        path.chmod(0o755)
    (small / "bee").chmod(0)
    if root:
        os.seteuid(65534)
    try:
        yield "small/bee"
    finally:
        if root:
            os.seteuid(0)
        (small / "bee").chmod(0o755)


def test_a_folder_that_may_not_be_read_is_named(closed_folder: str) -> None:
    with pytest.raises(PermissionError, match=closed_folder):
        pack_with("small", "out.frec")


@pytest.mark.parametrize("name", [b"bee/\xff.jpg", b"\xfe/1.jpg"])
def test_a_name_that_is_not_utf8_is_named(small: Path, tmp_path: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(small), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(encode(1))
    with pytest.raises(fr.FastRecordError, match=r"\\x(ff\.jpg|fe).*not valid UTF-8"):
        pack_with(small, tmp_path / "out.frec", bad_files="skip")


def test_an_output_inside_of_a_class_folder_is_refused(small: Path) -> None:
    with pytest.raises(fr.FastRecordError, match="lies in the class folder 'bee'"):
        pack_with(small, small / "bee" / "out.frec")
    pack_with(small, small / "out.frec")  # beside the class folders it is not input


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "append, overwrite"},
        {"bad_files": "ignore"},
        {"shards": 2, "shard_size": 100},
        {"shards": 0},
        {"commit_bytes": 0},
        {"mode": "append", "shards": 2},
        {"mode": "append", "classes_from": "x.frec"},
        {"list": "x.csv", "allow_empty_classes": "yes"},
    ],
)
def test_options_that_contradict_each_other_are_refused(small: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"is |leave|not both|without|one of"):
        pack_with(small, tmp_path / "out.frec", **options)
    assert not (tmp_path / "out.frec").exists()


# An existing output


def test_an_output_that_exists_is_refused_with_the_ways_out(small: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    out.write_bytes(packed.read_bytes())
    with pytest.raises(FileExistsError, match=r"out\.frec: exists already: .*--resume.*--append.*--overwrite"):
        pack_with(small, out)
    assert out.read_bytes() == packed.read_bytes()


def test_overwriting_replaces_the_file_under_its_readers(small: Path, image_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(image_folder, out)
    with fr.Reader(out) as before:
        pack_with(small, out, mode="overwrite")
        assert len(before) == 12
        assert len(bytes(before[11]["image"])) > 0
    assert len(keys(out)) == 5
    assert set(os.listdir(tmp_path)) == {"out.frec", "small"}


def test_an_overwrite_that_fails_leaves_the_old_file(small: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    out.write_bytes(packed.read_bytes())
    write(small, {"bee/1.txt": b"hello"})
    with pytest.raises(fr.FastRecordError) as caught:
        pack_with(small, out, mode="overwrite")
    assert out.read_bytes() == packed.read_bytes()
    assert caught.value.__notes__ == [f"{out}: the file is as it was before, with 12 records"]
    assert set(os.listdir(tmp_path)) == {"out.frec", "small"}


def test_appending_keeps_class_numbers_and_adds_new_classes_at_the_end(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(small, out)
    before = records(out)
    more = write(tmp_path / "more", {"aaa/1.jpg": encode(1), "bee/7.jpg": encode(2), "cow/1.txt": b"moo"})
    summary = pack_with(more, out, mode="append", bad_files="skip")
    assert metadata(out)["classes"] == ["ant", "bee", "aaa", "cow"]
    assert records(out)[:5] == before
    assert records(out)[5:] == [(encode(1), 2, "aaa/1.jpg"), (encode(2), 1, "bee/7.jpg")]
    assert (summary.records, summary.packed, summary.skipped[0][0]) == (7, 2, "cow/1.txt")
    assert summary.empty_classes == ["cow"]
    assert [(p["source"], p["first_record"], p["skipped"]) for p in metadata(out)["packs"]] == [
        ("small", 0, 0),
        ("more", 5, 1),
    ]
    assert is_complete(out)


def test_an_append_that_does_not_fit_is_refused(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    with pytest.raises(FileNotFoundError, match=r"out\.frec"):
        pack_with(small, out, mode="append")
    pack_with(small, out)
    before = out.read_bytes()
    with pytest.raises(fr.FastRecordError, match=r"'ant/0\.jpg' is in the file already"):
        pack_with(small, out, mode="append")
    assert out.read_bytes() == before
    fr.Writer(out, {"image": fr.image(), "score": "float64"}, "w").close()
    with pytest.raises(
        fr.errors.SchemaError, match=r"fields image \(image\), score \(float64\); this input gives image"
    ):
        pack_with(small, out, mode="append")


def test_a_failed_append_leaves_the_file_as_it_was(small: Path, tmp_path: Path) -> None:
    pack_with(small, tmp_path / "out.frec")
    before = records(tmp_path / "out.frec")
    more = write(tmp_path / "more", {"bee/7.jpg": encode(2), "bee/8.txt": b"no"})
    with pytest.raises(fr.FastRecordError) as caught:
        pack_with(more, tmp_path / "out.frec", mode="append")
    assert caught.value.__notes__ == [f"{tmp_path / 'out.frec'}: the file is as it was before, with 5 records"]
    assert records(tmp_path / "out.frec") == before
    assert is_complete(tmp_path / "out.frec")


def test_a_file_that_is_being_written_is_locked_for_append_and_resume(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(small, out)
    more = write(tmp_path / "more", {"bee/7.jpg": encode(2)})
    with fr.Writer(out, None, "a"), pytest.raises(fr.errors.LockedError, match=r"out\.frec"):
        pack_with(more, out, mode="append")
    schema = fr.Schema({"image": fr.image()})
    with (
        fr.Writer(tmp_path / "new.frec", schema),
        pytest.raises(fr.errors.LockedError, match=r"new\.frec: another pack"),
    ):
        pack_with(small, tmp_path / "new.frec", mode="resume")


# The classes of another file


def test_classes_come_from_another_file_that_names_them(small: Path, tmp_path: Path) -> None:
    out, train = tmp_path / "val.frec", tmp_path / "train.frec"
    pack_with(small, train)
    val = write(tmp_path / "val", {"bee/v.jpg": encode(3)})
    pack_with(val, out, classes_from=train)
    assert records(out) == [(encode(3), 1, "bee/v.jpg")]
    assert metadata(out)["classes"] == ["ant", "bee"]
    write(val, {"cow/v.jpg": encode(4)})
    with pytest.raises(fr.errors.SchemaError, match=r"val: class 'cow' not among the classes of .*train\.frec"):
        pack_with(val, tmp_path / "cow.frec", classes_from=train)
    fr.Writer(tmp_path / "bare.frec", {"n": "int64"}).close()
    with pytest.raises(fr.errors.SchemaError, match=r"bare\.frec: the file names no classes"):
        pack_with(small, tmp_path / "cow.frec", classes_from=tmp_path / "bare.frec")
    assert not (tmp_path / "cow.frec").exists()


def test_classes_are_not_appended_to_labels_without_names(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    (tmp_path / "list.csv").write_text("path,label\nbee/1.jpg,7\n", encoding="utf-8")
    pack_with(small, out, list=tmp_path / "list.csv")
    with pytest.raises(fr.errors.SchemaError, match="its labels are numbers without class names"):
        pack_with(small, out, mode="append")
    assert len(records(out)) == 1
