"""A folder of images, in folders of their classes, as `fastrecord pack` and torchvision's ImageFolder read it.

A file's path is CLASS/KEY, or the key alone where it begins with CLASS/, as the keys of
`fastrecord pack` do. A key without an extension gets one that fits the image, unless
`fastrecord pack` made the key of a file's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastrecord.interchange.card import Card
from fastrecord.interchange.files.csv_list import ListedFiles
from fastrecord.interchange.files.image_files import list_folder
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.source import Source
from fastrecord.interchange.stored import is_stored, store_of
from fastrecord.schema import Schema
from fastrecord.schema.roles import image_field

if TYPE_CHECKING:
    from fastrecord.interchange.destination import Destination, Refusal


def _destination(path: str, card: Card, settings: Mapping[str, str]) -> Destination:  # noqa: ARG001
    from fastrecord.interchange.files.class_folders import FolderDestination  # with numpy

    return FolderDestination(path, card.schema, card.metadata)


class FolderFormat(Format):
    """A folder of images."""

    name = "folder"
    title = "a folder of images"
    destination = staticmethod(_destination)
    shards = False
    stored = True
    settings: Mapping[str, Setting] = {
        "list": Setting(
            "a CSV file that names the files to store, in its order, with the columns path, and label (a number) or "
            "class (a name) or neither; a header may name more columns, which become fields",
            recorded=False,
        ),
        "allow_empty_classes": Setting("keep class folders without files as classes", ("yes", "no"), recorded=False),
    }

    def recognise(self, found: Found) -> str | None:  # noqa: ARG002 - any folder could be one
        """Return None: `registry.recognise` takes a folder of folders for one that has no other format."""
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """List the files."""
        if not isinstance(source, str):
            raise ValueError("one folder of class folders is packed: give one")
        keep, listed = settings.get("allow_empty_classes") == "yes", settings.get("list")
        if listed is not None:
            if keep:
                raise ValueError("a list has no class folders: leave out allow_empty_classes")
            if is_stored(source):
                raise ValueError(f"{source}: a list names files of this machine: leave out list")
            return ListedFiles(source, os.fspath(listed))
        if is_stored(source):
            from fastrecord.interchange.files.stored_files import StoredFiles

            return StoredFiles(store_of(source), allow_empty_classes=keep)
        return list_folder(source, allow_empty_classes=keep)

    def refuse(self, schema: Schema) -> Refusal:
        """Return all but one image, the label and the key."""
        image = image_field(schema)
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
