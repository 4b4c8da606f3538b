"""Batches of compressed arrays against the codec's own C library on the same threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

import fastrecord as fr

RECORDS = 4096
BATCH = 256
THREADS = 2


def patches(size: int) -> NDArray[np.uint8]:
    """Gradients with a little noise, like patches of photographs; both codecs about halve them."""
    rng = np.random.default_rng(size)
    y, x = np.mgrid[:size, :size]
    slopes = rng.uniform(-2, 2, (RECORDS, 2, 3))
    base = np.einsum("nkc,khw->nhwc", slopes, np.stack([y, x]).astype(float)) + rng.uniform(40, 200, (RECORDS, 1, 1, 3))
    noise = rng.integers(0, 3, (RECORDS, size, size, 3)) * (rng.random((RECORDS, size, size, 1)) < 0.25)
    return np.asarray((base + noise).clip(0, 255), np.uint8)


def features(values: int) -> NDArray[np.float32]:
    """Activations after a ReLU: half of them are zero."""
    rng = np.random.default_rng(values)
    return np.maximum(rng.standard_normal((RECORDS, values), np.float32), 0)


DATA: dict[str, Callable[[], NDArray[Any]]] = {
    "patches 32x32x3": lambda: patches(32),
    "patches 128x128x3": lambda: patches(128),
    "features 12288 float32": lambda: features(12288),
}


class Peer:
    """The codec's own library: each thread decompresses a share of a batch, without the GIL."""

    def __init__(self, codec: str, values: NDArray[Any], threads: int) -> None:
        self.codec, self.threads, self.size = codec, threads, values[0].nbytes
        if codec == "lz4":
            self.stored = [lz4.block.compress(value.tobytes(), store_size=False) for value in values]
        else:
            compressor = zstandard.ZstdCompressor(level=3)
            self.stored = [compressor.compress(value.tobytes()) for value in values]
        self.pool = ThreadPoolExecutor(threads)
        self.decompressor = zstandard.ZstdDecompressor()

    def _some(self, rows: list[int]) -> list[bytes]:
        return [lz4.block.decompress(self.stored[row], uncompressed_size=self.size) for row in rows]

    def batch(self, rows: list[int]) -> Any:
        """Decompress a batch and keep all of it: lz4 returns separate values, zstd one buffer."""
        if self.codec == "zstd":
            frames = [self.stored[row] for row in rows]
            return self.decompressor.multi_decompress_to_buffer(frames, threads=self.threads)
        share = -(-len(rows) // self.threads)
        return list(self.pool.map(self._some, [rows[at : at + share] for at in range(0, len(rows), share)]))


def make(folder: Path, name: str, codec: str) -> tuple[Path, NDArray[Any]]:
    """Create the file if it does not exist, and its values."""
    values = DATA[name]()
    path = folder / f"codec-{name.replace(' ', '-')}-{codec}.frec"
    if not path.exists():
        with fr.Writer(path, {"x": fr.array(values.dtype, values.shape[1:], codec)}, "w") as writer:
            writer.extend({"x": values})
    return path, values


@pytest.mark.parametrize("threads", [1, THREADS])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("name", DATA)
def test_batches_of_compressed_arrays(
    folder: Path, versus: Callable[..., None], name: str, codec: str, threads: int
) -> None:
    """Find, CRC-check, decompress and stack batches of 256; milliseconds per batch."""
    path, values = make(folder, name, codec)
    reader = fr.Reader(path, threads=threads)
    peer = Peer(codec, values, threads)
    rng = np.random.default_rng(1)
    chosen = [rng.choice(RECORDS, BATCH, replace=False) for _ in range(10)]
    plain = [rows.tolist() for rows in chosen]
    for start in range(0, RECORDS, BATCH):
        found = reader.read_batch(range(start, start + BATCH))["x"]
        np.testing.assert_array_equal(found, values[start : start + BATCH])

    def ours() -> None:
        for rows in chosen:
            reader.read_batch(rows)["x"]

    def theirs() -> None:
        for rows in plain:
            peer.batch(rows)

    library = f"{'liblz4' if codec == 'lz4' else 'libzstd'}, {threads} threads"
    versus(ours, {library: (theirs, 0.8, "speedup")}, scale=1e3 / len(chosen))
