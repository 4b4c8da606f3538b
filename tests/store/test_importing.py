"""Imports and packs of sources in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.interchange import stored_file
from tests.support.commands import failed, good
from tests.support.formats.exchanging import picture
from tests.support.machines.stores import Server, serving
from tests.support.packing import pack_with

COUNT = 60
EXPORTS = {
    "webdataset": "a.tar", "tfrecord": "a.tfrecord", "recordio": "a.rec", "parquet": "a.parquet", "mds": "mds",
}  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    with fr.Writer(folder / "in.frec", {"image": fr.image(), "label": "int64", "noise": fr.bytes_()}) as writer:
        for number in range(COUNT):
            writer.append({"image": picture(number), "label": number % 7, "noise": bytes([number]) * 9000})
    for name, out in EXPORTS.items():
        drop = ["noise"] if name == "recordio" else []
        fr.export(folder / "in.frec", folder / out, name, drop=drop)
    fr.export(folder / "in.frec", folder / "b.tar.gz", "webdataset")
    fr.export(folder / "in.frec", folder / "a.h5", "hdf5")
    return folder


def rows(path: Path) -> list[Any]:
    with fr.Reader(path) as reader:
        return [{name: bytes(v) if isinstance(v, memoryview) else v for name, v in row.items()} for row in reader]


@pytest.fixture
def url(environment: Server, exported: Path) -> str:
    for path in exported.rglob("*.*"):
        if path.is_file():
            environment.put(f"exported/{path.relative_to(exported)}", path)
    return "s3://bucket/exported"


@pytest.mark.parametrize("name", [*EXPORTS.values(), "b.tar.gz", "*.tfrecord"])
def test_a_source_in_a_store_comes_in_as_the_files_here(
    url: str, exported: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_file, "PART", 100_000)  # many parts
    for out in ("a.frec", "b.frec"):  # twice in one process
        pack_with(f"{url}/{name}", tmp_path / out)
    here = exported / ("a.tfrecord" if "*" in name else name)
    pack_with(here, tmp_path / "here.frec")
    assert rows(tmp_path / "a.frec") == rows(tmp_path / "b.frec") == rows(tmp_path / "here.frec")
    assert "record 0" in good("import", f"{url}/{name}", "--dry-run")


def test_an_import_from_a_store_is_resumed(url: str, exported: Path, tmp_path: Path) -> None:
    calls = 0

    def stop(_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError

    arguments: dict[str, Any] = {"commit_bytes": 1}
    with pytest.raises(KeyError):
        pack_with(f"{url}/a.tar", tmp_path / "a.frec", progress=stop, **arguments)
    pack_with(f"{url}/a.tar", tmp_path / "a.frec", mode="resume", **arguments)
    pack_with(exported / "a.tar", tmp_path / "here.frec")
    assert rows(tmp_path / "a.frec") == rows(tmp_path / "here.frec")


def test_what_a_store_cannot_give_is_said(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    assert "HDF5 is read from files of this machine: copy it here first" in failed("import", f"{url}/a.h5", out)
    assert "does not exist" in failed("import", f"{url}/nothing.tar", out, "--format", "webdataset")
    for name in ("nothing.tar", "nothing"):
        assert f"{url}/{name}: does not exist in the store" in failed("import", f"{url}/{name}", out)
    assert "no such files" in failed("import", f"{url}/x*.tar", out)
    assert not out.exists()


def test_a_folder_of_a_store_is_packed(environment: Server, tmp_path: Path) -> None:
    for number in range(12):
        path = tmp_path / "images" / "abc"[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
        environment.put(f"images/{path.parent.name}/{path.name}", path)
    source = "s3://bucket/images/"
    good("pack", source, tmp_path / "a.frec", "-q")
    good("pack", tmp_path / "images", tmp_path / "here.frec", "-q")
    assert rows(tmp_path / "a.frec") == rows(tmp_path / "here.frec")
    good("pack", source, tmp_path / "s.frec", "-q", "--shard-size", "2KB")
    good("pack", source, tmp_path / "a.frec", "-q", "--resume")
    assert "leave out list" in failed(
        "pack", source, tmp_path / "l.frec", "--set", f"list={tmp_path}/list.csv", status=2
    )


def test_options_of_a_store_hold_for_one_pack(url: str, tmp_path: Path) -> None:
    with pytest.raises(fr.FastRecordError, match="endpoint"):
        fr.pack(fr.Input(f"{url}/a.tar", store=fr.Store({"endpoint": "nowhere"})), tmp_path / "a.frec")
    assert fr.pack(f"{url}/a.tar", tmp_path / "a.frec").records == COUNT


def test_files_of_a_web_server_come_in(exported: Path, tmp_path: Path) -> None:
    with serving(exported, etag='"1"') as web:
        for name in ("a.tar", "a.parquet?X-Amz-Signature=SECRET", "mds/index.json"):
            shown = good("import", f"{web}/{name}", tmp_path / "o.frec", "-q", "--overwrite")
            assert "SECRET" not in shown + str(fr.Reader(tmp_path / "o.frec").metadata)
            assert len(rows(tmp_path / "o.frec")) == COUNT


def test_files_of_the_hub_come_in(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        """A folder, as the hub itself is not on this machine."""

        def path(self, url: str) -> Path:
            return exported / url.removeprefix("hf://data").lstrip("/")

        def ls(self, url: str, *, detail: bool) -> list[dict[str, str]]:
            assert detail
            found = self.path(url).iterdir()
            return [{"name": str(each), "type": "file" if each.is_file() else "directory"} for each in found]

        def open(self, url: str, mode: str, block_size: int) -> Any:
            assert block_size
            return self.path(url).open(mode)

        def isfile(self, url: str) -> bool:
            return self.path(url).is_file()

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "HfFileSystem", Hub)
    pack_with(exported / "a.parquet", tmp_path / "here.frec")
    for name in ("a.parquet", "*.parquet", "mds"):
        pack_with(f"hf://data/{name}", tmp_path / "a.frec", mode="overwrite")
        assert rows(tmp_path / "a.frec") == rows(tmp_path / "here.frec")
