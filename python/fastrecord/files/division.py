"""How the records of a file are divided over several: by number, by size, or by random shares.

Computes positions and names; writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fastrecord._core import Reader, stored_bytes
from fastrecord.dataset.split import part_sizes, split_order
from fastrecord.files.copy_job import PathLike, steps
from fastrecord.files.shard_names import Part, refuse_strays
from fastrecord.schema.shard_sets import shard_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Size of a file besides its records: pages for its start and end, and padding.
_FILE_BYTES = 64 << 10
# Tolerance for floats whose sum is meant to be 1.
_ROUNDING = Fraction(1, 10**9)


def sizes_of(records: int, fractions: Sequence[float | str | Fraction]) -> list[int]:
    """Return the sizes of the files for shares. Records not covered by a share go to no file.

    Raises:
        ValueError: a share is not above 0, or their sum exceeds 1.
    """
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


def choose(n: int, ends: Sequence[int], seed: int) -> NDArray[Any]:
    """Return the number of each record's file; omitted records get the number of files."""
    import numpy as np

    chosen = np.empty(n, np.min_scalar_type(len(ends)))
    for positions in steps(n):
        chosen[split_order(n, seed, positions)] = np.searchsorted(ends, positions, side="right")
    return chosen


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


def name_parts(out: PathLike | Sequence[PathLike], ends: Sequence[int]) -> list[Part]:
    """Assign file names to the runs of records that end at `ends`.

    Raises:
        ValueError: the number of names differs from the number of files, or a name comes twice.
        FastRecordError: shards of another division exist there.
    """
    starts = [0, *ends[:-1]]
    if isinstance(out, (str, os.PathLike)):
        base = os.fspath(out)
        paths = [shard_path(base, i, len(ends)) for i in range(len(ends))]
    else:
        base, paths = "", [os.fspath(path) for path in out]
        if len(paths) != len(ends):
            raise ValueError(f"{len(paths)} names for {len(ends)} files")
        if len({os.path.realpath(path) for path in paths}) != len(paths):
            raise ValueError(f"two new files have one name: {', '.join(paths)}")
    parts = [Part(path, start, stop) for path, start, stop in zip(paths, starts, ends, strict=True)]
    if base:
        refuse_strays(base, parts)
    return parts


def ends_by_size(reader: Reader, limit: int) -> list[int]:
    """Return the ends of runs that fill a file of at most `limit` bytes, or have one record."""
    empty = _FILE_BYTES + len(repr(reader.metadata).encode())
    ends = []
    size = empty
    for positions in steps(len(reader)):
        first = int(positions[0])
        for number, record in enumerate(stored_bytes(reader, first, len(positions)).tolist(), first):
            # Up to a thousandth of a long run may be padding to pages.
            if size + record > limit - limit // 1000 and size > empty:
                ends.append(number)
                size = empty
            size += record
    return [*ends, len(reader)]
