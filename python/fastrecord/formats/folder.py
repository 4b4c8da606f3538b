"""A folder of images, in folders of their classes, as `fastrecord pack` and torchvision's ImageFolder read it.

A file's path is CLASS/KEY, or the key alone where it begins with CLASS/, as the keys of
`fastrecord pack` do. A key without an extension gets one that fits the image, unless
`fastrecord pack` made the key of a file's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastrecord.errors import Code
from fastrecord.interchange import Destination, Format, Found, Refusal
from fastrecord.interchange.card import Card
from fastrecord.interchange.files.contents import ending
from fastrecord.interchange.files.folders import Folder, has_ending, shown, wrong_name
from fastrecord.schema import Schema


class FolderDestination(Destination):
    """A folder that is being filled.

    Args:
        path: The folder.
        card: One image, and maybe label and key; "classes", if labels have names.
        settings: None.
    """

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        schema, metadata = card.schema, card.metadata
        self._image = _image(schema) or ""
        self._keyed, self._labelled = "key" in schema, "label" in schema
        names = metadata.get("classes")
        self._classes = list(map(str, names)) if isinstance(names, list) else None
        if self._labelled and self._classes is None and schema["label"].name != "string":
            raise Code.CANNOT_HOLD.error(
                "field label: its numbers have no names, which the folders would have: name them with "
                "`fastrecord.files.set_metadata(path, classes=[...])`, or `--drop label`"
            )
        for name in (self._classes or ()) if self._labelled else ():
            _check_class(name, f"class {shown(name)}")
        self._packed = "packs" in metadata
        self._folder = Folder(path, set(), overwrite=False)
        for name in (self._classes or ()) if self._labelled else ():
            # A class without records keeps its folder, and so the others their numbers.
            os.makedirs(os.path.join(path, name), exist_ok=True)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a file for each record."""
        labels = columns["label"] if self._labelled else None
        for at, data in enumerate(columns[self._image]):
            number = start + at
            suffix = ending(bytes(data[:16]))
            key = columns["key"][at] if self._keyed else f"{number:09d}{suffix}"
            name = key if self._packed or has_ending(key) else f"{key}{suffix}"
            if labels is not None:
                folder = self._class(number, labels[at])
                name = name if name.startswith(f"{folder}/") else f"{folder}/{name}"
            wrong = wrong_name(name)
            if wrong is not None:
                raise Code.CANNOT_HOLD.error(
                    f"record {number}, field key: {shown(key)} {wrong}: `--drop key` numbers the files"
                )
            try:
                self._folder.write(key, name, data)
            except FileExistsError as err:
                raise Code.CANNOT_HOLD.error(
                    f"record {number}, field key: another record has the file {shown(name)} already, or one whose name "
                    "this file system takes for the same: `--drop key` numbers the files"
                ) from err

    def close(self) -> None:
        """Sync all files."""
        self.abort()
        # One call for all: a sync for each of many small files takes minutes.
        os.sync()

    def abort(self) -> None:
        """Leave the folder as it is."""
        self._folder.__exit__()

    def _class(self, number: int, label: Any) -> str:
        if self._classes is None or isinstance(label, str):
            name = str(label)
            _check_class(name, f"record {number}, field label: {shown(name)}")
            return name
        if not 0 <= label < len(self._classes):
            raise Code.CANNOT_HOLD.error(
                f"record {number}, field label: {label} has no name among {len(self._classes)} classes: `--drop label`"
            )
        return self._classes[int(label)]


def _check_class(name: str, what: str) -> None:
    if "/" in name or wrong_name(name) is not None:
        raise Code.CANNOT_HOLD.error(f"{what} cannot name a folder: `--drop label` leaves the folders out")


def _image(schema: Schema) -> str | None:
    """Return the field of images: `image`, or the first one."""
    images = [name for name, kind in schema.items() if kind.name == "image"]
    return "image" if "image" in images else images[0] if images else None


class FolderFormat(Format):
    """A folder of images."""

    name = "folder"
    destination = FolderDestination
    title = "a folder of images"
    reads = False
    writes = True

    def recognise(self, found: Found) -> str | None:  # noqa: ARG002 - folders are packed, not imported
        """Return None: `fastrecord pack` reads folders."""
        return None

    def refuse(self, schema: Schema) -> Refusal:
        """Return all but one image, the label and the key."""
        image = _image(schema)
        if image is None:
            return dict.fromkeys(schema, "a folder holds images, and there is no field of them")
        refused = {}
        for name, kind in schema.items():
            if name == "label" and kind.name != "string" and "int" not in kind.name:
                refused[name] = f"a label of {kind} cannot name a folder"
            elif name == "key" and kind.name != "string":
                refused[name] = f"a key of {kind} cannot name a file"
            elif name not in (image, "label", "key"):
                refused[name] = "a file holds one image, its folder the label, and its name the key"
        return refused

    def several_files(self, *, sharded: bool) -> bool:  # noqa: ARG002 - a folder is not divided
        """Return False."""
        return False


FORMATS = [FolderFormat()]
