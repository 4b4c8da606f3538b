"""`Manifest`: which shards a data set has, and what they share (docs/manifest.md).

Turns bytes into a manifest and back; the bytes may come from anywhere. Opens no shard.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from fastrecord._core import crc32c
from fastrecord.errors import Code
from fastrecord.names import as_key, as_name
from fastrecord.schema import Schema
from fastrecord.schema.roles import plain
from fastrecord.store import is_url
from fastrecord.store.address import Url
from fastrecord.store.failures import NO_STORE, ON_THE_WAY
from fastrecord.store.shard_info import ShardInfo

NAME: Final = "dataset.json"
_FORMAT, _VERSION = "fastrecord-dataset", 1
_OWN = ("format", "version", "generation", "schema", "classes", "shards", "crc")
_FILE_IDS = re.compile(r"[0-9a-f]*")
# What follows the bytes that the checksum is of, and how long it is at most.
_CRC_BYTES = 32
_CRC = re.compile(rb',\n "crc": (\d+)\n}\n\Z')
_BAD_NAME = re.compile(r"[/\\\x00\n]")


@dataclass(frozen=True, slots=True)
class ShardEntry(ShardInfo):
    """One shard, as a manifest names it.

    Attributes:
        classes: Its class names, position = label, or None.
    """

    classes: list[str] | None


_COLUMNS = tuple(column.name for column in fields(ShardEntry))
_NUMBERS = ("commit", "records", "bytes", "footer_crc")


@dataclass(frozen=True)
class Manifest:
    """The shards of a data set, in the order of its records.

    Attributes:
        schema: The fields of every shard, without their compression.
        classes: The different lists of class names that shards have. A data set that grows may have
            several.
        columns: The values of all shards for each attribute of `ShardEntry`, by its name; for
            `classes`, the position of its list in `classes`, or None. Besides, columns that this
            version does not know.
        generation: 1 for the first manifest of a folder, one more for each that replaces it.
        extra: Keys that this version does not know.
    """

    schema: Schema
    classes: list[list[str]]
    columns: dict[str, list[Any]]
    generation: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[ShardEntry], schema: Schema) -> Self:
        """Return the first manifest of some shards."""
        made = cls(Schema({name: plain(kind) for name, kind in schema.items()}), [], {})
        return made.with_shards(list(entries))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Return the manifest that some bytes hold.

        Args:
            data: All bytes of a `dataset.json`.
            where: Where they are from, for error messages.

        Raises:
            UnsupportedVersionError: a newer fastrecord has written it.
            CorruptFileError: it breaks a rule of docs/manifest.md.
        """
        if is_url(where) and data.lstrip()[:1] != b"{":
            what = "a web page" if data.lstrip().startswith(b"<") else f"{len(data):,} bytes that are not JSON"
            raise Code.BAD_MANIFEST.error(f"{where}: {NO_STORE.format(what)}")
        end = max(0, len(data) - _CRC_BYTES)
        if (crc := _CRC.search(data, end)) is not None and int(crc[1]) != crc32c(data[: crc.start()]):
            raise _bad(where, 'is damaged: its "crc" is not that of the bytes before it')
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as err:
            raise _bad(where, f"is not JSON: {err}") from None
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise _bad(where, f'its "format" is not "{_FORMAT}"')
        version = found.get("version")
        if type(version) is not int or version < 1:
            raise _bad(where, f'its "version" is {version!r:.40}')
        if version > _VERSION:
            raise Code.VERSION.error(
                f"{where}: has version {version}, and this fastrecord reads up to {_VERSION}: upgrade fastrecord"
            )
        generation = found.get("generation")
        if type(generation) is not int or generation < 1:
            raise _bad(where, f'its "generation" is {generation!r:.40}, not a number from 1')
        classes = _classes(found.get("classes"), where)
        return cls(
            _schema(found.get("schema"), where),
            classes,
            _columns(found.get("shards"), len(classes), where),
            generation,
            {key: value for key, value in found.items() if key not in _OWN},
        )

    def dump(self) -> bytes:
        """Return the bytes of a `dataset.json`, the same in every locale."""
        own = {
            "format": _FORMAT,
            "version": _VERSION,
            "generation": self.generation,
            "schema": self.schema._to_rows(),
            "classes": self.classes,
        }
        # One line for each key and column: people and `git diff` read it.
        lines = [f"{json.dumps(key)}: {_dumps(value)}" for key, value in (own | self.extra).items()]
        shards = self.columns | {"name": list(map(as_key, self.columns["name"]))}
        columns = ",\n  ".join(f"{json.dumps(name)}: {_dumps(values)}" for name, values in shards.items())
        lines.append(f'"shards": {{\n  {columns}\n }}')
        body = ("{\n " + ",\n ".join(lines)).encode()
        return body + b',\n "crc": %d\n}\n' % crc32c(body)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.columns["name"])

    @property
    def records(self) -> int:
        """The records of all shards."""
        return sum(self.columns["records"])

    def entries(self) -> list[ShardEntry]:
        """Return all shards, in order; equal class names are one list."""
        columns = {
            **self.columns,
            "classes": [None if at is None else self.classes[at] for at in self.columns["classes"]],
        }
        return [ShardEntry(*values) for values in zip(*(columns[name] for name in _COLUMNS), strict=True)]

    def with_shards(self, entries: Sequence[ShardEntry]) -> Self:
        """Return a manifest of these shards, with everything else as it is.

        A shard that was named before keeps its values of unknown columns; a new one has null there.
        """
        columns: dict[str, list[Any]] = {name: [getattr(entry, name) for entry in entries] for name in _COLUMNS}
        lists: list[list[str]] = []
        for at, names in enumerate(columns["classes"]):
            if names is not None:
                # Neighbours mostly have the same ones, and comparing one object with itself is quick.
                columns["classes"][at] = place = next((i for i, one in enumerate(lists) if one == names), len(lists))
                lists += [names] if place == len(lists) else []
        before = {name: at for at, name in enumerate(self.columns.get("name", []))}
        places = [before.get(entry.name) for entry in entries]
        for name, values in self.columns.items():
            if name not in columns:
                columns[name] = [None if at is None else values[at] for at in places]
        return replace(self, columns=columns, classes=lists)


def folder_of(url: str) -> Url:
    """Return the folder that a URL names by itself or by its manifest."""
    found = Url(url)
    return found.folder if found.name == NAME else found


def read_manifest(folder: str) -> Manifest | None:
    """Return the manifest of a folder, or None if it has none.

    Raises:
        CorruptFileError: it is damaged. UnsupportedVersionError: a newer fastrecord has written it.
    """
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            return Manifest.parse(file.read(), path)
    except FileNotFoundError:
        return None


def _dumps(value: Any) -> str:
    # In ASCII: a file name may hold bytes that are not UTF-8, which Python keeps as lone surrogates.
    return json.dumps(value, separators=(",", ":"))


def _bad(where: str, what: str) -> Exception:
    way = "remove it, and `fastrecord manifest` makes another from the shards"
    if is_url(where):
        way = f"{ON_THE_WAY}, and run the command again; if the object itself is damaged, {way}"
    return Code.BAD_MANIFEST.error(f"{where}: {what}: {way}")


def _schema(rows: Any, where: str) -> Schema:
    try:
        schema = Schema._from_rows(rows)
        repr(schema)  # reaches every part of each type
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as err:
        raise _bad(where, f'its "schema" is not a list of fields ({err!r:.80})') from None
    if len(schema) != len(rows) or not schema:
        raise _bad(where, 'its "schema" has no field, or names one twice')
    return schema


def _classes(lists: Any, where: str) -> list[list[str]]:
    def are_names(names: Any) -> bool:
        return isinstance(names, list) and not set(map(type, names)) - {str} and len(set(names)) == len(names)

    if not isinstance(lists, list) or not all(map(are_names, lists)):
        raise _bad(where, 'its "classes" are not a list of lists of distinct names')
    return lists


def _columns(columns: Any, classes: int, where: str) -> dict[str, list[Any]]:
    if not isinstance(columns, dict) or not all(isinstance(values, list) for values in columns.values()):
        raise _bad(where, 'its "shards" are not an object of lists')
    if lacking := [name for name in _COLUMNS if name not in columns]:
        raise _bad(where, f'its "shards" lack {", ".join(lacking)}')
    if len(set(map(len, columns.values()))) != 1:
        raise _bad(where, 'the lists in its "shards" have different lengths')
    names, ids = columns["name"], columns["file_id"]
    for name in ("name", "file_id", *_NUMBERS):
        kind: type = int if name in _NUMBERS else str
        if set(map(type, columns[name])) - {kind}:
            raise _bad(where, f'"{name}" of its "shards" holds something else than {kind.__name__}')
        if kind is int and min(columns[name], default=0) < 0:
            raise _bad(where, f'"{name}" of its "shards" holds a negative number')
    numbers = set(columns["classes"]) if set(map(type, columns["classes"])) <= {int, type(None)} else {-1}
    if not numbers <= {None, *range(classes)}:
        raise _bad(where, '"classes" of its "shards" holds something else than positions in its "classes" and null')
    if max((*columns["records"], *columns["bytes"]), default=0) >= 1 << 62:
        raise _bad(where, 'a number in its "shards" is too large')
    if set(map(len, ids)) - {32} or not _FILE_IDS.fullmatch("".join(ids)):
        raise _bad(where, '"file_id" of its "shards" holds something else than 32 hexadecimal digits')
    try:
        columns["name"] = names = list(map(as_name, names))
    except UnicodeEncodeError as err:
        raise _bad(where, f"{err.object!r:.80} is not the name of a file") from None
    if len(set(names)) != len(names):
        raise _bad(where, "it names a shard twice")
    first: dict[str, str] = {}
    for name, one in zip(names, ids, strict=True):
        if first.setdefault(one, name) != name:
            raise _bad(where, f"it names one shard twice, as {first[one]!r} and as {name!r}")
    # A manifest may come from elsewhere: it leads to no file outside its folder.
    if wrong := [name for name in names if not name.endswith(".frec") or _BAD_NAME.search(name)]:
        raise _bad(where, f"{wrong[0]!r:.80} is not the name of a .frec file in its folder")
    return columns


def is_one_file(path: str) -> bool:
    """Return whether a FILE is a file by itself, and not a folder, manifest or pattern of files."""
    if is_url(path):
        return Url(path).is_file
    if os.path.basename(path) == NAME or os.path.isdir(os.path.expanduser(path)):
        return False
    return not glob.has_magic(path) or os.path.exists(path)
