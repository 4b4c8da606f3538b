"""Runs the programs of pages twice each, in one process and folder, as people do who try them."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import Any

import fastrecord as fr
from fastrecord.train import TrainError
from tests.support.commands import run


def execute(program: str, page: str, names: dict[str, Any]) -> None:
    """Run a program, and again: then it works too, or is told that what it makes exists already.

    Args:
        program: Its text.
        page: Where it stands.
        names: What it knows; afterwards also what its first run has made.
    """
    code, again = compile(program, page, "exec"), dict(names)
    exec(code, names)
    with redirect_stdout(io.StringIO()):
        try:
            exec(code, again)
        except (FileExistsError, fr.FastRecordError, TrainError) as error:
            if not re.search("exists|already", str(error)):
                raise


def command(line: str, *arguments: str) -> str:
    """Run a command of a page as `execute` runs a program; return its output."""
    first = run(*arguments)
    assert first.exit_code == 0, f"{line}\n{first.output}"
    second = run(*arguments) if arguments[0] != "bench" else first  # seconds; tests/cli/test_twice.py has it
    assert second.exit_code == 0 or "exists already" in second.stderr, f"{line}, again\n{second.output}"
    return first.stdout
