"""`Format`: a format of other tools, and how its sources are recognised."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastrecord.interchange.card import Card
from fastrecord.interchange.source import Source
from fastrecord.interchange.stored import inside, is_folder, is_stored, names_in, open_file
from fastrecord.schema import Schema

if TYPE_CHECKING:  # what reads needs no numpy
    from fastrecord.interchange.destination import Destination, Refusal

_HEAD = 4096
_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """What lies at a path, for a first look.

    Attributes:
        path: The path; the first one if a pattern or a list names several.
        head: The first bytes of the file, at most 4,096; empty for a folder.
        names: The names in the folder, sorted, at most 10,000; empty for a file.
    """

    path: str
    head: bytes = b""
    names: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return is_folder(self.path)

    def inside(self, name: str) -> Found:
        """Look at something in the folder."""
        return Found.at(inside(self.path, name))

    @property
    def suffix(self) -> str:
        """The end of the path's name from its last dot on, in lower case: ".tar"; or ""."""
        return os.path.splitext(self.path)[1].lower()

    @classmethod
    def at(cls, path: str) -> Found:
        """Look at a path.

        Raises:
            OSError: the path cannot be read.
        """
        if is_stored(path) and is_folder(path):
            return cls(path, names=tuple(names_in(path)[:_LISTED]))
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                names = [entry.name for entry, _ in zip(entries, range(_LISTED), strict=False)]
            return cls(path, names=tuple(sorted(names)))
        with open_file(path) as file:
            return cls(path, head=file.read(_HEAD))


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a format, as `--set NAME=VALUE`.

    Attributes:
        help: What it does.
        choices: The values that it may have; empty: any text.
        recorded: Whether the metadata of a packed file has it. A resumed pack needs the same value then.
    """

    help: str
    choices: tuple[str, ...] = ()
    recorded: bool = True


class Format(ABC):
    """A format of other tools. An instance is the whole description, without state.

    Attributes:
        name: Its name, as in `--format`.
        title: Its name for people.
        settings: Its settings, by name.
        stored: Whether sources may be URLs of stores: every file is opened by `stored.open_file`.
        destination: Makes a destination of its path, schema and metadata, and settings; None: records
            only come in.
        shards: Whether `--shard-size` makes an export a folder of several files: `Destination.next_shard`
            begins another one when the values of a file would exceed that size. A format that divides
            its records itself has a setting "shard_size" instead, of bytes as decimal digits.
        suffixes: Ends of the names of its files, such as ".tar", for a folder or a pattern that
            holds several. The first one ends the names of shards that are written.
    """

    name: str
    title: str
    stored: bool = False
    settings: Mapping[str, Setting] = {}
    destination: Callable[[str, Card, Mapping[str, str]], Destination] | None = None
    shards: bool = True
    suffixes: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether records go out to it."""
        return self.destination is not None

    def check_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return settings given by a caller.

        Raises:
            ValueError: a name is unknown, or a value is not among its choices.
        """
        for name, value in settings.items():
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise ValueError(f"{self.title} has no setting {name!r}: its settings are {known}")
            choices = self.settings[name].choices
            if choices and value not in choices:
                raise ValueError(f"the setting {name!r} of {self.title} is one of {', '.join(choices)}, not {value!r}")
        return dict(settings)

    @abstractmethod
    def recognise(self, found: Found) -> str | None:
        """Return why something is of this format ("it begins with a tar header"), or None.

        Must not need the format's library, and read no more than `found` holds and a few small
        files beside.
        """

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open a source.

        Args:
            source: A path, a pattern as `interchange.paths.expand` takes it, or several of them.
            settings: Values of `settings`, checked.

        Raises:
            FastRecordError: it is not a good source of this format; `Code.SOURCE.error(...)`.
            OSError: it cannot be read.
        """
        raise NotImplementedError

    def refuse(self, schema: Schema) -> Refusal:
        """Return the fields that this format cannot hold: name -> why. Empty if it holds all."""
        raise NotImplementedError

    def create(
        self, path: str, schema: Schema, metadata: Mapping[str, object], settings: Mapping[str, str]
    ) -> Destination:
        """Create the file or the folder `path`, which does not exist, for records of `schema`.

        Args:
            path: A path in a temporary folder, with the name that the destination has in the end:
                what is there is renamed once all has been written.
            schema: The fields; the format can hold all of them.
            metadata: The metadata of the .frec file, with "classes" if labels have names.
            settings: Values of `settings`, checked.
        """
        if self.destination is None:
            raise NotImplementedError
        return self.destination(path, Card(schema, dict(metadata)), settings)
