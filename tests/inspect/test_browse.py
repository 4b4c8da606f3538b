"""The file that `fastrecord browse` writes; test_browse_page.py opens it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from tests.conftest import write_images
from tests.support.commands import failed, good
from tests.support.pictures import save


def contents(page: Path) -> dict[str, Any]:
    """Return the JSON of a page, read as a browser does: up to the first end tag."""
    found = re.search(
        rb'<script id="data" type="application/json">(.*?)</script', page.read_bytes(), re.DOTALL | re.IGNORECASE
    )
    assert found is not None
    about: dict[str, Any] = json.loads(found[1])
    return about


def records(page: Path) -> list[int]:
    return [item["record"] for item in contents(page)["items"]]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    return write_images(tmp_path / "many.frec", [i % 3 for i in range(60)], ["cat", "dog", "owl"])


def test_records_are_chosen_by_class_condition_and_seed(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.html"

    def chosen(*options: object) -> list[int]:
        good("browse", many, "-o", out, "--overwrite", *options)
        return records(out)

    assert chosen() == list(range(60))
    assert chosen("--class", "dog") == list(range(1, 60, 3))
    assert chosen("--where", "label == 'dog' and key in ('many/4', 'many/5')") == [4]
    assert chosen("--class", "owl", "--where", "label == 0 or key == 'many/5'") == [5]
    some = chosen("--n", 7)
    assert len(set(some)) == 7
    assert some == sorted(some)
    assert some == chosen("--n", 7)
    assert some != chosen("--n", 7, "--seed", 1)
    assert contents(out)["chosen"] == "7 of 60 records, at random with seed 1."


def test_the_histogram_counts_all_records_that_match(many: Path, tmp_path: Path) -> None:
    good("browse", many, "-o", tmp_path / "p.html", "--n", 3, "--where", "key < 'many/2'")
    counts = {one["name"]: one["records"] for one in contents(tmp_path / "p.html")["classes"]}
    assert sum(counts.values()) == 12
    assert counts["dog"] == 5


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--class", "cow"), "FR421"),
        (("--where", "label == 'cow'"), "FR427"),
        (("--where", "open('x')"), "FR427"),
        (("--where", "label > 7"), "FR726"),
        (("--where", "nothing == 1"), "FR407"),
    ],
)
def test_wrong_conditions_are_errors_and_leave_no_file(
    many: Path, tmp_path: Path, options: tuple[str, str], code: str
) -> None:
    assert f"[{code}]" in failed("browse", many, "-o", tmp_path / "p.html", *options)
    assert os.listdir(tmp_path) == ["many.frec"]


def test_a_class_needs_labels(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "x.frec", fr.Schema({"x": "int8"})) as writer:
        writer.append({"x": 1})
    assert "[FR425]" in failed("browse", tmp_path / "x.frec", "-o", tmp_path / "p.html", "--class", "cat")


def test_an_existing_page_stays_unless_it_is_to_be_replaced(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.html"
    out.write_text("mine")
    assert "--overwrite" in failed("browse", packed, "-o", out)
    assert out.read_text() == "mine"
    good("browse", packed, "-o", out, "--overwrite")
    assert out.read_bytes().startswith(b"<!doctype html>")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, text in (("folder", "Is a directory"), ("no/p.html", "No such file"), ("pipe", "FR744")):
        assert text in failed("browse", packed, "-o", tmp_path / name, "--overwrite")


def test_a_failed_write_leaves_the_old_page(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "p.html"
    out.write_text("mine")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert f"{out}: No space left" in failed("browse", packed, "-o", out, "--overwrite")
    assert out.read_text() == "mine"
    assert os.listdir(tmp_path) == ["p.html"]


def test_the_page_has_the_name_of_the_file_and_lies_here(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert good("browse", packed).startswith("train.html: 12 of 12 matching records, ")
    (tmp_path / "train.html").unlink()
    assert good("browse", packed.parent / "tr*.frec").startswith("train.html: ")
    about = json.loads(good("browse", packed, "--overwrite", "--json"))
    assert about == {
        "out": "train.html", "records": 12, "matching": 12, "shown": 12, "damaged": 0,
        "bytes": (tmp_path / "train.html").stat().st_size,
    }  # fmt: skip


def test_several_files_are_one_page(many: Path, tmp_path: Path) -> None:
    fr.files.split(many, tmp_path / "part.frec", shards=3)
    more = write_images(tmp_path / "more.frec", [0, 1], ["owl", "yak"])
    summary = fr.inspect.browse([tmp_path / "part-*.frec", more], tmp_path / "p.html")
    assert (summary.records, summary.shown) == (62, 62)
    page = contents(tmp_path / "p.html")
    assert {one["name"]: one["records"] for one in page["classes"]} == {"cat": 20, "dog": 20, "owl": 21, "yak": 1}
    assert page["items"][-1]["label"] == "yak"
    assert page["items"][-1]["place"] == "record 1 of more.frec"


def test_noise_of_any_number_of_records_stays_below_the_limit(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    image = save(Image.fromarray(noise), "JPEG", quality=95)
    text = "</script>\u2028\x01猫" * 300
    schema = fr.Schema(
        {"image": fr.image(), "mask": fr.array("uint8", (64, 64)), **{f"t{i}": fr.string() for i in range(3)}}
    )
    with fr.Writer(tmp_path / "n.frec", schema) as writer:
        for _ in range(300):
            writer.append({"image": image, "mask": noise[:64, :64, 0], **{f"t{i}": text for i in range(3)}})
    for n in (1, 300):
        summary = fr.inspect.browse(tmp_path / "n.frec", tmp_path / "p.html", n=n, overwrite=True)
        assert summary.bytes < 5_000_000
        assert summary.bytes == (tmp_path / "p.html").stat().st_size
        shown = [one["shown"][0] for item in contents(tmp_path / "p.html")["items"] for one in item["pictures"]]
        assert len(shown) == 2 * n
    assert "encoded again" in contents(tmp_path / "p.html")["note"]


def test_a_page_asks_for_nothing_from_outside(packed: Path, tmp_path: Path) -> None:
    fr.inspect.browse(packed, tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert "default-src 'none'; img-src data:" in page
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?https?:|url\(|@import|https?://", page) == []
    for mark in ("HASH", "TITLE", "DATA<"):
        assert mark not in page


@pytest.mark.parametrize("n", [0, 2001])
def test_a_wrong_number_of_records_is_refused(packed: Path, tmp_path: Path, n: int) -> None:
    with pytest.raises(ValueError, match="n is from 1 to 2000"):
        fr.inspect.browse(packed, tmp_path / "p.html", n=n)


def test_looking_needs_no_torch(packed: Path, tmp_path: Path) -> None:
    script = (
        "import sys, fastrecord as fr\n"
        "fr.inspect.browse(sys.argv[1], sys.argv[2], where='label == 1')\n"
        "fr.inspect.stats(sys.argv[1])\n"
        "assert fr.inspect.diff(sys.argv[1], sys.argv[1]).same\n"
        "fr.Reader(sys.argv[1])._repr_html_()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(packed), str(tmp_path / "p.html")], check=True)
