"""Packing: `fastrecord pack` against `tar cf` of the same files to the same disk, each followed by a sync."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benches.conftest import note

FILES = 10_000
SIZE = 110_000


@pytest.fixture(scope="session")
def images(folder: Path) -> Path:
    """10,000 files of 110 KB in 100 class folders, each a JPEG header and noise.

    Packing keeps their bytes.
    """
    root = folder / "images"
    if not root.exists():
        from io import BytesIO

        from PIL import Image

        head = BytesIO()
        Image.new("RGB", (500, 375)).save(head, "JPEG")
        noise = np.random.default_rng(0).integers(0, 256, 2 * SIZE, np.uint8).tobytes()
        temporary = folder / "images.tmp"
        for i in range(FILES):
            place = temporary / f"n{i % 100:08d}"
            place.mkdir(parents=True, exist_ok=True)
            start = (i * 7919) % SIZE
            (place / f"{i:08d}.JPEG").write_bytes((head.getvalue() + noise[start : start + SIZE])[:SIZE])
        temporary.rename(root)
    return root


def test_pack_against_tar(images: Path, folder: Path, versus: Callable[..., None]) -> None:
    """10,000 files of 110 KB, page cache warm."""
    packed, archive = folder / "packed.frec", folder / "packed.tar"

    def clean() -> None:
        for path in (packed, archive):
            path.unlink(missing_ok=True)
        os.sync()

    def pack() -> None:
        subprocess.run([sys.executable, "-m", "fastrecord", "pack", images, packed, "--quiet"], check=True)
        subprocess.run(["sync", "-f", folder], check=True)

    def tar() -> None:
        subprocess.run(["tar", "cf", archive, "-C", images.parent, images.name], check=True)
        subprocess.run(["sync", "-f", folder], check=True)

    for path in images.rglob("*.JPEG"):
        path.read_bytes()
    versus(pack, {"tar cf; sync": (tar, 0.8, "cost")}, rounds=7, before=clean)
    payload = sum(path.stat().st_size + 8 + len(f"{path.parent.name}/{path.name}") for path in images.rglob("*.JPEG"))
    note("file size, bytes", "image + label + key", packed.stat().st_size, payload, 1.001, "cost")
    clean()
    # The peak of a child includes its parent's memory at the fork, so the parent is a small
    # process.
    command = [sys.executable, "-m", "fastrecord", "pack", str(images), str(packed), "--quiet"]
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    script += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    measured = subprocess.run([sys.executable, "-c", script, *command], check=True, capture_output=True, text=True)
    note("peak memory of pack, bytes", "256 MB", int(measured.stdout) * 1024, 256e6, 1, "cost")
    clean()
