"""`Foreign`: images that the core cannot decode, decoded by Pillow in the consumer's thread.

Writes into the memory of batches that `destination` made.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from fastrecord._core import DecodeError, FastRecordError, Load, Reader, foreign_kind
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decode import NOT_DECODED, decode_foreign
from fastrecord.dataset.decoding import Decoding
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.stats import Clock

Failures = list[tuple[int, Exception]]

_PALETTES = ("P", "PA")
_SEVERAL = ("RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV")


class Supply(NamedTuple):
    """An image for the core: its bytes, and its original channels if the bytes do not show them."""

    data: bytes
    channels: str | None


class Foreign:
    """Makes the records whose kind of image the core's threads do not support.

    Args:
        dataset: The records.
        fields: Field of encoded images -> the number of an output that is made of it.
        decoding: As for the data set.
    """

    def __init__(self, dataset: FastRecordDataset, fields: Mapping[str, int], decoding: Decoding) -> None:
        self._dataset, self._fields, self._decoding = dataset, fields, decoding

    def fill(
        self, request: BatchRequest, clock: Clock, load: Load, images: Sequence[torch.Tensor], failures: Failures
    ) -> Failures:
        """Make the images that Pillow can decode, and return the remaining failures.

        Args:
            request: The request.
            clock: Counts the decoded images.
            load: The batch that the threads made.
            images: First of all columns, (B, ...) in host memory.
            failures: Slots of the batch, with the core's errors.
        """
        left: Failures = []
        kinds: Counter[str] = Counter()
        for slot, failure in failures:
            if not (isinstance(failure, DecodeError) and failure.field in self._fields and failure.code in NOT_DECODED):
                left.append((slot, failure))
                continue
            shard, record = self._dataset.selection.shards.locate(int(request.rows[slot]))
            reader = self._dataset.readers[shard]
            try:
                pictures, kind = self._pictures(reader, record, failure)
                numbers = self._fields.values()
                made = load.make_of(
                    slot, [(number, *picture) for number, picture in zip(numbers, pictures, strict=True)]
                )
            except (FastRecordError, OSError) as error:
                left.append((slot, error))
                continue
            for image, row in zip(images[: len(made)], made, strict=True):
                image[slot].view(-1).view(torch.uint8).copy_(torch.from_numpy(row))
            kinds[kind] += 1
        if kinds:
            self._report(kinds, len(request.rows), clock)
        return left

    def _pictures(self, reader: Reader, record: int, failure: DecodeError) -> tuple[list[Supply], str]:
        """Return a record's images, and the kind of the first image that the core cannot decode.

        Images that the core cannot decode are returned as pixels.

        Raises:
            DecodeError: Pillow cannot open one either.
            CorruptFileError, OSError: it cannot be read.
        """
        stored = [bytes(reader.get(record, field, verify=self._dataset.verify, copy=True)) for field in self._fields]
        kinds = [foreign_kind(data) for data in stored]
        # If the headers promise more than the decoder supports, Pillow decodes all of them.
        every = not any(kinds)
        pictures, found = [], ""
        for field, data, kind in zip(self._fields, stored, kinds, strict=True):
            if kind is None and not every:
                pictures.append(Supply(data, None))
                continue
            try:
                picture, name = self._decode(data, failure)
            except DecodeError as error:
                error.path, error.record, error.field = reader.path, record, field
                raise
            pictures.append(picture)
            found = found or kind or name
        return pictures, found

    def _decode(self, data: bytes, failure: DecodeError) -> tuple[Supply, str]:
        """Return the pixels that Pillow decodes, and its name of the format."""
        rgb, mode, name = decode_foreign(data, self._decoding, failure)
        channels = "palette" if mode in _PALETTES else "several" if mode in _SEVERAL else "one"
        return Supply(b"P6\n%d %d\n255\n" % rgb.size + rgb.tobytes(), channels), name

    def _report(self, kinds: Counter[str], records: int, clock: Clock) -> None:
        """Count the decoded images, and warn the first time."""
        first = not clock.by_pillow
        clock.by_pillow += kinds.total()
        if first:
            names = ", ".join(f"{number} of kind {kind}" for kind, number in kinds.items())
            warnings.warn(
                f"fastrecord cannot decode {kinds.total()} of the {records} images of a batch: {names}. Pillow decodes "
                "such images in the thread of the training loop, one after the other. stats().by_pillow counts them; "
                'FastRecordDataset(path, decode=fastrecord.Decoding(decoder="native")) refuses them',
                stacklevel=2,
            )
