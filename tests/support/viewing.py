"""Files with numbered records, and checks of a view's records, shared by the view tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import encode

CLASSES = ["ant", "bee", "cat"]
COUNT = 40
LABELS = [number * 7 % 3 for number in range(COUNT)]
SCORES = [(number * 37 % 41) / 8 for number in range(COUNT)]
SCHEMA = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string(), "score": "float64", "blob": fr.bytes_()})


def write(path: Path, numbers: range, classes: list[str] = CLASSES) -> Path:
    """Write numbered records, with the number in the key."""
    with fr.Writer(path, SCHEMA, metadata={"classes": classes}) as writer:
        for number in numbers:
            label = classes.index(CLASSES[LABELS[number]])
            values = {"image": encode(number), "key": f"{number:03d}", "score": SCORES[number], "blob": b"b"}
            writer.append({**values, "label": label})
    return path


def numbers(view: fr.FastRecordDataset) -> list[int]:
    """Return the original numbers of a view's records, from their keys."""
    return [int(key) for key, _ in view.samples]


def check(view: fr.FastRecordDataset, expected: list[int]) -> None:
    """Check all that a view reports about its records."""
    n = len(expected)
    assert len(view) == n
    assert numbers(view) == expected
    assert view.targets.tolist() == [LABELS[number] for number in expected]
    assert view.column("score").tolist() == [SCORES[number] for number in expected]
    assert view.column("key").tolist() == [f"{number:03d}" for number in expected]
    samples = [(encode(number), LABELS[number]) for number in expected]
    assert view.__getitems__(range(n)) == samples
    rows = view.rows(range(n))
    assert rows.dtype == np.int64
    for index in [0, -1, n // 2] if n else []:
        assert view[index] == samples[index]
        assert view.key(index) == f"{expected[index]:03d}"
        shard, record = view.locate(index)
        assert view.readers[shard][record]["key"] == view.key(index)
        assert view.samples[index] == (view.key(index), samples[index][1])
    for index in (n, -n - 1):
        with pytest.raises(IndexError, match=f"index {index} is out of range: the data set has {n}"):
            view[index]
