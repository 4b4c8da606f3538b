"""Operations made of others: applied together or not at all, one of several, in random order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastrecord.transforms.operation import Operation, number


def _operations(given: Any) -> tuple[Operation, ...]:
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, Operation) for one in given):
        raise TypeError(f"transforms is a list of operations of fastrecord.transforms, not {given!r}")
    return tuple(given)


@dataclass(frozen=True)
class Several(Operation):
    """Base class: operations made of others."""

    transforms: Sequence[Operation]

    def __post_init__(self) -> None:
        self._set("transforms", _operations(self.transforms))

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether one of them may move pixels."""
        return any(one.moves for one in self.transforms)

    @property
    def changes(self) -> bool:  # type: ignore[override]
        """Whether one of them may change values."""
        return any(one.changes for one in self.transforms)

    @property
    def mixes(self) -> bool:  # type: ignore[override]
        """Whether one of them mixes pixels of several places."""
        return any(one.mixes for one in self.transforms)

    def check_size(self, size: tuple[int, int]) -> None:
        """See `Operation.check_size`."""
        for one in self.transforms:
            one.check_size(size)

    def names(self) -> list[str]:
        """See `Operation.names`."""
        return [*super().names(), *(name for one in self.transforms for name in one.names())]

    def spec(self) -> dict[str, Any]:
        """See `Operation.spec`."""
        return {**super().spec(), "transforms": [one.spec() for one in self.transforms]}


@dataclass(frozen=True)
class RandomApply(Several):
    """All of some operations, or none.

    Attributes:
        transforms: The operations.
        p: Probability.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("p", number("p", self.p, 0, 1))


@dataclass(frozen=True)
class RandomChoice(Several):
    """One of some operations.

    Attributes:
        transforms: The operations.
        p: The weight of each; None: the same.
    """

    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = [1.0] * len(self.transforms) if self.p is None else self.p
        if len(weights) != len(self.transforms) or sum(weights) <= 0:
            raise ValueError(f"p has a weight for each of {len(self.transforms)} operations, not {self.p!r}")
        self._set("p", tuple(number("p", weight, 0) for weight in weights))


@dataclass(frozen=True)
class RandomOrder(Several):
    """All of some operations, in random order.

    Attributes:
        transforms: The operations.
    """
