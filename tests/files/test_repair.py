"""Repairing: saves what it can, lists the rest, and leaves the damaged file unchanged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.support.commands import failed, flip, good, run
from tests.support.rewriting import metadata, rows, write_rows

CLASSES = ["cat", "dog"]


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A file with many commits."""
    path = tmp_path / "sound.frec"
    write_rows(path, 300, classes=CLASSES, largest=2_000, commit_bytes=30_000, made="by hand")
    return path


def damaged(sound: Path, *places: int, name: str = "bad.frec", length: int | None = None) -> Path:
    """Copy a file with some bytes changed, or truncated."""
    data = bytearray(sound.read_bytes())
    for at in places:
        data[at] ^= 0x10
    bad = sound.with_name(name)
    bad.write_bytes(data[:length])
    return bad


def payload(path: Path, record: int, field: str = "data") -> int:
    """Return the offset of a payload in its file."""
    with fr.Reader(path) as reader:
        value = reader[record][field]
        data = value.encode() if isinstance(value, str) else bytes(value)
    assert len(data) > 8
    content = path.read_bytes()
    assert content.count(data) == 1
    return content.index(data) + 4


def word(path: Path, at: int) -> int:
    return int.from_bytes(path.read_bytes()[at : at + 8], "little")


def footer(path: Path) -> int:
    return path.stat().st_size - 4096


def listed(path: str | os.PathLike[str] | None) -> list[dict[str, Any]]:
    assert path is not None
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_records_with_damaged_values_are_lost_and_the_others_saved_in_order(sound: Path, tmp_path: Path) -> None:
    bad = damaged(sound, payload(sound, 5), payload(sound, 77), payload(sound, 200, "key"))
    before, expected = bad.read_bytes(), rows(sound)
    out = tmp_path / "out.frec"
    summary = fr.files.repair(bad, out)
    assert (summary.records, summary.saved, summary.lost, summary.unknown) == (300, 297, 3, False)
    assert rows(out) == [row for i, row in enumerate(expected) if i not in (5, 77, 200)]
    assert bad.read_bytes() == before
    lost = listed(summary.lost_list)
    assert [(value["record"], value["field"], value["key"]) for value in lost] == [
        (5, "data", "sound/5"),
        (77, "data", "sound/77"),
        (200, "key", None),
    ]
    assert all("stored CRC" in value["why"] and "bad.frec" in value["why"] for value in lost)
    told = metadata(out)
    assert (told["classes"], told["made"]) == (CLASSES, "by hand")
    assert told["repairs"] == [
        {
            "lost": 3,
            "records": 300,
            "runs": [[5, 5], [77, 77], [200, 200]],
            "commit": summary.commit,
            "unknown": False,
            "fastrecord": fr.__version__,
        }
    ]
    assert sorted(os.listdir(tmp_path)) == ["bad.frec", "out.frec", "out.frec.lost.jsonl", "sound.frec"]


def test_the_command_line_says_what_is_lost_and_its_status_does(sound: Path, tmp_path: Path) -> None:
    bad = damaged(sound, payload(sound, 5))
    out, where = tmp_path / "out.frec", tmp_path / "lost.jsonl"
    result = run("repair", bad, out, "--lost", where)
    assert result.exit_code == 1
    assert "lost: record 5 (key sound/5): " in result.stderr
    assert f"{out}: 299 of 300 records saved, 1 lost, listed in {where}" in result.stdout
    good("verify", out)
    assert "exists already" in failed("repair", bad, out)
    result = run("repair", bad, out, "--lost", where, "--overwrite", "--json")
    summary = json.loads(result.stdout)
    assert (result.exit_code, summary["saved"], summary["values"][0]["record"]) == (1, 299, 5)
    assert "is the file to read from" in failed("repair", bad, bad, "--overwrite")
    assert "cannot be both" in failed("repair", bad, tmp_path / "new.frec", "--lost", tmp_path / "new.frec")


def test_a_good_file_needs_no_repair_even_with_a_torn_tail(sound: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    assert "good, nothing to repair, nothing was written" in good("repair", sound, out)
    with sound.open("ab") as file:
        file.write(b"torn" * 3_000)
    stdout = good("repair", sound, out)
    assert "12,000 bytes after the last commit, which the next writer cuts off" in stdout
    assert os.listdir(tmp_path) == ["sound.frec"]


def test_a_damaged_index_block_costs_its_records(sound: Path, tmp_path: Path) -> None:
    with fr.Writer(sound, None, "a") as writer:
        for i in range(3):
            writer.append({"data": b"new", "label": 0, "key": f"new/{i}"})
    directory, length = word(sound, footer(sound) + 56), word(sound, footer(sound) + 64)
    entries = [sound.read_bytes()[at : at + 64] for at in range(directory, directory + length, 64)]
    last = [entry for entry in entries if entry[0] == 2][-1]
    bad = damaged(sound, int.from_bytes(last[24:32], "little"))
    summary = fr.files.repair(bad, tmp_path / "out.frec")
    assert (summary.saved, summary.lost) == (300, 3)
    assert [(v.record, v.field, v.key) for v in summary.values] == [(300 + i, "label", f"new/{i}") for i in range(3)]


def test_a_damaged_superblock_costs_nothing(sound: Path, tmp_path: Path) -> None:
    bad = damaged(sound, 20)
    failed("verify", bad)
    out = tmp_path / "out.frec"
    result = run("repair", bad, out)
    assert result.exit_code == 0, result.output
    assert "damage: " in result.stderr
    assert rows(out) == rows(sound)


def test_of_a_lost_footer_nothing_tells_how_many_records_it_had(sound: Path, tmp_path: Path) -> None:
    with fr.Writer(sound, None, "a") as writer:
        writer.append({"data": b"new", "label": 0, "key": "new"})
    cases = {"footer": damaged(sound, footer(sound) + 50, name="a.frec")}
    cases["cut"] = damaged(sound, name="b.frec", length=footer(sound) + 4000)
    for name, bad in cases.items():
        out = tmp_path / f"{name}.frec"
        result = run("repair", bad, out)
        assert result.exit_code == 1, name
        assert "an unknown number of records" in result.stderr
        assert rows(out) == rows(sound)[:300]
        assert metadata(out)["repairs"][0]["unknown"]


def test_where_nothing_is_left_the_error_says_so_and_nothing_is_written(sound: Path, tmp_path: Path) -> None:
    bad = damaged(sound, length=5_000)
    assert "no commit has a readable footer, directory and metadata" in failed("repair", bad, tmp_path / "out.frec")
    (tmp_path / "text.frec").write_text("hello " * 5_000)
    assert "not a .frec file" in failed("repair", tmp_path / "text.frec", "-o", tmp_path / "out.frec")
    assert "No such file" in failed("repair", tmp_path / "absent.frec", tmp_path / "out.frec")
    one = write_rows(tmp_path / "one.frec", 1, largest=50, seed=3)
    assert "nothing can be saved: each of its 1 records is damaged" in failed(
        "repair", damaged(one, payload(one, 0)), tmp_path / "out.frec"
    )
    assert not [name for name in os.listdir(tmp_path) if name.startswith("out")]


def test_an_incomplete_file_stays_so(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "x.frec", 20, complete=False)
    bad = damaged(path, payload(path, 3))
    assert "its packing is not complete" in run("repair", bad, tmp_path / "out.frec").stdout
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert (len(reader), reader.complete) == (19, False)


def test_classes_stay(packed: Path, tmp_path: Path) -> None:
    flip(packed, tmp_path / "bad.frec", record=4)
    assert fr.files.repair(tmp_path / "bad.frec", tmp_path / "out.frec").saved == 11
    dataset = fr.FastRecordDataset(tmp_path / "out.frec")
    assert (len(dataset), dataset.classes) == (11, ["cat", "dog", "owl"])


def test_a_file_can_be_repaired_twice_and_its_metadata_lists_both(sound: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.frec", tmp_path / "two.frec"
    fr.files.repair(damaged(sound, payload(sound, 5)), one)
    fr.files.repair(damaged(one, payload(one, 7)), two)
    assert [(entry["lost"], entry["records"]) for entry in metadata(two)["repairs"]] == [(1, 300), (1, 299)]


def test_an_exception_in_progress_leaves_nothing(sound: Path, tmp_path: Path) -> None:
    bad = damaged(sound, payload(sound, 5))
    names = sorted(os.listdir(tmp_path))
    for limit in (0.1, 0.6, 0.99):

        def stop(done: int, total: int, limit: float = limit) -> None:
            if done > limit * total:
                raise KeyboardInterrupt

        try:
            fr.files.repair(bad, tmp_path / "out.frec", progress=stop)
        except KeyboardInterrupt:
            assert sorted(os.listdir(tmp_path)) == names
        else:
            for name in ("out.frec", "out.frec.lost.jsonl"):  # finished before the question
                (tmp_path / name).unlink()


@pytest.mark.parametrize("option", ["out", "--lost"])
def test_a_folder_in_the_place_of_a_file_is_refused_by_its_name(option: str, sound: Path, tmp_path: Path) -> None:
    bad, folder, new = damaged(sound, payload(sound, 5)), tmp_path / "folder", tmp_path / "new.frec"
    folder.mkdir()
    for path, message in (
        (folder, f"{folder}: Is a directory"),
        (tmp_path / "no" / "x", f"{tmp_path / 'no'}: No such"),
    ):
        arguments = [path] if option == "out" else [new, "--lost", path]
        assert failed("repair", bad, *arguments, "--overwrite").startswith(f"error: {message}")
    assert sorted(os.listdir(tmp_path)) == ["bad.frec", "folder", "sound.frec"]


def test_a_list_that_cannot_be_written_is_named_with_what_is_left(sound: Path, tmp_path: Path) -> None:
    bad, out = damaged(sound, payload(sound, 5)), tmp_path / "out.frec"
    # The temporary name is too long.
    lost = tmp_path / ("n" * 250)
    message = f"error: {lost}: the list of losses cannot be written: File name too long\n{out}: "
    assert failed("repair", bad, out, "--lost", lost) == f"{message}nothing is written\n"
    assert not out.exists()
    out.write_bytes(sound.read_bytes())
    assert failed("repair", bad, out, "--lost", lost, "--overwrite") == f"{message}is as it was before\n"
    assert out.read_bytes() == sound.read_bytes()
    out.unlink()
    lost = tmp_path / "lost"

    def take_the_place(_done: int, _total: int) -> None:
        lost.mkdir(exist_ok=True)

    with pytest.raises(IsADirectoryError, match="the list of losses cannot be written") as caught:
        fr.files.repair(bad, out, lost=lost, progress=take_the_place)
    assert caught.value.__notes__ == [f"{out}: is complete, but its list is not written"]
    assert len(rows(out)) == 299
    assert sorted(os.listdir(tmp_path)) == ["bad.frec", "lost", "out.frec", "sound.frec"]
