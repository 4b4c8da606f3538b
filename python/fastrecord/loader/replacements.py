"""Replacements for arguments of torch's DataLoader and transforms of torchvision.

Used in error messages only; changes no argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_NO_WORKERS = "threads of the core make the batches, and there are no worker processes: "
_SAMPLER = "write batch_sampler=FastRecordBatchSampler(dataset, batch_size, {name}=...)"
_DATASET = "write FastRecordDataset(path, {name}=...)"
_DELIVERY = "write delivery=fr.Delivery({name}=...)"
_DECODING = "write FastRecordDataset(path, decode=fr.Decoding({name}=...))"
_IMAGE = "write image= with a geometry of fastrecord.transforms, such as RandomResizedCrop(224), and flip=True"
_TRANSFORM = f"{_IMAGE}; for whole batches batch_transform="
_NORMALIZE = (
    "images stay uint8 unless delivery=fr.Delivery(dtype=...) normalises them by ImageNet's statistics; for others "
    "apply fastrecord.transforms.Normalize(mean, std) to the batches"
)

# Where each argument went: of torch's DataLoader, of other loaders, and of this package's objects.
_REPLACEMENTS: dict[str, str] = {
    **dict.fromkeys(("num_workers", "workers"), _NO_WORKERS + "write threads=, or nothing"),
    "num_threads": "write threads=",
    "images": 'write image= with a geometry for each field, such as {{"left": CenterCrop(224)}}',
    "decoding": "write FastRecordDataset(path, decode=fr.Decoding(...))",
    **dict.fromkeys(
        ("persistent_workers", "worker_init_fn", "multiprocessing_context", "timeout"), _NO_WORKERS + "leave it out"
    ),
    "in_order": "batches always come in order: leave it out",
    "collate_fn": "batches are stacked as they are made: change whole batches by batch_transform=",
    "sampler": "write batch_sampler=, such as FastRecordBatchSampler(dataset, batch_size, shuffle=True)",
    "generator": "write seed=",
    "max_skipped": "write on_error=fr.Skip(limit=...)",
    "prefetch_factor": "write delivery=fr.Delivery(prefetch=...), the number of batches in progress",
    "pin_memory_device": "write delivery=fr.Delivery(device=...)",
    "fields": "write FastRecordDataset(path, fields=...)",
    **dict.fromkeys(("mean", "std", "normalize"), _NORMALIZE),
    **dict.fromkeys(("transform", "transforms", "augment"), _TRANSFORM),
    **dict.fromkeys(("size", "image_size"), _IMAGE),
    **dict.fromkeys(("hflip", "horizontal_flip"), "write flip=True"),
    **dict.fromkeys(("device", "pin_memory", "dtype", "prefetch", "ragged"), _DELIVERY),
    **dict.fromkeys(("decoder", "truncated", "sixteen_bit", "exif_orientation", "max_pixels"), _DECODING),
    **dict.fromkeys(("drop_last", "weights", "balance", "num_samples", "repeat", "rank", "world_size"), _SAMPLER),
    **dict.fromkeys(
        (
            "verify",
            "target_transform",
            "decode",
            "image_field",
            "label_field",
            "classes",
            "allow_incomplete",
            "access",
        ),
        _DATASET,
    ),
}


def refuse_arguments(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a TypeError for arguments that a loader does not have, with their replacements."""
    for name in given:
        way_out = _REPLACEMENTS.get(name, "").format(name=name)
        if not way_out:
            near = get_close_matches(name, list(known), 1)
            way_out = f"is {near[0]}= meant?" if near else f"it has {', '.join(known)}"
        raise TypeError(f"{kind} has no argument {name!r}: {way_out}")


def instead_of_transform(transform: Any) -> str | None:
    """Return what to write instead of a transform of torchvision; None for other objects."""
    if not _is_torchvision(transform):
        return None
    replacements = []
    resize: int | None = None
    for part in _parts(transform):
        name = type(part).__name__
        if name == "Resize" and isinstance(_plain(part.size), int) and part is not _parts(transform)[-1]:
            resize = _plain(part.size)
            continue
        replacements.append(f"{name}: {_instead(name, part, resize)}")
        resize = None
    if resize is not None:
        replacements.append(f"Resize: {_RESIZE.format(size=resize)}")
    return "; ".join(replacements)


_RESIZE = "images of a batch have one size, so CenterCrop({size}, resize={size}) or Resize(({size}, {size}))"
_NONE = (
    "there is none: change whole batches by batch_transform=, or give it to FastRecordDataset(transform=) and use "
    "torch's DataLoader"
)
_TENSORS = ("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "ToPureTensor", "Identity")


def _instead(name: str, part: Any, resize: int | None) -> str:
    match name:
        case "RandomResizedCrop":
            scale, ratio = tuple(part.scale), tuple(part.ratio)
            more = "" if scale == (0.08, 1.0) else f", scale={scale}"
            more += "" if ratio == (3 / 4, 4 / 3) else f", ratio={ratio}"
            return f"image=fastrecord.transforms.RandomResizedCrop({_plain(part.size)}{more})"
        case "CenterCrop":
            more = "" if resize is None else f", resize={resize}"
            return f"image=fastrecord.transforms.CenterCrop({_plain(part.size)}{more})"
        case "RandomCrop":
            # The transforms v2 list one for each side.
            sides = set(part.padding) if isinstance(part.padding, (list, tuple)) else {part.padding or 0}
            if len(sides) > 1 or (sides != {0} and (part.fill or part.padding_mode != "constant")):
                return _NONE
            more = "" if sides == {0} else f", padding={sides.pop()}"
            return f"image=fastrecord.transforms.RandomCrop({_plain(part.size)}{more})"
        case "Resize":
            size = _plain(part.size)
            return _RESIZE.format(size=size) if isinstance(size, int) else f"image=fastrecord.transforms.Resize({size})"
        case "RandomHorizontalFlip":
            return "flip=True" if part.p == 0.5 else "flip=True, which mirrors one in two"
        case "Normalize":
            return f"apply fastrecord.transforms.Normalize({list(part.mean)}, {list(part.std)}) to the batches"
        case _ if name in _TENSORS:
            return "nothing, as batches are tensors"
        case _:
            return _NONE


def _is_torchvision(transform: Any) -> bool:
    inner = getattr(transform, "transforms", None) or list(getattr(transform, "_modules", {}).values())
    return type(transform).__module__.startswith("torchvision.") or (
        type(transform).__module__.startswith("torch.nn") and any(_is_torchvision(part) for part in inner)
    )


def _parts(transform: Any) -> list[Any]:
    name = type(transform).__name__
    if name not in ("Compose", "Sequential"):
        return [transform]
    inner = transform.transforms if name == "Compose" else transform
    return [leaf for part in inner for leaf in _parts(part)]


def _plain(size: Any) -> Any:
    """Return the size of a square as an int."""
    if isinstance(size, int):
        return size
    sizes = tuple(size)
    return sizes[0] if len(sizes) == 1 else sizes
