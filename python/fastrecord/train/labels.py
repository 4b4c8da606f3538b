"""Classes of labels, also for files without class names."""

from __future__ import annotations

import numpy as np

from fastrecord import FastRecordDataset
from fastrecord.errors import Code
from fastrecord.train.config import TrainError

# Files without class names may have this many classes, however few records they hold.
_UNNAMED = 1000


def class_names(dataset: FastRecordDataset) -> list[str]:
    """Return a data set's class names, position = label.

    Without class names in the files, these are 0 to the largest label.

    Raises:
        TrainError: the labels are not class numbers.
    """
    if dataset.classes:
        return dataset.classes
    largest = int(dataset.targets.max())
    if largest >= max(_UNNAMED, len(dataset)):
        found = f"{dataset.root} names no classes, and has the label {largest} in {len(dataset)} records"
        way_out = "number the classes from 0, or name them by fr.files.set_metadata(path, classes=[...])"
        raise TrainError(Code.NO_CLASSES.text(f"{found}: {way_out}"))
    return [str(label) for label in range(largest + 1)]


def check_labels(dataset: FastRecordDataset, classes: int, *, name: str) -> None:
    """Refuse labels without a class.

    Raises:
        TrainError: names the first record with such a label.
    """
    targets = dataset.targets
    outside = np.flatnonzero((targets < 0) | (targets >= classes))
    if outside.size:
        record = int(outside[0])
        found = f"{name}: record {record} has label {int(targets[record])}"
        allowed = f"but the {classes} classes are numbered 0 to {classes - 1}"
        count = f"{outside.size} record(s) in all"
        raise TrainError(Code.UNKNOWN_LABEL.text(f"{found}, {allowed}; {count}"))
