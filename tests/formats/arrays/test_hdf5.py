from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.format import Found
from tests.support.commands import good
from tests.support.formats.exchanging import (
    assert_round_trip,
    assert_same,
    bad_records,
    export,
    picture,
    take,
    write_file,
)
from tests.support.packing import pack_with

HDF5 = registry.load("hdf5")
COUNT = 30


def opened(path: Path, **settings: str) -> Any:
    return HDF5.open(str(path), settings)


def vlen(values: list[Any], dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    block = np.empty(len(values), object)
    for at, value in enumerate(values):
        block[at] = np.frombuffer(value, dtype) if isinstance(value, bytes) else np.asarray(value, dtype)
    return block


def test_data_sets_come_as_fields_of_their_types(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = np.zeros(COUNT, [("box", "f4", (4,)), ("kind", ">i2")])
    pairs["box"], pairs["kind"] = rng.random((COUNT, 4)), np.arange(COUNT)
    columns: dict[str, Any] = {
        "train/images": [picture(n) for n in range(COUNT)],
        "train/labels": np.arange(COUNT) % 3,
        "train/deep/x": rng.random((COUNT, 2, 3)).astype("f4"),
        "big": rng.random(COUNT).astype(">f8"),
        "flag": np.arange(COUNT) % 2 == 0,
        "half": rng.random(COUNT).astype("f2"),
        "c": (rng.random(COUNT) + 1j).astype("c8"),
        "name": [f"nämé {n}" for n in range(COUNT)],
        "fixed": [f"n{n}" for n in range(COUNT)],
        "raw": [bytes([n]) * n for n in range(COUNT)],
        "numbers": [np.arange(n, dtype=np.int32) for n in range(COUNT)],
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("train/images", "raw"):
            file.create_dataset(name, data=vlen(columns[name]), dtype=h5py.vlen_dtype(np.uint8))
        file.create_dataset("numbers", data=vlen(columns["numbers"], np.int32), dtype=h5py.vlen_dtype(np.int32))
        file.create_dataset("name", data=columns["name"], dtype=h5py.string_dtype())
        file.create_dataset("fixed", data=np.array(columns["fixed"], "S8"))
        file.create_dataset("train/labels", data=columns["train/labels"], chunks=(7,), compression="gzip")
        file.create_dataset(
            "train/deep/x", data=columns["train/deep/x"], chunks=(4, 1, 3), compression="lzf", shuffle=True
        )
        for name in ("big", "flag", "half", "c"):
            file.create_dataset(name, data=columns[name])
        file.create_dataset("pairs", data=pairs)
        file.create_dataset("scalar", data=3.0)
        file["train/labels"].attrs["names"] = ["a", "b", "c"]
        file.attrs.update(version=3, title="täst", mean=np.array([1.5, 2]), raw=np.bytes_(b"x"), nan=np.nan)
    found = registry.recognise(str(tmp_path / "a.h5"))
    assert found[0] is HDF5
    with opened(tmp_path / "a.h5") as source:
        assert source.count() == COUNT
        assert {field.name: str(field.type) for field in source.fields} == {
            "train/images": "image", "train/labels": "int64", "train/deep/x": "array(float32, (2, 3))",
            "big": "float64", "flag": "bool", "half": "float16", "c": "complex64", "name": "string",
            "fixed": "string", "raw": "bytes", "numbers": "array(int32, (None,))",
            "pairs/box": "array(float32, (4,))", "pairs/kind": "int16",
        }  # fmt: skip
        assert {f.name: f.rename for f in source.fields if f.rename} == {
            "train/images": "image",
            "train/labels": "label",
        }
        attributes = {"train/labels": {"names": ["a", "b", "c"]}}
        assert source.metadata == {
            "version": 3, "title": "täst", "mean": [1.5, 2.0], "raw": "x", "attributes": attributes
        }  # fmt: skip
        expected = columns | {"pairs/box": pairs["box"], "pairs/kind": pairs["kind"]}
        for start in (0, 1, 13, 29):
            got = take(source, start)
            for name, values in got.items():
                for one, other in zip(values, list(expected[name])[start:], strict=True):
                    assert np.array_equal(one, other), name
        assert_same(take(source, 5, ["raw"])["raw"], columns["raw"][5:])
        again = tmp_path / "a.frec"
        with fr.Writer(again, {(f.rename or f.name): f.type for f in source.fields}) as writer:
            for rows in source.read(0, [f.name for f in source.fields]):
                writer.extend({(f.rename or f.name): rows.columns[f.name] for f in source.fields})
    assert fr.Reader(again)[4]["numbers"].tolist() == [0, 1, 2, 3]
    with opened(tmp_path / "a.h5", group="/train") as source:
        assert [field.name for field in source.fields] == ["deep/x", "images", "labels"]
        assert take(source, 28)["labels"] == [1, 2]


def test_opaque_values_are_bytes(tmp_path: Path) -> None:
    images = [picture(n) for n in range(3)]
    size = max(map(len, images))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.array([np.void(image.ljust(size, b"\0")) for image in images]))
    with opened(tmp_path / "a.h5") as source:
        assert [f.type.name for f in source.fields] == ["image"]
        assert [value[: len(image)] for value, image in zip(take(source)["x"], images, strict=True)] == images


def test_lengths_that_differ_are_an_error_that_names_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train_x"], file["train_y"], file["classes"] = np.zeros((9, 2)), np.arange(9), np.arange(2)
    why = r"different first lengths \(2: classes; 9: train_x, train_y\): .*--set datasets=train_x,train_y \[FR754\]"
    with pytest.raises(fr.FastRecordError, match=why):
        opened(tmp_path / "a.h5")
    with opened(tmp_path / "a.h5", datasets="train_y, /train_x") as source:
        assert [field.name for field in source.fields] == ["train_y", "train_x"]
    with pytest.raises(fr.FastRecordError, match=r"no data set 'x': it has classes, train_x, train_y"):
        opened(tmp_path / "a.h5", datasets="x")
    with pytest.raises(fr.FastRecordError, match=r"/nothing cannot be read"):
        opened(tmp_path / "a.h5", group="/nothing")


def test_shards_are_read_in_order_and_must_agree(tmp_path: Path) -> None:
    for number, length in enumerate((5, 0, 9)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=np.arange(length) + 10 * number, maxshape=(None,))
    with HDF5.open(str(tmp_path), {}) as source:
        assert source.count() == 14
        assert take(source)["x"] == [0, 1, 2, 3, 4, *range(20, 29)]
        assert take(source, 7)["x"] == list(range(22, 29))
        assert source.place(8) == f"{tmp_path / '2.h5'}: record 3"
    with h5py.File(tmp_path / "3.h5", "w") as file:
        file["x"] = np.zeros((2, 2))
    with pytest.raises(fr.FastRecordError, match=r"3.h5: .* differ .*: x \(array\(float64, \(2,\)\), not int64\)"):
        HDF5.open(str(tmp_path), {})


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    def refused(name: str, why: str, **settings: str) -> None:
        with pytest.raises(fr.FastRecordError, match=why):
            opened(tmp_path / name, **settings)

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("empty")
    refused("a.h5", "holds no data sets with records: name a group")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.zeros((3, 2))
        file.create_dataset("r", data=[file["x"].ref] * 3, dtype=h5py.ref_dtype)
    refused("b.h5", "data set r has values of type object, which a field cannot hold: name the other ones")
    (tmp_path / "secret").write_bytes(bytes(800))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", (100,), "f8", external=str(tmp_path / "secret"))
    refused("c.h5", "the data of 'x' are in another file, .*secret")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", (1 << 30,), "f8", chunks=(1 << 28,))
    refused("d.h5", "'x' has chunks of 2,048 MiB: make smaller ones")
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file[b"x\xff"] = np.arange(3)
    refused("g.h5", "a name is not UTF-8")
    (tmp_path / "e.h5").write_bytes(b"no HDF5")
    assert HDF5.recognise(Found.at(str(tmp_path / "e.h5"))) is None
    refused("e.h5", r"e.h5: .*signature.*: copy it again \[FR752\]")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "b.h5"), "x")
        file["y"] = np.arange(3)
    with opened(tmp_path / "f.h5") as source:
        assert [field.name for field in source.fields] == ["y"]


def test_a_damaged_chunk_makes_its_records_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=np.arange(400).reshape(100, 4), chunks=(10, 4), fletcher32=True)
        file["t"] = np.array([f"{n}" for n in range(100)], "S4")
        place = data.id.get_chunk_info(3)
    with path.open("r+b") as raw:
        raw.seek(place.byte_offset + 8)
        raw.write(b"damage")
    with opened(path) as source:
        bad = bad_records(source)
        assert list(bad) == list(range(30, 40))
        assert bad[30].startswith("field 'x': ")
        rows = next(source.read(0, ["x", "t"]))
        assert rows.columns["t"] == [f"{n}" for n in rows.numbers]
        assert [row[0] // 4 for row in rows.columns["x"]] == list(rows.numbers)
        assert take(source, 40, ["x"])["x"][0].tolist() == [160, 161, 162, 163]


def test_text_that_is_not_utf8_makes_a_record_bad(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["name"] = np.array([b"a", b"\xff", b"c"])
        file["x"] = np.arange(3)
    with opened(tmp_path / "a.h5") as source:
        assert list(bad_records(source)) == [1]
        rows = next(source.read(0, ["name", "x"]))
        assert (rows.columns["name"], rows.columns["x"].tolist()) == (["a", "c"], [0, 2])


def test_files_cut_short_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=vlen([picture(n) for n in range(50)]), dtype=h5py.vlen_dtype(np.uint8))
        file["label"] = np.arange(50)
    whole = path.read_bytes()
    cut = tmp_path / "cut.h5"
    for end in np.linspace(0, len(whole) - 1, 30).astype(int).tolist():
        cut.write_bytes(whole[:end])
        with pytest.raises(fr.FastRecordError, match=r"cut.h5: .*\[FR752\]"):
            opened(cut)


def test_the_library_reads_an_export(tmp_path: Path) -> None:
    fields = {
        "image": fr.image(), "deep/key": fr.string(), "fixed": fr.array("float32", (2, 3)),
        "numbers": fr.list_("int32"),
    }  # fmt: skip
    columns: dict[str, Any] = {
        "image": [picture(n) for n in range(COUNT)],
        "deep/key": [f"schlüssel {n}" * (n % 3) for n in range(COUNT)],
        "fixed": np.random.default_rng(1).random((COUNT, 2, 3), np.float32),
        "numbers": [list(range(n)) for n in range(COUNT)],
    }
    reader = write_file(tmp_path / "a.frec", fields, columns)
    path = tmp_path / "out.h5"
    export(reader, HDF5, path)
    with opened(path) as source:
        assert_round_trip(reader, source, tmp_path / "b.frec")
    with h5py.File(path) as file:
        assert [each.tobytes() for each in file["image"][:]] == columns["image"]
        assert file["deep/key"].asstr()[:].tolist() == columns["deep/key"]
        assert np.array_equal(file["fixed"][:], columns["fixed"])
        assert file["numbers"][4].tolist() == [0, 1, 2, 3]


def test_what_hdf5_cannot_hold_is_refused(tmp_path: Path) -> None:
    kinds = {
        "a": fr.list_(fr.string()), "b": fr.list_(fr.array("uint8", (2,))),
        **dict.fromkeys(("c", "c/d", "/e", "f//g", "__fastrecord__"), fr.FieldType("int64")),
        "none": fr.array("uint8", (0, 2)),
    }  # fmt: skip
    assert HDF5.refuse(fr.Schema(kinds)) == {
        "a": "HDF5 has no lists of string",
        "b": "HDF5 has no lists of array",
        "c": "it is also a group of other fields",
        "/e": "it is not a path in HDF5",
        "f//g": "it is not a path in HDF5",
        "__fastrecord__": "it is not a path in HDF5",
        "none": "HDF5 has no arrays without numbers that grow",
    }
    reader = write_file(tmp_path / "a.frec", {"t": fr.string()}, {"t": ["a", "b\0c", "d"]})
    with pytest.raises(fr.FastRecordError, match=r"record 1, field 't': HDF5 cannot hold .*--drop t \[FR757\]"):
        export(reader, HDF5, tmp_path / "a.h5")


def test_large_chunks_and_many_records_come_in_runs(tmp_path: Path) -> None:
    values = np.arange(50_000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(30_000,), compression="gzip")
        file.create_dataset("y", data=values, chunks=(64,))
    with opened(tmp_path / "a.h5") as source:
        runs = list(source.read(123, ["x", "y"]))
        assert np.array_equal(np.concatenate([rows.columns["x"] for rows in runs]), values[123:])
        assert np.array_equal(np.concatenate([rows.columns["y"] for rows in runs]), values[123:])
        assert max(rows.count for rows in runs) <= 8192


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5)
        file["soft"] = h5py.SoftLink("/x")
        file["group/far"] = h5py.ExternalLink("b.h5", "/y")
        file["same"] = file["x"]
        file["scalar"] = 3
        file["type"] = np.dtype("f4")
    left = [
        "group/far (a link into another file, b.h5)",
        "scalar (a single value, not one for each record)",
        "soft (a link to /x)",
        "type (a named type)",
        "x (another name of what is read already)",
    ]
    shown = good("import", tmp_path / "a.h5", "--dry-run")
    assert [line.removeprefix("left out: ") for line in shown.splitlines() if line.startswith("left out")] == left
    assert pack_with(tmp_path / "a.h5", tmp_path / "a.frec").left_out == left
    assert "left out: soft (a link to /x)" in good("import", tmp_path / "a.h5", tmp_path / "b.frec")


@pytest.mark.parametrize("chunks", [None, (8,)])
def test_a_damaged_length_makes_a_bad_record_and_takes_no_memory(tmp_path: Path, chunks: tuple[int] | None) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        held = file.create_dataset("image", COUNT, h5py.vlen_dtype(np.uint8), chunks=chunks)
        for number in range(COUNT):
            held[number] = np.frombuffer(picture(number), np.uint8)
        file.flush()
        places = [held.id.get_offset()] if chunks is None else [held.id.get_chunk_info(i).byte_offset for i in range(4)]
    data = bytearray(path.read_bytes())
    for number in (9, 21):
        place = places[0] + 16 * number if chunks is None else places[number // 8] + 16 * (number % 8)
        assert int.from_bytes(data[place : place + 4], "little") == len(picture(number))
        data[place : place + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (400 << 20), limit[1]))
    try:
        summary = pack_with(path, tmp_path / "out.frec", bad_files="skip")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limit)
    assert [place for place, _ in summary.skipped] == [f"{path}: record {number}" for number in (9, 21)]
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert [bytes(record["image"]) for record in reader] == [picture(n) for n in range(COUNT) if n not in (9, 21)]


def test_a_heap_that_the_library_would_walk_for_ever_makes_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["note"] = np.array([f"text {number}" for number in range(COUNT)], h5py.string_dtype())
        file["number"] = np.arange(COUNT)
    data = bytearray(path.read_bytes())
    heap = data.index(b"GCOL")
    data[heap + 16 : heap + 32] = bytes(16)
    path.write_bytes(data)
    with pytest.raises(fr.FastRecordError, match=r"no record is good; .*its heap is damaged"):
        pack_with(path, tmp_path / "out.frec", bad_files="skip")
    assert pack_with(path, tmp_path / "out.frec", settings={"datasets": "number"}).records == COUNT
