"""`PackedGain`: what packed JPEGs would cost and gain, measured on this machine with a few images. Writes no file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from fastrecord._core import DecodeError, decode_image, pack_jpeg
from fastrecord.inspect.findings import Answer

# Each image is decoded so often in each form, but no further round begins after so many seconds.
_ROUNDS = 5
_SECONDS = 0.5
# Below this, packing is not worth its bytes.
_WORTH = 1.2


@dataclass(frozen=True, slots=True)
class PackedGain(Answer):
    """Packed JPEGs against the originals.

    Attributes:
        size: Their bytes, divided by those of the originals.
        speed: How many times as fast whole images are decoded, by CPU time.
    """

    size: float
    speed: float

    @property
    def worth_it(self) -> bool:
        """Whether they decode so much faster that their bytes are worth it."""
        return self.speed >= _WORTH

    def __str__(self) -> str:
        """Return it in words."""
        return f"{100 * (self.size - 1):.0f} % more bytes, decoded {self.speed:.1f} times as fast here"

    @classmethod
    def measure(cls, jpegs: Iterable[bytes | memoryview]) -> Self | None:
        """Pack and decode some JPEGs; None if none of them can be packed."""
        pairs = [(jpeg, packed) for jpeg in jpegs if (packed := pack_jpeg(jpeg)) is not None]
        seconds = [float("inf"), float("inf")]
        started = time.perf_counter()
        for number in range(_ROUNDS):
            if number and time.perf_counter() - started > _SECONDS:
                break
            for form, images in enumerate(zip(*pairs, strict=True)):
                before = time.thread_time()
                for image in images:
                    try:
                        decode_image(image, sixteen_bit="clip")
                    except DecodeError:
                        return None
                seconds[form] = min(seconds[form], time.thread_time() - before)
        if not pairs or not seconds[1]:
            return None
        sizes = [sum(map(len, images)) for images in zip(*pairs, strict=True)]
        return cls(sizes[1] / sizes[0], seconds[0] / seconds[1])
