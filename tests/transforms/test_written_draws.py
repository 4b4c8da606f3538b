"""The random numbers of recipes as docs/order.md defines them, and some that never change.

`Written` and what it uses is written from "The numbers of a recipe, step by step" alone.
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from torchvision.transforms import v2

from fastrecord import transforms as T  # noqa: N812
from tests.transforms.drawn import SIZE, Step, drawn, label, labels, recipe, shown_parts, write_image

WORD = (1 << 64) - 1


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def mixed(start: int, *words: int) -> int:
    key = mix(start)
    for word in words:
        key = mix(key + word & WORD)
    return key


def name_hash(name: str) -> int:
    made = 0xCBF29CE484222325
    for byte in name.encode():
        made = (made ^ byte) * 0x100000001B3 & WORD
    return made


class Draws:
    """The draws of one operation for one record."""

    def __init__(self, state: int) -> None:
        self.state, self.number = state, 0

    def bits(self) -> int:
        self.number += 1
        return mix(self.state + self.number * 0x9E3779B97F4A7C15 & WORD)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * ((self.bits() >> 11) / 2**53)

    def below(self, n: int) -> int:
        return self.bits() * n >> 64

    def coin(self) -> bool:
        return self.bits() >> 63 == 1

    def perhaps(self, p: float) -> bool:
        return self.uniform(0, 1) < p

    def shuffled(self, things: Sequence[Any]) -> list[Any]:
        made = [*things]
        for last in range(len(made) - 1, 0, -1):
            other = self.below(last + 1)
            made[last], made[other] = made[other], made[last]
        return made

    def open(self) -> float:
        return 1 - self.uniform(0, 1)

    def gamma(self, alpha: float) -> float:
        boost = self.open() ** (1 / alpha) if alpha < 1 else 1
        d = (alpha + 1 if alpha < 1 else alpha) - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = math.sqrt(-2 * math.log(self.open())) * math.cos(2 * math.pi * self.uniform(0, 1))
            v = (1 + c * x) ** 3
            if v > 0 and math.log(self.open()) < x * x / 2 + d - d * v + d * math.log(v):
                return d * v * boost

    def dirichlet(self, k: int, alpha: float) -> list[float]:
        made = [self.gamma(alpha) for _ in range(k)]
        if sum(made) == 0:
            made[self.below(k)] = 1
        return [one / sum(made) for one in made]


MOVES = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
COLOURS = ["Brightness", "Color", "Contrast", "Sharpness"]
TONES = ["Posterize", "Solarize", "AutoContrast", "Equalize"]
ALL = ["Identity", *MOVES, *COLOURS, *TONES]
MIXED = [*MOVES, *TONES, *COLOURS]
SIGNED = {*MOVES, *COLOURS}


class Ends(NamedTuple):
    """The greatest strengths of a set; for bits also the least. A share of the sides is moved, or 32 pixels."""

    shear: float
    share: float | None
    rotate: float
    colour: float
    bits: tuple[int, int]


def strength(kind: str, s: int, n: int, of: Ends) -> float:
    """Return strength s of n."""
    x, y = (32.0, 32.0) if of.share is None else (of.share * SIZE[1], of.share * SIZE[0])
    ends = {"ShearX": of.shear, "ShearY": of.shear, "TranslateX": x, "TranslateY": y, "Rotate": of.rotate}
    ends |= dict.fromkeys(COLOURS, of.colour)
    if kind == "Posterize":
        most, least = of.bits
        return float(np.round(np.float32(most) - np.float32(s) / np.float32((n - 1) / (most - least))))
    start, end = (np.float32(one) for one in ((1, 0) if kind == "Solarize" else (0, ends.get(kind, 0))))
    step = np.float32((end - start) / np.float32(n - 1))
    return float(start + step * np.float32(s) if s < n // 2 else end - step * np.float32(n - 1 - s))


WIDE = Ends(0.99, None, 135, 0.99, (8, 2))
NARROW = Ends(0.3, 150 / 331, 30, 0.9, (8, 4))
MIX = Ends(0.3, 1 / 3, 30, 0.9, (4, 0))


def of_set(kind: str, by: float) -> list[Any]:
    """Return the label of an operation of a set, in a list; nothing of Identity."""
    moved: dict[str, Any] = {"angle": 0, "translate": (0, 0), "scale": 1, "shear": (0, 0), "center": None}
    angle = math.degrees(math.atan(by))
    match kind:
        case "Identity":
            return []
        case "ShearX" | "ShearY":
            shear = (angle, 0) if kind == "ShearX" else (0, angle)
            return [label("affine", **{**moved, "shear": shear, "center": (0, 0)})]
        case "TranslateX" | "TranslateY":
            pixels = (int(by), 0) if kind == "TranslateX" else (0, int(by))
            return [label("affine", **{**moved, "translate": pixels})]
        case "Rotate":
            return [label("affine", **{**moved, "angle": -by})]
        case "Posterize":
            return [label("posterize", bits=by)]
        case "Solarize":
            return [label("solarize", threshold=255 * by)]
        case "Brightness" | "Color" | "Contrast" | "Sharpness":
            return [label("saturation" if kind == "Color" else kind.lower(), factor=1 + by)]
    return [label(kind.lower())]


def chosen(draws: Draws, kind: str, by: float) -> list[Any]:
    return of_set(kind, -by if kind in SIGNED and draws.coin() else by)


def perspective(at: Sequence[Any], to: Sequence[Any]) -> NDArray[Any]:
    """Return the eight coefficients that map four points to four others."""
    rows = []
    for (x, y), (u, v) in zip(at, to, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    return np.linalg.solve(np.array(rows, np.float64), np.array(to, np.float64).flatten())


class Written:
    """The recipe of an output, drawn as the page says."""

    def __init__(self, operations: Sequence[T.Operation], output: str, view: int) -> None:
        self.stream, self.seen = mixed(0x73746570, name_hash(output), view), collections.Counter[str]()
        self.operations = [self.keyed(one) for one in operations]

    def keyed(self, operation: Any) -> tuple[Any, int, list[Any]]:
        name = type(operation).__name__
        key = mixed(0x73746570, self.stream, name_hash(name), self.seen[name])
        self.seen[name] += 1
        return operation, key, [self.keyed(part) for part in getattr(operation, "transforms", ())]

    def draw(self, seed: int, epoch: int, position: int) -> list[Any]:
        base = mixed(0x63726F70, seed, epoch, position)
        return [step for one in self.operations for step in self.steps(one, base)]

    def steps(self, keyed: tuple[Any, int, list[Any]], base: int) -> list[Any]:
        operation, key, parts = keyed
        draws, (height, width) = Draws(mix(base + key & WORD)), SIZE
        match type(operation).__name__:
            case "RandomApply":
                return [step for part in parts for step in self.steps(part, base)] if draws.perhaps(operation.p) else []
            case "RandomOrder":
                return [step for part in draws.shuffled(parts) for step in self.steps(part, base)]
            case "RandomChoice":
                rest, weights = draws.uniform(0, sum(operation.p)), list(np.cumsum(operation.p))
                at = next((at for at, upto in enumerate(weights) if rest < upto), -1)
                return self.steps(parts[at], base)
            case "RandomRotation":
                angle = draws.uniform(*operation.degrees)
                return [label("affine", angle=-angle, center=operation.center, scale=1, shear=(0, 0), translate=(0, 0))]
            case "RandomAffine":
                numbers: dict[str, Any] = {"angle": draws.uniform(*operation.degrees), "translate": (0, 0), "scale": 1}
                if operation.translate is not None:
                    most = [share * side for share, side in zip(operation.translate, (width, height), strict=True)]
                    numbers["translate"] = [round(draws.uniform(-one, one)) for one in most]
                if operation.scale is not None:
                    numbers["scale"] = draws.uniform(*operation.scale)
                shear = operation.shear or [(0, 0), (0, 0)]
                return [
                    label("affine", **numbers, shear=[draws.uniform(*one) for one in shear], center=operation.center)
                ]
            case "RandomPerspective":
                if not draws.perhaps(operation.p):
                    return []
                a, b = (int(operation.distortion_scale * (side // 2)) + 1 for side in (width, height))
                places = [(0, 0), (width - a, 0), (width - a, height - b), (0, height - b)]
                corners = [[x + draws.below(a), y + draws.below(b)] for x, y in places]
                whole = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
                return [label("perspective", coefficients=perspective(corners, whole))]
            case "ColorJitter":
                names = draws.shuffled(["brightness", "contrast", "saturation", "hue"])
                ranges = {name: getattr(operation, name) for name in ("brightness", "contrast", "saturation", "hue")}
                factors = {name: draws.uniform(*found) for name, found in ranges.items() if found is not None}
                return [label(name, factor=factors[name]) for name in names if name in factors]
            case "GaussianBlur":
                return [label("blur", kernel=operation.kernel_size, sigma=[draws.uniform(*operation.sigma)] * 2)]
            case "RandomErasing":
                return self.erasing(operation, draws)
            case "TrivialAugmentWide":
                kind, bins = ALL[draws.below(14)], operation.num_magnitude_bins
                return chosen(draws, kind, strength(kind, draws.below(bins), bins, WIDE))
            case "RandAugment":
                made = []
                for _ in range(operation.num_ops):
                    kind = ALL[draws.below(14)]
                    by = strength(kind, operation.magnitude, operation.num_magnitude_bins, NARROW)
                    made += chosen(draws, kind, by)
                return made
            case "AutoAugment":
                made = []
                for kind, p, s in v2.AutoAugment()._policies[draws.below(25)]:
                    happens, negative = draws.perhaps(p), draws.coin()
                    by = strength(kind, s or 0, 10, NARROW)
                    made += of_set(kind, -by if negative and kind in SIGNED else by) if happens else []
                return made
            case "AugMix":
                return self.augmix(operation, draws)
        words = {"Solarize": {"threshold"}, "Posterize": {"bits"}, "AdjustSharpness": {"sharpness_factor"}}
        short = type(operation).__name__.removeprefix("Random")
        kinds = {"HorizontalFlip": "horizontal_flip", "VerticalFlip": "vertical_flip", "AdjustSharpness": "sharpness"}
        given = {name: getattr(operation, name) for name in words.get(short, ())}
        return [label(kinds.get(short, short.lower()), **given)] if draws.perhaps(operation.p) else []

    def erasing(self, operation: T.RandomErasing, draws: Draws) -> list[Any]:
        height, width = SIZE
        if draws.perhaps(operation.p):
            for _ in range(10):
                area = width * height * draws.uniform(*operation.scale)
                ratio = math.exp(draws.uniform(*map(math.log, operation.ratio)))
                h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
                if h < height and w < width:
                    top, left = draws.below(height - h + 1), draws.below(width - w + 1)
                    return [label("erase", x=left, y=top, width=w, height=h, value=operation.value)]
        return []

    def augmix(self, operation: T.AugMix, draws: Draws) -> list[Any]:
        own = draws.dirichlet(2, operation.alpha)
        kinds = MIXED[: 13 if operation.all_ops else 9]
        chains = []
        for weight in draws.dirichlet(operation.mixture_width, operation.alpha):
            depth = operation.chain_depth if operation.chain_depth > 0 else 1 + draws.below(3)
            chain: list[Any] = []
            for _ in range(depth):
                kind = kinds[draws.below(len(kinds))]
                chain += chosen(draws, kind, strength(kind, draws.below(operation.severity), 10, MIX))
            chains.append((round(weight * own[1], 9), chain))
        return [("mix", round(own[0], 9), chains)]


def shown(steps: Sequence[Step]) -> list[Any]:
    """Return the steps of the core as `Written` has them."""
    made: list[Any] = []
    for step in steps:
        if step["step"] == "mix":
            chains = [(round(weight, 9), labels(chain)) for weight, chain in step["chains"]]
            made.append(("mix", round(step["own"], 9), chains))
        else:
            made += labels([step])
    return made


EVERYTHING: list[T.Operation] = [
    T.RandomHorizontalFlip(),
    T.ColorJitter(0.4, (0.5, 3), 0.2, 0.1),
    T.RandomErasing(0.8, (0.02, 0.6)),
    T.TrivialAugmentWide(),
    T.RandomVerticalFlip(),
    T.RandomRotation((-20, 70), center=(3, 4)),
    T.RandomAffine(9, (0.3, 0.1), (0.5, 2), (-9, 3, 0, 40)),
    T.RandomAffine(180),
    T.RandomPerspective(0.4, 0.7),
    T.RandomGrayscale(0.3),
    T.GaussianBlur(5),
    T.RandomSolarize(128.5),
    T.RandomPosterize(3),
    T.RandomInvert(),
    T.RandomEqualize(),
    T.RandomAutocontrast(),
    T.RandomAdjustSharpness(1.5),
    T.RandAugment(3, 12),
    T.AutoAugment(),
    T.AugMix(),
    T.AugMix(9, 2, 4, 0.3, False),
    T.RandomApply([T.RandomInvert(), T.ColorJitter(hue=0.5), T.RandomApply([T.TrivialAugmentWide()])], 0.6),
    T.RandomChoice([T.RandomErasing(1.0), T.GaussianBlur(3), T.RandomInvert(1.0)], [0.2, 2, 1]),
    T.RandomOrder([T.RandomRotation(3), T.RandomApply([T.ColorJitter(0.9)]), T.RandAugment(1)]),
    T.RandomErasing(1.0, value=(1, 2, 3)),
    T.ColorJitter(0.1),
]


@pytest.mark.parametrize(("output", "view"), [("image", 0), ("größe", 5)])
@pytest.mark.parametrize("operation", EVERYTHING, ids=lambda one: type(one).__name__)
def test_an_operation_draws_as_the_page_says(operation: T.Operation, output: str, view: int) -> None:
    made, written = recipe([operation], output, view), Written([operation], output, view)
    different = [shown(steps) for steps in drawn(made, 400, seed=WORD, epoch=3)]
    assert different == [written.draw(WORD, 3, position) for position in range(400)]
    assert len({*map(str, different)}) > 1


def test_a_recipe_draws_as_the_page_says() -> None:
    written = Written(EVERYTHING, "image", 1)
    for position, steps in enumerate(drawn(recipe(EVERYTHING, "image", 1), 200)):
        assert shown(steps) == written.draw(1, 2, position)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image(tmp_path_factory.mktemp("images") / "image.frec", 500)


def resized_crop(draws: Draws, scale: Any, ratio: Any) -> list[int] | None:
    height, width = SIZE
    for _ in range(10):
        area = width * height * draws.uniform(*scale)
        r = math.exp(draws.uniform(*map(math.log, ratio)))
        w, h = round(math.sqrt(area * r)), round(math.sqrt(area / r))
        if 0 < w <= width and 0 < h <= height:
            top, left = draws.below(height - h + 1), draws.below(width - w + 1)
            return [left, top, left + w, top + h]
    return None


def test_crops_draw_as_the_page_says(image: Path) -> None:
    scale, ratio = (0.3, 1.0), (0.5, 3.0)
    sample = {
        "image": [T.RandomResizedCrop(8, scale, ratio), T.RandomInvert()],
        "views": T.View("image", [T.RandomResizedCrop(8, scale, ratio)], count=2),
        "cut": T.View("image", [T.Pad((1, 2, 3, 4)), T.RandomCrop((20, 10))]),
    }
    parts = shown_parts(image, sample, WORD, 3)
    found = {("image", 0): parts["image"], ("cut", 0): parts["cut"]}
    found |= {("views", view): parts["views"][:, view] for view in (0, 1)}
    for (output, view), boxes in found.items():
        name = "RandomCrop" if output == "cut" else "RandomResizedCrop"
        key = mixed(0x73746570, mixed(0x73746570, name_hash(output), view), name_hash(name), 0)
        fallbacks = 0
        for position, box in enumerate(boxes.tolist()):
            draws = Draws(mix(mixed(0x63726F70, WORD, 3, position) + key & WORD))
            if output == "cut":
                top, left = draws.below(SIZE[0] + 2 + 4 - 20 + 1) - 2, draws.below(SIZE[1] + 1 + 3 - 10 + 1) - 1
                assert box == [left, top, left + 10, top + 20]
            elif (part := resized_crop(draws, scale, ratio)) is not None:
                assert box == part
            else:
                fallbacks += 1
        assert fallbacks < 50


def written_blend(operations: Sequence[T.MixUp | T.CutMix], seed: int, epoch: int, position: int) -> list[Any]:
    """Return what is done to the pairs of a batch, as the page says."""

    def draws(name: str) -> Draws:
        return Draws(mix(mixed(0x63726F70, seed, epoch, position) + mixed(0x73746570, name_hash(name)) & WORD))

    operation = operations[draws("Mixing").below(len(operations))]
    own = draws(type(operation).__name__)
    share = own.dirichlet(2, operation.alpha)[0]
    if isinstance(operation, T.MixUp):
        return ["MixUp", round(share, 9)]
    made, r = [], math.sqrt(1 - share) / 2
    for side in SIZE[::-1]:
        middle, half = own.below(side), int(r * side)
        made.append((max(0, middle - half), min(side, middle + half)))
    (left, right), (top, bottom) = made
    return ["CutMix", left, top, right - left, bottom - top]


def test_pairs_of_a_batch_are_mixed_as_the_page_says() -> None:
    operations: list[T.MixUp | T.CutMix] = [T.MixUp(0.2), T.CutMix(1.0), T.CutMix(0.3), T.MixUp(3.0), T.MixUp(1e-6)]
    mixing = T.Mixing.of(operations)
    for position in range(0, 200_000, 100):
        blend, own = mixing.draw(WORD, 3, position, SIZE)
        found = [round(value, 9) if isinstance(value, float) else value for value in blend.values()]
        assert found == written_blend(operations, WORD, 3, position)
        if blend["op"] == "CutMix":
            assert own == pytest.approx(1 - blend["width"] * blend["height"] / (SIZE[0] * SIZE[1]))
        else:
            assert own == blend["share"]


def text(steps: Sequence[Any]) -> str:
    """Return steps as words and numbers."""

    def one(step: Any) -> str:
        if step[0] != "mix":
            return " ".join([step[0], *(f"{number:g}" for number in step[1:])])
        chains = (f"{{{weight:.6f} {', '.join(map(one, chain))}}}" for weight, chain in step[2])
        return f"mix {step[1]:.6f} {' '.join(chains)}"

    return ", ".join(map(one, steps))


# Seed, epoch, position, output, view: the steps of `EVERYTHING`, and the first uniform numbers of some operations.
GOLDEN: dict[tuple[int, int, int, str, int], tuple[str, list[float]]] = {
    (0, 0, 0, "image", 0): (
        """
        contrast 1.78, brightness 1.298, hue -0.047, saturation 0.922, erase 14 0 0 0 38 4 28, brightness 1.891,
        affine -46.341 3 4 1 0 0 0 0, affine -1.554 0.834 -2.736 4.691 -17 -2, affine 91.432 1 0 0 0 0, perspective
        1.797 -0.281 -10.333 0.166 1.236 -11.051 0.009 -0.006, blur 5 5 0.985 0.985, invert, equalize, contrast 0.64,
        equalize, mix 0.896782 {0.042309 posterize 3} {0.021327 affine 0 0 0 1 0 3.814 0 0} {0.039581 affine 0 1 0 0 0
        -1, contrast 1, saturation 0.9}, mix 0.043489 {0.023736 solarize 141.667, equalize, affine 0 0 0 1 -3.814 0 0
        0, affine 0 1 0 0 0 8} {0.932775 solarize 141.667, affine 0 0 0 1 -14.931 0 0 0, solarize 28.333, affine
        -16.667 1 0 0 0 0}, blur 3 3 1.655 1.655, brightness 0.681, equalize, affine 2.063 1 0 0 0 0, erase 38 1 2 3
        22 42 9, brightness 1.017
        """,
        [0.737118738535879, 0.15620369508069187, 1.4660340566404764],
    ),
    (42, 7, 1281166, "small", 5): (
        """
        horizontal_flip, contrast 1.47, hue 0.066, brightness 1.293, saturation 0.953, erase 29 0 0 0 38 15 0,
        posterize 6, affine -68.768 3 4 1 0 0 0 0, affine -5.457 0.568 -7.933 3.918 -3 0, affine 17.314 1 0 0 0 0,
        grayscale, blur 5 5 1.084 1.084, posterize 3, invert, equalize, sharpness 1.5, affine 0 1 0 0 -11 0, invert,
        mix 0.532413 {0.025144 solarize 226.667} {0.317626 solarize 198.333, affine 3.333 1 0 0 0 0} {0.124818
        equalize, affine 0 1 0 0 -2 0, autocontrast}, mix 0.976166 {0.022981 solarize 226.667, autocontrast, affine 0
        1 0 0 0 -8, affine 0 1 0 0 -18 0} {0.000853 equalize, affine 0 0 0 1 0 -13.134 0 0, solarize 255,
        autocontrast}, hue 0.2, affine 0 0 0 1 0 1.89 0 0, invert, affine -0.103 1 0 0 0 0, posterize 7, erase 13 1 2
        3 13 49 28, brightness 1.005
        """,
        [0.9863084515661815, 0.517103271911066, 1.5177317243149369],
    ),
    (WORD, 1 << 40, 1 << 33, "größe", 1): (
        """
        contrast 0.698, saturation 1.191, hue -0.003, brightness 1.132, erase 7 0 0 0 13 11 36, autocontrast,
        vertical_flip, affine -31.161 3 4 1 0 0 0 0, affine -7.046 1.61 -0.468 29.324 -13 -4, affine 31.255 1 0 0 0 0,
        perspective 1.116 -0.032 -1.977 0.074 1.399 -11.34 0 0.001, grayscale, blur 5 5 1.955 1.955, invert,
        autocontrast, sharpness 1.5, equalize, affine 0 1 0 0 -11 0, affine 0 1 0 0 0 -8, autocontrast, mix 0.763845
        {0.034308 autocontrast} {0.026827 affine 0 1 0 0 0 1, affine 0 1 0 0 0 0} {0.175020 affine 0 1 0 0 0 0,
        contrast 0.8, affine 3.333 1 0 0 0 0}, mix 0.539199 {0.000154 affine 0 1 0 0 0 0, posterize 3, autocontrast,
        affine 10 1 0 0 0 0} {0.460648 autocontrast, autocontrast, affine 0 1 0 0 -2 0, solarize 198.333}, invert, hue
        0.065, contrast 1.561, blur 3 3 0.112 0.112, sharpness 1.27, affine -1.087 1 0 0 0 0, brightness 1.677, erase
        15 1 2 3 31 18 19, brightness 1.019
        """,
        [0.5684542427596362, 0.6811830129612664, 1.9760791376305598],
    ),
}


@pytest.mark.parametrize("key", GOLDEN, ids=str)
def test_the_numbers_never_change(key: tuple[int, int, int, str, int]) -> None:
    seed, epoch, position, output, view = key
    wanted, numbers = GOLDEN[key]
    steps = json.loads(recipe(EVERYTHING, output, view).draw(seed, epoch, position, SIZE))["steps"]
    assert text(shown(steps)) == " ".join(wanted.split())
    some = recipe([T.RandomRotation((0, 1)), T.RandomRotation((0, 1)), T.GaussianBlur(3, (1, 2))], output, view)
    first, second, third = json.loads(some.draw(seed, epoch, position, SIZE))["steps"]
    assert [-first["angle"], -second["angle"], third["sigma"][0]] == numbers
