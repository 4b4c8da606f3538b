"""`pack`: a tree of images as shards of a data set, packed by the tasks of a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayTaskError

from fastrecord.checks import integer
from fastrecord.errors import Code
from fastrecord.files.manifest import FoundShard
from fastrecord.files.shard_names import Part
from fastrecord.files.writes.shards import ShardWrite, WriteMode, new_name, staged_shard
from fastrecord.pack.division import even_ends
from fastrecord.pack.images import ImageJob
from fastrecord.pack.output import NEVER
from fastrecord.pack.packer import BadFiles, PackProgress, PackSummary, check_options
from fastrecord.recode import Recode
from fastrecord.schema.shard_sets import Shard, new_set
from fastrecord.store import is_url

# Files in a shard by default: about 500 MB of images as in ImageNet.
_FILES = 4096


def pack(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    cpus_per_worker: float = 1,
    mode: WriteMode = "error",
    shards: int | None = None,
    list_path: str | os.PathLike[str] | None = None,
    classes_from: str | os.PathLike[str] | None = None,
    bad_files: BadFiles = "stop",
    allow_empty_classes: bool = False,
    short_side: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    raw: bool = False,
    crop_ready: str | None = None,
    crop_index: bool = False,
    sixteen_bit: str | None = None,
    store_options: Mapping[str, Any] | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackSummary:
    """Pack image files on a Ray cluster.

    This process lists the files. Each task packs a run of them into one shard, with the same
    records, in the same order and with the same bytes as `fastrecord pack --shards`. At the end this
    process adds all shards to the manifest of `dst` in one step, as `write_frec` does.

    Args:
        src: Folder with one sub-folder per class, or any folder that holds the files of the list, on
            a file system that all machines share. Or a URL: the folder of an object store that holds
            the class folders. Each task brings its own files, at most 256 at a time, into temporary
            files without names.
        dst: Folder of the data set, on a file system that all machines share.
        num_workers: Number of tasks at a time; by default as many as the cluster's CPUs allow.
        cpus_per_worker: CPUs that Ray sets aside for a task. A task reads and recodes on several
            threads.
        mode: "error": refuse a folder that holds a data set; "append": add to it; "overwrite":
            replace it.
        shards: Number of shards, whose numbers of records differ by at most one; by default one for
            4,096 files, and at least one for each worker.
        list_path: As for `fastrecord.pack_folder`, as are the following.
        classes_from: Likewise.
        bad_files: Likewise.
        allow_empty_classes: Likewise.
        short_side: Likewise.
        max_side: Likewise.
        quality: Likewise.
        raw: Likewise.
        crop_ready: Likewise.
        crop_index: Likewise.
        sixteen_bit: Likewise.
        store_options: For a URL, as for `FastRecordDataset`.
        progress: Called after each shard; an exception in it ends the pack.

    Returns:
        What was packed; `paths` are the shards.

    Raises:
        FileExistsError: `dst` holds a data set, and the mode is "error".
        FastRecordError, ValueError: as `fastrecord.pack_folder`; a URL and a list are given.
        Besides, what Ray raises for workers that die again and again.
    """
    started = time.perf_counter()
    check_options(False, False, False, bad_files, shards, None, NEVER)
    if list_path is not None and allow_empty_classes:
        raise ValueError("a list has no class folders: leave out allow_empty_classes")
    if num_workers is not None:
        integer("num_workers", num_workers, 1)
    recode = Recode(
        short_side=short_side,
        max_side=max_side,
        quality=quality,
        raw=raw,
        crop_ready=crop_ready,
        crop_index=crop_index,
        sixteen_bit=sixteen_bit,
    )
    with ShardWrite(dst, mode) as write:
        source = os.fspath(src) if is_url(src) else os.path.abspath(os.path.expanduser(os.fspath(src)))
        job = ImageJob.of(
            source,
            write.folder,
            list_path,
            classes_from,
            recode,
            bad_files,
            allow_empty_classes=allow_empty_classes,
            store_options=store_options,
        )
        source = job.listing.source
        total = len(job.listing)
        workers = num_workers or _workers(cpus_per_worker)
        count = shards if shards is not None else min(max(-(-total // _FILES), workers), total)
        ends = even_ends(total, count, source, "files")
        places = list(zip([0, *ends], ends, new_set(count), strict=False))
        summary = PackSummary(classes=job.classes, ignored=job.listing.ignored)
        found: dict[int, FoundShard] = {}
        skipped: dict[int, list[tuple[str, str]]] = {}
        done = 0
        calls = ((job.cut(start, stop), write.staging, shard) for start, stop, shard in places)
        for number, (shard, part) in _each(calls, workers, cpus_per_worker):
            found[number], skipped[number] = shard, part.skipped
            _add(summary, part)
            done += places[number][1] - places[number][0]
            if progress is not None:
                progress(PackProgress(done, total, summary.written))
        summary.skipped = [each for number in sorted(skipped) for each in skipped[number]]
        if not summary.records:
            key, reason = summary.skipped[0]
            raise Code.NO_IMAGES.error(
                f"{source}: none of its {total:,} input files is an image; the first, {key}: {reason}"
            )
        manifest = write.commit([found[number] for number in sorted(found)])
    summary.paths = [os.path.join(write.folder, name) for name in manifest.added]
    summary.empty_classes = job.empty_classes(summary.skipped)
    summary.seconds = time.perf_counter() - started
    return summary


def _pack_part(job: ImageJob, staging: str, shard: Shard) -> tuple[FoundShard, PackSummary]:
    """Pack files into one shard; runs in a worker."""
    path = os.path.join(staging, new_name())
    parts = [Part(path, 0, len(job.listing), shard)]
    summary = job.run(parts, path, "create", 1 << 30, None, time.perf_counter(), may_be_empty=True)
    return staged_shard(path), summary


def _each(calls: Iterator[Any], at_once: int, cpus: float) -> Iterator[tuple[int, Any]]:
    """Run calls of `_pack_part` as tasks, some at a time; yield (number, result) as they end."""
    task = ray.remote(_pack_part).options(num_cpus=cpus, name="fastrecord pack")
    waiting: dict[Any, int] = {}
    try:
        for number, call in enumerate(calls):
            waiting[task.remote(*call)] = number
            if len(waiting) == at_once:
                yield _next(waiting)
        while waiting:
            yield _next(waiting)
    finally:
        for left in waiting:
            ray.cancel(left, force=True)


def _next(waiting: dict[Any, int]) -> tuple[int, Any]:
    (ready,), _ = ray.wait(list(waiting), num_returns=1)
    number = waiting.pop(ready)
    try:
        return number, ray.get(ready)
    except RayTaskError as err:
        raise err.cause from None


def _workers(cpus: float) -> int:
    if not ray.is_initialized():
        ray.init()
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(int(resources.get("CPU", 1) / max(cpus, 1e-9)), 1)


def _add(summary: PackSummary, part: PackSummary) -> None:
    for name in ("records", "packed", "bytes", "written"):
        setattr(summary, name, getattr(summary, name) + getattr(part, name))
    for kind, number in part.foreign.items():
        summary.foreign[kind] = summary.foreign.get(kind, 0) + number
    if part.recoded is not None:
        before = summary.recoded or {}
        summary.recoded = {name: number + before.get(name, 0) for name, number in part.recoded.items()}
