"""`ImageOutputs` and `ArrayOutputs`: the columns of a batch that the core's threads make.

They choose fields and plans; `BatchMaker` runs the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import torch

from fastrecord._core import ArrayPlan, ImagePlan, Load
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decoding import Decoding
from fastrecord.errors import Code
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.foreign import Foreign
from fastrecord.loader.stats import Clock
from fastrecord.transforms import Geometry, Normalize

# Steps that cost some microseconds at any size are done once for this many bytes of batches ...
_GROUP_BYTES = 4 << 20
# ... but at most for this many batches, so that the first batch arrives soon.
_GROUP_BATCHES = 64

Failures: TypeAlias = list[tuple[int, Exception]]
Fill: TypeAlias = Callable[[Load, Sequence[torch.Tensor], Failures], Failures]


class Outputs(Protocol):
    """Columns that the core's threads make."""

    @property
    def kinds(self) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Field -> dtype and shape of its value of one record."""
        ...

    @property
    def are_images(self) -> bool:
        """Whether they are images (H, W, 3), whose crops are drawn at random."""
        ...

    @property
    def group(self) -> tuple[int, int]:
        """How many batches are made together at most, and how many records."""
        ...

    def plan(self, spares: int) -> ArrayPlan | ImagePlan:
        """Return the plan for the core's threads, which keep `spares` buffers for reuse."""
        ...

    def fill(self, request: BatchRequest, clock: Clock) -> Fill | None:
        """Return what makes values of failed records in another way, and returns the rest."""
        ...


class ImageOutputs:
    """Images, decoded and cropped; each batch is made alone.

    Args:
        dataset: The files.
        geometries: Field -> geometry of its images.
        flip: Whether images are mirrored at random.
        decoding: What decodes images, and which are refused.
        normalize: What the threads make of images; None: bytes.
    """

    are_images = True
    group = (1, 1)

    def __init__(
        self,
        dataset: FastRecordDataset,
        geometries: Mapping[str, Geometry],
        flip: bool,
        decoding: Decoding,
        normalize: Normalize | None,
    ) -> None:
        self._dataset, self._geometries, self._flip, self._decoding = dataset, geometries, flip, decoding
        # What each byte becomes in each channel: (256, 3).
        values = None if normalize is None else _each_byte(normalize)
        self._values = None if values is None else values.view(torch.uint8).numpy().tobytes()
        dtype = torch.uint8 if values is None else values.dtype
        self.kinds = {name: (dtype, (*geometry.output, 3)) for name, geometry in geometries.items()}
        self._foreign = Foreign(dataset, list(geometries), decoding, values) if decoding.decoder == "auto" else None

    def plan(self, spares: int) -> ImagePlan:
        """See `Outputs`."""
        names = list(self.kinds)
        field = self._dataset.selection.image_field
        # The output that may show any image: the data set's image field, else the first.
        main = None if len(names) == 1 else names.index(field) if field in names else 0
        return ImagePlan(
            [(reader, names) for reader in self._dataset.readers],
            [geometry.spec() for geometry in self._geometries.values()],
            flip=self._flip,
            verify=self._dataset.verify,
            main=main,
            values=self._values,
            spares=spares,
            **self._decoding.options(),
        )

    def fill(self, request: BatchRequest, clock: Clock) -> Fill | None:
        """See `Outputs`; Pillow decodes images that the core cannot decode."""
        return None if self._foreign is None else partial(self._foreign.fill, request, clock)


def _each_byte(normalize: Normalize) -> torch.Tensor:
    """Return what each byte becomes in each channel: (256, 3)."""
    values: torch.Tensor = normalize(torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256))
    return values[0, :, 0].T.contiguous()


class ArrayOutputs:
    """Scalars, and arrays of one shape; neighbouring batches are made together.

    Args:
        dataset: A data set in fields mode.

    Raises:
        SchemaError: a field holds images, which only ImageOutputs decode.
    """

    are_images = False

    def __init__(self, dataset: FastRecordDataset) -> None:
        self._dataset = dataset
        reader = dataset.readers[0]
        stacked = {}
        for name in dataset.fields or ():
            kind = reader.schema[name]
            if kind.name == "image":
                raise Code.FIELD_TYPE.error(
                    f"{reader.path}: field {name!r} holds encoded images: write images={{{name!r}: "
                    "transforms.CenterCrop(224)} or another geometry to decode them, or select other fields"
                )
            if kind.nbytes is not None and name != dataset.selection.mapped_label:
                stacked[name] = kind
        self.kinds = {
            name: (getattr(torch, kind.dtype or ""), tuple(dim or 0 for dim in kind.shape or ()))
            for name, kind in stacked.items()
        }
        record = sum(kind.nbytes or 0 for kind in stacked.values())
        self.group = (_GROUP_BATCHES, -(-_GROUP_BYTES // max(record, 1)))

    def plan(self, spares: int) -> ArrayPlan:
        """See `Outputs`."""
        files = [(reader, list(self.kinds)) for reader in self._dataset.readers]
        return ArrayPlan(files, verify=self._dataset.verify, spares=spares)

    def fill(self, request: BatchRequest, clock: Clock) -> Fill | None:  # noqa: ARG002
        """See `Outputs`; the threads can stack all arrays."""
        return None
