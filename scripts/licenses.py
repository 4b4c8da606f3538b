"""Check the contents of the module and the wheel against deny.toml, and list their licences.

Needs cargo, and no network if the crates have been downloaded. Without arguments it checks that
Cargo.lock fits Cargo.toml, that all crates come from crates.io with an allowed licence, that the
packages required by the installed fastrecord have one, too, and that THIRD_PARTY_LICENSES is
current. `--write` writes that file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXTS = "THIRD_PARTY_LICENSES"
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
TARGET = "x86_64-unknown-linux-gnu"
# A crate with several licences is used under the first of these, so that one text suffices.
PREFERRED = ("MIT", "BSD-3-Clause", "BSD-2-Clause", "Zlib", "0BSD", "Unicode-3.0", "Unlicense", "Apache-2.0")
# C libraries that crates contain and the module includes: crate -> (name, licence, files below the
# crate).
BUNDLED = {
    "turbojpeg-sys": (
        "libjpeg-turbo",
        "IJG AND BSD-3-Clause AND Zlib",
        ("libjpeg-turbo/LICENSE.md", "libjpeg-turbo/README.ijg"),
    ),
    "zstd-sys": ("zstd", "BSD-3-Clause", ("zstd/LICENSE",)),
    "lz4-sys": ("lz4", "BSD-2-Clause", ("liblz4/lib/LICENSE",)),
}
# The names of licences in package metadata.
NAMES = {
    "apache 2.0": "Apache-2.0",
    "apache-2.0 license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "hpnd": "MIT-CMU",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psf-2.0": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
# Users install these packages beside the wheel, which does not redistribute them: these licences
# are allowed, too.
BESIDE = {"CC0-1.0", "HPND", "ISC", "LGPL-2.1-or-later", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "BSL-1.0"}
# NVIDIA's own terms apply to the GPU packages that PyTorch requires.
VENDOR = re.compile(r"(nvidia|cuda)[-_]")
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


class LicenseError(Exception):
    """An item violates deny.toml."""


@dataclass(frozen=True)
class Part:
    """A part of the module: its name, version, licence, and the licence's text."""

    name: str
    version: str
    license: str
    text: str


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Return whether an SPDX expression permits use under allowed licences alone."""
    tokens = re.findall(r"[()]|[^\s()/]+|/", expression)
    position = 0

    def peek() -> str:
        return tokens[position].upper() if position < len(tokens) else ""

    def term() -> bool:
        nonlocal position
        if peek() == "(":
            position += 1
            inner = either()
            if peek() != ")":
                raise LicenseError(f"the licence {expression!r} is not an SPDX expression")
            position += 1
            return inner
        if peek() in ("", ")", "OR", "AND", "WITH", "/"):
            raise LicenseError(f"the licence {expression!r} is not an SPDX expression")
        name = tokens[position]
        position += 1
        if peek() == "WITH":
            name = f"{name} WITH {tokens[position + 1]}" if position + 1 < len(tokens) else name
            position += 2
        return name in allowed

    def both() -> bool:
        nonlocal position
        result = term()
        while peek() == "AND":
            position += 1
            result = term() and result
        return result

    def either() -> bool:
        nonlocal position
        result = both()
        while peek() in ("OR", "/"):
            position += 1
            result = both() or result
        return result

    result = either()
    if position != len(tokens):
        raise LicenseError(f"the licence {expression!r} is not an SPDX expression")
    return result


def cargo_metadata() -> dict[str, Any]:
    """Return cargo's metadata of all crates; fail if Cargo.lock would have to change."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    # Crates that only tests need may not have been downloaded yet.
    for options in (["--offline"], []):
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    if done.returncode != 0:
        raise LicenseError(f"{' '.join(command)}\n{done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def linked(graph: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the module's crates, without ours and without build and test dependencies."""
    packages = {package["id"]: package for package in graph["packages"]}
    edges = {node["id"]: node["deps"] for node in graph["resolve"]["nodes"]}
    pending = [id_ for id_, package in packages.items() if package["name"] == "fastrecord-python"]
    seen: set[str] = set()
    while pending:
        at = pending.pop()
        if at not in seen:
            seen.add(at)
            pending += [dep["pkg"] for dep in edges[at] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    found = [packages[id_] for id_ in seen - set(graph["workspace_members"])]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def own(graph: dict[str, Any]) -> set[str]:
    """Return the names of the workspace's own crates."""
    return {package["name"] for package in graph["packages"] if package["id"] in graph["workspace_members"]}


def check_lock(text: str, ours: Collection[str]) -> Iterator[str]:
    """Yield errors in the sources that Cargo.lock names; `ours` are the workspace's own crates."""
    for package in tomllib.loads(text)["package"]:
        where = f"{package['name']} {package['version']}"
        if package["name"] in ours:
            if "source" in package:
                yield f"{where}: comes from {package['source']}, and should be the workspace's own"
        elif package.get("source") != CRATES_IO:
            yield f"{where}: comes from {package.get('source', 'a folder')}, not from crates.io"
        elif not re.fullmatch(r"[0-9a-f]{64}", package.get("checksum", "")):
            yield f"{where}: Cargo.lock has no checksum of it"


def check_crates(packages: Iterable[dict[str, Any]], allowed: Collection[str]) -> Iterator[str]:
    """Yield the crates whose licence is not allowed."""
    for package in packages:
        where = f"crate {package['name']} {package['version']}"
        if not package["license"]:
            yield f"{where}: says no licence"
        elif not is_allowed(package["license"], allowed):
            yield f"{where}: its licence {package['license']} is not in deny.toml"


def license_of(info: metadata.PackageMetadata) -> str | None:
    """Return the licence of an installed package, as an SPDX expression if possible."""
    for expression in info.get_all("License-Expression") or []:
        return str(expression)
    said = [str(text) for text in info.get_all("License") or [] if 0 < len(text) < 80]
    classified = [str(line) for line in info.get_all("Classifier") or [] if line.startswith("License ::")]
    for name in [*said, *(line.rpartition(" :: ")[2] for line in classified)]:
        if name != "OSI Approved":
            return NAMES.get(name.lower(), name)
    return None


def check_wheels(root: str, allowed: Collection[str]) -> Iterator[str]:
    """Yield a package's dependencies, without extras, whose licence is not allowed."""
    pending, seen = [root], set()
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            info = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for need in metadata.requires(name) or []:
            named = re.match(r"[\w.-]+", need)
            if named and "extra ==" not in need:
                pending.append(named[0])
        if VENDOR.match(name) or name == root:
            continue
        license_ = license_of(info)
        if license_ is None:
            yield f"package {name}: says no licence"
        else:
            try:
                fine = is_allowed(license_, {*allowed, *BESIDE})
            except LicenseError as err:
                yield f"package {name}: {err}"
                continue
            if not fine:
                yield f"package {name}: its licence {license_} is not in deny.toml"


def parts(packages: Iterable[dict[str, Any]]) -> Iterator[Part]:
    """Yield the parts of the module, each with its licence text."""
    for package in packages:
        folder = Path(package["manifest_path"]).parent
        yield Part(package["name"], package["version"], package["license"], _text(package, folder))
        if package["name"] in BUNDLED:
            name, license_, files = BUNDLED[package["name"]]
            text = "\n\n".join((folder / file).read_text(encoding="utf-8").strip() for file in files)
            yield Part(name, f"in {package['name']} {package['version']}", license_, text)
    yield Part(
        "Rust's standard library",
        "of the compiler",
        "MIT OR Apache-2.0",
        f"Copyright (c) The Rust Project Contributors\n\n{MIT}",
    )


def _text(package: dict[str, Any], folder: Path) -> str:
    """Return the text of the licence that a crate is used under."""
    files = [
        file
        for file in folder.iterdir()
        if re.match(r"(UN)?LICEN|COPYING|NOTICE", file.name, re.IGNORECASE) and file.is_file()
    ]
    if not files:
        authors = (
            ", ".join(re.sub(r"\s*<.*?>", "", author) for author in package["authors"])
            or f"The {package['name']} authors"
        )
        if not is_allowed(package["license"], {"MIT"}):
            raise LicenseError(f"crate {package['name']}: it brings no licence text, and is not under MIT")
        return f"Copyright (c) {authors}\n\n{MIT}"
    choices = [name for name in PREFERRED if is_allowed(package["license"], {name, "Unicode-3.0"})]
    fitting = [file for file in files for name in choices[:1] if name.split("-")[0].upper() in file.name.upper()]
    plain = [file for file in files if re.fullmatch(r"LICEN[CS]E(\.\w+)?", file.name)]
    chosen = {
        *(fitting or plain or files),
        *(file for file in files if "UNICODE" in file.name.upper() or "NOTICE" in file.name.upper()),
    }
    return "\n\n".join(file.read_text(encoding="utf-8").strip() for file in sorted(chosen))


def render(found: Iterable[Part]) -> str:
    """Return the list of all parts, followed by each text once."""
    by_text: dict[str, list[Part]] = {}
    for part in found:
        text = "\n".join(line.rstrip() for line in part.text.strip().splitlines())
        by_text.setdefault(text, []).append(part)
    everything = sorted((part for group in by_text.values() for part in group), key=lambda p: p.name.lower())
    lines = [
        "The compiled module of fastrecord holds what is listed here, by other authors, under licences of their own.",
        "Their texts follow. Made by scripts/licenses.py --write.",
        "",
        *(f"{part.name} ({part.version}): {part.license}" for part in everything),
    ]
    for text, group in by_text.items():
        names = ", ".join(f"{part.name} ({part.version})" for part in group)
        lines += ["", "=" * 80, names, "=" * 80, "", text]
    return "\n".join(lines) + "\n"


def allow_list(text: str) -> set[str]:
    """Return the licences that deny.toml allows."""
    return set(tomllib.loads(text)["licenses"]["allow"])


def main(arguments: list[str]) -> int:
    """Check, or write the texts; return the exit status."""
    if arguments not in ([], ["--write"]):
        print("usage: licenses.py [--write]", file=sys.stderr)
        return 2
    try:
        allowed = allow_list((ROOT / "deny.toml").read_text(encoding="utf-8"))
        graph = cargo_metadata()
        text = render(parts(linked(graph)))
        if arguments:
            (ROOT / TEXTS).write_text(text, encoding="utf-8")
        others = [package for package in graph["packages"] if package["name"] not in own(graph)]
        wrong = [
            *check_lock((ROOT / "Cargo.lock").read_text(encoding="utf-8"), own(graph)),
            *check_crates(others, allowed),
        ]
        wrong += check_wheels("fastrecord", allowed)
        if not (ROOT / TEXTS).is_file() or (ROOT / TEXTS).read_text(encoding="utf-8") != text:
            wrong.append(f"{TEXTS} is not current: run `python scripts/licenses.py --write`")
    except LicenseError as err:
        wrong = [str(err)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
