"""Random cases, and runs of several ranks that stop and resume, shared by the resume tests."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler

Pick = Callable[[int, int], int]
"""Draws a number between two, both included: hypothesis or a generator of random numbers."""

FILES = (1, 2, 7, 20, 45)
LAST = ("pad", True, "exact")
SHUFFLES: tuple[Any, ...] = (True, "blocks", False)
DRAWS = (None, None, None, "weights", "balance")
VIEWS = ("all", "slice", "numbers", "filter", "split", "concat")
EPOCHS = 3


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@dataclass(frozen=True)
class Case:
    """A run that is stopped once or several times.

    Attributes:
        files: Records of each file.
        view: The selected records.
        global_batch: Records that all ranks take together in one step.
        legs: Number of ranks, and the number of global batches before each stop.
        options: Options of the samplers.
        draw: How records are drawn with replacement, if at all.
        epoch: The first epoch.
    """

    files: tuple[int, ...]
    view: str
    global_batch: int
    legs: tuple[tuple[int, int], ...]
    options: dict[str, Any]
    draw: str | None
    epoch: int

    @classmethod
    def drawn(cls, pick: Pick) -> Case:
        def one_of(values: Sequence[Any]) -> Any:
            return values[pick(0, len(values) - 1)]

        chosen = [size for size in FILES if pick(0, 1)] or [FILES[pick(0, len(FILES) - 1)]]
        turn = pick(0, len(chosen) - 1)
        global_batch = pick(1, 24)
        draw = one_of(DRAWS)
        options: dict[str, Any] = {"seed": pick(0, 2**64 - 1), "drop_last": one_of(LAST)}
        options["shuffle"] = True if draw else one_of(SHUFFLES)
        if options["shuffle"] == "blocks":
            options["shuffle"] = fr.Blocks(records=pick(1, 9), window=pick(1, 5))
        if draw and pick(0, 1):
            options["num_samples"] = pick(1, 90)
        legs = tuple((one_of(divisors(global_batch)), pick(0, 12)) for _ in range(pick(1, 5)))
        files = tuple(chosen[turn:] + chosen[:turn])
        return cls(files, one_of(VIEWS), global_batch, legs, options, draw, pick(0, 3))


class Files:
    """Small files of numbers that supply the data of cases.

    Args:
        folder: Where to write them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[tuple[int, ...], fr.FastRecordDataset] = {}
        first = 0
        for size in FILES:
            schema = fr.Schema({"label": "int64", "number": "int64"})
            with fr.Writer(folder / f"{size}.frec", schema, metadata={"classes": ["a", "b", "c"]}) as writer:
                for number in range(first, first + size):
                    writer.append({"label": number * 7 % 3, "number": number})
            first += size

    def open(self, case: Case) -> fr.FastRecordDataset:
        """Return the data of a case, from newly opened files."""
        if case.files not in self._opened:
            paths = [self._folder / f"{size}.frec" for size in case.files]
            self._opened[case.files] = fr.FastRecordDataset(paths, fields=("label", "number"))
        data = self._opened[case.files]
        made: fr.FastRecordDataset = data
        match case.view:
            case "slice":
                made = data.subset(slice(None, None, -2))
            case "numbers":
                made = data.subset([number * 5 % len(data) for number in range(len(data) // 2 + 1)])
            case "filter":
                made = data.filter("label", "!=", "b")
            case "split":
                made = data.split([0.7, 0.3], seed=3)[0]
            case "concat":
                made = data.subset(slice(None, None, 3)) + data.split([0.5, 0.5])[1]
        return made if len(made) else data


def make_ranks(case: Case, data: fr.FastRecordDataset, world_size: int, **other: Any) -> list[FastRecordBatchSampler]:
    """Return the samplers of all ranks."""
    options = {"shuffle": None if case.draw else True, **case.options, **other}
    if case.draw == "weights":
        options["weights"] = np.arange(len(data)) % 4 + (np.arange(len(data)) == 0)
    if case.draw == "balance":
        options["balance"] = "label"
    size = case.global_batch // world_size
    return [
        FastRecordBatchSampler(data, size, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def in_turn(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Join several ranks' shares of a global batch, in the order of its positions."""
    missing = object()
    turns = itertools.zip_longest(*parts, fillvalue=missing)
    return [item for turn in turns for item in turn if item is not missing]


def global_batches(sources: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the ranks' global batches of all epochs; an epoch ends with rank 0, which has most."""
    while True:
        ranks = [iter(source) for source in sources]
        for first in ranks[0]:
            yield in_turn([first, *(next(rank, []) for rank in ranks[1:])])
        if any(next(rank, None) is not None for rank in ranks[1:]):
            raise AssertionError("a rank has a batch that rank 0 has not")


def whole_epochs(case: Case, data: fr.FastRecordDataset) -> list[list[list[int]]]:
    """Return the global batches of an uninterrupted run."""
    ranks = make_ranks(case, data, case.legs[0][0])
    for sampler in ranks:
        sampler.set_epoch(case.epoch)
    batches = global_batches(ranks)
    return [list(itertools.islice(batches, len(ranks[0]))) for _ in range(EPOCHS)]


def tail_problem(case: Case, records: int, epoch: list[list[int]]) -> str | None:
    """Return what an epoch repeated or missed beyond its tail, or None."""
    seen = Counter(itertools.chain.from_iterable(epoch))
    n = case.options.get("num_samples", records)
    total = {"exact": n, True: n - n % case.global_batch, "pad": -(-n // case.global_batch) * case.global_batch}
    if seen.total() != total[case.options["drop_last"]]:
        return f"{seen.total()} records, not {total[case.options['drop_last']]}"
    if [len(batch) for batch in epoch[:-1]] != [case.global_batch] * (len(epoch) - 1):
        return f"batches of {[len(batch) for batch in epoch]}"
    if case.draw is not None:
        return None
    # Padding repeats the epoch as often as needed: the counts of records differ by at most one.
    low, high = {"exact": (1, 1), True: (0, 1), "pad": (total["pad"] // n, -(-total["pad"] // n))}[
        case.options["drop_last"]
    ]
    odd = [record for record in range(records) if not low <= seen[record] <= high]
    return f"not between {low} and {high} times: records {odd[:5]}" if odd else None


def refusal_problem(case: Case, data: fr.FastRecordDataset, state: dict[str, Any]) -> str | None:
    """Return an error if a sampler with another global batch accepted the state, or None."""
    other = {**case.options, "drop_last": "pad"}
    sampler = make_ranks(Case(case.files, case.view, case.global_batch + 1, case.legs, other, case.draw, 0), data, 1)[0]
    before = sampler.state_dict()
    try:
        sampler.load_state_dict(state)
    except ValueError as error:
        said = f"the state has a global batch size of {case.global_batch}, here 1 ranks x batch_size "
        if not str(error).startswith(said) or f"use batch_size={case.global_batch}" not in str(error):
            return f"refused by {error}"
        return None if sampler.state_dict() == before else "changed by what it refused"
    return "not refused with another global batch"


def problem(case: Case, files: Files) -> str | None:
    """Return what is wrong with a run that was stopped and resumed, or None."""
    data = files.open(case)
    n = case.options.get("num_samples", len(data))
    if case.options["drop_last"] is True and n < case.global_batch:
        return None  # refused at construction
    epochs = whole_epochs(case, data)
    for epoch in epochs:
        if (wrong := tail_problem(case, len(data), epoch)) is not None:
            return wrong
    expected = list(itertools.chain.from_iterable(epochs))
    found: list[list[int]] = []
    state: dict[str, Any] | None = None
    for number, (world_size, take) in enumerate(case.legs):
        # The state brings the seed, and also `drop_last` and blocks if they are not given.
        given = {} if state is None else {"seed": number}
        ranks = make_ranks(case, files.open(case), world_size, **given)
        for sampler in ranks:
            if state is None:
                sampler.set_epoch(case.epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        last = number == len(case.legs) - 1
        take = len(expected) - len(found) if last else min(take, len(expected) - len(found) - 1)
        found += itertools.islice(global_batches(ranks), take)
        state = ranks[0].state_dict()
        if case.options["drop_last"] != "exact" and any(sampler.state_dict() != state for sampler in ranks):
            return f"ranks differ in their states after {len(found)} batches"
    if found != expected:
        at = next(i for i, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other)
        return f"batch {at} is {found[at]}, undisturbed {expected[at]}"
    return None if state is None else refusal_problem(case, data, state)
