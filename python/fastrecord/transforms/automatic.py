"""Operations that choose others at random: TrivialAugment, RandAugment, AutoAugment, AugMix."""

from __future__ import annotations

from dataclasses import dataclass

from fastrecord.checks import flag, integer
from fastrecord.transforms.operation import Fill, Operation, colour, interpolation, number


@dataclass(frozen=True)
class TrivialAugmentWide(Operation):
    """One of fourteen operations, of random strength: <https://arxiv.org/abs/2103.10158>.

    Attributes:
        num_magnitude_bins: Number of strengths.
        interpolation: "nearest" or "bilinear".
        fill: The colour outside a moved image; None: black.
    """

    moves = True
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        integer("num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 16)
        self._set("interpolation", interpolation(self.interpolation))
        self._set("fill", colour(self.fill))


@dataclass(frozen=True)
class RandAugment(Operation):
    """Some of fourteen operations, of one strength: <https://arxiv.org/abs/1909.13719>.

    Attributes:
        num_ops: How many, one after the other.
        magnitude: Their strength, below `num_magnitude_bins`.
        num_magnitude_bins: Number of strengths.
        interpolation: "nearest" or "bilinear".
        fill: The colour outside a moved image; None: black.
    """

    moves = True
    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        integer("num_ops", self.num_ops, 0, 1 << 8)
        integer("num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 16)
        integer("magnitude", self.magnitude, 0, self.num_magnitude_bins)
        self._set("interpolation", interpolation(self.interpolation))
        self._set("fill", colour(self.fill))


@dataclass(frozen=True)
class AutoAugment(Operation):
    """One of 25 pairs of operations, as learned on ImageNet: <https://arxiv.org/abs/1805.09501>.

    Attributes:
        interpolation: "nearest" or "bilinear".
        fill: The colour outside a moved image; None: black.
    """

    moves = True
    interpolation: str = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        self._set("interpolation", interpolation(self.interpolation))
        self._set("fill", colour(self.fill))


@dataclass(frozen=True)
class AugMix(Operation):
    """A mixture of an image and of what chains of operations make of it: <https://arxiv.org/abs/1912.02781>.

    Attributes:
        severity: The largest strength, of ten.
        mixture_width: Number of chains.
        chain_depth: Operations of a chain; below 1: one to three.
        alpha: Of the Dirichlet distribution of the weights.
        all_ops: Also brightness, contrast, colour and sharpness.
        interpolation: "nearest" or "bilinear".
        fill: The colour outside a moved image; None: black.
    """

    moves, mixes = True, True
    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: str = "bilinear"
    fill: Fill = None

    def __post_init__(self) -> None:
        integer("severity", self.severity, 1, 11)
        integer("mixture_width", self.mixture_width, 1, 1 << 8)
        integer("chain_depth", self.chain_depth, -(1 << 8), 1 << 8)
        self._set("alpha", number("alpha", self.alpha, 1e-3))
        flag("all_ops", self.all_ops)
        self._set("interpolation", interpolation(self.interpolation))
        self._set("fill", colour(self.fill))
