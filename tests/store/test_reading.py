"""Data sets in a store: the same records as on this machine, and few requests."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.store.conftest import Data, assert_once
from tests.support.machines.stores import Server
from tests.support.packing import pack_with


def opened(server: Server, stored: Data, cache: Path | None, **more: Any) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(
        stored.url, fields=("data", "label", "key"), store=fr.Store(server.options, cache=cache), **more
    )


@pytest.mark.parametrize("cached", [True, False])
def test_records_of_a_url_are_those_of_the_folder(server: Server, stored: Data, tmp_path: Path, cached: bool) -> None:
    dataset = opened(server, stored, tmp_path / "cache" if cached else None)
    here = fr.FastRecordDataset(stored.folder, fields=("data", "label", "key"))
    assert len(dataset) == len(here) == stored.total
    assert len(server.requests) <= 3
    for number in (0, 45, -1):
        assert dataset[number] == here[number]
    np.testing.assert_array_equal(dataset.column("label"), here.column("label"))
    assert list(dataset.column("key")) == list(here.column("key"))
    some = dataset.filter("label", "==", 3)
    assert [some[i]["key"] for i in range(len(some))] == [f"record-{i}" for i in range(3, stored.total, 7)]
    assert dataset.paths[0].startswith("s3://bucket/train/")


def test_a_file_without_a_manifest_opens_with_three_requests(server: Server, stored: Data) -> None:
    url = f"{stored.url}/train-00001-of-00003.frec"
    dataset = fr.FastRecordDataset(url, decode=None, image_field="data", store=fr.Store(server.options))
    assert len(dataset) == 40
    assert len(server.requests) <= 3
    assert dataset[5][0] == stored.payload(45)
    before = len(server.requests)
    for number in range(10):
        assert dataset[number][0] == stored.payload(40 + number)
    assert len(server.requests) - before <= 10
    assert dataset.snapshots[0]["path"] == url
    again = fr.FastRecordDataset(dataset.snapshots, decode=None, image_field="data", store=fr.Store(server.options))
    assert again[3][0] == stored.payload(43)


def test_a_loader_brings_each_byte_once_and_reads_a_second_epoch_from_the_cache(
    server: Server, stored: Data, tmp_path: Path
) -> None:
    dataset = fr.FastRecordDataset(
        stored.url, fields=("label", "data"), store=fr.Store(server.options, cache=tmp_path / "cache")
    )
    loader = fr.FastRecordLoader(dataset, 16)
    first = [bytes(value) for batch in loader for value in batch["data"]]
    stats = loader.stats()
    assert sorted(first) == sorted(stored.payload(i) for i in range(stored.total))
    assert stats.bytes_downloaded >= stored.total * 30_000
    assert stats.bytes_downloaded <= 1.05 * sum(path.stat().st_size for path in stored.folder.iterdir())
    assert stats.network_seconds > 0
    assert_once(server)
    server.requests.clear()
    second = [bytes(value) for batch in loader for value in batch["data"]]
    assert sorted(second) == sorted(first)
    assert not server.requests
    assert loader.stats().bytes_downloaded == stats.bytes_downloaded
    assert loader.stats().bytes_from_cache >= stored.total * 30_000


def test_images_of_a_url_are_decoded_by_the_loader(server: Server, tmp_path: Path, image_folder: Path) -> None:
    pack_with(image_folder, tmp_path / "images.frec")
    url = server.put("images.frec", tmp_path / "images.frec")
    sample = [fr.transforms.CenterCrop(32)]
    datasets = fr.FastRecordDataset(url, store=fr.Store(server.options)), fr.FastRecordDataset(tmp_path / "images.frec")
    batches = [list(fr.FastRecordLoader(dataset, 4, shuffle=False, sample=sample)) for dataset in datasets]
    for (images, labels), (expected, numbers) in zip(*batches, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, numbers)


@pytest.mark.parametrize(("method", "workers", "cached"), [("fork", 2, True), ("fork", 2, False), ("spawn", 1, True)])
def test_workers_of_a_dataloader_read_a_url(
    server: Server, stored: Data, tmp_path: Path, method: str, workers: int, cached: bool
) -> None:
    dataset = opened(server, stored, tmp_path / "cache" if cached else None)
    _ = dataset[0]  # the parent has made requests: its threads do not survive the fork
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=20, num_workers=workers, multiprocessing_context=method, collate_fn=list
    )
    found = {sample["key"]: sample["data"] for batch in loader for sample in batch}
    assert found == {f"record-{i}": stored.payload(i) for i in range(stored.total)}
    if cached:
        assert_once(server)


def test_a_pickled_data_set_reads_on(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = opened(server, stored, tmp_path / "cache")
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[7] == dataset[7]
    assert len(pickle.dumps(dataset)) < 20_000
