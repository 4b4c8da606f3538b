"""Imports go downwards: no folder imports from its own floor or above (docs/architecture.md).

Nor do files form circles.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each line is a floor, the ground first. A folder may import from lower floors.
FLOORS = {
    "rust/core/src": """
        error order
        control limits memory
        sys parallel image
        codec
        augment format
        file interchange
        read write build_info
        load pack copy repair
        lib
    """,
    "rust/python/src": """
        error logging
        exclusive convert
        read write order interchange
        copier image salvage build_info
        augment
        loader
        lib
    """,
    "python/fastrecord": """
        _core
        checks errors fixed lazy logs names terminal
        recode schema store transforms
        look options
        dataset interchange
        formats files sampler
        packing
        loader ray
        inspect
        __init__
        train
        cli
        __main__
    """,
}
IMPORT = {
    ".rs": re.compile(r"^(?!\s*//).*?\bcrate::(\w+)", re.MULTILINE),
    ".py": re.compile(r"^\s*(?:from|import) fastrecord(?:\.(\w+)| import (\w+))", re.MULTILINE),
}


def imports(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (folder, imported folder, file) for each import from another folder."""
    for path in sorted(folder.rglob("*.*")):
        if path.suffix not in IMPORT:
            continue
        own = path.relative_to(folder).parts[0].removesuffix(path.suffix)
        for match in IMPORT[path.suffix].finditer(path.read_text(encoding="utf-8")):
            other = next(filter(None, match.groups()))
            if other != own:
                yield own, other, path


@pytest.mark.parametrize("folder", FLOORS)
def test_a_folder_imports_only_from_floors_below_it(folder: str) -> None:
    names = [line.split() for line in FLOORS[folder].strip().splitlines()]
    floor = {name: number for number, floor in enumerate(names) for name in floor}
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for own, other, path in imports(ROOT / folder)
        if other in floor and floor[other] >= floor[own]
    }
    assert not wrong, "\n".join(sorted(wrong))
    assert {own for own, _, _ in imports(ROOT / folder)} <= floor.keys()


def test_the_table_of_the_architecture_is_this_one() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("| floor |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[2:5]] for line in page.splitlines()[2:]][::-1]
    for column, floors in enumerate(FLOORS.values()):
        told = [set(row[column].removesuffix(".rs").replace("`", "").split(", ")) - {""} for row in rows]
        assert [floor for floor in told if floor] == [set(line.split()) for line in floors.strip().splitlines()]


Name = tuple[str, ...]
RUST_TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod ")
# `use crate::a::{b, c}`, `use super::a`, or a name in an expression; and what a folder hands on.
RUST_NAME = re.compile(r"\b(crate|super)((?:::\w+)*)(?:::\{([^;{}]*)\};)?")
RUST_HANDED_ON = re.compile(r"\bpub(?:\(\w+\))? use (\w+)(?:::(\w+)|::\{([^;{}]*)\})+;")


def files_of(folder: Path, suffix: str, door: str) -> dict[Name, Path]:
    """Return each file by the name that others import it by; `door` stands for its folder."""
    paths = [(path.relative_to(folder).with_suffix("").parts, path) for path in sorted(folder.rglob("*" + suffix))]
    return {name[:-1] if name[-1] == door else name: path for name, path in paths}


def rust_graph(folder: Path) -> dict[Name, set[Name]]:
    """Return which other files each file names, if need be through the folder that hands a name on."""
    files = files_of(folder, ".rs", "mod")
    texts = {name: re.sub("//.*", "", RUST_TESTS.split(path.read_text())[0]) for name, path in files.items()}
    handed_on = {
        (*name, one.strip()): (*name, found[1], one.strip())
        for name, text in texts.items()
        for found in RUST_HANDED_ON.finditer(text)
        for one in (found[3] or found[2] or "").split(",")
    }

    def file_of(name: Name) -> Name:
        while name and name not in files:
            name = handed_on.get(name, name[:-1])
        return name

    def named(name: Name, text: str) -> Iterator[Name]:
        for root, path, listed in RUST_NAME.findall(text):
            start = (*(() if root == "crate" else name[:-1]), *path.split("::")[1:])
            yield from (file_of((*start, *one.strip().split("::"))) for one in (listed or "self").split(","))

    # A folder and the files in it are one thing.
    return {
        name: {
            other for other in named(name, text) if other and other[: len(name)] != name and name[: len(other)] != other
        }
        for name, text in texts.items()
    }


def python_graph(folder: Path) -> dict[Name, set[Name]]:
    """Return which other files each file imports, wherever it does, except for types alone."""
    files = files_of(folder, ".py", "__init__")
    graph: dict[Name, set[Name]] = {}
    for name, path in files.items():
        found, nodes = set(), list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        checks = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        types = {inner for node in checks for inner in ast.walk(node)}
        for node in set(nodes) - types:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == folder.name:
                start = tuple((node.module or "").split(".")[1:])
                found |= {(*start, one.name) if (*start, one.name) in files else start for one in node.names}
        graph[name] = (found & files.keys()) - {name}
    return graph


@pytest.mark.parametrize("folder", FLOORS)
def test_no_files_import_each_other_in_a_circle(folder: str) -> None:
    graph: Mapping[Name, set[Name]] = (rust_graph if folder.startswith("rust") else python_graph)(ROOT / folder)
    assert sum(map(len, graph.values())) > 100
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join("/".join(name) for name in error.args[1]))
