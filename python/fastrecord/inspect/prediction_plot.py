"""`plot_plan`: images per second against the number of GPUs, as a picture. Requires matplotlib."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from fastrecord.inspect.model import Setup, run
from fastrecord.inspect.prediction import Plan
from fastrecord.interchange.libraries import library

_KINDS = ("png", "svg", "pdf")


def plot_plan(plan: Plan, picture: str | os.PathLike[str]) -> None:
    """Draw a plan: its rate on 1 GPU up to twice as many as planned, the ideal line and each limit.

    Args:
        plan: The plan.
        picture: The file, which is replaced; its name ends with .png, .svg or .pdf.

    Raises:
        ValueError: the name ends with something else.
        FastRecordError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    path = check_picture(picture)
    figure = library("matplotlib.figure", "plot", "a plot").Figure(figsize=(8, 5), layout="constrained")
    sizes = _sizes(plan.setup)
    steps = [run(setup).last for setup in sizes]
    gpus = [setup.gpus for setup in sizes]
    images = [setup.gpus * setup.batch for setup in sizes]
    axes = figure.subplots()
    axes.plot(gpus, [images[0] / steps[0].compute * n / gpus[0] for n in gpus], "k:", label="ideal")
    parts = (
        ("GPUs and all-reduce", [step.gpu for step in steps]),
        ("storage", [step.storage for step in steps]),
        ("read operations", [step.operations for step in steps]),
        ("decoding", [step.decode for step in steps]),
    )
    for name, seconds in parts:
        if all(seconds):
            axes.plot(gpus, [n / time for n, time in zip(images, seconds, strict=True)], "--", label=f"limit: {name}")
    rates = [n / step.total for n, step in zip(images, steps, strict=True)]
    axes.plot(gpus, rates, "o-", linewidth=2, label="planned")
    axes.axvline(plan.setup.gpus, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    # A limit far above the others would leave no room for them.
    axes.set_ylim(rates[0] / 1.5, 3 * max(rates))
    axes.set_xticks(gpus, [str(n) for n in gpus])
    ticks = [rates[0] * 2**power for power in range(40) if rates[0] * 2**power < 3 * max(rates)]
    axes.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="GPUs", ylabel="images/s", title=f"{plan.setup.gpus} GPUs: limited by {plan.limit}")
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=110)
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        # It no longer exists if all went well.
        temporary.unlink(missing_ok=True)


def check_picture(picture: str | os.PathLike[str]) -> Path:
    """Return the path of a picture that `plot_plan` may write, as far as that can be known before.

    Raises:
        ValueError: its name does not end with .png, .svg or .pdf.
        FastRecordError: matplotlib is not installed.
        OSError: the path is a folder's, or its folder is absent or not writable.
    """
    path = Path(picture)
    if path.suffix[1:].lower() not in _KINDS:
        raise ValueError(f"{path}: a picture's name ends with .{', .'.join(_KINDS)}")
    library("matplotlib.figure", "plot", "a plot")
    for number, wrong in (
        (errno.EISDIR, path.is_dir()),
        (errno.ENOENT, not path.parent.is_dir()),
        (errno.EACCES, not os.access(path.parent, os.W_OK | os.X_OK)),
    ):
        if wrong:
            raise OSError(number, os.strerror(number), str(path))
    return path


def _sizes(setup: Setup) -> list[Setup]:
    """Return the setup with 1, 2, 4, ... GPUs, on as few nodes as they fill; and as planned."""
    each = setup.gpus // setup.nodes
    whole = {each * 2**power for power in range(21) if each * 2**power <= 2 * setup.gpus and setup.nodes > 1}
    few = {2**power for power in range(21) if 2**power <= (each if setup.nodes > 1 else 2 * setup.gpus)}
    counts = sorted(n for n in whole | few | {setup.gpus} if n * setup.batch <= setup.images)
    return [replace(setup, gpus=n, nodes=max(1, n // each) if setup.nodes > 1 else 1) for n in counts]
