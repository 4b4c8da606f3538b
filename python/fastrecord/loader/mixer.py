"""`Mixer`: MixUp and CutMix of a loader's batches: what the threads leave, and the labels.

The core's threads mix images that are floats; a device mixes those that become floats there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.sample import Sample
from fastrecord.transforms import Mixing


class Mixer:
    """Mixes the pairs of each batch: record i and the last but i.

    Args:
        dataset: Has the classes.
        sample: Has one output, of images.
        batch: What the user gave.
        on_device: Whether images become floats on the device.

    Attributes:
        mixing: What is done.
        label: The field of labels.
        on_device: Whether they are mixed when they are handed out, not by the threads.

    Raises:
        TypeError, ValueError: `batch` is not a list of MixUp and CutMix, or does not fit the sample or the data set.
    """

    def __init__(self, dataset: FastRecordDataset, sample: Sample, batch: Any, *, on_device: bool) -> None:
        label = dataset.selection.label_field
        label = label if label in dataset.selection.fields else None
        classes = getattr(dataset, "classes", None) if label else None
        self.mixing = Mixing.of(batch, len(classes) if classes else None)
        pictures = [*sample.pictures.values()]
        if len(pictures) != 1 or sample.places or pictures[0].count is not None or not pictures[0].is_colours:
            raise ValueError(
                "batch=: MixUp and CutMix mix the images of one output with their labels; the sample has others"
            )
        if pictures[0].pipeline.to_float is None and not on_device:
            raise ValueError(
                "batch=: MixUp and CutMix mix floats: end the list of sample= with ToFloat(), or give delivery a dtype"
            )
        if label is None:
            raise ValueError("batch=: MixUp and CutMix change labels, and the data set has none")
        if self.mixing.num_classes is None:
            raise ValueError("batch=: the data set names no classes: write MixUp(num_classes=...)")
        self.label, self._dataset = label, dataset
        self.on_device = not pictures[0].is_float
        self._size, self._last = pictures[0].size, pictures[0].shown_last

    def _drawn(self, request: BatchRequest) -> tuple[dict[str, Any], float]:
        return self.mixing.draw(request.seed, request.epoch, int(request.positions[0]), self._size)

    def fill(self, request: BatchRequest, images: torch.Tensor, filled: Iterable[int], failed: Iterable[int]) -> None:
        """Mix the pairs of records that the threads have not made; `images` are (B, ...) in host memory."""
        blend, lost, count = self._drawn(request)[0], set(failed), len(images)
        for slot in {min(slot, count - 1 - slot) for slot in filled}:
            pair = [slot, count - 1 - slot]
            if pair[0] != pair[1] and not lost.intersection(pair):
                two = images.movedim(-1, 1)[pair] if self._last else images[pair]
                mixed = self.mixing.images(two, blend)
                images[pair] = mixed.movedim(1, -1) if self._last else mixed

    def apply(
        self,
        request: BatchRequest,
        slots: NDArray[np.int64],
        failed: Sequence[int],
        images: torch.Tensor,
        labels: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels of a batch, mixed.

        Args:
            request: The request.
            slots: Of the records that are left in the batch, ascending, int64 (B,).
            failed: Slots of the records that have no image, and so were mixed with none.
            images: (B, C, H, W).
            labels: int64 (B,).

        Raises:
            FastRecordError: the label of a record that was left out after it was mixed cannot be read.
        """
        blend, share = self._drawn(request)
        if self.on_device:
            partners = np.arange(len(slots))[::-1].copy()
            images = self.mixing.images(images, blend)
        else:
            others = len(request.rows) - 1 - slots
            at = np.minimum(np.searchsorted(slots, others), len(slots) - 1)
            partners = np.where(slots[at] == others, at, np.arange(len(slots)))
            # A record that was left out after it was mixed, such as for a damaged text, is in its partner's image.
            left_out = np.flatnonzero((slots[at] != others) & ~np.isin(others, list(failed)))
            if len(left_out):
                partners[left_out] = len(slots) + np.arange(len(left_out))
                partners = np.concatenate([partners, partners[left_out]])
                labels = torch.cat([labels, self._labels(request.rows[others[left_out]]).to(labels.device)])
        made = self.mixing.labels(labels, share, torch.from_numpy(partners).to(labels.device))
        return images, made[: len(slots)]

    def _labels(self, rows: NDArray[np.int64]) -> torch.Tensor:
        labels, transform = self._dataset.selection.labels.of(rows).tolist(), self._dataset.target_transform
        return torch.tensor(labels if transform is None else [transform(label) for label in labels])
