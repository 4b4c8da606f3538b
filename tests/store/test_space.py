"""What a cache counts and gives back: its numbers stay right when processes are killed or fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.store import marks
from fastrecord.store.cache import _GIVING, Cache
from fastrecord.store.shard_info import ShardInfo
from fastrecord.store.shard_source import CachedFolder
from tests.store.conftest import SCHEMA, Data
from tests.support.machines.stores import Fault, Server

_KILLED = textwrap.dedent("""
    import os, signal, sys
    from fastrecord.store.cache import Cache

    Cache(sys.argv[1], 1_000_000).reserve(int(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
""")


def _opened(server: Server, url: str, cache: Path, size: int | None = None) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(
        url, fields=("data",), store=fr.Store(server.options, cache=cache, cache_size=size), verify="once"
    )


def _cache_of(dataset: fr.FastRecordDataset) -> Cache:
    source = dataset.selection.shards.sources[0]
    assert isinstance(source, CachedFolder)
    return source.cache


def test_what_a_killed_process_had_reserved_is_counted_no_more(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), 1_000_000)
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _KILLED, cache.folder or "", "600000"])
        assert done.returncode == -signal.SIGKILL
    cache.reserve(900_000)
    assert cache.used == 900_000
    cache.settle(900_000, 0)
    assert cache.used == 0


def test_what_others_bring_is_given_up_once_it_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(str(tmp_path / "cache"), 1_000_000)
    cache.reserve(900_000)
    looks = 0

    def look(place: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            cache.settle(900_000, 900_000)  # it comes while room is made
        return scandir(place)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", look)
    with pytest.raises(fr.FastRecordError, match="bytes are too few: 500,000 bytes more are needed"):
        cache.reserve(500_000)  # no copy counts the bytes, so nothing can be given up
    assert looks == 3


def test_a_copy_that_begins_while_others_are_counted_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(str(tmp_path / "cache"), 1_000_000)
    first, second = (str(tmp_path / "cache" / f"{number:032}-1-00000000.frec") for number in range(2))
    shard = ShardInfo("train.frec", "0" * 32, 1, 1, 1 << 20, 0)

    def begin(place: str) -> None:
        page = marks.first_page(shard, None)
        np.frombuffer(page, marks._ABOUT)["charge"] = 70_000
        Path(marks.marks_of(place)).write_bytes(page)

    def come(place: str) -> bool:
        if place == first:
            begin(second)  # another process, which had room for it
            cache.settle(70_000, 70_000)
        return False

    begin(first)
    cache.reserve(70_000)
    cache._state[_GIVING] = 1  # one was killed when it gave up
    monkeypatch.setattr("fastrecord.store.cache.is_busy", come)
    cache.give_up([])
    assert cache.used == 140_000


def test_a_failed_download_takes_no_space(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = _opened(server, stored.url, tmp_path / "cache")
    assert dataset[0]["data"] == stored.payload(0)
    used = _cache_of(dataset).used
    server.faults.append(Fault("404", 100))
    with pytest.raises(FileNotFoundError):
        dataset.__getitems__([1, 2, 3])
    assert _cache_of(dataset).used == used


def test_bytes_between_those_that_are_needed_never_replace_what_was_checked(
    server: Server, stored: Data, tmp_path: Path
) -> None:
    dataset = _opened(server, stored.url, tmp_path / "cache")
    assert dataset[11]["data"] == stored.payload(11)
    # One request brings both neighbours, and a bit amid its answer has changed on the way.
    server.faults.append(Fault("flip", 1, lambda request: request.stretch is not None))
    found = dataset.__getitems__([10, 12])
    assert [record["data"] for record in found] == [stored.payload(10), stored.payload(12)]
    assert server.faults[0].times == 0
    for again in (dataset, _opened(server, stored.url, tmp_path / "cache")):
        assert again[11]["data"] == stored.payload(11)


def test_small_records_that_are_given_up_give_their_blocks_back(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    values = [np.random.default_rng(number).bytes(700) for number in range(2000)]
    with fr.Writer(folder / "train.frec", SCHEMA) as writer:
        for number, value in enumerate(values):
            writer.append({"data": value, "label": number, "key": f"{number}"})
    fr.files.write_manifest(folder)
    dataset = _opened(server, server.put_folder("small", folder), tmp_path / "cache")
    dataset.__getitems__(np.arange(2000))
    cache = _cache_of(dataset)
    supply = dataset.selection.shards.supply(0)
    assert supply is not None
    file = supply.file
    copy = next((tmp_path / "cache").glob("*.frec"))
    before, used = copy.stat().st_blocks * 512, cache.used
    kept = np.arange(1000, 2000, 100)
    order = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(1500), kept))
    freed = sum(cache.give_up([(file, ["data"], part)]) for part in np.array_split(order, 50))
    assert freed == 700 * len(order)
    assert cache.used == used - freed
    # Where only a few are left, blocks of 4096 bytes stay for them.
    assert copy.stat().st_blocks * 512 < before - freed + 4096 * (2 * len(kept) + 4)
    server.requests.clear()
    assert [record["data"] for record in dataset.__getitems__(kept)] == [values[number] for number in kept]
    assert server.requests == []
    assert [record["data"] for record in dataset.__getitems__(order)] == [values[number] for number in order]
    assert cache.used == used


def test_copies_that_only_others_have_open_are_given_up_for_new_ones(
    server: Server, stored: Data, tmp_path: Path
) -> None:
    script = textwrap.dedent("""
        import sys
        import numpy as np
        from fastrecord.dataset.shards import Shards
        from fastrecord.dataset.values import read_values
        from fastrecord.store.store import Store

        url, cache, endpoint = sys.argv[1:]
        options = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
        shards = Shards.open(url, store=Store(options, cache, 2_000_000))
        read_values(shards, np.arange(50), ["data"], verify=True)
        print("here", flush=True)
        sys.stdin.read()
    """)
    command = [sys.executable, "-c", script, stored.url, str(tmp_path / "cache"), server.options["endpoint"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        dataset = _opened(server, stored.url, tmp_path / "cache", 2_000_000)
        found = dataset.__getitems__(np.arange(80, 120))
        assert [record["data"] for record in found] == [stored.payload(number) for number in range(80, 120)]
        assert _cache_of(dataset).used <= 2_000_000
        other.communicate("")


_WAITS = textwrap.dedent("""
    import sys
    import fastrecord as fr

    url, cache, endpoint = sys.argv[1:]
    options = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
    dataset = fr.FastRecordDataset(url, fields=("data",), store=fr.Store(options, cache, 1_000_000))
    sampler = fr.FastRecordBatchSampler(dataset, 4, rank=1, world_size=2)
    batches = iter(fr.FastRecordLoader(dataset, batch_sampler=sampler))
    count = len(next(batches)["data"])
    print("waits", flush=True)
    sys.stdin.readline()
    print(count + sum(len(batch["data"]) for batch in batches), flush=True)
""")


def test_a_rank_that_waits_in_its_training_step_keeps_no_other_from_making_room(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)  # no plan: the ranks of a node are not known
    command = [sys.executable, "-c", _WAITS, stored.url, str(tmp_path / "cache"), server.options["endpoint"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "waits\n"
        dataset = _opened(server, stored.url, tmp_path / "cache", 1_000_000)
        sampler = fr.FastRecordBatchSampler(dataset, 4, rank=0, world_size=2)
        count = sum(len(batch["data"]) for batch in fr.FastRecordLoader(dataset, batch_sampler=sampler))
        assert count == stored.total // 2
        assert other.communicate("go on\n")[0] == f"{stored.total // 2}\n"
