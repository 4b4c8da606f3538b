"""MXNet's RecordIO, against a writer and a reader that follow dmlc-core's description step by step.

MXNet itself is not kept up, and not installable beside the versions of numpy that are.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord import FastRecordError
from fastrecord.formats.recordio import RecordIOSource
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

RECORDIO = registry.load("recordio")
MAGIC = b"\x0a\x23\xd7\xce"


def opened(*paths: Path, **settings: str) -> RecordIOSource:
    source = RECORDIO.open([str(path) for path in paths], settings)
    assert isinstance(source, RecordIOSource)
    return source


def record(data: bytes) -> bytes:
    """Return a record as RecordIOWriter::WriteRecord writes it: word by word."""
    out, begin = b"", 0
    for at in range(0, len(data) // 4 * 4, 4):
        if data[at : at + 4] == MAGIC:
            out += MAGIC + struct.pack("<I", (1 if begin == 0 else 2) << 29 | at - begin) + data[begin:at]
            begin = at + 4
    out += MAGIC + struct.pack("<I", (0 if begin == 0 else 3) << 29 | len(data) - begin) + data[begin:]
    return out + b"\0" * (-len(out) % 4)


def packed(label: float | list[float], number: int, data: bytes, id2: int = 0) -> bytes:
    """Return what mx.recordio.pack makes of a header and data."""
    if isinstance(label, list):
        return struct.pack("<IfQQ", len(label), 0, number, id2) + struct.pack(f"<{len(label)}f", *label) + data
    return struct.pack("<IfQQ", 0, label, number, id2) + data


def unpacked(path: Path) -> list[tuple[int, int, float | list[float], int, int, bytes]]:
    """Return place, flag, label, ids and data of each record of a file."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        place, parts = at, b""
        while True:
            magic, word = data[at : at + 4], struct.unpack("<I", data[at + 4 : at + 8])[0]
            assert magic == MAGIC
            kind, length = word >> 29, word % (1 << 29)
            parts += (MAGIC if kind > 1 else b"") + data[at + 8 : at + 8 + length]
            at += 8 + (length + 3) // 4 * 4
            if kind in (0, 3):
                break
        flag, label, number, id2 = struct.unpack("<IfQQ", parts[:24])
        labels = list(struct.unpack(f"<{flag}f", parts[24 : 24 + 4 * flag])) if flag else label
        found.append((place, flag, labels, number, id2, parts[24 + 4 * flag :]))
    return found


def test_records_come_in(tmp_path: Path) -> None:
    images = [picture(n) for n in range(100)]
    (tmp_path / "a.rec").write_bytes(b"".join(record(packed(n % 7, n + 5, images[n])) for n in range(100)))
    assert registry.recognise(str(tmp_path / "a.rec"))[0] is RECORDIO
    assert registry.recognise(str(tmp_path))[0] is RECORDIO
    source = opened(tmp_path / "a.rec")
    assert [str(field.type) for field in source.fields] == ["image", "int64", "uint64"]
    assert take(source) == {"image": images, "label": [n % 7 for n in range(100)], "id": list(range(5, 105))}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 50_000])
@pytest.mark.parametrize("start", [0, 1, 40, 41, 119])
def test_reading_begins_at_any_record_of_any_file(tmp_path: Path, start: int, size: int) -> None:
    for shard in range(3):
        rows = [record(packed(n, n, b"x" * size)) for n in range(shard * 40, shard * 40 + 40)]
        (tmp_path / f"{shard}.rec").write_bytes(b"".join(rows))
    source = RECORDIO.open(str(tmp_path / "{0..2}.rec"), {})
    for _ in range(2):
        columns = take(source, start)
        assert (columns["id"], columns["data"]) == (list(range(start, 120)), [b"x" * size] * (120 - start))
    assert source.place(start) == f"{tmp_path}/{start // 40}.rec: record {start}"


DIVIDED = [
    MAGIC,
    MAGIC * 3,
    b"x" + MAGIC,
    b"abcd" + MAGIC + b"e",
    b"abcd" + MAGIC + b"abc" + MAGIC,
    MAGIC + b"ab",
    b"",
]


@pytest.mark.parametrize("data", DIVIDED)
def test_the_magic_number_in_the_data_divides_records(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.rec").write_bytes(record(packed(1, 2, data)) + record(packed([1.5], 3, data)))
    assert take(opened(tmp_path / "a.rec"))["data"] == [data, data]
    assert take(opened(tmp_path / "a.rec"), 1)["id"] == [3]
    reader = write_file(tmp_path / "in.frec", {"data": fr.bytes_()}, {"data": DIVIDED})
    export(reader, RECORDIO, tmp_path / "out.rec")
    assert (tmp_path / "out.rec").read_bytes() == b"".join(record(packed(0, n, each)) for n, each in enumerate(DIVIDED))


def test_labels_have_the_type_of_the_first_ones(tmp_path: Path) -> None:
    def labels(*values: Any, **settings: str) -> tuple[str, list[Any]]:
        path = tmp_path / "a.rec"
        path.write_bytes(b"".join(record(packed(value, n, b"")) for n, value in enumerate(values)))
        source = opened(path, **settings)
        return str(source.fields[1].type), take(source)["label"]

    assert labels(1, 2) == ("int64", [1, 2])
    assert labels(1, 2, labels="float") == ("float32", [1, 2])
    assert labels(1, 2.5) == ("float32", [1, 2.5])
    kind, values = labels([1, 2], [3, 4.5])
    assert kind == "array(float32, (2,))"
    assert_same(values, [np.array([1, 2], np.float32), np.array([3, 4.5], np.float32)])
    kind, values = labels([1, 2, 3], 7)
    assert kind == "array(float32, (None,))"
    assert_same(values, [np.array([1, 2, 3], np.float32), np.array([7], np.float32)])


def test_second_ids_are_a_field_if_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(record(packed(1, 2, b"", 2**64 - 1)))
    assert take(opened(tmp_path / "a.rec"))["id2"] == [2**64 - 1]


def test_bad_records_are_named_and_the_others_come_in(tmp_path: Path) -> None:
    good = [record(packed(1, n, b"data")) for n in range(64)]
    bad = [record(b"short"), record(packed([1, 2], 7, b"")), record(packed(1.5, 8, b"")),
           record(struct.pack("<IfQQ", 2**32 - 1, 0, 9, 0))]  # fmt: skip
    (tmp_path / "a.rec").write_bytes(b"".join([*good, *bad, good[0]]))
    found = bad_records(opened(tmp_path / "a.rec"))
    reasons = {
        64: "5 bytes",
        65: "id 7: its label has 2 numbers",
        66: "id 8: .*labels=float",
        67: "4,294,967,295 numbers",
    }
    assert found.keys() == reasons.keys()
    for number, reason in reasons.items():
        assert re.search(reason, found[number])
    assert take(opened(tmp_path / "a.rec"), 68)["id"] == [0]
    (tmp_path / "b.rec").write_bytes(record(b"short"))
    with pytest.raises(FastRecordError, match=r"b\.rec: record 0: no record has the header"):
        opened(tmp_path / "b.rec")


def test_every_cut_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    rows = [record(packed(1, n, data)) for n, data in enumerate((b"abcd", b"abcd" + MAGIC + b"x", b"abc"))]
    whole = b"".join(rows)
    ends = [0, len(rows[0]), len(rows[0] + rows[1])]
    for cut in set(range(len(whole))) - set(ends[1:]):
        (tmp_path / "cut.rec").write_bytes(whole[:cut])
        number = sum(cut >= end for end in ends) - 1
        with pytest.raises(FastRecordError, match=rf"cut\.rec: record {number}: .*--resume"):
            take(opened(tmp_path / "cut.rec"))
    for at, start in enumerate(ends):
        for byte in (0, 7):
            changed = bytearray(whole)
            changed[start + byte] ^= 0xF0
            (tmp_path / "cut.rec").write_bytes(changed)
            with pytest.raises(FastRecordError, match=rf"cut\.rec: record {at}: "):
                take(opened(tmp_path / "cut.rec"))
    (tmp_path / "a.rec").write_bytes(whole)
    (tmp_path / "cut.rec").write_bytes(b"")
    with pytest.raises(FastRecordError, match=r"cut\.rec: record 3: the file holds no record"):
        take(opened(tmp_path / "a.rec", tmp_path / "cut.rec"))


def test_everything_survives_a_round_trip(tmp_path: Path) -> None:
    columns = {"image": [picture(n) for n in range(9)], "label": list(range(-4, 5)), "id": [2**64 - 1, *range(8)]}
    fields = {"image": fr.image(), "label": fr.FieldType("int64"), "id": fr.FieldType("uint64")}
    reader = write_file(tmp_path / "in.frec", fields, columns)
    assert RECORDIO.refuse(reader.schema) == {}
    export(reader, RECORDIO, tmp_path / "out.rec")
    assert_round_trip(reader, opened(tmp_path / "out.rec"), tmp_path / "again.frec")
    index = [tuple(map(int, line.split("\t"))) for line in (tmp_path / "out.idx").read_text().splitlines()]
    found = unpacked(tmp_path / "out.rec")
    assert index == [(number, place) for place, _, _, number, _, _ in found]
    assert [each[2] for each in found] == columns["label"]
    assert [each[5] for each in found] == columns["image"]


def test_labels_of_several_numbers_go_out_and_come_back(tmp_path: Path) -> None:
    labels = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
    fields = {"data": fr.bytes_(), "label": fr.array("float32", (3,)), "id2": fr.FieldType("uint64")}
    reader = write_file(tmp_path / "in.frec", fields, {"data": [b"a"] * 4, "label": labels, "id2": [5, 6, 7, 8]})
    (tmp_path / "out").mkdir()
    destination = RECORDIO.create(str(tmp_path / "out/0.rec"), reader.schema, {}, {})
    write_all(reader, destination)
    destination.next_shard(str(tmp_path / "out/1.rec"))
    write_all(reader, destination)
    destination.close()
    columns = take(RECORDIO.open(str(tmp_path / "out"), {}))
    np.testing.assert_array_equal(columns["label"], np.concatenate([labels, labels]))
    assert (columns["id2"], columns["id"]) == ([5, 6, 7, 8] * 2, [0, 1, 2, 3] * 2)
    assert [each[1] for each in unpacked(tmp_path / "out/1.rec")] == [3] * 4


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (fr.FieldType("int64"), 2**24 + 1),
        (fr.FieldType("float64"), 0.1),
        (fr.FieldType("float64"), 1e300),
        (fr.list_("float32"), []),
    ],
)
def test_labels_that_are_no_float32_are_refused(tmp_path: Path, kind: Any, value: Any) -> None:
    reader = write_file(tmp_path / "in.frec", {"data": fr.bytes_(), "label": kind}, {"data": [b""], "label": [value]})
    with pytest.raises(FastRecordError, match=r"record 0, field label: .*`--drop label`"):
        export(reader, RECORDIO, tmp_path / "out.rec")


def test_what_a_header_cannot_hold_is_refused_by_name() -> None:
    fields = {
        "image": fr.image(),
        "mask": fr.image(),
        "label": fr.string(),
        "key": fr.string(),
        "id": fr.FieldType("float32"),
    }
    assert RECORDIO.refuse(fr.Schema(fields)).keys() == {"mask", "label", "key", "id"}
    assert RECORDIO.refuse(fr.Schema({"label": "int8"})).keys() == {"label"}
    assert RECORDIO.refuse(fr.Schema({"data": fr.bytes_(), "label": fr.array("int8", (2, 2))})).keys() == {"label"}
