from __future__ import annotations

import math
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord._core import add_crop_index
from tests.conftest import encode
from tests.support.child import run_child
from tests.support.recoding import encoded, picture

SCHEMA = fr.Schema({"image": fr.image(), "blob": fr.bytes_(), "key": fr.string(), "label": "int64", "score": "float64"})
LABELS = [0, -1, 2**63 - 1, -(2**63), 5]
SCORES = [0.0, -0.0, math.inf, 5e-324, 0.1]
KEYS = ["", "a", "größe/猫 😀", "\0", "x" * 10_000]
BLOBS = [b"", b"\0", bytes(range(256)), b"y" * 100_000, b"z" * 7]
ACCESS = ["mmap", "pread"]


def record(number: int) -> dict[str, Any]:
    i = number % 5
    return {"image": encode(i), "blob": BLOBS[i], "key": KEYS[i], "label": LABELS[i], "score": SCORES[i]}


def append(path: Path, first: int, last: int) -> None:
    with fr.Writer(path, SCHEMA, "a" if path.exists() else "x", metadata={"records": last}) as writer:
        for number in range(first, last):
            writer.append(record(number))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    append(tmp_path / "a.frec", 0, 5)
    return tmp_path / "a.frec"


@pytest.mark.parametrize("access", ACCESS)
def test_values_of_every_type_come_back_as_they_went_in(path: Path, access: str) -> None:
    append(path, 5, 10)
    reader = fr.Reader(path, access)
    assert len(reader) == 10
    for number in range(-10, 10):
        found, wanted = reader[number], record(number % 10)
        assert list(found) == list(SCHEMA)
        assert found == wanted
        assert type(found["label"]) is int
        assert type(found["score"]) is float
        assert math.copysign(1, found["score"]) == math.copysign(1, wanted["score"])
        assert type(found["key"]) is str
        assert type(found["image"]) is memoryview
        for field in SCHEMA:
            assert reader.get(number, field) == reader.get(number, field, verify=True) == wanted[field]
    assert [found["label"] for found in reader] == LABELS * 2
    assert [found["label"] for found in reversed(reader)] == (LABELS * 2)[::-1]
    assert reader[np.int64(-1)]["label"] == 5
    assert reader.read_batch(range(10), verify=True)["key"] == KEYS * 2
    assert reader.column("label").tolist() == LABELS * 2
    assert reader.column("score").tolist() == SCORES * 2
    assert reader.lengths("blob").tolist() == [len(blob) for blob in BLOBS] * 2


def test_values_that_mean_the_same_are_taken(tmp_path: Path) -> None:
    same: list[dict[str, Any]] = [
        {"blob": bytearray(b"abc"), "label": np.int8(-3), "score": 1, "key": np.str_("k")},
        {"blob": memoryview(b"abc"), "label": -3, "score": np.float32(1), "key": "k"},
        {"blob": np.frombuffer(b"abc", np.uint8), "label": np.array(-3), "score": True, "key": "k"},
        {"blob": np.frombuffer(b"a_b_c", np.uint8)[::2], "label": np.int64(-3), "score": np.float64(1), "key": "k"},
    ]
    schema = fr.Schema({"blob": fr.bytes_(), "label": "int64", "score": "float64", "key": fr.string()})
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        for values in same:
            writer.append(values)
    for found in fr.Reader(tmp_path / "a.frec"):
        assert found == {"blob": b"abc", "label": -3, "score": 1.0, "key": "k"}


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize(
    ("number", "error"),
    [
        (5, IndexError),
        (-6, IndexError),
        (2**63, IndexError),
        (-(2**70), IndexError),
        (1.0, TypeError),
        (True, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (slice(2), TypeError),
    ],
)
def test_a_record_is_asked_for_by_a_number_in_range(
    path: Path, access: str, number: Any, error: type[Exception]
) -> None:
    reader = fr.Reader(path, access)
    for call in (lambda: reader[number], lambda: reader.get(number, "label")):
        with pytest.raises(error, match="record"):
            call()


def test_a_field_that_is_not_there_is_named_with_those_that_are(path: Path) -> None:
    reader = fr.Reader(path)
    calls: list[Callable[[], Any]] = [
        lambda: reader.get(0, "nope"),
        lambda: reader.column("nope"),
        lambda: reader.lengths("nope"),
        lambda: reader.prefetch([0], "nope"),
    ]
    for call in calls:
        with pytest.raises(KeyError, match=r"a\.frec: no field .*nope.*: the file has image, blob, key, label, score"):
            call()
    for name in ("key", "image", "blob", "label.width"):
        with pytest.raises(TypeError, match=rf"a\.frec: field {name.split('.')[0]} is of type"):
            reader.column(name)


def test_arguments_are_checked(path: Path) -> None:
    with pytest.raises(ValueError, match='access is "mmap" or "pread", not "read"'):
        fr.Reader(path, "read")
    with pytest.raises(ValueError, match="threads is at least 1"):
        fr.Reader(path, threads=0)
    with pytest.raises(FileNotFoundError) as caught:
        fr.Reader(path.with_name("nowhere.frec"))
    assert caught.value.filename == str(path.with_name("nowhere.frec"))


def test_a_reader_says_what_it_reads(path: Path) -> None:
    reader = fr.Reader(path, "pread", threads=1)
    assert (reader.path, reader.access, reader.closed) == (str(path), "pread", False)
    assert (reader.commit, reader.version, reader.complete) == (1, 1, True)
    assert reader.nbytes == path.stat().st_size
    assert reader.tail_bytes == 0
    assert reader.metadata == {"records": 5}
    assert len(reader.file_id) == 32
    assert int(reader.file_id, 16)
    assert "a.frec" in repr(reader)
    assert "5 records" in repr(reader)


def test_a_closed_reader_refuses_everything_but_to_be_closed(path: Path) -> None:
    with fr.Reader(path) as reader:
        batch = reader.read_batch([3])
    reader.close()
    assert reader.closed
    assert "closed" in repr(reader)
    calls: list[Callable[[], Any]] = [
        lambda: len(reader),
        lambda: reader[0],
        lambda: reader.read_batch([0]),
        lambda: reader.column("label"),
        lambda: reader.lengths("blob"),
        lambda: reader.schema,
        lambda: reader.refresh(),
        lambda: reader.verify(),
        lambda: pickle.dumps(reader),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"a\.frec: the reader is closed"):
            call()
    assert bytes(batch["blob"][0]) == BLOBS[3]
    assert batch["key"] == [KEYS[3]]


@pytest.mark.parametrize("access", ACCESS)
def test_an_append_is_seen_after_a_refresh_and_not_before(path: Path, access: str) -> None:
    reader = fr.Reader(path, access)
    batch = reader.read_batch([4])
    assert not reader.refresh()
    append(path, 5, 8)
    assert (len(reader), reader.commit, reader.metadata) == (5, 1, {"records": 5})
    with pytest.raises(IndexError, match="record 5 is out of range: the file has 5 records"):
        _ = reader[5]
    assert reader.refresh()
    assert (len(reader), reader.commit, reader.metadata) == (8, 2, {"records": 8})
    assert reader[7] == record(7)
    assert not reader.refresh()
    assert batch["blob"][0] == BLOBS[4]
    assert batch["key"] == [KEYS[4]]


@pytest.mark.parametrize("access", ACCESS)
def test_a_pickled_reader_opens_the_very_same_snapshot(path: Path, access: str) -> None:
    reader = fr.Reader(path, access, threads=1)
    data = pickle.dumps(reader)
    assert len(data) < 1000
    append(path, 5, 8)
    again = pickle.loads(data)
    assert (len(again), again.commit, again.file_id, again.access) == (5, 1, reader.file_id, access)
    assert again.metadata == {"records": 5}
    assert [found["label"] for found in again] == LABELS
    assert again.refresh()
    assert len(again) == 8


def test_a_pickled_reader_refuses_a_file_that_was_replaced_or_is_gone(path: Path, tmp_path: Path) -> None:
    data = pickle.dumps(fr.Reader(path))
    shutil.copy(path, tmp_path / "copy")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.frec"):
        pickle.loads(data)
    append(path, 0, 5)
    with pytest.raises(fr.FastRecordError, match=r"a\.frec: the file was replaced: expected file .* at commit 1"):
        pickle.loads(data)
    os.replace(tmp_path / "copy", path)
    assert len(pickle.loads(data)) == 5


def test_a_pickled_reader_finds_its_file_from_another_directory(tmp_path: Path) -> None:
    append(tmp_path / "a.frec", 0, 5)
    (tmp_path / "other").mkdir()
    script = """
        import pickle
        reader = fr.Reader("a.frec")
        os.chdir("other")
        print(reader.path, len(pickle.loads(pickle.dumps(reader))))
    """
    assert run_child(script, tmp_path) == "a.frec 5\n"


@pytest.mark.parametrize("access", ACCESS)
def test_many_threads_may_read_while_one_appends_refreshes_and_closes(path: Path, access: str) -> None:
    reader = fr.Reader(path, access)
    seen: list[int] = []
    ends: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while True:
                numbers = rng.integers(0, 5, 20)
                batch = reader.read_batch(numbers, verify=True)
                assert batch["blob"].tolist() == [BLOBS[number] for number in numbers]
                assert batch["label"].tolist() == [LABELS[number] for number in numbers]
                assert reader.column("label")[:5].tolist() == LABELS
                seen.append(len(reader))
        except ValueError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for count in range(5, 55, 5):
        append(path, count, count + 5)
        assert reader.refresh()
    reader.close()
    for thread in threads:
        thread.join()
    assert ends == [f"{path}: the reader is closed"] * 4
    assert set(seen) <= set(range(5, 56, 5))
    assert seen


def big_file(path: Path) -> fr.Reader:
    with fr.Writer(path, fr.Schema({"data": fr.bytes_()})) as writer:
        for number in range(64):
            writer.append({"data": bytes([number]) * (1 << 20)})
    return fr.Reader(path)


def test_other_threads_run_while_a_batch_is_copied_or_checked(tmp_path: Path) -> None:
    reader = big_file(tmp_path / "a.frec")
    out = np.zeros(64 << 20, np.uint8)
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: reader.read_batch_into(range(64), "data", out),
        "check": lambda: reader.read_batch(range(64), verify=True),
        "verify": lambda: reader.verify(),
        "pread": lambda: fr.Reader(tmp_path / "a.frec", "pread").read_batch(range(64)),
        "get": lambda: [reader.get(number, "data", verify=True) for number in range(64)],
    }
    steps, stop, ready = [0], threading.Event(), threading.Event()

    def count() -> None:
        while not stop.is_set():
            steps[0] += 1
            ready.set()
            time.sleep(0)  # release the GIL for the other threads

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # threads switch only when one releases the GIL
    thread = threading.Thread(target=count)
    thread.start()
    try:
        ready.wait()
        for name, call in calls.items():
            for _ in range(100):
                before = steps[0]
                call()
                if steps[0] > before:
                    break
            else:
                pytest.fail(f"no other thread ran during {name}")
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_verify_tells_how_far_it_is_and_counts_what_it_read(tmp_path: Path) -> None:
    reader = big_file(tmp_path / "a.frec")
    calls: list[tuple[int, int]] = []
    report = reader.verify(progress=lambda done, total: calls.append((done, total)))
    found = {name: report.pop(name) for name in ("damaged", "decoded", "undecoded")}
    assert report == {"ok": True, "records": 64, "bytes": 64 << 20, "errors": [], "tail_bytes": 0}
    assert found == {"damaged": [], "decoded": 0, "undecoded": 0}
    assert calls[-1] == (64 << 20, reader.nbytes)
    assert calls == sorted(calls)


def test_an_exception_of_the_progress_call_ends_verify(tmp_path: Path) -> None:
    reader = big_file(tmp_path / "a.frec")

    def stop(done: int, total: int) -> None:
        raise LookupError(f"{done} of {total}")

    with pytest.raises(LookupError, match=f"of {reader.nbytes}"):
        reader.verify(progress=stop)
    with pytest.raises(TypeError, match="not callable"):
        reader.verify(progress=5)  # type: ignore[arg-type]
    assert reader.verify()["ok"]


LONG_CALLS = {
    # 80 GB to check; the other loops are endless.
    "views": "reader.read_batch(np.zeros(20_000, np.int64), verify=True)",
    "verify": "while True: reader.verify()",
    "copies": 'while True: reader.read_batch_into([0] * 100, "data", out)',
}


@pytest.mark.parametrize("call", LONG_CALLS)
def test_ctrl_c_ends_a_long_call_and_the_reader_goes_on(tmp_path: Path, call: str) -> None:
    script = f"""
        reader = fr.Reader(write("a.frec", 20, 4 << 20))
        out = np.zeros(400 << 20, np.uint8) if {call == "copies"} else None
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            {LONG_CALLS[call]}
        except KeyboardInterrupt:
            print(reader.verify()["ok"], len(reader.read_batch([1], verify=True)["data"][0]))
    """
    assert run_child(script, tmp_path, timeout=30) == f"True {4 << 20}\n"


def test_checksums_come_from_the_index_and_are_of_the_stored_bytes(tmp_path: Path) -> None:
    schema = {
        "data": fr.bytes_(),
        "packed": fr.bytes_(compression="zstd"),
        "key": fr.string(),
        "label": fr.FieldType("int64"),
    }
    values = [b"123456789", b"", b"123456789", b"a" * 5000]
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        writer.extend({"data": values, "packed": values, "key": ["123456789"] * 4, "label": range(4)})
    reader = fr.Reader(tmp_path / "a.frec")
    checksums = reader.checksums("data")
    assert checksums.dtype == np.dtype(np.uint32)
    assert checksums.shape == (4,)
    assert checksums.tolist()[:3] == [0xE3069283, 0, 0xE3069283]  # the check value of CRC-32C
    assert reader.checksums("data", [-1, 0]).tolist() == [checksums[3], 0xE3069283]
    assert reader.checksums("key").tolist() == [0xE3069283] * 4
    packed = reader.checksums("packed")
    assert packed[:3].tolist() == checksums[:3].tolist()  # too short to compress
    assert packed[3] != checksums[3]
    with pytest.raises(TypeError, match=r"a\.frec: field label is of type int64: it has no payloads"):
        reader.checksums("label")
    with pytest.raises(IndexError, match="record 4 is out of range"):
        reader.checksums("data", [4])
    with pytest.raises(KeyError, match="nope"):
        reader.checksums("nope")


def test_the_checksum_of_an_image_covers_the_side_bytes_after_it_and_none_elsewhere(tmp_path: Path) -> None:
    image = encoded(picture(0, 500, 400), quality=98)
    with fr.Writer(tmp_path / "a.frec", {"image": fr.image()}) as writer:
        writer.append_images("image", [image, image], {})
        writer.append_images("image", [image], {}, recode=fr.Recode(crop_index=True))
    reader = fr.Reader(tmp_path / "a.frec")
    before = reader.checksums("image").tolist()
    assert {bytes(record["image"]) for record in reader} == {image}
    assert before[0] == before[1] != before[2]
    assert add_crop_index(tmp_path / "a.frec", "image")["indexed"] == 2
    assert reader.refresh()
    assert reader.checksums("image").tolist() == before
