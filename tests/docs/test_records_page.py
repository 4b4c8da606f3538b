"""The programs of docs/records.md run in order, unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr

PAGE = Path(__file__).parents[2] / "docs" / "records.md"


def test_the_programs_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) >= 4
    names: dict[str, Any] = {}
    for program in programs:
        exec(program, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == [
        "Schema({'image': array(\"float32\", (16, 16)), 'label': int64(), 'name': string()})",
        "(32, 32, 3) False picture 7 7",
        "(4, 32, 32, 3) int32",
    ]
    assert names["padded"].shape == (4, 112, 80)
    assert names["offsets"].tolist() == [0, 23, 57, 92, 204]
    assert (names["out"] == names["batch"]["lr"]).all()
    assert float(printed[-1]) == pytest.approx(7 / 99)
    means = fr.Reader("records.frec").read_batch([3])["mean"]
    np.testing.assert_allclose(means[0], names["reader"][3]["lr"].mean(axis=(0, 1)), rtol=1e-5)
