"""Data sets that go to a store and come back: resumable, and never half there."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastrecord as fr
from tests.store.conftest import data_of, payload, write_shards
from tests.support.commands import good
from tests.support.machines.stores import Fault, Request, Server
from tests.support.packing import pack_with
from tests.support.recoding import FILES

pytestmark = pytest.mark.usefixtures("environment")


def test_a_copy_to_a_store_continues_and_comes_back(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "sent", shards=2)
    url = "s3://bucket/sent"
    server.faults.append(Fault("403", 100, lambda request: request.method == "PUT" and "00001-of" in request.path))
    with pytest.raises(fr.FastRecordError, match=r"s3://bucket/sent/train-00001-of-00002.frec.*FR211"):
        fr.files.copy(folder, url)
    with pytest.raises(FileNotFoundError):  # the manifest comes last
        fr.FastRecordDataset(url)
    server.reset()
    summary = fr.files.copy(folder, url)
    assert summary.copied == ["train-00001-of-00002.frec"]
    assert fr.files.copy(folder, url).copied == []
    dataset = data_of(url, server)
    assert dataset[79]["data"] == payload(79)
    back = fr.files.copy(url, tmp_path / "back")
    assert len(back.copied) == 2
    assert fr.files.copy(url, tmp_path / "back").copied == []
    for path in folder.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_packed_images_come_back_from_a_store_as_the_originals(
    server: Server, recode_source: Path, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    pack_with(recode_source, tmp_path / "images" / "train.frec", shards=2, packed=True)
    url = "s3://bucket/packed"
    fr.files.copy(tmp_path / "images", url)
    dataset = fr.FastRecordDataset(
        url, fields=("image", "key"), decode=None, store=fr.Store(server.options, tmp_path / "cache")
    )
    assert {row["key"]: bytes(row["image"]) for row in (dataset[i] for i in range(9))} == FILES
    assert '"packed": 6' in good("stats", "--json", url)
    good("verify", "--deep", url)
    loader = fr.FastRecordLoader(
        fr.FastRecordDataset(url, store=fr.Store(server.options)),
        9,
        shuffle=False,
        sample=[fr.transforms.RandomResizedCrop(32)],
    )
    here = fr.FastRecordLoader(tmp_path / "images", 9, shuffle=False, sample=[fr.transforms.RandomResizedCrop(32)])
    assert all((one[0] == other[0]).all() for one, other in zip(loader, here, strict=True))


def test_a_copy_that_fails_leaves_no_half_of_another_shard(server: Server, tmp_path: Path) -> None:
    url = server.put_folder("broken", write_shards(tmp_path / "sent", shards=3))
    server.bandwidth = 4e6

    def is_in_the_middle(request: Request) -> bool:
        return request.path.endswith("00000-of-00003.frec") and request.stretch not in (None, (0, 1))

    server.faults.append(Fault("403", 100, is_in_the_middle))
    with pytest.raises(fr.FastRecordError, match=r"00000-of-00003.frec.*FR211"):
        fr.files.copy(url, tmp_path / "back")
    assert [*(tmp_path / "back").glob("*.tmp-*")] == []


def test_a_copy_replaces_no_other_data_set(server: Server, tmp_path: Path) -> None:
    url = "s3://bucket/taken"
    fr.files.copy(write_shards(tmp_path / "one", shards=1), url)
    other = write_shards(tmp_path / "two", shards=2)
    with pytest.raises(FileExistsError, match="is another data set"):
        fr.files.copy(other, url)
    fr.files.copy(other, url, overwrite=True)
    assert len(data_of(url, server)) == 80


def test_a_copy_from_a_store_replaces_no_manifest_that_came_meanwhile(server: Server, tmp_path: Path) -> None:
    folder, back = write_shards(tmp_path / "sent", shards=1), tmp_path / "back"
    url = server.put_folder("meanwhile", folder)

    def name_them(done: int, total: int) -> None:
        if done == total:
            fr.files.write_manifest(back)

    with pytest.raises(fr.FastRecordError, match=r"back/dataset.json: another process has replaced it.*FR205"):
        fr.files.copy(url, back, progress=name_them)
    assert fr.files.copy(url, back).copied == []
    assert len(fr.FastRecordDataset(back, fields=("data",))) == len(fr.FastRecordDataset(folder, fields=("data",)))


def test_a_file_goes_to_a_store_and_comes_back(tmp_path: Path) -> None:
    path = next(write_shards(tmp_path / "file", shards=1).glob("*.frec"))
    fr.files.copy(path, "s3://bucket/file.frec")
    fr.files.copy("s3://bucket/file.frec", tmp_path / "back.frec")
    assert (tmp_path / "back.frec").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match="one of src and dst is a URL"):
        fr.files.copy(path, tmp_path / "elsewhere.frec")


def test_a_manifest_of_shards_in_a_store(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", shards=2)
    expected = (folder / "dataset.json").read_bytes()
    (folder / "dataset.json").unlink()
    url = server.put_folder("shards", folder)
    summary = fr.files.write_manifest(url)
    assert (summary.shards, summary.records, len(summary.added)) == (2, 80, 2)
    fr.files.copy(url, tmp_path / "back")
    assert (tmp_path / "back" / "dataset.json").read_bytes() == expected
    assert fr.files.write_manifest(url).generation == 1
    with pytest.raises(FileNotFoundError, match="s3://bucket/empty"):
        fr.files.write_manifest("s3://bucket/empty")


def test_of_two_manifests_at_once_one_is_refused(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "raced", shards=1)
    (folder / "dataset.json").unlink()
    url = server.put_folder("raced", folder)
    fr.files.write_manifest(url)
    more = write_shards(tmp_path / "more", shards=2)
    server.put("raced/more.frec", next(more.glob("*00001*")))
    server.faults.append(Fault("412", 1, lambda request: request.method == "PUT"))
    with pytest.raises(fr.FastRecordError, match=r"another process has replaced it.*FR205"):
        fr.files.write_manifest(url)
    assert fr.files.write_manifest(url).generation == 2


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_bit_that_flips_on_the_way_damages_no_copy(server: Server, tmp_path: Path, method: str) -> None:
    folder = write_shards(tmp_path / "sent", shards=3, each=5)
    url = "s3://bucket/flipped"
    if method == "GET":
        server.put_folder("flipped", folder)
    else:
        server.delete("flipped")
    shards = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.faults.append(
        Fault("flip", 3, lambda request: request.method == method and request.path.endswith("-of-00003.frec"))
    )
    if method == "GET":
        summary = fr.files.copy(url, tmp_path / "back")
        copies = {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()}
    else:
        summary = fr.files.copy(folder, url)
        copies = server.objects("flipped")
    assert server.faults[0].times == 0
    assert (len(summary.copied), copies) == (3, shards)


def test_a_way_that_always_flips_bits_leaves_no_copy(server: Server, tmp_path: Path) -> None:
    path = next(write_shards(tmp_path / "sent", shards=1, each=5).glob("*.frec"))
    server.faults.append(Fault("flip", 100, lambda request: request.method == "PUT"))
    with pytest.raises(fr.FastRecordError, match=r"never.frec: is not what was sent, 3 times: .*on the way.*FR211"):
        fr.files.copy(path, "s3://bucket/never.frec")
    with pytest.raises(FileNotFoundError):
        fr.files.copy("s3://bucket/never.frec", tmp_path / "none.frec")
    url = server.put("whole.frec", path)
    server.reset()
    server.faults.append(Fault("flip", 100, lambda request: request.stretch is not None and request.stretch[1] > 9))
    with pytest.raises(fr.errors.CorruptFileError, match=r"s3://bucket/whole.frec: .*not copied.*FR302") as caught:
        fr.files.copy(url, tmp_path / "back.frec")
    assert "on the way" in caught.value.__notes__[0]
    assert [*tmp_path.glob("back*")] == []


def test_a_copy_that_is_there_but_damaged_is_made_again(server: Server, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "sent", shards=2, each=5)
    url, name = "s3://bucket/there", "train-00001-of-00002.frec"
    fr.files.copy(folder, url)
    damaged = bytearray((folder / name).read_bytes())
    damaged[damaged.index(payload(7)) + 9] ^= 1
    (tmp_path / name).write_bytes(damaged)
    server.put(f"there/{name}", tmp_path / name)
    assert fr.files.copy(folder, url).copied == [name]
    fr.files.copy(url, tmp_path / "back")
    (tmp_path / "back" / name).write_bytes(damaged)
    assert fr.files.copy(url, tmp_path / "back").copied == [name]
    assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    (folder / name).write_bytes(damaged)
    with pytest.raises(fr.errors.CorruptFileError, match=rf"sent/{name}: record 2, .*not copied.*FR302"):
        fr.files.copy(folder, url)


@pytest.mark.parametrize(
    "etag", ['"opaque"', '"0123456789abcdef0123456789abcdef"', '"0123456789abcdef0123456789abcdef-1"']
)
def test_what_an_etag_does_not_prove_is_read_back(server: Server, tmp_path: Path, etag: str) -> None:
    path = next(write_shards(tmp_path / "sent", shards=1, each=5).glob("*.frec"))
    server.faults.append(Fault("etag", 10_000, lambda request: request.method == "GET"))
    server.etag = etag
    fr.files.copy(path, f"s3://bucket/{len(etag)}.frec")
    read = [stretch for stretch in server.stretches(f"{len(etag)}.frec") if stretch[0] == 0]
    assert max(stop for _, stop in read) >= path.stat().st_size
