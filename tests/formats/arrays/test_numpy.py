from __future__ import annotations

import json
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

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

NUMPY = registry.load("numpy")
COUNT = 40
RNG = np.random.default_rng(0)


def opened(path: Path | str, **settings: str) -> Any:
    return NUMPY.open(str(path), settings)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "?", "c16", "f2"])
def test_rows_of_an_npy_file_are_records(tmp_path: Path, dtype: str, order: Any) -> None:
    for shape in ((COUNT,), (COUNT, 3), (COUNT, 2, 3, 4), (COUNT, 0)):
        values = (RNG.random(shape) * 100).astype(dtype)
        np.save(tmp_path / "x.npy", np.asarray(values, order=order))
        with opened(tmp_path / "x.npy") as source:
            assert [(f.name, f.type.shape) for f in source.fields] == [("x", shape[1:])]
            assert source.count() == COUNT
            for start in (0, 1, 39):
                assert np.array_equal(take(source, start)["x"], values[start:])
            assert source.place(3) == f"{tmp_path / 'x.npy'}: record 3"
            with fr.Writer(tmp_path / "x.frec", {"x": source.fields[0].type}, "w") as writer:
                for rows in source.read(0, ["x"]):
                    writer.extend({"x": rows.columns["x"]})
            assert np.array_equal(fr.Reader(tmp_path / "x.frec").read_batch(range(COUNT))["x"], values)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_npz_file_are_fields(tmp_path: Path, save: Any) -> None:
    columns: dict[str, Any] = {
        "x": RNG.random((COUNT, 5, 2)),
        "labels": np.arange(COUNT) % 4,
        "name": np.array([f"nämé {n}" for n in range(COUNT)]),
        "code": np.array([f"n{n}" for n in range(COUNT)], "S"),
        "columns": np.asfortranarray(RNG.random((COUNT, 3))),
        "both": np.array([(n, [n, n]) for n in range(COUNT)], [("one", "i4"), ("two", ">f4", (2,))]),
        "mean": np.float64(3),
    }
    save(tmp_path / "a.npz", **columns)
    found = registry.recognise(str(tmp_path / "a.npz"))
    assert found[0] is NUMPY
    with opened(tmp_path / "a.npz") as source:
        assert [(f.name, str(f.type), f.rename) for f in source.fields] == [
            ("x", "array(float64, (5, 2))", None), ("labels", "int64", "label"), ("name", "string", None),
            ("code", "string", None), ("columns", "array(float64, (3,))", None), ("one", "int32", None),
            ("two", "array(float32, (2,))", None),
        ]  # fmt: skip
        for start in (0, 17):
            got = take(source, start)
            for name in ("x", "labels", "columns"):
                assert np.array_equal(got[name], columns[name][start:])
            assert np.array_equal(got["two"], columns["both"]["two"][start:])
            assert got["name"] == columns["name"].tolist()[start:]
            assert got["code"][0] == f"n{start}"
        assert np.array_equal(take(source, 30, ["columns"])["columns"], columns["columns"][30:])


def test_arrays_of_different_lengths_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((9, 2)), y_train=np.arange(9), x_test=np.zeros((3, 2)))
    why = (
        r"mnist.npz: its arrays have different first lengths \(3: x_test; 9: x_train, y_train\): .*--set arrays=x_train"
    )
    with pytest.raises(fr.FastRecordError, match=why):
        opened(tmp_path / "mnist.npz")
    with opened(tmp_path / "mnist.npz", arrays="y_train,x_train") as source:
        assert take(source, 7)["y_train"] == [7, 8]
    with pytest.raises(fr.FastRecordError, match=r"it has no array 'y': it has x_train, y_train, x_test"):
        opened(tmp_path / "mnist.npz", arrays="y")


def test_the_command_takes_a_list_of_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), y=np.arange(9), z=np.zeros((3, 2)))
    for words in (["--set", "arrays=y,x"], ["--set", "arrays=y, x"]):
        good("import", tmp_path / "a.npz", tmp_path / "a.frec", "-q", *words)
        assert list(fr.Reader(tmp_path / "a.frec").schema) == ["label", "x"]
        (tmp_path / "a.frec").unlink()


def test_a_folder_has_a_field_for_each_file_and_a_pattern_has_shards(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10).reshape(5, 2))
    np.save(tmp_path / "y.npy", np.arange(5))
    assert registry.recognise(str(tmp_path))[0] is NUMPY
    with opened(tmp_path) as source:
        assert [(f.name, f.rename) for f in source.fields] == [("x", None), ("y", "label")]
        assert_same(take(source, 4), {"x": [np.array([8, 9])], "y": [np.int64(4)]})
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        np.save(tmp_path / f"{number}/x.npy", np.arange(number) + 10 * number)
    with opened(str(tmp_path / "{0..2}/x.npy")) as source:
        assert take(source)["x"] == [10, 20, 21]
        assert take(source, 1)["x"] == [20, 21]
        assert source.place(2) == f"{tmp_path / '2/x.npy'}: record 1"
    np.save(tmp_path / "2/x.npy", np.zeros((3, 3)))
    with pytest.raises(fr.FastRecordError, match=r"2/x.npy: .* differ .*x \(array\(float64, \(3,\)\), not int64\)"):
        opened(str(tmp_path / "{0..2}/x.npy"))


def first_numbers(path: Path, got: list[int]) -> None:
    with opened(path) as source:
        for rows in source.read(0, ["x"]):
            got += [row[0] // 4 for row in rows.columns["x"]]


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npy_file_that_is_cut_short_ends_after_its_whole_rows(tmp_path: Path, order: Any) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.asarray(np.arange(8000).reshape(2000, 4), order=order))
    whole = path.read_bytes()
    for end in (0, 3, 9, 60, 127, 128, 140, 5000, 32000, len(whole) - 1):
        path.write_bytes(whole[:end])
        got: list[int] = []
        with pytest.raises(fr.FastRecordError, match=r"x.npy: .*\[FR752\]") as raised:
            first_numbers(path, got)
        if order == "C" and end >= 128:
            count = (end - 128) // 32
            assert got == list(range(count))
            assert f"record {count:,}: the file is cut short" in str(raised.value)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((100_000, 40)))
    with opened(path) as source:
        runs = source.read(0, ["x"])
        next(runs)
        with path.open("r+b") as file:
            file.truncate(2_000_000)
        with pytest.raises(fr.FastRecordError, match="the file is cut short"):
            list(runs)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_archives_are_errors(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(path, x=np.arange(4000), y=np.arange(4000))
    whole = path.read_bytes()
    for end in np.linspace(0, len(whole) - 1, 20).astype(int).tolist():
        path.write_bytes(whole[:end])
        with pytest.raises(fr.FastRecordError, match=r"a.npz: .*FR752"), opened(path) as source:
            take(source)
    path.write_bytes(b"PK\3\5" + whole[4:])
    with pytest.raises(fr.FastRecordError, match=r"a.npz: Bad magic number.*FR752"):
        opened(path)
    failed = 0
    for at in np.linspace(200, len(whole) - 400, 20).astype(int).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            with opened(path) as source:
                take(source)
        except fr.FastRecordError as err:
            failed += "FR752" in str(err)
    assert failed >= 18


def test_objects_and_odd_types_are_refused(tmp_path: Path) -> None:
    def refused(why: str, *, path: str = "x.npy") -> None:
        with pytest.raises(fr.FastRecordError, match=why):
            opened(tmp_path / path)

    np.save(tmp_path / "x.npy", np.array([{}, 1], object))
    refused(r"x.npy: it holds Python objects, which are pickles and are not loaded: .*FR756")
    np.savez(tmp_path / "x.npz", x=np.array([{}, 1], object))
    refused(r"x.npz: x.npy: it holds Python objects", path="x.npz")
    np.save(tmp_path / "x.npy", np.array(["2020-01-01"], "M8[s]"))
    refused(r"values of type datetime64\[s\], which a field cannot hold")
    np.savez(tmp_path / "t.npz", t=np.array(["2020-01-01"], "M8[s]"), x=np.arange(3))
    with opened(tmp_path / "t.npz", arrays="x") as source:
        assert take(source)["x"] == [0, 1, 2]
    np.save(tmp_path / "x.npy", np.zeros(3, np.longdouble))
    refused("values of type float128")
    np.save(tmp_path / "x.npy", np.float32(1))
    refused("it holds no arrays with records")
    head = b"\x93NUMPY\x01\x00"
    for text in ("{'descr': '<i8', 'shape': (-1,)}", "[" * 9000, "{'descr': '|O', 'shape': (1,)}", "{}", "(((", "1"):
        data = head + len(text).to_bytes(2, "little") + text.encode()
        (tmp_path / "x.npy").write_bytes(data + bytes(64))
        refused(r"x.npy: (the header of an .npy file is damaged|it holds Python objects)")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x02\x00" + b"\xff" * 90)
    refused("x.npy: not an .npy file")
    text = "{'descr': '<i8', 'fortran_order': False, 'shape': (70368744177664,)}"
    (tmp_path / "x.npy").write_bytes(head + len(text).to_bytes(2, "little") + text.encode() + bytes(64))
    with (
        opened(tmp_path / "x.npy") as source,
        pytest.raises(fr.FastRecordError, match="record 8: the file is cut short"),
    ):
        for _ in source.read(0, ["x"]):
            pass
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("readme", "no arrays")
    refused("it holds no arrays with records", path="y.npz")
    (tmp_path / "z.npz").write_bytes(b"PK\x03\x04 no zip")
    refused(r"z.npz: .*zip.*\[FR752\]", path="z.npz")
    assert NUMPY.recognise(Found.at(str(tmp_path / "x.npy"))) is not None
    assert NUMPY.recognise(Found.at(str(tmp_path))) is None


def test_text_that_is_not_utf8_makes_a_record_bad(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", name=np.array([b"a", b"\xff", b"c"]), x=np.arange(3))
    with opened(tmp_path / "a.npz") as source:
        assert list(bad_records(source)) == [1]
        assert [v for rows in source.read(0, ["name", "x"]) for v in rows.columns["name"]] == ["a", "c"]


@pytest.mark.parametrize("name", ["out.npz", "out"])
def test_numpy_reads_an_export(tmp_path: Path, name: str) -> None:
    fields = {
        "image": fr.image(),
        "flag": fr.FieldType("bool"),
        "open": fr.array("int16", (None, 2)),
        "key": fr.string(),
    }
    columns: dict[str, Any] = {
        "image": [picture(n) for n in range(COUNT)],
        "flag": [n % 2 == 0 for n in range(COUNT)],
        "open": [np.full((n, 2), n, np.int16) for n in range(COUNT)],
        "key": [f"schlüssel {n}" * (n % 3) for n in range(COUNT)],
    }
    reader = write_file(tmp_path / "a.frec", fields, columns)
    path = tmp_path / name
    export(reader, NUMPY, path, batch=7)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.frec", name]
    with opened(path) as source:
        assert_round_trip(reader, source, tmp_path / "b.frec")
        assert take(source, 33, ["key"])["key"] == columns["key"][33:]
    loaded = {each.stem: np.load(each) for each in path.iterdir()} if path.is_dir() else dict(np.load(path))
    assert loaded["flag"].tolist() == columns["flag"]
    places = loaded["image.offsets"]
    assert [loaded["image"][a:b].tobytes() for a, b in pairwise(places)] == columns["image"]
    assert loaded["open.shapes"].tolist() == [[n, 2] for n in range(COUNT)]
    assert "fastrecord" in json.loads(loaded["__fastrecord__"].tobytes())


def test_one_array_goes_out_as_npy(tmp_path: Path) -> None:
    reader = write_file(
        tmp_path / "a.frec", {"x": fr.array("float32", (3,))}, {"x": RNG.random((COUNT, 3), np.float32)}
    )
    export(reader, NUMPY, tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), reader.read_batch(range(COUNT))["x"])
    with opened(tmp_path / "x.npy") as source:
        assert_round_trip(reader, source, tmp_path / "b.frec")
    destination = NUMPY.create(str(tmp_path / "0.npy"), reader.schema, {}, {})
    destination.next_shard(str(tmp_path / "1.npy"))
    destination.write(0, {"x": reader.read_batch(range(3))["x"]})
    destination.close()
    assert [np.load(tmp_path / f"{n}.npy").shape for n in range(2)] == [(0, 3), (3, 3)]


def test_what_numpy_cannot_hold_is_refused(tmp_path: Path) -> None:
    kinds = {"a": fr.list_(fr.string()), "b/c": fr.FieldType("int64"), "x.offsets": fr.FieldType("int64")}
    assert NUMPY.refuse(fr.Schema(kinds)) == {
        "a": "NumPy's files have no lists of string",
        "b/c": "it cannot be the name of a file",
        "x.offsets": "it cannot be the name of a file",
    }
    for fields in ({"x": fr.FieldType("int64"), "y": fr.FieldType("int64")}, {"x": fr.image()}):
        with pytest.raises(fr.FastRecordError, match=r"an .npy file holds one field of numbers .*\[FR757\]"):
            NUMPY.create(str(tmp_path / "a.npy"), fr.Schema(fields), {}, {})


def test_missing_or_damaged_arrays_of_ours_are_errors(tmp_path: Path) -> None:
    reader = write_file(tmp_path / "a.frec", {"t": fr.string()}, {"t": ["ab", "cd", "ef"]})
    export(reader, NUMPY, tmp_path / "out")
    np.save(tmp_path / "out/t.npy", np.frombuffer(b"ab\xffdef", np.uint8))
    with opened(tmp_path / "out") as source:
        assert list(bad_records(source)) == [1]
    np.save(tmp_path / "out/t.offsets.npy", np.array([0, 2, -5, 6]))
    with (
        opened(tmp_path / "out") as source,
        pytest.raises(fr.FastRecordError, match=r"record \d: t.offsets is damaged"),
    ):
        bad_records(source)
    (tmp_path / "out/t.offsets.npy").unlink()
    with pytest.raises(fr.FastRecordError, match=r"out: the array 't' is missing"):
        opened(tmp_path / "out")
