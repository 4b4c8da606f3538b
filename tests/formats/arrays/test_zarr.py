from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec
from zarr.dtype import VariableLengthBytes

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.formats.exchanging import bad_records, picture, take

ZARR = registry.load("zarr")
COUNT = 25
RNG = np.random.default_rng(0)
COLUMNS: dict[str, Any] = {
    "x": RNG.random((COUNT, 3, 5)).astype("f4"),
    "deep/labels": np.arange(COUNT) % 4,
    "image": RNG.integers(0, 256, (COUNT, 6, 4, 3), np.uint8),
    "flag": np.arange(COUNT) % 2 == 0,
}


def opened(path: Path | str, **settings: str) -> Any:
    return registry.recognise(str(path))[0].open(str(path), settings)


def compare(path: Path, expected: dict[str, Any]) -> None:
    with opened(path) as source:
        assert {f.name for f in source.fields} == set(expected)
        assert source.count() == COUNT
        for start in (0, 1, 13, 24):
            columns = take(source, start)
            for name, values in expected.items():
                assert np.array_equal(columns[name], values[start:]), name
                assert np.asarray(columns[name]).dtype == values.dtype.newbyteorder("=")


def write_zarr(path: Path, version: Any, columns: dict[str, Any] = COLUMNS, **options: Any) -> Path:
    group = zarr.create_group(str(path), zarr_format=version)
    for name, values in columns.items():
        chunks = tuple(max(1, dim // 2 - 1) for dim in values.shape)
        group.create_array(name, data=values, chunks=chunks, **options)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_of_zarr_are_fields(tmp_path: Path, version: Any) -> None:
    path = write_zarr(tmp_path / "a.zarr", version)
    group = zarr.open_group(str(path), mode="a")
    group.attrs["note"] = {"a": [1, "ä"]}
    group["x"].attrs["unit"] = "mm"
    assert registry.recognise(str(path))[0] is ZARR
    compare(path, COLUMNS)
    with opened(path) as source:
        assert source.metadata == {"note": {"a": [1, "ä"]}, "attributes": {"x": {"unit": "mm"}}}
        assert [(f.name, f.rename) for f in source.fields if f.rename] == [("deep/labels", "label")]
        assert source.place(3) == f"{path}: record 3"
    with opened(path, group="deep") as source:
        assert take(source, 20)["labels"] == [0, 1, 2, 3, 0]
    compare(
        write_zarr(tmp_path / "b.zarr", version, {"x": COLUMNS["x"].astype(">f8")}), {"x": COLUMNS["x"].astype("f8")}
    )
    alone = zarr.create_array(str(tmp_path / "c.zarr"), data=COLUMNS["x"], zarr_format=version)
    assert alone.shape == (COUNT, 3, 5)
    compare(tmp_path / "c.zarr", {"c": COLUMNS["x"]})


def test_shards_fill_values_and_codecs_of_zarr(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "a.zarr"))
    group.create_array("x", data=COLUMNS["x"], chunks=(2, 3, 5), shards=(10, 3, 5))
    group.create_array("gz", data=COLUMNS["x"], chunks=(4, 3, 2), compressors=GzipCodec())
    sparse = group.create_array("sparse", shape=(COUNT, 2), chunks=(5, 2), dtype="i2", fill_value=7)
    sparse[6] = 1
    expected = np.full((COUNT, 2), 7, "i2")
    expected[6] = 1
    compare(tmp_path / "a.zarr", {"x": COLUMNS["x"], "gz": COLUMNS["x"], "sparse": expected})


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("version", [2, 3])
def test_text_and_bytes_of_zarr(tmp_path: Path, version: Any) -> None:
    group = zarr.create_group(str(tmp_path / "a.zarr"), zarr_format=version)
    names = [f"nämé {n}" for n in range(COUNT)]
    group.create_array("fixed", data=np.array(names), chunks=(4,))
    group.create_array("name", shape=(COUNT,), chunks=(4,), dtype=str)[:] = np.array(names, dtype=object)
    images = [picture(n) for n in range(COUNT)]
    held = group.create_array("image", shape=(COUNT,), chunks=(4,), dtype=VariableLengthBytes())
    held[:] = np.array(images, dtype=object)
    with opened(tmp_path / "a.zarr") as source:
        assert {f.name: f.type.name for f in source.fields} == {"fixed": "string", "name": "string", "image": "image"}
        assert take(source) == {"fixed": names, "name": names, "image": images}
        assert take(source, 20, ["image"])["image"] == images[20:]


def test_pickles_in_zarr_are_not_run(tmp_path: Path) -> None:
    write_zarr(tmp_path / "a.zarr", 2, {"x": np.arange(COUNT)})
    path = tmp_path / "a.zarr/x/.zarray"
    description = json.loads(path.read_text())
    for change in ({"filters": [{"id": "pickle", "protocol": 4}]}, {"compressor": {"id": "pickle", "protocol": 4}}):
        path.write_text(json.dumps(description | {"dtype": "|O", "fill_value": 0} | change))
        with pytest.raises(fr.FastRecordError, match=r"a.zarr: .*FR75[26]"):
            opened(tmp_path / "a.zarr")


def test_damaged_chunks_of_zarr_make_their_records_bad(tmp_path: Path) -> None:
    codec = GzipCodec()
    write_zarr(tmp_path / "a.zarr", 3, {"x": np.arange(COUNT * 2).reshape(COUNT, 2)}, compressors=codec)
    chunk = tmp_path / "a.zarr/x/c/1/0"
    whole = chunk.read_bytes()
    step = COUNT // 2 - 1
    for data in (whole[: len(whole) // 2], b"", whole[:30] + b"xxxx" + whole[34:]):
        chunk.write_bytes(data)
        with opened(tmp_path / "a.zarr") as source:
            bad = bad_records(source)
            assert list(bad) == list(range(step, 2 * step))
            assert "a chunk of x cannot be read" in bad[step]
            good = [int(row[0]) // 2 for rows in source.read(0, ["x"]) for row in rows.columns["x"]]
            assert good == [n for n in range(COUNT) if n not in bad]


def test_what_zarr_cannot_give_is_refused(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", 3, {"x": np.zeros(9), "y": np.zeros((3, 2))})
    with pytest.raises(fr.FastRecordError, match=r"different first lengths \(3: y; 9: x\): .*--set arrays=x"):
        opened(path)
    with opened(path, arrays="x") as source:
        assert source.count() == 9
    with pytest.raises(fr.FastRecordError, match=r"a.zarr: nothing is not whole, or cannot be read"):
        opened(path, group="nothing")
    (path / "x/zarr.json").write_text("{")
    with pytest.raises(fr.FastRecordError, match=r"a.zarr: .*copy it again.*FR752"):
        opened(path)
    group = zarr.create_group(str(tmp_path / "b.zarr"))
    group.create_array("x", shape=(1 << 40,), chunks=(1 << 30,), dtype="f8")
    with pytest.raises(fr.FastRecordError, match=r"array 'x' has chunks of 8,192 MiB: write it with smaller ones"):
        opened(tmp_path / "b.zarr")
    zarr.create_group(str(tmp_path / "c.zarr"))
    with pytest.raises(fr.FastRecordError, match=r"c.zarr: it holds no arrays with records"):
        opened(tmp_path / "c.zarr")


def test_folders_are_shards(tmp_path: Path) -> None:
    for number in range(2):
        write_zarr(tmp_path / f"{number}.zarr", 3, {"x": np.arange(6) + 10 * number})
    with ZARR.open([str(tmp_path / f"{number}.zarr") for number in range(2)], {}) as source:
        assert take(source, 4)["x"] == [4, 5, 10, 11, 12, 13, 14, 15]
