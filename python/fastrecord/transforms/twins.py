"""`from_torchvision`: a list of this package's transforms from torchvision's. Imports no torchvision.

Classes are recognised by module and name, and carry over attribute by attribute, because both
packages use the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Any

from fastrecord.transforms import automatic, colours, compose, geometry, moves
from fastrecord.transforms.frame import Frame
from fastrecord.transforms.geometry import Geometry
from fastrecord.transforms.operation import Operation
from fastrecord.transforms.to_float import ToFloat
from fastrecord.transforms.transform import Transform

# Twins whose attributes carry over.
_TWINS: dict[str, type[Geometry | Operation]] = {
    twin.__name__: twin
    for twin in (
        automatic.AugMix,
        automatic.AutoAugment,
        automatic.RandAugment,
        automatic.TrivialAugmentWide,
        colours.ColorJitter,
        colours.GaussianBlur,
        colours.RandomAdjustSharpness,
        colours.RandomAutocontrast,
        colours.RandomEqualize,
        colours.RandomErasing,
        colours.RandomGrayscale,
        colours.RandomInvert,
        colours.RandomPosterize,
        colours.RandomSolarize,
        geometry.CenterCrop,
        geometry.FiveCrop,
        geometry.Pad,
        geometry.RandomCrop,
        geometry.RandomResizedCrop,
        geometry.Resize,
        moves.RandomAffine,
        moves.RandomHorizontalFlip,
        moves.RandomPerspective,
        moves.RandomRotation,
        moves.RandomVerticalFlip,
    )
}
# Attributes that the twins lack, with the only value that is the same without them.
_FIXED: dict[str, Any] = {
    "antialias": True,
    "expand": False,
    "pad_if_needed": False,
    "padding_mode": "constant",
    "policy": "imagenet",
}
_LISTS = {"Compose", "Sequential", "ModuleList"}
_SEVERAL = {"RandomApply", "RandomChoice", "RandomOrder"}
# What changes neither pixels nor their type here: images are RGB tensors from the start.
_NOTHING = {"Identity", "PILToTensor", "RGB", "ToImage", "ToPILImage", "ToPureTensor"}
_OTHER_WAYS = {
    "CutMix": "it mixes images of a batch: `batch=[T.CutMix(...)]` of the loader",
    "MixUp": "it mixes images of a batch: `batch=[T.MixUp(...)]` of the loader",
}
# PIL's numbers, which torchvision takes, too.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def from_torchvision(transforms: Any) -> list[Transform]:
    """Convert torchvision's transforms, v2 or v1, into a list of this package's.

    The list does what torchvision does to uint8 tensors, with random numbers of its own. `ToImage`,
    `PILToTensor` and the like are left out; `ToDtype(float, scale=True)` or `ToTensor` and
    `Normalize` become one `ToFloat`.

    Args:
        transforms: A transform, a `Compose`, or a list of them; also `weights.transforms()` of a model
            that classifies.

    Returns:
        The transforms, for the loader's `sample=`.

    Raises:
        ValueError: some have no twin, or an argument that the twin lacks, or come at a place where the
            twin cannot be. The message lists them all.
    """
    conversion = _Conversion()
    conversion.all(transforms if isinstance(transforms, (list, tuple)) else [transforms], "")
    conversion.check_order()
    if conversion.faults:
        listed = "\n".join(f"  {fault}" for fault in conversion.faults)
        raise ValueError(
            f"fastrecord.transforms has no twin of:\n{listed}\n"
            "Apply these to the batch, by `batch_transform=` of the loader, or to each image, by `T.Lambda`"
        )
    return [step for _, step in conversion.made]


class _Conversion:
    """What was made so far, and what could not be. Each step has the place of its origin."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Transform]] = []
        self.faults: list[str] = []

    def all(self, transforms: Any, place: str) -> None:
        for number, transform in enumerate(transforms):
            self.one(transform, f"{place}[{number}]")

    def one(self, transform: Any, place: str) -> None:
        name = _name(transform)
        where = f"{place} {name or type(transform).__name__}"
        try:
            if name in _LISTS or isinstance(transform, (list, tuple)):
                self.all(getattr(transform, "transforms", transform), place)
            elif name in ("ToDtype", "ConvertImageDtype", "ToTensor"):
                self.convert(transform, where)
            elif name == "Normalize":
                self.normalize(transform.mean, transform.std)
            elif name == "ImageClassification":
                self.classification(transform, where)
            elif name not in _NOTHING:
                self.made.append((where, self.twin(transform, name, place)))
        except (TypeError, ValueError) as error:
            self.faults.append(f"{where}: {error}")

    def twin(self, transform: Any, name: str | None, place: str) -> Transform:
        """Return the twin of a transform that is one operation."""
        if name == "Grayscale":
            if transform.num_output_channels != 3:
                raise ValueError("num_output_channels is 3; for one channel begin the list with T.Decode(1)")
            return colours.RandomGrayscale(1.0)
        if name in _SEVERAL:
            given = {} if name == "RandomOrder" else {"p": transform.p}
            children = [self.child(one, f"{place}[{number}]") for number, one in enumerate(transform.transforms)]
            twin: type[Any] = getattr(compose, name)
            return twin(children, **given)  # type: ignore[no-any-return]
        if name not in _TWINS:
            raise ValueError(_OTHER_WAYS.get(name or "", "not offered"))
        return _carried(transform, _TWINS[name])

    def child(self, transform: Any, place: str) -> Operation:
        """Return the twin of a part of `RandomApply` and the like; a list is one part."""
        inner = _Conversion()
        inner.one(transform, place)
        self.faults += inner.faults
        steps = []
        for where, step in inner.made:
            if isinstance(step, Operation):
                steps.append(step)
            else:
                self.faults.append(f"{where}: only operations on bytes can be applied at random")
        if len(steps) == 1:
            return steps[0]
        return compose.RandomApply(steps, 1.0) if steps else colours.ColorJitter()

    def convert(self, transform: Any, where: str) -> None:
        """Add a conversion to floats, or change the type of the one before."""
        dtype = getattr(transform, "dtype", "torch.float32")
        if isinstance(dtype, dict):
            raise ValueError(f"dtype is one type, that of images, not {dtype}")
        if str(dtype) == "torch.uint8" and not self.floats:
            return
        made = ToFloat(dtype, (0.0,) * 3, (1.0,) * 3)
        if self.floats:
            self.made[-1] = (where, replace(self.conversion(), dtype=made.dtype))
            return
        if not getattr(transform, "scale", True):
            raise ValueError("scale is True, so that values are in [0, 1]")
        self.made.append((where, made))

    def normalize(self, mean: Sequence[float], std: Sequence[float]) -> None:
        before = self.conversion()
        if (before.mean, before.std) != ((0.0,) * 3, (1.0,) * 3):
            raise ValueError("one is enough")
        mean, std = (tuple(values) * (3 if len(values) == 1 else 1) for values in (mean, std))
        self.made[-1] = (self.made[-1][0], replace(before, mean=mean, std=std))

    def classification(self, transform: Any, where: str) -> None:
        """Add what `weights.transforms()` does."""
        if not transform.antialias:
            raise ValueError(f"antialias is True, not {transform.antialias}")
        resize = geometry.Resize(transform.resize_size[0], _plain("interpolation", transform.interpolation))
        crop = geometry.CenterCrop(transform.crop_size[0])
        to_float = ToFloat("float32", tuple(transform.mean), tuple(transform.std))
        self.made += [(where, step) for step in (resize, crop, to_float)]

    @property
    def floats(self) -> bool:
        return any(isinstance(step, ToFloat) for _, step in self.made)

    def conversion(self) -> ToFloat:
        """Return the conversion to floats that was made last."""
        last = self.made[-1][1] if self.made else None
        if not isinstance(last, ToFloat):
            raise ValueError(
                "it comes right after the conversion to floats, such as ToDtype(torch.float32, scale=True)"
            )
        return last

    def check_order(self) -> None:
        """Note what is before the crop, or after the conversion to floats, and cannot be there."""
        kinds = [type(step) for _, step in self.made]
        crop = max((at for at, kind in enumerate(kinds) if issubclass(kind, Geometry)), default=-1)
        floats = kinds.index(ToFloat) if ToFloat in kinds else len(kinds)
        for at, (where, step) in enumerate(self.made):
            if at > floats and not isinstance(step, colours.RandomErasing):
                self.faults.append(f"{where}: it works on bytes: put it before the conversion to floats")
            elif at < crop and not isinstance(step, Geometry):
                self.faults.append(f"{where}: the crop comes first: put it after {self.made[crop][0].split()[1]}")
        crops = [step for _, step in self.made if isinstance(step, Geometry)]
        if crops and crops[-1].fixed:
            try:
                Frame(tuple(crops))
            except ValueError as error:
                self.faults.append(f"{self.made[crop][0]}: {error}")


def _name(transform: Any) -> str | None:
    """Return the name of a class of torchvision or torch; None for others, also derived ones."""
    kind = type(transform)
    known = kind.__module__.startswith(("torchvision.transforms.", "torch.nn.modules."))
    return kind.__name__ if known else None


def _carried(transform: Any, twin: type[Geometry | Operation]) -> Transform:
    """Return a twin with the attributes of a transform, after a check of those that it lacks."""
    own = {field.name for field in fields(twin)}
    for name, only in _FIXED.items():
        found = _plain(name, getattr(transform, name, only))
        if name not in own and found != only:
            raise ValueError(f"{name} is {only!r}, not {found!r}")
    given = {name: _plain(name, getattr(transform, name)) for name in own if hasattr(transform, name)}
    if twin is geometry.Resize and isinstance(given["size"], tuple) and len(given["size"]) == 1:
        given["size"] = given["size"][0]
    elif twin is geometry.RandomCrop and given["padding"] and ".v2." in type(transform).__module__:
        # It has taken its argument apart.
        left, right, top, bottom = given["padding"]
        given["padding"] = (left, top, right, bottom)
    return twin(**given)


def _plain(name: str, value: Any) -> Any:
    """Return the value of an attribute as this package writes it."""
    if isinstance(value, Enum):
        return value.value
    if name == "interpolation":
        return _INTERPOLATIONS.get(value, value)
    if name == "fill" and isinstance(value, dict):
        raise ValueError(f"fill is that of images, not one for each type: {value}")
    if name == "padding" and value is None:
        return 0
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_plain(name, one) for one in value)
    if name == "fill" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
