"""An extension of griffe: the docstrings of the compiled module, beside the types of its stub."""

from __future__ import annotations

import re
from typing import Any

import griffe

from fastrecord import _core

# "Raises:" may hold several sentences a line: "KeyError: the field does not exist. OSError: ...".
RAISES = re.compile(r"^( *)Raises:\n((?:\1 +.*\n?)+)", re.MULTILINE)
EXCEPTION = re.compile(r"(?:^|(?<=\. ))((?:\w+(?:Error|Exception|Interrupt|Warning)(?:, )?)+): ")


class Docstrings(griffe.Extension):
    """Adds what only the compiled module knows, and divides "Raises:" into one entry an exception."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit every object of the loaded package."""
        if "_core" in pkg.members:
            self._take_docstrings(pkg["_core"], _core)
        self._divide(pkg)

    def _take_docstrings(self, documented: griffe.Object, real: object) -> None:
        for name, member in documented.members.items():
            found = getattr(real, name, None)
            if isinstance(member, griffe.Alias) or found is None:
                continue
            text = getattr(found, "__doc__", None)
            if text and not member.docstring and not name.startswith("__"):
                member.docstring = griffe.Docstring(text, parent=member)
            if isinstance(member, griffe.Class):
                self._take_docstrings(member, found)
                new = member.members.get("__new__")
                if isinstance(new, griffe.Function):  # pages show `__init__` alone
                    new.name, new.returns = "__init__", None
                    member.members["__init__"] = new

    def _divide(self, documented: griffe.Object) -> None:
        for member in documented.members.values():
            if isinstance(member, griffe.Alias):
                continue
            if member.docstring:
                member.docstring.value = RAISES.sub(_one_a_line, member.docstring.value)
            if isinstance(member, griffe.Module | griffe.Class):
                self._divide(member)


def _one_a_line(block: re.Match[str]) -> str:
    indent = block[1]
    text = " ".join(line.strip() for line in block[2].splitlines())
    pieces = EXCEPTION.split(text)
    entries = [f"{indent}    {names}: {said.strip()}" for names, said in zip(pieces[1::2], pieces[2::2], strict=True)]
    if pieces[0].strip() or not entries:
        return block[0]
    return f"{indent}Raises:\n" + "\n".join(entries) + "\n"
