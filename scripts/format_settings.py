"""Write the table of settings in docs/formats.md from the formats themselves: python scripts/format_settings.py."""

from __future__ import annotations

import re
from pathlib import Path

from fastrecord.interchange import registry

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
TABLE = re.compile(r"(?s)(<!-- settings: begin -->\n).*(<!-- settings: end -->)")


def with_table(page: str) -> str:
    """Return the page with a row for each setting of each format.

    Raises:
        ValueError: the page has no place for the table.
    """
    rows = [_row(name, setting) for name in registry.names() for setting in registry.load(name).settings]
    table = "".join(["| format | setting | what it does |\n|---|---|---|\n", *rows])
    if not TABLE.search(page):
        raise ValueError(f"{PAGE.name}: no marks for the table of settings")
    return TABLE.sub(lambda found: found[1] + table + found[2], page)


def _row(name: str, setting: str) -> str:
    about = registry.load(name).settings[setting]
    unnamed = [choice for choice in about.choices if not re.search(rf"\b{choice}\b", about.help)]
    values = f" ({', '.join(f'`{choice}`' for choice in about.choices)})" if unnamed else ""
    help_text = about.help[0].lower() + about.help[1:]
    return f"| `{name}` | `{setting}` | {help_text}{values} |\n"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
