"""Compare decoding and cropping with Pillow and torchvision, file by file, over a folder of real images.

Run by hand: `cargo build --release --example decode_images -p fastrecord-core`, then
`python benches/compare_pillow.py target/release/examples/decode_images FOLDER`. Ends with status 1 when a crop
of a file differs by more than 1.0 of 255 on average, or the crops are drawn otherwise.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as transform

LIMIT = 1.0  # mean absolute difference, of 255


class Decoder:
    """The example program, asked line by line."""

    def __init__(self, program: str) -> None:
        """Start it."""
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line: str) -> np.ndarray:
        """Send a request; uint8 (height, width, 3) comes back."""
        requests, stream = cast("IO[bytes]", self.process.stdin), cast("IO[bytes]", self.process.stdout)
        requests.write(f"{line}\n".encode())
        requests.flush()
        width, height = struct.unpack("<II", stream.read(8))
        if width == 0:
            raise ValueError(stream.read(struct.unpack("<I", stream.read(4))[0]).decode())
        pixels = np.frombuffer(stream.read(3 * width * height), np.uint8)
        return pixels.reshape(height, width, 3)


def difference(ours: np.ndarray, theirs: np.ndarray) -> npt.NDArray[np.int16]:
    """Absolute difference; the shapes must agree."""
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes {ours.shape} and {theirs.shape}")
    found: npt.NDArray[np.int16] = np.abs(ours.astype(np.int16) - theirs)
    return found


def boxes_differ(program: str, width: int, height: int, n: int = 20_000) -> bool:
    """Whether the distribution of our crops of such an image differs from that of torchvision's."""
    text = subprocess.run([program, "boxes", str(width), str(height), str(n)], check=True, capture_output=True).stdout
    ours = np.array([line.split() for line in text.decode().splitlines()], dtype=float)
    image = Image.new("L", (width, height))
    drawn = (RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n))
    theirs = np.array([(x, y, w, h) for y, x, h, w in drawn], dtype=float)

    def views(rows: np.ndarray) -> list[np.ndarray]:
        x, y, w, h = rows[:, :4].T
        return [x, y, w, h, w * h, w / h, x + w, y + h, x * y]

    # Two-sample Kolmogorov-Smirnov, at 1e-5 for each of the nine.
    limit = np.sqrt(-np.log(1e-5 / 2) / n)
    worst = 0.0
    for a, b in zip(views(ours), views(theirs), strict=True):
        at = np.concatenate([a, b])
        cdf = [np.searchsorted(np.sort(values), at, side="right") / n for values in (a, b)]
        worst = max(worst, float(np.abs(cdf[0] - cdf[1]).max()))
    flips = ours[:, 4].mean()
    print(f"crops of {width} x {height}: distance {worst:.4f}, limit {limit:.4f}; {flips:.3f} of them are flipped")
    return bool(worst > limit or abs(flips - 0.5) > 2.2 / np.sqrt(n))


def center(image: Image.Image) -> tuple[np.ndarray, str]:
    """Apply torchvision's CenterCrop(224) of Resize(256), and say the same as a request."""
    width, height = image.size
    resized = transform.resize(image, 256)
    cropped = transform.center_crop(resized, 224)
    sx, sy = width / resized.width, height / resized.height
    left, top = round((resized.width - 224) / 2), round((resized.height - 224) / 2)
    return np.asarray(cropped), f"{left * sx} {top * sy} {224 * sx} {224 * sy} 0 0 {width} {height} 224 224"


def main() -> int:
    """Compare all files below the folder."""
    decoder = Decoder(sys.argv[1])
    files = sorted(path for path in Path(sys.argv[2]).rglob("*") if path.is_file())
    torch.manual_seed(0)
    unequal, worst = [], {"full": 0.0, "random": 0.0, "center": 0.0}
    means: dict[str, list[float]] = {name: [] for name in worst}
    peak = dict.fromkeys(worst, 0)
    for path in files:
        try:
            image = Image.open(path).convert("RGB")
        except OSError as error:
            try:
                decoder.ask(f"full {path}")
                print(f"{path}: Pillow refuses it ({error}), we do not")
            except ValueError as refusal:
                print(f"{path}: refused by both: {error}; {refusal}")
            continue
        results = {"full": [difference(decoder.ask(f"full {path}"), np.asarray(image))]}
        results["random"] = []
        for _ in range(5):
            y, x, h, w = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            theirs = transform.resized_crop(image, y, x, h, w, [224, 224], InterpolationMode.BILINEAR)
            ours = decoder.ask(f"crop {path} {x} {y} {w} {h} {x} {y} {w} {h} 224 224")
            results["random"].append(difference(ours, np.asarray(theirs)))
        theirs, request = center(image)
        results["center"] = [difference(decoder.ask(f"crop {path} {request}"), theirs)]
        for name, differences in results.items():
            for found in differences:
                means[name].append(float(found.mean()))
                peak[name] = max(peak[name], int(found.max()))
                if found.mean() > LIMIT:
                    print(f"{path}: {name}: mean {found.mean():.3f}, largest {found.max()}")
        if results["full"][0].any():
            unequal.append(path)
    for name, values in means.items():
        print(
            f"{name}: {len(values)} comparisons, mean difference {np.mean(values):.4f}, "
            f"99 % {np.percentile(values, 99):.4f}, worst {max(values):.4f}, largest of a pixel {peak[name]}"
        )
    print(f"{len(files) - len(unequal)} of {len(files)} files decode to the very same pixels")
    differing = [boxes_differ(sys.argv[1], *size) for size in [(500, 375), (64, 400), (1000, 30), (7, 5), (3000, 2000)]]
    return int(any(differing) or max(max(values) for values in means.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
