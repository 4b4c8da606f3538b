"""`Outputs`: the columns of a batch that the core's threads make: images, and values of one size.

It chooses fields and plans; `BatchMaker` runs the plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import CorruptFileError, LoadPlan
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decoding import Decoding
from fastrecord.loader.foreign import Failures, Foreign
from fastrecord.loader.mixer import Mixer
from fastrecord.loader.sample import Sample

# Steps that cost some microseconds at any size are done once for this many bytes of batches ...
_GROUP_BYTES = 4 << 20
# ... but at most for this many batches, so that the first batch arrives soon.
_GROUP_BATCHES = 64


class Outputs:
    """Columns of a batch. Batches with images are made alone, others in groups.

    Args:
        dataset: The files, the fields of a batch, and how images are decoded.
        sample: What becomes of images, and what follows them.
        mixer: What is done to the pairs of batches.

    Attributes:
        sample, mixer: The same.
        fields: The columns of a batch, in order.
        read: The fields that batches are made of.
        labels: The field of labels that differ from the stored values.
        kinds: Column that the threads make -> dtype and shape of the value of one record; pictures come
            first.
        group: How many batches are made together at most, and how many records.
        decoding: How images are decoded.
        foreign: Decodes images that the core cannot decode; None if they are errors.
    """

    def __init__(self, dataset: FastRecordDataset, sample: Sample, mixer: Mixer | None) -> None:
        self._dataset, self.sample, self.mixer = dataset, sample, mixer
        self._as_of = dataset.decode, dataset.target_transform
        selection, schema = dataset.selection, dataset.readers[0].schema
        pictures, used = sample.pictures, sample.fields
        made = [*pictures, *sample.places]
        others = dataset.fields or [name for name in selection.fields if name != selection.image_field]
        if dataset.fields is None:
            self.fields = (*made, *(name for name in others if name not in made))
        else:
            # In their own order; a field that is only shown by other names is left out.
            own = [name for name in others if name in made or name not in used]
            self.fields = (*own, *(name for name in made if name not in own))
        self.read = tuple(dict.fromkeys(pictures[name].field if name in pictures else name for name in self.fields))
        self.labels = self._changed_labels()
        self.kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]]
        self.kinds = {name: (picture.dtype, picture.shape) for name, picture in pictures.items()}
        others = [name for name in self.fields if name not in pictures and name != self.labels]
        stacked = {name: schema[name] for name in others if schema[name].nbytes is not None}
        for name, kind in stacked.items():
            self.kinds[name] = getattr(torch, kind.dtype or ""), tuple(dim or 0 for dim in kind.shape or ())
        record = sum(kind.nbytes or 0 for kind in stacked.values())
        self.group = (1, 1) if pictures else (_GROUP_BATCHES, -(-_GROUP_BYTES // max(record, 1)))
        self.decoding = dataset.decode if isinstance(dataset.decode, Decoding) else Decoding()
        # Pillow decodes to RGB: where an image has other pixels, it is the core's or an error.
        other = {picture.field for picture in pictures.values() if picture.array or not picture.is_plain}
        encoded: dict[str, int] = {}
        for number, picture in enumerate(pictures.values()):
            if picture.field not in other:
                encoded.setdefault(picture.field, number)
        pillow = self.decoding.decoder == "auto" and encoded
        self.foreign = Foreign(dataset, encoded, self.decoding) if pillow else None

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
        pictures = self.sample.pictures
        fields = [pictures[name].field if name in pictures else name for name in self.kinds]
        leads = list(pictures)
        return LoadPlan(
            [(reader, fields) for reader in self._dataset.readers],
            [pictures[name].spec(leads) if name in pictures else None for name in self.kinds],
            decoding=self.decoding,
            mixing=self.mixer.mixing.core if self.mixer and not self.mixer.on_device else None,
            verify=self._dataset.verify,
            spares=spares,
        )

    def mend(self, rows: NDArray[np.int64], failures: Failures) -> list[Any]:
        """Bring what is damaged in copies from object stores again; return what keeps it here."""
        shards = self._dataset.selection.shards
        damaged = rows[[slot for slot, error in failures if isinstance(error, CorruptFileError)]]
        if not (shards.sources and len(damaged)):
            return []
        from fastrecord.store.shard_source import mend

        holds = [mend(shards.readers[shard], list(self.read), records) for shard, _, records in shards.split(damaged)]
        return [hold for hold in holds if hold is not None]
