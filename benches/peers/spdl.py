"""spdl: its FFmpeg decoder in a thread pool; an FFmpeg filter per image crops, scales and flips."""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import spdl.io
import torch
from PIL import Image
from spdl.pipeline import PipelineBuilder

from benches.peers import SIZE, Batch, Data, Epochs, Options
from benches.peers.crops import part

CHUNK = 16  # images per task: with one each, scheduling takes longer than reading


def version(_variant: str) -> str:
    """What is measured."""
    return f"spdl {importlib.metadata.version('spdl-io')}"


def prepare(data: Data, _variant: str) -> None:
    """Do nothing: it reads the folder itself."""


def epochs(data: Data, options: Options) -> Epochs:
    """Read the sizes in advance: the filter must name the crop, and each size query costs time."""
    files = data.files()
    sizes = []
    for path in files:
        with Image.open(path) as image:
            sizes.append(image.size)
    executor = ThreadPoolExecutor(options.threads)

    def decode(chunk: list[tuple[int, Path]]) -> list[tuple[spdl.io.ImageFrames, int]]:
        decoded = []
        for label, path in chunk:
            width, height = sizes[label]
            x, y, w, h = part(width, height)
            flip = "hflip," if random.random() < 0.5 else ""
            graph = f"crop={w}:{h}:{x}:{y},scale={SIZE}:{SIZE}:flags=bilinear,{flip}format=pix_fmts=rgb24"
            decoded.append((spdl.io.decode_packets(spdl.io.demux_image(str(path)), filter_desc=graph), label))
        return decoded

    def stack(items: list[tuple[spdl.io.ImageFrames, int]]) -> Batch:
        images = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in items]))
        return images, torch.tensor([label for _, label in items])

    def batches(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(epoch)).tolist()
        pipeline = (
            PipelineBuilder()
            .add_source([(label, files[label]) for label in order])
            .aggregate(CHUNK)
            .pipe(decode, concurrency=options.threads, executor=executor)
            .disaggregate()
            .aggregate(options.batch)
            .pipe(stack, executor=executor)
            .add_sink(2)
            .build(num_threads=options.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return batches
