"""RecordIO by MXNet, whose development has ended."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
from numpy.typing import NDArray

from benches.contenders.store import Records, Store


def _package() -> None:
    """Let `mxnet.recordio` be imported without `mxnet` itself, which needs a numpy below 1.24."""
    spec = importlib.util.find_spec("mxnet")
    if spec is None:
        raise ModuleNotFoundError("No module named 'mxnet'", name="mxnet")
    sys.modules.setdefault("mxnet", importlib.util.module_from_spec(spec))


_package()

from mxnet import libinfo, recordio  # noqa: E402 - see above


class RecordIo(Store):
    """With its index; the format has no place for keys."""

    suffix = ".rec"

    @classmethod
    def version(cls) -> str:
        return f"mxnet {libinfo.__version__}, mxnet.recordio"

    def write(self) -> None:
        writer = recordio.MXIndexedRecordIO(f"{self.path}.idx", str(self.path), "w")
        for number, (payload, label, _) in enumerate(self.source.each()):
            # A label in the header is a float32, which cannot hold every label.
            writer.write_idx(number, recordio.pack(recordio.IRHeader(0, 0.0, label, 0), payload))
        writer.close()

    def open(self) -> None:
        self.reader = recordio.MXIndexedRecordIO(f"{self.path}.idx", str(self.path), "r")

    def close(self) -> None:
        self.reader.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        payloads, labels = [], []
        for row in rows.tolist():
            header, payload = recordio.unpack(self.reader.read_idx(row))
            payloads.append(payload)
            labels.append(header.id)
        return payloads, labels
