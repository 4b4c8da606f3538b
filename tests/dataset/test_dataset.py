"""FastRecordDataset in one process: samples, labels, several files, errors."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import fastrecord as fr
from fastrecord import _core
from tests.conftest import encode, folder_records, write_bytes, write_images
from tests.support.commands import flip_in

# --- as a replacement for ImageFolder ---


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("decode", ["pil", "native"])
def test_every_sample_has_the_pixels_and_the_label_of_image_folder(
    image_folder: Path, packed: Path, decode: str, access: str
) -> None:
    ours, theirs = fr.FastRecordDataset(packed, decode=decode, access=access), ImageFolder(str(image_folder))
    assert len(ours) == len(theirs) == 12
    batch = ours.__getitems__([*range(12), 7, -1])
    for index, sample in enumerate((*(ours[index] for index in range(12)), *batch)):
        image, label = theirs[(*range(12), *range(12), 7, 11)[index]]
        assert (type(sample), type(sample[1]), sample[1]) == (tuple, int, label)
        pixels = sample[0].permute(1, 2, 0) if decode == "native" else sample[0].convert("RGB")
        np.testing.assert_array_equal(np.asarray(pixels), np.asarray(image))


def test_a_native_tensor_is_writable_memory_of_its_own_in_channels_last_order(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, decode="native")
    first, second = (image for image, _ in dataset.__getitems__([0, 0]))
    assert first.stride() == (1, 3 * first.shape[2], 3)
    kept = second.clone()
    first.zero_()
    dataset.close()
    assert torch.equal(second, kept)


def test_records_are_decoded_alike_on_any_number_of_threads(packed: Path) -> None:
    with fr.Reader(packed) as reader:
        alone = _core.decode_records(reader, range(12), "image", threads=1)
        for threads in (2, 5, None):
            found = _core.decode_records(reader, range(12), "image", threads=threads)
            for ours, theirs in zip(found, alone, strict=True):
                np.testing.assert_array_equal(ours, theirs)
        with pytest.raises(IndexError, match="record 12 is out of range"):
            _core.decode_records(reader, [12], "image")
        with pytest.raises(TypeError, match="field label is of type int64"):
            _core.decode_records(reader, [0], "label")
        with pytest.raises(KeyError, match="no field"):
            _core.decode_records(reader, [0], "picture")


def test_the_attributes_that_scripts_use_are_those_of_image_folder(image_folder: Path, packed: Path) -> None:
    ours, theirs = fr.FastRecordDataset(packed), ImageFolder(str(image_folder))
    assert ours.classes == theirs.classes == ["cat", "dog", "owl"]
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.targets.tolist() == theirs.targets
    relative = [(os.path.relpath(path, image_folder), label) for path, label in theirs.samples]
    assert ours.samples == relative
    assert ours.root == str(packed)


def test_random_transforms_draw_the_same_numbers_as_with_image_folder(image_folder: Path, packed: Path) -> None:
    transform = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
    batches: list[list[Any]] = []
    for dataset in (fr.FastRecordDataset(packed, transform), ImageFolder(str(image_folder), transform)):
        torch.manual_seed(7)
        batches.append(list(DataLoader(dataset, batch_size=5, shuffle=True)))
    for ours, theirs in zip(*batches, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_transforms_are_applied_to_image_and_label_and_may_be_replaced(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, lambda image: image.size, lambda label: label + 100)
    assert dataset[5] == (fr.FastRecordDataset(packed)[5][0].size, 101)
    assert dataset.targets[5] == 1
    dataset.transform = None
    assert isinstance(dataset.__getitems__([5])[0][0], Image.Image)


def test_decode_none_gives_the_bytes_that_were_packed(image_folder: Path, packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None)
    expected = [(data, label) for data, label, _ in folder_records(image_folder)]
    assert dataset.__getitems__(range(12)) == [dataset[index] for index in range(12)] == expected
    assert all(type(data) is bytes for data, _ in dataset.__getitems__([0, 11]))


@pytest.mark.parametrize("decode", ["numpy", "PIL", "", True])
def test_other_values_of_decode_are_refused_with_those_allowed(packed: Path, decode: Any) -> None:
    with pytest.raises(ValueError, match=r'decode is "pil", "native", a fastrecord\.Decoding or None, not '):
        fr.FastRecordDataset(packed, decode=decode)


def test_repr_reads_as_torchvisions(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, transforms.Compose([transforms.ToTensor()]))
    assert repr(dataset).splitlines() == [
        "Dataset FastRecordDataset",
        "    Number of datapoints: 12",
        f"    Root location: {packed}",
        "    Sample: image (image), label (int64)",
        "    Number of classes: 3",
        "    Transform: Compose(",
        "                   ToTensor()",
        "               )",
    ]


def test_a_subclass_that_changes_getitem_changes_batches_too(packed: Path) -> None:
    class WithIndex(fr.FastRecordDataset):
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), index)

    samples = WithIndex(packed, lambda image: image.size).__getitems__([7, -12])
    assert [sample[1:] for sample in samples] == [(1, 7), (0, 0)]


# --- indices ---


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda rows: np.array(rows, np.int8)])
def test_a_batch_is_the_samples_one_by_one_in_the_order_given(packed: Path, kind: Callable[[list[int]], Any]) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None)
    rows = [7, 0, 7, -1, 3, -12]
    assert dataset.__getitems__(kind(rows)) == [dataset[row] for row in rows]
    assert dataset.__getitems__([]) == []


@pytest.mark.parametrize("index", [np.int64(3), np.uint8(3), torch.tensor(3), -9])
def test_any_integer_is_an_index(packed: Path, index: Any) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None)
    assert dataset[index] == dataset[3]
    assert dataset.key(index) == "cat/3.jpg"


@pytest.mark.parametrize("index", [12, -13, 2**40])
def test_a_record_out_of_range_is_named(packed: Path, index: int) -> None:
    dataset = fr.FastRecordDataset(packed)
    for read in (
        dataset.__getitem__,
        lambda row: dataset.__getitems__([0, row]),
        dataset.key,
    ):
        with pytest.raises(IndexError, match=f"index {index} is out of range: the data set has 12"):
            read(index)


def test_iterating_ends_after_the_last_record(packed: Path) -> None:
    # Python's iteration over __getitem__ ends at IndexError.
    assert len(list(iter(cast(Any, fr.FastRecordDataset(packed, decode=None))))) == 12


@pytest.mark.parametrize("indices", [[0.5], [[0, 1]], np.zeros(3, bool), "01"])
def test_what_is_no_sequence_of_integers_is_refused(packed: Path, indices: Any) -> None:
    with pytest.raises(TypeError, match="1-D sequence of integers"):
        fr.FastRecordDataset(packed).__getitems__(indices)


def test_options_of_a_store_are_refused_for_files_of_this_machine_too(packed: Path) -> None:
    with pytest.raises(TypeError, match=r"store is a fastrecord.Store, not dict"):
        fr.FastRecordDataset(packed, store={"region": "eu-west-1"})  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [1.0, "1", slice(2), [0, 1]])
def test_an_index_that_is_no_integer_is_refused(packed: Path, index: Any) -> None:
    with pytest.raises(TypeError):
        fr.FastRecordDataset(packed)[index]


# --- fields ---


def test_without_a_label_field_a_sample_is_the_image_alone(tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(write_bytes(tmp_path / "a.frec", [b"x", encode(1)]), decode=None)
    assert dataset[0] == b"x"
    assert dataset.classes == []
    assert not hasattr(dataset, "targets")
    assert not hasattr(dataset, "samples")


def test_fields_are_chosen_by_name(tmp_path: Path) -> None:
    schema = fr.Schema({"left": fr.image(), "right": fr.image(), "score": "float64"})
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        writer.append({"left": encode(0), "right": encode(1), "score": 0.25})
    dataset = fr.FastRecordDataset(tmp_path / "a.frec", decode=None, image_field="right", label_field="score")
    assert dataset[0] == (encode(1), 0.25)
    assert dataset.targets.dtype == np.float64
    with pytest.raises(fr.errors.SchemaError, match=r"left, right: choose with image_field="):
        fr.FastRecordDataset(tmp_path / "a.frec")
    with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: no field 'middle': it has left, right, score"):
        fr.FastRecordDataset(tmp_path / "a.frec", image_field="middle")
    with pytest.raises(fr.errors.SchemaError, match="field 'score' holds float64, not images"):
        fr.FastRecordDataset(tmp_path / "a.frec", image_field="score")
    with pytest.raises(
        fr.errors.SchemaError, match="field 'left' holds image, which cannot be a label: labels are numbers"
    ):
        fr.FastRecordDataset(tmp_path / "a.frec", image_field="right", label_field="left")


# --- labels ---


def test_targets_of_one_file_are_its_mapping_and_not_a_copy(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed)
    assert dataset.targets.dtype == np.int64
    assert np.shares_memory(dataset.targets, dataset.readers[0].column("label"))
    with pytest.raises(ValueError, match="read-only"):
        dataset.targets[0] = 1


# --- defective files ---


@pytest.mark.parametrize("decode", ["pil", "native", None])
def test_a_flipped_byte_is_an_error_that_names_file_record_and_key(tmp_path: Path, decode: str | None) -> None:
    path = write_images(tmp_path / "a.frec", [0, 0, 0, 0])
    flip_in(path, encode(2))
    dataset = fr.FastRecordDataset(path, decode=decode)
    for read in (lambda: dataset[2], lambda: dataset.__getitems__([3, 2, 1])):
        with pytest.raises(fr.errors.CorruptFileError, match=r"a\.frec: record 2.*, key 'a/2'"):
            read()
    assert len(dataset.__getitems__([3, 1, 0])) == 3


@pytest.mark.parametrize(
    ("decode", "payload", "reason"),
    [
        ("pil", b"", "no known image type: 0 bytes"),
        ("pil", b"this is no image", r"no known image type: 16 bytes that begin with b'this is '"),
        ("pil", encode(0)[:700], "OSError: image file is truncated"),
        ("native", b"this is no image", "not an image of a known type: 16 bytes, the first are 74 68 69 73 20 69 73"),
        ("native", encode(0)[:700], "the JPEG is truncated: "),
        ("native", encode(0, kind="PNG")[:700], "the PNG is truncated: "),
    ],
)
def test_what_is_not_decoded_is_named_with_the_reason(tmp_path: Path, decode: str, payload: bytes, reason: str) -> None:
    path = write_bytes(tmp_path / "a.frec", [encode(0), payload, b"the next one"])
    dataset = fr.FastRecordDataset(path, decode=decode)
    for read in (lambda: dataset[1], lambda: dataset.__getitems__([0, 1, 2])):
        with pytest.raises(fr.errors.DecodeError, match=rf"a\.frec: record 1, key '1\.bin', field data: {reason}"):
            read()
    assert len(dataset.__getitems__([0, 0])) == 2


def test_an_image_beyond_pillows_limit_is_a_decode_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    dataset = fr.FastRecordDataset(write_bytes(tmp_path / "a.frec", [encode(0)]))
    with pytest.raises(fr.errors.DecodeError, match=r"DecompressionBombError: .*exceeds limit"):
        dataset[0]


def test_an_error_of_a_transform_stays_what_it_is(packed: Path) -> None:
    def fail(_: Any) -> None:
        raise OSError("mine")

    with pytest.raises(OSError, match=r"^mine$"):
        fr.FastRecordDataset(packed, fail)[0]


def test_a_closed_data_set_refuses_to_read_and_keeps_what_it_gave(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed)
    targets = dataset.targets
    dataset.close()
    assert targets.tolist() == [0] * 5 + [1] * 3 + [2] * 4
    with pytest.raises(ValueError, match="closed"):
        dataset[0]


# --- pickles and copies ---


def test_a_pickle_reads_the_snapshot_it_was_made_of(tmp_path: Path) -> None:
    path = write_images(tmp_path / "a.frec", [0, 1])
    state = pickle.dumps(fr.FastRecordDataset(path))
    with fr.Writer(path, mode="a") as writer:
        writer.append({"image": encode(9), "label": 9, "key": "later"})
    assert len(fr.FastRecordDataset(path)) == 3
    again = pickle.loads(state)
    assert len(again) == 2
    assert again.targets.tolist() == [0, 1]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_may_have_another_transform(packed: Path, duplicate: Callable[[Any], Any]) -> None:
    dataset = fr.FastRecordDataset(packed)
    other = duplicate(dataset)
    other.transform = transforms.ToTensor()
    assert isinstance(dataset[0][0], Image.Image)
    assert isinstance(other[0][0], torch.Tensor)


# --- torch's data sets and collate ---


def test_collate_stacks_tensors_and_makes_int64_labels(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, transforms.Compose([transforms.CenterCrop(16), transforms.PILToTensor()]))
    images, labels = fr.collate(dataset.__getitems__([0, 11, 6]))
    assert images.shape == (3, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert torch.equal(images[1], dataset[11][0])
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 2, 1]


def test_collate_keeps_encoded_bytes_in_a_sequence(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None)
    data, labels = fr.collate(dataset.__getitems__([4, 8]))
    assert list(data) == [dataset[4][0], dataset[8][0]]
    assert labels.tolist() == [0, 2]


def test_collate_says_what_to_do_about_pil_images(tmp_path: Path, packed: Path) -> None:
    with pytest.raises(TypeError, match=r"PIL images cannot be stacked.*ToTensor\(\)"):
        fr.collate(fr.FastRecordDataset(packed).__getitems__([0, 1]))
    with pytest.raises(TypeError, match=r"PIL images cannot be stacked.*ToTensor\(\)"):
        fr.collate(fr.FastRecordDataset(write_bytes(tmp_path / "a.frec", [encode(0)])).__getitems__([0]))
