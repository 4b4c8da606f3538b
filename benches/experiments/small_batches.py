"""What small batches cost: pairs of patches, loaded alone and to train SRCNN.

The README of "pytorch-load-faster" reports an epoch of SRCNN on patches of DIV2K, from PNG files by
a DataLoader: 16 to 20 minutes in batches of 8, 3 to 4 minutes in batches of 128. Part of that is the
model, which takes more time for a pair in smaller batches. So each source is measured alone, and in
training against constant batches, which take no loading.

The pairs are as SRCNN's paper describes them (benches/peers/arrays/srcnn.py): the input has 16 or
64 pixels, the target 12 fewer. Without a GPU half of the cores compute, and any core loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benches.harness import Bench, Contender, Contest
from benches.peers.arrays.contender import MODEL_THREADS, srcnn_pairs
from benches.peers.arrays.srcnn import PHASES

ALONE = "constant batches"
OURS = "fastrecord"
SOURCES = {
    OURS: "ours",
    ALONE: "constant",
    "fastrecord, lz4": "ours:lz4",
    "PNG files": "png",
    "LMDB, lz4": "lmdb:lz4",
    "HDF5": "hdf5",
    "numpy memmap": "npy",
    "WebDataset": "webdataset",
}
# In the full run, for loading alone.
VARIANTS = {
    "LMDB": "lmdb",
    "HDF5, a chunk for each record": "hdf5:chunked",
    "numpy memmap, whole batches": "npy:batches",
    "numpy memmap, new workers each epoch": "npy:fresh",
    "WebDataset, .npy members": "webdataset:npy",
}
SIZES = (8, 16, 32, 64, 128)
ENDS = (SIZES[0], SIZES[-1])
SIDES = (16, 64)
GPU = torch.cuda.is_available()
# Pairs of an epoch of training, with and without a GPU. A pair of 64 pixels takes the model 50 times as long.
PAIRS = {(True, 16): 16384, (True, 64): 4096, (False, 16): 1024, (False, 64): 128}


def run(bench: Bench) -> None:
    """Measure loading alone, then training."""
    if bench.full:
        with bench.contest(_contenders(bench, SOURCES | VARIANTS)) as contest:
            for side in SIDES:
                # An epoch of 64 pixels is larger than a CPU's cache, as a real one is.
                _load(bench, contest, side, 2, SIZES if side == 16 else SIZES[::2], 4096)
            _memory(bench, contest)
    with bench.contest(_contenders(bench, SOURCES)) as contest:
        for side in SIDES:
            for workers in (0, 1, 4) if bench.full else (2, 0) if side == 16 else (2,):
                _load(bench, contest, side, workers, ENDS)
        for side in SIDES if bench.full else SIDES[:1]:
            for workers in (2, 0, 1, 4) if bench.full and side == 16 else (2,):
                _train(bench, contest, side, workers, SIZES if side == 16 and workers == 2 else ENDS)
        for side in SIDES:
            for pinned in (True, False) if GPU else ():
                _train(bench, contest, side, 2, ENDS, pinned=pinned)
            if not GPU:
                bench.not_measured(f"SRCNN, {side}-pixel patches: pinned against pageable memory", OURS, "no GPU")


def _contenders(bench: Bench, sources: Mapping[str, str]) -> list[Contender]:
    """Each on all cores."""
    folder = str(_folder(bench))
    target = "benches.peers.arrays.contender:Source"
    return [Contender(name, target, {"source": source, "folder": folder}) for name, source in sources.items()]


def _folder(bench: Bench) -> Path:
    return bench.folder / "pairs"


def _open(bench: Bench, contest: Contest, sizes: Sequence[int], *, side: int, pairs: int, **settings: Any) -> None:
    """Open the pairs and check an epoch of each contender; what fails is left out."""
    srcnn_pairs(_folder(bench), side, pairs).make()
    contest.each("open", side=side, pairs=pairs, **settings)
    contest.each("check", batches=sizes)


def _load(
    bench: Bench, contest: Contest, side: int, workers: int, sizes: Sequence[int], pairs: int | None = None
) -> None:
    """Load without a model."""
    pairs = pairs or (4096 if side == 16 else 1024)
    _open(bench, contest, sizes, side=side, pairs=pairs, workers=workers)
    answers = contest.rounds("load", rounds=bench.rounds, warm_up=0, arguments=lambda _: {"batches": sizes})
    about = f"loading alone, {side}-pixel patches"
    shared: dict[str, Any] = {"workers": workers, "pairs": pairs, "side": side}
    for size in sizes:
        case = f"{about}, batch {size}, {_with(workers)}: a pair"
        for name, found in answers.items():
            values = [1e6 * answer.value[str(size)] / pairs for answer in found]
            bench.row(case, name, "us", values, batch=size, **_about(contest, name), **shared)
        _missing(bench, contest, case)
    case = f"{about}, {_with(workers)}: a pair at batch {ENDS[0]} against batch {ENDS[1]}"
    for name, found in answers.items():
        if name != ALONE:
            values = [answer.value[str(ENDS[0])] / answer.value[str(ENDS[1])] for answer in found]
            bench.row(case, name, "times", values, version=contest.versions[name], **shared)


def _memory(bench: Bench, contest: Contest) -> None:
    """What opening and an epoch add to a process and its workers, which the system cannot reclaim."""
    side, pairs, workers = 64, 1024, 2
    contest.each("close")
    answers = contest.each("once", memory=True, side=side, pairs=pairs, workers=workers, batch=ENDS[0])
    for name, answer in answers.items():
        bench.row(
            f"{side}-pixel patches, batch {ENDS[0]}, {_with(workers)}: memory that loading adds",
            name,
            "bytes",
            [max(0, answer.most_bytes - answer.before_bytes)],
            batch=ENDS[0],
            workers=workers,
            pairs=pairs,
            version=contest.versions[name],
        )


def _train(
    bench: Bench, contest: Contest, side: int, workers: int, sizes: Sequence[int], *, pinned: bool | None = None
) -> None:
    """Train for an epoch; `pinned` is None where the kind of memory does not matter."""
    pairs = PAIRS[GPU, side]
    _open(bench, contest, sizes[:1], side=side, pairs=pairs, workers=workers, pinned=bool(pinned))
    contest.each("warm", batches=sizes)
    rounds = bench.rounds if side == 16 or GPU else 3
    answers = contest.rounds("train", rounds=rounds, warm_up=0, arguments=lambda _: {"batches": sizes})
    about = f"SRCNN, {side}-pixel patches"
    ways = _with(workers) + ("" if pinned is None else ", pinned memory" if pinned else ", pageable memory")
    shared: dict[str, Any] = {"workers": workers, "pairs": pairs, "side": side, "model_threads": MODEL_THREADS}
    # Over constant batches: size -> contender -> a value each round.
    over: dict[int, dict[str, list[float]]] = {}
    for size in sizes:
        case = f"{about}, batch {size}, {ways}: an epoch of {pairs:,} pairs"
        spent = {name: [answer.value[str(size)] for answer in found] for name, found in answers.items()}
        epochs = {name: [sum(phases.values()) for phases in rounds] for name, rounds in spent.items()}
        for name, values in epochs.items():
            split: dict[str, Any] = {f"{phase}_seconds": [phases[phase] for phases in spent[name]] for phase in PHASES}
            bench.row(case, name, "s", values, batch=size, **_about(contest, name), **shared, **split)
        _missing(bench, contest, case)
        alone = epochs.pop(ALONE, None)
        if alone is None:
            continue  # its absence is reported; the epochs stay
        over[size] = {name: [a / b for a, b in zip(values, alone, strict=True)] for name, values in epochs.items()}
        case = f"{about}, batch {size}, {ways}: an epoch over one of {ALONE}"
        for name, values in over[size].items():
            bench.row(case, name, "times", values, batch=size, version=contest.versions[name], **shared)
    case = f"{about}, {ways}: an epoch over one of {ALONE}, batch {ENDS[0]} against batch {ENDS[1]}"
    for name in over.get(ENDS[0], ()):
        values = [small / large for small, large in zip(over[ENDS[0]][name], over[ENDS[1]][name], strict=True)]
        bench.row(case, name, "times", values, **_about(contest, name), **shared)


def _about(contest: Contest, name: str) -> dict[str, Any]:
    """Settings of a contender's rows."""
    return {"version": contest.versions[name]} | ({"yardstick": True} if name == ALONE else {})


def _missing(bench: Bench, contest: Contest, case: str) -> None:
    for name, why in contest.missing.items():
        bench.not_measured(case, name, why)


def _with(workers: int) -> str:
    several = "s" if workers > 1 else ""
    return f"{workers} worker{several} or thread{several}" if workers else "no workers"
