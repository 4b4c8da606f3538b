"""Training jobs, and the files that they train on, for the experiments that run jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import fastrecord as fr
from tests.torture.apart import popen

# The smallest torchvision classifier with batch normalisation and without dropout.
_MODEL = "shufflenet_v2_x0_5"
# Later commits change only the metadata, so that epochs stay short.
_MOST_RECORDS = 600


def start_job(files: Path, *options: str | Path, ranks: int, temporary: Path | None = None) -> Any:
    """Start the trainer on files/train.frec and files/val.frec; its output goes to files/said.

    Args:
        files: The folder made by `write_data`.
        options: Additional options of the trainer.
        ranks: Number of torchrun processes; 0 runs without torchrun.
        temporary: The folder for the job's temporary files.
    """
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks else []
    command = ["-m", *launcher, "fastrecord.train", str(files / "train.frec")]
    command += ["--val", str(files / "val.frec"), "--out", str(files / "out"), "--model", _MODEL, "--device", "cpu"]
    # The global batch is constant, so that a job can resume with another number of ranks.
    command += ["--image-size", "32", "--batch-size", str(16 // max(1, ranks)), "--lr", "0.001", *map(str, options)]
    more = {} if temporary is None else {"TMPDIR": str(temporary)}
    with (files / "said").open("ab") as said:
        return popen(*command, stdout=said, stderr=said, env=more, start_new_session=True)


def said(files: Path, size: int = 2000) -> str:
    """Return the end of the jobs' output."""
    return (files / "said").read_text(errors="replace")[-size:]


def write_data(folder: Path) -> None:
    """Write training and evaluation data for jobs: a few hundred small images."""
    # Imports torch, which observing processes do not need.
    from tests.support.training import write_colours

    write_colours(folder / "train.frec", 200, seed=0)
    write_colours(folder / "val.frec", 20, seed=1)


def steps_of(files: Path) -> int:
    """Return the steps that the jobs in a folder have completed."""
    try:
        lines = (files / "out" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    return next((json.loads(line)["step"] for line in reversed(lines) if line.endswith(b"\n")), 0)


@contextmanager
def appender(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let a process append to folder/train.frec, and kill it at the end."""
    command = "-m", "tests.torture.training.jobs", folder / "train.frec"
    with (folder / "said").open("ab") as out, popen(*command, stdout=out, stderr=out) as it:
        try:
            yield it
        finally:
            it.kill()


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; some may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> None:
    """Append copies of a file's first records, one commit each, until the parent is gone."""
    path, parent, draw = Path(sys.argv[1]), os.getppid(), Random()
    with fr.Reader(path) as reader:
        records = [record | {"image": bytes(record["image"])} for record in reader]
    while os.getppid() == parent:
        with fr.Writer(path, mode="a") as writer:
            for _ in range(draw.randrange(1, 30)):
                if len(writer) < _MOST_RECORDS:
                    writer.append(draw.choice(records))
                else:
                    writer.metadata = {**writer.metadata, "commits": writer.metadata.get("commits", 0) + 1}
                writer.commit()
                time.sleep(draw.uniform(0, 0.3))


if __name__ == "__main__":
    main()
