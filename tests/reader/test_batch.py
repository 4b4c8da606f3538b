from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord._core import Batch

COUNT = 50
SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "score": "float64", "key": fr.string()})


def payload(number: int) -> bytes:
    """Return 0 to 480 bytes, different for each record."""
    return bytes([number]) * (number * 7 % 17 * 30)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batch") / "a.frec"
    with fr.Writer(path, SCHEMA) as writer:
        for number in range(COUNT):
            key = f"schlüssel {number}" if number else ""
            writer.append({"data": payload(number), "label": number - 25, "score": number / 4, "key": key})
    return path


@pytest.fixture(params=["mmap", "pread"])
def reader(request: pytest.FixtureRequest, path: Path) -> fr.Reader:
    return fr.Reader(path, request.param)


def check(batch: Batch, numbers: Iterable[int]) -> None:
    numbers = list(numbers)
    assert len(batch) == len(numbers)
    assert [bytes(view) for view in batch["data"]] == [payload(number) for number in numbers]
    assert batch["label"].tolist() == [number - 25 for number in numbers]
    assert batch["score"].tolist() == [number / 4 for number in numbers]
    assert batch["key"] == [f"schlüssel {number}" if number else "" for number in numbers]


@pytest.mark.parametrize(
    ("indices", "numbers"),
    [
        ([3, 1, 4, 1], [3, 1, 4, 1]),
        ((7, 8), [7, 8]),
        (range(49, 0, -12), [49, 37, 25, 13, 1]),
        ([-1, -50, 0], [49, 0, 0]),
        ([np.int8(-1), np.uint64(2)], [49, 2]),
        (np.array([5, -2]), [5, 48]),
        (np.array([5, -2], np.int8), [5, 48]),
        (np.array([5, 6], np.int32), [5, 6]),
        (np.array([5, 6], np.uint8), [5, 6]),
        (np.array([5, 6], np.uint64), [5, 6]),
        (np.array([5, -6], ">i8"), [5, 44]),
        (np.array([5, 6], ">u2"), [5, 6]),
        (np.arange(50)[::-7], [49, 42, 35, 28, 21, 14, 7, 0]),
        (np.arange(50, dtype=np.int32)[3::20], [3, 23, 43]),
        (np.frombuffer(b"\0" + np.array([3, 4]).tobytes(), np.uint8)[1:].view(np.int64), [3, 4]),
        (torch.tensor([9, 8, -1]), [9, 8, 49]),
        (torch.tensor([9, 8], dtype=torch.uint8), [9, 8]),
        (torch.arange(50)[::25], [0, 25]),
        (array.array("h", [1, 2]), [1, 2]),
        ([], []),
        ((), []),
        (range(0), []),
        (np.array([], np.int64), []),
        (np.array([]), []),
    ],
    ids=str,
)
def test_record_numbers_come_in_any_integer_sequence(reader: fr.Reader, indices: Any, numbers: list[int]) -> None:
    check(reader.read_batch(indices), numbers)
    assert reader.lengths("data", indices).tolist() == [len(payload(number)) for number in numbers]
    out = bytearray(sum(len(payload(number)) for number in numbers))
    offsets = reader.read_batch_into(indices, "data", out)
    assert bytes(out) == b"".join(payload(number) for number in numbers)
    assert offsets.tolist() == np.cumsum([0] + [len(payload(number)) for number in numbers]).tolist()
    assert reader.prefetch(indices, "data") == len(out)


READS: list[Callable[[fr.Reader, Any], Any]] = [
    lambda reader, indices: reader.read_batch(indices),
    lambda reader, indices: reader.read_batch_into(indices, "data", bytearray(10_000)),
    lambda reader, indices: reader.lengths("data", indices),
    lambda reader, indices: reader.prefetch(indices, "data"),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (5, r"a 1-D sequence or array of integers, not of shape \(\)"),
        ("abc", r"not of shape \(\)"),
        ({1, 2}, r"not of shape \(\)"),
        (np.zeros((2, 2), np.int64), r"not of shape \(2, 2\)"),
        ([[1, 2]], "not of <class 'list'>"),
        ([1.0], "not of float"),
        ([np.float32(1)], "not of <class 'numpy.float32'>"),
        (np.array([1.0, 2.0]), "not of dtype float64"),
        (torch.tensor([1.0]), "not of dtype float32"),
        ([True, False], "not of bool"),
        ([np.True_], "not of <class 'numpy.bool"),
        (np.ones(COUNT, bool), r"not of dtype bool \(a mask is turned into numbers by numpy.flatnonzero\)"),
        (torch.ones(COUNT, dtype=torch.bool), "not of dtype bool"),
        (["1"], "not of <class 'str'>"),
        ([None], "not of <class 'NoneType'>"),
    ],
    ids=str,
)
def test_what_are_no_record_numbers_is_refused(
    reader: fr.Reader, read: Callable[[fr.Reader, Any], Any], indices: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        read(reader, indices)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("indices", "number"),
    [
        ([0, COUNT], "50"),
        ([-COUNT - 1], "-51"),
        ([2**63 - 1], str(2**63 - 1)),
        ([-(2**63)], str(-(2**63))),
        ([2**70], str(2**70)),
        ([-(2**70)], str(-(2**70))),
        (np.array([1, 2**64 - 1], np.uint64), str(2**64 - 1)),
        (np.array([-51]), "-51"),
        (torch.tensor([50]), "50"),
    ],
    ids=str,
)
def test_a_number_that_is_out_of_range_is_named(
    reader: fr.Reader, read: Callable[[fr.Reader, Any], Any], indices: Any, number: str
) -> None:
    with pytest.raises(IndexError, match=f"record {number} is out of range"):
        read(reader, indices)


def test_a_file_without_records_gives_empty_batches(tmp_path: Path) -> None:
    fr.Writer(tmp_path / "a.frec", SCHEMA).close()
    for access in ("mmap", "pread"):
        reader = fr.Reader(tmp_path / "a.frec", access)
        check(reader.read_batch([]), [])
        assert reader.read_batch_into([], "data", bytearray()).tolist() == [0]
        assert reader.lengths("data").tolist() == []
        with pytest.raises(IndexError, match=r"a\.frec: record 0 is out of range: the file has 0 records"):
            reader.read_batch([0])


def test_a_batch_has_the_fields_asked_for_in_the_order_asked_for(reader: fr.Reader) -> None:
    assert list(reader.read_batch([1])) == ["data", "label", "score", "key"]
    batch = reader.read_batch([1], fields=("key", "label"))
    assert list(batch) == batch.keys() == ["key", "label"]
    assert "label" in batch
    assert "data" not in batch
    assert 5 not in batch
    assert dict(batch) == {"key": ["schlüssel 1"], "label": np.array([-24])}
    assert len(reader.read_batch([1, 2], fields=[])) == 2
    with pytest.raises(KeyError, match=r"no field .*data.* in this batch: it has key, label"):
        _ = batch["data"]
    with pytest.raises(KeyError, match=r"a\.frec: no field .*nope.*: the file has data, label, score, key"):
        reader.read_batch([1], fields=["nope"])
    with pytest.raises(TypeError, match="str"):
        reader.read_batch([1], fields="data")


def test_scalars_of_a_batch_are_arrays_that_own_their_memory(reader: fr.Reader) -> None:
    batch = reader.read_batch(range(COUNT))
    assert batch["label"].dtype == np.int64
    assert batch["score"].dtype == np.float64
    assert batch["label"].flags.writeable
    assert batch["label"].flags.owndata or batch["label"].base is not None
    batch["label"][:] = 0
    assert reader.column("label").tolist() == [number - 25 for number in range(COUNT)]


def test_payloads_are_a_sequence_of_read_only_memoryviews(reader: fr.Reader) -> None:
    payloads = reader.read_batch([3, 1, 2])["data"]
    wanted = [payload(3), payload(1), payload(2)]
    assert len(payloads) == 3
    assert [bytes(payloads[position]) for position in (0, 1, 2)] == wanted
    assert [bytes(payloads[position]) for position in (-3, -2, -1)] == wanted
    assert payloads.tolist() == list(payloads) == wanted
    assert list(reversed(payloads)) == wanted[::-1]
    assert payloads[np.int64(1)] == wanted[1]
    assert payloads[1:] == wanted[1:]
    assert payloads[::-2] == wanted[::-2]
    assert payloads[5:] == []
    assert wanted[0] in payloads
    assert b"none" not in payloads
    assert payloads.lengths.dtype == np.int64
    assert payloads.lengths.tolist() == [len(data) for data in wanted]
    assert all(type(view) is memoryview and view.readonly and view.format == "B" for view in payloads)


@pytest.mark.parametrize("position", [3, -4, 2**63, 2**70, -(2**70)])
def test_a_payload_out_of_range_is_an_index_error(reader: fr.Reader, position: int) -> None:
    payloads = reader.read_batch([3, 1, 2])["data"]
    with pytest.raises(IndexError, match=f"payload {position} is out of range: the batch has 3"):
        _ = payloads[position]


@pytest.mark.parametrize("position", [1.0, "1", None])
def test_a_payload_is_asked_for_by_an_integer(reader: fr.Reader, position: Any) -> None:
    payloads = reader.read_batch([3, 1, 2])["data"]
    with pytest.raises(TypeError, match="integer"):
        _ = payloads[position]


OUTS: list[Callable[[int], Any]] = [
    bytearray,
    lambda size: memoryview(bytearray(size)),
    lambda size: np.zeros(size, np.uint8),
    lambda size: np.zeros(size, np.int8),
    lambda size: np.zeros((size // 10, 5), np.uint16),
    lambda size: np.zeros(size // 4, np.float32),
    lambda size: np.zeros(2 * size, np.uint8)[size:],
    lambda size: torch.zeros(size, dtype=torch.uint8),
    lambda size: torch.zeros(2, size // 2, dtype=torch.uint8),
    lambda size: torch.zeros(size // 4, dtype=torch.float32),
    lambda size: array.array("B", bytes(size)),
]


def as_bytes(out: Any) -> bytes:
    if isinstance(out, torch.Tensor):
        out = out.numpy()
    return out.tobytes() if isinstance(out, np.ndarray) else bytes(out)


@pytest.mark.parametrize("make", OUTS)
@pytest.mark.parametrize("verify", [True, False])
def test_payloads_go_into_any_writable_buffer(reader: fr.Reader, make: Callable[[int], Any], verify: bool) -> None:
    numbers = [7, 3, 7]
    wanted = b"".join(payload(number) for number in numbers)
    assert len(wanted) % 20 == 0
    out = make(len(wanted))
    offsets = reader.read_batch_into(numbers, "data", out, verify=verify)
    assert as_bytes(out) == wanted
    assert offsets.dtype == np.int64
    assert [wanted[a:b] for a, b in itertools.pairwise(offsets)] == [payload(n) for n in numbers]


def test_a_larger_buffer_keeps_its_other_bytes(reader: fr.Reader) -> None:
    out = bytearray(b"\xee" * 1000)
    end = int(reader.read_batch_into([7, 3], "data", out)[-1])
    assert bytes(out) == payload(7) + payload(3) + b"\xee" * (1000 - end)


def test_a_buffer_one_byte_too_small_is_refused_and_not_touched(reader: fr.Reader) -> None:
    needed = len(payload(7)) + len(payload(3))
    out = bytearray(b"\xee" * (needed - 1))
    with pytest.raises(ValueError, match=rf"needs {needed} bytes, the buffer has {needed - 1}: nothing was written"):
        reader.read_batch_into([7, 3], "data", out)
    assert bytes(out) == b"\xee" * (needed - 1)


def test_a_buffer_of_another_kind_is_refused(reader: fr.Reader) -> None:
    frozen = np.zeros(1000, np.uint8)
    frozen.flags.writeable = False
    for out in (bytes(1000), memoryview(bytes(1000)), frozen):
        with pytest.raises(BufferError, match="read-only"):
            reader.read_batch_into([7], "data", out)
    for strided in (np.zeros(2000, np.uint8)[::2], np.zeros((9, 2000), np.uint8)[:, 0], torch.zeros(2000)[::2]):
        with pytest.raises(BufferError, match="not C-contiguous"):
            reader.read_batch_into([7], "data", strided)
    others: list[Any] = [[0] * 1000, None, 1000, "x" * 1000]
    for other in others:
        with pytest.raises(TypeError, match="bytes-like"):
            reader.read_batch_into([7], "data", other)


def test_strings_are_copied_as_utf8_and_fixed_width_fields_are_refused(reader: fr.Reader) -> None:
    out = bytearray(100)
    offsets = reader.read_batch_into([0, 3], "key", out)
    assert offsets.tolist() == [0, 0, len("schlüssel 3".encode())]
    assert out[: offsets[-1]].decode() == "schlüssel 3"
    for call in (
        lambda: reader.read_batch_into([1], "label", out),
        lambda: reader.lengths("label"),
        lambda: reader.prefetch([1], "label"),
    ):
        with pytest.raises(TypeError, match=r"a\.frec: field label is of type int64: it has no payloads"):
            call()
    with pytest.raises(KeyError, match="nope"):
        reader.read_batch_into([1], "nope", out)


def test_a_batch_that_many_threads_copy_is_the_same_as_one_thread_copies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    payloads = [rng.bytes(int(size)) for size in rng.integers(0, 100_000, 200)]
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"data": fr.bytes_()})) as writer:
        for data in payloads:
            writer.append({"data": data})
    numbers = rng.integers(0, 200, 500)
    wanted = b"".join(payloads[number] for number in numbers)
    for access in ("mmap", "pread"):
        for threads in (1, 2, None):
            reader = fr.Reader(tmp_path / "a.frec", access, threads=threads)
            out = np.zeros(len(wanted), np.uint8)
            reader.read_batch_into(numbers, "data", out)
            assert out.tobytes() == wanted
            assert b"".join(reader.read_batch(numbers, verify=True)["data"]) == wanted
