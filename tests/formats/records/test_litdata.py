from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.formats import exchanging
from tests.support.formats.exchanging import open_source, plain, records, renames, types

pytest.importorskip("litdata", reason="needs litdata")
pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
LITDATA = registry.load("litdata")

COUNT = 12
NESTED = [
    ["a", "ü"], [1, -(2**40)], [0.5, 1e300], [True, False], {"k": {"z": None, "b": True, "f": 0.25}}, [],
    [{"a": 1, "b": "x"}, {"a": None, "b": 2.5}], [1, "mixed"], [{"a": True}], [{"a": [1]}], "text", 7,
]  # fmt: skip


class Odd:
    """Something that only a pickle can hold."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def jpeg(pictures: Path, i: int) -> Any:
    from litdata.types import Jpeg

    return Jpeg(bytes=(pictures / f"{i}.jpg").read_bytes())


# Leaves: type of the field, and what the library stores for a record.
LEAVES: dict[str, tuple[str, Callable[[int], Any]]] = {
    "label": ("int64", lambda i: i - 3),
    "score": ("float64", lambda i: i / 4),
    "text": ("string", "tëxt {}".format),
    "raw": ("bytes", lambda i: bytes([i]) * (i % 5)),
    "grid": ("array(float32, (2, 3))", lambda i: np.full((2, 3), i, np.float32)),
    "line": ("array(int64, (5,))", lambda _: np.arange(5)),
    "matrix": ("array(int16, (2, None))", lambda i: torch.full((2, i % 2 + 1), i, dtype=torch.int16)),
    "tokens": ("array(int64, (None,))", lambda i: torch.arange(i + 1)),
    "pil": ("array(uint8, (None, None, 3))", lambda i: Image.fromarray(np.full((4, 5 + i, 3), i, np.uint8))),
    "flag": ("bool", lambda i: i % 2 == 0),
}


def sample(i: int, pictures: Path) -> dict[str, Any]:
    leaves = {name: value(i) for name, (_, value) in LEAVES.items()}
    return {"picture": jpeg(pictures, i), **leaves, "nested": {"x": [i, {"y": "z"}]}}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(COUNT):
        Image.fromarray(np.full((6, 8 + i, 3), (i, 3 * i, 99), np.uint8)).save(folder / f"{i}.jpg")
    return folder


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    return write(tmp_path_factory.mktemp("chunks") / "all", [sample(i, pictures) for i in range(COUNT)])


def write(folder: Path, samples: list[Any], **options: Any) -> Path:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=5, **options)
    for i, each in enumerate(samples):
        writer.add_item(i, each)
    writer.done()
    writer.merge()
    return folder


def packed(source: Path, folder: Path, level: str) -> Path:
    """Copy chunks, compressed by the library's own functions as `optimize(compression="zstd")` does."""
    from litdata.streaming.framed_zstd import make_zstd_codec, pack_framed_zstd, pack_sample_zstd

    codec = make_zstd_codec("zstd")
    folder.mkdir()
    index = json.loads((source / "index.json").read_text())
    index["config"] |= {"compression": "zstd", "compression_level": None if level == "chunk" else level}
    for chunk in index["chunks"]:
        data = (source / chunk["filename"]).read_bytes()
        if level == "chunk":
            chunk["filename"] = chunk["filename"].replace(".bin", ".zstd.bin")
            data = codec.compress(data)
        else:
            data = pack_framed_zstd(data, codec, 2) if level == "batch" else pack_sample_zstd(data, codec)
        (folder / chunk["filename"]).write_bytes(data)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def check(found: list[dict[str, Any]], pictures: Path, start: int = 0) -> None:
    assert len(found) == COUNT - start
    for i, record in enumerate(found, start):
        arrays = (torch.Tensor, Image.Image)
        expected = {name: value(i) for name, (_, value) in LEAVES.items()}
        expected = {name: np.asarray(each) if isinstance(each, arrays) else each for name, each in expected.items()}
        assert plain(record) == {
            "picture": (pictures / f"{i}.jpg").read_bytes(), **plain(expected), "nested_x": [i, {"y": "z"}]
        }  # fmt: skip


@pytest.mark.parametrize("level", ["none", "chunk", "batch", "sample"])
def test_chunks_come_in_from_any_record_on(tmp_path: Path, chunks: Path, pictures: Path, level: str) -> None:
    folder = chunks if level == "none" else packed(chunks, tmp_path / level, level)
    chosen, why = registry.recognise(str(folder))
    assert (chosen.name, why) == ("litdata", "the folder holds index.json and chunk-*.bin")
    with open_source(chosen, folder) as source:
        kinds = {name: kind for name, (kind, _) in LEAVES.items()}
        assert types(source) == {"picture": "image", **kinds, "nested_x": "json"}
        assert renames(source) == {"picture": "image"}
        assert source.count() == COUNT
        for start in (0, 1, 4, 5, 8, 11, 12):
            check(records(source, start), pictures, start)
        assert source.place(6) == f"{source.paths[1]}: record 1"
        exchanging.import_back(source, tmp_path / "a.frec")


def test_tuples_and_single_values_come_in(tmp_path: Path, pictures: Path) -> None:
    pairs = [(jpeg(pictures, i), i, f"t{i}") for i in range(COUNT)]
    source = open_source(LITDATA, write(tmp_path / "pairs", pairs))
    assert types(source) == {"0": "image", "1": "int64", "2": "string"}
    assert renames(source) == {"0": "image", "1": "label"}
    assert [(record["1"], record["2"]) for record in records(source)] == [(i, f"t{i}") for i in range(COUNT)]
    source = open_source(LITDATA, write(tmp_path / "single", [torch.arange(i + 2) for i in range(COUNT)]))
    assert types(source) == {"item": "array(int64, (None,))"}
    assert [record["item"].tolist() for record in records(source)] == [list(range(i + 2)) for i in range(COUNT)]


def test_tokens_come_in(tmp_path: Path) -> None:
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    texts = [torch.arange(10 * i, 10 * i + 3 + i) for i in range(COUNT)]
    writer = BinaryWriter(str(tmp_path / "tokens"), item_loader=TokensLoader(), chunk_bytes=400)
    for i, text in enumerate(texts):
        writer.add_item(i, text)
    writer.done()
    writer.merge()
    source = open_source(LITDATA, tmp_path / "tokens")
    assert len(source.paths) > 1
    assert [record["item"].tolist() for record in records(source)] == [text.tolist() for text in texts]


def test_rows_of_plain_data_come_in(tmp_path: Path) -> None:
    rows = [{"text": f"ä{i}", "n": i, "tags": ["x"] * (i % 3)} for i in range(COUNT)]
    source = open_source(LITDATA, write(tmp_path / "rows", rows))
    assert types(source) == {"text": "string", "n": "int64", "tags": "list(string)"}
    assert plain(records(source)) == rows
    assert plain(records(source, 7)) == rows[7:]


def test_every_nested_value_comes_in() -> None:
    from litdata.streaming.serializers import JsonLeaf, JsonSerializer

    from fastrecord.formats.litdata import _nested

    for value in NESTED:
        data, _ = JsonSerializer().serialize(JsonLeaf(value))
        assert _nested(memoryview(data)) == value
        for size in range(len(data)):
            try:
                _nested(memoryview(data)[:size])
            except ValueError:
                continue
            assert value == [] or size > 4
    assert _nested(memoryview(b'{"a": [1]}')) == {"a": [1]}
    for hostile in (
        b"\x06\xff\xff\xff\xff\0\0\0\0" + bytes(20),
        b"\x01\xff\xff\xff\xff",
        b"\x05\1\0\0\0\0\0\0\0" * 1000,
        b"\x0c",
        b"\x02\xff\xff\xff\x7f",
    ):
        with pytest.raises(ValueError, match=r"."):
            _nested(memoryview(hostile))


@pytest.mark.parametrize("level", ["none", "chunk", "batch", "sample"])
def test_chunks_that_are_cut_short_end_with_an_error(tmp_path: Path, chunks: Path, level: str) -> None:
    folder = packed(chunks, tmp_path / "packed", "sample" if level == "none" else level)
    if level == "none":
        for path in chunks.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    source = open_source(LITDATA, folder)
    chunk = Path(source.paths[-1])
    whole = chunk.read_bytes()
    for size in [*range(0, 60, 9), *range(60, len(whole), len(whole) // 30), len(whole) - 1]:
        chunk.write_bytes(whole[:size])
        done = 0
        with pytest.raises(fr.FastRecordError, match=rf"{chunk}: record \d+: .*FR752"):  # noqa: PT012
            for rows in open_source(LITDATA, folder).read(0, ["label", "picture"]):
                done += rows.count
        assert 10 <= done < COUNT


@pytest.mark.parametrize("level", ["none", "chunk", "batch", "sample"])
def test_damaged_chunks_never_crash(tmp_path: Path, chunks: Path, level: str) -> None:
    folder = packed(chunks, tmp_path / "packed", "sample" if level == "none" else level)
    if level == "none":
        for path in chunks.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    chunk = Path(open_source(LITDATA, folder).paths[1])
    places = range(40), range(chunk.stat().st_size)
    assert sum(exchanging.damaged(LITDATA, folder, chunk, lambda number: places[number % 3 > 0], 60)) > 10


def test_damaged_rows_are_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", [{"text": f"ä{i}", "n": i} for i in range(COUNT)])
    chunk = folder / "chunk-0-1.bin"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-40] + bytes(12) + whole[-28:])
    with pytest.raises(fr.FastRecordError, match=r"chunk-0-1\.bin.*FR75[24]"):
        records(open_source(LITDATA, folder))
    chunk.write_bytes(whole[:-5])
    with pytest.raises(fr.FastRecordError, match=r"FR752"):
        records(open_source(LITDATA, folder))


def test_pickles_are_never_run(tmp_path: Path) -> None:
    target = tmp_path / "hacked"
    folder = write(tmp_path / "pickles", [{"x": {1, 2}, "n": torch.zeros(1)} for _ in range(3)])
    config = json.loads((folder / "index.json").read_text())["config"]
    assert config["data_format"][0] == "pickle"
    chunk = folder / "chunk-0-0.bin"
    parts = [pickle.dumps((1, 2)), pickle.dumps(Odd(str(target))), pickle.dumps((3,))]
    bodies = [struct.pack("<II", len(part), 4) + part + bytes(4) for part in parts]
    offsets = np.cumsum([20, *map(len, bodies)]).astype("<u4")
    chunk.write_bytes(struct.pack("<I", 3) + offsets.tobytes() + b"".join(bodies))
    source = open_source(LITDATA, folder)
    assert list(exchanging.bad_records(source)) == [1]
    assert not target.exists()


def test_what_is_not_an_index_is_said(tmp_path: Path, chunks: Path) -> None:
    folder = packed(chunks, tmp_path / "packed", "batch")
    path = folder / "index.json"
    index = json.loads(path.read_text())

    def changed(**config: Any) -> str:
        return json.dumps({**index, "config": {**index["config"], **config}})

    deep = '{"type": "builtins.list", "context": null, "children_spec": [' * 60 + "]}" * 60
    for wrong in (
        "",
        "[]",
        "{}",
        json.dumps({**index, "chunks": []}),
        json.dumps({**index, "chunks": [{"filename": "../x.bin", "chunk_size": 1}]}),
        changed(data_format=["int"]),
        changed(encryption={"algorithm": "fernet"}),
        changed(item_loader="ParquetLoader"),
        changed(compression="lz4"),
        changed(data_spec=f"[1, {deep}]"),
        changed(data_format=["no_header_numpy:99", *index["config"]["data_format"][1:]]),
    ):
        path.write_text(wrong)
        with pytest.raises(fr.FastRecordError, match=rf"{path}: not an index of LitData.*FR752"):
            open_source(LITDATA, folder)
    path.write_text(json.dumps(index))
    (folder / index["chunks"][1]["filename"]).unlink()
    with pytest.raises(FileNotFoundError):
        open_source(LITDATA, folder)
