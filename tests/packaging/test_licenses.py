"""The module's components: their sources, their licences, and the licence texts in the wheel."""

from __future__ import annotations

import re
import tomllib
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from scripts import licenses

ROOT = Path(__file__).parents[2]
OSI = "License :: OSI Approved"


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND Zlib", True),
        ("(MIT OR Zlib) AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND Zlib", True),
        ("MIT/Apache-2.0", True),
        ("GPL-3.0-only / LGPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Other-exception", False),
        ("Apache-2.0 WITH Other-exception OR MIT", True),
        ("mit or gpl-3.0-only", False),
    ],
)
def test_an_expression_is_allowed_if_a_choice_of_allowed_licences_fulfils_it(expression: str, fine: bool) -> None:
    allowed = {"MIT", "Zlib", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"}
    assert licenses.is_allowed(expression, allowed) is fine


@pytest.mark.parametrize("expression", ["", "(MIT", "MIT)", "MIT OR", "AND MIT", "MIT Zlib", "()", "OR"])
def test_a_malformed_expression_is_an_error_and_never_allowed(expression: str) -> None:
    with pytest.raises(licenses.LicenseError, match="is not an SPDX expression"):
        licenses.is_allowed(expression, {"MIT", "Zlib"})


def lock(**changes: Any) -> str:
    row = {"name": "memchr", "version": "2.8.3", "source": licenses.CRATES_IO, "checksum": "a" * 64} | changes
    return "[[package]]\n" + "".join(f'{key} = "{value}"\n' for key, value in row.items() if value is not None)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"source": "git+https://example.org/x#1"}, ["memchr 2.8.3: comes from git+https://example.org/x#1, not from"]),
        ({"source": "registry+https://example.org"}, ["memchr 2.8.3: comes from registry+https://example.org"]),
        ({"source": None}, ["memchr 2.8.3: comes from a folder, not from crates.io"]),
        ({"checksum": None}, ["memchr 2.8.3: Cargo.lock has no checksum of it"]),
        ({"name": "fastrecord-core"}, ["fastrecord-core 2.8.3: comes from registry"]),
        ({"name": "fastrecord-core", "source": None, "checksum": None}, []),
    ],
)
def test_a_crate_from_anywhere_but_crates_io_is_named(changes: dict[str, Any], wrong: list[str]) -> None:
    found = list(licenses.check_lock(lock(**changes), {"fastrecord-core"}))
    assert len(found) == len(wrong)
    assert all(line.startswith(start) for line, start in zip(found, wrong, strict=True))


def test_a_crate_with_another_licence_or_none_is_named() -> None:
    crates: list[dict[str, Any]] = [
        {"name": "good", "version": "1.0.0", "license": "MIT"},
        {"name": "bad", "version": "1.2.0", "license": "AGPL-3.0-only"},
        {"name": "none", "version": "0.1.0", "license": None},
    ]
    assert list(licenses.check_crates(crates, {"MIT"})) == [
        "crate bad 1.2.0: its licence AGPL-3.0-only is not in deny.toml",
        "crate none 0.1.0: says no licence",
    ]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([("License-Expression", "MIT AND Zlib"), ("License", "something else")], "MIT AND Zlib"),
        ([("License", "BSD-3-Clause")], "BSD-3-Clause"),
        ([("License", "Apache, line after line " * 9), ("Classifier", f"{OSI} :: MIT License")], "MIT"),
        ([("Classifier", "Typing :: Typed"), ("Classifier", f"{OSI} :: BSD License")], "BSD-3-Clause"),
        ([("Classifier", OSI)], None),
        ([], None),
    ],
)
def test_a_packages_licence_is_read_from_whatever_field_says_it(rows: list[tuple[str, str]], found: str | None) -> None:
    info: Any = Message()
    for name, value in rows:
        info[name] = value
    assert licenses.license_of(info) == found


def test_everything_in_the_module_may_be_there_and_its_licences_are_listed() -> None:
    assert licenses.main([]) == 0


def test_the_list_has_the_bundled_c_libraries_and_each_text_once() -> None:
    text = (ROOT / licenses.TEXTS).read_text(encoding="utf-8")
    for name in ("libjpeg-turbo (in turbojpeg-sys", "zstd (in zstd-sys", "lz4 (in lz4-sys"):
        assert f"\n{name}" in text
    for phrase in ("Independent JPEG Group", "D. R. Commander", "Yann Collet", "Meta Platforms", "The Rust Project"):
        assert phrase in text, phrase
    # The list has every crate that cargo locks for the module, and none that only tests need.
    names = set(re.findall(r"^(\S+) \(\d", text, re.MULTILINE))
    assert {"pyo3", "image", "png", "memmap2", "serde_json", "zstd-sys", "turbojpeg-sys"} <= names
    assert not {"proptest", "tempfile", "fastrecord-core"} & names


def test_the_wheel_is_configured_to_hold_the_texts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license-files"] == ["LICENSE", "THIRD_PARTY_LICENSES"]
