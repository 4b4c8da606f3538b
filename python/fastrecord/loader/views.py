"""`Views`: the part of its source that each image of a batch shows. Moves no boxes and no masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Load
from fastrecord.loader.sample import Picture
from fastrecord.transforms.view_info import ViewInfo


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
