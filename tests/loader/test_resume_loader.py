"""FastRecordLoader on all ranks, stopped and resumed elsewhere: the same pixels."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.transforms import RandomHorizontalFlip, RandomResizedCrop
from tests.support.loading import loader_of, write_photos
from tests.support.resuming import global_batches

EPOCH = 2


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of 13 and 10 JPEGs."""
    folder = tmp_path_factory.mktemp("photos")
    return [write_photos(folder / "a.frec", 13), write_photos(folder / "b.frec", 10, seed=50)]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of 13 and 10 records of arrays."""
    folder = tmp_path_factory.mktemp("arrays")
    schema = fr.Schema({"key": fr.string(), "value": fr.array("float32", (4, 8)), "tokens": fr.array("int32", (None,))})
    for name, count in (("a", 13), ("b", 10)):
        with fr.Writer(folder / f"{name}.frec", schema) as writer:
            for number in range(count):
                value = np.full((4, 8), number, np.float32)
                tokens = np.arange(number, dtype=np.int32)
                writer.append({"key": f"{name}/{number}", "value": value, "tokens": tokens})
    return [folder / "a.frec", folder / "b.frec"]


class Keyed:
    """A loader whose batches are lists of (key, bytes) per record."""

    def __init__(self, loader: fr.FastRecordLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[list[tuple[str, bytes]]]:
        for batch in self.loader:
            keys, pixels, *_ = batch.values()
            yield [(key, one.numpy().tobytes()) for key, one in zip(keys, pixels, strict=True)]


def open_ranks(files: list[Path], world_size: int, options: dict[str, Any], **loading: Any) -> list[Keyed]:
    made = []
    for rank in range(world_size):
        if "arrays" in files[0].parent.name:
            dataset = fr.FastRecordDataset(files, fields=("key", "value", "tokens"))
        else:
            dataset = fr.FastRecordDataset(files, fields=("key", "image"))
            loading |= {"sample": [RandomResizedCrop(16), RandomHorizontalFlip()]}
        sampler = FastRecordBatchSampler(
            dataset, 6 // world_size, rank=rank, world_size=world_size, **{"shuffle": True, **options}
        )
        made.append(Keyed(loader_of(dataset, None, batch_sampler=sampler, **loading)))
    return made


def close(ranks: list[Keyed]) -> None:
    for rank in ranks:
        rank.loader.close()
        rank.loader.dataset.close()


@pytest.mark.parametrize("kind", ["images", "arrays"])
@settings(max_examples=6, derandomize=True, deadline=None)
@given(data=st.data())
def test_pixels_and_arrays_are_those_of_an_undisturbed_run(
    kind: str, images: list[Path], arrays: list[Path], data: st.DataObject
) -> None:
    files = images if kind == "images" else arrays
    options = {
        "seed": data.draw(st.integers(0, 2**64 - 1)),
        "drop_last": data.draw(st.sampled_from(["pad", True, "exact"])),
        "shuffle": data.draw(st.sampled_from([True, "blocks", False])),
    }
    worlds, threads = st.sampled_from([1, 2, 3, 6]), st.integers(1, 3)
    alone = open_ranks(files, 1, options, threads=2)
    alone[0].loader.set_epoch(EPOCH)
    length = len(alone[0].loader)
    expected = list(itertools.islice(global_batches(alone), 2 * length))
    close(alone)

    found: list[Any] = []
    state: dict[str, Any] | None = None
    for take in (*data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)), 2 * length):
        loading = {"threads": data.draw(threads), "prefetch": data.draw(st.sampled_from([0, 1, 4]))}
        ranks = open_ranks(files, data.draw(worlds), options, **loading)
        for rank in ranks:
            if state is None:
                rank.loader.set_epoch(EPOCH)
            else:
                rank.loader.load_state_dict(json.loads(json.dumps(state)))
        found += itertools.islice(global_batches(ranks), min(take, len(expected) - len(found)))
        state = ranks[0].loader.state_dict()
        close(ranks)
    assert [[key for key, _ in batch] for batch in found] == [[key for key, _ in batch] for batch in expected]
    assert found == expected
