"""MixUp and CutMix: pairs of images and labels against formulas and torchvision's, draws, bad arguments."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms import v2

from fastrecord import _core
from fastrecord.transforms import CutMix, Mixing, MixUp, Operation, RandomInvert

CLASSES = 7
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
BLENDS = [
    {"op": "MixUp", "share": 0.3},
    {"op": "MixUp", "share": 0.9},
    {"op": "CutMix", "x": 3, "y": 2, "width": 8, "height": 5},
    {"op": "CutMix", "x": 0, "y": 0, "width": 13, "height": 11},
    {"op": "CutMix", "x": 5, "y": 9, "width": 0, "height": 0},
]


def batch(size: int, dtype: torch.dtype = torch.float32, channels: int = 3) -> torch.Tensor:
    return torch.randn(size, channels, 11, 13, generator=torch.Generator().manual_seed(size)).to(dtype)


def blended(images: torch.Tensor, blend: dict[str, Any], *, planar: bool) -> torch.Tensor:
    """Return what the core makes of a batch, pair by pair."""
    kind, size = str(images.dtype).removeprefix("torch."), (images.shape[2], images.shape[3])
    laid = (images if planar else images.permute(0, 2, 3, 1)).contiguous()
    made = laid.clone()
    rows = made.flatten(1).view(torch.uint8).numpy()
    for at in range(len(rows) // 2):
        _core.Mixing.apply(json.dumps(blend), kind, planar, size, rows[at], rows[-1 - at])
    return made if planar else made.permute(0, 3, 1, 2)


def formula(images: torch.Tensor, blend: dict[str, Any]) -> torch.Tensor:
    """Return the same in float64, without rounding to the images' type."""
    wide = images.double()
    if blend["op"] == "MixUp":
        share: float = blend["share"]
        return share * wide + (1 - share) * wide.flip(0)
    y, x = torch.arange(images.shape[2])[:, None] - blend["y"], torch.arange(images.shape[3]) - blend["x"]
    inside = (y >= 0) & (y < blend["height"]) & (x >= 0) & (x < blend["width"])
    return torch.where(inside, wide.flip(0), wide)


def is_rounded(made: torch.Tensor, exact: torch.Tensor) -> None:
    """Check that values differ from exact ones by no more than their type's rounding."""
    rounding = torch.finfo(made.dtype).eps / 2
    torch.testing.assert_close(made.double(), exact, rtol=1.01 * rounding, atol=1e-6)


@pytest.mark.parametrize("blend", BLENDS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("planar", [False, True], ids=["channels_last", "nchw"])
@pytest.mark.parametrize(("size", "channels"), [(1, 3), (2, 1), (7, 3)])
def test_both_images_of_a_pair_are_what_the_formula_says(
    blend: dict[str, Any], dtype: torch.dtype, planar: bool, size: int, channels: int
) -> None:
    images = batch(size, dtype, channels)
    made = blended(images, blend, planar=planar)
    is_rounded(made, formula(images, blend))
    if size % 2:
        assert torch.equal(made[size // 2], images[size // 2])


@pytest.mark.parametrize("blend", BLENDS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
def test_a_batch_on_a_device_is_blended_as_by_the_core(
    blend: dict[str, Any], dtype: torch.dtype, layout: torch.memory_format
) -> None:
    images = batch(9, dtype).to(memory_format=layout)
    before = images.clone()
    made = Mixing.images(images, blend)
    is_rounded(made, formula(images, blend))
    torch.testing.assert_close(made, blended(images, blend, planar=True), rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert made.dtype == dtype
    assert made.is_contiguous(memory_format=layout)
    assert torch.equal(images, before)


@pytest.mark.parametrize("operation", [MixUp(0.2, CLASSES), CutMix(1.0, CLASSES)], ids=str)
def test_pairs_become_what_torchvision_makes_of_them_with_the_same_numbers(
    operation: MixUp | CutMix, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = getattr(v2, type(operation).__name__)(alpha=operation.alpha, num_classes=CLASSES)
    mixing = Mixing.of([operation])
    for position in range(20):
        images, labels = batch(8), torch.arange(8) % CLASSES
        drawn = json.loads(mixing.core.draw(1, 2, position, (11, 13)))
        blend, share = drawn["blend"], drawn["share"]
        if blend["op"] == "MixUp":
            given: dict[str, Any] = {"lam": share}
        else:
            box = (blend["x"], blend["y"], blend["x"] + blend["width"], blend["y"] + blend["height"])
            given = {"box": box, "lam_adjusted": share}
        monkeypatch.setattr(theirs, "make_params", lambda _, given=given: given)
        made = blended(images, blend, planar=False)
        weights = mixing.labels(labels, share, torch.arange(8).flip(0))
        for first in range(4):
            # torchvision mixes neighbours: in a batch of two, those are partners.
            two = torch.tensor([first, 7 - first])
            wanted, wanted_labels = theirs(images[two], labels[two])
            torch.testing.assert_close(made[two], wanted)
            torch.testing.assert_close(weights[two], wanted_labels)


def test_labels_of_records_without_a_partner_are_one_hot() -> None:
    mixing = Mixing.of([MixUp(), CutMix(num_classes=4)])
    labels = torch.tensor([0, 1, 2, 3, 3])
    made = mixing.labels(labels, 0.75, torch.tensor([4, 1, 2, 1, 0]))
    wanted = [[0.75, 0, 0, 0.25], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0.25, 0, 0.75], [0.25, 0, 0, 0.75]]
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, torch.tensor(wanted))
    assert Mixing.of(MixUp(), 4).labels(labels[:0], 0.5, torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


def draws(operations: list[MixUp | CutMix], count: int, size: tuple[int, int] = (100, 200)) -> list[dict[str, Any]]:
    core = Mixing.of(operations).core
    return [json.loads(core.draw(3, 1, 64 * number, size)) for number in range(count)]


def distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the largest difference between two empirical distribution functions: Kolmogorov and Smirnov's."""
    at = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def beta_quantiles(alpha: float, count: int) -> NDArray[np.float64]:
    """Return evenly spaced quantiles of Beta(alpha, alpha), of the integral of its density."""
    # In u = t ** alpha the density is finite at 0; the upper half mirrors the lower one.
    u = np.linspace(0, 0.5**alpha, 200_001)
    middle = (u[1:] + u[:-1]) / 2
    area = np.concatenate([[0], np.cumsum((1 - middle ** (1 / alpha)) ** (alpha - 1))])
    level = (np.arange(count // 2) + 0.5) / count
    lower = np.interp(level, area / area[-1] / 2, u) ** (1 / alpha)
    return np.concatenate([lower, 1 - lower])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_of_mixup_have_the_beta_distribution(alpha: float) -> None:
    count = 10_000
    shares = np.array([drawn["share"] for drawn in draws([MixUp(alpha)], count)])
    assert distance(shares, beta_quantiles(alpha, 10 * count)) < 1.95 / math.sqrt(count)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_rectangles_of_cutmix_have_the_distribution_of_torchvision(alpha: float) -> None:
    count = 10_000
    ours = draws([CutMix(alpha)], count)
    theirs, image = v2.CutMix(alpha=alpha, num_classes=CLASSES), torch.empty(1, 3, 100, 200)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = [theirs.make_params([image]) for _ in range(count)]
    boxes = np.array([given["box"] for given in made], float)
    wanted = {
        "x": boxes[:, 0],
        "y": boxes[:, 1],
        "width": boxes[:, 2] - boxes[:, 0],
        "height": boxes[:, 3] - boxes[:, 1],
    }
    bound = 1.95 * math.sqrt(2 / count)
    for name, values in wanted.items():
        assert distance(np.array([drawn["blend"][name] for drawn in ours], float), values) < bound, name
    shares = np.array([drawn["share"] for drawn in ours])
    assert distance(shares, np.array([given["lam_adjusted"] for given in made])) < bound
    for drawn in ours[:100]:
        area = drawn["blend"]["width"] * drawn["blend"]["height"]
        assert drawn["share"] == pytest.approx(1 - area / 20_000)


def test_each_operation_is_chosen_equally_often() -> None:
    made = draws([MixUp(0.2), CutMix(), CutMix(0.5)], 9000)
    mixed = sum(drawn["blend"]["op"] == "MixUp" for drawn in made)
    assert abs(mixed - 3000) < 5 * math.sqrt(9000 * 2 / 9)


def test_a_draw_depends_on_seed_epoch_and_position_alone() -> None:
    core = Mixing.of([MixUp()]).core
    given = [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)]
    drawn = [core.draw(*one, (8, 8)) for one in given]
    assert len(set(drawn)) == 4
    assert [core.draw(*one, (8, 8)) for one in given] == drawn
    # Another operation in the list changes no numbers of this one.
    other = Mixing.of([MixUp(), CutMix()]).core
    both = [other.draw(*one, (8, 8)) for one in [(1, 2, position) for position in range(40)]]
    alone = [core.draw(*one, (8, 8)) for one in [(1, 2, position) for position in range(40)]]
    assert all(one == same or "CutMix" in one for one, same in zip(both, alone, strict=True))
    assert 5 < sum(one == same for one, same in zip(both, alone, strict=True)) < 35


def test_names_and_defaults_are_those_of_torchvision() -> None:
    for ours, theirs in ((MixUp(), v2.MixUp(num_classes=3)), (CutMix(), v2.CutMix(num_classes=3))):
        assert ours.alpha == theirs.alpha
        assert ours.spec() == {"op": type(theirs).__name__, "alpha": 1.0, "num_classes": None}
        assert not isinstance(ours, Operation)


def made_of(operation: Any, **given: Any) -> Any:
    return operation(**given)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MixUp(0), ValueError, "alpha is from 1e-06 to 1e\\+06, not 0"),
        (lambda: CutMix(float("nan")), ValueError, "alpha is from"),
        (lambda: made_of(CutMix, alpha="1"), TypeError, "alpha is a number, not '1'"),
        (lambda: MixUp(num_classes=0), ValueError, "num_classes is at least 1, not 0"),
        (lambda: made_of(MixUp, num_classes=2.0), TypeError, "num_classes is an int"),
        (lambda: Mixing.of([]), TypeError, "a list of MixUp and CutMix, not \\[\\]"),
        (lambda: Mixing.of(None), TypeError, "a list of MixUp and CutMix, not None"),
        (lambda: Mixing.of([MixUp(), RandomInvert()]), TypeError, "RandomInvert.* does not"),
        (lambda: Mixing.of([MixUp(1.0, 3), CutMix(1.0, 4)]), ValueError, "one num_classes, not \\[3, 4\\]"),
        (lambda: _core.Mixing("[]"), ValueError, "no operation"),
        (lambda: _core.Mixing('[{"op": "Mix"}]'), ValueError, "unknown variant `Mix`"),
        (lambda: _core.Mixing('[{"op": "MixUp", "alpha": -1}]'), ValueError, "alpha is from 1e-6 to 1e6, not -1"),
    ],
)
def test_bad_arguments_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_bad_labels_are_refused() -> None:
    partners = torch.tensor([1, 0])
    with pytest.raises(ValueError, match="number of classes is unknown"):
        Mixing.of([MixUp()]).labels(torch.tensor([0, 1]), 0.5, partners)
    for labels in (torch.tensor([0, 3]), torch.tensor([-1, 0])):
        with pytest.raises(ValueError, match="labels are from 0 to 2, below num_classes, not"):
            Mixing.of([MixUp()], 3).labels(labels, 0.5, partners)
    with pytest.raises(TypeError, match="labels are int64"):
        Mixing.of([MixUp()], 3).labels(torch.tensor([0.0, 1.0]), 0.5, partners)


@pytest.mark.parametrize(
    ("blend", "size", "message"),
    [
        ({"op": "MixUp", "share": 0.5}, (4, 5), "have other lengths"),
        ({"op": "CutMix", "x": 2, "y": 0, "width": 2, "height": 1}, (2, 3), "is outside"),
        ({"op": "CutMix", "x": 0, "y": 2**63, "width": 1, "height": 2**63}, (2, 3), "is outside"),
        ({"op": "CutMix"}, (2, 3), "missing field"),
    ],
    ids=str,
)
def test_the_core_refuses_what_does_not_fit(blend: dict[str, Any], size: tuple[int, int], message: str) -> None:
    rows = np.zeros((2, 3 * 2 * 3 * 4), np.uint8)
    with pytest.raises(ValueError, match=message):
        _core.Mixing.apply(json.dumps(blend), "float32", False, size, rows[0], rows[1])
    assert not rows.any()
