"""`plot_metrics`: a picture of a run."""

from __future__ import annotations

import io
import logging
from pathlib import Path

from fastrecord.train.files import replace_file
from fastrecord.train.meters import read_metrics

_log = logging.getLogger("fastrecord.train")


def plot_metrics(metrics: Path, picture: Path) -> bool:
    """Draw a metrics file as a PNG; requires matplotlib, which the extra `plot` installs.

    Returns:
        Whether it was drawn. If matplotlib or disk space is missing, one log line reports it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        _log.info("no plot: matplotlib is not installed (pip install matplotlib)")
        return False
    rows = read_metrics(metrics)
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    loss, error, speed = figure.subplots(1, 3)
    for event, style in (("train", {"linewidth": 1.0}), ("val", {"linewidth": 1.5, "marker": "o", "markersize": 4})):
        chosen = [row for row in rows if row["event"] == event]
        steps = [row["step"] for row in chosen]
        label = {"train": "training", "val": "evaluation"}[event]
        # A loss that is not finite is null in the file, and a gap in the line.
        losses = [float("nan") if row["loss"] is None else row["loss"] for row in chosen]
        loss.plot(steps, losses, label=label, **style)
        accuracy = [100 - row["error1"] for row in chosen]
        error.plot(steps, accuracy, label=f"{label} (last: {accuracy[-1]:.2f} %)" if chosen else label, **style)
    averaged = [row for row in rows if "ema_error1" in row]
    if averaged:
        steps, accuracy = [row["step"] for row in averaged], [100 - row["ema_error1"] for row in averaged]
        error.plot(steps, accuracy, label=f"average of the weights (last: {accuracy[-1]:.2f} %)", linewidth=1.5)
    trained = [row for row in rows if row["event"] == "train"]
    steps = [row["step"] for row in trained]
    speed.plot(steps, [row["images_per_second"] for row in trained], label="images/s", linewidth=1.0)
    speed.set_ylim(bottom=0)
    wait = speed.twinx()
    wait.plot(
        steps, [100 * row["data_wait"] for row in trained], color="tab:red", linewidth=0.8, label="waiting for data"
    )
    wait.set_ylim(0, 100)
    wait.set_ylabel("step time spent waiting for data, %", color="tab:red")
    for axes, title, unit in (
        (loss, "Loss", ""),
        (error, "Accuracy", "%"),
        (speed, "Speed, all processes", "images/s"),
    ):
        axes.set(title=title, xlabel="optimizer step", ylabel=unit)
        axes.grid(alpha=0.3)
    # An early evaluation can be off by a factor of a hundred: on a linear axis it would hide all
    # others.
    if any(row["loss"] for row in rows if row["event"] in ("train", "val")):
        loss.set_yscale("log")
    loss.legend()
    error.legend(loc="lower right")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    try:
        replace_file(picture, content.getbuffer())
    except OSError as error:
        _log.warning(f"no plot: {picture}: {error.strerror}")
        return False
    _log.info(f"plot: {picture}")
    return True
