"""Write the tables of docs/errors.md from `fastrecord.errors.Code`: python scripts/error_codes.py."""

from __future__ import annotations

import re
from pathlib import Path

from fastrecord.errors import Code

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"


def with_tables(page: str) -> str:
    """Return the page with the rows of each section's table; a section's number begins its codes."""
    return re.sub(r"(?ms)^## (\d): .*?^\|---\|---\|---\|---\|\n((?:\|[^\n]*\n)*)", _section, page)


def _section(found: re.Match[str]) -> str:
    rows = (_row(code) for code in Code if code.startswith(f"FR{found[1]}"))
    return found[0].removesuffix(found[2]) + "".join(rows)


def _row(code: Code) -> str:
    kinds = ", ".join(f"`{kind.__name__}`" for kind in code.kinds)
    return f"| {code} | {kinds} | {code.meaning} | {code.way_out} |\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
