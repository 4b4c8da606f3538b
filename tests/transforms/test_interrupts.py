"""Ctrl-C does not wait for a whole batch, however large its images are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from fastrecord.transforms import Normalize, Resize
from tests.support.loading import make, write_payloads
from tests.support.pictures import save

pytestmark = pytest.mark.usefixtures("no_load_thread_is_left")

# Values that take about 10 ms of CPU: torch does not handle Ctrl-C during a call.
AT_ONCE = 1 << 21


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the largest number of values that a torch call computed."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and func in (torch.ops.aten.sub.Tensor, torch.ops.aten.div.Tensor):
            self.values = max(self.values, made.numel())
        return made


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of three images that are large after resizing."""
    noise = np.random.default_rng(0).integers(0, 256, (3, 40, 60, 3), dtype=np.uint8)
    return write_payloads(tmp_path / "train.frec", [save(Image.fromarray(image), "PNG") for image in noise])


@pytest.mark.parametrize("size", [(1500, 1200), (300, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_batch_is_normalised_part_by_part_to_the_same_values(
    large: Path, size: tuple[int, int], dtype: torch.dtype
) -> None:
    ((plain, _),) = make(large, 3, image=Resize(size), flip=False)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        ((images, _),) = make(large, 3, image=Resize(size), flip=False, dtype=dtype)
    assert 0 < largest.values <= AT_ONCE
    assert torch.equal(images, Normalize(dtype=dtype)(plain))
    assert images.stride() == plain.stride()
