"""`read_frec`: each record once, typed, with sizes that are known before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastrecord as fr
from fastrecord.ray import read_frec
from fastrecord.ray.reading import _Columns, _FrecDatasource
from tests.conftest import encode

pytestmark = [
    pytest.mark.usefixtures("address"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray's own
]

SCHEMA = fr.Schema(
    {
        "image": fr.image(),
        "label": "int64",
        "key": fr.string(),
        "more": fr.json(),
        "grid": fr.array("float32", (2, 2)),
        "ragged": fr.array("int16", (None, 2)),
        "half": "bfloat16",
        "tags": fr.list_(fr.string()),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of 13 and 7 records, whose classes have other numbers."""
    for shard, (start, count, classes) in enumerate(((0, 13, ["cat", "dog"]), (13, 7, ["dog", "cat"]))):
        with fr.Writer(tmp_path / f"{shard}.frec", SCHEMA, metadata={"classes": classes}) as writer:
            for number in range(start, start + count):
                writer.append(
                    {
                        "image": encode(number),
                        "label": classes.index(("cat", "dog")[number % 2]),
                        "key": f"k{number}",
                        "more": {"number": number},
                        "grid": np.full((2, 2), number, np.float32),
                        "ragged": np.full((number % 3 + 1, 2), number, np.int16),
                        "half": number / 2,
                        "tags": [str(number)] * (number % 2),
                    }
                )
    fr.files.write_manifest(tmp_path)
    return tmp_path


def test_all_fields_arrive_in_order(folder: Path) -> None:
    read = read_frec(folder, override_num_blocks=3)
    assert read.count() == 20
    rows = sorted(read.take_all(), key=lambda row: int(row["key"][1:]))
    for number, row in enumerate(rows):
        assert row["image"] == encode(number)
        assert row["label"] == number % 2
        assert row["more"] == f'{{"number": {number}}}'
        assert np.array_equal(row["grid"], np.full((2, 2), number))
        assert np.array_equal(row["ragged"], np.full((number % 3 + 1, 2), number))
        assert row["half"] == number / 2
        assert list(row["tags"]) == [str(number)] * (number % 2)


def test_the_schema_is_known_and_typed(folder: Path) -> None:
    found = read_frec(folder).schema()
    types = dict(zip(found.names, found.types, strict=True))
    assert types["image"] == pa.binary()
    assert types["label"] == pa.int64()
    assert types["key"] == types["more"] == pa.string()
    assert types["half"] == pa.float32()
    assert types["tags"] == pa.list_(pa.string())


def test_columns_and_conditions(folder: Path) -> None:
    read = read_frec(folder, columns=["key", "label"], filter="label == 'dog' and half > 3")
    wanted = [{"key": f"k{number}", "label": 1} for number in range(7, 20, 2)]
    assert sorted(read.take_all(), key=lambda row: int(row["key"][1:])) == wanted
    view = fr.FastRecordDataset(folder).filter("half", lambda column: column >= 9)
    assert sorted(row["key"] for row in read_frec(view, columns=["key"]).take_all()) == ["k18", "k19"]
    assert read_frec(folder, filter="half > 1000").take_all() == []


def test_a_view_is_read_in_its_order(folder: Path) -> None:
    view = fr.FastRecordDataset(folder, fields=["key"]).subset([19, 3, 15, 3])
    assert [row["key"] for row in read_frec(view, override_num_blocks=1).take_all()] == ["k19", "k3", "k15", "k3"]


def test_images_can_be_decoded(folder: Path) -> None:
    rows = read_frec(folder, columns=["key", "image"], decode=True).take_all()
    dataset = fr.FastRecordDataset(folder, decode="native")
    for row in rows:
        image = dataset[int(row["key"][1:])][0]
        assert np.array_equal(row["image"], image.permute(1, 2, 0).numpy())


def test_tasks_know_rows_and_bytes_before_they_read(folder: Path) -> None:
    selection = fr.FastRecordDataset(folder, fields=list(SCHEMA)).selection
    source = _FrecDatasource(_Columns(None, decode=False), selection)
    tasks = source.get_read_tasks(3)
    assert [task.metadata.num_rows for task in tasks] == [6, 7, 7]
    stored = sum(len(encode(number)) for number in range(20))
    assert stored < source.estimate_inmemory_data_size() < 1.5 * stored
    assert sum(task.metadata.size_bytes or 0 for task in tasks) == pytest.approx(
        source.estimate_inmemory_data_size(), abs=3
    )
    assert len(source.get_read_tasks(1000)) == 20
    numbers = fr.FastRecordDataset(folder, fields=["label", "half"]).selection
    assert _FrecDatasource(_Columns(None, decode=False), numbers).estimate_inmemory_data_size() <= 20 * (8 + 8)


def test_what_arrow_lacks_is_refused(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"wave": "complex64", "id": "int64"})) as writer:
        writer.append({"wave": 1j, "id": 1})
    with pytest.raises(fr.FastRecordError, match=r"'wave'.*columns="):
        read_frec(tmp_path / "a.frec")
    assert read_frec(tmp_path / "a.frec", columns=["id"]).take_all() == [{"id": 1}]


def test_damage_is_an_error_of_the_read(folder: Path) -> None:
    path = folder / "0.frec"
    data = bytearray(path.read_bytes())
    place = bytes(data).index(encode(3)) + 100
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"0\.frec.*FR302"):
        read_frec(folder, columns=["image"]).take_all()


def test_arguments_are_checked(folder: Path) -> None:
    arguments: list[dict[str, Any]] = [{"filter": 3}, {"columns": "key"}, {"decode": 1}]
    for each in arguments:
        with pytest.raises(TypeError):
            read_frec(folder, **each)
