"""What each experiment shows. A case that its section does not know becomes a plain table."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benches.harness import Row
from benches.report.aims import aims
from benches.report.cases import Case, Experiment
from benches.report.planned import beside_plans
from benches.report.plots import Pictures, Point
from benches.report.tables import bold_name, by_place, details, folded, matrix, table, verdicts
from benches.report.words import is_speed, number, spread

Write = Callable[[Experiment, Pictures], Iterator[str]]


@dataclass(frozen=True)
class Section:
    """The title of an experiment, and what writes its results."""

    title: str
    write: Write


def plain(experiment: Experiment, _: Pictures) -> Iterator[str]:
    """Yield a table for each case."""
    yield from verdicts(experiment.cases)
    yield from details(experiment.cases)


# A data set of the reading part, as its cases name it: "of 10,000 images of 110 KB".
RECORDS = re.compile(r"(?: of)? ([\d,]+ \w+ of [\d.]+ \w+)")
LOADING = "random crops of 224 pixels, batches of"


def sets_of_records(experiment: Experiment) -> dict[str, list[Case]]:
    """Return the cases of packing and reading, by their set of records."""
    sets: dict[str, list[Case]] = {}
    for case in experiment.cases:
        found = RECORDS.search(case.name)
        if found and case.rows and (case.name.startswith("pack ") or case.unit != "images/s"):
            sets.setdefault(found[1], []).append(case)
    return {records: cases for records, cases in sets.items() if len(cases) > 2}


def loading_case(experiment: Experiment | None) -> Case | None:
    """Return images/s of the loaders with the most threads."""
    cases = [
        case
        for case in (experiment.cases if experiment else ())
        if case.name.startswith(LOADING) and case.unit == "images/s" and case.rows
    ]
    return max(cases, key=lambda case: int(case.rows[0].settings.get("threads", 0)), default=None)


def training_case(experiment: Experiment | None) -> Case | None:
    """Return images/s of the loaders that augment for a training."""
    cases = experiment.cases if experiment else ()
    return next((case for case in cases if case.name.startswith("a training's images/s") and case.rows), None)


def random_reads(experiment: Experiment | None) -> Iterator[Case]:
    """Yield random batches of large records, warm and cold, copied into one buffer."""
    for case in experiment.cases if experiment else ():
        if re.match(r"random batches .* of [\d.]+ KB, page cache \w+, copied", case.name) and case.rows:
            yield case


def is_reading(case: Case) -> bool:
    """Return whether a case is one of reading or loading; the others are of packing, size and memory."""
    return not case.name.startswith("pack ") and is_speed(case.unit)


def formats(experiment: Experiment, pictures: Pictures) -> Iterator[str]:
    """Yield a matrix for each set of records, the loaders, then each case."""
    yield from verdicts([case for case in experiment.cases if is_reading(case)])
    left = [case for case in experiment.cases if case.rows]
    for records, cases in sets_of_records(experiment).items():
        for title, part in (
            ("packing", [case for case in cases if case.name.startswith("pack ")]),
            ("reading", [case for case in cases if not case.name.startswith("pack ")]),
        ):
            if part:
                yield f"### {records}: {title}"
                yield ""
                yield from matrix(part, [_head(case, records) for case in part], "format")
        heads = {_head(case, records): case for case in cases}
        bars = {head: case for head, case in heads.items() if re.match(r"random .*, (warm|cold), copied$", head)}
        if bars:
            name = "formats-" + re.sub(r"\W+", "-", records.partition(" ")[2]).strip("-").lower()
            yield from pictures.bars(name, f"random batches of {records}, in each format", bars)
        yield from folded(f"{records}: versions and the spread of each case", [*details(cases)])
        left = [case for case in left if case not in cases]
    if left:
        yield "### Loading: images into batches"
        yield ""
        yield (Path(__file__).parent / "text" / "loading.md").read_text(encoding="utf-8")
        main = loading_case(experiment)
        if main is not None:
            yield from pictures.bars("loading", f"images/s of each loader: {main.name}", {main.name: main})
        wide = [case for case in left if len(case.rows) > 3]
        if wide:
            yield from matrix(wide, [_loading_head(case) for case in wide], "loader")
        yield from details([case for case in left if case not in wide])
        yield from folded("Versions and the spread of each case", [*details(wide)])


def _loading_head(case: Case) -> str:
    """Return the name of a case, shorter, as the text above its matrix says what crops and threads are."""
    head = re.sub(f"{LOADING} \\d+", "crops", case.name)
    return re.sub(r"(thread|threads) or workers each", r"\1", head)


def _head(case: Case, records: str) -> str:
    """Return the name of a case without what all cases of its matrix share."""
    head = case.name.replace(f" of {records}", "").replace(f" {records}", "")
    head = head.replace("copied into one buffer", "copied").replace("page cache ", "")
    return re.sub(r"^pack(?:, synced)?(?:: )?", "", head).strip(" ,:") or "pack and sync"


def series(cases: Sequence[Case], setting: str) -> dict[str, dict[int, Case]]:
    """Return cases that differ in a number, "batch 8", by what they have in common and by the number."""
    found: dict[str, dict[int, Case]] = {}
    for case in cases:
        value = case.rows[0].settings.get(setting) if case.rows else None
        named = f"{setting} {value}"
        if isinstance(value, int) and named in case.name:
            common = case.name.replace(f", {named}", "").replace(f"{named}, ", "").replace(named, "").strip()
            found.setdefault(f"{common}|{case.unit}", {})[value] = case
    return {name.rpartition("|")[0]: dict(sorted(by.items())) for name, by in found.items() if len(by) > 1}


def points(by: dict[int, Case], contender: str) -> list[Point]:
    """Return the curve of a contender over a series."""
    rows = ((value, case.row(contender)) for value, case in by.items())
    return [Point(value, row.median, min(row.values), max(row.values)) for value, row in rows if row]


def small_batches(experiment: Experiment, pictures: Pictures) -> Iterator[str]:
    """Yield what batch sizes cost: flatness, then each series as a matrix, with plots."""
    measured = [case for case in experiment.cases if case.rows]
    yield from verdicts([case for case in measured if is_speed(case.unit)])
    flat = flatness(experiment)
    if flat:
        yield "### The smallest batch against the largest"
        yield ""
        yield "Time with the smallest batches over time with the largest; 1 is flat."
        yield ""
        rows = []
        for name in by_place(flat):
            own = (case.row(name) for case in flat)
            rows.append([bold_name(name), *(f"{row.median:.2f} ({spread(row)})" if row else "-" for row in own)])
        yield from table(["source", *(case.name for case in flat)], rows)
    found = series([case for case in measured if case not in flat], "batch")
    for number_, (name, by) in enumerate(found.items()):
        yield f"### {name[:1].upper()}{name[1:]}"
        yield ""
        cases = [*by.values()]
        if len(by) > 2:
            shown = {each: points(by, each) for each in by_place(cases)[:8]}
            shown = {each: curve for each, curve in shown.items() if len(curve) > 1}
            y = f"{name}, {cases[0].unit}"
            yield from pictures.curves(f"small-batches-{number_ + 1}", y, shown, x="batch", y=cases[0].unit, log_x=True)
        yield from matrix(cases, [f"batch {value}" for value in by], "source")
        yield from folded("Where the time goes, versions and spread", [*details(cases)])
    left = [case for case in measured if case not in flat and all(case not in by.values() for by in found.values())]
    yield from details(left)


def smallest_batches(experiment: Experiment | None) -> Iterator[Case]:
    """Yield loading alone and training with the smallest batches: the first series of each unit of time."""
    cases = [case for case in (experiment.cases if experiment else ()) if is_speed(case.unit)]
    units: set[str] = set()
    for by in series(cases, "batch").values():
        case = next(iter(by.values()))
        if case.unit not in units:
            units.add(case.unit)
            yield case


def flatness(experiment: Experiment | None) -> list[Case]:
    """Return the cases that divide small batches by large ones."""
    cases = experiment.cases if experiment else ()
    return [case for case in cases if case.unit == "times" and " against batch" in case.name and case.rows]


STEPS = ": a step on data of each kind"
KEPT = ": speed on the file, of the speed on constant data on the device"


def bottleneck(experiment: Experiment, pictures: Pictures) -> Iterator[str]:
    """Yield each ladder: its rungs from the bottom, and what of the speed is left on the file."""
    left = [case for case in experiment.cases if case.rows]
    ladders = {case.name.removesuffix(STEPS): _in_order(case, experiment) for case in left if case.name.endswith(STEPS)}
    if ladders:
        text = "time of a step on each kind of data"
        yield from pictures.bars(experiment.name.replace("_", "-"), text, ladders)
    for title, ladder in ladders.items():
        yield f"### {title[:1].upper()}{title[1:]}"
        yield ""
        rows = []
        for row in ladder.rows:
            cost, wait = row.settings.get("layer_ms"), row.settings.get("data_wait")
            rate = row.settings.get("images_per_second")
            rows.append(
                [
                    row.contender,
                    number(row.median),
                    spread(row),
                    number(rate) if isinstance(rate, float | int) else "",
                    f"{cost:+.2f}" if isinstance(cost, float | int) else "",
                    f"{100 * wait:.0f} %" if isinstance(wait, float | int) else "",
                ]
            )
        heads = ["data", f"a step, {ladder.unit.partition('/')[0]}", "least - most", "images/s"]
        yield from table([*heads, "the layer costs, ms", "waiting for data"], rows)
        of_it = [case for case in left if case.name.startswith(f"{title}: ")]
        for case in of_it:
            for row in case.rows if case.unit == "%" else ():
                text = f"{row.median:.1f} % ({spread(row)})" if len(row.values) > 1 else f"{row.median:.1f} %"
                said = str(row.settings.get("verdict", "")).strip().rstrip(".")
                yield f"- {case.name.removeprefix(f'{title}: ')}: {row.contender}: {text}." + (
                    f" {said}." if said else ""
                )
        yield ""
        left = [case for case in left if case not in of_it or (case.unit != "%" and not case.name.endswith(STEPS))]
    yield from details(left)


def _in_order(case: Case, experiment: Experiment) -> Case:
    """Return a case with its rows as they were measured, not best first."""
    order = [row.contender for row in experiment.rows if row.case == case.name]
    return replace(case, rows=tuple(sorted(case.rows, key=lambda row: order.index(row.contender))))


def kept(experiment: Experiment | None) -> list[Case]:
    """Return the cases that divide the speed on the file by the speed on constant data."""
    return [case for case in (experiment.cases if experiment else ()) if case.name.endswith(KEPT) and case.rows]


# Settings of a row of scaling, and the heads of their columns.
PARTS = {
    "efficiency": "of the ideal",
    "step_ms": "a step, ms",
    "data_ms": "data, ms",
    "compute_ms": "compute, ms",
    "allreduce_ms": "all-reduce, ms",
    "read_mb_s": "read, MB/s",
    "reads_s": "reads/s",
    "disk_mb_s": "disk, MB/s",
}


def scaling(experiment: Experiment, pictures: Pictures) -> Iterator[str]:
    """Yield the curves against the ideal line, and a table for each network."""
    cases = [_in_order(case, experiment) for case in scaled(experiment)]
    rows = [row for case in cases for row in case.rows]
    single = [row for row in rows if row.settings["ranks"] == 1][:1]
    curves = {}
    for case in cases:
        own = [row for row in case.rows if row.settings["nodes"] in (1, row.settings["ranks"])]
        own += [row for row in single if row not in own]
        curves[case.name] = [
            Point(row.settings["ranks"], row.median, min(row.values), max(row.values))
            for row in sorted(own, key=lambda row: int(row.settings["ranks"]))
        ]
    ideal = {row.settings["ranks"]: float(row.settings["ideal"]) for row in rows if row.settings.get("ideal")}
    if curves and ideal:
        line = [Point(ranks, value, value, value) for ranks, value in sorted(ideal.items())]
        yield from pictures.curves(
            "scaling",
            "images/s against the number of ranks; over a network, one rank a node",
            curves,
            x="ranks",
            y=cases[0].unit,
            ideal=line,
        )
    for case in cases:
        yield f"**{case.name}**"
        yield ""
        table_rows = [
            [row.contender, number(row.median), spread(row), *(_part(row, name) for name in PARTS)] for row in case.rows
        ]
        yield from table(["", case.unit, "least - most", *PARTS.values()], table_rows)
        named = [(row, name) for row in case.rows for name in ("model", "delay")]
        same = dict.fromkeys(str(row.settings[name]) for row, name in named if row.settings.get(name))
        if same:
            yield f"All of them: {'; '.join(same)}."
            yield ""
    yield from beside_plans(experiment)
    yield from details([case for case in experiment.cases if all(case.name != own.name for own in cases)])


def _part(row: Row, name: str) -> str:
    value = row.settings.get(name)
    if not isinstance(value, float | int):
        return ""
    return f"{100 * value:.0f} %" if name == "efficiency" else number(value)


def scaled(experiment: Experiment | None) -> list[Case]:
    """Return the cases of images/s by nodes and ranks."""
    cases = experiment.cases if experiment else ()
    return [case for case in cases if case.rows and {"nodes", "ranks"} <= case.rows[0].settings.keys()]


def recipe(experiment: Experiment, pictures: Pictures) -> Iterator[str]:
    """Yield the accuracies of all seeds: means, spread, and differences from the first contender."""
    cases = [_in_order(case, experiment) for case in accuracies(experiment)]
    for at, case in enumerate(cases, 1):
        yield f"### {case.name[:1].upper()}{case.name[1:]}"
        yield ""
        values = {row.contender: row.values for row in case.rows}
        yield from pictures.dots(f"recipe-{at}", f"{case.name}: a dot for each seed, and the mean", values, x=case.unit)
        rows = []
        for row in case.rows:
            told = row.settings
            difference, interval = told.get("difference"), told.get("interval")
            compared = row is not case.rows[0] and difference is not None and interval is not None
            rows.append(
                [
                    row.contender,
                    f"{statistics.mean(row.values):.2f}",
                    f"{statistics.stdev(row.values):.2f}" if len(row.values) > 1 else "",
                    f"{min(row.values):.2f} - {max(row.values):.2f}",
                    f"{difference:+.2f} ± {interval:.2f}" if compared else "",
                ]
            )
        heads = ["", f"mean {case.unit}", "standard deviation", "least - most"]
        yield from table([*heads, f"from {case.rows[0].contender}, with its 95 % interval"], rows)
    yield from details([case for case in experiment.cases if all(case.name != own.name for own in cases)])


def accuracies(experiment: Experiment | None) -> list[Case]:
    """Return the cases of the recipe that compare seeds."""
    cases = experiment.cases if experiment else ()
    return [case for case in cases if case.rows and "difference" in case.rows[0].settings]


def interchange(experiment: Experiment, _: Pictures) -> Iterator[str]:
    """Yield a row for each format, then what is not of a format."""
    yield from verdicts(experiment.cases)
    rows, left = [], [case for case in experiment.cases if case.rows]
    named = (re.fullmatch(r"(?:import from|export to) (.+)", case.name) for case in left)
    for name in dict.fromkeys(found[1] for found in named if found):
        cells = [name]
        for way, others in (
            (f"import from {name}", ("fastrecord pack", "the library's read")),
            (f"export to {name}", ("the library's writer",)),
        ):
            case = experiment.case(way)
            ours = case.row("fastrecord") if case else None
            cells.append(number(ours.median) if ours else "-")
            for other in others:
                peer = case.row(other) if case else None
                cells.append(f"{ours.median / peer.median:.2f}" if ours and peer else "-")
            memory = experiment.case(f"memory: {way}")
            cells.append(f"{memory.rows[0].median / 1e6:.0f} MB" if memory else "-")
            left = [each for each in left if each not in (case, memory)]
        rows.append(cells)
    heads = ["format", "import, images/s", "of `fastrecord pack`", "of the library's read", "memory"]
    yield from table([*heads, "export, images/s", "of the library's writer", "memory"], rows)
    yield from details(left)


def beyond(experiment: Experiment, _: Pictures) -> Iterator[str]:
    """Yield what was aimed at, then a table for each case."""
    yield from verdicts(experiment.cases)
    yield from aims(experiment)
    yield from details(experiment.cases)


SECTIONS: dict[str, Section] = {
    "formats": Section("Formats", formats),
    "augmented": Section("Augmented recipes", beyond),
    "small_batches": Section("Small batches", small_batches),
    "bottleneck": Section("The bottleneck", bottleneck),
    "scaling": Section("Scaling", scaling),
    "scale": Section("Very many shards", beyond),
    "store": Section("Object stores", beyond),
    "recipe": Section("The recipe", recipe),
    "interchange": Section("Import, export and packing", interchange),
    "ray": Section("On a Ray cluster", beyond),
    "gpu": Section("With a GPU", bottleneck),
}
