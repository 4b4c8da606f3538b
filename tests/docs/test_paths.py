"""The files that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
PATH = re.compile(r"(?<![\w/.])((?:benches|demo|docs|examples|python|rust|scripts|tests)/[\w./]+\.\w+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_this_project_that_a_page_names_or_links_to_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {*PATH.findall(text), *LINK.findall(text)}
    assert {path for path in named if not (ROOT / path).exists() and not (page.parent / path).exists()} == set()
