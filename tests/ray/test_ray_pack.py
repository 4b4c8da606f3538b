"""`fastrecord.ray.pack`: the records of `fastrecord pack --shards`, packed by tasks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.ray import Workers, pack
from tests.conftest import encode
from tests.support.packing import pack_with

pytestmark = [
    pytest.mark.usefixtures("address"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray's own
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number in range(30):
        folder = tmp_path / "images" / ("cat", "dog", "owl")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02d}.jpg").write_bytes(encode(number))
    return tmp_path / "images"


def content(paths: list[str]) -> list[Any]:
    """Return schema, metadata and records of shards, without what is random."""
    found: list[Any] = []
    for path in paths:
        with fr.Reader(path) as reader:
            metadata = reader.metadata
            shard = metadata.pop("shard")
            batch = reader.read_batch(range(len(reader)), copy=True)
            columns = {name: [bytes(v) if isinstance(v, memoryview) else v for v in batch[name]] for name in batch}
            sizes = reader.column("image.width").tolist()
            found.append((dict(reader.schema), metadata, shard["number"], shard["count"], columns, sizes))
    return found


@pytest.mark.parametrize("options", [{}, {"crop_index": True}, {"short_side": 20, "quality": 80}], ids=str)
def test_the_shards_are_the_ones_of_fastrecord_pack(tree: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    alone = pack_with(tree, tmp_path / "alone.frec", shards=4, **options)
    steps: list[int] = []
    there = pack(
        tree,
        tmp_path / "set",
        recode=fr.Recode(**options),
        output=fr.Output(shards=4),
        workers=Workers(2),
        progress=lambda p: steps.append(p.files),
    )
    assert content(there.paths) == content(alone.paths)
    assert (there.records, there.classes, there.skipped) == (alone.records, alone.classes, [])
    assert (there.recoded, there.packed) == (alone.recoded, 30)
    assert (len(steps), steps[-1]) == (4, 30)
    dataset = fr.FastRecordDataset(tmp_path / "set", decode=None, fields=["image", "label", "key"])
    assert [dataset[i]["key"] for i in range(30)] == sorted(str(p.relative_to(tree)) for p in tree.rglob("*.jpg"))
    assert fr.files.check_manifest(tmp_path / "set") == []


def test_bad_files_end_the_pack_or_are_left_out(tree: Path, tmp_path: Path) -> None:
    (tree / "cat" / "03.jpg").write_bytes(b"no image")
    (tree / "dog" / "link.jpg").symlink_to("nowhere")
    with pytest.raises(fr.FastRecordError, match=r"link\.jpg: broken link"):
        pack(tree, tmp_path / "set")
    (tree / "dog" / "link.jpg").unlink()
    with pytest.raises(fr.FastRecordError, match=r"03\.jpg.*bad-files skip"):
        pack(tree, tmp_path / "set", output=fr.Output(shards=3))
    assert not (tmp_path / "set").exists()
    alone = pack_with(tree, tmp_path / "alone.frec", shards=30, bad_files="skip")
    there = pack(tree, tmp_path / "set", output=fr.Output(shards=30), bad_files="skip")
    assert there.skipped == alone.skipped
    assert content(there.paths) == content(alone.paths)


def test_a_tree_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "a.txt").write_text("text")
    with pytest.raises(fr.FastRecordError, match="none of its 1 inputs is good"):
        pack(tmp_path / "images", tmp_path / "set", bad_files="skip")


def test_appended_classes_keep_their_names(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "set", output=fr.Output(shards=2))
    (tree / "owl").rename(tree / "bat")
    with pytest.raises(FileExistsError, match="append"):
        pack(tree, tmp_path / "set")
    summary = pack(tree, tmp_path / "set", output=fr.Output(mode="append", shards=2))
    assert summary.classes == ["bat", "cat", "dog"]
    dataset = fr.FastRecordDataset(tmp_path / "set", decode=None, fields=["image", "label", "key"])
    assert len(dataset) == 60
    assert all(
        dataset.classes[label] == key.split("/")[0] for _, label, key in (dataset[i].values() for i in range(60))
    )


def test_killed_workers_are_replaced(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker is killed once: in the middle of its shard, or after it. Ray runs the task again."""
    from fastrecord.ray import packing

    pack_part, marks, folder = packing._pack_part, tmp_path / "marks", tmp_path / "set"
    marks.mkdir()

    def die_once(job: Any, staging: str, shard: Any) -> Any:
        mark = marks / str(shard.number)
        if mark.exists():
            return pack_part(job, staging, shard)
        mark.touch()
        if shard.number % 2:
            fr.Writer(Path(staging, f"torn{shard.number}.frec"), {"image": fr.image()}).append({"image": encode(0)})
        else:
            pack_part(job, staging, shard)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    monkeypatch.setattr(packing, "_pack_part", die_once)
    summary = pack(tree, folder, output=fr.Output(shards=5))
    assert len(list(marks.iterdir())) == 5
    assert summary.records == 30
    assert fr.files.check_manifest(folder) == []
    assert sorted(os.listdir(folder)) == sorted(["dataset.json", *map(os.path.basename, summary.paths)])
