"""`fastrecord.ray.pack` of class folders in an object store, and `read_frec` of a data set there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.interchange.files import stored_files
from fastrecord.interchange.files.stored_files import StoredFiles
from fastrecord.ray import Workers, pack, packing, read_frec
from tests.conftest import encode
from tests.ray.test_ray_pack import content
from tests.support.machines.stores import Fault, Server, started
from tests.support.packing import pack_with

pytestmark = [
    pytest.mark.usefixtures("address"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray's own
]
URL = "s3://bucket/images"


@pytest.fixture(scope="module")
def running_server() -> Iterator[Server]:
    with started() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Server:
    running_server.reset()
    running_server.delete("images")
    return running_server


def stored(server: Server, **settings: Any) -> fr.Input:
    return fr.Input(URL, settings=settings, store=fr.Store(server.options))


@pytest.fixture
def tree(server: Server, tmp_path: Path) -> Path:
    """The same images in a folder and in the store; in an order that only a walk of folders gives."""
    names = ["cat/z.jpg", "cat/a/1.jpg", "cat/a-b/1.jpg", "cat/.hidden.jpg", "dog x/é#1%20.jpg", "readme.txt"]
    names += [f"owl/{number:02d}.jpg" for number in range(20)]
    for number, name in enumerate(names):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
        server.put(f"images/{name}", path)
    return tmp_path / "images"


@pytest.mark.parametrize("options", [{}, {"crop_index": True}], ids=str)
def test_the_records_are_the_ones_of_the_folder(
    tree: Path, server: Server, tmp_path: Path, options: dict[str, Any]
) -> None:
    server.faults.append(Fault("cut", 2, lambda request: request.path.endswith(".jpg")))
    alone = pack_with(tree, tmp_path / "alone.frec", shards=3, **options)
    there = pack(
        stored(server),
        tmp_path / "set",
        recode=fr.Recode(**options),
        output=fr.Output(shards=3),
        workers=Workers(2),
    )
    assert content(there.paths) == content(alone.paths)
    assert (there.records, there.classes, there.ignored) == (alone.records, alone.classes, 1)
    assert not server.faults[0].times


def test_a_file_url_is_a_folder(tree: Path, tmp_path: Path) -> None:
    alone = pack_with(tree, tmp_path / "alone.frec", shards=2)
    there = pack(tree.as_uri(), tmp_path / "set", output=fr.Output(shards=2))
    assert content(there.paths) == content(alone.paths)


@pytest.mark.usefixtures("tree")
def test_files_that_are_no_images_gone_or_refused(server: Server, tmp_path: Path) -> None:
    server.put("images/owl/03.jpg", b"no image")
    with pytest.raises(fr.FastRecordError, match=rf"{URL}/owl/03\.jpg: .*bad-files skip"):
        pack(stored(server), tmp_path / "set")
    server.faults.append(Fault("404", 1, lambda request: request.path.endswith("/owl/05.jpg")))
    summary = pack(stored(server), tmp_path / "set", bad_files="skip")
    assert [key for key, _ in summary.skipped] == ["owl/03.jpg", "owl/05.jpg"]
    assert "does not exist in the store" in summary.skipped[1][1]
    server.faults.append(Fault("403", 9, lambda request: request.path.endswith("/owl/07.jpg")))
    with pytest.raises(fr.FastRecordError, match=rf"{URL}/owl/07\.jpg: the store refuses access"):
        pack(stored(server), tmp_path / "other", bad_files="skip")
    assert not (tmp_path / "other").exists()


def test_a_run_of_files_comes_a_few_at_a_time_also_to_a_worker_that_replaces_a_killed_one(
    tree: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring, mark, at_once = StoredFiles._bring, tmp_path / "killed", stored_files._AT_ONCE

    def job(*arguments: Any) -> Any:
        def die_once(files: StoredFiles, number: int, found: dict[int, Any]) -> None:
            bring(files, number, found)
            assert len(found) <= 4
            if number == 9 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        stored_files._AT_ONCE, StoredFiles._bring = 4, die_once  # type: ignore[method-assign, assignment]
        try:
            return pack_part(*arguments)
        finally:  # the cluster keeps its workers
            stored_files._AT_ONCE, StoredFiles._bring = at_once, bring  # type: ignore[method-assign]

    pack_part = packing._pack_part
    monkeypatch.setattr(packing, "_pack_part", job)
    alone = pack_with(tree, tmp_path / "alone.frec", shards=1)
    there = pack(stored(server), tmp_path / "set", output=fr.Output(shards=1))
    assert mark.exists()
    assert content(there.paths) == content(alone.paths)


def test_folders_without_files(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist in the store"):
        pack(stored(server), tmp_path / "set")
    server.put("images/a.jpg", encode(0))
    with pytest.raises(fr.FastRecordError, match="no class folders, only 1 file"):
        pack(stored(server), tmp_path / "set")
    with pytest.raises(ValueError, match="leave out list"):
        pack(stored(server, list=tmp_path / "list.csv"), tmp_path / "set")
    (tmp_path / "tree" / "cat").mkdir(parents=True)
    (tmp_path / "tree" / "dog").mkdir()
    (tmp_path / "tree" / "dog" / "1.jpg").write_bytes(encode(1))
    url = (tmp_path / "tree").as_uri()
    with pytest.raises(fr.FastRecordError, match="empty class folder 'cat'"):
        pack(url, tmp_path / "set")
    summary = pack(fr.Input(url, settings={"allow_empty_classes": "yes"}), tmp_path / "set")
    assert (summary.classes, summary.empty_classes) == (["cat", "dog"], ["cat"])


def test_a_data_set_in_a_store_is_read_by_tasks(tree: Path, server: Server, tmp_path: Path) -> None:
    pack(tree, tmp_path / "set", output=fr.Output(shards=2))
    url = server.put_folder("packed", tmp_path / "set")
    dataset = fr.FastRecordDataset(url, store=fr.Store(server.options), fields=["key"])
    keys = [row["key"] for row in read_frec(dataset).take_all()]
    assert sorted(keys) == sorted(str(path.relative_to(tree)) for path in tree.glob("*/**/*.jpg"))
