"""Pack training records into one append-only file and train from it at hardware speed."""

import importlib
import types
import typing

# `X as X` marks a public name.
# isort: off
from fastrecord import logs as _logs  # noqa: F401  the package's handler, and the core's events
from fastrecord._core import (
    Arrays as Arrays,
    Batch as Batch,
    CorruptFileError as CorruptFileError,
    DecodeError as DecodeError,
    FastRecordError as FastRecordError,
    Filler as Filler,
    LockedError as LockedError,
    NoCommitError as NoCommitError,
    Reader as Reader,
    SchemaError as SchemaError,
    UnsupportedVersionError as UnsupportedVersionError,
    Writer as Writer,
    __version__ as __version__,
    decode_image as decode_image,
)
from fastrecord.schema import (
    FieldType as FieldType,
    Schema as Schema,
    array as array,
    bfloat16 as bfloat16,
    bool_ as bool_,
    bytes_ as bytes_,
    complex64 as complex64,
    complex128 as complex128,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    image as image,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    json as json,
    list_ as list_,
    string as string,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from fastrecord.schema.compression import Compression as Compression
from fastrecord.schema.limits import LIMITS as LIMITS

# isort: on

if typing.TYPE_CHECKING:
    from fastrecord import files as files
    from fastrecord import inspect as inspect
    from fastrecord import transforms as transforms
    from fastrecord.dataset.collate import collate as collate
    from fastrecord.dataset.dataset import FastRecordDataset as FastRecordDataset
    from fastrecord.dataset.dataset import concat as concat
    from fastrecord.dataset.decoding import Decoding as Decoding
    from fastrecord.dataset.mix import mix as mix
    from fastrecord.files.export import export as export
    from fastrecord.loader.delivery import Delivery as Delivery
    from fastrecord.loader.loader import FastRecordLoader as FastRecordLoader
    from fastrecord.loader.resumable import ResumableLoader as ResumableLoader
    from fastrecord.loader.skip import Skip as Skip
    from fastrecord.loader.skip import SkippedRecord as SkippedRecord
    from fastrecord.loader.stats import LoaderStats as LoaderStats
    from fastrecord.packing.options import Fields as Fields
    from fastrecord.packing.options import Input as Input
    from fastrecord.packing.options import Output as Output
    from fastrecord.packing.pack import pack as pack
    from fastrecord.packing.pack import preview as preview
    from fastrecord.recode import Recode as Recode
    from fastrecord.sampler.batch_sampler import FastRecordBatchSampler as FastRecordBatchSampler
    from fastrecord.sampler.blocks import Blocks as Blocks
    from fastrecord.sampler.draws import class_weights as class_weights

    BatchSampler, Dataset, Loader = FastRecordBatchSampler, FastRecordDataset, FastRecordLoader

# Names that are imported at first use, so that `import fastrecord` and the command line start fast
# (PEP 562): the module in this package, and the name there if it is another one.
_LAZY = {
    "BatchSampler": "sampler.batch_sampler:FastRecordBatchSampler",
    "Blocks": "sampler.blocks",
    "Dataset": "dataset.dataset:FastRecordDataset",
    "Decoding": "dataset.decoding",
    "Delivery": "loader.delivery",
    "FastRecordBatchSampler": "sampler.batch_sampler",
    "FastRecordDataset": "dataset.dataset",
    "FastRecordLoader": "loader.loader",
    "Loader": "loader.loader:FastRecordLoader",
    "LoaderStats": "loader.stats",
    "Fields": "packing.options",
    "Input": "packing.options",
    "Output": "packing.options",
    "ResumableLoader": "loader.resumable",
    "Skip": "loader.skip",
    "SkippedRecord": "loader.skip",
    "class_weights": "sampler.draws",
    "collate": "dataset.collate",
    "concat": "dataset.dataset",
    "mix": "dataset.mix",
    "export": "files.export",
    "pack": "packing.pack",
    "preview": "packing.pack",
    "Recode": "recode",
    "files": "files",
    "inspect": "inspect",
    "transforms": "transforms",
}

__all__ = sorted(
    [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, types.ModuleType)]
    + [*_LAZY, "__version__"]
)


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'fastrecord' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    found = importlib.import_module(f"fastrecord.{module}")
    value = found if module == name else getattr(found, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
