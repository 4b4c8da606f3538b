"""What another user may put into a cache that both may write to: it is refused by name, and leads nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

import fastrecord as fr
from fastrecord.store.cache import Cache
from tests.store.conftest import payload, write_shards

KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
}
FILES = ("fastrecord-cache", "*.frec", "*.frec.parts", "*.json")


def _read(folder: Path, cache: Path, record: int = 3) -> bytes:
    value = fr.FastRecordDataset(folder.as_uri(), fields=("data",), store=fr.Store(cache=cache))[record]["data"]
    assert isinstance(value, bytes)
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("planted") / "train", shards=1, each=8)


@pytest.fixture
def cache(folder: Path, tmp_path: Path) -> Path:
    """A cache that this process has not opened, and others may write to."""
    _read(folder, tmp_path / "first")
    cache = Path(shutil.copytree(tmp_path / "first", tmp_path / "cache"))
    cache.chmod(0o777)
    return cache


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(b"precious" * 1000)
    path.chmod(0o600)
    return path


@pytest.mark.timeout(60)  # a pipe would be waited for
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_planted_in_a_cache_is_refused(folder: Path, cache: Path, victim: Path, name: str, kind: str) -> None:
    (path,) = cache.glob(name)
    path.unlink()
    KINDS[kind](path, victim)
    for _ in range(2):
        with pytest.raises(fr.FastRecordError, match=r"is a link, a pipe or a folder.*FR212") as caught:
            _read(folder, cache)
        assert str(path) in str(caught.value)
    assert victim.read_bytes() == b"precious" * 1000
    assert victim.stat().st_mode & 0o777 == 0o600
    path.rmdir() if kind == "folder" else path.unlink()
    if name == "*.frec":
        path.with_name(f"{path.name}.parts").unlink()
    if name == "fastrecord-cache":
        shutil.rmtree(cache)
    assert _read(folder, cache) == payload(3)


def test_a_file_of_any_size_in_place_of_the_manifest_takes_no_memory(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = cache.glob("*.json")
    os.truncate(path, 1 << 40)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # the manifest that is here counts for some seconds
    assert _read(folder, cache) == payload(3)
    assert path.stat().st_size < 1 << 20


@pytest.mark.parametrize("generation", [-5, 1 << 62])
def test_a_state_that_counts_nothing_is_begun_again_unless_it_is_in_use(
    folder: Path, cache: Path, generation: int
) -> None:
    def damage() -> None:
        with (cache / "fastrecord-cache").open("r+b") as file:
            file.write(generation.to_bytes(8, "little", signed=True))

    damage()
    assert _read(folder, cache) == payload(3)
    damage()
    with pytest.raises(fr.FastRecordError, match=r"fastrecord-cache: is damaged: end the processes.*FR212"):
        Cache(str(cache))


@pytest.mark.parametrize("byte", [2, 0xE2])
def test_marks_with_an_etag_that_no_store_sends_are_refused(folder: Path, cache: Path, byte: int) -> None:
    (path,) = cache.glob("*.frec.parts")
    with path.open("r+b") as file:
        file.seek(130)
        file.write(bytes([byte]))
    with pytest.raises(fr.FastRecordError, match=r"frec.parts: is not what this version writes.*FR212"):
        _read(folder, cache)


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_nothing_makes_no_file_elsewhere(folder: Path, cache: Path, tmp_path: Path, name: str) -> None:
    (path,) = cache.glob(name)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fr.FastRecordError, match="FR212") if name != "*.frec.parts" else nullcontext():
        assert _read(folder, cache) == payload(3)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_another_user_cannot_have_this_one_write_to_a_file_of_its_own(folder: Path, mode: int, victim: Path) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        cache = Path(open_to_all, "cache")
        cache.mkdir()
        cache.chmod(mode)
        subprocess.run(["ln", "-s", victim, cache / "fastrecord-cache"], user=65534, check=True)
        with pytest.raises(fr.FastRecordError, match=r"fastrecord-cache: is a link.*FR212"):
            _read(folder, cache)
    assert victim.stat().st_mode & 0o777 == 0o600
    assert victim.read_bytes() == b"precious" * 1000


@pytest.mark.parametrize("name", FILES[1:3])
def test_a_copy_that_was_damaged_in_the_cache_is_blamed(folder: Path, cache: Path, name: str) -> None:
    (path,) = cache.glob(name)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(fr.FastRecordError, match=r"/cache/.*FR212"):
        _read(folder, cache)
    for one in cache.glob("*.frec*"):
        one.unlink()
    assert _read(folder, cache) == payload(3)
