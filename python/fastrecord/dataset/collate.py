"""Batches exchanged between data sets and torch's DataLoader: `FieldBatch` and `collate`.

Reads no files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, overload

from PIL import Image
from torch.utils.data import default_collate


class FieldBatch(Sequence[dict[str, Any]]):
    """A sequence of samples (dicts) over tensors that are already stacked.

    Args:
        columns: Field -> tensor (N, ...), or N values.
        numbers: Fields whose values are Python numbers in a sample.
        records: N.
    """

    def __init__(self, columns: dict[str, Any], numbers: Collection[str], records: int) -> None:
        self.columns, self._numbers, self._records = columns, numbers, records

    def __len__(self) -> int:
        return self._records

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return one sample, or the samples of a slice; their tensors are views of the batch."""
        if isinstance(index, slice):
            return [self[i] for i in range(self._records)[index]]
        number = range(self._records)[index]
        return {
            name: values[number].item() if name in self._numbers else values[number]
            for name, values in self.columns.items()
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every sample."""
        listed = [values.tolist() if name in self._numbers else values for name, values in self.columns.items()]
        for sample in zip(*listed, strict=True):
            yield dict(zip(self.columns, sample, strict=True))


def collate(batch: Any) -> Any:
    """Collate samples into one batch; pass it to DataLoader as `collate_fn`.

    Works as `torch.utils.data.default_collate`: it stacks tensors (directly into shared memory in a
    worker process) and makes an int64 tensor of ints. `bytes` and `str` stay in a sequence. In
    fields mode, batches that `__getitems__` has already stacked are returned without a copy: dicts
    of stacked tensors of the fields' own types; values that are not tensors of one shape stay lists.

    Args:
        batch: The return value of `__getitems__`, or a list of samples.

    Raises:
        TypeError: the samples hold PIL images.
    """
    first = batch[0] if len(batch) else ()
    parts = first.values() if isinstance(first, Mapping) else first if isinstance(first, (tuple, list)) else (first,)
    if any(isinstance(part, Image.Image) for part in parts):
        raise TypeError(
            "PIL images cannot be stacked to a batch: add a transform that ends in a tensor, such as "
            "transform=torchvision.transforms.ToTensor()"
        )
    return batch.columns if isinstance(batch, FieldBatch) else default_collate(batch)
