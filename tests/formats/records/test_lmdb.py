from __future__ import annotations

import os
import pickle
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmdb
import lz4.frame
import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.format import Found
from tests.support.formats.exchanging import (
    assert_same,
    bad_records,
    export,
    picture,
    take,
    write_file,
)

LMDB = registry.load("lmdb")
# What pyarrow.serialize of pyarrow 10 wrote, which newer versions lack.
DATA = Path(__file__).parent / "data" / "lmdb"
Entries = Mapping[bytes, bytes]


def write(path: Path, entries: Entries, *, subdir: bool = False, database: bytes | None = None, **options: Any) -> Path:
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 26, lock=False, max_dbs=2) as env:
        held = env.open_db(database, **options) if database or options else None
        with env.begin(write=True, db=held) as transaction:
            for key, value in entries.items():
                transaction.put(key, value)
    return path


def entries_of(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def efficient(count: int, start: int = 0) -> dict[bytes, bytes]:
    """Return what the converter of Efficient-PyTorch writes: batches of one from a DataLoader."""
    keys = [b"%d" % number for number in range(count)]
    pairs = [([picture(start + number)], np.array([number % 5])) for number in range(count)]
    entries = {key: pickle.dumps(pair) for key, pair in zip(keys, pairs, strict=True)}
    return entries | {b"__keys__": pickle.dumps(keys), b"__len__": pickle.dumps(count)}


def opened(path: Path, **settings: str) -> Any:
    return LMDB.open(str(path), settings)


def test_images_and_bytes_come_with_their_keys(tmp_path: Path) -> None:
    images = {f"n{number:03}/ä".encode(): picture(number, size=(40, 40)) for number in range(30)}
    for subdir in (False, True):
        path = write(tmp_path / f"a{subdir}.lmdb", images, subdir=subdir)
        found = registry.recognise(str(path))
        assert found[0].name == "lmdb"
        with opened(path) as source:
            assert [(f.name, f.type.name, f.rename) for f in source.fields] == [
                ("__key__", "string", "key"),
                ("image", "image", None),
            ]
            assert source.count() == 30
            assert take(source) == {"__key__": [k.decode() for k in images], "image": list(images.values())}
            assert take(source, 7, ["image"])["image"] == list(images.values())[7:]
            assert source.place(3) == f"{source.paths[0]}: record 3 (key 'n003/ä')"
    path = write(tmp_path / "b.lmdb", {b"\xff%d" % n: os.urandom(n * 1000) for n in range(9)})
    with opened(path) as source:
        assert [f.type.name for f in source.fields] == ["bytes", "bytes"]
        assert take(source)["__key__"][3] == b"\xff3"


def test_an_empty_file_is_an_error_and_an_empty_shard_is_not(tmp_path: Path) -> None:
    empty = write(tmp_path / "a.lmdb", {})
    with pytest.raises(fr.FastRecordError, match=r"a.lmdb: it holds no records \[FR752\]"):
        opened(empty)
    images = {b"%04d" % number: picture(number) for number in range(5)}
    paths = [str(write(tmp_path / "b.lmdb", images)), str(empty), str(write(tmp_path / "c.lmdb", images))]
    for each in (paths, str(tmp_path / "{b,a,c}.lmdb")):
        with LMDB.open(each, {}) as source:
            assert source.count() == 10
            assert take(source)["image"] == 2 * list(images.values())
            assert take(source, 6, ["__key__"])["__key__"] == ["0001", "0002", "0003", "0004"]
            assert source.place(7).endswith("c.lmdb: record 2 (key '0002')")


def test_tuples_of_efficient_pytorch_come_in_their_own_order(tmp_path: Path) -> None:
    path = write(tmp_path / "train.lmdb", efficient(25))
    with opened(path) as source:
        assert [(f.name, f.type.name) for f in source.fields] == [
            ("__key__", "string"),
            ("image", "image"),
            ("label", "int64"),
        ]
        columns = take(source)
        assert columns["__key__"] == [str(number) for number in range(25)]
        assert columns["image"] == [picture(number) for number in range(25)]
        assert columns["label"] == [number % 5 for number in range(25)]
        assert take(source, 20, ["label"])["label"] == [0, 1, 2, 3, 4]
    named = {f"{'zyx'[number]}.jpg".encode(): pickle.dumps((picture(number), number)) for number in range(3)}
    keys = [b"y.jpg", b"z.jpg", b"x.jpg"]
    path = write(tmp_path / "named.lmdb", {**named, b"__keys__": pickle.dumps(keys), b"__len__": pickle.dumps(3)})
    with opened(path) as source:
        assert take(source)["label"] == [1, 0, 2]
        assert source.place(2).endswith("record 2 (key 'x.jpg')")


def test_pickled_objects_have_a_field_for_each_part(tmp_path: Path) -> None:
    rows = [
        {"a": np.full((2, number + 1), number, np.float32), "b": f"t{number}", b"c": [1, 2]} for number in range(12)
    ]
    with opened(write(tmp_path / "a.lmdb", {b"%03d" % n: pickle.dumps(row) for n, row in enumerate(rows)})) as source:
        assert [str(f.type) for f in source.fields] == ["string", "array(float32, (2, None))", "string", "list(int64)"]
        columns = take(source)
        assert_same(columns["a"], [row["a"] for row in rows])
        assert columns["b"] == [f"t{number}" for number in range(12)]
    pairs = [(np.full((4, 4), n, np.int8), np.full((8, 8), n, np.int8)) for n in range(12)]
    framed = {b"%d" % n: lz4.frame.compress(pickle.dumps(pair)) for n, pair in enumerate(pairs)}
    with opened(write(tmp_path / "b.lmdb", framed)) as source:
        assert [f.name for f in source.fields] == ["__key__", "0", "1"]
        assert_same(take(source)["1"], [pair[1] for pair in pairs])


def serialized(name: str) -> bytes:
    return zlib.decompress((DATA / f"{name}.zlib").read_bytes())


def test_what_pyarrow_serialized_is_read_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    entries = {b"%d" % n: serialized("img_label") for n in range(3)}
    entries |= {b"__keys__": serialized("keys"), b"__len__": serialized("len")}
    with opened(write(tmp_path / "a.lmdb", entries)) as source:
        assert take(source) == {
            "__key__": ["0", "1", "2"],
            "image": [b"\xff\xd8imagebytes" * 3] * 3,
            "label": [7] * 3,
        }
    # The pairs of pytorch-load-faster.
    pairs = {b"%d" % n: lz4.frame.compress(serialized("pair")) for n in range(12)}
    with opened(write(tmp_path / "b.lmdb", pairs)) as source:
        columns = take(source)
        assert_same(columns["0"], [np.arange(12, dtype=np.int8).reshape(3, 4)] * 12)
        assert_same(columns["1"], [np.arange(6.0).reshape(2, 3)] * 12)
    good = serialized("pair")
    cut = {b"%04d" % end: good[:end] for end in range(30, len(good), 60)}
    objects = {b"9999": serialized("np"), b"9998": b"\0" * 16 + b"\xff" * 40}
    with opened(write(tmp_path / "c.lmdb", {b"0000": good} | cut | objects)) as source:
        bad = bad_records(source)
        assert list(bad)[-2:] == [len(cut) + 1, len(cut) + 2]
        assert len(bad) > len(cut) // 2
        assert "something else than plain data" in bad[len(cut) + 2]


def test_a_hostile_pickle_is_an_error_with_its_key(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = b"\x80\x02cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    entries = efficient(15) | {b"12": evil}
    with opened(write(tmp_path / "a.lmdb", entries)) as source:
        assert bad_records(source) == {12: "the pickle names 'posix.system', which is not plain data and is not run"}
        assert source.place(12).endswith("a.lmdb: record 12 (key '12')")
    with opened(write(tmp_path / "b.lmdb", efficient(5) | {b"0": evil})) as source:
        assert list(bad_records(source)) == [0]
    for name, entries in {"c": {b"0": evil, b"1": evil}, "d": efficient(5) | {b"__keys__": evil}}.items():
        with pytest.raises(fr.FastRecordError, match=r"[cd].lmdb: .*names 'posix.system'"):
            opened(write(tmp_path / f"{name}.lmdb", entries))
    assert not mark.exists()


def test_odd_records_are_bad_or_refused(tmp_path: Path) -> None:
    good = {b"%04d" % n: pickle.dumps({"a": n, "b": picture(n)}) for n in range(80)}
    odd = {
        b"0070": pickle.dumps({"a": 1}),
        b"0071": b"\x80\x04K",
        b"0072": lz4.frame.compress(b"x" * 1000)[:-9],
        b"0073\xff": good[b"0001"],
        b"0074": b"\x04\x22\x4d\x18" + b"\xff" * 20,
    }
    with opened(write(tmp_path / "a.lmdb", good | odd)) as source:
        assert bad_records(source) == {
            70: "it has no field 'b'",
            71: "the pickle is cut short",
            72: "its lz4 frame is cut short, or larger than 1 GiB",
            74: r"its key b'0073\xff' is not UTF-8: leave the keys out by naming the other fields with --map",
            75: bad_records(source)[75],
        }
        assert take(source, 74, ["a"])["a"][0] == 1 if 75 not in bad_records(source) else True
    mixed = {b"%04d" % n: pickle.dumps({"a": n if n % 2 else "text"}) for n in range(20)}
    with pytest.raises(fr.FastRecordError, match=r"field 'a': its first 20 values are of several types, .*FR754"):
        opened(write(tmp_path / "b.lmdb", mixed))
    missing = {b"%04d" % n: pickle.dumps({"a": 1} | ({"b": 1} if n % 2 else {})) for n in range(20)}
    with pytest.raises(fr.FastRecordError, match=r"10 of the first 20 records have a field 'b', the others do not"):
        opened(write(tmp_path / "c.lmdb", missing))
    with pytest.raises(fr.FastRecordError, match=r"an early pyarrow.serialize wrote: write them again"):
        opened(write(tmp_path / "d.lmdb", {b"0": struct.pack("<III", 0, 0, 1) + b"\xff\xff\xff\xff" + bytes(90)}))
    with pytest.raises(fr.FastRecordError, match=r"record 0 \(key '0000'\): the pickle .*--set values"):
        opened(write(tmp_path / "e.lmdb", {b"0000": b"no pickle"}), values="tuple")


def test_databases_in_a_file(tmp_path: Path) -> None:
    entries = {b"%04d" % n: picture(n) for n in range(300)}
    path = write(tmp_path / "a.lmdb", entries, database=b"train")
    with opened(path, database="train") as source:
        assert take(source)["image"] == list(entries.values())
    with pytest.raises(fr.FastRecordError, match=r"a.lmdb: key b'train' is a database of its own: name it"):
        opened(path)
    with pytest.raises(fr.FastRecordError, match=r"a.lmdb: it holds no database 'val'"):
        opened(path, database="val")
    path = write(tmp_path / "b.lmdb", dict.fromkeys(entries, b"small"), database=b"train", dupsort=True)
    with pytest.raises(fr.FastRecordError, match="several values for one key"):
        opened(path, database="train")


def test_an_entry_missing_in_the_list_of_keys_is_named(tmp_path: Path) -> None:
    entries = {b"c": picture(1), b"a": picture(2), b"b": picture(3)}
    path = write(tmp_path / "a.lmdb", {**entries, b"__keys__": pickle.dumps([b"c", b"a"])})
    with pytest.raises(fr.FastRecordError, match=r"__keys__ lists 2 keys, and the file has 3"):
        opened(path)
    path = write(tmp_path / "b.lmdb", {**entries, b"__keys__": pickle.dumps([b"c", b"a", b"x"])})
    with pytest.raises(fr.FastRecordError, match=r"key b'b' is not in __keys__"):
        opened(path)
    # Keys that are not all numbers come in the order of their bytes.
    keys = [b"0", b"1", b"10", b"11", b"2", b"3", b"4", b"6", b"7", b"8", b"9", b"x"]
    with opened(write(tmp_path / "c.lmdb", {key: picture(0) for key in keys})) as source:
        assert take(source, names=["__key__"])["__key__"] == [key.decode() for key in keys]


def damage_cases(data: bytes) -> dict[str, bytes]:
    rng = np.random.default_rng(3)
    cases = {f"cut at {end}": data[:end] for end in np.linspace(0, len(data) - 1, 25).astype(int).tolist()}
    for number in range(60):
        changed = bytearray(data)
        page = int(rng.integers(0, len(data) // 4096)) * 4096
        for at in rng.integers(0, 48, 4):
            changed[page + int(at)] = int(rng.integers(0, 256))
        cases[f"page {page // 4096}, case {number}"] = bytes(changed)
    claims = bytearray(data)
    for meta in (0, 4096):
        claims[meta + 120 : meta + 128] = struct.pack("<Q", 1 << 60)
    cases["claims many entries"] = bytes(claims)
    return cases


@pytest.mark.parametrize(
    "make", [efficient, lambda n: {b"k%05d" % i: os.urandom(60 + 9000 * (i % 50 == 7)) for i in range(n)}]
)
def test_damaged_files_are_errors_after_the_records_before_them(
    tmp_path: Path, make: Callable[[int], dict[bytes, bytes]]
) -> None:
    path = write(tmp_path / "good.lmdb", make(400))
    with opened(path) as source:
        whole = take(source)
    name = list(whole)[1]
    errors: dict[str, str] = {}
    for case, data in damage_cases(path.read_bytes()).items():
        broken = tmp_path / "broken.lmdb"
        broken.write_bytes(data)
        got: list[Any] = []
        try:
            with opened(broken) as source:
                for rows in source.read(0, [field.name for field in source.fields]):
                    if name in rows.columns:
                        got += [bytes(value) for value in rows.columns[name]]
        except fr.FastRecordError as err:
            errors[case] = str(err)
        # Damage to values shows nowhere, and damage to unused bytes does no harm.
        assert len(got) <= len(whole[name]), case
    assert len(errors) > 40
    assert all(f"{tmp_path}/broken.lmdb" in error and "[FR75" in error for error in errors.values()), errors


def test_an_export_is_a_file_or_a_folder_of_dicts(tmp_path: Path) -> None:
    columns = {"label": [-3, 5], "key": ["schlüssel", ""], "meta": [{"a": [1]}, None]}
    fields = {"label": fr.FieldType("int64"), "key": fr.string(), "meta": fr.json()}
    reader = write_file(tmp_path / "a.frec", fields, columns)
    for subdir in ("no", "yes"):
        path = tmp_path / f"{subdir}.lmdb"
        export(reader, LMDB, path, subdir=subdir)
        assert path.is_dir() == (subdir == "yes")
        with opened(path) as source:
            assert take(source, 1, ["label", "meta"]) == {"label": [5], "meta": [None]}
    with pytest.raises(ValueError, match="LMDB is written as pyobject"):
        export(reader, LMDB, tmp_path / "a.lmdb", values="tuple")
    assert pickle.loads(entries_of(tmp_path / "no.lmdb")[b"0000000000"]) == {
        "label": -3, "key": "schlüssel", "meta": '{"a": [1]}',
    }  # fmt: skip


def test_the_file_grows_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastrecord.formats.lmdb._FIRST_ROOM", 1 << 16)
    values = [os.urandom(50_000) for _ in range(40)]
    reader = write_file(tmp_path / "a.frec", {"value": fr.bytes_()}, {"value": values})
    export(reader, LMDB, tmp_path / "a.lmdb", batch=7)
    with opened(tmp_path / "a.lmdb") as source:
        assert take(source)["value"] == values
    assert (tmp_path / "a.lmdb").stat().st_size < 3_000_000


def test_a_page_in_the_place_of_another_and_a_value_cut_by_its_pages_are_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", {b"%03d" % n: b"x" * 20 for n in range(300)} | {b"999": bytes(9000)})
    good, data = path.read_bytes(), bytearray(path.read_bytes())
    leaves = [at for at in range(8192, len(data), 4096) if data[at + 10 : at + 12] == b"\2\0"]
    data[leaves[1] : leaves[1] + 4096] = data[leaves[2] : leaves[2] + 4096]
    path.write_bytes(data)
    with pytest.raises(fr.FastRecordError, match=r"page [0-9]+ is not a page of entries"), opened(path) as source:
        take(source)
    long = next(at for at in range(8192, len(good), 4096) if good[at + 10 : at + 12] == b"\4\0")
    data = bytearray(good)
    data[long + 12 : long + 16] = b"\1\0\0\0"
    path.write_bytes(data)
    message = r"record 300 \(key '999'\): page [0-9]+ does not begin a long value"
    with pytest.raises(fr.FastRecordError, match=message), opened(path) as source:
        take(source)


def test_pages_that_are_used_twice_are_refused_before_they_multiply(tmp_path: Path) -> None:
    levels, size = 28, 4096  # 2^28 leaves, if each were walked to

    def meta(number: int) -> bytes:
        tree = struct.pack("<4xH26xQQ", 0, 1, 2)
        ends = struct.pack("<QQ", 1 << 62, number)  # the last page is a claim
        head = bytes(16) + struct.pack("<II", 0xBEEFC0DE, 1) + bytes(16) + struct.pack("<I", size)
        return (head.ljust(88, b"\0") + tree + ends).ljust(size, b"\0")

    def page(number: int, flags: int, nodes: list[bytes]) -> bytes:
        places = [size - 16 * (at + 1) for at in range(len(nodes))]
        head = struct.pack(f"<QHHHH{len(nodes)}H", number, 0, flags, 16 + 2 * len(nodes), places[-1], *places)
        return head.ljust(places[-1], b"\0") + b"".join(node.ljust(16, b"\0") for node in reversed(nodes))

    branches = [page(2 + level, 1, [struct.pack("<HHHH", 3 + level, 0, 0, 0)] * 2) for level in range(levels)]
    leaf = page(2 + levels, 2, [struct.pack("<HHHH", 1, 0, 0, 1) + b"kv"])
    path = tmp_path / "a.lmdb"
    path.write_bytes(b"".join([meta(0), meta(1), *branches, leaf]))
    with pytest.raises(fr.FastRecordError, match="its pages form a circle, or are used twice"), opened(path) as source:
        take(source)


def test_a_damaged_record_of_ours_is_bad(tmp_path: Path) -> None:
    reader = write_file(
        tmp_path / "a.frec", {"t": fr.string(), "l": fr.list_(fr.string())}, {"t": ["a"] * 9, "l": [["b"]] * 9}
    )
    export(reader, LMDB, tmp_path / "a.lmdb")
    good = entries_of(tmp_path / "a.lmdb")[b"0000000001"]
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, lock=False) as env, env.begin(write=True) as transaction:
        transaction.put(b"0000000001", good[:-1])
        transaction.put(b"0000000002", good.replace(b"\x8c\x01t", b"\x8c\x01T"))
        transaction.put(b"0000000003", pickle.dumps(["a", ["b"]]))
        transaction.put(b"0000000004", good.replace(b"}", b"]"))
    with opened(tmp_path / "a.lmdb") as source:
        bad = bad_records(source)
        assert list(bad) == [1, 2, 3, 4]
        assert take(source, 5)["l"] == [["b"]] * 4


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.lmdb", {b"0": lz4.frame.compress(pickle.dumps({"a": 1}))})
    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    reader = write_file(tmp_path / "a.frec", {"n": fr.FieldType("int64")}, {"n": [1]})
    with pytest.raises(fr.FastRecordError, match=r"LMDB needs the package lmdb: .*pip install 'fastrecord\[lmdb\]'"):
        export(reader, LMDB, tmp_path / "b.lmdb")
    with pytest.raises(fr.FastRecordError, match=r"needs the package lz4: .*pip install 'fastrecord\[lmdb\]'"):
        opened(path)


def test_only_lmdb_files_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.mdb").write_bytes(b"\x00\x01\x00\x00Standard Jet DB" + bytes(100))
    assert LMDB.recognise(Found.at(str(tmp_path / "a.mdb"))) is None
    assert LMDB.recognise(Found.at(str(tmp_path))) is None
    with pytest.raises(fr.FastRecordError, match=r"a.mdb: not an LMDB file"):
        opened(tmp_path / "a.mdb")
