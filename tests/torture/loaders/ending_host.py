"""The process that forks the cases of tests/torture/loaders/endings.py, so that each need not import torch.

It uses no loader itself. Cases and answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastrecord as fr
from fastrecord.loader.loader import FastRecordLoader
from fastrecord.transforms import RandomResizedCrop
from tests.support.loading import photo, write_payloads, write_photos

RECORDS = 60
LABELS = sum(number % 3 for number in range(RECORDS))


def write(folder: Path) -> None:
    """Write the files that the processes load."""
    write_photos(folder / "images.frec", RECORDS)
    payloads = [photo(number) for number in range(RECORDS)]
    payloads[RECORDS // 2] = payloads[0][:100]
    write_payloads(folder / "bad images.frec", payloads, images=False)
    schema = fr.Schema({"array": fr.array("float32", (16, 16)), "label": "int64"})
    with fr.Writer(folder / "arrays.frec", schema) as writer:
        for number in range(RECORDS):
            writer.append({"array": np.full((16, 16), number, np.float32), "label": number % 3})


def batches(folder: Path, case: dict[str, Any]) -> Iterator[Any]:
    """Iterate over a loader of the case's kind."""
    bad = case["ending"] == "exception of a bad record"
    if case["images"] or bad:
        dataset = fr.FastRecordDataset(folder / ("bad images.frec" if bad else "images.frec"))
        loader = FastRecordLoader(
            dataset, case["batch"], shuffle=False, sample=[RandomResizedCrop(24)], threads=case["threads"]
        )
    else:
        dataset = fr.FastRecordDataset(folder / "arrays.frec").select_fields(["array", "label"])
        loader = FastRecordLoader(dataset, case["batch"], shuffle=False, threads=case["threads"])
    return iter(loader)


def label_sum(loaded: Iterator[Any]) -> int:
    """Return the sum of all labels in the rest of an epoch."""
    return sum(int((batch["label"] if isinstance(batch, dict) else batch[-1]).sum()) for batch in loaded)


def read_for_ever(path: Path) -> None:
    """Copy batches, mostly without the GIL."""
    with fr.Reader(path) as reader:
        rows = np.arange(len(reader))
        out = np.empty(len(rows) * 1024, np.uint8)
        while True:
            reader.read_batch_into(rows, "array", out)


def fork(folder: Path, case: dict[str, Any], loaded: Iterator[Any], done: int) -> None:
    """Fork during an epoch: the child must use its own iterator; the parent goes on."""
    child = os.fork()
    if child == 0:
        try:
            for _ in loaded:
                os._exit(3)
            os._exit(4)
        except RuntimeError:
            sys.exit(0 if label_sum(batches(folder, case)) == LABELS else 5)
    if done + label_sum(loaded) != LABELS:
        sys.exit(6)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"the child ended with {status}")


def end(folder: Path, case: dict[str, Any], begun: int) -> None:
    """Load and end as the case says; write to `begun` when loading has begun."""
    ending = case["ending"]
    loaded = batches(folder, case)
    first = next(loaded)
    os.write(begun, b"x")
    if ending == "daemon thread":
        # It reads but does not load: torch aborts if a Python daemon thread is in it at exit.
        threading.Thread(target=read_for_ever, args=[folder / "arrays.frec"], daemon=True).start()
        time.sleep(case["milliseconds"] / 1000)
        return
    done = label_sum(iter([first]))
    # During an epoch: a finished iterator yields nothing to any process, forked or not.
    after = min(case["after"], RECORDS // case["batch"] - 2)
    for _, batch in zip(range(after), loaded, strict=False):
        done += label_sum(iter([batch]))
    match ending:
        case "end of epoch":
            sys.exit(0 if done + label_sum(loaded) == LABELS else 3)
        case "break":
            del loaded
        case "live iterator":
            globals()["kept"] = loaded  # until interpreter exit
        case "fork":
            fork(folder, case, loaded, done)
        case "os._exit":
            os._exit(0)
        case "exception":
            raise RuntimeError("as was asked")
        case "exception of a bad record":
            label_sum(loaded)
        case "Ctrl-C":
            while True:
                label_sum(batches(folder, case))


def run(folder: Path, case: dict[str, Any], patience: float) -> dict[str, Any]:
    """Fork a process for a case, wait for its end and return the outcome."""
    reading, begun = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end(folder, case, begun)
        sys.exit(0)
    os.close(begun)
    limit = time.monotonic() + patience
    if case["ending"] == "Ctrl-C" and select.select([reading], [], [], patience)[0]:
        time.sleep(case["milliseconds"] / 1000)
        os.kill(child, signal.SIGINT)
    watch = os.pidfd_open(child)
    ended = bool(select.select([watch], [], [], max(0, limit - time.monotonic()))[0])
    os.close(watch)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reading)
    output = (folder / "said").read_text(errors="replace")[-300:]
    return {"status": status if ended else "hangs", "said": output}


def main() -> None:
    """Serve cases until the input ends."""
    folder, patience = Path(sys.argv[1]), float(sys.argv[2])
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    torch.set_num_threads(1)  # fork does not copy torch's own threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not (folder / "arrays.frec").exists():
        # In a child process: this one must not have used the core's threads when it forks.
        writer = os.fork()
        if writer == 0:
            write(folder)
            os._exit(0)
        os.waitpid(writer, 0)
    for line in sys.stdin:
        answer = run(folder, json.loads(line), patience)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
