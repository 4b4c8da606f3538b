"""`expand`: the files that a path, a folder or a pattern names."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from fastrecord.errors import Code
from fastrecord.interchange.stored import is_folder, is_stored, names_in
from fastrecord.store.address import Url

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def several(source: str | Sequence[str]) -> list[str]:
    """Return the paths and patterns that a source is."""
    return [source] if isinstance(source, str) else list(source)


def only(source: str | Sequence[str], what: str) -> str:
    """Return the path that a source is.

    Raises:
        FastRecordError: there are several.
    """
    paths = several(source)
    if len(paths) != 1:
        raise Code.SOURCE.error(f"{', '.join(paths)}: several {what}: import them one by one, with --append")
    return paths[0]


def expand(source: str | Sequence[str], suffixes: Sequence[str] = ()) -> list[str]:
    """Return the files that a source names, in order.

    Args:
        source: A file; a folder: its files with one of `suffixes`, sorted by name; a pattern
            with `*`, `?` or `[...]`, sorted; a pattern with braces, in the order written:
            `train-{000..146}.tar`, `{train,val}.tar`. Or several of these.
        suffixes: Ends of file names, such as ".tar"; empty: all files.

    Raises:
        FileNotFoundError: a file does not exist.
        FastRecordError: a folder or pattern names no file.
    """
    return [path for each in several(source) for one in _braces(each) for path in _expand(one, suffixes)]


def _expand(path: str, suffixes: Sequence[str]) -> Iterator[str]:
    if is_stored(path):
        yield from _expand_stored(path, suffixes)
    elif os.path.isdir(path):
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if e.is_file() and e.name.endswith(tuple(suffixes) or ""))
        if not names:
            kinds = f" {', '.join(f'*{suffix}' for suffix in suffixes)}" if suffixes else ""
            raise Code.SOURCE.error(f"{path}: the folder holds no files{kinds}")
        yield from (os.path.join(path, name) for name in names)
    elif os.path.lexists(path) or not glob.has_magic(path):
        refuse_pipe(path)
        yield path
    else:
        found = sorted(glob.glob(path))
        if not found:
            raise Code.SOURCE.error(f"{path}: no file fits this pattern")
        yield from found


def _expand_stored(path: str, suffixes: Sequence[str]) -> Iterator[str]:
    folder, name = (Url(path), "") if is_folder(path) else (Url(path).folder, Url(path).name)
    if name and (folder.is_web or not glob.has_magic(name)):
        yield Url(path)
        return
    found = names_in(f"{folder}/")
    names = [each for each in found if (fnmatchcase(each, name) if name else each.endswith(tuple(suffixes) or ""))]
    if not names:
        raise Code.SOURCE.error(f"{Url(path)}: the store has no {'such' if name else ', '.join(suffixes)} files there")
    yield from (folder.at(each) for each in names)


def refuse_pipe(path: str) -> None:
    """Refuse a pipe, whose reader waits for a writer, and which cannot be read from any position.

    Raises:
        FastRecordError: the path is a pipe or a socket.
        OSError: there is nothing at the path.
    """
    if is_stored(path):
        return
    mode = os.stat(path).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise Code.SOURCE.error(f"{path}: is a pipe, which cannot be read from any position: save it as a file first")


def _braces(pattern: str) -> Iterator[str]:
    """Expand braces, as shells do: lists with commas, and ranges of numbers with leading zeros."""
    found = None if os.path.lexists(pattern) else _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    before, after = pattern[: found.start()], pattern[found.end() :]
    numbers = _RANGE.fullmatch(found[1])
    if numbers is not None:
        first, last = int(numbers[1]), int(numbers[2])
        padded = any(len(number) > 1 and number[0] == "0" for number in numbers.groups())
        width = max(map(len, numbers.groups())) if padded else 0
        step = 1 if first <= last else -1
        # One by one: the first file that a mistyped range lacks ends it.
        choices: Iterable[str] = (f"{n:0{width}d}" for n in range(first, last + step, step))
    elif "," in found[1]:
        choices = found[1].split(",")
    else:
        yield pattern
        return
    for choice in choices:
        yield from _braces(before + choice + after)
