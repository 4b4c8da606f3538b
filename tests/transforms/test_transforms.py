"""The geometries' arguments, and normalising."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastrecord.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    FiveCrop,
    Letterbox,
    Normalize,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)


def test_a_size_is_a_square_or_height_and_width() -> None:
    assert Letterbox(7).size == Resize((7, 7)).size == (7, 7)
    assert CenterCrop(np.int64(7)).size == (7, 7)  # type: ignore[arg-type]
    assert RandomResizedCrop((3, 5)).size == (3, 5)
    assert RandomResizedCrop([3, 5]) == RandomResizedCrop((3, 5))  # type: ignore[arg-type]
    assert Resize(7) != Resize((7, 7))
    assert RandomCrop(7, 2) == RandomCrop(7, (2, 2)) == RandomCrop(7, [2, 2, 2, 2])
    assert Pad((1, 2)).padding == (1, 2, 1, 2)


@pytest.mark.parametrize(
    ("geometry", "arguments", "error", "message"),
    [
        (Resize, {"size": 0}, ValueError, "size is from 1 to 65535, not 0"),
        (Resize, {"size": (5, 70000)}, ValueError, "size: width is from 1 to 65535, not 70000"),
        (Resize, {"size": (5, 5, 3)}, ValueError, r"size is an int or \(height, width\), not \(5, 5, 3\)"),
        (CenterCrop, {"size": True}, TypeError, "size: height is an int, not a bool: True"),
        (CenterCrop, {"size": 2.5}, TypeError, "size: height is an int, not float: 2.5"),
        (FiveCrop, {"size": "224"}, TypeError, "size: height is an int, not str"),
        (Resize, {"size": (5, 5), "max_size": 9}, ValueError, "max_size goes with a size of one number"),
        (Resize, {"size": 9, "max_size": 8}, ValueError, "max_size is from 9 to"),
        (Resize, {"size": 9, "interpolation": "cubic"}, ValueError, 'interpolation is "bilinear", "bicubic"'),
        (RandomResizedCrop, {"size": 8, "scale": (0, 1)}, ValueError, "scale: low is from 1e-09 to 1e.09, not 0"),
        (RandomResizedCrop, {"size": 8, "scale": (0.5, 0.2)}, ValueError, "low not above high"),
        (RandomResizedCrop, {"size": 8, "ratio": (1, float("inf"))}, ValueError, "ratio: high is from .*, not inf"),
        (RandomResizedCrop, {"size": 8, "ratio": (1, float("nan"))}, ValueError, "ratio: high is from .*, not nan"),
        (RandomResizedCrop, {"size": 8, "scale": 0.5}, TypeError, r"scale is two numbers \(low, high\), not 0.5"),
        (RandomResizedCrop, {"size": 8, "scale": (0.1, 0.2, 3)}, TypeError, "scale is two numbers"),
        (RandomResizedCrop, {"size": 8, "ratio": ("a", "b")}, TypeError, "ratio: low is a number, not 'a'"),
        (RandomResizedCrop, {"size": 8, "interpolation": 3}, ValueError, "interpolation is"),
        (RandomCrop, {"size": 8, "padding": -1}, ValueError, "padding is from 0 to 65535, not -1"),
        (RandomCrop, {"size": 8, "padding": 1.5}, TypeError, "padding is an int, not float"),
        (RandomCrop, {"size": 8, "padding": (1, 2, 3)}, ValueError, "padding is one number, two or four, not"),
        (RandomCrop, {"size": 8, "fill": 256}, ValueError, "fill is from 0 to 255, not 256"),
        (Pad, {"padding": 1, "fill": (1, 2)}, ValueError, "fill is one number, three, or None"),
        (Pad, {"padding": "1"}, TypeError, "padding is an int, not str"),
        (Letterbox, {"size": 8, "fill": 1.5}, TypeError, "fill is an int, not float"),
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
