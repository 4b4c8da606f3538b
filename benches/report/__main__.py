"""`python -m benches.report [FOLDER] [--page PAGE]`, or `--compare A B`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benches.harness.process import ROOT
from benches.report import compare
from benches.report.cases import load
from benches.report.documents import documents
from benches.report.page import page
from benches.report.plots import Pictures
from benches.report.summary import summary

RESULTS = ROOT / "benches" / "results" / "full"
PAGE = ROOT / "docs" / "benchmarks.md"


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

    The committed results also go into the other pages that show them. Other results are printed in
    short, and their page is written if it has a place.
    """
    results = load(folder)
    committed = folder.resolve() == RESULTS
    to = to or (PAGE if committed else None)
    if to is not None:
        folder = to.parent / "img" / to.stem
        pictures = Pictures(folder, f"img/{to.stem}")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(page(results, pictures), encoding="utf-8")
        for old in set(folder.glob("*.svg")) - pictures.drawn:
            old.unlink()
    if committed and to == PAGE:
        for path, text in documents(ROOT, results).items():
            path.write_text(text, encoding="utf-8")
    else:
        print("\n".join(summary(results)))
    if to is not None:
        print(f"{to}: the page")


if __name__ == "__main__":
    sys.exit(main())
