"""What a notebook shows of a file or a data set: counts, fields and a strip of images."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from fastrecord._core import FastRecordError, Reader, image_size
from fastrecord.look.pictures import make_picture, may_be_picture
from fastrecord.look.values import short_text
from fastrecord.schema import Schema
from fastrecord.schema.roles import read_key

# Images of a strip, and bytes of one.
_IMAGES = 8
_IMAGE_BYTES = 6_000
# What a value may have at most to be read and decoded for the strip.
_VALUE_BYTES, _VALUE_PIXELS = 16 << 20, 1 << 25
_NAMED = 5
_WIDTH = 24


# A title of one line, facts (names and texts), the fields, and some records that may have images.
Outline: TypeAlias = tuple[str, Sequence[tuple[str, str]], Schema, Iterable[tuple[Reader, int]]]


def reader_html(reader: Reader) -> str | None:
    """Return HTML for a reader; None if it cannot be read: a notebook then shows its `repr`."""
    return notebook_html(
        lambda: (
            f"Reader of {reader.path}",
            [("records", f"{len(reader):,}"), *class_facts(reader.metadata.get("classes"))],
            reader.schema,
            [(reader, record) for record in spread(len(reader))],
        )
    )


def notebook_html(outline: Callable[[], Outline]) -> str | None:
    """Return HTML for an outline; None if it cannot be made: a notebook then shows the `repr`.

    Reads a few records, whatever the size of the data set.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow's about damaged metadata
            return _html(*outline())
    except Exception:  # noqa: BLE001  an error here would hide the object, even its text
        return None


def spread(total: int) -> list[int]:
    """Return a few numbers below `total`, at equal distances."""
    count = min(total, _IMAGES)
    return [i * total // count for i in range(count)]


def class_facts(classes: object) -> list[tuple[str, str]]:
    """Return the fact about class names; none without names."""
    if not isinstance(classes, list) or not classes:
        return []
    more = ", ..." if len(classes) > _NAMED else ""
    return [("classes", f"{len(classes):,}: {', '.join(map(str, classes[:_NAMED]))}{more}")]


def _html(title: str, facts: Sequence[tuple[str, str]], schema: Schema, records: Iterable[tuple[Reader, int]]) -> str:
    rows = [*facts, *((name, str(kind)) for name, kind in schema.items())]
    cell = "text-align:left;padding:1px 16px 1px 0;vertical-align:top"
    table = "".join(
        f'<tr><th style="{cell};font-weight:{600 if i < len(facts) else 400}">{html.escape(name)}</th>'
        f'<td style="{cell}">{html.escape(text)}</td></tr>'
        for i, (name, text) in enumerate(rows)
    )
    strip = "".join(_tile(reader, record) for reader, record in records)
    return (
        f'<div><strong>{html.escape(title)}</strong><table style="border-collapse:collapse;margin:4px 0">'
        f'{table}</table><div style="display:flex;flex-wrap:wrap;gap:8px">{strip}</div></div>'
    )


def _tile(reader: Reader, record: int) -> str:
    """Return the first image of a record with a caption; nothing if it has none."""
    for name, kind in reader.schema.items():
        if not may_be_picture(kind):
            continue
        try:
            if kind.nbytes is None and int(reader.lengths(name, [record])[0]) > _VALUE_BYTES:
                continue
            value = reader.get(record, name, copy=True)
            width, height = image_size(value) or (0, 0) if kind.name in ("image", "bytes") else (0, 0)
            picture = make_picture(value, kind, _IMAGE_BYTES) if width * height <= _VALUE_PIXELS else None
        except (FastRecordError, OSError) as error:
            shown = (
                f'<div style="width:112px;height:112px;overflow:hidden;font-size:10px">{html.escape(str(error))}</div>'
            )
        else:
            if picture is None:
                continue
            shown = f'<img src="{picture.url}" style="width:112px;height:112px;object-fit:contain;margin:0">'
        caption = html.escape(_caption(reader, record))
        return f'<figure style="margin:0;width:112px;font-size:11px;overflow:hidden">{shown}<br>{caption}</figure>'
    return ""


def _caption(reader: Reader, record: int) -> str:
    """Return a record's class, or else its label, its key or its number."""
    kind = reader.schema.get("label")
    if kind is not None:
        try:
            label, classes = reader.get(record, "label"), reader.metadata.get("classes")
        except (FastRecordError, OSError):
            return f"record {record:,}"
        if isinstance(classes, list) and isinstance(label, int) and 0 <= label < len(classes):
            return str(classes[label])[:_WIDTH]
        return short_text(label, kind, _WIDTH)
    key = read_key(reader, record)
    return f"record {record:,}" if key is None else key[-_WIDTH:]
