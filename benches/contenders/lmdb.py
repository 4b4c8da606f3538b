"""LMDB: keys are record numbers; values come as views of the mapped file."""

from __future__ import annotations

import lmdb
import numpy as np
from numpy.typing import NDArray

from benches.contenders.store import Records, Store, frame, unframe


class Lmdb(Store):
    """Read without locks, read-ahead and copies, in one long transaction."""

    suffix = ".lmdb"

    @classmethod
    def version(cls) -> str:
        return f"lmdb {lmdb.__version__}"

    def write(self) -> None:
        # Keys come in order, so pages are filled from left to right (append).
        size = 2 * self.source.total + 1024 * self.source.records + (64 << 20)
        environment = lmdb.open(str(self.path), map_size=size, subdir=False, lock=False, sync=False, meminit=False)
        number = 0
        for batch in self.source.batches(4096 if self.source.images is None else 256):
            with environment.begin(write=True) as transaction:
                for payload, label, key in zip(*batch, strict=True):
                    transaction.put(number.to_bytes(8, "big"), frame(payload, label, key), append=True)
                    number += 1
        environment.sync(True)
        environment.close()

    def open(self) -> None:
        self.environment = lmdb.open(
            str(self.path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False
        )
        self.transaction = self.environment.begin(buffers=True)

    def close(self) -> None:
        self.transaction.abort()
        self.environment.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        keys = rows.astype(">u8").tobytes()
        get = self.transaction.get
        found = [unframe(get(keys[at : at + 8])) for at in range(0, len(keys), 8)]
        return [payload for payload, _ in found], [label for _, label in found]
