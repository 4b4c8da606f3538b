"""Train SRCNN (Dong et al., 2014) on pairs of patches, and report the time of each epoch's phases.

    python examples/srcnn.py IMAGES --patch 32 --scale 4 --batch-size 8 --epochs 5
    python examples/srcnn.py PAIRS.frec --batch-size 8 --epochs 5

For a folder of images, the script first cuts patches and packs them: large ones unchanged, small
ones from the image reduced by Pillow's bicubic filter. A .frec file comes from `fastrecord pack
--pairs`, with or without --decode.

The network receives the small patch enlarged by bicubic interpolation. It starts as the identity,
so that it learns an improvement on bicubic interpolation. Loss and PSNR refer to RGB values. The
last records are held out for validation.

An epoch's time is divided into phases: data (waiting for the batch, including its crops), forward
(transfer to the device, enlarging, network, loss), backward, and update (the optimiser). On a GPU
each phase ends with a synchronisation; otherwise its time would appear in another phase. --no-sync
omits these: the phases then show the host's time, and epochs take their real time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import nn
from torch.nn import functional

import fastrecord as fr

PHASES = ("data", "forward", "backward", "update")


class SRCNN(nn.Module):
    """Three convolutions with 64 and 32 features between them; they improve an enlarged image.

    Args:
        kernels: Sizes of the convolutions, odd numbers; 9-1-5 is the paper's first network, 9-5-5
        its largest.
    """

    def __init__(self, kernels: Sequence[int] = (9, 1, 5)) -> None:
        super().__init__()
        sizes = iter(kernels)
        self.first, self.middle, self.last = (
            nn.Conv2d(inputs, outputs, size := next(sizes), padding=size // 2)
            for inputs, outputs in ((3, 64), (64, 32), (32, 3))
        )
        with torch.no_grad():
            # Three features carry the image through; the last layer almost ignores the others,
            # which start as noise.
            for layer in (self.first, self.middle):
                layer.weight[:3] = nn.init.dirac_(torch.empty_like(layer.weight))[:3]
            nn.init.dirac_(self.last.weight)
            self.last.weight += 1e-3 * torch.randn_like(self.last.weight)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return improved images (B, 3, H, W) with values in [0, 1]."""
        features = functional.relu(self.middle(functional.relu(self.first(images))))
        improved: torch.Tensor = self.last(features)
        return improved


class Phases:
    """Adds up the time of an epoch by phase: each moment belongs to one phase."""

    def __init__(self, device: torch.device, *, synchronise: bool) -> None:
        self.device, self.synchronise = device, synchronise and device.type == "cuda"
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.last = time.perf_counter()

    def end(self, phase: str) -> None:
        """Assign the time since the end of the last phase to this one."""
        if self.synchronise:
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now

    def __str__(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        return ", ".join(f"{name} {value:.2f} s ({100 * value / total:.1f} %)" for name, value in self.seconds.items())


def pack_patches(folder: Path, out: Path, *, patch: int, scale: int, per_image: int, seed: int) -> None:
    """Write patches of all images below a folder, grouped by image.

    Args:
        folder: Files that are not images are left out.
        out: The file; fields lr, uint8 (patch, patch, 3), hr, `scale` times as large, and key.
        patch: Side of the small patches in pixels.
        scale: The ratio between large and small patches.
        per_image: Maximum number of patches per image; they do not overlap.
        seed: Seed of the choice among the possible patches.
    """
    side = patch * scale
    schema = fr.Schema(
        {
            "lr": fr.array("uint8", (patch, patch, 3)),
            "hr": fr.array("uint8", (side, side, 3)),
            "key": fr.string(),
        }
    )
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    random.Random(seed).shuffle(paths)  # so that the last records, for validation, are not all of one kind
    unusable = 0
    with fr.Writer(out, schema, metadata={"scale": scale}) as writer:
        for path in paths:
            try:
                with Image.open(path) as opened:
                    image = opened.convert("RGB")
            except (UnidentifiedImageError, OSError):
                unusable += 1
                continue
            rows, columns = image.height // side, image.width // side
            large = image.crop((0, 0, columns * side, rows * side))
            if rows == 0 or columns == 0:
                unusable += 1
                continue
            small = large.resize((columns * patch, rows * patch), Image.Resampling.BICUBIC)
            places = [(row, column) for row in range(rows) for column in range(columns)]
            random.Random(f"{seed} {path.name}").shuffle(places)
            for row, column in places[:per_image]:
                writer.append(
                    {
                        "lr": tile(small, row, column, patch),
                        "hr": tile(large, row, column, side),
                        "key": f"{path.relative_to(folder).as_posix()} {row} {column}",
                    }
                )
        if len(writer) == 0:
            raise SystemExit(f"{folder}: no image of at least {side} x {side} pixels")
        count = len(writer)
    left_out = f", {unusable:,} files left out (no images, or too small)" if unusable else ""
    print(f"{out}: {count:,} patches of {patch} and {side} pixels{left_out}", file=sys.stderr)


def tile(image: Image.Image, row: int, column: int, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return one tile of an image, uint8 (side, side, 3)."""
    left, top = column * side, row * side
    return np.asarray(image.crop((left, top, left + side, top + side)))


def make_loader(
    dataset: fr.FastRecordDataset, batch_size: int, crop: int, scale: int, *, train: bool, seed: int
) -> fr.FastRecordLoader:
    """Return a loader of dicts: lr, uint8 (B, 3, crop, crop), and hr, `scale` times as large.

    Training batches are mirrored at random and shuffled; others repeat the same crops and order at
    each `set_epoch(0)`.
    """
    schema = dataset.readers[0].schema
    if schema["lr"].name == "image":
        flips = [fr.transforms.RandomHorizontalFlip()] if train else []
        small = [fr.transforms.RandomCrop(crop), *flips]
        large = fr.transforms.Like("lr", size=scale * crop)
        sampler = fr.FastRecordBatchSampler(dataset, batch_size, shuffle=train, drop_last=train, seed=seed)
        return fr.FastRecordLoader(dataset, batch_sampler=sampler, sample={"lr": small, "hr": large})
    pair = fr.transforms.PairedRandomCrop(crop, scale=scale, flip=train, to_chw=True)
    dataset = dataset.select_fields(["lr", "hr"])
    sampler = fr.FastRecordBatchSampler(dataset, batch_size, shuffle=train, drop_last=train, seed=seed)
    return fr.FastRecordLoader(dataset, batch_sampler=sampler, batch_transform=pair)


def enlarge(small: torch.Tensor, scale: int) -> torch.Tensor:
    """Return uint8 images as values in [0, 1], enlarged by bicubic interpolation."""
    return functional.interpolate(small.float() / 255, scale_factor=scale, mode="bicubic").clamp(0, 1)


def squared_error(images: torch.Tensor, truth: torch.Tensor, border: int) -> torch.Tensor:
    """Return the sum of squared errors, float64, without the border, which is hard to predict."""
    inner = (slice(None), slice(None), slice(border, -border), slice(border, -border))
    return (images[inner].clamp(0, 1) - truth[inner]).double().square().sum()


@torch.no_grad()
def evaluate(model: nn.Module, loader: fr.FastRecordLoader, scale: int, device: torch.device) -> tuple[float, float]:
    """Return the peak signal-to-noise ratios over all patches in decibels: network and bicubic."""
    loader.set_epoch(0)
    model.eval()
    errors, count = torch.zeros(2, dtype=torch.float64, device=device), 0
    for batch in loader:
        enlarged, truth = enlarge(batch["lr"].to(device), scale), batch["hr"].to(device).float() / 255
        errors += torch.stack([squared_error(images, truth, scale) for images in (model(enlarged), enlarged)])
        count += truth[:, :, scale:-scale, scale:-scale].numel()
    ours, bicubic = (-10 * (errors / count).clamp_min(1e-10).log10()).tolist()
    return ours, bicubic


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: fr.FastRecordLoader,
    scale: int,
    phases: Phases,
    max_steps: int | None,
) -> tuple[float, int]:
    """Train for an epoch; return the mean loss and the number of steps."""
    model.train()
    losses: list[torch.Tensor] = []
    for batch in loader:
        phases.end("data")
        small, large = (batch[name].to(phases.device, non_blocking=True) for name in ("lr", "hr"))
        loss = functional.mse_loss(model(enlarge(small, scale)), large.float() / 255)
        phases.end("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        phases.end("backward")
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        phases.end("update")
        if len(losses) == max_steps:
            break
    phases.end("data")
    return (torch.stack(losses).mean().item() if losses else float("nan")), len(losses)


@contextmanager
def patches(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yield the training file; remove a file made from a folder, unless it has a name."""
    source = Path(arguments.source)
    if not source.is_dir():
        yield source
        return
    options = {name: getattr(arguments, name) for name in ("patch", "per_image", "seed")} | {
        "scale": arguments.scale or 4
    }
    if arguments.keep is not None:
        pack_patches(source, Path(arguments.keep), **options)
        yield Path(arguments.keep)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "patches.frec"
        pack_patches(source, out, **options)
        yield out


def run(path: Path, arguments: argparse.Namespace) -> None:
    """Train on a file of pairs, and print a line for each epoch."""
    with fr.Reader(path) as reader:
        schema, metadata, count = reader.schema, reader.metadata, len(reader)
    if not {"lr", "hr"} <= set(schema):
        raise SystemExit(
            f"{path}: no fields lr and hr: pack pairs with `fastrecord pack --format pairs LR_DIR HR_DIR OUT`"
        )
    scale = arguments.scale or metadata.get("scale")
    if scale is None:
        raise SystemExit(f"{path}: its metadata names no scale: say --scale")
    held_out = min(arguments.val, count // 5)
    if held_out == 0:
        raise SystemExit(f"{path}: {count} pairs are too few to hold some out")
    if schema["lr"].name == "image":
        dataset = fr.FastRecordDataset(path, image_field="lr")
    else:
        dataset = fr.FastRecordDataset(path)
    sides = [side or arguments.patch for side in schema["lr"].shape or (None,)]
    crop = arguments.crop or 3 * min(sides[:2]) // 4
    if crop < 3:
        raise SystemExit(f"a crop of {crop} x {crop} has nothing but borders: say --crop")
    train, val = dataset.subset(range(count - held_out)), dataset.subset(range(count - held_out, count))
    training = make_loader(train, arguments.batch_size, crop, scale, train=True, seed=arguments.seed)
    validation = make_loader(val, arguments.batch_size, crop, scale, train=False, seed=arguments.seed)

    torch.manual_seed(arguments.seed)
    device = torch.device(arguments.device)
    model: nn.Module = SRCNN(arguments.kernels).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    for epoch in range(arguments.epochs):
        training.set_epoch(epoch)
        started = time.perf_counter()
        phases = Phases(device, synchronise=not arguments.no_sync)
        loss, steps = train_epoch(model, optimizer, training, scale, phases, arguments.max_steps)
        seconds = time.perf_counter() - started
        ours, bicubic = evaluate(model, validation, scale, device)
        if arguments.json:
            row = {"epoch": epoch, "steps": steps, "loss": loss, "psnr": ours, "psnr_bicubic": bicubic}
            print(json.dumps(row | {"seconds": seconds, "phases": phases.seconds}), flush=True)
        else:
            print(
                f"epoch {epoch}: {steps:,} steps, loss {loss:.5f}, PSNR {ours:.2f} dB (bicubic {bicubic:.2f}), "
                f"{seconds:.1f} s: {phases}",
                flush=True,
            )


def kernels(text: str) -> tuple[int, ...]:
    """Return the kernel sizes that `9-1-5` represents."""
    sizes = tuple(int(part) for part in text.split("-"))
    if len(sizes) != 3 or any(size < 1 or size % 2 == 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not three odd numbers like 9-1-5")
    return sizes


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", metavar="IMAGES_OR_FREC", help="folder of images, or .frec file of pairs with the fields lr and hr")
    add("--patch", type=int, default=32, help="side of the small patches that are cut out of images (default: 32)")
    add("--scale", type=int, help="how many times as large the others are (default: 4, or what the file says)")
    add("--per-image", type=int, default=16, help="patches of an image, at most (default: 16)")
    add("--keep", metavar="FREC", help="keep the packed patches under this name; it is refused if it exists")
    add("--crop", type=int, help="side of the crops of the small patches (default: three quarters of theirs)")
    add("--batch-size", type=int, default=8)
    add("--epochs", type=int, default=5)
    add("--max-steps", type=int, metavar="N", help="end each epoch after so many steps")
    add("--val", type=int, default=64, help="pairs to hold out, at most; a fifth of all at most (default: 64)")
    add("--kernels", type=kernels, default=(9, 1, 5), metavar="9-1-5", help="sizes of the convolutions, say 9-5-5")
    add("--lr", type=float, default=1e-4, help="learning rate of Adam (default: 0.0001)")
    add("--seed", type=int, default=0, help="of patches, order, crops and weights (default: 0)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--no-sync", action="store_true", help="on a GPU: do not synchronise at the end of each phase")
    add("--json", action="store_true", help="print each epoch as a line of JSON")
    parsed = parser.parse_args(arguments)
    try:
        with patches(parsed) as path:
            run(path, parsed)
    except (fr.FastRecordError, OSError) as err:
        raise SystemExit(f"error: {err}") from err
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
