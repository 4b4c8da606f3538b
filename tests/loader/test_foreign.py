"""Images that the core cannot decode: packing names them, and the loader uses Pillow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

import fastrecord as fr
from fastrecord import _core
from fastrecord.loader.loader import FastRecordLoader
from fastrecord.transforms import Like, RandomCrop, RandomHorizontalFlip, Resize
from tests.support.commands import good
from tests.support.loading import make, photo, write_payloads
from tests.support.packing import pack_with, write
from tests.support.pictures import exif, frame, jpeg, picture, reference, save, wide

# Two bits more than libjpeg's usual kind; and the first bytes of formats with a Pillow plugin only.
TWELVE_BITS = jpeg()[: frame(jpeg()) + 4] + b"\x0c" + jpeg()[frame(jpeg()) + 5 :]
JPEG_XL = b"\xff\x0a\xfa\x1f\x01\x90\x0b\x00" + bytes(40)
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0heicmif1"

KINDS: dict[str, Callable[[], bytes]] = {
    "AVIF": lambda: save(picture(), "AVIF"),
    "AVIF with alpha": lambda: save(picture(mode="RGBA"), "AVIF"),
    "JPEG 2000": lambda: save(picture(), "JPEG2000"),
    "TIFF with a palette": lambda: save(picture(mode="P"), "TIFF"),
    "TIFF of JPEG in YCbCr": lambda: save(picture().convert("YCbCr"), "TIFF", compression="jpeg"),
    "TIFF of zstd": lambda: save(picture(), "TIFF", compression="zstd"),
    "ICO": lambda: save(picture(48, 40), "ICO"),
    "TGA": lambda: save(picture(), "TGA"),
    "QOI": lambda: save(picture(), "QOI"),
    "DDS": lambda: save(picture(), "DDS"),
}


def as_png(data: bytes) -> bytes:
    return save(Image.fromarray(reference(data)), "PNG")


def warned() -> Any:
    return pytest.warns(UserWarning, match="Pillow decodes such images in the thread of the training loop.*decode=")


def both(tmp_path: Path, images: Sequence[bytes]) -> tuple[Path, Path]:
    """Write the images, and their pixels in a format that the core decodes."""
    known = [as_png(data) if _core.foreign_kind(data) else data for data in images]
    return write_payloads(tmp_path / "a.frec", images), write_payloads(tmp_path / "b.frec", known)


def assert_same(ours: FastRecordLoader, theirs: FastRecordLoader) -> None:
    found, wanted = list(ours), list(theirs)
    assert len(found) == len(wanted) > 0
    for (images, labels), (their_images, their_labels) in zip(found, wanted, strict=True):
        assert torch.equal(images, their_images)
        assert torch.equal(labels, their_labels)


# --- loading ---


@pytest.mark.parametrize("kind", KINDS)
def test_what_pillow_opens_trains_in_its_place_with_the_same_crop_and_flip(tmp_path: Path, kind: str) -> None:
    images = [KINDS[kind](), *(photo(number) for number in range(1, 5)), KINDS[kind]()]
    assert _core.foreign_kind(images[0])
    ours, theirs = both(tmp_path, images)
    options: dict[str, Any] = {"batch_size": 3, "seed": 5, "shuffle": True}
    loader = make(ours, **options)
    with warned():
        assert_same(loader, make(theirs, **options))
    stats = loader.stats()
    assert (stats.by_pillow, stats.images, stats.skipped) == (2, 6, 0)
    assert "2 by Pillow" in str(stats)


def test_the_warning_comes_once_and_has_the_number_and_the_kind(tmp_path: Path) -> None:
    avif, tiff = KINDS["AVIF"](), KINDS["TIFF with a palette"]()
    path = write_payloads(tmp_path / "train.frec", [avif, photo(0), tiff, avif, photo(1), avif])
    loader = make(path, 3)
    with warned() as found:
        list(loader)
        list(loader)
    assert len(found) == 1
    message = str(found[0].message)
    assert "fastrecord cannot decode 2 of the 3 images of a batch: 1 of kind AVIF, 1 of kind TIFF (" in message
    assert loader.stats().by_pillow == 8


def test_with_the_native_decoder_they_are_errors_that_name_record_and_kind(tmp_path: Path) -> None:
    path = write_payloads(tmp_path / "train.frec", [photo(0), KINDS["AVIF"](), photo(1), TWELVE_BITS])
    for number, kind in ((1, "image is not supported: AVIF"), (3, "image is not supported: JPEG of 12 bits")):
        with pytest.raises(
            fr.errors.DecodeError, match=rf"train\.frec: record {number}, .*field image: .*{kind}.*\[FR504\]"
        ):
            list(make(fr.FastRecordDataset(path).subset([number]), 4, decoder="native"))
    loader = make(path, 4, decoder="native", on_error="skip")
    assert [len(images) for images, _ in loader] == [2]
    assert (loader.stats().skipped, loader.stats().by_pillow) == (2, 0)
    with pytest.raises(fr.errors.DecodeError, match=r"record 1, .*field image: .*AVIF.*FR504"):
        fr.FastRecordDataset(path, decode="native")[1]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (TWELVE_BITS, "this kind of image is not supported: JPEG of 12 bits.*, and Pillow does not open it: "),
        (JPEG_XL, "JPEG XL.*Pillow does not open it: .*pillow-jxl-plugin"),
        (HEIC, "HEIC.*Pillow does not open it: .*pillow-heif"),
        (b"no image at all", "not an image of a known type: 15 bytes"),
    ],
)
def test_what_pillow_does_not_open_either_is_an_error_that_names_record_and_kind(
    tmp_path: Path, data: bytes, kind: str
) -> None:
    images = [photo(0), data, photo(1)]
    path = write_payloads(tmp_path / "train.frec", images, images=False)
    with pytest.raises(fr.errors.DecodeError, match=rf"train\.frec: record 1, .*field image: .*{kind}.*\[FR50[14]\]"):
        list(make(path, 3))
    loader = make(path, 3, on_error="skip")
    assert [len(images) for images, _ in loader] == [2]
    assert (loader.stats().skipped, loader.stats().by_pillow) == (1, 0)


def test_more_pixels_than_allowed_and_grey_of_16_bits_are_errors_as_with_other_kinds(tmp_path: Path) -> None:
    path = write_payloads(tmp_path / "train.frec", [KINDS["JPEG 2000"]()])
    with pytest.raises(
        fr.errors.DecodeError, match=r"record 0, .*field image: 61 x 43 pixels are more than the limit of 99.*FR505"
    ):
        list(make(path, max_pixels=99))
    grey = wide(1)
    path = write_payloads(
        tmp_path / "grey.frec", [save(Image.fromarray(grey[:, :, 0]), "JPEG2000", irreversible=False)]
    )
    with pytest.raises(fr.errors.DecodeError, match=r"record 0, .*field image: a grey JPEG2000 of 16 bits.*FR515"):
        list(make(path))
    for name, wanted in (("scale", (grey.astype(int) + 128) // 257), ("clip", np.minimum(grey, 255))):
        with warned():
            ((images, _),) = make(path, sample=Resize((43, 61)), sixteen_bit=name)
        assert np.array_equal(images[0, 0].numpy(), wanted[:, :, 0])


GREY: dict[str, tuple[bytes, str, tuple[Literal["scale", "clip"], ...]]] = {
    "JPEG 2000": (save(Image.fromarray(wide(1)[:, :, 0]), "JPEG2000"), "JPEG2000 of 16", ("scale", "clip")),
    "TIFF of integers": (save(Image.fromarray(wide(1)[:, :, 0].astype(np.int32)), "TIFF"), "TIFF of 32", ("clip",)),
    "TIFF of floats": (save(Image.fromarray(wide(1)[:, :, 0].astype(np.float32)), "TIFF"), "TIFF of 32", ("clip",)),
    "PGM": (b"P5 61 43 65535 " + wide(1)[:, :, 0].astype(">u2").tobytes(), "P[PN]M of 16", ("scale", "clip")),
}


@pytest.mark.parametrize("kind", GREY)
@pytest.mark.filterwarnings("ignore:fastrecord cannot decode")
def test_a_data_set_makes_grey_of_many_bits_into_what_a_loader_does_and_says_how(tmp_path: Path, kind: str) -> None:
    data, name, ways = GREY[kind]
    path = write_payloads(tmp_path / "train.frec", [photo(0), data])
    for decode in ("pil", fr.Decoding()):
        with pytest.raises(fr.errors.DecodeError, match=rf"record 1, .*field image: a grey {name} bits.*FR515") as told:
            fr.FastRecordDataset(path, decode=decode)[1]
        assert ('"scale"' in str(told.value)) == ("scale" in ways)
    for way in ways:
        images, _ = next(iter(make(path, 2, sample=Resize((43, 61)), sixteen_bit=way)))
        dataset = fr.FastRecordDataset(path, decode=fr.Decoding(sixteen_bit=way))
        assert torch.equal(dataset[1][0], images[1])
        assert torch.equal(dataset.__getitems__([0, 1])[1][0], images[1])


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("kind", ["AVIF", "TIFF"])
def test_an_orientation_is_applied_when_asked_for(tmp_path: Path, kind: str, upright: bool) -> None:
    if kind == "AVIF":
        data = save(picture(), "AVIF", exif=exif(6)[6:])
        with Image.open(io.BytesIO(data)) as image:
            stored = np.asarray(image.convert("RGB"))
    else:
        data = save(picture(mode="P"), "TIFF", tiffinfo={0x112: 6})
        stored = np.asarray(picture(mode="P").convert("RGB"))
    wanted = np.rot90(stored, -1) if upright else stored
    path = write_payloads(tmp_path / "train.frec", [data])
    with warned():
        ((images, _),) = make(path, sample=Resize(wanted.shape[:2]), exif_orientation=upright)
    np.testing.assert_array_equal(images[0].permute(1, 2, 0).numpy(), wanted)


def test_pairs_of_both_sorts_show_the_same_part(tmp_path: Path) -> None:
    known, other = tmp_path / "a.frec", tmp_path / "b.frec"
    for path, convert in ((known, lambda data: as_png(data)), (other, lambda data: data)):
        with fr.Writer(path, fr.Schema({"lr": fr.image(), "hr": fr.image()})) as writer:
            for seed in range(4):
                low = save(picture(40, 30, seed=seed), "PNG" if seed % 2 else "TGA")
                high = save(picture(80, 60, seed=seed), "QOI" if seed < 3 else "PNG")
                writer.append({"lr": convert(low), "hr": convert(high)})
    images = {"lr": [RandomCrop(12), RandomHorizontalFlip()], "hr": Like("lr", size=24)}
    sets = (fr.FastRecordDataset(path, image_field="lr") for path in (other, known))
    ours, theirs = (make(dataset, 4, sample=images, seed=3) for dataset in sets)
    with warned():
        ((found,), (wanted,)) = list(ours), list(theirs)
    assert all(torch.equal(found[name], wanted[name]) for name in images)
    assert ours.stats().by_pillow == 3
    dataset = fr.FastRecordDataset(other, fields=("lr", "hr"))
    with warned():
        (found,) = make(dataset, 4, sample=images, seed=3)
    assert torch.equal(found["hr"], wanted["hr"])


# --- packing ---


def test_a_pack_counts_and_names_them(tmp_path: Path) -> None:
    files = {"a/0.avif": KINDS["AVIF"](), "a/1.jpg": photo(1), "b/2.avif": KINDS["AVIF"](), "b/3.jpg": TWELVE_BITS}
    source = write(tmp_path / "src", files)
    summary = pack_with(source, tmp_path / "x.frec")
    assert summary.foreign == {"AVIF": 2, "JPEG of 12 bits": 1}
    said = good("pack", source, tmp_path / "y.frec")
    assert "3 images are of kinds that fastrecord does not decode (AVIF: 2, JPEG of 12 bits: 1)" in said
    told = json.loads(good("pack", "--json", source, tmp_path / "z.frec"))
    assert told["foreign"] == summary.foreign
    assert (
        json.loads(good("pack", "--json", write(tmp_path / "good", {"a/0.jpg": photo(0)}), tmp_path / "w.frec"))[
            "foreign"
        ]
        == {}
    )


def test_an_image_that_would_have_to_be_decoded_is_a_bad_file_that_names_its_kind(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {"a/0.avif": KINDS["AVIF"]()})
    with pytest.raises(fr.FastRecordError, match=r"a/0\.avif: this kind of image is not supported: AVIF.*FR710"):
        pack_with(source, tmp_path / "x.frec", raw=True)
