"""Replacements for arguments of torch's DataLoader and of other loaders.

Used in error messages only; changes no argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_NO_WORKERS = "threads of the core make the batches, and there are no worker processes: "
_SAMPLER = "write batch_sampler=FastRecordBatchSampler(dataset, batch_size, {name}=...)"
_DATASET = "write FastRecordDataset(path, {name}=...)"
_DELIVERY = "write delivery=fr.Delivery({name}=...)"
_DECODING = "write FastRecordDataset(path, decode=fr.Decoding({name}=...))"
_IMAGE = "write sample= with fastrecord.transforms, such as [RandomResizedCrop(224), RandomHorizontalFlip()]"
_TRANSFORM = f"{_IMAGE}; for whole batches batch_transform="
_NORMALIZE = (
    "images stay uint8 unless delivery=fr.Delivery(dtype=...) normalises them by ImageNet's statistics; for others "
    "apply fastrecord.transforms.Normalize(mean, std) to the batches"
)

# Where each argument went: of torch's DataLoader, of other loaders, and of this package's objects.
_REPLACEMENTS: dict[str, str] = {
    **dict.fromkeys(("num_workers", "workers"), _NO_WORKERS + "write threads=, or nothing"),
    "num_threads": "write threads=",
    **dict.fromkeys(
        ("image", "images"), _IMAGE + ', or for several fields {{"left": [CenterCrop(224)], "right": Like("left")}}'
    ),
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
    **dict.fromkeys(("flip", "hflip", "horizontal_flip"), "write RandomHorizontalFlip() in sample="),
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
