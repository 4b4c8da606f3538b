"""What is secret in a URL or among store options is used for requests, and is seen nowhere else."""

from __future__ import annotations

import base64
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fastrecord as fr
from fastrecord.cli import cli
from fastrecord.store.requests import RemoteFolder
from fastrecord.train import train
from tests.store.conftest import Data, payload
from tests.support.commands import good
from tests.support.machines.stores import Fault, Server, serving
from tests.support.packing import pack_with
from tests.support.training import small_config

SECRET = "planted7secret"
QUERY = f"X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}&sig={SECRET}%2B"
OPTIONS = {"retry_seconds": 0.1}


@contextmanager
def watched(caplog: pytest.LogCaptureFixture, *folders: Path) -> Iterator[list[str]]:
    """Yield a list of what a person gets to see; check that no secret is in it, in a log, or in files of folders."""
    seen: list[str] = []
    with caplog.at_level(logging.DEBUG):
        yield seen
    seen += [record.getMessage() + str(record.exc_text) for record in caplog.records]
    for folder in folders:
        seen += [str(path) for path in folder.rglob("*")]
        seen += [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert not [text for text in seen if SECRET in text]
    assert not [text for text in seen if base64.b64encode(f"user:{SECRET}".encode()).decode() in text]


def secret(address: str) -> str:
    """Return the URL of a file with a user and a signature."""
    return f"{address.replace('://', f'://user:{SECRET}@')}/train-00000-of-00003.frec?{QUERY}"


def test_a_presigned_url_of_a_file_works_and_is_not_shown(
    stored: Data, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[str, str | None]] = []
    with serving(stored.folder, etag='"7"', asked=asked) as address, watched(caplog, tmp_path) as seen:
        url = secret(address)
        dataset = fr.FastRecordDataset(url, fields=("data",), store=fr.Store(cache=tmp_path / "cache"))
        assert dataset[3]["data"] == payload(3)
        assert pickle.loads(pickle.dumps(dataset))[4]["data"] == payload(4)
        seen += [repr(dataset), repr(dataset.snapshots)]
        shown = url.partition("?")[0].replace(f"user:{SECRET}@", "")
        for command in (("info", url), ("head", url), ("verify", url), ("stats", url), ("doctor", "--json", url)):
            seen.append(good(*command))
            assert shown in seen[-1] or command[0] in ("head", "stats")
        seen += [good("copy", url, tmp_path / "copy.frec"), good("ls", url), good("diff", url, tmp_path / "copy.frec")]
    assert {path.partition("?")[2] for path, _ in asked} == {QUERY}
    assert {user for _, user in asked} == {"Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode()}


def test_another_signature_finds_what_the_cache_has(stored: Data, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    asked: list[tuple[str, str | None]] = []
    with serving(stored.folder, etag='"7"', asked=asked) as address:
        fr.FastRecordDataset(f"{address}?sig=one", fields=("data",), store=fr.Store(cache=cache))[3]
        files, count = sorted(cache.iterdir()), len(asked)
        assert fr.FastRecordDataset(f"{address}?sig=two", fields=("data",), store=fr.Store(cache=cache))[3][
            "data"
        ] == payload(3)
        assert sorted(cache.iterdir()) == files
        assert [path.partition("?")[2] for path, _ in asked[count:]] == ["sig=two"] * (len(asked) - count)
        assert len(asked) - count == 1  # whether the manifest is the same


COMMANDS = (
    *(("info",), ("ls",), ("head",), ("stats",), ("browse",), ("verify",), ("verify", "--json"), ("doctor", "--json")),
    *(("manifest",), ("manifest", "--check"), ("manifest", "--clean"), ("index",), ("bench",), ("split", "--shards=2")),
    *(("diff", "here.frec"), ("extract", "-o", "out"), ("copy", "here.frec"), ("pack", "images"), ("merge", "-o", "m")),
    *(("import", "images"), ("export", "-o", "x", "--format", "webdataset"), ("shuffle", "-o", "s"), ("compact",)),
    *(("repair", "-o", "r"), ("copy", "a", "b"), ("unknown",)),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_shows_a_secret_of_a_url_that_it_cannot_read(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path) as address, watched(caplog, tmp_path) as seen:
        host = f"user:{SECRET}@{address.partition('://')[2]}"
        for url in (f"http://{host}/a.frec?{QUERY}", f"http://{host}?{QUERY}", f"s3://{host}", f"ftp://{host}/a.frec"):
            for given in ([*arguments, url], [url, *arguments], [*arguments[:1], url, *arguments[1:]]):
                result = CliRunner().invoke(cli, ["-vv", *given], prog_name="fastrecord")
                seen.append(result.output)
                if result.exception is not None:
                    seen.append("".join(traceback.format_exception(result.exception)))


def test_a_trainer_reads_through_a_cache_and_keeps_no_secret(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(colours.parent, etag='"7"') as address, watched(caplog, tmp_path):
        url = f"{address.replace('://', f'://user:{SECRET}@')}/{colours.name}?{QUERY}"
        cache = str(tmp_path / "cache")
        train(small_config(url, tmp_path / "run", epochs=1, max_steps=1, cache=cache, cache_size="1GiB"))
        assert list((tmp_path / "cache").glob("*.frec"))
        assert colours.name in (tmp_path / "run" / "config.toml").read_text()


CALLS: tuple[Callable[[str, Path], Any], ...] = (
    lambda url, _: fr.FastRecordDataset(url, store=fr.Store(OPTIONS)),
    lambda url, _: fr.Reader(url),
    lambda url, _: fr.Writer(url, fr.Schema({"data": fr.bytes_()})),
    lambda url, _: fr.files.write_manifest(url, store=fr.Store(OPTIONS)),
    lambda url, _: fr.files.check_manifest(url, store=fr.Store(OPTIONS)),
    lambda url, here: fr.files.copy(url, here / "copy", store=fr.Store(OPTIONS)),
    lambda url, here: fr.files.copy(here, url, store=fr.Store(OPTIONS)),
    lambda url, here: pack_with(here, url, store=fr.Store(OPTIONS)),
    lambda url, here: pack_with(url, here / "x.frec"),
    lambda url, here: pack_with(url, here / "x.frec"),
    lambda url, here: fr.files.merge([url], here / "x.frec"),
    lambda url, here: fr.files.extract(url, here / "x"),
    lambda url, _: fr.files.index(url),
    lambda url, _: fr.files.compact(url),
    lambda url, _: fr.inspect.bench(url),
    lambda url, _: fr.inspect.doctor([url]),
    lambda url, _: fr.inspect.stats([url]),
    lambda url, here: fr.files.repair(url, here / "x.frec"),
)


@pytest.mark.parametrize("call", CALLS, ids=map(str, range(len(CALLS))))
@pytest.mark.parametrize("start", ["http://user:{}@{}/a", "s3://user:{}@b/a"])
def test_no_function_shows_a_secret_in_its_error(
    start: str, call: Callable[[str, Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for end in ("", ".frec"):
        with serving(tmp_path) as address, watched(caplog, tmp_path) as seen:
            url = start.format(SECRET, address.partition("://")[2]) + end
            url += "" if start.startswith("s3") else f"?{QUERY}"
            try:
                seen.append(repr(call(url, tmp_path)))
            except Exception as error:  # noqa: BLE001 - whatever it is
                seen.append("".join(traceback.format_exception(error)))


def test_no_option_of_a_store_is_shown(
    server: Server, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**server.options, "secret_access_key": SECRET, "token": SECRET}
    with watched(caplog, tmp_path) as seen:
        seen += [repr(RemoteFolder.of("s3://bucket/x", fr.Store(options))), repr(fr.Store(options))]
        url, staging = "s3://bucket/secrets", tmp_path / "staging"
        server.faults.append(Fault("403", 1, lambda request: request.method == "PUT"))
        for call in (
            lambda: pack_with(image_folder, url, staging=staging, store=fr.Store(options)),
            lambda: fr.FastRecordDataset(url, store=fr.Store(options, cache=tmp_path / "cache")),
            lambda: fr.FastRecordDataset(url, store=fr.Store({**options, "skip_signature": SECRET})),
            lambda: fr.FastRecordDataset(url, store=fr.Store({**options, "client_options": {"timeout": SECRET}})),
            lambda: fr.FastRecordDataset(url, store=fr.Store({**options, "secret": [SECRET]})),
        ):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever it is
                seen.append("".join(traceback.format_exception(error)))
        pack_with(image_folder, url, staging=staging, mode="overwrite", store=fr.Store(options))
        seen += [content.decode(errors="replace") for content in server.objects("secrets").values()]
