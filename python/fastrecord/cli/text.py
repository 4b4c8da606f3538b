"""Shared output of the subcommands: printed lines, sizes from text, and the progress bar."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fastrecord.terminal import bytes_text as bytes_text
from fastrecord.terminal import printable

if TYPE_CHECKING:
    from tqdm import tqdm

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{infix}b": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kmgt", 1)
}


def say(*lines: str, err: bool = False) -> None:
    """Print lines to stdout, or to stderr.

    Control characters, line ends within a line, and characters that the encoding lacks are escaped.

    Raises:
        OSError: it could not be written; the error names the stream like a file.
    """
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not lines:
        return
    try:
        click.echo("\n".join(printable(line, encoding) for line in lines), err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error, "standard error" if err else "standard output") from error


def unwritten(error: OSError, stream: str) -> OSError:
    """Return the system error for a stream that could not be written."""
    return OSError(error.errno, f"cannot be written: {error.strerror}", stream)


def shard_lines(manifest: str | None, not_named: str | None) -> list[str]:
    """Return what a command says about the manifest of the shards that it has written."""
    return [f"{manifest}: names these files as shards of one data set"] * (manifest is not None) + (
        [] if not_named is None else [not_named]
    )


def parse_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse `500MB`, `4GiB` or a plain number; return the bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?) ?([A-Za-z]*)", value, re.ASCII)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise click.BadParameter(
            f"{value!r} is not a size: write it like 500MB or 4GiB (KB to TB, KiB to TiB)", ctx, param
        )
    return int(float(match[1]) * factor)


@contextmanager
def progress_bar(*, quiet: bool, **options: Any) -> Iterator[tqdm[Any] | None]:
    """Show a progress bar on stderr during the block; yield None without a terminal.

    Args:
        quiet: Show no bar.
        options: Options of `tqdm.tqdm`; the total may be set later by its `reset`.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(file=sys.stderr, dynamic_ncols=True, leave=False, **options) as bar:
        yield bar


@contextmanager
def progress_of_total(*, quiet: bool, **options: Any) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar like `progress_bar`; yield a function of the amount and the total."""
    with progress_bar(quiet=quiet, **options) as bar:

        def show(done: int, total: int) -> None:
            if bar is not None:
                bar.total = total
                bar.update(done - bar.n)

        yield show
