"""Draw docs/img/options.svg from the table of docs/performance.md, and copy that table to docs/guide/options.md.

`python scripts/draw_options.py` writes both; benches/options.py measures the table.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[1] / "docs"
SOURCE, PAGE, PICTURE = DOCS / "performance.md", DOCS / "guide" / "options.md", DOCS / "img" / "options.svg"
TABLE = re.compile(r"(<!-- options: begin -->\n)(.*?)(<!-- options: end -->)", re.DOTALL)
ROW = re.compile(r"^\| ([\w ,-]+) \| ([\d.]+) KB \| [\d.]+ ms \| [\d,]+ \| ([\d.]+) x \| ([\d.]+) \|$", re.MULTILINE)
WIDTH, NAME, BAR, LINE = 860, 190, 210, 34
SIZE, SPEED, TEXT, FAINT = "#D55E00", "#0072B2", "#1f2430", "#626b79"


def draw(table: str) -> str:
    """Return the picture: for each way the bytes and the speed of an image, as bars."""
    rows = [(name, float(size), float(speed), float(change)) for name, size, speed, change in ROW.findall(table)]
    largest, fastest = max(row[1] for row in rows), max(row[2] for row in rows)
    columns = (NAME, NAME + BAR + 80, NAME + 2 * BAR + 160)
    parts = [
        f'<text x="{x}" y="24" font-weight="bold" fill="{TEXT}">{title}</text>'
        for x, title in zip(columns, ("KB an image", "speed", "pixels"), strict=True)
    ]
    for number, (name, size, speed, change) in enumerate(rows):
        y = 42 + number * LINE
        parts.append(f'<text x="{NAME - 12}" y="{y + 16}" text-anchor="end" fill="{TEXT}">{escape(name)}</text>')
        for x, value, most, colour, label in (
            (columns[0], size, largest, SIZE, f"{size:.0f}"),
            (columns[1], speed, fastest, SPEED, f"{speed:.2f} x"),
        ):
            width = max(2, BAR * value / most)
            parts.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="22" rx="2" fill="{colour}"/>')
            parts.append(f'<text x="{x + width + 6:.1f}" y="{y + 16}" fill="{FAINT}">{label}</text>')
        said = "the same" if change == 0 else f"differ by {change:.1f}"
        parts.append(f'<text x="{columns[2]}" y="{y + 16}" fill="{TEXT}">{said}</text>')
    height = 42 + len(rows) * LINE + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def outputs() -> dict[Path, str]:
    """Return what the two files must hold."""
    found = TABLE.search(SOURCE.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{SOURCE} has no table of options")
    table = found[2]
    page = TABLE.sub(lambda old: old[1] + table + old[3], PAGE.read_text(encoding="utf-8"))
    return {PICTURE: draw(table), PAGE: page}


if __name__ == "__main__":
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")
