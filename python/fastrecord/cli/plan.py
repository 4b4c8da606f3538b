"""The subcommand plan: prints a predicted training run. Predicts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import NumberRange, parse_pairs, path_type
from fastrecord.cli.text import say

if TYPE_CHECKING:
    from fastrecord.inspect.benchmark import Report
    from fastrecord.inspect.cache_plan import PaperCache
    from fastrecord.inspect.prediction import Plan

_NAMES = {
    "gpus": "the GPUs",
    "all-reduce": "the all-reduce",
    "storage": "the storage's bytes/s",
    "read operations": "the storage's read operations/s",
    "decoding": "decoding, on the CPU",
}


def _observed(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[int, str] | str | None:
    """Parse GPUS=RATE,..., or return the path of a file of results."""
    if value is None or (value and "=" not in value):
        return value
    try:
        return {int(gpus): rate for gpus, rate in parse_pairs(ctx, param, value).items()}
    except ValueError as err:
        raise click.UsageError("--observed is GPUS=IMAGES/S, such as 1=856,8=6636, or a file of results") from err


@click.command()
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Number of GPUs in all.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes. Default: 1.")
@click.option(
    "--gpu",
    metavar="NAME",
    help="K80, P100, V100, A100, H100 or H100-PCIE: the published rate "
    "of ResNet-50. Also H200, B200 or L40S with --gpu-rate, for the link.",
)
@click.option(
    "--precision",
    metavar="NAME",
    help="fp32, amp, amp-nhwc (channels last) or amp-xla. Default: amp, or fp32 if that is all.",
)
@click.option("--gpu-rate", metavar="IMAGES/S", help="Rate of one GPU alone at this batch, for other GPUs and models.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Images of a step on one GPU. Default: 256.")
@click.option("--images", metavar="N", help="Images in an epoch. Default: 1281167, or as --measure finds.")
@click.option("--image-bytes", metavar="SIZE", help="Mean size of an original. Default: 116kB, or as --measure finds.")
@click.option("--val-images", metavar="N", help="Images evaluated after each epoch. Default: none.")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Number of epochs. Default: 90.")
@click.option("--stored", metavar="WAY", help="original, crop-index, crop-ready, short-side, short-side-index or raw.")
@click.option("--storage", metavar="RATE", help="Rate of the storage that all nodes share: 4GB/s. Default: unlimited.")
@click.option("--iops", metavar="N", help="Its read operations per second. Default: unlimited.")
@click.option("--ram", metavar="SIZE", help="Memory of a node for the page cache: 200GiB. Default: none.")
@click.option("--net", metavar="RATE", help="Network of a node: 100Gb/s. Required for several nodes.")
@click.option("--link", metavar="RATE", help="Link between the GPUs of a node. Default: the GPU's NVLink or PCIe.")
@click.option(
    "--latency", type=NumberRange(min=0, min_open=True), metavar="US", help="Of a ring's step. Default: 5 us."
)
@click.option("--cores", type=NumberRange(min=0, min_open=True), metavar="N", help="Cores of a node that decode.")
@click.option("--parameters", metavar="N", help="Trained parameters. Default: ResNet-50's 25557032.")
@click.option("--gradient-bits", type=click.Choice(["16", "32"]), help="Size of an exchanged gradient. Default: 32.")
@click.option(
    "--pause", type=NumberRange(min=0), metavar="S", help="Seconds of an epoch in which nothing is trained. Default: 0."
)
@click.option(
    "--efficiency",
    type=NumberRange(min=0.5, max=1),
    metavar="SHARE",
    help="What each GPU keeps of its rate when their number doubles. Default: 0.97.",
)
@click.option(
    "--observed",
    callback=_observed,
    metavar="GPUS=RATE,...|FILE",
    help="Images/s on fewer GPUs of the machine, to fit the efficiency to: 1=856,8=6636. Or results of the experiment "
    "scaling, benches/results/full/scaling.jsonl.",
)
@click.option("--measure", type=path_type, metavar="FILE", help="Measure this machine on FILE, as bench does.")
@click.option(
    "--seconds",
    type=NumberRange(min=0, min_open=True, max=3600),
    default=10.0,
    show_default=True,
    help="For --measure.",
)
@click.option("--cold", is_flag=True, help="Drop FILE from memory first, so that --measure measures its disk.")
@click.option("--plot", type=path_type, metavar="PICTURE", help="Also draw images/s against GPUs: .png, .svg or .pdf.")
@click.option(
    "--cache",
    metavar="SIZE",
    help="Instead, what a run reads from an object store with a cache of SIZE on each node, such as 500GiB. For "
    "--images, --image-bytes, --gpus, --nodes and --batch.",
)
@click.option(
    "--shuffle",
    type=click.Choice(["full", "blocks", "none"]),
    help="The order of the records, for --cache. Default: full.",
)
@click.option(
    "--block", type=click.IntRange(min=1), metavar="N", help="Records of a block. Default: 2 to 4 MiB of them."
)
@click.option("--window", type=click.IntRange(min=1), metavar="N", help="Blocks of a window. Default: 128.")
@click.option("--no-affinity", is_flag=True, help='For --cache: without affinity="shard" on several nodes.')
@click.option("--shard-bytes", metavar="SIZE", help="Size of a shard, for --cache. Default: 256MiB.")
@click.option("--published", is_flag=True, help="Instead, compare plans with published runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    measure: str | None,
    seconds: float,
    cold: bool,
    plot: str | None,
    published: bool,
    as_json: bool,
    latency: float | None,
    gradient_bits: str | None,
    cache: str | None,
    no_affinity: bool,
    **options: Any,
) -> None:
    """Predict the speed of a training run, what limits it, and what would lift the limit.

    The rates of GPUs, and of decoding, are published or measured elsewhere; docs/plan.md has their sources, the
    formulas, and how far plans are off published runs. --measure takes this machine's rates. Nothing is changed.

    With --cache it predicts instead what the nodes download and ask for, and how large their caches must be.
    """
    given = {name: value for name, value in options.items() if value is not None and value != {}}
    if published:
        if given or measure or plot or cache:
            raise click.UsageError("--published takes no other option than --json")
        _published(as_json=as_json)
        return
    if cache is not None:
        if latency is not None or gradient_bits is not None or measure or plot:
            raise click.UsageError(f"--cache goes with {_names(_WITH_CACHE)}, --no-affinity and --json only")
        _cache({**given, "cache": cache, "affinity": not no_affinity}, as_json=as_json)
        return
    if no_affinity or (alone := [name for name in _ONLY_CACHE if name in given]):
        raise click.UsageError(f"{_names(['no_affinity'] if no_affinity else alone)} is for --cache")
    if "gpus" not in given:
        raise click.UsageError("Missing option '--gpus'.")
    if cold and measure is None:
        raise click.UsageError("--cold is for --measure")
    if latency is not None:
        given["latency"] = latency / 1e6
    if gradient_bits is not None:
        given["gradient_bits"] = int(gradient_bits)
    from fastrecord.inspect.prediction import plan_training
    from fastrecord.inspect.prediction_plot import check_picture, plot_plan

    report = None
    try:
        if measure is not None:
            # A wrong option is an error before the measurement, not after it.
            stored = given.get("stored")
            plan_training(**{**given, "stored": None if stored == "measured" else stored})
            if plot is not None:
                check_picture(plot)
            report = _measured(measure, seconds=seconds, cold=cold)
        found = plan_training(**given, report=report)
        if plot is not None:
            plot_plan(found, plot)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    say(json.dumps(found.to_dict())) if as_json else say(*_text(found))


_ONLY_CACHE = ("shuffle", "block", "window", "shard_bytes")
_WITH_CACHE = ("gpus", "nodes", "batch", "images", "image_bytes", *_ONLY_CACHE)


def _names(options: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in options)


def _cache(given: dict[str, Any], *, as_json: bool) -> None:
    from fastrecord.inspect.cache_plan import plan_cache_on_paper

    if set(given) - {*_WITH_CACHE, "cache", "affinity"}:
        raise click.UsageError(f"--cache goes with {_names(_WITH_CACHE)}, --no-affinity and --json only")
    try:
        found = plan_cache_on_paper(**given)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    say(json.dumps(found.to_dict())) if as_json else say(*_cache_text(found))


def _cache_text(plan: PaperCache) -> list[str]:
    from fastrecord.inspect.units import size_text

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
        ("the first epoch", plan.first_epoch_node_bytes, plan.first_epoch_bytes, plan.first_epoch_requests),
        ("each later epoch", plan.epoch_node_bytes, plan.epoch_bytes, plan.epoch_requests),
    ]
    lines += [f"{name:<22}{size_text(a):>10}  {size_text(b):>10}  {asked:>16,.0f}" for name, a, b, asked in rows]
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


def _measured(file: str, *, seconds: float, cold: bool) -> Report:
    from fastrecord.inspect.benchmark import bench_file

    return bench_file(file, seconds=seconds, cold=cold)


def _text(plan: Plan) -> list[str]:
    return [*_about(plan), "", *_parts(plan), "", *_demands(plan), "", *_ways(plan), "", *_verdict(plan)]


def _about(plan: Plan) -> list[str]:
    from fastrecord.inspect.units import size_text, time_text

    setup = plan.setup
    name = plan.gpu or "GPU"
    nodes = "1 node" if setup.nodes == 1 else f"{setup.nodes} nodes"
    kind = f", {plan.precision}" if plan.precision else ""
    lines = [
        f"{setup.gpus} x {name} on {nodes}{kind}, batch {setup.batch} ({setup.gpus * setup.batch:,} in all)",
        f"{setup.images:,.0f} images, stored as {plan.stored}: {size_text(setup.image_bytes)} each, "
        f"{size_text(plan.page_cache)} in all",
        f"expected: {plan.images_per_second:,.0f} images/s, an epoch in {time_text(plan.epoch_seconds)}, "
        f"{setup.epochs} epochs in {time_text(plan.run_seconds)}",
    ]
    if plan.cached:
        lines.append(
            f"the first epoch: {plan.first_epoch_images_per_second:,.0f} images/s; the page cache answers "
            f"{100 * plan.cached:.0f} % of the reads of the last one"
        )
    return lines


def _parts(plan: Plan) -> list[str]:
    """Return a step's parts; they run at the same time, and the slowest one counts."""
    step, images = plan.step, plan.setup.gpus * plan.setup.batch
    rows = [
        ("GPUs: compute and exposed all-reduce", step.gpu),
        ("storage: bytes/s", step.storage),
        ("storage: read operations/s", step.operations),
        ("decoding", step.decode),
    ]
    lines = [f"{'part of a step, all at the same time':<40}{'ms':>9}  {'images/s':>10}"]
    for name, seconds in rows:
        rate = f"{1000 * seconds:>9.1f}  {images / seconds:>10,.0f}" if seconds else f"{'-':>9}  {'unlimited':>10}"
        lines.append(f"{name:<40}{rate}")
    lines.append(
        f"all-reduce: {1000 * step.allreduce:.1f} ms ({1000 * step.exposed:.1f} ms exposed, "
        f"{100 * plan.allreduce_share:.1f} % of the step)"
    )
    return lines


def _demands(plan: Plan) -> list[str]:
    from fastrecord.inspect.units import rate_text, size_text

    return [
        f"storage, to keep the GPUs busy: {rate_text(plan.storage_needed)}, {plan.operations_needed:,.0f} reads/s",
        f"storage, read on average: {rate_text(plan.storage_read)}, {plan.operations_read:,.0f} reads/s",
        f"page cache of a node that holds everything: {size_text(plan.page_cache)}",
    ]


def _ways(plan: Plan) -> list[str]:
    from fastrecord.inspect.units import rate_text, size_text

    titles = f"{'stored as':<18}{'an image':>9}  {'all of them':>11}  {'cores/GPU':>9}"
    head = f"{titles}  {'storage':>10}  {'images/s':>10}  limit"
    return [
        head,
        *(
            f"{way.name:<18}{size_text(way.image_bytes):>9}  {size_text(way.dataset_bytes):>11}  "
            f"{way.cores_per_gpu:>9.2f}  "
            f"{rate_text(way.storage_bytes_per_second):>10}  {way.images_per_second:>10,.0f}  {way.limit}"
            for way in plan.ways
        ),
    ]


def _verdict(plan: Plan) -> list[str]:
    lines = [f"The limit is {_NAMES[plan.limit]}."]
    if plan.advice:
        lines += ["What would help:", *(f"  - {advice}" for advice in plan.advice)]
    return [*lines, "Assumed:", *(f"  - {note}" for note in plan.notes)]


def _published(*, as_json: bool) -> None:
    from dataclasses import asdict

    from fastrecord.inspect.published import check

    checks = check()
    if as_json:
        say(json.dumps([asdict(one) for one in checks]))
        return
    machine = None
    for one in checks:
        if one.machine != machine:
            machine = one.machine
            say("", f"{machine}: efficiency {one.efficiency:.3f}")
        figure, kind = one.figure, "fitted" if one.figure.fitted else "predicted"
        say(
            f"  {figure.name:<32}{figure.unit:<12}{figure.text(figure.value):>18}{figure.text(one.planned):>18}"
            f"{100 * one.error:>+8.1f} %  {kind}"
        )
