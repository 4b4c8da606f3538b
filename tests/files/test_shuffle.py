"""Shuffling: the seed decides the order of the records and of their bytes in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from tests.support.commands import failed, good
from tests.support.rewriting import commits, metadata, rows, write_rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "a.frec", 500, classes=["cat", "dog"], largest=6_000, commit_bytes=500_000, x=1)


def test_records_come_in_the_order_of_the_seed(source: Path, tmp_path: Path) -> None:
    expected = rows(source)
    for seed in (0, 5, 2**64 - 1):
        out = tmp_path / f"{seed}.frec"
        summary = fr.files.shuffle(source, out, seed)
        order = fr._core.permute(500, seed, 0, np.arange(500))
        assert rows(out) == [expected[i] for i in order]
        assert metadata(out) == metadata(source)
        assert (summary.records, commits(out)) == (500, 1)
    assert rows(tmp_path / "0.frec") != rows(tmp_path / "5.frec")


def test_payloads_lie_in_the_order_of_the_records(source: Path, tmp_path: Path) -> None:
    fr.files.shuffle(source, tmp_path / "out.frec", 3)
    data = (tmp_path / "out.frec").read_bytes()
    with fr.Reader(tmp_path / "out.frec") as reader:
        places = [data.index(bytes(record["data"])) for record in reader if len(record["data"]) > 20]
        assert len(places) > 400
        assert places == sorted(places)
        text = [
            data.index(record["key"].encode() + reader[i + 1]["key"].encode())
            for i, record in enumerate(reader)
            if i < 499
        ]
        assert text == sorted(text)
        assert text[0] > places[-1]


def test_a_shuffled_file_is_not_written_over_its_source(source: Path, tmp_path: Path) -> None:
    with pytest.raises(fr.FastRecordError, match="is the file to read from"):
        fr.files.shuffle(source, source, overwrite=True)
    for seed in ("a", 1.5, None):
        with pytest.raises(TypeError, match=r"^seed is an int, not (str|float|NoneType): "):
            fr.files.shuffle(source, tmp_path / "x.frec", seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed is from 0"):
        fr.files.shuffle(source, tmp_path / "out.frec", 2**64)
    assert os.listdir(tmp_path) == ["a.frec"]


def test_the_command_shuffles_and_reports(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    assert good("shuffle", source, out, "--seed", "9").startswith(f"{out}: 500 records in 2 classes, ")
    again = json.loads(good("shuffle", source, tmp_path / "again.frec", "--seed", "9", "--verify", "--json"))
    assert again["records"] == 500
    assert rows(out) == rows(tmp_path / "again.frec")
    assert "exists already" in failed("shuffle", source, out)
    assert "--seed is from 0" in failed("shuffle", source, out, "--seed", "-1", status=2)
    assert "Missing argument 'OUT'" in failed("shuffle", source, status=2)
    assert "given twice" in failed("shuffle", source, out, "-o", out, status=2)
    good("shuffle", source, "-o", tmp_path / "named.frec", "--seed", "9")
    assert (tmp_path / "named.frec").stat().st_size == out.stat().st_size
