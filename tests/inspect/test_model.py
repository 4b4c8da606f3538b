"""`plan`: each part of the model by itself, what limits, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from benches.report.published import planned as plan_of
from fastrecord.inspect import units
from fastrecord.inspect.benchmark import Report, Row
from fastrecord.inspect.model import cached_share
from fastrecord.inspect.prediction import Plan

# One GPU trains 1,000 images/s, each doubling keeps everything.
EVEN: dict[str, Any] = {"gpu_rate": 1000, "batch": 100, "efficiency": 1.0, "epochs": 2, "images": 1_000_000}


def planned(**options: Any) -> Plan:
    return plan_of(**{**EVEN, **options})


def test_without_a_limit_the_gpus_limit() -> None:
    plan = planned(gpus=1)
    assert plan.limit == "gpus"
    assert plan.images_per_second == pytest.approx(1000)
    assert [plan.epoch_seconds, plan.run_seconds] == pytest.approx([1000, 2000])
    assert plan.allreduce_share == 0
    assert plan.storage_needed == pytest.approx(116e6)


def test_the_published_rate_holds_at_its_batch_and_small_batches_are_slower() -> None:
    rates = [plan_of(gpus=1, gpu="v100", batch=batch).images_per_second for batch in (8, 64, 256, 512)]
    assert rates[2] == pytest.approx(856.52)
    assert rates == sorted(rates)
    assert rates[0] < 0.5 * rates[2]
    assert rates[3] < 1.1 * rates[2]


def test_a_ring_moves_each_gradient_twice_and_hides_in_the_backward_pass() -> None:
    plan = planned(gpus=8, link="1GB/s", parameters=50 * 2**20 / 4, latency=1e-3)
    assert plan.step.allreduce == pytest.approx(2 * 7 / 8 * 50 * 2**20 / 1e9, rel=1e-3)
    # 92 ms are longer than the 67 ms of the backward pass, but the last of two buckets takes more.
    assert plan.step.exposed == pytest.approx(plan.step.allreduce / 2)
    slow = planned(gpus=8, link="0.1GB/s", parameters=50 * 2**20 / 4, latency=1e-3)
    assert slow.step.exposed == pytest.approx(slow.step.allreduce - 0.1 * 2 / 3)
    assert slow.limit == "all-reduce"
    assert any("--gradient-bits 16" in advice for advice in slow.advice)


def test_16_bit_gradients_halve_the_bytes_and_latency_counts_every_step_of_the_ring() -> None:
    wide, narrow = (planned(gpus=8, link="1GB/s", latency=1e-3, gradient_bits=bits) for bits in (32, 16))
    assert wide.step.allreduce == pytest.approx(2 * narrow.step.allreduce, rel=1e-3)
    late = planned(gpus=64, link="1000GB/s", latency=1000, parameters=1000)
    assert late.step.allreduce == pytest.approx(2 * 63 * 1e-3, rel=1e-3)


def test_several_nodes_use_the_slower_of_link_and_network() -> None:
    one = planned(gpus=8, link="10GB/s")
    assert planned(gpus=8, nodes=2, link="10GB/s", net="8Gb/s").step.allreduce > 5 * one.step.allreduce
    assert planned(gpus=8, nodes=2, link="10GB/s", net="800Gb/s").step.allreduce == one.step.allreduce


def test_each_doubling_keeps_the_efficiency() -> None:
    plan = planned(gpus=8, efficiency=0.9, link="1000TB/s", latency=1e-6)
    assert plan.images_per_second == pytest.approx(8000 * 0.9**3)
    # The storage's rate is for all nodes together.
    read = planned(gpus=8, nodes=4, efficiency=0.9, net="1000TB/s", latency=1e-6, storage=116e3 * 1000)
    assert read.images_per_second == pytest.approx(1000)


def test_a_pause_lengthens_every_epoch_and_lowers_the_mean_rate_of_reading() -> None:
    plan, paused = planned(gpus=1), planned(gpus=1, pause=250)
    assert paused.images_per_second == plan.images_per_second
    assert [paused.epoch_seconds, paused.run_seconds] == pytest.approx([1250, 2500])
    assert paused.storage_read == pytest.approx(0.8 * plan.storage_read)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"storage": 500 * 116e3}, "storage"),
        ({"iops": 500 * (116e3 / 2**17 + 0.5)}, "read operations"),
        ({"cores": 500 * 0.56e-3}, "decoding"),
    ],
)
def test_the_slowest_part_limits_and_the_advice_lifts_it(options: dict[str, float], limit: str) -> None:
    plan = planned(gpus=1, **options)
    assert plan.limit == limit
    assert plan.images_per_second == pytest.approx(500)
    assert "short-side" in plan.advice[0]
    assert "keep" in plan.advice[1]
    # What the advice asks for is enough, and less is not.
    name = next(iter(options))
    assert planned(gpus=1, **{name: 2.001 * options[name]}).limit == "gpus"
    assert planned(gpus=1, **{name: 1.98 * options[name]}).limit == limit


def test_the_way_that_the_advice_names_does_what_it_says() -> None:
    plan = planned(gpus=8, storage="200MB/s", cores=4)
    assert plan.limit == "storage"
    best = max(plan.ways, key=lambda way: way.images_per_second)
    assert f"as {best.name} " in plan.advice[0]
    other = planned(gpus=8, storage="200MB/s", cores=4, stored=best.name)
    assert other.images_per_second == pytest.approx(best.images_per_second)
    assert other.limit == best.limit


def test_decoding_needs_as_many_cores_as_one_gpu_takes_images() -> None:
    ways = {way.name: way for way in planned(gpus=1).ways}
    assert ways["original"].cores_per_gpu == pytest.approx(0.56)
    assert ways["raw"].cores_per_gpu == pytest.approx(0.06)
    assert ways["raw"].image_bytes == 261_400
    assert ways["short-side"].image_bytes == pytest.approx(116e3 * 36.8 / 104.6)
    assert planned(gpus=4, nodes=2, net="1TB/s", cores=2 * 0.56).limit == "gpus"
    assert planned(gpus=4, nodes=2, net="1TB/s", cores=1.9 * 0.56).limit == "decoding"


def test_channels_last_is_advised_where_a_rate_is_published() -> None:
    advice = {gpu: " ".join(plan_of(gpus=1, gpu=gpu).advice) for gpu in ("V100", "P100")}
    assert "one V100 trains 1,200 images/s instead of 857" in advice["V100"]
    assert "channels_last" not in advice["P100"]


# The page cache


def test_with_room_for_all_one_node_reads_the_storage_once() -> None:
    plan = planned(gpus=1, storage=500 * 116e3, ram="116GB", epochs=10)
    assert [plan.first_epoch_images_per_second, plan.images_per_second] == pytest.approx([500, 1000])
    assert plan.cached == 1
    assert plan.run_seconds == pytest.approx(2000 + 9 * 1000)
    assert plan.storage_read * plan.run_seconds == pytest.approx(116e9)
    assert plan.page_cache == pytest.approx(116e9)


def test_a_cache_of_one_node_finds_what_a_simulation_finds() -> None:
    rng, records, room = np.random.default_rng(0), 2000, 1000
    last = np.full(records, -1)
    hits = clock = 0
    for epoch in range(4):
        for record in rng.permutation(records):
            # Found, if fewer other records than there is room for were read since.
            if epoch == 3:
                hits += int(np.count_nonzero(last > last[record])) < room
            last[record] = clock
            clock += 1
    plan = planned(gpus=1, images=records, batch=1, image_bytes=1000, ram=room * 1000, epochs=4)
    assert plan.cached == pytest.approx(hits / records, abs=0.03)
    assert plan.cached == pytest.approx(0.5 + 0.5 * math.log(0.5))


def test_the_caches_of_several_nodes_fill_over_the_epochs() -> None:
    setup = planned(gpus=4, nodes=4, net="1TB/s", ram="116GB").setup
    shares = [cached_share(setup, epoch) for epoch in range(40)]
    assert shares[:2] == pytest.approx([0, 0.25])
    assert shares == sorted(shares)
    assert 0.99 < shares[-1] < 1
    half = planned(gpus=4, nodes=4, net="1TB/s", ram="58GB", epochs=40)
    assert half.cached == pytest.approx(0.5)


def test_an_evaluation_takes_a_third_of_a_training_image() -> None:
    plan = planned(gpus=1, val_images=300_000)
    assert plan.epoch_seconds == pytest.approx(1000 + 100)
    read = planned(gpus=1, val_images=300_000, storage=500 * 116e3)
    assert read.epoch_seconds == pytest.approx(2000 + 600)


# This machine's rates


def report(**options: Any) -> Report:
    rows = [Row("read", 2, 1000, 100_000_000, 0.25, 0.1), Row("load", 1, 1000, 100_000_000, 2.0, 2.0)]
    defaults: dict[str, Any] = {"cached": 0.0, "mean_bytes": 100_000.0, "rows": rows}
    about: dict[str, Any] = {"file": "x.frec", "records": 50_000, "nbytes": 1, "field": "image", "kind": "image"}
    return Report(**about, size=224, cpus=4, machine_cpus=8, memory=None, cold=True, **{**defaults, **options})


def test_a_report_gives_images_bytes_decoding_cores_and_the_disk() -> None:
    plan = plan_of(gpus=8, nodes=2, gpu="A100", net="100Gb/s", report=report())
    assert plan.stored == "measured"
    setup = plan.setup
    assert (setup.images, setup.image_bytes, setup.decode, setup.cores) == (50_000, 100_000, 0.002, 4)
    assert setup.storage == pytest.approx(2 * 400e6)
    assert [way.name for way in plan.ways] == ["measured"]
    assert plan.limit == "decoding"


def test_a_file_in_memory_says_nothing_about_its_disk_and_arguments_come_first() -> None:
    plan = plan_of(gpus=1, gpu="A100", images=10_000, cores=1, report=report(cached=1.0))
    assert (plan.setup.storage, plan.setup.images, plan.setup.cores) == (None, 10_000, 1)
    assert any("Even with --cold the file lay in memory: its disk was not measured" in note for note in plan.notes)
    warm = report(cached=1.0)
    warm.cold = False
    assert (
        "The file lay in memory: its disk was not measured (--cold does)."
        in plan_of(gpus=1, gpu="A100", report=warm).notes
    )
    with pytest.raises(ValueError, match=r"x\.frec: the report has no row of the loader"):
        plan_of(gpus=1, gpu="A100", report=report(rows=[]))


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "gpu or gpu_rate is required"),
        ({"gpus": 8, "gpu": "B200"}, r"no published rate of a GPU 'B200' is known, .* that you measured as gpu_rate"),
        (
            {"gpus": 1, "gpu": "H900"},
            r"'H900' is known, only of K80, P100, V100, A100, H100, H100-PCIE: .* that you measured as gpu_rate",
        ),
        ({"gpus": 1, "gpu": "P100", "precision": "amp"}, "P100 in amp is known, only in fp32: give gpu_rate"),
        ({"gpus": 1, "gpu": "P100", "precision": "int4"}, '"fp32", "amp", "amp-nhwc" or "amp-xla"'),
        ({"gpus": 1, "gpu_rate": 10, "precision": "amp"}, "give one of them"),
        ({"gpus": 10, "nodes": 4, "gpu": "V100", "net": "1Gb/s"}, "10 GPUs do not divide among 4 nodes"),
        ({"gpus": 8, "nodes": 4, "gpu": "V100"}, r"4 nodes exchange gradients: .*--net 100Gb/s"),
        (
            {"gpus": 8, "gpu": "V100", "images": 1000},
            r"2,048 images \(8 GPUs x batch 256\), but an epoch has only 1,000: .*--images",
        ),
        ({"gpus": 1, "gpu": "V100", "images": 3}, r"\(1 GPU x batch 256\)"),
        ({"gpus": 8, "gpu": "V100", "images": 0}, "images is a finite number above zero"),
        ({"gpus": 0, "gpu": "V100"}, "gpus is from 1"),
        ({"gpus": 1, "gpu": "V100", "stored": "gif"}, 'stored is "original", "crop-index"'),
        ({"gpus": 1, "gpu": "V100", "efficiency": 1.5}, r"efficiency is from 0\.5 to 1, not 1\.5"),
        ({"gpus": 1, "gpu": "V100", "gradient_bits": 8}, "gradient_bits is 16 or 32, not 8"),
        ({"gpus": 1, "gpu": "V100", "storage": "4"}, "storage is a rate such as 4GB/s"),
        ({"gpus": 1, "gpu": "V100", "val_images": -1}, "val_images is a finite number of at least zero"),
    ],
)
def test_arguments_that_make_no_plan_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(**options)


@pytest.mark.parametrize("amount", [1e-12, 1e18])
def test_the_plan_of_any_amount_is_finite(amount: float) -> None:
    names = ("gpu_rate", "image_bytes", "storage", "iops", "ram", "net", "link", "latency", "cores", "parameters")
    options: dict[str, Any] = dict.fromkeys(names, amount)
    plan = plan_of(gpus=16, nodes=2, images=1e18, **options)
    json.dumps(plan.to_dict(), allow_nan=False)
    assert units.time_text(plan.run_seconds)


def test_a_plan_is_ready_for_json() -> None:
    plan = plan_of(gpus=8, gpu="V100")
    found = json.loads(json.dumps(plan.to_dict()))
    assert found["images_per_second"] == plan.images_per_second
    assert found["step"]["compute"] == plan.step.compute
    assert found["ways"][0]["name"] == "original"


@pytest.mark.parametrize(("gpu", "link"), [("H100", 450e9), ("h200", 450e9), ("B200", 900e9), ("L40S", 31.5e9)])
def test_a_measured_rate_goes_with_the_link_of_the_gpu(gpu: str, link: float) -> None:
    def step(**options: Any) -> float:
        return plan_of(gpus=8, gpu_rate=5000, batch=256, **options).images_per_second

    assert step(gpu=gpu) == step(link=link)
    assert step(gpu="B200") > step(gpu="H100") > step(gpu="L40S") > step()


def test_rates_of_gpus_after_the_a100_have_sources() -> None:
    assert plan_of(gpus=1, gpu="H100", precision="fp32", batch=640).images_per_second > 1_700
    plan = plan_of(gpus=8, gpu="H100-PCIE", batch=1280)
    assert plan.images_per_second > 8 * 1_700
    assert any("lambdal/deeplearning-benchmark" in note for note in plan.notes)
