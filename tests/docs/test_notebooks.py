"""The notebooks under examples/ run from start to end, and are small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

pytestmark = pytest.mark.slow


def outputs(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells for output in cell.get("outputs", ())]


def printed(path: Path) -> str:
    """Return all text that the cells put out."""
    texts = [output.get("text") or [*output["data"]["text/plain"], "\n"] for output in outputs(path)]
    return "".join("".join(lines) for lines in texts)


def execute(path: Path, folder: Path) -> str:
    copy = Path(shutil.copy(path, folder))
    done = subprocess.run(
        [sys.executable, "-c", "from nbclient.cli import main; main()", "--inplace", "--timeout=120", copy.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return printed(copy)


def test_pack_look_train_learns_and_resumes(tmp_path: Path) -> None:
    text = execute(EXAMPLES / "pack_look_train.ipynb", tmp_path)
    assert float(re.findall(r"accuracy ([\d.]+)%", text)[-1]) > 90
    assert text.splitlines()[-1] == "True"


def test_geometry_and_speed_shows_the_same_pixels_and_three_rates(tmp_path: Path) -> None:
    text = execute(EXAMPLES / "geometry_and_speed.ipynb", tmp_path)
    assert "True\n" in text
    assert len(re.findall(r"^(?:loader|DataLoader).* \d+ images/s$", text, re.MULTILINE)) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_small_and_without_errors(path: Path) -> None:
    assert path.stat().st_size < 100_000
    assert {output["output_type"] for output in outputs(path)} <= {"stream", "execute_result", "display_data"}
    assert not re.search(r"/(?:tmp|home|root|work)/|0x[0-9a-f]{6}", printed(path)), "a path of one machine"
