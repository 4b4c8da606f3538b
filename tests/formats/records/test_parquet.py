from __future__ import annotations

import datetime
import decimal
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.commands import failed, good
from tests.support.formats import exchanging
from tests.support.formats.exchanging import open_source, plain, records, renames, types
from tests.support.packing import pack_with

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
PARQUET = registry.load("parquet")

COUNT = 25
IMAGES = exchanging.images(COUNT)
FEATURES = {
    "picture": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": ["cat", "dog", "fox"]},
    "grid": {"_type": "Array2D", "shape": [2, 3], "dtype": "float32"},
    "frames": {"_type": "Array3D", "shape": [None, 2, 1], "dtype": "int16"},
}


ROWS = range(COUNT)
# Columns: what pyarrow makes an array of, the type of the field, and its value in a record.
COLUMNS: dict[str, tuple[Any, str, Callable[[int], Any]]] = {
    "picture": ([{"bytes": data, "path": None} for data in IMAGES], "image", IMAGES.__getitem__),
    "label": (pa.array([i % 3 for i in ROWS], pa.int64()), "int64", lambda i: i % 3),
    "name": ([f"näme {i}" for i in ROWS], "string", lambda i: f"näme {i}"),
    "long": (pa.array([f"{i}" for i in ROWS], pa.large_string()), "string", str),
    "seen": (pa.array([f"{i}" for i in ROWS], pa.string_view()), "string", str),
    "raw": ([bytes([i]) * i for i in ROWS], "bytes", lambda i: bytes([i]) * i),
    "wide": (pa.array([bytes([i]) * i for i in ROWS], pa.large_binary()), "bytes", lambda i: bytes([i]) * i),
    "hash": (pa.array([bytes([i]) * 5 for i in ROWS], pa.binary(5)), "bytes", lambda i: bytes([i]) * 5),
    "class": (pa.array([["x", "y"][i % 2] for i in ROWS]).dictionary_encode(), "string", lambda i: "xy"[i % 2]),
    "number": (pa.array([float(i % 4) for i in ROWS]).dictionary_encode(), "float64", lambda i: i % 4),
    "half": (np.arange(COUNT).astype(np.float16), "float16", int),
    "flag": ([i % 2 == 0 for i in ROWS], "bool", lambda i: i % 2 == 0),
    "tags": ([["a"] * (i % 3) for i in ROWS], "list(string)", lambda i: ["a"] * (i % 3)),
    "counts": (
        pa.array([list(range(i % 4)) for i in ROWS], pa.large_list(pa.uint16())),
        "list(uint16)",
        lambda i: np.arange(i % 4, dtype=np.uint16),
    ),
    "box": (
        pa.array([[i, 1, 2, 3] for i in ROWS], pa.list_(pa.float32(), 4)),
        "array(float32, (4,))",
        lambda i: np.array([i, 1, 2, 3], np.float32),
    ),
    "boxes": (
        pa.array([[[i, 1]] * (i % 3) for i in ROWS], pa.list_(pa.list_(pa.int8(), 2))),
        "list(array(int8, (2,)))",
        lambda i: np.array([[i, 1]] * (i % 3), np.int8).reshape(-1, 2),
    ),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(COUNT * 6, dtype=np.int32).reshape(COUNT, 2, 3)),
        "array(int32, (2, 3))",
        lambda i: np.arange(i * 6, i * 6 + 6, dtype=np.int32).reshape(2, 3),
    ),
    "grid": (
        pa.array([[[i, 1, 2], [3, 4, 5]] for i in ROWS], pa.list_(pa.list_(pa.float32()))),
        "array(float32, (2, 3))",
        lambda i: np.array([[i, 1, 2], [3, 4, 5]], np.float32),
    ),
    "frames": (
        pa.array([[[[1], [i]]] * (i % 3) for i in ROWS], pa.list_(pa.list_(pa.list_(pa.int16())))),
        "array(int16, (None, 2, 1))",
        lambda i: np.array([[[1], [i]]] * (i % 3), np.int16).reshape(-1, 2, 1),
    ),
    "nested.a": (list(ROWS), "int64", int),
    "nested.b": ([[{"c": "x"}] for _ in ROWS], "json", lambda _: [{"c": "x"}]),
    "nested.d": (pa.nulls(COUNT), "json", lambda _: None),
    "when": ([datetime.datetime(2024, 1, 1, 0, 0, i) for i in ROWS], "string", "2024-01-01 00:00:{:02d}.000000".format),
    "price": ([decimal.Decimal(f"{i}.50") for i in ROWS], "string", "{}.50".format),
    "empty": (pa.nulls(COUNT), "json", lambda _: None),
}


def table(*, described: bool = True) -> Any:
    """Return all columns; the ones with a dot are the members of a struct."""
    columns = {name: pa.array(values) for name, (values, _, _) in COLUMNS.items()}
    members = [columns.pop(name) for name in list(columns) if "." in name]
    columns["nested"] = pa.StructArray.from_arrays(members, ["a", "b", "d"])
    found = pa.table(columns)
    if described:
        found = found.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    return found


def check(found: list[dict[str, Any]], start: int = 0) -> None:
    assert len(found) == COUNT - start
    for i, record in enumerate(found, start):
        assert plain(record) == {name: plain(value(i)) for name, (_, _, value) in COLUMNS.items()}


def write(kind: str, path: Path, data: Any) -> Path:
    if kind == "parquet":
        pq.write_table(data, path, row_group_size=10, data_page_size=100)
    elif kind == "file":
        with pa.ipc.new_file(path, data.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(data, max_chunksize=7)
    else:
        with pa.ipc.new_stream(path, data.schema) as writer:
            writer.write_table(data, max_chunksize=7)
    return path


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_all_types_come_in_from_any_record_on(tmp_path: Path, kind: str) -> None:
    path = write(kind, tmp_path / "data", table())
    chosen, why = registry.recognise(str(path))
    assert chosen.name == "parquet"
    assert "begins as" in why
    with open_source(chosen, path) as source:
        assert types(source) == {name: kind for name, (_, kind, _) in COLUMNS.items()}
        dots = {f"nested.{name}": f"nested_{name}" for name in "abd"}
        assert renames(source) == {"picture": "image"} | dots
        assert source.classes == ["cat", "dog", "fox"]
        assert source.count() == COUNT
        assert source.place(12) == f"{path}: record 12"
        for start in (0, 1, 7, 10, 24, 25):
            check(records(source, start), start)
        assert plain(records(source, 20, ["name", "label"])) == [
            {"name": f"näme {i}", "label": i % 3} for i in range(20, 25)
        ]
    exchanging.import_back(open_source(chosen, path), tmp_path / "out.frec")


def test_images_are_recognised_without_a_description(tmp_path: Path) -> None:
    data = table(described=False).select(["picture", "raw", "grid"])
    source = open_source(PARQUET, write("parquet", tmp_path / "data.parquet", data))
    assert types(source) == {"picture": "image", "raw": "bytes", "grid": "json"}
    lists = pa.table({"views": [[IMAGES[0]], [], IMAGES[:2]]})
    source = open_source(PARQUET, write("parquet", tmp_path / "lists.parquet", lists))
    assert types(source) == {"views": "list(image)"}
    assert [plain(record["views"]) for record in records(source)] == [IMAGES[:1], [], IMAGES[:2]]


def test_files_of_a_folder_follow_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    data = table()
    write("parquet", folder / "a.parquet", data.slice(0, 12))
    write("parquet", folder / "b.parquet", data.slice(0, 0))
    write("parquet", folder / "c.parquet", data.slice(12))
    chosen, why = registry.recognise(str(folder))
    assert (chosen.name, why) == ("parquet", "a.parquet in it: it begins as Parquet files do")
    source = open_source(chosen, folder)
    check(records(source))
    check(records(source, 15), 15)
    assert source.place(13) == f"{folder}/c.parquet: record 1"
    check(records(open_source(chosen, f"{folder}/{{a,c}}.parquet")))


def test_a_name_that_is_taken_stays(tmp_path: Path) -> None:
    data = pa.table({"png": [IMAGES[0]], "image": ["a.png"], "cls": [3]})
    assert renames(open_source(PARQUET, write("parquet", tmp_path / "x.parquet", data))) == {"cls": "label"}


def test_large_row_groups_are_read_in_small_batches(tmp_path: Path) -> None:
    value = bytes(1 << 20)
    data = pa.table({"raw": pa.array([value] * 64, pa.large_binary())})
    for dictionary in (True, False):  # a dictionary makes the file tell much smaller records
        path = tmp_path / f"{dictionary}.parquet"
        pq.write_table(data, path, use_dictionary=dictionary)
        runs = list(open_source(PARQUET, path).read(0, ["raw"]))
        assert sum(run.count for run in runs) == 64
        assert max(run.count for run in runs[1:]) <= 16


def test_bad_values_are_bad_records(tmp_path: Path) -> None:
    data = pa.table(
        {
            "text": pa.array(["a", None, "c", "d", "e"]),
            "numbers": pa.array([[1], [2], [None], [4], [5]], pa.list_(pa.int32())),
            "picture": pa.array([{"bytes": IMAGES[0], "path": "x"}] * 3 + [{"bytes": None, "path": "x"}] * 2),
            "meta": pa.array([None, None, None, None, [[{"a": 1}]]]),
        }
    )
    for kind in ("parquet", "stream"):
        source = open_source(PARQUET, write(kind, tmp_path / kind, data))
        rows = next(iter(source.read(0, [field.name for field in source.fields])))
        assert {number: why.split(":")[0] for number, why in rows.bad.items()} == {
            1: "field 'text'",
            2: "field 'numbers'",
            3: "field 'picture'",
            4: "field 'picture'",
        }
        assert "only its path" in rows.bad[3]
        assert list(rows.columns["text"]) == ["a"]
        assert rows.columns["meta"] == [None]


def test_a_text_that_is_not_utf8_is_a_bad_record(tmp_path: Path) -> None:
    data = pa.table({"key": pa.array([b"a", b"\xff\xfe", b"c"])})
    buffers = data.column("key").chunk(0).buffers()
    texts = pa.StringArray.from_buffers(3, buffers[1], buffers[2])
    for kind in ("parquet", "stream"):
        source = open_source(PARQUET, write(kind, tmp_path / kind, pa.table({"key": texts})))
        rows = next(iter(source.read(0, ["key"])))
        assert list(rows.bad) == [1]
        assert list(rows.columns["key"]) == ["a", "c"]


def test_files_with_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet")
    for other in ({"a": ["1"], "b": ["x"]}, {"a": [1]}, {"a": [1], "b": ["x"], "c": [1]}):
        pq.write_table(pa.table(other), tmp_path / "2.parquet")
        with pytest.raises(fr.FastRecordError, match=r"2\.parquet: column '[abc]' is .*FR754"):
            open_source(PARQUET, tmp_path)
    pq.write_table(pa.table({"b": pa.array(["x"], pa.large_string()), "a": [1]}), tmp_path / "2.parquet")
    assert len(records(open_source(PARQUET, tmp_path))) == 2


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_files_that_are_cut_short_end_with_an_error(tmp_path: Path, kind: str) -> None:
    data = table().select(["picture", "name", "label"])
    whole = write(kind, tmp_path / "whole", data).read_bytes()
    path = tmp_path / "cut"
    for size in [*range(0, 64, 9), *range(64, len(whole) - 1, len(whole) // 60)]:
        path.write_bytes(whole[:size])
        found = 0
        try:
            with open_source(PARQUET, path) as source:
                for rows in source.read(0, ["picture", "name", "label"]):
                    found += rows.count
        except fr.FastRecordError as err:
            assert str(path) in str(err)  # noqa: PT017 - a cut between two messages of a stream is no error
            assert err.code == "FR752"  # noqa: PT017
        else:
            assert kind == "stream"
        assert found < COUNT or kind == "stream"


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_damaged_files_never_crash(tmp_path: Path, kind: str) -> None:
    data = table().select(["picture", "name", "label", "tags", "class"])
    path = write(kind, tmp_path / "damaged", data)
    places = range(path.stat().st_size)
    assert exchanging.damaged(PARQUET, path, path, lambda _: places, 150)[1]


def test_a_damaged_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text number {i:06d}" for i in range(5000)]
    pq.write_table(
        pa.table({"text": texts}), path, compression="none", use_dictionary=False, write_page_checksum=True,
        row_group_size=1000,
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    at = data.index(b"number 003500")
    data[at] ^= 1
    path.write_bytes(data)
    source = open_source(PARQUET, path)
    runs = source.read(0, ["text"])
    assert sum(rows.count for rows in itertools.islice(runs, 3)) == 3000
    with pytest.raises(fr.FastRecordError, match=rf"{path}: record 3,000: .*CRC.*FR752"):
        next(runs)


def test_what_is_not_parquet_is_said(tmp_path: Path) -> None:
    for head, what in [(b"", "empty"), (b"PARE....", "encrypted"), (b"FEA1....", "version 1"), (b"text", "neither")]:
        (tmp_path / "x.parquet").write_bytes(head)
        with pytest.raises(fr.FastRecordError, match=rf"x\.parquet: the file is .*{what}.*FR752"):
            open_source(PARQUET, tmp_path / "x.parquet")
    with pytest.raises(FileNotFoundError):
        open_source(PARQUET, tmp_path / "missing.parquet")


@pytest.mark.parametrize("settings", [{}, {"images": "binary", "compression": "none"}])
def test_the_library_reads_an_export(tmp_path: Path, settings: dict[str, Any]) -> None:
    schema, columns = exchanging.every_type()
    frec = exchanging.write_file(tmp_path / "a.frec", schema, columns)
    exchanging.export(frec, PARQUET, path := tmp_path / "a.parquet", **settings)
    rows = pq.read_table(path).to_pylist()
    for i, row in enumerate(rows):
        image = row["image"] if settings else row["image"]["bytes"]
        assert image == columns["image"][i]
        assert row["raw"] == columns["raw"][i]
        assert row["key"] == columns["key"][i]
        assert json.loads(row["meta"]) == columns["meta"][i]
        for name in ("label", "flag", "small", "signed", "large", "half", "single", "double", "grid"):
            assert row[name] == columns[name][i].tolist()
        for name in ("line", "frames", "ragged"):
            assert row[name] == columns[name][i].tolist()
        assert row["numbers"] == columns["numbers"][i]
        assert row["words"] == columns["words"][i]
        assert row["boxes"] == [box.tolist() for box in columns["boxes"][i]]


def test_an_export_has_row_groups_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastrecord.formats.parquet._GROUP_BYTES", 1000)
    frec = exchanging.write_file(tmp_path / "a.frec", {"raw": fr.bytes_()}, {"raw": [bytes(300)] * 40})
    exchanging.export(frec, PARQUET, path := tmp_path / "a.parquet")
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [6] * 6 + [4]


def test_what_parquet_cannot_hold_is_refused(tmp_path: Path) -> None:
    schema = fr.Schema({"a": "bfloat16", "b": "complex64", "c": fr.array("int8", (0, 3)), "d": "int8"})
    assert set(PARQUET.refuse(schema)) == {"a", "b", "c"}
    kind = {"x": fr.array("int8", (None, None))}
    frec = exchanging.write_file(
        tmp_path / "a.frec", kind, {"x": [np.zeros((2, 1), np.int8), np.zeros((2, 0), np.int8)]}
    )
    with pytest.raises(fr.FastRecordError, match=r"record 1: field 'x': an array of shape \(2, 0\).*FR757"):
        exchanging.export(frec, PARQUET, tmp_path / "a.parquet")


@pytest.mark.slow
def test_datasets_shows_images_and_classes_of_an_export(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    schema = {"image": fr.image(), "label": fr.FieldType("int64"), "grid": fr.array("float32", (2, 3))}
    columns = {"image": IMAGES, "label": np.arange(COUNT) % 2, "grid": np.ones((COUNT, 2, 3), np.float32)}
    frec = exchanging.write_file(tmp_path / "a.frec", schema, columns, classes=["cat", "dog"])
    exchanging.export(frec, PARQUET, path := tmp_path / "a.parquet")
    found = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train")
    assert found.features["label"].names == ["cat", "dog"]
    for i, row in enumerate(found):
        assert row["image"].size == size(IMAGES[i])
        assert row["label"] == i % 2
        assert row["grid"] == [[1.0] * 3] * 2


def size(data: bytes) -> tuple[int, int]:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.size


def with_nulls(path: Path) -> Path:
    rows = range(8)
    data = pa.table(
        {
            "image": pa.array([{"bytes": IMAGES[i], "path": f"cats/{i}.jpg"} for i in rows]),
            "label": pa.array([None if i in (1, 5) else i for i in rows], pa.int64()),
            "caption": pa.array([None if i == 2 else f"c{i}" for i in rows]),
            "score": pa.array([None if i == 5 else i / 2 for i in rows]),
            "seen": pa.array([None if i == 3 else True for i in rows]),
            "objects": pa.array(
                [None if i == 6 else {"bbox": [[float(i)] * 4] * (i % 3), "n": {"m": i}} for i in rows],
                pa.struct({"bbox": pa.list_(pa.list_(pa.float32(), 4)), "n": pa.struct({"m": pa.int32()})}),
            ),
        }
    )
    pq.write_table(data, path, row_group_size=3)
    return path


def test_structs_are_fields_and_the_path_of_an_image_is_the_key(tmp_path: Path) -> None:
    path, out = with_nulls(tmp_path / "a.parquet"), tmp_path / "out.frec"
    source = open_source(PARQUET, path)
    assert types(source) == {
        "image": "image",
        "label": "int64",
        "caption": "string",
        "score": "float64",
        "seen": "bool",
        "objects.bbox": "list(array(float32, (4,)))",
        "objects.n.m": "int32",
        "image.path": "string",
    }
    assert renames(source) == {
        "objects.bbox": "objects_bbox", "objects.n.m": "objects_n_m",
        "image.path": "key",
    }  # fmt: skip
    summary = pack_with(path, out, bad_files="skip")
    assert [(place, why.split(":")[0]) for place, why in summary.skipped] == [
        (f"{path}: record {number}", f"field {name!r}")
        for number, name in ((1, "label"), (2, "caption"), (3, "seen"), (5, "label"), (6, "objects.bbox"))
    ]
    with fr.Reader(out) as reader:
        assert reader[1]["key"] == "cats/4.jpg"
        assert [box.tolist() for box in reader[1]["objects_bbox"]] == [[4.0] * 4]
        assert reader.column("objects_n_m").tolist() == [0, 4, 7]
    assert types(open_source(PARQUET, path, structs="json"))["objects"] == "json"


def test_a_null_is_filled_with_a_value(tmp_path: Path) -> None:
    path, out = with_nulls(tmp_path / "a.parquet"), tmp_path / "out.frec"
    fill = "label=-1,caption=none,score=0.5,seen=false,objects_bbox=[],objects_n_m=9"
    good("import", path, out, "--fill", fill)
    with fr.Reader(out) as reader:
        assert reader.column("label").tolist() == [0, -1, 2, 3, 4, -1, 6, 7]
        assert [reader[i]["caption"] for i in (1, 2)] == ["c1", "none"]
        assert (reader[5]["score"], reader[3]["seen"], reader[2]["seen"]) == (0.5, False, True)
        assert (list(reader[6]["objects_bbox"]), reader[6]["objects_n_m"]) == ([], 9)
    assert "the value is null: put a value in its place with --fill" in failed("import", path, tmp_path / "b.frec")
    assert "'x' does not fit int64" in failed("import", path, tmp_path / "c.frec", "--fill", "label=x")
    assert "no field to store is called 'nothing'" in failed("import", path, tmp_path / "c.frec", "--fill", "nothing=1")
    tar = Path(__file__).parent / "data"  # a format without nulls
    assert "has no nulls" in failed("import", tar / "mds/plain", tmp_path / "c.frec", "--fill", "label=1")


def test_a_dry_run_counts_nulls_and_numbers_records_as_the_source_does(tmp_path: Path) -> None:
    shown = good("import", with_nulls(tmp_path / "a.parquet"), "--dry-run")
    assert "nulls: 2 in label: --fill label=VALUE" in shown
    assert "nulls: 1 in objects_n_m" in shown
    assert "record 1: bad: field 'label': the value is null" in shown
    assert [line for line in shown.splitlines() if line.startswith("record")][-1] == "record 7:"
    assert "np." not in shown


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"naname": [1, 2]}), path)
    path.write_bytes(path.read_bytes().replace(b"naname", b"na\xff\xeeme"))
    for _ in range(2):
        with pytest.raises(fr.FastRecordError, match="utf-8"):
            pack_with(path, tmp_path / "out.frec")
