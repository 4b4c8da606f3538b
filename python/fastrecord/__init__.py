"""Pack training records into one append-only file and train from it at hardware speed."""

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
from fastrecord.dataset.decoding import Decoding
from fastrecord.operations.add_field import add_field, drop_field
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
from fastrecord.schema.compression import Compression
from fastrecord.schema.limits import LIMITS

if TYPE_CHECKING:
    from fastrecord import transforms
    from fastrecord.dataset.collate import collate
    from fastrecord.dataset.dataset import FastRecordDataset, concat
    from fastrecord.loader.loader import FastRecordLoader
    from fastrecord.loader.resumable import ResumableLoader
    from fastrecord.loader.skip import SkippedRecord
    from fastrecord.loader.stats import LoaderStats
    from fastrecord.operations.metadata import set_metadata
    from fastrecord.operations.repair import repair
    from fastrecord.operations.rewrite import compact, merge, shuffle, split
    from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
    from fastrecord.sampler.draws import class_weights

    BatchSampler, Dataset, Loader = FastRecordBatchSampler, FastRecordDataset, FastRecordLoader

# Names that need torch are imported at first use, so `import fastrecord` and the command line start
# fast (PEP 562).
_LAZY = {
    "FastRecordBatchSampler": "fastrecord.sampler.batch_sampler",
    "FastRecordDataset": "fastrecord.dataset.dataset",
    "FastRecordLoader": "fastrecord.loader.loader",
    "LoaderStats": "fastrecord.loader.stats",
    "ResumableLoader": "fastrecord.loader.resumable",
    "SkippedRecord": "fastrecord.loader.skip",
    "class_weights": "fastrecord.sampler.draws",
    "collate": "fastrecord.dataset.collate",
    "compact": "fastrecord.operations.rewrite",
    "concat": "fastrecord.dataset.dataset",
    "merge": "fastrecord.operations.rewrite",
    "repair": "fastrecord.operations.repair",
    "set_metadata": "fastrecord.operations.metadata",
    "shuffle": "fastrecord.operations.rewrite",
    "split": "fastrecord.operations.rewrite",
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
    "Decoding",
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
