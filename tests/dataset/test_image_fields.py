"""Images among the selected fields of a FastRecordDataset: `decode`, batches, damaged images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import transforms

import fastrecord as fr
from tests.conftest import encode
from tests.support.commands import flip_in


def write_pairs(path: Path) -> Path:
    schema = fr.Schema({"low": fr.image(), "high": fr.image(), "key": fr.string()})
    with fr.Writer(path, schema) as writer:
        for number in range(3):
            writer.append({"low": encode(number), "high": encode(100 + number), "key": f"{number}.jpg"})
    return path


def test_images_of_selected_fields_come_as_decode_says(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.frec")
    fields = ("low", "high", "key")
    raw = fr.FastRecordDataset(path, fields=fields, decode=None)
    assert raw[1] == {"low": encode(1), "high": encode(101), "key": "1.jpg"}
    assert fr.collate(raw.__getitems__([1, 0]))["low"] == [encode(1), encode(0)]

    pictures = fr.FastRecordDataset(path, fields=fields)
    tensors = fr.FastRecordDataset(path, fields=fields, decode="native")
    batch = tensors.__getitems__([2, 1])
    for name in ("low", "high"):
        assert isinstance(pictures[1][name], Image.Image)
        assert torch.equal(transforms.functional.pil_to_tensor(pictures[1][name]), tensors[1][name])
        assert torch.equal(batch[1][name], tensors[1][name])
    pictures.transform = lambda sample: {"low": transforms.ToTensor()(sample["low"].resize((8, 8)))}
    assert fr.collate(pictures.__getitems__([0, 1, 2]))["low"].shape == (3, 3, 8, 8)


@pytest.mark.parametrize("rows", [[0], [0, 1]])
def test_images_that_were_not_made_tensors_are_refused_by_collate(tmp_path: Path, rows: list[int]) -> None:
    data = fr.FastRecordDataset(write_pairs(tmp_path / "pairs.frec"), fields=("low",))
    with pytest.raises(TypeError, match="PIL images cannot be stacked"):
        fr.collate(data.__getitems__(rows))
    with pytest.raises(TypeError, match="PIL images cannot be stacked"):
        fr.collate([data[row] for row in rows])


def test_a_broken_image_among_fields_is_an_error_that_names_its_field_and_key(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.frec")
    flip_in(path, encode(101))
    for decode in ("pil", "native", None):
        data = fr.FastRecordDataset(path, fields=("low", "high"), decode=decode)
        with pytest.raises(fr.errors.CorruptFileError, match=r"record 1, .*field high"):
            data[1]
        with pytest.raises(fr.errors.CorruptFileError, match=r"record 1, .*field high"):
            data.__getitems__([0, 1])


def test_bytes_that_are_decoded_by_default_but_are_not_an_image_are_an_error_that_names_fields(tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    with fr.Writer(path, fr.Schema({"text": fr.bytes_(), "label": "int64"})) as writer:
        for number in range(4):
            writer.append({"text": b"text", "label": number})
    said = r"x\.frec: record \d, field text: .*: without an image field, .* fields=\('text', \.\.\.\)"
    for decode in ("pil", "native"):
        with pytest.raises(fr.errors.DecodeError, match=said):
            fr.FastRecordDataset(path, decode=decode)[1]
    with pytest.raises(fr.errors.DecodeError, match=said):
        list(fr.FastRecordLoader(path, 2, sample=[fr.transforms.CenterCrop(8)]))
    batches = fr.FastRecordLoader(fr.FastRecordDataset(path, fields=("text", "label")), 2, shuffle=False)
    assert [batch["text"] for batch in batches] == [[b"text"] * 2] * 2
