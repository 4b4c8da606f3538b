"""Pack training records into one append-only file and train from it at hardware speed."""

import typing

# `X as X` marks a public name.
from fastrecord import errors as errors
from fastrecord import logs as _logs  # noqa: F401  the package's handler, and the core's events
from fastrecord._core import Reader as Reader
from fastrecord._core import Writer as Writer
from fastrecord._core import __version__ as __version__
from fastrecord._core import decode_image as decode_image
from fastrecord.errors import FastRecordError as FastRecordError
from fastrecord.lazy import lazily
from fastrecord.schema import FieldType as FieldType
from fastrecord.schema import Schema as Schema
from fastrecord.schema import array as array
from fastrecord.schema import bytes_ as bytes_
from fastrecord.schema import image as image
from fastrecord.schema import json as json
from fastrecord.schema import list_ as list_
from fastrecord.schema import string as string
from fastrecord.schema.compression import Compression as Compression

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
    from fastrecord.packing.options import Fields as Fields
    from fastrecord.packing.options import Input as Input
    from fastrecord.packing.options import Output as Output
    from fastrecord.packing.pack import pack as pack
    from fastrecord.recode import Recode as Recode
    from fastrecord.sampler.batch_sampler import FastRecordBatchSampler as FastRecordBatchSampler
    from fastrecord.sampler.blocks import Blocks as Blocks
    from fastrecord.store.store import Store as Store

_LAZY = {
    "Blocks": "sampler.blocks",
    "Decoding": "dataset.decoding",
    "Delivery": "loader.delivery",
    "FastRecordBatchSampler": "sampler.batch_sampler",
    "FastRecordDataset": "dataset.dataset",
    "FastRecordLoader": "loader.loader",
    "Fields": "packing.options",
    "Input": "packing.options",
    "Output": "packing.options",
    "Recode": "recode",
    "ResumableLoader": "loader.resumable",
    "Skip": "loader.skip",
    "Store": "store.store",
    "collate": "dataset.collate",
    "concat": "dataset.dataset",
    "export": "files.export",
    "files": "",
    "inspect": "",
    "mix": "dataset.mix",
    "pack": "packing.pack",
    "transforms": "",
}

_NOW = """
    Compression FastRecordError FieldType Reader Schema Writer array bytes_ decode_image errors image json
    list_ string
"""
__all__ = sorted([*_NOW.split(), *_LAZY])
__getattr__, __dir__ = lazily(__name__, _LAZY)
