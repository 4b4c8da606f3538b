"""`Answer`: what a store answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """Bytes of an object.

    Attributes:
        data: The bytes asked for; fewer where the object ends.
        size: Bytes of the whole object.
        etag: What changes when the object is replaced; None if the store has no such thing.
    """

    data: Any
    size: int
    etag: str | None
