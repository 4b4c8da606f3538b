"""16-bit grey images: an error that names the record, unless a conversion to 8 bits is given."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from fastrecord.transforms import Resize
from tests.support.commands import good
from tests.support.loading import make, photo, write_payloads
from tests.support.packing import pack_with, records, write
from tests.support.pictures import png, reference, save, wide

VALUES = wide(1)
SCALED = np.repeat((VALUES.astype(np.uint32) + 128) // 257, 3, axis=2).astype(np.uint8)
CLIPPED = np.repeat(np.minimum(VALUES, 255), 3, axis=2).astype(np.uint8)
BECOME: dict[Any, NDArray[np.uint8]] = {"scale": SCALED, "clip": CLIPPED}
GREY = Image.fromarray(VALUES[:, :, 0])
TRANSPARENT = png(VALUES, transparent=VALUES[0, 0].astype(">u2").tobytes())
KINDS = {
    "PNG": png(VALUES),
    "TIFF": save(GREY, "TIFF"),
    "PNM": save(GREY, "PPM"),
    "PNG with a transparent value": TRANSPARENT,
}


def channels_last(image: torch.Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_is_refused_scaled_or_clipped(kind: str) -> None:
    with pytest.raises(
        fr.errors.DecodeError, match=rf"^a grey {kind[:4].strip()} of 16 bits.*sixteen_bit=\"scale\".*\[FR515\]$"
    ):
        fr.decode_image(KINDS[kind])
    for name, wanted in BECOME.items():
        np.testing.assert_array_equal(fr.decode_image(KINDS[kind], sixteen_bit=name), wanted)


def test_300_does_not_become_255_without_a_word() -> None:
    with pytest.raises(fr.errors.DecodeError, match="FR515"):
        fr.decode_image(png(np.full((4, 4, 1), 300, np.uint16)))


@pytest.mark.parametrize("decoder", ["auto", "native"])
def test_the_loader_names_the_record_or_does_what_it_is_told(tmp_path: Path, decoder: str) -> None:
    path = write_payloads(tmp_path / "train.frec", [photo(0), png(VALUES)])
    options: dict[str, Any] = {"sample": Resize(VALUES.shape[:2]), "decoder": decoder}
    with pytest.raises(
        fr.errors.DecodeError, match=r"train\.frec: record 1, .*field image: a grey PNG of 16 bits.*FR515"
    ):
        list(make(path, 2, **options))
    ((images, _),) = make(path, 2, on_error="skip", **options)
    assert len(images) == 1
    for name, wanted in BECOME.items():
        ((images, _),) = make(path, 2, sixteen_bit=name, **options)
        np.testing.assert_array_equal(channels_last(images[1]), wanted)


@pytest.mark.parametrize("kind", [*KINDS, "JPEG2000", "TIFF of 32 bits", "TIFF of floats"])
def test_samples_that_pillow_decodes_are_refused_and_name_the_record_and_the_ways_out(
    tmp_path: Path, kind: str
) -> None:
    more = {
        "JPEG2000": lambda: save(GREY, "JPEG2000"),
        "TIFF of 32 bits": lambda: save(Image.fromarray(VALUES[:, :, 0].astype(np.int32)), "TIFF"),
        "TIFF of floats": lambda: save(Image.fromarray(VALUES[:, :, 0].astype(np.float32)), "TIFF"),
    }
    data = KINDS[kind] if kind in KINDS else more[kind]()
    path = write_payloads(tmp_path / "train.frec", [photo(0), data])
    dataset = fr.FastRecordDataset(path)
    for view in (dataset, dataset.subset([0, 1]), dataset.select_fields(["image"])):
        _ = view[0]
        said = r"frec: record 1, key .train/1., field image: a grey .* of (16|32) bits.*Decoding\(.*decode=None.*FR515"
        with pytest.raises(fr.errors.DecodeError, match=said):
            view[1]
    assert fr.FastRecordDataset(path, decode=None)[1][0] == data
    if kind in KINDS:
        image, _ = fr.FastRecordDataset(path, decode=fr.Decoding(sixteen_bit="scale"))[1]
        np.testing.assert_array_equal(channels_last(image), SCALED)


def test_16_bit_grey_with_alpha_loses_its_lower_half_as_in_pillow() -> None:
    data = png(wide(2))
    np.testing.assert_array_equal(fr.decode_image(data), reference(data))


def test_samples_that_the_core_decodes_are_refused_or_as_the_data_set_says(tmp_path: Path) -> None:
    path = write_payloads(tmp_path / "train.frec", [photo(0), png(VALUES)])
    with pytest.raises(fr.errors.DecodeError, match=r"record 1, .*field image: a grey PNG of 16 bits"):
        fr.FastRecordDataset(path, decode="native")[1]
    for name, wanted in BECOME.items():
        dataset = fr.FastRecordDataset(path, decode=fr.Decoding(sixteen_bit=name))
        for view in (dataset, dataset.subset([0, 1]), dataset.select_fields(["image"])):
            sample = view[1]
            image = sample["image"] if isinstance(sample, dict) else sample[0]
            np.testing.assert_array_equal(channels_last(image), wanted)


@pytest.mark.parametrize("options", [{"raw": True}, {"short_side": 20}])
def test_a_pack_that_decodes_names_the_file_or_does_what_it_is_told(tmp_path: Path, options: dict[str, Any]) -> None:
    source = write(tmp_path / "src", {"a/0.png": png(VALUES)})
    with pytest.raises(fr.FastRecordError, match=r"a/0\.png: a grey PNG of 16 bits.*FR710"):
        pack_with(source, tmp_path / "x.frec", **options)
    brightness = {}
    for name in BECOME:
        out = tmp_path / f"{name}.frec"
        pack_with(source, out, sixteen_bit=name, **options)
        with Image.open(io.BytesIO(records(out)[0][0])) as image:
            brightness[name] = float(np.asarray(image.convert("L")).mean())
    assert brightness["clip"] > 250 > 140 > brightness["scale"] > 60


def test_pixels_of_pairs_are_refused_scaled_or_clipped(tmp_path: Path) -> None:
    low, high = (write(tmp_path / name, {"0.png": png(VALUES)}) for name in ("lr", "hr"))
    with pytest.raises(fr.FastRecordError, match=r"lr: a grey PNG of 16 bits.*FR710"):
        pack_with([low, high], tmp_path / "x.frec", format="pairs", decode="yes")
    for name, wanted in BECOME.items():
        out = tmp_path / f"{name}.frec"
        pack_with([low, high], out, format="pairs", decode="yes", sixteen_bit=name)
        with fr.Reader(out) as reader:
            np.testing.assert_array_equal(reader[0]["hr"], wanted)
    out = tmp_path / "cli.frec"
    good("pack", "--format", "pairs", low, high, out, "--set", "decode=yes,sixteen_bit=clip")
    with fr.Reader(out) as reader:
        np.testing.assert_array_equal(reader[0]["lr"], CLIPPED)


@pytest.mark.parametrize("call", [fr.decode_image, None])
def test_other_words_are_refused(tmp_path: Path, call: Any) -> None:
    path = write_payloads(tmp_path / "train.frec", [photo(0)])
    with pytest.raises(ValueError, match='sixteen_bit is "reject", "scale" or "clip", not'):
        fr.decode_image(photo(0), sixteen_bit="max") if call else make(path, sixteen_bit="max")
