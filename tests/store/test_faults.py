"""Stores that fail: what is retried, and what the errors say."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import fastrecord as fr
from fastrecord.store import requests
from fastrecord.store.requests import RemoteFolder
from tests.store.conftest import SCHEMA, Data, data_of, lose_place, payload, write_shards
from tests.support.machines.stores import Fault, Request, Server, listening, serving
from tests.torture.experiment import ROOT


def _data(request: Request) -> bool:
    """Whether a request is for payloads: neither the manifest nor the head of a shard."""
    return request.stretch is not None and 0 < request.stretch[0] < 1_000_000


@pytest.mark.parametrize("kind", ["503", "cut", "short", "flip"])
def test_faults_of_some_answers_are_retried(server: Server, stored: Data, tmp_path: Path, kind: str) -> None:
    server.faults.append(Fault(kind, 2, _data))
    dataset = data_of(stored.url, server, tmp_path / "cache")
    assert [dataset[i]["data"] for i in range(0, stored.total, 10)] == [
        stored.payload(i) for i in range(0, stored.total, 10)
    ]
    assert server.faults[0].times == 0


def test_a_store_that_always_fails_is_an_error_that_names_the_url(server: Server, stored: Data, tmp_path: Path) -> None:
    options = {**server.options, "retry_seconds": 0.2}
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), store=fr.Store(options, cache=tmp_path / "cache"))
    server.faults.append(Fault("503", 1000))
    with pytest.raises(fr.FastRecordError, match=r"s3://bucket/train/train-.*frec: the store does not answer.*FR211"):
        dataset[0]
    server.reset()
    assert dataset[0]["data"] == stored.payload(0)


def test_a_store_that_hangs_is_given_up_after_the_time_for_retries(
    server: Server, stored: Data, tmp_path: Path
) -> None:
    options = {**server.options, "silence_seconds": 0.2, "retry_seconds": 0.1}
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), store=fr.Store(options, cache=tmp_path / "cache"))
    server.requests.clear()
    server.latency = 1.0
    with pytest.raises(fr.FastRecordError, match=r"the store does not answer.*FR211"):
        dataset[0]
    # Two requests open a shard side by side; each is made again at the end of the time, at the latest.
    assert len(server.requests) <= 6


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1"])
def test_an_endpoint_where_no_server_is_found_is_an_error_soon(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_NEVER_ANSWERED_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    options = {"endpoint": f"http://{host}:{port}", "region": "us-east-1", "skip_signature": True}
    with pytest.raises(fr.FastRecordError, match=r"no (server can be reached|host of this name).*endpoint.*FR211"):
        fr.FastRecordDataset("s3://bucket/train/", store=fr.Store(options))


def test_a_forked_worker_waits_for_a_store_that_has_answered_its_parent(stored: Data) -> None:
    with serving(stored.folder) as address:
        dataset = fr.FastRecordDataset(address, fields=("data",), store=fr.Store({"retry_seconds": 0.3}))
        assert dataset[0]["data"] == stored.payload(0)
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="fork", collate_fn=list)
    with pytest.raises(fr.FastRecordError, match=r"the store does not answer: Connection refused.*FR211"):
        list(loader)


class _Clock:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("kind", ["429", "500", "503", "cut", "short"])
def test_an_outage_of_nearly_three_minutes_ends_nothing_and_meets_few_requests(
    server: Server, stored: Data, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = _Clock()
    monkeypatch.setattr(requests, "time", clock)
    server.faults.append(Fault(kind, 10_000, lambda _: clock.now < 175))
    found = RemoteFolder.of(stored.url, fr.Store(server.options)).get("train-00001-of-00003.frec", 0, 50_000)
    assert bytes(found.data) == (stored.folder / "train-00001-of-00003.frec").read_bytes()[:50_000]
    assert len(server.requests) < 60


@pytest.mark.parametrize("name", ["retry_seconds", "silence_seconds"])
@pytest.mark.parametrize("value", ["soon", 0, -1, float("inf"), None])
def test_a_setting_of_a_store_that_is_no_time_is_refused(name: str, value: Any) -> None:
    with pytest.raises(fr.FastRecordError, match=rf"{name} is a number of seconds above 0.*FR211"):
        RemoteFolder.of("s3://bucket/train", fr.Store({name: value})).get("dataset.json")


def test_obstores_own_retries_are_refused_beside_ours() -> None:
    with pytest.raises(fr.FastRecordError, match=r"retry_config: retry_seconds says.*FR211"):
        RemoteFolder.of("s3://bucket/train", fr.Store({"retry_config": {"max_retries": 3}})).get("dataset.json")


def test_only_silence_is_limited_and_not_the_time_of_a_whole_answer(server: Server, stored: Data) -> None:
    server.bandwidth = 1_200_000
    options = {**server.options, "silence_seconds": 0.4, "retry_seconds": 0.1}
    name = "train-00000-of-00003.frec"
    assert bytes(RemoteFolder.of(stored.url, fr.Store(options)).get(name).data) == (stored.folder / name).read_bytes()
    assert len(server.requests) == 1


def _xml(code: str, message: str, more: str = "") -> str:
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"


@contextmanager
def _answering(status: int, body: str, **headers: str) -> Iterator[tuple[RemoteFolder, list[str]]]:
    """Yield a store that answers all requests alike, and their methods."""
    methods: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            methods.append(self.command)
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_HEAD = do_PUT = do_POST = answer  # noqa: N815 - as the base class calls them

    with listening(Handler) as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        options |= {"access_key_id": "a", "secret_access_key": "b"}
        yield RemoteFolder.of("s3://bucket/train", fr.Store(options)), methods


_PORTAL = "<!DOCTYPE html><html><body>Log in</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "headers", "message"),
    [
        (403, _xml("ExpiredToken", "It is\n over."), {}, r"have expired: ExpiredToken: It is over: get new ones"),
        (400, _xml("ExpiredToken", "It is over."), {}, r"have expired: ExpiredToken: It is over: get new ones"),
        (301, _xml("PermanentRedirect", "Elsewhere."), {"x_amz_bucket_region": "eu-west-1"}, "AWS_REGION=eu-west-1"),
        (400, _xml("AuthorizationHeaderMalformed", "expecting 'eu-west-1'"), {}, "AWS_REGION=eu-west-1"),
        (400, _xml("InvalidRequest", "a &lt; b"), {}, "refuses the request: InvalidRequest: a < b: check the URL"),
        (404, _xml("NoSuchBucket", "None."), {}, "the store has no such bucket: NoSuchBucket: None: check the URL"),
        (403, _xml("AccessDenied", "No."), {}, "the store refuses access: AccessDenied: No: check the credentials"),
        (403, _xml("RequestTimeTooSkewed", "Late."), {}, "clock of this machine is wrong: RequestTimeTooSkewed: Late"),
        (200, _PORTAL, {"content_type": "text/html"}, "is not that of a store: .*login page.*HTTPS_PROXY"),
        (403, _PORTAL, {"content_type": "text/html"}, "is not that of a store: .*login page.*HTTPS_PROXY"),
        (501, "", {}, "this kind of store is only read: 501"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "range", "PUT", "POST"])
def test_what_no_retry_can_help_is_one_sentence_with_its_way_out(
    method: str, status: int, body: str, headers: dict[str, str], message: str
) -> None:
    with _answering(status, body, **headers) as (store, methods):
        calls: dict[str, Callable[[], Any]] = {
            "GET": lambda: store.get("dataset.json"),
            "range": lambda: store.get("a.frec", 0, 10),
            "PUT": lambda: store.put("a", b"a"),
            "POST": lambda: store.delete(["a"]),
        }
        with pytest.raises(
            fr.FastRecordError, match=rf"^s3://bucket/train/[^\n]*{message}[^\n]*\[FR211\](\nnot deleted: .*)?$"
        ):
            calls[method]()
        assert [*filter(lambda method: method != "HEAD", methods)] == [method.replace("range", "GET")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_PORTAL, "is not that of a store: a web page: perhaps the login page of a network.*HTTPS_PROXY"),
        ("", "is not that of a store: 0 bytes that are not JSON"),
        ('{"format": 1}', "bytes are changed on the way.*; if the object itself is damaged, remove it"),
    ],
)
def test_the_answer_to_a_request_for_a_manifest_is_not_taken_for_the_manifest(body: str, message: str) -> None:
    with _answering(200, body, etag='"1"', last_modified="Thu, 26 Nov 2026 18:00:00 GMT") as (store, methods):
        with pytest.raises(fr.errors.CorruptFileError, match=message):
            fr.FastRecordDataset(store.url, store=fr.Store(store.options))
        assert len(methods) == 3  # one damaged on the way is asked for again


def test_a_deletion_that_s3_refuses_by_an_answer_of_200_is_not_made_again() -> None:
    refused = "<Error><Key>train/a</Key><Code>AccessDenied</Code><Message>No.</Message></Error>"
    with _answering(200, f"<DeleteResult>{refused}</DeleteResult>") as (store, methods):
        with pytest.raises(fr.FastRecordError, match="train/a: the store refuses access: AccessDenied: No: check the"):
            store.delete(["a"])
        assert methods == ["POST"]


def test_a_bucket_that_does_not_exist_is_not_taken_for_one_without_a_manifest(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "train", shards=1)
    with _answering(404, _xml("NoSuchBucket", "None.")) as (store, _):
        for call in (
            lambda: fr.FastRecordDataset(store.url, store=fr.Store(store.options)),
            lambda: fr.files.copy(store.url, tmp_path / "back", store=fr.Store(store.options)),
            lambda: fr.files.copy(folder, store.url, store=fr.Store(store.options)),
            lambda: fr.files.write_manifest(store.url, store=fr.Store(store.options)),
        ):
            with pytest.raises(fr.FastRecordError, match="no such bucket"):
                call()


def test_objects_that_could_not_be_deleted_are_named(server: Server) -> None:
    store = RemoteFolder.of("s3://bucket/some", fr.Store({**server.options, "retry_seconds": 0.1}))
    for name in "abc":
        store.put(name, b"")
    server.faults.append(Fault("cut", 1, lambda request: request.method == "POST"))
    store.delete(["a"])
    server.faults.append(Fault("403", 1, lambda request: request.method == "POST"))
    with pytest.raises(fr.FastRecordError, match="bucket/some/b: the store refuses access") as caught:
        store.delete(["b", "c"])
    assert caught.value.__notes__ == ["not deleted: s3://bucket/some/b, s3://bucket/some/c"]
    assert sorted(server.objects("some")) == ["b", "c"]


def test_what_does_not_exist_or_is_refused_is_named(server: Server, stored: Data) -> None:
    for url in ("s3://bucket/none", "s3://bucket/none.frec", "s3://bucket/none/dataset.json"):
        with pytest.raises(FileNotFoundError, match="s3://bucket/none") as caught:
            fr.FastRecordDataset(url, store=fr.Store(server.options))
        assert "does not exist" in str(caught.value)
    server.faults.append(Fault("403", 10))
    with pytest.raises(fr.FastRecordError, match=r"s3://bucket/train/dataset.json: the store refuses access.*FR211"):
        fr.FastRecordDataset(stored.url, store=fr.Store(server.options))


def test_a_replaced_shard_is_an_error_and_the_same_one_sent_again_is_not(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "again", shards=1)
    url = server.put_folder("again", folder)
    dataset = data_of(url, server, tmp_path / "cache")
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
        data_of(url, server, tmp_path / "new")


@pytest.mark.parametrize("read", [(5,), (4, 5, 6)])
def test_a_twin_with_the_same_footer_is_never_mixed_with_what_was_read(
    server: Server, tmp_path: Path, read: tuple[int, ...]
) -> None:
    folder = write_shards(tmp_path / "twins", shards=1)
    url = server.put_folder("twins", folder)
    more: dict[str, Any] = {"store": fr.Store(server.options, cache=tmp_path / "cache")}
    dataset = fr.FastRecordDataset(url, fields=("data",), **more)
    for record in read:
        assert dataset[record]["data"] == payload(record)
    path = next(folder.glob("*.frec"))
    content = bytearray(path.read_bytes())
    content[content.index(payload(5)[:64]) + 7] ^= 1
    server.put(f"twins/{path.name}", bytes(content))
    for _ in range(2):
        with pytest.raises(fr.FastRecordError, match=r"has been replaced.*FR205"):
            dataset[30]
    assert dataset[5]["data"] == payload(5)


def test_damage_in_the_store_is_reported_by_record_and_its_neighbours_are_read(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "damaged", shards=1)
    path = next(folder.glob("*.frec"))
    content = bytearray(path.read_bytes())
    at = content.index(payload(7)[:64])
    content[at + 100] ^= 1
    path.write_bytes(content)
    url = server.put_folder("damaged", folder)
    dataset = data_of(url, server, tmp_path / "cache")
    assert dataset[6]["data"] == payload(6)
    with pytest.raises(fr.errors.CorruptFileError, match=r"s3://bucket/damaged/train-.*record 7.*FR302"):
        dataset[7]
    assert dataset[8]["data"] == payload(8)
    loader = fr.FastRecordLoader(dataset, 8, on_error="skip")
    assert sum(len(batch["data"]) for batch in loader) == 39


def test_a_value_whose_place_is_damaged_keeps_no_others_from_being_read(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "lost", shards=1)
    lose_place(next(folder.glob("*.frec")), 7)
    dataset = data_of(server.put_folder("lost", folder), server, tmp_path / "cache")
    assert [record["data"] for record in dataset.__getitems__([1, 2, 6, 9])] == [*map(payload, (1, 2, 6, 9))]
    with pytest.raises(fr.errors.CorruptFileError, match=r"record 7.*FR304"):
        dataset[7]


@pytest.mark.parametrize("cached", [True, False])
def test_a_copy_in_another_store_does_not_stand_for_this_one(
    server: Server, stored: Data, tmp_path: Path, cached: bool
) -> None:
    cache = tmp_path / "cache" if cached else None
    options = {**server.options, "retry_seconds": 0.1}
    with serving(stored.folder) as address:
        gone = fr.FastRecordDataset(address, fields=("data",), store=fr.Store(cache=cache))
        assert gone[0]["data"] == stored.payload(0)
    dataset = fr.FastRecordDataset(stored.url, fields=("data",), store=fr.Store(options, cache=cache))
    assert dataset[20]["data"] == stored.payload(20)


def test_a_cache_that_was_removed_is_named(server: Server, stored: Data, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    more: dict[str, Any] = {"fields": ("data",), "store": fr.Store(server.options, cache=cache)}
    dataset = fr.FastRecordDataset(stored.url, **more)
    shutil.rmtree(cache)
    for use in (lambda: fr.FastRecordDataset(stored.url, **more), lambda: dataset[50]):
        with pytest.raises(fr.FastRecordError, match=r"/cache: the cache was removed while.*start.*FR212"):
            use()


def test_a_manifest_that_is_damaged_on_its_way_does_not_stay_in_the_cache(
    server: Server, stored: Data, tmp_path: Path
) -> None:
    server.faults.append(Fault("short", 3))
    more: dict[str, Any] = {"fields": ("data",), "store": fr.Store(server.options, cache=tmp_path / "cache")}
    with pytest.raises(fr.errors.CorruptFileError, match=r"train/dataset.json: .*FR210"):
        fr.FastRecordDataset(stored.url, **more)
    assert len(fr.FastRecordDataset(stored.url, **more)) == stored.total


@pytest.mark.parametrize("kind", ["flip", "short"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_manifest_that_is_damaged_on_its_way_is_asked_for_again(
    server: Server, stored: Data, tmp_path: Path, kind: str, times: int
) -> None:
    store = fr.Store(server.options)
    for use in (
        lambda: fr.FastRecordDataset(stored.url, fields=("data",), store=store),
        lambda: data_of(stored.url, server, tmp_path / "cache"),
        lambda: fr.files.check_manifest(stored.url, store=store),
        lambda: fr.files.copy(stored.url, tmp_path / "copy", store=store),
    ):
        server.faults.append(Fault(kind, times, lambda request: request.path.endswith("dataset.json")))
        use()
        assert not server.faults.pop().times


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_cache_on_a_file_system_without_locks_is_refused_by_name(tmp_path: Path) -> None:
    shim = tmp_path / "no_locks.so"
    source = ROOT / "tests" / "support" / "disks" / "no_locks.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    folder = write_shards(tmp_path / "one", shards=1)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from fastrecord.dataset.shards import Shards; from fastrecord.store.store import Store; "
            f"Shards.open({folder.as_uri()!r}, store=Store(cache='cache'))",  # imports no torch
        ],
        env=os.environ | {"LD_PRELOAD": str(shim)}, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "/cache/fastrecord-cache: its file system has no locks: put the cache on a local disk [FR212]" in done.stderr
