"""Estimates of caches on paper against plans that decide for each record; what the command prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.inspect.cache_estimate import CacheEstimate, estimate_cache
from fastrecord.inspect.cache_plan import plan_cache
from fastrecord.inspect.plan_options import CacheOptions, Cluster, Data, Training
from fastrecord.inspect.units import size_text
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.node import NodeOrder
from fastrecord.store.plan import CachePlan, Order, plan_nodes
from tests.support import arrays
from tests.support.commands import failed, good

N, SIZE = 32_768, 1000
RUN = shlex.split("--images 5e9 --image-bytes 110kB --gpus 512 --nodes 64 --batch 64 --shuffle blocks")


def planned(sampler: FastRecordBatchSampler, cache: int | None, epochs: int, nodes: int = 1) -> CachePlan:
    orders: list[Order] = [NodeOrder(sampler, range(N), node, nodes=nodes) for node in range(nodes)]
    return plan_nodes(orders, np.full(N, SIZE), cache, epochs, sampler.world_size)


def exact(share: float, shuffle: str, nodes: int, affinity: bool, batch: int) -> tuple[CachePlan, int]:
    """Return a plan of some epochs, and the bytes of each node's cache: a share of what it reads."""
    order: Any = {"full": True, "none": False, "blocks": fr.Blocks(records=16, window=16)}[shuffle]
    more: dict[str, Any] = {"affinity": "shard", "nodes": nodes} if affinity else {}
    sampler = FastRecordBatchSampler(range(N), batch, shuffle=order, rank=0, world_size=2 * nodes, **more)
    cache = int(share * N * SIZE / nodes)
    # Without affinity, what no epoch has needed for long is known only after some of them.
    epochs = 3 if affinity or nodes == 1 else 6
    return planned(sampler, cache, epochs, nodes), cache


def on_paper(
    *, images: float, image_bytes: float | str, gpus: int, nodes: int, batch: int, **options: Any
) -> CacheEstimate:
    cluster, data = Cluster(gpus=gpus, nodes=nodes), Data(images=images, image_bytes=image_bytes)
    return estimate_cache(cluster, Training(batch=batch), data, CacheOptions(**options))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6, 1.2])
@pytest.mark.parametrize(
    ("shuffle", "nodes", "affinity"),
    [
        ("full", 1, False),
        ("none", 1, False),
        ("blocks", 1, False),
        ("full", 4, True),
        ("blocks", 2, True),
        ("full", 2, False),
    ],
)
def test_the_formulas_are_near_the_plan(share: float, shuffle: Any, nodes: int, affinity: bool) -> None:
    batch, block = 48, 64 if shuffle == "none" else 16
    plan, cache = exact(share, shuffle, nodes, affinity, batch)
    paper = on_paper(
        cache=cache,
        images=N,
        image_bytes=SIZE,
        gpus=2 * nodes,
        nodes=nodes,
        batch=batch,
        shuffle=shuffle,
        affinity=affinity,
        block=block,
        window=16,
    )
    assert plan.bytes[0] == pytest.approx(paper.first_epoch_bytes, rel=0.03)
    # Within a part of what is read in all, since nearly nothing may be left.
    assert plan.bytes[-1] == pytest.approx(paper.epoch_bytes, abs=0.035 * N * SIZE)
    assert plan.least_cache_bytes == pytest.approx(paper.least_cache_bytes, rel=0.25)
    assert plan.requests[0] == pytest.approx(paper.first_epoch_requests, rel=0.25)
    assert sum(plan.bytes) >= sum(plan.best_bytes)


def test_blocks_need_a_window_and_then_every_byte_comes_once_an_epoch() -> None:
    sampler = FastRecordBatchSampler(range(N), 128, shuffle=fr.Blocks(records=16, window=16))
    window, step = 256 * SIZE, 128 * SIZE
    least = planned(sampler, None, 2).least_cache_bytes
    assert window <= least <= window + step
    plan = planned(sampler, least, 3)
    assert max(plan.bytes) <= N * SIZE
    assert 0.95 * N / 16 <= plan.requests[0] <= N / 16  # one for each block, or for neighbours
    with pytest.raises(ValueError, match=f"at least {least:,} bytes"):
        planned(sampler, least - 1, 3)


def test_five_billion_images_are_planned_without_listing_them() -> None:
    paper = on_paper(cache="4TB", images=5e9, image_bytes="110kB", gpus=512, nodes=64, batch=64, shuffle="blocks")
    assert paper.first_epoch_bytes == 550e12
    assert 0 < paper.epoch_bytes < paper.first_epoch_bytes
    assert paper.first_epoch_requests == pytest.approx(5e9 / 32, rel=0.3)


def test_a_data_set_plans_its_caches(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a.frec", {"x": fr.bytes_()}, *[{"x": bytes(size)} for size in range(1, 500)])
    data = fr.FastRecordDataset(tmp_path / "a.frec")
    sampler = fr.FastRecordBatchSampler(data, 64)
    sizes = np.arange(1, 500)
    plan = plan_cache(sampler, data, cache_size="60kB", epochs=2)
    assert plan.cache_bytes == 60_000
    assert plan.bytes[0] == sizes.sum() > plan.bytes[1]
    assert plan.best_bytes[1] <= plan.bytes[1] <= 1.02 * plan.best_bytes[1] + 64 * 2 * 600
    assert plan_cache(sampler, data, cache_size=None, epochs=2).bytes[1] == 0
    half = data.subset(slice(0, None, 2))
    with pytest.raises(ValueError, match="make it of this data set"):
        plan_cache(sampler, half, cache_size="60kB")
    of_half = plan_cache(fr.FastRecordBatchSampler(half, 64), half, cache_size=None, epochs=1)
    assert of_half.bytes[0] == sizes[::2].sum()
    for wrong, words in ((0, "from 1 to"), ("60 kilos", "500GiB"), (True, "not a bool")):
        with pytest.raises((TypeError, ValueError), match=words):
            plan_cache(sampler, data, cache_size=wrong)
    with pytest.raises(ValueError, match="nodes divides ranks"):
        plan_cache(sampler, data, cache_size=None, nodes=2, ranks=3)


def test_the_command_prints_bytes_requests_and_the_least_cache() -> None:
    options = ["--cache", "4TB", *RUN]
    text = good("plan", *options)
    assert "5,000,000,000 images of 110 kB, 550 TB in all, shuffled by blocks" in text
    assert "the first epoch" in text
    assert "The least cache of a node: " in text
    found = json.loads(good("plan", *options, "--json"))
    assert found["first_epoch_bytes"] == 550e12
    assert "without affinity" in good("plan", *options, "--no-affinity")


def test_the_page_shows_what_the_command_prints() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    shown = page.partition("```console\n$ fastrecord ")[2].partition("\n```")[0].replace("\\\n", "")
    command, output = shown.split("\n", 1)
    assert good(*shlex.split(command)).rstrip() == output


def test_the_table_and_the_prices_of_the_page_follow_from_plans() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    page = text.partition("## What it costs")[2]
    rows = re.findall(r"^\| (\w+) \| (yes|no) \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 6
    plans = []
    for shuffle, affinity, cache, shown in rows:
        more: dict[str, Any] = {"window": 2048} if shuffle == "blocks" else {}
        plan = on_paper(
            cache=cache, images=5e9, image_bytes=110e3, gpus=512, nodes=64, batch=64, shuffle=shuffle,
            affinity=affinity == "yes", **more,
        )  # fmt: skip
        assert shown == " | ".join(
            (
                size_text(plan.first_epoch_bytes),
                f"{plan.first_epoch_requests:,.0f}",
                size_text(plan.epoch_bytes),
                f"{plan.epoch_requests:,.0f}",
            )
        )
        plans.append(plan)
    requests = [(p.open_requests + p.first_epoch_requests + 9 * p.epoch_requests) / 1e6 for p in plans]
    traffic = (plans[0].first_epoch_bytes + 9 * plans[0].epoch_bytes) / 1e9
    assert f"later one | {requests[0]:,.0f} |" in page
    assert f"later one | {traffic:,.0f} |" in page
    words = re.sub(r"\s+", " ", page)
    full, far = next(r for p, r in zip(plans, requests, strict=True) if p.shuffle == "full"), requests[3]
    assert f'10 epochs cost ${requests[0]:,.0f}. With `shuffle="full"` they cost ${full:,.0f}, ' in words
    assert f"no affinity ${far:,.0f}. " in words
    assert f"${traffic / 100:,.0f}, and ${10 * plans[0].first_epoch_bytes / 1e11:,.0f} without" in words


def test_the_command_refuses_what_does_not_go_together() -> None:
    assert "--cache" in failed("plan", "--cache", "1GB", "--gpu", "V100", status=2)
    assert "--shuffle is for --cache" in failed("plan", "--gpus", 1, "--shuffle", "blocks", status=2)
    assert "at least" in failed("plan", "--cache", "1MB", status=2)
