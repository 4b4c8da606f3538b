"""What an examination comes to: a level, a code that scripts may rely on, a sentence, and the way out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: "ok": as it should be. "note": it costs speed, or may surprise. "warning": it may lose data or end a run.
        code: What was looked at; the same in all versions.
        message: What was found, and what it means, in a sentence or two.
        command: What to run about it, or None.
        file: The file that it is about, or None if it is about the machine.
    """

    level: Level
    code: str
    message: str
    command: str | None = None
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON knows."""
        return asdict(self)
