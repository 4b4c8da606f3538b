"""The page of the experiments says what their results say."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from benches.harness import Row, read
from benches.harness.process import ROOT
from benches.report.__main__ import PICTURES, RESULTS, TABLES, committed, main
from benches.report.cases import group, load, setting_words
from benches.report.documents import BEGIN, END, documents, put
from benches.report.page import page
from benches.report.plots import Pictures, Point
from benches.report.sections import STEPS
from benches.report.tables import case_table, matrix, verdicts
from tests.benches.made import FACTS, reading, row, save


def cells(lines: list[str]) -> list[list[str]]:
    """The cells of a table's rows."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [rows[0], *rows[2:]]


def test_a_table_is_sorted_and_says_how_many_times_as_fast_fastrecord_is() -> None:
    (case,) = group(reading("random batches", h5py=(0.3, 0.5, 0.4), fastrecord=(0.1, 0.1, 0.2), lmdb=(0.05, 0.2, 0.2)))
    assert cells([*case_table(case)]) == [
        ["contender", "median, s", "least - most", "fastrecord is", "version"],
        ["**fastrecord**", "0.1", "0.1 - 0.2", "", "fastrecord 1"],
        ["lmdb", "0.2", "0.05 - 0.2", "2.00 x as fast", "lmdb 1"],
        ["h5py", "0.4", "0.3 - 0.5", "4.00 x as fast", "h5py 1"],
    ]


def test_rates_are_sorted_downwards_and_settings_become_columns() -> None:
    rows = [
        row("formats", "images", name, "images/s", rate, workers=workers, batch=8, records=10, cpu_seconds=[0.02])
        for name, rate, workers in (("peer", 50, 1), ("fastrecord", 200, 0))
    ]
    (case,) = group(rows)
    lines = [*case_table(case)]
    assert cells(lines) == [
        ["contender", "median, images/s", "fastrecord is", "workers", "CPU time"],
        ["**fastrecord**", "200", "", "0", "2.00 ms a record"],
        ["peer", "50.0", "4.00 x as fast", "1", "2.00 ms a record"],
    ]
    assert "All of them: batch 8." in lines


def test_rows_of_one_name_are_told_apart_by_their_settings() -> None:
    rows = [row("formats", "images", "peer", "s", workers, workers=workers) for workers in (2, 1)]
    assert [one.contender for one in group(rows)[0].rows] == ["peer, 1 worker", "peer, 2 workers"]


def test_settings_in_words() -> None:
    settings = {"threads": 2, "processes": 1, "batch": 8, "file_bytes": 2_000}
    words = [setting_words(name, value) for name, value in settings.items()]
    assert words == ["2 threads", "1 process", "batch 8", "file 2.00 KB"]


def test_settings_that_fastrecord_was_measured_with_make_cases() -> None:
    rows = [
        row("formats", "images", name, "s", seconds / threads, threads=threads)
        for threads in (1, 2)
        for name, seconds in (("fastrecord", 1.0), ("peer", 3.0))
    ]
    cases = group(rows)
    assert [case.name for case in cases] == ["images, 1 thread", "images, 2 threads"]
    assert [[one.contender for one in case.rows] for case in cases] == [["fastrecord", "peer"]] * 2


def test_where_fastrecord_is_not_first_the_page_says_why() -> None:
    first = reading("a", fastrecord=(1.0, 1.0), peer=(2.0, 2.0))
    level = reading("b", fastrecord=(1.1, 1.2), peer=(1.2, 1.0))
    behind = [
        row("formats", "c", "fastrecord", "s", 2.0, why="it checks each byte."),
        row("formats", "c", "peer", "s", 1.0),
        row("formats", "c", "memcpy", "s", 0.5, yardstick=True),
    ]
    lines = [*verdicts(group([*first, *level, *behind]))]
    assert lines == [
        "fastrecord is first in 1 of these 3 rows. The others:",
        "",
        "- b: level with peer, 0.96 x (0.83 x to 1.09 x in the rounds).",
        "- c: behind peer, 0.50 x (0.50 x to 0.50 x in the rounds). it checks each byte.",
        "",
    ]
    assert next(verdicts(group(first))) == "fastrecord is first in 1 of these rows."


def test_a_matrix_has_a_column_for_each_case_and_a_dash_where_nothing_was_measured() -> None:
    cases = group([*reading("warm", peer=(2e-3,), fastrecord=(1e-3,)), *reading("cold", fastrecord=(0.5,))])
    assert cells([*matrix(cases, ["warm", "cold"], "format")]) == [
        ["format", "warm, ms", "cold, s"],
        ["**fastrecord**", "**1.00**", "**0.5**"],
        ["peer", "2.00 (2.00 x)", "-"],
    ]


def test_the_page_keeps_unknown_experiments_and_cases_and_each_reason(tmp_path: Path) -> None:
    save(tmp_path, "brand_new", [row("brand_new", "some | case", "who", "widgets", 3.0, 4.0)])
    absent = [Row("formats", case, "ffcv", "", missing="No module named 'ffcv'") for case in ("a", "b", "c")]
    save(tmp_path, "formats", [*reading("a", fastrecord=(1.0,), peer=(2.0,)), *absent])
    text = page(load(tmp_path), Pictures(None, "img"))
    assert "## Brand new" in text
    assert "**some | case**" in text
    assert "| who | 3.50 | 3.00 - 4.00 |" in text
    assert re.search(r"^\| ffcv \| .*3 cases.* \| No module named 'ffcv' \|$", text, re.MULTILINE)
    assert f"```sh\n{FACTS.command}\n```" in text
    assert "A Processor, 2 cores, 8 GiB, no GPU, ext2/ext3, Linux 6.1" in text
    assert "torchvision" not in text.split("## In short")[0]


def test_equal_results_give_equal_plots(tmp_path: Path) -> None:
    (case,) = group(reading("a", fastrecord=(1.0, 1.5), peer=(2.0, 2.5)))
    curve = [Point(1, 10, 9, 11), Point(2, 19, 18, 20)]
    for folder in (tmp_path / "1", tmp_path / "2"):
        pictures = Pictures(folder, "img")
        assert pictures.bars("bars", "some bars", {"a": case}) == ["![some bars](img/bars.svg)", ""]
        pictures.curves("curves", "", {"one": curve}, x="ranks", y="images/s", ideal=[Point(1, 10, 10, 10)])
        pictures.dots("dots", "", {"1 rank": [0.5, 0.6]}, x="accuracy")
    drawn = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert drawn == ["bars.svg", "curves.svg", "dots.svg"]
    for name in drawn:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_pages_show_results_between_their_marks(tmp_path: Path) -> None:
    crops = "random crops of 224 pixels, batches of 128"
    rates = {"fastrecord": 3000.0, "fastrecord, crop index": 4000.0, "FFCV": 1000.0, "SPDL": 500.0}
    rows = [row("formats", crops, name, "images/s", rate, threads=2) for name, rate in rates.items()]
    experiments = load(save(tmp_path, "formats", rows))
    found = {str(path.relative_to(ROOT)): text for path, text in documents(ROOT, experiments).items()}
    shown = {name: text.split(BEGIN)[1].split(END)[0] for name, text in found.items()}
    assert "| 3,000 images/s | FFCV 1,000 images/s; SPDL 500 images/s | 3.00 x, 6.00 x as fast |" in shown["README.md"]
    assert "the same with a crop index | 4,000 images/s" in shown["README.md"]
    beside = "3,000 images/s with the loader, 1,000 with FFCV, so fastrecord is 3.00 x as fast"
    assert beside in shown["docs/from/ffcv.md"]
    assert "| [FFCV](ffcv.md) | 1,000 | 3.00 x as fast |" in shown["docs/from/index.md"]
    assert "| [LitData](litdata.md) | not measured |  |" in shown["docs/from/index.md"]
    assert "fastrecord and 2 other loaders" in shown["docs/index.md"]
    for path, text in documents(ROOT, {}).items():  # nothing else changes, and nothing is needed
        old = path.read_text(encoding="utf-8")
        assert (text.split(BEGIN)[0], text.split(END)[1]) == (old.split(BEGIN)[0], old.split(END)[1])
    (tmp_path / "page.md").write_text(BEGIN)
    with pytest.raises(ValueError, match=r"page\.md.*once"):
        put(tmp_path / "page.md", iter(()))


def test_the_command_writes_a_page_and_leaves_others_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (ROOT / "README.md").read_bytes()
    folder = save(tmp_path / "results", "formats", reading("a", fastrecord=(1.0,), peer=(2.0,)))
    assert main([str(folder), "--page", str(tmp_path / "page.md")]) == 0
    assert "2.00 x as fast" in (tmp_path / "page.md").read_text()
    assert "| formats, reading and loading: fastrecord is first | in 1 of 1 rows |" in capsys.readouterr().out
    assert (ROOT / "README.md").read_bytes() == before
    assert main([str(tmp_path / "none")]) == 1
    assert "no results" in capsys.readouterr().err


def test_a_page_keeps_the_plots_of_others_and_draws_zeros(tmp_path: Path) -> None:
    others, own = tmp_path / "img" / "benchmarks" / "plot.svg", tmp_path / "img" / "page" / "old.svg"
    for path in (others, own):
        path.parent.mkdir(parents=True)
        path.touch()
    rows = [
        row("small_batches", f"loading, batch {size}: a pair", name, "s", 0.0, 0.0, batch=size)
        for size in (8, 16, 32)
        for name in ("fastrecord", "peer")
    ]
    steps = row("bottleneck", f"a{STEPS}", "constant", "ms/step", 0.0)
    folder = save(save(tmp_path / "results", "small_batches", rows), "bottleneck", [steps])
    assert main([str(folder), "--page", str(tmp_path / "page.md")]) == 0
    assert "inf" not in re.findall(r"\w+", (tmp_path / "page.md").read_text())
    assert others.exists()
    assert sorted(path.name for path in own.parent.iterdir()) == ["bottleneck.svg", "small-batches-1.svg"]


COMMITTED = sorted(RESULTS.parent.glob("**/*.jsonl"))


@pytest.mark.skipif(not COMMITTED, reason="no results are committed yet")
def test_committed_results_have_no_names_of_machines_or_folders() -> None:
    for path in COMMITTED:
        facts, rows = read(path)
        assert facts.seconds > 0, path
        assert all(one.experiment == path.stem for one in rows)
        text = path.read_text()
        assert re.findall(r"/(?:home|root|tmp|work|mnt|Users|var|opt)/", text) == [], path
        assert re.search(rf"\b{re.escape(socket.gethostname())}\b", text) is None, path


@pytest.mark.skipif(not RESULTS.exists(), reason="no results are committed yet")
def test_the_pages_are_those_of_the_committed_results() -> None:
    pages = committed(load(RESULTS), None)
    for path, expected in pages.items():
        assert path.read_text(encoding="utf-8") == expected, "run python -m benches.report"
    drawn = {(TABLES.parent / name).resolve() for name in re.findall(r"\]\(([^)]+\.svg)\)", pages[TABLES])}
    assert drawn == set(PICTURES.glob("*")), "run python -m benches.report"
