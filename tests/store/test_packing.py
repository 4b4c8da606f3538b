"""Packs into an object store: shards are sent as they are made, and become a data set at once."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.dataset.shards import Shards
from fastrecord.files.publish.upload import Upload
from fastrecord.packing.summary import PackProgress
from tests.conftest import encode
from tests.support.commands import failed, good
from tests.support.machines.stores import Fault, Request, Server
from tests.support.packing import pack_with

Pack = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def pack(image_folder: Path, tmp_path: Path) -> Pack:
    """Packs the images of the class folders into a URL; 4 shards by default."""

    def run(url: str, *, src: Path = image_folder, shards: int | None = 4, **options: Any) -> Any:
        staging = tmp_path / "staging"
        return pack_with(src, url, shards=shards, staging=staging, **options)

    return run


def seen(url: str) -> list[tuple[bytes, str, str]]:
    """Return what a data set in the store holds: image, class and key of each record."""
    shards, found = Shards.open(url), []
    for reader, classes in zip(shards.readers, shards.class_lists(), strict=True):
        batch = reader.read_batch(range(len(reader)), ["image", "label", "key"])
        rows = zip(batch["image"], batch["label"].tolist(), batch["key"], strict=True)
        found += [(bytes(image), (classes or [])[label], key) for image, label, key in rows]
    return found


def in_folder(folder: Path) -> list[tuple[bytes, str, str]]:
    return [
        (path.read_bytes(), path.parent.name, path.relative_to(folder).as_posix())
        for path in sorted(folder.glob("*/*"))
    ]


def staged(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "staging").rglob("*.frec"))


def puts(server: Server) -> list[str]:
    """Return the names of the objects that were written."""
    return [request.path.rpartition("/")[2] for request in server.requests if request.method in ("PUT", "POST")]


def another_folder(folder: Path) -> Path:
    for name, seed in (("dog", 100), ("fox", 101)):
        (folder / name).mkdir(parents=True)
        (folder / name / "new.jpg").write_bytes(encode(seed))
    return folder


def test_a_folder_is_packed_into_a_data_set_in_a_store(
    environment: Server, pack: Pack, image_folder: Path, tmp_path: Path
) -> None:
    url = "s3://bucket/packing/packed/train/"
    summary = pack(url)
    assert summary.records == summary.packed == 12
    assert summary.manifest == "s3://bucket/packing/packed/train/dataset.json"
    assert [path.rpartition("/")[0] for path in summary.paths] == ["s3://bucket/packing/packed/train"] * 4
    assert puts(environment)[-1] == "dataset.json"
    assert seen(url) == in_folder(image_folder)
    assert not list((tmp_path / "staging").iterdir())
    assert "good: 4 shards" in good("verify", url)
    # The same again: refused, and known as complete.
    with pytest.raises(FileExistsError, match=r"packing/packed/train/dataset.json: exists already: `--append`"):
        pack(url)
    assert not list((tmp_path / "staging").iterdir())
    environment.requests.clear()
    again = pack(url, mode="resume")
    assert (again.packed, again.records, again.classes) == (0, 12, ["cat", "dog", "owl"])
    assert not puts(environment)
    with pytest.raises(fr.FastRecordError, match=r"is complete, and was packed from another input.*FR732"):
        pack(url, src=another_folder(tmp_path / "other"), shards=2, mode="resume")


def test_records_and_shards_are_added_and_replaced(pack: Pack, image_folder: Path, tmp_path: Path) -> None:
    url, more = "s3://bucket/packing/grown", another_folder(tmp_path / "more")
    first = pack(url, shards=2)
    summary = pack(url, src=more, shards=None, mode="append")
    assert summary.classes == ["cat", "dog", "owl", "fox"]  # known ones keep their numbers
    assert seen(url) == in_folder(image_folder) + in_folder(more)
    assert (pack(url, src=more, shards=None, mode="resume").packed, len(seen(url))) == (0, 14)
    lists = tmp_path / "list.csv"
    lists.write_text("path\ndog/new.jpg\n", encoding="utf-8")
    with pytest.raises(fr.errors.SchemaError):
        pack(url, src=more, shards=1, mode="append", list=lists)
    assert len(seen(url)) == 14
    pack(url, src=more, shards=1, mode="overwrite")
    assert seen(url) == in_folder(more)
    assert good("manifest", "--check", url)  # the old shards are gone
    with pytest.raises(FileNotFoundError):
        fr.FastRecordDataset(first.paths[0])
    assert not list((tmp_path / "staging").iterdir())


def second(request: Request) -> bool:
    return request.method in ("PUT", "POST") and "-00001-of" in request.path


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_a_store_that_fails_leaves_what_was_there_and_resuming_sends_the_rest(
    environment: Server, pack: Pack, image_folder: Path, tmp_path: Path, mode: str
) -> None:
    url = f"s3://bucket/packing/broken-{mode}"
    before = in_folder(image_folder)
    options = {} if mode == "create" else {"mode": mode}
    if mode != "create":
        pack(url, shards=1)
    environment.requests.clear()
    environment.faults.append(Fault("403", 100, second))
    source = image_folder if mode == "create" else another_folder(tmp_path / "source")
    shards = 4 if mode == "create" else 2
    with pytest.raises(fr.FastRecordError, match="FR211") as caught:
        pack(url, src=source, shards=shards, **options)
    assert "`--resume` continues" in caught.value.__notes__[-1]
    assert any("-00000-of" in name for name in puts(environment))
    environment.reset()
    if mode == "create":
        with pytest.raises(FileNotFoundError):
            fr.FastRecordDataset(url)
    else:
        assert seen(url) == before
    with pytest.raises(FileExistsError, match="was not finished: `--resume`"):
        pack(url, src=source, shards=shards, **({} if mode == "overwrite" else options))
    with pytest.raises(fr.FastRecordError, match=r"was begun with another input.*FR732"):
        pack(url, src=source, shards=1, mode="resume")
    environment.requests.clear()
    summary = pack(url, src=source, shards=shards, mode="resume")
    assert not [name for name in puts(environment) if "-00000-of" in name]
    expected = {"create": before, "append": before + in_folder(source), "overwrite": in_folder(source)}[mode]
    assert seen(url) == expected
    assert summary.records == len(in_folder(source))
    assert good("manifest", "--check", url)
    assert not list((tmp_path / "staging").iterdir())


def test_beginning_again_removes_what_an_unfinished_pack_has_sent(
    environment: Server, pack: Pack, image_folder: Path
) -> None:
    url = "s3://bucket/packing/again"
    environment.faults.append(Fault("403", 100, second))
    with pytest.raises(fr.FastRecordError, match="FR211"):
        pack(url)
    environment.reset()
    pack(url, mode="overwrite", shards=3)
    assert seen(url) == in_folder(image_folder)
    assert "good" in good("manifest", "--check", url)  # no shard is extra


def test_ctrl_c_leaves_the_old_data_set_and_resuming_finishes(pack: Pack, image_folder: Path, tmp_path: Path) -> None:
    url, more = "s3://bucket/packing/interrupted", another_folder(tmp_path / "more")
    pack(url, src=more, shards=1)

    def stop(state: PackProgress) -> None:
        if state.files >= 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pack(url, mode="overwrite", progress=stop)
    assert seen(url) == in_folder(more)
    pack(url, mode="resume")
    assert seen(url) == in_folder(image_folder)


def test_a_shard_that_was_lost_in_the_store_is_packed_again(
    environment: Server, pack: Pack, image_folder: Path, tmp_path: Path
) -> None:
    url = "s3://bucket/packing/lost"
    environment.faults.append(Fault("403", 100, second))
    with pytest.raises(fr.FastRecordError, match="FR211"):
        pack(url)
    environment.reset()
    journal = json.loads(next((tmp_path / "staging").rglob("journal.json")).read_text(encoding="utf-8"))
    for name in journal["shards"]:
        environment.put(f"packing/lost/{name}", bytes(len(environment.objects("packing/lost")[name])))
    pack(url, mode="resume")
    assert seen(url) == in_folder(image_folder)


def test_only_some_shards_wait_here(environment: Server, pack: Pack, tmp_path: Path) -> None:
    most = 0

    def look(_: PackProgress) -> None:
        nonlocal most
        most = max(most, len(staged(tmp_path)))

    environment.latency = 0.01
    pack("s3://bucket/packing/bounded", shards=8, progress=look)
    assert 1 <= most <= 3
    assert len(seen("s3://bucket/packing/bounded")) == 12


def test_two_packs_into_one_url_do_not_mix(pack: Pack, tmp_path: Path) -> None:
    url = "s3://bucket/packing/twice"
    with Upload(url, "create", sharded=True, staging=tmp_path / "staging"):
        with pytest.raises(fr.errors.LockedError, match="another pack into it is running"):
            pack(url)
        # One with another staging folder, or on another machine: the first manifest counts.
        pack_with(another_folder(tmp_path / "more"), url, shards=1, staging=tmp_path / "elsewhere")
    assert len(seen(url)) == 2


def test_the_manifest_of_another_process_is_not_replaced(pack: Pack, image_folder: Path, tmp_path: Path) -> None:
    url, more = "s3://bucket/packing/raced", another_folder(tmp_path / "more")
    packed = False

    def meanwhile(_: PackProgress) -> None:
        nonlocal packed
        if not packed:
            packed = True
            pack_with(more, url, shards=1, staging=tmp_path / "elsewhere", mode="append")

    with pytest.raises(FileExistsError, match="another process has written a data set there"):
        pack(url, progress=meanwhile)
    assert seen(url) == in_folder(more)
    shutil.rmtree(tmp_path / "staging")
    packed = False
    pack(url, mode="append", progress=meanwhile)  # both are added
    assert len(seen(url)) == 2 + 2 + 12
    assert {key for _, _, key in seen(url)} == {key for _, _, key in in_folder(image_folder) + in_folder(more)}


def test_one_file_is_packed_into_a_store(pack: Pack, image_folder: Path, tmp_path: Path) -> None:
    url = "s3://bucket/packing/one.frec"
    summary = pack(url, shards=None)
    assert (summary.paths, summary.manifest) == ([url], None)
    assert seen(url) == in_folder(image_folder)
    with pytest.raises(FileExistsError, match=r"one.frec: exists already: `--overwrite`"):
        pack(url, shards=None)
    with pytest.raises(fr.FastRecordError, match=r"cannot be added to.*FR745"):
        pack(url, shards=None, mode="append")
    assert pack(url, shards=None, mode="resume").packed == 0
    more = another_folder(tmp_path / "more")
    pack(url, src=more, shards=None, mode="overwrite")
    assert seen(url) == in_folder(more)
    # With shards, its name is the base of theirs.
    sharded = pack("s3://bucket/packing/beside/train.frec", shards=2)
    assert sharded.manifest == "s3://bucket/packing/beside/dataset.json"
    assert all("/beside/train-" in path for path in sharded.paths)


def test_pairs_records_and_data_sets_go_to_a_store(tmp_path: Path) -> None:
    values = np.arange(60).reshape(20, 3)
    np.savez(tmp_path / "values.npz", values=values, label=np.arange(20) % 4)
    pack_with(tmp_path / "values.npz", "s3://bucket/packing/imported", shards=2, staging=tmp_path)
    imported = fr.FastRecordDataset("s3://bucket/packing/imported", fields=("values",))
    np.testing.assert_array_equal([imported[i]["values"] for i in range(20)], values)
    more = [{"values": row, "label": 1} for row in values]
    pack_with(tmp_path / "values.npz", "s3://bucket/packing/imported", mode="append", staging=tmp_path)
    assert len(fr.FastRecordDataset("s3://bucket/packing/imported", fields=("values",))) == 40
    pack_with(more, "s3://bucket/packing/items/", format="dataset", staging=tmp_path)
    assert len(fr.FastRecordDataset("s3://bucket/packing/items", fields=("values",))) == 20
    for side, size in (("lr", 8), ("hr", 16)):
        (tmp_path / side).mkdir()
        for number in range(3):
            pixels = np.full((size, size, 3), number * 50, np.uint8)
            (tmp_path / side / f"{number}.ppm").write_bytes(b"P6 %d %d 255\n" % (size, size) + pixels.tobytes())
    summary = pack_with(
        [tmp_path / "lr", tmp_path / "hr"], "s3://bucket/packing/pairs", format="pairs", staging=tmp_path
    )
    assert (summary.scale, len(summary.paths)) == (2, 1)
    pack_with(
        [tmp_path / "lr", tmp_path / "hr"], "s3://bucket/packing/pairs", format="pairs", staging=tmp_path, mode="append"
    )
    assert "good: 2 shards" in good("verify", "s3://bucket/packing/pairs")


def test_the_command_packs_into_a_url(image_folder: Path, tmp_path: Path) -> None:
    url = "s3://bucket/packing/command"
    text = good("pack", image_folder, url, "--shards", 2, "--staging", tmp_path / "staging")
    assert "12 records in 3 classes" in text
    assert f"{url}/dataset.json: names these files" in text
    assert "complete already, 12 records" in good("pack", image_folder, url, "--shards", 2, "--resume")
    again = good("pack", image_folder, url, "--append", "--shards", 2, "--json")
    assert json.loads(again)["packed"] == 12
    assert len(seen(url)) == 24
    assert "exists already" in failed("pack", image_folder, url)
    assert "--staging is for" in failed("pack", image_folder, tmp_path / "x.frec", "--staging", tmp_path, status=2)
    with pytest.raises(ValueError, match="staging"):
        pack_with(image_folder, tmp_path / "x.frec", staging=tmp_path)
