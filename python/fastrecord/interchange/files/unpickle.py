"""`plain`: reads pickles of plain data, without ever running what a pickle names.

Python's own `pickle._Unpickler`, the one in Python, reads the opcodes. Here it may call only what
plain data needs, of `_GLOBALS`. What would allocate a length that a hostile pickle claims, hash what it
builds, or call methods of a value is replaced. Work and memory stay in proportion to the pickle's size.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fastrecord._core import FastRecordError
from fastrecord.errors import Code

# Deeper nesting is no record of a data set, and recursive code after us could not take it.
_DEPTH = 100
# What the result may hold when shared parts are counted each time: bytes per byte of pickle.
_GROWTH = 64
_LEAST = 1 << 16
# Bytes of at least this size may become views.
_VIEWED = 1 << 12
# Bits of an int.
_LARGEST_INT = 4096
_LARGEST_DIM = 1 << 40
# Python's hash of an int is the int itself below this: nobody can make them collide.
_LARGEST_KEY = (1 << 61) - 2
_MEMOIZE = pickle.MEMOIZE[0]
_SIZED = (str, bytes, bytearray, memoryview)
_LEAVES = frozenset((float, complex, bool, type(None), *_SIZED))
_DTYPE = re.compile(r"(?:b1|[iu][1248]|f[248]|f16|c8|c16|[SU][1-9]\d{0,9}|\?|[bBhHiIlLqQefd])")


def plain(data: bytes | bytearray | memoryview, *, views: bool = False) -> Any:
    """Return the object in a pickle of plain data.

    That is: tuples, lists, dicts, sets, str, bytes, bytearray, numbers, bool, None, and numpy's
    arrays and scalars of numbers and texts. Arrays may be read-only. The 8-bit strings of Python 2
    become bytes.

    Args:
        data: The pickle. Bytes after its end are ignored, as `pickle.loads` does.
        views: Whether long bytes become memoryviews of `data`, which saves a copy.

    Raises:
        PickleError: it holds anything else, is damaged or cut short; the message does not name the
            source.
    """
    try:
        return _Unpickler(memoryview(data).cast("B"), _VIEWED if views else sys.maxsize).load()
    except _RefusedError as err:
        raise PickleError(str(err)) from None
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError, struct.error, pickle.PickleError) as err:
        raise PickleError(f"the pickle is damaged: {type(err).__name__}: {err}") from None


def pickled(data: memoryview) -> Any:
    """Return the object in a pickle of plain data; long bytes may be views.

    Raises:
        ValueError: it holds anything else, or is damaged.
    """
    try:
        return plain(data, views=True)
    except PickleError as err:
        raise ValueError(err.text) from err


class PickleError(FastRecordError):
    """A pickle is not of plain data, or is damaged."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, Code.PICKLE)


class _RefusedError(Exception):
    """The pickle holds something else than plain data."""


class _Pending:
    """An array or a data type whose state comes in a later BUILD; `value` is itself until then."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self.build = build
        self.value: Any = self


class _Memo(dict[int, Any]):
    """Values that later opcodes use again."""

    def __getitem__(self, index: int) -> Any:
        value = super().__getitem__(index)
        return value.value if type(value) is _Pending else value


class _Unpickler(pickle._Unpickler):
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: memoryview, viewed: int) -> None:
        self.data, self.viewed, self.at = data, viewed, 0
        self.text = b""
        self.encoding, self.errors, self.fix_imports = "bytes", "strict", False
        self.memo = _Memo()
        self.allowance = _GROWTH * len(data) + _LEAST

    def load(self) -> Any:
        self.proto = 0
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        data, size, memo, loads = self.data, len(self.data), self.memo, _LOADS
        while self.at < size:
            code = data[self.at]
            self.at += 1
            if code == _MEMOIZE:  # by far the most frequent one
                memo[len(memo)] = self.stack[-1]
                continue
            load = loads.get(code)
            if load is not None:
                load(self)
            elif code == pickle.STOP[0]:
                result = self.stack.pop()
                self.check(result)
                return result
            else:
                raise _RefusedError(f"the pickle holds something else than plain data (opcode {code:#04x})")
        raise _RefusedError("the pickle is cut short")

    def check(self, result: Any) -> None:
        """Refuse a result that holds something else, is nested deeply, or repeats its parts too often."""
        todo = [(result, 0)]
        while todo:
            item, depth = todo.pop()
            kind = type(item)
            nbytes = 1
            if kind in _LEAVES:
                nbytes += len(item) if kind in _SIZED else 0
            elif kind is int:
                if item.bit_length() > _LARGEST_INT:
                    raise _RefusedError("the pickle holds a number of too many digits")
            elif kind in (tuple, list, dict, set, frozenset):
                if depth >= _DEPTH:
                    raise _RefusedError(f"the pickle is nested deeper than {_DEPTH} levels, or holds itself")
                self.charge(len(item))
                parts = [*item, *item.values()] if kind is dict else item
                todo += [(each, depth + 1) for each in parts]
            elif isinstance(item, (np.ndarray, np.generic)):
                nbytes += item.nbytes
            elif not isinstance(item, np.dtype):
                raise _RefusedError("the pickle holds a function, a class or an object without its state")
            self.charge(nbytes)

    def charge(self, nbytes: int) -> None:
        """Refuse a pickle that makes much more than it holds."""
        self.allowance -= nbytes
        if self.allowance < 0:
            raise _RefusedError("the pickle repeats its parts too often")

    # Reading

    def take(self, size: int) -> memoryview:
        raw = self.data[self.at : self.at + size]
        if len(raw) < size:
            raise _RefusedError("the pickle is cut short")
        self.at += size
        return raw

    def read(self, size: int) -> bytes:
        return self.take(size).tobytes()

    def readline(self) -> bytes:
        self.text = self.text or self.data.tobytes()
        end = self.text.find(b"\n", self.at) + 1
        return self.read(end - self.at if end else sys.maxsize)

    def load_frame(self) -> None:
        self.take(8)

    def load_binbytes(self) -> None:
        self.long_bytes(4)

    def load_binbytes8(self) -> None:
        self.long_bytes(8)

    def long_bytes(self, width: int) -> None:
        raw = self.take(int.from_bytes(self.take(width), "little"))
        self.append(bytes(raw) if len(raw) < self.viewed else raw.toreadonly())

    def load_bytearray8(self) -> None:
        self.append(bytearray(self.take(int.from_bytes(self.take(8), "little"))))

    # Objects

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            text = f"{module}.{name}" if len(f"{module}.{name}") <= 100 else f"{module}.{name}"[:100] + "..."
            raise _RefusedError(f"the pickle names {text!r}, which is not plain data and is not run")
        return _GLOBALS[module, name]

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        if type(arguments) is not tuple:
            raise _RefusedError("the pickle is damaged: it calls a function without arguments")
        result = self.stack[-1](*arguments)
        self.charge(len(result) if type(result) in (bytes, bytearray, set, frozenset) else 0)
        self.stack[-1] = result

    def load_build(self) -> None:
        state = self.stack.pop()
        pending = self.stack[-1]
        if type(pending) is not _Pending:
            raise _RefusedError("the pickle sets the state of something that has none")
        self.stack[-1] = pending.value = pending.build(*state)

    def load_put(self) -> None:
        self.memo[_key(int(self.readline()))] = self.stack[-1]

    def load_append(self) -> None:
        self.extend([self.stack.pop()])

    def load_appends(self) -> None:
        self.extend(self.pop_mark())

    def extend(self, items: list[Any]) -> None:
        _of(list, self.stack[-1]).extend(items)

    def load_setitem(self) -> None:
        value = self.stack.pop()
        self.update([self.stack.pop(), value])

    def load_setitems(self) -> None:
        self.update(self.pop_mark())

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self.update(items)

    def update(self, items: list[Any]) -> None:
        _of(dict, self.stack[-1]).update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def load_additems(self) -> None:
        items = self.pop_mark()
        _of(set, self.stack[-1]).update(map(_key, items))

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        self.append(frozenset(map(_key, items)))


def _of(kind: type[Any], target: Any) -> Any:
    if type(target) is not kind:
        raise _RefusedError(f"the pickle is damaged: it adds to something that is not a {kind.__name__}")
    return target


def _key(value: Any) -> Any:
    """Return a key of a dict, or refuse it: hashing hostile keys could take forever."""
    kind = type(value)
    if kind is int and abs(value) > _LARGEST_KEY:
        raise _RefusedError("the pickle has a key of a dict, a set or its memo that is too large")
    if kind not in (str, bytes, bool, type(None), int, float) or value != value:
        raise _RefusedError(f"the pickle has a key of a dict or set that is {kind.__name__}, not a text or number")
    return value


# What a pickle of plain data names


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError("the pickle encodes text in another way than byte strings need")
    return text.encode("latin1")


def _bytes(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def make(value: Any = b"", encoding: str = "latin1") -> Any:
        value = _encode(value, encoding) if type(value) is str else value
        if type(value) not in _SIZED:
            raise _RefusedError("the pickle makes bytes of something else than bytes")
        return kind(value)

    return make


def _set(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def make(values: Any = ()) -> Any:
        return kind(map(_key, values))

    return make


def _ndarray(*_arguments: Any) -> None:
    raise _RefusedError("the pickle calls a class that it may only name")


def _reconstruct(kind: Any, *_first_shape: Any) -> _Pending:
    if kind is not _ndarray:
        raise _RefusedError("the pickle holds an array of a class other than numpy.ndarray")
    # Version 0 of numpy's own state has no version number.
    return _Pending(lambda *state: _array(state[-1], state[-3], state[-4], "F" if state[-2] else "C"))


def _dtype(code: Any, *_options: Any) -> _Pending:
    code = code.decode() if type(code) is bytes else code
    if code[:1] == "O":
        raise _RefusedError("the pickle holds an array of Python objects")
    if not _DTYPE.fullmatch(code):
        raise _RefusedError(f"the pickle holds an array of dtype {code[:20]!r}")

    def build(_version: int, order: Any, *_rest: Any) -> Any:
        return np.dtype(code).newbyteorder(order.decode() if type(order) is bytes else order)

    return _Pending(build)


def _array(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    raw = raw.encode("latin1") if type(raw) is str else raw
    if type(raw) not in _SIZED or not isinstance(dtype, np.dtype):
        raise _RefusedError("the pickle holds an array of Python objects, or without its bytes")
    dims = shape if type(shape) is tuple else (shape,)
    if len(dims) > 32 or not all(type(dim) is int and 0 <= dim <= _LARGEST_DIM for dim in dims):
        raise _RefusedError("the pickle is damaged: an array has an impossible shape")
    if dtype.itemsize == 0 or math.prod(dims) * dtype.itemsize != len(raw) or (not len(raw) and max(dims) > 1 << 20):
        raise _RefusedError(f"the pickle is damaged: an array {dtype}{list(dims)} has {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape(dims, order=order) if len(raw) else np.empty(dims, dtype)


_GLOBALS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):
    _GLOBALS[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _GLOBALS[f"{_core}.multiarray", "scalar"] = lambda dtype, raw: _array(raw, dtype, (), "C")[()]
    _GLOBALS[f"{_core}.numeric", "_frombuffer"] = _array
for _builtins in ("builtins", "__builtin__"):
    _GLOBALS[_builtins, "complex"] = complex
    _GLOBALS |= {(_builtins, kind.__name__): _bytes(kind) for kind in (bytes, bytearray)}
    _GLOBALS |= {(_builtins, kind.__name__): _set(kind) for kind in (set, frozenset)}

# The opcodes of plain data, by the names of the methods that read them.
_PLAIN = (
    "proto frame none false true int binint binint1 binint2 long long1 long4 float binfloat string binstring "
    "short_binstring binbytes binbytes8 short_binbytes bytearray8 unicode binunicode binunicode8 short_binunicode "
    "tuple empty_tuple tuple1 tuple2 tuple3 list empty_list append appends dict empty_dictionary setitem setitems "
    "empty_set additems frozenset mark pop pop_mark dup get binget long_binget put binput long_binput memoize global "
    "stack_global reduce build"
)
_LOADS: dict[int, Callable[[Any], None]] = {
    code: getattr(_Unpickler, load.__name__)
    for code, load in _Unpickler.dispatch.items()
    if load.__name__.removeprefix("load_") in _PLAIN.split()
}
