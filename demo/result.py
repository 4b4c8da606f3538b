"""Show a training run: a line per epoch, the held-out accuracy, and the path of the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

NEEDED = 96.0  # percent; a working run is well above it, a broken one far below


def result(run: Path) -> float:
    """Print the table of a run and return its last held-out accuracy, in percent."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    accuracy = 0.0
    print("epoch  training loss  images/s  waiting for data  held-out accuracy")
    for evaluation in (row for row in rows if row["event"] == "val"):
        trained = [row for row in rows if row["event"] == "train" and row["epoch"] == evaluation["epoch"]]
        loss, speed, wait = (fmean(row[key] for row in trained) for key in ("loss", "images_per_second", "data_wait"))
        accuracy = 100 - evaluation["error1"]
        right = f"{evaluation['correct1']} of {evaluation['count']}"
        print(f"{evaluation['epoch']:5}  {loss:13.3f}  {speed:8.1f}  {100 * wait:14.1f} %  {accuracy:8.2f} % ({right})")
    print(f"\nplot: {run / 'training.png'}\ncheckpoints: {run / 'checkpoints'}\nmetrics: {run / 'metrics.jsonl'}")
    return accuracy


if __name__ == "__main__":
    reached = result(Path(sys.argv[1]))
    if reached < NEEDED:
        sys.exit(f"held-out accuracy is {reached:.2f} %: it should be above {NEEDED:.0f} %")
