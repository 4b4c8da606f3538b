"""`pack`: a tree of images as shards of a data set, packed by the tasks of a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import ray
from ray.exceptions import RayTaskError

from fastrecord.checks import choice
from fastrecord.errors import Code
from fastrecord.files.division import Part, even_ends
from fastrecord.files.publish.local import find_shard
from fastrecord.files.publish.shard_write import ShardWrite, WriteMode, new_name
from fastrecord.files.publish.shards import FoundShard
from fastrecord.interchange.files.image_files import ImageFiles
from fastrecord.packing.job import Job
from fastrecord.packing.options import BadFiles, Fields, Input, Output
from fastrecord.packing.pack import known_classes, open_source
from fastrecord.packing.packer import Packer
from fastrecord.packing.summary import PackProgress, PackSummary
from fastrecord.ray.workers import Workers
from fastrecord.recode import Recode
from fastrecord.schema.shard_sets import Shard, new_set
from fastrecord.store import is_url

# Files in a shard by default: about 500 MB of images as in ImageNet.
_FILES = 4096


def pack(
    source: str | os.PathLike[str] | Input,
    out: str | os.PathLike[str],
    *,
    fields: Fields = Fields(),
    recode: Recode = Recode(),
    output: Output = Output(),
    bad_files: BadFiles = "stop",
    workers: Workers = Workers(),
    progress: Callable[[PackProgress], None] | None = None,
) -> PackSummary:
    """Pack image files on a Ray cluster.

    This process lists the files. Each task packs a run of them into one shard, with the same
    records, in the same order and with the same bytes as `fastrecord pack --shards`. At the end this
    process adds all shards to the manifest of `out` in one step, as `write_frec` does.

    Args:
        source: Folder with one sub-folder per class, on a file system that all machines share; or an
            `Input` of the format "folder", maybe with a list. Or a URL: the folder of an object store
            that holds the class folders, whose files each task brings itself.
        out: Folder of the data set, on a file system that all machines share.
        fields: As for `fastrecord.pack`, as are `recode` and `bad_files`.
        recode: Likewise.
        output: Its mode, of which "resume" is not allowed, and number of shards; by default one for
            4,096 files, and at least one for each worker.
        bad_files: Likewise.
        workers: How many tasks there are.
        progress: Called after each shard; an exception in it ends the pack.

    Returns:
        What was packed; `paths` are the shards.

    Raises:
        FileExistsError: `out` holds a data set, with the mode "create".
        FastRecordError, ValueError: as `fastrecord.pack`.
        Besides, what Ray raises for workers that die again and again.
    """
    started = time.perf_counter()
    choice("bad_files", bad_files, get_args(BadFiles))
    if output.mode == "resume" or output.shard_size is not None or output.staging is not None:
        raise ValueError("a cluster packs into shards by number, and begins again: give mode and shards alone")
    mode: WriteMode = "error" if output.mode == "create" else output.mode
    skip = bad_files == "skip"
    given = source if isinstance(source, Input) else Input(source, "folder")
    path = os.fspath(given.source)
    shared = path if is_url(path) else os.path.abspath(os.path.expanduser(path))
    with (
        ShardWrite(out, mode) as write,
        open_source(replace(given, source=shared, format="folder"), fields, exact=True, skip=skip) as files,
    ):
        if not isinstance(files, ImageFiles):
            raise TypeError(f"source is of the format {files.format}: a cluster packs folders of images")
        files.refuse_output(write.folder)
        files.prepare(None, skip=skip, progress=lambda _: None)
        job = Job.of(files, fields, recode, known_classes(fields), bad_files)
        total = files.count()
        at_once = workers.count or _workers(workers.cpus)
        count = output.shards if output.shards is not None else min(max(-(-total // _FILES), at_once), total)
        ends = even_ends(total, count, files.where)
        places = list(zip([0, *ends], ends, new_set(count), strict=False))
        summary = PackSummary(classes=job.classes, ignored=files.ignored)
        made: dict[int, FoundShard] = {}
        skipped: dict[int, list[tuple[str, str]]] = {}
        done = 0
        calls = ((job.cut(start, stop), write.staging, shard) for start, stop, shard in places)
        for number, (shard, part) in _each(calls, at_once, workers.cpus):
            made[number], skipped[number] = shard, part.skipped
            _add(summary, part)
            done += places[number][1] - places[number][0]
            if progress is not None:
                progress(PackProgress(done, total, summary.written))
        summary.skipped = [each for number in sorted(skipped) for each in skipped[number]]
        if not summary.records:
            key, reason = summary.skipped[0]
            raise Code.NO_IMAGES.error(f"{path}: none of its {total:,} inputs is good; the first, {key}: {reason}")
        manifest = write.commit([made[number] for number in sorted(made)])
    summary.paths = [os.path.join(write.folder, name) for name in manifest.added]
    summary.empty_classes = files.empty_classes({key for key, _ in summary.skipped})
    summary.seconds = time.perf_counter() - started
    return summary


def _pack_part(job: Job, staging: str, shard: Shard) -> tuple[FoundShard, PackSummary]:
    """Pack files into one shard; runs in a worker."""
    path = os.path.join(staging, new_name())
    parts = [Part(path, 0, len(job.source.keys or ()), shard)]
    summary = Packer(job, may_be_empty=True).run(parts, path, "create")
    return find_shard(path), summary


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
    summary.count(part.foreign, part.recoded)
