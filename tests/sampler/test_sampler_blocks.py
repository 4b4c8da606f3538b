"""The shuffle by blocks: against a second implementation, on several ranks, and with states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord import _core
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.state import Last
from tests.sampler.test_sampler import LAST, MASK, global_batches, mix, permuted, ranks, records, refuses, walk, words

shapes = st.tuples(st.integers(1, 400), st.integers(1, 40), st.integers(1, 12))  # records, block, window


def reference_order(n: int, block_records: int, window_blocks: int, seed: int, epoch: int) -> list[int]:
    """docs/order.md in Python: it lays out all blocks in sequence, unlike the Rust code."""
    drawn = []
    for number in range(1, 9):
        key = mix(number * 0x9E3779B97F4A7C15 & MASK)
        for word in (seed, epoch, n, block_records, window_blocks):
            key = mix((key + word) & MASK)
        drawn.append(key)

    def keys(purpose: int) -> list[int]:
        return [mix((key + purpose) & MASK) for key in drawn]

    blocks = [list(range(start, min(start + block_records, n))) for start in range(0, n, block_records)]
    last = blocks.pop()
    slots = [blocks[walk(len(blocks), keys(0), slot)] for slot in range(len(blocks))]
    slots.insert(keys(1)[0] * (len(blocks) + 1) >> 64, last)
    rows: list[int] = []
    for number, start in enumerate(range(0, len(slots), window_blocks)):
        window = list(itertools.chain.from_iterable(slots[start : start + window_blocks]))
        rows += [window[walk(len(window), keys(2 + number), place)] for place in range(len(window))]
    return rows


def by_blocks(n: int, batch_size: int = 8, **options: Any) -> FastRecordBatchSampler:
    return FastRecordBatchSampler(range(n), batch_size, **{"shuffle": "blocks", **options})


def order(*shape: int) -> list[int]:
    rows: list[int] = _core.BlockOrder(*shape).rows(np.arange(shape[0])).tolist()
    return rows


# A window of one record takes Python hundreds of passes.
@settings(deadline=None, max_examples=50)
@given(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(1, 6)), words, words)
def test_the_order_is_the_one_written_down(shape: tuple[int, int, int], seed: int, epoch: int) -> None:
    assert order(*shape, seed, epoch) == reference_order(*shape, seed, epoch)


@given(shapes, words)
def test_a_window_has_all_records_of_its_blocks_and_no_others(shape: tuple[int, int, int], seed: int) -> None:
    n, block, window = shape
    core = _core.BlockOrder(n, block, window, seed, 0)
    start, blocks = 0, []
    while start < n:
        first, stop = core.window(start)
        assert first == start
        assert core.window(stop - 1) == (start, stop)
        rows = sorted(core.rows(np.arange(start, stop)).tolist())
        here = sorted({row // block for row in rows})
        assert rows == [row for b in here for row in range(b * block, min((b + 1) * block, n))]
        blocks.append(here)
        start = stop
    assert sorted(itertools.chain.from_iterable(blocks)) == list(range(math.ceil(n / block)))
    assert [len(here) for here in blocks[:-1]] == [window] * (len(blocks) - 1)


@pytest.mark.parametrize("arguments", [(10, 0, 2, 0, 0), (10, 2, 0, 0, 0)])
def test_the_core_refuses_empty_blocks_and_windows(arguments: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="a block has at least 1 record and a window at least 1 block"):
        _core.BlockOrder(*arguments)


def test_the_core_refuses_positions_beyond_the_order() -> None:
    core = _core.BlockOrder(10, 2, 2, 0, 0)
    assert core.rows(np.array([9, 0])).dtype == np.int64
    with pytest.raises(IndexError, match="position 10 is out of range: there are 10"):
        core.rows(np.array([10]))
    with pytest.raises(IndexError, match="position 10 is out of range: there are 10"):
        core.window(10)


@given(st.integers(12, 150), st.sampled_from(LAST), words, st.integers(1, 20), st.integers(1, 5))
def test_global_batches_are_slices_of_the_order_for_any_number_of_ranks(
    n: int, last: Last, seed: int, block: int, window: int
) -> None:
    options: dict[str, Any] = {"shuffle": fr.Blocks(records=block, window=window)}
    epoch = order(n, block, window, seed, 0)
    whole = [epoch[start : start + 12] for start in range(0, n, 12)]
    if last == "pad":
        whole[-1] = (whole[-1] + epoch)[:12]
    elif last is True:
        whole = [batch for batch in whole if len(batch) == 12]
    for world_size in (1, 2, 3, 12):
        assert global_batches(ranks(n, 12 // world_size, world_size, seed=seed, drop_last=last, **options)) == whole


def test_epochs_differ_and_the_full_shuffle_is_another_order() -> None:
    sampler = by_blocks(500, shuffle=fr.Blocks(records=10, window=10))
    epochs = [records(sampler) for _ in range(3)] + [permuted(500, 0, 0), list(range(500))]
    for one, other in itertools.combinations(epochs, 2):
        assert sorted(one) == sorted(other)
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


# --- defaults ---


class Sized:
    """Data with a known size in bytes."""

    def __init__(self, n: int, size: int) -> None:
        self.n = n
        about = {"file_id": "1", "commit": 1, "records": n // 2, "footer_crc": 5}
        self.snapshots = [{"path": f"{i}.frec", "bytes": size // 2, **about} for i in (0, 1)]

    def __len__(self) -> int:
        return self.n


@pytest.mark.parametrize(
    ("size", "block"), [(100, 32768), (4096, 1024), (110_000, 32), (4_000_000, 1), (50_000_000, 1)]
)
def test_default_blocks_are_a_power_of_two_of_records_of_2_to_4_mib_together(size: int, block: int) -> None:
    sampler = FastRecordBatchSampler(Sized(1000, 1000 * size), 8, shuffle="blocks")
    assert sampler.shuffle == fr.Blocks(records=block, window=128)
    assert block == 1 or 2 << 20 < block * size <= 4 << 20


def test_data_that_do_not_say_their_bytes_have_blocks_of_64_records() -> None:
    assert by_blocks(1000).shuffle == fr.Blocks(records=64, window=128)


def test_a_data_set_says_its_bytes(packed: Path) -> None:
    data = fr.FastRecordDataset(packed)
    (file,) = data.snapshots
    assert file["bytes"] == packed.stat().st_size
    sampler = FastRecordBatchSampler(data, 4, shuffle="blocks")
    assert isinstance(sampler.shuffle, fr.Blocks)
    assert sampler.shuffle.records == 2 ** math.floor(math.log2((4 << 20) * len(data) / file["bytes"]))
    assert sorted(records(sampler)) == list(range(len(data)))


# --- states ---


STATE = by_blocks(50, 4, shuffle=fr.Blocks(records=8, window=2)).state_dict(batches_done=3)


def altered(**changes: Any) -> dict[str, Any]:
    return {**STATE, **changes}


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (
            altered(block_records=4),
            ValueError,
            r"has shuffle=Blocks\(records=4, window=2\), this sampler .*=8, window=2\): make",
        ),
        (altered(window_blocks=3), ValueError, r"window=3\), this sampler shuffle=Blocks\(records=8, window=2\): make"),
        (altered(block_records=0), ValueError, "state: block_records is from 1 to 9223372036854775807, not 0"),
        (altered(window_blocks=1 << 63), ValueError, "state: window_blocks is from 1 to 9223372036854775807"),
        (altered(block_records=None), TypeError, "state: block_records is an int, not NoneType"),
        (altered(shuffle=True), ValueError, 'block_records and window_blocks belong to shuffle="blocks"'),
        (
            altered(shuffle="windows"),
            ValueError,
            "state: shuffle is True, False, .blocks. or a fastrecord.Blocks, not 'windows'",
        ),
        (altered(version=True), ValueError, "the state has version True, but FastRecordBatchSampler reads 5: start"),
        (
            FastRecordBatchSampler(range(50), 4, shuffle=True).state_dict(),
            ValueError,
            "the state has shuffle=True, this sampler shuffle=Blocks.* make them equal",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    state: dict[str, Any], error: type[Exception], message: str
) -> None:
    sampler = by_blocks(50, 4, shuffle=fr.Blocks(records=8, window=2))
    refuses(sampler, state, message, error)


def test_a_full_shuffle_refuses_a_state_of_blocks() -> None:
    with pytest.raises(ValueError, match=r"the state has shuffle=Blocks.*, this sampler shuffle=True: make"):
        FastRecordBatchSampler(range(50), 4, shuffle=True).load_state_dict(STATE)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: by_blocks(50, shuffle="block"), ValueError, "^shuffle is True, False, .* not 'block'$"),
        (lambda: fr.Blocks(records=0), ValueError, "^Blocks: records is from 1 to"),
        (lambda: fr.Blocks(window=1 << 63), ValueError, "^Blocks: window is from 1 to"),
        (lambda: fr.Blocks(window=2.0), TypeError, r"^Blocks: window is an int, not float: 2\.0$"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_blocks_of_more_records_than_there_are_and_windows_of_more_blocks_are_whole_shuffles() -> None:
    for block, window in [(MASK >> 1, 1), (1, MASK >> 1), (MASK >> 1, MASK >> 1)]:
        epoch = records(by_blocks(50, shuffle=fr.Blocks(records=block, window=window)))
        assert sorted(epoch) == list(range(50))
        assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(epoch)) < 10
