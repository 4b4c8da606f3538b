"""`Sample`: what the batches of a loader are made of, resolved against the data set's fields.

Makes no batch: `Outputs` plans the threads' work, `move_places` moves boxes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.errors import Code
from fastrecord.schema import FieldType
from fastrecord.schema.roles import check_fields, lies_in_index
from fastrecord.transforms import Decode, Like, Operation, Pipeline, ToFloat, Transform, View

# What an output is made of.
Part: TypeAlias = Transform | Sequence[Transform] | View | Like
Given: TypeAlias = Part | Mapping[str, Part]

_BLENDED = ("uint8", "uint16", "float32")


@dataclass(frozen=True)
class Picture:
    """An output of pixels that the core's threads make.

    Attributes:
        name: Of the output.
        field: Where its images or arrays are.
        pipeline: What becomes of them.
        size: Height and width.
        count: Number of views; None: one, without an axis.
        like: The output that it follows.
        nearest: Whether pixels are copied, not blended.
        may_be_mask: Whether an image of one channel or with a palette is accepted.
        fill: The value, or colour, outside the image.
        array: The type of its field, if it has arrays.
    """

    name: str
    field: str
    pipeline: Pipeline
    size: tuple[int, int]
    count: int | None = None
    like: str | None = None
    nearest: bool = False
    fill: tuple[float, ...] = (0,)
    array: FieldType | None = None
    may_be_mask: bool = True

    def __post_init__(self) -> None:
        pipeline = self.pipeline
        if not self.is_plain and (wrong := [one for one in pipeline.operations if one.changes]):
            raise ValueError(
                f"{self.name!r}: {type(wrong[0]).__name__} needs RGB or grey of 8 bits: other pixels can only be moved"
            )
        for step in (*pipeline.operations, *pipeline.own):
            if isinstance(step, Operation):
                step.check_size(self.size)
        if pipeline.own and not (self.is_plain and pipeline.decode.channels == 3):
            raise ValueError(f"{self.name!r}: Lambda takes images in RGB, of 8 bits")
        if pipeline.to_float is None:
            return
        channels, given = int(np.prod(self._channels)), len(pipeline.to_float.mean)
        if channels != given:
            many, numbers = ("", "a number") if channels == 1 else ("s", f"{channels} numbers")
            raise ValueError(
                f"{self.name!r} has {channels} channel{many}, and ToFloat statistics of {given}: write mean= and std= "
                f"with {numbers}"
            )
        if self.array is not None and self.array.dtype not in _BLENDED:
            raise ValueError(f"{self.name!r}: ToFloat takes uint8, uint16 and float32, not {self.array.dtype}")

    @property
    def is_mask(self) -> bool:
        """Whether it has one number for each pixel, of an image."""
        return self.like is not None and self.nearest and self.array is None

    @property
    def _channels(self) -> tuple[int, ...]:
        """The axes of a pixel."""
        if self.array is not None and not self.is_colours:
            shape = tuple(dim or 0 for dim in (self.array.shape or ())[2:])
            return shape or ((1,) if self.pipeline.to_float else ())
        if self.is_mask:
            return (1,) if self.pipeline.to_float else ()
        return (self.pipeline.decode.channels,)

    @property
    def is_colours(self) -> bool:
        """Whether it has images in RGB: arrays uint8 (H, W, 3) have, too, unless their pixels are copied."""
        array = self.array
        return array is None or (self.like is None and array.dtype == "uint8" and (array.shape or ())[2:] == (3,))

    @property
    def is_plain(self) -> bool:
        """Whether it has images in RGB or grey, of 8 bits."""
        return self.is_colours and self.pipeline.decode.is_plain and not self.is_mask

    @property
    def shown_last(self) -> bool:
        """Whether the channels are the last axis in memory, and the first of an image that is handed out."""
        shown = self.is_colours or self.pipeline.to_float is not None
        return bool(self._channels) and shown and not self.pipeline.is_planar

    @property
    def is_float(self) -> bool:
        """Whether the threads make floats."""
        return self.pipeline.to_float is not None and not self.pipeline.own

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensors that the threads make."""
        if self.is_float:
            return self.pipeline.to_float.torch_dtype  # type: ignore[union-attr]
        if self.array is not None:
            made: torch.dtype = getattr(torch, self.array.dtype or "uint8")
            return made
        return torch.uint16 if self.pipeline.decode.bits == 16 else torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record's value in memory."""
        inner = (
            (*self._channels, *self.size)
            if self.pipeline.is_planar and self.is_float
            else (*self.size, *self._channels)
        )
        return inner if self.count is None else (self.count, *inner)

    def _form(self) -> Any:
        decode = self.pipeline.decode
        if self.array is not None and not self.is_colours:
            return {"array": len(self._fill())}
        if self.is_mask:
            return {"index": decode.bits // 8}
        if decode.bits == 16:
            return {"deep": decode.channels}
        return {1: "grey", 3: "rgb", 4: "rgba"}[decode.channels]

    def _fill(self) -> list[int]:
        """Return the bytes of a pixel outside the image.

        Raises:
            ValueError: its type does not have the value.
        """
        bits, channels = self.pipeline.decode.bits, self.pipeline.decode.channels
        if self.array is not None and not self.is_colours:
            kind: torch.dtype = getattr(torch, self.array.dtype or "")
            if not (kind.is_floating_point or kind.is_complex):
                high = 1 if kind == torch.bool else torch.iinfo(kind).max
                self._check_fill(0 if kind == torch.bool else torch.iinfo(kind).min, high)
            one = torch.tensor(self.fill[0]).to(kind).reshape(1).view(torch.uint8).tolist()
            return one * math.prod(dim or 0 for dim in (self.array.shape or ())[2:])
        self._check_fill(0, 255 if bits == 8 or not self.is_mask else 65535)
        values = [round(value) for value in self.fill]
        if self.is_mask:
            return list(struct.pack("<H" if bits == 16 else "<B", values[0]))
        values = values * (3 // len(values))
        if bits == 16:
            return list(struct.pack("<H", 257 * values[0]) * channels)
        return values[:1] if channels == 1 else [*values, 255][:channels]

    def _check_fill(self, low: int, high: int) -> None:
        for value in self.fill:
            if not (low <= value <= high and value == int(value)):
                raise ValueError(f"{self.name!r}: fill is a whole number from {low} to {high}, not {value!r}")

    def spec(self, leads: Sequence[str]) -> str:
        """Return the description for the core; `leads` are the names of all outputs of pixels."""
        frame = self.pipeline.frame
        return json.dumps(
            {
                "stream": self.name,
                "count": self.count or 1,
                "geometry": frame.spec() if frame else None,
                "like": None if self.like is None else leads.index(self.like),
                "size": self.size[::-1],
                "filter": frame.filter if frame else "bilinear",
                "nearest": self.nearest,
                "may_be_mask": self.may_be_mask,
                "fill": self._fill(),
                "form": self._form(),
                "recipe": self.pipeline.recipe(),
            }
        )


@dataclass(frozen=True)
class Sample:
    """The outputs of a loader.

    Attributes:
        pictures: Outputs of pixels, by name, in order.
        places: Fields of boxes and keypoints, and what they follow.
        single: Whether the only picture itself is in a batch, not a dict.
    """

    pictures: Mapping[str, Picture]
    places: Mapping[str, Like]
    single: bool

    @classmethod
    def of(cls, dataset: FastRecordDataset, given: Given | None, to_float: ToFloat | None) -> Sample:
        """Resolve what the user gave; `to_float` converts images that stay bytes.

        Raises:
            TypeError, ValueError: it is not a list of transforms, or does not fit the data set.
            SchemaError: a field is missing, or of a type that does not fit.
        """
        single = not isinstance(given, Mapping)
        if given is None or not isinstance(given, Mapping):
            field = _only_field(dataset, given)
            if field is None:
                return cls({}, {}, single)
            given = {field: given}  # type: ignore[dict-item]
        if not given:
            raise ValueError("sample= names no output")
        pictures: dict[str, Picture] = {}
        places: dict[str, Like] = {}
        # What others follow comes first.
        for name, part in sorted(given.items(), key=lambda item: isinstance(item[1], Like)):
            if isinstance(part, Like) and part.is_places:
                _check_places(dataset, name, part, pictures)
                places[name] = part
            elif isinstance(part, Like):
                pictures[name] = _follower(dataset, name, part, pictures, to_float)
            else:
                pictures[name] = _lead(dataset, name, part, to_float)
        if not pictures:
            raise ValueError("sample= has no images that boxes could follow")
        _check_names(dataset, given, pictures, places)
        ordered = {name: pictures[name] for name in given if name in pictures}
        return cls(ordered, places, single)

    @property
    def moves(self) -> bool:
        """Whether pixels are moved at random."""
        return any(picture.pipeline.moves for picture in self.pictures.values())

    @property
    def fields(self) -> set[str]:
        """The fields that outputs are made of."""
        return {picture.field for picture in self.pictures.values()} | set(self.places)


def _check_names(
    dataset: FastRecordDataset, given: Mapping[str, Any], pictures: Mapping[str, Picture], places: Mapping[str, Like]
) -> None:
    """Refuse an output with the name of another column of the batches."""
    taken = [name for name, picture in pictures.items() if picture.field != name and name in dataset.selection.fields]
    taken += [name for name in (f"{place}_kept" for place in places) if name in {*given, *dataset.selection.fields}]
    if taken:
        raise ValueError(f"sample= makes {taken[0]!r}, which is the name of another column: choose another")


def _only_field(dataset: FastRecordDataset, given: Any) -> str | None:
    """Return the field of a sample that is a list; None for batches of arrays."""
    if dataset.fields is None:
        if given is None:
            raise ValueError("give sample=, such as sample=[transforms.RandomResizedCrop(224)]")
        return dataset.image_field
    reader = dataset.readers[0]
    images = [name for name in dataset.fields if reader.schema[name].name == "image"]
    pictures = images or [name for name in dataset.fields if (name, reader.schema[name].name) == ("image", "bytes")]
    if given is not None and len(pictures) == 1:
        return pictures[0]
    if given is not None:
        which = f"{images[0]!r}: [transforms.CenterCrop(224)]" if images else '"name": [...]'
        raise ValueError(
            "sample=: the data set is in fields mode, with batches of arrays; to decode its fields of images write "
            f"sample={{{which}}}"
        )
    if images:
        raise Code.FIELD_TYPE.error(
            f"{reader.path}: field {images[0]!r} holds encoded images: write sample={{{images[0]!r}: "
            "[transforms.CenterCrop(224)]} or other transforms to decode them, or select other fields"
        )
    return None


def _lead(dataset: FastRecordDataset, name: str, part: Any, to_float: ToFloat | None) -> Picture:
    if not isinstance(part, View):
        first, *_ = part if isinstance(part, Sequence) and part and not isinstance(part, str) else [part]
        if not isinstance(first, Transform):
            theirs = type(first).__module__.startswith("torchvision.")
            way_out = " of torchvision: write fastrecord.transforms.from_torchvision(...)" if theirs else ""
            raise TypeError(
                f"the transforms of {name!r} are of fastrecord.transforms, such as [RandomResizedCrop(224)], not "
                f"{type(first).__name__}{way_out}"
            )
        part = View(name, part)
    kind = _field(dataset, part.of, name)
    pipeline, frame = part.pipeline, part.frame
    picture = Picture(name, part.of, pipeline, frame.size, part.count, fill=frame.fill, array=kind)
    if kind is not None:
        _check_array(dataset, part.of, kind)
        if pipeline.decode != Decode():
            raise ValueError(f"{name!r} has arrays, and Decode is for encoded images")
        resizes = not frame.steps[-1].cuts or len(frame.steps) > 1
        if not picture.is_colours:
            picture = replace(picture, nearest=kind.dtype not in _BLENDED)
            if resizes and picture.nearest:
                raise ValueError(
                    f"{name!r}: arrays of {kind.dtype} are cropped, not resized: write RandomCrop or CenterCrop"
                )
    return _converted(picture, to_float)


def _follower(
    dataset: FastRecordDataset, name: str, part: Like, pictures: Mapping[str, Picture], to_float: ToFloat | None
) -> Picture:
    lead = _followed(name, part, pictures)
    kind = _field(dataset, name, name)
    if kind is not None:
        _check_array(dataset, name, kind)
    blends = kind is None or kind.dtype in _BLENDED
    nearest = part.interpolation == "nearest" or (part.interpolation is None and kind is not None)
    if not nearest and not blends:
        raise ValueError(
            f'{name!r}: arrays of {kind.dtype if kind else ""} are not blended: write interpolation="nearest"'
        )
    pipeline = part.pipeline
    decoded = any(isinstance(step, Decode) for step in part.transforms)
    if decoded and kind is not None:
        raise ValueError(f"{name!r} has arrays, and Decode is for encoded images")
    if nearest and kind is None:
        if pipeline.decode.channels == 4:
            raise ValueError(f"{name!r}: a mask has one channel, not {pipeline.decode}")
        pipeline = replace(pipeline, decode=Decode(1, pipeline.decode.bits))
    may_be_mask = nearest or part.interpolation is not None or pipeline.decode.channels == 1
    size: Any = part.size or lead.size
    fill = (part.fill,) if not blends or nearest or kind is not None else (part.fill,) * 3
    picture = Picture(name, name, pipeline, size, lead.count, part.of, nearest, fill, kind, may_be_mask)
    return _converted(picture, to_float)


def _converted(picture: Picture, to_float: ToFloat | None) -> Picture:
    if to_float is None or not picture.is_plain:
        return picture
    return replace(picture, pipeline=picture.pipeline.converted(to_float))


def _followed(name: str, part: Like, pictures: Mapping[str, Picture]) -> Picture:
    lead = pictures.get(part.of)
    if lead is None or lead.like is not None:
        outputs = [repr(other) for other, picture in pictures.items() if picture.like is None]
        way_out = f"follow {' or '.join(outputs)}" if outputs else f"add {part.of!r}: [...], which begins with a crop"
        raise ValueError(f"{name!r} follows {part.of!r}, which is not an output with its own crop: {way_out}")
    if lead.pipeline.mixes:
        raise ValueError(f"{name!r} cannot follow {part.of!r}: AugMix shows each pixel at several places")
    return lead


def _field(dataset: FastRecordDataset, field: str, output: str) -> FieldType | None:
    """Return the type of a field of arrays; None for images.

    Raises:
        SchemaError: the field does not exist, or holds neither.
    """
    if dataset.fields is not None and field not in dataset.fields:
        raise Code.NO_FIELD.error(f"sample= names {field!r} for {output!r}, which is not among the data set's fields")
    shards = dataset.selection.shards
    kind = dataset.readers[0].schema.get(field)
    if kind is not None and kind.name == "array":
        return kind
    check_fields(shards.distinct, field, None, ())
    return None


def _check_array(dataset: FastRecordDataset, field: str, kind: FieldType) -> None:
    where, shape = f"{dataset.readers[0].path}: field {field!r}", kind.shape or ()
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] is not None)):
        raise Code.FIELD_TYPE.error(
            f"{where} has arrays of shape {shape}: those that are cropped are (H, W) or (H, W, C) with a number for C"
        )
    if lies_in_index(kind):
        raise Code.FIELD_TYPE.error(
            f"{where} has arrays of at most 64 bytes, which lie in the index and are not cropped: write the field as "
            "an array with (None, None) for its sides"
        )


def _check_places(dataset: FastRecordDataset, name: str, part: Like, pictures: Mapping[str, Picture]) -> None:
    lead = _followed(name, part, pictures)
    if lead.count is not None:
        raise ValueError(f"{name!r} follows {part.of!r}, which has several views: boxes follow one")
    if dataset.fields is not None and name not in dataset.fields:
        raise Code.NO_FIELD.error(f"sample= names {name!r}, which is not among the data set's fields")
    kind = dataset.readers[0].schema.get(name)
    last = 4 if part.boxes else 2
    shape = None if kind is None else kind.shape
    if kind is None or kind.name != "array" or not shape or shape[-1] != last or (part.boxes and len(shape) != 2):
        wanted = "boxes, arrays (N, 4)" if part.boxes else "keypoints, arrays (..., 2)"
        raise Code.FIELD_TYPE.error(f"{dataset.readers[0].path}: field {name!r} has no {wanted}, but {kind}")
