"""The README's quickstart commands and programs run in order, on a folder of small images."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.programs import execute

README = Path(__file__).parents[2] / "README.md"
TRAINER_MADE_SHORT = ["--max-steps", "1", "--image-size", "32", "--epochs", "1", "--warmup-epochs", "0", "--out", "run"]


def blocks_of(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def quickstart_blocks() -> list[tuple[str, str]]:
    section = re.search(r"^## Quickstart$(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    return blocks_of(section[1])


def argv(line: str) -> list[str]:
    program, *args = shlex.split(line)
    if program == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", *args, *TRAINER_MADE_SHORT]
    assert program == "fastrecord"
    return [str(Path(sysconfig.get_path("scripts"), "fastrecord")), *args]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("readme")
    noise = np.random.default_rng(0)
    for split, count in {"train": 8, "val": 4}.items():
        for name in ("cat", "dog"):
            images = root / "imagenet" / split / name
            images.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(noise.integers(0, 256, (40, 48, 3), np.uint8)).save(images / f"{number}.jpg")
    return root


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.timeout(600)
def test_quickstart_of_the_readme_runs_as_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    blocks = quickstart_blocks()
    assert [kind for kind, _ in blocks] == ["sh", "python", "sh"]
    outputs = []
    for kind, text in blocks:
        if kind == "python":
            execute(text, "README.md", {"__name__": "__main__"})
            outputs.append(capsys.readouterr().out)
        else:
            outputs.append("".join(run(argv(line), folder) for line in text.splitlines()))

    batches = re.findall(r"^(\d) \((\d+), 3, 224, 224\) \[([01, ]+)\]$", outputs[1], re.MULTILINE)
    assert [(epoch, size) for epoch, size, _ in batches] == [("0", "4")] * 4 + [("1", "4")] * 4
    for epoch in ("0", "1"):
        labels = ",".join(labels for number, _, labels in batches if number == epoch)
        assert sorted(map(int, labels.split(","))) == [0] * 8 + [1] * 8
    assert "images/s" in outputs[1].splitlines()[-1]
    assert (folder / "run" / "metrics.jsonl").stat().st_size > 0


@pytest.mark.slow
def test_the_page_on_pairs_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0)
    for folder, side, suffix in (("lr", 32, "x4"), ("hr", 128, "")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for number in range(16):
            image = Image.fromarray(noise.integers(0, 256, (side, side, 3), np.uint8))
            image.save(tmp_path / "data" / folder / f"{number:04d}{suffix}.png")
    blocks = blocks_of((README.parent / "docs" / "pairs.md").read_text())
    for line in "".join(text for kind, text in blocks if kind == "sh").splitlines():
        if line.startswith("fastrecord pack"):
            run(argv(line.partition("#")[0]), tmp_path)
    shown = (
        "    print(tuple(lr.shape), tuple(hr.shape), hr.dtype, hr.is_contiguous(memory_format=torch.channels_last))\n"
    )
    program = "import torch\n" + "".join(text + shown for kind, text in blocks if kind == "python")
    execute(program, "docs/pairs.md", {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    dtypes = ["torch.uint8", "torch.float32", "torch.uint8"]
    assert lines == [f"(8, 3, 24, 24) (8, 3, 96, 96) {dtype} True" for dtype in dtypes for _ in range(2)]
