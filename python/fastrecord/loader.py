"""Batches of images for a training step, made by the core's threads: no worker processes, no Python per record."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord import _core
from fastrecord.dataset import FastRecordDataset
from fastrecord.delivery import Delivery, Pending
from fastrecord.fields import check_fields
from fastrecord.requests import ForeignRequests, OwnRequests
from fastrecord.sampler import FastRecordBatchSampler
from fastrecord.sampler_state import WORD, Shuffle, flag, integer
from fastrecord.skipping import OnError, SkippedRecord, Skipper
from fastrecord.stats import Clock, LoaderStats
from fastrecord.transforms import Geometry

# More threads or batches than this are a mistake.
_MANY = 1 << 16


class FastRecordLoader(Iterable[Any]):
    """Iterates over batches `(images, labels)` of a data set, made by threads of the core.

    In the place of torch's DataLoader: there are no worker processes; threads read, check, decode, crop, resize and
    mirror images straight into the memory of the batch.

    Images are uint8 (B, 3, H, W) in channels_last memory, labels int64 (B,) (float64 if the label field is). As in the
    data set, batches are the images alone if the files have no labels, and values of `fields` follow behind: tensors of
    numbers, lists of `str` or `bytes`. A batch is the consumer's own: its memory is used again only when no tensor over
    it is left.

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
            their scale. Batches then have a dict of field name -> tensor in the place of the images.
        flip: Mirror images left to right, one in two at random.
        fields: Names of further fields whose values follow; by default the data set's `extra_fields`.
        threads: Threads that work; by default the CPUs that this process may use, divided by `LOCAL_WORLD_SIZE`.
        prefetch: Batches under way beside the one that the consumer has or waits for.
        pin_memory: Put batches into pinned memory, from where copies to a GPU are asynchronous. "auto": if `device` is
            CUDA, or it is not given and there is CUDA.
        device: Where batches go; copies to CUDA run on a stream of their own beside the step before. Default: they stay
            in the host's memory.
        dtype: A float type: images are normalised by ImageNet's statistics, on the device; for others leave them uint8
            and apply `transforms.Normalize`. Default: uint8.
        on_error: What a record that can not be decoded, is damaged or has no image does. "raise": its error is raised
            when the batch's turn has come. "skip": the batch is smaller by it, and `skipped` and `stats()` count it. A
            callable: called with the error and a `SkippedRecord`; the record is skipped if it returns.
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
        threads: int | None = None,
        prefetch: int = 2,
        pin_memory: bool | Literal["auto"] = "auto",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        on_error: OnError = "raise",
        truncated: Literal["reject", "accept"] = "reject",
        exif_orientation: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        if not isinstance(dataset, FastRecordDataset):
            raise TypeError(f"dataset is a FastRecordDataset, not {type(dataset).__name__}")
        if dataset.transform is not None:
            raise ValueError("the data set has a transform, which runs in Python: say image= to the loader instead")
        self.dataset = dataset
        self._requests = _requests(dataset, batch_size, batch_sampler, shuffle, drop_last, seed)
        self._batch_size = batch_size if batch_size is not None else getattr(batch_sampler, "batch_size", None)
        self._single = images is None
        self._outputs = _outputs(dataset, image, images)
        if isinstance(fields, str):
            raise TypeError(f"fields is a sequence of names: write ({fields!r},)")
        self._fields = tuple(dataset.extra_fields if fields is None else fields)
        for name in self._outputs:
            check_fields(dataset.readers, name, None, self._fields)
        self._threads = _default_threads() if threads is None else integer("threads", threads, 1, _MANY)
        self._prefetch = integer("prefetch", prefetch, 0, _MANY)
        self._delivery = Delivery(device, pin_memory, dtype)
        self._options: dict[str, Any] = {
            "flip": flag("flip", flip),
            "verify": dataset.verify,
            "truncated": truncated,
            "exif_orientation": flag("exif_orientation", exif_orientation),
            "max_pixels": None if max_pixels is None else integer("max_pixels", max_pixels, 1, WORD),
            # The consumer's batch, the one before it while it is replaced, and those under way.
            "spares": len(self._outputs) * (self._prefetch + 2),
        }
        self._skipper = Skipper(on_error, dataset)
        self._plan: _core.ImagePlan | None = self._make_plan()
        self._clock = Clock()
        self._iterations: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None, "_clock": Clock(), "_iterations": []}

    def _make_plan(self) -> _core.ImagePlan:
        names = list(self._outputs)
        specs = [geometry._spec() for geometry in self._outputs.values()]
        return _core.ImagePlan([(reader, names) for reader in self.dataset.readers], specs, **self._options)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch.

        Raises:
            TypeError: the batch sampler has no length.
        """
        return len(self._requests.sampler)  # type: ignore[arg-type]  # its TypeError is the right one

    def __iter__(self) -> Iterator[Any]:
        """Iterate over an epoch, or over what is left of it after `load_state_dict`; see the class."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self._iterate(self._plan)

    def _iterate(self, plan: _core.ImagePlan) -> Iterator[Any]:
        process = os.getpid()
        loading = plan.start(self._threads)
        self._iterations.append(loading)
        self._clock.start()
        pending: deque[Pending] = deque()
        requests = iter(self._requests)
        try:
            while True:
                while len(pending) <= self._prefetch and (request := next(requests, None)) is not None:
                    pending.append(self._delivery.begin(loading, request, self._outputs))
                if not pending:
                    return
                batch = pending.popleft()
                with self._clock.waiting():
                    batch.complete()
                made = self._finish(batch)
                if pending and self._delivery.copies and pending[0].is_ready():
                    # Its copy to the device runs while the consumer computes.
                    pending[0].complete()
                batch.request.hand_out()
                self._clock.batches += 1
                yield made
                if os.getpid() != process:
                    raise RuntimeError(
                        "this iteration began in another process, where its threads are: iterate over the loader anew"
                    )
        finally:
            loading.close()
            self._iterations.remove(loading)
            self._clock.stop()

    def _finish(self, batch: Pending) -> Any:
        """Return what the consumer gets: without the records that failed, if they may be skipped."""
        rows, images = batch.request.rows, [self._delivery.receive(image) for image in batch.images]
        if batch.failures:
            kept = self._skipper.keep(rows, batch.failures)
            rows = rows[kept]
            index = torch.from_numpy(kept).to(self._delivery.device or "cpu")
            images = [tensor[index] for tensor in images]
        shown = [self._delivery.show(tensor) for tensor in images]
        parts: list[Any] = [shown[0] if self._single else dict(zip(self._outputs, shown, strict=True))]
        if self.dataset.has_labels:
            parts.append(self._delivery.send(self._labels(rows)))
        if self._fields:
            parts += [self._delivery.send(value) for value in self.dataset.values(rows, self._fields)]
        return tuple(parts) if len(parts) > 1 else parts[0]

    def _labels(self, rows: NDArray[np.int64]) -> Any:
        labels = self.dataset.labels(rows)
        transform = self.dataset.target_transform
        return (
            labels if transform is None else torch.utils.data.default_collate([transform(x) for x in labels.tolist()])
        )

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
        images, failures, reads, size, read, decode, resize = self._plan.counters() if self._plan else (0,) * 7
        return LoaderStats(
            images=images,
            skipped=failures,
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


def _requests(
    dataset: FastRecordDataset,
    batch_size: int | None,
    batch_sampler: FastRecordBatchSampler | Iterable[Any] | None,
    shuffle: Shuffle,
    drop_last: bool,
    seed: int | None,
) -> OwnRequests | ForeignRequests:
    if (batch_size is None) == (batch_sampler is None):
        raise ValueError("give one of batch_size and batch_sampler")
    if batch_size is not None:
        sampler = FastRecordBatchSampler(dataset, batch_size, shuffle=shuffle, seed=seed or 0, drop_last=drop_last)
        return OwnRequests(sampler, dataset._view)
    if shuffle or drop_last:
        raise ValueError("shuffle and drop_last are the batch sampler's: leave them out with batch_sampler=")
    if isinstance(batch_sampler, FastRecordBatchSampler):
        if seed is not None:
            raise ValueError("the batch sampler has a seed, for the augmentation too: leave seed out")
        if batch_sampler.records != len(dataset):
            raise ValueError(
                f"the batch sampler is for {batch_sampler.records} records, the data set has {len(dataset)}: "
                "make it of this data set"
            )
        return OwnRequests(batch_sampler, dataset._view)
    if not isinstance(batch_sampler, Iterable):
        kind = type(batch_sampler).__name__
        raise TypeError(f"batch_sampler yields batches of record numbers: {kind} is not iterable")
    return ForeignRequests(batch_sampler, dataset.rows, seed=0 if seed is None else integer("seed", seed, 0, WORD))


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
