"""`FastRecordDataset`: a map-style data set for torch, in place of torchvision's ImageFolder."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from fastrecord._core import Reader
from fastrecord.checks import choice
from fastrecord.dataset.decoding import Decoding
from fastrecord.dataset.rows import All
from fastrecord.dataset.samples import SampleReader
from fastrecord.dataset.selection import MISSING, Selection, check_selection
from fastrecord.dataset.shards import Paths, Shards, normalized, normalized_one
from fastrecord.look.notebook import Outline, class_facts, notebook_html, spread
from fastrecord.schema.classes import check_names
from fastrecord.schema.roles import KEY, find_image, find_label, has_key, holds_labels
from fastrecord.store.address import Url

if TYPE_CHECKING:
    from fastrecord.dataset.mixture import Mixture
    from fastrecord.store.store import Store


class FastRecordDataset(Dataset[Any]):
    """Serve packed images and labels by index, as torchvision's `ImageFolder` does.

    A sample is `(image, label)`: a PIL image in RGB, with the same pixels as ImageFolder's, and an
    int. The label is a float or a tensor if the files' labels are floats or arrays. Without a label
    field, a sample is the image alone. A whole batch is requested from the kernel at once. The
    pickle contains paths and snapshots only, so its size does not depend on the number of records.
    The data set is safe to use from several threads, and in forked and spawned workers.

    **Fields mode.** A sample is a dict field -> value with `fields`, after `select_fields`, and for
    files without a field that can hold images. Numbers are Python numbers and arrays are tensors.
    `str`, `bytes` and JSON stay unchanged. `decode` selects the type of images, and the data set's
    classes number the labels. `fastrecord.collate` makes dicts of stacked tensors of the fields'
    own types. Without a `transform` it builds whole batches at once.

    **Views.** `subset`, `filter`, `split`, `select_fields`, and `a + b` return data sets over
    the same open files, with the same settings. They store and pickle how the records were
    selected, not the records. docs/datasets.md has examples.

    Args:
        path: A .frec file, a folder of them, a glob pattern, or a sequence of these; several files
            form one data set. Files of a folder or pattern are sorted; a sequence keeps its order.
            If a folder has a `dataset.json`, the data set is the shards that it names, in its
            order, at the commits it names (docs/manifest.md); a shard is opened when it is read.
            URLs (s3, gs, az, https, file) name such folders, or single files (docs/stores.md).
            The `snapshots` of a data set open its files at those commits, even if they have grown
            since; otherwise files are opened at their newest commits.
        transform: Called with each image (with `bytes` if `decode=None`); in fields mode with each
            sample.
        target_transform: Called with each label.
        decode: "pil" for PIL images in RGB; "native" for uint8 tensors (3, H, W), also in RGB,
            decoded by the core; None for the encoded `bytes`. A `fastrecord.Decoding` is "native"
            with its options, which a `FastRecordLoader` takes from here, and by default leaves kinds
            that the core does not decode to Pillow; "native" refuses them. The core decodes a batch
            on all CPUs, or on one CPU in a DataLoader worker process. The tensors own their memory
            and have the channels_last layout; `.contiguous()` converts it.
        image_field: The field that holds the images; by default "image", else the only image field,
            else the only bytes field.
        label_field: The field that holds the labels; by default "label" if it exists. Integers and
            bools are class numbers. Strings are class names, numbered in sorted order over all
            files unless `classes` or the files' metadata list them. Floats and arrays of one shape
            are used unchanged.
        fields: Names of the fields in a sample, such as `("image", "label", "key")`; this selects
            fields mode. Default: all fields if no field can hold images, else none.
        classes: Class names, position = label. Labels are matched to this list by name, whatever
            numbers the files use. `classes=train.classes` gives a validation set the class numbers
            of the training set.
        verify: When payload CRCs are checked, as in `Reader`. "once": when a payload is first read
            from the mapping, and on each read by a system call (as for decoded images). True: on
            each read. False: never.
        allow_incomplete: Accept unfinished files, incomplete shard sets, and files that together
            hold a record twice. Shards that a manifest names and that are missing are left out, with
            a warning.
        access: "mmap", or "pread" to map nothing.
        store: How URLs are read: options of the object store, and a cache on this machine, such as
            `fastrecord.Store(cache="/nvme/cache", cache_size="500GiB")` (docs/stores.md).

    Attributes:
        transform, target_transform: As given; may be replaced at any time.
        paths: The absolute path of each file.
        root: The path given, or the folder of the first file if a sequence was given; for
            compatibility with ImageFolder.

    Raises:
        FileNotFoundError: nothing is at the path, or a folder or pattern holds no file.
        FastRecordError: a file is incomplete, or differs from its snapshot; shards are missing or
            belong to two sets; a file and another file made from it are opened together.
        CorruptFileError: a file is not a valid .frec file.
        SchemaError: a field is missing, files have different fields, the type of the label field
            cannot hold labels, or classes cannot be matched; with `classes`, a file has a class
            that is not in the list, or there are no labels to number.
        ValueError: an argument has a value that is not allowed, or cannot be combined with
            `fields`.
    """

    def __init__(
        self,
        path: Paths,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decode: str | Decoding | None = "pil",
        *,
        image_field: str | None = None,
        label_field: str | None = None,
        fields: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        verify: bool | Literal["once"] = "once",
        allow_incomplete: bool = False,
        access: str = "mmap",
        store: Store | None = None,
    ) -> None:
        if decode is not None and not isinstance(decode, Decoding):
            choice("decode", decode, ("pil", "native"), ("a fastrecord.Decoding", "None"))
        names = None if classes is None else check_names(classes)
        self.transform = transform
        self.target_transform = target_transform
        self.decode = decode
        self.verify = verify
        shards = Shards.open(path, access, verify, store, allow_incomplete=allow_incomplete)
        readers = shards.readers
        self.paths = shards.paths
        root = path if isinstance(path, (str, os.PathLike)) else os.path.dirname(self.paths[0])
        self.root = str(Url(os.fspath(root)))
        if not allow_incomplete:
            shards.refuse_incomplete()
        selected = None if fields is None else check_selection(fields)
        if fields is None:
            image_field = image_field or find_image(readers[0])
            selected = None if image_field else tuple(readers[0].schema)
        if selected is not None and (image_field or target_transform):
            raise ValueError(
                "image_field and target_transform do not go with fields, because a sample is a dict: name all fields "
                "in fields, and change labels in transform"
            )
        given, label_field = label_field, label_field or find_label(readers[0])
        if selected is not None and given is None and label_field is not None:
            # In fields mode, a selected field called "label" may hold anything.
            label_field = label_field if holds_labels(readers[0].schema[label_field]) else None
        # The shares of its sources, if `mix` has made it.
        self.mixture: Mixture | None = None
        self.selection = Selection.of(shards, All(len(shards)), selected, image_field, label_field, names)
        if self.selection.labels.are_names and label_field in self.selection.fields:
            _ = self.classes  # fails here, not in each worker process
        self._targets: NDArray[Any] | None = None
        self._pairs: list[tuple[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_targets": None, "_pairs": None}

    def __len__(self) -> int:
        return len(self.selection)

    def rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the rows of indices: the numbers of these records over all files, int64 (N,).

        Row 0 is the first record of the first file. In a view, rows differ from indices.

        Args:
            indices: Any 1-D sequence or array of integers, each in [-len(self), len(self)).

        Raises:
            IndexError: one is out of range.
            TypeError: not a 1-D sequence of integers.
        """
        return self.selection.take(indices)

    def column(self, field: str) -> NDArray[Any]:
        """Return a field's value of every record, (N,); labels have the data set's numbers.

        Args:
            field: A field of numbers, of arrays of at most 64 bytes, or of str. Or the size of
                images, such as "image.width". str values are an array of objects, each read from
                the file. bfloat16 becomes float32.

        Returns:
            The mapped column, read-only, for all records or a slice of one file; else a copy.

        Raises:
            SchemaError: no such field, or it has no column.
            CorruptFileError: a checksum differs.
        """
        return self.selection.column(field)

    def subset(self, indices: slice | ArrayLike) -> Self:
        """Return a view of some records, in the order given.

        Args:
            indices: A slice or range, which takes no memory; a 1-D sequence or array of integers in
                [-len(self), len(self)), stored as int64; or a mask, bool (len(self),).

        Raises:
            IndexError: an index is out of range, or a mask has another length.
            TypeError: none of these.
        """
        return self._of(self.selection.subset(indices))

    def filter(self, field: str, op: str | Callable[[NDArray[Any]], Any] = "", value: Any = MISSING) -> Self:
        """Return a view of the records whose field meets a condition, in order.

        A comparison is evaluated at first use, and again in each process that unpickles the view. A
        callable is evaluated at once, and the view stores 8 bytes for each record found.

        Args:
            field: As for `column`. Labels have this data set's numbers; a class name also works as
                the value.
            op: "==", "!=", "<", "<=", ">", ">=", "in" or "not in"; or a callable that takes the
                column (N,) and returns a mask, bool (N,).
            value: The value to compare with; a collection for "in" and "not in". Not allowed with a
                callable.

        Raises:
            SchemaError: no such field, or its type cannot be compared.
            TypeError, ValueError: the operator is unknown, the value's type does not match the
                field, no class has this name, or a callable did not return a mask.
        """
        return self._of(self.selection.filter(field, op, value))

    def split(self, parts: int | Sequence[float], seed: int = 0, *, stratify: str | None = None) -> list[Self]:
        """Split the records into disjoint parts, which together hold all of them.

        The result is a pure function of the number of records, the parts and the seed: the same on
        every machine and in every process. Parts are in random order and take no memory. With
        `stratify` they keep the order of this data set; they are computed at first use and take 8
        bytes a record.

        Args:
            parts: Fractions whose sum is 1, such as [0.9, 0.1]; numbers of records; or a number of
                equal parts, such as 5 for cross-validation. Sizes are exact; fractions are rounded
                as in torch's `random_split`.
            seed: In [0, 2**64).
            stratify: A field, such as "label". Each part has its share of every value, to within
                less than one record.

        Raises:
            TypeError, ValueError: `parts` is none of these, or the parts do not add up to the
                whole.
            SchemaError: no such field.
        """
        return [self._of(part) for part in self.selection.split(parts, seed, stratify)]

    def __add__(self, other: Dataset[Any]) -> Any:
        return concat(self, other) if isinstance(other, FastRecordDataset) else super().__add__(other)

    def select_fields(self, fields: Sequence[str]) -> Self:
        """Return a view in fields mode: samples are dicts of some fields.

        Args:
            fields: Names, in the order wanted.

        Raises:
            SchemaError: no such field.
            TypeError: not a sequence of names.
            ValueError: a name comes twice, or a transform expects images.
        """
        if self.fields is None and (self.transform or self.target_transform):
            raise ValueError(
                "the data set's transform takes an image, but a sample of selected fields is a dict: set transform to "
                "None, select the fields, and give the view its own transform"
            )
        return self._of(self.selection.with_fields(fields))

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a sample dict; None if a sample is `(image, label)`."""
        return self.selection.fields if self.selection.image_field is None else None

    def _of(self, selection: Selection) -> Self:
        """Return a data set of another selection, with the same settings."""
        made = copy.copy(self)
        made.selection = selection
        if selection.rows is not self.selection.rows:
            made.mixture = None
        return made

    def __getitem__(self, index: int) -> Any:
        """Return one sample.

        Args:
            index: In [-len(self), len(self)).

        Raises:
            IndexError: out of range.
            CorruptFileError: a checksum differs.
            DecodeError: the image format is not supported.
        """
        number = normalized_one(index, len(self))
        return self._samples(self.selection.rows.take(np.array([number])))[0]

    def __getitems__(self, indices: ArrayLike) -> Sequence[Any]:
        """Return the samples of a batch, in the order given; torch's DataLoader calls this.

        In fields mode without a transform the samples are views of stacked tensors, which
        `fastrecord.collate` returns without a copy.

        Args:
            indices: Any 1-D sequence or array of integers, each in [-len(self), len(self)); repeats
                are allowed.

        Raises:
            IndexError: out of range.
            CorruptFileError: a checksum differs.
            DecodeError: the image format is not supported.
        """
        numbers = normalized(indices, len(self))
        rows = self.selection.rows.take(numbers)
        if type(self).__getitem__ is FastRecordDataset.__getitem__:
            return self._samples(rows)
        # Subclasses that override __getitem__, as is common with ImageFolder, expect batches to use
        # it.
        if self.fields is None:
            for shard, _, records in self.selection.shards.split(rows):
                self.readers[shard].prefetch(records, self.image_field)
        return [self[number] for number in numbers.tolist()]

    def _samples(self, rows: NDArray[np.int64]) -> Sequence[Any]:
        """Return the samples of rows.

        They are transformed in order, so that random transforms draw as with ImageFolder.
        """
        stacked = self.fields is not None and self.transform is None
        batch = SampleReader(self.selection, self.decode, self.verify).batch(rows, lazily=not stacked)
        return batch if stacked else [self._transformed(sample) for sample in batch]

    def _transformed(self, sample: dict[str, Any]) -> Any:
        if self.fields is not None:
            return sample if self.transform is None else self.transform(sample)
        image, *rest = sample.values()
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            rest = [self.target_transform(label) for label in rest]
        return (image, *rest) if rest else image

    @property
    def classes(self) -> list[str]:
        """Class names, position = label; empty if there are none."""
        return self.selection.labels.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> NDArray[Any]:
        """All labels, int64 (N,), before `target_transform`; read-only.

        Float labels are float64 (N,). Array labels are (N, *shape) of the field's type, with
        float32 for bfloat16. For one file of int64 labels this is the file's mapped column, not a
        copy. `torch.tensor(ds.targets)` copies it. Do not use `torch.from_numpy`, because torch has
        no read-only tensors.

        Raises:
            AttributeError: the files have no label field.
        """
        if self._targets is None:
            name = self._require_labels()
            labels = self.selection.labels
            targets = labels.of(self.rows(np.arange(len(self)))) if labels.are_arrays else self.column(name)
            targets.flags.writeable = False
            self._targets = targets
        return self._targets

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """The `(key, label)` of every record; ImageFolder has `(path, label)`. Read at first use.

        Raises:
            AttributeError: the files have no label field, or no field "key".
        """
        if self._pairs is None:
            if not has_key(self.selection.shards.readers[0]):
                raise AttributeError(f"{self.paths[0]} has no string field {KEY!r}: its samples have no names")
            self._pairs = list(zip(self.column(KEY), self.targets.tolist(), strict=True))
        return self._pairs

    @property
    def image_field(self) -> str:
        """The field that holds the images.

        Raises:
            AttributeError: in fields mode.
        """
        if self.selection.image_field is None:
            raise AttributeError(
                f"samples are dicts of the fields {', '.join(self.selection.fields)}: none of them is the image"
            )
        return self.selection.image_field

    def _require_labels(self) -> str:
        if self.selection.label_field is None:
            raise AttributeError(
                f"{self.paths[0]} has no field 'label': name the field of the labels with label_field="
            )
        return self.selection.label_field

    def key(self, index: int) -> str:
        """Return a record's key: its path in the packed folder.

        Raises:
            IndexError: out of range.
            SchemaError: the files have no field "key".
        """
        shard, record = self.locate(index)
        return str(self.selection.shards.readers[shard].get(record, KEY))

    @property
    def readers(self) -> Sequence[Reader]:
        """The reader of each file. Do not refresh them: the number of records must not change."""
        return self.selection.shards.readers

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        """Each file's snapshot, ready for JSON: `path`, `file_id`, `commit`, `records`, `bytes`, `footer_crc`."""
        return self.selection.shards.snapshots()

    def locate(self, index: int) -> tuple[int, int]:
        """Return a record's location: its file's position in `paths`, and its number there."""
        return self.selection.locate(index)

    def close(self) -> None:
        """Close the files, also for all views.

        Values already returned stay valid; further reads raise.
        """
        self.selection.shards.close()

    def _repr_html_(self) -> str | None:
        """Show the data set in a notebook: counts, fields and some images; None shows its `repr`."""

        def outline() -> Outline:
            places = [self.locate(index) for index in spread(len(self))]
            facts = [("records", f"{len(self):,}")]
            facts += [("files", f"{len(self.paths):,}")] if len(self.paths) > 1 else []
            facts += [("sample", ", ".join(self.fields))] if self.fields is not None else []
            records = [(self.readers[shard], record) for shard, record in places]
            title = f"{type(self).__name__} of {self.root}"
            return (title, [*facts, *class_facts(self.classes)], self.selection.shards.schema, records)

        return notebook_html(outline)

    def __repr__(self) -> str:
        """Describe the data set in the style of torchvision's."""
        lines = [
            f"Dataset {type(self).__name__}",
            f"    Number of datapoints: {len(self)}",
            f"    Root location: {self.root}",
        ]
        if len(self.paths) > 1:
            lines.append(f"    Number of files: {len(self.paths)}")
        kinds = self.selection.shards.schema
        fields = [name if self.fields is not None else f"{name} ({kinds[name]})" for name in self.selection.fields]
        lines.append(f"    {'Sample' if self.fields is None else 'Fields'}: {', '.join(fields)}")
        if self.classes:
            lines.append(f"    Number of classes: {len(self.classes)}")
        for title, transform in (("Transform", self.transform), ("Target transform", self.target_transform)):
            if transform is not None:
                head = f"    {title}: "
                lines.append(head + repr(transform).replace("\n", "\n" + " " * len(head)))
        return "\n".join(lines)


def concat(first: FastRecordDataset, *others: FastRecordDataset) -> Any:
    """Return the records of several data sets one after the other; `a + b` is `concat(a, b)`.

    The result has the settings of the first. Files that several views share are opened once.
    Classes are matched by name, as for several files: the classes of the first keep their numbers.

    Args:
        first: A data set.
        others: Data sets of the same fields and decoding, without transforms of their own.

    Raises:
        TypeError: an argument is not a FastRecordDataset.
        ValueError: one has other settings.
        SchemaError: files have different fields, or their classes cannot be matched.
    """
    for one in (first, *others):
        if not isinstance(one, FastRecordDataset):
            raise TypeError(f"each argument of concat is a FastRecordDataset, not {type(one).__name__}")
    for other in others:
        for name in ("fields", "image_field", "label_field", "decode", "verify", "transform", "target_transform"):
            ours, theirs = (
                getattr(one.selection if name == "label_field" else one, name, None) for one in (first, other)
            )
            if ours is not theirs and ours != theirs and (theirs is not None or "transform" not in name):
                raise ValueError(
                    f"the data sets differ in {name}: {ours!r} and {theirs!r}; their concatenation has one {name}"
                )
    made = first._of(first.selection.joined([other.selection for other in others]))
    made.paths = made.selection.shards.paths
    return made
