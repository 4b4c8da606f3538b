"""Models: any classifier of torchvision or timm by its name, and its parameter groups for weight decay."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torchvision import models

from fastrecord.train.config import TrainConfig, TrainError

# A name that begins so is one of timm's.
_TIMM = "timm:"
_RESIDUAL = ("resnet", "resnext", "wide_resnet")
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def classifier_names() -> list[str]:
    """Return torchvision's names that `build_classifier` accepts, sorted."""
    names: list[str] = models.list_models(module=models)
    return names


def build_classifier(
    name: str, *, classes: int, image_size: int, other_sizes: Iterable[int] = (), zero_init_residual: bool = False
) -> nn.Module:
    """Build an untrained classifier, its weights drawn from torch's global generator.

    Args:
        name: A name from torchvision.models.list_models(), or from timm.list_models() after "timm:".
        classes: Number of outputs.
        image_size: Height and width of the input images; models that depend on it are built for it.
        other_sizes: Further heights and widths that the model gets.
        zero_init_residual: Let each residual block begin as the identity.

    Raises:
        TrainError: there is no such classifier, timm is not installed, it does not accept images of a size, or it
            has no residual blocks that begin as the identity.
    """
    if zero_init_residual and not name.startswith(_RESIDUAL):
        raise TrainError(
            f"--zero-init-residual is for models whose names begin with {', '.join(_RESIDUAL)}, not for {name}"
        )
    size = image_size
    try:
        if name.startswith(_TIMM):
            model = _timm_classifier(name.removeprefix(_TIMM), classes, image_size)
        else:
            model = _torchvision_classifier(name, classes, image_size, zero_init_residual=zero_init_residual)
        # On the meta device only shapes are computed.
        shapes = copy.deepcopy(model).to("meta")
        with torch.no_grad():
            for size in dict.fromkeys((image_size, *other_sizes)):
                shapes(torch.empty(2, 3, size, size, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise TrainError(f"{name} does not take images of {size} x {size} pixels: {error}") from error
    return model


def _torchvision_classifier(name: str, classes: int, image_size: int, *, zero_init_residual: bool) -> nn.Module:
    names = classifier_names()
    if name not in names:
        raise TrainError(f"torchvision has no classifier named {name!r}; {_similar(name, names)}")
    extra: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        # One output, as in all others; and their own initialisation, set explicitly to avoid a
        # warning.
        extra = {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_"):
        extra = {"image_size": image_size}
    elif name.startswith("maxvit_"):
        extra = {"input_size": (image_size, image_size)}
    if zero_init_residual:
        extra = {"zero_init_residual": True}
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **extra)
    return model


def _timm_classifier(name: str, classes: int, image_size: int) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise TrainError(f"{_TIMM}{name} needs the package timm: {error}: `pip install timm`") from error
    if not timm.is_model(name):
        raise TrainError(f"timm has no model named {name!r}; {_similar(name, timm.list_models())}")
    if timm.get_pretrained_cfg_value(name, "fixed_input_size"):
        # A few of these models have no such argument.
        with suppress(TypeError):
            return timm.create_model(name, num_classes=classes, img_size=image_size)
    return timm.create_model(name, num_classes=classes)


def _similar(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return f"similar names are {', '.join(near)}" if near else f"it has {', '.join(names)}"


def build_model(config: TrainConfig, classes: Sequence[str]) -> nn.Module:
    """Build the model of a configuration.

    Raises:
        TrainError: there is no model of that name, or it does not accept such images, or so few per
            pass.
    """
    module = build_classifier(
        config.model,
        classes=len(classes),
        image_size=config.sizes[-1],
        other_sizes=(*config.sizes, config.evaluation[0]),
        zero_init_residual=config.zero_init_residual,
    )
    if config.batch_size == 1 and has_batch_norm(module):
        raise TrainError(
            f"{config.model} has batch normalisation, and --batch-size 1 leaves it one image to normalise over: "
            "use at least 2"
        )
    return module


def has_batch_norm(model: nn.Module) -> bool:
    """Whether the model normalises over the batch, so that a batch of one image cannot train it."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_norm_bias: bool) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups.

    One group has all parameters; or biases and normalisation form a second group without decay.
    """
    if decay_norm_bias:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            (others if isinstance(module, _NORMALISATION) or name == "bias" else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
