"""WebDataset: tar archives whose members are the fields of samples, and plain tar of class folders.

Formats: the tar formats that `fastrecord.interchange.files.tar` names, and the conventions of the
webdataset library (https://github.com/webdataset/webdataset, "The WebDataset Format"): the key of a
member is its path up to the first dot of its last part, what follows is the extension; neighbours
of one key are one sample. The library is not needed.

Keys go out as they are as far as a tar archive can name them. The rest is written as %XX, the
bytes of its UTF-8 in hexadecimal: the dots of the last part (the library would take them for the
start of the extension), percent signs, slashes at the beginning, at the end and after another
slash, parts that are "." or "..", NUL, and the first underscore of a key that begins with two; an
empty key is "%". An archive of ours says so in its first member, `__fastrecord__/card.json`, which
the library passes over.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from fastrecord._core import image_size
from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Refusal
from fastrecord.interchange.files.contents import (
    IMAGE_ENDINGS,
    as_bits,
    as_floats,
    content,
    ending,
    from_bytes,
    npy_array,
    npy_bytes,
)
from fastrecord.interchange.files.output import OutputDestination
from fastrecord.interchange.files.tar import BLOCK, TarReader, tar_header
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.infer import SAMPLE, first_few, renamed, type_of
from fastrecord.interchange.paths import expand
from fastrecord.interchange.source import Bad, Rows, ShardedSource, Source, SourceField, gather
from fastrecord.schema import FieldType, Schema
from fastrecord.schema.infer import common_type

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_CARD_NAME = f"{CARD}/card.json"
_META = re.compile(r"__[^/]*__(/|$)")
_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_KEY, _LABEL = "__key__", "label"
_PADDING = bytes(BLOCK)
# A sample that is being read: its key, its values by field, and what is wrong with it.
_Sample: TypeAlias = tuple[str, dict[str, memoryview | None], str | None]


class TarSource(ShardedSource):
    """The samples of archives.

    Attributes:
        folders: Whether each member is an image, and the name of its folder its label.
    """

    _card: Card | None = None

    def __init__(self, paths: Sequence[str], settings: Mapping[str, str]) -> None:
        super().__init__(paths)
        self.folders = False
        self._marker = settings.get("end_marker") != "optional"
        self._ignore_extras = settings.get("extras") == "ignore"
        # Extension -> name of the field; "*" ends the one of images, and stands for "jpg", "png" ...
        self._names: dict[str, str] = {}
        samples = [sample for sample in first_few(self._samples(0, None)) if sample[2] is None]
        if self._card is None or not self._describe_by_card(self._card):
            self._card = None
            if not samples:
                raise Code.SOURCE.error(f"{paths[0]}: record 0: none of the first {SAMPLE} samples can be read")
            in_folders = all("/" in key and [*map(_image_base, values)] != [None] for key, values, _ in samples)
            in_folders = in_folders and all(len(values) == 1 for _, values, _ in samples)
            # Members of a folder are counted in another way than the fields of samples.
            self.firsts = [0]
            self.folders = settings.get("layout", "folders" if in_folders else "webdataset") == "folders"
            self._describe(samples)

    def read_as(self, name: str, kind: FieldType) -> bool:
        """Take numbers as the texts that they are in the archive."""
        text = kind.name == "string" and self._card is None and name.rpartition(".")[2] in _NUMBERS
        if text:
            self.fields = [replace(field, type=kind) if field.name == name else field for field in self.fields]
        return text

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield samples; headers before `start` are read, payloads are not."""
        yield from gather(self._records(start, names), start, names)

    def _describe_by_card(self, card: Card) -> bool:
        """Set the fields to the ones of an export of ours; return False if the card is not whole."""
        extensions, keyed = card.more.get("extensions"), bool(card.more.get("key"))
        if not isinstance(extensions, dict) or {*extensions, *(("key",) if keyed else ())} != {*card.schema}:
            return False
        self.metadata = {name: value for name, value in card.metadata.items() if name != "classes"}
        self.classes = card.metadata.get("classes")
        self._names = {extension: name for name, extension in extensions.items()}
        self.fields = [
            SourceField(name, kind, f"files *.{extensions[name]}")
            if name in extensions
            else SourceField(_KEY, kind, "names of the members", "key")
            for name, kind in card.schema.items()
        ]
        return True

    def _describe(self, first: Sequence[_Sample]) -> None:
        """Find the fields and their types by the first samples."""
        key = SourceField(_KEY, FieldType("string"), "paths of members")
        if self.folders:
            image = SourceField("image", FieldType("image"), "members of the archive")
            self.fields = [image, SourceField(_LABEL, FieldType("string"), "folders of the members"), *renamed([key])]
            return
        # Images of one sample, such as a.jpg and a.png, are fields of their own; else the extension
        # of an image may change from sample to sample.
        split = set[str]()
        for _, sample, _ in first:
            bases = [base for base in map(_image_base, sample) if base is not None]
            split |= {base for base in bases if bases.count(base) > 1}
        values: dict[str, dict[str, list[Any]]] = {}
        for _, sample, _ in first:
            for extension, value in sample.items():
                base = _image_base(extension)
                field = extension if base is None or base in split else f"{base}*"
                values.setdefault(field, {}).setdefault(extension, []).append(value)
        if values.keys() <= {"tar", "tar.gz", "tgz"}:
            raise Code.SOURCE.error(
                f"{self.paths[0]}: it holds only other archives, such as {first[0][0]}.{next(iter(values))}: unpack it "
                "once, and import the archives in it"
            )
        fields = []
        for field, found in values.items():
            name = next(iter(found))
            self._names[field] = name
            kind = _type_of(name, [value for part in found.values() for value in part], self.paths[0])
            fields.append(SourceField(name, kind, f"files {', '.join(f'*.{extension}' for extension in found)}"))
        labels = [field.name for field in fields if field.name.rpartition(".")[2] in ("cls", "class")]
        self.fields = renamed([*fields, key], labels)

    def _records(self, start: int, names: Sequence[str]) -> Iterator[Sequence[Any] | Bad]:
        types = {field.name: field.type for field in self.fields}
        parsers = {name: self._parser(name, types[name]) for name in names}
        whole = not self._ignore_extras and not self.folders and set(names) >= set(types)
        for key, values, wrong in self._samples(start, set(names)):
            if wrong is None and whole and len(values) > len(self._names):
                other = next(name for name in values if name not in types)
                wrong = (
                    f"it has a member *.{other}, but the first samples have none: `--set extras=ignore` leaves it out"
                )
            if wrong is not None:
                yield Bad(f"{key!r}: {wrong}")
                continue
            record = []
            for name, parser in parsers.items():
                try:
                    record.append(parser(key, values.get(name)))
                except (ValueError, RecursionError) as err:
                    yield Bad(f"{key!r}: *.{name}: {err}")
                    break
            else:
                yield record

    def _parser(self, name: str, kind: FieldType) -> Callable[[str, memoryview | None], Any]:
        if name == _KEY:
            return (lambda key, _: key) if self._card is None else lambda key, _: _unquoted(key)
        if name == _LABEL and self.folders:
            return lambda key, _: key.split("/")[-2]
        parse = _parse_function(kind)

        def parse_member(_: str, value: memoryview | None) -> Any:
            if value is None:
                raise ValueError("the sample has no such member: `--map` leaves the field out")
            return value if parse is None else parse(value)

        return parse_member

    def _samples(self, start: int, names: AbstractSet[str] | None) -> Iterator[_Sample]:
        """Yield samples from number `start` on.

        Args:
            start: The number.
            names: The fields whose contents are wanted; None: all members, by extension.
        """
        for _, sample in self.runs(start, partial(self._archive, names)):
            yield sample

    def _archive(self, names: AbstractSet[str] | None, path: str, skipped: int) -> Iterator[tuple[int, _Sample | None]]:
        """Yield the samples of an archive, None for the ones that are skipped.

        A sample is whole only when the next one begins: an error comes instead of the last one.
        """
        with TarReader(path, marker=self._marker) as archive:
            for sample in self._members(names, archive, skipped):
                yield 1, sample if skipped <= 0 else None
                skipped -= 1

    def _members(self, names: AbstractSet[str] | None, archive: TarReader, skipped: int) -> Iterator[_Sample]:
        """Yield the samples of an archive, without contents the ones that are skipped."""
        current: str | None = None
        values: dict[str, memoryview | None] = {}
        wrong: str | None = None
        folders = self.folders
        fields: dict[str, str] = {}
        while archive.next():
            name = archive.name.removeprefix("./")
            if archive.kind == b"5" or (name.startswith("__") and _META.match(name)):
                if name == _CARD_NAME and names is None and self._card is None:
                    self._card = Card.from_json(bytes(archive.data()))
                continue
            stem, dot, extension = name[name.rfind("/") + 1 :].partition(".")
            if not stem or not (dot or folders):
                continue
            key = name if folders else name[: -len(extension) - 1]
            if key != current:
                if current is not None:
                    yield current, values, wrong
                    skipped -= 1
                current, values, wrong = key, {}, None
            if folders:
                field = "image"
            elif names is None:
                field = extension.lower()
            else:
                field = fields.get(extension) or fields.setdefault(extension, self._field(extension.lower()))
            if archive.kind != b"0":
                wrong = f"the member {name!r} is {_kind(archive)}, not a file"
            elif field in values:
                wrong = f"it has two members {f'*.{extension}' if not folders else 'of this name'}"
            elif not name.isascii() and not _is_utf8(name):
                wrong = "its name is not UTF-8"
            elif folders and ("/" not in name or _image_base(extension.lower()) is None):
                wrong = "it is not an image in a folder, as the first members are"
            if skipped <= 0 and (names is None or field in names) and wrong is None:
                values[field] = archive.data()
            else:
                values[field] = None
                archive.skip()
        if current is not None:
            yield current, values, wrong

    def _field(self, extension: str) -> str:
        """Return the field of an extension; images of several extensions may be one field."""
        base = _image_base(extension)
        name = self._names.get(extension) or self._names.get(f"{base}*")
        return name or extension


class TarDestination(OutputDestination):
    """Archives that are being written, as ustar, or pax for long names and others than ASCII."""

    _last: str | None = None

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        schema = card.schema
        self._keyed = "key" in schema and schema["key"].name == "string"
        extensions = _extensions({name: kind for name, kind in schema.items() if name != "key" or not self._keyed})
        self._card = replace(card, more={"key": self._keyed, "extensions": extensions}).to_json().encode()
        self._fields = [(name, schema[name], extension) for name, extension in extensions.items()]
        self.begin(path)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append records as samples."""
        count = len(next(iter(columns.values())))
        keys = [_quoted(key) for key in columns["key"]] if self._keyed else [f"{start + i:09d}" for i in range(count)]
        files = [_files(columns[name], kind, extension) for name, kind, extension in self._fields]
        for at, (key, *members) in enumerate(zip(keys, *files, strict=True)):
            if key == self._last:
                raise Code.CANNOT_HOLD.error(
                    f"record {start + at}, field key: {columns['key'][at]!r} is also the key of the record before it, "
                    "so that both would be one sample",
                    way_out="leave the keys out with `--drop key`",
                )
            self._last = key
            for extension, data in members:
                self._member(f"{key}.{extension}", data)
        self._out.flush()

    def close(self) -> None:
        """Write the end of the archive: zeros up to a whole record of 20 blocks."""
        self._out.write(bytes(2 * BLOCK + -(self._out.size + 2 * BLOCK) % (20 * BLOCK)))
        super().close()

    def begin(self, path: str) -> None:
        """Begin a file."""
        super().begin(path)
        self._last = None
        self._member(_CARD_NAME, self._card)

    def _member(self, name: str, data: bytes | memoryview) -> None:
        self._out.write(tar_header(name, len(data)), data, _PADDING[: -len(data) % BLOCK])


def _image_base(extension: str) -> str | None:
    """Return an extension of images without its last part: "seg" of "seg.png"; None for others."""
    base, _, last = extension.rpartition(".")
    return base if last in IMAGE_ENDINGS else None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(archive: TarReader) -> str:
    kinds = {b"1": "a hard link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "sparse"}
    kind = kinds.get(archive.kind, f"of the unknown type {archive.kind!r}")
    return f"{kind} to {archive.link!r}" if archive.kind in b"12" else kind


def _type_of(extension: str, values: Sequence[Any], where: str) -> FieldType:
    """Return the type of the members of an extension, by their contents."""
    last = extension.rpartition(".")[2]
    if last in IMAGE_ENDINGS:
        return FieldType("image" if any(image_size(value) is not None for value in values) else "bytes")
    if last in _TEXTS:
        return FieldType("string")
    if last in ("json", "jsn"):
        return FieldType("json")
    if last in _NUMBERS:
        numbers = _parsed(_number, values)
        return (common_type(numbers) if 2 * len(numbers) > len(values) else None) or FieldType("string")
    arrays = _parsed(npy_array, values) if last == "npy" else []
    return type_of(arrays if 2 * len(arrays) > len(values) else values, extension, where)


def _parsed(parse: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return what can be parsed of the values."""
    found = []
    for value in values:
        with suppress(ValueError):
            found.append(parse(bytes(value)))
    return found


def _number(data: bytes | memoryview) -> int | float:
    """Return a finite number that is written in decimal digits."""
    text = bytes(data).strip()
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a number, as most others are: `--type` with string takes all as text")
    return int(text) if text.lstrip(b"+-").isdigit() else float(text)


def _parse_function(kind: FieldType) -> Callable[[memoryview], Any] | None:
    """Return what makes a value of the content of a member; None: the content is the value."""
    if kind.name in ("image", "bytes"):
        return None
    if kind.name in ("string", "json"):
        return from_bytes(kind)
    if kind.name == "array":
        return npy_array if kind.dtype != "bfloat16" else lambda data: as_bits(npy_array(data))
    if kind.name.startswith("complex"):
        return lambda data: complex(npy_array(data)[()])
    if "int" in kind.name:
        return _number
    if "float" in kind.name:
        return lambda data: float(bytes(data))
    return lambda data: json.loads(bytes(data))


def _extensions(fields: Mapping[str, FieldType]) -> dict[str, str]:
    """Return the extension of each field, "*" for the part that the content of an image decides."""
    extensions: dict[str, str] = {}
    for name, kind in fields.items():
        own = _NAME_CODED.sub(_percent, name).lower()
        if kind.name == "image":
            base = "" if own in IMAGE_ENDINGS or own == "image" else _image_base(own)
            extension = f"{own if base is None or f'{base}*' in extensions.values() else base}*"
        else:
            last = own.rpartition(".")[2]
            usual, others = _usual(name, kind)
            extension = own if last in (usual, *others) else f"{own}.{usual}" if usual != "cls" else usual
        if extension in extensions.values():
            extension = f"{own}.{extension}"
        extensions[name] = extension
    return extensions


def _usual(name: str, kind: FieldType) -> tuple[str, Collection[str]]:
    """Return the usual extension for a field, and others with the same meaning."""
    if kind.name == "string":
        return "txt", _TEXTS
    if kind.name == "bytes":
        return "bin", _BINARY
    if kind.name == "array" or kind.name.startswith("complex"):
        return "npy", ()
    if "int" in kind.name:
        return "cls" if name == _LABEL else "json", _NUMBERS
    return "json", ("jsn",) if kind.name == "json" else ()


def _files(values: Sequence[Any], kind: FieldType, extension: str) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield extension and content of the members of one field."""
    if kind.name == "image":
        base = f"{extension[:-1]}." if extension != "*" else ""
        for value in values:
            shown = ending(bytes(value[:16]))[1:]
            yield f"{base}{shown if shown != 'bin' else 'img'}", value
    elif kind.name in ("bytes", "string", "json", "array"):
        for value in values:
            yield extension, content(value, kind)[0]
    elif kind.name.startswith("complex"):
        for value in values:
            yield extension, npy_bytes(np.asarray(value))
    else:
        numbers = as_floats(np.asarray(values)) if kind.name == "bfloat16" else values
        for value in numbers.tolist() if isinstance(numbers, np.ndarray) else numbers:
            yield extension, json.dumps(value, ensure_ascii=False).encode()


_KEY_CODED = re.compile(r"[%\x00-\x1f\x7f]|^/|(?<=/)/|/$|^_(?=_)|(?<![^/])\.{1,2}(?=/)|\.(?=[^/]*$)")
_BINARY = frozenset(["pkl", "pickle", "pyd", "npz", "pth", "mp", "msgpack", "cbor", "mp3", "mp4", "wav", "flac", "avi"])
_NAME_CODED = re.compile(r"[%/\x00-\x1f\x7f*]")


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{ord(char):02X}" for char in found[0])


def _quoted(key: str) -> str:
    """Return a key as the name of a member; the module says how."""
    return _KEY_CODED.sub(_percent, key) or "%"


def _unquoted(key: str) -> str:
    return urllib.parse.unquote(key, errors="strict") if key != "%" else ""


class TarFormat(Format):
    """WebDataset, and plain tar."""

    name = "webdataset"
    destination = TarDestination
    title = "WebDataset (tar)"
    stored = True
    suffixes = _SUFFIXES
    settings: Mapping[str, Setting] = {
        "layout": Setting(
            "What the members are: `webdataset`, fields of samples; `folders`, images in folders, whose names are the "
            "labels. By default `folders` if the first samples are single images in folders",
            ("webdataset", "folders"),
        ),
        "end_marker": Setting(
            "Whether an archive must end with a block of zeros; without it, one that was cut short may look whole",
            ("required", "optional"),
        ),
        "extras": Setting(
            "What a sample is that has members of other extensions than the first samples: `bad`, or `ignore` them",
            ("bad", "ignore"),
        ),
    }

    def recognise(self, found: Found) -> str | None:
        """Return why something is a tar archive."""
        if found.head[257:262] == b"ustar":
            return "it begins with a tar header"
        if found.path.lower().endswith(_SUFFIXES[1:]):
            return f"its name ends like the name of a compressed tar archive, {found.suffix}"
        if found.suffix == ".tar" and found.head[:BLOCK].count(0) in (0, BLOCK) and len(found.head) in (0, 4096):
            return "its name ends in .tar, though it is empty"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open archives, in order."""
        return TarSource(expand(source, _SUFFIXES), settings)

    def refuse(self, schema: Schema) -> Refusal:
        """Return lists whose items are not JSON, and names that differ only in case."""
        refused, seen = {}, dict[str, str]()
        for name, kind in schema.items():
            if kind.item is not None and kind.item.name in ("image", "bytes", "array", "complex64", "complex128"):
                refused[name] = f"a list of {kind.item} cannot be JSON"
            other = seen.setdefault(name.lower(), name)
            if other != name:
                refused[name] = f"as an extension, which has no capitals, it is the same as the field {other!r}"
        return refused
