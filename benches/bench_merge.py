"""Merging: `fastrecord merge A B -o C` against `cat A B > C` on the same disk, each followed by a sync."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benches.conftest import Data, make, note


@pytest.fixture(scope="session")
def halves(folder: Path) -> tuple[Data, Data]:
    """Two files of 10,000 and 8,000 records of 110 KB."""
    return make(folder, 10_000, 110_000), make(folder, 8_000, 110_000, with_lmdb=False)


def compare(folder: Path, first: Data, second: Data, versus: Callable[..., None], *, rounds: int) -> None:
    merged, joined = folder / "merged.frec", folder / "joined"

    def clean() -> None:
        for path in (merged, joined):
            path.unlink(missing_ok=True)
        os.sync()

    def merge() -> None:
        arguments = ["merge", str(first.frec), str(second.frec), "-o", str(merged), "--quiet"]
        subprocess.run([sys.executable, "-m", "fastrecord", *arguments], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["sync", "-f", folder], check=True)

    def cat() -> None:
        sources = f"{shlex.quote(str(first.frec))} {shlex.quote(str(second.frec))}"
        subprocess.run(f"cat {sources} > {shlex.quote(str(joined))}", shell=True, check=True)
        subprocess.run(["sync", "-f", folder], check=True)

    for data in (first, second):
        with data.frec.open("rb") as file:
            while file.read(1 << 24):  # fill the page cache, so that both read from memory
                pass
    versus(merge, {"cat; sync": (cat, 1.2, "cost")}, rounds=rounds, before=clean)
    merge()
    sizes = first.frec.stat().st_size + second.frec.stat().st_size
    note(
        f"file size, bytes: {first.records + second.records} records", "A + B", merged.stat().st_size, sizes, 1, "cost"
    )
    clean()


def test_merge_of_large_records_against_cat(
    halves: tuple[Data, Data], folder: Path, versus: Callable[..., None]
) -> None:
    """18,000 records of 110 KB, page cache warm."""
    compare(folder, *halves, versus, rounds=9)


def test_merge_of_small_records_against_cat(small: Data, folder: Path, versus: Callable[..., None]) -> None:
    """2,000,000 records of 100 B, page cache warm."""
    compare(folder, small, small, versus, rounds=9)
