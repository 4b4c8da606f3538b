"""Packing and reading: what each format costs to write, to open and to read, warm and cold.

Every contender reads on one core, and hands over payload and label of each record. "Copied into one
buffer" ends at the same place for all: the bytes of a batch, one after the other, in a buffer that
exists already. "As handed over" ends with what the library returns for each record, which may be a
view of unread bytes. A call lasts a fixed time, at least one batch, so slow contenders read less;
the rate counts the records read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benches.contenders import FORMATS, Source
from benches.contenders.source import BATCH, make_small
from benches.harness import Answer, Bench, Contender, Contest
from benches.support.pictures import make_images

TARGET = "benches.experiments.formats.contestant:Contestant"
CLASSES = 1000  # ImageNet's
EPOCH = 15.0  # seconds of an epoch at most
OPENED = 0.2  # seconds that opening should take at most
SLOW = 5.0  # a call that takes so many times longer than it should is repeated once only
OURS = "fastrecord"
# Why another format can be first in a row.
REASONS = {
    ".pth": "Opening it has read all records into memory, as Python objects, so that reading is copying",
    "numpy memmap": "It slices one array, and checks neither checksums nor whether the file has changed",
    "Arrow": "It slices arrays, and checks neither checksums nor whether the file has changed",
    "LMDB": "It checks neither checksums nor whether the file has changed",
}
OPENING = "Ours checks the newest commit and the checksums of the file's footer, and parses the schema, once for a file"
COLD = "It reads ahead, which takes a small file into memory in a few reads; ours reads the records asked for"


@dataclass(frozen=True)
class Sizes:
    """How much is done.

    Attributes:
        images, small: Records of the two sets.
        seconds: Length of a call that reads.
        cold: The same with an empty page cache.
        pack: Time after which a contender's packing is not repeated.
    """

    images: int
    small: int
    seconds: float
    cold: float
    pack: float


SHORT = Sizes(images=1000, small=10_000, seconds=0.05, cold=0.1, pack=0.5)
FULL = Sizes(images=10_000, small=1_000_000, seconds=0.3, cold=0.6, pack=6)


def run(bench: Bench) -> None:
    """Measure all formats."""
    sizes = FULL if bench.full else SHORT
    images = make_images(bench.folder, sizes.images, classes=CLASSES)
    sources = {"images": Source(images.root, sizes.images), "small": make_small(bench.folder, sizes.small)}
    for source in sources.values():
        _ = source.crcs
    place = bench.folder / "formats"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        made = _pack(bench, sizes, sources, place)
        _read(bench, sizes, sources, place, made)
    finally:
        shutil.rmtree(place)


def _contenders(sources: Mapping[str, Source], place: Path, *, cores: int | None, copies: int) -> list[Contender]:
    told = {data: (str(source.root), source.records) for data, source in sources.items()}
    return [
        Contender(form, TARGET, {"form": form, "sources": told, "place": str(place)}, cores, copies) for form in FORMATS
    ]


def _words(data: str, source: Source) -> str:
    size = source.total / source.records
    return f"{source.records:,} {'images' if data == 'images' else 'records'} of " + (
        f"{size / 1000:.0f} KB" if size >= 1000 else f"{size:.0f} B"
    )


def _pack(bench: Bench, sizes: Sizes, sources: dict[str, Source], place: Path) -> dict[str, list[str]]:
    """Write all formats; return who has written each set."""
    with bench.contest(_contenders(sources, place, cores=None, copies=1)) as contest:
        return {data: _pack_one(bench, contest, sizes, data, source) for data, source in sources.items()}


def _pack_one(bench: Bench, contest: Contest, sizes: Sizes, data: str, source: Source) -> list[str]:
    """Write a set in all formats."""
    case = f"pack {_words(data, source)}, synced"
    told: dict[str, Any] = {"data": data}
    seconds: dict[str, list[float]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name in _fit(bench, contest, contest.names, case, "s", data=data):
        contest.call(name, "clear", data=data)
        answer = contest.call(name, "pack", memory=True, data=data)
        if answer is None:
            continue
        # Sampling memory takes some CPU time, so this call counts only where it takes long anyway.
        seconds[name] = [answer.seconds] if answer.seconds > sizes.pack else []
        settings[name] = {"version": contest.versions[name], "threads": len(os.sched_getaffinity(0))}
        memory = answer.most_bytes - answer.before_bytes
        bench.row(f"{case}: peak memory", name, "bytes", [memory], better="less", **settings[name])
        bench.row(f"{case}: bytes on disk", name, "bytes", [answer.value], better="less", **settings[name])
    for _ in range(bench.rounds):
        found = contest.rounds(
            "pack",
            rounds=1,
            warm_up=0,
            before=partial(contest.call, method="clear", data=data),
            arguments=lambda _: told,
            only={name for name in seconds if sum(seconds[name]) < sizes.pack},
        )
        for name, answers in found.items():
            seconds[name].append(answers[0].seconds)
    made = [name for name in contest.names if name in seconds]
    for name in made:
        bench.row(case, name, "s", seconds[name], better="less", **settings[name])
    for name, why in contest.missing.items():
        bench.not_measured(case, name, why, unit="s")
    return made


def _fit(bench: Bench, contest: Contest, names: Iterable[str], case: str, unit: str, **arguments: Any) -> list[str]:
    """Return who can take part in a case; note why the others cannot."""
    fit = []
    for name in names:
        answer = contest.call(name, "unfit", **arguments)
        if answer is None:
            continue
        why = answer.value[0] if isinstance(answer.value, list) else answer.value  # a list from several copies
        if why:
            bench.not_measured(case, name, why, unit=unit)
        else:
            fit.append(name)
    return fit


def _read(bench: Bench, sizes: Sizes, sources: dict[str, Source], place: Path, made: Mapping[str, list[str]]) -> None:
    """Measure all ways to read."""
    for data, source in sources.items():
        # New processes for each set: some keep much memory of what they have read.
        contenders = _contenders({data: source}, place, cores=1, copies=2)
        with bench.contest([each for each in contenders if each.name in made[data]]) as contest:
            _Reading(bench, contest, sizes, data, source, made[data]).run()


def _why(best: str, *, opening: bool = False, cold: bool = False) -> dict[str, str]:
    """Return the reason, as a setting, why ours is not the first."""
    if best.startswith(OURS):
        return {}
    why = OPENING if opening else COLD if cold else REASONS.get(best, "")
    return {"why": why} if why else {}


@dataclass(frozen=True, eq=False)
class _Case:
    """What is measured.

    Attributes:
        words: What a row is called.
        method: A method of Contestant.
        arguments: Its arguments.
        cold: Whether the page cache is empty before.
    """

    words: str
    method: str
    arguments: Mapping[str, Any]
    cold: bool = False

    @property
    def unit(self) -> str:
        """The unit of its rows."""
        return "s" if self.method == "first" else "records/s"


class _Reading:
    """The cases of one set of records."""

    def __init__(
        self, bench: Bench, contest: Contest, sizes: Sizes, data: str, source: Source, names: list[str]
    ) -> None:
        self.bench, self.contest, self.sizes, self.data, self.all = bench, contest, sizes, data, names
        self.of = f"of {_words(data, source)}"

    def run(self) -> None:
        """Check all contenders, then measure."""
        for name in self.names:
            self.contest.call(name, "check", data=self.data)
        self.gone(f"read all {self.of} and compare them with the source", self.all, "")
        warm, batches = "page cache warm", f"random batches of {BATCH} {self.of}"
        seconds = {"seconds": self.sizes.seconds}
        # One turn has all warm reads: between two turns, others take the memory.
        self.measure(
            _Case(f"{batches}, {warm}, copied into one buffer", "random", seconds),
            _Case(f"{batches}, {warm}, as handed over", "random", seconds | {"copied": False}),
            _Case(
                f"{batches}, {warm}, two processes at once, copied into one buffer", "random", seconds | {"ranks": 2}
            ),
            _Case(f"sequential pass {self.of}, {warm}, copied into one buffer", "sequential", seconds),
            _Case(f"open and read one record {self.of}, {warm}", "first", {"count": 1}),
            _Case(f"open and read a batch of {BATCH} {self.of}, {warm}", "first", {"count": BATCH}),
        )
        cold = f"opening and {batches}, page cache cold, copied into one buffer"
        self.measure(_Case(cold, "random", {"seconds": self.sizes.cold}, cold=True))
        if self.bench.full and self.data == "images":
            self.memory()

    @property
    def names(self) -> list[str]:
        """Who is left."""
        return [name for name in self.all if name in self.contest.names]

    def fit(self, case: _Case) -> list[str]:
        """Return who can take part in a case; note why the others cannot."""
        told = {"data": self.data, "random": case.method == "random"}
        return _fit(self.bench, self.contest, self.names, case.words, case.unit, **told)

    def measure(self, *cases: _Case) -> None:
        """Measure some cases: a round that does not count, then the others."""
        fits = {case: self.fit(case) for case in cases}
        # Those that take far longer than they should are measured once only.
        slow: set[tuple[_Case, str]] = set()

        def one(case: _Case, name: str, number: int) -> Answer | None:
            if name not in fits[case] or (number > 1 and (case, name) in slow):
                return None
            if case.method == "first":
                self.contest.call(name, "close")
            seed: dict[str, Any] = {"seed": number} if case.method == "random" else {}
            answer = self.contest.call(name, case.method, data=self.data, **case.arguments, **seed)
            if answer is not None and answer.seconds > SLOW * case.arguments.get("seconds", OPENED):
                slow.add((case, name))
            return answer

        found = self.contest.turns(
            {case.words: partial(one, case) for case in cases},
            rounds=self.bench.rounds,
            before=self.empty if any(case.cold for case in cases) else self.fill,
        )
        for case in cases:
            self.rows(case, found[case.words])
            self.gone(case.words, fits[case], case.unit)

    def rows(self, case: _Case, found: Mapping[str, list[Answer]]) -> None:
        """Add the rows of a case: records a second, or the seconds of opening."""
        opening = case.method == "first"
        records = {name: [sum(answer.value) for answer in answers] for name, answers in found.items()}
        values = {
            name: [
                answer.seconds if opening else count / answer.seconds
                for count, answer in zip(records[name], answers, strict=True)
            ]
            for name, answers in found.items()
        }
        sign = -1 if opening else 1
        best = max(values, key=lambda name: sign * median(values[name]), default=OURS)
        why = _why(best, opening=opening, cold=case.cold)
        for name in found:
            settings: dict[str, Any] = {"records": max(records[name])}
            if not opening:
                settings = {"batch": BATCH, **settings, "processes": case.arguments.get("ranks", 1)}
            self.row(case.words, name, case.unit, values[name], **settings, **(why if name == OURS else {}))

    def memory(self) -> None:
        """Measure the memory of an epoch, and whether it works with less memory than the file has bytes."""
        case = f"a random epoch {self.of}: most own memory"
        names = _fit(self.bench, self.contest, self.names, case, "bytes", data=self.data, random=True)
        told: dict[str, Any] = {"data": self.data, "seconds": EPOCH}
        for name in names:
            self.close(name)
            answer = self.contest.call(name, "epoch", memory=True, **told)
            if answer is not None:
                records = sum(answer.value)
                self.row(case, name, "bytes", [answer.most_bytes - answer.before_bytes], records=records)
        self.gone(case, names, "bytes")
        case = f"a random epoch {self.of}, with RLIMIT_DATA at half the file's size"
        for name in [name for name in names if name in self.contest.names]:
            self.close(name)
            answer = self.contest.call(name, "limited_epoch", **told)
            if answer is not None:
                rate = sum(answer.value) / answer.seconds
                self.row(case, name, "records/s", [rate], records=sum(answer.value))
        self.gone(case, names, "records/s")

    def fill(self, name: str, *, opened: bool = True) -> None:
        """Make a contender ready for a warm read, and take memory from the others."""
        for other in self.names:
            self.contest.call(other, "release")
        self.contest.call(name, "fill", data=self.data, opened=opened)

    def close(self, name: str) -> None:
        """Close a contender's file, which stays in the page cache."""
        self.fill(name, opened=False)

    def empty(self, name: str) -> None:
        """Empty the page cache of a contender's file; the variants of a format may share it."""
        for each in self.names:
            self.contest.call(each, "release")
        self.contest.call(name, "drop", data=self.data)

    def row(self, case: str, name: str, unit: str, values: list[float], **settings: Any) -> None:
        """Add a row."""
        settings = {"version": self.contest.versions[name], "threads": 1, **settings}
        better: Literal["less", "more"] = "more" if unit == "records/s" else "less"
        self.bench.row(case, name, unit, values, better=better, **settings)

    def gone(self, case: str, names: Iterable[str], unit: str) -> None:
        """Note who has failed in a case."""
        for name in names:
            if name in self.contest.missing:
                self.bench.not_measured(case, name, self.contest.missing[name], unit=unit)
