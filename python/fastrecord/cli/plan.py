"""The command plan: prints a predicted training run. Predicts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fastrecord import inspect
from fastrecord.cli.command import json_option
from fastrecord.cli.text import say
from fastrecord.inspect.cache_estimate import estimate_cache
from fastrecord.inspect.plan_options import CacheOptions, Cluster, Data, Training
from fastrecord.inspect.units import size_text, time_text
from fastrecord.options import as_flags, derived, flag, given, made, path_type, texts

if TYPE_CHECKING:
    from fastrecord.inspect.cache_estimate import CacheEstimate
    from fastrecord.inspect.prediction import Plan

_SECONDS = 10.0
_NAMES = {
    "gpus": "the GPUs",
    "all-reduce": "the all-reduce",
    "storage": "the storage's bytes/s",
    "read operations": "the storage's read operations/s",
    "decoding": "decoding, on the CPU",
}


# Options that go with --cache.
_WITH_CACHE = {"gpus", "nodes", "batch", "images", "image_bytes", *texts(CacheOptions)}


@click.command()
@derived(Cluster)
@derived(Training)
@derived(Data)
@derived(CacheOptions)
@click.option(
    "--measure",
    type=path_type,
    metavar="FILE",
    help="Measure this machine on FILE for 10 seconds, as `bench --cold` does: its disk and its CPUs.",
)
@json_option
def plan(measure: str | None, as_json: bool, **options: Any) -> None:
    """Predict the speed of a training run, what limits it, and what would lift the limit.

    The rates of GPUs, and of decoding, are published or measured elsewhere; docs/plan.md has their sources, the
    formulas, and how far plans are off published runs. --measure takes this machine's rates. Nothing is changed.

    With --cache it predicts instead what the nodes download and ask for, and how large their caches must be.
    """
    names = given(options).keys()
    if "cache" in names and (measure or not names <= _WITH_CACHE):
        raise click.UsageError(f"--cache goes with {_flags(_WITH_CACHE - {'cache'})} and --json only")
    if "cache" not in names and names & texts(CacheOptions).keys():
        raise click.UsageError(f"{_flags(names & texts(CacheOptions).keys())} is for --cache")
    run = made(Cluster, options), made(Training, options), made(Data, options)
    try:
        if "cache" in names:
            estimate = estimate_cache(*run, made(CacheOptions, options))
            say(*[json.dumps(estimate.to_dict())] if as_json else _cache_text(estimate))
            return
        report = None
        if measure is not None:
            cluster, training, data = run
            # A wrong option is an error before the measurement, not after it.
            inspect.plan(cluster, training, replace(data, stored=None) if data.stored == "measured" else data)
            report = inspect.bench(measure, seconds=_SECONDS, cold=True)
        found = inspect.plan(*run, report=report)
    except ValueError as error:
        raise click.UsageError(as_flags(str(error), Cluster, Training, Data)) from error
    say(*[json.dumps(found.to_dict())] if as_json else _text(found))


def _flags(names: Iterable[str]) -> str:
    return ", ".join(flag(name).replace("--affinity", "--no-affinity") for name in sorted(names))


def _cache_text(plan: CacheEstimate) -> list[str]:
    order = {"full": "shuffled", "blocks": "shuffled by blocks", "none": "in order"}[plan.shuffle]
    if plan.nodes > 1:
        order += ', affinity="shard"' if plan.affinity else ", without affinity"
    total = plan.images * plan.image_bytes
    lines = [
        f"{plan.images:,.0f} images of {size_text(plan.image_bytes)}, {size_text(total)} in all, {order}",
        f"{plan.nodes:,} node{'s' * (plan.nodes > 1)} with {plan.gpus // plan.nodes:,} ranks and a cache of "
        f"{size_text(plan.cache_bytes)} each; global batches of {plan.gpus * plan.batch:,}",
        "",
        f"{'':<22}{'a node':>10}  {'all nodes':>10}  {'requests':>16}",
    ]
    rows = [
        ("the first epoch", plan.first_epoch_bytes, plan.first_epoch_requests),
        ("each later epoch", plan.epoch_bytes, plan.epoch_requests),
    ]
    for name, size, asked in rows:
        lines.append(f"{name:<22}{size_text(size / plan.nodes):>10}  {size_text(size):>10}  {asked:>16,.0f}")
    lines += [
        "",
        f"Opening shards asks at most {plan.open_requests:,.0f} times more, in the first epoch.",
        f"The least cache of a node: {size_text(plan.least_cache_bytes)}.",
    ]
    if plan.cache_for_all_bytes:
        rest = f" {100 * plan.spilled:.1f} % of the records, which" if plan.spilled else " nothing, since"
        end = " go to other nodes than their own" if plan.spilled else " all of them are there"
        lines.append(f"From {size_text(plan.cache_for_all_bytes)} on, later epochs download{rest}{end}.")
    else:
        lines.append("Each epoch gives a node other records: affinity would let it keep its own.")
    return lines


def _text(plan: Plan) -> Iterator[str]:
    setup, step = plan.setup, plan.step
    nodes = "1 node" if setup.nodes == 1 else f"{setup.nodes} nodes"
    kind = f", {plan.precision}" if plan.precision else ""
    images = setup.gpus * setup.batch
    yield f"{setup.gpus} x {plan.gpu or 'GPU'} on {nodes}{kind}, batch {setup.batch} ({images:,} in all)"
    yield (
        f"{setup.images:,.0f} images, stored as {plan.stored}: {size_text(setup.image_bytes)} each, "
        f"{size_text(plan.page_cache)} in all"
    )
    yield (
        f"expected: {plan.images_per_second:,.0f} images/s, an epoch in {time_text(plan.epoch_seconds)}, "
        f"{setup.epochs} epochs in {time_text(plan.run_seconds)}"
    )
    if plan.cached:
        yield (
            f"the first epoch: {plan.first_epoch_images_per_second:,.0f} images/s; the page cache answers "
            f"{100 * plan.cached:.0f} % of the reads of the last one"
        )
    yield from ("", f"{'part of a step, all at the same time':<40}{'ms':>9}  {'images/s':>10}")
    for name, seconds in (
        ("GPUs: compute and exposed all-reduce", step.gpu),
        ("storage: bytes/s", step.storage),
        ("storage: read operations/s", step.operations),
        ("decoding", step.decode),
    ):
        rate = f"{1000 * seconds:>9.1f}  {images / seconds:>10,.0f}" if seconds else f"{'-':>9}  {'unlimited':>10}"
        yield f"{name:<40}{rate}"
    yield (
        f"all-reduce: {1000 * step.allreduce:.1f} ms ({1000 * step.exposed:.1f} ms exposed, "
        f"{100 * plan.allreduce_share:.1f} % of the step)"
    )
    needed, read = size_text(plan.storage_needed), size_text(plan.storage_read)
    yield from ("", f"storage, to keep the GPUs busy: {needed}/s, {plan.operations_needed:,.0f} reads/s")
    yield f"storage, read on average: {read}/s, {plan.operations_read:,.0f} reads/s"
    yield f"page cache of a node that holds everything: {size_text(plan.page_cache)}"
    titles = f"{'stored as':<18}{'an image':>9}  {'all of them':>11}  {'cores/GPU':>9}"
    yield from ("", f"{titles}  {'storage':>10}  {'images/s':>10}  limit")
    for way in plan.ways:
        yield (
            f"{way.name:<18}{size_text(way.image_bytes):>9}  {size_text(way.dataset_bytes):>11}  "
            f"{way.cores_per_gpu:>9.2f}  {size_text(way.storage_bytes_per_second) + '/s':>10}  "
            f"{way.images_per_second:>10,.0f}  {way.limit}"
        )
    yield from ("", f"The limit is {_NAMES[plan.limit]}.")
    if plan.advice:
        yield from ("What would help:", *(f"  - {advice}" for advice in plan.advice))
    yield from ("Assumed:", *(f"  - {note}" for note in plan.notes))
