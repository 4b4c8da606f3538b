from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.formats import exchanging
from tests.support.formats.exchanging import open_source, plain, records, renames, types
from tests.support.packing import pack_with

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
datasets = pytest.importorskip("datasets", reason="needs datasets")
HUGGINGFACE = registry.load("huggingface")

COUNT = 30
PICTURES = exchanging.images(COUNT)
GRIDS = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)


@pytest.fixture(scope="module")
def dataset() -> Any:
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "fox"]),
            "text": datasets.Value("string"),
            "score": datasets.Value("float32"),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "views": datasets.Sequence(datasets.Image()),
            "grid": datasets.Array2D((2, 3), "float32"),
            "frames": datasets.Array3D((None, 2, 1), "uint8"),
            "meta": {"a": datasets.Value("int64"), "b": datasets.Value("string")},
        }
    )
    rows = {
        "img": [{"bytes": data, "path": None} for data in PICTURES],
        "label": [i % 3 for i in range(COUNT)],
        "text": [f"tëxt {i}" for i in range(COUNT)],
        "score": [i / 4 for i in range(COUNT)],
        "tokens": [list(range(i % 4)) for i in range(COUNT)],
        "views": [[{"bytes": data, "path": None} for data in PICTURES[: i % 3]] for i in range(COUNT)],
        "grid": list(GRIDS),
        "frames": [np.full((i % 3 + 1, 2, 1), i, np.uint8) for i in range(COUNT)],
        "meta": [{"a": i, "b": "x"} for i in range(COUNT)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def check(found: list[dict[str, Any]], numbers: list[int]) -> None:
    assert len(found) == len(numbers)
    for record, i in zip(found, numbers, strict=True):
        own = plain(record)
        assert own["img"] == PICTURES[i]
        assert own["label"] == i % 3
        assert own["text"] == f"tëxt {i}"
        assert own["score"] == i / 4
        assert record["tokens"].tolist() == list(range(i % 4))
        assert own["views"] == PICTURES[: i % 3]
        assert own["grid"] == plain(GRIDS[i])
        assert own["frames"] == plain(np.full((i % 3 + 1, 2, 1), i, np.uint8))
        assert (own["meta.a"], own["meta.b"]) == (i, "x")


def test_a_saved_data_set_comes_in(tmp_path: Path, dataset: Any) -> None:
    folder = tmp_path / "saved"
    dataset.save_to_disk(folder, num_shards=3)
    chosen, why = registry.recognise(str(folder))
    assert chosen.name == "huggingface"
    assert "save_to_disk" in why
    with open_source(chosen, folder) as source:
        assert types(source) == {
            "img": "image",
            "label": "int64",
            "text": "string",
            "score": "float32",
            "tokens": "list(int32)",
            "views": "list(image)",
            "grid": "array(float32, (2, 3))",
            "frames": "array(uint8, (None, 2, 1))",
            "meta.a": "int64",
            "meta.b": "string",
        }
        dots = {"meta.a": "meta_a", "meta.b": "meta_b"}
        assert renames(source) == {"img": "image"} | dots
        assert source.classes == ["cat", "dog", "fox"]
        check(records(source), list(range(COUNT)))
        check(records(source, 17), list(range(17, COUNT)))
        assert source.place(11) == f"{folder}/data-00001-of-00003.arrow: record 1"
        frec = exchanging.import_back(source, tmp_path / "out.frec")
    # The package itself agrees on what is saved.
    loaded = datasets.load_from_disk(str(folder))
    for row, record in zip(loaded, fr.Reader(frec), strict=True):
        with Image.open(io.BytesIO(record["image"])) as image:
            assert np.array_equal(np.asarray(image), np.asarray(row["img"]))
        assert row["text"] == record["text"]
        assert row["grid"] == record["grid"].tolist()


def test_a_selection_that_an_early_version_saved_as_indices_is_refused(tmp_path: Path, dataset: Any) -> None:
    dataset.save_to_disk(tmp_path / "saved")
    state = tmp_path / "saved/state.json"
    for name in ("_indices_files", "_indices_data_files"):
        state.write_text(json.dumps(json.loads(state.read_text()) | {name: [{"filename": "indices.arrow"}]}))
        with pytest.raises(fr.FastRecordError, match=r"saved: it is a selection .*save it with today's.*FR752"):
            open_source(HUGGINGFACE, tmp_path / "saved")


def test_one_split_of_several_is_chosen_by_name(tmp_path: Path, dataset: Any) -> None:
    folder = tmp_path / "splits"
    parts = {"train": dataset.select(range(20)), "test": dataset.select(range(20, COUNT))}
    datasets.DatasetDict(parts).save_to_disk(folder)
    assert registry.recognise(str(folder))[0].name == "huggingface"
    with pytest.raises(fr.FastRecordError, match=r"has the splits train, test.*--set split=train.*FR752"):
        open_source(HUGGINGFACE, folder)
    with pytest.raises(fr.FastRecordError, match=r"no split 'val', but train, test"):
        open_source(HUGGINGFACE, folder, split="val")
    check(records(open_source(HUGGINGFACE, folder, split="test")), list(range(20, COUNT)))
    with pytest.raises(fr.FastRecordError, match=r"it is the split .*, not val"):
        open_source(HUGGINGFACE, folder / "test", split="val")


def test_a_repository_and_a_cache_come_in(tmp_path: Path, dataset: Any) -> None:
    repository = tmp_path / "repository"
    (repository / "data").mkdir(parents=True)
    for i, shard in enumerate((range(13), range(13, COUNT))):
        dataset.select(shard).to_parquet(repository / "data" / f"train-{i:05d}-of-00002.parquet")
    dataset.select(range(3)).to_parquet(repository / "data" / "test-00000-of-00001.parquet")
    assert registry.recognise(str(repository))[0].name == "huggingface"
    check(records(open_source(HUGGINGFACE, repository, split="train")), list(range(COUNT)))
    with pytest.raises(fr.FastRecordError, match="has the splits test, train"):
        open_source(HUGGINGFACE, repository)

    saved, cache = tmp_path / "saved", tmp_path / "cache"
    dataset.save_to_disk(saved)
    cache.mkdir()
    shutil.copy(saved / "data-00000-of-00001.arrow", cache / "my-set-train.arrow")
    shutil.copy(saved / "dataset_info.json", cache)
    assert registry.recognise(str(cache))[0].name == "huggingface"
    check(records(open_source(HUGGINGFACE, cache)), list(range(COUNT)))


def test_damage_is_named(tmp_path: Path, dataset: Any) -> None:
    folder = tmp_path / "saved"
    dataset.save_to_disk(folder, num_shards=2)
    shard, state = folder / "data-00001-of-00002.arrow", folder / "state.json"
    whole, text = shard.read_bytes(), state.read_text()
    shard.write_bytes(whole[:-8])  # all records are there, but no end mark
    with open_source(HUGGINGFACE, folder) as source:
        runs = source.read(0, ["text"])
        with pytest.raises(fr.FastRecordError, match=rf"{shard}: record 15: .*cut short.*FR752"):
            assert sum(run.count for run in runs) < 0
    for size in (0, 100, len(whole) // 2):
        shard.write_bytes(whole[:size])
        with pytest.raises(fr.FastRecordError, match=rf"{shard}.*FR752"):
            records(open_source(HUGGINGFACE, folder))
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        open_source(HUGGINGFACE, folder)
    shard.write_bytes(whole)
    for wrong in ("", "[]", "{}", '{"_data_files": [{"filename": "../x.arrow"}]}', '{"_data_files": []}'):
        state.write_text(wrong)
        with pytest.raises(fr.FastRecordError, match=rf"{folder}.*FR752"):
            open_source(HUGGINGFACE, folder)
    state.write_text(text)
    with pytest.raises(fr.FastRecordError, match=r"not the folder.*FR752"):
        open_source(HUGGINGFACE, shard)


def test_a_loaded_data_set_comes_in_as_its_folder_does(tmp_path: Path, dataset: Any) -> None:
    rows = dataset.select(range(20, 3, -1))
    rows.save_to_disk(tmp_path / "saved")
    pack_with(tmp_path / "saved", tmp_path / "a.frec")
    pack_with(rows, tmp_path / "b.frec", format="dataset")
    foreign_entries = ("packs",)
    with fr.Reader(tmp_path / "a.frec") as one, fr.Reader(tmp_path / "b.frec") as two:
        assert one.schema == two.schema
        assert {k: v for k, v in one.metadata.items() if k not in foreign_entries} == {
            k: v for k, v in two.metadata.items() if k not in foreign_entries
        }
        assert [plain(record) for record in one] == [plain(record) for record in two]
    pack_with(rows, tmp_path / "c.frec", format="dataset", mapping=["img", "label"])
    with fr.Reader(tmp_path / "c.frec") as reader:
        assert list(reader.schema) == ["img", "label"]


def test_images_that_a_data_set_names_are_brought_in(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(PICTURES[number])
    rows = {"image": [str(tmp_path / f"{number}.jpg") for number in range(4)], "label": [0, None, 1, 2]}
    dataset = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    pack_with(dataset, tmp_path / "out.frec", format="dataset", fill={"label": 7})
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert [bytes(record["image"]) for record in reader] == PICTURES[:4]
        assert reader.column("label").tolist() == [0, 7, 1, 2]
        assert reader[3]["key"] == "3.jpg"
