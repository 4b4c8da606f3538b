"""`plain`: reads pickles of plain data, without ever running what a pickle names.

The opcodes are documented in Python's `pickletools`, protocols 0 to 5. The interpreter
is ours because `pickle.Unpickler` allocates what a hostile pickle claims (memo indices, lengths of
byte arrays), and hashes whatever it builds. Work and memory stay in proportion to the pickle's size.
"""

from __future__ import annotations

import math
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
_LONGEST_INT = 1024
_LARGEST_DIM = 1 << 40
# Python's hash of an int is the int itself below this: nobody can make them collide.
_LARGEST_KEY = (1 << 61) - 2
_MEMOIZE, _BINGET = 0x94, ord("h")
_LEAVES = frozenset((int, float, complex, bool, type(None), str, bytes, bytearray, memoryview))
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"'": b"'", b'"': b'"'}
_SIMPLE_DTYPE = re.compile(r"(?:b1|[iu][1248]|f[248]|f16|c8|c16|[SUV][1-9]\d{0,9}|\?|[bBhHiIlLqQefd])")


def plain(data: bytes | bytearray | memoryview, *, views: bool = False) -> Any:
    """Return the object in a pickle of plain data.

    That is: tuples, lists, dicts, sets, str, bytes, bytearray, numbers, bool, None, and numpy's
    arrays and scalars of such data. Arrays may be read-only. The 8-bit strings of Python 2 become
    bytes.

    Args:
        data: The pickle. Bytes after its end are ignored, as `pickle.loads` does.
        views: Whether long bytes become memoryviews of `data`, which saves a copy.

    Raises:
        PickleError: it holds anything else, is damaged or cut short; the message does not name the
            source.
    """
    try:
        return _Machine(memoryview(data).cast("B"), _VIEWED if views else sys.maxsize).run()
    except _RefusedError as err:
        raise PickleError(str(err)) from None
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error, AttributeError) as err:
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


class _Global:
    """One of the functions and classes that a pickle of plain data may name."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


class _Pending:
    """An array or a data type whose state comes in a later BUILD."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.memo: list[int] = []


class _Machine:
    """The stack machine that pickles are programs for."""

    def __init__(self, data: memoryview, viewed: int) -> None:
        self.data = data
        self.viewed = viewed
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.allowance = _GROWTH * len(data) + _LEAST

    def run(self) -> Any:
        data, stack, memo, size = self.data, self.stack, self.memo, len(self.data)
        while True:
            at = self.at
            if at >= size:
                raise _RefusedError("the pickle is cut short")
            code = data[at]
            self.at = at + 1
            # The two most frequent operations, without a call.
            if code == _MEMOIZE:
                memo[len(memo)] = value = stack[-1]
                if type(value) is _Pending:
                    value.memo.append(len(memo) - 1)
                continue
            if code == _BINGET:
                stack.append(memo[data[at + 1]])
                self.at = at + 2
                continue
            operation = _OPERATIONS[code]
            if operation is None:
                if code == ord("."):
                    break
                name = _REFUSED.get(code, f"opcode {code:#04x}")
                raise _RefusedError(f"the pickle holds something else than plain data ({name})")
            operation(self, stack)
        result = self.pop()
        self.check(result)
        return result

    def check(self, result: Any) -> None:
        """Refuse a result that holds something else, is nested deeply, or repeats its parts too often."""
        allowance = self.allowance
        todo = [(result, 0)]
        while todo:
            item, depth = todo.pop()
            kind = type(item)
            allowance -= 1
            if kind in _LEAVES:
                if kind is str or kind is bytes or kind is bytearray or kind is memoryview:
                    allowance -= len(item)
            elif kind is tuple or kind is list or kind is dict or kind is set or kind is frozenset:
                if depth >= _DEPTH:
                    raise _RefusedError(f"the pickle is nested deeper than {_DEPTH} levels, or holds itself")
                if len(item) > allowance:
                    raise _RefusedError("the pickle repeats its parts too often")
                if kind is dict:
                    todo += [(each, depth + 1) for each in item]
                    todo += [(each, depth + 1) for each in item.values()]
                else:
                    todo += [(each, depth + 1) for each in item]
            elif isinstance(item, (np.ndarray, np.generic)):
                allowance -= item.nbytes
            elif not isinstance(item, np.dtype):
                raise _RefusedError("the pickle holds a function, a class or an object without its state")
            if allowance < 0:
                raise _RefusedError("the pickle repeats its parts too often")

    # Reading

    def take(self, size: int) -> memoryview:
        start = self.at
        if size < 0 or size > len(self.data) - start:
            raise _RefusedError("the pickle is cut short")
        self.at = start + size
        return self.data[start : self.at]

    def line(self) -> bytes:
        # Lines are short, except for texts of protocol 0: searched in steps, so that nothing is copied twice.
        size, step = len(self.data), 256
        start = at = self.at
        while at < size:
            piece = bytes(self.data[at : at + step])
            found = piece.find(b"\n")
            if found >= 0:
                self.at = at + found + 1
                return bytes(self.data[start : at + found])
            at += len(piece)
            step *= 2
        raise _RefusedError("the pickle is cut short")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise _RefusedError("the pickle is damaged: it takes a value that is not there")
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise _RefusedError("the pickle is damaged: it takes a value that is not there")
        return self.stack[-1]

    def marked(self) -> list[Any]:
        if not self.marks:
            raise _RefusedError("the pickle is damaged: a mark is missing")
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def put(self, index: int) -> None:
        value = self.top()
        self.memo[index] = value
        if type(value) is _Pending:
            value.memo.append(index)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise _RefusedError("the pickle is damaged: it uses a value that it has not kept")
        self.stack.append(self.memo[index])

    def long_bytes(self, size: int) -> bytes | memoryview:
        """Return bytes, or a view of them."""
        raw = self.take(size)
        return bytes(raw) if size < self.viewed else raw.toreadonly()

    def charge(self, nbytes: int) -> None:
        """Refuse a pickle whose calls make much more than it holds."""
        self.allowance -= nbytes
        if self.allowance < 0:
            raise _RefusedError("the pickle repeats its parts too often")

    # Objects

    def find(self, module: object, name: object) -> None:
        found = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if found is None:
            text = f"{module}.{name}" if len(f"{module}.{name}") <= 100 else f"{module}.{name}"[:100] + "..."
            raise _RefusedError(f"the pickle names {text!r}, which is not plain data and is not run")
        self.stack.append(found)

    def reduce(self) -> None:
        arguments = self.pop()
        function = self.pop()
        if type(function) is not _Global or type(arguments) is not tuple:
            raise _RefusedError("the pickle is damaged: it calls something that is not a function")
        self.stack.append(function.call(self, *arguments))

    def build(self) -> None:
        state = self.pop()
        pending = self.pop()
        if type(pending) is not _Pending:
            raise _RefusedError("the pickle sets the state of something that has none")
        value = pending.build(state)
        for index in pending.memo:
            self.memo[index] = value
        self.stack.append(value)


# What a pickle of plain data names


def _dtype(_machine: _Machine, code: Any, *_options: Any) -> _Pending:
    code = _text(code)
    if code.startswith("O"):
        raise _RefusedError("the pickle holds an array of Python objects")
    if not _SIMPLE_DTYPE.fullmatch(code):
        raise _RefusedError(f"the pickle holds an array of dtype {code[:20]!r}")
    base: np.dtype[Any] = np.dtype(code)

    def build(state: tuple[Any, ...]) -> Any:
        _, order, inner, names, fields = state[:5]
        order = _text(order)
        if order not in ("<", ">", "|", "="):
            raise _RefusedError("the pickle is damaged: a dtype has no byte order")
        if inner is not None:
            kind, shape = inner
            return np.dtype((_flat(kind), _shape(shape)))
        if names is not None:
            keys = [_text(name) for name in names]
            pairs = [fields[name] if name in fields else fields[key] for name, key in zip(names, keys, strict=True)]
            parts = {"names": keys, "formats": [_flat(pair[0]) for pair in pairs]}
            offsets = [int(pair[1]) for pair in pairs]
            whole: Any = {**parts, "offsets": offsets, "itemsize": base.itemsize}
            return np.dtype(whole)
        return base if order == "|" else base.newbyteorder("<" if order == "<" else ">" if order == ">" else "=")

    return _Pending(build)


def _reconstruct(_machine: _Machine, kind: Any, *_first_shape: Any) -> _Pending:
    if kind is not _NDARRAY:
        raise _RefusedError("the pickle holds an array of a class other than numpy.ndarray")

    def build(state: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        # Version 0 of numpy's own state has no version number.
        shape, dtype, fortran, raw = state[-4:]
        if isinstance(raw, (list, tuple)):
            raise _RefusedError("the pickle holds an array of Python objects")
        return _array(raw, dtype, shape, "F" if fortran else "C")

    return _Pending(build)


def _frombuffer(_machine: _Machine, raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    return _array(raw, dtype, shape, order)


def _scalar(_machine: _Machine, dtype: Any, raw: Any) -> Any:
    return _array(raw, dtype, (), "C")[()]


def _encode(machine: _Machine, text: str, encoding: str) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise _RefusedError("the pickle encodes text in another way than byte strings need")
    machine.charge(len(text))
    return text.encode("latin1")


def _bytearray(machine: _Machine, value: Any = b"", encoding: str = "latin1") -> bytearray:
    if type(value) not in (str, bytes, memoryview):
        raise _RefusedError("the pickle makes a bytearray of something else than bytes")
    return bytearray(_encode(machine, value, encoding) if isinstance(value, str) else value)


def _bytes(machine: _Machine, value: Any = b"") -> bytes:
    if type(value) not in (bytes, bytearray, memoryview):
        raise _RefusedError("the pickle makes bytes of something else than bytes")
    machine.charge(len(value))
    return bytes(value)


def _set(machine: _Machine, values: Any = ()) -> set[Any]:
    if type(values) not in (list, tuple):
        raise _RefusedError("the pickle makes a set of something else than a list")
    machine.charge(len(values))
    return {_key(value) for value in values}


def _frozenset(machine: _Machine, values: Any = ()) -> frozenset[Any]:
    return frozenset(_set(machine, values))


def _complex(_machine: _Machine, real: float, imag: float) -> complex:
    return complex(float(real), float(imag))


def _refuse_call(_machine: _Machine, *_arguments: Any) -> None:
    raise _RefusedError("the pickle calls a class that it may only name")


def _array(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    dtype, shape = _real(dtype), _shape(shape)
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    if type(raw) not in (bytes, bytearray, memoryview):
        raise _RefusedError("the pickle holds an array without its bytes")
    if dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != len(raw):
        raise _RefusedError(f"the pickle is damaged: an array {dtype}{list(shape)} has {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape(shape, order=order) if raw else np.empty(shape, dtype)


def _real(dtype: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        raise _RefusedError("the pickle is damaged: an array has no dtype")
    return dtype


def _flat(dtype: Any) -> Any:
    """Return the type of a part of a compound type; deeper nesting is refused."""
    dtype = _real(dtype)
    if (dtype.base if dtype.base is not dtype else dtype).fields:
        raise _RefusedError("the pickle holds an array of nested compound dtypes")
    return dtype


def _shape(shape: Any) -> tuple[int, ...]:
    dims = shape if type(shape) is tuple else (shape,)
    if len(dims) > 32 or not all(type(dim) is int and 0 <= dim <= _LARGEST_DIM for dim in dims):
        raise _RefusedError("the pickle is damaged: an array has an impossible shape")
    if 0 in dims and max(dims) > 1 << 20:
        raise _RefusedError("the pickle is damaged: an empty array has an impossible shape")
    return dims


def _text(value: Any) -> str:
    if type(value) is bytes:
        return value.decode("ascii")
    if type(value) is not str:
        raise _RefusedError("the pickle is damaged: a dtype has no name")
    return value


def _key(value: Any) -> Any:
    """Return a key of a dict, or refuse it: hashing hostile keys could take forever."""
    kind = type(value)
    if kind is str or kind is bytes or kind is bool or value is None or (kind is float and value == value):
        return value
    if kind is int and abs(value) <= _LARGEST_KEY:
        return value
    raise _RefusedError(f"the pickle has a key of a dict or set that is {_described(kind)}, not a text or number")


def _described(kind: type) -> str:
    return "too large" if kind is int else kind.__name__


_NDARRAY = _Global(_refuse_call)
_GLOBALS: dict[tuple[object, object], _Global] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Global(_dtype),
    ("_codecs", "encode"): _Global(_encode),
}
for _core in ("numpy.core", "numpy._core"):
    _GLOBALS[f"{_core}.multiarray", "_reconstruct"] = _Global(_reconstruct)
    _GLOBALS[f"{_core}.multiarray", "scalar"] = _Global(_scalar)
    _GLOBALS[f"{_core}.numeric", "_frombuffer"] = _Global(_frombuffer)
for _builtins in ("builtins", "__builtin__"):
    for _call in (_bytearray, _bytes, _set, _frozenset, _complex):
        _GLOBALS[_builtins, _call.__name__.removeprefix("_")] = _Global(_call)

_REFUSED = {
    ord("P"): "a persistent id",
    ord("Q"): "a persistent id",
    ord("i"): "an object of a class",
    ord("o"): "an object of a class",
    0x81: "an object of a class",
    0x92: "an object of a class",
    0x82: "a registered extension",
    0x83: "a registered extension",
    0x84: "a registered extension",
    0x97: "a buffer outside it",
    0x98: "a buffer outside it",
}

# Operations, by the names that pickletools has for them

_I2, _I4, _U4, _U8, _F8 = (struct.Struct(code).unpack for code in ("<H", "<i", "<I", "<Q", ">d"))
_Stack = list[Any]


def _proto(m: _Machine, _stack: _Stack) -> None:
    version = m.take(1)[0]
    if version > 5:
        raise _RefusedError(f"the pickle has protocol {version}, and the newest that is known is 5")


def _frame(m: _Machine, _stack: _Stack) -> None:
    m.take(8)


def _int_line(m: _Machine, stack: _Stack) -> None:
    line = m.line()
    stack.append(line == b"01" if line in (b"00", b"01") else _decimal(line))


def _long_line(m: _Machine, stack: _Stack) -> None:
    stack.append(_decimal(m.line().removesuffix(b"L")))


def _decimal(line: bytes) -> int:
    if len(line) > _LONGEST_INT:
        raise _RefusedError("the pickle holds a number of too many digits")
    return int(line)


def _long(m: _Machine, stack: _Stack, size: int) -> None:
    if not 0 <= size <= _LONGEST_INT:
        raise _RefusedError("the pickle holds a number of too many digits")
    stack.append(int.from_bytes(m.take(size), "little", signed=True))


def _string_line(m: _Machine, stack: _Stack) -> None:
    line = m.line().strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise _RefusedError("the pickle is damaged: a string has no quotes")
    stack.append(_ESCAPE.sub(_unescaped, line[1:-1]))


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if len(code) == 3:
        return bytes.fromhex(code[1:].decode())
    if code not in _ESCAPES:
        raise _RefusedError("the pickle is damaged: a string has an unknown escape")
    return _ESCAPES[code]


def _unicode(raw: memoryview) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _append(m: _Machine, _stack: _Stack) -> None:
    _extend(m, [m.pop()])


def _appends(m: _Machine, _stack: _Stack) -> None:
    _extend(m, m.marked())


def _extend(m: _Machine, items: list[Any]) -> None:
    target = m.top()
    if type(target) is not list:
        raise _RefusedError("the pickle is damaged: it appends to something that is not a list")
    target.extend(items)


def _setitem(m: _Machine, _stack: _Stack) -> None:
    value = m.pop()
    _update(m, [m.pop(), value])


def _setitems(m: _Machine, _stack: _Stack) -> None:
    _update(m, m.marked())


def _update(m: _Machine, items: list[Any]) -> None:
    target = m.top()
    if type(target) is not dict or len(items) % 2:
        raise _RefusedError("the pickle is damaged: it sets items of something that is not a dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _additems(m: _Machine, _stack: _Stack) -> None:
    items = m.marked()
    target = m.top()
    if type(target) is not set:
        raise _RefusedError("the pickle is damaged: it adds to something that is not a set")
    target.update(map(_key, items))


def _dict(m: _Machine, stack: _Stack) -> None:
    items = m.marked()
    stack.append({})
    _update(m, items)


def _tuple1(m: _Machine, stack: _Stack) -> None:
    stack.append((m.pop(),))


def _tuple2(m: _Machine, stack: _Stack) -> None:
    second = m.pop()
    stack.append((m.pop(), second))


def _tuple3(m: _Machine, stack: _Stack) -> None:
    third, second = m.pop(), m.pop()
    stack.append((m.pop(), second, third))


def _pop(m: _Machine, stack: _Stack) -> None:
    if m.marks and m.marks[-1] == len(stack):
        m.marks.pop()
    else:
        m.pop()


def _dup(m: _Machine, stack: _Stack) -> None:
    stack.append(m.top())


def _global(m: _Machine, _stack: _Stack) -> None:
    module, name = m.line(), m.line()
    m.find(module.decode("utf-8", "replace"), name.decode("utf-8", "replace"))


def _stack_global(m: _Machine, _stack: _Stack) -> None:
    name = m.pop()
    m.find(m.pop(), name)


_NAMED: dict[str, Callable[[_Machine, _Stack], Any]] = {
    "\x80": _proto,
    "\x95": _frame,
    "(": lambda m, s: m.marks.append(len(s)),
    "0": _pop,
    "1": lambda m, _s: m.marked(),
    "2": _dup,
    "N": lambda _m, s: s.append(None),
    "\x88": lambda _m, s: s.append(True),
    "\x89": lambda _m, s: s.append(False),
    "I": _int_line,
    "L": _long_line,
    "J": lambda m, s: s.append(_I4(m.take(4))[0]),
    "K": lambda m, s: s.append(m.take(1)[0]),
    "M": lambda m, s: s.append(_I2(m.take(2))[0]),
    "\x8a": lambda m, s: _long(m, s, m.take(1)[0]),
    "\x8b": lambda m, s: _long(m, s, _I4(m.take(4))[0]),
    "F": lambda m, s: s.append(float(m.line())),
    "G": lambda m, s: s.append(_F8(m.take(8))[0]),
    "S": _string_line,
    "T": lambda m, s: s.append(m.long_bytes(_I4(m.take(4))[0])),
    "U": lambda m, s: s.append(bytes(m.take(m.take(1)[0]))),
    "B": lambda m, s: s.append(m.long_bytes(_U4(m.take(4))[0])),
    "C": lambda m, s: s.append(bytes(m.take(m.take(1)[0]))),
    "\x8e": lambda m, s: s.append(m.long_bytes(_U8(m.take(8))[0])),
    "\x96": lambda m, s: s.append(bytearray(m.take(_U8(m.take(8))[0]))),
    "V": lambda m, s: s.append(m.line().decode("raw-unicode-escape")),
    "X": lambda m, s: s.append(_unicode(m.take(_U4(m.take(4))[0]))),
    "\x8c": lambda m, s: s.append(_unicode(m.take(m.take(1)[0]))),
    "\x8d": lambda m, s: s.append(_unicode(m.take(_U8(m.take(8))[0]))),
    "]": lambda _m, s: s.append([]),
    "l": lambda m, s: s.append(m.marked()),
    "a": _append,
    "e": _appends,
    ")": lambda _m, s: s.append(()),
    "t": lambda m, s: s.append(tuple(m.marked())),
    "\x85": _tuple1,
    "\x86": _tuple2,
    "\x87": _tuple3,
    "}": lambda _m, s: s.append({}),
    "d": _dict,
    "s": _setitem,
    "u": _setitems,
    "\x8f": lambda _m, s: s.append(set()),
    "\x90": _additems,
    "\x91": lambda m, s: s.append(frozenset(map(_key, m.marked()))),
    "p": lambda m, _s: m.put(_decimal(m.line())),
    "q": lambda m, _s: m.put(m.take(1)[0]),
    "r": lambda m, _s: m.put(_U4(m.take(4))[0]),
    "g": lambda m, _s: m.get(_decimal(m.line())),
    "j": lambda m, _s: m.get(_U4(m.take(4))[0]),
    "c": _global,
    "\x93": _stack_global,
    "R": lambda m, _s: m.reduce(),
    "b": lambda m, _s: m.build(),
}
_OPERATIONS: list[Callable[[_Machine, _Stack], Any] | None] = [_NAMED.get(chr(code)) for code in range(256)]
