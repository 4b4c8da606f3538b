"""Plots: SVG files, the same bytes for the same results.

In Okabe and Ito's colours, which colour-blind readers can distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benches.report.cases import Case, is_ours, ratios
from benches.report.words import number, scale_of, times

mpl.use("svg")
mpl.rcParams.update(
    {"svg.hashsalt": "fastrecord", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
)

OURS, OTHERS, MARK = "#0072B2", "#999999", "#D55E00"
# Of other curves.
COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True)
class Point:
    """A point of a curve, with the least and most of its rounds."""

    x: float
    y: float
    low: float
    high: float


class Pictures:
    """Where the plots of a page go.

    Attributes:
        folder: Their folder; None draws nothing, and `lines` are the same.
        link: The folder as the page names it.
        drawn: The files that were written.
    """

    def __init__(self, folder: Path | None, link: str) -> None:
        self._folder, self._link = folder, link
        self.drawn: set[Path] = set()

    def lines(self, name: str, text: str) -> list[str]:
        """Return the lines of a page that show a plot."""
        return [f"![{text}]({self._link}/{name}.svg)", ""]

    def bars(self, name: str, text: str, cases: Mapping[str, Case]) -> list[str]:
        """Draw a panel of bars for each case, the best contender on top."""
        if self._folder is not None:
            figure = Figure(figsize=(7.5, 0.6 * len(cases) + 0.28 * sum(len(case.rows) for case in cases.values())))
            heights = [len(case.rows) + 1 for case in cases.values()]
            panels = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
            for panel, (title, case) in zip(panels, cases.items(), strict=True):
                _bars(panel, title, case)
            figure.tight_layout()
            self._save(figure, name)
        return self.lines(name, text)

    def curves(
        self,
        name: str,
        text: str,
        curves: Mapping[str, Sequence[Point]],
        *,
        x: str,
        y: str,
        ideal: Sequence[Point] = (),
        log_x: bool = False,
    ) -> list[str]:
        """Draw lines through points, each named at its end; `ideal` is dotted."""
        if self._folder is not None:
            figure = Figure(figsize=(7.5, 4))
            panel: Axes = figure.subplots()
            ends = []
            others = [label for label in curves if not is_ours(label)]
            for label, points in curves.items():
                ours = is_ours(label)
                colour = OURS if ours else COLOURS[others.index(label) % len(COLOURS)]
                xs, ys = [point.x for point in points], [point.y for point in points]
                below = [point.y - point.low for point in points]
                above = [point.high - point.y for point in points]
                panel.errorbar(
                    xs, ys, (below, above), color=colour, linewidth=2.2 if ours else 1.4, marker="o", markersize=4
                )
                ends.append((ys[-1], label, colour))
            if ideal:
                panel.plot([point.x for point in ideal], [point.y for point in ideal], color="black", linestyle=":")
                ends.append((ideal[-1].y, "ideal", "black"))
            if log_x:
                panel.set_xscale("log", base=2)
            ticks = sorted({point.x for points in curves.values() for point in points})
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.set_xticks([], minor=True)
            top = 1.08 * max(point.high for points in [*curves.values(), ideal] for point in points) or 1.0
            panel.set_ylim(0, top)
            _name_ends(panel, ends, ticks[-1], top)
            panel.set_xlabel(x)
            panel.set_ylabel(y)
            panel.yaxis.grid(visible=True, color="#dddddd")
            panel.set_axisbelow(True)
            self._save(figure, name)
        return self.lines(name, text)

    def dots(self, name: str, text: str, groups: Mapping[str, Sequence[float]], *, x: str) -> list[str]:
        """Draw a line of dots for each group, with its mean."""
        if self._folder is not None:
            figure = Figure(figsize=(7.5, 1 + 0.32 * len(groups)))
            panel: Axes = figure.subplots()
            for at, values in enumerate([*groups.values()][::-1]):
                panel.plot(values, [at] * len(values), "o", color=OURS, alpha=0.6)
                mean = sum(values) / len(values)
                panel.plot([mean, mean], [at - 0.3, at + 0.3], color=MARK, linewidth=2)
            panel.set_yticks(range(len(groups)), [*groups][::-1])
            panel.set_xlabel(x)
            panel.xaxis.grid(visible=True, color="#dddddd")
            panel.set_axisbelow(True)
            self._save(figure, name)
        return self.lines(name, text)

    def _save(self, figure: Figure, name: str) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{name}.svg"
            figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
            self.drawn.add(path)


def _bars(panel: Axes, title: str, case: Case) -> None:
    scale, unit = scale_of(case.rows[0].median, case.unit)
    rows = case.rows[::-1]
    most = max(max(row.values) for row in rows) / scale
    for at, row in enumerate(rows):
        value = row.median / scale
        panel.barh(at, value, color=OURS if is_ours(row.contender) else OTHERS, height=0.75)
        panel.plot([min(row.values) / scale, max(row.values) / scale], [at, at], color="black", linewidth=1)
        label = number(value)
        if case.ours is not None and row is not case.ours:
            label += f"  ({times(ratios(case.ours, row)[0])})"
        panel.text(max(row.values) / scale, at, f" {label}", va="center", fontsize=9)
    panel.set_yticks(range(len(rows)), [row.contender for row in rows])
    panel.set_xlim(0, 1.22 * most or 1)
    panel.set_title(f"{title}, {unit}".rstrip(", "), fontsize=10, loc="left")


def _name_ends(panel: Axes, ends: Sequence[tuple[float, str, str]], x: float, top: float) -> None:
    """Write the names of curves to the right of their ends, moved apart where they end close to each other."""
    floor = float("-inf")
    for height, label, colour in sorted(ends):
        floor = max(height, floor + top * 0.05)
        panel.annotate(
            label,
            (x, height),
            (1.02, floor / top),
            textcoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#cccccc", "relpos": (0, 0.5)},
        )
