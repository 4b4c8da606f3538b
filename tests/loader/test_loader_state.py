"""Epochs of FastRecordLoader, resuming from its state, and foreign batch samplers."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import fastrecord as fr
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.transforms import RandomHorizontalFlip, RandomResizedCrop
from tests.support.loading import COUNT, epoch, make, write_photos


@pytest.fixture
def data(photos: Path) -> fr.FastRecordDataset:
    """Has keys, which identify the records of a batch."""
    return fr.FastRecordDataset(photos, fields=("image", "key"))


def numbers(batches: Iterable[Any]) -> list[int]:
    """Return the record numbers of batches of `data`."""
    return [int(key.removeprefix("train/")) for batch in batches for key in batch["key"]]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    """Return whether batches have the same images and keys."""
    return len(ours) == len(theirs) and all(
        torch.equal(a["image"], b["image"]) and a["key"] == b["key"] for a, b in zip(ours, theirs, strict=True)
    )


def own(data: fr.FastRecordDataset, **options: Any) -> Any:
    return make(data, 4, **{"shuffle": True, "seed": 5, **options})


def foreign(data: fr.FastRecordDataset, **options: Any) -> Any:
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist()
    return make(data, None, batch_sampler=BatchSampler(order, 4, drop_last=False), **options)


@pytest.mark.parametrize("maker", [own, foreign])
@pytest.mark.parametrize("done", [0, 1, 5])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_loaded_state_goes_on_with_the_batches_that_were_not_handed_out(
    data: fr.FastRecordDataset, maker: Any, done: int, prefetch: int
) -> None:
    whole = maker(data)
    epochs = [list(whole) for _ in range(3)]
    broken = maker(data, prefetch=prefetch)
    list(broken)
    batches = iter(broken)
    list(itertools.islice(batches, done))
    state = json.loads(json.dumps(broken.state_dict()))
    assert (state["epoch"], state["batches_done"]) == (1, done)

    resumed = maker(data, threads=1)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert len(resumed) == 6
    assert same(list(resumed), epochs[1][done:])
    assert same(list(resumed), epochs[2])
    # Taking the state has not changed its loader.
    assert same(list(batches), epochs[1][done:])


def test_the_state_in_the_body_of_the_loop_counts_the_batch_that_it_has(data: fr.FastRecordDataset) -> None:
    loader = own(data)
    assert [loader.state_dict()["batches_done"] for _ in loader] == [1, 2, 3, 4, 5, 0]
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("maker", [own, foreign])
def test_a_broken_epoch_begins_again_and_a_whole_one_is_followed_by_the_next(
    data: fr.FastRecordDataset, maker: Any
) -> None:
    whole = maker(data)
    first, second = list(whole), list(whole)
    loader = maker(data)
    for _ in range(2):
        for batch in itertools.islice(loader, 3):
            assert len(batch["key"]) == 4
    assert same(list(loader), first)
    assert same(list(loader), second)


@pytest.mark.parametrize("maker", [own, foreign])
def test_set_epoch_names_the_next_iteration(data: fr.FastRecordDataset, maker: Any) -> None:
    loader = maker(data)
    first, _, third = list(loader), list(loader), list(loader)
    loader.set_epoch(2)
    assert loader.state_dict()["epoch"] == 2
    assert same(list(loader), third)
    loader.set_epoch(0)
    assert same(list(loader), first)
    for bad, error in ((-1, ValueError), ("1", TypeError), (True, TypeError), (1.0, TypeError)):
        with pytest.raises(error, match="epoch is"):
            loader.set_epoch(bad)


@pytest.mark.parametrize("maker", [own, foreign])
def test_set_epoch_keeps_the_place_of_a_loaded_state_in_its_own_epoch_only(
    data: fr.FastRecordDataset, maker: Any
) -> None:
    loader = maker(data)
    next(iter(loader))
    state = loader.state_dict()
    for number, batches in ((0, 5), (1, 6)):
        resumed = maker(data)
        resumed.load_state_dict(state)
        resumed.set_epoch(number)
        assert len(list(resumed)) == batches


def test_batch_size_makes_the_sampler_that_the_documentation_says(data: fr.FastRecordDataset) -> None:
    loader = make(data, 4, shuffle=True, seed=5, drop_last=True)
    assert isinstance(loader.batch_sampler, FastRecordBatchSampler)
    assert (loader.batch_sampler.seed, loader.batch_sampler.shuffle) == (5, True)
    assert loader.sampler is loader.batch_sampler
    assert (len(loader), loader.batch_size) == (5, 4)
    sampler = FastRecordBatchSampler(data, 4, shuffle=True, seed=5)
    assert numbers(loader) == [row for batch in itertools.islice(sampler, 5) for row in batch]
    assert numbers(make(data, 4)) == list(range(COUNT))


def test_torchs_samplers_say_which_records(data: fr.FastRecordDataset) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    for make_sampler in (
        lambda: RandomSampler(data, generator=generator()),
        lambda: WeightedRandomSampler([1.0] * COUNT, 30, generator=generator()),
        lambda: SequentialSampler(data),
    ):
        order = list(make_sampler())
        loader = make(data, None, batch_sampler=BatchSampler(make_sampler(), 4, drop_last=True))
        assert loader.batch_size == 4
        assert numbers(loader) == order[: len(order) // 4 * 4]
        assert len(loader) == len(order) // 4


def test_a_distributed_sampler_is_told_the_epoch(data: fr.FastRecordDataset) -> None:
    samplers: list[DistributedSampler[Any]] = [
        DistributedSampler(data, num_replicas=2, rank=rank, seed=5) for rank in range(2)
    ]
    loaders = [make(data, None, batch_sampler=BatchSampler(sampler, 4, drop_last=False)) for sampler in samplers]
    for number in range(2):
        seen = []
        for loader, sampler in zip(loaders, samplers, strict=True):
            assert loader.sampler is sampler
            loader.set_epoch(number)
            assert sampler.epoch == number
            seen += numbers(loader)
        assert sorted(seen) == list(range(COUNT))
        assert seen == [row for sampler in samplers for row in sampler]
    # As Lightning does it: it calls only the sampler.
    samplers[0].set_epoch(7)
    assert numbers(loaders[0]) == list(samplers[0])
    first = epoch(loaders[0])
    samplers[0].set_epoch(8)
    assert not torch.equal(epoch(loaders[0]), first)


def test_the_seed_of_another_sampler_is_that_of_the_augmentation(data: fr.FastRecordDataset) -> None:
    plain, seeded, other = (
        epoch(make(data, None, batch_sampler=BatchSampler(sampler, 4, drop_last=False)))
        for sampler in (
            SequentialSampler(data),
            *(DistributedSampler(data, 1, 0, shuffle=False, seed=seed) for seed in (0, 6)),
        )
    )
    assert torch.equal(plain, seeded)
    assert not torch.equal(plain, other)


def test_a_sampler_without_a_length_gives_a_loader_without_one(data: fr.FastRecordDataset) -> None:
    class Endless:
        def __iter__(self) -> Any:
            return ([number % COUNT] for number in itertools.count())

    loader = make(data, None, batch_sampler=Endless())
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(loader)
    assert numbers(itertools.islice(loader, 30)) == [number % COUNT for number in range(30)]


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([COUNT], IndexError, "index 22 is out of range: the data set has 22"),
        ([-COUNT - 1], IndexError, "index -23 is out of range"),
        ([0.5], TypeError, "indices are a 1-D sequence of integers"),
        ([[1], [2]], TypeError, "indices are a 1-D sequence of integers"),
        (["a"], TypeError, "indices are a 1-D sequence of integers"),
    ],
)
def test_a_sampler_of_what_are_no_record_numbers_is_an_error(
    data: fr.FastRecordDataset, batch: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(make(data, None, batch_sampler=[[0], batch]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 3}, ValueError, "another kind of batch sampler, or from another version"),
        ({"global_batch_size": 4}, ValueError, "another kind of batch sampler"),
        ({"epoch": -1}, ValueError, "state: epoch is from 0 to"),
        ({"batches_done": "3"}, TypeError, "state: batches_done is an int, not str"),
        ({"seed": None}, TypeError, "state: seed is an int, not NoneType"),
    ],
)
def test_a_malformed_state_is_refused_and_changes_nothing(
    data: fr.FastRecordDataset, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    loader = foreign(data)
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(error, match=message):
        loader.load_state_dict({**before, **change})
    assert loader.state_dict() == before
    with pytest.raises(TypeError, match="a loader's state is a dict, not list"):
        loader.load_state_dict([])


def test_states_of_other_samplers_and_other_data_are_refused(data: fr.FastRecordDataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the state has version 1, but FastRecordBatchSampler reads 5"):
        own(data).load_state_dict(foreign(data).state_dict())
    with pytest.raises(ValueError, match="another kind of batch sampler"):
        foreign(data).load_state_dict(own(data).state_dict())
    other = fr.FastRecordDataset(write_photos(tmp_path / "other.frec", COUNT))
    with pytest.raises(ValueError, match=r"other\.frec.* but the state was saved with"):
        own(other).load_state_dict(own(data).state_dict())


def test_two_iterations_at_once_do_not_disturb_each_other(data: fr.FastRecordDataset) -> None:
    expected = list(own(data))
    loader = own(data)
    pairs = list(zip(iter(loader), iter(loader), strict=True))
    assert same([first for first, _ in pairs], expected)
    assert same([second for _, second in pairs], expected)


def test_a_copied_or_pickled_loader_goes_on_at_the_same_place(data: fr.FastRecordDataset) -> None:
    for maker in (own, foreign):
        loader = maker(data)
        expected = list(maker(data))
        list(itertools.islice(loader, 2))
        loader.load_state_dict(loader.state_dict())
        for clone in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
            assert clone.stats().batches == 0
            assert same(list(clone), expected[2:])
        assert same(list(loader), expected[2:])


# --- a seed of the loader's own ---


def with_seed(data: fr.FastRecordDataset, seed: int | None, **options: Any) -> fr.FastRecordLoader:
    sampler = FastRecordBatchSampler(data, 4, shuffle=True, seed=5, **options)
    return make(data, None, batch_sampler=sampler, seed=seed)


def test_loaders_of_one_seed_draw_the_same_crops_and_a_seed_of_its_own_draws_others_in_the_same_order(
    data: fr.FastRecordDataset,
) -> None:
    default = list(with_seed(data, None))
    assert same(default, list(own(data)))
    assert same(default, list(with_seed(data, 5)))
    one, again, other = (list(with_seed(data, seed)) for seed in (1, 1, 2))
    assert same(one, again)
    assert numbers(default) == numbers(one) == numbers(other)
    assert not any(torch.equal(a["image"], b["image"]) for a, b in zip(one + one, default + other, strict=True))
    # The loader's own batch sampler has the same seed.
    made = fr.FastRecordLoader(data, 4, seed=5, sample=[RandomResizedCrop(24), RandomHorizontalFlip()])
    assert same(list(made), default)
    assert made.batch_sampler.seed == 5
    sampler = FastRecordBatchSampler(data, 4)
    seeds = make(data, None, batch_sampler=sampler, seed=9, batch_transform=lambda _, info: info.seed)
    assert set(seeds) == {9}


def test_a_seed_of_its_own_is_in_the_state_and_ranks_share_it(data: fr.FastRecordDataset) -> None:
    whole = with_seed(data, 1)
    epochs = [list(whole), list(whole)]
    broken = with_seed(data, 1)
    batches = iter(broken)
    assert same([next(batches), next(batches)], epochs[0][:2])
    state = json.loads(json.dumps(broken.state_dict()))
    for other in (with_seed(data, 1), with_seed(data, None), with_seed(data, 7), pickle.loads(pickle.dumps(broken))):
        other.load_state_dict(state)
        assert same(list(other), epochs[0][2:])
        assert same(list(other), epochs[1])
    # The sampler reads it too, and a state without one stands for the sampler's.
    with_seed(data, None).batch_sampler.load_state_dict(state)
    plain = with_seed(data, None)
    next(iter(plain))
    other = with_seed(data, 1)
    other.load_state_dict(plain.state_dict())
    assert same(list(other), list(own(data))[1:])
    crops = {key: image for batch in epochs[0] for image, key in zip(batch["image"], batch["key"], strict=True)}
    for rank in (0, 1):
        loader = make(
            data,
            None,
            batch_sampler=FastRecordBatchSampler(data, 2, shuffle=True, seed=5, rank=rank, world_size=2),
            seed=1,
        )
        for images, keys in map(dict.values, loader):
            assert all(torch.equal(crops[key], image) for key, image in zip(keys, images, strict=True))


def test_a_foreign_sampler_takes_the_loaders_seed(data: fr.FastRecordDataset) -> None:
    whole = list(foreign(data, seed=3))
    assert not same(whole, list(foreign(data)))
    broken = foreign(data, seed=3)
    next(iter(broken))
    state = json.loads(json.dumps(broken.state_dict()))
    other = foreign(data)
    other.load_state_dict(state)
    assert same(list(other), whole[1:])


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**64, ValueError), ("1", TypeError), (True, TypeError), (1.0, TypeError)]
)
def test_what_is_no_seed_is_refused(data: fr.FastRecordDataset, seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="seed is"):
        fr.FastRecordLoader(data, 4, sample=RandomResizedCrop(24), seed=seed)
    loader = with_seed(data, 1)
    state = loader.state_dict()
    with pytest.raises(error, match="state: augmentation_seed is"):
        loader.load_state_dict({**state, "augmentation_seed": seed})
    assert loader.state_dict() == state
