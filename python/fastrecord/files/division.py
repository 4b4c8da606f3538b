"""`Part`: how records are divided over files: by number, by size, or by random shares; and the names of the files.

Computes positions and names; writes nothing.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fastrecord._core import Reader
from fastrecord.errors import Code, FastRecordError
from fastrecord.schema.shard_sets import Shard, new_set, shard_path

PathLike = str | os.PathLike[str]

# Size of a file besides its records: pages for its start and end, and padding.
FILE_BYTES = 64 << 10
# Tolerance for floats whose sum is meant to be 1.
_ROUNDING = Fraction(1, 10**9)


@dataclass(frozen=True, slots=True)
class Part:
    """One file to write.

    Attributes:
        path: Its path.
        start: Position of its first record.
        stop: Position after its last record.
        shard: Its place in the set; None for a single file.
    """

    path: str
    start: int
    stop: int
    shard: Shard | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """What its metadata says of its place."""
        return {} if self.shard is None else self.shard.entry()


def even_ends(total: int, shards: int, where: str) -> list[int]:
    """Return where shards end whose numbers of records differ by at most one.

    Raises:
        FastRecordError: more shards than records; names `where` they come from.
    """
    if shards > max(total, 1):
        raise Code.TOO_MANY_SHARDS.error(f"{where}: {shards:,} shards of {total:,} records: ask for fewer shards")
    return [total * (i + 1) // shards for i in range(shards)]


def ends_by_size(sizes: Iterable[int], limit: int, empty: int) -> list[int]:
    """Return where files end so that none exceeds a size, unless a single record does.

    Args:
        sizes: Size of each record in a file, in bytes, in order.
        limit: Maximum size of a file in bytes.
        empty: Size of a file without records.
    """
    ends, used, position = [], empty, -1
    for position, size in enumerate(sizes):
        if used + size > limit and used > empty:
            ends.append(position)
            used = empty
        used += size
    return [*ends, position + 1]


def sizes_of(records: int, fractions: Sequence[float | str | Fraction]) -> list[int]:
    """Return the sizes of the files for shares. Records not covered by a share go to no file.

    Raises:
        ValueError: a share is not above 0, or their sum exceeds 1.
    """
    from fastrecord.dataset.split import part_sizes

    try:
        # The text of a float is the intended decimal.
        exact = [share if isinstance(share, Fraction) else Fraction(str(share)) for share in fractions]
    except (ValueError, ZeroDivisionError) as err:
        raise ValueError(f"fractions are numbers between 0 and 1, not {list(fractions)}") from err
    if not exact or min(exact) <= 0 or sum(exact) > 1 + _ROUNDING:
        raise ValueError(f"fractions are above 0 with a sum of at most 1, not {list(fractions)}")
    rest = 1 - sum(exact)
    parts = [*exact, rest] if rest > _ROUNDING else exact
    return part_sizes(records, [float(part) for part in parts])[: len(exact)]


def name_files(
    path: str, out: PathLike | Sequence[PathLike] | None, names: Sequence[str] | None, shares: int
) -> list[PathLike]:
    """Return the paths of files made by shares. They serve different purposes: they are not shards.

    Args:
        path: The file that is split.
        out: With `names` the folder to write into, by default the folder of `path`; else a path for
            each file.
        names: Name of each file, such as "train" for `train.frec`.
        shares: Number of files.

    Raises:
        ValueError: the number of names differs from the number of files, or a name is not valid as
            a file name.
    """
    if names is None:
        if out is None or isinstance(out, (str, os.PathLike)):
            if out is not None and shares == 1:
                return [out]
            raise ValueError(
                "the files of fractions have different uses: name each, such as names=['train', 'val'] "
                "(--names train,val), or give a path for each"
            )
        return list(out)
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names is a list of names, such as ['train', 'val'], not {names!r}")
    if out is not None and not isinstance(out, (str, os.PathLike)):
        raise ValueError("names and paths are two ways to name the files: give one of them")
    if bad := [name for name in names if name in ("", ".", "..") or os.path.basename(name) != name]:
        raise ValueError(f"names holds file names, such as 'train', not {bad[0]!r}: the folder belongs into OUT")
    folder = os.path.dirname(path) if out is None else os.fspath(out)
    return [os.path.join(folder, name.removesuffix(".frec") + ".frec") for name in names]


def parts_of(out: PathLike | Sequence[PathLike], ends: Sequence[int]) -> list[Part]:
    """Return the files whose last records come before these positions.

    Args:
        out: `train.frec` stands for `train-00000-of-00004.frec` and so on; or a path for each.
        ends: The positions.

    Raises:
        ValueError: the number of paths differs from the number of files, or a path comes twice.
    """
    if isinstance(out, (str, os.PathLike)):
        paths = [shard_path(os.fspath(out), i, len(ends)) for i in range(len(ends))]
    else:
        paths = [os.fspath(path) for path in out]
        if len(paths) != len(ends):
            raise ValueError(f"{len(paths)} names for {len(ends)} files")
        if len({os.path.realpath(path) for path in paths}) != len(paths):
            raise ValueError(f"two new files have one name: {', '.join(paths)}")
    return [Part(path, start, stop) for path, start, stop in zip(paths, [0, *ends[:-1]], ends, strict=True)]


def as_set(parts: Sequence[Part]) -> list[Part]:
    """Return parts as the shards of a new set."""
    return [replace(part, shard=shard) for part, shard in zip(parts, new_set(len(parts)), strict=True)]


def as_set_begun(parts: Sequence[Part]) -> list[Part]:
    """Return parts as shards of the set of the files that exist, or of a new set if none exists.

    Raises:
        FastRecordError: the files belong to two sets.
    """
    begun: list[tuple[str | None, str]] = []
    for part in parts:
        # A file without a commit, or a damaged one, has no shard entry; opening it for writing
        # reports the way out.
        with suppress(FastRecordError, OSError), Reader(part.path) as reader:
            shard = Shard.of(reader.metadata)
            begun.append((None if shard is None else shard.set, part.path))
    if not begun:
        return as_set(parts)
    name, path = begun[0]
    for other, where in begun:
        if other != name:
            raise Code.RECORDS_TWICE.error(
                f"{where}: not of the same set of shards as {path}, so they cannot be resumed together: begin again "
                "with `--overwrite`"
            )
    if name is None:  # written by a version without this entry
        return list(parts)
    return [replace(part, shard=Shard(name, number, len(parts))) for number, part in enumerate(parts)]


def refuse_strays(out: str, parts: Sequence[Part]) -> None:
    """Refuse to write shards beside shards of another division: a glob would read both as one set.

    Raises:
        FastRecordError: there are such files; the message names one.
    """
    if len(parts) == 1 and parts[0].path == out:
        return
    stem = out.removesuffix(".frec")
    name = re.compile(re.escape(stem) + r"-\d{5,}-of-\d{5,}\.frec")
    mine = {part.path for part in parts}
    strays = sorted(
        path for path in glob.glob(glob.escape(stem) + "-*-of-*.frec") if name.fullmatch(path) and path not in mine
    )
    if strays:
        raise Code.OTHER_SHARDS.error(
            f"{strays[0]}: {len(strays):,} shard(s) of another set than the {len(parts):,}: remove them, or "
            "choose another OUT"
        )
