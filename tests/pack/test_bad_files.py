"""Damaged files: a reader names file and place for any wrong byte, and never returns wrong data."""

from __future__ import annotations

import functools
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import encode
from tests.support.child import run_child

SCHEMA = fr.Schema({"image": fr.image(), "label": fr.int64(), "key": fr.string()})
COUNT = 40
PAGE = 4096
EXTENTS, VALUES = 2, 1
ACCESS = ["mmap", "pread"]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@functools.lru_cache
def image_of(number: int) -> bytes:
    return encode(number % 5)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of one commit. Read only: copy it before changing a byte."""
    path = tmp_path_factory.mktemp("bad") / "sound.frec"
    with fr.Writer(path, SCHEMA, metadata={"classes": ["a", "b"]}) as writer:
        for number in range(COUNT):
            writer.append({"image": image_of(number), "label": number, "key": f"key {number}"})
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "a.frec"))


def footer(path: Path) -> dict[str, int]:
    """Read the last page by docs/format.md, section 6."""
    at = path.stat().st_size - PAGE
    page = path.read_bytes()[at:]
    assert page[:8] == b"FRECEND\n"
    offset, _, records, directory, directory_length, metadata, metadata_length = struct.unpack_from("<7Q", page, 32)
    assert (offset, records) == (at, COUNT)
    return {"footer": at, "directory": directory, "directory length": directory_length, "metadata": metadata} | {
        "metadata length": metadata_length
    }


def chunk(path: Path, field: int, part: int) -> tuple[int, int]:
    """Return offset and length of a column's only chunk (section 4)."""
    place = footer(path)
    data = path.read_bytes()[place["directory"] :][: place["directory length"]]
    entries = [struct.unpack_from("<IBBHQQQQ", data, at) for at in range(0, len(data), 64)]
    [found] = [entry for entry in entries if entry[:2] == (field, part)]
    assert found[4:6] == (0, COUNT)
    return found[6], found[7]


def extent(path: Path, field: int, record: int) -> tuple[int, int]:
    """Return offset and length of a payload (section 2)."""
    offset, stored = struct.unpack_from("<QQ", path.read_bytes(), chunk(path, field, 0)[0] + 32 * record)
    return offset, stored


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def read_everything(path: Path, access: str) -> list[dict[str, Any]]:
    """Read all of a file in every way, with checksums; the ways must agree."""
    with fr.Reader(path, access) as reader:
        assert reader.metadata == {"classes": ["a", "b"]}
        assert reader.schema == SCHEMA
        numbers = range(len(reader))
        batch = reader.read_batch(numbers, verify=True)
        out = bytearray(int(reader.lengths("image").sum()))
        reader.read_batch_into(numbers, "image", out)
        assert b"".join(batch["image"]) == out
        assert batch["label"].tolist() == reader.column("label").tolist()
        sizes = np.stack([reader.column("image.width"), reader.column("image.height")])
        records = [{name: reader.get(n, name, verify=True) for name in SCHEMA} for n in numbers]
        assert [bytes(record["image"]) for record in records] == [bytes(view) for view in batch["image"]]
        assert [record["key"] for record in records] == batch["key"]
        assert sizes.T.tolist() == [list(fr._core.image_size(image_of(n)) or ()) for n in numbers]
        assert reader.verify()["ok"]
        return [{**record, "image": bytes(record["image"])} for record in records]


@pytest.mark.parametrize("access", ACCESS)
def test_the_sound_file_reads_whole(path: Path, access: str) -> None:
    assert read_everything(path, access) == [
        {"image": image_of(number), "label": number, "key": f"key {number}"} for number in range(COUNT)
    ]


NO_FREC: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\x89",
    "text": b"hello, world\n" * 1000,
    "zeros": bytes(100_000),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(10_000),
    "jpeg": encode(0),
    "text-mode transfer": b"\x89FREC\n\x1a\n" + bytes(10_000),
    "half a magic": b"\x89FREC",
}


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("name", NO_FREC)
def test_what_is_no_frec_file_is_refused_by_name_and_left_alone(tmp_path: Path, access: str, name: str) -> None:
    path = tmp_path / "a.frec"
    path.write_bytes(NO_FREC[name])
    with pytest.raises(fr.CorruptFileError, match=r"a\.frec: not a \.frec file: "):
        fr.Reader(path, access)
    with pytest.raises(fr.CorruptFileError, match=r"a\.frec: not a \.frec file: "):
        fr.Writer(path, mode="a")
    assert path.read_bytes() == NO_FREC[name]


def test_a_file_without_a_commit_says_so(tmp_path: Path) -> None:
    writer = fr.Writer(tmp_path / "a.frec", SCHEMA)
    with pytest.raises(fr.CorruptFileError, match=r"a\.frec: the file holds no commit: its writer was stopped before"):
        fr.Reader(tmp_path / "a.frec")
    writer.close()
    assert len(fr.Reader(tmp_path / "a.frec")) == 0


def test_a_newer_version_is_refused_with_both_versions(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[9] = 7
    data[12:16] = crc32c(bytes(data[:12] + data[16:32])).to_bytes(4, "little")
    path.write_bytes(data)
    for call in (lambda: fr.Reader(path), lambda: fr.Reader(path, "pread"), lambda: fr.Writer(path, mode="a")):
        with pytest.raises(fr.UnsupportedVersionError, match=r"a\.frec: .* version 7, this fastrecord reads up to 1"):
            call()
    assert path.read_bytes() == data


def change_metadata(path: Path, old: bytes, new: bytes) -> None:
    """Write other metadata of the same length, with valid checksums."""
    place = footer(path)
    data = bytearray(path.read_bytes())
    start, length = place["metadata"], place["metadata length"]
    document = bytes(data[start : start + length]).replace(old, new)
    assert len(old) == len(new)
    assert document != data[start : start + length]
    data[start : start + length] = document
    at = place["footer"]
    data[at + 92 : at + 96] = crc32c(document).to_bytes(4, "little")
    data[at + 4092 : at + 4096] = crc32c(bytes(data[at : at + 4092])).to_bytes(4, "little")
    path.write_bytes(data)


def test_a_field_type_of_a_newer_minor_version_is_refused_by_name(path: Path) -> None:
    change_metadata(path, b'"int64"', b'"int65"')
    with pytest.raises(fr.UnsupportedVersionError, match=r'a\.frec: field "label" has the type "int65"'):
        fr.Reader(path)


def test_metadata_that_is_no_json_object_is_refused(path: Path) -> None:
    change_metadata(path, b'"complete":true', b'"complete":"no"')
    with pytest.raises(fr.CorruptFileError, match=r"a\.frec: the metadata is damaged: `complete` is not a boolean"):
        fr.Reader(path)


@pytest.mark.parametrize("access", ACCESS)
def test_a_truncated_file_is_refused_at_every_length(path: Path, access: str) -> None:
    size = path.stat().st_size
    data = path.read_bytes()
    lengths = {0, 1, 9, 31, 32, 511, 512, 600, 1056, PAGE - 1, PAGE, PAGE + 1, size // 2, size - PAGE, size - 1}
    lengths |= {int(n) for n in np.random.default_rng(0).integers(0, size, 30)}
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        with pytest.raises(fr.CorruptFileError, match=r"a\.frec: ") as caught:
            fr.Reader(path, access)
        if length >= PAGE:
            message = f"the file is truncated: it has {length} bytes, and its commit 1 ends at {size}: copy it again"
            assert message in str(caught.value)
        with pytest.raises(fr.CorruptFileError):
            fr.Writer(path, mode="a")
        assert path.stat().st_size == length


def test_a_truncated_second_commit_is_refused_and_does_not_go_back_to_the_first(path: Path) -> None:
    first = path.stat().st_size
    with fr.Writer(path, mode="a") as writer:
        writer.append({"image": image_of(0), "label": 0, "key": ""})
    for length in (path.stat().st_size - 1, first + 4096, first + 10, first):
        os.truncate(path, length)
        with pytest.raises(
            fr.CorruptFileError, match=f"the file is truncated: it has {length} bytes, and its commit 2"
        ):
            fr.Reader(path)


@pytest.mark.parametrize("tail", [b"x", bytes(10_000), b"FRECEND\n" + bytes(PAGE - 8), os.urandom(3 * PAGE)])
def test_a_torn_tail_is_reported_by_readers_and_cut_off_by_the_next_writer(path: Path, tail: bytes) -> None:
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(tail)
    for access in ACCESS:
        assert len(read_everything(path, access)) == COUNT
        assert fr.Reader(path, access).tail_bytes == len(tail)
    assert path.stat().st_size == size + len(tail)
    with fr.Writer(path, mode="a") as writer:
        writer.append({"image": image_of(0), "label": COUNT, "key": ""})
    reader = fr.Reader(path)
    assert (reader.tail_bytes, reader.column("label").tolist()) == (0, list(range(COUNT + 1)))
    assert reader.verify()["ok"]


# Part: (the key of its place in `footer`, or none; the offset from there; the message)
OPENING = {
    "magic": ("", 3, r"not a \.frec file"),
    "reserved": ("", 10, "superblock"),
    "superblock crc": ("", 12, "superblock"),
    "file id": ("", 20, "superblock"),
    "footer magic": ("footer", 0, "footer of commit 1"),
    "footer offset": ("footer", 33, "footer of commit 1"),
    "footer records": ("footer", 48, "footer of commit 1"),
    "footer padding": ("footer", 2000, "footer of commit 1"),
    "footer crc": ("footer", 4093, "footer of commit 1"),
    "directory": ("directory", 17, "directory of commit 1"),
    "metadata": ("metadata", 5, "metadata of commit 1"),
}


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("part", OPENING)
def test_a_flipped_bit_in_what_opening_reads_is_an_error_that_names_the_part(
    path: Path, access: str, part: str
) -> None:
    place, behind, message = OPENING[part]
    flip(path, footer(path).get(place, 0) + behind, 2)
    before = path.read_bytes()
    with pytest.raises(fr.CorruptFileError, match=rf"a\.frec: .*{message}"):
        fr.Reader(path, access)
    with pytest.raises(fr.CorruptFileError, match=rf"a\.frec: .*{message}"):
        fr.Writer(path, mode="a")
    assert path.read_bytes() == before


@pytest.mark.parametrize("slot", [0, 1])
def test_a_damaged_hint_costs_a_scan_and_no_data(path: Path, slot: int) -> None:
    flip(path, 512 + 512 * slot + 3)
    assert len(read_everything(path, "mmap")) == COUNT


@pytest.mark.parametrize("access", ACCESS)
def test_a_flipped_bit_in_a_payload_is_found_by_every_read_that_checks(path: Path, access: str) -> None:
    offset, length = extent(path, 1, 17)
    flip(path, offset + length // 2)
    damaged = re.compile(
        r"a\.frec: record 17, field image: stored CRC 0x[0-9a-f]{8}, computed 0x[0-9a-f]{8}: the payload"
    )
    reader = fr.Reader(path, access)
    out = bytearray(1 << 20)
    calls: list[Callable[[], Any]] = [
        lambda: reader[17],
        lambda: list(reader),
        lambda: reader.get(17, "image"),
        lambda: reader.read_batch([3, 17]),
        lambda: reader.get(17, "image", verify=True),
        lambda: reader.read_batch([3, 17], verify=True),
        lambda: reader.read_batch_into([3, 17], "image", out),
        lambda: reader.read_batch_into(range(COUNT), "image", out, verify=True),
    ]
    for call in calls:
        with pytest.raises(fr.CorruptFileError, match=damaged):
            call()
    report = reader.verify()
    assert not report["ok"]
    assert len(report["errors"]) == 1
    assert damaged.match(report["errors"][0][report["errors"][0].index("a.frec") :])
    # Without the check the bytes come unverified; the other records are intact.
    wrong = bytearray(image_of(17))
    wrong[length // 2] ^= 1
    unchecked = fr.Reader(path, access, verify=False)
    assert unchecked[17]["image"] == reader.get(17, "image", verify=False) == wrong
    assert reader.read_batch([17], verify=False)["image"][0] == unchecked.read_batch([17])["image"][0] == wrong
    end = int(reader.read_batch_into([17], "image", out, verify=False)[-1])
    assert out[:end] == wrong
    assert reader.read_batch([16, 18], verify=True)["image"].tolist() == [image_of(16), image_of(18)]


@pytest.mark.parametrize("access", ACCESS)
def test_a_flipped_bit_in_a_string_is_always_found(path: Path, access: str) -> None:
    flip(path, extent(path, 3, 30)[0])
    reader = fr.Reader(path, access)
    calls: list[Callable[[], Any]] = [
        lambda: reader[30],
        lambda: reader.get(30, "key"),
        lambda: reader.read_batch([1, 30])["key"],
    ]
    for call in calls:
        with pytest.raises(fr.CorruptFileError, match=r"a\.frec: record 30, field key: stored CRC"):
            call()
    assert reader[29]["key"] == "key 29"
    assert len(reader.verify()["errors"]) == 1


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("place", ["entry", "check table"])
def test_a_flipped_bit_in_the_index_names_the_field_and_the_records(path: Path, access: str, place: str) -> None:
    offset, length = chunk(path, 1, 0)
    flip(path, offset + (32 * 5 if place == "entry" else (length + 7) // 8 * 8))
    reader = fr.Reader(path, access)
    calls: list[Callable[[], Any]] = [
        lambda: reader[5],
        lambda: reader.lengths("image"),
        lambda: reader.read_batch([5]),
        lambda: reader.read_batch_into([5], "image", bytearray(100_000)),
        lambda: reader.prefetch([5], "image"),
    ]
    for call in calls:
        with pytest.raises(fr.CorruptFileError, match=r"a\.frec: the index of field image, records 0 to 39 is damaged"):
            call()
    assert reader.column("label").tolist() == list(range(COUNT))
    [error] = reader.verify()["errors"]
    assert "index of field image, records 0 to 39" in error


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize(("name", "field", "part"), [("label", 2, 0), ("image.width", 1, 1), ("image.height", 1, 2)])
def test_a_flipped_bit_in_values_names_the_column(path: Path, access: str, name: str, field: int, part: int) -> None:
    flip(path, chunk(path, field, part)[0] + 9)
    reader = fr.Reader(path, access)
    with pytest.raises(fr.CorruptFileError, match=rf"a\.frec: the values of field {name}, records 0 to 39 is damaged"):
        reader.column(name)
    if name == "label":
        for call in (lambda: reader[0], lambda: reader.read_batch([0], fields=["label"])):
            with pytest.raises(fr.CorruptFileError, match="values of field label"):
                call()
    [error] = reader.verify()["errors"]
    assert f"values of field {name}" in error


@pytest.mark.parametrize("access", ACCESS)
def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(sound: Path, path: Path, access: str) -> None:
    wanted = read_everything(sound, access)
    data = sound.read_bytes()
    place = footer(sound)
    rng = np.random.default_rng(1)
    index = range(chunk(sound, 1, 0)[0], place["footer"] + 200)
    spots = {*range(40), *range(512, 544), *range(1024, 1056)}
    spots |= {int(at) for at in rng.integers(0, len(data), 60)} | {int(at) for at in rng.choice(index, 120)}
    found = unnamed = 0
    for at in sorted(spots):
        flip(path, at, int(rng.integers(8)))
        try:
            assert read_everything(path, access) == wanted
        except fr.FastRecordError as error:
            found += "a.frec" in str(error)
            unnamed += "a.frec" not in str(error)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data[at : at + 1])
    assert unnamed == 0
    assert found > len(spots) // 4


TRUNCATED = {
    "record": "reader[900]",
    "field": 'reader.get(900, "key")',
    "column": 'reader.column("label")',
    "labels": 'reader.read_batch([900], fields=["label"])',
    "payloads": 'reader.read_batch([900], fields=["data"])',
    "checked": 'reader.read_batch([900], fields=["data"], verify=True)',
    "texts": 'reader.read_batch([900], fields=["key"])["key"]',
    "later texts": 'batch["key"]',
    "copy": 'reader.read_batch_into([900], "data", bytearray(1000))',
    "lengths": 'reader.lengths("data", [900])',
    "prefetch": 'reader.prefetch([900], "data")',
    "verify": "reader.verify()",
}


@pytest.mark.parametrize("access", ACCESS)
def test_a_file_truncated_while_it_is_open_is_an_error_and_no_crash(tmp_path: Path, access: str) -> None:
    script = f"""
        for number, call in enumerate({list(TRUNCATED.values())!r}):
            path = write(f"{{number}}.frec", 1000)
            reader = fr.Reader(path, {access!r})
            batch = reader.read_batch([900])
            os.truncate(path, 8192)
            try:
                eval(call)
                print("no error", call)
            except fr.CorruptFileError as error:
                print(error)
    """
    lines = run_child(script, tmp_path).splitlines()
    assert len(lines) == len(TRUNCATED)
    for number, line in enumerate(lines):
        assert f"{number}.frec: the file is truncated: it has 8192 bytes" in line


def test_a_file_that_is_a_directory_or_may_not_be_read_gets_the_systems_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        fr.Reader(tmp_path)
    path.chmod(0)
    tmp_path.chmod(0o777)
    script = """
        if os.geteuid() == 0:
            os.seteuid(65534)
        for call in (lambda: fr.Reader("a.frec"), lambda: fr.Writer("a.frec", mode="a")):
            try:
                call()
            except PermissionError as error:
                print(os.path.basename(error.filename))
    """
    assert run_child(script, tmp_path) == "a.frec\na.frec\n"
