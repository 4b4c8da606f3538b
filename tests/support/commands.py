"""Runs the command line in tests."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

import fastrecord as fr
from fastrecord.cli import cli


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="fastrecord")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def good(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def failed(*arguments: object, status: int = 1) -> str:
    result = run(*arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result.stderr


def flip(source: Path, target: Path, *, record: int) -> None:
    """Copy a packed file and flip one bit in the middle of a record's image."""
    with fr.Reader(source) as reader:
        flip_in(source, bytes(reader[record]["image"]), target)


def flip_in(path: Path, value: bytes, target: Path | None = None) -> Path:
    """Flip one bit in the middle of the only occurrence of a value in a file, or in a copy; return its path."""
    data = bytearray(path.read_bytes())
    assert data.count(value) == 1
    data[data.index(value) + len(value) // 2] ^= 1
    (target or path).write_bytes(data)
    return target or path
