"""`verify`: checks payloads once by default; each time, or never, on request."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr

COUNT = 300
SCHEMA = fr.Schema({"data": fr.bytes_(), "rows": fr.array("uint8", (None,)), "grid": fr.array("uint8", (10, 10))})
FIELDS = ("data", "rows", "grid")


def record_of(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    rows, grid = rng.integers(0, 256, (2, 100), np.uint8)
    return {"data": rng.bytes(100), "rows": rows, "grid": grid.reshape(10, 10)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        for number in range(COUNT):
            writer.append(record_of(number))
    return tmp_path / "a.frec"


def damage(path: Path, number: int, fields: Sequence[str] = FIELDS) -> None:
    """Flip a bit in a record's values."""
    content = path.read_bytes()
    with path.open("r+b") as file:
        for field in fields:
            at = content.index(bytes(memoryview(record_of(number)[field]).cast("B")))
            file.seek(at)
            file.write(bytes([content[at] ^ 1]))


# Code without a `verify` argument.
READS: dict[str, Callable[[fr.Reader, str, int], Any]] = {
    "record": lambda reader, field, number: reader[number][field],
    "get": lambda reader, field, number: reader.get(number, field),
    "batch": lambda reader, field, number: reader.read_batch([number, 0], [field])[field][0],
    "copy": lambda reader, field, number: reader.get(number, field, copy=True),
    "batch copy": lambda reader, field, number: reader.read_batch([number], [field], copy=True)[field][0],
    "into": lambda reader, field, number: reader.read_batch_into([number], field, bytearray(100)),
}


def first(value: Any) -> int:
    return int(np.asarray(memoryview(value).cast("B"))[0])


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_damage_is_found_by_each_way_to_read_without_a_word(path: Path, field: str, read: str, access: str) -> None:
    damage(path, 7, [field])
    reader = fr.Reader(path, access)
    for _ in range(2):
        with pytest.raises(fr.errors.CorruptFileError, match=f"record 7, field {field}"):
            READS[read](reader, field, 7)
    READS[read](reader, field, 8)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("read", ["record", "get", "batch", "copy"])
def test_once_checks_a_record_the_first_time_true_each_time_and_false_never(path: Path, field: str, read: str) -> None:
    readers = {word: fr.Reader(path, verify=word) for word in ("once", True, False)}
    good = first(record_of(7)[field])
    assert [first(READS[read](reader, field, 7)) for reader in readers.values()] == [good] * 3
    damage(path, 7)
    assert first(READS[read](readers["once"], field, 7)) == first(READS[read](readers[False], field, 7)) == good ^ 1
    with pytest.raises(fr.errors.CorruptFileError, match="record 7"):
        READS[read](readers[True], field, 7)
    # Another reader has checked nothing yet, and neither has a copy in another process.
    for fresh in (fr.Reader(path), pickle.loads(pickle.dumps(readers["once"]))):
        with pytest.raises(fr.errors.CorruptFileError, match="record 7"):
            READS[read](fresh, field, 7)


def test_what_a_call_says_goes_before_what_the_reader_says(path: Path) -> None:
    damage(path, 7)
    out = bytearray(100)
    careless, careful = fr.Reader(path, verify=False), fr.Reader(path, verify=True)
    for word in ("once", True):
        for read in (
            lambda word=word: careless.get(7, "data", verify=word),
            lambda word=word: careless.read_batch([7], verify=word),
            lambda word=word: careless.read_batch_into([7], "data", out, verify=word),
        ):
            with pytest.raises(fr.errors.CorruptFileError, match="record 7"):
                read()
    careful.get(7, "data", verify=False)
    careful.read_batch([7], ["data"], verify=False)
    careful.read_batch_into([7], "data", out, verify=False)
    assert pickle.loads(pickle.dumps(careless))[7]["data"] == careless[7]["data"]


def test_copies_by_system_calls_are_checked_each_time(path: Path) -> None:
    reader = fr.Reader(path, "pread")
    assert reader[7]["data"] == record_of(7)["data"]
    damage(path, 7)
    with pytest.raises(fr.errors.CorruptFileError, match="record 7"):
        reader[7]


def test_what_was_seen_is_still_known_after_a_refresh_unless_the_file_was_replaced(path: Path) -> None:
    reader = fr.Reader(path)
    reader.read_batch(range(10))
    with fr.Writer(path, mode="a") as writer:
        for number in range(COUNT, 2 * COUNT):
            writer.append(record_of(number))
    for number in (7, COUNT, 2 * COUNT - 1):
        damage(path, number)
    assert reader.refresh()
    assert first(reader[7]["data"]) == first(record_of(7)["data"]) ^ 1
    for number in (COUNT, 2 * COUNT - 1):
        with pytest.raises(fr.errors.CorruptFileError, match=f"record {number}"):
            reader[number]
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    with fr.Writer(copy, mode="a") as writer:
        writer.append(record_of(0))
    copy.replace(path)
    assert reader.refresh()
    with pytest.raises(fr.errors.CorruptFileError, match="record 7"):
        reader[7]


def test_threads_that_read_the_same_records_all_see_the_damage_or_the_data(path: Path) -> None:
    damage(path, 7)
    reader = fr.Reader(path)

    def read(start: int) -> int:
        found = 0
        for number in [*range(start, COUNT), *range(start)]:
            try:
                assert reader.get(number, "data") == record_of(number)["data"]
            except fr.errors.CorruptFileError:
                found += number == 7
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(0, COUNT, COUNT // 4))) == [1] * 4


@pytest.mark.parametrize("word", ["twice", "", None, 1, b"once"])
def test_any_other_word_is_refused_with_those_that_there_are(path: Path, word: Any) -> None:
    wanted = pytest.raises((TypeError, ValueError), match='verify is "once", True or False, not ')
    with wanted:
        fr.Reader(path, verify=word)
    with wanted:
        fr.FastRecordDataset(path, verify=word)
    if word is not None:  # None leaves it to the reader, or the data set
        reader = fr.Reader(path)
        with wanted:
            reader.get(0, "data", verify=word)
        with wanted:
            reader.read_batch([0], verify=word)
        with wanted:
            reader.read_batch_into([0], "data", bytearray(100), verify=word)


def batches(path: Path, **options: Any) -> list[int]:
    made = fr.FastRecordLoader(fr.FastRecordDataset(path, fields=("grid",), **options), 8, shuffle=False)
    return [int(value) for batch in made for value in batch["grid"][:, 0, 0]]


def test_a_loader_checks_as_the_data_set_says(path: Path) -> None:
    damage(path, 7)
    wrong = first(record_of(7)["grid"]) ^ 1
    assert batches(path, verify=False)[7] == wrong
    checked: tuple[dict[str, Any], ...] = ({}, {"verify": "once"}, {"verify": True})
    for options in checked:
        with pytest.raises(fr.errors.CorruptFileError, match="record 7, field grid"):
            batches(path, **options)
    with pytest.raises(fr.errors.CorruptFileError, match="record 7"):
        fr.FastRecordDataset(path)[7]
    assert first(fr.FastRecordDataset(path, verify=False).readers[0][7]["grid"]) == wrong


def test_a_loader_checks_arrays_in_its_first_epoch_only(path: Path) -> None:
    loader = fr.FastRecordLoader(fr.FastRecordDataset(path, fields=("grid",)), 8, shuffle=False)
    list(loader)
    damage(path, 7)
    again = [int(value) for batch in loader for value in batch["grid"][:, 0, 0]]
    assert again[7] == first(record_of(7)["grid"]) ^ 1


def test_a_forked_child_reads_on(path: Path) -> None:
    reader = fr.Reader(path)
    reader[3]
    child = os.fork()
    if child == 0:
        os._exit(0 if reader[3]["data"] == record_of(3)["data"] and reader[4]["data"] == record_of(4)["data"] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("width", [8, 24], ids=["in a block", "across two blocks"])
@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_each_block_of_a_column_is_checked_before_its_first_value(tmp_path: Path, width: int, access: str) -> None:
    """With 24 bytes a value, record 170 begins in the first block of 4 KiB and ends in the second."""
    path = tmp_path / "a.frec"
    values = np.random.default_rng(0).integers(0, 256, (3000, width), np.uint8)
    with fr.Writer(path, fr.Schema({"x": fr.array("uint8", (width,))})) as writer:
        for value in values:
            writer.append({"x": value})
    hit = 170 if width == 24 else 2000
    content = bytearray(path.read_bytes())
    content[content.index(values[hit].tobytes()) + width - 1] ^= 1
    path.write_bytes(content)
    with fr.Reader(path, access=access) as reader:
        assert np.array_equal(reader[0]["x"], values[0])
        with pytest.raises(fr.errors.CorruptFileError, match="values of field x, records"):
            reader[hit]
