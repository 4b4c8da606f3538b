"""What augmentation costs: CPU time an image of whole recipes on one thread, and a training's images/s.

All contenders of a case take turns, with the same images. FASTRECORD_BENCH_IMAGES may name a folder of
JPEGs. Without it, the images have ImageNet's statistics, but not its content.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benches.harness import Answer, Bench, Contender, Contest
from benches.peers import Data
from benches.support.pictures import make_images

OURS = "fastrecord"
ALONE = "fastrecord, crop and flip alone"
TENSORS = "torchvision v2, tensors"
PRESET = "ImageFolder, torchvision's preset"
CPU = "CPU time an image, 1 thread"
TRAINING = "a training's images/s: crop, flip, TrivialAugmentWide, float16, erasing"
BATCH, TRAINING_BATCH = 50, 128
RECORDS, VIEWED = 200, 50
ENOUGH = 0.5  # seconds of epochs in a turn; an epoch may take a tenth of a second
MEAN_DIFFERS = 20.0  # of 255: each draws its own numbers; a wrong image or wrong statistics differ by far more

PEERS = {
    f"{TENSORS}, torchvision.io": "torchvision:io",
    f"{TENSORS}, torchcodec": "torchvision:torchcodec",
    f"{TENSORS}, Pillow": "torchvision:pillow",
    f"{PRESET}, v1": "torchvision:v1",
    f"{PRESET}, v2": "torchvision:v2",
    "NVIDIA DALI, CPU": "dali",
    "albumentations": "albumentations",
}
BASE = {OURS: "ours", ALONE: "ours:alone"}
TURBO = {"TurboLoader": "turboloader"}
V2 = {name: PEERS[name] for name in list(PEERS)[:2]}
# Contenders of the same images, and what each case has of them: recipe -> case.
Group = tuple[Mapping[str, str], Mapping[str, str]]
AUGMENTED: Group = (
    BASE | PEERS,
    {
        "trivial": "crop, flip, TrivialAugmentWide, float16, erasing 0.1",
        "rand": "crop, flip, RandAugment(2, 9), float16, erasing 0.1",
    },
)
FLOATS: Group = (BASE | V2 | TURBO, {"float16": "crop and flip to float16", "float32": "crop and flip to float32"})
RAW: Group = (
    BASE | TURBO,
    {
        "raw-float32": "raw pixels of 256 x 256: crop and flip to float32",
        "raw-trivial": "raw pixels of 256 x 256: crop, flip, TrivialAugmentWide, float16",
    },
)
VIEWS: Group = (
    {OURS: "ours", "DINO's own code, Pillow": "torchvision:pil", **V2},
    {"views": "DINO, 2 views of 224 and 6 of 96 pixels, with jitter, blur, solarise, float32"},
)
SCENES: Group = (
    {OURS: "ours", **V2},
    {
        "mask": "image with its mask as a PNG, crop and flip",
        "mask-array": "image with its mask as an array, crop and flip; ours with a crop index",
        "boxes": "image with 20 boxes, crop and flip",
    },
)
# Contenders that cannot do a recipe: (contender, recipe) -> why.
CANNOT = {
    ("TurboLoader", "float16"): "makes float16 of its own files only",
    ("TurboLoader", "raw-trivial"): "its crops go with resizing and normalising only",
}
# The variants of one loader are left out: the other cases show the fastest.
TRAINERS = {
    name: PEERS[name] for name in (f"{TENSORS}, torchvision.io", f"{PRESET}, v2", "NVIDIA DALI, CPU", "albumentations")
}
NO_TRIVIAL = {
    "TurboLoader": "its crops go with resizing and normalising only",
    "FFCV": "it has no TrivialAugment: its operations lack rotation, shear, equalize and others",
}


def run(bench: Bench) -> None:
    """Measure all; the short run has the recipe of a training alone."""
    cores = len(os.sched_getaffinity(0))
    if bench.full:
        data = make_images(bench.folder, RECORDS)
        for group in (AUGMENTED, FLOATS, RAW, SCENES):
            _cpu(bench, data, group)
        _cpu(bench, make_images(bench.folder, VIEWED), VIEWS)
    _training(bench, make_images(bench.folder, 512 if bench.full else 256), min(2, cores))


def _contender(name: str, module: str, data: Data, threads: int, batch: int) -> Contender:
    made = {"module": module, "root": str(data.root), "records": data.records, "threads": threads, "batch": batch}
    return Contender(name, "benches.peers.augmented.contender:Augmented", made, threads)


def _settings(data: Data, batch: int) -> dict[str, Any]:
    given = os.environ.get("FASTRECORD_BENCH_IMAGES")
    return {"images": Path(given).resolve().name if given else "made", "batch": batch, "records": data.records}


def _cpu(bench: Bench, data: Data, group: Group) -> None:
    """Measure the CPU time an image of each recipe of a group."""
    modules, cases = group
    with bench.contest([_contender(name, module, data, 1, BATCH) for name, module in modules.items()]) as contest:
        for recipe, words in cases.items():
            case, able = f"{words}: {CPU}", [name for name in contest.names if (name, recipe) not in CANNOT]
            kinds = checked(contest, recipe, able)
            answers = contest.rounds(
                "epoch",
                rounds=bench.rounds,
                warm_up=0,  # the check was it
                arguments=lambda _, recipe=recipe: {"recipe": recipe, "seconds": ENOUGH},  # type: ignore[misc]
                only=able,
            )
            for name, found in answers.items():
                values = [answer.cpu_seconds / answer.value for answer in found]
                about = _settings(data, BATCH) | {"version": contest.versions[name], "pixels": kinds[name]}
                if name == ALONE:
                    about["yardstick"] = True
                bench.row(case, name, "s", values, **about)
            _missing(bench, contest, case, recipe, modules)


def _missing(bench: Bench, contest: Contest, case: str, recipe: str, modules: Mapping[str, str]) -> None:
    """Tell why contenders were left out."""
    for name in modules:
        if why := CANNOT.get((name, recipe)) or contest.missing.get(name):
            bench.not_measured(case, name, why, unit="s")


def checked(contest: Contest, recipe: str, able: list[str]) -> dict[str, str]:
    """Check an epoch of each contender, which is the warm-up, too; return the type of its images.

    Raises:
        ValueError: outputs differ in name, in shape, or too much in their mean.
    """
    found: dict[str, Answer] = {}
    for name in able:
        if contest.call(name, "files", recipe=recipe) is not None:
            answer = contest.call(name, "check", recipe=recipe)
            if answer is not None:
                found[name] = answer
    # ALONE does less than the others: its means and shapes may differ.
    compared = {name: answer.value for name, answer in found.items() if name != ALONE}
    outputs = {output for made in compared.values() for output in made}
    for output in sorted(outputs):
        shapes = {name: made[output][1] if output in made else None for name, made in compared.items()}
        if len({str(shape) for shape in shapes.values()}) > 1:
            raise ValueError(f"{recipe}: {output} has several shapes: {shapes}")
        means = {name: made[output][2] for name, made in compared.items()}
        usual = statistics.median(means.values())
        far = {name: mean for name, mean in means.items() if abs(mean - usual) > MEAN_DIFFERS}
        if far:
            raise ValueError(f"{recipe}: the mean of {output} is {far}, the others have {usual:.2f}")
    return {name: (answer.value.get("image") or answer.value["first"])[0] for name, answer in found.items()}


def _training(bench: Bench, data: Data, threads: int) -> None:
    """Measure images/s of loaders that make a training's batches."""
    modules = {OURS: "ours"} | TRAINERS
    contenders = [_contender(name, module, data, threads, TRAINING_BATCH) for name, module in modules.items()]
    single = f"{OURS}, 1 thread"
    if threads > 1:
        contenders.append(_contender(single, "ours", data, 1, TRAINING_BATCH))
    several = f"{threads} thread{'s' if threads > 1 else ''} or workers each"
    case = f"{TRAINING}, {several}"
    with bench.contest(contenders) as contest:
        checked(contest, "trivial", contest.names)
        answers = contest.rounds(
            "epoch",
            rounds=bench.rounds,
            warm_up=0,
            arguments=lambda _: {"recipe": "trivial", "seconds": ENOUGH},
        )
        for name, found in answers.items():
            rates = [answer.value / answer.seconds for answer in found]
            about = _settings(data, TRAINING_BATCH) | {"version": contest.versions[name]}
            if name != single:
                bench.row(case, name, "images/s", rates, better="more", **about)
            if threads > 1 and name in (OURS, single):
                bench.row(f"{threads} threads against 1: {TRAINING}", name, "images/s", rates, better="more", **about)
        for name, why in (contest.missing | NO_TRIVIAL).items():
            bench.not_measured(case, name, why, unit="images/s")
