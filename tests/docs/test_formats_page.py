"""docs/formats.md: its commands and programs run, and its tables have every format, setting and extra."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from scripts.format_settings import with_table
from tests.support.programs import command, execute

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


@pytest.fixture
def shards(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with shards/train-000.tar to train-002.tar, 12 records in all."""
    monkeypatch.chdir(tmp_path)
    fr.export(packed, "shards", "webdataset", shard_size=16_000)
    for number, path in enumerate(sorted(Path("shards").iterdir())):
        path.rename(f"shards/train-{number:03d}.tar")
    assert len(list(Path("shards").iterdir())) == 3


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("shards")
def test_the_commands_of_the_page_run() -> None:
    for line in blocks("sh")[0].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "fastrecord"
        command(line, *arguments)
    assert len(fr.Reader("train.frec")) == 12
    assert Path("train.parquet").stat().st_size > 10_000


@pytest.mark.usefixtures("shards")
def test_the_program_of_the_page_runs() -> None:
    arrays = [(np.full((2, 2), number, np.uint8), number) for number in range(5)]
    names: dict[str, Any] = {"torch_dataset": arrays}
    program = blocks("python")[0].replace('torch_dataset, "train.frec"', 'torch_dataset, "arrays.frec"')
    execute(program, "formats.md", names)
    assert (len(fr.Reader("train.frec")), len(fr.Reader("arrays.frec"))) == (12, 5)


def test_the_tables_have_every_format_and_extra() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
    table = {name: row for row in rows if len(row) == 5 for name in re.findall(r"`(\w+)`", row[0])}
    out = {row[0].strip("`"): row for row in rows if len(row) == 4}
    assert sorted(table) == registry.names()
    assert sorted(out) == registry.names(writes=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, (_, reads, writes, extra, _) in table.items():
        kind = registry.load(name)
        assert (reads == "yes", writes == "yes") == (True, kind.writes), name
        assert set(re.findall(r"`(\w+)`", extra)) <= extras.keys(), name
    for name, row in out.items():
        kind = registry.load(name)
        sharded = "yes" if kind.shards else "size" if "shard_size" in kind.settings else "no"
        assert row[2].startswith(sharded), name


def test_the_page_has_every_setting_of_every_format() -> None:
    assert with_table(PAGE) == PAGE, "run scripts/format_settings.py"
