"""The sources of the experiment "small batches" give each pair once, and training times all it does."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benches.experiments.small_batches import ALONE, SOURCES, VARIANTS
from benches.peers.arrays.contender import Source, srcnn_pairs

PAIRS = 40
ALL = SOURCES | VARIANTS
del ALL[ALONE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn", reason="needs scikit-learn's photographs")
    folder = tmp_path_factory.mktemp("pairs")
    srcnn_pairs(folder, 16, PAIRS).make()
    return folder


def make(source: str, folder: Path) -> Source:
    try:
        return Source(source=source, folder=str(folder))
    except ImportError as missing:
        pytest.skip(str(missing))


# WebDataset leaves its tar files open, and gives read-only bytes.
@pytest.mark.filterwarnings("ignore:.*unclosed file", "ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("source", ALL.values(), ids=ALL)
def test_a_source_gives_each_pair_once(source: str, folder: Path) -> None:
    made = make(source, folder)
    made.open(16, PAIRS, 0)
    made.check([8, 16])
    del made
    gc.collect()  # here, where its warnings are ignored


def test_pairs_that_are_mixed_or_repeated_are_found(folder: Path) -> None:
    made = make("npy", folder)
    made.open(16, PAIRS, 0)
    pairs = {name: torch.tensor(array) for name, array in srcnn_pairs(folder, 16, PAIRS).arrays().items()}
    order = torch.from_numpy(np.random.default_rng(0).permutation(PAIRS))

    def check(**batch: torch.Tensor) -> None:
        made._epochs = lambda _number, _batch: [batch]
        made.check([PAIRS])

    check(lr=pairs["lr"][order], hr=pairs["hr"][order])
    with pytest.raises(ValueError, match="not each of those stored once"):
        check(lr=pairs["lr"][order], hr=pairs["hr"][order.flip(0)])
    with pytest.raises(ValueError, match="not each of those stored once"):
        check(lr=pairs["lr"][order[1:]], hr=pairs["hr"][order[1:]])
    with pytest.raises(ValueError, match="order of the file"):
        check(**pairs)


def test_the_phases_of_a_training_epoch_sum_to_its_time(folder: Path) -> None:
    made = make("ours", folder)
    made.open(16, PAIRS, 1)
    made.warm([8])
    before = torch.get_num_threads()
    start = time.perf_counter()
    try:
        split = made.train([8, 16])
    finally:
        torch.set_num_threads(before)
    seconds = time.perf_counter() - start
    assert json.loads(json.dumps(split)).keys() == {"8", "16"}
    phases = [phase for epoch in split.values() for phase in epoch.values()]
    assert len(phases) == 8
    assert all(phase > 0 for phase in phases)
    # What is left: making the iterations.
    assert 0.5 * seconds < sum(phases) <= seconds
