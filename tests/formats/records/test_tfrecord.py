"""TFRecord, against the tfrecord package and its protobuf messages."""

from __future__ import annotations

import gc
import gzip
import io
import re
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfrecord import example_pb2
from tfrecord.reader import tfrecord_loader
from tfrecord.writer import TFRecordWriter

import fastrecord as fr
from fastrecord import FastRecordError
from fastrecord.formats.tfrecord import TFRecordSource
from fastrecord.interchange import registry
from tests.support.formats.exchanging import (
    assert_round_trip,
    assert_same,
    bad_records,
    export,
    picture,
    take,
    write_all,
    write_file,
)

TFRECORD = registry.load("tfrecord")


def opened(*paths: Path, **settings: str) -> TFRecordSource:
    source = TFRECORD.open([str(path) for path in paths], settings)
    assert isinstance(source, TFRecordSource)
    return source


def write(path: Path, records: list[dict[str, tuple[Any, str]]]) -> None:
    writer = TFRecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()


def row(number: int) -> dict[str, tuple[Any, str]]:
    return {
        "image/encoded": (picture(number), "byte"),
        "image/class/label": (number % 5 - 2, "int"),
        "image/class/text": (f"class é {number % 5}".encode(), "byte"),
        "image/filename": (f"n{number}.JPEG".encode(), "byte"),
        "image/object/bbox/xmin": ([0.5] * (number % 3), "float"),
        "embedding": ([number, 1.5, -2.5], "float"),
        "words": ([b"a", b"bc"], "byte"),
        "score": (number / 3, "float"),
        "raw": (b"\xff\x00" * (number % 4), "byte"),
    }


def as_read_by_the_library(path: Path, description: Any = None) -> list[dict[str, Any]]:
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # it leaves its file to the collector
        found = list(tfrecord_loader(str(path), None, description))
        gc.collect()
    return found


def records_of(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_examples_of_the_library_come_in(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", [row(n) for n in range(100)])
    source = opened(tmp_path / "a.tfrecord")
    assert {field.rename or field.name: str(field.type) for field in source.fields} == {
        "image": "image",
        "label": "int64",
        "image/class/text": "string",
        "key": "string",
        "image/object/bbox/xmin": "list(float32)",
        "embedding": "array(float32, (3,))",
        "words": "list(string)",
        "score": "float32",
        "raw": "bytes",
    }
    columns = take(source)
    for number, found in enumerate(as_read_by_the_library(tmp_path / "a.tfrecord")):
        expected = {name: value for name, (value, _) in row(number).items()}
        assert columns["image/encoded"][number] == found["image/encoded"] == expected["image/encoded"]
        assert columns["image/class/label"][number] == expected["image/class/label"]
        assert columns["image/class/text"][number].encode() == expected["image/class/text"]
        assert columns["image/filename"][number] == f"n{number}.JPEG"
        assert_same(columns["image/object/bbox/xmin"][number], np.array(expected["image/object/bbox/xmin"], np.float32))
        assert_same(columns["embedding"][number], found["embedding"])
        assert columns["words"][number] == ["a", "bc"]
        assert columns["score"][number] == np.float32(number / 3)
        assert columns["raw"][number] == expected["raw"]


@pytest.mark.parametrize("start", [0, 1, 39, 40, 41, 119])
@pytest.mark.parametrize("size", [1, 100_000])
def test_reading_begins_at_any_record_of_any_file(tmp_path: Path, start: int, size: int) -> None:
    for shard in range(3):
        rows = [{"n": (n, "int"), "data": (b"\xff" * size, "byte")} for n in range(shard * 40, shard * 40 + 40)]
        write(tmp_path / f"train-{shard:05d}-of-00003", rows)
    assert registry.recognise(str(tmp_path))[0] is TFRECORD
    source = TFRECORD.open(str(tmp_path), {})
    for _ in range(2):
        assert take(source, start, ["n"])["n"] == list(range(start, 120))
    assert source.place(start) == f"{tmp_path}/train-{start // 40:05d}-of-00003: record {start}"
    assert take(TFRECORD.open(str(tmp_path / "train-*"), {}), start, ["n"])["n"][:1] == [start]


def test_compressed_files_are_read_whatever_their_names(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", [row(n) for n in range(50)])
    data = (tmp_path / "a.tfrecord").read_bytes()
    expected = take(opened(tmp_path / "a.tfrecord"))
    packed, path = gzip.compress(data), tmp_path / "g"
    path.write_bytes(packed)
    found, why = registry.recognise(str(path))
    assert (found.name, "decompression" in why) == ("tfrecord", True)
    assert_same(take(opened(path), 20), {key: values[20:] for key, values in expected.items()})
    for cut in (len(packed) // 2, len(packed) - 5):
        path.write_bytes(packed[:cut])
        with pytest.raises(FastRecordError, match=r"g: record \d+: .*(cut short|ends)"):
            take(opened(path))


def test_every_cut_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", [{"a": (1, "int")}] * 3)
    whole = (tmp_path / "a.tfrecord").read_bytes()
    for cut in set(range(len(whole))) - {len(whole) // 3, len(whole) // 3 * 2}:
        (tmp_path / "cut.tfrecord").write_bytes(whole[:cut])
        number = cut // (len(whole) // 3)
        with pytest.raises(FastRecordError, match=rf"cut\.tfrecord: record {number}: .*--resume"):
            take(opened(tmp_path / "cut.tfrecord"))


def test_a_flipped_bit_is_a_bad_record_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, [{"a": (n, "int"), "b": (b"bytes", "byte")} for n in range(3)])
    whole = path.read_bytes()
    size = len(whole) // 3
    for byte in range(size, 2 * size):
        changed = bytearray(whole)
        changed[byte] ^= 4
        path.write_bytes(changed)
        if byte - size < 12:
            with pytest.raises(FastRecordError, match=r"record 1: the CRC of its length"):
                take(opened(path))
        else:
            assert bad_records(opened(path)) == {1: "the CRC of its data is wrong"}
    rows = list(opened(path).read(0, ["a", "b"]))
    assert [(list(run.columns["a"]), run.numbers) for run in rows] == [([0, 2], [0, 2])]


def test_records_that_differ_from_the_first_ones_are_bad(tmp_path: Path) -> None:
    def plain(n: int) -> dict[str, tuple[Any, str]]:
        return {"a": (n, "int"), "f": ([1.0, 2.0], "float"), "s": (b"text", "byte")}

    others: list[dict[str, tuple[Any, str]]] = [
        plain(0) | {"a": ([1, 2], "int")},
        plain(0) | {"a": (1.5, "float")},
        {"a": (1, "int"), "s": (b"", "byte")},
        plain(0) | {"f": ([1.0], "float")},
        plain(0) | {"s": (b"\xff", "byte")},
        plain(0) | {"extra": (1, "int")},
    ]
    write(tmp_path / "a.tfrecord", [*map(plain, range(64)), *others, plain(7)])
    source = opened(tmp_path / "a.tfrecord")
    bad = bad_records(source)
    for number, reason in (
        (64, "'a' has 2 integers, .* 1 integers: `--set lists=a`"),
        (65, "'a' has 1 floats"),
        (66, "'f' has none"),
        (67, "'f' has 1 floats, .* 2 floats"),
        (68, "'s'.*utf-8"),
    ):
        assert re.search(reason, bad.pop(number))
    assert bad == {}
    good = take(source, 69)
    assert (good["a"], good["s"], [each.tolist() for each in good["f"]]) == ([0, 7], ["text"] * 2, [[1.0, 2.0]] * 2)
    lists = opened(tmp_path / "a.tfrecord", lists="a,f", bytes="s")
    assert [str(field.type) for field in lists.fields] == ["list(int64)", "list(float32)", "bytes"]
    assert bad_records(lists).keys() == {65}
    with pytest.raises(FastRecordError, match="no feature 'x': there are"):
        opened(tmp_path / "a.tfrecord", lists="x")


def frame(data: bytes) -> bytes:
    file = io.BytesIO()
    length = struct.pack("<Q", len(data))
    for part in (length, data):
        file.write(part + TFRecordWriter.masked_crc(part))
    return file.getvalue()


def test_other_messages_and_empty_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    sequence = example_pb2.SequenceExample()
    sequence.context.feature["a"].int64_list.value.append(1)
    sequence.feature_lists.feature_list["b"].feature.add()
    for data in (sequence.SerializeToString(), b"raw bytes", b"\xff" * 20):
        path.write_bytes(frame(data))
        with pytest.raises(FastRecordError, match=r"a\.tfrecord: record 0: .*not a tf\.train\.Example"):
            opened(path)
    write(tmp_path / "good.tfrecord", [{"a": (1, "int")}])
    path.write_bytes(b"")
    with pytest.raises(FastRecordError, match=r"a\.tfrecord: record 1: the file holds no record"):
        take(opened(tmp_path / "good.tfrecord", path))
    path.write_bytes((tmp_path / "good.tfrecord").read_bytes() + frame(b"raw bytes"))
    assert bad_records(opened(path)) == {1: "its data is not a tf.train.Example message"}
    length = struct.pack("<Q", 1 << 62)
    path.write_bytes((tmp_path / "good.tfrecord").read_bytes() + length + TFRecordWriter.masked_crc(length) + bytes(9))
    with pytest.raises(FastRecordError, match=r"record 1: the file ends within it"):
        take(opened(path))
    (tmp_path / "other").write_bytes(b"x" * 100)
    with pytest.raises(FastRecordError, match=r"no known format"):
        registry.recognise(str(tmp_path / "other"))


def test_the_library_reads_an_export(tmp_path: Path) -> None:
    n = 30
    rng = np.random.default_rng(4)
    fields = {
        "image": fr.image(), "label": fr.FieldType("int32"),
        "f32": fr.FieldType("float32"), "f64": fr.FieldType("float64"),
        "fixed": fr.array("int16", (2, 3)), "ragged": fr.array("float32", (None, 2)), "words": fr.list_(fr.string()),
    }  # fmt: skip
    columns: dict[str, Any] = {
        "image": [picture(i, "JPEG", (40, 40)) for i in range(n)],
        "label": [-(2**31), 2**31 - 1, *range(n - 2)],
        "f32": [float("nan"), float("-inf"), *rng.normal(size=n - 2).astype(np.float32).tolist()],
        "f64": rng.normal(size=n),
        "fixed": rng.integers(-99, 99, (n, 2, 3)).astype(np.int16),
        "ragged": [rng.normal(size=(i % 4, 2)).astype(np.float32) for i in range(n)],
        "words": [["a", "é"], *[[]] * (n - 1)],
    }
    reader = write_file(tmp_path / "in.frec", fields, columns)
    export(reader, TFRECORD, tmp_path / "out.tfrecord", batch=7)
    for number, data in enumerate(records_of(tmp_path / "out.tfrecord")):
        features = example_pb2.Example.FromString(data).features.feature
        assert features.keys() - {"__fastrecord__"} == fields.keys() | {"ragged/shape"}
        assert ("__fastrecord__" in features) == (number == 0)
        assert features["image"].bytes_list.value[0] == columns["image"][number]
        assert features["label"].int64_list.value[0] == columns["label"][number]
        np.testing.assert_array_equal(features["f32"].float_list.value[0], columns["f32"][number])
        assert list(features["fixed"].int64_list.value) == columns["fixed"][number].ravel().tolist()
        assert np.frombuffer(features["f64"].bytes_list.value[0], "<f8")[0] == columns["f64"][number]
        assert list(features["words"].bytes_list.value) == [word.encode() for word in columns["words"][number]]
    loaded = as_read_by_the_library(tmp_path / "out.tfrecord", {"label": "int", "image": "byte"})
    assert [each["label"][0] for each in loaded] == columns["label"]
    assert [bytes(each["image"]) for each in loaded] == columns["image"]


def test_the_suffix_of_an_export_compresses_it(tmp_path: Path) -> None:
    reader = write_file(tmp_path / "in.frec", {"data": fr.bytes_()}, {"data": [b"x" * 100_000]})
    export(reader, TFRECORD, tmp_path / "out.tfrecord.gz")
    (tmp_path / "plain").write_bytes(gzip.decompress((tmp_path / "out.tfrecord.gz").read_bytes()))
    assert as_read_by_the_library(tmp_path / "plain", {"data": "byte"})[0]["data"] == b"x" * 100_000
    assert_round_trip(reader, opened(tmp_path / "out.tfrecord.gz"), tmp_path / "again.frec")


def test_each_file_of_several_has_the_types(tmp_path: Path) -> None:
    reader = write_file(
        tmp_path / "in.frec", {"x": fr.FieldType("int8"), "label": fr.string()}, {"x": [1, 2], "label": ["a", "b"]}
    )
    (tmp_path / "out").mkdir()
    destination = TFRECORD.create(str(tmp_path / "out/0.tfrecord"), reader.schema, {}, {})
    write_all(reader, destination)
    destination.next_shard(str(tmp_path / "out/1.tfrecord"))
    write_all(reader, destination)
    destination.close()
    assert take(TFRECORD.open(str(tmp_path / "out"), {})) == {"x": [1, 2, 1, 2], "label": ["a", "b", "a", "b"]}
    assert str(opened(tmp_path / "out/1.tfrecord").fields[0].type) == "int8"


def test_lists_of_arrays_are_refused() -> None:
    refused = TFRECORD.refuse(fr.Schema({"a": fr.list_(fr.array("int8", (2,))), "b": fr.list_("int8")}))
    assert refused.keys() == {"a"}
