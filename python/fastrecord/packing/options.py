"""`Input`, `Fields` and `Output`: what a pack reads, which fields it stores, and what it writes.

Each checks its values when it is made. The command line takes its options from these classes: their
names, types, defaults and docstrings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from fastrecord.checks import choice, integer
from fastrecord.schema import FieldType
from fastrecord.store import is_url
from fastrecord.store.store import Store

PathLike: TypeAlias = str | os.PathLike[str]
Mode = Literal["create", "append", "resume", "overwrite"]
BadFiles = Literal["stop", "skip"]
Codec = Literal["lz4", "zstd", "auto"]


@dataclass(frozen=True, slots=True)
class Input:
    """A source of records, and how it is read.

    Attributes:
        source: A folder, a file, a pattern such as "train-{000..146}.tar", several of these, or a
            data set. Or URLs of stores, of the web or of the Hugging Face hub.
        format: Format of the source: arrayrecord, beton, cifar, folder, hdf5, huggingface, idx,
            litdata, lmdb, mds, numpy, pairs, parquet, recordio, tfrecord, torch, webdataset, zarr,
            or one of another package. auto looks at the source.
        settings: Settings of the format, by name; docs/formats.md lists them.
        store: Options of the object store.

    Raises:
        ValueError: there is no source.
    """

    source: Any
    format: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    store: Store | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, (list, tuple)) and not self.source:
            raise ValueError("source is empty: give a path")

    @property
    def paths(self) -> list[str] | None:
        """The paths; None if the source is a data set."""
        if isinstance(self.source, (str, os.PathLike)):
            return [os.fspath(self.source)]
        if isinstance(self.source, (list, tuple)) and all(isinstance(each, (str, os.PathLike)) for each in self.source):
            return [os.fspath(each) for each in self.source]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a source are stored, and as what; by default all, as they are.

    Attributes:
        mapping: Store only these fields of the source, under these names: name in the file -> name
            in the source, such as {"image": "jpg", "label": "cls"}. Or names alone: the fields to
            keep, or the names of the values of tuples.
        types: Store a field as another type: name in the file -> `FieldType`, or text such as int32,
            string or array(float32, (3, None)).
        fill: Store a value instead of a null: name in the file -> value, such as label=-1. By
            default a record with a null is a bad one.
        compression: Compress arrays, bytes, json and lists. auto measures the first ones and may
            choose none.
        classes_from: Give classes the label numbers that they have in this .frec file. A class that
            it does not name is an error.

    Raises:
        TypeError, ValueError: a value is not allowed.
    """

    mapping: Mapping[str, str] | Sequence[str] | None = None
    types: Mapping[str, FieldType | str] = field(default_factory=dict)
    fill: Mapping[str, Any] = field(default_factory=dict)
    compression: Codec | None = None
    classes_from: PathLike | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mapping, str):
            raise TypeError(f"mapping is a dict, or a sequence of names, not a str: {self.mapping!r}")
        names = None if self.mapping is None else list(self.mapping)
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ValueError(f"mapping is names that differ, at least one: {names}")
        if self.compression is not None:
            choice("compression", self.compression, get_args(Codec), ["None"])

    @property
    def names(self) -> dict[str, str] | None:
        """Name in the file -> name in the source; None: all."""
        if self.mapping is None or isinstance(self.mapping, Mapping):
            return None if self.mapping is None else dict(self.mapping)
        return {name: name for name in self.mapping}

    @property
    def parsed(self) -> dict[str, FieldType]:
        """The types."""
        return {name: FieldType.of(kind) for name, kind in self.types.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a pack writes, and what it does with what is there; by default one new file.

    Attributes:
        mode: "create": the output must not exist. "append": add records; classes keep their numbers,
            and new ones get the next. "resume": continue a killed or interrupted pack, or append, of
            the same input; begin if there is nothing yet. "overwrite": replace the output, or all its
            shards, once packing has succeeded.
        shards: Write so many files, OUT-00000-of-0000N.frec and so on, each a run of the input. They
            are one data set, which dataset.json names beside them (docs/manifest.md).
        shard_size: Write as many files as needed for none to exceed so many bytes. Looks up the size
            of each record first. Not if images are changed or values compressed.
        commit_bytes: Commit durably each time so many bytes have been written.
        staging: If the output is a URL: the folder in which shards are made before they are sent, at
            most three at a time. By default where temporary files belong.
        store: Options of the object store.

    Raises:
        TypeError, ValueError: a value is not allowed, or two contradict each other.
    """

    mode: Mode = "create"
    shards: int | None = None
    shard_size: int | None = None
    commit_bytes: int = 1 << 30
    staging: PathLike | None = None
    store: Store | None = None

    def __post_init__(self) -> None:
        choice("mode", self.mode, get_args(Mode))
        for name in ("shards", "shard_size", "commit_bytes"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 1)
        if self.shards is not None and self.shard_size is not None:
            raise ValueError("give shards or shard_size, not both")

    @property
    def sharded(self) -> bool:
        """Whether it is divided into several files."""
        return self.shards is not None or self.shard_size is not None

    def check(self, out: str) -> None:
        """Refuse a place that does not fit.

        Raises:
            ValueError: the message names the option.
        """
        if self.staging is not None and not is_url(out):
            raise ValueError("staging is for an output in an object store: leave it out")
        if self.mode == "append" and self.sharded and not is_url(out):
            raise ValueError("append adds records to one file: name it, without shards or shard_size")
