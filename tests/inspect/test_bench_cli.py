"""`fastrecord bench`: consistent numbers, a verdict that follows from them, and clear errors."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.inspect.benchmark import Report, Row, _Sample, bench
from fastrecord.inspect.packed_gain import PackedGain
from fastrecord.inspect.page_cache import cached_share, drop_from_cache
from fastrecord.inspect.verdict import judge
from tests.conftest import encode, write_bytes, write_images
from tests.support.commands import failed, flip, good
from tests.support.packing import write
from tests.support.pictures import jpeg

QUICK = ("--seconds", "0.4")


def measured(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(good("bench", *arguments, *QUICK, "--json"))
    return found


# --- measurements ---


def test_all_rows_are_there_and_agree_with_each_other(packed: Path) -> None:
    report = measured(packed, "--threads", 2, "--size", 32)
    rows = [(row["name"], row["threads"]) for row in report["rows"]]
    assert rows == [
        ("read", 2), ("views", 1), ("copies", 1), ("copies", 2), ("decode", 1), ("decode", 2), ("load", 1), ("load", 2),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["records"] > 0
        assert row["seconds"] > 0
        assert row["cpu_seconds"] > 0
        assert row["records_per_second"] == pytest.approx(row["records"] / row["seconds"])
        assert row["megabytes_per_second"] == pytest.approx(row["bytes"] / 1e6 / row["seconds"])
        assert (row["bytes"] > 0) == (row["name"] != "views")
        assert bool(row["shares"]) == (row["name"] == "load")
        if row["shares"]:
            assert set(row["shares"]) == {"read", "decode", "resize", "idle"}
            assert all(0 <= share <= 1 for share in row["shares"].values())
    first = report["rows"][0]
    lengths = [len(record["image"]) for record in fr.Reader(packed)]
    assert (first["records"], first["bytes"]) == (report["sample"], report["sample_bytes"]) == (12, sum(lengths))
    assert report["mean_bytes"] == pytest.approx(sum(lengths) / 12)
    assert report["formats"] == {"JPEG": pytest.approx(11 / 12), "PNG": pytest.approx(1 / 12)}
    assert (report["records"], report["field"], report["kind"], report["skipped"]) == (12, "image", "image", 0)
    assert report["nbytes"] == fr.Reader(packed).nbytes
    assert 0 < report["cpus"] <= report["machine_cpus"]
    assert report["verdict"]["limit"] in ("decode", "resize", "read", "cpu")
    assert report["verdict"]["expected"] == report["rows"][-1]["records_per_second"]


def test_the_text_has_a_line_for_each_row_and_the_verdict(packed: Path) -> None:
    text = good("bench", packed, *QUICK, "--threads", 1, "--size", 16)
    for line in (
        f"{packed}: 12 records, ",
        "measured: 12 random records, ",
        "read from the file as it was found, and checked        1 ",
        "whole images decoded ",
        "loader: random crop, flip ",
        "Expect ",
    ):
        assert line in text
    assert "images/s. The limit is " in text


def test_a_field_that_holds_no_images_is_read_and_not_decoded(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.frec", [b"x" * 1000, b"", b"y" * 3000])
    report = measured(path)
    assert {row["name"] for row in report["rows"]} == {"read", "views", "copies"}
    assert (report["kind"], report["sample"], report["mean_bytes"]) == ("bytes", 2, 2000.0)
    assert (report["verdict"]["limit"], report["mean_width"]) == ("read", None)
    assert "records/s. The limit is copying out of memory." in (text := good("bench", path, *QUICK))
    assert "The field is of type bytes, not image: nothing was decoded." in text
    assert measured(path, "--field", "key")["kind"] == "string"


def test_images_that_cannot_be_decoded_are_counted_and_left_out(tmp_path: Path) -> None:
    schema = fr.Schema({"image": fr.image(), "label": "int64"})
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        for number in range(6):
            data = encode(number)
            writer.append({"image": data[: len(data) // 2] if number == 3 else data, "label": 0})
    report = measured(tmp_path / "a.frec", "--threads", 1, "--size", 16)
    assert (report["skipped"], report["sample"]) == (1, 6)
    text = good("bench", tmp_path / "a.frec", *QUICK, "--threads", 1, "--size", 16)
    assert "1 of 6 images cannot be decoded; they were left out." in text


def test_python_and_the_command_report_the_same(packed: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = bench(packed, seconds=0.3, threads=1, size=8, progress=lambda *step: seen.append(step))
    assert [row.name for row in report.rows] == ["read", "views", "copies", "decode", "load"]
    assert seen == [(done, 5) for done in range(5)]
    assert set(report.to_dict()) | {"verdict"} == set(measured(packed, "--threads", 1, "--size", 8))


def test_a_sample_of_a_large_file_has_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_bytes(tmp_path / "a.frec", [bytes([n % 256]) * 100 for n in range(3000)])
    monkeypatch.setattr("fastrecord.inspect.benchmark._SAMPLE_RECORDS", 500)
    report = bench(path, seconds=0.3, threads=1)
    assert 300 < report.sample <= 500
    assert report.sample_bytes == 100 * report.sample
    monkeypatch.setattr("fastrecord.inspect.benchmark._SAMPLE_BYTES", 2000)
    assert bench(path, seconds=0.3, threads=1).sample == 20


def test_cold_drops_the_file_from_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, fr.Schema({"data": fr.bytes_()})) as writer:
        for number in range(200):
            writer.append({"data": bytes([number]) * 100_000})
    path.read_bytes()
    warm = cached_share(path, path.stat().st_size)
    drop_from_cache(path)
    cold = cached_share(path, path.stat().st_size)
    if warm is None or cold is None or cold > 0.1:
        pytest.skip("this file system keeps its files in memory, or does not tell")
    assert warm > 0.9
    path.read_bytes()
    report = measured(path, "--cold")
    assert report["cold"]
    assert report["cached"] < 0.5  # opening it read the index again, and the disk's readahead
    assert measured(path)["cached"] > 0.9


def test_files_with_a_crop_index_or_raw_images_are_seen_as_such(tmp_path: Path) -> None:
    write(tmp_path / "images", {f"cat/{number}.jpg": jpeg(320, 240 + number) for number in range(4)})
    reports = {}
    for name, options in {
        "plain": [],
        "index": ["--crop-index"],
        "raw": ["--raw"],
        "packed": ["--packed"],
    }.items():
        good("pack", tmp_path / "images", tmp_path / name, *options)
        reports[name] = bench(tmp_path / name, seconds=0.3, size=16)
    assert {name: report.crop_index for name, report in reports.items()} == {
        "plain": False,
        "index": True,
        "raw": False,
        "packed": False,
    }
    assert [name for name, report in reports.items() if report.packed] == ["packed"]
    assert [name for name, report in reports.items() if report.packed_gain is not None] == ["plain", "index"]
    assert "100 % JPEG, packed" in good("bench", tmp_path / "packed", "--seconds", "0.3")
    assert {name: report.formats for name, report in reports.items()} == {
        "plain": {"JPEG": 1.0},
        "index": {"JPEG": 1.0},
        "raw": {"PPM": 1.0},
        "packed": {"JPEG": 1.0},
    }
    assert all((report.mean_width, report.mean_height) == (320.0, 241.5) for report in reports.values())


# --- the verdict ---


def row(name: str, threads: int, rate: float, *, cpu: float = 1.0, **shares: float) -> Row:
    """Return a one-second measurement at `rate`, with the threads' share `cpu` of their CPUs."""
    return Row(name, threads, round(rate), round(rate * 100_000), 1.0, cpu * threads, shares)


DECODING = {"read": 0.03, "decode": 0.8, "resize": 0.15, "idle": 0.02}


@pytest.fixture
def report() -> Report:
    """A JPEG file in memory, on eight CPUs that decode."""
    return Report(
        file="a.frec",
        records=1_000_000,
        nbytes=100_000_000_000,
        field="image",
        kind="image",
        cpus=8,
        machine_cpus=8,
        memory=200_000_000_000,
        size=224,
        cold=False,
        cached=1.0,
        mean_bytes=100_000.0,
        mean_width=500.0,
        mean_height=400.0,
        formats={"JPEG": 1.0},
        rows=[
            row("read", 8, 90_000),
            row("copies", 8, 100_000),
            row("load", 1, 1000, **DECODING),
            row("load", 8, 7600, **DECODING),
        ],
    )


def test_decoding_is_the_limit_where_it_takes_the_threads_time(report: Report) -> None:
    verdict = judge(report)
    assert (verdict.limit, verdict.expected, verdict.efficiency) == ("decode", 7600.0, 0.95)
    assert verdict.reasons == (
        "Decoding takes 80 % of the threads' time (cropping and resizing 15 %, reading and checking 3 %).",
    )
    assert len(verdict.advice) == 1
    assert "fastrecord index" in verdict.advice[0]
    assert judge(replace(report, crop_index=True)).advice == ()
    assert judge(replace(report, packed=True)).advice == ()
    (advice,) = judge(replace(report, crop_index=True, packed_gain=PackedGain(1.22, 1.94))).advice
    assert advice == (
        "`fastrecord compact --packed`: the same pixels, 22 % more bytes, decoded 1.9 times as fast here."
    )
    assert judge(replace(report, formats={"PNG": 1.0})).advice == ()
    assert judge(replace(report, machine_cpus=32)).advice[0] == "More CPUs: this process may use 8 of the machine's 32."
    assert judge(replace(report, cpus=16)).advice[0] == "More threads: this process may use 16 CPUs."
    large = judge(replace(report, mean_width=2000.0, mean_height=1500.0))
    assert "their shorter side is 1500 pixels" in large.advice[-1]
    assert "--short-side 256" in large.advice[-1]


def test_what_is_advised_are_options_that_there_are(report: Report) -> None:
    advice = " ".join(judge(replace(report, mean_width=2000.0, mean_height=1500.0)).advice)
    options = re.findall(r"`fastrecord (\w+)`? ?(--[a-z-]+)?", advice)
    assert options == [("index", ""), ("pack", "--short-side")]
    for command, option in options:
        assert re.search(rf"^ +{option}\b", good(command, "--help"), re.MULTILINE)


def test_a_slow_disk_limits_every_epoch_of_a_file_that_does_not_fit_into_memory(report: Report) -> None:
    slow = replace(report, cached=0.02, rows=[row("read", 8, 3000), *report.rows[1:]])
    verdict = judge(replace(slow, memory=50_000_000_000))
    assert (verdict.limit, verdict.expected) == ("disk", 3000.0)
    assert "300 MB/s" in verdict.reasons[0]
    assert "every epoch, as the file is larger than the free memory" in verdict.reasons[0]
    assert verdict.advice[0] == "Memory for the 100.0 GB of the file (50.0 GB are free), or a faster disk."
    verdict = judge(slow)
    assert (verdict.limit, verdict.expected) == ("decode", 7600.0)
    assert "the first epoch waits for the disk" in verdict.reasons[-1]
    # What was in memory tells nothing about the disk.
    assert all(judge(replace(slow, cached=cached)).limit == "decode" for cached in (0.9, None))


def test_busy_cpus_and_threads_that_do_not_add_up_are_named(report: Report) -> None:
    verdict = judge(replace(report, rows=[row("load", 8, 3000, cpu=0.4, **DECODING)]))
    assert (verdict.limit, verdict.expected) == ("cpu", 3000.0)
    assert verdict.undisturbed == pytest.approx(3000 / 0.4)
    assert verdict.reasons[0].startswith("The loader's 8 threads had 40 % of the time of as many CPUs: ")
    verdict = judge(replace(report, rows=[row("load", 1, 1000, **DECODING), row("load", 8, 4400, **DECODING)]))
    assert verdict.efficiency == pytest.approx(0.55)
    assert verdict.reasons[1].startswith("8 threads do the work of 4.4: ")


# --- bad input ---


def test_files_and_fields_that_cannot_be_measured_are_errors(tmp_path: Path, packed: Path) -> None:
    assert "nothing.frec: No such file" in failed("bench", tmp_path / "nothing.frec")
    (tmp_path / "text.frec").write_text("hello, world" * 1000)
    assert "text.frec: not a .frec file" in failed("bench", tmp_path / "text.frec")
    assert "no field 'picture': it has image, label, key" in failed("bench", packed, "--field", "picture")
    assert "field 'label' holds int64" in failed("bench", packed, "--field", "label")
    empty = write_images(tmp_path / "empty.frec", [])
    assert "empty.frec: no record has a value in field 'image': nothing to measure" in failed("bench", empty)
    with fr.Writer(tmp_path / "numbers.frec", fr.Schema({"label": "int64"})) as writer:
        writer.append({"label": 1})
    assert "no field holds images or bytes: it has label" in failed("bench", tmp_path / "numbers.frec")
    flip(packed, tmp_path / "bad.frec", record=7)
    message = failed("bench", tmp_path / "bad.frec", *QUICK)
    assert re.search(r"bad\.frec: record 7, field image: stored CRC.* \[FR302\]$", message)
    with pytest.raises(ValueError, match="above 0"):
        bench(packed, seconds=0)


@pytest.mark.parametrize("arguments", [("--seconds", "0"), ("--seconds", "nan"), ("--threads", "0"), ("--size", "0")])
def test_numbers_that_make_no_sense_are_wrong_usage(packed: Path, arguments: tuple[str, str]) -> None:
    assert arguments[0] in failed("bench", packed, *arguments, status=2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", ["copies", "decode", "load"])
def test_ctrl_c_ends_each_step(packed: Path, report: Report, step: str) -> None:
    with fr.Reader(packed) as reader:
        sample = _Sample(reader, report)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                getattr(sample, step)(600.0, 2)
        finally:
            timer.cancel()
