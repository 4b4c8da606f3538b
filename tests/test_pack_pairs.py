"""Packing pairs of images: matching two folders, sizes and scales, files and pixels, and going on after a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.pack import PackProgress, PackSummary, pack_pairs
from tests.commands import failed, good
from tests.packing import is_complete, metadata, write
from tests.pictures import jpeg, picture, pixels, png, reference, save, wide

SCALE = 4


def small(seed: int, width: int = 12, height: int = 10, **options: Any) -> bytes:
    return save(picture(width, height, seed=seed, **options), "PNG")


def large(seed: int, width: int = 12, height: int = 10, scale: int = SCALE, **options: Any) -> bytes:
    return save(picture(scale * width, scale * height, seed=seed, **options), "PNG")


def folders(root: Path, low: Mapping[str, bytes], high: Mapping[str, bytes]) -> tuple[Path, Path]:
    for name in ("lr", "hr"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return write(root / "lr", low), write(root / "hr", high)


def numbered(root: Path, count: int, suffix: str = "x4") -> tuple[Path, Path]:
    """Make pairs as data sets of super-resolution come: 0001x4.png and 0001.png."""
    return folders(
        root,
        {f"{i:04d}{suffix}.png": small(i) for i in range(count)},
        {f"{i:04d}.png": large(i) for i in range(count)},
    )


def rows(path: Path) -> list[dict[str, Any]]:
    with fr.Reader(path) as reader:
        return [
            {
                "key": row["key"],
                **{n: row[n].copy() if isinstance(row[n], np.ndarray) else bytes(row[n]) for n in ("lr", "hr")},
            }
            for row in (reader[i] for i in range(len(reader)))
        ]


def keys(path: Path) -> list[str]:
    return [row["key"] for row in rows(path)]


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    """Five pairs of 12 x 10 and 48 x 40 pixels."""
    return numbered(tmp_path, 5)


# What belongs together


def test_files_are_stored_byte_for_byte_with_the_larger_ones_name(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    summary = pack_pairs(*pairs, out)
    assert (summary.records, summary.scale, summary.skipped, summary.paths) == (5, SCALE, [], [str(out)])
    assert rows(out) == [{"key": f"{i:04d}", "lr": small(i), "hr": large(i)} for i in range(5)]
    with fr.Reader(out) as reader:
        assert reader.schema == fr.Schema({"lr": fr.image(), "hr": fr.image(), "key": fr.string()})
        assert reader.column("hr.width").tolist() == [48] * 5
        assert reader.metadata["scale"] == SCALE
    assert is_complete(out)


@pytest.mark.parametrize(
    ("low", "high", "key"),
    [
        ("a.png", "a.png", "a"),
        ("a.jpg", "a.png", "a"),
        ("b/c.d/a.png", "b/c.d/a.png", "b/c.d/a"),
        ("b/ax2.png", "b/a.png", "b/a"),
        ("ax3.png", "a.png", "a"),
        ("a_x4.png", "a.png", "a"),
        ("a-X8.png", "a.png", "a"),
        ("ax4.png", "ax4.png", "ax4"),
        ("ünï x4.png", "ünï .png", "ünï "),
    ],
)
def test_names_match_but_for_the_ending_and_a_suffix(tmp_path: Path, low: str, high: str, key: str) -> None:
    lr, hr = folders(tmp_path, {low: small(0)}, {high: large(0)})
    pack_pairs(lr, hr, tmp_path / "out.frec")
    assert keys(tmp_path / "out.frec") == [key]


def test_the_same_name_is_preferred_to_one_with_a_suffix(tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": small(0), "ax4.png": small(1)}, {"a.png": large(0)})
    with pytest.raises(fr.FastRecordError, match="1 of 2 names have no partner: no file of that name in hr: 'ax4'"):
        pack_pairs(lr, hr, tmp_path / "out.frec")
    summary = pack_pairs(lr, hr, tmp_path / "out.frec", bad_files="skip")
    assert summary.skipped == [("ax4", "no file of that name in hr")]
    assert rows(tmp_path / "out.frec") == [{"key": "a", "lr": small(0), "hr": large(0)}]


def test_files_that_could_both_be_meant_are_no_partners(tmp_path: Path) -> None:
    low = {"ax2.png": small(0), "ax4.png": small(1), "b.png": small(2), "c.png": small(3)}
    lr, hr = folders(tmp_path, low, {"a.png": large(0), "b.png": large(2), "b.jpg": jpeg(48, 40), "c.png": large(3)})
    summary = pack_pairs(lr, hr, tmp_path / "out.frec", bad_files="skip")
    assert keys(tmp_path / "out.frec") == ["c"]
    assert summary.skipped == [
        ("a", "several files of lr may be meant: 'ax2.png', 'ax4.png'"),
        ("b", "several files of hr may be meant: 'b.jpg', 'b.png'"),
    ]


def test_files_without_a_partner_are_counted_and_some_are_named(tmp_path: Path) -> None:
    low = {f"{i:02d}.png": small(i) for i in range(9)}
    lr, hr = folders(tmp_path, low, {"00.png": large(0), "zz.png": large(1), "zy.png": large(2)})
    message = (
        "10 of 11 names have no partner: no file of that name in lr: 'zy', 'zz'; no file of that name in hr: "
        "'01', '02', '03', '04', '05' and 3 more: add what is missing, or leave these out with `--bad-files skip`"
    )
    with pytest.raises(fr.FastRecordError, match=re.escape(message)):
        pack_pairs(lr, hr, tmp_path / "out.frec")
    assert not (tmp_path / "out.frec").exists()


def test_folders_without_any_pair_are_refused_whatever_is_skipped(tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": small(0)}, {"b.png": large(0), "c.png": large(1)})
    with pytest.raises(fr.FastRecordError, match=r"none of the 1 files in .*lr has a partner among the 2 in .*hr"):
        pack_pairs(lr, hr, tmp_path / "out.frec", bad_files="skip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(fr.FastRecordError, match="none of the 0 files"):
        pack_pairs(tmp_path / "empty", hr, tmp_path / "out.frec")
    with pytest.raises(fr.FastRecordError, match="are one folder"):
        pack_pairs(hr, tmp_path / "lr" / ".." / "hr", tmp_path / "out.frec")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pack_pairs(tmp_path / "nowhere", hr, tmp_path / "out.frec")


def test_a_file_inside_of_its_folders_is_refused(pairs: tuple[Path, Path]) -> None:
    for folder in pairs:
        with pytest.raises(fr.FastRecordError, match="of which it is made: choose a place outside"):
            pack_pairs(*pairs, folder / "out.frec")


# Scales


def test_a_pair_of_another_scale_than_most_is_refused_by_name(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[1] / "0003.png").write_bytes(large(3, scale=2))
    message = r"lr/0003x4.png and .*hr/0003.png: hr is 20 x 24, which is not 4 times lr, 10 x 12: `--any-scale`"
    with pytest.raises(fr.FastRecordError, match=message):
        pack_pairs(*pairs, tmp_path / "out.frec")
    summary = pack_pairs(*pairs, tmp_path / "out.frec", bad_files="skip")
    assert keys(tmp_path / "out.frec") == ["0000", "0001", "0002", "0004"]
    assert summary.skipped == [("0003", "hr is 20 x 24, which is not 4 times lr, 10 x 12")]
    assert metadata(tmp_path / "out.frec")["scale"] == SCALE


def test_pairs_of_any_scale_may_be_taken(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[1] / "0003.png").write_bytes(large(3, width=13))
    summary = pack_pairs(*pairs, tmp_path / "out.frec", any_scale=True, decode=True)
    assert (summary.records, summary.scale) == (5, None)
    assert "scale" not in metadata(tmp_path / "out.frec")
    pack_pairs(*numbered(tmp_path / "same", 2), tmp_path / "same.frec", any_scale=True)
    assert metadata(tmp_path / "same.frec")["scale"] == SCALE


def test_folders_in_the_wrong_order_are_seen(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    for path in pairs[0].iterdir():
        path.rename(path.with_name(path.name.replace("x4", "")))
    with pytest.raises(fr.FastRecordError, match="no whole number of times lr, 40 x 48: are LR_DIR and HR_DIR in the"):
        pack_pairs(pairs[1], pairs[0], tmp_path / "out.frec")


# Pixels


def test_pixels_of_one_size_have_a_fixed_shape(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_pairs(*pairs, out, decode=True)
    with fr.Reader(out) as reader:
        assert repr(reader.schema["lr"]) == 'array("uint8", (10, 12, 3))'
        assert repr(reader.schema["hr"]) == 'array("uint8", (40, 48, 3))'
        batch = reader.read_batch([4, 0])
        assert np.array_equal(batch["lr"], [reference(small(4)), reference(small(0))])
        assert np.array_equal(batch["hr"], [reference(large(4)), reference(large(0))])


def test_pixels_of_many_sizes_have_a_shape_that_is_open(tmp_path: Path) -> None:
    sizes = [(12, 10), (9, 14), (12, 10)]
    lr, hr = folders(
        tmp_path,
        {f"{i}.png": small(i, *size) for i, size in enumerate(sizes)},
        {f"{i}.png": large(i, *size) for i, size in enumerate(sizes)},
    )
    pack_pairs(lr, hr, tmp_path / "out.frec", decode=True)
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert repr(reader.schema["hr"]) == 'array("uint8", (None, None, 3))'
        for i, size in enumerate(sizes):
            assert np.array_equal(reader[i]["lr"], reference(small(i, *size)))
            assert np.array_equal(reader[i]["hr"], reference(large(i, *size)))


@pytest.mark.parametrize("compression", ["lz4", "zstd", "auto"])
def test_compressed_pixels_are_the_same_and_a_pack_of_them_is_resumed(
    pairs: tuple[Path, Path], tmp_path: Path, compression: str
) -> None:
    out = tmp_path / "out.frec"
    flat = {f"f{i}": save(Image.new("RGB", (12, 10), (i, 2, 3)), "PNG") for i in range(3)}
    folders(
        tmp_path,
        {f"{name}.png": data for name, data in flat.items()},
        {f"f{i}.png": save(Image.new("RGB", (48, 40), (i, 2, 3)), "PNG") for i in range(3)},
    )
    pack_pairs(*pairs, tmp_path / "plain.frec", decode=True)
    pack_pairs(*pairs, out, decode=True, compression=compression)
    for row, expected in zip(rows(out), rows(tmp_path / "plain.frec"), strict=True):
        assert row["key"] == expected["key"]
        assert np.array_equal(row["lr"], expected["lr"])
        assert np.array_equal(row["hr"], expected["hr"])
    assert pack_pairs(*pairs, out, decode=True, compression=compression, mode="resume").packed == 0
    with pytest.raises(
        fr.FastRecordError, match=f"with other settings: --pairs --decode --compression {compression}, "
    ):
        pack_pairs(*pairs, out, decode=True, mode="resume")
    if compression != "auto":
        with fr.Reader(out) as reader:
            assert repr(reader.schema["hr"].compression).startswith(f'Compression("{compression}"')
            assert reader.lengths("hr").tolist() == [48 * 40 * 3] * 8
        assert out.stat().st_size < (tmp_path / "plain.frec").stat().st_size


@pytest.mark.parametrize(
    "data",
    [
        save(picture(16, 12, "L"), "PNG"),
        save(picture(16, 12, "RGBA"), "PNG"),
        save(picture(16, 12, "P"), "PNG"),
        save(picture(16, 12, "LA"), "PNG"),
        jpeg(16, 12),
        jpeg(16, 12, "CMYK"),
    ],
)
def test_pixels_are_those_of_the_decoder_whatever_the_kind_of_image(data: bytes, tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": data}, {"a.png": save(picture(32, 24), "PNG")})
    pack_pairs(lr, hr, tmp_path / "out.frec", decode=True)
    (row,) = rows(tmp_path / "out.frec")
    assert np.array_equal(row["lr"], reference(data))
    assert np.array_equal(row["lr"], fr.decode_image(data))


def test_pixels_of_16_bits_become_8(tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": png(wide(3))}, {"a.png": png(wide(3))})
    pack_pairs(lr, hr, tmp_path / "out.frec", decode=True)
    (row,) = rows(tmp_path / "out.frec")
    assert row["lr"].dtype == np.uint8
    assert np.array_equal(row["lr"], fr.decode_image(png(wide(3))))


# What is no pair of images


def test_a_bad_file_is_named_and_may_be_left_out(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[0] / "0001x4.png").write_bytes(b"")
    (pairs[1] / "0002.png").write_bytes(b"no image")
    (pairs[1] / "0004.png").unlink()
    (pairs[1] / "0004.png").symlink_to("gone.png")
    out = tmp_path / "out.frec"
    message = (
        r"lr/0001x4\.png and .*hr/0001\.png: lr: not an image: it is empty: remove the pair, or .*--bad-files skip"
    )
    with pytest.raises(fr.FastRecordError, match=message):
        pack_pairs(*pairs, out)
    assert not out.exists()
    expected = [
        ("0001", "lr: not an image: it is empty"),
        ("0002", "hr: not an image of a known type, or its header is damaged"),
        ("0004", "hr: broken link"),
    ]
    assert pack_pairs(*pairs, out, bad_files="skip").skipped == expected
    assert keys(out) == ["0000", "0003"]
    assert metadata(out)["skipped"] == [{"key": key, "reason": reason} for key, reason in expected]
    again = pack_pairs(*pairs, out, bad_files="skip", mode="resume")
    assert (again.packed, again.skipped) == (0, expected)


def test_a_damaged_image_is_seen_where_it_is_decoded(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    path = pairs[1] / "0002.png"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(fr.FastRecordError, match=r"hr/0002\.png: hr: .*remove the pair"):
        pack_pairs(*pairs, tmp_path / "out.frec", decode=True)
    summary = pack_pairs(*pairs, tmp_path / "out.frec", decode=True, bad_files="skip")
    assert [key for key, _ in summary.skipped] == ["0002"]
    assert keys(tmp_path / "out.frec") == ["0000", "0001", "0003", "0004"]


def test_folders_of_nothing_but_bad_pairs_leave_no_file(tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": b"?"}, {"a.png": large(0)})
    with pytest.raises(fr.FastRecordError, match="none of its 1 pairs is one of two images; the first, a: lr: not an"):
        pack_pairs(lr, hr, tmp_path / "out.frec", bad_files="skip")
    assert not (tmp_path / "out.frec").exists()


def test_a_pipe_in_a_folder_does_not_hang_the_pack(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[1] / "0002.png").unlink()
    os.mkfifo(pairs[1] / "0002.png")
    assert pack_pairs(*pairs, tmp_path / "out.frec", bad_files="skip").skipped == [("0002", "hr: not a regular file")]


# Files that exist


def test_an_append_adds_pairs_and_keeps_the_scale_only_if_it_is_theirs_too(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.frec"
    pack_pairs(*pairs, out)
    more = folders(tmp_path / "more", {"m.png": small(7)}, {"m.png": large(7)})
    assert pack_pairs(*more, out, mode="a").packed == 1
    assert keys(out)[-2:] == ["0004", "m"]
    assert metadata(out)["scale"] == SCALE
    with pytest.raises(fr.FastRecordError, match=r"'m' is in the file already.* name folders further up as LR_DIR"):
        pack_pairs(*more, out, mode="a")
    other = folders(tmp_path / "other", {"o.png": small(8)}, {"o.png": large(8, scale=2)})
    with pytest.raises(fr.FastRecordError, match="its pairs have the scale 4, those to append the scale 2: `--any-"):
        pack_pairs(*other, out, mode="a")
    pack_pairs(*other, out, mode="a", any_scale=True)
    assert "scale" not in metadata(out)
    assert len(keys(out)) == 7
    with pytest.raises(FileNotFoundError, match=r"none\.frec"):
        pack_pairs(*other, tmp_path / "none.frec", mode="a")


def test_an_append_of_pixels_needs_a_shape_that_the_file_holds(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    more = folders(tmp_path / "more", {"m.png": small(7, 14)}, {"m.png": large(7, 14)})
    pack_pairs(*pairs, tmp_path / "fixed.frec", decode=True)
    with pytest.raises(fr.SchemaError, match=r"\(10, 12, 3\).* this input gives lr \(array\(uint8, \(10, 14, 3\)\)\)"):
        pack_pairs(*more, tmp_path / "fixed.frec", mode="a", decode=True)
    both = folders(
        tmp_path / "both", {"a.png": small(1), "b.png": small(2, 13)}, {"a.png": large(1), "b.png": large(2, 13)}
    )
    pack_pairs(*both, tmp_path / "open.frec", decode=True)
    pack_pairs(*more, tmp_path / "open.frec", mode="a", decode=True)
    assert rows(tmp_path / "open.frec")[2]["hr"].shape == (40, 56, 3)
    assert pack_pairs(*more, tmp_path / "open.frec", mode="resume", decode=True).packed == 0
    with pytest.raises(fr.SchemaError, match=r"lr \(image\)"):
        pack_pairs(*more, tmp_path / "open.frec", mode="a")


def test_an_existing_file_is_refused_or_replaced(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    out.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"out\.frec: exists already: choose --resume"):
        pack_pairs(*pairs, out)
    assert out.read_bytes() == b"precious"
    pack_pairs(*pairs, out, mode="w")
    assert len(keys(out)) == 5


def test_a_pack_is_not_resumed_with_other_settings_or_another_input(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_pairs(*pairs, out)
    assert pack_pairs(*pairs, out, mode="resume").packed == 0
    (pairs[0] / "0003x4.png").unlink()
    (pairs[1] / "0003.png").unlink()
    with pytest.raises(
        fr.FastRecordError, match="packed from another input: record 3 is '0003', where the input has '0004'"
    ):
        pack_pairs(*pairs, out, mode="resume")


# Shards, kills, Ctrl-C


@pytest.mark.parametrize("decode", [False, True])
def test_shards_hold_all_pairs_in_order_and_stay_below_the_size(tmp_path: Path, decode: bool) -> None:
    pairs = numbered(tmp_path, 60)
    whole = pack_pairs(*pairs, tmp_path / "whole.frec", decode=decode)
    split = pack_pairs(*pairs, tmp_path / "split.frec", shards=3, decode=decode)
    assert [os.path.basename(path) for path in split.paths] == [f"split-{i:05d}-of-00003.frec" for i in range(3)]
    assert [key for path in split.paths for key in keys(Path(path))] == keys(tmp_path / "whole.frec")
    limit = (64 << 10) + whole.bytes // 3
    sized = pack_pairs(*pairs, tmp_path / "sized.frec", shard_size=limit, decode=decode)
    assert len(sized.paths) > 1
    assert all(os.path.getsize(path) <= limit for path in sized.paths)
    assert all(metadata(Path(path))["scale"] == SCALE for path in sized.paths)
    assert [key for path in sized.paths for key in keys(Path(path))] == keys(tmp_path / "whole.frec")


CHILD = """
import os, signal, sys
from fastrecord.pack import pack_pairs

lr, hr, out, how, mode = sys.argv[1:]

def end(progress):
    if progress.files >= 10 and progress.stage == "pack":
        os.kill(os.getpid(), getattr(signal, how))

pack_pairs(lr, hr, out, mode=mode, commit_bytes=1, decode=True, progress=end)
"""


def ended(pairs: tuple[Path, Path], out: Path, how: str, mode: str = "x") -> subprocess.CompletedProcess[str]:
    arguments = [str(path) for path in (*pairs, out)]
    return subprocess.run(
        [sys.executable, "-c", CHILD, *arguments, how, mode], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_pack_goes_on_where_it_was_killed_or_interrupted(tmp_path: Path, how: str) -> None:
    pairs = numbered(tmp_path, 60)
    pack_pairs(*pairs, tmp_path / "undisturbed.frec", decode=True)
    out = tmp_path / "out.frec"
    child = ended(pairs, out, how)
    if how == "SIGKILL":
        assert child.returncode == -signal.SIGKILL
    else:
        assert "records are committed: `--resume` goes on from there" in child.stderr
    assert not is_complete(out)
    before = len(keys(out))
    assert 0 < before < 60
    with pytest.raises(fr.FastRecordError, match="not complete: `--resume` goes on with that one first"):
        pack_pairs(*pairs, out, mode="a", decode=True)
    summary = pack_pairs(*pairs, out, mode="resume", decode=True)
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


# The command


def test_the_command_packs_pairs(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    text = good("pack", "--pairs", *pairs, out, "--decode")
    assert text.startswith(f"{out}: 5 records of scale 4, ")
    assert (
        good("pack", out, "--pairs", *pairs, "--decode", "--resume")
        == f"{out}: complete already, 5 records of scale 4\n"
    )
    (pairs[0] / "extra.png").write_bytes(small(9))
    text = good("pack", "--pairs", *pairs, out, "--overwrite", "--bad-files", "skip")
    assert text.splitlines()[1:] == [
        "skipped 1 without a partner, or not two images:",
        "  extra: no file of that name in hr",
    ]
    assert "error: " in failed("pack", "--pairs", *pairs, tmp_path / "no.frec")


def test_the_command_prints_json(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    summary = json.loads(good("pack", "--pairs", *pairs, tmp_path / "out.frec", "--json"))
    assert set(summary) == set(PackSummary.__dataclass_fields__)
    assert (summary["records"], summary["scale"], summary["classes"]) == (5, 4, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pairs", "a", "b"], "Missing argument 'OUT'."),
        (["a"], "Missing argument 'OUT'."),
        ([], "Missing argument 'SRC'."),
        (["--pairs", "a", "b", "c", "d"], "Got unexpected extra argument (d): OUT is what is wanted here"),
        (["--pairs", "a", "b", "c", "--raw"], "--raw is not for --pairs: leave it out"),
        (["--pairs", "a", "b", "c", "--list", "x.csv"], "--list is not for --pairs: leave it out"),
        (["--pairs", "a", "b", "c", "--short-side", "9"], "--short-side is not for --pairs"),
        (
            ["--pairs", "a", "b", "c", "--compression", "lz4"],
            "images are compressed already: --compression is for --dec",
        ),
        (["--compression", "lz4", "a", "b"], "--compression is for --pairs"),
        (["--decode", "a", "b"], "--decode is for --pairs"),
        (["--any-scale", "a", "b"], "--any-scale is for --pairs"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str], message: str) -> None:
    assert message in failed("pack", *arguments, status=2)


def test_pixels_of_noise_survive(tmp_path: Path) -> None:
    low, high = pixels(12, 10, seed=1), pixels(36, 30, seed=2)
    lr, hr = folders(tmp_path, {"a.png": png(low)}, {"a.png": png(high)})
    assert pack_pairs(lr, hr, tmp_path / "out.frec", decode=True).scale == 3
    (row,) = rows(tmp_path / "out.frec")
    assert np.array_equal(row["lr"], low)
    assert np.array_equal(row["hr"], high)
