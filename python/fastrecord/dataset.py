"""A map-style data set for torch, in the place of torchvision's ImageFolder."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset, default_collate, get_worker_info

from fastrecord._core import CorruptFileError, DecodeError, FastRecordError, Reader, SchemaError, decode_records
from fastrecord.classes import check_names, map_labels, merge_classes
from fastrecord.fields import KEY, check_fields, find_image, find_label, has_key, key_suffix
from fastrecord.shards import Paths, Shards, find_files

# What Pillow's plugins raise for broken images.
_PIL_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_CHUNK = 4096


class FastRecordDataset(Dataset[Any]):
    """Packed images and labels, record by record, as torchvision's `ImageFolder` gives them.

    A sample is `(image, label)`: a PIL image in RGB, with the same pixels as ImageFolder's, and an int. It is the image
    alone if the files have no label field. The values of `extra_fields` follow behind. The kernel is asked for a whole
    batch at once. Pickles as paths and snapshots, whatever the number of records; safe to use from several threads, in
    forked and in spawned workers.

    Args:
        path: A .frec file, a folder of them, a glob pattern, or a sequence of these; several files are one data set, in
            sorted order within a folder or a pattern, else as given.
        transform: Called with each image (with `bytes` if `decode=None`).
        target_transform: Called with each label.
        decode: "pil" for PIL images in RGB; "native" for uint8 tensors (3, H, W), also in RGB, that the core decodes, a
            batch on all CPUs (in a DataLoader's worker process on one); None for the encoded `bytes`. The tensors own
            their memory, which lies in channels_last order; `.contiguous()` makes the other one.
        image_field: The field that holds the images; by default "image", else the only image field, else the only
            bytes field.
        label_field: The field that holds the labels, int64 or float64; by default "label" if there is such a one.
        extra_fields: Names of fields whose values follow in each sample, such as `("key",)`; images and bytes come as
            `bytes`.
        classes: Class names, position = label: labels are numbered by this list, by name, whatever the files' own
            numbers are. `classes=train.classes` gives a validation set the numbers of the training set.
        verify: Check the CRC of every payload that is read.
        allow_incomplete: Accept files whose packing has not been finished.
        access: "mmap", or "pread" to map nothing.

    Attributes:
        transform, target_transform: As given; may be replaced at any time.
        paths: The absolute path of each file.
        root: The path given, or the folder of the first file if a sequence was given; as ImageFolder has it.

    Raises:
        FileNotFoundError: nothing is at the path, or a folder or pattern holds no file.
        FastRecordError: a file is incomplete. CorruptFileError: a file is no sound .frec file.
        SchemaError: a field is missing, files have different fields, or their classes can not be matched; with
            `classes`, a file names a class that is not among them, or there are no int64 labels to number.
        ValueError: an argument has a value that is not allowed.
    """

    def __init__(
        self,
        path: Paths,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decode: str | None = "pil",
        *,
        image_field: str | None = None,
        label_field: str | None = None,
        extra_fields: Sequence[str] = (),
        classes: Sequence[str] | None = None,
        verify: bool = True,
        allow_incomplete: bool = False,
        access: str = "mmap",
    ) -> None:
        if decode not in ("pil", "native", None):
            raise ValueError(
                f"decode={decode!r} is not allowed: 'pil' gives PIL images, 'native' gives uint8 tensors, None "
                "gives the encoded bytes"
            )
        if isinstance(extra_fields, str):
            raise TypeError(f"extra_fields is a sequence of names: write ({extra_fields!r},)")
        self._given_classes = None if classes is None else check_names(classes)
        self.transform = transform
        self.target_transform = target_transform
        self.decode = decode
        self.verify = verify
        self.paths = find_files(path)
        self.root = os.fspath(path) if isinstance(path, (str, os.PathLike)) else os.path.dirname(self.paths[0])
        readers = [Reader(file, access) for file in self.paths]
        for reader in readers:
            if not (reader.complete or allow_incomplete):
                raise FastRecordError(
                    f"{reader.path}: incomplete: its packing was cut short after {len(reader)} records; finish it with "
                    "`fastrecord pack --resume`, or pass allow_incomplete=True"
                )
        self._image_field = image_field or find_image(readers[0])
        self._label_field = label_field or find_label(readers[0])
        self._extra_fields = tuple(extra_fields)
        check_fields(readers, self._image_field, self._label_field, self._extra_fields)
        self._shards = Shards(readers)
        self._classes: list[str] | None
        self._classes, tables = merge_classes(readers, self._given_classes)
        numbered = self._label_field is not None and readers[0].schema[self._label_field].name == "int64"
        if classes is not None and not numbered:
            raise SchemaError(f"{readers[0].path}: classes= numbers int64 labels, and the file has no such field")
        mapped = numbered and any(table is not None for table in tables)
        # None in the usual case, so that a pickled data set stays small.
        self._tables = tables if mapped else None
        self._targets: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_targets": None, "_classes": None}

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Any:
        """Return one sample.

        Args:
            index: In [-len(self), len(self)).

        Raises:
            IndexError: out of range. CorruptFileError: a checksum differs. DecodeError: not an image that is known.
        """
        shard, record = self._shards.locate(index)
        records = np.array([record])
        return self._sample(shard, record, self._label_list(shard, records)[0], self._tensors(shard, records)[0])

    def __getitems__(self, indices: ArrayLike) -> list[Any]:
        """Return the samples of a whole batch, in the order given; torch's DataLoader calls this.

        Args:
            indices: Any 1-D sequence or array of integers, each in [-len(self), len(self)); repeats are allowed.

        Raises:
            IndexError: out of range. CorruptFileError: a checksum differs. DecodeError: not an image that is known.
        """
        rows = self._shards.rows(indices)
        parts = list(self._shards.split(rows))
        # The kernel reads the whole batch while its first images are decoded.
        for shard, _, records in parts:
            self._shards.readers[shard].prefetch(records, self._image_field)
        if type(self).__getitem__ is not FastRecordDataset.__getitem__:
            # A subclass that changes __getitem__, as many do with ImageFolder, means batches too.
            return [self[row] for row in rows.tolist()]
        sources: list[tuple[int, int, Any, Any]] = [(0, 0, None, None)] * len(rows)
        for shard, positions, records in parts:
            values = (records.tolist(), self._label_list(shard, records), self._tensors(shard, records))
            for position, record, label, image in zip(positions.tolist(), *values, strict=True):
                sources[position] = (shard, record, label, image)
        # In the order asked for: random transforms then draw the same numbers as with ImageFolder.
        return [self._sample(*source) for source in sources]

    def rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return indices as numbers in [0, len(self)), int64 (N,).

        Raises:
            IndexError: one is out of range. TypeError: not a 1-D sequence of integers.
        """
        return self._shards.rows(indices)

    def values(self, rows: NDArray[np.int64], fields: Sequence[str]) -> list[Any]:
        """Return the values of fields of records: numpy arrays (N,) of numbers, lists of `str`, `bytes` or None.

        Args:
            rows: Numbers in [0, len(self)), int64 (N,).
            fields: Names.

        Raises:
            KeyError: no such field. CorruptFileError: a checksum differs.
        """
        schema = self._shards.readers[0].schema
        kinds = {name: schema[name].name for name in fields}
        found: dict[str, Any] = {
            name: np.empty(len(rows), kind) if kind in ("int64", "float64") else [None] * len(rows)
            for name, kind in kinds.items()
        }
        for shard, positions, records in self._shards.split(rows):
            batch = self._shards.readers[shard].read_batch(records, list(fields), verify=self.verify)
            for name, values in found.items():
                if isinstance(values, np.ndarray):
                    values[positions] = batch[name]
                    continue
                for position, value in zip(positions.tolist(), batch[name], strict=True):
                    values[position] = bytes(value) if isinstance(value, memoryview) else value
        return list(found.values())

    def labels(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels of some records, int64 (N,) (float64 if the label field is), before `target_transform`.

        Only these records' labels are read.

        Args:
            rows: Record numbers in [0, len(self)), int64 (N,); repeats are allowed.

        Raises:
            AttributeError: the files have no label field. IndexError: a number is out of range.
            SchemaError: a label has no class.
        """
        name = self._require_labels()
        labels = np.empty(len(rows), self._shards.readers[0].schema[name].name)
        for shard, positions, records in self._shards.split(self._shards.rows(rows)):
            labels[positions] = self._stored_labels(shard, records, name)
        return labels

    def _stored_labels(self, shard: int, records: NDArray[np.int64], name: str) -> NDArray[Any]:
        reader = self._shards.readers[shard]
        labels: NDArray[Any] = reader.read_batch(records, [name])[name]
        return map_labels(labels, self._tables[shard], reader.path) if self._tables else labels

    def _label_list(self, shard: int, records: NDArray[np.int64]) -> list[Any]:
        if self._label_field is None:
            return [None] * len(records)
        return list(self._stored_labels(shard, records, self._label_field).tolist())

    def _tensors(self, shard: int, records: NDArray[np.int64]) -> Sequence[torch.Tensor | None]:
        """Return the decoded images of records of one file if the core decodes them, else a None for each."""
        if self.decode != "native":
            return [None] * len(records)
        reader, field = self._shards.readers[shard], self._image_field
        threads = None if get_worker_info() is None else 1  # the other CPUs are the other workers'
        try:
            images = decode_records(reader, records, field, verify=self.verify, threads=threads)
        except FastRecordError as error:
            if len(records) > 1:
                # Again, one by one, so that the first that fails is reported with its key.
                return [self._tensors(shard, records[i : i + 1])[0] for i in range(len(records))]
            kind = CorruptFileError if isinstance(error, CorruptFileError) else DecodeError
            raise kind(f"{error}{key_suffix(reader, int(records[0]))}") from None
        return [torch.from_numpy(image).permute(2, 0, 1) for image in images]

    def _sample(self, shard: int, record: int, label: Any, image: torch.Tensor | None) -> Any:
        reader = self._shards.readers[shard]
        names = self._extra_fields if image is not None else (self._image_field, *self._extra_fields)
        try:
            # One by one, each right before it is decoded: its bytes stay in the CPU's cache after the CRC.
            extra = [reader.get(record, name, verify=self.verify) for name in names]
        except CorruptFileError as error:
            raise CorruptFileError(f"{error}{key_suffix(reader, record)}") from None
        sample: Any = image
        if image is None:
            payload = extra.pop(0)
            if payload is None:
                raise DecodeError(f"{self._place(reader, record)}: the record has no image")
            sample = bytes(payload) if self.decode is None else self._decode(payload, reader, record)
        if self.transform is not None:
            sample = self.transform(sample)
        parts = [sample]
        if self._label_field is not None:
            parts.append(label if self.target_transform is None else self.target_transform(label))
        # Views of the mapping do not pickle, and torch's workers send samples by pickle.
        parts += [bytes(value) if isinstance(value, memoryview) else value for value in extra]
        return tuple(parts) if len(parts) > 1 else sample

    def _decode(self, payload: memoryview, reader: Reader, record: int) -> Image.Image:
        try:
            # As ImageFolder's loader does it: open, then convert, which loads.
            with Image.open(io.BytesIO(payload)) as image:
                return image.convert("RGB")
        except UnidentifiedImageError:
            reason = f"no known image type: {len(payload)} bytes that begin with {bytes(payload[:8])!r}"
        except _PIL_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
        raise DecodeError(f"{self._place(reader, record)}: {reason}")

    def _place(self, reader: Reader, record: int) -> str:
        return f"{reader.path}: record {record}{key_suffix(reader, record)}, field {self._image_field}"

    @property
    def classes(self) -> list[str]:
        """Class names, position = label; empty if the files name none."""
        if self._classes is None:
            self._classes, _ = merge_classes(self._shards.readers, self._given_classes)
        return self._classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> NDArray[Any]:
        """All labels, int64 (N,) (float64 if the label field is), before `target_transform`; read-only.

        For one file this is the file's own mapped column, not a copy. `torch.tensor(ds.targets)` copies it; do not wrap
        it by `torch.from_numpy`, as torch has no read-only tensors.

        Raises:
            AttributeError: the files have no label field.
        """
        if self._targets is None:
            name = self._require_labels()
            columns = [reader.column(name) for reader in self._shards.readers]
            if self._tables:
                readers = self._shards.readers
                columns = [
                    map_labels(column, table, reader.path)
                    for column, table, reader in zip(columns, self._tables, readers, strict=True)
                ]
            targets = columns[0] if len(columns) == 1 else np.concatenate(columns)
            targets.flags.writeable = False
            self._targets = targets
        return self._targets

    @property
    def samples(self) -> Samples:
        """A sequence of `(key, label)`, read from the files when asked for; ImageFolder has a list of `(path, label)`.

        Raises:
            AttributeError: the files have no label field, or no field "key".
        """
        self._require_labels()
        if not has_key(self._shards.readers[0]):
            raise AttributeError(f"{self.paths[0]} has no string field {KEY!r}: its samples have no names")
        return Samples(self)

    @property
    def imgs(self) -> Samples:
        """The same as `samples`, as ImageFolder has it."""
        return self.samples

    @property
    def image_field(self) -> str:
        """The field that holds the images."""
        return self._image_field

    @property
    def has_labels(self) -> bool:
        """Whether samples have a label."""
        return self._label_field is not None

    @property
    def extra_fields(self) -> tuple[str, ...]:
        """Names of the fields whose values follow in each sample."""
        return self._extra_fields

    def _require_labels(self) -> str:
        if self._label_field is None:
            raise AttributeError(
                f"{self.paths[0]} has no field 'label'; name the field that holds labels with label_field="
            )
        return self._label_field

    def key(self, index: int) -> str:
        """Return a record's key, which is its path in the folder that was packed.

        Raises:
            IndexError: out of range. SchemaError: the files have no field "key".
        """
        shard, record = self._shards.locate(index)
        return str(self._shards.readers[shard].get(record, KEY))

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The reader of each file. Do not refresh them: the data set keeps the number of records it began with."""
        return self._shards.readers

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        """What of each file is read, ready for JSON: `path`, `file_id`, `commit`, `records` and `bytes`."""
        return self._shards.snapshots()

    def locate(self, index: int) -> tuple[int, int]:
        """Return where a record lies: its file's position in `paths` and `readers`, and its number in that file."""
        return self._shards.locate(index)

    def close(self) -> None:
        """Close the files. What was handed out stays valid; reading more raises."""
        self._shards.close()

    def __repr__(self) -> str:
        """Describe the data set in the style of torchvision's."""
        lines = [
            f"Dataset {type(self).__name__}",
            f"    Number of datapoints: {len(self)}",
            f"    Root location: {self.root}",
        ]
        if len(self.paths) > 1:
            lines.append(f"    Number of files: {len(self.paths)}")
        if self.classes:
            lines.append(f"    Number of classes: {len(self.classes)}")
        for title, transform in (("Transform", self.transform), ("Target transform", self.target_transform)):
            if transform is not None:
                head = f"    {title}: "
                lines.append(head + repr(transform).replace("\n", "\n" + " " * len(head)))
        return "\n".join(lines)


class Samples(Sequence[tuple[str, Any]]):
    """The `(key, label)` of every record, read when asked for: nothing is held, however many there are."""

    def __init__(self, dataset: FastRecordDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: int) -> tuple[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, Any] | list[tuple[str, Any]]:
        """Return one pair, or the list of those in a slice."""
        if isinstance(index, slice):
            return self._pairs(np.arange(len(self))[index])
        return self._pairs(self._dataset._shards.rows([index]))[0]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield all pairs, in order."""
        for start in range(0, len(self), _CHUNK):
            yield from self._pairs(np.arange(start, min(start + _CHUNK, len(self))))

    def _pairs(self, rows: NDArray[np.int64]) -> list[tuple[str, Any]]:
        shards = self._dataset._shards
        keys = [""] * len(rows)
        for shard, positions, records in shards.split(rows):
            batch = shards.readers[shard].read_batch(records, [KEY])
            for position, key in zip(positions.tolist(), batch[KEY], strict=True):
                keys[position] = key
        return list(zip(keys, self._dataset.targets[rows].tolist(), strict=True))

    def __repr__(self) -> str:
        return f"<{len(self)} samples (key, label) of {self._dataset.root}>"


class FinishedBatch(list[Any]):
    """A batch whose tensors are already stacked, such as `[images, labels]`; `collate` passes it through."""


def collate(batch: Any) -> Any:
    """Make one batch of samples; for DataLoader's `collate_fn`.

    Works as `torch.utils.data.default_collate`: tensors are stacked (in a worker process straight into shared memory),
    ints become an int64 tensor, `bytes` and `str` stay in a sequence. Batches that `__getitems__` has finished pass
    through.

    Args:
        batch: What `__getitems__` returned, or a list of samples.

    Raises:
        TypeError: the samples hold PIL images.
    """
    if isinstance(batch, FinishedBatch):
        return list(batch)
    first = batch[0]
    for part in first if isinstance(first, (tuple, list)) else (first,):
        if isinstance(part, Image.Image):
            raise TypeError(
                "PIL images can not be stacked to a batch: add a transform that ends in a tensor, such as "
                "transform=torchvision.transforms.ToTensor()"
            )
    return default_collate(batch)
