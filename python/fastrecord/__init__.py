"""Pack training records into one append-only file and feed training from it at the speed of the hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastrecord._core import (
    Batch,
    CorruptFileError,
    DecodeError,
    FastRecordError,
    LockedError,
    NoCommitError,
    Reader,
    SchemaError,
    UnsupportedVersionError,
    Writer,
    __version__,
    decode_image,
)
from fastrecord.schema import FieldType, Schema, bytes_, float64, image, int64, string

if TYPE_CHECKING:
    from fastrecord import transforms
    from fastrecord.dataset import FastRecordDataset, collate
    from fastrecord.loader import FastRecordLoader
    from fastrecord.sampler import FastRecordBatchSampler
    from fastrecord.skipping import SkippedRecord
    from fastrecord.stats import LoaderStats

# What needs torch is imported when first asked for: `import fastrecord` and the command line stay quick (PEP 562).
_LAZY = {
    "FastRecordBatchSampler": "fastrecord.sampler",
    "FastRecordDataset": "fastrecord.dataset",
    "FastRecordLoader": "fastrecord.loader",
    "LoaderStats": "fastrecord.stats",
    "SkippedRecord": "fastrecord.skipping",
    "collate": "fastrecord.dataset",
}

__all__ = [
    "Batch",
    "CorruptFileError",
    "DecodeError",
    "FastRecordBatchSampler",
    "FastRecordDataset",
    "FastRecordError",
    "FastRecordLoader",
    "FieldType",
    "LoaderStats",
    "LockedError",
    "NoCommitError",
    "Reader",
    "Schema",
    "SchemaError",
    "SkippedRecord",
    "UnsupportedVersionError",
    "Writer",
    "__version__",
    "bytes_",
    "collate",
    "decode_image",
    "float64",
    "image",
    "int64",
    "string",
    "transforms",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "transforms":
        return importlib.import_module("fastrecord.transforms")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fastrecord' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
