"""docs/formats.md: its commands and programs run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from tests.support.commands import good

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


@pytest.fixture
def shards(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with shards/train-000.tar to train-002.tar, 12 records in all."""
    monkeypatch.chdir(tmp_path)
    fr.export_records(packed, "shards", "webdataset", shard_size=16_000)
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
        good(*arguments)
    assert len(fr.Reader("train.frec")) == 12
    assert Path("train.parquet").stat().st_size > 10_000


@pytest.mark.usefixtures("shards")
def test_the_program_of_the_page_runs() -> None:
    arrays = [(np.full((2, 2), number, np.uint8), number) for number in range(5)]
    names: dict[str, Any] = {"torch_dataset": arrays}
    program = blocks("python")[0].replace('torch_dataset, "train.frec"', 'torch_dataset, "arrays.frec"')
    exec(compile(program, "formats.md", "exec"), names)
    assert (len(fr.Reader("train.frec")), len(fr.Reader("arrays.frec"))) == (12, 5)
