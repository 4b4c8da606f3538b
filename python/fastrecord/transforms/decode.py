"""`Decode`: which pixels an image has."""

from __future__ import annotations

from dataclasses import dataclass

from fastrecord.transforms.transform import Transform


@dataclass(frozen=True)
class Decode(Transform):
    """Chooses which pixels an image has; it comes first in a list. Without it they are RGB, of 8 bits.

    Attributes:
        channels: 1: grey. 3: red, green, blue. 4: with alpha, which is opaque where an image has none; only
            operations that move pixels can follow.
        bits: 8, or 16 of 1 or 3 channels: torch.uint16; 8 bits are multiplied by 257. Only operations that
            move pixels can follow.

    Raises:
        ValueError: another number.
    """

    channels: int = 3
    bits: int = 8

    def __post_init__(self) -> None:
        if self.channels not in (1, 3, 4):
            raise ValueError(f"channels is 1, 3 or 4, not {self.channels!r}")
        if self.bits not in (8, 16):
            raise ValueError(f"bits is 8 or 16, not {self.bits!r}")
        if (self.channels, self.bits) == (4, 16):
            raise ValueError("images with alpha have 8 bits: write Decode(channels=4)")

    @property
    def is_plain(self) -> bool:
        """Whether all operations can follow."""
        return self.channels != 4 and self.bits == 8
