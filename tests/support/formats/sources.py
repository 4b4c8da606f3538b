"""A format of the tests, whose records are made by rule, and whose sources are small text files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrecord.errors import Code
from fastrecord.interchange import Bad, Format, Found, Rows, Setting, Source, SourceField, gather, registry
from fastrecord.schema import FieldType, array
from tests.conftest import encode

IMAGES = [encode(seed) for seed in range(7)]

NAMES = "cat", "ant", "bee"


def write_source(path: Path, records: int, **rules: Any) -> Path:
    """Write a source.

    Args:
        path: The file.
        records: Number of records.
        rules: "bad": numbers of unreadable records; "end": number at which the source is cut short;
            "keys": key by number; "classes"; "values": x by number; "image": image bytes by number.
    """
    path.write_text(json.dumps({"records": records, **rules}))
    return path


def value(number: int) -> dict[str, Any]:
    """Return a record as it must arrive."""
    return {
        "image": IMAGES[number % 7],
        "x": [float(number)] * 3,
        "label": sorted(NAMES).index(NAMES[number % 3]),
        "count": number,
        "key": f"k{number}",
    }


class Made(Source):
    fields = (
        SourceField("jpg", FieldType("image"), "made", rename="image"),
        SourceField("x", array("float32", (3,)), "made"),
        SourceField("cls", FieldType("string"), "made", rename="label"),
        SourceField("count", FieldType("int64"), "made"),
        SourceField("__key__", FieldType("string"), "made", rename="key"),
    )

    def __init__(self, path: str, counted: bool) -> None:
        self.paths = [path]
        self.rules = json.loads(Path(path).read_text())
        self.counted = counted
        self.metadata = {"note": "from the source"}

    def count(self) -> int | None:
        return int(self.rules["records"]) if self.counted else None

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        return gather(map(self._record(names), range(start, self.rules["records"])), start, names)

    def _record(self, names: Sequence[str]) -> Any:
        rules: dict[str, Any] = self.rules

        def record(number: int) -> Sequence[Any] | Bad:
            if number == rules.get("end"):
                raise Code.SOURCE.error(f"{self.paths[0]}: record {number}: the file is cut short")
            if number in rules.get("bad", ()):
                return Bad("its CRC is wrong")
            text = str(number)
            values = {
                "jpg": rules.get("images", {}).get(text, "").encode() or IMAGES[number % 7],
                "x": np.full(rules.get("lengths", {}).get(text, 3), number, np.float32),
                "cls": NAMES[number % 3],
                "count": rules.get("counts", {}).get(text, number),
                "__key__": rules.get("keys", {}).get(text, f"k{number}"),
            }
            return [values[name] for name in names]

        return record


class MadeFormat(Format):
    name, title = "made", "made by the tests"
    settings: Mapping[str, Setting] = {"counted": Setting("Whether the number of records is known.", ("yes", "no"))}

    def recognise(self, found: Found) -> str | None:
        return 'it begins with {"records"' if found.head.startswith(b'{"records"') else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        assert isinstance(source, str)
        return Made(source, settings.get("counted", "yes") == "yes")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the format, as an installed package would."""

    class Entry:
        dist = None

        def load(self) -> Format:
            return MadeFormat()

    monkeypatch.setattr(registry, "_others", lambda: {"made": Entry()})
