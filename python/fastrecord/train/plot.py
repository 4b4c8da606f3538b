"""`plot_metrics` and `plot_ladder`: a picture of a run, and of the ladder."""

from __future__ import annotations

import io
import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastrecord.train.files import replace_file
from fastrecord.train.meters import read_metrics

_log = logging.getLogger("fastrecord.train")


def plot_metrics(metrics: Path, picture: Path) -> bool:
    """Draw a metrics file as a PNG; requires matplotlib, which the extra `plot` installs.

    Returns:
        Whether it was drawn. If matplotlib or disk space is missing, one log line reports it.
    """
    if (figure := _figure(15)) is None:
        return False
    rows = read_metrics(metrics)
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
    return _write(figure, picture)


def plot_ladder(rounds: Mapping[str, Sequence[float]], picture: Path, *, title: str) -> bool:
    """Draw the time of a step on each rung as a PNG: a bar for the median, a line for the range.

    Args:
        rounds: For each rung, the seconds of a step in each round.
        picture: The file; replaced if it exists.
        title: Stands above the bars.

    Returns:
        As `plot_metrics`.
    """
    if (figure := _figure(9)) is None:
        return False
    axes = figure.subplots()
    middles = [1e3 * statistics.median(values) for values in rounds.values()]
    down = [middle - 1e3 * min(values) for middle, values in zip(middles, rounds.values(), strict=True)]
    up = [1e3 * max(values) - middle for middle, values in zip(middles, rounds.values(), strict=True)]
    names = [f"{name}\n{middle:.4g} ms" for name, middle in zip(rounds, middles, strict=True)]
    axes.bar(names, middles, yerr=[down, up], capsize=4, color="tab:blue", ecolor="black")
    axes.set(title=title, ylabel="ms a step: median and range of the rounds")
    axes.grid(axis="y", alpha=0.3)
    return _write(figure, picture)


def _figure(width: float) -> Any:
    """Return an empty picture; None, reported by a line in the log, without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        _log.info("no plot: matplotlib is not installed (pip install matplotlib)")
        return None
    return Figure(figsize=(width, 4.5), layout="constrained")


def _write(figure: Any, picture: Path) -> bool:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    try:
        replace_file(picture, content.getbuffer())
    except OSError as error:
        _log.warning(f"no plot: {picture}: {error.strerror}")
        return False
    _log.info(f"plot: {picture}")
    return True
