"""The example scripts, run as a user runs them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

import fastrecord as fr
from tests.support.packing import pack_with

SRCNN = Path(__file__).parents[2] / "examples" / "srcnn.py"
PHASES = ("data", "forward", "backward", "update")


def scene(seed: int) -> Image.Image:
    """Return rectangles and ellipses with sharp edges, 128 x 96 pixels."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (128, 96), tuple(rng.integers(0, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for number in range(30):
        x, y, width, height = rng.integers((-20, -20, 6, 6), (120, 90, 50, 50)).tolist()
        shape = draw.rectangle if number % 2 else draw.ellipse
        shape((x, y, x + width, y + height), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    for number in range(6):
        scene(number).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image", encoding="utf-8")
    return folder


@pytest.fixture
def srcnn(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Run the script with arguments; return the rows that it prints."""
    main: Callable[[list[str]], None] = runpy.run_path(str(SRCNN))["main"]

    def run(*arguments: object) -> list[dict[str, Any]]:
        main([*map(str, arguments), "--json", "--device", "cpu"])
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_srcnn_gets_better_than_bicubic_interpolation(scenes: Path, tmp_path: Path, srcnn: Callable[..., Any]) -> None:
    out = tmp_path / "patches.frec"
    common = ("--batch-size", 4, "--val", 9)
    rows = srcnn(scenes, "--patch", 8, "--scale", 4, "--keep", out, "--epochs", 3, *common)
    assert [row["epoch"] for row in rows] == list(range(3))
    assert {row["steps"] for row in rows} == {(6 * 12 - 9) // 4}
    assert rows[-1]["psnr"] > rows[-1]["psnr_bicubic"] > 15
    assert rows[-1]["psnr"] > rows[0]["psnr"]
    assert rows[-1]["loss"] < rows[0]["loss"]
    for row in rows:
        assert tuple(row["phases"]) == PHASES
        assert all(seconds > 0 for seconds in row["phases"].values())
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"], rel=0.05)
    with fr.Reader(out) as reader:
        assert (len(reader), reader.metadata["scale"], reader[0]["hr"].shape) == (72, 4, (32, 32, 3))
    # The same patches from the file train the same way.
    again = srcnn(out, "--epochs", 1, *common)
    assert again[0]["psnr"] == pytest.approx(rows[0]["psnr"], abs=0.01)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("decode", [False, True])
def test_srcnn_trains_on_packed_pairs_as_files_or_pixels(
    scenes: Path, tmp_path: Path, srcnn: Callable[..., Any], decode: bool
) -> None:
    for number, path in enumerate(sorted(scenes.glob("*.png"))):
        with Image.open(path) as image:
            large = image.crop((0, 0, 128 - 8 * number, 96))  # many sizes
        for name, stored in (("hr", large), ("lr", large.resize((large.width // 2, 48), Image.Resampling.BICUBIC))):
            (tmp_path / name).mkdir(exist_ok=True)
            stored.save(tmp_path / name / path.name)
    pack_with(
        [tmp_path / "lr", tmp_path / "hr"], tmp_path / "pairs.frec", format="pairs", decode="yes" if decode else "no"
    )
    (row,) = srcnn(tmp_path / "pairs.frec", "--crop", 16, "--batch-size", 2, "--epochs", 1)
    assert row["steps"] == 2
    assert row["psnr"] > 15


def test_srcnn_says_what_is_wrong(tmp_path: Path, srcnn: Callable[..., Any]) -> None:
    (tmp_path / "empty").mkdir()
    with fr.Writer(tmp_path / "other.frec", {"x": "int64"}) as writer:
        writer.append({"x": 1})
    for name, message in (
        ("empty", f"^{tmp_path / 'empty'}: no image of at least 128 x 128 pixels$"),
        ("other.frec", "no fields lr and hr: pack pairs with `fastrecord pack --format pairs"),
        ("gone.frec", r"gone\.frec"),
    ):
        with pytest.raises(SystemExit, match=message):
            srcnn(tmp_path / name)
