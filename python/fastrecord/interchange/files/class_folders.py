"""`FolderDestination`: a folder of images, in folders of their classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastrecord.errors import Code
from fastrecord.interchange.destination import Destination
from fastrecord.interchange.files.contents import ending
from fastrecord.interchange.files.folders import Folder, has_ending, shown, wrong_name
from fastrecord.names import as_name
from fastrecord.schema import Schema
from fastrecord.schema.roles import image_field


class FolderDestination(Destination):
    """A folder that is being filled.

    Args:
        path: The folder.
        schema: One image, and maybe label and key.
        metadata: With "classes", if labels have names.
    """

    def __init__(self, path: str, schema: Schema, metadata: Mapping[str, object]) -> None:
        self._image = image_field(schema) or ""
        self._keyed, self._labelled = "key" in schema, "label" in schema
        names = metadata.get("classes")
        self._classes = list(map(str, names)) if isinstance(names, list) else None
        if self._labelled and self._classes is None and schema["label"].name != "string":
            raise Code.CANNOT_HOLD.error(
                "field label: its numbers have no names, which the folders would have",
                way_out="name them with `fastrecord.files.set_metadata(path, classes=[...])`, or `--drop label`",
            )
        for name in (self._classes or ()) if self._labelled else ():
            _check_class(name, f"class {shown(name)}")
        self._packed = "packs" in metadata
        self._folder = Folder(path, set(), overwrite=False)
        for name in (self._classes or ()) if self._labelled else ():
            # A class without records keeps its folder, and so the others their numbers.
            os.makedirs(os.path.join(path, as_name(name)), exist_ok=True)

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
                    f"record {number}, field key: {shown(key)} {wrong}",
                    way_out="`--drop key` numbers the files",
                )
            try:
                self._folder.write(key, name, data)
            except FileExistsError as err:
                raise Code.CANNOT_HOLD.error(
                    f"record {number}, field key: another record has the file {shown(name)} already, or one whose name "
                    "this file system takes for the same",
                    way_out="`--drop key` numbers the files",
                ) from err

    def close(self) -> None:
        """Leave the folder as it is."""
        self.abort()

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
                f"record {number}, field label: {label} has no name among {len(self._classes)} classes",
                way_out="`--drop label`",
            )
        return self._classes[int(label)]


def _check_class(name: str, what: str) -> None:
    if "/" in name or wrong_name(name) is not None:
        raise Code.CANNOT_HOLD.error(f"{what} cannot name a folder", way_out="`--drop label` leaves the folders out")
