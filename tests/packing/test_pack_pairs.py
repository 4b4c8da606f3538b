"""Packing pairs of images: matching two folders, scales, invalid pairs, and the command."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import fastrecord as fr
from fastrecord.packing.summary import PackSummary
from tests.support.commands import failed, good
from tests.support.packing import is_complete, metadata, pack_with
from tests.support.pairing import SCALE, folders, keys, large, numbered_pairs, rows, small

# Matching


def test_files_are_stored_byte_for_byte_with_the_larger_ones_name(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    summary = pack_with(pairs, out, format="pairs")
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
    pack_with([lr, hr], tmp_path / "out.frec", format="pairs")
    assert keys(tmp_path / "out.frec") == [key]


@pytest.mark.parametrize(
    ("low", "high", "packed", "skipped"),
    [
        # The same name is preferred to one with a suffix.
        (["a.png", "ax4.png"], ["a.png"], "a", [("ax4", "no file of that name in hr")]),
        (
            ["ax2.png", "ax4.png", "b.png", "c.png"],
            ["a.png", "b.png", "b.jpg", "c.png"],
            "c",
            [
                ("a", "several files of lr match: 'ax2.png', 'ax4.png'"),
                ("b", "several files of hr match: 'b.jpg', 'b.png'"),
            ],
        ),
    ],
)
def test_a_file_without_exactly_one_partner_is_refused_or_left_out(
    tmp_path: Path, low: list[str], high: list[str], packed: str, skipped: list[tuple[str, str]]
) -> None:
    out = tmp_path / "out.frec"
    lr, hr = folders(tmp_path, {name: small(i) for i, name in enumerate(low)}, {name: large(0) for name in high})
    with pytest.raises(fr.FastRecordError, match="names have no partner: "):
        pack_with([lr, hr], out, format="pairs")
    assert pack_with([lr, hr], out, format="pairs", bad_files="skip").skipped == skipped
    assert rows(out) == [{"key": packed, "lr": small(low.index(f"{packed}.png")), "hr": large(0)}]


def test_files_without_a_partner_are_counted_and_some_are_named(tmp_path: Path) -> None:
    low = {f"{i:02d}.png": small(i) for i in range(9)}
    lr, hr = folders(tmp_path, low, {"00.png": large(0), "zz.png": large(1), "zy.png": large(2)})
    message = (
        "10 of 11 names have no partner: no file of that name in lr: 'zy', 'zz'; no file of that name in hr: "
        "'01', '02', '03', '04', '05' and 3 more: add what is missing, or leave these out with `--bad-files skip`"
    )
    with pytest.raises(fr.FastRecordError, match=re.escape(message)):
        pack_with([lr, hr], tmp_path / "out.frec", format="pairs")
    assert not (tmp_path / "out.frec").exists()


def test_folders_without_any_pair_are_refused_whatever_is_skipped(tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": small(0)}, {"b.png": large(0), "c.png": large(1)})
    with pytest.raises(fr.FastRecordError, match=r"none of the 1 files in .*lr has a partner among the 2 in .*hr"):
        pack_with([lr, hr], tmp_path / "out.frec", format="pairs", bad_files="skip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(fr.FastRecordError, match="none of the 0 files"):
        pack_with([tmp_path / "empty", hr], tmp_path / "out.frec", format="pairs")
    with pytest.raises(fr.FastRecordError, match="are one folder"):
        pack_with([hr, tmp_path / "lr" / ".." / "hr"], tmp_path / "out.frec", format="pairs")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pack_with([tmp_path / "nowhere", hr], tmp_path / "out.frec", format="pairs")


def test_a_file_inside_of_its_folders_is_refused(pairs: tuple[Path, Path]) -> None:
    for folder in pairs:
        with pytest.raises(fr.FastRecordError, match="which it is made from: choose a path outside"):
            pack_with(pairs, folder / "out.frec", format="pairs")


# Scales


def test_a_pair_of_another_scale_than_most_is_refused_by_name(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[1] / "0003.png").write_bytes(large(3, scale=2))
    message = r"lr/0003x4.png and .*hr/0003.png: hr is 20 x 24, which is not 4 times lr, 10 x 12: any_scale"
    with pytest.raises(fr.FastRecordError, match=message):
        pack_with(pairs, tmp_path / "out.frec", format="pairs")
    summary = pack_with(pairs, tmp_path / "out.frec", format="pairs", bad_files="skip")
    assert keys(tmp_path / "out.frec") == ["0000", "0001", "0002", "0004"]
    assert summary.skipped == [("0003", "hr is 20 x 24, which is not 4 times lr, 10 x 12")]
    assert metadata(tmp_path / "out.frec")["scale"] == SCALE


def test_pairs_of_any_scale_may_be_taken(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[1] / "0003.png").write_bytes(large(3, width=13))
    summary = pack_with(pairs, tmp_path / "out.frec", format="pairs", any_scale="yes", decode="yes")
    assert (summary.records, summary.scale) == (5, None)
    assert "scale" not in metadata(tmp_path / "out.frec")
    pack_with(numbered_pairs(tmp_path / "same", 2), tmp_path / "same.frec", format="pairs", any_scale="yes")
    assert metadata(tmp_path / "same.frec")["scale"] == SCALE


def test_folders_in_the_wrong_order_are_seen(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    for path in pairs[0].iterdir():
        path.rename(path.with_name(path.name.replace("x4", "")))
    with pytest.raises(fr.FastRecordError, match="no whole number of times lr, 40 x 48: are the folders in the"):
        pack_with([pairs[1], pairs[0]], tmp_path / "out.frec", format="pairs")


# Invalid pairs


def test_a_bad_file_is_named_and_may_be_left_out(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    (pairs[0] / "0001x4.png").write_bytes(b"")
    (pairs[1] / "0002.png").write_bytes(b"no image")
    (pairs[1] / "0004.png").unlink()
    (pairs[1] / "0004.png").symlink_to("gone.png")
    (pairs[0] / "0003x4.png").unlink()
    os.mkfifo(pairs[0] / "0003x4.png")
    out = tmp_path / "out.frec"
    message = (
        r"lr/0001x4\.png and .*hr/0001\.png: lr: not an image: it is empty: repair or remove it, or .*--bad-files skip"
    )
    with pytest.raises(fr.FastRecordError, match=message):
        pack_with(pairs, out, format="pairs")
    assert not out.exists()
    expected = [
        ("0001", "lr: not an image: it is empty"),
        ("0002", "hr: not an image of a known type, or its header is damaged"),
        ("0003", "lr: not a regular file"),
        ("0004", "hr: broken link"),
    ]
    assert pack_with(pairs, out, format="pairs", bad_files="skip").skipped == expected
    assert keys(out) == ["0000"]
    assert metadata(out)["skipped"] == [{"key": key, "reason": reason} for key, reason in expected]
    again = pack_with(pairs, out, format="pairs", bad_files="skip", mode="resume")
    assert (again.packed, again.skipped) == (0, expected)


def test_a_damaged_image_is_seen_where_it_is_decoded(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    path = pairs[1] / "0002.png"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(fr.FastRecordError, match=r"hr/0002\.png: hr: .*remove it"):
        pack_with(pairs, tmp_path / "out.frec", format="pairs", decode="yes")
    summary = pack_with(pairs, tmp_path / "out.frec", format="pairs", decode="yes", bad_files="skip")
    assert [key for key, _ in summary.skipped] == ["0002"]
    assert keys(tmp_path / "out.frec") == ["0000", "0001", "0003", "0004"]


def test_folders_of_nothing_but_bad_pairs_leave_no_file(tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": b"?"}, {"a.png": large(0)})
    with pytest.raises(fr.FastRecordError, match="none of its 1 inputs is good; the first, a: lr: not an"):
        pack_with([lr, hr], tmp_path / "out.frec", format="pairs", bad_files="skip")
    assert not (tmp_path / "out.frec").exists()


# The command


def test_the_command_packs_pairs(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    text = good("pack", "--format", "pairs", *pairs, out, "--set", "decode=yes")
    assert text.startswith(f"{out}: 5 records of scale 4, ")
    assert (
        good("pack", "-o", out, "--format", "pairs", *pairs, "--set", "decode=yes", "--resume")
        == f"{out}: complete already, 5 records of scale 4\n"
    )
    (pairs[0] / "extra.png").write_bytes(small(9))
    text = good("pack", "--format", "pairs", *pairs, out, "--overwrite", "--bad-files", "skip")
    assert text.splitlines()[1:] == [
        "skipped 1 bad records:",
        "  extra: no file of that name in hr",
    ]
    assert "error: " in failed("pack", "--format", "pairs", *pairs, tmp_path / "no.frec")


def test_the_command_prints_json(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    summary = json.loads(good("pack", "--format", "pairs", *pairs, tmp_path / "out.frec", "--json"))
    assert set(summary) == set(PackSummary.__dataclass_fields__)
    assert (summary["records"], summary["scale"], summary["classes"]) == (5, 4, None)


def test_pairs_are_not_recoded(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changed in one field, and these records have 2"):
        pack_with(pairs, tmp_path / "out.frec", format="pairs", raw=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "pairs", "a", "b"], "pairs are in two folders"),
        (["--format", "pairs", "a", "b", "c", "--set", "list=x.csv"], "has no setting 'list'"),
        (["--format", "pairs", "a", "b", "c", "--set", "sixteen_bit=clip"], "belongs to decode=yes"),
        (["a", "b", "--set", "decode=yes"], "has no setting 'decode'"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str], message: str) -> None:
    assert message in failed("pack", *arguments, status=2)
