"""WebDataset and plain tar, against the webdataset library and Python's tarfile."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
import zstandard

import fastrecord as fr
from fastrecord import FastRecordError
from fastrecord.formats.webdataset import TarSource
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
from tests.support.packing import pack_with

TAR = registry.load("webdataset")
COUNT = 100


def opened(*paths: Path, **settings: str) -> TarSource:
    source = TAR.open([str(path) for path in paths], settings)
    assert isinstance(source, TarSource)
    return source


def sample(number: int) -> dict[str, Any]:
    return {
        "__key__": f"a.b/{number:04d}",
        "jpg": picture(number),
        "cls": number % 7,
        "json": {"number": number, "name": "é"},
        "txt": f"text {number}\n",
        "npy": np.full((2, number % 3), number, np.float32),
        "seg.png": picture(number, "PNG"),
        "pyd": {"a": number},
    }


def write_shard(path: Path, start: int = 0, count: int = COUNT) -> None:
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(start, start + count):
            writer.write(sample(number))


def write_tar(path: Path, members: Mapping[str, bytes], **options: Any) -> None:
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def as_read_by_the_library(*paths: Path) -> list[dict[str, Any]]:
    samples = []
    for path in paths:
        with open(path, "rb") as file:  # the library leaves the files that it opens to the collector
            files = webdataset.tariterators.tar_file_expander([{"url": str(path), "stream": file}])
            samples += list(webdataset.tariterators.group_by_keys(files))
    return samples


def test_samples_of_the_library_come_in(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar")
    source = opened(tmp_path / "a.tar")
    assert {field.rename or field.name: str(field.type) for field in source.fields} == {
        "jpg": "image",
        "label": "int64",
        "json": "json",
        "txt": "string",
        "npy": "array(float32, (2, None))",
        "seg_png": "image",
        "pyd": "bytes",
        "key": "string",
    }
    columns = take(source)
    for number, found in enumerate(as_read_by_the_library(tmp_path / "a.tar")):
        expected = sample(number)
        assert columns["__key__"][number] == found["__key__"] == expected["__key__"]
        assert columns["cls"][number] == expected["cls"]
        assert columns["json"][number] == expected["json"]
        assert columns["txt"][number] == expected["txt"]
        assert columns["pyd"][number] == found["pyd"]
        assert (columns["jpg"][number], columns["seg.png"][number]) == (found["jpg"], found["seg.png"])
        assert_same(columns["npy"][number], expected["npy"])


@pytest.mark.parametrize("start", [0, 1, 39, 40, 41, 119])
def test_reading_begins_at_any_sample_of_any_shard(tmp_path: Path, start: int) -> None:
    for shard in range(3):
        write_shard(tmp_path / f"train-{shard:06d}.tar", shard * 40, 40)
    source = TAR.open(str(tmp_path / "train-{000000..000002}.tar"), {})
    for _ in range(2):
        assert take(source, start, ["cls", "__key__"])["__key__"] == [sample(n)["__key__"] for n in range(start, 120)]
    assert source.place(start) == f"{tmp_path}/train-{start // 40:06d}.tar: record {start}"
    assert take(TAR.open(str(tmp_path), {}), start, ["jpg"])["jpg"][0] == picture(start)


def test_compressed_archives_are_read(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", count=5)
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.tgz").write_bytes(gzip.compress(data))
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress(data))
    expected = take(opened(tmp_path / "a.tar"))
    for name in ("a.tar.gz", "a.tgz", "a.tar.zst"):
        found, why = registry.recognise(str(tmp_path / name))
        assert (found.name, "compressed" in why) == ("webdataset", True)
        assert_same(take(opened(tmp_path / name), 2), {name: values[2:] for name, values in expected.items()})
    for name in ("a.tar.gz", "a.tar.zst"):
        whole = (tmp_path / name).read_bytes()
        # What follows the last member of a zstd file is not missed.
        for cut in (len(whole) // 2, *((len(whole) - 3,) if name.endswith(".gz") else ())):
            (tmp_path / "cut" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "cut" / name).write_bytes(whole[:cut])
            with pytest.raises(FastRecordError, match=r"a\.tar\.\w+: record \d: .*(cut short|ends)"):
                take(opened(tmp_path / "cut" / name))


def test_the_extension_of_images_may_change(tmp_path: Path) -> None:
    kinds = {"jpg": "JPEG", "PNG": "PNG", "webp": "WEBP", "jpeg": "JPEG", "ppm": "PPM"}
    members = {f"x{i}.{end}": picture(i, kind) for i, (end, kind) in enumerate(kinds.items())}
    write_tar(tmp_path / "a.tar", members)
    source = opened(tmp_path / "a.tar")
    assert [(field.rename, str(field.type)) for field in source.fields] == [("image", "image"), ("key", "string")]
    assert take(source) == {"jpg": list(members.values()), "__key__": [f"x{i}" for i in range(5)]}


def test_two_images_of_a_sample_are_two_fields(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"a.jpg": picture(1), "a.png": picture(2, "PNG")})
    assert take(opened(tmp_path / "a.tar")) == {"jpg": [picture(1)], "png": [picture(2, "PNG")], "__key__": ["a"]}


def test_class_names_and_other_numbers_have_their_types(tmp_path: Path) -> None:
    write_tar(tmp_path / "names.tar", {"a.cls": b"cat", "b.cls": b"7"})
    write_tar(tmp_path / "numbers.tar", {"a.cls": b" 3\n", "b.cls": b"18446744073709551615"})
    names, numbers = opened(tmp_path / "names.tar"), opened(tmp_path / "numbers.tar")
    assert (str(names.fields[0].type), take(names)["cls"]) == ("string", ["cat", "7"])
    assert (str(numbers.fields[0].type), take(numbers)["cls"]) == ("uint64", [3, 2**64 - 1])


def test_plain_tar_of_class_folders_gives_labels(tmp_path: Path) -> None:
    members = {f"./n{i % 3:03d}/x.{i}.JPEG": picture(i) for i in range(9)}
    write_tar(tmp_path / "a.tar", members)
    source = opened(tmp_path / "a.tar")
    assert take(source) == {
        "image": list(members.values()),
        "label": [f"n{i % 3:03d}" for i in range(9)],
        "__key__": [f"n{i % 3:03d}/x.{i}.JPEG" for i in range(9)],
    }
    as_samples = opened(tmp_path / "a.tar", layout="webdataset")
    assert [f.rename for f in as_samples.fields] == [*(f"{i}_jpeg" for i in range(9)), "key"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_come_in(tmp_path: Path, form: int) -> None:
    long = "/".join(["d" * 60] * (2 if form == tarfile.USTAR_FORMAT else 9)) + "/x"
    write_tar(tmp_path / "a.tar", {f"{long}.txt": b"a", "é/ü.txt": b"b"}, format=form)
    assert take(opened(tmp_path / "a.tar")) == {"txt": ["a", "b"], "__key__": [long, "é/ü"]}


def test_hidden_files_meta_members_and_folders_are_ignored(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        folder = tarfile.TarInfo("d.x")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("__meta__/a.json", "__index__", ".hidden.txt", "README", "a.txt", "d/.x", "b.TXT"):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"{}"))
    assert take(opened(tmp_path / "a.tar")) == {"txt": ["{}", "{}"], "__key__": ["a", "b"]}


def test_bad_samples_are_named_and_the_others_come_in(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    first = {f"{i:03d}.{end}": data for i in range(64) for end, data in (("cls", b"1"), ("json", b"{}"))}
    more = {
        "k.cls": b"no number", "k.json": b"{}",
        "l.cls": b"1", "l.json": b"{",
        "m.cls": b"1",
        "n.cls": b"1", "n.json": b"{}", "n.xml": b"",
        "o.cls": b"1", "o.json": b"[" * 200_000,
        "z.cls": b"5", "z.json": b"[]",
    }  # fmt: skip
    write_tar(path, first | more)
    with tarfile.open(path, "a") as archive:
        for name, kind in (("p.cls", tarfile.SYMTYPE), ("q.cls", tarfile.LNKTYPE), ("r.cls", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "000.cls"
            archive.addfile(info)
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("s.json"))
        archive.addfile(tarfile.TarInfo("\udcff.cls"))
    source = opened(path)
    bad = bad_records(source)
    reasons = {64: "no number", 65: "json", 66: "no such member", 67: r"\*\.xml.*extras=ignore", 68: "json"}
    reasons |= {70: "a link to '000.cls'", 71: "a hard link", 72: "a pipe", 73: "two members", 74: "not UTF-8"}
    assert bad.keys() == reasons.keys()
    for number, reason in reasons.items():
        assert re.search(reason, bad[number]), bad[number]
    rows = list(source.read(69, ["cls", "__key__"]))
    assert (rows[0].columns["__key__"], rows[0].columns["cls"]) == (["z"], [5])
    assert 67 not in bad_records(opened(path, extras="ignore"))


def test_every_cut_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {f"{i}.txt": b"x" * 600 for i in range(3)}, format=tarfile.PAX_FORMAT)
    whole = (tmp_path / "a.tar").read_bytes()
    end = 3 * (512 + 1024)
    for cut in [*range(0, end + 1, 128), 1, 511, 513]:
        path = tmp_path / "cut.tar"
        path.write_bytes(whole[:cut])
        with pytest.raises(FastRecordError, match=r"cut\.tar: record \d: .*--resume"):
            take(opened(path))
    path.write_bytes(whole[:end])
    assert len(take(opened(path, end_marker="optional"))["txt"]) == 3
    path.write_bytes(whole[: end + 512])
    assert len(take(opened(path))["txt"]) == 3


def test_records_before_the_damage_come_first(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {f"{i:03d}.txt": b"x" * 300_000 for i in range(100)})
    with open(tmp_path / "a.tar", "r+b") as file:
        file.seek(90 * (300_032 + 512) + 3)
        file.write(b"#")
    runs = opened(tmp_path / "a.tar").read(0, ["txt"])
    assert sum(next(runs).count for _ in range(4)) == 89
    with pytest.raises(FastRecordError, match=r"a\.tar: record 89: the header at byte 27,\d+,\d+ is damaged"):
        next(runs)


def test_headers_that_promise_too_much_are_errors(tmp_path: Path) -> None:
    def header(name: str, size: int, kind: bytes = b"0") -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        return info.tobuf(tarfile.GNU_FORMAT)

    tail = bytes(10240)
    record = header("a.txt", 1) + b"x".ljust(512, b"\0")
    for hostile in (
        header("b.txt", 1 << 62),
        header("L", 1 << 40, b"L"),
        header("L", 100, b"L"),
        header("x", 10, b"x") + b"99999 a=b\n".ljust(512, b"\0"),
        header("x", 10, b"x") + b"nonsense\n\n".ljust(512, b"\0"),
        header("x", 9, b"x") + b"9 size=x\n".ljust(512, b"\0") + header("b.txt", 1),
        b"\xff" * 512,
    ):
        (tmp_path / "a.tar").write_bytes(record + hostile + (tail if hostile[156:157] == b"x" else b""))
        (tmp_path / "a.tar.gz").write_bytes(gzip.compress(record + hostile))
        for name in ("a.tar", "a.tar.gz"):
            with pytest.raises(FastRecordError, match=rf"{name}: record [01]: "):
                take(opened(tmp_path / name))


def test_an_archive_of_archives_is_an_error(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"n01440764.tar": b"", "n01443537.tar": b""})
    with pytest.raises(FastRecordError, match=r"only other archives, such as n01440764\.tar: unpack"):
        opened(tmp_path / "a.tar")


def test_empty_archives_are_errors(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", count=2)
    write_tar(tmp_path / "b.tar", {})
    (tmp_path / "c.tar").touch()
    assert registry.recognise(str(tmp_path / "b.tar"))[0] is TAR
    for empty in ("b.tar", "c.tar"):
        with pytest.raises(FastRecordError, match=rf"{empty}: record 2: "):
            take(opened(tmp_path / "a.tar", tmp_path / empty))
        with pytest.raises(FastRecordError, match=rf"{empty}: record 0: "):
            opened(tmp_path / empty)


def test_the_library_reads_an_export(tmp_path: Path) -> None:
    n = 7
    fields = {
        "image": fr.image(), "mask": fr.image(), "label": fr.FieldType("int32"), "key": fr.string(), "raw": fr.bytes_(),
        "extra": fr.json(), "json": fr.json(), "a/c%": fr.FieldType("int8"),
    }  # fmt: skip
    columns: dict[str, Any] = {
        "image": [picture(i, ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"][i]) for i in range(n)],
        "mask": [picture(i, "PNG") for i in range(n)],
        "label": list(range(-3, n - 3)),
        "key": ["plain", "n01/n01_1.JPEG", *"abcde"],
        "raw": [b"", b"\0" * 511, b"x" * 512, b"y" * 513, b"a", b"b", b"c"],
        "extra": [None, {"a": [1, 2.5, "é"]}, *range(n - 2)],
        "json": [[]] * n,
        "a/c%": [5] * n,
    }
    reader = write_file(tmp_path / "in.frec", fields, columns)
    export(reader, TAR, tmp_path / "out.tar")
    assert_round_trip(reader, opened(tmp_path / "out.tar"), tmp_path / "again.frec")
    found = as_read_by_the_library(tmp_path / "out.tar")
    assert [each["__key__"] for each in found] == ["plain", "n01/n01_1%2EJPEG", *"abcde"]
    for number in range(n):
        assert found[number]["cls"] == str(number - 3).encode()
        assert json.loads(found[number]["extra.json"]) == columns["extra"][number]
        assert found[number][["jpg", "png", "webp", "gif", "bmp", "tif", "ppm"][number]] == columns["image"][number]
        assert found[number]["raw.bin"] == columns["raw"][number]


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"])
def test_the_suffix_of_an_export_compresses_it(tmp_path: Path, suffix: str) -> None:
    columns: dict[str, Any] = {"key": ["a", "b"], "data": [b"x" * 100_000, b""]}
    reader = write_file(tmp_path / "in.frec", {"key": fr.string(), "data": fr.bytes_()}, columns)
    path = tmp_path / f"out{suffix}"
    export(reader, TAR, path)
    assert path.stat().st_size < 3000
    assert_round_trip(reader, opened(path), tmp_path / "again.frec")
    if suffix != ".tar.zst":  # which the library does not know
        assert as_read_by_the_library(path)[0]["data.bin"] == columns["data"][0]


def test_shards_without_keys_are_numbered_on(tmp_path: Path) -> None:
    reader = write_file(tmp_path / "in.frec", {"label": fr.string(), "x": fr.array("int8", (2,))},
                        {"label": ["a", "b", "a"], "x": np.arange(6, dtype=np.int8).reshape(3, 2)})  # fmt: skip
    (tmp_path / "out").mkdir()
    destination = TAR.create(str(tmp_path / "out/0.tar"), reader.schema, reader.metadata, {})
    write_all(reader, destination)
    destination.next_shard(str(tmp_path / "out/1.tar"))
    batch = reader.read_batch([0, 1])
    destination.write(3, {name: batch[name] for name in reader.schema})
    destination.close()
    found = as_read_by_the_library(tmp_path / "out/0.tar", tmp_path / "out/1.tar")
    assert [each["__key__"] for each in found] == [f"{i:09d}" for i in range(5)]
    assert take(TAR.open(str(tmp_path / "out"), {}))["label"] == ["a", "b", "a", "a", "b"]


def test_what_a_sample_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    schema = fr.Schema({"a": fr.list_(fr.image()), "B": "int8", "b": "int8", "c": fr.list_("complex64")})
    assert TAR.refuse(schema).keys() == {"a", "b", "c"}
    reader = write_file(
        tmp_path / "in.frec", {"key": fr.string(), "x": fr.FieldType("int8")}, {"key": ["k", "k"], "x": [1, 2]}
    )
    with pytest.raises(FastRecordError, match=r"record 1, field key: 'k' .* `--drop key`"):
        export(reader, TAR, tmp_path / "out.tar")


@pytest.mark.parametrize("old", [b'"type"', b'"int16"', b'"array"', b'"image"', b'"extensions"', b'"fastrecord": 1'])
def test_an_export_with_a_damaged_card_is_read_without_it(tmp_path: Path, old: bytes) -> None:
    columns = {"image": [picture(1)], "x": [np.zeros((2, 3), np.int16)]}
    reader = write_file(tmp_path / "in.frec", {"image": fr.image(), "x": fr.array("int16", (2, 3))}, columns)
    export(reader, TAR, tmp_path / "out.tar")
    data = (tmp_path / "out.tar").read_bytes()
    assert old in data
    (tmp_path / "out.tar").write_bytes(data.replace(old, old[:-2] + b"!" + old[-1:]))
    assert {field.name for field in opened(tmp_path / "out.tar").fields} == {"jpg", "x.npy", "__key__"}


def test_a_damaged_header_of_an_array_is_a_bad_record(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", count=66)
    data = (tmp_path / "a.tar").read_bytes()
    at = data.rindex(b"'descr': ")
    for changed in (b"'descr': (", b"'descr':]]", b"\xff" * 10):
        (tmp_path / "a.tar").write_bytes(data[:at] + changed + data[at + 10 :])
        assert list(bad_records(opened(tmp_path / "a.tar"))) == [65]


def test_arrays_of_objects_stay_bytes_and_are_never_loaded(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    write_tar(tmp_path / "a.tar", {"a.npy": file.getvalue()})
    source = opened(tmp_path / "a.tar")
    assert (str(source.fields[0].type), take(source)["npy"]) == ("bytes", [file.getvalue()])
    write_shard(tmp_path / "b.tar", count=64)
    with tarfile.open(tmp_path / "b.tar", "a") as archive:
        info = tarfile.TarInfo("x.npy")
        info.size = len(file.getvalue())
        archive.addfile(info, io.BytesIO(file.getvalue()))
    bad = [why for rows in opened(tmp_path / "b.tar").read(0, ["npy"]) for why in rows.bad.values()]
    assert len(bad) == 1
    assert "not loaded" in bad[0]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_long_name_with_a_slash_at_byte_100_comes_in(tmp_path: Path, form: int) -> None:
    names = [f"a/{'b/' * 60}{number}" for number in range(3)]
    write_tar(tmp_path / "a.tar", {f"{name}.cls": b"%d" % at for at, name in enumerate(names)}, format=form)
    assert take(opened(tmp_path / "a.tar")) == {"cls": [0, 1, 2], "__key__": names}


def test_names_that_lead_elsewhere_are_keys_and_nothing_else(tmp_path: Path) -> None:
    names = ["../../evil", "/abs/evil", "a/../../evil", "C:\\evil", "~/evil", "$(touch x)", "-rf"]
    (tmp_path / "a" / "b").mkdir(parents=True)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in names:
            info = tarfile.TarInfo(f"{name}.cls")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"link{kind.decode()}.cls")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    summary = pack_with(tmp_path / "a.tar", tmp_path / "a/b/out.frec", bad_files="skip")
    assert (summary.records, len(summary.skipped)) == (len(names), 4)
    with fr.Reader(tmp_path / "a/b/out.frec") as reader:
        assert [record["key"] for record in reader] == names
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a.tar", "b", "out.frec"]
