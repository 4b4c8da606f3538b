"""`python -m benches.report --compare A B` tells what changed beyond the spread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benches.harness import Row
from benches.report.__main__ import main
from benches.report.cases import load
from benches.report.compare import Comparison, compare
from tests.benches import made
from tests.benches.made import reading, row, save


def both(folder: Path, old: list[Row], new: list[Row]) -> Comparison:
    return compare(load(save(folder / "a", "formats", old)), load(save(folder / "b", "formats", new)))


def test_a_value_changed_if_no_round_of_one_lies_among_the_rounds_of_the_other(tmp_path: Path) -> None:
    old = reading("warm", fastrecord=(1.0, 1.1, 1.2), peer=(2.0, 2.1, 2.2))
    new = reading("warm", fastrecord=(0.8, 0.7, 0.9), peer=(2.1, 2.2, 2.3))
    ours, peer = both(tmp_path, old, new).values
    assert (ours.what, ours.beyond, ours.better) == ("fastrecord", True, True)
    assert (peer.what, peer.beyond) == ("peer", False)
    assert ours.ratio == pytest.approx((0.8 / 1.1, 0.7 / 1.2, 0.9 / 1.0))


def test_a_slower_machine_changes_values_but_not_ratios(tmp_path: Path) -> None:
    old = reading("warm", fastrecord=(1.0, 1.1), peer=(2.0, 2.1))
    new = reading("warm", fastrecord=(3.0, 3.3), peer=(6.0, 6.3))
    found = both(tmp_path, old, new)
    assert [(change.beyond, change.better) for change in found.values] == [(True, False)] * 2
    (ratio,) = found.ratios
    assert (ratio.what, ratio.beyond) == ("fastrecord beside peer", False)
    assert ratio.old == pytest.approx((2.05 / 1.05, 2.1 / 1.1, 2.0))


def test_rates_get_better_upwards_and_bytes_downwards(tmp_path: Path) -> None:
    def rows(rate: float, size: float) -> list[Row]:
        images = row("formats", "images", "fastrecord", "images/s", rate, rate + 1)
        return [images, row("formats", "size", "fastrecord", "bytes", size)]

    rate, size = both(tmp_path, rows(100, 1000), rows(200, 2000)).values
    assert (rate.beyond, rate.better, size.beyond, size.better) == (True, True, True, False)
    assert not any(change.beyond for change in both(tmp_path, rows(100, 1000), rows(100, 1010)).values)


def test_the_command_prints_changes_and_what_only_one_result_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = save(tmp_path / "a", "formats", reading("warm", fastrecord=(1.0, 1.1), peer=(2.0, 2.1), gone=(1.0,)))
    b = save(tmp_path / "b", "formats", reading("warm", fastrecord=(2.0, 2.2), peer=(2.0, 2.1), added=(1.0,)))
    assert main(["--compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "ratios to other contenders: 1 in both; beyond the spread of the rounds 0 better, 1 worse" in out
    assert "0 better, 1 worse; by chance about 1\n" in out  # values: 2 x 1/3
    assert "worse: formats: warm: fastrecord beside peer: 1.95 x -> 0.98 x" in out
    assert "only in the second: 1\n  formats: warm: added (s)" in out
    assert "only in the first: 1\n  formats: warm: gone (s)" in out
    assert main(["--compare", str(a), str(tmp_path / "none")]) == 1


def test_both_have_to_be_whole_and_each_machine_and_kind_of_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "a", "formats", reading("warm", fastrecord=(1.0, 1.1, 1.2), peer=(0.0, 0.0, 0.0)))
    monkeypatch.setattr(made, "FACTS", replace(made.FACTS, cpu="Another", commit="", full=False))
    path = save(folder, "gpu", []) / "gpu.jsonl"
    assert main(["--compare", str(folder), str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"{folder}: full run, commit 0123456, A Processor" in out
    assert f"{folder}: short run, commit unknown, Another" in out
    assert "values: 2 in both; beyond the spread of the rounds 0 better, 0 worse; by chance about 0" in out
    for damaged in (b"", b"\xff\xfe", b"[]", path.read_bytes().replace(b"cpu", b"new"), path.read_bytes() + b'{"exp'):
        path.write_bytes(damaged)
        assert main(["--compare", str(folder), str(folder)]) == 1
        line = 2 if damaged.endswith(b"exp") else 1
        assert f"{path}: line {line} is damaged" in capsys.readouterr().err
