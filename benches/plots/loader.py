"""Plot the loader benchmarks' results, and write the table of docs/performance.md.

`python -m pytest benches/bench_loader.py benches/bench_loader_limits.py --benchmark-json loader.json`, then
`python -m benches.plots.loader loader.json docs/img --page docs/performance.md`. With several files,
later results replace earlier ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.use("svg")
mpl.rcParams.update(
    {"svg.hashsalt": "fastrecord", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
)

# Okabe and Ito's colours, which colour-blind readers can distinguish.
OURS, OTHERS, MARK = "#0072B2", "#999999", "#D55E00"
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"


@dataclass(frozen=True)
class Rate:
    """The results of one contender.

    Attributes:
        name, version, threads: The contender, its version and its threads.
        median, low, high: Images/s: of the median, slowest and fastest round.
        cpu: Milliseconds of CPU time per image, median.
    """

    name: str
    version: str
    threads: int
    median: float
    low: float
    high: float
    cpu: float

    @property
    def ours(self) -> bool:
        """Whether it is one of our variants."""
        return self.name.startswith("fastrecord")


def rates(benchmark: dict[str, Any]) -> dict[str, Rate]:
    """The contenders of one benchmark, fastest first."""
    info = benchmark["extra_info"]
    found = [
        Rate(
            name,
            values["version"],
            values["threads"],
            info["images"] / statistics.median(values["seconds"]),
            info["images"] / max(values["seconds"]),
            info["images"] / min(values["seconds"]),
            statistics.median(values["cpu_seconds"]) / info["images"] * 1e3,
        )
        for name, values in info["contenders"].items()
    ]
    return {rate.name: rate for rate in sorted(found, key=lambda rate: -rate.median)}


def colour(rate: Rate) -> str:
    """The colours of ours and of others."""
    return OURS if rate.ours else OTHERS


def save(figure: Figure, path: Path) -> None:
    """Write an SVG; equal plots give equal bytes."""
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    print(path)


def peers(by_threads: dict[int, dict[str, Rate]], path: Path) -> None:
    """Bars: images/s of each contender, and the loader's speedup on JPEGs packed without options."""
    figure = Figure(figsize=(7.5, 0.5 + 0.28 * sum(map(len, by_threads.values()))))
    panels = figure.subplots(len(by_threads), 1, squeeze=False, sharex=True)[:, 0]
    for panel, (threads, found) in zip(panels, by_threads.items(), strict=True):
        reference = found["fastrecord"].median
        names = list(found)[::-1]
        for at, name in enumerate(names):
            rate = found[name]
            panel.barh(at, rate.median, color=colour(rate), height=0.75)
            panel.plot([rate.low, rate.high], [at, at], color="black", linewidth=1)
            label = (
                f"{rate.median:,.0f}"
                if name == "fastrecord"
                else f"{rate.median:,.0f}  ({reference / rate.median:.2f} x)"
            )
            panel.text(max(rate.median, rate.high), at, f" {label}", va="center", fontsize=9)
        panel.set_yticks(range(len(names)), names)
        panel.set_title(
            f"{threads} thread{'s or workers' if threads > 1 else ' or worker'}, as many cores", fontsize=10, loc="left"
        )
    panels[0].set_xlim(0, 1.22 * max(rate.high for found in by_threads.values() for rate in found.values()))
    panels[-1].set_xlabel('images/s (in brackets: how many times as fast "fastrecord" is)')
    figure.tight_layout()
    save(figure, path)


def threads(by_threads: dict[int, dict[str, Rate]], path: Path) -> None:
    """Lines: images/s against threads."""
    figure = Figure(figsize=(6.5, 4))
    panel: Axes = figure.subplots()
    counts = sorted(by_threads)
    ends = []
    for name in by_threads[counts[-1]]:
        if "new workers" in name:
            continue  # enough lines; the bars show it
        points = [(count, by_threads[count][name]) for count in counts if name in by_threads[count]]
        rate = points[-1][1]
        style: dict[str, Any] = {"color": colour(rate), "linewidth": 2.2 if rate.ours else 1.2}
        panel.plot(
            [count for count, _ in points],
            [rate.median for _, rate in points],
            marker="o" if rate.ours else ".",
            **style,
        )
        grown = f", {rate.median / points[0][1].median:.2f} x" if len(points) > 1 else ""
        ends.append((rate.median, f"{name}{grown}", style["color"] if rate.ours else "black"))
    # Names at the right, moved apart if lines end close to each other.
    top = max(height for height, _, _ in ends)
    floor = float("-inf")
    line = {"arrowstyle": "-", "color": "#cccccc", "relpos": (0, 0.5), "shrinkB": 0}
    for height, text, shade in sorted(ends):
        floor = max(height, floor + top * 0.05)
        place = (counts[-1] * 1.06, floor)
        panel.annotate(text, (counts[-1], height), place, color=shade, fontsize=8.5, va="center", arrowprops=line)
    panel.set_xticks(counts)
    panel.set_xlim(counts[0] - 0.1, counts[-1] + 0.1)
    panel.set_ylim(0, top * 1.08)
    panel.set_xlabel("threads or worker processes, and cores")
    panel.set_ylabel("images/s")
    save(figure, path)


def memory(info: dict[str, Any], path: Path) -> None:
    """Lines: memory during an epoch of a file that is larger than the process's limit."""
    figure = Figure(figsize=(6.5, 3))
    panel: Axes = figure.subplots()
    samples = info["samples"]
    seconds = [sample[0] for sample in samples]
    panel.plot(
        seconds, [(anonymous + shared) / 1e6 for _, _, anonymous, _, shared in samples], color=OURS, linewidth=2.2
    )
    panel.plot(seconds, [mapped / 1e6 for _, _, _, mapped, _ in samples], color=OTHERS, linewidth=1.5)
    panel.axhline(info["limit_bytes"] / 1e6, color=MARK, linestyle="--")
    panel.axhline(info["file_bytes"] / 1e6, color="black", linestyle=":")
    end = seconds[-1]
    own, mapped = (samples[-1][2] + samples[-1][4]) / 1e6, samples[-1][3] / 1e6
    panel.text(end, own, f"own memory, {own:,.0f} MB", ha="right", va="bottom", color=OURS)
    panel.text(end, mapped, f"mapped files (mostly libraries), {mapped:,.0f} MB", ha="right", va="top", color="#555555")
    panel.text(end, info["limit_bytes"] / 1e6, "limit of own memory", ha="right", va="bottom", color=MARK)
    panel.text(end, info["file_bytes"] / 1e6, "the file", ha="right", va="bottom")
    panel.set_ylim(0, info["file_bytes"] / 1e6 * 1.12)
    panel.set_xlabel("seconds of the epoch")
    panel.set_ylabel("MB")
    save(figure, path)


def table(by_threads: dict[int, dict[str, Rate]]) -> Iterator[str]:
    """Rows of Markdown: each contender with each number of threads."""
    counts = sorted(by_threads)
    heads = [f"{count} thread{'s' if count > 1 else ''}, images/s | fastrecord is" for count in counts]
    yield f"| what | measured | {' | '.join(heads)} | CPU time an image, 1 thread |"
    yield "|---|---|" + "---:|---:|" * len(counts) + "---:|"
    for name, rate in by_threads[counts[0]].items():
        cells = []
        for count in counts:
            found = by_threads[count]
            if name not in found:
                cells.append("|")
                continue
            ratio = found["fastrecord"].median / found[name].median
            cells.append(f"{found[name].median:,.0f} | {f'{ratio:.2f} x as fast' if name != 'fastrecord' else ''}")
        yield f"| {name} | {rate.version} | {' | '.join(cells)} | {rate.cpu:.2f} ms |"


def threads_of(benchmarks: dict[str, Any], test: str) -> dict[int, dict[str, Rate]]:
    """The contenders of a test, by number of threads."""
    return {
        int(name.rpartition("[")[2].rstrip("]")): rates(benchmark)
        for name, benchmark in benchmarks.items()
        if name.startswith(f"{test}[")
    }


def others(benchmarks: dict[str, Any]) -> Iterator[str]:
    """Rows of Markdown: results without a comparison to peers."""
    yield "| what | fastrecord | against | ratio |"
    yield "|---|---|---|---:|"
    names = {
        "test_two_threads_over_one": "images/s",
        "test_small_batches": "images/s",
        "test_raw_pixels[1]": "1 thread, images/s",
        "test_raw_pixels[2]": "2 threads, images/s",
    }
    for test, what in names.items():
        if test in benchmarks:
            found = rates(benchmarks[test])
            order = list(benchmarks[test]["extra_info"]["contenders"])
            for mine, theirs in zip(order[::2], order[1::2], strict=False):
                a, b = found[mine].median, found[theirs].median
                yield f"| {what}: {mine} | {a:,.0f} | {theirs}: {b:,.0f} | {a / b:.2f} |"
    if first := benchmarks.get("test_first_batch_of_a_million_records"):
        seconds = statistics.median(first["extra_info"]["first_batch_seconds"])
        yield f"| first shuffled batch of 1,000,000 records, imports not counted | {seconds * 1e3:.0f} ms | | |"
    if epoch := benchmarks.get("test_memory_over_an_epoch"):
        info = epoch["extra_info"]
        images = info["samples"][-1][1]
        own = [anonymous + shared for _, done, anonymous, _, shared in info["samples"] if done > images / 20]
        yield (
            f"| own memory over an epoch of {info['file_bytes'] / 1e9:.1f} GB, most | {max(own) / 1e6:.0f} MB "
            f"| at a twentieth of it: {own[0] / 1e6:.0f} MB | {max(own) / own[0]:.2f} |"
        )


def left_out(benchmarks: dict[str, Any]) -> list[str]:
    """Report the contenders that did not run."""
    names = {name for benchmark in benchmarks.values() for name in benchmark["extra_info"].get("left_out", ())}
    return [f"Not measured, as they did not run here: {', '.join(sorted(names))}.", ""] if names else []


def machine(info: dict[str, Any]) -> str:
    """The machine: processor, cores, memory."""
    cpu = info.get("cpu", {}).get("brand_raw", info["machine"])
    memory = f"{info['memory_bytes'] / 2**30:.0f} GiB"
    system = f"{info['system']} {info['release'].split('-')[0]}"
    return f"{cpu}, {info['cores']} cores, {memory}, {system}, CPython {info['python_version']}"


def put(page: Path, lines: list[str], begin: str = BEGIN, end: str = END) -> None:
    """Replace the text between two marks of a page.

    Raises:
        ValueError: the page does not contain each mark exactly once.
    """
    text = page.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page}: the marks {begin} and {end} are to be there once")
    head, tail = text.split(begin)[0], text.split(end)[1]
    page.write_text("\n".join([f"{head}{begin}", *lines, f"{end}{tail}"]))
    print(page)


def read_results(purpose: str | None) -> tuple[argparse.Namespace, dict[str, Any], dict[str, Any]]:
    """Read the files of the command line; create the folder for plots.

    Returns:
        The arguments; benchmarks by name, later results replacing earlier ones; the last machine.
    """
    parser = argparse.ArgumentParser(description=purpose.splitlines()[0] if purpose else None)
    parser.add_argument("results", nargs="+", type=Path, help="what --benchmark-json wrote")
    parser.add_argument("folder", type=Path, help="where the plots go")
    parser.add_argument("--page", type=Path, help="a page whose numbers, between two marks, are replaced")
    arguments = parser.parse_args()
    results = [json.loads(path.read_text()) for path in arguments.results]
    benchmarks = {benchmark["name"]: benchmark for result in results for benchmark in result["benchmarks"]}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    return arguments, benchmarks, results[-1]["machine_info"]


def main() -> None:
    """Draw all results."""
    arguments, benchmarks, info = read_results(__doc__)
    by_threads, floats = threads_of(benchmarks, "test_random_resized_crops"), threads_of(benchmarks, "test_float_crops")
    lines = [f"Measured on: {machine(info)}.", ""]
    page = arguments.page.parent if arguments.page else Path()

    def show(text: str, name: str) -> list[str]:
        return [f"![{text}]({os.path.relpath(arguments.folder / name, page)})", ""]

    if by_threads:
        peers(by_threads, arguments.folder / "loader-peers.svg")
        threads(by_threads, arguments.folder / "loader-threads.svg")
        lines += [*show("images/s of each loader", "loader-peers.svg"), *table(by_threads), ""]
        lines += show("images/s against threads", "loader-threads.svg")
    if floats:
        lines += ["The same crops as normalised float32:", "", *table(floats), ""]
    lines += [*others(benchmarks), ""]
    if "test_memory_over_an_epoch" in benchmarks:
        memory(benchmarks["test_memory_over_an_epoch"]["extra_info"], arguments.folder / "loader-memory.svg")
        lines += show("memory over an epoch of a file that is larger than the limit", "loader-memory.svg")
    lines += left_out(benchmarks)
    if arguments.page:
        put(arguments.page, lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
