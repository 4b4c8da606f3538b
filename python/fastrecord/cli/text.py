"""Shared output of the subcommands: printed lines, errors, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fastrecord.errors import system_text
from fastrecord.terminal import bytes_text as bytes_text
from fastrecord.terminal import printable

if TYPE_CHECKING:
    from tqdm import tqdm


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


def describe(err: BaseException) -> str:
    """Return an error's message; a system error begins with its path, as other errors do."""
    if isinstance(err, OSError):
        return system_text(err)
    return str(err) or ("there is too little memory" if isinstance(err, MemoryError) else "")


def speed(size: int, seconds: float) -> str:
    """Return how long a command took for some bytes: `2.0 s, 1.5 GB/s`."""
    return f"{seconds:.1f} s, {bytes_text(size / max(seconds, 1e-9))}/s"


def shard_lines(manifest: str | None, not_named: str | None) -> list[str]:
    """Return what a command says about the manifest of the shards that it has written."""
    return [f"{manifest}: names these files as shards of one data set"] * (manifest is not None) + (
        [] if not_named is None else [not_named]
    )


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
