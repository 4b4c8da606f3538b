"""Compare decoding and cropping with Pillow and torchvision, file by file, over a folder of real images.

Run by hand: `python benches/compare_pillow.py FOLDER`. Names each file whose pixels differ. The
exit status is 1 if a crop differs by more than 1.0 of 255 on average, or if only one side refuses a
file.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as transform

import fastrecord as fr
from fastrecord import _core

Box = tuple[float, float, float, float]

LIMIT = 1.0  # mean absolute difference, of 255
SIZE = (224, 224)


def difference(ours: np.ndarray, theirs: np.ndarray) -> npt.NDArray[np.int16]:
    """Absolute difference; the shapes must be equal."""
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes {ours.shape} and {theirs.shape}")
    found: npt.NDArray[np.int16] = np.abs(ours.astype(np.int16) - theirs)
    return found


def center(image: Image.Image) -> tuple[np.ndarray, Box]:
    """Apply torchvision's CenterCrop(224) of Resize(256), and return the region of the image."""
    width, height = image.size
    resized = transform.resize(image, 256)
    sx, sy = width / resized.width, height / resized.height
    left, top = round((resized.width - 224) / 2), round((resized.height - 224) / 2)
    return np.asarray(transform.center_crop(resized, 224)), (left * sx, top * sy, 224 * sx, 224 * sy)


def compare(data: bytes, image: Image.Image) -> dict[str, list[npt.NDArray[np.int16]]]:
    """Return the differences of the whole image, of five random crops and of the central one."""
    found = {"full": [difference(fr.decode_image(data), np.asarray(image))], "random": []}
    for _ in range(5):
        y, x, h, w = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        theirs = transform.resized_crop(image, y, x, h, w, list(SIZE), InterpolationMode.BILINEAR)
        ours = _core.crop_image(data, (x, y, w, h), (x, y, w, h), SIZE)
        found["random"].append(difference(ours, np.asarray(theirs)))
    pixels, part = center(image)
    found["center"] = [difference(_core.crop_image(data, part, (0, 0, *image.size), SIZE), pixels)]
    return found


def open_both(data: bytes) -> tuple[Image.Image | None, str]:
    """Return Pillow's image if both sides decode the file, else their errors."""
    said = []
    image = None
    try:
        image = Image.open(io.BytesIO(data)).convert("RGB")
    except OSError as error:
        said.append(f"Pillow: {error}")
    try:
        fr.decode_image(data)
    except fr.errors.DecodeError as error:
        said.append(f"fastrecord: {error}")
    return (None if said else image), "; ".join(said)


def main() -> int:
    """Compare all files below the folder."""
    files = sorted(path for path in Path(sys.argv[1]).rglob("*") if path.is_file())
    torch.manual_seed(0)
    unequal, one_sided = 0, 0
    means: dict[str, list[float]] = {"full": [], "random": [], "center": []}
    peak = dict.fromkeys(means, 0)
    for path in files:
        data = path.read_bytes()
        image, said = open_both(data)
        if image is None:
            print(f"{path}: {said}")
            one_sided += ";" not in said
            continue
        for name, differences in compare(data, image).items():
            for found in differences:
                means[name].append(float(found.mean()))
                peak[name] = max(peak[name], int(found.max()))
                if found.mean() > LIMIT or (name == "full" and found.any()):
                    print(f"{path}: {name}: mean {found.mean():.3f}, largest {found.max()}")
            unequal += name == "full" and bool(differences[0].any())
    for name, values in means.items():
        print(
            f"{name}: {len(values)} comparisons, mean difference {np.mean(values):.4f}, "
            f"99 % {np.percentile(values, 99):.4f}, worst {max(values):.4f}, largest of a pixel {peak[name]}"
        )
    print(f"{len(means['full']) - unequal} of {len(means['full'])} files decode to the very same pixels")
    return int(one_sided > 0 or max(max(values) for values in means.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
