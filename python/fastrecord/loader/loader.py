"""`FastRecordLoader`: training batches of images or arrays, made by the core's threads.

Uses no worker processes and no Python code per record.
"""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Never, Self

import numpy as np
import torch

from fastrecord import _core
from fastrecord.checks import WORD, flag, integer
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.shards import Paths
from fastrecord.errors import Code
from fastrecord.fixed import Fixed
from fastrecord.loader.answers import instead_of_transform, refuse_arguments
from fastrecord.loader.array_batches import ArrayBatches
from fastrecord.loader.batch_source import make_requests
from fastrecord.loader.destination import Destination
from fastrecord.loader.foreign import SixteenBit
from fastrecord.loader.image_batches import ImageBatches
from fastrecord.loader.skip import MAX_SKIPPED, OnError, SkippedRecord, Skipper
from fastrecord.loader.stats import Clock, LoaderStats
from fastrecord.loader.unstacked import ListedFields, Ragged
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.state import Shuffle
from fastrecord.schema.roles import check_fields
from fastrecord.transforms import Geometry, RandomCrop, RandomResizedCrop
from fastrecord.transforms.batch_info import BatchInfo

# More threads or batches than this are a mistake.
_MANY = 1 << 16
# Number of counters of a plan.
_COUNTERS = 7


class FastRecordLoader(Fixed, Iterable[Any]):
    """Iterates over batches of a data set, made by threads of the core.

    It replaces torch's DataLoader and has no worker processes. Threads read, check, decode, crop,
    resize and mirror images, and decompress and stack arrays, directly into the memory of the
    batch. The consumer owns a batch: its memory is reused only after all tensors over it are gone.

    **Images.** Batches are `(images, labels)`: uint8 (B, 3, H, W) in channels_last memory, and
    int64 (B,), or floats or arrays if the labels are. Without labels, batches are the images alone,
    as in the data set. The values of `fields` follow: numbers and arrays of one shape as tensors,
    others as lists.

    **Arrays**, if the data set is in fields mode: batches are dicts of its fields. Scalars and
    arrays of a fixed shape are tensors (B, *shape) of the field's type. `ragged` selects the form
    of arrays of varying shape; other values are lists. Small batches are made many at a time, so a
    batch of 8 costs as much per record as a batch of 128. The batches of one group (about 4 MiB, at
    most 64 batches) share one block of memory, which lives as long as any of them.

    **Order and augmentation** depend only on the sampler, its seed and the epoch, not on threads or
    timing. A crop is a function of (seed, epoch, position in the epoch's order). Epochs advance
    automatically as in FastRecordBatchSampler; `set_epoch` selects one.

    **Resuming.** `state_dict()` counts the batches handed out, not the batches in progress. After
    `load_state_dict` the next iteration continues after them, with the same images. With a
    FastRecordBatchSampler the state is that sampler's state.

    **Changes.** `image`, `images`, `flip` and `batch_transform` may be set, and take effect from
    the next iteration on. Other attributes cannot be set.

    **Processes.** The loader may be forked and pickled (for spawned processes) between iterations;
    an iteration belongs to its process. An iteration that is stopped early, fails or is
    garbage-collected ends its threads.

    Args:
        dataset: Determines files, fields and whether payloads are verified. It may not have a
            `transform`; a `target_transform` is called with each label. Paths stand for
            `FastRecordDataset(paths)`.
        batch_size: Records in a batch of this rank; creates a FastRecordBatchSampler.
        batch_sampler: Instead of `batch_size`: a FastRecordBatchSampler, or any iterable of batches
            of record numbers. To resume, the loader iterates over such an iterable again and skips
            the batches that were done.
        shuffle: With `batch_size`, as in FastRecordBatchSampler: True (the default) to train, False
            to evaluate, "blocks" for slow disks.
        drop_last: Passed to the sampler that `batch_size` creates.
        seed: Seed of order and augmentation, default 0; a given FastRecordBatchSampler has its own.
        image: Geometry of the images, from `fastrecord.transforms`.
        images: Instead of `image`, for records with several images: field name -> geometry. All
            show the same part of the scene: the crop is drawn for the smallest output, and the
            other outputs show the same part of their image, at their scale. Batches then have a
            dict of field name -> tensor instead of the images. In fields mode these fields are
            decoded, and the dict also has the other fields. An image with a palette, or with one
            channel if it would be resized, may be a mask: it is an error in all of these fields
            except the data set's `image_field` (in fields mode the first).
        flip: Mirror one image in two left to right at random.
        fields: Names of further fields whose values follow; by default the data set's
            `extra_fields`. Not in fields mode.
        ragged: In fields mode, field of arrays of varying shape -> form. "list" (the default): a
            list of tensors. "pad": one tensor (B, *largest shape), padded with zeros at the end.
            "packed": all arrays concatenated along their first axis, and their offsets, int64 (B +
            1,).
        batch_transform: Called with each batch, on its device, and a `transforms.BatchInfo`; its
            return value is the batch. For example `transforms.PairedRandomCrop(32)`. Runs in the
            consumer's thread.
        threads: Number of worker threads; by default the CPUs that this process may use, divided by
            `LOCAL_WORLD_SIZE`.
        prefetch: Batches (for arrays, groups of batches) in progress besides the one that the
            consumer has or waits for. 0: each batch is made when it is requested.
        pin_memory: Put batches into pinned memory, from which copies to a GPU are asynchronous.
            "auto": True if `device` is CUDA, or if it is not given and CUDA is available.
        device: Where batches go; copies to CUDA run on their own stream during the previous step.
            Default: batches stay in host memory.
        dtype: For images, a float type: the device normalises them by ImageNet's statistics. For
            other statistics leave them uint8 and apply `transforms.Normalize`. Default: uint8.
        on_error: What happens to a record that cannot be decoded, is damaged or lacks a value.
            "raise": its error is raised when the batch is due. "skip": the record is left out of
            the batch, and `skipped` and `stats()` count it. A callable: called with the error and a
            `SkippedRecord`; the record is skipped if it returns. I/O errors are never skipped.
        max_skipped: How many records an iteration may skip, also if a callable decides; one more
            ends it with an error. A float: a share of this rank's records of an epoch, but at least
            10 if it is not 0.0. With a foreign batch sampler, it is a share of the rank's part of
            the data set, or of the records so far if they are more. An int: a number. None: no
            limit.
        decoder: What decodes kinds of images that the core does not support, such as AVIF. "auto":
            Pillow, in the consumer's thread; the first such image causes a warning, and
            `stats().by_pillow` counts them. "native": nothing; they are errors.
        truncated: "reject": an image that lacks some of its data is an error. "accept": the
            available part is decoded.
        sixteen_bit: 16-bit grey does not fit into 8 bits. "reject": it is an error. "scale":
            divided by 257 and rounded. "clip": values above 255 become white, as in Pillow.
        exif_orientation: Rotate images by their EXIF data (in TIFF, by their tag); torchvision does
            not.
        max_pixels: Larger images are errors. Default: Pillow's limit.
        verify: When payloads are checked against their CRCs: "once", True or False. Default: the
            data set's setting.

    Raises:
        TypeError, ValueError: an argument is of another type, out of range, or contradicts another.
        SchemaError: a field does not exist, or its type does not fit its use.
    """

    def __init__(
        self,
        dataset: FastRecordDataset | Paths,
        batch_size: int | None = None,
        *,
        batch_sampler: FastRecordBatchSampler | Iterable[Any] | None = None,
        shuffle: Shuffle | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        image: Geometry | None = None,
        images: Mapping[str, Geometry] | None = None,
        flip: bool = False,
        fields: Sequence[str] | None = None,
        ragged: Mapping[str, Ragged] | None = None,
        batch_transform: Callable[[Any, BatchInfo], Any] | None = None,
        threads: int | None = None,
        prefetch: int = 2,
        pin_memory: bool | Literal["auto"] = "auto",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        on_error: OnError = "raise",
        max_skipped: float | None = MAX_SKIPPED,
        decoder: Literal["auto", "native"] = "auto",
        truncated: Literal["reject", "accept"] = "reject",
        sixteen_bit: SixteenBit = "reject",
        exif_orientation: bool = False,
        max_pixels: int | None = None,
        verify: bool | Literal["once"] | None = None,
        **others: Never,
    ) -> None:
        if others:
            refuse_arguments(type(self).__name__, others, list(inspect.signature(FastRecordLoader).parameters)[:-1])
        self._dataset = dataset = _as_dataset(dataset)
        _refuse_transform(dataset)
        self._requests = make_requests(dataset, batch_size, batch_sampler, shuffle, drop_last, seed)
        self._batch_size = batch_size if batch_size is not None else getattr(batch_sampler, "batch_size", None)
        self._threads = _default_threads() if threads is None else integer("threads", threads, 1, _MANY)
        self._prefetch = integer("prefetch", prefetch, 0, _MANY)
        self._destination = Destination(device, pin_memory, dtype)
        self._skipper = Skipper(on_error, max_skipped, dataset)
        self._image, self._images, self._flip, self._fields = image, images, flag("flip", flip), fields
        self._ragged, self._verify = ragged, verify
        self._decoding = {"dtype": dtype, "max_pixels": max_pixels}
        if decoder not in ("auto", "native"):
            raise ValueError(f'decoder is "auto" or "native", not {decoder!r}')
        self._by_pillow = decoder == "auto"
        self._options = {
            "truncated": truncated,
            "sixteen_bit": sixteen_bit,
            "exif_orientation": flag("exif_orientation", exif_orientation),
            "max_pixels": None if max_pixels is None else integer("max_pixels", max_pixels, 1, WORD),
        }
        self.batch_transform = batch_transform
        self._maker = self._make()
        self._plan: _core.ArrayPlan | _core.ImagePlan | None = self._maker.plan()
        self._clock = Clock()
        self._warned = False
        # Iterations in progress, each with its plan; and the counts of plans that were replaced.
        self._iterations: list[tuple[Any, _core.ArrayPlan | _core.ImagePlan]] = []
        self._counted = np.zeros(_COUNTERS, np.int64)

    def _make(self) -> ArrayBatches | ImageBatches:
        """Return the batch maker for the current arguments."""
        dataset, image, images = self._dataset, self._image, self._images
        if self._verify is not None:
            dataset = copy.copy(dataset)
            dataset.verify = self._verify
        if dataset.fields is not None and images is None:
            decoding = {"image": image, "flip": self._flip or None, "fields": self._fields, **self._decoding}
            _refuse_decoding(dataset, [name for name, value in decoding.items() if value is not None])
            listed = ListedFields(dataset, self._ragged)
            return ArrayBatches(dataset, listed, self._destination, self._prefetch)
        if self._ragged is not None:
            raise ValueError("ragged is for batches of arrays: select their fields in the data set, without images=")
        outputs = _outputs(dataset, image, images)
        further = _further_fields(dataset, outputs, self._fields)
        options = {"flip": self._flip, "verify": dataset.verify, **self._options}
        destination, prefetch, by_pillow = self._destination, self._prefetch, self._by_pillow
        return ImageBatches(
            dataset, outputs, images is None, further, options, destination, prefetch, by_pillow=by_pillow
        )

    def _change(self, **changed: Any) -> None:
        """Use other arguments from the next iteration on; if they are refused, nothing changes."""
        before = dict(self.__dict__)
        self.__dict__.update(changed)
        try:
            maker = self._make()
            plan = maker.plan()
        except BaseException:
            self.__dict__.update({name: before[name] for name in changed})
            raise
        old, self._maker, self._plan = self._plan, maker, plan
        self._retire(old)

    def _retire(self, plan: _core.ArrayPlan | _core.ImagePlan | None) -> None:
        """Keep a plan's counts when no iteration uses it any more."""
        if plan is not None and plan is not self._plan and all(plan is not other for _, other in self._iterations):
            self._counted = self._counted + np.array(plan.counters(), np.int64)

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"_plan": None, "_clock": Clock(), "_iterations": [], "_skipper": self._skipper.anew()}
        fresh["_counted"] = np.zeros(_COUNTERS, np.int64)
        return {**self.__dict__, **fresh}

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch.

        Raises:
            TypeError: the batch sampler has no length.
        """
        return len(self._requests.sampler)  # type: ignore[arg-type]  # its TypeError is the right one

    def __iter__(self) -> Iterator[Any]:
        """Iterate over an epoch, or over the rest of it after `load_state_dict`; see the class."""
        _refuse_transform(self._dataset)  # the transform may have been set since
        if self._plan is None:
            self._plan = self._maker.plan()
        self._warn_of_runs()
        return self._iterate(self._maker, self._plan, self._batch_transform)

    def _iterate(
        self,
        maker: ArrayBatches | ImageBatches,
        plan: _core.ArrayPlan | _core.ImagePlan,
        transform: Callable[[Any, BatchInfo], Any] | None,
    ) -> Iterator[Any]:
        process = os.getpid()
        loading = plan.start(self._threads)
        under_way = (loading, plan)
        self._iterations.append(under_way)
        self._clock.start()
        requests = self._requests
        skips = self._skipper.begin(requests.epoch_records, may_fall_short=requests.may_fall_short)
        try:
            for group in maker.groups(loading, requests, self._clock, skips):
                for request, part, made in group:
                    if made is None:
                        # The batch is empty. A state still counts it.
                        request.hand_out()
                        continue
                    if transform is not None:
                        info = BatchInfo(request.seed, request.epoch, request.positions[part], request.rows[part])
                        made = transform(made, info)
                        if made is None:
                            raise TypeError("batch_transform returned None: let it return the batch that is handed out")
                    request.hand_out()
                    self._clock.batches += 1
                    yield made
                    if os.getpid() != process:
                        raise RuntimeError(
                            "this iteration began in another process, where its threads are: iterate over the loader "
                            "anew"
                        )
            skips.end()
        finally:
            loading.close()
            self._iterations.remove(under_way)
            self._retire(plan)
            self._clock.stop()

    def _warn_of_runs(self) -> None:
        """Warn once if the loader augments, as for training, but its batches have few classes."""
        geometries = [self._image] if self._images is None else list(self._images.values())
        random = self._flip or any(isinstance(geometry, RandomResizedCrop | RandomCrop) for geometry in geometries)
        sampler = self._requests.sampler
        if (
            self._warned
            or not random
            or not isinstance(sampler, FastRecordBatchSampler)
            or sampler.shuffle is not False
        ):
            return
        if len(self._dataset) <= sampler.global_batch_size:
            return
        self._warned = True
        if self._dataset.labels_lie_in_runs():
            warnings.warn(
                "the loader augments at random, as to train, but takes the records as they lie in the files, where "
                "neighbours are mostly of one class: say shuffle=True",
                stacklevel=3,
            )

    @property
    def dataset(self) -> FastRecordDataset:
        """The data set."""
        return self._dataset

    @property
    def image(self) -> Geometry | None:
        """Geometry of the images. Setting it (progressive resizing) affects the next iteration."""
        return self._image

    @image.setter
    def image(self, geometry: Geometry) -> None:
        self._change(_image=geometry)

    @property
    def images(self) -> Mapping[str, Geometry] | None:
        """Geometry of the images of each field. Setting it affects the next iteration."""
        return self._images

    @images.setter
    def images(self, geometries: Mapping[str, Geometry]) -> None:
        self._change(_images=geometries)

    @property
    def flip(self) -> bool:
        """Whether images are mirrored at random. Setting it affects the next iteration."""
        return self._flip

    @flip.setter
    def flip(self, flip: bool) -> None:
        self._change(_flip=flag("flip", flip))

    @property
    def batch_transform(self) -> Callable[[Any, BatchInfo], Any] | None:
        """The function called with each batch. Setting it affects the next iteration."""
        return self._batch_transform

    @batch_transform.setter
    def batch_transform(self, transform: Callable[[Any, BatchInfo], Any] | None) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"batch_transform is a callable, not {type(transform).__name__}")
        self._batch_transform = transform

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler."""
        return self._requests.sampler

    @property
    def sampler(self) -> Any:
        """The sampler of the batch sampler, for frameworks that call `loader.sampler.set_epoch`."""
        return getattr(self.batch_sampler, "sampler", self.batch_sampler)

    @property
    def batch_size(self) -> int | None:
        """Records in a full batch, if the sampler has a batch size."""
        return self._batch_size

    @property
    def threads(self) -> int:
        """Number of threads that an iteration starts."""
        return self._threads

    @property
    def skipped(self) -> list[SkippedRecord]:
        """The first 1000 skipped records."""
        return list(self._skipper.records)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also of the sampler."""
        self._requests.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, ready for JSON; batches in progress do not count."""
        return self._requests.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next iteration.

        Raises:
            TypeError, ValueError: the state is malformed or does not fit; nothing has changed then.
        """
        self._requests.load_state_dict(state)

    def stats(self) -> LoaderStats:
        """Return the counts since the loader was made (or unpickled); call it at any time."""
        plans = {id(plan): plan for plan in (self._plan, *(plan for _, plan in self._iterations)) if plan is not None}
        counted = sum((np.array(plan.counters(), np.int64) for plan in plans.values()), start=self._counted)
        records, _, reads, size, read, decode, resize = counted.tolist()
        return LoaderStats(
            records=records,
            images=records if isinstance(self._maker, ImageBatches) else 0,
            skipped=self._skipper.total,
            by_pillow=self._clock.by_pillow,
            batches=self._clock.batches,
            reads=reads,
            bytes_read=size,
            seconds=self._clock.seconds(),
            threads=self._threads,
            read_seconds=read / 1e9,
            decode_seconds=decode / 1e9,
            resize_seconds=resize / 1e9,
            wait_seconds=self._clock.waited,
        )

    def __repr__(self) -> str:
        """Describe the data and the order."""
        made = {
            "image": self._image,
            "images": self._images,
            "flip": self._flip or None,
            "batch_transform": self._batch_transform,
            "device": self._destination.device,
        }
        lines = [
            type(self).__name__,
            "    " + repr(self._dataset).replace("\n", "\n    "),
            f"    Batches: {self._requests.sampler!r}",
            *(f"    {name}: {value}" for name, value in made.items() if value is not None),
            f"    threads: {self._threads}, prefetch: {self._prefetch}",
        ]
        return "\n".join(lines)

    def close(self) -> None:
        """End the threads of unfinished iterations, which cannot continue.

        New iterations may begin.
        """
        for loading, _ in list(self._iterations):
            loading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_dataset(dataset: Any) -> FastRecordDataset:
    """Return the data set, or a data set of paths.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(dataset, FastRecordDataset):
        return dataset
    paths = [dataset] if isinstance(dataset, (str, os.PathLike)) else dataset
    if isinstance(paths, (list, tuple)) and all(isinstance(path, (str, os.PathLike)) for path in paths):
        return FastRecordDataset(dataset)
    way_out = ": say dataset.subset(indices) instead" if type(dataset).__name__ == "Subset" else ""
    raise TypeError(f"dataset is a FastRecordDataset or a path, not {type(dataset).__name__}{way_out}")


def _refuse_transform(dataset: FastRecordDataset) -> None:
    """Refuse a data set whose samples are changed in Python.

    Raises:
        ValueError: it has a transform.
    """
    if dataset.transform is not None:
        raise ValueError("the data set has a transform, which runs in Python: say image= or batch_transform= instead")


def _refuse_decoding(dataset: FastRecordDataset, given: list[str]) -> None:
    """Refuse image options for batches of arrays.

    Raises:
        ValueError: one is given.
    """
    if given:
        schema = dataset.readers[0].schema
        images = [name for name in dataset.fields or () if schema[name].name == "image"]
        which = f"{images[0]!r}: transforms.CenterCrop(224)" if images else '"name": geometry'
        raise ValueError(
            f"{', '.join(given)}: the data set is in fields mode, with batches of arrays; to decode fields of images "
            f"among them say images={{{which}}}"
        )


def _further_fields(
    dataset: FastRecordDataset, outputs: Mapping[str, Geometry], fields: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the fields whose values follow the images."""
    if isinstance(fields, str):
        raise TypeError(f"fields is a sequence of names: write ({fields!r},)")
    if dataset.fields is not None:
        if fields is not None:
            raise ValueError("the data set is in fields mode, and says all fields: leave out fields")
        strays = [name for name in outputs if name not in dataset.fields]
        if strays:
            raise Code.NO_FIELD.error(f"images= names {strays[0]!r}, which is not among the data set's fields")
        further = tuple(name for name in dataset.fields if name not in outputs)
    else:
        further = tuple(dataset.extra_fields if fields is None else fields)
    for name in outputs:
        check_fields(dataset.readers, name, None, further)
    return further


def _outputs(
    dataset: FastRecordDataset, image: Geometry | None, images: Mapping[str, Geometry] | None
) -> dict[str, Geometry]:
    if (image is None) == (images is None):
        raise ValueError(
            "say what is done to the images, by one of image= (such as transforms.RandomResizedCrop(224)) and images="
        )
    outputs = {dataset.image_field: image} if images is None else dict(images)
    if not outputs:
        raise ValueError("images= names no field")
    for name, geometry in outputs.items():
        if not isinstance(geometry, Geometry):
            instead = instead_of_transform(geometry)
            raise TypeError(
                f"field {name!r}: a geometry of fastrecord.transforms is wanted, such as RandomResizedCrop(224), not "
                f"{type(geometry).__name__}" + (f" of torchvision. Instead of {instead}" if instead else "")
            )
    return outputs  # type: ignore[return-value]  # all are geometries


def _default_threads() -> int:
    """Return this process's CPUs divided by torchrun's number of local processes."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, _core.default_threads() // max(1, int(processes) if processes.isdecimal() else 1))
