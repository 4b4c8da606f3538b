"""Repeated augmentation: records that come several times in a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import fastrecord as fr
from fastrecord import FastRecordBatchSampler


def drawn(sampler: FastRecordBatchSampler, epoch: int = 0) -> list[int]:
    return [row for batch in range(len(sampler)) for row in sampler.indices(batch, epoch=epoch).tolist()]


@pytest.mark.parametrize("times", [2, 3, 4, 200])
def test_an_epoch_is_the_beginning_of_its_order_with_each_record_several_times_in_a_row(times: int) -> None:
    plain = drawn(FastRecordBatchSampler(range(100), 8, seed=3, drop_last="exact"), 5)
    assert sorted(plain) == list(range(100))
    sampler = FastRecordBatchSampler(range(100), 8, seed=3, repeat=times, drop_last="exact")
    assert (len(sampler), sampler.repeat, sampler.num_samples) == (13, times, 100)
    assert drawn(sampler, 5) == [plain[position // times] for position in range(100)]
    assert drawn(sampler, 6) != drawn(sampler, 5)


def test_the_ranks_share_the_global_batches_of_one_rank_and_the_copies_of_a_record() -> None:
    alone = FastRecordBatchSampler(range(100), 16, repeat=4, drop_last="pad")
    ranks = [FastRecordBatchSampler(range(100), 4, repeat=4, rank=rank, world_size=4) for rank in range(4)]
    for batch in range(len(alone)):
        shares = [rank.indices(batch).tolist() for rank in ranks]
        assert sorted(row for share in shares for row in share) == sorted(alone.indices(batch).tolist())
        assert shares[0] == shares[1] == shares[2] == shares[3]
        assert len(set(shares[0])) == 4


def test_draws_by_weight_come_several_times_too() -> None:
    options: dict[str, Any] = {"weights": [1.0, 2.0, 0.0, 4.0], "num_samples": 1000, "drop_last": "exact"}
    plain = drawn(FastRecordBatchSampler(range(4), 10, **options))
    again = drawn(FastRecordBatchSampler(range(4), 10, repeat=2, **options))
    assert again == [record for record in plain[:500] for _ in range(2)]
    assert Counter(again)[2] == 0


def test_a_state_continues_on_other_ranks_and_another_repeat_is_refused() -> None:
    whole = FastRecordBatchSampler(range(100), 8, repeat=4, seed=1)
    expected = list(whole)
    begun = FastRecordBatchSampler(range(100), 8, repeat=4, seed=1)
    state = begun.state_dict(batches_done=5)
    found = []
    for rank in range(2):
        sampler = FastRecordBatchSampler(range(100), 4, repeat=4, rank=rank, world_size=2, drop_last="exact")
        sampler.load_state_dict(state)
        found.append(list(sampler))
    merged = [[row for pair in zip(*parts, strict=True) for row in pair] for parts in zip(*found, strict=True)]
    assert merged == expected[5:]
    for times in (1, 2):
        with pytest.raises(ValueError, match="the state was saved with "):
            FastRecordBatchSampler(range(100), 8, repeat=times).load_state_dict(state)
    plain = FastRecordBatchSampler(range(100), 8).state_dict(batches_done=5)
    with pytest.raises(ValueError, match="saved with neither weights nor balance, this sampler repeat: make them eq"):
        begun.load_state_dict(plain)


@pytest.mark.parametrize("shuffle", [False, "blocks", fr.Blocks(records=8)])
def test_it_is_refused_without_a_full_shuffle(shuffle: Any) -> None:
    with pytest.raises(ValueError, match="repeat is for training on records in random order: leave out shuffle="):
        FastRecordBatchSampler(range(100), 8, repeat=2, shuffle=shuffle)
    with pytest.raises(ValueError, match=r"repeat is from 1 to .*, not 0"):
        FastRecordBatchSampler(range(100), 8, repeat=0)
    with pytest.raises(ValueError, match="num_samples counts draws with replacement"):
        FastRecordBatchSampler(range(100), 8, repeat=2, num_samples=300)


def test_copies_of_a_record_have_different_crops(colours: Any) -> None:
    sampler = FastRecordBatchSampler(fr.FastRecordDataset(colours), 8, repeat=4)
    loader = fr.FastRecordLoader(colours, batch_sampler=sampler, sample=[fr.transforms.RandomResizedCrop(32)])
    images, labels = next(iter(loader))
    assert labels.tolist() == [int(labels[0])] * 4 + [int(labels[4])] * 4
    assert len({image.numpy().tobytes() for image in images}) == 8
