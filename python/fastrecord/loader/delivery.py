"""`Delivery`: what a loader's batches are, and where they go.

A description only; `destination` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from fastrecord.checks import choice, integer

# More batches than this are a mistake.
_MANY = 1 << 16

Ragged: TypeAlias = Literal["list", "pad", "packed"]


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What the batches of a loader are, and where they go.

    Attributes:
        device: Copies to CUDA run on their own stream during the previous step. None: batches stay
            in host memory.
        pin_memory: Put batches into pinned memory, from which copies to a GPU are asynchronous.
            "auto": True if `device` is CUDA; or if it is not given and CUDA is available, except in
            a process that was forked after CUDA was used.
        dtype: For images, torch.float32, float16 or bfloat16: the device, after a copy of bytes, or on a CPU the
            loader's threads, normalise them by ImageNet's statistics. For other statistics end the list of
            `sample` with `transforms.ToFloat`. None: as the sample says.
        prefetch: Batches (for arrays, groups of batches) in progress besides the one that the
            consumer has or waits for. 0: each batch is made when it is requested.
        ragged: Field of arrays of varying shape -> form. "list" (the default): a list of tensors.
            "pad": one tensor (B, *largest shape), padded with zeros at the end, and the lengths,
            int64 (B,), or (B, k) if k dimensions vary. "packed": all arrays concatenated along
            their first axis, and their offsets, int64 (B + 1,).

    Raises:
        TypeError, ValueError: a value is not allowed; the message says what is.
    """

    device: torch.device | str | int | None = None
    pin_memory: bool | Literal["auto"] = "auto"
    dtype: torch.dtype | None = None
    prefetch: int = 2
    ragged: Mapping[str, Ragged] | None = None

    def __post_init__(self) -> None:
        try:
            _ = None if self.device is None else torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"device: {error}") from error
        if self.pin_memory not in (True, False, "auto"):
            raise ValueError(f'pin_memory is True, False or "auto", not {self.pin_memory!r}')
        if self.dtype not in (None, torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"dtype is torch.float32, float16, bfloat16, or None for uint8, not {self.dtype!r}")
        integer("prefetch", self.prefetch, 0, _MANY)
        if not isinstance(self.ragged, Mapping | None):
            raise TypeError(f'ragged is a form for each field, such as {{"tokens": "pad"}}, not {self.ragged!r}')
        for name, form in (self.ragged or {}).items():
            choice(f"ragged[{name!r}]", form, get_args(Ragged))
