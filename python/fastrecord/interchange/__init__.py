"""What a format of other tools implements, so that `fastrecord import` and `export` know it.

A package adds its own format by the entry point group `fastrecord.formats`: the entry's name is the
name of the format, and the entry is an instance of `Format`.
"""

from typing import TYPE_CHECKING

from fastrecord.lazy import lazily

if TYPE_CHECKING:
    from fastrecord.interchange.card import Card as Card
    from fastrecord.interchange.destination import Destination as Destination
    from fastrecord.interchange.destination import Refusal as Refusal
    from fastrecord.interchange.format import Format as Format
    from fastrecord.interchange.format import Found as Found
    from fastrecord.interchange.format import Setting as Setting
    from fastrecord.interchange.infer import infer_fields as infer_fields
    from fastrecord.interchange.infer import most as most
    from fastrecord.interchange.infer import most_images as most_images
    from fastrecord.interchange.infer import usual_type as usual_type
    from fastrecord.interchange.libraries import library as library
    from fastrecord.interchange.source import Bad as Bad
    from fastrecord.interchange.source import Rows as Rows
    from fastrecord.interchange.source import ShardedSource as ShardedSource
    from fastrecord.interchange.source import Source as Source
    from fastrecord.interchange.source import SourceField as SourceField
    from fastrecord.interchange.source import gather as gather

_NAMES = {
    "Bad": "source",
    "Card": "card",
    "Destination": "destination",
    "Format": "format",
    "Found": "format",
    "Refusal": "destination",
    "Rows": "source",
    "Setting": "format",
    "ShardedSource": "source",
    "Source": "source",
    "SourceField": "source",
    "gather": "source",
    "infer_fields": "infer",
    "library": "libraries",
    "most": "infer",
    "most_images": "infer",
    "usual_type": "infer",
}
__all__ = sorted(_NAMES)
__getattr__, __dir__ = lazily(__name__, _NAMES)
