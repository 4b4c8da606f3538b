from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.files.protobuf import delimited
from tests.support.formats import exchanging
from tests.support.formats.exchanging import open_source, plain, records, renames, types

module = pytest.importorskip("array_record.python.array_record_module", reason="needs array_record")
ARRAYRECORD = registry.load("arrayrecord")

COUNT = 30
RANDOM = np.random.default_rng(4)
IMAGES = exchanging.images(COUNT)


def example(**features: bytes) -> bytes:
    """Return a tf.train.Example of lists in their own encoding."""
    entries = (delimited(1, delimited(1, name.encode()) + delimited(2, each)) for name, each in features.items())
    return delimited(1, b"".join(entries))


def write(path: Path, values: list[bytes], options: str = "group_size:1") -> Path:
    writer = module.ArrayRecordWriter(str(path), options)
    for value in values:
        writer.write(value)
    writer.close()
    return path


def read(path: Path) -> list[bytes]:
    reader = module.ArrayRecordReader(str(path), "")
    found: list[bytes] = reader.read_all()
    reader.close()
    return found


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:7", "group_size:4,uncompressed", "group_size:3,snappy"]
)
def test_images_and_bytes_come_in_from_any_record_on(tmp_path: Path, options: str) -> None:
    path = write(tmp_path / "x.array_record", IMAGES, options)
    chosen, why = registry.recognise(str(path))
    assert (chosen.name, why) == ("arrayrecord", "it begins with the signature of Riegeli's files")
    with open_source(chosen, path) as source:
        assert types(source) == {"record": "image"}
        assert renames(source) == {"record": "image"}
        assert source.count() == COUNT
        for start in (0, 1, 7, 29, 30):
            assert [record["record"] for record in records(source, start)] == IMAGES[start:]
    values = [b"", b"\xffabc", bytes(1000)] * 10
    source = open_source(chosen, write(tmp_path / "bytes", values, options))
    assert types(source) == {"record": "bytes"}
    assert [record["record"] for record in records(source)] == values


def test_examples_come_in_by_feature(tmp_path: Path) -> None:
    messages = [
        example(
            image=delimited(1, delimited(1, data)),
            label=delimited(3, delimited(1, bytes([i]))),
            name=delimited(1, delimited(1, f"ä{i}".encode())),
        )
        for i, data in enumerate(IMAGES)
    ]
    folder = tmp_path / "shards"
    folder.mkdir()
    write(folder / "set-train.array_record-00000-of-00002", messages[:13])
    write(folder / "set-train.array_record-00001-of-00002", messages[13:], "group_size:5")
    chosen, why = registry.recognise(str(folder))
    assert (chosen.name, why) == ("arrayrecord", "the folder holds files like set-train.array_record-00000-of-00002")
    with open_source(chosen, folder) as source:
        assert types(source) == {"image": "image", "label": "int64", "name": "string"}
        assert source.count() == COUNT
        expected = [{"image": data, "label": i, "name": f"ä{i}"} for i, data in enumerate(IMAGES)]
        assert plain(records(source)) == expected
        assert plain(records(source, 17)) == expected[17:]
        assert source.place(20).startswith(f"{folder}/set-train.array_record-00001-of-00002: record ")
    source = open_source(chosen, folder, records="bytes")
    assert [record["record"] for record in records(source)] == messages


@pytest.mark.parametrize("settings", [{}, {"compression": "zstd"}])
def test_the_library_reads_an_export(tmp_path: Path, settings: dict[str, Any]) -> None:
    schema, columns = exchanging.every_type()
    del schema["boxes"], columns["boxes"]
    frec = exchanging.write_file(tmp_path / "a.frec", schema, columns)
    exchanging.export(frec, ARRAYRECORD, path := tmp_path / "a.array_record", **settings)
    for i, message in enumerate(read(path)):  # the library has the same records, each with its values
        assert columns["image"][i] in message
        assert columns["key"][i].encode() in message
        assert message.startswith(b"\x0a")


def test_a_damaged_record_is_a_bad_record(tmp_path: Path) -> None:
    for values in (
        [bytes([i]) * 100 for i in range(9)],
        [example(raw=delimited(1, delimited(1, bytes([i + 200]) * 90))) for i in range(9)],
    ):
        path = write(tmp_path / "x", values, "group_size:1,uncompressed")
        data = bytearray(path.read_bytes())
        data[data.index(values[4][-80:])] ^= 1
        path.write_bytes(data)
        bad = exchanging.bad_records(open_source(ARRAYRECORD, path))
        assert list(bad) == [4]
        assert "hash mismatch" in bad[4]
        rows = next(iter(open_source(ARRAYRECORD, path).read(0, [open_source(ARRAYRECORD, path).fields[0].name])))
        assert len(next(iter(rows.columns.values()))) == 8


def test_files_that_are_cut_short_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x", IMAGES)
    whole = path.read_bytes()
    for size in (0, 10, 64, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(fr.FastRecordError, match=rf"{path}: .*FR752"):
            open_source(ARRAYRECORD, path)
    with pytest.raises(FileNotFoundError):
        open_source(ARRAYRECORD, tmp_path / "missing")


def test_damaged_files_never_crash(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [bytes(RANDOM.integers(0, 256, 300, dtype=np.uint8)) for _ in range(40)])
    end = path.stat().st_size - 65536
    used = [*range(20_000), *range(end, end + 400)]
    assert sum(exchanging.damaged(ARRAYRECORD, path, path, lambda _: used, 60)) > 10


def test_a_file_without_records_comes_in(tmp_path: Path) -> None:
    source = open_source(ARRAYRECORD, write(tmp_path / "empty", []))
    assert (records(source), source.count(), types(source)) == ([], 0, {"record": "bytes"})
    with pytest.raises(fr.FastRecordError, match=r"the file holds no record.*FR752"):
        open_source(ARRAYRECORD, tmp_path / "empty", records="example")
    (tmp_path / "folder").mkdir()
    with pytest.raises(fr.FastRecordError, match=r"no files \*\.array_record.*FR752"):
        open_source(ARRAYRECORD, tmp_path / "folder")
