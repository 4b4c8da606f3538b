"""Batches of images or arrays for a training step, made by the core's threads: no workers, no Python per record."""

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
from fastrecord._core import SchemaError
from fastrecord.checks import WORD, flag, integer
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.shards import Paths
from fastrecord.fixed import Fixed
from fastrecord.loader.answers import instead_of_transform, refuse_arguments
from fastrecord.loader.array_batches import ArrayBatches
from fastrecord.loader.batch_source import make_requests
from fastrecord.loader.delivery import Delivery
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
# How many numbers a plan counts.
_COUNTERS = 7


class FastRecordLoader(Fixed, Iterable[Any]):
    """Iterates over batches of a data set, made by threads of the core.

    In the place of torch's DataLoader: there are no worker processes; threads read, check, decode, crop, resize and
    mirror images, and decompress and stack arrays, straight into the memory of the batch. A batch is the consumer's
    own: its memory is used again only when no tensor over it is left.

    **Images.** Batches are `(images, labels)`: uint8 (B, 3, H, W) in channels_last memory, int64 (B,) (floats or arrays
    if the labels are). As in the data set, batches are the images alone if the files have no labels, and values of
    `fields` follow behind: tensors of numbers and of arrays of one shape, lists of others.

    **Arrays**, if the data set is in fields mode: batches are dicts of its fields. Scalars and arrays of a fixed shape
    are tensors (B, *shape) of the field's type, arrays of varying shape what `ragged` says, and others lists. Small
    batches are made many at a time, so that a batch of 8 costs per record what one of 128 does: those of one group
    (about 4 MiB, at most 64 batches) are parts of one memory, all of which a batch that is kept keeps.

    **Order and augmentation** depend on the sampler, its seed and the epoch alone, not on threads or timing: a crop is
    a function of (seed, epoch, position in the epoch's order). Epochs advance by themselves as those of
    FastRecordBatchSampler do; `set_epoch` names one.

    **Resuming.** `state_dict()` counts the batches handed out, not those that are under way; after `load_state_dict`
    the next iteration goes on behind them, with the same images. With a FastRecordBatchSampler it is that sampler's
    state.

    **Changes.** `image`, `images`, `flip` and `batch_transform` may be set, and take effect from the next iteration on.
    Other attributes cannot be set.

    **Processes.** May be forked and pickled (to spawned processes) between iterations; an iteration itself belongs to
    its process. An iteration that is broken off, fails or is garbage-collected ends its threads.

    Args:
        dataset: Says files, fields and whether payloads are verified. It may not have a `transform`; a
            `target_transform` is called with each label. Paths stand for `FastRecordDataset(paths)`.
        batch_size: Records in a batch of this rank: makes a FastRecordBatchSampler.
        batch_sampler: Instead of `batch_size`: a FastRecordBatchSampler, or any iterable of batches of record numbers
            (whose states then go on by asking it again for the batches that were done).
        shuffle: With `batch_size`, as of FastRecordBatchSampler: True (the default) to train, False to evaluate,
            "blocks" for slow disks.
        drop_last: Of the sampler that `batch_size` makes; see there.
        seed: Of order and augmentation, default 0; a FastRecordBatchSampler that is given brings its own.
        image: What is done to the images: a geometry of `fastrecord.transforms`.
        images: Instead of `image`, where records hold several images: field name -> geometry. All show the same part of
            the scene: the crop is drawn for the smallest output, and the others' is the same part of their image, at
            their scale. Batches then have a dict of field name -> tensor in the place of the images. In fields mode
            these fields are decoded, and the dict has the others too. An image that has a palette, or one channel and
            would be resized, is an error in all of these fields but the data set's `image_field` (in fields mode the
            first): it may be a mask.
        flip: Mirror images left to right, one in two at random.
        fields: Names of further fields whose values follow; by default the data set's `extra_fields`. Not in fields
            mode.
        ragged: In fields mode, field of arrays whose shape varies -> "list" (the default): a list of tensors; "pad":
            one tensor (B, *largest shape), zeros behind what is smaller; "packed": all along their first axis, and
            int64 (B + 1,), where each begins.
        batch_transform: Called with each batch, on its device, and a `transforms.BatchInfo`; what it returns is handed
            out, such as `transforms.PairedRandomCrop(32)`. Runs in the consumer's thread.
        threads: Threads that work; by default the CPUs that this process may use, divided by `LOCAL_WORLD_SIZE`.
        prefetch: Batches under way beside the one that the consumer has or waits for; of arrays groups of batches. 0:
            each batch is asked for and made when its turn has come.
        pin_memory: Put batches into pinned memory, from where copies to a GPU are asynchronous. "auto": if `device` is
            CUDA, or it is not given and there is CUDA.
        device: Where batches go; copies to CUDA run on a stream of their own beside the step before. Default: they stay
            in the host's memory.
        dtype: For images, a float type: they are normalised by ImageNet's statistics, on the device; for others leave
            them uint8 and apply `transforms.Normalize`. Default: uint8.
        on_error: What a record that can not be decoded, is damaged or lacks a value does. "raise": its error is raised
            when the batch's turn has come. "skip": the batch is smaller by it, and `skipped` and `stats()` count it. A
            callable: called with the error and a `SkippedRecord`; the record is skipped if it returns. An error of the
            disk is never skipped.
        max_skipped: How many records an iteration may skip, whoever decides it; one more ends it with an error. A
            float: a share of this rank's records of an epoch, but 10 at least if it is not 0.0 (with a batch sampler
            that is none of fastrecord's: of the rank's part of the data set, or of the records so far if these are
            more). An int: a number. None: all.
        decoder: What decodes images of a kind that the core does not know, such as AVIF. "auto": Pillow, in the
            consumer's thread; there is a warning the first time, and `stats().by_pillow` counts them. "native":
            nothing, they are errors.
        truncated: "reject": an image that lacks some of its data is an error. "accept": what is there is decoded.
        sixteen_bit: Grey of 16 bits has no place in 8. "reject": it is an error. "scale": divided by 257 and rounded.
            "clip": all above 255 is white, as in Pillow.
        exif_orientation: Turn images as their EXIF data (of TIFF, their tag) says; torchvision does not.
        max_pixels: Larger images are errors. Default: where Pillow refuses them.
        verify: When payloads are checked against their CRCs: "once", True or False. Default: as the data set says.

    Raises:
        TypeError, ValueError: an argument is of another type, out of range, or contradicts another.
        SchemaError: a field is not there, or of a type that can not be what it is to be.
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
        if dataset.transform is not None:
            raise ValueError(
                "the data set has a transform, which runs in Python: say image= or batch_transform= instead"
            )
        self._requests = make_requests(dataset, batch_size, batch_sampler, shuffle, drop_last, seed)
        self._batch_size = batch_size if batch_size is not None else getattr(batch_sampler, "batch_size", None)
        self._threads = _default_threads() if threads is None else integer("threads", threads, 1, _MANY)
        self._prefetch = integer("prefetch", prefetch, 0, _MANY)
        self._delivery = Delivery(device, pin_memory, dtype)
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
        # Of iterations under way, with what they go by; and what plans that are replaced had counted.
        self._iterations: list[tuple[Any, _core.ArrayPlan | _core.ImagePlan]] = []
        self._counted = np.zeros(_COUNTERS, np.int64)

    def _make(self) -> ArrayBatches | ImageBatches:
        """Return what makes batches by the arguments as they are now."""
        dataset, image, images = self._dataset, self._image, self._images
        if self._verify is not None:
            dataset = copy.copy(dataset)
            dataset.verify = self._verify
        if dataset.fields is not None and images is None:
            decoding = {"image": image, "flip": self._flip or None, "fields": self._fields, **self._decoding}
            _refuse_decoding(dataset, [name for name, value in decoding.items() if value is not None])
            listed = ListedFields(dataset, self._ragged)
            return ArrayBatches(dataset, listed, self._delivery, self._prefetch)
        if self._ragged is not None:
            raise ValueError("ragged is for batches of arrays: select their fields in the data set, without images=")
        outputs = _outputs(dataset, image, images)
        further = _further_fields(dataset, outputs, self._fields)
        options = {"flip": self._flip, "verify": dataset.verify, **self._options}
        delivery, prefetch, by_pillow = self._delivery, self._prefetch, self._by_pillow
        return ImageBatches(dataset, outputs, images is None, further, options, delivery, prefetch, by_pillow=by_pillow)

    def _change(self, **changed: Any) -> None:
        """Make batches by other arguments from the next iteration on; nothing changes if they are refused."""
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
        """Keep what a plan has counted once nothing goes by it any more."""
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
        """Iterate over an epoch, or over what is left of it after `load_state_dict`; see the class."""
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
                        # Nothing is left of it. A state counts it all the same.
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
        """Warn once if the loader augments, as if to train, and its order has few classes in a batch."""
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
        """What is done to the images. Set it, say for progressive resizing, and the next iteration goes by it."""
        return self._image

    @image.setter
    def image(self, geometry: Geometry) -> None:
        self._change(_image=geometry)

    @property
    def images(self) -> Mapping[str, Geometry] | None:
        """What is done to the images of each field. Set it, and the next iteration goes by it."""
        return self._images

    @images.setter
    def images(self, geometries: Mapping[str, Geometry]) -> None:
        self._change(_images=geometries)

    @property
    def flip(self) -> bool:
        """Whether images are mirrored at random. Set it, and the next iteration goes by it."""
        return self._flip

    @flip.setter
    def flip(self, flip: bool) -> None:
        self._change(_flip=flag("flip", flip))

    @property
    def batch_transform(self) -> Callable[[Any, BatchInfo], Any] | None:
        """What is called with each batch. Set it, and the next iteration goes by it."""
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
        """Records in a full batch, if the sampler says."""
        return self._batch_size

    @property
    def threads(self) -> int:
        """Threads that an iteration starts."""
        return self._threads

    @property
    def skipped(self) -> list[SkippedRecord]:
        """The first 1000 records that were skipped."""
        return list(self._skipper.records)

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration, to the sampler too."""
        self._requests.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the epoch stands, ready for JSON: what the consumer got, not what is under way."""
        return self._requests.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken.

        Raises:
            TypeError, ValueError: the state is malformed or does not fit; nothing has changed then.
        """
        self._requests.load_state_dict(state)

    def stats(self) -> LoaderStats:
        """Return what was done since the loader was made (or unpickled); may be called at any time."""
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
        """Describe what it makes batches of, and how."""
        made = {
            "image": self._image,
            "images": self._images,
            "flip": self._flip or None,
            "batch_transform": self._batch_transform,
            "device": self._delivery.device,
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
        """End the threads of iterations that are not over; they can not go on. New ones may begin."""
        for loading, _ in list(self._iterations):
            loading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_dataset(dataset: Any) -> FastRecordDataset:
    """Return the data set, or that of paths.

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


def _refuse_decoding(dataset: FastRecordDataset, given: list[str]) -> None:
    """Refuse what is done to images where batches are of arrays.

    Raises:
        ValueError: something is.
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
            raise SchemaError(f"images= names {strays[0]!r}, which is not among the data set's fields [FR407]")
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
    """CPUs that this process may use, shared among the processes that torchrun started on this machine."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, _core.default_threads() // max(1, int(processes) if processes.isdecimal() else 1))
