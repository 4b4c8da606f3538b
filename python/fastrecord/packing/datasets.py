"""`open_dataset`: the items of a data set of torch or Hugging Face, or of any iterable, as a source of records."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import BytesIO
from itertools import chain, islice
from typing import Any

import numpy as np

from fastrecord.checks import choice, integer
from fastrecord.errors import Code
from fastrecord.interchange import Rows, Source, SourceField, usual_type
from fastrecord.interchange.files.arrow import ArrowFile, ArrowSource
from fastrecord.interchange.infer import SAMPLE
from fastrecord.interchange.source import ROWS, ROWS_BYTES, value_bytes
from fastrecord.packing.options import Fields, Input

_ITEMS = 64
# A run of slow items is handed over after this time, looked at each time so many are made.
_SECONDS = 0.5
_PIECE = 8
_IMAGES = ("png", "jpeg", "webp")
_QUALITY = 95
_FIRST_NAMES = ("image", "label")


_SETTINGS = ("num_workers", "images", "quality")


def open_dataset(given: Input, fields: Fields, *, exact: bool, skip: bool) -> Source:
    """Open a data set, of torch or Hugging Face or any iterable, as a source.

    A Hugging Face data set without a format or transform comes in as the folder that it was saved to
    does: with the same names, types and keys.

    Args:
        given: The data set, and as settings `num_workers`, processes that make the items, as of
            `torch.utils.data.DataLoader` (0: this one; the order stays, and an iterable data set must
            divide its items by `torch.utils.data.get_worker_info()` itself); `images`, how images of
            Pillow are encoded, "png" (without loss), "jpeg" or "webp"; `quality` of jpeg or webp, 95.
        fields: The fields to store; as names, those of the values of a tuple, ("image", "label") by
            default if the first value is an image or an array and the second an int, else field0,
            field1 ....
        exact: Whether its length must be right.
        skip: Whether items are left out that do not fit.

    Raises:
        TypeError: items or values are of types that have no field type, or it is not iterable.
        ValueError: a setting is unknown or not allowed.
        FastRecordError: an item has other fields than the first ones.
    """
    unknown = given.settings.keys() - {*_SETTINGS}
    if unknown:
        raise ValueError(f"a data set has no setting {min(unknown)!r}: its settings are {', '.join(_SETTINGS)}")
    workers = integer("num_workers", given.settings.get("num_workers", 0), 0)
    images, quality = given.settings.get("images", "png"), given.settings.get("quality")
    choice("images", images, _IMAGES)
    if quality is not None:
        integer("quality", quality, 1, 101)
        if images == "png":
            raise ValueError("quality belongs to jpeg and webp: png is without loss")
    dataset = given.source
    _check_dataset(dataset, exact=exact)
    if _is_table(dataset):
        source = ArrowSource([_TableFile(dataset)])
        source.live = True
        return source
    names = None if fields.mapping is None else list((fields.names or {}).values())
    return _DatasetSource(dataset, names, workers, _Encode(images, quality or _QUALITY), exact=exact, skip=skip)


def _is_table(dataset: Any) -> bool:
    """Return whether it is a data set of Hugging Face that gives what it stores."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(dataset, datasets.Dataset) and dataset.format["type"] is None


class _TableFile(ArrowFile):
    """The table of a data set of Hugging Face, whose files are brought in."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.rows = dataset, len(dataset)
        self.path = type(dataset).__name__
        self.schema = dataset.features.arrow_schema

    def batches(self, start: int, names: Sequence[str]) -> Iterator[Any]:
        """See `ArrowFile.batches`."""
        embed = import_module("datasets.table").embed_table_storage
        view = self.dataset.select_columns(list(names)).with_format("arrow")
        rows = SAMPLE
        while start < self.rows:
            table = embed(view[start : start + rows]).combine_chunks()
            start += table.num_rows
            rows = int(min(max(ROWS_BYTES * table.num_rows // max(table.nbytes, 1), 1), ROWS))
            yield from table.to_batches()


class _DatasetSource(Source):
    """The items of a data set as records."""

    live = True

    def __init__(
        self, dataset: Any, names: list[str] | None, workers: int, encode: _Encode, *, exact: bool, skip: bool
    ) -> None:
        self.dataset, classes = _stored_images(dataset)
        self.workers, self.encode = workers, encode
        self.fills: dict[str, Any] = {}
        self.is_map = _is_map(dataset)
        # The length of an iterable data set may be a guess, which only shards rely on.
        self.length = self.count() if self.is_map or exact else None
        self.paths = ()
        items = self._items(0)
        sample: list[Any] = []
        try:
            sample.extend(islice(items, SAMPLE))
        except Exception as err:
            err.add_note(f"{self.place(len(sample))} raised this; nothing is stored, as the first items give the types")
            raise
        self.begun: Iterator[Any] | None = chain(sample, items)
        if not sample:
            raise Code.SOURCE.error(f"{self._name}: the data set has no items")
        self.positional = not _is_named(sample[0])
        self.every = names is None
        self.names = names if self.positional and names is not None else _names_of(sample[0])
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise TypeError(
                f"{self.place(0)}: an item is a dict with names that are str, or has values: {sample[0]!r:.80}"
            )
        if self.positional and len(self.names) != (width := len(_names_of(sample[0]))):
            raise ValueError(f"fields names {', '.join(self.names)}, but {self.place(0)} has {width} values")
        columns, bad = self._columns(sample, self.names, 0)
        if bad and (not skip or len(bad) == len(sample)):
            number, reason = min(bad.items())
            raise Code.MIXED_FIELDS.error(f"{self.place(number)}: {reason}")
        self.fields = [_field(name, values, self._name) for name, values in columns.items()]
        label = next((field for field in self.fields if field.name == "label"), None)
        self.classes = classes if label is not None and label.type.name == "int64" else None
        self.item_bytes = sum(value_bytes(value) for values in columns.values() for value in values) / len(sample)

    @property
    def _name(self) -> str:
        return type(self.dataset).__name__

    def count(self) -> int | None:
        return len(self.dataset) if hasattr(self.dataset, "__len__") else None

    def fill(self, name: str, value: Any) -> bool:
        self.fills[name] = value
        return True

    def place(self, number: int) -> str:
        return f"{self._name}: item {number:,}"

    def identity(self) -> list[Any]:
        return [self._name, self.count()]

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        if start == 0 and self.begun is not None:
            items, self.begun = self.begun, None
        else:
            items = self._items(start)
        while True:
            chunk: list[Any] = []
            error: Exception | None = None
            try:
                # An error of the data set leaves the items before it in the list.
                wanted, until = min(max(int(ROWS_BYTES / (self.item_bytes + 1)), 1), ROWS), time.monotonic() + _SECONDS
                while len(chunk) < wanted and time.monotonic() < until:
                    before = len(chunk)
                    chunk.extend(islice(items, min(_PIECE, wanted - before)))
                    if len(chunk) == before:
                        break
                if start + len(chunk) == self.length:
                    chunk.extend(islice(items, 1))  # which must not be there
            except Exception as err:  # noqa: BLE001 - raised below, after the items before it
                error = err
            if error is None:
                self._check_length(start + len(chunk), ended=not chunk)
            if chunk:
                columns, bad = self._columns(chunk, names, start)
                yield Rows(start, len(chunk), columns, bad)
                start += len(chunk)
            if error is not None:
                error.add_note(f"{self.place(start)} raised this")
                raise error
            if not chunk:
                return

    def _check_length(self, number: int, *, ended: bool) -> None:
        if self.length is not None and (number > self.length or (ended and number < self.length)):
            found = "more items come" if number > self.length else f"it ends after {number:,} items"
            way = "a StopIteration in its __getitem__ does that" if self.is_map else "correct it, or leave shards out"
            raise Code.SOURCE.error(f"{self._name}: its length is {self.length:,}, but {found}: {way}")

    def _items(self, start: int) -> Iterator[Any]:
        """Yield the items from number `start` on, with images as bytes and tensors as arrays."""
        if self.workers > 0:
            from torch.utils.data import DataLoader, IterableDataset

            if not self.is_map and not isinstance(self.dataset, IterableDataset):
                raise TypeError(f"num_workers is for data sets of torch, not for {self._name}: leave it out")
            batches = DataLoader(
                self.dataset,
                batch_size=_ITEMS,
                sampler=range(start, len(self.dataset)) if self.is_map else None,
                num_workers=self.workers,
                collate_fn=partial(_encode_items, self.encode),
            )
            items = _until_the_end(batches)
            return items if self.is_map else islice(items, start, None)
        if self.is_map:
            return (self.dataset[i] for i in range(start, len(self.dataset)))
        return islice(iter(self.dataset), start, None)

    def _columns(
        self, items: Sequence[Any], names: Sequence[str], start: int
    ) -> tuple[dict[str, Sequence[Any]], dict[int, str]]:
        """Return the values of some items by field, and what is wrong with the others."""
        order = [self.names.index(name) for name in names] if self.positional else []
        rows: list[Sequence[Any]] = []
        bad: dict[int, str] = {}
        for number, item in enumerate(items, start):
            found = self._row(item, order) if self.positional else self._named_row(item, names)
            if isinstance(found, str):
                bad[number] = found
            else:
                rows.append(found)
        by_field = zip(*rows, strict=True) if rows else [[] for _ in names]
        columns: dict[str, Sequence[Any]] = {
            name: self.encode.column(values if name not in self.fills else self._filled(name, values))
            for name, values in zip(names, by_field, strict=True)
        }
        unfit = {
            at: f"field {name!r}: {value.reason}"
            for name, values in columns.items()
            if isinstance(values, list) and _Unfit in set(map(type, values))
            for at, value in enumerate(values)
            if isinstance(value, _Unfit)
        }
        if unfit:
            numbers = [number for number in range(start, start + len(items)) if number not in bad]
            bad |= {numbers[at]: reason for at, reason in unfit.items()}
            columns = {name: [v for at, v in enumerate(values) if at not in unfit] for name, values in columns.items()}
        return columns, bad

    def _row(self, item: Any, order: list[int]) -> Sequence[Any] | str:
        """Return values of a tuple, or what is wrong with it."""
        width, several = len(self.names), isinstance(item, (tuple, list))
        values = item if several else (item,)
        if len(values) != width or (width > 1 and not several):
            what = f"{len(item)} values" if several else type(item).__name__
            return f"it has {what}, where the first item has {width}: {', '.join(self.names)}"
        return values if order == list(range(width)) else [values[i] for i in order]

    def _named_row(self, item: Any, names: Sequence[str]) -> Sequence[Any] | str:
        """Return the values of an item by name, or what it lacks."""
        if not isinstance(item, Mapping):
            try:
                return [getattr(item, name) for name in names]
            except AttributeError:
                return f"it is {type(item).__name__}, without the names of the first item: {', '.join(names)}"
        if self.every and len(item) > len(self.names):
            return f"it has {next(name for name in item if name not in self.names)!r}, which the first item lacks"
        try:
            return [item[name] for name in names]
        except KeyError as err:
            return f"it has no {err.args[0]!r}, which the first item has"

    def _filled(self, name: str, values: Sequence[Any]) -> list[Any]:
        return [self.fills[name] if value is None else value for value in values]


def _until_the_end(loader: Any) -> Iterator[Any]:
    """Yield the items of a DataLoader's batches, and end its workers with them, also after an error."""
    batches = iter(loader)
    try:
        yield from chain.from_iterable(batches)
    finally:
        # An error of a worker leaves the iterator in a cycle with its traceback. What collects that
        # later breaks the workers' queues first, and then waits 5 s for each of them.
        getattr(batches, "_shutdown_workers", lambda: None)()


class _Encode:
    """Encodes images of Pillow, and makes arrays of tensors; leaves other values as they are.

    A value that fails becomes an `_Unfit`: an exception in a worker would end its whole batch.
    """

    def __init__(self, images: str, quality: int) -> None:
        self.options = {"format": images} | ({} if images == "png" else {"quality": quality})

    def column(self, values: Sequence[Any]) -> Sequence[Any]:
        """Encode the values of a field. Tensors that are alike become one array, in half the time."""
        torch = sys.modules.get("torch")
        if torch is not None and values and type(values[0]) is torch.Tensor and values[0].dtype != torch.bfloat16:
            kinds = {(type(value), getattr(value, "dtype", None)) for value in values}
            # Tensors of several shapes or devices, and sparse ones, are encoded one by one.
            with suppress(RuntimeError, TypeError, NotImplementedError):
                if len(kinds) == 1:
                    return self._encoded(torch.stack(tuple(values)))  # type: ignore[no-any-return]
        return [self(value) for value in values]

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        try:
            return self._encoded(value)
        except (OSError, ValueError, TypeError, RuntimeError, SyntaxError) as err:
            # SyntaxError: Pillow's word for a broken PNG.
            return _Unfit(f"{kind.__name__}: {err}")

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, np.str_ | np.bytes_):
            return value.item()
        if isinstance(value, memoryview | bytearray):
            return bytes(value)
        if hasattr(value, "__torch_function__"):
            # torch's own arrays are as fast to read, but each one that a worker sends takes a file
            # descriptor.
            value = value.detach().cpu().resolve_conj().resolve_neg()
            return value if str(value.dtype) == "torch.bfloat16" else value.numpy()
        if type(value) is dict and value.keys() == {"bytes", "path"}:
            return _stored_image(value)
        pillow = sys.modules.get("PIL.Image")
        if pillow is not None and isinstance(value, pillow.Image):
            buffer = BytesIO()
            value.save(buffer, **self.options)
            return buffer.getvalue()
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class _Unfit:
    """Stands for a value that cannot be encoded."""

    reason: str


_AS_THEY_ARE = {int, float, str, bytes, bool, np.ndarray}


def _encode_items(encode: _Encode, items: list[Any]) -> list[Any]:
    """Encode the values of a batch of items, in the worker that has made them."""
    return [_encoded_item(encode, item) for item in items]


def _encoded_item(encode: _Encode, item: Any) -> Any:
    if _is_named(item):
        values = item if isinstance(item, Mapping) else {name: getattr(item, name) for name in _names_of(item)}
        return {name: encode(value) for name, value in values.items()}
    return list(map(encode, item)) if isinstance(item, (tuple, list)) else encode(item)


def _check_dataset(dataset: Any, *, exact: bool) -> None:
    """Refuse what is no data set, or has items in another way than by iterating."""
    kind = type(dataset).__name__
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise TypeError(f"dataset is a {kind}, not a data set: leave out format")
    for method, way in (("itertuples", 'to_dict("records")'), ("to_pylist", "to_pylist()"), ("to_dicts", "to_dicts()")):
        if hasattr(dataset, method) and hasattr(dataset, "columns"):
            raise TypeError(f"dataset is a {kind}, whose items are columns: pack its rows, dataset.{way}")
    is_iterable = hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    if not is_iterable or getattr(dataset, "shape", None) == ():
        raise TypeError(f"dataset is a {kind}, which has no items: give a data set, or an iterable of items")
    if exact and not hasattr(dataset, "__len__"):
        raise ValueError(f"shards need a data set with a length, and {kind} has none: leave shards out")


def _is_map(dataset: Any) -> bool:
    """Whether items are taken by number; torch's iterable data sets inherit `__getitem__` too."""
    torch = sys.modules.get("torch.utils.data")
    iterable = torch is not None and isinstance(dataset, torch.IterableDataset)
    return not iterable and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _stored_images(dataset: Any) -> tuple[Any, list[str] | None]:
    """Return a data set with the bytes of its images where it holds them, and its class names."""
    if isinstance(dataset, Mapping):
        raise TypeError(
            f"dataset is a mapping with {', '.join(map(str, list(dataset)[:5]))}: pack one of them, dataset[NAME]"
        )
    if type(dataset).__module__.partition(".")[0] == "datasets" and getattr(dataset, "features", None):
        library = sys.modules["datasets"]
        classes = None
        for name, feature in dataset.features.items():
            if isinstance(feature, library.Image):
                dataset = dataset.cast_column(name, library.Image(decode=False))
            elif isinstance(feature, library.ClassLabel) and name == "label":
                classes = list(feature.names)
        return dataset, classes
    inner = dataset
    while not hasattr(inner, "classes") and hasattr(inner, "dataset"):  # torch's Subset
        inner = inner.dataset
    classes = getattr(inner, "classes", None)
    if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
        return dataset, None
    return dataset, list(classes) if len(set(classes)) == len(classes) else None


def _stored_image(value: Mapping[str, Any]) -> Any:
    """Return the bytes of an image of Hugging Face, which it holds or names."""
    if value["bytes"] is not None:
        return value["bytes"]
    if isinstance(value["path"], str):
        with open(value["path"], "rb") as file:
            return file.read()
    return value


def _is_named(item: Any) -> bool:
    """Whether an item names its values: a dict, a named tuple or a dataclass."""
    return isinstance(item, Mapping) or hasattr(item, "_fields") or dataclasses.is_dataclass(item)


def _names_of(item: Any) -> list[str]:
    if isinstance(item, Mapping):
        return list(item)
    if dataclasses.is_dataclass(item):
        return [each.name for each in dataclasses.fields(item)]
    if hasattr(item, "_fields"):
        return list(item._fields)
    values = item if isinstance(item, (tuple, list)) else [item]
    if len(values) == 2 and not isinstance(values[0], (int, float, str)) and _is_integer(values[1]):
        return list(_FIRST_NAMES)
    return [f"field{i}" for i in range(len(values))]


def _is_integer(value: Any) -> bool:
    scalar = getattr(value, "shape", None) == () and not str(value.dtype).rpartition(".")[2].startswith(("f", "b", "c"))
    return isinstance(value, int) or scalar


def _field(name: str, values: Sequence[Any], where: str) -> SourceField:
    try:
        kind = usual_type(values)
    except TypeError as err:
        raise TypeError(f"{where}: field {name!r}: {err}") from err
    if kind is None:
        found = ", ".join(sorted({type(value).__name__ for value in values}))
        raise Code.MIXED_FIELDS.error(
            f"{where}: field {name!r}: no type is known for its first {len(values)} values, of {found}: give the "
            "types by Fields(types=), or make the data set return other values"
        )
    return SourceField(name, kind, "")
