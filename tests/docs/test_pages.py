"""The programs of docs/datasets.md and docs/records.md run unchanged."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import CLASS_COUNTS, write_images
from tests.support.programs import execute

DOCS = Path(__file__).parents[2] / "docs"


def run(page: str, heading: str | None = None) -> dict[str, Any]:
    """Run the programs of a page, or of one of its sections; return their names."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if heading is not None:
        section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None
        text = section[1]
    names: dict[str, Any] = {"__name__": "snippet"}
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert programs
    for program in programs:
        execute(program, page, names)
    return names


@pytest.fixture(autouse=True)
def folder(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with train.frec of 12 records and more.frec of 3."""
    shutil.copy(packed, tmp_path / "train.frec")
    write_images(tmp_path / "more.frec", [0, 1, 0], ["owl", "cat"])
    monkeypatch.chdir(tmp_path)


def test_views_are_what_the_page_says() -> None:
    names = run("datasets.md", "Views")
    sizes = {name: len(value) for name, value in names.items() if isinstance(value, fr.FastRecordDataset)}
    assert sizes.pop("large") < CLASS_COUNTS["cat"] + CLASS_COUNTS["owl"]
    assert sizes == {"data": 12, "train": 11, "val": 1, "rest": 9, "named": 5, "few": 2, "more": 15}
    assert [len(fold) for fold in names["folds"]] == [3, 3, 2, 2, 2]
    assert set(names["large"].targets.tolist()) <= {0, 2}
    assert set(names["named"].targets.tolist()) == {0}
    assert names["more"].targets[-3:].tolist() == [2, 0, 2]


def test_samples_are_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("datasets.md", "Samples of any fields")
    assert capsys.readouterr().out == "{'label': 0, 'key': 'cat/0.jpg'}\n"
    assert names["labels"].tolist() == [2] * 4


def test_records_are_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("records.md")
    printed = capsys.readouterr().out.splitlines()
    assert printed.pop(1).startswith("[(1, DecodeError('images[1]: not an image of a known type")
    assert printed[:3] == [
        "Schema({'image': array(\"float32\", (16, 16)), 'label': 'int64', 'name': string()})",
        "(32, 32, 3) False picture 7 7",
        "(4, 32, 32, 3) int32",
    ]
    assert names["padded"].shape == (4, 112, 80)
    assert names["offsets"].tolist() == [0, 23, 57, 92, 204]
    assert (names["out"] == names["batch"]["lr"]).all()
    assert float(printed[-1]) == pytest.approx(7 / 99)
    means = fr.Reader("records.frec").read_batch([3])["mean"]
    np.testing.assert_allclose(means[0], names["reader"][3]["lr"].mean(axis=(0, 1)), rtol=1e-5)
