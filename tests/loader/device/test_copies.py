"""The order of copies to a device, on torch's device `meta`, which has no memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fastrecord as fr
from fastrecord.loader.group import Group
from tests.support.loading import make


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the shapes of the tensors that are copied to `meta`, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and str((kwargs or {}).get("device")) == "meta":
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def test_the_next_batch_is_copied_after_the_labels_of_this_one_and_before_it_is_handed_out(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `complete` then waits for the threads, which are otherwise ready at some time.
    monkeypatch.setattr(Group, "is_ready", lambda _: True)
    dataset = fr.FastRecordDataset(photos, target_transform=float)  # the threads do not make these labels
    loader = make(dataset, 8, device="meta")
    with Copies() as copies:
        given = iter(loader)
        images, labels = next(given)
        assert (images.device.type, labels.device.type) == ("meta", "meta")
        first, second, last = (8, 24, 24, 3), (8, 24, 24, 3), (6, 24, 24, 3)
        assert copies.shapes == [first, (8,), second]
        next(given)
        assert copies.shapes == [first, (8,), second, (8,), last]
        next(given)
        assert copies.shapes == [first, (8,), second, (8,), last, (6,)]
        assert next(given, None) is None
