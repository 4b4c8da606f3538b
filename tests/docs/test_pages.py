"""The Python of docs/datasets.md runs unchanged."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.conftest import CLASS_COUNTS, write_images

DOCS = Path(__file__).parents[2] / "docs"


def snippet(page: str, heading: str) -> str:
    """Return the only Python block under a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    (found,) = re.findall(r"^```python\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def folder(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with train.frec of 12 records and more.frec of 3."""
    shutil.copy(packed, tmp_path / "train.frec")
    write_images(tmp_path / "more.frec", [0, 1, 0], ["owl", "cat"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(page: str, heading: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(snippet(page, heading), f"{page}: {heading}", "exec"), names)
    return names


@pytest.mark.usefixtures("folder")
def test_views_of_the_document_are_what_it_says() -> None:
    names = run("datasets.md", "Views")
    sizes = {name: len(value) for name, value in names.items() if isinstance(value, fr.FastRecordDataset)}
    assert sizes.pop("large") < CLASS_COUNTS["cat"] + CLASS_COUNTS["owl"]
    assert sizes == {"data": 12, "train": 11, "val": 1, "rest": 9, "named": 5, "few": 2, "more": 15}
    assert [len(fold) for fold in names["folds"]] == [3, 3, 2, 2, 2]
    assert set(names["large"].targets.tolist()) <= {0, 2}
    assert set(names["named"].targets.tolist()) == {0}
    assert names["more"].targets[-3:].tolist() == [2, 0, 2]


@pytest.mark.usefixtures("folder")
def test_samples_of_the_document_are_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("datasets.md", "Samples of any fields")
    assert capsys.readouterr().out == "{'label': 0, 'key': 'cat/0.jpg'}\n"
    assert names["labels"].tolist() == [2] * 4
