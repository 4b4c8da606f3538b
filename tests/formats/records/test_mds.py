from __future__ import annotations

import decimal
import io
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.formats import exchanging
from tests.support.formats.exchanging import open_source, plain, records, renames, types

MDS = registry.load("mds")
# Written by `write_with_streaming` with mosaicml-streaming 0.13.0, which needs an older numpy.
DATA = Path(__file__).parent / "data" / "mds"
COUNT = 8


def colours(i: int) -> Image.Image:
    return Image.fromarray(np.full((4, 5 + i, 3), (i, 2 * i, 200), np.uint8))


# Columns: encoding, type of the field, and what the library stores for a record.
COLUMNS: dict[str, tuple[str, str, Callable[[int], Any]]] = {
    "jpg": ("jpeg", "image", colours),
    "raw": ("bytes", "bytes", lambda i: bytes([i]) * (i % 4)),
    "label": ("int", "int64", lambda i: i - 3),
    "u": ("uint16", "uint16", int),
    "f": ("float32", "float32", lambda i: i / 4),
    "text": ("str", "string", "tëxt {}".format),
    "fixed": ("ndarray:float32:2,3", "array(float32, (2, 3))", lambda i: np.full((2, 3), i, np.float32)),
    "varying": ("ndarray:int16", "array(int16, (None, 4))", lambda i: np.full((i % 3 + 1, 4), i, np.int16)),
    "free": ("ndarray", "array(float64, (None,))", lambda i: np.full(i % 3 + 1, i, np.float64)),
    "meta": ("json", "json", lambda i: {"a": [i, None]}),
    "pil": ("pil", "array(uint8, (None, None, 3))", colours),
    "pickled": ("pkl", "json", lambda _: {"z": (1, "x", 2.5)}),
    "si": ("str_int", "int64", lambda i: i * 10**6),
    "sf": ("str_float", "float64", lambda i: i / 8),
    "sd": ("str_decimal", "string", lambda i: decimal.Decimal(f"{i}.50")),
    "list": ("list[png]", "list(image)", lambda i: [colours(j) for j in range(i % 3)]),
}


def decoded(data: Any) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def check(found: list[dict[str, Any]], start: int = 0) -> None:
    assert len(found) == COUNT - start
    for i, record in enumerate(found, start):
        expected = {name: value(i) for name, (_, _, value) in COLUMNS.items()}
        assert np.abs(decoded(record.pop("jpg")).astype(int) - np.asarray(expected.pop("jpg"))).max() < 10
        record["list"] = [decoded(data) for data in record["list"]]
        expected |= {"pil": np.asarray(expected["pil"]), "sd": str(expected["sd"])}
        expected["list"] = [np.asarray(each) for each in expected["list"]]
        assert plain(record) == plain(expected)


def write_with_streaming(folder: Path, **options: Any) -> None:
    from streaming import MDSWriter

    columns = {name: encoding for name, (encoding, _, _) in COLUMNS.items()}
    with MDSWriter(columns=columns, out=str(folder), size_limit=4000, **options) as writer:
        for i in range(COUNT):
            writer.write({name: value(i) for name, (_, _, value) in COLUMNS.items()})


@pytest.mark.parametrize("kind", ["plain", "zstd", "snappy"])
def test_shards_of_the_library_come_in_from_any_record_on(tmp_path: Path, kind: str) -> None:
    if kind != "plain":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    folder = DATA / kind
    chosen, why = registry.recognise(str(folder))
    assert (chosen.name, why) == ("mds", "the folder holds index.json and shard.*.mds")
    assert registry.recognise(str(folder / "index.json"))[0].name == "mds"
    with open_source(chosen, folder) as source:
        assert types(source) == {name: kind for name, (_, kind, _) in COLUMNS.items()}
        assert renames(source) == {"jpg": "image"}
        assert source.count() == COUNT
        assert len(source.paths) > 2
        for start in (0, 1, 5, 7, 8):
            check(records(source, start), start)
        exchanging.import_back(source, tmp_path / "a.frec")
        assert plain(records(source, 3, ["text", "u"])) == [{"text": f"tëxt {i}", "u": i} for i in range(3, COUNT)]
    two = open_source(MDS, [str(folder), str(folder / "index.json")])
    assert len(records(two)) == 2 * COUNT
    assert two.place(COUNT) == f"{folder}/{os.path.basename(source.paths[0])}: record 0"


@pytest.mark.parametrize("compression", [None, "zstd:3", "gz", "bz2", "br", "snappy"])
def test_the_library_writes_what_comes_in(tmp_path: Path, compression: str | None) -> None:
    pytest.importorskip("streaming", reason="needs mosaicml-streaming", exc_type=ImportError)
    write_with_streaming(tmp_path / "mds", compression=compression)
    check(records(open_source(MDS, tmp_path / "mds")))


def test_the_library_reads_an_export(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="needs mosaicml-streaming", exc_type=ImportError)
    schema, columns = exchanging.every_type()
    frec = exchanging.write_file(tmp_path / "a.frec", schema, columns)
    exchanging.export(frec, MDS, folder := tmp_path / "mds", shard_size="4000")
    dataset = streaming.StreamingDataset(local=str(folder), remote=None, shuffle=False, batch_size=1)
    for i in range(len(columns["image"])):
        for name, value in dataset[i].items():
            expected = columns[name][i]
            if name == "image":
                assert np.array_equal(np.asarray(value), decoded(expected))
            elif name == "boxes":
                assert value.tolist() == [box.tolist() for box in expected]
            else:
                assert plain(value) == plain(expected) or value == expected


def test_shards_of_an_export_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    frec = exchanging.write_file(tmp_path / "a.frec", {"raw": fr.bytes_()}, {"raw": [bytes(1000)] * 10})
    exchanging.export(frec, MDS, folder := tmp_path / "mds", shard_size="4000")
    shards = json.loads((folder / "index.json").read_text())["shards"]
    assert sum(shard["samples"] for shard in shards) == 10
    assert sorted(path.name for path in folder.glob("shard*")) == [f"shard.{i:05d}.mds" for i in range(len(shards))]
    assert all(
        shard["raw_data"]["bytes"] == (folder / shard["raw_data"]["basename"]).stat().st_size for shard in shards
    )


def test_what_mds_cannot_hold_is_refused(tmp_path: Path) -> None:
    schema = {
        "a": fr.FieldType("bfloat16"),
        "b": fr.FieldType("complex64"),
        "c": fr.array("int8", (0, 3)),
        "d": fr.list_(fr.image()),
        "e": fr.array("bool", (3,)),
        "f": fr.list_("bool"),
    }
    assert set(MDS.refuse(fr.Schema(schema))) == {"a", "b", "c", "d"}
    with pytest.raises(ValueError, match="shard_size=5000000000"):
        MDS.create(str(tmp_path / "x"), fr.Schema(schema), {}, {"shard_size": "5000000000"})


def copy(tmp_path: Path, kind: str = "plain") -> Path:
    return Path(shutil.copytree(DATA / kind, tmp_path / f"copy {kind}"))


@pytest.mark.parametrize("kind", ["plain", "zstd", "snappy"])
def test_shards_that_are_cut_short_end_with_an_error(tmp_path: Path, kind: str) -> None:
    if kind != "plain":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    folder = copy(tmp_path, kind)
    source = open_source(MDS, folder)
    shard = Path(source.paths[-1])
    before = source.count() - json.loads((folder / "index.json").read_text())["shards"][-1]["samples"]
    whole = shard.read_bytes()
    for size in [*range(0, 40, 7), *range(40, len(whole), 97), len(whole) - 1]:
        shard.write_bytes(whole[:size])
        done = 0
        with pytest.raises(fr.FastRecordError, match=rf"{shard}: record \d+: .*FR752") as caught:  # noqa: PT012
            for rows in source.read(0, list(COLUMNS)):
                done += rows.count
        assert before <= done < COUNT
        assert f"record {done - before}:" in str(caught.value)


def test_damaged_shards_never_crash(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    shard = folder / "shard.00001.mds"
    places = range(16), range(shard.stat().st_size)
    bad, errors = exchanging.damaged(MDS, folder, shard, lambda number: places[number % 3 > 0], 150)
    assert bad > 10
    assert errors > 3


def change(shard: Path, old: bytes, new: bytes) -> None:
    data = shard.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    shard.write_bytes(data.replace(old, new))


def test_values_that_cannot_be_read_are_bad_records(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    first = folder / "shard.00000.mds"
    change(first, "tëxt 0".encode(), b"t\xff\xffxt 0")
    second = folder / "shard.00001.mds"
    at = json.loads((folder / "index.json").read_text())["shards"][0]["samples"]
    change(second, b'{"a": [%d, null]}' % at, b'{"a": [%d, nil!]}' % at)
    source = open_source(MDS, folder)
    bad = exchanging.bad_records(source)
    assert list(bad) == [0, at]
    assert bad[0].startswith("field 'text': 'utf-8' codec")
    assert bad[at].startswith("field 'meta': Expecting value")


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def write_by_hand(folder: Path, encoding: str, values: list[bytes]) -> Path:
    folder.mkdir()
    parts = [struct.pack("<I", len(value)) + value for value in values]
    offsets = np.cumsum([4 + 4 * (len(parts) + 1), *map(len, parts)]).astype("<u4")
    (folder / "shard.00000.mds").write_bytes(struct.pack("<I", len(parts)) + offsets.tobytes() + b"".join(parts))
    shard = {
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None, "column_names": ["x"],
        "column_encodings": [encoding], "column_sizes": [None], "samples": len(parts), "zip_data": None,
        "raw_data": {"basename": "shard.00000.mds", "bytes": int(offsets[-1]), "hashes": {}},
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return folder


def test_pickles_are_never_run(tmp_path: Path) -> None:
    values = [pickle.dumps({"a": 1}), pickle.dumps(Hostile(tmp_path / "hacked")), pickle.dumps({"a": 2})]
    source = open_source(MDS, write_by_hand(tmp_path / "mds", "pkl", values))
    assert list(exchanging.bad_records(source)) == [1]
    assert not (tmp_path / "hacked").exists()


def test_lengths_in_values_are_checked(tmp_path: Path) -> None:
    arrays = [b"\x08\x04\x02ab", b"", b"\x63\x04", b"\x08", b"\x08\x07" + b"\xff" * 8, b"\x08\x04\x09ab"]
    source = open_source(MDS, write_by_hand(tmp_path / "a", "ndarray", arrays))
    assert list(exchanging.bad_records(source)) == [1, 2, 3, 4, 5]
    pictures = [
        struct.pack("<III", 2, 1, 1) + b"Lab",
        struct.pack("<III", 2**32 - 1, 2**32 - 1, 3) + b"RGB",
        b"",
        b"\1",
    ]
    source = open_source(MDS, write_by_hand(tmp_path / "b", "pil", pictures))
    assert list(exchanging.bad_records(source)) == [1, 2, 3]
    lists = [bytes(8), b"\0\0\0\0\xff\xff\xff\xff", b"\0\0\0\0\1\0\0\0\2\0\0\0x"]
    source = open_source(MDS, write_by_hand(tmp_path / "c", "list[jpeg]", lists))
    assert list(exchanging.bad_records(source)) == [1, 2]


def test_an_encoding_that_is_not_known_comes_in_as_bytes(tmp_path: Path) -> None:
    source = open_source(MDS, write_by_hand(tmp_path / "a", "mine", [b"ab", b""]))
    assert types(source) == {"x": "bytes"}
    assert plain(records(source)) == [{"x": b"ab"}, {"x": b""}]
    assert [field.origin for field in source.fields] == ["column of mine"]


def test_what_is_not_an_index_is_said(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    path = folder / "index.json"
    index = json.loads(path.read_text())
    text = json.dumps(index)
    for wrong in (
        "",
        "[]",
        "{}",
        '{"shards": []}',
        text.replace('"format": "mds"', '"format": "csv"'),
        text.replace('"samples"', '"n"'),
        text.replace('"basename": "shard.00001', '"basename": "../shard.00001'),
        text.replace("ndarray:float32:2,3", "ndarray:object:2,3"),
    ):
        path.write_text(wrong)
        with pytest.raises(fr.FastRecordError, match=rf"{path}: .*FR752"):
            open_source(MDS, folder)
    index["shards"][1]["column_names"][0] = "other"
    path.write_text(json.dumps(index))
    with pytest.raises(fr.FastRecordError, match=r"shard\.00001\.mds: its columns are .*FR754"):
        open_source(MDS, folder)
    path.write_text(text)
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(FileNotFoundError):
        open_source(MDS, folder)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert records(open_source(MDS, DATA / "plain"))
    with pytest.raises(fr.FastRecordError, match=r"compressed with zstd needs .*pip install 'fastrecord\[parquet\]'"):
        open_source(MDS, DATA / "zstd")
