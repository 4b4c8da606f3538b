"""TurboLoader: one C++ pass decodes the part for the crop, resizes, flips and normalises it.

It returns float32 only. Variants: JPEGs in a tar file; `raw`: resized random parts of its own file
of 256 x 256 pixels.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

import torch
import turboloader

from benches.peers import SIZE, Batch, Data, Epochs, Options

RAW_SIDE = 256


def version(_variant: str) -> str:
    """What is measured."""
    return f"turboloader {turboloader.__version__}"


def prepare(data: Data, variant: str) -> None:
    """Pack the same bytes in label order and, for `raw`, its own file of their pixels."""
    tar, raw = data.root / "turboloader.tar", data.root / "turboloader.tbl"
    if not tar.exists():
        temporary = tar.with_suffix(".tmp")
        with tarfile.open(temporary, "w") as archive:
            for label, path in enumerate(data.files()):
                archive.add(path, f"{label:08d}.jpg")
        temporary.rename(tar)
    if variant == "raw" and not raw.exists():
        made = data.root / "turboloader-new.tbl"
        turboloader.preprocess_to_tbl(str(tar), str(made), image_size=RAW_SIDE)
        made.rename(raw)


def epochs(data: Data, options: Options) -> Epochs:
    """Its pool has a thread for each core that the process may use."""
    loader = turboloader.DataLoader(
        str(data.root / ("turboloader.tbl" if options.variant == "raw" else "turboloader.tar")),
        batch_size=options.batch,
        image_size=SIZE,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
        shuffle=True,
        train_aug=True,
        antialias=True,
    )

    def batches(number: int) -> Iterator[Batch]:
        loader.set_epoch(number)
        for images, meta in loader:
            # A sample has no label: its number in the file replaces it.
            yield torch.as_tensor(images), torch.as_tensor(meta["indices"])

    return batches
