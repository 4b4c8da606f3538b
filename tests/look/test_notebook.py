from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import write_images
from tests.support.commands import flip


def html(shown: fr.Reader | fr.FastRecordDataset) -> str:
    found = shown._repr_html_()
    assert found is not None
    return found


def test_a_reader_and_a_data_set_show_counts_fields_and_some_images(packed: Path) -> None:
    data = fr.FastRecordDataset(packed)
    for found in (html(fr.Reader(packed)), html(data)):
        assert found.count("<img ") == 8
        assert re.search(r">records</th><td[^>]*>12<", found)
        assert ">image</th>" in found
        assert ">int64<" in found
        assert "3: cat, dog, owl" in found
        assert "cat</figure>" in found
    assert html(data.filter("label", "==", "owl")).count("<img ") == 4
    assert len(html(data)) < 200_000


def test_a_notebook_shows_a_view_of_several_files_and_of_no_records(packed: Path, tmp_path: Path) -> None:
    more = write_images(tmp_path / "more.frec", [0, 1], ["cat", "owl"])
    both = fr.FastRecordDataset([packed, more])
    assert ">files</th>" in html(both)
    none = html(both.subset([]))
    assert re.search(r">records</th><td[^>]*>0<", none)
    assert "<img " not in none


def test_names_from_a_file_are_escaped(tmp_path: Path) -> None:
    evil = "</td><script>alert(1)</script>"
    path = write_images(tmp_path / "<b>.frec", [0, 1], [evil, "b"])
    for shown in (fr.Reader(path), fr.FastRecordDataset(path)):
        found = html(shown)
        assert "<script" not in found
        assert "<b>" not in found
        assert "&lt;script&gt;" in found


def test_what_cannot_be_shown_is_left_out_and_never_raises(packed: Path, tmp_path: Path) -> None:
    flip(packed, tmp_path / "bad.frec", record=0)
    found = html(fr.Reader(tmp_path / "bad.frec"))
    assert found.count("<img ") == 7
    assert "FR302" in found
    closed = fr.Reader(packed)
    closed.close()
    assert closed._repr_html_() is None
    data = fr.FastRecordDataset(packed)
    data.close()
    assert data._repr_html_() is None


def test_records_without_images_are_shown_as_a_table(tmp_path: Path) -> None:
    schema = fr.Schema({"x": "float32", "mask": fr.array("uint8", (8, 8)), "name": fr.string()})
    with fr.Writer(tmp_path / "t.frec", schema) as writer:
        writer.append({"x": 0.5, "mask": np.zeros((8, 8), np.uint8), "name": "a"})
    assert html(fr.Reader(tmp_path / "t.frec")).count("<img ") == 1
    data = fr.FastRecordDataset(tmp_path / "t.frec", fields=["x"])
    assert ">sample</th>" in html(data)
    assert "Number of datapoints: 1" in repr(data)


def test_a_notebook_shows_both(packed: Path) -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    for shown in (fr.Reader(packed), fr.FastRecordDataset(packed)):
        found, _ = formatters.DisplayFormatter().format(shown)
        assert "<img " in found["text/html"]
        assert found["text/plain"] == repr(shown)
