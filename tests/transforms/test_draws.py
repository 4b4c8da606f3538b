"""The random numbers of recipes: torchvision's distributions, and independence."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms import v2
from torchvision.transforms.v2 import _auto_augment

from fastrecord import transforms as T  # noqa: N812
from tests.transforms.drawn import SIZE, Step, drawn, label, labels, recipe, shown_parts, write_image

N = 10_000
IMAGE = torch.zeros(3, *SIZE, dtype=torch.uint8)
Numbers = dict[str, list[float]]


def furthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the statistic of Kolmogorov and Smirnov of two samples: how far their distributions are apart at most."""
    one, other = np.sort(ours), np.sort(theirs)
    at = np.concatenate([one, other])
    shares = [np.searchsorted(sample, at, "right") / len(sample) for sample in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def assert_same_distribution(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert set(ours) == set(theirs)
    for name, numbers in ours.items():
        n, m = len(numbers), len(theirs[name])
        assert min(n, m) > 1000
        assert furthest(numbers, theirs[name]) < 1.95 * math.sqrt((n + m) / (n * m)), name


def assert_same_frequencies(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Compare how often each thing comes, by the statistic chi square of two samples of one size."""
    assert len(ours) == len(theirs)
    counts = [collections.Counter(map(str, sample)) for sample in (ours, theirs)]
    things = counts[0].keys() | counts[1].keys()
    statistic = sum((counts[0][one] - counts[1][one]) ** 2 / (counts[0][one] + counts[1][one]) for one in things)
    free = len(things) - 1
    assert statistic <= free + 4 * math.sqrt(2 * free), (counts[0] - counts[1], counts[1] - counts[0])


# ---- one operation, number by number ---------------------------------------------------------------------------------


def affine(params: Step) -> dict[str, float]:
    (x, y), (shear_x, shear_y) = params["translate"], params["shear"]
    scale, angle = params["scale"], params["angle"]
    return {"angle": angle, "x": x, "y": y, "scale": scale, "shear x": shear_x, "shear y": shear_y}


def coefficients(params: Step) -> dict[str, float]:
    # Many are 0, but for rounding errors.
    return {f"{number}": round(value, 9) for number, value in enumerate(params["coefficients"])}


# An operation, torchvision's, and the numbers in a step of ours and in the parameters of torchvision's.
NUMBERS: list[tuple[T.Operation, v2.Transform, Callable[[Step], Any], Callable[[Step], Any]]] = [
    (
        T.RandomRotation((-20, 70)),
        v2.RandomRotation((-20, 70)),
        lambda step: {"angle": -step["angle"]},
        lambda params: params,
    ),
    (
        T.RandomAffine((-20, 70), (0.3, 0.1), (0.5, 2), (-9, 3, 0, 40)),
        v2.RandomAffine((-20, 70), (0.3, 0.1), (0.5, 2), (-9, 3, 0, 40)),
        affine,
        affine,
    ),
    (T.RandomPerspective(0.4, 1.0), v2.RandomPerspective(0.4, 1.0), coefficients, coefficients),
    (
        T.GaussianBlur(3, (0.1, 2)),
        v2.GaussianBlur(3, (0.1, 2)),
        lambda step: dict(zip("xy", step["sigma"], strict=True)),
        lambda params: dict(zip("xy", params["sigma"], strict=True)),
    ),
    (
        T.RandomErasing(1.0, (0.02, 0.6), (0.3, 3.3)),
        v2.RandomErasing(1.0, (0.02, 0.6), (0.3, 3.3)),
        lambda step: {name: step[name] for name in ("x", "y", "width", "height")},
        lambda params: {"x": params["j"], "y": params["i"], "width": params["w"], "height": params["h"]},
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "of_step", "of_params"), NUMBERS, ids=lambda one: type(one).__name__)
def test_numbers_have_the_distribution_of_torchvision(
    ours: T.Operation, theirs: Any, of_step: Callable[[Step], Any], of_params: Callable[[Step], Any]
) -> None:
    torch.manual_seed(0)
    found: Numbers = collections.defaultdict(list)
    wanted: Numbers = collections.defaultdict(list)
    for steps in drawn(recipe([ours]), N):
        for step in steps:
            for name, value in of_step(step).items():
                found[name].append(value)
    for _ in range(N):
        params = theirs.make_params([IMAGE])
        if params.get("v", ...) is not None:  # otherwise no rectangle was found
            for name, value in of_params(params).items():
                wanted[name].append(value)
    assert_same_distribution(found, wanted)


def test_colour_jitter_draws_torchvisions_factors_in_any_order() -> None:
    torch.manual_seed(0)
    given: list[Any] = [0.4, (0.5, 3), 0.2, (-0.1, 0.3)]
    names = ("brightness", "contrast", "saturation", "hue")
    all_steps = list(drawn(recipe([T.ColorJitter(*given)]), N))
    all_params = [v2.ColorJitter(*given).make_params([IMAGE]) for _ in range(N)]
    found: Numbers = {
        name: [step["factor"] for steps in all_steps for step in steps if step["step"] == name] for name in names
    }
    assert_same_distribution(found, {name: [params[f"{name}_factor"] for params in all_params] for name in names})
    orders = [[names.index(step["step"]) for step in steps] for steps in all_steps]
    assert len({*map(tuple, orders)}) == 24
    assert_same_frequencies(orders, [params["fn_idx"].tolist() for params in all_params])


PERHAPS = [
    T.RandomHorizontalFlip,
    T.RandomVerticalFlip,
    T.RandomGrayscale,
    T.RandomInvert,
    T.RandomEqualize,
    T.RandomAutocontrast,
    T.RandomPerspective,
    lambda p: T.RandomSolarize(9, p=p),
    lambda p: T.RandomPosterize(3, p=p),
    lambda p: T.RandomAdjustSharpness(2, p=p),
    lambda p: T.RandomErasing(p, (0.1, 0.2), (1, 1)),
    lambda p: T.RandomApply([T.RandomInvert(1.0)], p),
]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("operation", PERHAPS, ids=lambda one: str(one(1.0))[:24])
def test_an_operation_happens_as_often_as_it_should(operation: Callable[..., T.Operation], p: float) -> None:
    happened = sum(bool(steps) for steps in drawn(recipe([operation(p=p)]), N))
    assert abs(happened - p * N) <= 4 * math.sqrt(N * p * (1 - p))


def test_crops_have_the_distribution_of_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = write_image(tmp_path / "image.frec", N // 4)
    sample = {"image": [T.RandomResizedCrop(8)], "cut": T.View("image", [T.RandomCrop((20, 10), (1, 3))])}
    epochs = [shown_parts(image, sample, 0, epoch) for epoch in range(4)]
    for name, theirs in (("image", v2.RandomResizedCrop(8)), ("cut", v2.RandomCrop((20, 10), (1, 3)))):
        boxes = np.concatenate([epoch[name] for epoch in epochs])
        params = [theirs.make_params([IMAGE]) for _ in range(len(boxes))]
        left, top = (1, 3) if name == "cut" else (0, 0)
        found = {"left": boxes[:, 0] + left, "top": boxes[:, 1] + top}
        found |= {"width": boxes[:, 2] - boxes[:, 0], "height": boxes[:, 3] - boxes[:, 1]}
        assert_same_distribution(found, {key: [one[key] for one in params] for key in found})


# ---- choices ---------------------------------------------------------------------------------------------------------


class Recorded:
    """Stands for torchvision's functions, and notes the calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        def call(image: torch.Tensor, **given: Any) -> torch.Tensor:
            if name == "rotate":
                given = {"angle": -given["angle"], "translate": [0, 0], "scale": 1.0, "shear": [0, 0], "center": None}
            kind = "affine" if name == "rotate" else name.removeprefix("adjust_")
            given = {key.removesuffix("_factor").replace(kind, "factor"): value for key, value in given.items()}
            self.calls.append(label(kind, **given))
            return image

        return call


AUTOMATIC: list[tuple[T.Operation, v2.Transform]] = [
    (T.TrivialAugmentWide(), v2.TrivialAugmentWide()),
    (T.TrivialAugmentWide(4), v2.TrivialAugmentWide(4)),
    (T.RandAugment(), v2.RandAugment()),
    (T.RandAugment(1, 6, 11), v2.RandAugment(1, 6, 11)),
    (T.AutoAugment(), v2.AutoAugment()),
]


@pytest.mark.parametrize(("ours", "theirs"), AUTOMATIC, ids=str)
def test_operations_of_a_set_come_as_often_and_as_strong_as_in_torchvision(
    ours: T.Operation, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(_auto_augment, "F", recorded := Recorded())
    wanted = []
    for _ in range(N):
        recorded.calls = []
        theirs(IMAGE)
        wanted.append(recorded.calls)
    assert_same_frequencies([labels(steps) for steps in drawn(recipe([ours]), N)], wanted)


@pytest.mark.parametrize("given", [(), (5, 2, 4, 0.3, False), (1, 4, -1, 3.0)], ids=str)
def test_augmix_draws_torchvisions_weights_and_chains(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(_auto_augment, "F", recorded := Recorded())
    weights: list[list[float]] = []

    def sampled(_: Any, params: torch.Tensor) -> torch.Tensor:
        weights.append((made := torch._sample_dirichlet(params)).flatten().tolist())
        return made

    monkeypatch.setattr(v2.AugMix, "_sample_dirichlet", sampled)
    theirs, wanted = v2.AugMix(*given), []
    small = IMAGE[:, :1, :1].expand(3, *SIZE)
    for _ in range(N // 5):
        recorded.calls = []
        theirs(small)
        wanted.append(recorded.calls)
    mixes = [steps[0] for steps in drawn(recipe([T.AugMix(*given)]), N // 5)]
    chains = [[chain for _, chain in mix["chains"]] for mix in mixes]
    found = {"own": [mix["own"] for mix in mixes], "first": [mix["chains"][0][0] for mix in mixes]}
    for mix in mixes:
        assert math.isclose(mix["own"] + sum(weight for weight, _ in mix["chains"]), 1)
    own, width = weights[::2], theirs.mixture_width
    first = [chosen[0] * mine[1] for mine, chosen in zip(own, weights[1::2], strict=True)]
    assert_same_distribution(found, {"own": [mine[0] for mine in own], "first": first})
    assert {len(several) for several in chains} == {width}
    depths = [sum(map(len, several)) for several in chains]
    assert_same_frequencies(depths, [len(calls) for calls in wanted])
    firsts = [labels(several[0])[0] for several in chains]
    assert_same_frequencies(firsts, [calls[0] for calls in wanted])


def test_a_choice_follows_its_weights() -> None:
    parts = [T.RandomInvert(1.0), T.RandomEqualize(1.0), T.RandomGrayscale(1.0), T.RandomAutocontrast(1.0)]
    for weights in ([0.5, 0.2, 0, 0.3], [3, 1, 1, 5]):
        found = collections.Counter(steps[0]["step"] for steps in drawn(recipe([T.RandomChoice(parts, weights)]), N))
        wanted = dict(zip(("invert", "equalize", "grayscale", "autocontrast"), weights, strict=True))
        statistic = 0.0
        for name, weight in wanted.items():
            expected = N * weight / sum(weights)
            assert found[name] == 0 if expected == 0 else found[name] > 0
            statistic += (found[name] - expected) ** 2 / expected if expected else 0
        assert statistic < 3 + 4 * math.sqrt(6)


def test_each_order_comes_equally_often() -> None:
    parts = [T.RandomInvert(1.0), T.RandomEqualize(1.0), T.RandomGrayscale(1.0), T.RandomAutocontrast(1.0)]
    found = collections.Counter(
        tuple(step["step"] for step in steps) for steps in drawn(recipe([T.RandomOrder(parts)]), N)
    )
    assert len(found) == 24
    assert sum((count - N / 24) ** 2 / (N / 24) for count in found.values()) < 23 + 4 * math.sqrt(46)


# ---- independence ----------------------------------------------------------------------------------------------------

SOME = [T.RandomHorizontalFlip(), T.ColorJitter(0.4, hue=0.1), T.RandomApply([T.GaussianBlur(3)]), T.RandomRotation(9)]


def by_kind(steps: Sequence[Step]) -> list[Step]:
    kinds = ("horizontal_flip", "brightness", "hue", "blur", "affine")
    return [step for step in steps if step["step"] in kinds]


@pytest.mark.parametrize("at", range(len(SOME) + 1))
@pytest.mark.parametrize("other", [T.RandomInvert(1.0), T.RandomPosterize(3, 1.0), T.RandomGrayscale(1.0)], ids=str)
def test_an_inserted_operation_shifts_no_others_numbers(other: T.Operation, at: int) -> None:
    more = [*SOME[:at], other, *SOME[at:]]
    for before, after in zip(drawn(recipe(SOME), 200), drawn(recipe(more), 200), strict=True):
        assert by_kind(after) == before
        assert len(after) == len(before) + 1


def test_operations_of_one_name_draw_by_their_number_among_them() -> None:
    first, second = T.RandomRotation((0, 10)), T.RandomRotation((100, 110))
    alone = list(drawn(recipe([first]), 100))
    both = list(drawn(recipe([first, T.RandomInvert(), second]), 100))
    for one, several in zip(alone, both, strict=True):
        angles = [step["angle"] for step in several if step["step"] == "affine"]
        assert angles[0] == one[0]["angle"]
        assert abs(angles[1] + 100 - angles[0]) > 1e-6
    # A part of an operation counts as if it stood behind it, and an operation on floats after all those on bytes.
    nested = drawn(recipe([T.RandomApply([first], 1.0), second]), 100)
    flat = drawn(recipe([first, second]), 100)
    assert list(nested) == list(flat)
    erasing = T.RandomErasing(1.0)
    floats = [json.loads(recipe([erasing], after=[erasing]).draw(1, 2, at, SIZE)) for at in range(50)]
    assert [one["steps"] + one["after"] for one in floats] == list(drawn(recipe([erasing, erasing]), 50))


@pytest.mark.parametrize("other", [("image", 1), ("image", 2), ("imagf", 0), ("", 0), ("Image", 0)], ids=str)
def test_other_outputs_and_views_draw_other_numbers(other: tuple[str, int]) -> None:
    whole = [T.RandomRotation((0, 1)), T.ColorJitter(0.5)]
    sides = [list(drawn(recipe(whole, *stream), N)) for stream in (("image", 0), other)]
    numbers = [[step.get("angle", step.get("factor")) for steps in side for step in steps] for side in sides]
    assert not set(numbers[0]) & set(numbers[1])
    one, another = (np.array([steps[0]["angle"] for steps in side]) for side in sides)
    assert abs(np.corrcoef(one, another)[0, 1]) < 4 / math.sqrt(N)


def test_numbers_of_a_record_are_independent_of_each_other() -> None:
    steps = T.RandomRotation((0, 1)), T.ColorJitter(0.5, 0.5, 0.5, 0.5), T.GaussianBlur(3), T.RandomRotation((0, 1))
    columns: NDArray[np.float64] = np.array(
        [
            [
                values[0]["angle"],
                values[-1]["angle"],
                values[-2]["sigma"][0],
                *(step["factor"] for step in sorted(values[1:5], key=lambda step: str(step["step"]))),
            ]
            for values in drawn(recipe(steps), N)
        ]
    ).T
    together = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(together).max() < 4.5 / math.sqrt(N)
    for neighbours in columns:
        assert abs(np.corrcoef(neighbours[:-1], neighbours[1:])[0, 1]) < 4.5 / math.sqrt(N)


@pytest.mark.parametrize("change", ["seed", "epoch", "position"])
def test_numbers_change_with_each_part_of_their_key(change: str) -> None:
    made = recipe([T.RandomRotation((0, 1))])
    words = (0, 1, 2, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)
    angles = [
        json.loads(made.draw(**{"seed": 5, "epoch": 6, "position": 7, change: word}, size=SIZE))["steps"][0]["angle"]
        for word in words
    ]
    assert len({*angles}) == len(words)
    assert all(abs(one - other) > 1e-6 for one, other in pairwise(sorted(angles)))
