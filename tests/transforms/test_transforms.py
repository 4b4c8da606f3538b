"""The loader's geometries: bad arguments, several images of one crop, and normalising."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fastrecord as fr
from fastrecord.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from tests.support.loading import make, write_pairs
from tests.support.pictures import pixels

COUNT = 30


def enlarged(image: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Return an image with each pixel repeated `factor` times across and down."""
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of pairs: `hr` is `lr` with each pixel repeated three times across and down."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.frec"
    small = [pixels(50 + number, 70 - number, seed=number) for number in range(COUNT)]
    return write_pairs(path, [(image, enlarged(image, 3)) for image in small])


def dataset(path: Path, field: str = "lr") -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, image_field=field)


def images_of(path: Path, **geometries: Any) -> dict[str, torch.Tensor]:
    """Return all images of an epoch, by field."""
    batches = list(make(dataset(path), 8, image=geometries, flip=True, seed=3))
    return {name: torch.cat([batch[name] for batch in batches]) for name in geometries}


def enlarged_batch(images: torch.Tensor, factor: int) -> torch.Tensor:
    return images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)


@pytest.mark.parametrize("padding", [0, 8])
def test_a_pair_is_cropped_at_the_same_part_and_mirrored_together(pairs: Path, padding: int) -> None:
    found = images_of(pairs, lr=RandomCrop((16, 20), padding=padding), hr=RandomCrop((48, 60), padding=3 * padding))
    assert found["lr"].shape == (COUNT, 3, 16, 20)
    assert torch.equal(enlarged_batch(found["lr"], 3), found["hr"])
    again = images_of(pairs, hr=RandomCrop((48, 60), padding=3 * padding), lr=RandomCrop((16, 20), padding=padding))
    assert list(again) == ["hr", "lr"]
    assert torch.equal(again["lr"], found["lr"])


def test_the_crop_is_drawn_for_the_smallest_output(pairs: Path) -> None:
    found = images_of(pairs, hr=RandomCrop(48), lr=RandomCrop(16))
    loader = make(dataset(pairs), 8, image=RandomCrop(16), flip=True, seed=3)
    assert torch.equal(torch.cat(list(loader)), found["lr"])


def test_a_pair_of_resized_crops_shows_the_same_part(pairs: Path) -> None:
    # An output pixel of `hr` covers a ninth of what one of `lr` covers; the means are equal.
    found = images_of(pairs, lr=RandomResizedCrop(12), hr=RandomResizedCrop(36))
    pooled = torch.nn.functional.avg_pool2d(found["hr"].float(), 3)
    difference = (pooled - found["lr"].float()).abs().mean((1, 2, 3))
    shifted = (pooled - found["lr"].float().roll(1, 3)).abs().mean((1, 2, 3))
    mirrored = (pooled - found["lr"].float().flip(3)).abs().mean((1, 2, 3))
    assert (difference < 4).all()
    assert (difference < shifted).all()
    assert (difference < mirrored).all()


@pytest.mark.parametrize(
    ("small", "large"), [(CenterCrop(16), CenterCrop(48)), (CenterCrop(16, resize=20), CenterCrop(48, resize=60))]
)
def test_a_pair_of_center_crops_shows_the_same_part(pairs: Path, small: CenterCrop, large: CenterCrop) -> None:
    found = images_of(pairs, lr=small, hr=large)
    pooled = torch.nn.functional.avg_pool2d(found["hr"].float(), 3)
    assert (pooled - found["lr"].float()).abs().mean() < (0.1 if small.resize is None else 4)


@pytest.mark.parametrize("large", [RandomCrop(47), RandomCrop(32)])
def test_a_pair_that_does_not_fit_its_crops_is_an_error_that_names_the_record(pairs: Path, large: RandomCrop) -> None:
    loader = make(dataset(pairs), image={"lr": RandomCrop(16), "hr": large})
    message = r"pairs\.frec: record 0, field hr: the images of the record do not match: 50 x 70 becomes 16 x 16"
    with pytest.raises(fr.errors.DecodeError, match=message):
        next(iter(loader))


def test_a_record_whose_images_do_not_fit_may_be_skipped(pairs: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(pairs, tmp_path / "pairs.frec"))
    with fr.Writer(path, mode="a") as writer, fr.Reader(pairs) as reader:
        writer.append({"lr": bytes(reader[0]["lr"]), "hr": bytes(reader[1]["hr"])})
    loader = make(dataset(path), 8, image={"lr": RandomCrop(16), "hr": RandomCrop(48)}, on_error="skip")
    batches = list(loader)
    assert [len(batch["lr"]) for batch in batches] == [len(batch["hr"]) for batch in batches] == [8, 8, 8, 6]
    assert [skipped.record for skipped in loader.skipped] == [COUNT]


def test_labels_follow_several_images(tmp_path: Path) -> None:
    schema = fr.Schema({"a": fr.image(), "b": fr.bytes_(), "label": "int64"})
    with (
        fr.Writer(tmp_path / "a.frec", schema) as writer,
        fr.Reader(write_pairs(tmp_path / "pairs.frec", [(pixels(30, 30), pixels(60, 60))])) as reader,
    ):
        writer.append({"a": bytes(reader[0]["lr"]), "b": bytes(reader[0]["hr"]), "label": 5})
    made = make(tmp_path / "a.frec", image={"b": Resize(20), "a": Resize(10)})
    ((images, labels),) = list(made)
    assert {name: tuple(image.shape) for name, image in images.items()} == {"b": (1, 3, 20, 20), "a": (1, 3, 10, 10)}
    assert labels.tolist() == [5]


def test_a_size_is_a_square_or_height_and_width() -> None:
    assert Resize(7).output == Resize((7, 7)).output == (7, 7)
    assert CenterCrop(np.int64(7)).output == (7, 7)  # type: ignore[arg-type]
    assert RandomResizedCrop((3, 5)).output == (3, 5)
    assert RandomResizedCrop([3, 5]) == RandomResizedCrop((3, 5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("geometry", "arguments", "error", "message"),
    [
        (Resize, {"size": 0}, ValueError, "size: height is from 1 to 65535, not 0"),
        (Resize, {"size": (5, 70000)}, ValueError, "size: width is from 1 to 65535, not 70000"),
        (Resize, {"size": (5, 5, 3)}, ValueError, r"size is an int or \(height, width\), not \(5, 5, 3\)"),
        (Resize, {"size": True}, TypeError, "size: height is an int, not a bool: True"),
        (Resize, {"size": 2.5}, TypeError, "size: height is an int, not float: 2.5"),
        (Resize, {"size": "224"}, TypeError, "size: height is an int, not str"),
        (RandomResizedCrop, {"size": 8, "scale": (0, 1)}, ValueError, r"scale is \(low, high\), both above 0"),
        (RandomResizedCrop, {"size": 8, "scale": (0.5, 0.2)}, ValueError, "the first not above the second"),
        (RandomResizedCrop, {"size": 8, "ratio": (1, float("inf"))}, ValueError, r"ratio is \(low, high\)"),
        (RandomResizedCrop, {"size": 8, "ratio": (1, float("nan"))}, ValueError, r"ratio is \(low, high\)"),
        (RandomResizedCrop, {"size": 8, "scale": 0.5}, TypeError, r"scale is two numbers \(low, high\), not 0.5"),
        (RandomResizedCrop, {"size": 8, "scale": (0.1, 0.2, 3)}, ValueError, "scale is two numbers"),
        (RandomResizedCrop, {"size": 8, "ratio": ("a", "b")}, ValueError, "ratio is two numbers"),
        (CenterCrop, {"size": 224, "resize": 200}, ValueError, "a crop of .* does not fit into images resized to 200"),
        (CenterCrop, {"size": 8, "resize": (9, 9)}, TypeError, "resize is an int, not tuple"),
        (RandomCrop, {"size": 8, "padding": -1}, ValueError, "padding is from 0 to 65535, not -1"),
        (RandomCrop, {"size": 8, "padding": 1.5}, TypeError, "padding is an int, not float"),
    ],
)
def test_a_geometry_that_makes_no_sense_is_refused(
    geometry: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        geometry(**arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mean": (0.5,)}, ValueError, "mean and std have a number for each channel"),
        ({"mean": (), "std": ()}, ValueError, "mean and std have a number for each channel"),
        ({"std": (1, 1, 0)}, ValueError, "std above 0"),
        ({"dtype": torch.int32}, TypeError, "dtype is a float type, not torch.int32"),
        ({"dtype": "float16"}, TypeError, "dtype is a float type, not float16"),
    ],
)
def test_normalising_by_what_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Normalize(**options)


@pytest.fixture
def images() -> torch.Tensor:
    """Every byte value in a channels_last batch."""
    values = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(2, 16, 16, 3).contiguous()
    return values.permute(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_normalising_is_that_of_the_formula_in_float32(images: torch.Tensor, dtype: torch.dtype) -> None:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    found = Normalize(dtype=dtype)(images)
    exact = (images.double() / 255 - mean) / std
    assert (found.dtype, found.shape) == (dtype, images.shape)
    assert found.is_contiguous(memory_format=torch.channels_last)
    step = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    assert ((found.double() - exact).abs() <= step * (exact.abs() + 1) * 4).all()


def test_normalising_takes_other_statistics_and_channels(images: torch.Tensor) -> None:
    found = Normalize([0.5], [0.25])(images[:, :1])
    torch.testing.assert_close(found, (images[:, :1] / 255 - 0.5) / 0.25)


def test_normalising_adds_nothing_to_the_state_of_a_model(images: torch.Tensor) -> None:
    model = torch.nn.Sequential(Normalize(), torch.nn.Conv2d(3, 2, 1))
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    assert model(images).shape == (2, 2, 16, 16)
    assert "mean=[0.485" in repr(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalising_compiled_is_the_same(images: torch.Tensor, dtype: torch.dtype) -> None:
    module = Normalize(dtype=dtype)
    # As one graph. The default backend would also compile C++, for many seconds.
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(images)
    assert compiled.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(compiled, module(images))
