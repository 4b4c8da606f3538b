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
        image = bytes(reader[record]["image"])
    data = bytearray(source.read_bytes())
    assert data.count(image) == 1
    data[data.index(image) + len(image) // 2] ^= 1
    target.write_bytes(data)
