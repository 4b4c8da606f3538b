"""What a URL leads to: in a bucket the key after it, character by character; on the web what a URL is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastrecord as fr
from tests.store.conftest import Data, payload, write_shards
from tests.support.commands import failed, good
from tests.support.machines.stores import Server, serving
from tests.support.packing import pack_with


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3://bucket/a//b.frec", "an empty part"),
        ("s3://bucket//b", "an empty part"),
        ("s3://bucket/a//", "an empty part"),
        ("s3://bucket/a/../b.frec", r"the part '\.\.'"),
        ("s3://bucket/./b", r"the part '\.'"),
        ("s3://bucket/a\nb", r"the part 'a\\nb'"),
        ("s3://bucket/a\x7f/b", r"the part 'a\\x7f'"),
        ("s3://bucket/\udcff/b", r"the part '\\udcff'"),
        ("s3://", "no bucket"),
        ("s3:///a", "no bucket"),
        ("s3://a?b/c", r"'a\?b' is no bucket"),
        ("s3://bücket/c", "'bücket' is no bucket"),
        ("gs://bucket@other/c", "names a user"),
        ("az://c/a/../b", r"the part '\.\.'"),
        ("http://127.0.0.1:9/a#1/b.frec", "%23"),
        ("http://127.0.0.1:9/a\tb/", "control character"),
        ("file:///tmp/a#1", "%23"),
        ("file:///tmp/a?1", "%3F"),
        ("file://tmp/a", "file:///tmp/a"),
    ],
)
def test_a_url_that_the_client_would_change_is_refused_by_name(tmp_path: Path, url: str, what: str) -> None:
    folder = write_shards(tmp_path / "one", shards=1)
    for call in (
        lambda: fr.FastRecordDataset(url),
        lambda: fr.files.write_manifest(url),
        lambda: fr.files.check_manifest(url),
        lambda: fr.files.copy(folder, url),
        lambda: fr.files.copy(url, tmp_path / "copy"),
        lambda: pack_with([{"data": b"1"}], url, format="dataset", types={"data": fr.bytes_()}),
    ):
        with pytest.raises(fr.FastRecordError, match=rf"{what}.*FR211"):
            call()


def test_a_shard_whose_name_a_store_cannot_hold_is_refused_by_name(environment: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "one", shards=1)
    (path,) = folder.glob("*.frec")
    path.rename(folder / "a\tb.frec")
    fr.files.write_manifest(folder)
    assert r"'a\tb.frec'" in failed("copy", folder, "s3://bucket/odd-name")
    assert not environment.objects("odd-name")


def test_a_file_that_is_sent_needs_the_name_of_a_file(environment: Server, tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path / "one", shards=1).glob("*.frec")
    assert "s3://bucket/into: cannot be a copy of" in failed("copy", path, "s3://bucket/into/")
    assert not environment.objects("into")


@pytest.mark.parametrize("name", ["a b", "a%20b", "ü", "a+b", "a#b", "a?b", "a%2Fb"])
def test_names_on_the_web_are_those_of_a_url(stored: Data, tmp_path: Path, name: str) -> None:
    """The encoding that the URL has is sent as it is."""
    from urllib.parse import quote

    folder = tmp_path / "web"
    folder.mkdir()
    file = stored.folder / "train-00000-of-00003.frec"
    (folder / f"{name.rpartition('/')[2]}.frec").symlink_to(file)
    with serving(folder, etag='"7"') as address:
        url = f"{address}/{quote(name, safe='')}.frec"
        assert fr.FastRecordDataset(url, fields=("data",))[3]["data"] == payload(3)
        assert url in good("info", url)
        fr.files.copy(url, tmp_path / "copy.frec")
    assert (tmp_path / "copy.frec").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ["a#1", "a?b", "a%20b", "a b", "ü", "\udcff"])
def test_a_folder_named_by_a_url_is_the_one_that_as_uri_names(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    fr.files.copy(write_shards(tmp_path / "one", shards=1), folder.as_uri())
    assert [path.name for path in sorted(folder.iterdir())] == ["dataset.json", "train-00000-of-00001.frec"]
    assert fr.FastRecordDataset(folder.as_uri(), fields=("data",))[7]["data"] == payload(7)
    shard = (folder / "train-00000-of-00001.frec").as_uri()
    assert fr.FastRecordDataset(shard, fields=("data",))[7]["data"] == payload(7)
