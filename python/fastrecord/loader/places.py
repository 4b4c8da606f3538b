"""`find_places`: the fields that hold places in an image; `move_places`: such a column, moved as its images were."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord.schema import FieldType
from fastrecord.transforms import Like, ViewInfo
from fastrecord.transforms.annotations import move_boxes, move_keypoints

_MASKS = {"mask", "masks", "segmentation", "segmentations"}
_POINTS = {"bbox", "bboxes", "box", "boxes", "keypoint", "keypoints", "landmark", "landmarks", "polygon", "polygons"}


def find_places(kinds: Iterable[tuple[str, FieldType]]) -> list[str]:
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


def move_places(value: Any, like: Like, view: ViewInfo, form: str) -> tuple[Any, Any]:
    """Return a column of boxes or keypoints for the output, and which of them are kept, in the same form.

    Args:
        value: A tensor (B, N, ...) or, of arrays of varying shape, a list of tensors, `(padded, lengths)`
            or `(packed, offsets)`.
        like: What the column has.
        view: Of the output that it follows.
        form: Of arrays of varying shape: "list", "pad" or "packed".
    """
    if isinstance(value, list):
        counts = np.array([len(one) for one in value], np.int64)
        moved, kept = _moved(torch.cat(value), counts, like, view)
        sizes = counts.tolist()
        return list(torch.split(moved, sizes)), list(torch.split(kept, sizes))
    if not isinstance(value, tuple):
        return _padded(value, like, view)
    values, numbers = value
    if form == "packed":
        moved, kept = _moved(values, np.diff(numbers.numpy()), like, view)
        return (moved, numbers), kept
    moved, kept = _padded(values, like, view)
    lengths = numbers if numbers.ndim == 1 else numbers[:, 0]
    padding = torch.arange(values.shape[1]) >= lengths[:, None]
    moved[padding], kept[padding] = 0, False
    return (moved, numbers), kept


def _padded(values: torch.Tensor, like: Like, view: ViewInfo) -> tuple[torch.Tensor, torch.Tensor]:
    each = values.shape[1] if values.ndim > 2 else 1
    counts = np.full(len(values), each, np.int64)
    flat = values.flatten(0, 1) if values.ndim > 2 else values
    moved, kept = _moved(flat, counts, like, view)
    return moved.view_as(values), kept.view(values.shape[:-1])


def _moved(
    values: torch.Tensor, counts: NDArray[np.int64], like: Like, view: ViewInfo
) -> tuple[torch.Tensor, torch.Tensor]:
    given = values.float() if values.dtype == torch.bfloat16 else values
    if like.boxes:
        boxes, kept = move_boxes(
            given.numpy(), counts, view.matrix, view.output, form=like.boxes, min_size=like.min_size, shown=view.boxes
        )
        return torch.from_numpy(boxes).to(values.dtype), torch.from_numpy(kept)
    points, kept = move_keypoints(given.numpy(), counts, view.matrix, view.output, shown=view.boxes)
    return torch.from_numpy(points).to(values.dtype), torch.from_numpy(kept)
