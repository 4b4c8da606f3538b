"""`Outputs`: the columns of a batch that the core's threads make: images, and values of one size.

It chooses fields and plans; `BatchMaker` runs the plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import CorruptFileError, LoadPlan
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decoding import Decoding
from fastrecord.loader.foreign import Failures, Foreign
from fastrecord.transforms import Pipeline, ToFloat

# Steps that cost some microseconds at any size are done once for this many bytes of batches ...
_GROUP_BYTES = 4 << 20
# ... but at most for this many batches, so that the first batch arrives soon.
_GROUP_BATCHES = 64


class Outputs:
    """Columns of a batch. Batches with images are made alone, others in groups.

    Args:
        dataset: The files, the fields of a batch, and how images are decoded.
        pipelines: Field -> what becomes of its images; none for batches of arrays.
        flip: As the attribute.
        to_float: What the threads make of images whose pipelines leave them as bytes; None: bytes.

    Attributes:
        pipelines: Field -> what becomes of its images.
        fields: The fields of a batch, in order.
        labels: The field of labels that differ from the stored values.
        kinds: Field that the threads make -> dtype and shape of the value of one record; images come
            first.
        images: Field -> height and width of its images.
        planar: Fields of images that lie channel by channel.
        group: How many batches are made together at most, and how many records.
        flip: Whether images are mirrored at random.
        decoding: How images are decoded.
        main: The number of the images that may have one channel or a palette: the data set's image field, else the
            first.
        foreign: Decodes images that the core cannot decode; None if they are errors.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        pipelines: Mapping[str, Pipeline],
        flip: bool,
        to_float: ToFloat | None,
    ) -> None:
        if to_float is not None:
            pipelines = {name: pipeline.converted(to_float) for name, pipeline in pipelines.items()}
        self._dataset, self.pipelines = dataset, pipelines
        self._as_of = dataset.decode, dataset.target_transform
        self.images = {name: pipeline.geometry.output for name, pipeline in pipelines.items()}
        selection, schema = dataset.selection, dataset.readers[0].schema
        labels = (name for name in selection.fields if name != selection.image_field)
        self.fields = dataset.fields or (*pipelines, *labels)
        self.labels = self._changed_labels()
        self.kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]]
        self.kinds = {name: (pipeline.dtype, pipeline.shape) for name, pipeline in pipelines.items()}
        self.planar = {name for name, pipeline in pipelines.items() if pipeline.planar}
        others = [name for name in self.fields if name not in pipelines and name != self.labels]
        stacked = {name: schema[name] for name in others if schema[name].nbytes is not None}
        for name, kind in stacked.items():
            self.kinds[name] = getattr(torch, kind.dtype or ""), tuple(dim or 0 for dim in kind.shape or ())
        record = sum(kind.nbytes or 0 for kind in stacked.values())
        self.group = (1, 1) if pipelines else (_GROUP_BATCHES, -(-_GROUP_BYTES // max(record, 1)))
        names, field = list(pipelines), selection.image_field
        self.flip, self.main = flip, names.index(field) if field in names else 0
        self.decoding = dataset.decode if isinstance(dataset.decode, Decoding) else Decoding()
        pillow = self.decoding.decoder == "auto" and pipelines
        self.foreign = Foreign(dataset, names, self.decoding) if pillow else None

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
            [self._image(name) if name in self.pipelines else None for name in names],
            images=self,
            verify=self._dataset.verify,
            spares=spares,
        )

    def _image(self, name: str) -> tuple[Any, ...]:
        pipeline = self.pipelines[name]
        return pipeline.geometry.spec(), pipeline.recipe(name)

    def mend(self, rows: NDArray[np.int64], failures: Failures) -> list[Any]:
        """Bring what is damaged in copies from object stores again; return what keeps it here."""
        shards = self._dataset.selection.shards
        damaged = rows[[slot for slot, error in failures if isinstance(error, CorruptFileError)]]
        if not (shards.sources and len(damaged)):
            return []
        from fastrecord.store.shard_source import mend

        holds = [mend(shards.readers[shard], list(self.kinds), records) for shard, _, records in shards.split(damaged)]
        return [hold for hold in holds if hold is not None]

