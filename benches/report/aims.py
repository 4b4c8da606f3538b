"""What the experiments beyond one machine were to show, beside what they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from benches.harness import Row
from benches.report.cases import OURS, Experiment, is_ours
from benches.report.tables import table
from benches.report.words import shown, spread


@dataclass(frozen=True)
class Aim:
    """A number that was aimed at before it was measured.

    Attributes:
        what: What it is about.
        case: The beginning of the case's name, a regular expression.
        least, most: The aim: of the ratio, or of the value if it is beside nothing.
        beside: The beginning of the contender's name whose value fastrecord's is divided by; the best
            of several. "": nothing.
        beside_case: The case of that contender, if it is another one.
        speedup: Whether the other's value is divided by fastrecord's: how many times as fast it is, of times.
    """

    what: str
    case: str
    least: float | None = None
    most: float | None = None
    beside: str = ""
    beside_case: str = ""
    speedup: bool = False


_TRIVIAL, _RAND = (f"crop, flip, {name}" for name in ("TrivialAugment", "RandAugment"))
_ALONE = "fastrecord, crop and flip alone"
_TENSORS, _PRESET, _DALI = "torchvision v2, tensors", "ImageFolder, torchvision's preset", "NVIDIA DALI"

AIMS: dict[str, tuple[Aim, ...]] = {
    "augmented": (
        Aim("TrivialAugment: CPU time, of crop and flip alone", _TRIVIAL, most=1.12, beside=_ALONE),
        Aim("TrivialAugment: times as fast as v2 on tensors", _TRIVIAL, least=3.4, beside=_TENSORS, speedup=True),
        Aim("TrivialAugment: times as fast as the preset", _TRIVIAL, least=4.0, beside=_PRESET, speedup=True),
        Aim("TrivialAugment: times as fast as DALI", _TRIVIAL, least=3.3, beside=_DALI, speedup=True),
        Aim("RandAugment: CPU time, of crop and flip alone", _RAND, most=1.18, beside=_ALONE),
        Aim("RandAugment: times as fast as v2 on tensors", _RAND, least=4.2, beside=_TENSORS, speedup=True),
        Aim("RandAugment: times as fast as DALI", _RAND, least=4.1, beside=_DALI, speedup=True),
        Aim("float16: CPU time, of crop and flip alone", "crop and flip to float16", most=1.04, beside=_ALONE),
        Aim("float32: CPU time, of crop and flip alone", "crop and flip to float32", most=1.05, beside=_ALONE),
        Aim(
            "float32: times as fast as TurboLoader",
            "crop and flip to float32",
            least=2.6,
            beside="TurboLoader",
            speedup=True,
        ),
        Aim("raw pixels, float32: CPU time, of crop and flip alone", "raw .* float32", most=1.4, beside=_ALONE),
        Aim("raw pixels, float32: CPU time, of TurboLoader's", "raw .* float32", most=0.22, beside="TurboLoader"),
        Aim("raw pixels, TrivialAugment: CPU time, of crop and flip alone", "raw .* Triv", most=2.2, beside=_ALONE),
        Aim("DINO: times as fast as its own code", "DINO", least=9.0, beside="DINO's own code", speedup=True),
        Aim("DINO: times as fast as v2 on tensors", "DINO", least=13.0, beside=_TENSORS, speedup=True),
        Aim(
            "masks as PNGs: times as fast as v2",
            "image with its mask as a PNG",
            least=3.8,
            beside=_TENSORS,
            speedup=True,
        ),
        Aim(
            "masks as arrays, crop index: times as fast as v2",
            "image with its mask as an array",
            least=5.0,
            beside=_TENSORS,
            speedup=True,
        ),
        Aim("boxes: times as fast as v2", "image with 20 boxes", least=5.0, beside=_TENSORS, speedup=True),
        Aim("2 threads: times the images/s of 1", "2 threads against 1", least=1.85, beside="fastrecord, 1 thread"),
    ),
    "scale": (
        Aim("opening the data set, one process", r"opening a data set of [\d,]{5,} shards$", most=1.0),
        Aim("opening it, several at once", r"opening a data set of [\d,]+ shards, \d+ processes", most=1.0),
    ),
    "store": (
        Aim(
            "the first epoch, beside obstore alone",
            "the first epoch of",
            least=0.9,
            beside="the same bytes by obstore alone",
        ),
        Aim("the first epoch, beside Streaming", "the first epoch of", least=1.0, beside="MosaicML Streaming"),
        Aim("the first epoch, beside LitData", "the first epoch of", least=1.0, beside="LitData"),
        Aim("the second epoch, beside local files", "the second epoch", least=0.97, beside="the files on the disk"),
        Aim("25 % in the cache: bytes, beside the least", "bytes: a cache", most=1.02, beside="the least possible"),
        Aim("25 % in the cache: bytes beside the planned", "bytes: a cache", most=1.0, beside="as planned"),
        Aim("25 % in the cache: bytes that came twice", "bytes that came more than once", most=0.0),
        Aim("a slow network: rate, beside its bandwidth", "the first epoch with", least=0.95, beside="the bandwidth"),
        Aim("opening very many shards, one process", r"opening a data set of [\d,]+ shards$", most=1.0),
        Aim("opening them, several at once", r"opening a data set of [\d,]+ shards, \d+ processes", most=1.0),
        Aim(
            "requests of several, beside those of one",
            r"requests: opening .* processes",
            most=1.0,
            beside=OURS,
            beside_case=r"requests: opening .* shards$",
        ),
    ),
    "ray": (Aim("packing with two workers, beside two threads", "pack ", least=0.8, beside="fastrecord pack"),),
}


def aims(experiment: Experiment) -> Iterator[str]:
    """Yield a table of what was measured beside what was aimed at."""
    rows = [
        [aim.what, shown(row.median, row.unit), "" if other is None else shown(other.median, other.unit), text, wanted]
        for aim, row, other, text, wanted in _measured(experiment)
    ]
    if rows:
        yield from table(["", "fastrecord", "the other", "measured", "aim"], rows)


def in_short(experiment: Experiment | None) -> list[list[str]]:
    """Return rows for the table on top of the page."""
    found = _measured(experiment) if experiment else ()
    return [
        [f"{experiment.name}: {aim.what}", f"{text}; the aim: {wanted}"]
        for aim, _, _, text, wanted in found
        if experiment
    ]


def _measured(experiment: Experiment) -> Iterator[tuple[Aim, Row, Row | None, str, str]]:
    """Yield the aims that were measured: both rows, what came of it, and what was aimed at."""
    for aim in AIMS.get(experiment.name, ()):
        row = _row(experiment, aim.case, OURS)
        other = _row(experiment, aim.beside_case or aim.case, aim.beside) if aim.beside else None
        if row is None or (aim.beside and other is None):
            continue
        word, limit = ("at least", aim.least) if aim.least is not None else ("at most", aim.most or 0.0)
        if other is None:
            among = spread(row)
            text, wanted = shown(row.median, row.unit), f"{word} {shown(limit, row.unit)}"
        else:
            middle, low, high = _ratios(other, row) if aim.speedup else _ratios(row, other)
            among = f"{low:.2f} - {high:.2f}" if low != high else ""
            text, wanted = f"{middle:.2f}", f"{word} {limit:g}"
        yield aim, row, other, f"{text} ({among})" if among else text, wanted


def _row(experiment: Experiment, case: str, contender: str) -> Row | None:
    """Return the row of a contender, or the best of those whose names begin so, in the first case that fits."""
    for found in experiment.cases:
        if re.match(case, found.name):
            row = found.row(contender)
            if row is None and not is_ours(contender):
                row = next((each for each in found.rows if each.contender.startswith(contender)), None)
            if row is not None:
                return row
    return None


def _ratios(row: Row, other: Row) -> tuple[float, float, float]:
    """Return a value over the other: of the medians, and the least and most of the rounds."""
    if len(row.values) == len(other.values):
        pairs = [*zip(row.values, other.values, strict=True)]
    else:
        pairs = [(mine, theirs) for mine in row.values for theirs in other.values]
    each = [mine / theirs if theirs else float("inf") for mine, theirs in pairs]
    return row.median / other.median if other.median else float("inf"), min(each), max(each)
