"""Pack, read and load three images with the installed package: python scripts/try_install.py, in any empty folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import fastrecord as fr


def main() -> None:
    """Use each part once; end with an error if one of them fails."""
    noise = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        for name in ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg"):
            path = Path(made, "images", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise.integers(0, 256, (48, 64, 3), np.uint8)).save(path)
        out = Path(made, "three.frec")
        command = [sys.executable, "-m", "fastrecord", "pack", str(path.parents[1]), str(out)]
        subprocess.run(command, check=True)
        with fr.Reader(out) as reader:
            if bytes(reader[2]["image"]) != path.read_bytes():
                raise SystemExit("the packed image differs from its file")
        loader = fr.FastRecordLoader(out, 3, shuffle=False, sample=[fr.transforms.RandomCrop(32)])
        ((images, labels),) = loader
        if images.shape != (3, 3, 32, 32) or images.dtype != torch.uint8 or labels.tolist() != [0, 0, 1]:
            raise SystemExit(f"the loader gives {tuple(images.shape)}, {images.dtype}, {labels.tolist()}")
    print(f"fastrecord {fr.__version__} works on Python {sys.version.split()[0]}, from {fr.__file__}")


if __name__ == "__main__":
    main()
