"""Pack training records into one append-only file and feed training from it at the speed of the hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastrecord import logs as _logs  # noqa: F401  the package's handler, and the core's events
from fastrecord._core import (
    Arrays,
    Batch,
    CorruptFileError,
    DecodeError,
    FastRecordError,
    Filler,
    LockedError,
    NoCommitError,
    Reader,
    SchemaError,
    UnsupportedVersionError,
    Writer,
    __version__,
    decode_image,
)
from fastrecord.compression import Compression
from fastrecord.limits import LIMITS
from fastrecord.new_field import add_field, drop_field
from fastrecord.schema import (
    FieldType,
    Schema,
    array,
    bfloat16,
    bool_,
    bytes_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    image,
    int8,
    int16,
    int32,
    int64,
    json,
    list_,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)

if TYPE_CHECKING:
    from fastrecord import transforms
    from fastrecord.collating import collate
    from fastrecord.dataset import FastRecordDataset
    from fastrecord.draws import class_weights
    from fastrecord.loader import FastRecordLoader
    from fastrecord.metadata import set_metadata
    from fastrecord.repairing import repair
    from fastrecord.resumable import ResumableLoader
    from fastrecord.rewrite import compact, merge, shuffle, split
    from fastrecord.sampler import FastRecordBatchSampler
    from fastrecord.skipping import SkippedRecord
    from fastrecord.stats import LoaderStats
    from fastrecord.views import concat

    BatchSampler, Dataset, Loader = FastRecordBatchSampler, FastRecordDataset, FastRecordLoader

# What needs torch is imported when first asked for: `import fastrecord` and the command line stay quick (PEP 562).
_LAZY = {
    "FastRecordBatchSampler": "fastrecord.sampler",
    "FastRecordDataset": "fastrecord.dataset",
    "FastRecordLoader": "fastrecord.loader",
    "LoaderStats": "fastrecord.stats",
    "ResumableLoader": "fastrecord.resumable",
    "SkippedRecord": "fastrecord.skipping",
    "class_weights": "fastrecord.draws",
    "collate": "fastrecord.collating",
    "compact": "fastrecord.rewrite",
    "concat": "fastrecord.views",
    "merge": "fastrecord.rewrite",
    "repair": "fastrecord.repairing",
    "set_metadata": "fastrecord.metadata",
    "shuffle": "fastrecord.rewrite",
    "split": "fastrecord.rewrite",
}
# Short names of the same classes.
_SHORT = {
    "BatchSampler": "FastRecordBatchSampler",
    "Dataset": "FastRecordDataset",
    "Loader": "FastRecordLoader",
}

__all__ = [  # noqa: RUF022  plainly sorted, which a test makes sure of
    "Arrays",
    "Batch",
    "BatchSampler",
    "Compression",
    "CorruptFileError",
    "Dataset",
    "DecodeError",
    "FastRecordBatchSampler",
    "FastRecordDataset",
    "FastRecordError",
    "FastRecordLoader",
    "FieldType",
    "Filler",
    "LIMITS",
    "Loader",
    "LoaderStats",
    "LockedError",
    "NoCommitError",
    "Reader",
    "ResumableLoader",
    "Schema",
    "SchemaError",
    "SkippedRecord",
    "UnsupportedVersionError",
    "Writer",
    "__version__",
    "add_field",
    "array",
    "bfloat16",
    "bool_",
    "bytes_",
    "class_weights",
    "collate",
    "compact",
    "complex128",
    "complex64",
    "concat",
    "decode_image",
    "drop_field",
    "float16",
    "float32",
    "float64",
    "image",
    "int16",
    "int32",
    "int64",
    "int8",
    "json",
    "list_",
    "merge",
    "repair",
    "set_metadata",
    "shuffle",
    "split",
    "string",
    "transforms",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "transforms":
        return importlib.import_module("fastrecord.transforms")
    if name in _SHORT:
        return getattr(importlib.import_module("fastrecord"), _SHORT[name])
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fastrecord' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
