"""`move_boxes` and `move_keypoints`: what is known of places in images, moved as the images were.

Works on all records of a batch at once, with one matrix for each. Knows no loader and no fields.

Coordinates are (x, y) in pixels, and pixel (0, 0) covers [0, 1) on both axes, as in torchvision's
boxes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.checks import choice

FORMS = ("xyxy", "xywh", "cxcywh")
# Columns of (left, top, right, bottom): the corners of a box.
_CORNERS = [[0, 1], [2, 1], [2, 3], [0, 3]]
# A side may fall short of `min_size` by a rounding error, in pixels.
_ROUNDING = 1e-6
# Floats count by ones up to here.
_WHOLE = 1 << 53


def move_boxes(
    boxes: NDArray[Any],
    counts: NDArray[np.int64],
    matrices: NDArray[np.float64],
    output: tuple[int, int],
    *,
    form: str = "xyxy",
    min_size: float = 1.0,
    shown: NDArray[np.float64] | None = None,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Map boxes by the matrix of their record, and clip them to the output.

    A moved box is the bounding box of its four moved corners, as in torchvision. No box is removed:
    the mask says which ones still are boxes.

    Args:
        boxes: The boxes of all records, one record after the other, integers or floats (N, 4).
        counts: How many boxes each record has, int (B,); their sum is N.
        matrices: Maps a point (x, y, 1) of the source to the output, float64 (B, 3, 3). Its third
            coordinate is above 0 in front of the horizon.
        output: Height and width of the output.
        form: What the four numbers are: "xyxy" (left, top, right, bottom), "xywh" (left, top, width,
            height) or "cxcywh" (x and y of the centre, width, height).
        min_size: The shortest side that a box may have in the output, in pixels.
        shown: Left, top, right and bottom of the part of the source that the output shows, float64
            (B, 4). Boxes are first clipped to it, so that what was cut off is not turned back into the
            picture. None: they are not.

    Returns:
        boxes, (N, 4) of the same form and dtype, a new array. Integers are rounded to the nearest
            (torchvision cuts off the fraction). A box whose place is not finite, or that reaches
            beyond the horizon of a perspective, becomes NaN, or 0 as an integer.
        kept, bool (N,): False for these boxes, for boxes with no area, and for boxes with a side below
            `min_size` after clipping.

    Raises:
        TypeError: boxes are neither integers nor floats.
        ValueError: a shape is wrong, the counts have another sum, or the form is another word.
    """
    form = choice("form", form, FORMS)
    _check("boxes are (N, 4)", boxes, boxes.shape[1:] == (4,))
    records = _records(boxes, counts, matrices)
    with np.errstate(invalid="ignore", over="ignore"):
        corners = _corners(boxes.astype(np.float64), form)
        kept: NDArray[np.bool_] = np.all(corners[:, 2:] > corners[:, :2], axis=1)
        if shown is not None:
            part = shown[records]
            corners = corners.clip(part[:, [0, 1, 0, 1]], part[:, [2, 3, 2, 3]])
        points = _mapped(corners[:, _CORNERS], matrices[records])
        most = output[::-1]
        corners = np.concatenate([points.min(1).clip(0, most), points.max(1).clip(0, most)], 1)
        sides = corners[:, 2:] - corners[:, :2]
        kept &= np.all((sides > 0) & (sides >= min_size - _ROUNDING), axis=1)
        if form != "cxcywh":
            # Both ends of a side are rounded, not its length, so that it ends within the output.
            corners = _rounded(corners, boxes.dtype)
        return _typed(_formed(corners, form), boxes.dtype), kept


def move_keypoints(
    points: NDArray[Any],
    counts: NDArray[np.int64],
    matrices: NDArray[np.float64],
    output: tuple[int, int],
    *,
    shown: NDArray[np.float64] | None = None,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Map points by the matrix of their record. They are not clipped.

    A flip maps x to `width - x`, as for boxes. torchvision's flip of keypoints maps it to `width - 1 - x`,
    because its points are numbers of pixels; add 0.5 to such points first.

    Args:
        points: The points (x, y) of all records, one record after the other, integers or floats
            (N, ..., 2), such as (N, 17, 2) for the N persons of a batch.
        counts: How many of the N each record has, int (B,).
        matrices: As for `move_boxes`.
        output: Height and width of the output.
        shown: Left, top, right and bottom of the part of the source that the output shows, float64
            (B, 4): what was cut off is not kept, even if it is turned back into the picture. None: all.

    Returns:
        points, (N, ..., 2) of the same dtype, a new array. Integers are rounded to the nearest. A point
            whose place is not finite, or that lies beyond the horizon, becomes NaN, or 0 as an integer.
        kept, bool (N, ...): False for these points, and outside the output or of `shown`; edges belong to them.

    Raises:
        TypeError: points are neither integers nor floats.
        ValueError: a shape is wrong, or the counts have another sum.
    """
    _check("keypoints are (N, ..., 2)", points, points.ndim > 1 and points.shape[-1] == 2)
    records = _records(points, counts, matrices)
    each = int(np.prod(points.shape[1:-1]))
    with np.errstate(invalid="ignore", over="ignore"):
        places = points.reshape(len(points), each, 2).astype(np.float64)
        moved = _mapped(places, matrices[records])
        kept: NDArray[np.bool_] = np.all((moved >= 0) & (moved <= output[::-1]), axis=2)
        if shown is not None:
            part = shown[records][:, None]
            kept &= np.all((places >= part[..., :2]) & (places <= part[..., 2:]), axis=2)
        return _typed(moved, points.dtype).reshape(points.shape), kept.reshape(points.shape[:-1])


def _check(wanted: str, values: NDArray[Any], fits: bool) -> None:
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{wanted}, integers or floats, not {values.dtype}")
    if not fits:
        raise ValueError(f"{wanted}, not {values.shape}")


def _records(values: NDArray[Any], counts: NDArray[np.int64], matrices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of each value's record in the batch."""
    if len(counts) != len(matrices):
        raise ValueError(f"{len(counts)} counts for {len(matrices)} matrices")
    if counts.sum() != len(values):
        raise ValueError(f"the counts are {counts.sum()} in all, for {len(values)} values")
    return np.repeat(np.arange(len(counts)), counts)


def _mapped(points: NDArray[np.float64], matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map points (N, K, 2) by matrices (N, 3, 3); beyond the horizon they become NaN."""
    x, y = points[..., 0], points[..., 1]
    rows = np.ascontiguousarray(matrices.transpose(1, 2, 0))[..., None]  # (3, 3, N, 1)
    right, down, depth = (row[0] * x + row[1] * y + row[2] for row in rows)
    depth[~(depth > 0)] = np.nan
    return np.stack([right / depth, down / depth], 2)


def _corners(boxes: NDArray[np.float64], form: str) -> NDArray[np.float64]:
    """Return left, top, right and bottom."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if form == "xyxy":
        return boxes
    if form == "cxcywh":
        first = first - second / 2
    return np.concatenate([first, first + second], 1)


def _formed(corners: NDArray[np.float64], form: str) -> NDArray[np.float64]:
    low, high = corners[:, :2], corners[:, 2:]
    if form == "xyxy":
        return corners
    return np.concatenate([low if form == "xywh" else (low + high) / 2, high - low], 1)


def _rounded(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Round halves up, so that numbers 1 apart stay 1 apart."""
    return values if dtype.kind == "f" else np.floor(values + 0.5)


def _typed(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        values = np.nan_to_num(_rounded(values, dtype)).clip(max(limits.min, -_WHOLE), min(limits.max, _WHOLE))
    return values.astype(dtype)
