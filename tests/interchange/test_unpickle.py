"""`plain`: reads plain pickles of all protocols, and runs nothing of hostile ones."""

from __future__ import annotations

import pickle
import struct
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrecord import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange.files.unpickle import plain

ARRAYS = [
    np.arange(24, dtype="<i4").reshape(2, 3, 4),
    np.arange(6, dtype=">f8").reshape(2, 3),
    np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
    np.zeros((0, 3), np.float32),
    np.array(7, np.uint8),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array([1.5], np.float16),
]
VALUES: list[Any] = [
    None, True, False, 0, 1, 255, 256, 65536, -1, 2**31, -(2**31), 2**63, -(2**200), 1.5, -0.0, float("inf"),
    "", "text", "ümläut\n'\"\\", "\U0001f600", b"", b"bytes\x00\xff", bytearray(b"array"), 1 + 2j,
    (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1, [2, [3]]], {}, {"a": 1, b"b": (2,)},
    {3: None}, {1, 2}, frozenset("ab"),
    list(range(5000)), {str(n): n for n in range(3000)}, b"x" * 300, b"y" * 70_000, "z" * 300, ("same", "same", "same"),
    np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("text"), np.uint8(255), np.float64(2.5),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol: int) -> None:
    for value in VALUES:
        got = plain(pickle.dumps(value, protocol))
        assert got == value
        assert type(got) is type(value)
    together = plain(memoryview(pickle.dumps(VALUES, protocol)))
    assert together == VALUES


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_come_back(protocol: int) -> None:
    for value in ARRAYS:
        data = pickle.dumps(value, protocol)
        for text in (data, data.replace(b"numpy._core", b"numpy.core")) if protocol < 4 else (data,):
            got = plain(text)
            assert got.dtype == value.dtype
            assert got.shape == value.shape
            assert np.array_equal(got, value)
    image = ARRAYS[0]
    one = plain(pickle.dumps({"images": [image, image], "dtype": image.dtype}, protocol))
    assert np.array_equal(one["images"][1], image)
    assert one["dtype"] == image.dtype


def test_long_bytes_come_as_views_if_wanted() -> None:
    value = {"image": b"x" * 5000, "more": b"y" * 500, "array": ARRAYS[0], "late": bytearray(9999)}
    for protocol in range(3, 6):
        got = plain(pickle.dumps(value, protocol), views=True)
        assert type(got["image"]) is memoryview
        assert type(got["more"]) is bytes
        assert got["image"].readonly
        assert got["image"] == value["image"]
        assert got["late"] == value["late"]
        assert np.array_equal(got["array"], ARRAYS[0])


def test_texts_of_python_2_come_as_bytes() -> None:
    # pickle.dumps({"data": numpy.arange(3, dtype="u1"), "label": [1L]}, 2) by Python 2.7 and numpy 1.16.
    data = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x03\x85cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x03\x00\x01\x02tbU\x05label]q\x08\x8a\x01\x01au."
    )
    expected: Any = pickle.loads(data, encoding="bytes")
    got = plain(data)
    assert list(got) == list(expected) == [b"data", b"label"]
    assert np.array_equal(got[b"data"], expected[b"data"])
    assert plain(b"S'a\\x00b'\np0\n.") == b"a\x00b"
    odd = b"\\ \n\r\t'\"\xff\x00"
    assert plain(b"S'\\\\ \\n\\r\\t\\'\"\\xff\\x00'\n.") == odd
    assert plain(b"(dp0\nS'k'\nL12L\ns.") == {b"k": 12}


class Run:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


class State:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __setstate__(self, state: Any) -> None:
        Path(state["mark"]).touch()


class Array(np.ndarray):
    def __setstate__(self, state: Any) -> None:
        raise AssertionError


def hostile(mark: Path) -> dict[str, bytes]:
    """Return pickles that leave a file at `mark` if anything runs them, and others that are not plain data."""
    command = f"touch {mark}".encode()
    text = struct.pack("<I", len(command)) + command
    numpy_array = b"cnumpy.core.multiarray\n_reconstruct\n"
    cases = {
        "GLOBAL": b"cos\nsystem\n(S'" + command + b"'\ntR.",
        "STACK_GLOBAL": b"\x8c\x02os\x8c\x06system\x93X" + text + b"\x85R.",
        "STACK_GLOBAL of bytes": b"C\x02osC\x06system\x93X" + text + b"\x85R.",
        "STACK_GLOBAL of a list": b"]]\x93)R.",
        "GLOBAL alone": b"cos\nsystem\n.",
        "INST": b"(S'" + command + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + command + b"'\no.",
        "OBJ of a known name": b"(cbuiltins\nbytearray\nS'" + command + b"'\no.",
        "NEWOBJ": b"\x80\x02cbuiltins\nbytearray\n)\x81.",
        "NEWOBJ_EX": b"\x80\x04cbuiltins\nbytearray\n)}\x92.",
        "eval": b"cbuiltins\neval\n(S'__import__(\"os\")'\ntR.",
        "getattr": b"cbuiltins\ngetattr\n(cnumpy\ndtype\nS'__class__'\ntR.",
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.tofile\x93)R.",
        "a call of a string": b"X\x01\x00\x00\x00a)R.",
        "a call of an array": b"cnumpy\nndarray\n(K\x04tR.",
        "a known name as a value": b"(cnumpy\nndarray\ncnumpy\ndtype\nt.",
        "arguments that are a list": b"cbuiltins\nbytearray\n]R.",
        "BUILD of a list": b"](K\x01K\x02tb.",
        "BUILD of a name": b"cnumpy\nndarray\n}b.",
        "BUILD of a dict with __setstate__": b"}S'__setstate__'\ncos\nsystem\nsS'" + command + b"'\nb.",
        "reconstruct of another class": numpy_array + b"(cbuiltins\nbytearray\n(K\x00tS'b'\ntR.",
        "reconstruct of a string": numpy_array + b"(S'ndarray'\n(K\x00tS'b'\ntR.",
        "reconstruct without its state": numpy_array + b"(cnumpy\nndarray\n(K\x00tS'b'\ntR.",
        "a dtype without its state": b"cnumpy\ndtype\n(S'u1'\nI00\nI01\ntR.",
        "a dtype by Python code": b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntR.",
        "a dtype by commas": b"cnumpy\ndtype\n(S'i4,i4'\nI00\nI01\ntR.",
        "PERSID": b"P0\n.",
        "BINPERSID": b"K\x00Q.",
        "EXT1": b"\x82\x01.",
        "EXT2": b"\x83\x01\x00.",
        "EXT4": b"\x84\x01\x00\x00\x00.",
        "NEXT_BUFFER": b"\x97.",
        "READONLY_BUFFER": b"K\x00\x98.",
        "other encoding": b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00zipl\x85R.",
        "codec with a side effect": b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00punycode\x86R.",
        "newer protocol": b"\x80\x06N.",
        "object array": pickle.dumps(np.array([Run(print)], dtype=object)),
        "compound array": pickle.dumps(np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", ">f8")])),
        "object array, protocol 2": pickle.dumps(np.array([{}], dtype=object), 2),
        "OrderedDict": pickle.dumps(OrderedDict(a=1)),
        "array of a subclass": pickle.dumps(np.zeros(2).view(Array)),
        "date": pickle.dumps(np.array(["2020-01-01"], dtype="datetime64[s]")),
        "path": pickle.dumps(mark),
        "frozenset of a tuple": pickle.dumps(frozenset([(1,)])),
        "key of many digits": pickle.dumps({2**61: 1}),
        "number of many digits": b"I" + b"9" * 2000 + b"\n.",
        "number of many bytes": pickle.dumps(1 << 100_000),
    }
    for protocol in range(6):
        cases[f"system, protocol {protocol}"] = pickle.dumps(Run(__import__("os").system, f"touch {mark}"), protocol)
        cases[f"open, protocol {protocol}"] = pickle.dumps([Run(open, str(mark), "w")], protocol)
        cases[f"__setstate__, protocol {protocol}"] = pickle.dumps({"a": State(mark)}, protocol)
    return cases


def test_hostile_pickles_run_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for name, data in hostile(mark).items():
        with pytest.raises(FastRecordError, match="pickle") as raised:
            pytest.fail(f"{name} gave {plain(data)!r}")
        assert Code.PICKLE in str(raised.value), name
        assert not mark.exists(), name
    with pytest.raises(FastRecordError, match=r"names 'os.system', which is not plain data and is not run \[FR756\]"):
        plain(b"cos\nsystem\n(S'ls'\ntR.")


def nested(levels: int) -> bytes:
    return b"]" * levels + b"a" * (levels - 1) + b"."


def test_claims_and_bombs_need_little_memory_and_time() -> None:
    laughs = b"](" + b"K\x01" * 10 + b"eq\x00"
    laughs += b"".join(b"](" + b"h%c" % level * 10 + b"eq%c" % (level + 1) for level in range(30)) + b"."
    encode = (
        b"c_codecs\nencode\nq\x00X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x01X\x06\0\0\0latin1q\x02"
    )
    text = struct.pack("<I", 1 << 20) + b"b" * (1 << 20)
    modulus = (1 << 61) - 1
    cases = {
        "BINBYTES": b"B\xff\xff\xff\xffa.",
        "BINBYTES8": b"\x8e" + struct.pack("<Q", 1 << 60) + b"a.",
        "BINBYTES8 of all bits": b"\x8e" + b"\xff" * 8 + b"a.",
        "BYTEARRAY8": b"\x96" + struct.pack("<Q", 1 << 36) + b"a.",
        "BINUNICODE8": b"\x8d" + struct.pack("<Q", 1 << 60) + b"a.",
        "BINSTRING of negative length": b"T\xff\xff\xff\xffa.",
        "LONG4": b"\x8b\xff\xff\xff\x7fa.",
        "LONG4 of negative length": b"\x8b\xff\xff\xff\xffa.",
        "FRAME": b"\x95" + b"\xff" * 8,
        "deep lists": nested(200_000),
        "deep tuples": b")" + b"\x85" * 200_000 + b".",
        "deep tuples as a key": b"})" + b"\x85" * 200_000 + b"Ns.",
        "marks": b"(" * 200_000 + b".",
        "billion laughs": laughs,
        "a list in itself": b"]q\x00h\x00a.",
        "bytes repeated": b"(c_codecs\nencode\nq\x00" + encode + b"h\x00h\x01h\x02\x86R" * 100_000 + b"t.",
        "text repeated": b"(X" + text + b"q\x00" + b"h\x00" * 100_000 + b"t.",
        "DUP repeated": b"(X" + text + b"2" * 200_000 + b"t.",
        "memo keys of one hash": b"N" + b"".join(b"p%d\n" % (n * modulus) for n in range(2, 20_000)) + b".",
        "keys of one hash": b"}(" + b"".join(pickle.dumps(n * modulus)[2:-1] + b"N" for n in range(2, 20_000)) + b"u.",
        "array of another size": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tS'b'\ntR(K\x01("
        b"\x8a\x06\xff\xff\xff\xff\xff\x00tcnumpy\ndtype\n(S'u1'\nI00\nI01\ntR(K\x03S'|'\nNNNK\x00K\x00K\x00tbI00\nS'a'\ntb.",
        "empty array of many rows": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tS'b'\ntR(K\x01("
        b"\x8a\x05\xff\xff\xff\xff\x00K\x00tcnumpy\ndtype\n(S'u1'\nI00\nI01\ntR(K\x03S'|'\nNNNK\x00K\x00K\x00tbI00\nS''\ntb.",
    }
    for name, data in cases.items():
        started = time.monotonic()
        with pytest.raises(FastRecordError, match="pickle"):
            pytest.fail(f"{name}: {len(repr(plain(data)))}")
        # Not a measurement: what grows faster than the pickle takes minutes here.
        assert time.monotonic() - started < 60, name
    # A memo index is a number, not a size.
    assert plain(b"K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.") == 7
    assert plain(nested(90)) is not None


def test_pickles_cut_short_or_damaged_are_refused() -> None:
    for protocol in range(6):
        data = pickle.dumps([{"image": b"x" * 20, "label": np.arange(3)}, (1.5, "text", None)], protocol)
        for end in range(len(data)):
            with pytest.raises(FastRecordError, match="pickle"):
                plain(data[:end])
    for junk in (
        b"",
        b".",
        b"0.",
        b"a.",
        b"K\x01a.",
        b"t.",
        b"R.",
        b"b.",
        b"h\x00.",
        b"s.",
        b"K\x01K\x02s.",
        b"]]]u.",
        b"(..",
    ):
        with pytest.raises(FastRecordError, match="pickle"):
            plain(junk)


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_give_a_value_or_the_one_error(data: bytes) -> None:
    for text in (data, b"cnumpy\ndtype\n(" + data + b"tR(" + data + b"tb."):
        try:
            plain(text)
        except FastRecordError as err:
            assert Code.PICKLE in str(err)  # noqa: PT017


@given(st.integers(0, 5), st.data())
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_give_a_value_or_the_one_error(protocol: int, data: st.DataObject) -> None:
    good = bytearray(pickle.dumps([ARRAYS[0][0], {"a": (1, b"b")}, ARRAYS[9], np.float32(2)], protocol))
    for _ in range(3):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        plain(good)
    except FastRecordError as err:
        assert Code.PICKLE in str(err)  # noqa: PT017
