"""The cache: its limit, its readers, and processes that are killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord._core import crc32c
from fastrecord.store.answer import Answer
from fastrecord.store.cache import Cache
from fastrecord.store.requests import RemoteFolder
from fastrecord.store.shard_source import CachedFolder
from tests.store.conftest import BYTES, Data, assert_once, data_of, payload
from tests.support.machines.stores import Server

# The number of a user that is not this process's: "nobody" of root; a process of another user cannot become one.
_OTHER = "65534" if os.geteuid() == 0 else ""

_READER = textwrap.dedent("""
    import os
    import sys
    import obstore.store
    import numpy as np
    from fastrecord.dataset.shards import Shards  # without torch, it starts at once
    from fastrecord.dataset.values import read_values
    from fastrecord.store.store import Store
    from fastrecord.store.shard_source import CachedFolder  # what is imported later may be out of reach

    url, cache, endpoint, seed, size, user = sys.argv[1:]
    np.random.default_rng(0)  # imports more
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    options = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
    shards = Shards.open(url, store=Store(options, cache, int(size) if size else None))
    _ = shards.schema
    seed, rows = int(seed), np.arange(len(shards))
    order = np.roll(rows, 13 * seed) if seed < 0 else np.random.default_rng(seed).permutation(rows)
    print("ready", flush=True)
    sys.stdin.readline()
    for start in range(0, len(order), 6):
        found = read_values(shards, order[start : start + 6], ["data", "key"], verify=True)
        for data, key in zip(found["data"], found["key"], strict=True):
            record = int(key.removeprefix("record-"))
            assert bytes(data) == np.random.default_rng(record).bytes(30_000), record
    print("done", flush=True)
""")


def _start(
    server: Server, stored: Data, cache: Path, seed: int, size: str = "", user: str = ""
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _READER, stored.url, str(cache), server.options["endpoint"], str(seed), size, user]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _go(process: subprocess.Popen[str]) -> None:
    """Let a reader read once it has opened the data set."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    process.stdin.write("\n")
    process.stdin.flush()


def _read(server: Server, stored: Data, cache: Path, user: str = "") -> None:
    """Read all records in another process."""
    with _start(server, stored, cache, 1, user=user) as process:
        out, errors = process.communicate("\n", timeout=120)
    assert out.endswith("done\n"), errors


@pytest.fixture(scope="module")
def filled(running_server: Server, stored: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of all records, which no process has open."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    running_server.reset()
    _read(running_server, stored, cache)
    return cache


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def _taken(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.glob("*.frec"))


@pytest.fixture
def common(filled: Path) -> Iterator[Path]:
    """A copy of it where other users may go."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cache = Path(shutil.copytree(filled, Path(folder, "cache")))
        yield cache
        cache.chmod(0o755)


def test_the_next_start_clears_what_a_killed_process_has_left(server: Server, stored: Data, cache: Path) -> None:
    marks = sorted(cache.glob("*.parts"))[0]
    content = bytearray(marks.read_bytes())
    content[16] = 1  # a process was killed while it wrote ...
    for at in range(4096 + 3, 4096 + 3 + 40):
        content[at] = 0  # ... parts that do not count
    marks.write_bytes(content)
    (cache / f"{'0' * 32}-1-00000000.frec").write_bytes(b"a head that never came")
    before = _taken(cache)
    dataset = data_of(stored.url, server, cache)
    assert len(list(cache.glob("*.frec"))) == 3
    assert _taken(cache) < before - 30 * BYTES
    assert [dataset[i]["data"] for i in range(40)] == [stored.payload(i) for i in range(40)]


def test_after_a_new_start_of_the_machine_parts_are_checked_again(server: Server, stored: Data, cache: Path) -> None:
    for marks in cache.glob("*.parts"):
        with marks.open("r+b") as file:
            file.seek(32)
            file.write(b"another boot")
        with marks.with_suffix("").open("r+b") as file:  # not all pages had reached the disk
            file.seek(4096 * 3)
            file.write(bytes(4096 * 20))
    dataset = data_of(stored.url, server, cache)
    assert [dataset[i]["data"] for i in range(stored.total)] == [stored.payload(i) for i in range(stored.total)]


@pytest.mark.parametrize("when", ["the clock was set back", "the machine was started anew"])
def test_a_manifest_is_not_taken_for_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    cache = Cache(str(tmp_path / "cache"))
    assert cache.manifest("s3://bucket/dataset.json", lambda _: Answer(b"old", 3, "1")) == b"old"
    (path,) = tmp_path.glob("cache/*.json")
    if when == "the clock was set back":
        monkeypatch.setattr("fastrecord.store.cache._TOGETHER", 0.0)
        os.utime(path, (time.time() + 3600, time.time() + 3600))
    else:
        head, _, content = path.read_bytes().partition(b"\n")
        _, asked, _, etag = head.split(b" ")
        body = b"%s another-start %s\n%s" % (asked, etag, content)
        path.write_bytes(b"%08x %s" % (crc32c(body), body))
    assert cache.manifest("s3://bucket/dataset.json", lambda _: Answer(b"new", 3, "2")) == b"new"


def test_a_manifest_with_a_changed_bit_is_asked_for_again(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"))
    assert cache.manifest("s3://bucket/dataset.json", lambda _: Answer(b"content", 7, '"1"')) == b"content"
    (path,) = tmp_path.glob("cache/*.json")
    good = path.read_bytes()
    for bit in range(8 * len(good)):
        path.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ (1 << bit % 8)]) + good[bit // 8 + 1 :])
        etags: list[str | None] = []

        def ask(etag: str | None, etags: list[str | None] = etags) -> Answer:
            etags.append(etag)
            return Answer(b"content", 7, '"1"')

        assert cache.manifest("s3://bucket/dataset.json", ask) == b"content"
        assert etags == [None]


def test_a_limit_is_kept_by_several_processes(server: Server, stored: Data, tmp_path: Path) -> None:
    cache, limit = tmp_path / "cache", 2_000_000
    processes = [_start(server, stored, cache, seed, str(limit)) for seed in range(3)]
    for process in processes:
        _go(process)
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, _taken(cache) if cache.exists() else 0)
        time.sleep(0.01)
    for process in processes:
        out, errors = process.communicate()
        assert out.endswith("done\n"), errors
    # Space is given back in whole blocks of 4096 bytes.
    assert most <= 1.35 * limit


def test_a_limit_that_is_too_small_is_an_error(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = data_of(stored.url, server, tmp_path / "cache", "100KB")
    with pytest.raises(fr.FastRecordError, match=r"cache_size=100,000 bytes are too few.*FR212"):
        dataset.__getitems__(np.arange(10))
    with pytest.raises(ValueError, match="cache_size"):
        fr.FastRecordDataset(stored.url, store=fr.Store(cache=tmp_path / "cache", cache_size="much"))
    with pytest.raises(ValueError, match="cache="):
        fr.FastRecordDataset(stored.url, store=fr.Store(cache_size="1GB"))


def test_a_folder_of_other_files_is_refused(server: Server, stored: Data, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(fr.FastRecordError, match=r"holds other files.*FR212"):
        fr.FastRecordDataset(stored.url, store=fr.Store(server.options, cache=tmp_path))


def test_a_cache_that_can_only_be_read_is_used_as_it_is(server: Server, stored: Data, common: Path) -> None:
    _remove_one(common)
    _set_modes(common, 0o555, 0o444)
    before = {path: path.read_bytes() for path in common.iterdir()}
    server.requests.clear()
    _read(server, stored, common, user=_OTHER)
    # What it lacks is brought, and not kept.
    names = {request.path.rpartition("/")[2] for request in server.requests}
    assert names == {"dataset.json", "train-00000-of-00003.frec"}
    assert {path: path.read_bytes() for path in common.iterdir()} == before


@pytest.mark.skipif(not _OTHER, reason="only root may become another user")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_two_users_share_a_cache(server: Server, stored: Data, common: Path, mode: int) -> None:
    _remove_one(common)
    _set_modes(common, mode, 0o666)
    _read(server, stored, common, user=_OTHER)
    assert len(list(common.glob("*.frec"))) == 3
    server.requests.clear()
    _read(server, stored, common)  # what the other one has brought is used
    assert not [request for request in server.requests if request.path.endswith(".frec")]


def _remove_one(cache: Path) -> None:
    """Remove the copy of the first shard."""
    (path,) = (path for path in cache.glob("*.frec") if payload(0)[:100] in path.read_bytes())
    path.unlink()
    path.with_name(f"{path.name}.parts").unlink()


def _set_modes(cache: Path, folder: int, files: int) -> None:
    for path in cache.iterdir():
        path.chmod(files)
    cache.chmod(folder)


def test_processes_of_a_node_ask_for_each_byte_once(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    server.latency = 0.05
    processes = [_start(server, stored, tmp_path / "cache", -rank) for rank in range(1, 5)]
    for process in processes:
        _go(process)
    # The manifest, and the two ends of the first shard; the first of them may be reading by now.
    assert len([request for request in server.requests if request.path.endswith(".json")]) == 1
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert out.endswith("done\n"), errors
    assert_once(server)


def test_two_caches_of_one_process_are_apart(server: Server, stored: Data, tmp_path: Path) -> None:
    sets = [data_of(stored.url, server, tmp_path / name) for name in "ab"]
    for dataset in sets:
        assert dataset[3]["data"] == stored.payload(3)
    assert len(list((tmp_path / "a").glob("*.frec"))) == len(list((tmp_path / "b").glob("*.frec"))) == 1


def test_threads_that_use_a_cache_first_at_the_same_time_have_one(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def first(source: CachedFolder) -> Cache:
        together.wait()
        return source.cache

    with ThreadPoolExecutor(4) as threads:
        for number in range(20):
            store = fr.Store(cache=tmp_path / f"{number}")
            source = CachedFolder(RemoteFolder.of("s3://bucket/any", store), store)
            assert len({*threads.map(first, [source] * 4)}) == 1
