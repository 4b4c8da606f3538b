"""`Outputs`: the columns of a batch that the core's threads make: images, and values of one size.

It chooses fields and plans; `BatchMaker` runs the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from fastrecord._core import Load, LoadPlan
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decoding import Decoding
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.foreign import Failures, Foreign
from fastrecord.loader.stats import Clock
from fastrecord.transforms import Geometry, Normalize

# Steps that cost some microseconds at any size are done once for this many bytes of batches ...
_GROUP_BYTES = 4 << 20
# ... but at most for this many batches, so that the first batch arrives soon.
_GROUP_BATCHES = 64

Fill: TypeAlias = Callable[[Load, Sequence[torch.Tensor], Failures], Failures]


@dataclass(frozen=True)
class _Images:
    """How the core makes images; see `LoadPlan`."""

    flip: bool
    decoding: Decoding
    main: int
    values: bytes | None


class Outputs:
    """Columns of a batch. Batches with images are made alone, others in groups.

    Args:
        dataset: The files, the fields of a batch, and how images are decoded.
        geometries: Field -> geometry of its images; none for batches of arrays.
        flip: Whether images are mirrored at random.
        normalize: What the threads make of images; None: bytes.

    Attributes:
        fields: The fields of a batch, in order.
        labels: The field of labels that differ from the stored values.
        kinds: Field that the threads make -> dtype and shape of the value of one record; images come
            first.
        images: Field -> height and width of its images.
        group: How many batches are made together at most, and how many records.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        geometries: Mapping[str, Geometry],
        flip: bool,
        normalize: Normalize | None,
    ) -> None:
        self._dataset, self._geometries = dataset, geometries
        self._as_of = dataset.decode, dataset.target_transform
        self.images = {name: geometry.output for name, geometry in geometries.items()}
        selection, schema = dataset.selection, dataset.readers[0].schema
        labels = (name for name in selection.fields if name != selection.image_field)
        self.fields = dataset.fields or (*geometries, *labels)
        self.labels = self._changed_labels()
        # What each byte becomes in each channel: (256, 3).
        values = None if normalize is None or not geometries else _each_byte(normalize)
        dtype = torch.uint8 if values is None else values.dtype
        self.kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]]
        self.kinds = {name: (dtype, (*size, 3)) for name, size in self.images.items()}
        others = [name for name in self.fields if name not in geometries and name != self.labels]
        stacked = {name: schema[name] for name in others if schema[name].nbytes is not None}
        for name, kind in stacked.items():
            self.kinds[name] = getattr(torch, kind.dtype or ""), tuple(dim or 0 for dim in kind.shape or ())
        record = sum(kind.nbytes or 0 for kind in stacked.values())
        self.group = (1, 1) if geometries else (_GROUP_BATCHES, -(-_GROUP_BYTES // max(record, 1)))
        decoding = dataset.decode if isinstance(dataset.decode, Decoding) else Decoding()
        # The output that may show any image: the data set's image field, else the first.
        names, field = list(geometries), selection.image_field
        main = names.index(field) if field in names else 0
        self._making = _Images(
            flip, decoding, main, None if values is None else values.view(torch.uint8).numpy().tobytes()
        )
        pillow = decoding.decoder == "auto" and geometries
        self._foreign = Foreign(dataset, names, decoding, values) if pillow else None

    def _changed_labels(self) -> str | None:
        """Return the field of labels that differ from what the files hold, if there is one."""
        selection = self._dataset.selection
        changed = selection.labels.are_mapped or self._dataset.target_transform is not None
        if selection.mapped_label is None or changed:
            return selection.mapped_label
        kind = selection.shards.schema[selection.mapped_label]
        array = kind.name == "array" and kind.nbytes is not None and kind.dtype != "bfloat16"
        as_stored = array or kind.name in ("int64", "float64")
        return None if as_stored else selection.mapped_label

    @property
    def are_current(self) -> bool:
        """Whether the attributes of the data set are what they were."""
        decode, transform = self._as_of
        return self._dataset.decode == decode and self._dataset.target_transform is transform

    def plan(self, spares: int) -> LoadPlan:
        """Return the plan for the core's threads, which keep `spares` buffers for reuse."""
        names = list(self.kinds)
        return LoadPlan(
            [(reader, names) for reader in self._dataset.readers],
            [self._geometries[name].spec() if name in self._geometries else None for name in names],
            images=self._making,
            verify=self._dataset.verify,
            spares=spares,
        )

    def fill(self, request: BatchRequest, clock: Clock) -> Fill | None:
        """Return what lets Pillow decode images that the core cannot decode, and returns the remaining failures."""
        return None if self._foreign is None else partial(self._foreign.fill, request, clock)


def _each_byte(normalize: Normalize) -> torch.Tensor:
    """Return what each byte becomes in each channel: (256, 3)."""
    values: torch.Tensor = normalize(torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256))
    return values[0, :, 0].T.contiguous()
