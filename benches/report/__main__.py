"""`python -m benches.report [FOLDER] [--page PAGE] [--readme README]`, or `--compare A B`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benches.harness.process import ROOT
from benches.report import compare, readme
from benches.report.cases import load
from benches.report.page import page
from benches.report.plots import Pictures

RESULTS = ROOT / "benches" / "results" / "full"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, its plots and the README's table, or print a comparison."""
    parser = argparse.ArgumentParser(prog="python -m benches.report", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=RESULTS, help="the results; default: benches/results/full"
    )
    parser.add_argument("--page", type=Path, help="default with the default folder: docs/benchmarks.md")
    parser.add_argument("--readme", type=Path, help="default with the default folder: README.md")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="print which values and ratios changed from A to B"
    )
    options = parser.parse_args(arguments)
    try:
        if options.compare:
            print("\n".join(compare.report(*options.compare)))
            return 0
        write(options.folder, options.page, options.readme)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(folder: Path, to: Path | None, table: Path | None) -> None:
    """Write the page of some results, and the README's table.

    Of the committed results, both have their places; other results leave the README as it is, and
    print their page if it has no place.
    """
    if folder.resolve() == RESULTS:
        to, table = to or PAGE, table or README
    experiments = load(folder)
    if to is None:
        print(page(experiments, Pictures(None, "img/benchmarks")))
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        pictures = to.parent / "img" / "benchmarks"
        to.write_text(page(experiments, Pictures(pictures, "img/benchmarks")), encoding="utf-8")
        print(to, file=sys.stderr)
    if table is not None:
        text = table.read_text(encoding="utf-8")
        table.write_text(readme.with_table(text, experiments), encoding="utf-8")
        print(table, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
