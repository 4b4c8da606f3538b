"""Packing pairs of images into existing files, into shards, and after a kill or an interrupt."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

import fastrecord as fr
from fastrecord.packing.summary import PackProgress
from tests.support.packing import metadata, pack_with
from tests.support.pairing import SCALE, folders, keys, large, numbered_pairs, rows, small

# Existing files


def test_an_append_adds_pairs_and_keeps_the_scale_only_if_it_is_theirs_too(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.frec"
    pack_with(pairs, out, format="pairs")
    more = folders(tmp_path / "more", {"m.png": small(7)}, {"m.png": large(7)})
    assert pack_with(more, out, format="pairs", mode="append").packed == 1
    assert keys(out)[-2:] == ["0004", "m"]
    assert metadata(out)["scale"] == SCALE
    with pytest.raises(fr.FastRecordError, match=r"'m' is in the file already.* name a folder further up"):
        pack_with(more, out, format="pairs", mode="append")
    other = folders(tmp_path / "other", {"o.png": small(8)}, {"o.png": large(8, scale=2)})
    with pytest.raises(
        fr.FastRecordError, match="the pairs that are stored have the scale 4, those to append the scale 2: any_"
    ):
        pack_with(other, out, format="pairs", mode="append")
    pack_with(other, out, format="pairs", mode="append", any_scale="yes")
    assert "scale" not in metadata(out)
    assert len(keys(out)) == 7
    with pytest.raises(FileNotFoundError, match=r"none\.frec"):
        pack_with(other, tmp_path / "none.frec", format="pairs", mode="append")


def test_an_append_of_pixels_needs_a_shape_that_the_file_holds(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    more = folders(tmp_path / "more", {"m.png": small(7, 14)}, {"m.png": large(7, 14)})
    pack_with(pairs, tmp_path / "fixed.frec", format="pairs", decode="yes")
    with pytest.raises(
        fr.errors.SchemaError, match=r"\(10, 12, 3\).* this input gives lr \(array\(uint8, \(10, 14, 3\)\)\)"
    ):
        pack_with(more, tmp_path / "fixed.frec", format="pairs", mode="append", decode="yes")
    both = folders(
        tmp_path / "both", {"a.png": small(1), "b.png": small(2, 13)}, {"a.png": large(1), "b.png": large(2, 13)}
    )
    pack_with(both, tmp_path / "open.frec", format="pairs", decode="yes")
    pack_with(more, tmp_path / "open.frec", format="pairs", mode="append", decode="yes")
    assert rows(tmp_path / "open.frec")[2]["hr"].shape == (40, 56, 3)
    assert pack_with(more, tmp_path / "open.frec", format="pairs", mode="resume", decode="yes").packed == 0
    with pytest.raises(fr.errors.SchemaError, match=r"lr \(image\)"):
        pack_with(more, tmp_path / "open.frec", format="pairs", mode="append")


# Shards, kills, Ctrl-C


def test_shards_hold_all_pairs_in_order_and_stay_below_the_size(tmp_path: Path) -> None:
    pairs = numbered_pairs(tmp_path, 60)
    whole = pack_with(pairs, tmp_path / "whole.frec", format="pairs", decode="yes")
    split = pack_with(pairs, tmp_path / "split.frec", format="pairs", shards=3, decode="yes")
    assert [os.path.basename(path) for path in split.paths] == [f"split-{i:05d}-of-00003.frec" for i in range(3)]
    assert [key for path in split.paths for key in keys(Path(path))] == keys(tmp_path / "whole.frec")
    limit = (64 << 10) + whole.bytes // 3
    sized = pack_with(pairs, tmp_path / "sized.frec", format="pairs", shard_size=limit, decode="yes")
    assert len(sized.paths) > 1
    assert all(os.path.getsize(path) <= limit for path in sized.paths)
    assert all(metadata(Path(path))["scale"] == SCALE for path in sized.paths)
    assert [key for path in sized.paths for key in keys(Path(path))] == keys(tmp_path / "whole.frec")


def test_progress_tells_of_sizes_first_and_then_of_pairs(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[PackProgress] = []
    pack_with(pairs, tmp_path / "out.frec", format="pairs", progress=seen.append)
    assert [state.stage for state in seen] == sorted((state.stage for state in seen), reverse=True)
    assert {state.stage for state in seen} == {"sizes", "pack"}
    assert (seen[-1].files, seen[-1].total) == (5, 5)
    assert all(a.files <= b.files for a, b in pairwise(seen) if a.stage == b.stage)
