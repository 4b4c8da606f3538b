"""`Finding`: a level, a code that scripts may rely on, a sentence, and the way out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: "ok": no problem. "note": it costs speed, or may be unexpected. "warning": it may
            lose data or end a run.
        code: Identifies the check; the same in all versions.
        message: The fact and its consequence, in a sentence or two.
        command: A command that helps, or None.
        file: The file concerned, or None for the machine.
    """

    level: Level
    code: str
    message: str
    command: str | None = None
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-able values."""
        return asdict(self)
