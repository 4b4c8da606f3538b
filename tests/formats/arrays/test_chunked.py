from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import sys
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import lz4.block
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec
from zarr.dtype import VariableLengthBytes

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.format import Found
from tests.support.formats.exchanging import bad_records, picture, take

ZARR, N5 = registry.load("zarr"), registry.load("n5")
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


# Zarr


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


# N5, by a writer of the test's own from the description


def lz4_stream(data: bytes) -> bytes:
    """Return what LZ4BlockOutputStream writes, with blocks of 64 bytes, and one that is not compressed."""
    stream = b""
    for at in range(0, len(data), 64):
        part = data[at : at + 64]
        packed = part if at == 0 else lz4.block.compress(part, store_size=False)
        stream += struct.pack("<8sBiiI", b"LZ4Block", 0x10 if at == 0 else 0x20, len(packed), len(part), 0) + packed
    return stream + struct.pack("<8sBiiI", b"LZ4Block", 0x10, 0, 0, 0)


COMPRESSIONS: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes]]] = {
    "raw": ({"type": "raw"}, bytes),
    "gzip": ({"type": "gzip", "level": -1}, gzip.compress),
    "zlib": ({"type": "gzip", "useZlib": True}, zlib.compress),
    "bzip2": ({"type": "bzip2", "blockSize": 9}, bz2.compress),
    "xz": ({"type": "xz", "preset": 6}, lzma.compress),
    "lz4": ({"type": "lz4", "blockSize": 65536}, lz4_stream),
    "blosc": ({"type": "blosc", "cname": "lz4"}, lambda data: numcodecs.Blosc().encode(data)),
    "zstd": ({"type": "zstd"}, lambda data: numcodecs.Zstd().encode(data)),
}


def write_n5(
    folder: Path, values: np.ndarray[Any, Any], block: tuple[int, ...], kind: str = "gzip", mode: int = 0
) -> Path:
    """Write an array; dimensions are in reversed order, numbers are big-endian."""
    compression, compress = COMPRESSIONS[kind]
    folder.mkdir(parents=True)
    description = {
        "dimensions": values.shape[::-1],
        "blockSize": block[::-1],
        "dataType": values.dtype.name,
        "compression": compression,
    }
    (folder / "attributes.json").write_text(json.dumps(description | {"unit": "mm"}))
    for place in product(*(range(-(-dim // size)) for dim, size in zip(values.shape, block, strict=True))):
        part = values[tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, block, strict=True))]
        header = struct.pack(f">HH{part.ndim}I", mode, part.ndim, *part.shape[::-1])
        header += struct.pack(">I", part.size) if mode == 1 else b""
        path = folder.joinpath(*map(str, place[::-1]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(header + compress(part.astype(part.dtype.newbyteorder(">")).tobytes()))
    return folder


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_n5_is_read_with_each_compression(tmp_path: Path, kind: str) -> None:
    write_n5(tmp_path / "x", COLUMNS["x"], (4, 2, 3), kind)
    write_n5(tmp_path / "deep/y", COLUMNS["deep/labels"].astype("u2"), (7,), kind)
    (tmp_path / "attributes.json").write_text(json.dumps({"n5": "2.5.1", "note": "n"}))
    assert registry.recognise(str(tmp_path))[0] is N5
    compare(tmp_path, {"x": COLUMNS["x"], "deep/y": COLUMNS["deep/labels"].astype("u2")})
    with opened(tmp_path) as source:
        assert source.metadata == {"note": "n", "attributes": {"x": {"unit": "mm"}, "deep/y": {"unit": "mm"}}}
        assert [f.rename for f in source.fields] == ["label", None]
    compare(tmp_path / "x", {"x": COLUMNS["x"]})
    with opened(tmp_path, group="deep") as source:
        assert take(source, 23)["y"] == [3, 0]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"])
def test_n5_is_read_with_each_type(tmp_path: Path, dtype: str) -> None:
    values = (RNG.random((COUNT, 4)) * 100).astype(dtype)
    write_n5(tmp_path / "x", values, (6, 4), mode=1)
    compare(tmp_path / "x", {"x": values})


def test_n5_that_another_library_wrote(tmp_path: Path) -> None:
    z5py = pytest.importorskip("z5py", reason="needs z5py")
    for kind in ("raw", "gzip", "bzip2", "lz4", "blosc", "xz", "zstd"):
        path = tmp_path / f"{kind}.n5"
        try:
            with z5py.File(str(path), "w") as file:
                file.create_dataset("x", data=COLUMNS["x"], chunks=(4, 2, 3), compression=kind)
                file.create_dataset("deep/y", data=COLUMNS["deep/labels"], chunks=(7,), compression=kind)
                file.attrs["note"] = "n"
        except (RuntimeError, KeyError):
            continue  # this build of z5py lacks the codec
        compare(path, {"x": COLUMNS["x"], "deep/y": COLUMNS["deep/labels"]})
    assert (tmp_path / "gzip.n5/x/attributes.json").exists()


def test_missing_blocks_of_n5_are_zero(tmp_path: Path) -> None:
    write_n5(tmp_path / "x", COLUMNS["x"], (4, 3, 5))
    (tmp_path / "x/0/0/1").unlink()
    values = COLUMNS["x"].copy()
    values[4:8] = 0
    compare(tmp_path / "x", {"x": values})


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_damaged_blocks_of_n5_make_their_records_bad(tmp_path: Path, kind: str) -> None:
    write_n5(tmp_path / "x", COLUMNS["x"], (4, 3, 5), kind)
    block = tmp_path / "x/0/0/1"
    whole = block.read_bytes()
    claims = whole[:4] + struct.pack(">III", 1 << 31, 1 << 31, 1 << 31) + whole[16:]
    cases = [b"", whole[:3], whole[:16], whole[:-9], b"\x00\x02" + whole[2:], b"\x00\x00\x00\x09" + whole[4:], claims]
    if kind == "lz4":
        cases.remove(whole[:-9])  # the mark at its end alone
    if kind != "raw":
        cases += [whole[:16] + b"\xff" * (len(whole) - 16)]
    for data in cases:
        block.write_bytes(data)
        with opened(tmp_path / "x") as source:
            bad = bad_records(source)
            assert list(bad) == [4, 5, 6, 7]
            assert str(block) in bad[4]
            assert len(take(source, 8)["x"]) == COUNT - 8


def test_a_block_of_n5_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    write_n5(tmp_path / "x", COLUMNS["x"], (4, 3, 5))
    with (tmp_path / "x/0/0/1").open("wb") as file:
        file.truncate(1 << 40)
    with opened(tmp_path / "x") as source:
        assert "1,099,511,627,776 bytes are more than a block has" in bad_records(source)[4]


def test_damaged_descriptions_of_n5_are_refused(tmp_path: Path) -> None:
    path = write_n5(tmp_path / "x", COLUMNS["x"], (4, 3, 5)) / "attributes.json"
    good = json.loads(path.read_text())
    cases: dict[str, dict[str, Any]] = {
        "its dimensions or blockSize are damaged": {"dimensions": [5, -3, 25]},
        "blockSize are damaged": {"blockSize": [5]},
        "dimensions or blockSize": {"dimensions": "25"},
        "has values of type 'object'": {"dataType": "object"},
        "is compressed by 'pickle'": {"compression": {"type": "pickle"}},
        "has chunks of": {"blockSize": [1 << 30, 2, 2]},
    }
    for why, change in cases.items():
        path.write_text(json.dumps(good | change))
        with pytest.raises(fr.FastRecordError, match=f"{why}.*FR752"):
            opened(tmp_path / "x")
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        assert N5.recognise(Found.at(str(tmp_path / "x"))) is None
        with pytest.raises(fr.FastRecordError, match=r"attributes.json: it is damaged"):
            N5.open(str(tmp_path / "x"), {})
    with pytest.raises(fr.FastRecordError, match="there is no group 'y'"):
        N5.open(str(tmp_path), {"group": "y"})


def test_a_missing_decompressor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_n5(tmp_path / "x", COLUMNS["x"], (4, 3, 5), "blosc")
    monkeypatch.setitem(sys.modules, "numcodecs.blosc", None)
    with (
        N5.open(str(tmp_path / "x"), {}) as source,
        pytest.raises(
            fr.FastRecordError, match=r"N5 compressed by blosc needs the package numcodecs: .*fastrecord\[n5\]"
        ),
    ):
        take(source)
