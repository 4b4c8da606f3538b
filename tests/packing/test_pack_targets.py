"""The outputs of a pack: it keeps paths that are not regular files, and follows links."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.conftest import encode
from tests.support.commands import failed
from tests.support.packing import pack_with
from tests.writer.test_writer_name import irregular


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "0.jpg").write_bytes(encode(0))
    return tmp_path / "src"


@pytest.mark.parametrize("options", [{}, {"mode": "append"}, {"mode": "overwrite"}, {"mode": "resume"}])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_pack_refuses_an_output_that_is_not_a_regular_file_and_leaves_it(
    source: Path, tmp_path: Path, kind: str, options: dict[str, Any], linked: bool
) -> None:
    node = irregular(tmp_path / "node", kind)
    out = node
    if linked:
        out = tmp_path / "link"
        out.symlink_to(node)
    before = os.lstat(node)
    with pytest.raises(IsADirectoryError if kind == "folder" else fr.FastRecordError, match=out.name):
        pack_with(source, out, **options)
    assert os.path.samestat(os.lstat(node), before)
    assert out.is_symlink() == linked


@pytest.mark.parametrize("left", ["nothing", "empty", "uncommitted"])
def test_resuming_through_a_link_writes_its_target(source: Path, tmp_path: Path, left: str) -> None:
    (tmp_path / "data").mkdir()
    target, link = tmp_path / "data" / "out.frec", tmp_path / "out.frec"
    link.symlink_to(Path("data", "out.frec"))
    if left == "empty":
        target.touch()
    if left == "uncommitted":
        begun = fr.Writer(target, {"image": fr.image()})
        target.write_bytes(target.read_bytes())
        link_bytes = target.read_bytes()
        begun.abort()
        target.write_bytes(link_bytes)
    for _ in range(2):
        assert pack_with(source, link, mode="resume").records == 2
        assert link.is_symlink()
        assert not target.is_symlink()
        assert len(fr.Reader(target)) == 2


def test_a_link_to_a_missing_file_is_refused_alike_by_all_that_overwrite(source: Path, tmp_path: Path) -> None:
    pack_with(source, tmp_path / "a.frec")
    link = tmp_path / "link.frec"
    link.symlink_to("missing.frec")
    for write in (
        lambda: fr.Writer(link, {"x": "int64"}, "w"),
        lambda: pack_with(source, link, mode="overwrite"),
        lambda: fr.files.merge([tmp_path / "a.frec"], link, overwrite=True),
    ):
        with pytest.raises(FileNotFoundError, match=r"the link leads to a file that does not exist: .*link\.frec"):
            write()
    assert link.is_symlink()


@pytest.mark.parametrize("command", ["merge", "lost"])
def test_other_commands_leave_a_device_too(source: Path, tmp_path: Path, command: str) -> None:
    pack_with(source, tmp_path / "a.frec")
    node = irregular(tmp_path / "node", "device")
    before = os.lstat(node)
    if command == "merge":
        message = failed("merge", tmp_path / "a.frec", "--out", node, "--overwrite")
    else:
        message = failed("repair", tmp_path / "a.frec", tmp_path / "b.frec", "--lost", node, "--overwrite")
    assert re.search(r"node: is not a regular file.*\[FR744\]$", message.strip())
    assert os.path.samestat(os.lstat(node), before)


@pytest.mark.parametrize(
    "metadata", [{"skipped": 5}, {"skipped": "abc"}, {"packs": {"a": 1}}, {"packs": None}], ids=str
)
def test_appending_to_a_file_with_foreign_metadata_is_an_error_with_the_way_out(
    source: Path, tmp_path: Path, metadata: dict[str, object]
) -> None:
    out = tmp_path / "out.frec"
    schema = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string()})
    with fr.Writer(out, schema, metadata=metadata):
        pass
    (name,) = metadata
    with pytest.raises(fr.FastRecordError, match=rf"out\.frec: metadata '{name}' is not the list .*\[FR733\]"):
        pack_with(source, out, mode="append")
    fr.files.set_metadata(out, **{name: None})
    assert pack_with(source, out, mode="append").records == 2
