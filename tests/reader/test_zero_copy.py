from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import encode

SCHEMA = fr.Schema({"image": fr.image(), "data": fr.bytes_(), "label": "int64", "score": "float64"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        for number in range(100):
            data = bytes([number]) * 5000
            writer.append({"image": encode(number % 3), "data": data, "label": number, "score": number / 2})
    return tmp_path / "a.frec"


def mappings(path: Path) -> int:
    """Count this process's mappings of a file, deleted or not."""
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def inside_of_a_mapping(path: Path, start: int, length: int) -> bool:
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(first <= start and start + length <= last for first, last in ranges)


COLUMNS = {"label": np.int64, "score": np.float64, "image.width": np.uint32, "image.height": np.uint32}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_a_read_only_view_of_the_mapping_and_no_copy(path: Path, name: str) -> None:
    reader = fr.Reader(path)
    column = reader.column(name)
    assert column.dtype == COLUMNS[name]
    assert column.shape == (100,)
    assert not column.flags.writeable
    assert not column.flags.owndata
    assert np.shares_memory(column, reader.column(name))
    assert inside_of_a_mapping(path, column.__array_interface__["data"][0], column.nbytes)
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        column.flags.writeable = True


def test_a_column_of_several_chunks_is_one_copy_made_once(path: Path) -> None:
    writer = fr.Writer(path, mode="a")
    for number in range(100, 103):
        writer.append({"image": encode(0), "data": b"", "label": number, "score": 0})
        writer.commit()
    reader = fr.Reader(path)
    column = reader.column("label")
    assert column.tolist() == list(range(103))
    assert not column.flags.writeable
    assert np.shares_memory(column, reader.column("label"))
    writer.close()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_read_by_system_calls_is_read_only_and_made_once(path: Path, name: str) -> None:
    reader = fr.Reader(path, "pread")
    column = reader.column(name)
    assert column.tolist() == fr.Reader(path).column(name).tolist()
    assert not column.flags.writeable
    assert np.shares_memory(column, reader.column(name))
    assert mappings(path) == 0


def test_records_and_batches_are_views_of_the_mapping(path: Path) -> None:
    reader = fr.Reader(path)
    assert address(reader[5]["data"]) == address(reader[5]["data"]) == address(reader.get(5, "data"))
    batch = reader.read_batch([5, 6])
    assert address(batch["data"][0]) == address(reader.read_batch([5])["data"][0])
    for view in (reader[5]["data"], batch["data"][0], batch["image"][1]):
        assert inside_of_a_mapping(path, address(view), len(view))


def keepers(reader: fr.Reader) -> dict[str, tuple[Any, bytes]]:
    """Everything that a reader returns, with the bytes that it must keep showing."""
    batch = reader.read_batch([7, 8])
    return {
        "record": (reader[7]["data"], bytes([7]) * 5000),
        "field": (reader.get(7, "data"), bytes([7]) * 5000),
        "slice": (reader[7]["data"][10:20], bytes([7]) * 10),
        "array": (np.frombuffer(reader[7]["data"], np.uint8), bytes([7]) * 5000),
        "column": (reader.column("label"), np.arange(100).tobytes()),
        "part of a column": (reader.column("label")[3:5], np.arange(3, 5).tobytes()),
        "payload": (batch["data"][1], bytes([8]) * 5000),
        "list": (batch["data"].tolist()[1], bytes([8]) * 5000),
        "iterator": (next(iter(batch["data"])), bytes([7]) * 5000),
        "image": (batch["image"][0], encode(1)),
    }


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("gone", ["closed", "deleted", "overwritten"])
def test_what_a_reader_handed_out_outlives_reader_and_file(path: Path, access: str, gone: str) -> None:
    reader = fr.Reader(path, access)
    held = keepers(reader)
    if gone == "deleted":
        path.unlink()
    elif gone == "overwritten":
        with fr.Writer(path, SCHEMA, "w") as writer:
            writer.append({"image": encode(9), "data": b"other" * 1000, "label": -1, "score": 0})
    reader.close()
    del reader
    gc.collect()
    for name, (view, wanted) in held.items():
        assert view.tobytes() == wanted, name


@pytest.mark.parametrize("name", ["record", "column", "payload", "array", "slice", "iterator"])
def test_the_mapping_goes_with_the_last_view_and_not_before(path: Path, name: str) -> None:
    reader = fr.Reader(path)
    view, wanted = keepers(reader)[name]
    assert mappings(path) >= 2
    reader.close()
    gc.collect()
    assert mappings(path) == 1
    assert view.tobytes() == wanted
    del view
    gc.collect()
    assert mappings(path) == 0


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_nothing_that_is_handed_out_can_be_written_to(path: Path, access: str) -> None:
    reader = fr.Reader(path, access)
    before = path.read_bytes()
    batch = reader.read_batch([3])
    for view in (reader[3]["data"], reader.get(3, "image"), batch["data"][0], batch["data"].tolist()[0]):
        assert view.readonly
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
        with pytest.raises(TypeError, match="read-only"):
            view[:2] = b"ab"
        array = np.frombuffer(view, np.uint8)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises((BufferError, TypeError, ValueError)):
            reader.read_batch_into([3], "data", view)
        with pytest.raises(TypeError, match="read-only"):
            memoryview(view.obj).cast("B")[0] = 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_view_can_be_hashed_compared_and_sent_like_bytes(path: Path, access: str) -> None:
    view = fr.Reader(path, access)[3]["data"]
    assert hash(view) == hash(bytes([3]) * 5000)
    assert view == bytes([3]) * 5000
    assert (view.format, view.itemsize, view.ndim, view.contiguous, view.nbytes) == ("B", 1, 1, True, 5000)
    assert b"".join([view[:2], view[-1:]]) == b"\3\3\3"
