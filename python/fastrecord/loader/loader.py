"""`FastRecordLoader`: training batches of images or arrays, made by the core's threads.

Uses no worker processes and no Python code per record.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Never, Self

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import LoadPlan, default_threads
from fastrecord.checks import WORD, integer, local_ranks
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.labels import lie_in_runs
from fastrecord.dataset.shards import Paths
from fastrecord.ending import close_at_exit
from fastrecord.fixed import Fixed
from fastrecord.loader.batch_maker import BatchMaker
from fastrecord.loader.batch_source import make_source
from fastrecord.loader.delivery import Delivery
from fastrecord.loader.destination import Destination
from fastrecord.loader.mixer import Mixer
from fastrecord.loader.outputs import Outputs
from fastrecord.loader.places import find_places
from fastrecord.loader.replacements import refuse_arguments
from fastrecord.loader.sample import Given, Sample
from fastrecord.loader.skip import EpochSkips, OnError, SkippedRecord, Skipper, as_skip
from fastrecord.loader.stats import Clock, LoaderStats
from fastrecord.loader.views import Views
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.blocks import Shuffle
from fastrecord.transforms import ToFloat
from fastrecord.transforms.batch_info import BatchInfo

# More threads than this are a mistake.
_MANY = 1 << 16
# Number of counters of a plan.
_COUNTERS = 7
# How often this process was forked off, itself or one of its parents. Asking the system for the
# process id instead takes a quarter of the time in which a small batch is handed over.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class FastRecordLoader(Fixed, Iterable[Any]):
    """Iterates over batches of a data set, made by threads of the core.

    It replaces torch's DataLoader and has no worker processes. Threads read, check, decode, crop,
    resize and augment images, and decompress and stack arrays, directly into the memory of the
    batch. The consumer owns a batch: its memory is reused only after all tensors over it are gone.

    **Images.** Batches are `(images, labels)`: uint8 (B, 3, H, W) in channels_last memory, or floats
    after `ToFloat`, and int64 (B,), or floats or arrays if the labels are. Without labels, batches are
    the images alone, as in the data set.

    **Arrays**, if the data set is in fields mode: batches are dicts of its fields. Scalars and
    arrays of a fixed shape are tensors (B, *shape) of the field's type. `Delivery(ragged=...)`
    selects the form of arrays of varying shape; other values are lists. Small batches are made many
    at a time: beyond its records, a batch costs about a microsecond for each of its tensors. The
    batches of one group (about 4 MiB, at most 64 batches) share one block of memory, which lives as
    long as any of them.

    **Order and augmentation** depend only on the sampler, its seed and the epoch, not on threads or
    timing. Each draw is a function of (seed, epoch, position in the epoch's order) and of the operation
    (docs/order.md). Epochs advance automatically as in FastRecordBatchSampler; `set_epoch` selects one.

    **Resuming.** `state_dict()` counts the batches handed out, not the batches in progress. After
    `load_state_dict` the next iteration continues after them, with the same images. With a
    FastRecordBatchSampler the state is that sampler's state.

    **Changes.** `sample` and `batch_transform` may be set, and take effect from the next iteration on.
    Other attributes cannot be set.

    **Processes.** The loader may be forked and pickled (for spawned processes) between iterations;
    an iteration belongs to its process. An iteration that is stopped early, fails or is
    garbage-collected ends its threads.

    Args:
        dataset: Determines files, fields, further values of a batch, when payloads are checked, and
            with `decode=Decoding(...)` what decodes images and which are refused. Images that Pillow
            decodes cause a warning the first time, and `stats().by_pillow` counts them. It may not
            have a `transform`; a `target_transform` is called with each label. Paths stand for
            `FastRecordDataset(paths)`.
        batch_size: Records in a batch of this rank; creates a FastRecordBatchSampler.
        batch_sampler: Instead of `batch_size`: a FastRecordBatchSampler, or any iterable of batches
            of record numbers. To resume, the loader iterates over such an iterable again and skips
            the batches that were done. Its `seed` is its own, or its sampler's; 0 if it has none.
        shuffle: With `batch_size`, as in FastRecordBatchSampler: True (the default) to train, False
            to evaluate, "blocks" for slow disks.
        seed: Seed of all draws for images and of `BatchInfo`, and with `batch_size` of the order too. Default:
            the batch sampler's, so that two loaders with samplers of one seed draw the same crops.
            A state keeps it, and `load_state_dict` takes over the state's.
        sample: What becomes of images, in the core's threads. A list of `fastrecord.transforms`, which begins with
            the crop, for the only field of images (in fields mode too): the batches stay as above. Or name ->
            list, `View` or `Like`, for several images, views, masks, boxes: batches are then dicts of these
            outputs and of all other fields. A list makes the output of the field of that name, `View` an
            output of another field, and `Like` what follows an output through its crop and moves. Pixels that
            boxes and masks of other fields describe are not moved.
        batch: `transforms.MixUp`, `CutMix`, or a list of them, of which one is chosen for each batch: images, which
            must be floats, are mixed in pairs, by the threads, or by the device that makes floats of them.
            Labels become float32 (B, classes). What is mixed depends on the batch, and so on the number of
            ranks; records that were skipped leave their partners as they are.
        batch_transform: Called with each batch, on its device, and a `transforms.BatchInfo`; its
            return value is the batch. For example `transforms.PairedRandomCrop(32)`. Runs in the
            consumer's thread.
        threads: Number of worker threads; by default the CPUs that this process may use, divided by
            `LOCAL_WORLD_SIZE`.
        on_error: What happens to a record that cannot be decoded, is damaged or lacks a value.
            "raise": its error is raised when the batch is due. "skip": the record is left out of
            the batch, and `skipped` and `stats()` count it. A callable: called with the error and a
            `SkippedRecord`; the record is skipped if it returns. A `Skip` also says how many may be
            skipped. I/O errors are never skipped.
        delivery: Device, type, memory and form of the batches, and how many are made ahead; default
            `Delivery()`.

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
        seed: int | None = None,
        sample: Given | None = None,
        batch: Any = None,
        batch_transform: Callable[[Any, BatchInfo], Any] | None = None,
        threads: int | None = None,
        on_error: OnError = "raise",
        delivery: Delivery | None = None,
        **others: Never,
    ) -> None:
        if others:
            refuse_arguments(type(self).__name__, others, list(inspect.signature(FastRecordLoader).parameters)[:-1])
        self._dataset = dataset = _as_dataset(dataset)
        _refuse_transform(dataset)
        self._source = make_source(
            dataset, batch_size, batch_sampler, shuffle, None if seed is None else integer("seed", seed, 0, WORD)
        )
        self._batch_size = batch_size if batch_size is not None else getattr(batch_sampler, "batch_size", None)
        # The ranks of a machine share its CPUs.
        share = max(1, default_threads() // (local_ranks() or 1))
        self._threads = share if threads is None else integer("threads", threads, 1, _MANY)
        if not isinstance(delivery, Delivery | None):
            raise TypeError(f"delivery is a fastrecord.Delivery, not {delivery!r}: write delivery=fr.Delivery(...)")
        self._delivery = delivery or Delivery()
        self._destination = Destination(self._delivery)
        self._skipper = Skipper(as_skip(on_error), dataset)
        self._sample, self._batch = sample, batch
        self.batch_transform = batch_transform
        self._maker = self._make()
        self._plan: LoadPlan | None = self._maker.plan()
        self._clock = Clock()
        self._traffic = _traffic(dataset)
        self._warned = self._warned_of_places = False
        # Iterations in progress, each with its plan; and the counts of plans that were replaced.
        self._iterations: list[tuple[Any, LoadPlan]] = []
        self._counted = np.zeros(_COUNTERS, np.int64)

    def _make(self) -> BatchMaker:
        """Return the batch maker for the current arguments."""
        sample = Sample.of(self._dataset, self._sample, self._destination.in_threads)
        if not sample.pictures and self._delivery.dtype is not None:
            raise ValueError("dtype of delivery is for images, and the batches have none")
        if self._delivery.dtype is not None and self._destination.in_threads is None:
            for picture in sample.pictures.values():
                if picture.is_plain:
                    # Refused here if it is twice, or of other channels: the device does not check.
                    replace(picture, pipeline=picture.pipeline.converted(ToFloat()))
        mixer = None
        if self._batch is not None:
            on_device = self._delivery.dtype is not None and self._destination.copies
            mixer = Mixer(self._dataset, sample, self._batch, on_device=on_device)
        outputs = Outputs(self._dataset, sample, mixer)
        return BatchMaker(self._dataset, outputs, self._destination, self._delivery)

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

    def _retire(self, plan: LoadPlan | None) -> None:
        """Keep a plan's counts when no iteration uses it any more."""
        if plan is not None and plan is not self._plan and all(plan is not other for _, other in self._iterations):
            self._counted = self._counted + np.array(plan.counters(), np.int64)

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"_plan": None, "_clock": Clock(), "_iterations": []}
        fresh["_counted"], fresh["_traffic"] = np.zeros(_COUNTERS, np.int64), np.zeros(2, np.int64)
        return {**self.__dict__, **fresh, "_skipper": Skipper(self._skipper.allows, self._dataset)}

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch.

        Raises:
            TypeError: the batch sampler has no length.
        """
        return len(self._source.sampler)  # type: ignore[arg-type]  # its TypeError is the right one

    def __iter__(self) -> Iterator[Any]:
        """Iterate over an epoch, or over the rest of it after `load_state_dict`; see the class."""
        _refuse_transform(self._dataset)  # it may have been set since
        if not self._maker.outputs.are_current:
            self._change()
        if self._plan is None:
            self._plan = self._maker.plan()
        self._warn_of_runs()
        if self._batch_transform is None:
            self._warn_of_places()
        iteration = self._iterate(self._maker, self._plan, self._batch_transform)
        close_at_exit(iteration)
        return iteration

    def _iterate(
        self,
        maker: BatchMaker,
        plan: LoadPlan,
        transform: Callable[[Any, BatchInfo], Any] | None,
    ) -> Iterator[Any]:
        process = _forks
        loading = plan.start(self._threads)
        iteration = (loading, plan)
        self._iterations.append(iteration)
        self._clock.start()
        source = self._source
        skips = EpochSkips(self._skipper, source.epoch_records, may_fall_short=source.may_fall_short)
        try:
            for group, batches in maker.groups(loading, source, self._clock, skips):
                for request, part, made in batches:
                    if made is None:
                        # The batch is empty. A state still counts it.
                        request.hand_out()
                        continue
                    if transform is not None:
                        views = group.views(part)
                        positions, rows = request.positions[part], request.rows[part]
                        made = transform(made, BatchInfo(request.seed, request.epoch, positions, rows, views))
                        if made is None:
                            raise TypeError("batch_transform returned None, not a batch")
                        if isinstance(views, Views) and not views.were_used:
                            self._warn_of_places()
                    request.hand_out()
                    self._clock.batches += 1
                    yield made
                    if process != _forks:
                        raise RuntimeError(
                            "this iteration began in another process, which has its threads: start a new iteration"
                        )
            skips.end()
        finally:
            if process == _forks:  # else the parent does it
                loading.close()
                self._iterations.remove(iteration)
                self._retire(plan)
                self._clock.stop()

    def _warn_of_runs(self) -> None:
        """Warn once if the loader augments, as for training, but its batches have few classes."""
        sampler = self._source.sampler
        if (
            self._warned
            or not self._maker.outputs.sample.moves
            or not isinstance(sampler, FastRecordBatchSampler)
            or sampler.shuffle is not False
        ):
            return
        if len(self._dataset) <= sampler.global_batch_size:
            return
        self._warned = True
        if lie_in_runs(self._dataset.selection.labels, self._dataset.rows, len(self._dataset)):
            warnings.warn(
                "the loader augments at random, as for training, but takes the records in file order, where neighbours "
                "are mostly of one class: write shuffle=True",
                stacklevel=3,
            )

    def _warn_of_places(self) -> None:
        """Warn once of boxes and the like in batches whose images are cropped or mirrored at random."""
        outputs, schema = self._maker.outputs, self._dataset.readers[0].schema
        if self._warned_of_places or not outputs.sample.moves:
            return
        self._warned_of_places = True
        others = [name for name in outputs.fields if name not in {*outputs.sample.pictures, *outputs.sample.places}]
        if found := find_places((name, schema[name]) for name in others):
            warnings.warn(
                f"images are cropped or mirrored at random, and {', '.join(map(repr, found))} come as they are stored, "
                "for the whole image: transforms.Like in sample= moves them, or a batch_transform by the matrix of its "
                "BatchInfo's views",
                stacklevel=3,
            )

    @property
    def dataset(self) -> FastRecordDataset:
        """The data set."""
        return self._dataset

    @property
    def sample(self) -> Given | None:
        """What becomes of images. Setting it (progressive resizing) affects the next iteration."""
        return self._sample

    @sample.setter
    def sample(self, sample: Given) -> None:
        self._change(_sample=sample)

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
        return self._source.sampler

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
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, ready for JSON; batches in progress do not count."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next iteration.

        Raises:
            TypeError, ValueError: the state is malformed or does not fit; nothing has changed then.
        """
        self._source.load_state_dict(state)

    def stats(self) -> LoaderStats:
        """Return the counts since the loader was made (or unpickled); call it at any time."""
        plans = {id(plan): plan for plan in (self._plan, *(plan for _, plan in self._iterations)) if plan is not None}
        counted = sum((np.array(plan.counters(), np.int64) for plan in plans.values()), start=self._counted)
        records, _, reads, size, read, decode, resize = counted.tolist()
        downloaded, found = (_traffic(self._dataset) - self._traffic).tolist()
        return LoaderStats(
            records=records,
            images=records if self._maker.outputs.sample.pictures else 0,
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
            bytes_downloaded=downloaded,
            bytes_from_cache=found,
            network_seconds=self._clock.network,
        )

    def __repr__(self) -> str:
        """Describe the data and the order."""
        made = {
            "sample": self._sample,
            "batch": self._batch,
            "batch_transform": self._batch_transform,
            "device": self._destination.device,
        }
        lines = [
            type(self).__name__,
            "    " + repr(self._dataset).replace("\n", "\n    "),
            f"    Batches: {self._source.sampler!r}",
            *(f"    {name}: {value}" for name, value in made.items() if value is not None),
            f"    threads: {self._threads}, prefetch: {self._delivery.prefetch}",
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
    way_out = ": write dataset.subset(indices) instead" if type(dataset).__name__ == "Subset" else ""
    raise TypeError(f"dataset is a FastRecordDataset or a path, not {type(dataset).__name__}{way_out}")


def _refuse_transform(dataset: FastRecordDataset) -> None:
    """Refuse a data set whose samples are changed in Python.

    Raises:
        ValueError: it has a transform.
    """
    if dataset.transform is not None:
        raise ValueError(
            "the data set has a transform, which runs in Python: write sample= or batch_transform= instead"
        )


def _traffic(dataset: FastRecordDataset) -> NDArray[np.int64]:
    """Return the bytes that this process has brought from stores and found in caches, int64 (2,)."""
    moved = [source.traffic() for source in dataset.selection.shards.sources]
    return np.array([sum(brought for brought, _ in moved), sum(found for _, found in moved)], np.int64)
