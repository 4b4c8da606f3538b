"""The files that start a run on a cluster: examples/many_nodes/. What each gives to the trainer holds."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastrecord.train.__main__ import main as trainer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "many_nodes"
SCHEMA = Path(__file__).parent / "data" / "pytorchjob.schema.json"


def trainer_options(words: list[str]) -> dict[str, object]:
    return trainer.make_context("train", words).params


def test_the_manifest_fits_the_schema_of_a_pytorchjob(tmp_path: Path) -> None:
    text = (FOLDER / "pytorchjob.yaml").read_text(encoding="utf-8")
    wrong = {
        "field": ("replicas: 4", "replica: 4"),
        "policy": ("restartPolicy: OnFailure", "restartPolicy: Sometimes"),
        "type": ('nprocPerNode: "8"', "nprocPerNode: 8"),
        "container": ("- name: pytorch #", "- name: trainer #"),
        "quantity": ("memory: 256Gi", "memory: 256GiB"),
    }
    for name, (good, bad) in wrong.items():
        assert text.count(good) == 1
        (tmp_path / f"{name}.yaml").write_text(text.replace(good, bad), encoding="utf-8")
    files = [FOLDER / "pytorchjob.yaml", *(tmp_path / f"{name}.yaml" for name in wrong)]
    command = [sys.executable, "-m", "check_jsonschema", "--output-format", "json", "--schemafile", str(SCHEMA)]
    command += map(str, files)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = {Path(error["filename"]).stem for error in json.loads(done.stdout)["errors"]}
    assert found == set(wrong), done.stdout


def test_the_manifest_gives_the_trainer_options_that_it_has() -> None:
    text = (FOLDER / "pytorchjob.yaml").read_text(encoding="utf-8")
    (command,) = re.findall(r"command:\n((?: +- .*\n)+)", text)
    words = [line.strip().removeprefix("- ") for line in command.splitlines()]
    assert words[:3] == ["torchrun", "-m", "fastrecord.train"]
    options = trainer_options(words[3:])
    assert (options["resume"], options["global_batch"]) == ("auto", 3072)
    assert [3072 % (8 * nodes) for nodes in (1, 2, 3, 4)] == [0] * 4


# Like srun, it kills its tasks on SIGTERM; only scancel lets them end by themselves.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" > "$HERE/words"
trap 'echo killed >> "$HERE/heard"; exit 137' TERM
echo started > "$HERE/ready"
[ -n "${QUICK-}" ] && exit 0
until [ -e "$HERE/signal" ]; do sleep 0.05; done
echo stopped >> "$HERE/heard"
exit 143
"""
SCANCEL = """#!/bin/bash
echo "$*" > "$HERE/signal"
"""
SCONTROL = """#!/bin/bash
[ "$1" = show ] && printf 'first\\nsecond\\n' || echo "$*" >> "$HERE/heard"
"""


@pytest.mark.parametrize("quick", [True, False])
def test_the_slurm_script_starts_torchrun_and_queues_the_job_again_when_it_is_stopped(
    tmp_path: Path, *, quick: bool
) -> None:
    for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    os.mkfifo(tmp_path / "ready")
    known = {"JOB_ID": "30123", "JOB_NODELIST": "[first-second]", "NNODES": "2", "CPUS_PER_TASK": "8"}
    environment = os.environ | {f"SLURM_{name}": value for name, value in known.items()}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HERE": str(tmp_path), "QUICK": "yes" if quick else ""}
    words = ["bash", str(FOLDER / "train.sbatch"), "train.frec", "--val", "val.frec"]
    with subprocess.Popen(words, env=environment) as job:
        assert (tmp_path / "ready").read_text() == "started\n"
        if not quick:
            job.send_signal(signal.SIGTERM)
    started = shlex.join((tmp_path / "words").read_text().splitlines())
    assert "--nnodes 1:2 --nproc-per-node 1 " in started
    assert "--rdzv-endpoint first:20123 " in started
    options = trainer_options(shlex.split(started.split("-m fastrecord.train ")[1]))
    assert (options["train"], options["val"], options["resume"]) == (("train.frec",), ("val.frec",), "auto")
    if quick:
        assert (job.returncode, (tmp_path / "heard").exists()) == (0, False)
    else:
        assert job.returncode == 143
        assert (tmp_path / "signal").read_text() == "--signal=TERM 30123\n"
        assert (tmp_path / "heard").read_text() == "stopped\nrequeue 30123\n"
