"""The C yardsticks of the benchmarks: a memcpy gather and a parallel pread."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("gather.c")


class Gather:
    """Gather extents into a buffer by `threads` threads: from memory by memcpy, or from a file by pread.

    Args:
        folder: The folder of the compiled library.
    """

    def __init__(self, folder: Path) -> None:
        library = folder / "gather.so"
        if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
            subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-pthread", "-o", library, SOURCE], check=True)
        self._gather = ctypes.CDLL(str(library)).gather
        pointer = ctypes.c_void_p
        self._gather.argtypes = [
            pointer,
            ctypes.c_int,
            pointer,
            pointer,
            pointer,
            ctypes.c_int64,
            pointer,
            ctypes.c_int,
        ]

    def __call__(
        self,
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: NDArray[np.uint8],
        *,
        threads: int,
        memory: NDArray[np.uint8] | None = None,
        fd: int = -1,
    ) -> None:
        """Copy each extent after the one before it."""
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        base = None if memory is None else memory.ctypes.data
        arguments = (offsets.ctypes.data, lengths.ctypes.data, starts.ctypes.data, len(offsets), out.ctypes.data)
        if self._gather(base, fd, *arguments, threads):
            raise OSError("pread failed")
