"""Compare the ways to store images: bytes, CPU time to pack, speed and change of pixels.

`python -m benches.options FOLDER --page docs/performance.md`, then `python scripts/draw_options.py`. FOLDER has one
sub-folder per class. All ways take turns in one process, one epoch each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastrecord as fr

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"
WAYS: dict[str, dict[str, Any]] = {
    "original": {},
    "crop index": {"crop_index": True},
    "packed": {"packed": True},
    "short side 256": {"short_side": 256},
    "short side 256, packed": {"short_side": 256, "packed": True},
    "short side 256, raw": {"short_side": 256, "raw": True},
}


def cpu_seconds(loader: fr.FastRecordLoader) -> float:
    """Return the CPU seconds of an epoch, with all threads."""
    start = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - start


def packing_seconds(folder: Path, path: Path, recode: fr.Recode) -> float:
    """Return the CPU seconds of a pack, with all threads; the least of three."""
    taken = []
    for _ in range(3):
        start = time.process_time()
        fr.pack(folder, path, recode=recode, output=fr.Output(mode="overwrite"))
        taken.append(time.process_time() - start)
    return min(taken)


def evaluated(path: Path) -> torch.Tensor:
    """Return the images as an evaluation sees them, float32 (N, 3, 224, 224)."""
    centre = [fr.transforms.Resize(256), fr.transforms.CenterCrop(224)]
    return torch.cat([images for images, _ in fr.FastRecordLoader(path, 64, shuffle=False, sample=centre)]).float()


def rows(folder: Path, *, rounds: int, epoch: int) -> list[str]:
    """Pack and measure each way; return the rows of the table."""
    with tempfile.TemporaryDirectory() as made:
        paths = {way: Path(made, f"{number}.frec") for number, way in enumerate(WAYS)}
        packing = {way: packing_seconds(folder, path, fr.Recode(**WAYS[way])) for way, path in paths.items()}
        crop = [fr.transforms.RandomResizedCrop(224), fr.transforms.RandomHorizontalFlip()]
        loaders, seconds = {}, {way: list[float]() for way in WAYS}
        for way, path in paths.items():
            data = fr.FastRecordDataset(path)
            data = data.subset(np.resize(np.arange(len(data)), epoch))
            loaders[way] = fr.FastRecordLoader(data, 128, sample=crop, threads=1)
        for loader in loaders.values():
            cpu_seconds(loader)
        for _ in range(rounds):
            for way, loader in loaders.items():
                seconds[way].append(cpu_seconds(loader))
        original = evaluated(paths["original"])
        table = []
        for way, path in paths.items():
            with fr.Reader(path) as reader:
                size, pack = reader.nbytes / len(reader), packing[way] / len(reader)
            rate = epoch / statistics.median(seconds[way])
            ratio = statistics.median(a / b for a, b in zip(seconds["original"], seconds[way], strict=True))
            change = (evaluated(path) - original).abs().mean().item()
            cells = (
                way,
                f"{size / 1000:.1f} KB",
                f"{pack * 1000:.2f} ms",
                f"{rate:,.0f}",
                f"{ratio:.2f} x",
                f"{change:.2f}",
            )
            table.append(f"| {' | '.join(cells)} |")
        return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, help="the page whose table is replaced")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epoch", type=int, default=600, help="images an epoch")
    options = parser.parse_args()
    head = "| stored | bytes an image | CPU time to pack it | images/s of one core | speed | change, of 255 |\n"
    head += "|---|---:|---:|---:|---:|---:|"
    table = "\n".join([head, *rows(options.folder, rounds=options.rounds, epoch=options.epoch)])
    print(table)
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        options.page.write_text(f"{text[:start]}\n{table}\n\n{text[end:]}", encoding="utf-8")


if __name__ == "__main__":
    main()
