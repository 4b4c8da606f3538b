"""The epoch order against a second implementation; shares of ranks, and resuming from a state."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrecord import _core
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.state import Last

MASK = (1 << 64) - 1
LAST: tuple[Last, ...] = ("pad", True, "exact")


def mix(word: int, *, last_step: bool = True) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31) if last_step else word


def walk(n: int, keys: list[int], position: int) -> int:
    """docs/order.md in Python, independent of the Rust code's machine-word arithmetic."""
    bits = max(4, (n - 1).bit_length() // 2)
    columns, rows = 1 << bits, max(16, -(-n // (1 << bits)))
    cell = position
    while True:
        high, low = divmod(cell, columns)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            low = (low + mix(high ^ even, last_step=False) * columns // 2**64) % columns
            high = (high + mix(low ^ odd, last_step=False) * rows // 2**64) % rows
        cell = high * columns + low
        if cell < n:
            return cell


def reference_row(n: int, seed: int, epoch: int, position: int) -> int:
    keys = []
    for number in range(1, 9):
        key = mix(number * 0x9E3779B97F4A7C15 & MASK)
        for word in (seed, epoch, n):
            key = mix((key + word) & MASK)
        keys.append(key)
    return walk(n, keys, position)


def permuted(n: int, seed: int, epoch: int) -> list[int]:
    return list(_core.permute(n, seed, epoch, np.arange(n)))


def ranks(n: int, batch_size: int, world_size: int, **options: Any) -> list[FastRecordBatchSampler]:
    data = range(n)
    return [
        FastRecordBatchSampler(data, batch_size, rank=rank, world_size=world_size, **{"shuffle": True, **options})
        for rank in range(world_size)
    ]


def refuses(sampler: FastRecordBatchSampler, state: Any, message: str, error: type[Exception] = ValueError) -> None:
    """Check that a state is refused and changes nothing."""
    before = sampler.state_dict()
    with pytest.raises(error, match=message):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


def records(batches: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def global_batches(samplers: list[FastRecordBatchSampler]) -> list[list[int]]:
    """One epoch's global batches, each in the epoch's order."""
    epochs = [list(sampler) for sampler in samplers]
    interleaved = (itertools.zip_longest(*batch) for batch in itertools.zip_longest(*epochs, fillvalue=[]))
    return [[record for turn in batch for record in turn if record is not None] for batch in interleaved]


shapes = st.tuples(st.integers(1, 150), st.integers(1, 9), st.integers(1, 5))  # records, batch size, ranks
words = st.integers(0, MASK)


@given(st.integers(1, 2**63 - 1) | st.integers(1, 2000), words, words, st.lists(st.integers(0, 2**63 - 1), max_size=5))
def test_the_epoch_order_is_the_one_written_down(n: int, seed: int, epoch: int, positions: list[int]) -> None:
    positions = [position % n for position in positions]
    rows = _core.permute(n, seed, epoch, np.array(positions, np.int64))
    assert rows.dtype == np.int64
    assert rows.tolist() == [reference_row(n, seed, epoch, position) for position in positions]


@pytest.mark.parametrize("n", [1, 2, 3, 17, 256, 257, 1000, 4097])
def test_an_epoch_holds_each_record_once(n: int) -> None:
    assert sorted(permuted(n, 5, 6)) == list(range(n))


def test_records_come_to_a_batch_as_if_drawn_at_random() -> None:
    # A record's count in the first batches of 200 epochs is binomial: 200 draws, p = 64 / 1000.
    batches = [FastRecordBatchSampler(range(1000), 64, shuffle=True).indices(0, epoch=epoch) for epoch in range(200)]
    hits = np.bincount(np.concatenate(batches), minlength=1000)
    mean, variance = 200 * 0.064, 200 * 0.064 * (1 - 0.064)
    assert abs(hits.var() - variance) < 4 * variance * np.sqrt(2 / 1000)
    assert hits.max() < mean + 6 * np.sqrt(variance)
    # Two epochs share no more of a batch than by chance.
    shared = [len(set(one.tolist()) & set(two.tolist())) for one, two in itertools.pairwise(batches)]
    assert abs(np.mean(shared) - 64 * 0.064) < 4 * np.sqrt(64 * 0.064 / len(shared))


@given(shapes, words, st.integers(0, 100))
def test_global_batches_are_slices_of_the_epoch_order(shape: tuple[int, int, int], seed: int, epoch: int) -> None:
    n, batch_size, world_size = shape
    samplers = ranks(n, batch_size, world_size, seed=seed, drop_last="exact")
    for sampler in samplers:
        sampler.set_epoch(epoch)
    order = [reference_row(n, seed, epoch, position) for position in range(n)]
    size = batch_size * world_size
    assert global_batches(samplers) == [order[start : start + size] for start in range(0, n, size)]


@given(shapes)
def test_pad_gives_all_ranks_full_batches_and_repeats_less_than_a_global_batch(shape: tuple[int, int, int]) -> None:
    n, batch_size, world_size = shape
    samplers = ranks(n, batch_size, world_size, drop_last="pad")
    epochs = [list(sampler) for sampler in samplers]
    assert {len(epoch) for epoch in epochs} == {len(samplers[0])}
    assert {len(batch) for epoch in epochs for batch in epoch} == {batch_size}
    counts = Counter(record for epoch in epochs for batch in epoch for record in batch)
    assert set(counts) == set(range(n))
    assert sum(counts.values()) - n < batch_size * world_size
    assert max(counts.values()) - min(counts.values()) <= 1


@given(shapes)
def test_drop_leaves_out_the_last_records_of_the_order_and_no_others(shape: tuple[int, int, int]) -> None:
    n, size = shape[0] + shape[1] * shape[2], shape[1] * shape[2]
    samplers = ranks(n, *shape[1:], drop_last=True)
    assert [len(sampler) for sampler in samplers] == [n // size] * shape[2]
    batches = global_batches(samplers)
    assert records(batches) == permuted(n, 0, 0)[: n - n % size]
    assert {len(batch) for batch in batches} == {size}


@given(shapes, st.sampled_from(("pad", "exact")), st.booleans())
def test_len_counts_the_batches_of_each_rank_and_none_is_empty(
    shape: tuple[int, int, int], last: Last, shuffle: bool
) -> None:
    samplers = ranks(*shape, shuffle=shuffle, drop_last=last)
    epochs = [list(sampler) for sampler in samplers]
    assert [len(epoch) for epoch in epochs] == [len(sampler) for sampler in samplers]
    assert all(batch for epoch in epochs for batch in epoch)
    if last == "exact":
        assert sorted(itertools.chain.from_iterable(map(records, epochs))) == list(range(shape[0]))


def test_by_default_only_shuffling_over_several_ranks_pads() -> None:
    for options, last in (
        ({}, "exact"),
        ({"rank": 0, "world_size": 2}, "pad"),
        ({"rank": 0, "world_size": 2, "shuffle": "blocks"}, "pad"),
        ({"rank": 0, "world_size": 2, "shuffle": False}, "exact"),
        ({"rank": 0, "world_size": 2, "drop_last": True}, True),
    ):
        sampler = FastRecordBatchSampler(range(10), 4, **options)
        assert sampler.state_dict()["drop_last"] == last
        assert f"drop_last={last!r}" in repr(sampler)


def test_unshuffled_batches_are_the_records_in_order() -> None:
    assert list(FastRecordBatchSampler(range(5), 2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    padded = [list(sampler) for sampler in ranks(5, 2, 2, shuffle=False, drop_last="pad")]
    assert padded == [[[0, 2], [4, 1]], [[1, 3], [0, 2]]]


def test_a_batch_is_computed_without_those_before_it() -> None:
    sampler = FastRecordBatchSampler(range(1000), 16, shuffle=True, seed=3, rank=1, world_size=3, drop_last="pad")
    batches = list(sampler)
    assert all(type(record) is int for batch in batches for record in batch)
    assert [sampler.indices(batch, epoch=0).tolist() for batch in range(len(sampler))] == batches
    assert sampler.positions(20).tolist() == [(960 + 1 + 3 * i) % 1000 for i in range(16)]
    for batch in (-1, len(sampler)):
        with pytest.raises(IndexError, match=f"batch {batch} is out of range: an epoch of this rank has 21"):
            sampler.indices(batch)


def test_each_whole_iteration_is_the_next_epoch() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    epochs = [list(sampler) for _ in range(3)]
    assert [records(epoch) for epoch in epochs] == [permuted(50, 0, epoch) for epoch in range(3)]
    assert sampler.epoch == 3


def test_an_epoch_is_over_with_its_last_batch_even_if_no_more_are_asked_for() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    first = list(itertools.islice(sampler, len(sampler)))
    assert first == list(FastRecordBatchSampler(range(50), 8, shuffle=True))
    assert sampler.epoch == 1
    assert records(sampler) == permuted(50, 0, 1)


def test_an_epoch_that_was_broken_off_begins_again() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    broken = list(itertools.islice(sampler, 3))
    assert sampler.epoch == 0
    again = list(sampler)
    assert again[:3] == broken
    assert records(again) == permuted(50, 0, 0)


def test_set_epoch_names_the_next_iteration_whatever_came_before() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    for epoch in (0, 1, 2, 2, 7, 0):
        sampler.sampler.set_epoch(epoch)
        assert records(sampler) == permuted(50, 0, epoch)
    sampler.set_epoch(4)
    next(iter(sampler))
    sampler.set_epoch(5)
    assert records(sampler) == permuted(50, 0, 5)


def test_an_iteration_that_goes_on_after_another_has_begun_keeps_to_its_own_place() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    old = iter(sampler)
    begun = [next(old)]
    new = iter(sampler)
    batches = [next(new)]
    assert begun + list(old) == batches + list(new)
    assert sampler.epoch == 1


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_a_hundred_million_records_take_no_memory_and_resume_at_once(shuffle: Any) -> None:
    tracemalloc.start()
    try:
        sampler = FastRecordBatchSampler(range(100_000_000), 256, shuffle=shuffle, rank=3, world_size=8)
        sampler.load_state_dict(sampler.state_dict(batches_done=len(sampler) - 100))
        assert sum(map(len, sampler)) == 100 * 256
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000
    assert len(pickle.dumps(sampler)) < 2_000


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": []}, ValueError, "data is empty"),
        ({"data": iter([1])}, TypeError, r"data is an object with a length, not list_iterator"),
        ({"batch_size": 0}, ValueError, "batch_size is at least 1, not 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size is an int, not float: 2.0"),
        ({"batch_size": True}, TypeError, "batch_size is an int, not a bool"),
        ({"shuffle": None}, TypeError, "shuffle is True, False, .blocks. or a fastrecord.Blocks, not None"),
        ({"shuffle": 1}, TypeError, "shuffle is True, False, .blocks. or a fastrecord.Blocks, not 1"),
        ({"seed": -1}, ValueError, "seed is from 0 to 18446744073709551615, not -1"),
        ({"seed": 1 << 64}, ValueError, "seed is from 0 to"),
        ({"rank": 0}, ValueError, "give both rank and world_size, or neither: rank=0, world_size=None"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank is from 0 to 1, not 2"),
        ({"rank": 0, "world_size": 0}, ValueError, "world_size is at least 1, not 0"),
        ({"drop_last": "wrap"}, ValueError, 'drop_last is True, False, "pad" or "exact", not .wrap.'),
        ({"drop_last": 1}, ValueError, 'drop_last is True, False, "pad" or "exact", not 1'),
        ({"drop_last": True, "batch_size": 51}, ValueError, "leaves no batch: an epoch has 50 records"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"data": range(50), "batch_size": 4, "shuffle": True, **options}
    with pytest.raises(error, match=message):
        FastRecordBatchSampler(**arguments)


@pytest.mark.parametrize("epoch", [-1, 1 << 64])
def test_an_epoch_out_of_range_is_refused(epoch: int) -> None:
    with pytest.raises(ValueError, match=f"epoch is from 0 to 18446744073709551615, not {epoch}"):
        FastRecordBatchSampler(range(50), 4, shuffle=True).set_epoch(epoch)
    with pytest.raises(ValueError, match=f"epoch is from 0 to 18446744073709551615, not {epoch}"):
        FastRecordBatchSampler(range(50), 4, shuffle=True).indices(0, epoch=epoch)


def test_numpy_integers_are_integers() -> None:
    sampler = FastRecordBatchSampler(np.zeros(50), np.int64(8), shuffle=True, seed=np.uint64(MASK))  # type: ignore[arg-type]
    assert json.loads(json.dumps(sampler.state_dict())) == sampler.state_dict()
    assert records(sampler) == permuted(50, MASK, 0)


PROCESS = """
import json, sys
import torch.distributed as dist
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler

early = FastRecordBatchSampler(range(50), 4, shuffle=True)
dist.init_process_group("gloo")
try:
    next(iter(early))
except RuntimeError as error:
    refusal = str(error)
sampler = FastRecordBatchSampler(range(50), 4, shuffle=True)
out = [None] * dist.get_world_size()
dist.all_gather_object(out, {"batches": list(sampler), "refusal": refusal})
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(out, file)
dist.destroy_process_group()
"""


@pytest.mark.ddp
def test_ranks_come_from_the_process_group_and_one_that_comes_too_late_is_an_error(tmp_path: Path) -> None:
    script, out = tmp_path / "process.py", tmp_path / "out.json"
    script.write_text(PROCESS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, script, out], check=True, timeout=100)
    processes = json.loads(out.read_text())
    assert [process["batches"] for process in processes] == [list(sampler) for sampler in ranks(50, 4, 2)]
    assert "made as rank 0 of 1, but torch.distributed now has rank 1 of 2" in processes[1]["refusal"]
