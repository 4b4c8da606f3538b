"""`PairedRandomCrop`: the same random crop and orientation for two images of each record.

Works on whole batches; does not decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord.checks import integer
from fastrecord.transforms.batch_info import BatchInfo
from fastrecord.transforms.size import Size, height_and_width

Images: TypeAlias = torch.Tensor | Sequence[torch.Tensor]

# Flips and turns of (B, H, W, C), once as a torch function and once as a numpy view. On the CPU
# torch would start threads that wait for each other longer than they work, and would gather and
# scatter images value by value.
_TURNS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "flip": (lambda images: images.flip(2), lambda images: images[:, :, ::-1]),
    "vertical_flip": (lambda images: images.flip(1), lambda images: images[:, ::-1]),
    "rot90": (lambda images: images.rot90(1, (1, 2)), lambda images: np.rot90(images, 1, (1, 2))),
}
# Up to this many channels are copied one by one: numpy copies single values fast, but pixels of
# three values slowly.
_FEW_CHANNELS = 8
# Each record draws its crop's top and left, and then one number for each turn, requested or not. So
# requesting another turn changes nothing else.
_DRAWS = 2 + len(_TURNS)
# numpy has no bfloat16; moving values does not require their type.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@dataclass(frozen=True)
class PairedRandomCrop:
    """Crops two images of each record at the same random place, and flips and turns both alike.

    For `FastRecordLoader(batch_transform=...)`, where batches are dicts of field -> images. Images
    are tensors (B, H, W, C), or sequences of B tensors (H, W, C) of different sizes, of any dtype,
    on any device. The result has tensors (B, height, width, C) of the same dtype and device; the
    rest of the batch is unchanged. Batches of CPU tensors need no Python code per record.

    Crop place, flips and turns depend on the record's position (`BatchInfo.uniform`): they are the
    same for any number of threads and ranks. All places at which a crop fits are equally likely.

    Attributes:
        size: Size of the crop of `lr` in its pixels, an int for a square or (height, width). The
            crop of `hr` is `scale` times as large.
        lr: Name of the field with the smaller image.
        hr: Name of the field with the larger one.
        scale: Ratio of the height and width of `hr` to the height and width of `lr`; None: computed
            from the images.
        flip: Mirror one record in two left to right.
        vertical_flip: Mirror one in two upside down.
        rot90: Rotate one in two by 90 degrees counterclockwise; requires a square crop. With both
            flips each of the eight orientations is equally likely.
        to_chw: Return (B, C, height, width): views of the same memory, which is `channels_last`.
        stream: Stream of the random numbers; see `BatchInfo.uniform`.

    Raises:
        TypeError, ValueError: an argument is invalid. When called: fields are missing or hold no
            images, a crop does not fit, or an image is not `scale` times as large as the other.
    """

    size: Size
    lr: str = "lr"
    hr: str = "hr"
    _: KW_ONLY
    scale: int | None = None
    flip: bool = True
    vertical_flip: bool = False
    rot90: bool = False
    to_chw: bool = False
    stream: int = 0

    def __post_init__(self) -> None:
        height, width = height_and_width(self.size)
        if self.lr == self.hr:
            raise ValueError(f"lr and hr are two fields, not both {self.lr!r}")
        if self.scale is not None:
            integer("scale", self.scale, 1)
        if self.rot90 and height != width:
            raise ValueError(f"with rot90 the crop is a square, not {height} x {width}")

    def __call__(self, batch: Mapping[str, Any], info: BatchInfo) -> dict[str, Any]:
        """Return the batch with both images replaced by their crops."""
        if not isinstance(batch, Mapping):
            raise TypeError(f"the batch is a mapping of field -> images, not {type(batch).__name__}")
        draws = info.uniform(_DRAWS, stream=self.stream)
        small, large = (self._images(batch, name, info) for name in (self.lr, self.hr))
        height, width = height_and_width(self.size)
        sizes = _sizes(small)
        scale = self._check_sizes(sizes, _sizes(large), info)
        places = (draws[:, :2] * (sizes - (height, width) + 1)).astype(np.int64)
        made = []
        for images, factor in ((small, 1), (large, scale)):
            cut = _cut(images, factor * places, (factor * height, factor * width))
            self._turn(cut, draws)
            made.append(cut.permute(0, 3, 1, 2) if self.to_chw else cut)
        return {**batch, self.lr: made[0], self.hr: made[1]}

    def _images(self, batch: Mapping[str, Any], name: str, info: BatchInfo) -> Images:
        if name not in batch:
            raise ValueError(f"the batch has no field {name!r}: it has {', '.join(map(repr, batch))}")
        images = batch[name]
        if not isinstance(images, Sequence | torch.Tensor) or isinstance(images, str):
            raise TypeError(f"field {name!r}: images are a tensor, or a sequence of them, not {type(images).__name__}")
        if len(images) != len(info) or len(info) == 0:
            raise ValueError(f"field {name!r}: {len(images)} images in a batch of {len(info)} records")
        if isinstance(images, torch.Tensor):
            if images.ndim != 4:
                raise ValueError(f"field {name!r}: images are (B, H, W, C), not {tuple(images.shape)}")
            return images
        for number, image in enumerate(images):
            shape = tuple(image.shape) if isinstance(image, torch.Tensor) else type(image).__name__
            if not isinstance(shape, tuple) or len(shape) != 3:
                raise ValueError(
                    f"record {info.rows[number]}, field {name!r}: an image is a tensor (H, W, C), not {shape}"
                )
        return images

    def _check_sizes(self, sizes: NDArray[np.int64], larger: NDArray[np.int64], info: BatchInfo) -> int:
        """Return the scale between the larger and the smaller images, which must be one for all."""
        crop = height_and_width(self.size)
        scale = self.scale or max(1, int(larger[0, 0]) // max(int(sizes[0, 0]), 1))
        small, wrong = sizes < crop, larger != scale * sizes
        if wrong.any():
            at = int(wrong.any(1).argmax())
            found, base = (
                f"{height} x {width}" for height, width in (larger[at % len(larger)], sizes[at % len(sizes)])
            )
            raise ValueError(
                f"record {info.rows[at]}: {self.hr!r} is {found}, which is not {scale} times {self.lr!r}, {base}"
            )
        if small.any():
            at = int(small.any(1).argmax())
            found, wanted = (f"{height} x {width}" for height, width in (sizes[at], crop))
            raise ValueError(f"record {info.rows[at]}: {self.lr!r} is {found}: a crop of {wanted} does not fit into it")
        return scale

    def _turn(self, images: torch.Tensor, draws: NDArray[np.float64]) -> None:
        """Flip and turn some of the images (B, H, W, C), in place."""
        for number, (name, (turn, view)) in enumerate(_TURNS.items(), start=2):
            chosen = np.flatnonzero(draws[:, number] < 0.5) if getattr(self, name) else ()
            if len(chosen) == 0:
                continue
            if images.device.type == "cpu":
                array = _array(images)
                array[chosen] = _copied(view(array[chosen]))
            else:
                index = torch.from_numpy(chosen).to(images.device)
                images[index] = turn(images[index])


def _cut(images: Images, places: NDArray[np.int64], crop: tuple[int, int]) -> torch.Tensor:
    """Crop each image at its place, int64 (B, 2) of top and left; return (B, height, width, C)."""
    height, width = crop
    if not isinstance(images, torch.Tensor):
        parts = [
            image[top : top + height, left : left + width]
            for image, (top, left) in zip(images, places.tolist(), strict=True)
        ]
        if parts[0].device.type != "cpu":
            return torch.stack(parts)
        return torch.from_numpy(np.stack([_array(part) for part in parts])).view(parts[0].dtype)
    # A view of all possible crops; the crop of each record is copied out of it.
    records, rows, columns, channels = images.shape
    shape = (records, rows - height + 1, columns - width + 1, height, width, channels)
    numbers = (np.arange(records), places[:, 0], places[:, 1])
    if images.device.type != "cpu":
        record, row, column, channel = images.stride()
        crops = images.as_strided(shape, (record, row, column, row, column, channel), images.storage_offset())
        return crops[tuple(torch.from_numpy(number).to(images.device) for number in numbers)]
    array = _array(images)
    record, row, column, channel = array.strides
    views = np.lib.stride_tricks.as_strided(array, shape, (record, row, column, row, column, channel), writeable=False)
    return torch.from_numpy(views[numbers]).view(images.dtype)


def _copied(view: NDArray[Any]) -> NDArray[Any]:
    """Return images (B, H, W, C) copied to contiguous memory."""
    made = np.empty(view.shape, view.dtype)
    if view.shape[3] > _FEW_CHANNELS:
        made[:] = view
    else:
        for channel in range(view.shape[3]):
            made[..., channel] = view[..., channel]
    return made


def _array(images: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's memory as an array of values of the same size."""
    return images.detach().view(_SAME_SIZE[images.element_size()]).numpy()


def _sizes(images: Images) -> NDArray[np.int64]:
    """Return height and width, int64: (1, 2) for a tensor, else (B, 2)."""
    shapes = [images.shape[1:3]] if isinstance(images, torch.Tensor) else [image.shape[:2] for image in images]
    return np.array(shapes, np.int64)
