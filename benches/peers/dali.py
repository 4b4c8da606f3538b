"""NVIDIA DALI on the CPU: its fused decoder decodes what the random crop needs."""

from __future__ import annotations

from collections.abc import Iterator

from nvidia import dali
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from torch.utils.dlpack import from_dlpack

from benches.peers import SIZE, Batch, Data, Epochs, Options

AHEAD = 2


def version(_variant: str) -> str:
    """What is measured."""
    return f"nvidia-dali {dali.__version__}"


def prepare(data: Data, _variant: str) -> None:
    """Do nothing: it reads the folder itself."""


def epochs(data: Data, options: Options) -> Epochs:
    """Prefetch two batches, but none between epochs: that work would not be timed."""
    pipeline = Pipeline(options.batch, options.threads, None, seed=0, prefetch_queue_depth=AHEAD)
    with pipeline:
        encoded, labels = fn.readers.file(
            files=[str(path) for path in data.files()],
            labels=list(range(data.records)),
            random_shuffle=True,
            name="images",
        )
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        pipeline.set_outputs(images, labels)
    pipeline.build()
    if data.records % options.batch or data.records < AHEAD * options.batch:
        raise ValueError(
            f"{data.records} images are not {AHEAD} or more whole batches of {options.batch}: its reader would go on "
            "into the next epoch"
        )

    def batches(number: int) -> Iterator[Batch]:
        count = data.records // options.batch
        # The first call starts as many runs as the queue holds, each later call one.
        for _ahead in range(AHEAD if number else 1):
            pipeline.schedule_run()
        for batch in range(count):
            images, labels = pipeline.share_outputs()
            yield from_dlpack(images.as_tensor()), from_dlpack(labels.as_tensor()).squeeze(1)
            pipeline.release_outputs()
            if batch + AHEAD < count:
                pipeline.schedule_run()

    return batches
