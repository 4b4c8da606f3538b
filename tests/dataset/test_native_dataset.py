"""FastRecordDataset(decode="native"): samples are tensors decoded by the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastrecord as fr
from fastrecord import _core
from tests.conftest import CLASS_COUNTS, encode, write_bytes


@pytest.fixture
def expected(image_folder: Path) -> list[tuple[torch.Tensor, int]]:
    """ImageFolder's samples, as tensors."""
    return [(v2.functional.pil_to_tensor(image), label) for image, label in ImageFolder(str(image_folder))]


def check(samples: Any, expected: Any) -> None:
    assert len(samples) == len(expected) > 0
    for (image, label), (their_image, their_label) in zip(samples, expected, strict=True):
        assert (image.dtype, type(label), label) == (torch.uint8, int, their_label)
        assert torch.equal(image, their_image)


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_samples_and_batches_have_the_pixels_and_labels_of_image_folder(
    packed: Path, expected: list[tuple[torch.Tensor, int]], access: str
) -> None:
    dataset = fr.FastRecordDataset(packed, decode="native", access=access)
    check([dataset[number] for number in range(len(dataset))], expected)
    check(dataset.__getitems__(range(12)), expected)
    check(dataset.__getitems__([7, -1, 7, 0]), [expected[number] for number in (7, 11, 7, 0)])
    assert dataset.__getitems__([]) == []


def test_a_tensor_is_writable_memory_of_its_own_in_channels_last_order(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, decode="native")
    first, second = (image for image, _ in dataset.__getitems__([0, 0]))
    assert first.stride() == (1, 3 * first.shape[2], 3)
    kept = second.clone()
    first.zero_()
    assert torch.equal(second, kept)
    dataset.close()
    assert torch.equal(second, kept)


def test_a_transform_gets_the_tensor(packed: Path) -> None:
    transform = v2.Compose([v2.Resize((8, 8)), v2.ToDtype(torch.float32, scale=True)])
    dataset = fr.FastRecordDataset(packed, transform, decode="native")
    image, label = dataset[6]
    assert (image.shape, image.dtype, label) == ((3, 8, 8), torch.float32, 1)
    images, labels = next(iter(DataLoader(dataset, batch_size=5, collate_fn=fr.collate)))
    assert (images.shape, labels.tolist()) == ((5, 3, 8, 8), [0] * 5)


def test_workers_decode_what_this_process_decodes(packed: Path, expected: list[tuple[torch.Tensor, int]]) -> None:
    dataset = fr.FastRecordDataset(packed, decode="native")
    # This process already has its thread pool: a forked worker must not wait for those threads.
    check(dataset.__getitems__(range(12)), expected)
    loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context="fork", collate_fn=list)
    check([sample for batch in loader for sample in batch], expected)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"this is no image", "not an image of a known type: 16 bytes, the first are 74 68 69 73 20 69 73 20"),
        (encode(0)[:700], "the JPEG is truncated: "),
        (encode(0, kind="PNG")[:700], "the PNG is truncated: "),
    ],
    ids=["text", "truncated jpeg", "truncated png"],
)
def test_what_is_not_decoded_is_named_by_file_record_field_key_and_reason(
    tmp_path: Path, payload: bytes, reason: str
) -> None:
    dataset = fr.FastRecordDataset(
        write_bytes(tmp_path / "a.frec", [encode(0), payload, b"the next one"]), decode="native"
    )
    for read in (lambda: dataset[1], lambda: dataset.__getitems__([0, 1, 2])):
        message = rf"a\.frec: record 1, key '1\.bin', field data: {reason}.*(: a field .*)? \[FR50\d\]$"
        with pytest.raises(fr.errors.DecodeError, match=message):
            read()
    assert len(dataset.__getitems__([0, 0])) == 2


def test_records_are_decoded_alike_on_any_number_of_threads(packed: Path) -> None:
    with fr.Reader(packed) as reader:
        alone = _core.decode_records(reader, range(12), "image", threads=1)
        for threads in (2, 5, None):
            for ours, theirs in zip(
                _core.decode_records(reader, range(12), "image", threads=threads), alone, strict=True
            ):
                np.testing.assert_array_equal(ours, theirs)
        with pytest.raises(IndexError, match="record 12 is out of range"):
            _core.decode_records(reader, [12], "image")
        with pytest.raises(TypeError, match="field label is of type int64"):
            _core.decode_records(reader, [0], "label")
        with pytest.raises(KeyError, match="no field"):
            _core.decode_records(reader, [0], "picture")
    assert sum(CLASS_COUNTS.values()) == len(alone)
