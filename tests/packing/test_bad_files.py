"""Damaged files: the binding passes on each error of the core, with its class, file and place.

rust/core/tests/all/safety/corrupt.rs flips every bit and cuts at every length;
tests/reader/test_verify.py has all ways to read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord import _core
from tests.conftest import encode
from tests.support.child import run_child
from tests.support.commands import failed, good

SCHEMA = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string()})
COUNT = 40
PAGE = 4096
RECORDS = [{"image": encode(number % 5), "label": number, "key": f"key {number}"} for number in range(COUNT)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of one commit."""
    with fr.Writer(tmp_path / "a.frec", SCHEMA, metadata={"classes": ["a", "b"]}) as writer:
        for record in RECORDS:
            writer.append(record)
    return tmp_path / "a.frec"


def footer(path: Path, field: int) -> int:
    """Return a u64 of the last page by docs/format.md, section 6."""
    return int(struct.unpack_from("<Q", path.read_bytes(), path.stat().st_size - PAGE + field)[0])


def chunk(path: Path, field: int, part: int) -> int:
    """Return the offset of a column's only chunk (section 4)."""
    data, start = path.read_bytes(), footer(path, 56)
    entries = [struct.unpack_from("<IBBHQQQQ", data, start + at) for at in range(0, footer(path, 64), 64)]
    (found,) = [entry[6] for entry in entries if entry[:2] == (field, part)]
    return int(found)


def payload(path: Path, field: int, record: int) -> int:
    """Return the offset of a payload (section 2)."""
    return int(struct.unpack_from("<Q", path.read_bytes(), chunk(path, field, 0) + 32 * record)[0])


def seal(data: bytearray, at: int, start: int, end: int) -> None:
    data[at : at + 4] = _core.crc32c(bytes(data[start:end])).to_bytes(4, "little")


def newer_version(data: bytearray) -> None:
    data[9] = 7
    data[12:16] = _core.crc32c(bytes(data[:12] + data[16:32])).to_bytes(4, "little")


def change_metadata(data: bytearray, old: bytes, new: bytes) -> None:
    """Write other metadata of the same length, with valid checksums."""
    at = len(data) - PAGE
    start, length = struct.unpack_from("<QQ", data, at + 72)
    data[start : start + length] = data[start : start + length].replace(old, new)
    seal(data, at + 92, start, start + length)
    seal(data, at + 4092, at, at + 4092)


def replace(data: bytearray, content: bytes) -> None:
    data[:] = content


def cut_off(data: bytearray, length: int) -> None:
    del data[-length:]


def flip_footer(data: bytearray) -> None:
    data[-PAGE + 33] ^= 4


CORRUPT, NEWER = fr.errors.CorruptFileError, fr.errors.UnsupportedVersionError


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda data: replace(data, b""), CORRUPT, r"not a \.frec file: "),
        (lambda data: replace(data, b"\x89PNG\r\n\x1a\n" + bytes(9999)), CORRUPT, r"not a \.frec file: "),
        (lambda data: replace(data, b"\x89FREC\n\x1a\n" + bytes(9999)), CORRUPT, r"not a \.frec file: "),
        (lambda data: cut_off(data, 1), CORRUPT, r"the file is truncated: it has \d+ bytes, and its commit 1 ends at"),
        (flip_footer, CORRUPT, "the footer of commit 1"),
        (newer_version, NEWER, "the file has format version 7, this fastrecord reads up to 1"),
        (lambda data: change_metadata(data, b'"int64"', b'"int65"'), NEWER, 'field "label" has the type "int65"'),
        (
            lambda data: change_metadata(data, b'"complete":true', b'"complete":"no"'),
            CORRUPT,
            "the metadata is damaged: `complete` is not a boolean",
        ),
    ],
    ids=["empty", "png", "text mode", "cut", "footer", "version", "type", "metadata"],
)
def test_what_cannot_be_opened_is_refused_by_name_and_left_alone(
    path: Path, change: Callable[[bytearray], None], error: type[Exception], message: str
) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    for call in (lambda: fr.Reader(path), lambda: fr.Reader(path, "pread"), lambda: fr.Writer(path, mode="a")):
        with pytest.raises(error, match=rf"a\.frec: .*{message}|a\.frec: {message}"):
            call()
    assert path.read_bytes() == data


def test_a_file_without_a_commit_says_so(tmp_path: Path) -> None:
    writer = fr.Writer(tmp_path / "a.frec", SCHEMA)
    message = r"a\.frec: the file holds no commit: its writer was stopped before"
    with pytest.raises(fr.errors.NoCommitError, match=message):
        fr.Reader(tmp_path / "a.frec")
    writer.close()
    assert len(fr.Reader(tmp_path / "a.frec")) == 0


Calls = list[Callable[[fr.Reader], Any]]
IMAGE: Calls = [
    lambda reader: reader[17],
    list,
    lambda reader: reader.get(17, "image"),
    lambda reader: reader.read_batch([3, 17], verify=True),
    lambda reader: reader.read_batch_into([3, 17], "image", bytearray(1 << 20)),
]
TEXT: Calls = [
    lambda reader: reader[30],
    lambda reader: reader.get(30, "key"),
    lambda reader: reader.read_batch([1, 30])["key"],
]
INDEX: Calls = [
    lambda reader: reader[5],
    lambda reader: reader.lengths("image"),
    lambda reader: reader.read_batch([5]),
    lambda reader: reader.read_batch_into([5], "image", bytearray(1 << 20)),
    lambda reader: reader.prefetch([5], "image"),
]
LABEL: Calls = [
    lambda reader: reader.column("label"),
    lambda reader: reader[0],
    lambda reader: reader.read_batch([0], fields=["label"]),
]
WIDTH: Calls = [lambda reader: reader.column("image.width")]


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize(
    ("place", "message", "calls"),
    [
        (lambda path: payload(path, 1, 17) + 300, "record 17, field image: stored CRC 0x[0-9a-f]{8}, computed", IMAGE),
        (lambda path: payload(path, 3, 30), "record 30, field key: stored CRC", TEXT),
        (lambda path: chunk(path, 1, 0) + 32 * 5, "the index of field image, records 0 to 39 is damaged", INDEX),
        (lambda path: chunk(path, 2, 0) + 9, "the values of field label, records 0 to 39 is damaged", LABEL),
        (lambda path: chunk(path, 1, 1) + 9, "the values of field image.width, records 0 to 39 is damaged", WIDTH),
    ],
    ids=["payload", "text", "index", "labels", "widths"],
)
def test_a_flipped_bit_is_an_error_of_each_read_that_names_the_place(
    path: Path, access: str, place: Callable[[Path], int], message: str, calls: Calls
) -> None:
    data = bytearray(path.read_bytes())
    data[place(path)] ^= 4
    path.write_bytes(data)
    reader = fr.Reader(path, access)
    for call in calls:
        with pytest.raises(CORRUPT, match=rf"a\.frec: {message}"):
            call(reader)
    (error,) = reader.verify()["errors"]
    assert re.search(message, error)
    assert fr.Reader(path, verify=False).read_batch([29], ["key"])["key"] == ["key 29"]


def test_a_directory_or_an_unreadable_file_gets_the_systems_error(path: Path, tmp_path: Path) -> None:
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


def test_a_failed_pack_of_shards_names_the_ones_it_leaves(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / "in" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number) if number != 5 else b"not an image")
    out = tmp_path / "out.frec"
    message = failed("pack", tmp_path / "in", out, "--shards", 3)
    left = f"2 of 3 shards are whole, {tmp_path}/out-00000-of-00003.frec to {tmp_path}/out-00001-of-00003.frec"
    assert f"{left}: `--resume` packs the others" in message
    assert left in failed("pack", tmp_path / "in", out, "--shards", 3, "--resume")
    (tmp_path / "in/a/5.jpg").write_bytes(encode(5))
    good("pack", tmp_path / "in", out, "--shards", 3, "--resume")
