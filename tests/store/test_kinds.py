"""Kinds of stores: Google's, Microsoft's, web servers and folders; and what `doctor` says of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.store.conftest import Data, payload, write_shards
from tests.support.child import run_child
from tests.support.commands import failed, good
from tests.support.machines.stores import Fault, Server, serving


def _kind(kind: str, address: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the URL of a folder that is served, and the options that lead there."""
    endpoint = address.removesuffix("/train")
    key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    azure = {"endpoint": endpoint, "skip_signature": True}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "gs": ("gs://bucket/train", {"service_account_key": json.dumps(key), "client_options": {"allow_http": True}}),
        "az": ("az://bucket/train", {**azure, "account_name": "test"}),
        "abfss": ("abfss://bucket@test.dfs.core.windows.net/train", azure),
        "http": (address, {}),
        "file": (folder.as_uri(), {}),
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["gs", "az", "abfss", "http", "file"])
def test_each_kind_of_store_is_read(kind: str, stored: Data, tmp_path: Path) -> None:
    with serving(stored.folder, etag='"7"') as address:
        url, options = _kind(kind, address, stored.folder)
        more: dict[str, Any] = {"store": fr.Store(options, cache=tmp_path / "cache")}
        loader = fr.FastRecordLoader(fr.FastRecordDataset(url, fields=("data", "label"), **more), 16)
        found = [bytes(value) for batch in loader for value in batch["data"]]
        assert sorted(found) == sorted(stored.payload(row) for row in range(stored.total))
        shard = fr.FastRecordDataset(f"{url}/train-00001-of-00003.frec", fields=("key",), store=fr.Store(options))
        assert shard[3]["key"] == "record-43"
        with pytest.raises(FileNotFoundError, match="does not exist"):
            fr.FastRecordDataset(f"{url}/none.frec", store=fr.Store(options))


@pytest.mark.parametrize("status", ["416", "500"])
def test_a_store_that_refuses_to_send_more_last_bytes_than_there_are_is_read(
    environment: Server, tmp_path: Path, status: str
) -> None:
    (path,) = write_shards(tmp_path / "one", shards=1).glob("*.frec")
    url = environment.put(f"last-bytes-{status}.frec", path)
    environment.faults.append(Fault(status, 1000, lambda request: (request.range or "").startswith("bytes=-")))
    assert fr.FastRecordDataset(url, fields=("data",))[7]["data"] == payload(7)
    assert "good" in good("verify", url)


def test_a_web_server_is_only_read(stored: Data, tmp_path: Path) -> None:
    with serving(stored.folder) as address:
        with pytest.raises(fr.FastRecordError, match=r"http://.*: a web server does not list its files.*FR211"):
            fr.files.write_manifest(address)
        other = write_shards(tmp_path / "other", shards=1)
        with pytest.raises(fr.FastRecordError, match=r"http://.*/new.frec: .*FR211"):
            fr.files.copy(next(other.glob("*.frec")), f"{address}/new.frec")


def test_a_folder_that_a_url_names_is_written_like_a_store(tmp_path: Path) -> None:
    url = (tmp_path / "a folder" / "sent").as_uri()
    fr.files.copy(write_shards(tmp_path / "one", shards=1), url)
    assert fr.FastRecordDataset(url, fields=("data",))[7]["data"] == payload(7)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        fr.FastRecordDataset(f"{url}/elsewhere")
    fr.files.copy(write_shards(tmp_path / "two", shards=2), url, overwrite=True)
    assert len(fr.FastRecordDataset(url, fields=("data",))) == 80
    (tmp_path / "a folder" / "sent" / "train-00000-of-00001.frec").unlink()
    assert fr.files.write_manifest(url).generation == 2


def test_doctor_measures_a_store(environment: Server, stored: Data) -> None:
    environment.latency = 0.02
    out = good("doctor", stored.url)
    about = out.split(f"\n{stored.url}\n")[1]
    assert [line.split("  ")[1].strip() for line in about.splitlines()[:2]] == ["latency", "one request"]
    (found,) = json.loads(good("doctor", "--json", stored.url))["stores"]
    assert found["url"] == stored.url
    assert found["latency"] >= 0.02
    assert min(found["one"], found["parallel"]) > 1e5
    assert "does not exist" in failed("doctor", "s3://bucket/nowhere")


def test_many_shards_are_read_through_a_cache_with_few_open_files(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        with fr.Writer(folder / f"s-{number:03}.frec", fr.Schema({"value": "int64", "text": fr.string()})) as writer:
            writer.append({"value": number, "text": f"text {number}"})
    fr.files.write_manifest(folder)
    script = f"""
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        dataset = fr.FastRecordDataset({folder.as_uri()!r}, fields=("value", "text"), store=fr.Store(cache="cache"))
        for _ in range(2):
            for number in range(100):
                assert dataset[number] == {{"value": number, "text": f"text {{number}}"}}
        print(len(os.listdir("/proc/self/fd")))
    """
    # Else each has three: its copy, the marks, and the core's.
    assert int(run_child(script, tmp_path)) < 150
