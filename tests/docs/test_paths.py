"""The files that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "tests/README.md"]
PATH = re.compile(r"(?<![\w/.])((?:benches|demo|docs|examples|python|rust|scripts|tests)/[\w./]+\.\w+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_of_this_project_that_a_page_names_exists(page: Path) -> None:
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    assert {path for path in named if not (ROOT / path).exists() and not (page.parent / path).exists()} == set()
