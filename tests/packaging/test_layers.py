"""Imports go downwards: no folder imports from its own floor or above (docs/architecture.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each line is a floor, the ground first. A folder may import from lower floors.
FLOORS = {
    "rust/core/src": """
        error order
        control limits memory
        sys parallel
        codec image
        format
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
