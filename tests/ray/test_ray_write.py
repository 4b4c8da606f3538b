"""`write_frec`: records of Ray become shards; a write is there as a whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import ray.data

import fastrecord as fr
from fastrecord.ray import write_frec
from tests.conftest import encode
from tests.torture.cluster.ray_kills import Writes

pytestmark = [
    pytest.mark.usefixtures("address"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray's own
]


def records(folder: Path, *fields: str) -> list[tuple[Any, ...]]:
    """Return the records of a data set, sorted."""
    dataset = fr.FastRecordDataset(folder, fields=fields)
    return sorted(tuple(sample[name] for name in fields) for sample in map(dataset.__getitem__, range(len(dataset))))


def only_the_data_set(folder: Path) -> bool:
    manifest = fr.files.check_manifest(folder)
    return not manifest and all(name.endswith(".frec") or name == "dataset.json" for name in os.listdir(folder))


def test_records_of_all_tasks_are_one_data_set(tmp_path: Path) -> None:
    images = [encode(number) for number in range(40)]
    rows = [{"bytes": image, "label": number % 3, "name": f"n{number}"} for number, image in enumerate(images)]
    source = ray.data.from_items(rows, override_num_blocks=4)
    summary = write_frec(
        source, tmp_path / "set", fields=fr.Fields(mapping={"image": "bytes", "label": "label", "key": "name"})
    )
    assert (summary.records, summary.generation, len(summary.added)) == (40, 2, summary.shards)
    assert summary.shards > 1
    dataset = fr.FastRecordDataset(tmp_path / "set", decode=None, fields=["image", "label", "key"])
    found = sorted(map(dataset.__getitem__, range(40)), key=lambda sample: int(sample["key"][1:]))
    assert [tuple(sample.values()) for sample in found] == [
        (image, number % 3, f"n{number}") for number, image in enumerate(images)
    ]
    assert only_the_data_set(tmp_path / "set")


def objects(values: list[Any]) -> Any:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def test_tensors_are_arrays_and_names_are_classes(tmp_path: Path) -> None:
    def batch(rows: dict[str, Any]) -> dict[str, Any]:
        ids = rows["id"]
        return {
            "fixed": np.stack([np.full((2, 3), number, np.float32) for number in ids]),
            "flags": np.stack([np.array([True, number % 2 == 0]) for number in ids]),
            "ragged": np.array([np.full((1 + number % 2, 2), number, np.int16) for number in ids] + [None], object)[
                :-1
            ],
            "label": np.array([("dog", "cat")[number % 2] for number in ids]),
        }

    source = ray.data.range(10, override_num_blocks=2).map_batches(batch)
    write_frec(source, tmp_path / "set", classes=["cat", "dog"], fields=fr.Fields(compression="zstd"))
    dataset = fr.FastRecordDataset(tmp_path / "set", fields=["fixed", "flags", "ragged", "label"])
    assert dataset.classes == ["cat", "dog"]
    with fr.Reader(dataset.paths[0]) as reader:
        kinds = {name: str(kind) for name, kind in reader.schema.items()}
    assert kinds == {
        "fixed": "array(float32, (2, 3))",
        "flags": "array(bool, (2,))",
        "ragged": "array(int16, (None, None))",
        "label": "int64",
    }
    seen = []
    for sample in map(dataset.__getitem__, range(10)):
        number = int(sample["fixed"][0, 0])
        seen.append(number)
        assert sample["fixed"].shape == (2, 3)
        assert sample["flags"].tolist() == [True, number % 2 == 0]
        assert sample["ragged"].tolist() == [[number, number]] * (1 + number % 2)
        assert sample["label"] == (number + 1) % 2
    assert sorted(seen) == list(range(10))


def test_append_adds_overwrite_replaces_and_error_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_frec(ray.data.range(10, override_num_blocks=2), folder)
    with pytest.raises(FileExistsError, match="append"):
        write_frec(ray.data.range(3), folder)
    (folder / "mine.frec").write_bytes(b"not of the data set")
    more = ray.data.range(5, override_num_blocks=1).map_batches(lambda rows: {"id": rows["id"] + 100})
    assert write_frec(more, folder, mode="append").records == 15
    assert records(folder, "id") == [(number,) for number in (*range(10), *range(100, 105))]
    old = fr.FastRecordDataset(folder).paths
    summary = write_frec(more, folder, mode="overwrite")
    assert (summary.records, sorted(summary.removed)) == (5, sorted(os.path.basename(path) for path in old))
    assert records(folder, "id") == [(number,) for number in range(100, 105)]
    assert not any(map(os.path.exists, old))
    assert (folder / "mine.frec").exists()


def test_a_write_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_frec(ray.data.range(4, override_num_blocks=1), folder)
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}

    def break_off(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 7:
            raise ValueError("broken off")
        return row

    with pytest.raises(Exception, match="broken off"):
        write_frec(ray.data.range(10, override_num_blocks=5).map(break_off), folder, mode="append")
    with pytest.raises(Exception, match="has the fields other"):
        write_frec(ray.data.from_items([{"other": 1}]), folder, mode="append")
    with pytest.raises(fr.FastRecordError, match="no records"):
        write_frec(ray.data.range(4).map_batches(lambda rows: {"id": rows["id"][:0]}), folder, mode="append")
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before
    with pytest.raises(Exception, match="broken off"):
        write_frec(ray.data.range(10).map(break_off), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_repeated_tasks_write_no_record_twice(tmp_path: Path) -> None:
    """A worker that dies after it has written its shard: Ray runs its task again."""
    marks = tmp_path / "marks"
    marks.mkdir()

    from fastrecord.ray import writing

    class Dying(writing._FrecDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            written = super().write(blocks, ctx)
            mark = marks / str(ctx.task_idx)
            if not mark.exists():
                mark.touch()
                os._exit(1)
            return written

    folder = tmp_path / "set"
    usual, writing._FrecDatasink = writing._FrecDatasink, Dying  # type: ignore[misc]
    try:
        summary = write_frec(ray.data.range(30, override_num_blocks=3), folder)
    finally:
        writing._FrecDatasink = usual  # type: ignore[misc]
    assert len(list(marks.iterdir())) == summary.shards
    assert records(folder, "id") == [(number,) for number in range(30)]
    assert only_the_data_set(folder)


def test_a_killed_driver_leaves_the_old_data_set_or_the_new_one(tmp_path: Path, address: str) -> None:
    writes = Writes(address, tmp_path)
    writes.kill_one(0)
    assert not writes.failures, f"seed {writes.seed}"
    assert writes.counts["new"] + writes.counts["old"] == 1


def test_records_per_shard_is_a_limit_and_bad_records_are_listed(tmp_path: Path) -> None:
    rows = [{"image": encode(number) if number % 5 else b"no image" * 10, "id": number} for number in range(1, 31)]
    summary = write_frec(
        ray.data.from_items(rows, override_num_blocks=1), tmp_path / "set", records_per_shard=8, bad_files="skip",
        fields=fr.Fields(types={"image": "image"}),
    )  # fmt: skip
    assert records(tmp_path / "set", "id") == [(number,) for number in range(1, 31) if number % 5]
    skipped = []
    for name in summary.added:
        with fr.Reader(tmp_path / "set" / name) as reader:
            assert 0 < len(reader) <= 8
            skipped += reader.metadata["skipped"]
    assert len(skipped) == 6
    with pytest.raises(Exception, match="bad_files"):
        write_frec(ray.data.from_items(rows), tmp_path / "other", fields=fr.Fields(types={"image": "image"}))


def test_a_task_does_not_import_torch() -> None:
    program = "import sys, fastrecord.ray; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_urls_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="name one on a file system"):
        write_frec(ray.data.range(1), "s3://bucket/train")
