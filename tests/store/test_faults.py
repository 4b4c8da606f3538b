"""Stores that fail: what is retried, and what the errors say."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.store import requests
from tests.store.conftest import SCHEMA, Data, payload, write_shards
from tests.support.machines.stores import Fault, Request, Server, serving


def _data(request: Request) -> bool:
    """Whether a request is for payloads: neither the manifest nor the head of a shard."""
    return request.stretch is not None and 0 < request.stretch[0] < 1_000_000


@pytest.mark.parametrize("kind", ["503", "cut", "short", "flip"])
def test_faults_of_some_answers_are_retried(server: Server, stored: Data, tmp_path: Path, kind: str) -> None:
    server.faults.append(Fault(kind, 2, _data))
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), cache=tmp_path / "cache", store_options=server.options)
    assert [dataset[i]["data"] for i in range(0, stored.total, 10)] == [
        stored.payload(i) for i in range(0, stored.total, 10)
    ]
    assert server.faults[0].times == 0


def test_a_store_that_always_fails_is_an_error_that_names_the_url(server: Server, stored: Data, tmp_path: Path) -> None:
    options = {**server.options, "retry_config": {"max_retries": 0}}
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), cache=tmp_path / "cache", store_options=options)
    server.faults.append(Fault("503", 1000))
    with pytest.raises(fr.FastRecordError, match=r"s3://bucket/train/train-.*frec: the store does not answer.*FR211"):
        dataset[0]
    server.reset()
    assert dataset[0]["data"] == stored.payload(0)


def test_a_store_that_hangs_is_given_up_after_the_time_for_retries(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_RETRY_SECONDS", 0.1)
    options = {
        **server.options,
        "client_options": {"timeout": timedelta(seconds=0.2)},
        "retry_config": {"max_retries": 0},
    }
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), cache=tmp_path / "cache", store_options=options)
    server.requests.clear()
    server.latency = 1.0
    with pytest.raises(fr.FastRecordError, match=r"the store does not answer.*FR211"):
        dataset[0]
    # Two requests open a shard side by side; neither is made again.
    assert len(server.requests) <= 2


def test_what_does_not_exist_or_is_refused_is_named(server: Server, stored: Data) -> None:
    for url in ("s3://bucket/none", "s3://bucket/none.frec", "s3://bucket/none/dataset.json"):
        with pytest.raises(FileNotFoundError, match="s3://bucket/none") as caught:
            fr.FastRecordDataset(url, store_options=server.options)
        assert "does not exist" in str(caught.value)
    server.faults.append(Fault("403", 10))
    with pytest.raises(fr.FastRecordError, match=r"s3://bucket/train/dataset.json: the store refuses access.*FR211"):
        fr.FastRecordDataset(stored.url, store_options=server.options)


def test_a_shard_that_vanishes_is_named(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), cache=tmp_path / "cache", store_options=server.options)
    server.faults.append(Fault("404", 100))
    with pytest.raises(FileNotFoundError, match=r"train-00002-of-00003\.frec"):
        dataset[100]


def test_another_etag_is_an_error_and_never_a_mixture(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), cache=tmp_path / "cache", store_options=server.options)
    assert dataset[0]["data"] == stored.payload(0)
    server.faults.append(Fault("etag", 1, _data))
    with pytest.raises(fr.FastRecordError, match=r"train-00000-of-00003.frec: has been replaced.*FR205"):
        dataset[1]


def test_a_replaced_shard_is_an_error_and_the_same_one_sent_again_is_not(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "again", shards=1)
    url = server.put_folder("again", folder)
    dataset = fr.FastRecordDataset(url, fields=("data",), cache=tmp_path / "cache", store_options=server.options)
    assert dataset[0]["data"] == payload(0)
    path = next(folder.glob("*.frec"))
    with fr.Writer(tmp_path / "other.frec", SCHEMA) as writer:
        for record in range(40):
            writer.append({"data": payload(1000 + record), "label": 1, "key": "other"})
    server.put(f"again/{path.name}", tmp_path / "other.frec")
    with pytest.raises(fr.FastRecordError, match="FR205"):
        dataset[1]
    server.put(f"again/{path.name}", path)
    assert dataset[1]["data"] == payload(1)
    server.put(f"again/{path.name}", tmp_path / "other.frec")
    with pytest.raises(fr.FastRecordError, match="FR205"):
        fr.FastRecordDataset(url, fields=("data",), cache=tmp_path / "new", store_options=server.options)


def test_damage_in_the_store_is_reported_by_record_and_its_neighbours_are_read(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "damaged", shards=1)
    path = next(folder.glob("*.frec"))
    content = bytearray(path.read_bytes())
    at = content.index(payload(7)[:64])
    content[at + 100] ^= 1
    path.write_bytes(content)
    url = server.put_folder("damaged", folder)
    dataset = fr.FastRecordDataset(url, fields=("data",), cache=tmp_path / "cache", store_options=server.options)
    assert dataset[6]["data"] == payload(6)
    with pytest.raises(fr.CorruptFileError, match=r"s3://bucket/damaged/train-.*record 7.*FR302"):
        dataset[7]
    assert dataset[8]["data"] == payload(8)
    loader = fr.FastRecordLoader(dataset, 8, on_error="skip")
    assert sum(len(batch["data"]) for batch in loader) == 39


@pytest.mark.parametrize("cached", [True, False])
def test_a_copy_in_another_store_does_not_stand_for_this_one(
    server: Server, stored: Data, tmp_path: Path, cached: bool
) -> None:
    more: dict[str, Any] = {"cache": tmp_path / "cache"} if cached else {}
    options = {**server.options, "retry_config": {"max_retries": 0}}
    with serving(stored.folder) as address:
        gone = fr.FastRecordDataset(address, fields=("data",), **more)
        assert gone[0]["data"] == stored.payload(0)
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), store_options=options, **more)
    assert dataset[20]["data"] == stored.payload(20)


def test_a_cache_that_was_removed_is_named(server: Server, stored: Data, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    more: dict[str, Any] = {"fields": ("data",), "cache": cache, "store_options": server.options}
    fr.FastRecordDataset(stored.url, **more)
    shutil.rmtree(cache)
    with pytest.raises(FileNotFoundError, match="cache"):
        fr.FastRecordDataset(stored.url, **more)
