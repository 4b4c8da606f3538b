"""Plot the results of bench_arrays_peers.py, and write the array tables in docs/performance.md.

`python -m pytest benches/bench_arrays.py benches/bench_arrays_peers.py --benchmark-json arrays.json`, then
`python -m benches.plots.arrays arrays.json docs/img --page docs/performance.md`. With several files,
later results replace earlier ones.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benches.plots.loader import MARK, OTHERS, OURS, left_out, machine, put, read_results, save

AGAINST_OTHERS = "test_pairs_against_other_formats["
IN_ONE_PROCESS = {
    "test_overhead_of_a_batch_over_copying[8]": "batches of 8, not verified",
    "test_overhead_of_a_batch_over_copying[128]": "batches of 128, not verified",
    "test_small_batches_against_large_ones": "batches of 8",
    "test_epoch_against_a_memmap[8]": "batches of 8",
    "test_epoch_against_a_memmap[128]": "batches of 128",
    "test_stacked_batches_of_256[False]": "large patches alone, batches of 256, not verified",
    "test_stacked_batches_of_256[True]": "large patches alone, batches of 256",
}
BEGIN, END = "<!-- arrays: begin -->", "<!-- arrays: end -->"
FIGURE = "arrays.svg"


@dataclass(frozen=True)
class Epoch:
    """The results of one contender.

    Attributes:
        version, threads: The measured version and its threads.
        seconds, low, high: Seconds per epoch: median, fastest and slowest round.
        cpu: Seconds of CPU time per epoch, median.
        memory: Bytes that loading adds to the process.
    """

    version: str
    threads: int
    seconds: float
    low: float
    high: float
    cpu: float
    memory: int


def epochs(benchmark: dict[str, Any]) -> dict[str, Epoch]:
    """The contenders of one benchmark."""
    return {
        name: Epoch(
            values["version"],
            values["threads"],
            statistics.median(values["seconds"]),
            min(values["seconds"]),
            max(values["seconds"]),
            statistics.median(values["cpu_seconds"]),
            values.get("most_bytes", 0) - values.get("without_bytes", 0),
        )
        for name, values in benchmark["extra_info"]["contenders"].items()
    }


def in_order(by_batch: dict[int, dict[str, Epoch]]) -> list[str]:
    """Names of the contenders, fastest with the smallest batches first."""
    smallest = by_batch[min(by_batch)]
    return sorted(smallest, key=lambda name: smallest[name].seconds)


def draw(by_batch: dict[int, dict[str, Epoch]], pairs: int, path: Path) -> None:
    """A row per contender and a dot per batch size: seconds per epoch, on a logarithmic axis."""
    names = in_order(by_batch)[::-1]
    figure = Figure(figsize=(8, 1 + 0.32 * len(names)))
    panel: Axes = figure.subplots()
    for count, (batch, found) in enumerate(sorted(by_batch.items())):
        colour, marker = [(OURS, "o"), (MARK, "D")][count % 2]
        rows = [row for row, name in enumerate(names) if name in found]
        times = [found[names[row]] for row in rows]
        panel.hlines(rows, [time.low for time in times], [time.high for time in times], color=colour, linewidth=1)
        panel.plot([time.seconds for time in times], rows, marker, color=colour, label=f"batches of {batch}")
    for row, name in enumerate(names):
        seconds = [found[name].seconds for found in by_batch.values() if name in found]
        panel.hlines(row, min(seconds), max(seconds), color=OTHERS, linewidth=3, alpha=0.4, zorder=0)
        # Close dots share one label, so that labels do not overlap.
        label = " / ".join(f"{found[name].seconds:.2f}" for _, found in sorted(by_batch.items()) if name in found)
        last = max(found[name].high for found in by_batch.values() if name in found)
        panel.annotate(f"{label} s", (last, row), (8, 0), textcoords="offset points", va="center", fontsize=9)
    panel.set_yticks(range(len(names)), names)
    for text in panel.get_yticklabels():
        if text.get_text().startswith("fastrecord"):
            text.set_fontweight("bold")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    low, high = panel.get_xlim()
    panel.set_xlim(low, high * (high / low) ** 0.2)  # room for the labels
    panel.set_xlabel(f"seconds an epoch of {pairs:,} pairs, logarithmic (left is better)")
    panel.xaxis.grid(visible=True, which="major", color="#dddddd")
    panel.set_axisbelow(True)
    panel.legend(loc="lower left", frameon=False)
    save(figure, path)


def table(by_batch: dict[int, dict[str, Epoch]]) -> Iterator[str]:
    """Rows of Markdown: each contender with each batch size."""
    batches = sorted(by_batch)
    heads = [f"batches of {batch}, s an epoch | fastrecord is" for batch in batches]
    small = f"batches of {batches[0]}"
    yield f"| what | measured | {' | '.join(heads)} | CPU time, {small} | memory, {small} |"
    yield "|---|---|" + "---:|---:|" * len(batches) + "---:|---:|"
    for name in in_order(by_batch):
        cells = []
        for batch in batches:
            found = by_batch[batch]
            if name not in found:
                cells.append("|")
                continue
            ratio = found[name].seconds / found["fastrecord"].seconds
            cells.append(f"{found[name].seconds:.3f} | {f'{ratio:.1f} x as fast' if name != 'fastrecord' else ''}")
        smallest = by_batch[batches[0]][name]
        own = f"{smallest.cpu:.2f} s | {smallest.memory / 1e6:.0f} MB"
        yield f"| {name} | {smallest.version} | {' | '.join(cells)} | {own} |"


def others(benchmarks: dict[str, Any]) -> Iterator[str]:
    """Rows of Markdown: benchmarks that time a peer in the same process."""
    for name, what in IN_ONE_PROCESS.items():
        if name not in benchmarks:
            continue
        info, mine = benchmarks[name]["extra_info"], benchmarks[name]["stats"]["median"]
        for peer, values in info.items():
            if isinstance(values, dict):
                ratio = f"{values['ratio']:.2f}{' x as fast' if values['kind'] == 'speedup' else ''}"
                yield f"| {what} | {mine:.3f} s | {peer}: {values['seconds']:.3f} s | {ratio} |"
        if "us_beyond_memcpy" in info:
            yield f"| ... what a batch takes beyond that | {info['us_beyond_memcpy']:.1f} us | | |"


def main() -> None:
    """Draw all results."""
    arguments, benchmarks, info = read_results(__doc__)
    by_batch = {
        int(name.removeprefix(AGAINST_OTHERS).rstrip("]")): benchmark
        for name, benchmark in benchmarks.items()
        if name.startswith(AGAINST_OTHERS)
    }
    lines = [f"Measured on: {machine(info)}.", ""]
    if by_batch:
        found = {batch: epochs(benchmark) for batch, benchmark in by_batch.items()}
        pairs = next(iter(by_batch.values()))["extra_info"]["pairs"]
        draw(found, pairs, arguments.folder / FIGURE)
        at = os.path.relpath(arguments.folder / FIGURE, arguments.page.parent if arguments.page else Path())
        lines += [f"![seconds an epoch of pairs of patches]({at})", "", *table(found), ""]
    if rows := [*others(benchmarks)]:
        lines += ["| an epoch in | fastrecord | against | ratio |", "|---|---:|---|---:|", *rows, ""]
    lines += left_out(benchmarks)
    if arguments.page:
        put(arguments.page, lines, BEGIN, END)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
