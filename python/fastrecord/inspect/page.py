"""`browse`: one HTML page with some records of a data set. Reads the records; the page is page.html."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, Reader, default_threads, permute
from fastrecord.checks import WORD, integer
from fastrecord.dataset.manifest import NAME, folder_of
from fastrecord.dataset.selection import Selection
from fastrecord.dataset.shards import Paths, Shards, find_files
from fastrecord.dataset.where import find_matching
from fastrecord.errors import Code
from fastrecord.files.places import refuse_irregular
from fastrecord.files.publish.staging import Staging
from fastrecord.inspect.findings import Answer
from fastrecord.look.pictures import make_picture, may_be_picture
from fastrecord.look.values import short_text
from fastrecord.names import readable
from fastrecord.schema import FieldType
from fastrecord.schema.roles import KEY, lies_in_index, plain
from fastrecord.store import is_url
from fastrecord.store.threads import Threads
from fastrecord.terminal import bytes_text

MOST_RECORDS = 2000
_PAGE_BYTES = 5_000_000
# Bytes of the page besides images and texts of records: the program, class names.
_FRAME_BYTES = 200_000
# Values whose text the page holds, bytes of all their texts, and characters of the longest.
_MOST_VALUES = 100_000
_TEXT_BYTES = 2_400_000
_TEXT_WIDTH = 600
# Pictures of one record, bytes of the largest one, and what each takes besides.
_PICTURES = 4
_PICTURE_BYTES = 500_000
_PICTURE_FRAME = 150
# Classes of the histogram, and characters of a name.
_CLASSES = 2000
_NAME = 100


@dataclass(frozen=True, slots=True)
class BrowseSummary(Answer):
    """What a page shows.

    Attributes:
        out: The page.
        records: Records of the data set.
        matching: Records that meet the conditions.
        shown: Records in the page.
        damaged: Records in the page with a value that cannot be read or decoded.
        bytes: Size of the page.
    """

    out: str
    records: int
    matching: int
    shown: int
    damaged: int
    bytes: int


def browse(
    path: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    n: int = 200,
    class_name: str | None = None,
    where: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> BrowseSummary:
    """Write one HTML page that shows some records: images, labels, keys and all other fields.

    The page is one file of less than 5 MB, holds all that it shows, and needs no network. Images
    are encoded again, as small as that takes; fewer records have larger images. A value that is
    damaged appears as its error.

    Args:
        path: A .frec file, a folder of them, a glob pattern, or a sequence of these.
        out: The page. It gets its name when it is complete. Default: the name of the file or folder
            with .html, here.
        n: Maximum number of records, 1 to 2,000, chosen at random. Fewer records get larger images.
        class_name: Only records of this class.
        where: Only records that meet this condition, such as "label == 3 and image.width > 500".
        seed: Chooses the records, in [0, 2**64).
        overwrite: Replace `out` if it exists.

    Raises:
        FileNotFoundError: nothing is at the path.
        FileExistsError: `out` exists.
        FastRecordError: no record meets the conditions.
        SchemaError: the condition cannot be parsed, or the class or a field does not exist.
        CorruptFileError: a file is not a valid .frec file, or its index is damaged.
    """
    n, seed = integer("n", n, 1, MOST_RECORDS + 1), integer("seed", seed, 0, WORD)
    target = f"{_name_of(path)}.html" if out is None else os.fspath(out)
    refuse_irregular(target)
    with Staging(target, overwrite=overwrite) as staging, contextlib.closing(Shards.open(path)) as shards:
        selection = _select(shards, class_name, where)
        items = _Items(shards, _sample(selection, n, seed), selection)
        page = _page(_contents(shards, selection, items, class_name=class_name, where=where, seed=seed))
        staging.write(page)
    return BrowseSummary(target, len(shards), len(selection), len(items.items), items.damaged, len(page))


def _name_of(path: Paths) -> str:
    """Return the name of the first file, or of a data set's folder."""
    first = path if isinstance(path, (str, os.PathLike)) else path[0]
    file = first["path"] if isinstance(first, Mapping) else os.fspath(first)
    if is_url(file):
        return folder_of(file).name.removesuffix(".frec")
    name = os.path.abspath(os.path.expanduser(file))
    if os.path.basename(name) == NAME:
        name = os.path.dirname(name)
    return os.path.basename(name if os.path.isdir(name) else find_files(file)[0]).removesuffix(".frec")


def _select(shards: Shards, class_name: str | None, where: str | None) -> Selection:
    first = shards.readers[0]
    whole = selection = Selection.whole(shards)
    label = whole.label_field
    if class_name is not None:
        if label is None:
            raise Code.NO_LABELS.error(f"{first.path}: a class is asked for, but no field 'label' holds classes")
        try:
            selection = selection.filter(label, "==", class_name if whole.labels.classes else int(class_name))
        except (TypeError, ValueError) as error:
            raise Code.UNKNOWN_CLASS.error(f"{first.path}: {error}") from error
    if where is not None:
        selection = find_matching(selection, where)
    if not len(selection):
        raise Code.NOTHING_FOUND.error(f"{first.path}: none of its {len(shards):,} records matches")
    return selection


def _sample(selection: Selection, n: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of some records at random, in order, int64 (n,)."""
    total = len(selection)
    if n >= total:
        return selection.take(np.arange(total))
    return selection.take(np.sort(permute(total, seed, 0, np.arange(n, dtype=np.int64))))


class _Items:
    """The chosen records as the page's program takes them.

    Attributes:
        fields: Name and type of each field of any file.
        classes: Number, name and records of each class, largest first; empty without classes.
        items: The records.
    """

    def __init__(self, shards: Shards, rows: NDArray[np.int64], selection: Selection) -> None:
        self._shards, self._selection = shards, selection
        schemas = [reader.schema for reader in shards.distinct]
        self.fields = {name: plain(kind) for schema in reversed(schemas) for name, kind in schema.items()}
        self._rows = rows = rows[: max(_MOST_VALUES // max(len(self.fields), 1), 1)]
        pictures = [name for name, kind in self.fields.items() if may_be_picture(kind)]
        pictures.sort(key=lambda name: ("image", "bytes", "array").index(self.fields[name].name))
        self._pictures = pictures[:_PICTURES]
        room = _TEXT_BYTES // max(len(rows) * len(self.fields), 1)
        self._width = min(max((room - len('{"text":""},')) // 2, 5), _TEXT_WIDTH)
        numbers, self.classes = self._labelled()
        places = {one["number"]: place for place, one in enumerate(self.classes)}
        for shard, _, records in shards.split(rows):
            if shards.supply(shard) is not None:  # at once what would come one by one
                for name, kind in shards.readers[shard].schema.items():
                    if not lies_in_index(kind):
                        shards.readers[shard].prefetch(records, name)
        with contextlib.closing(Threads(default_threads(), "fastrecord-page")) as threads:
            self.items = threads.map(self._item, rows.tolist())
            for item, number in zip(self.items, numbers, strict=True):
                if number is not None:
                    self._label(item, places[number])
            # base64 makes four bytes of three.
            left = (_PAGE_BYTES - _FRAME_BYTES - len(as_json(self.items))) * 3 // 4
            most = left // max(len(rows), 1) - _PICTURE_FRAME * len(self._pictures)
            with warnings.catch_warnings(action="ignore"):  # Pillow's about damaged metadata
                threads.map(lambda row, item: self._add_pictures(row, item, most), rows.tolist(), self.items)

    @property
    def damaged(self) -> int:
        """Number of records with a value that cannot be read or decoded."""
        return sum(any("error" in one for one in [*item["values"], *item["pictures"]]) for item in self.items)

    @property
    def longest_side(self) -> int | None:
        """The longest side of the pictures that are smaller than their values, in pixels; None: there are none."""
        pictures = [one for item in self.items for one in item["pictures"] if "url" in one]
        return max((max(one["shown"]) for one in pictures if one["shown"][0] < one["width"]), default=None)

    def _labelled(self) -> tuple[list[int | None], list[dict[str, Any]]]:
        """Return the class number of each chosen record, and all classes; neither if labels are damaged."""
        nothing: tuple[list[int | None], list[dict[str, Any]]] = [None] * len(self._rows), []
        field, labels = self._selection.label_field, self._selection.labels
        if field is None or labels.are_arrays:
            return nothing
        try:
            numbers, column = labels.of(self._rows).tolist(), self._selection.column(field)
        except FastRecordError:
            return nothing
        if column.dtype.kind == "f":
            return nothing
        known, names = set(numbers), labels.classes
        found, counts = np.unique(column, return_counts=True)
        classes: list[dict[str, Any]] = []
        for at in np.argsort(-counts, kind="stable").tolist():
            number = int(found[at])
            if len(classes) < _CLASSES or number in known:
                name = names[number] if 0 <= number < len(names) else str(number)
                classes.append({"number": number, "name": name[:_NAME], "records": int(counts[at])})
        return numbers, classes

    def _label(self, item: dict[str, Any], place: int) -> None:
        """Add the class of a record, also to the text of its label field."""
        name = self.classes[place]["name"]
        item |= {"class": place, "label": name}
        text = item["values"][list(self.fields).index(str(self._selection.label_field))]
        if text.get("text", name) != name:
            text["text"] += f" ({name})"

    def _item(self, row: int) -> dict[str, Any]:
        reader, record = self._located(row)
        schema = reader.schema
        values: list[dict[str, str]] = []
        key, size = None, 0
        for name, kind in self.fields.items():
            if name not in schema or plain(schema[name]) != kind:
                values.append({})
                continue
            try:
                value = reader.get(record, name, verify=True, copy=True)
            except (FastRecordError, OSError, MemoryError) as error:
                values.append({"error": self._fitting(_reason(error), 300)})
                continue
            values.append({"text": self._fitting(short_text(value, kind, self._width), self._width)})
            size += _stored(value, kind)
            if name == KEY and kind.name == "string":
                key = values[-1]["text"]
        where = f"record {record:,}"
        if len(self._shards.readers) > 1:
            where += f" of {os.path.basename(reader.path)}"
        return {
            "record": record,
            "place": where,
            "key": key,
            "size": bytes_text(size),
            "values": values,
            "pictures": [],
        }

    def _add_pictures(self, row: int, item: dict[str, Any], most: int) -> None:
        """Add the pictures of a record, of at most `most` bytes all together."""
        reader, record = self._located(row)
        texts = dict(zip(self.fields, item["values"], strict=True))
        found: list[dict[str, Any]] = []
        # The last ones first: small masks leave their share to the image.
        for others, name in reversed(list(enumerate(self._pictures))):
            if "text" not in texts[name]:
                found += [{"field": name, **texts[name]}] if texts[name] else []
                continue
            try:
                share = min(most // (others + 1), _PICTURE_BYTES)
                picture = make_picture(reader.get(record, name, copy=True), self.fields[name], share)
            except (FastRecordError, OSError, MemoryError) as error:
                found.append({"field": name, "error": _reason(error)[:300]})
                continue
            if picture is not None:
                most -= len(picture.url) * 3 // 4
                found.append({"field": name, **asdict(picture)})
        item["pictures"] = found[::-1]
        if found and "url" in found[-1]:
            item["size"] = f"{found[-1]['width']} x {found[-1]['height']}, {item['size']}"

    def _located(self, row: int) -> tuple[Reader, int]:
        shard, record = self._shards.locate(row)
        return self._shards.readers[shard], record

    def _fitting(self, text: str, width: int) -> str:
        """Return a text, cut if it takes more than twice its width in the page: escapes are long."""
        while (taken := len(as_json(text))) > 2 * width + 2:
            text = text[: max(len(text) * 2 * width // taken - 1, 0)]
        return text


def as_json(value: Any) -> bytes:
    """Return JSON that may stand in a script element: nothing in it ends the element or starts a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A str may hold half a surrogate pair, which UTF-8 lacks.
    return text.encode("utf-8", "replace")


def _reason(error: BaseException) -> str:
    if isinstance(error, FastRecordError):
        error.path = None  # the page names it
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__


def _stored(value: Any, kind: FieldType) -> int:
    """Return the bytes of a value, roughly for JSON and lists."""
    if kind.name in ("image", "bytes"):
        return len(value)
    if kind.name == "array":
        return int(value.nbytes)
    if kind.nbytes is not None:
        return kind.nbytes
    return len(str(value))


def _contents(
    shards: Shards, selection: Selection, items: _Items, *, class_name: str | None, where: str | None, seed: int
) -> dict[str, Any]:
    """Return all that the page's program shows."""
    names = [os.path.basename(reader.path) for reader in shards.readers]
    more = f" and {len(names) - 1:,} more files" if len(names) > 1 else ""
    shown, matching = len(items.items), len(selection)
    conditions = [f"class {class_name}"] * (class_name is not None) + [f"where {where}"] * (where is not None)
    chosen = f"{shown:,} of {matching:,} records" if shown < matching else f"All {matching:,} records"
    if conditions:
        chosen += f" ({', '.join(conditions)}; {len(shards):,} in all)"
    if shown < matching:
        chosen += f", at random with seed {seed}"
    note = "Images of this page are as they are stored."
    if items.longest_side is not None:
        note = (
            f"Images are encoded again with at most {items.longest_side:,} pixels a side, so that this page stays "
            f"below {bytes_text(_PAGE_BYTES)}; fewer records (--n) get larger images."
        )
    if not any(item["pictures"] for item in items.items):
        note = ""
    return {
        "title": readable(f"{names[0]}{more}"),
        "chosen": f"{chosen}.",
        "note": note,
        "fields": [{"name": name, "type": str(kind)} for name, kind in items.fields.items()],
        "classes_title": f"{len(items.classes):,} classes" + (" among these records" if conditions else ""),
        "classes": items.classes,
        "items": items.items,
    }


def _page(contents: dict[str, Any]) -> bytes:
    page = files("fastrecord.inspect").joinpath("page.html").read_text(encoding="utf-8")
    for name, mark in (("style", "STYLE-HASH"), ("script", "SCRIPT-HASH")):
        inner = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)[-1]
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        page = page.replace(mark, f"sha256-{digest}", 1)
    page = page.replace("TITLE", html.escape(contents["title"]), 1)
    head, tail = page.encode().split(b">DATA<", 1)
    return b">".join([head, as_json(contents)]) + b"<" + tail
