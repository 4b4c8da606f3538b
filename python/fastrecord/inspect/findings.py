"""`Answer`: what a function of this folder returns, ready for JSON; `Finding`: one of the doctor's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning"]


class Answer:
    """The base of the dataclasses that the functions of this folder return."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, ready for JSON: seconds, bytes, and numbers per second."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class Finding(Answer):
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
