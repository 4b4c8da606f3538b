"""Class names of several files, mapped to one numbering by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from fastrecord._core import Reader
from fastrecord.errors import Code

if TYPE_CHECKING:  # importing numpy takes longer than most commands
    import numpy as np
    from numpy.typing import NDArray

    Table = NDArray[np.int64]


def class_names(reader: Reader) -> list[str] | None:
    """Return a file's class names, position = label, or None if it has none.

    Raises:
        SchemaError: `metadata["classes"]` is not a list of distinct names.
    """
    names = reader.metadata.get("classes")
    try:
        return None if names is None else check_names(names)
    except (TypeError, ValueError) as error:
        raise Code.BAD_CLASSES.error(f"{reader.path}: metadata 'classes' is not a list of names: {error}") from None


def check_names(classes: Sequence[str]) -> list[str]:
    """Return class names given by the caller as a list.

    Raises:
        TypeError: not a sequence of names: a set has no order, and a dict another one than its numbers.
        ValueError: a name comes twice.
    """
    if isinstance(classes, (str, AbstractSet, Mapping)) or not isinstance(classes, Iterable):
        raise TypeError(f"classes is a sequence of class names, not {classes!r:.80}: their order gives the labels")
    names = list(classes)  # once: an iterator has them once
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"classes is a sequence of class names, not {names!r:.80}")
    if len(set(names)) != len(names):
        raise ValueError(f"classes holds {next(name for name in names if names.count(name) > 1)!r} more than once")
    return names


def merge_classes(
    readers: Sequence[Reader],
    classes: Sequence[str] | None = None,
    lists: Sequence[list[str] | None] | None = None,
) -> tuple[list[str], list[Table | None]]:
    """Give every class of several files one number.

    Args:
        readers: The files.
        classes: The names of all classes, position = number. By default the first file keeps its
            numbers. New names of later files get the next numbers, in the order of the files.
        lists: The class names of each file, if they are known without opening it.

    Returns:
        The names, position = label (empty if no file has class names). For each file its table from
        stored label to label, int64 (classes of the file,), or None if the labels are unchanged.

    Raises:
        SchemaError: only some of the files have class names, or a file's names are invalid. With
            `classes`: a file has no class names, or a name that is not in the list.
    """
    lists = [class_names(reader) for reader in readers] if lists is None else lists
    without = [at for at, names in enumerate(lists) if names is None]
    if len(without) == len(readers) and classes is None:
        return [], [None] * len(readers)
    if without:
        having = [readers[at] for at, names in enumerate(lists) if names is not None]
        known = f"class names in {_some(having)}" if having else "class names by classes="
        raise Code.NO_CLASSES.error(
            f"labels cannot be matched: {known}, but none in {_some([readers[at] for at in without])}: pack again with "
            "`fastrecord pack --classes-from`, or name them with fastrecord.files.set_metadata(path, classes=[...])"
        )
    numbers = {name: number for number, name in enumerate(classes or ())}
    # Shards of one manifest share a list.
    tables: dict[int, list[int]] = {}
    for at, names in enumerate(lists):
        if id(names) not in tables:
            unknown = [] if classes is None else [name for name in names or () if name not in numbers]
            if unknown:
                more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
                raise Code.UNKNOWN_CLASS.error(
                    f"{readers[at].path}: its classes {', '.join(map(repr, unknown[:3]))}{more} are not among the "
                    f"{len(numbers)} that classes= names"
                )
            tables[id(names)] = [numbers.setdefault(name, len(numbers)) for name in names or ()]
    # A file that lacks some classes also gets a table: it refuses numbers without a name.
    same = list(range(len(numbers)))
    if all(table == same for table in tables.values()):
        return list(numbers), [None] * len(lists)
    import numpy as np

    made = {key: None if table == same else np.array(table, np.int64) for key, table in tables.items()}
    return list(numbers), [made[id(names)] for names in lists]


def map_labels(labels: Table, table: Table | None, path: str) -> Table:
    """Map the labels of one file to labels of the data set, int64 (N,).

    Negative labels mean "none" to many losses (`ignore_index`) and stay unchanged.

    Raises:
        SchemaError: a label has no class in the file.
    """
    if table is None:
        return labels
    import numpy as np

    beyond = labels >= len(table)
    if beyond.any():
        raise Code.UNKNOWN_LABEL.error(
            f"{path}: label {labels[beyond][0]} has no class: the file names {len(table)} classes"
        )
    if len(table) == 0:
        return labels
    return np.where(labels < 0, labels, table[np.maximum(labels, 0)])


def _some(readers: Sequence[Reader]) -> str:
    more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
    return ", ".join(os.fspath(reader.path) for reader in readers[:3]) + more
