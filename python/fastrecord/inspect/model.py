"""The model: a training step's parts from the machine's rates. docs/plan.md has the same formulas in words.

Pure arithmetic on one `Setup`: no tables, no text for people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastrecord.inspect.tables import BACKWARD, BUCKET_BYTES, REQUEST_BYTES


@dataclass(frozen=True)
class Setup:
    """A machine and a training run, in seconds and bytes; `Cluster`, `Training` and `Data` describe the options.

    Attributes:
        gpus, nodes: Number of GPUs in all, and of nodes.
        batch: Images of a step on one GPU.
        fixed, per_image: Seconds of a step on one GPU: in any case, and for each image.
        images, val_images: Images trained on and evaluated in each epoch.
        image_bytes: Mean bytes of a stored image.
        epochs: Number of epochs.
        gradient_bytes: Bytes of all gradients.
        link: Bytes per second in one direction between two GPUs of a node.
        net: Bytes per second of a node's network.
        latency: Seconds of one step of the ring.
        storage: Bytes per second of the storage that all nodes share; None if it never limits.
        operations: Its read operations per second; None if they never limit.
        cache: Bytes of page cache of each node.
        cores: Cores of each node; None if they never limit.
        decode: Seconds of one core for an image.
        pause: Seconds of an epoch in which nothing is trained or evaluated.
        efficiency: What is left of the rate of each GPU when their number doubles.
    """

    gpus: int
    nodes: int
    batch: int
    fixed: float
    per_image: float
    images: float
    val_images: float
    image_bytes: float
    epochs: int
    gradient_bytes: float
    link: float
    net: float
    latency: float
    storage: float | None
    operations: float | None
    cache: float
    cores: float | None
    decode: float
    pause: float
    efficiency: float


@dataclass(frozen=True)
class Step:
    """Seconds of one training step, by part. The parts of different rows run at the same time.

    Attributes:
        compute: The GPU's forward and backward pass and update.
        allreduce: Exchange of the gradients.
        exposed: The part of it that does not run during the backward pass.
        storage: Reading the images of all GPUs, by bytes per second.
        operations: The same, by read operations per second.
        decode: Decoding on a node's cores.
    """

    compute: float
    allreduce: float
    exposed: float
    storage: float
    operations: float
    decode: float

    @property
    def gpu(self) -> float:
        """Seconds that the GPUs need if data is always there."""
        return self.compute + self.exposed

    @property
    def total(self) -> float:
        """Seconds of the slowest part, which all others wait for."""
        return max(self.gpu, self.storage, self.operations, self.decode)


@dataclass(frozen=True)
class Run:
    """A whole run.

    Attributes:
        first, last: The steps of its first and last epoch; the page cache fills in between.
        first_epoch, last_epoch: Seconds of these epochs, with the evaluation.
        seconds: Seconds of all epochs.
        bytes_read: Bytes read from the storage, in all.
        cached: Share of the last epoch's images that the page cache has.
    """

    first: Step
    last: Step
    first_epoch: float
    last_epoch: float
    seconds: float
    bytes_read: float
    cached: float


def kept(setup: Setup) -> float:
    """Return what is left of each GPU's rate when all of them work."""
    return float(setup.efficiency ** math.log2(setup.gpus))


def ring(setup: Setup) -> float:
    """Return the seconds of a ring all-reduce of the gradients."""
    n = setup.gpus
    if n == 1:
        return 0.0
    slowest = setup.link if setup.nodes == 1 else min(setup.link, setup.net)
    return 2 * (n - 1) / n * setup.gradient_bytes / slowest + _buckets(setup) * 2 * (n - 1) * setup.latency


def operations_of(image_bytes: float) -> float:
    """Return the mean number of read operations for an image: longer reads are cut."""
    return max(1.0, image_bytes / REQUEST_BYTES + 0.5)


def cached_share(setup: Setup, epoch: int) -> float:
    """Return the share of an epoch's reads that the page caches answer; the first epoch is 0.

    A node reads a random share of the images in each epoch, so its cache fills over the epochs.
    """
    room = min(1.0, setup.cache / ((setup.images + setup.val_images) * setup.image_bytes))
    if setup.nodes > 1:
        return min(room, 1 - (1 - 1 / setup.nodes) ** epoch)
    if epoch == 0 or room == 1:
        return float(room if epoch else 0)
    # One node reads all images, each epoch in another order. The least recently used ones make room.
    return room + (1 - room) * math.log1p(-room)


def step(setup: Setup, cached: float = 0.0) -> Step:
    """Return the parts of a training step, with a share of the reads answered by page caches."""
    compute = (setup.fixed + setup.batch * setup.per_image) / kept(setup)
    allreduce = ring(setup)
    # The last bucket's gradients exist only when the backward pass is over.
    exposed = max(allreduce / _buckets(setup), allreduce - BACKWARD * compute)
    read = setup.gpus * setup.batch * (1 - cached)
    return Step(
        compute=compute,
        allreduce=allreduce,
        exposed=exposed,
        storage=read * setup.image_bytes / setup.storage if setup.storage else 0.0,
        operations=read * operations_of(setup.image_bytes) / setup.operations if setup.operations else 0.0,
        decode=setup.gpus / setup.nodes * setup.batch * setup.decode / setup.cores if setup.cores else 0.0,
    )


def run(setup: Setup) -> Run:
    """Return the times of all epochs, each with its evaluation."""
    seconds = read = 0.0
    steps, epochs = [], []
    for epoch in range(setup.epochs):
        cached = cached_share(setup, epoch)
        now = step(setup, cached)
        # An evaluation has no backward pass and no all-reduce.
        evaluate = max((1 - BACKWARD) * now.compute, now.storage, now.operations, now.decode)
        time = (setup.images * now.total + setup.val_images * evaluate) / (setup.gpus * setup.batch)
        time += setup.pause
        seconds += time
        read += (setup.images + setup.val_images) * (1 - cached) * setup.image_bytes
        steps.append(now)
        epochs.append(time)
    return Run(steps[0], steps[-1], epochs[0], epochs[-1], seconds, read, cached_share(setup, setup.epochs - 1))


def _buckets(setup: Setup) -> int:
    return max(1, math.ceil(setup.gradient_bytes / BUCKET_BYTES))
