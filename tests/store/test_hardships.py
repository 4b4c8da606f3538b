"""Packs and copies that are killed between objects, two at once, stores without ETags, and hundreds of shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.store.conftest import payload, write_shards
from tests.support.commands import good
from tests.support.machines.stores import Fault, Request, Server
from tests.support.packing import pack_with

SHARDS, EACH = 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("sent") / "train", shards=SHARDS, each=EACH)


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastrecord", *map(str, words)]
    return subprocess.Popen(command, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def keys_of(url: str) -> list[str]:
    dataset = fr.FastRecordDataset(url, fields=("key",))
    return sorted(dataset[number]["key"] for number in range(len(dataset)))


def objects_of(server: Server, url: str) -> list[str]:
    return sorted(server.objects(url.removeprefix("s3://bucket/")))


@pytest.mark.parametrize("command", ["pack", "copy"])
@pytest.mark.parametrize("sent", range(SHARDS + 1))
def test_what_is_killed_after_some_objects_is_sent_whole_the_next_time(
    environment: Server, folder: Path, image_folder: Path, tmp_path: Path, command: str, sent: int
) -> None:
    url = f"s3://bucket/hardships/{command}-{sent}"
    words: list[object] = [command, folder, url]
    expected = [f"record-{number}" for number in range(SHARDS * EACH)]
    if command == "pack":
        words = [command, image_folder, url, "--shards", SHARDS, "--staging", tmp_path / "staging"]
        expected = [path.relative_to(image_folder).as_posix() for path in image_folder.glob("*/*")]
    finished: list[Request] = []
    children: list[subprocess.Popen[str]] = []

    def kill(request: Request) -> bool:
        if request.method in ("PUT", "POST"):
            finished.append(request)
            if len(finished) == sent + 1:  # so many objects are there, and this one is not
                children[0].kill()
                return True
        return False

    environment.faults.append(Fault("503", 1, kill))
    children.append(started(*words))
    children[0].communicate(timeout=60)
    assert children[0].returncode == -signal.SIGKILL
    environment.reset()
    with pytest.raises(FileNotFoundError, match=r"dataset\.json"):
        fr.FastRecordDataset(url)
    good(*words, *(["--resume"] if command == "pack" else []))
    assert keys_of(url) == sorted(expected)
    assert f"good: {SHARDS} shards" in good("verify", url)
    assert "good" in good("manifest", "--check", url)
    assert len(objects_of(environment, url)) == SHARDS + 1


@pytest.mark.usefixtures("environment")
def test_two_copies_at_once_make_one_data_set(folder: Path) -> None:
    url = "s3://bucket/hardships/copies"
    both = [started("copy", folder, url) for _ in range(2)]
    output = [child.communicate(timeout=60) for child in both]
    assert 0 in [child.returncode for child in both], output
    good("copy", folder, url)
    assert f"good: {SHARDS} shards" in good("verify", url)
    assert len(keys_of(url)) == SHARDS * EACH


def test_a_store_without_etags_is_written_read_and_copied(environment: Server, folder: Path, tmp_path: Path) -> None:
    url = "s3://bucket/hardships/bare"
    environment.faults.append(Fault("no etag", 10**6, lambda request: request.method in ("GET", "HEAD")))
    good("copy", folder, url)
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        dataset = fr.FastRecordDataset(url, fields=("data",), store=fr.Store(cache=cache))
        loader = fr.FastRecordLoader(dataset, 5)
        found = [bytes(value) for batch in loader for value in batch["data"]]
        assert sorted(found) == sorted(payload(number) for number in range(SHARDS * EACH))
    assert f"good: {SHARDS} shards" in good("verify", url)
    good("copy", url, tmp_path / "back")
    for path in folder.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_hundreds_of_shards_go_to_a_store_and_are_read(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"value": number} for number in range(300)]
    url = (tmp_path / "store/many").as_uri()
    pack_with(rows, url, format="dataset", shards=300, staging=tmp_path / "staging")
    assert len(os.listdir(tmp_path / "store/many")) == 301
    for _ in range(2):
        dataset = fr.FastRecordDataset(url, fields=("value",), store=fr.Store(cache=tmp_path / "cache"))
        batches = list(fr.FastRecordLoader(dataset, 100))
        assert sorted(value for batch in batches for value in batch["value"].tolist()) == list(range(300))
    assert "good" in good("manifest", "--check", url)
    assert len(fr.files.copy(url, tmp_path / "back").copied) == 300
