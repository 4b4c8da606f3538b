"""`Views`: the part of its source that each image of a batch shows; and fields that it concerns.

Moves no boxes and no masks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Load
from fastrecord.loader.sample import Picture
from fastrecord.schema import FieldType
from fastrecord.transforms.view_info import ViewInfo

_MASKS = {"mask", "masks", "segmentation", "segmentations"}
_POINTS = {"bbox", "bboxes", "box", "boxes", "keypoint", "keypoints", "landmark", "landmarks", "polygon", "polygons"}


class Views(Mapping[str, ViewInfo]):
    """Output of pixels -> `ViewInfo`, computed when the first one is asked for.

    A pickle has the values.

    Args:
        load: The batch, which is complete.
        pictures: The outputs of pixels.
        part: The slots that the consumer gets.
    """

    def __init__(self, load: Load, pictures: Mapping[str, Picture], part: slice | NDArray[np.int64]) -> None:
        self._load, self._pictures, self._part = load, pictures, part

    @cached_property
    def _views(self) -> dict[str, ViewInfo]:
        part, made = self._part, {}
        for (name, picture), (sizes, boxes, matrices) in zip(self._pictures.items(), self._load.views(), strict=True):
            boxes, matrices = boxes[part], matrices[part].reshape(-1, matrices.shape[1], 3, 3)
            if picture.count is None:
                boxes, matrices = boxes[:, 0], matrices[:, 0]
            made[name] = ViewInfo(sizes[part], boxes, matrices, picture.size)
        return made

    @property
    def were_used(self) -> bool:
        """Whether they have been asked for."""
        return "_views" in self.__dict__

    def __getitem__(self, name: str) -> ViewInfo:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pictures)

    def __len__(self) -> int:
        return len(self._pictures)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def places(kinds: Iterable[tuple[str, FieldType]]) -> list[str]:
    """Return the fields that hold places in an image, by name or shape: boxes, masks, keypoints."""
    return [name for name, kind in kinds if _are_places(name, kind)]


def _are_places(name: str, kind: FieldType) -> bool:
    words = set(re.findall("[a-z]+", name.lower()))
    if kind.item is not None:
        return bool(words & (_MASKS | _POINTS)) or kind.item.shape == (4,)
    if not kind.shape and kind.dtype:
        return False  # a number
    shape = kind.shape or (None, None)
    # Tokens have masks of one dimension.
    named = words & _POINTS or (words & _MASKS and len(shape) > 1)
    boxes = len(shape) == 2 and shape[1] == 4
    mask = shape == (None, None) and kind.dtype is not None and not kind.dtype.startswith(("float", "bfloat"))
    return bool(named or boxes or mask)
