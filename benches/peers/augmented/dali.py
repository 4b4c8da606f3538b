"""NVIDIA DALI on the CPU: its fused decoder, its own TrivialAugment and RandAugment, floats in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvidia import dali
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug.rand_augment import rand_augment
from nvidia.dali.auto_aug.trivial_augment import trivial_augment_wide
from torch.utils.dlpack import from_dlpack

from benches.peers import SIZE, Data
from benches.peers.augmented import Batch, Epochs, Options
from benches.peers.dali import AHEAD
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD


def version(_variant: str) -> str:
    """What is measured."""
    return f"nvidia-dali {dali.__version__}"


def prepare(data: Data, _recipe: str) -> None:
    """Do nothing: it reads the folder itself."""


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def recipe_pipeline(files: list[str], recipe: str) -> tuple[Any, Any]:
    """Read, decode what the crop needs, and augment; pixels stay in rows, which is faster than planes."""
    encoded, labels = fn.readers.file(files=files, labels=list(range(len(files))), random_shuffle=True, name="images")
    images = fn.decoders.image_random_crop(
        encoded, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR)
    images = fn.flip(images, horizontal=fn.random.coin_flip())
    if recipe == "trivial":
        images = trivial_augment_wide(images, shape=(SIZE, SIZE), fill_value=0, interp_type=types.INTERP_NN)
    else:
        images = rand_augment(images, n=2, m=9, shape=(SIZE, SIZE), fill_value=0, interp_type=types.INTERP_NN)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16,
        output_layout="HWC",
        mean=[255 * value for value in IMAGENET_MEAN],
        std=[255 * value for value in IMAGENET_STD],
    )
    if fn.random.coin_flip(probability=0.1):
        corner, size = fn.random.uniform(range=[0.0, 0.6], shape=2), fn.random.uniform(range=[0.1, 0.6], shape=2)
        images = fn.erase(images, anchor=corner, shape=size, normalized=True, axis_names="HW")
    return images, labels


def epochs(data: Data, recipe: str, options: Options) -> Epochs:
    """Prefetch two batches, but none between epochs: that work would not be timed."""
    pipeline = recipe_pipeline(
        [str(path) for path in data.files()],
        recipe,
        batch_size=options.batch,
        num_threads=options.threads,
        device_id=None,
        seed=0,
        prefetch_queue_depth=AHEAD,
    )
    pipeline.build()
    count, rest = divmod(data.records, options.batch)
    if rest or count < AHEAD:
        raise ValueError(f"{data.records} images are not {AHEAD} or more whole batches of {options.batch}")
    begun = False

    def batches(_number: int) -> Iterator[Batch]:
        nonlocal begun
        # The first call starts as many runs as the queue holds, each later call one.
        for _ahead in range(AHEAD if begun else 1):
            pipeline.schedule_run()
        begun = True
        for batch in range(count):
            images, labels = pipeline.share_outputs()
            yield {"image": from_dlpack(images.as_tensor()), "label": from_dlpack(labels.as_tensor()).squeeze(1)}
            pipeline.release_outputs()
            if batch + AHEAD < count:
                pipeline.schedule_run()

    return batches
