"""`python -m benches.report [FOLDER] [--page PAGE]`, or `--compare A B`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benches.harness.process import ROOT
from benches.report import compare
from benches.report.cases import Experiment, load
from benches.report.documents import documents
from benches.report.page import overview, page, tables
from benches.report.plots import Pictures
from benches.report.summary import summary

RESULTS = ROOT / "benches" / "results" / "full"
PAGE = ROOT / "docs" / "benchmarks.md"
TABLES = RESULTS / "tables.md"
PICTURES = PAGE.parent / "img" / PAGE.stem


def main(arguments: list[str] | None = None) -> int:
    """Write the page, its plots and the parts of other pages, or print a comparison."""
    parser = argparse.ArgumentParser(prog="python -m benches.report", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS, help="default: benches/results/full")
    parser.add_argument("--page", type=Path, help="default: docs/benchmarks.md, if the folder is the default one")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="print what changed from A to B")
    options = parser.parse_args(arguments)
    try:
        if options.compare:
            print("\n".join(compare.report(*options.compare)))
        else:
            write(options.folder, options.page)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(folder: Path, to: Path | None) -> None:
    """Write the page of some results.

    The committed results also go into the other pages that show them, and their tables to a page
    beside them. Other results are printed in short, and their page is written if it has a place.
    """
    results = load(folder)
    if to is None and folder.resolve() == RESULTS:
        for path, text in committed(results, PICTURES).items():
            path.write_text(text, encoding="utf-8")
        to = PAGE
    else:
        print("\n".join(summary(results)))
        if to is not None:
            own = to.parent / "img" / to.stem
            to.parent.mkdir(parents=True, exist_ok=True)
            pictures = Pictures(own, f"img/{to.stem}")
            to.write_text(page(results, pictures), encoding="utf-8")
            _remove_old(own, pictures)
    if to is not None:
        print(f"{to}: the page")


def committed(results: Mapping[str, Experiment], folder: Path | None) -> dict[Path, str]:
    """Return all pages that show the committed results; draw their plots into a folder, if there is one."""
    pictures = Pictures(folder, os.path.relpath(PICTURES, TABLES.parent))
    pages = {
        PAGE: overview(results, os.path.relpath(TABLES, PAGE.parent)),
        TABLES: tables(results, pictures, os.path.relpath(PAGE, TABLES.parent)),
    }
    if folder is not None:
        _remove_old(folder, pictures)
    return pages | documents(ROOT, results)


def _remove_old(folder: Path, pictures: Pictures) -> None:
    for old in set(folder.glob("*.svg")) - pictures.drawn:
        old.unlink()


if __name__ == "__main__":
    sys.exit(main())
