"""Boxes and keypoints against torchvision's functions, and where there is nothing to move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.functional import _get_inverse_affine_matrix, _get_perspective_coeffs

from fastrecord.transforms.annotations import FORMS, move_boxes, move_keypoints

F = v2.functional

HEIGHT, WIDTH = 120, 160
Matrix = NDArray[np.float64]
# Where corners of the image come to be, as pairs (x, y).
CORNERS = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
MOVED = [[12, 7], [150, 20], [140, 100], [5, 119]]
UNMOVED = np.eye(3)


def crop(top: int, left: int) -> Matrix:
    return np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1.0]])


def resize(height: int, width: int, old: tuple[int, int] = (HEIGHT, WIDTH)) -> Matrix:
    return np.diag([width / old[1], height / old[0], 1.0])


def affine(*args: Any, size: tuple[int, int] = (HEIGHT, WIDTH), center: tuple[float, float] | None = None) -> Matrix:
    middle = (size[1] / 2, size[0] / 2) if center is None else center
    numbers = _get_inverse_affine_matrix(list(middle), *args, inverted=False)
    return np.array([*numbers, 0, 0, 1]).reshape(3, 3)


def perspective() -> Matrix:
    return np.linalg.inv(np.array([*_get_perspective_coeffs(CORNERS, MOVED), 1]).reshape(3, 3))


# What torchvision does, the matrix that does it, the size of the output, and the crop that comes first.
Move = tuple[Callable[[Any], Any], Matrix, tuple[int, int], tuple[int, int, int, int] | None]
MOVES: dict[str, Move] = {
    "nothing": (lambda x: x, UNMOVED, (HEIGHT, WIDTH), None),
    "crop": (lambda x: F.crop(x, 20, 30, 70, 90), crop(20, 30), (70, 90), None),
    "crop beyond": (lambda x: F.crop(x, -9, 100, 100, 100), crop(-9, 100), (100, 100), None),
    "resize": (lambda x: F.resize(x, [224, 96]), resize(224, 96), (224, 96), None),
    "pad": (lambda x: F.pad(x, [3, 4, 5, 6]), crop(-4, -3), (HEIGHT + 10, WIDTH + 8), None),
    "horizontal flip": (F.horizontal_flip, np.array([[-1, 0, WIDTH], [0, 1, 0], [0, 0, 1.0]]), (HEIGHT, WIDTH), None),
    "vertical flip": (F.vertical_flip, np.array([[1, 0, 0], [0, -1, HEIGHT], [0, 0, 1.0]]), (HEIGHT, WIDTH), None),
    "affine": (
        lambda x: F.affine(x, 33, [7, -12], 1.3, [10, -5]),
        affine(33, [7, -12], 1.3, [10, -5]),
        (HEIGHT, WIDTH),
        None,
    ),
    "rotation": (
        lambda x: F.rotate(x, 50, center=[20, 90]),
        affine(-50, [0, 0], 1, [0, 0], center=(20, 90)),
        (HEIGHT, WIDTH),
        None,
    ),
    "perspective": (lambda x: F.perspective(x, CORNERS, MOVED), perspective(), (HEIGHT, WIDTH), None),
    "crop, resize, rotation": (
        lambda x: F.rotate(F.resized_crop(x, 20, 30, 70, 90, [140, 45]), 30),
        affine(-30, [0, 0], 1, [0, 0], size=(140, 45)) @ resize(140, 45, (70, 90)) @ crop(20, 30),
        (140, 45),
        (30, 20, 120, 90),
    ),
}
moves = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
forms = pytest.mark.parametrize("form", FORMS)


def some_boxes(form: str, n: int = 300) -> Matrix:
    """Return boxes of all sizes, also at the edges of the image."""
    random = np.random.default_rng(7)
    low = random.uniform(0, (WIDTH - 1, HEIGHT - 1), (n, 2))
    sides = random.uniform(0.3, 1, (n, 2)) * ((WIDTH, HEIGHT) - low)
    sides[: n // 2] *= 0.2
    if form == "xyxy":
        return np.concatenate([low, low + sides], 1)
    return np.concatenate([low + sides / 2 if form == "cxcywh" else low, sides], 1)


def expected(boxes: torch.Tensor, form: str, move: Move) -> NDArray[Any]:
    """Return what torchvision makes of boxes, clipped."""
    given = tv_tensors.BoundingBoxes(boxes.clone(), format=form.upper(), canvas_size=(HEIGHT, WIDTH))
    made = move[0](given)
    assert made.canvas_size == move[2]
    clipped: NDArray[Any] = F.clamp_bounding_boxes(made).as_subclass(torch.Tensor).numpy()
    return clipped


def moved(boxes: NDArray[Any], form: str, move: Move, **given: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    shown = None if move[3] is None else np.array([move[3]], np.float64)
    return move_boxes(boxes, np.array([len(boxes)]), move[1][None], move[2], form=form, shown=shown, **given)


@forms
@moves
def test_boxes_are_where_torchvision_has_them(form: str, move: Move) -> None:
    boxes = some_boxes(form)
    made, kept = moved(boxes, form, move)
    assert made.dtype == np.float64
    # torchvision computes ratios, and positions by a perspective, in float32.
    np.testing.assert_allclose(made, expected(torch.from_numpy(boxes), form, move), atol=2e-4)
    corners = moved(some_boxes("xyxy"), "xyxy", move)[0]
    assert (kept == ((corners[:, 2:] - corners[:, :2]) >= 1).all(1)).all()
    assert kept.any()


@pytest.mark.parametrize(("dtype", "near"), [(np.float16, 0.07), (np.float32, 2e-4)])
@forms
@moves
def test_floats_are_rounded_to_their_type(dtype: Any, near: float, form: str, move: Move) -> None:
    boxes = some_boxes(form).astype(dtype)
    made, _ = moved(boxes, form, move)
    assert made.dtype == dtype
    np.testing.assert_allclose(made, moved(boxes.astype(np.float64), form, move)[0], atol=near)
    np.testing.assert_allclose(made, expected(torch.from_numpy(boxes.astype(np.float32)), form, move), atol=near)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@forms
@moves
def test_integers_are_rounded_to_the_nearest(dtype: Any, form: str, move: Move) -> None:
    boxes = some_boxes(form).astype(dtype)
    made, _ = moved(boxes, form, move)
    assert made.dtype == dtype
    near = 1 if form == "xywh" else 0.5 + 1e-9  # a length between rounded ends
    np.testing.assert_allclose(made, moved(boxes.astype(np.float64), form, move)[0], atol=near)
    # torchvision cuts fractions off, after each operation, and from the middle of a box once more.
    far = {"xyxy": 1, "xywh": 2, "cxcywh": 3}[form]
    np.testing.assert_allclose(made, expected(torch.from_numpy(boxes), form, move), atol=far)


@forms
def test_unmoved_integers_stay_as_they_are(form: str) -> None:
    boxes = some_boxes(form).astype(np.int32) + ([5] * 4 if form == "xyxy" else [5, 5, 1, 1])
    made, _ = move_boxes(boxes, np.array([len(boxes)]), UNMOVED[None], (HEIGHT + 10, WIDTH + 10), form=form)
    assert (made == boxes).all()


@forms
def test_kept_integer_boxes_end_within_the_output_and_have_an_area(form: str) -> None:
    random = np.random.default_rng(3)
    boxes = some_boxes(form).round().astype(np.int16)
    seen = 0
    for _ in range(40):
        matrix = np.diag([*random.uniform(0.1, 1, 2), 1.0])
        matrix[:2, 2] = random.uniform(-50, 50, 2)
        made, kept = move_boxes(boxes, np.array([len(boxes)]), matrix[None], (57, 61), form=form)
        seen += int(kept.sum())
        xyxy = F.convert_bounding_box_format(torch.from_numpy(made[kept]).double(), form.upper(), "XYXY").numpy()
        assert (xyxy[:, 2:] - xyxy[:, :2] >= 1).all()
        room = 0.5 if form == "cxcywh" else 0
        assert (xyxy >= -room).all()
        assert (xyxy <= np.array([61, 57, 61, 57]) + room).all()
    assert seen > 1000


def test_each_box_gets_the_matrix_of_its_record() -> None:
    boxes = np.array([[1, 1, 9, 9], [2, 2, 8, 8], [3, 3, 7, 7]], np.float32)
    matrices = np.stack([np.diag([factor, factor, 1.0]) for factor in (1, 100, 2, 3)])
    made, kept = move_boxes(boxes, np.array([1, 0, 0, 2]), matrices, (100, 100))
    assert made.tolist() == [[1, 1, 9, 9], [6, 6, 24, 24], [9, 9, 21, 21]]
    assert kept.all()
    points, kept = move_keypoints(boxes.reshape(3, 2, 2), np.array([1, 0, 0, 2]), matrices, (100, 100))
    assert (points.reshape(3, 4) == made).all()
    assert kept.shape == (3, 2)
    assert kept.all()


@forms
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64])
def test_records_without_boxes_stay_without(form: str, dtype: Any) -> None:
    made, kept = move_boxes(np.zeros((0, 4), dtype), np.zeros(3, np.int64), np.stack([UNMOVED] * 3), (5, 5), form=form)
    assert (made.shape, made.dtype, kept.shape, kept.dtype.kind) == ((0, 4), dtype, (0,), "b")
    none = np.zeros((0, 0, 2), dtype)
    points, kept = move_keypoints(none, np.zeros(3, np.int64), np.stack([UNMOVED] * 3), (5, 5))
    assert (points.shape, points.dtype, kept.shape) == ((0, 0, 2), dtype, (0, 0))
    assert len(move_boxes(np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros((0, 3, 3)), (5, 5))[0]) == 0


def test_boxes_that_are_gone_are_marked_and_stay_in_their_place() -> None:
    nan, infinite = float("nan"), float("inf")
    boxes = {
        "whole": [10, 10, 20, 20],
        "not a number": [nan, 10, 20, 20],
        "infinite": [-infinite, 10, 20, infinite],
        "outside": [-30, 10, -5, 20],
        "no width": [10, 10, 10, 20],
        "turned around": [20, 20, 10, 10],
        "sliver within": [-30, 10, 0.5, 20],
        "just large enough": [-30, 10, 1, 20],
    }
    given = np.array([*boxes.values()])
    made, kept = move_boxes(given, np.array([len(given)]), UNMOVED[None], (HEIGHT, WIDTH))
    assert [name for name, there in zip(boxes, kept, strict=True) if there] == ["whole", "just large enough"]
    assert made[3].tolist() == [0, 10, 0, 20]
    assert made[6].tolist() == [0, 10, 0.5, 20]
    assert np.isnan(made[1:3]).any(1).all()
    # A line becomes no box by turning it.
    turned = affine(45, [0, 0], 1, [0, 0])
    assert not move_boxes(given, np.array([len(given)]), turned[None], (HEIGHT, WIDTH))[1][4]
    for size, wanted in ((0, [0, 6, 7]), (1.01, [0]), (11, [])):
        kept = move_boxes(given, np.array([len(given)]), UNMOVED[None], (HEIGHT, WIDTH), min_size=size)[1]
        assert np.flatnonzero(kept).tolist() == wanted


def test_what_has_no_place_is_zero_as_an_integer() -> None:
    broken = np.stack([np.full((3, 3), np.nan), 1e300 * np.eye(3) + [[0, 0, 0], [0, 0, 0], [0, 0, -1e300]]])
    made, kept = move_boxes(np.array([[1, 1, 9, 9]] * 2, np.int32), np.array([1, 1]), broken, (9, 9))
    assert not made.any()
    assert not kept.any()
    far = np.diag([1e300, -1e300, 1.0])
    points, kept = move_keypoints(np.array([[1, 1], [0, 0]], np.int64), np.array([2]), far[None], (9, 9))
    assert points.tolist() == [[2**53, -(2**53)], [0, 0]]
    assert kept.tolist() == [False, True]


def test_nothing_beyond_the_horizon_comes_back() -> None:
    horizon = np.array([[1, 0, 0], [0, 1, 0], [-0.01, 0, 1.0]])  # at x = 100
    boxes = np.array([[10, 10, 20, 20], [90, 10, 110, 20], [120, 10, 150, 20]])
    assert move_boxes(boxes, np.array([3]), horizon[None], (HEIGHT, WIDTH))[1].tolist() == [True, False, False]
    points = np.array([[10, 10], [100, 10], [150, 10]])
    part = np.array([[0.0, 0.0, 5.0, 5.0]])
    inside = np.array([[5.0, 5.0], [5.1, 1.0]])
    assert move_keypoints(inside, np.array([2]), UNMOVED[None], (9, 9), shown=part)[1].tolist() == [True, False]
    assert move_keypoints(points, np.array([3]), horizon[None], (HEIGHT, WIDTH))[1].tolist() == [True, False, False]


def test_what_a_crop_cut_off_is_not_turned_back_into_the_picture() -> None:
    box, turned = np.array([[60, 40, 900, 60.0]]), affine(90, [0, 0], 1, [0, 0])
    shown = np.array([[0, 0, 80, HEIGHT]], np.float64)
    cut = move_boxes(box, np.array([1]), turned[None], (HEIGHT, WIDTH), shown=shown)[0]
    assert cut.round(6).tolist() == [[80, 40, 100, 60]]
    assert move_boxes(box, np.array([1]), turned[None], (HEIGHT, WIDTH))[0].round(6).tolist() == [[80, 40, 100, 120]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@moves
def test_keypoints_are_where_torchvision_has_them(move: Move, dtype: Any) -> None:
    points = np.random.default_rng(1).uniform(0, (WIDTH, HEIGHT), (40, 5, 2)).astype(dtype)
    given = tv_tensors.KeyPoints(torch.from_numpy(points.copy()), canvas_size=(HEIGHT, WIDTH))
    wanted = move[0](given).as_subclass(torch.Tensor).numpy()
    if move[0] is F.horizontal_flip:
        wanted[..., 0] += 1  # torchvision's keypoints are numbers of pixels
    elif move[0] is F.vertical_flip:
        wanted[..., 1] += 1
    made, kept = move_keypoints(points, np.array([40]), move[1][None], move[2])
    assert (made.shape, made.dtype, kept.shape) == (points.shape, dtype, (40, 5))
    np.testing.assert_allclose(made, wanted, atol=1.001 if dtype is np.int64 else 2e-4)
    if dtype is np.float64:
        assert (kept == ((wanted >= 0) & (wanted <= move[2][::-1])).all(-1)).all()


def test_small_types_do_not_wrap_around() -> None:
    points = np.array([[200, 100]], np.uint8)
    for factor, wanted in ((2, [255, 200]), (-1, [0, 0])):
        made, _ = move_keypoints(points, np.array([1]), np.diag([factor, factor, 1.0])[None], (500, 500))
        assert made.tolist() == [wanted]


@pytest.mark.parametrize(
    ("boxes", "counts", "given", "message"),
    [
        (np.zeros((3, 5)), [3], {}, r"boxes are \(N, 4\), not \(3, 5\)"),
        (np.zeros(4), [4], {}, r"boxes are \(N, 4\), not \(4,\)"),
        (np.zeros((3, 4)), [2], {}, "the counts are 2 in all, for 3 values"),
        (np.zeros((3, 4)), [1, 2], {}, "2 counts for 1 matrices"),
        (np.zeros((3, 4)), [3], {"form": "yxyx"}, "form is"),
    ],
)
def test_wrong_shapes_are_refused(boxes: NDArray[Any], counts: list[int], given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        move_boxes(boxes, np.array(counts), UNMOVED[None], (9, 9), **given)
    with pytest.raises(ValueError, match=r"keypoints are \(N, ..., 2\), not \(4, 3\)"):
        move_keypoints(np.zeros((4, 3)), np.array([4]), UNMOVED[None], (9, 9))
    with pytest.raises(TypeError, match="integers or floats, not bool"):
        move_keypoints(np.zeros((4, 2), bool), np.array([4]), UNMOVED[None], (9, 9))
