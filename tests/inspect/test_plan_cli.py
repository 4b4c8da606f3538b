"""`fastrecord plan`: what it prints, its refusals, and the programs of docs/plan.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import fastrecord as fr
from benches.report.published import planned
from tests.support.commands import failed, good
from tests.support.programs import command, execute

ROOT = Path(__file__).parents[2]
HAL = shlex.split(
    "--gpus 64 --nodes 16 --gpu V100 --batch 208 --images 1281167 --image-bytes 116000 --storage 4GB/s "
    "--net 100Gb/s --cores 40"
)


@pytest.fixture(autouse=True)
def _in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastrecord.cli.plan._SECONDS", 0.4)


def test_a_plan_names_rates_limit_and_remedy() -> None:
    text = good("plan", *HAL)
    plan = planned(gpus=64, nodes=16, gpu="V100", batch=208, image_bytes=116_000, storage=4e9, net=12.5e9, cores=40)
    assert f"expected: {plan.images_per_second:,.0f} images/s" in text
    assert "The limit is the storage's bytes/s.\nWhat would help:\n  - Store the images as short-side" in text
    for way in ("original", "crop-index", "packed", "short-side", "short-side-packed", "raw"):
        assert re.search(rf"^{way} +[\d.]+ kB +[\d.]+ GB +\d\.\d\d +[\d.]+ GB/s +[\d,]+  \w+$", text, re.MULTILINE)
    assert "all-reduce: " in text
    assert "page cache of a node that holds everything: 149 GB" in text


def test_json_is_the_plan() -> None:
    plan = planned(gpus=64, nodes=16, gpu="V100", batch=208, image_bytes=116_000, storage=4e9, net=12.5e9, cores=40)
    assert json.loads(good("plan", *HAL, "--json")) == json.loads(json.dumps(plan.to_dict()))


def test_options_reach_the_plan_in_their_units() -> None:
    options = "--latency 20 --gradient-bits 16 --ram 256GiB --iops 36.5k --val-images 50000 --link 10GB/s"
    setup = json.loads(good("plan", *HAL, *options.split(), "--epochs", 3, "--json"))["setup"]
    assert (setup["latency"], setup["gradient_bytes"]) == (pytest.approx(20e-6), 2 * 25_557_032)
    assert (setup["cache"], setup["operations"], setup["val_images"]) == (2**38, 36_500, 50_000)
    assert (setup["link"], setup["net"], setup["epochs"]) == (10e9, 12.5e9, 3)


def test_measure_takes_this_machines_rates(packed: Path) -> None:
    found = json.loads(good("plan", "--gpus", 1, "--gpu-rate", 50, "--batch", 4, "--measure", packed, "--json"))
    assert (found["stored"], found["setup"]["images"]) == ("measured", 12)
    sizes = [len(record["image"]) for record in fr.Reader(packed)]
    assert found["setup"]["image_bytes"] == pytest.approx(sum(sizes) / 12)
    assert 0 < found["setup"]["decode"] < 1
    assert found["setup"]["cores"] >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gpus 8", "--gpu or --gpu-rate is required"),
        (
            "--gpus 8 --gpu H900",
            "known, only of K80, P100, V100, A100, H100, H100-PCIE: give the rate that you measured as --gpu-rate",
        ),
        ("--gpus 10 --nodes 4 --gpu V100 --net 1Gb/s", "10 GPUs do not divide among 4 nodes"),
        ("--gpus 8 --gpu V100 --storage 4gb/s", "storage is a rate such as 4GB/s (bytes) or 100Gb/s (bits)"),
        ("--gpus 8 --gpu V100 --window 8", "--window is for --cache"),
    ],
)
def test_wrong_usage_is_explained(arguments: str, message: str) -> None:
    assert message in failed("plan", *arguments.split(), status=2)


def test_a_wrong_option_is_an_error_before_the_measurement(tmp_path: Path) -> None:
    absent = tmp_path / "absent.frec"
    known = ("--gpus", 1, "--gpu", "V100", "--measure", absent)
    assert "not 'gif'" in failed("plan", *known, "--stored", "gif", status=2)
    assert "no published rate" in failed("plan", "--gpus", 1, "--gpu", "H900", "--measure", absent, status=2)
    assert "absent.frec" in failed("plan", "--gpus", 1, "--gpu", "V100", "--measure", absent)


def test_the_programs_of_the_page_run(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(packed, "train.frec")
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    (shell,), (python,) = (re.findall(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S) for kind in ("sh", "python"))
    for line in shell.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "fastrecord"
        command(line, *arguments)
    execute(python, "plan.md", {})
    assert capsys.readouterr().out.startswith("storage ")
