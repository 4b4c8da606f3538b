"""Commands on URLs: what they print of a folder, with few requests, and without a copy that stays."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.store import verification
from tests.store.conftest import Data, lose_place, payload, write_shards
from tests.support.commands import failed, good, run
from tests.support.machines.stores import Fault, Server, serving
from tests.support.packing import pack_with


@pytest.fixture
def images(environment: Server, image_folder: Path, tmp_path: Path) -> tuple[Path, str]:
    """A data set of two shards of images with crop indexes, here and in the store."""
    folder = tmp_path / "images"
    folder.mkdir()
    pack_with(image_folder, folder / "images.frec", shards=2, crop_index=True)
    return folder, environment.put_folder("images", folder)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_info_of_a_url_says_what_that_of_the_folder_does_with_three_requests(environment: Server, stored: Data) -> None:
    (about,) = lines(good("info", "--json", stored.url))
    assert len(environment.requests) <= 3
    (here,) = lines(good("info", "--json", stored.folder))
    assert about["file"] == stored.url
    assert about["manifest"] == f"{stored.url}/dataset.json"
    assert {**about, "file": "", "manifest": ""} == {**here, "file": "", "manifest": ""}
    assert stored.url in good("info", f"{stored.url}/dataset.json")
    environment.requests.clear()
    name = "train-00001-of-00003.frec"
    (one,) = lines(good("info", "--json", f"{stored.url}/{name}"))
    assert len(environment.requests) <= 3
    (expected,) = lines(good("info", "--json", stored.folder / name))
    assert one == {**expected, "file": f"{stored.url}/{name}"}


def test_info_of_a_file_that_is_not_complete_says_so(environment: Server, tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "begun.frec", fr.Schema({"label": "int64"}), complete=False) as writer:
        writer.append({"label": 1})
    url = environment.put("begun.frec", tmp_path / "begun.frec")
    assert "pack --resume" in good("info", url)
    assert "packing stopped after 1 records" in failed("ls", url)


def test_ten_records_of_a_url_take_a_few_requests(environment: Server, stored: Data) -> None:
    for command in (["ls", "--limit", "10"], ["ls", "--json", "--offset", "35", "--limit", "10"], ["head", "-n", "10"]):
        for url, path in ((stored.url, stored.folder), *zip(*_files(stored), strict=True)):
            environment.requests.clear()
            found = good(*command, url)
            assert len(environment.requests) <= 8, (command, environment.requests)
            assert found == good(*command, path)


def _files(stored: Data) -> tuple[list[str], list[Path]]:
    names = ["train-00000-of-00003.frec"]
    return [f"{stored.url}/{name}" for name in names], [stored.folder / name for name in names]


def test_verify_reads_each_byte_once_and_finds_a_data_set_good(environment: Server, stored: Data) -> None:
    expected = lines(good("verify", "--json", stored.folder))
    environment.requests.clear()
    found = lines(good("verify", "--json", stored.url))
    for one, here in zip(found, expected, strict=True):
        assert {**one, "file": ""} == {**here, "file": ""}
    assert found[-1]["file"] == stored.url
    assert found[0]["file"] == f"{stored.url}/train-00000-of-00003.frec"
    for path in stored.folder.glob("*.frec"):
        asked = sum(stop - start for start, stop in environment.stretches(path.name))
        assert asked <= 1.1 * path.stat().st_size  # heads come twice, for the manifest too
    assert "good: 3 shards" in good("verify", stored.url)
    assert good("verify", f"{stored.url}/train-00002-of-00003.frec").startswith(f"{stored.url}/train-00002")


def test_verify_asks_for_nothing_that_came_with_the_end_of_a_file(environment: Server, tmp_path: Path) -> None:
    path = next(write_shards(tmp_path / "small", shards=1, each=1).glob("*.frec"))
    url = environment.put("small.frec", path)
    environment.requests.clear()
    assert ": good: 1 records" in good("verify", url)
    assert path.stat().st_size < 1 << 16
    asked = [request.stretch for request in environment.requests if request.path.endswith("small.frec")]
    assert len(asked) == 2  # its first page, and its end


def test_verify_keeps_only_a_window_of_a_file(
    environment: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(write_shards(tmp_path / "large", shards=1, each=200).glob("*.frec"))
    url = environment.put("large.frec", path)
    monkeypatch.setattr(verification, "_WINDOW", 300_000)
    taken: list[int] = []
    file = verification.open_url(url)
    report = verification.verify(file, lambda *_: taken.append(os.stat(file.open()).st_blocks * 512))
    with fr.Reader(path) as reader:
        assert report == reader.verify()
    assert len(taken) >= 20
    assert max(taken) <= 1_200_000 < path.stat().st_size / 4


def test_verify_reports_damage_as_of_a_file_here(environment: Server, tmp_path: Path) -> None:
    path = next(write_shards(tmp_path / "bad", shards=1).glob("*.frec"))
    content = bytearray(path.read_bytes())
    for record in (7, 30):
        content[content.index(payload(record)[:64]) + 100] ^= 1
    path.write_bytes(content)
    url = environment.put("bad.frec", path)
    (here,) = lines(run("verify", "--json", path).stdout)
    result = run("verify", "--json", url)
    assert result.exit_code == 1
    (found,) = lines(result.stdout)
    assert json.dumps(found).replace(url, "?") == json.dumps(here).replace(str(path), "?")
    assert [value["key"] for value in found["damaged"]] == ["record-7", "record-30"]
    assert f"{url}: damaged: 2 errors" in run("verify", url).stdout
    assert lines(run("verify", "--deep", "--json", url).stdout) == [found]


def test_verify_goes_on_after_a_value_whose_place_is_damaged(environment: Server, tmp_path: Path) -> None:
    path = next(write_shards(tmp_path / "lost", shards=1).glob("*.frec"))
    lose_place(path, 7)
    url = environment.put("lost.frec", path)
    (here,) = lines(run("verify", "--json", path).stdout)
    assert [value["record"] for value in here["damaged"]] == [7, 8]
    (found,) = lines(run("verify", "--json", url).stdout)
    for report in (found, here):
        report["errors"].sort()
        report["damaged"].sort(key=lambda value: value["record"])
        report["codes"].sort()
    assert json.dumps(found).replace(url, "?") == json.dumps(here).replace(str(path), "?")


@pytest.mark.parametrize("kind", ["flip", "cut", "short", "503"])
def test_verify_asks_again_for_what_came_damaged(environment: Server, stored: Data, kind: str) -> None:
    fault = Fault(kind, 2, lambda request: request.stretch is not None and request.stretch[0] > 0)
    environment.faults.append(fault)
    assert ": good: " in good("verify", f"{stored.url}/train-00000-of-00003.frec")
    assert fault.times == 0


def test_a_file_that_is_replaced_meanwhile_is_an_error(environment: Server, stored: Data) -> None:
    environment.faults.append(Fault("412", 1, lambda request: request.stretch is not None and request.stretch[0] > 0))
    result = run("verify", f"{stored.url}/train-00000-of-00003.frec")
    assert result.exit_code == 1
    assert "has been replaced" in result.stderr
    assert "cannot be read" in result.stdout


def test_commands_that_look_into_images_see_what_is_in_the_folder(images: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = images
    (stats,), (here,) = (lines(good("stats", "--json", path)) for path in (url, folder))
    assert stats == {**here, "files": [f"{url}/{path.name}" for path in sorted(folder.glob("*.frec"))]}
    assert lines(good("verify", "--deep", "--json", url))[-1]["ok"]
    page = tmp_path / "page.html"
    assert "12 of 12 matching records" in good("browse", url, "-o", page)
    good("browse", folder, "-o", tmp_path / "same.html")
    assert page.stat().st_size == pytest.approx((tmp_path / "same.html").stat().st_size, rel=0.01)
    good("diff", url, folder)
    shard = sorted(folder.glob("*.frec"))[0].name
    good("extract", f"{url}/{shard}", tmp_path / "some")
    good("extract", folder / shard, tmp_path / "same")
    found, expected = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.jpg")}
        for name in ("some", "same")
    )
    assert found
    assert found == expected
    assert "name one of them" in failed("extract", url, tmp_path / "all")


def test_a_page_has_the_name_of_the_url(images: tuple[Path, str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    good("browse", images[1], "--n", 1)
    good("browse", f"{images[1]}/dataset.json", "--n", 1, "--overwrite")
    assert (tmp_path / "images.html").exists()


def test_the_manifest_of_a_url_is_written_and_checked(environment: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "listed", shards=2)
    (folder / "dataset.json").unlink()
    url = environment.put_folder("listed", folder)
    assert "`fastrecord manifest s3://bucket/listed`" in failed("manifest", "--check", url)
    assert f"{url}/dataset.json: generation 1: 2 shards, 80 records" in good("manifest", url)
    assert good("manifest", "--check", url) == f"{url}: good: the shards are as the manifest names them\n"
    assert lines(good("manifest", "--json", f"{url}/dataset.json"))[0]["path"] == f"{url}/dataset.json"
    more = write_shards(tmp_path / "more", shards=1)
    environment.put("listed/extra.frec", next(more.glob("*.frec")))
    other = tmp_path / "other.frec"
    with fr.Writer(other, fr.Schema({"label": "int64"})) as writer:
        writer.append({"label": 1})
    environment.put("listed/train-00001-of-00002.frec", other)
    result = run("manifest", "--check", "--json", url)
    assert result.exit_code == 1
    found = {(one["name"], one["kind"]) for one in lines(result.stdout)}
    second = "train-00001-of-00002.frec"
    assert found == {(second, "replaced"), (second, "schema"), ("extra.frec", "extra")}
    result = run("verify", "--json", url)
    assert result.exit_code == 1
    assert {one["kind"] for one in lines(result.stdout)[-1]["findings"]} == {"replaced", "schema", "extra"}
    assert "the store's own tools" in failed("manifest", "--clean", url)


def test_a_shard_that_is_missing_or_no_frec_file_is_named(environment: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "partly", shards=3)
    next(folder.glob("*-00000-*")).write_bytes(b"something else" * 10_000)
    next(folder.glob("*-00002-*")).unlink()
    url = environment.put_folder("partly", folder)
    result = run("verify", url)
    assert result.exit_code == 1
    assert f"{url}/train-00000-of-00003.frec: unreadable" in result.stderr
    assert f"{url}/train-00002-of-00003.frec: missing" in result.stderr
    assert "FR201" in failed("info", f"{url}/train-00000-of-00003.frec")


def test_a_web_server_and_a_folder_are_stores_too(stored: Data) -> None:
    with serving(stored.folder) as address:
        for url in (address, stored.folder.as_uri()):
            assert f"{url}/dataset.json, generation 1" in good("info", url)
            assert "record-0" in good("ls", "--limit", 1, url)
            assert f"{url}: good: 3 shards" in good("verify", url)
            assert "good" in good("manifest", "--check", url)
            assert "exists already" in failed("pack", stored.folder, url)


def test_what_is_wrong_with_a_url_is_one_line_with_the_way_out(
    environment: Server, stored: Data, tmp_path: Path
) -> None:
    cases = [
        ("s3://bucket/none", "`fastrecord manifest s3://bucket/none` makes one"),
        ("s3://bucket/none.frec", "does not exist"),
        ("s3://no-such-bucket/train", "bucket"),
        ("s4://bucket/train", "it is not a file of this machine"),
        ("s3://", "FR211"),
    ]
    for url, text in cases:
        for command in (["info"], ["ls"], ["head"], ["verify"], ["stats"]):
            message = failed(*command, url)
            assert message.startswith("error: "), (command, message)
            assert text in message, (command, message)
            assert len(message.splitlines()) == 1
    environment.faults.append(Fault("403", 100))
    for name in ("info", "ls", "verify", "manifest"):
        message = failed(name, stored.url)
        assert "the store refuses access" in message
        assert "check the credentials" in message
        assert "FR211" in message
    assert "FR211" in failed("browse", stored.url, "-o", tmp_path / "page.html")


def test_without_credentials_the_error_says_what_to_set(
    environment: Server, stored: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{environment.port}")
    environment.faults.append(Fault("403", 100, lambda request: request.path.startswith("/latest/")))
    message = failed("info", f"{stored.url}/without-credentials")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in message
    assert "FR211" in message


def test_without_obstore_the_error_says_what_to_install(stored: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for command in ("info", "head", "verify"):
        message = failed(command, f"{stored.url}/x.frec")
        assert "pip install 'fastrecord[cloud]'" in message
        assert "FR751" in message


@pytest.mark.usefixtures("environment")
def test_what_changes_files_in_place_refuses_a_url(stored: Data, tmp_path: Path) -> None:
    url, here = f"{stored.url}/train-00000-of-00003.frec", tmp_path / "here.frec"
    commands: list[list[object]] = [
        ["index", url],
        ["compact", url],
        ["repair", url, here],
        ["merge", url, "-o", here],
        ["split", url, here, "--shards", "2"],
        ["shuffle", url, here],
        ["export", url, tmp_path / "out.tar", "-f", "webdataset"],
    ]
    for command in commands:
        message = failed(*command)
        assert f"`fastrecord copy {url} train-00000-of-00003.frec` brings it here" in message, command
        assert "FR745" in message
    local = stored.folder / "train-00000-of-00003.frec"
    assert "`fastrecord copy` sends the result there" in failed("merge", local, "-o", "s3://bucket/merged.frec")
    with pytest.raises(fr.FastRecordError, match="FR745"):
        fr.files.set_metadata(url, a=1)
    with pytest.raises(fr.FastRecordError, match="FR745"):
        fr.files.drop_field(url, "key")
    assert not list(tmp_path.iterdir())
