"""The link flags of the compiled module, which limit what a bug can be used for."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastrecord import _core

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
PF_X, PF_W = 1, 2
DT_STRTAB, DT_STRSZ, DT_RPATH, DT_TEXTREL, DT_BIND_NOW, DT_RUNPATH = 5, 10, 15, 22, 24, 29
DT_FLAGS, DT_FLAGS_1 = 30, 0x6FFFFFFB
DF_TEXTREL, DF_BIND_NOW, DF_1_NOW = 4, 8, 1
SHT_DYNSYM = 11


@dataclass
class Module:
    """The loader's view of a 64-bit ELF file.

    Attributes:
        segments: (type, flags, offset, address, size in the file) of each segment.
        dynamic: Tag -> value.
        undefined: Names that other libraries must provide.
        defined: Names that the file exports.
    """

    segments: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    dynamic: dict[int, int] = field(default_factory=dict)
    undefined: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


def parse(data: bytes) -> Module:
    assert data[:6] == b"\x7fELF\x02\x01", "an ELF file of 64 bits, little-endian"
    module = Module()
    start, width, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, start + i * width)
        module.segments.append((kind, flags, offset, address, size))

    def at(address: int) -> int:
        """Return the file offset of an address."""
        for kind, _, offset, first, size in module.segments:
            if kind == PT_LOAD and first <= address < first + size:
                return offset + address - first
        raise AssertionError(f"nothing is loaded at {address:#x}")

    (table,) = [segment for segment in module.segments if segment[0] == PT_DYNAMIC]
    for place in range(table[2], table[2] + table[4], 16):
        tag, value = struct.unpack_from("<QQ", data, place)
        if tag == 0:
            break
        module.dynamic[tag] = value
    names = data[at(module.dynamic[DT_STRTAB]) :][: module.dynamic[DT_STRSZ]]
    # Only the section table has the number of symbols; strip keeps it.
    start, width, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = (struct.unpack_from("<IIQQQQ", data, start + i * width) for i in range(count))
    (symbols,) = [section[4:] for section in sections if section[1] == SHT_DYNSYM]
    for place in range(symbols[0], symbols[0] + symbols[1], 24):
        name, info, _, section = struct.unpack_from("<IBBH", data, place)
        if name >= len(names) or info >> 4 not in (1, 2):
            continue
        text = names[name : names.index(b"\0", name)].decode()
        (module.defined if section else module.undefined).add(text.partition("@")[0])
    return module


def assert_hardened(data: bytes) -> None:
    """Fail and name what a CPython module lacks."""
    module = parse(data)
    kinds = {kind: flags for kind, flags, *_ in module.segments}
    assert PT_GNU_RELRO in kinds, "what the loader has resolved becomes read-only"
    flags = module.dynamic.get(DT_FLAGS, 0)
    assert flags & DF_BIND_NOW or module.dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW or DT_BIND_NOW in module.dynamic
    assert not kinds[PT_GNU_STACK] & PF_X, "the stack holds no code"
    assert not any(kind == PT_LOAD and flags & PF_W and flags & PF_X for kind, flags, *_ in module.segments)
    assert DT_TEXTREL not in module.dynamic
    assert not flags & DF_TEXTREL, "code is never written"
    assert not {DT_RPATH, DT_RUNPATH} & module.dynamic.keys(), "libraries are looked for where the system has them"
    assert module.defined == {"PyInit__core"}
    # From the C libraries. After a change of their flags, run `cargo clean` (CONTRIBUTING.md).
    assert "__stack_chk_fail" in module.undefined
    assert any(name.endswith("_chk") for name in module.undefined), (
        "copies are checked against the size of their target"
    )


@pytest.fixture(scope="module")
def built() -> bytes:
    return Path(_core.__file__).read_bytes()


def test_the_module_is_linked_so_that_a_bug_is_worth_less(built: bytes) -> None:
    assert_hardened(built)


@pytest.mark.parametrize("kind", [PT_GNU_RELRO, PT_GNU_STACK])
def test_a_module_without_its_protection_would_be_noticed(built: bytes, kind: int) -> None:
    data = bytearray(built)
    start, width, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    places = [start + i * width for i in range(count) if struct.unpack_from("<I", data, start + i * width)[0] == kind]
    if kind == PT_GNU_STACK:
        struct.pack_into("<I", data, places[0] + 4, 7)
    else:
        struct.pack_into("<I", data, places[0], 0)
    with pytest.raises(AssertionError):
        assert_hardened(bytes(data))
