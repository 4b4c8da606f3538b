"""What was opened is opened again in the same process: the same records, whatever happened in between."""

from __future__ import annotations

import gc
import pickle
import zlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastrecord as fr
from tests.conftest import write_images
from tests.support.child import in_a_fork
from tests.support.machines.stores import Server

SHARDS, EACH = 3, 6
CROP = [fr.transforms.CenterCrop(32)]
Opened = Callable[..., fr.FastRecordDataset]
Values = Generator[Any, None, None]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of images."""
    folder = tmp_path_factory.mktemp("twice") / "train"
    folder.mkdir()
    for shard in range(SHARDS):
        labels = [number % 2 for number in range(EACH)]
        write_images(folder / f"{shard}.frec", labels, ["ant", "bee"], seed=EACH * shard)
    fr.files.write_manifest(folder)
    return folder


@pytest.fixture(scope="module")
def places(local: Path, running_server: Server) -> dict[str, str]:
    url = running_server.put_folder("twice", local)
    return {"folder": str(local), "file://": local.as_uri(), "s3://": url}


@pytest.fixture(
    params=[
        "folder",
        "file://, cached",
        "file://, small cache",
        "s3://",
        "s3://, small cache",
    ]
)
def opened(request: pytest.FixtureRequest, places: dict[str, str], server: Server, tmp_path: Path) -> Any:
    """Opens the data set, at some place."""
    place, _, cache = request.param.partition(", ")
    store = fr.Store(
        server.options if place == "s3://" else None,
        cache=tmp_path / "cache" if cache else None,
        cache_size="250KB" if cache == "small cache" else None,
    )
    return lambda **more: fr.FastRecordDataset(places[place], store=store, **more)


def read_samples(opened: Opened) -> Values:
    dataset = opened(decode="native")
    for number in range(len(dataset)):
        yield dataset[number]


def read_fields(opened: Opened) -> Values:
    dataset = opened(fields=("image", "label", "key"))
    yield from dataset.__getitems__(np.arange(0, len(dataset), 2))


def read_columns(opened: Opened) -> Values:
    dataset = opened()
    yield dataset.targets
    yield dataset.column("key")


def read_loader(opened: Opened) -> Values:
    yield from fr.FastRecordLoader(opened(), 4, sample=CROP)


def read_loader_of_arrays(opened: Opened) -> Values:
    yield from fr.FastRecordLoader(opened(fields=("label", "key")), 4)


def read_batches(opened: Opened) -> Values:
    dataset = opened(decode="native")
    sampler = fr.FastRecordBatchSampler(dataset, 4, shuffle="blocks", rank=0, world_size=1)
    yield from torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=list)


def read_workers(opened: Opened) -> Values:
    dataset = opened(decode="native")
    yield dataset[0]
    yield from torch.utils.data.DataLoader(dataset, 6, num_workers=1, multiprocessing_context="fork", collate_fn=list)


def read_views(opened: Opened) -> Values:
    dataset = opened()
    for view in (dataset.filter("label", "==", 1), dataset.subset([1, 7]), *dataset.split(2)):
        yield from fr.FastRecordLoader(view, 4, shuffle=False, sample=CROP)


def read_joined(opened: Opened) -> Values:
    yield from fr.FastRecordLoader(fr.concat(opened(), opened()), 4, sample=CROP)


def read_mixed(opened: Opened) -> Values:
    yield from fr.FastRecordLoader(fr.mix({opened(): 1, opened(): 2}), 4, sample=CROP)


def read_pickled(opened: Opened) -> Values:
    dataset = opened()
    yield from fr.FastRecordLoader(dataset, 4, sample=CROP)
    yield from fr.FastRecordLoader(pickle.loads(pickle.dumps(dataset)), 4, sample=CROP)


def read_snapshots(opened: Opened) -> Values:
    dataset = opened()
    again = fr.FastRecordLoader(opened(), 4, sample=CROP)
    first = fr.FastRecordLoader(dataset, 4, sample=CROP)
    yield next(iter(first))
    again.load_state_dict(first.state_dict())
    yield from again


def read_in_threads(opened: Opened) -> Values:
    with ThreadPoolExecutor(3) as threads:
        yield from threads.map(lambda dataset: digest([*fr.FastRecordLoader(dataset, 4, sample=CROP)]), [opened()] * 3)


def read_two_at_once(opened: Opened) -> Values:
    loaders = [fr.FastRecordLoader(opened(), 4, sample=CROP) for _ in range(2)]
    for pair in zip(*loaders, strict=True):
        yield from pair


USES = [
    read_samples, read_fields, read_columns, read_loader, read_loader_of_arrays, read_batches, read_workers, read_views,
    read_joined, read_mixed, read_pickled, read_snapshots, read_in_threads, read_two_at_once,
]  # fmt: skip


def digest(value: Any) -> Any:
    """Return values such that equal ones are equal, in any process."""
    if isinstance(value, dict):
        return {name: digest(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [digest(each) for each in value]
    if isinstance(value, (bytes, memoryview)):
        return zlib.crc32(value)
    if isinstance(value, (torch.Tensor, np.ndarray, Image.Image)) and np.asarray(value).dtype != object:
        array = np.asarray(value)
        return [*array.shape, zlib.crc32(array.tobytes())]
    return str(value)


def all_of(use: Callable[[Opened], Values], opened: Opened) -> list[Any]:
    return [digest(value) for value in use(opened)]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_what_was_read_is_read_again(use: Callable[[Opened], Values], opened: Opened, local: Path) -> None:
    expected = all_of(use, lambda **more: fr.FastRecordDataset(local, **more))
    kept: list[fr.FastRecordDataset] = []

    def keeping(**more: Any) -> fr.FastRecordDataset:
        kept.append(opened(**more))
        return kept[-1]

    assert all_of(use, opened) == expected  # and dropped
    assert all_of(use, keeping) == expected  # and kept
    begun = use(opened)
    next(begun)
    with pytest.raises(KeyError) as error:
        begun.throw(KeyError)
    assert all_of(use, opened) == expected  # while the traceback keeps what was begun
    del error, begun
    gc.collect()
    assert in_a_fork(lambda: all_of(use, opened)) == expected
    the_same = iter(kept)  # the parent's data sets, in the child
    with suppress(StopIteration):
        assert in_a_fork(lambda: all_of(use, lambda **_: next(the_same))) == expected
    the_same = iter(kept)
    assert all_of(use, lambda **_: next(the_same)) == expected
    kept.clear()
    assert all_of(use, opened) == expected


def test_a_data_set_that_was_closed_is_opened_again(opened: Opened, local: Path) -> None:
    expected = all_of(read_loader, lambda **more: fr.FastRecordDataset(local, **more))
    for _ in range(3):
        dataset = opened()
        loader = fr.FastRecordLoader(dataset, 4, sample=CROP)
        assert len([*loader]) == len(loader)
        loader.close()
        dataset.close()
    assert all_of(read_loader, opened) == expected


def test_a_data_set_that_was_not_used_is_read_in_a_forked_child_first(opened: Opened, local: Path) -> None:
    expected = all_of(read_loader, lambda **more: fr.FastRecordDataset(local, **more))
    dataset = opened()
    assert in_a_fork(lambda: all_of(read_loader, lambda: dataset)) == expected
    assert all_of(read_loader, lambda: dataset) == expected
