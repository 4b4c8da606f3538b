"""What a format of other tools implements, so that `fastrecord import` and `export` know it.

A package adds its own format by the entry point group `fastrecord.formats`: the entry's name is the
name of the format, and the entry is an instance of `Format`.
"""

from fastrecord.interchange.card import Card
from fastrecord.interchange.destination import Destination, Refusal
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.infer import common_type, infer_fields, most, most_images, usual_type
from fastrecord.interchange.libraries import library
from fastrecord.interchange.source import Bad, Rows, ShardedSource, Source, SourceField, gather

__all__ = [
    "Bad",
    "Card",
    "Destination",
    "Format",
    "Found",
    "Refusal",
    "Rows",
    "Setting",
    "ShardedSource",
    "Source",
    "SourceField",
    "common_type",
    "gather",
    "infer_fields",
    "library",
    "most",
    "most_images",
    "usual_type",
]
