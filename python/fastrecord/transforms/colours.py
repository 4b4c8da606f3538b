"""Operations that change colours: jitter, greys, tones, blur, sharpness; and erasing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastrecord.checks import integer
from fastrecord.transforms.operation import Operation, Perhaps, Range, number, pair


def _factors(name: str, value: Any) -> tuple[float, float] | None:
    """Return the range of factors around 1."""
    if value is None:
        return None
    if isinstance(value, Sequence):
        return pair(name, value, 0)
    return max(1 - number(name, value, 0), 0.0), 1 + float(value)


@dataclass(frozen=True)
class ColorJitter(Operation):
    """Changes brightness, contrast, saturation and hue, in random order.

    Attributes:
        brightness, contrast, saturation: The range of factors; a number d stands for (1 - d, 1 + d), not
            below 0. None: unchanged.
        hue: The range of turns, as parts of the circle, in [-0.5, 0.5]; a number d stands for (-d, d).
            None: unchanged.
    """

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            self._set(name, _factors(name, getattr(self, name)))
        if self.hue is not None:
            both = self.hue if isinstance(self.hue, Sequence) else (-number("hue", self.hue, 0, 0.5), self.hue)
            self._set("hue", pair("hue", both, -0.5, 0.5))


@dataclass(frozen=True)
class RandomGrayscale(Perhaps):
    """Makes an image grey; it keeps three channels.

    Attributes:
        p: Probability.
    """

    p: float = 0.1


@dataclass(frozen=True)
class RandomInvert(Perhaps):
    """Inverts all values.

    Attributes:
        p: Probability.
    """


@dataclass(frozen=True)
class RandomEqualize(Perhaps):
    """Spreads the values of each channel evenly.

    Attributes:
        p: Probability.
    """


@dataclass(frozen=True)
class RandomAutocontrast(Perhaps):
    """Stretches each channel to the whole range.

    Attributes:
        p: Probability.
    """


@dataclass(frozen=True)
class RandomSolarize(Operation):
    """Inverts the values at or above a threshold.

    Attributes:
        threshold: In [0, 255].
        p: Probability.
    """

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        self._set("threshold", number("threshold", self.threshold, 0, 255))
        self._set("p", number("p", self.p, 0, 1))


@dataclass(frozen=True)
class RandomPosterize(Operation):
    """Keeps the highest bits of each value.

    Attributes:
        bits: Their number, in [0, 8].
        p: Probability.
    """

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        self._set("bits", integer("bits", self.bits, 0, 9))
        self._set("p", number("p", self.p, 0, 1))


@dataclass(frozen=True)
class RandomAdjustSharpness(Operation):
    """Sharpens or blurs.

    Attributes:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
        p: Probability.
    """

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        self._set("sharpness_factor", number("sharpness_factor", self.sharpness_factor, 0))
        self._set("p", number("p", self.p, 0, 1))


@dataclass(frozen=True)
class GaussianBlur(Operation):
    """Blurs by a random width.

    Attributes:
        kernel_size: Pixels of the kernel, odd; one number, or (x, y).
        sigma: The range of standard deviations in pixels, or one number.
    """

    kernel_size: int | Sequence[int]
    sigma: Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        both = self.kernel_size if isinstance(self.kernel_size, Sequence) else (self.kernel_size, self.kernel_size)
        sizes = tuple(integer("kernel_size", size, 1, 1 << 10) for size in both)
        if len(sizes) != 2 or any(size % 2 == 0 for size in sizes):
            raise ValueError(f"kernel_size is one odd number or two, not {self.kernel_size!r}")
        self._set("kernel_size", sizes)
        sigma = self.sigma if isinstance(self.sigma, Sequence) else (self.sigma, self.sigma)
        self._set("sigma", pair("sigma", sigma, 1e-6))

    def check_size(self, size: tuple[int, int]) -> None:
        """See `Operation.check_size`: a border is mirrored once."""
        across, down = self.kernel_size  # type: ignore[misc]
        if across // 2 >= size[1] or down // 2 >= size[0]:
            raise ValueError(f"a kernel of {across} x {down} is too large for images of {size[1]} x {size[0]} pixels")


@dataclass(frozen=True)
class RandomErasing(Operation):
    """Gives a random rectangle one colour. After `ToFloat`, the colour is in its unit.

    Attributes:
        p: Probability.
        scale: The range of shares of the image's area.
        ratio: The range of height / width; drawn uniformly in its logarithm.
        value: The colour: one number, or one for each channel.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        self._set("p", number("p", self.p, 0, 1))
        self._set("scale", pair("scale", self.scale, 0, 1))
        self._set("ratio", pair("ratio", self.ratio, 1e-6))
        value: Any = self.value
        values = value if isinstance(value, Sequence) else [value]
        if isinstance(values, str) or len(values) not in (1, 3):
            raise ValueError(f"value is one number or three, not {self.value!r}")
        self._set("value", tuple(number("value", one, -float("inf")) for one in ([*values] * 3)[:3]))
