from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from tests.support.commands import failed, good


@pytest.fixture
def path(tmp_path: Path) -> Path:
    types = {
        "key": fr.string(),
        "data": fr.bytes_(),
        "a": fr.array("float32", (None, 3)),
        "b": fr.array("bfloat16", (2,)),
        "half": fr.FieldType("bfloat16"),
        "z": fr.FieldType("complex64"),
        "tags": fr.list_(fr.string()),
        "flag": fr.FieldType("bool"),
        "about": fr.json(),
    }
    with fr.Writer(tmp_path / "h.frec", fr.Schema(types)) as writer:
        for i in range(8):
            writer.append(
                {
                    "key": f"line\n{i} " + "x" * 200 * (i == 1),
                    "data": bytes(range(20)),
                    "a": np.full((4, 3), i / 3, np.float32),
                    "b": np.array([0x3FC0, 0x4000], np.uint16),
                    "half": 1.5,
                    "z": 1 + 2j,
                    "tags": [f"t{n}" for n in range(10)],
                    "flag": True,
                    "about": {"n": None},
                }
            )
    return tmp_path / "h.frec"


def test_the_first_records_show_all_fields_in_short(path: Path) -> None:
    lines = good("head", path).splitlines()
    assert [line for line in lines if line.startswith("record")] == [f"record {i}" for i in range(5)]
    assert lines[1:10] == [
        "  key    line\\n0 ",
        "  data   20 B: 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f",
        "  a      float32 4 x 3: 0, 0, 0, 0, 0, 0, 0, 0, ...",
        "  b      bfloat16 2: 1.5, 2",
        "  half   1.5",
        "  z      (1+2j)",
        "  tags   10 items: t0, t1, t2, t3, t4, t5, t6, t7, ...",
        "  flag   True",
        '  about  {"n": null}',
    ]
    assert len(lines[11]) <= 9 + 100 + 1
    assert lines[11].endswith("\\u2026") or lines[11].endswith("…")


def test_json_has_an_object_per_record(path: Path) -> None:
    found = [json.loads(line) for line in good("head", path, "-n", 2, "--json").splitlines()]
    assert [one["record"] for one in found] == [0, 1]
    assert found[1]["key"] == "line\n1 " + "x" * 200
    assert found[0]["data"] == {"bytes": 20, "starts": bytes(range(16)).hex(" ")}
    assert found[0]["a"] == {"dtype": "float32", "shape": [4, 3], "values": [0.0] * 8}
    assert found[0]["b"]["values"] == [1.5, 2.0]
    assert found[0]["z"] == [1.0, 2.0]
    assert found[0]["tags"] == {"items": 10, "values": [f"t{n}" for n in range(8)]}
    assert (found[0]["flag"], found[0]["about"]) == (True, {"n": None})


def test_images_show_their_format_and_size(packed: Path) -> None:
    first = json.loads(good("head", packed, "-n", 1, "--json"))
    reader = fr.Reader(packed)
    size = {"width": int(reader.column("image.width")[0]), "height": int(reader.column("image.height")[0])}
    assert first["image"] == {"bytes": int(reader.lengths("image")[0]), "format": first["image"]["format"], **size}
    assert (first["label"], first["class"]) == (0, "cat")
    assert "  label  0 (cat)\n" in good("head", packed, "-n", 1)
    assert f"{size['width']} x {size['height']}" in good("head", packed, "-n", 1)


def test_more_records_than_there_are_is_no_error(packed: Path, tmp_path: Path) -> None:
    assert good("head", packed, "-n", 100).count("record ") == 12
    assert good("head", packed, "-n", 0) == ""
    failed("head", packed, "-n", -1, status=2)
    assert "nothing" in failed("head", tmp_path / "nothing")
