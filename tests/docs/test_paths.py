"""The files that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/README.md"]
# Where docs/architecture.md looks for the files and folders of code that it names.
CODE = [ROOT / place for place in ("rust/core/src", "rust/python/src", "python/fastrecord", "benches", "")]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
PATH = re.compile(r"(?<![\w/.])((?:benches|demo|docs|examples|python|rust|scripts|tests)/[\w./]+\.\w+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_this_project_that_a_page_names_or_links_to_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {*PATH.findall(text), *LINK.findall(text)}
    assert {path for path in named if not (ROOT / path).exists() and not (page.parent / path).exists()} == set()


def test_every_file_of_code_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = {name.removeprefix("binding:") for name in re.findall(r"`([\w:./]+(?:\.(?:rs|py|pyi|c)|/))`", text)}
    # The trees: a folder at the start of a line, and those below it by two blanks more.
    base = ""
    for line in text.partition("```\n")[2].partition("```")[0].splitlines():
        for name in re.findall(r"[\w./]+/|\w+\.(?:rs|py)", line.partition("  " if line[0] != " " else "   ")[0]):
            named.add(name if line[0] != " " else base + name)
        base = line.split()[0] if line[0] != " " else base
    assert len(named) > 60
    assert {name for name in named if not any((place / name).exists() for place in CODE)} == set()
