"""The parts of other pages that show results: the README's table, and what pages for newcomers cite.

Each lies between `<!-- measured: begin -->` and `<!-- measured: end -->`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benches.report.cases import OURS, Case, Experiment, is_ours, is_yardstick, ratios
from benches.report.sections import KEPT, kept, loading_case, random_reads, smallest_batches, training_case
from benches.report.tables import table
from benches.report.words import as_good, machine, number, shown, times

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

Results = Mapping[str, Experiment]
Lines = Callable[[Results], Iterator[str]]

# Pages for newcomers: the loaders that they come from.
LOADERS = {
    "ffcv": ("FFCV",),
    "imagefolder": ("ImageFolder, Pillow", "ImageFolder, torchcodec"),
    "litdata": ("LitData",),
    "mosaicml": ("MosaicML Streaming",),
    "webdataset": ("WebDataset",),
}


def documents(root: Path, results: Results) -> dict[Path, str]:
    """Return the pages below a folder, with the parts of these results.

    Raises:
        ValueError: one does not contain each mark exactly once.
    """
    parts: dict[str, Lines] = {"README.md": readme, "docs/index.md": picture, "docs/from/index.md": newcomers}
    for page, names in LOADERS.items():
        parts[f"docs/from/{page}.md"] = lambda results, names=names: newcomer(results, names)  # type: ignore[misc]
    return {root / page: put(root / page, write(results)) for page, write in parts.items()}


def put(page: Path, lines: Iterator[str]) -> str:
    """Return a page with lines between its marks."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page}: the marks {BEGIN} and {END} are to be there once each")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return "\n".join([head + BEGIN, *lines, END + tail])


def readme(results: Results) -> Iterator[str]:
    """Yield the README's table."""
    rows: list[list[str]] = []

    def against(what: str, case: Case | None, ours: str = OURS, peers: Sequence[str] = (), most: int = 4) -> None:
        """Add a row: one of ours beside the named peers, or the best ones."""
        row = case.row(ours) if case else None
        if case is None or row is None:
            return
        others = [
            each
            for each in case.rows
            if (each.contender in peers if peers else not is_ours(each.contender) and not is_yardstick(each))
        ][:most]
        if others:
            values = "; ".join(f"{each.contender} {shown(each.median, case.unit)}" for each in others)
            factors = ", ".join(times(ratios(row, each)[0]) for each in others)
            fast = case.unit == "s" or case.unit.endswith("/s")
            rows.append([what, shown(row.median, case.unit), values, f"{factors} {'as fast' if fast else ''}".strip()])

    loading = loading_case(results.get("formats"))
    if loading is not None:
        against(f"JPEGs to batches: {loading.name}", loading)
        against("the same with a crop index", loading, f"{OURS}, crop index")
        against("the same, packed", loading, f"{OURS}, packed")
    augmented = training_case(results.get("augmented"))
    if augmented is not None:
        against(augmented.name.partition(": ")[2], augmented)
    for case in random_reads(results.get("formats")):
        against(case.name, case, most=3)
    for case in smallest_batches(results.get("small_batches")):
        against(case.name, case, most=3)
    if "interchange" in results:
        for case in results["interchange"].cases:
            if case.name.startswith("pack files"):
                against(case.name, case)
    for case in kept(results.get("bottleneck"))[:1]:
        row = case.rows[0]
        what = f"training: {case.name.removesuffix(KEPT)}"
        rows.append([what, f"{row.median:.1f} %", "of the speed on constant data that is on the device", ""])
    yield from table(["what", "fastrecord", "the best others", "fastrecord is"], rows, words=4)
    if results:
        facts = results.get("formats", next(iter(results.values()))).facts
        yield f"Medians of {'a full' if facts.full else 'a short'} run of the suite on: {machine(facts)}."


def picture(results: Results) -> Iterator[str]:
    """Yield the plot of the loaders."""
    case = loading_case(results.get("formats"))
    if case is not None:
        peers = sum(not is_ours(row.contender) for row in case.rows)
        yield f"![images/s of fastrecord and {peers} other loaders](img/benchmarks/loading.svg)"


def newcomers(results: Results) -> Iterator[str]:
    """Yield the table of the loaders that people come from."""
    case = loading_case(results.get("formats"))
    ours = case.row(OURS) if case else None
    if case is None or ours is None:
        return
    rows = []
    for page, names in LOADERS.items():
        for name in names:
            row = case.row(name)
            linked = f"[{name.partition(',')[0]}]({page}.md){''.join(name.partition(',')[1:])}"
            if row is None:
                rows.append([linked, "not measured", ""])
            else:
                rows.append([linked, number(row.median), as_good(ratios(ours, row)[0], case.unit)])
    yield from table(["from", "images/s", "fastrecord is"], rows)
    forms = {"with a crop index": f"{OURS}, crop index", "from packed JPEGs": f"{OURS}, packed"}
    made = [f"{number(row.median)} images/s {what}" for what, name in forms.items() if (row := case.row(name))]
    more = "".join(f", {'and ' * (text == made[-1])}{text}" for text in made)
    yield f"fastrecord made {number(ours.median)} images/s{more}: {case.name}, on {machine(results['formats'].facts)}."


def newcomer(results: Results, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence on some loaders."""
    case = loading_case(results.get("formats"))
    ours = case.row(OURS) if case else None
    peers = [row for name in names if case and (row := case.row(name))]
    if case is None or ours is None or not peers:
        yield "**Measured:** [benchmarks](../benchmarks.md)."
        return
    parts = [
        f"{number(row.median)} with {row.contender}, so fastrecord is {as_good(ratios(ours, row)[0], case.unit)}"
        for row in peers
    ]
    yield f"**Measured:** {number(ours.median)} images/s with the loader, {'; '.join(parts)}"
    yield f"({case.name}; [benchmarks](../benchmarks.md))."
