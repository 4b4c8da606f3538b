"""`plan`: predicts a training run, what limits it and what would lift the limit.

Turns options and tables into a `Setup`, and the model's answer into a `Plan`. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastrecord.checks import choice
from fastrecord.inspect import tables, units
from fastrecord.inspect.findings import Answer
from fastrecord.inspect.model import Setup, Step, operations_of, run, step
from fastrecord.inspect.plan_options import Cluster, Data, Training
from fastrecord.inspect.tables import GPUS, WAYS

if TYPE_CHECKING:
    from fastrecord.inspect.benchmark import Report

_SHOWN = 0.02  # a share of the step below which no advice mentions the all-reduce


@dataclass(frozen=True)
class WayPlan:
    """What one way to store the images asks for.

    Attributes:
        name: The way: "original", "crop-index", "packed", "short-side", "short-side-packed", "raw", or
            "measured".
        image_bytes: Bytes of an image.
        dataset_bytes: Bytes of all images, of training and evaluation: the page cache that a node
            needs to read the storage no more.
        cores_per_gpu: Cores that decode as fast as one GPU trains.
        storage_bytes_per_second: Bytes per second that keep all GPUs busy, without a page cache.
        operations_per_second: The same in read operations.
        images_per_second: The run's rate, stored this way.
        limit: What limits it.
    """

    name: str
    image_bytes: float
    dataset_bytes: float
    cores_per_gpu: float
    storage_bytes_per_second: float
    operations_per_second: float
    images_per_second: float
    limit: str


@dataclass(frozen=True)
class Plan(Answer):
    """A predicted training run.

    Attributes:
        setup: The numbers that it was computed from.
        gpu: The GPU's name; None if its rate was given.
        precision: The precision; None if the GPU's rate was given.
        stored: How the images are stored.
        images_per_second: Images trained on per second, by all GPUs, in the last epoch.
        first_epoch_images_per_second: The same in the first epoch, which finds no page cache.
        gpu_images_per_second: The same if data were always there.
        epoch_seconds: Time of the last epoch, with its evaluation.
        run_seconds: Time of all epochs.
        storage_needed: Bytes per second that keep all GPUs busy, without a page cache.
        operations_needed: The same in read operations per second.
        storage_read: Bytes per second read from the storage, on average over the run.
        operations_read: The same in read operations per second.
        page_cache: Bytes of page cache that a node needs to read the storage no more.
        cached: Share of the last epoch's reads that the page cache answers.
        allreduce_share: Share of the step that waits for the all-reduce.
        step: Seconds of the parts of a step in the last epoch.
        first_step: The same in the first epoch.
        limit: What limits the last epoch: "gpus", "all-reduce", "storage", "read operations" or
            "decoding".
        advice: What would lift the limit, as sentences.
        notes: What the plan assumes, as sentences.
        ways: The same run with each way to store the images.
    """

    setup: Setup
    gpu: str | None
    precision: str | None
    stored: str
    images_per_second: float
    first_epoch_images_per_second: float
    gpu_images_per_second: float
    epoch_seconds: float
    run_seconds: float
    storage_needed: float
    operations_needed: float
    storage_read: float
    operations_read: float
    page_cache: float
    cached: float
    allreduce_share: float
    step: Step
    first_step: Step
    limit: str
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    ways: tuple[WayPlan, ...]


def plan(
    cluster: Cluster,
    training: Training | None = None,
    data: Data | None = None,
    *,
    report: Report | None = None,
) -> Plan:
    """Predict the speed of a training run, what limits it, and what would lift the limit.

    docs/plan.md has the formulas, the sources of the tables, and the errors on published runs.

    Args:
        cluster: The machine.
        training: How it trains. Default: `Training()`.
        data: The images. Default: `Data()`.
        report: A return value of `bench`, for this machine's rates instead of the tables'.

    Raises:
        ValueError: no rate of the GPU is known, or options contradict each other.
    """
    training, data = training or Training(), data or Data()
    notes: list[str] = []
    given = cluster.amounts() | training.amounts() | data.amounts()
    nodes, batch, stored = cluster.nodes, training.batch, data.stored
    fixed, per_image, link, precision = _gpu(cluster, training, notes)
    images = given.get("images", report.records if report else tables.IMAGES)
    if cluster.gpus * batch > images:
        who = f"{cluster.gpus} GPU{'s' * (cluster.gpus > 1)} x batch {batch}"
        raise ValueError(
            f"a step takes {cluster.gpus * batch:,} images ({who}), but an epoch has only {images:,.0f}: give the "
            "number of images (images, --images), or a smaller batch"
        )
    if nodes > 1 and cluster.net is None:
        raise ValueError(f"{nodes} nodes exchange gradients: net says how fast (--net 100Gb/s)")
    if cluster.net is not None and nodes == 1:
        notes.append("One node: the network is not used.")
    original = given.get("image_bytes", report.mean_bytes if report else tables.IMAGE_BYTES)
    storage = given.get("storage")
    if storage is None and report is not None:
        storage = _disk(report, nodes, notes)
    if storage is None:
        notes.append("The storage is taken as fast enough (--storage).")
    if cluster.ram is None:
        notes.append("Nothing stays in the page cache (--ram).")
    cores = given.get("cores", report.cpus if report else None)
    if cores is None:
        notes.append("There are cores enough to decode (--cores).")
    ways = {name: (original * way.share if way.share else way.nbytes or 0.0, way.decode) for name, way in WAYS.items()}
    if report is not None:
        ways = {"measured": (original, _decode(report)), **({} if stored in (None, "measured") else ways)}
    stored = choice("stored", stored or next(iter(ways)), list(ways))
    setup = Setup(
        gpus=cluster.gpus,
        nodes=nodes,
        batch=batch,
        fixed=fixed,
        per_image=per_image,
        images=images,
        val_images=given["val_images"],
        image_bytes=ways[stored][0],
        epochs=training.epochs,
        gradient_bytes=given["parameters"] * training.gradient_bits / 8,
        link=given.get("link", link),
        net=given.get("net", 0.0),
        latency=given["latency"] / 1e6,
        storage=storage,
        operations=given.get("iops"),
        cache=given.get("ram", 0.0),
        cores=cores,
        decode=ways[stored][1],
        pause=given["pause"],
        efficiency=cluster.efficiency,
    )
    done = run(setup)
    global_batch = setup.gpus * setup.batch
    read = done.bytes_read / done.seconds
    way_plans = {name: _way(setup, name, nbytes, decode) for name, (nbytes, decode) in ways.items()}
    now = way_plans[stored]
    return Plan(
        setup=setup,
        gpu=cluster.gpu,
        precision=precision,
        stored=stored,
        images_per_second=now.images_per_second,
        first_epoch_images_per_second=global_batch / done.first.total,
        gpu_images_per_second=global_batch / done.last.gpu,
        epoch_seconds=done.last_epoch,
        run_seconds=done.seconds,
        storage_needed=now.storage_bytes_per_second,
        operations_needed=now.operations_per_second,
        storage_read=read,
        operations_read=read / setup.image_bytes * operations_of(setup.image_bytes),
        page_cache=now.dataset_bytes,
        cached=done.cached,
        allreduce_share=done.last.exposed / done.last.total,
        step=done.last,
        first_step=done.first,
        limit=now.limit,
        advice=tuple(_advice(setup, done.last, cluster.gpu, precision, now, way_plans.values())),
        notes=tuple(notes),
        ways=tuple(way_plans.values()),
    )


def limit_of(parts: Step) -> str:
    """Return the name of the slowest part of a step."""
    gpus = "all-reduce" if parts.exposed > parts.compute else "gpus"
    times = {gpus: parts.gpu, "storage": parts.storage, "read operations": parts.operations, "decoding": parts.decode}
    return max(times, key=lambda name: times[name])


def _gpu(cluster: Cluster, training: Training, notes: list[str]) -> tuple[float, float, float, str | None]:
    """Return a step's fixed seconds, an image's seconds, the link and the precision."""
    gpu, precision = cluster.gpu, training.precision
    found = None if gpu is None else GPUS.get(gpu.upper())
    own = cluster.amounts().get("gpu_rate")
    if own is not None:
        if precision is not None:
            raise ValueError("precision chooses a published rate, and gpu_rate replaces it: give one of them")
        if found is None:
            notes.append("The GPUs of a node are linked by PCIe 3.0 x16 (--link).")
        return 0.0, 1 / own, found.link if found else tables.PCIE, None
    if gpu is None:
        raise ValueError("gpu or gpu_rate is required: which GPU, or how many images per second one of them trains")
    if found is None or not found.rates:
        known = ", ".join(name for name, one in GPUS.items() if one.rates)
        raise ValueError(
            f"no published rate of a GPU {gpu!r} is known, only of {known}: give the rate that you measured as gpu_rate"
        )
    precision = precision or ("amp" if "amp" in found.rates else "fp32")
    if precision not in found.rates:
        known = ", ".join(found.rates)
        raise ValueError(f"no published rate of the {gpu} in {precision} is known, only in {known}: give gpu_rate")
    rate = found.rates[precision]
    whole = rate.batch / rate.images_per_second
    fixed = min(found.fixed, whole / 2)
    notes.append(f"{rate.images_per_second:,.0f} images/s at batch {rate.batch} on one GPU: {rate.source}.")
    if not rate.batch / 2 <= training.batch <= 2 * rate.batch:
        notes.append(
            f"Batch {training.batch} is far from {rate.batch}: {units.time_text(fixed)} of a step are taken as fixed "
            f"({found.fixed_source})."
        )
    return fixed, (whole - fixed) / rate.batch, found.link, precision


def _disk(report: Report, nodes: int, notes: list[str]) -> float | None:
    """Return the rate of cold reads, if the benchmark's first reading came from the disk."""
    row = report.row("read")
    if row is None or report.cached is None or report.cached > 0.5 or not row.bytes:
        notes.append(
            "Even with --cold the file lay in memory: its disk was not measured (a larger file's is)."
            if report.cold
            else "The file lay in memory: its disk was not measured (--cold does)."
        )
        return None
    notes.append("Each node has a disk like this machine's.")
    return nodes * row.bytes / row.seconds


def _decode(report: Report) -> float:
    """Return the CPU seconds of an image in the loader on one thread, or of a copied record."""
    row = report.row("load", 1) or report.row("load") or report.row("copies", 1)
    if row is None or not row.records:
        raise ValueError(f"{report.file}: the report has no row of the loader: measure longer")
    return row.cpu_seconds / row.records


def _way(setup: Setup, name: str, nbytes: float, decode: float) -> WayPlan:
    other = replace(setup, image_bytes=nbytes, decode=decode)
    done = run(other)
    rate = setup.gpus * setup.batch / done.last.gpu
    return WayPlan(
        name=name,
        image_bytes=nbytes,
        dataset_bytes=(other.images + other.val_images) * nbytes,
        cores_per_gpu=rate / setup.gpus * decode,
        storage_bytes_per_second=rate * nbytes,
        operations_per_second=rate * operations_of(nbytes),
        images_per_second=setup.gpus * setup.batch / done.last.total,
        limit=limit_of(done.last),
    )


def _advice(
    setup: Setup, last: Step, gpu: str | None, precision: str | None, now: WayPlan, ways: Collection[WayPlan]
) -> list[str]:
    """Return what would lift the limit; each sentence is computed with the same model."""
    advice, limit = [], now.limit
    if limit in ("storage", "read operations", "decoding"):
        better = [way for way in ways if way.images_per_second > 1.02 * now.images_per_second]
        if better:
            best = max(better, key=lambda way: (way.images_per_second, -way.dataset_bytes))
            advice.append(
                f"Store the images as {best.name} (fastrecord pack {WAYS[best.name].options}): "
                f"{best.images_per_second:,.0f} images/s, then limited by {best.limit}."
            )
    if limit == "storage":
        needed = setup.storage * last.storage / last.gpu if setup.storage else 0.0
        advice.append(f"A storage of {units.size_text(needed)}/s keeps the GPUs busy.")
    if limit == "read operations":
        needed = setup.operations * last.operations / last.gpu if setup.operations else 0.0
        advice.append(f"A storage of {needed:,.0f} read operations/s keeps the GPUs busy.")
    if limit in ("storage", "read operations") and setup.cache < now.dataset_bytes:
        epochs = "from the second epoch on" if setup.nodes == 1 else "after some epochs"
        advice.append(
            f"{units.size_text(now.dataset_bytes)} of page cache on each node replace the storage {epochs} (--ram)."
        )
    if limit == "decoding":
        needed = (setup.cores or 0) * last.decode / last.gpu
        advice.append(f"{needed:,.0f} cores on each node keep the GPUs busy.")
    if limit == "gpus":
        slower = max(last.storage, last.operations, last.decode)
        advice.append(
            "The data is always there"
            + (f": the rest could take {last.gpu / slower:.2f} times as many images." if slower else ".")
            + " More or faster GPUs make the run faster."
        )
        rates = GPUS[gpu.upper()].rates if gpu and precision else {}
        if precision in ("fp32", "amp") and "amp-nhwc" in rates:
            advice.append(
                f"Mixed precision with the memory format channels_last (--precision amp-nhwc): one {gpu} trains "
                f"{rates['amp-nhwc'].images_per_second:,.0f} images/s instead of "
                f"{rates[precision].images_per_second:,.0f}."
            )
    if limit == "all-reduce" or (limit == "gpus" and last.exposed > _SHOWN * last.total):
        doubled = step(replace(setup, batch=2 * setup.batch))
        advice.append(
            f"The all-reduce costs {100 * last.exposed / last.total:.0f} % of a step. A batch of {2 * setup.batch} "
            f"makes that {100 * doubled.exposed / doubled.gpu:.0f} %; a faster network or 16-bit gradients "
            "(--gradient-bits 16) shorten it too."
        )
    return advice
