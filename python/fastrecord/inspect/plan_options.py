"""`Cluster`, `Training`, `Data`, `CacheOptions`: what a plan is about.

The command line derives its options from them: names, defaults, and the help from the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from fastrecord.checks import choice, flag, integer
from fastrecord.inspect import tables, units

# A number, or text with a unit.
Amount = float | str
CacheShuffle = Literal["full", "blocks", "none"]

_MOST = 1 << 20
_AMOUNTS: dict[str, Callable[[str, Any], float]] = {
    **dict.fromkeys(("gpu_rate", "iops", "parameters", "images"), units.count),
    **dict.fromkeys(("storage", "net", "link"), units.bytes_per_second),
    **dict.fromkeys(("ram", "image_bytes", "cache", "shard_bytes"), units.size),
    **dict.fromkeys(("latency", "cores", "efficiency"), units.positive),
    "val_images": partial(units.count, zero=True),
    "pause": partial(units.positive, zero=True),
}


class _Options:
    def amounts(self) -> dict[str, float]:
        """Return the given amounts as numbers: bytes, and numbers per second."""
        given = {name: value for name, value in vars(self).items() if name in _AMOUNTS and value is not None}
        return {name: _AMOUNTS[name](name, value) for name, value in given.items()}


@dataclass(frozen=True)
class Cluster(_Options):
    """The machine of a run that is planned. Amounts are numbers, or text such as "4GB/s" and "200GiB".

    Attributes:
        gpus: Number of GPUs in all.
        nodes: Number of nodes, with as many GPUs each.
        gpu: "K80", "P100", "V100", "A100", "H100" or "H100-PCIE": ResNet-50's published rate. With
            `gpu_rate` also "H200", "B200" or "L40S", for the link.
        gpu_rate: Images per second that one GPU alone trains at this batch, for another GPU or
            model. Replaces the published rate.
        link: Bytes per second between the GPUs of a node. Default: the GPU's NVLink or PCIe.
        net: Network of a node, such as "100Gb/s". Required for several nodes.
        latency: Microseconds of one step of the ring all-reduce.
        storage: Bytes per second of the storage that all nodes share, such as "4GB/s". Default: the
            rate that was measured cold, for each node, otherwise unlimited.
        iops: Read operations per second of the storage. Default: unlimited.
        ram: Memory of a node that is left for the page cache, such as "200GiB". Default: none.
        cores: Cores of a node that may decode. Default: as measured, otherwise unlimited.
        efficiency: Share of its rate that each GPU keeps when their number doubles, from 0.5 to 1.

    Raises:
        ValueError: an option is out of range, or GPUs and nodes contradict each other.
        TypeError: an option is of another type.
    """

    gpus: int = 1
    nodes: int = 1
    gpu: str | None = None
    gpu_rate: Amount | None = None
    link: Amount | None = None
    net: Amount | None = None
    latency: float = tables.LATENCY
    storage: Amount | None = None
    iops: Amount | None = None
    ram: Amount | None = None
    cores: float | None = None
    efficiency: float = tables.EFFICIENCY

    def __post_init__(self) -> None:
        integer("gpus", self.gpus, 1, _MOST)
        integer("nodes", self.nodes, 1, _MOST)
        if self.gpus % self.nodes:
            raise ValueError(
                f"{self.gpus} GPUs do not divide among {self.nodes} nodes: each node has as many as the others"
            )
        if not 0.5 <= self.amounts()["efficiency"] <= 1:
            raise ValueError(
                f"efficiency is from 0.5 to 1, not {self.efficiency}: what a GPU keeps when their number doubles"
            )


@dataclass(frozen=True)
class Training(_Options):
    """How a planned run trains.

    Attributes:
        batch: Images of a step on one GPU.
        epochs: Number of epochs.
        precision: "fp32", "amp", "amp-nhwc" (channels last) or "amp-xla" (compiled). Default: "amp"
            where a rate is published, otherwise "fp32".
        parameters: Trained parameters of the model. Default: those of ResNet-50.
        gradient_bits: 16 or 32, the size of an exchanged gradient.
        pause: Seconds of an epoch in which nothing is trained: starting workers, checkpoints.

    Raises:
        ValueError: an option is out of range. TypeError: it is of another type.
    """

    batch: int = 256
    epochs: int = 90
    precision: str | None = None
    parameters: Amount = tables.PARAMETERS
    gradient_bits: int = 32
    pause: float = 0.0

    def __post_init__(self) -> None:
        integer("batch", self.batch, 1, _MOST)
        integer("epochs", self.epochs, 1, _MOST)
        if self.precision is not None:
            choice("precision", self.precision, list(tables.PRECISIONS))
        if self.gradient_bits not in (16, 32):
            raise ValueError(f"gradient_bits is 16 or 32, not {self.gradient_bits!r}")
        self.amounts()  # checks them


@dataclass(frozen=True)
class Data(_Options):
    """The images of a planned run.

    Attributes:
        images: Images of an epoch. Default: as measured, otherwise ImageNet's 1,281,167.
        image_bytes: Mean bytes of an original image. Default: as measured, otherwise "116kB".
        val_images: Images that each epoch evaluates.
        stored: How they are stored: "original", "crop-index", "packed", "short-side",
            "short-side-packed" or "raw". Default: as measured, otherwise "original".

    Raises:
        ValueError: an option is out of range. TypeError: it is of another type.
    """

    images: Amount | None = None
    image_bytes: Amount | None = None
    val_images: Amount = 0
    stored: str | None = None

    def __post_init__(self) -> None:
        if self.stored is not None:
            choice("stored", self.stored, [*tables.WAYS, "measured"])
        self.amounts()  # checks them


@dataclass(frozen=True)
class CacheOptions(_Options):
    """Caches between the nodes and an object store.

    Attributes:
        cache: Bytes of the cache of each node, such as "500GiB": instead, plan what a run reads
            from an object store.
        shuffle: The order of the records: "full", "blocks" or "none".
        affinity: Off: several nodes without `affinity="shard"`, so that each epoch gives a node other
            records.
        block: Records of a block, for "blocks", and of a request, for "none". Default: 2 to 4 MiB of
            them.
        window: Blocks of a window.
        shard_bytes: Bytes of a shard.

    Raises:
        ValueError: an option is out of range. TypeError: it is of another type.
    """

    cache: Amount
    shuffle: CacheShuffle = "full"
    affinity: bool = True
    block: int | None = None
    window: int = 128
    shard_bytes: Amount = "256MiB"

    def __post_init__(self) -> None:
        choice("shuffle", self.shuffle, get_args(CacheShuffle))
        flag("affinity", self.affinity)
        integer("block", 1 if self.block is None else self.block, 1)
        integer("window", self.window, 1)
        self.amounts()  # checks them
