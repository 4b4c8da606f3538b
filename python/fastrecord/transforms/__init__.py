"""Image transforms: crops and operations for the loader's threads, and transforms of whole batches.

Names, arguments and defaults are those of torchvision's v2. `PairedRandomCrop` transforms whole
batches of pairs of arrays; `BatchInfo` describes the batch to such a transform. Imports no data set
and no loader.
"""

from __future__ import annotations

from fastrecord.transforms.automatic import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from fastrecord.transforms.batch_info import BatchInfo
from fastrecord.transforms.colours import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastrecord.transforms.compose import RandomApply, RandomChoice, RandomOrder
from fastrecord.transforms.decode import Decode
from fastrecord.transforms.geometry import (
    CenterCrop,
    FiveCrop,
    Geometry,
    Letterbox,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from fastrecord.transforms.mixing import CutMix, Mixing, MixUp
from fastrecord.transforms.moves import (
    RandomAffine,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from fastrecord.transforms.normalize import Normalize
from fastrecord.transforms.operation import Operation
from fastrecord.transforms.own import Lambda
from fastrecord.transforms.paired_crop import PairedRandomCrop
from fastrecord.transforms.parts import Like, View
from fastrecord.transforms.pipeline import Pipeline
from fastrecord.transforms.size import Size
from fastrecord.transforms.to_float import IMAGENET_MEAN, IMAGENET_STD, ToFloat
from fastrecord.transforms.transform import Transform
from fastrecord.transforms.twins import from_torchvision
from fastrecord.transforms.view_info import ViewInfo

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AugMix",
    "AutoAugment",
    "BatchInfo",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Decode",
    "FiveCrop",
    "GaussianBlur",
    "Geometry",
    "Lambda",
    "Letterbox",
    "Like",
    "MixUp",
    "Mixing",
    "Normalize",
    "Operation",
    "Pad",
    "PairedRandomCrop",
    "Pipeline",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "Size",
    "ToFloat",
    "Transform",
    "TrivialAugmentWide",
    "View",
    "ViewInfo",
    "from_torchvision",
]
