"""A data set in a store that is used again: after it was closed, twice at once, in forks and copies."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fastrecord as fr
from tests.store.conftest import SHARDS, payload, write_shards
from tests.support.machines.stores import Server

RECORDS = 36

Open = Callable[[], fr.FastRecordDataset]


def _loaded(dataset: fr.FastRecordDataset) -> list[bytes]:
    """Return the values of an epoch, sorted."""
    return sorted(bytes(value) for batch in fr.FastRecordLoader(dataset, 4) for value in batch["data"])


def _broken_off(opened: Open, *, kept: bool) -> list[bytes]:
    loader = fr.FastRecordLoader(opened(), 4)
    batches = iter(loader)
    with pytest.raises(ZeroDivisionError):
        _ = [1 / (i - 2) for i, _ in enumerate(batches)]
    if not kept:
        del loader, batches
    return _loaded(opened())


def _closed(opened: Open) -> list[bytes]:
    for _ in range(3):
        dataset = opened()
        loader = fr.FastRecordLoader(dataset, 4)
        assert len([*loader]) == len(loader)
        loader.close()
        dataset.close()
    return _loaded(opened())


def _deleted(opened: Open) -> list[bytes]:
    for _ in range(3):
        dataset = opened()
        _loaded(dataset)
        del dataset
        gc.collect()
    return _loaded(opened())


def _two_at_once(opened: Open) -> list[bytes]:
    first, second = opened(), opened()
    pairs = zip(fr.FastRecordLoader(first, 4), fr.FastRecordLoader(second, 4), strict=True)
    assert len([*pairs]) == 9
    assert _loaded(first) == _loaded(second)
    del first
    return _loaded(second)


def _in_threads(opened: Open) -> list[bytes]:
    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(_loaded, [opened() for _ in range(3)])]
    assert found[0] == found[1] == found[2]
    return found[0]


def _after_single_values(opened: Open) -> list[bytes]:
    first = opened()
    assert [first[i]["label"] for i in range(0, RECORDS, 5)] == first.column("label")[::5].tolist()
    return _loaded(opened())


def _in_a_forked_child(opened: Open, *, anew: bool, used: bool) -> list[bytes]:
    dataset = opened()
    if used:
        _loaded(dataset)
    receiving, sending = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: sending.send(_loaded(opened() if anew else dataset)))
    child.start()
    assert receiving.poll(60), child.exitcode
    found: list[bytes] = receiving.recv()
    child.join()
    assert child.exitcode == 0
    assert _loaded(dataset) == found
    return found


WAYS: dict[str, Callable[[Open], list[bytes]]] = {
    "closed": _closed,
    "deleted": _deleted,
    "two at once": _two_at_once,
    "in threads": _in_threads,
    "broken off, kept": lambda opened: _broken_off(opened, kept=True),
    "broken off, deleted": lambda opened: _broken_off(opened, kept=False),
    "after single values": _after_single_values,
    "pickled": lambda opened: [_loaded(one) for one in (pickle.loads(pickle.dumps(opened())), opened())][1],
    "pickled after use": lambda opened: _loaded(pickle.loads(pickle.dumps(_used(opened())))),
    "forked, the same": lambda opened: _in_a_forked_child(opened, anew=False, used=False),
    "forked, the same after use": lambda opened: _in_a_forked_child(opened, anew=False, used=True),
    "forked, anew": lambda opened: _in_a_forked_child(opened, anew=True, used=False),
    "forked, anew after use": lambda opened: _in_a_forked_child(opened, anew=True, used=True),
}


def _used(dataset: fr.FastRecordDataset) -> fr.FastRecordDataset:
    _loaded(dataset)
    return dataset


@pytest.fixture(scope="module")
def urls(running_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A data set of 1.1 MB, in a store and in a folder."""
    folder = write_shards(tmp_path_factory.mktemp("again") / "train", each=RECORDS // SHARDS)
    return {"s3": running_server.put_folder("again", folder), "file": folder.as_uri()}


@pytest.mark.parametrize("cache", ["s3", "s3, cache", "file", "file, cache", "file, limited cache"])
@pytest.mark.parametrize("way", WAYS)
def test_a_data_set_in_a_store_is_read_again(
    server: Server, urls: dict[str, str], tmp_path: Path, cache: str, way: str
) -> None:
    kind, _, kept = cache.partition(", ")
    store = fr.Store(
        server.options if kind == "s3" else None,
        cache=tmp_path / "cache" if kept else None,
        cache_size="600KB" if kept.startswith("limited") else None,
    )
    found = WAYS[way](lambda: fr.FastRecordDataset(urls[kind], fields=("data", "label"), store=store))
    assert found == sorted(payload(record) for record in range(RECORDS))
