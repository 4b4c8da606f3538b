"""The link flags of the compiled module, which limit what a bug can be used for."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from fastrecord import _core

PF_X, PF_W = 1, 2
DF_TEXTREL, DF_BIND_NOW, DF_1_NOW = 4, 8, 1


def assert_hardened(data: bytes) -> None:
    """Fail and name what a CPython module lacks."""
    file: Any = ELFFile(io.BytesIO(data))
    kinds = {segment["p_type"]: segment for segment in file.iter_segments()}
    loaded = [segment["p_flags"] for segment in file.iter_segments("PT_LOAD")]
    dynamic = {tag["d_tag"]: tag["d_val"] for tag in kinds["PT_DYNAMIC"].iter_tags()}
    symbols = [symbol for symbol in file.get_section_by_name(".dynsym").iter_symbols() if symbol.name]
    shared = [symbol for symbol in symbols if symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")]
    undefined = {symbol.name for symbol in shared if symbol["st_shndx"] == "SHN_UNDEF"}
    flags = dynamic.get("DT_FLAGS", 0)
    assert "PT_GNU_RELRO" in kinds, "what the loader has resolved becomes read-only"
    assert flags & DF_BIND_NOW or dynamic.get("DT_FLAGS_1", 0) & DF_1_NOW or "DT_BIND_NOW" in dynamic
    assert not kinds["PT_GNU_STACK"]["p_flags"] & PF_X, "the stack holds no code"
    assert not any(flag & PF_W and flag & PF_X for flag in loaded)
    assert "DT_TEXTREL" not in dynamic
    assert not flags & DF_TEXTREL, "code is never written"
    assert not {"DT_RPATH", "DT_RUNPATH"} & dynamic.keys(), "libraries are looked for where the system has them"
    assert {symbol.name for symbol in shared} - undefined == {"PyInit__core"}
    # From the C libraries. After a change of their flags, run `cargo clean` (CONTRIBUTING.md).
    assert "__stack_chk_fail" in undefined
    assert any(name.endswith("_chk") for name in undefined), "copies are checked against the size of their target"


@pytest.fixture(scope="module")
def built() -> bytes:
    return Path(_core.__file__).read_bytes()


def test_the_module_is_linked_so_that_a_bug_is_worth_less(built: bytes) -> None:
    assert_hardened(built)


@pytest.mark.parametrize("kind", ["PT_GNU_RELRO", "PT_GNU_STACK"])
def test_a_module_without_its_protection_would_be_noticed(built: bytes, kind: str) -> None:
    data, file = bytearray(built), ELFFile(io.BytesIO(built))
    number = next(i for i, segment in enumerate(file.iter_segments()) if segment["p_type"] == kind)
    at = file["e_phoff"] + number * file["e_phentsize"]
    # The type of the segment comes first, then its flags.
    data[at : at + 8] = bytes(4) + data[at + 4 : at + 8] if kind == "PT_GNU_RELRO" else data[at : at + 4] + b"\7\0\0\0"
    with pytest.raises(AssertionError):
        assert_hardened(bytes(data))
