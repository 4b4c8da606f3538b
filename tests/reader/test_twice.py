"""A file that was read or written is opened again in the same process, however the first time ended."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.conftest import write_bytes
from tests.support.child import in_a_fork

PAYLOADS = [bytes([number]) * 5000 for number in range(20)]


def contents(reader: fr.Reader) -> list[bytes]:
    batch = reader.read_batch(range(len(reader)), ["data"])["data"]
    assert [bytes(value) for value in batch] == [bytes(record["data"]) for record in reader]
    return [bytes(value) for value in batch]


def closed_twice(reader: fr.Reader) -> None:
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        len(reader.read_batch([0]))


def left_by_an_error(reader: fr.Reader) -> None:
    with pytest.raises(IndexError), reader:
        reader.read_batch([0, 99])


def read_by_a_child(reader: fr.Reader) -> None:
    assert in_a_fork(lambda: contents(reader)) == PAYLOADS
    assert in_a_fork(reader.close) is None


def pickled(reader: fr.Reader) -> None:
    copy = pickle.loads(pickle.dumps(reader))
    reader.close()
    assert contents(copy) == PAYLOADS


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("end", [closed_twice, left_by_an_error, read_by_a_child, pickled, contents])
def test_a_file_is_read_again(end: Callable[[fr.Reader], Any], access: Any, tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.frec", PAYLOADS)
    for _ in range(3):
        reader = fr.Reader(path, access)
        views = list(reader.read_batch(range(20), ["data"])["data"])
        end(reader)
        del reader
        gc.collect()
        assert [bytes(view) for view in views] == PAYLOADS
        assert in_a_fork(lambda: contents(fr.Reader(path, access))) == PAYLOADS
        assert contents(fr.Reader(path, access)) == PAYLOADS


def test_a_file_is_written_again(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.frec", fr.Schema({"data": fr.bytes_()})

    def write(mode: Any, *, fails: bool = False) -> None:
        with fr.Writer(path, schema, mode) as writer:
            writer.append({"data": PAYLOADS[1]})
            if fails:
                raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            write("x", fails=True)
        assert not path.exists()
    write("x")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            write("x")
    for count in (2, 3):
        write("a")
        with pytest.raises(KeyError):
            write("a", fails=True)
        assert contents(fr.Reader(path)) == [PAYLOADS[1]] * count
        assert in_a_fork(lambda: write("a")) is None
        assert len(fr.Reader(path)) == count + 1
        for _ in range(2):
            write("w")
            with pytest.raises(KeyError):
                write("w", fails=True)
            assert contents(fr.Reader(path)) == [PAYLOADS[1]]
        write("a")
