"""Batches of images or arrays for a training step, made by the core's threads: no workers, no Python per record."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import torch

from fastrecord import _core
from fastrecord._core import SchemaError
from fastrecord.array_batches import ArrayBatches
from fastrecord.batch_info import BatchInfo
from fastrecord.dataset import FastRecordDataset
from fastrecord.delivery import Delivery
from fastrecord.fields import check_fields
from fastrecord.image_batches import ImageBatches
from fastrecord.listed import ListedFields, Ragged
from fastrecord.requests import make_requests
from fastrecord.sampler import FastRecordBatchSampler
from fastrecord.sampler_state import WORD, Shuffle, flag, integer
from fastrecord.skipping import MAX_SKIPPED, OnError, SkippedRecord, Skipper
from fastrecord.stats import Clock, LoaderStats
from fastrecord.transforms import Geometry

# More threads or batches than this are a mistake.
_MANY = 1 << 16


class FastRecordLoader(Iterable[Any]):
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

    **Processes.** May be forked and pickled (to spawned processes) between iterations; an iteration itself belongs to
    its process. An iteration that is broken off, fails or is garbage-collected ends its threads.

    Args:
        dataset: Says files, fields and whether payloads are verified. It may not have a `transform`; a
            `target_transform` is called with each label.
        batch_size: Records in a batch of this rank: makes a FastRecordBatchSampler.
        batch_sampler: Instead of `batch_size`: a FastRecordBatchSampler, or any iterable of batches of record numbers
            (whose states then go on by asking it again for the batches that were done).
        shuffle, drop_last: For the sampler that `batch_size` makes; see there.
        seed: Of order and augmentation, default 0; a FastRecordBatchSampler that is given brings its own.
        image: What is done to the images: a geometry of `fastrecord.transforms`.
        images: Instead of `image`, where records hold several images: field name -> geometry. All show the same part of
            the scene: the crop is drawn for the smallest output, and the others' is the same part of their image, at
            their scale. Batches then have a dict of field name -> tensor in the place of the images. In fields mode
            these fields are decoded, and the dict has the others too.
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
        truncated: "reject": an image that ends early is an error. "accept": what is there is decoded.
        exif_orientation: Turn images as their EXIF data says; torchvision does not.
        max_pixels: Larger images are errors. Default: where Pillow refuses them.

    Raises:
        TypeError, ValueError: an argument is of another type, out of range, or contradicts another.
        SchemaError: a field is not there, or of a type that can not be what it is to be.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        batch_size: int | None = None,
        *,
        batch_sampler: FastRecordBatchSampler | Iterable[Any] | None = None,
        shuffle: Shuffle = False,
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
        truncated: Literal["reject", "accept"] = "reject",
        exif_orientation: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        if not isinstance(dataset, FastRecordDataset):
            raise TypeError(f"dataset is a FastRecordDataset, not {type(dataset).__name__}")
        if dataset.transform is not None:
            raise ValueError(
                "the data set has a transform, which runs in Python: say image= or batch_transform= instead"
            )
        self.dataset = dataset
        self._requests = make_requests(dataset, batch_size, batch_sampler, shuffle, drop_last, seed)
        self._batch_size = batch_size if batch_size is not None else getattr(batch_sampler, "batch_size", None)
        if batch_transform is not None and not callable(batch_transform):
            raise TypeError(f"batch_transform is a callable, not {type(batch_transform).__name__}")
        self._batch_transform = batch_transform
        self._threads = _default_threads() if threads is None else integer("threads", threads, 1, _MANY)
        self._prefetch = integer("prefetch", prefetch, 0, _MANY)
        self._delivery = Delivery(device, pin_memory, dtype)
        self._skipper = Skipper(on_error, max_skipped, dataset)
        self._maker: ArrayBatches | ImageBatches
        if dataset.fields is not None and images is None:
            decoding = {
                "image": image,
                "flip": flip or None,
                "fields": fields,
                "dtype": dtype,
                "max_pixels": max_pixels,
            }
            _refuse_decoding(dataset, [name for name, value in decoding.items() if value is not None])
            listed = ListedFields(dataset, ragged)
            self._maker = ArrayBatches(dataset, listed, self._delivery, self._prefetch)
        else:
            if ragged is not None:
                raise ValueError(
                    "ragged is for batches of arrays: select their fields in the data set, without images="
                )
            outputs = _outputs(dataset, image, images)
            options = {
                "flip": flag("flip", flip),
                "verify": dataset.verify,
                "truncated": truncated,
                "exif_orientation": flag("exif_orientation", exif_orientation),
                "max_pixels": None if max_pixels is None else integer("max_pixels", max_pixels, 1, WORD),
            }
            self._maker = ImageBatches(
                dataset,
                outputs,
                images is None,
                _further_fields(dataset, outputs, fields),
                options,
                self._delivery,
                self._prefetch,
            )
        self._plan: _core.ArrayPlan | _core.ImagePlan | None = self._maker.plan()
        self._clock = Clock()
        self._iterations: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"_plan": None, "_clock": Clock(), "_iterations": [], "_skipper": self._skipper.anew()}
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
        return self._iterate(self._plan)

    def _iterate(self, plan: _core.ArrayPlan | _core.ImagePlan) -> Iterator[Any]:
        process = os.getpid()
        transform = self._batch_transform
        loading = plan.start(self._threads)
        self._iterations.append(loading)
        self._clock.start()
        requests = self._requests
        skips = self._skipper.begin(requests.epoch_records, may_fall_short=requests.may_fall_short)
        try:
            for group in self._maker.groups(loading, requests, self._clock, skips):
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
            self._iterations.remove(loading)
            self._clock.stop()

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
        records, _, reads, size, read, decode, resize = self._plan.counters() if self._plan else (0,) * 7
        return LoaderStats(
            records=records,
            images=records if isinstance(self._maker, ImageBatches) else 0,
            skipped=self._skipper.total,
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

    def close(self) -> None:
        """End the threads of iterations that are not over; they can not go on. New ones may begin."""
        for loading in list(self._iterations):
            loading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
            raise TypeError(
                f"field {name!r}: a geometry of fastrecord.transforms is wanted, such as RandomResizedCrop(224), not "
                f"{type(geometry).__name__}"
            )
    return outputs  # type: ignore[return-value]  # all are geometries


def _default_threads() -> int:
    """CPUs that this process may use, shared among the processes that torchrun started on this machine."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, _core.default_threads() // max(1, int(processes) if processes.isdecimal() else 1))
