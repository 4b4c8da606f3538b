"""Packing pairs of images into existing files, into shards, and after a kill or an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.pack.images import PackProgress, pack_pairs
from tests.support.packing import is_complete, metadata
from tests.support.pairing import SCALE, folders, keys, large, numbered_pairs, rows, small

# Existing files


def test_an_append_adds_pairs_and_keeps_the_scale_only_if_it_is_theirs_too(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.frec"
    pack_pairs(*pairs, out)
    more = folders(tmp_path / "more", {"m.png": small(7)}, {"m.png": large(7)})
    assert pack_pairs(*more, out, append=True).packed == 1
    assert keys(out)[-2:] == ["0004", "m"]
    assert metadata(out)["scale"] == SCALE
    with pytest.raises(fr.FastRecordError, match=r"'m' is in the file already.* name folders further up as LR_DIR"):
        pack_pairs(*more, out, append=True)
    other = folders(tmp_path / "other", {"o.png": small(8)}, {"o.png": large(8, scale=2)})
    with pytest.raises(fr.FastRecordError, match="its pairs have the scale 4, those to append the scale 2: `--any-"):
        pack_pairs(*other, out, append=True)
    pack_pairs(*other, out, append=True, any_scale=True)
    assert "scale" not in metadata(out)
    assert len(keys(out)) == 7
    with pytest.raises(FileNotFoundError, match=r"none\.frec"):
        pack_pairs(*other, tmp_path / "none.frec", append=True)


def test_an_append_of_pixels_needs_a_shape_that_the_file_holds(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    more = folders(tmp_path / "more", {"m.png": small(7, 14)}, {"m.png": large(7, 14)})
    pack_pairs(*pairs, tmp_path / "fixed.frec", decode=True)
    with pytest.raises(fr.SchemaError, match=r"\(10, 12, 3\).* this input gives lr \(array\(uint8, \(10, 14, 3\)\)\)"):
        pack_pairs(*more, tmp_path / "fixed.frec", append=True, decode=True)
    both = folders(
        tmp_path / "both", {"a.png": small(1), "b.png": small(2, 13)}, {"a.png": large(1), "b.png": large(2, 13)}
    )
    pack_pairs(*both, tmp_path / "open.frec", decode=True)
    pack_pairs(*more, tmp_path / "open.frec", append=True, decode=True)
    assert rows(tmp_path / "open.frec")[2]["hr"].shape == (40, 56, 3)
    assert pack_pairs(*more, tmp_path / "open.frec", resume=True, decode=True).packed == 0
    with pytest.raises(fr.SchemaError, match=r"lr \(image\)"):
        pack_pairs(*more, tmp_path / "open.frec", append=True)


def test_a_pack_is_not_resumed_with_other_settings_or_another_input(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_pairs(*pairs, out)
    assert pack_pairs(*pairs, out, resume=True).packed == 0
    (pairs[0] / "0003x4.png").unlink()
    (pairs[1] / "0003.png").unlink()
    with pytest.raises(
        fr.FastRecordError, match="packed from another input: record 3 is '0003', where the input has '0004'"
    ):
        pack_pairs(*pairs, out, resume=True)


# Shards, kills, Ctrl-C


def test_shards_hold_all_pairs_in_order_and_stay_below_the_size(tmp_path: Path) -> None:
    pairs = numbered_pairs(tmp_path, 60)
    whole = pack_pairs(*pairs, tmp_path / "whole.frec", decode=True)
    split = pack_pairs(*pairs, tmp_path / "split.frec", shards=3, decode=True)
    assert [os.path.basename(path) for path in split.paths] == [f"split-{i:05d}-of-00003.frec" for i in range(3)]
    assert [key for path in split.paths for key in keys(Path(path))] == keys(tmp_path / "whole.frec")
    limit = (64 << 10) + whole.bytes // 3
    sized = pack_pairs(*pairs, tmp_path / "sized.frec", shard_size=limit, decode=True)
    assert len(sized.paths) > 1
    assert all(os.path.getsize(path) <= limit for path in sized.paths)
    assert all(metadata(Path(path))["scale"] == SCALE for path in sized.paths)
    assert [key for path in sized.paths for key in keys(Path(path))] == keys(tmp_path / "whole.frec")


CHILD = """
import os, signal, sys
from fastrecord.pack.images import pack_pairs

lr, hr, out = sys.argv[1:]

def end(progress):
    if progress.files >= 10 and progress.stage == "pack":
        os.kill(os.getpid(), signal.SIGKILL)

pack_pairs(lr, hr, out, commit_bytes=1, decode=True, progress=end)
"""


def test_a_pack_continues_after_a_kill(tmp_path: Path) -> None:
    pairs = numbered_pairs(tmp_path, 60)
    pack_pairs(*pairs, tmp_path / "undisturbed.frec", decode=True)
    out = tmp_path / "out.frec"
    child = subprocess.run([sys.executable, "-c", CHILD, *map(str, (*pairs, out))], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert not is_complete(out)
    before = len(keys(out))
    assert 0 < before < 60
    with pytest.raises(fr.FastRecordError, match="not complete: `--resume` finishes that one first"):
        pack_pairs(*pairs, out, append=True, decode=True)
    summary = pack_pairs(*pairs, out, resume=True, decode=True)
    assert (summary.packed, summary.records) == (60 - before, 60)
    assert is_complete(out)
    assert metadata(out) == metadata(tmp_path / "undisturbed.frec")
    for row, expected in zip(rows(out), rows(tmp_path / "undisturbed.frec"), strict=True):
        assert row["key"] == expected["key"]
        assert np.array_equal(row["lr"], expected["lr"])
        assert np.array_equal(row["hr"], expected["hr"])


def test_progress_tells_of_sizes_first_and_then_of_pairs(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[PackProgress] = []
    pack_pairs(*pairs, tmp_path / "out.frec", progress=seen.append)
    assert [state.stage for state in seen] == sorted((state.stage for state in seen), reverse=True)
    assert {state.stage for state in seen} == {"sizes", "pack"}
    assert (seen[-1].files, seen[-1].total) == (5, 5)
    assert all(a.files <= b.files for a, b in pairwise(seen) if a.stage == b.stage)
