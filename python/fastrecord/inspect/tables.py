"""The figures that a plan starts from, each with its source. No formulas.

A GPU without a published rate has its link only: `gpu_rate` takes the user's own.
"""

from __future__ import annotations

from dataclasses import dataclass

PARAMETERS = 25_557_032  # of ResNet-50, all of them trained
IMAGES, VAL_IMAGES, IMAGE_BYTES = 1_281_167, 50_000, 116_000  # ImageNet
REQUEST_BYTES = 128 << 10  # the kernel's default read-ahead, which cuts longer reads
LATENCY = 5.0  # microseconds for one step of a ring
BUCKET_BYTES = 25 << 20  # of DistributedDataParallel, by default
BACKWARD = 2 / 3  # share of a training step's arithmetic
EFFICIENCY = 0.97  # docs/plan.md lists the fitted ones
PCIE = 15.75e9  # bytes/s, one direction of PCIe 3.0 x16

PRECISIONS = {
    "fp32": "32 bit (TF32 from A100 on)",
    "amp": "mixed precision, channels first",
    "amp-nhwc": "mixed precision, channels last",
    "amp-xla": "mixed precision, compiled by XLA",
}


@dataclass(frozen=True)
class Rate:
    """Images per second of one GPU that trains ResNet-50 on 224 x 224 pixels, at a batch size."""

    images_per_second: float
    batch: int
    source: str


@dataclass(frozen=True)
class Gpu:
    """What is published about a GPU.

    Attributes:
        rates: By precision.
        link: Bytes per second in one direction between GPUs of one node.
        link_source: What the link is.
        fixed: Seconds of a step that do not depend on the batch.
        fixed_source: Where they come from.
    """

    rates: dict[str, Rate]
    link: float
    link_source: str
    fixed: float = 0.0222
    fixed_source: str = "not published: the V100's"


_TF = "TensorFlow, docs_src/performance/benchmarks.md, May 2017, synthetic data"
_NVIDIA = "NVIDIA/DeepLearningExamples"
_PYTORCH = f"{_NVIDIA}, PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
_LAMBDA = "lambdal/deeplearning-benchmark, pytorch/pytorch-train-throughput"
_TF_NVIDIA = f"{_NVIDIA}, TensorFlow/Classification/ConvNets/resnet50v1.5/README.md"

GPUS = {
    "K80": Gpu(
        {"fp32": Rate(51.9, 64, f"{_TF}, Google Compute Engine; one of a board's two GPUs")},
        PCIE,
        "PCIe 3.0 x16",
        0.0604,
        f"{_TF}: 51.9 images/s at batch 64, 49.5 at 32",
    ),
    "P100": Gpu(
        {"fp32": Rate(219, 64, f"{_TF}, DGX-1")},
        80e9,
        "NVLink 1, 4 links",
        0.0360,
        f"{_TF}: 219 images/s at batch 64, 195 at 32",
    ),
    "V100": Gpu(
        {
            "fp32": Rate(373.21, 128, f"{_PYTORCH}, container 20.06, DGX-1 16 GB"),
            "amp": Rate(856.52, 256, f"{_PYTORCH}, container 20.06, DGX-1 16 GB"),
            "amp-nhwc": Rate(1200, 256, f"{_PYTORCH}, container 21.03, DGX-1 16 GB"),
            "amp-xla": Rate(1270, 256, f"{_TF_NVIDIA}, container 20.06, DGX-1 16 GB"),
        },
        150e9,
        "NVLink 2, 6 links",
        0.0222,
        "tensorpack/benchmarks, ResNet-MultiGPU, fp16 on 8 GPUs: 5,224 images/s at batch 64, 5,891 at 128",
    ),
    "A100": Gpu(
        {
            "fp32": Rate(938, 256, f"{_PYTORCH}, container 21.03, DGX A100 80 GB"),
            "amp": Rate(1240.81, 256, f"{_PYTORCH}, container 20.06, DGX A100 40 GB"),
            "amp-nhwc": Rate(2470, 256, f"{_PYTORCH}, container 21.03, DGX A100 80 GB"),
            "amp-xla": Rate(2375, 256, f"{_TF_NVIDIA}, container 20.06, DGX A100 40 GB"),
        },
        300e9,
        "NVLink 3, 12 links",
    ),
    "H100": Gpu(
        {"fp32": Rate(1893, 640, f"{_LAMBDA}-fp32.csv, Dell, SXM5; the batch of its other GPUs of 80 GB")},
        450e9,
        "NVLink 4, 18 links, NVSwitch",
    ),
    "H100-PCIE": Gpu(
        {
            "fp32": Rate(1197, 640, f"{_LAMBDA}-fp32.csv, 80 GB PCIe Gen5"),
            "amp": Rate(1866, 1280, f"{_LAMBDA}-fp16.json, 80 GB PCIe Gen5"),
        },
        63e9,
        "PCIe 5.0 x16",
    ),
    "H200": Gpu({}, 450e9, "NVLink 4, 18 links, NVSwitch"),
    "B200": Gpu({}, 900e9, "NVLink 5, 18 links, NVSwitch"),
    "L40S": Gpu({}, 31.5e9, "PCIe 4.0 x16"),
}


@dataclass(frozen=True)
class Way:
    """A way to store images, measured on 200 JPEGs of ImageNet (docs/performance.md, "Ways to store images").

    Attributes:
        share: Its bytes, relative to the original's; None if they do not depend on them.
        nbytes: Its bytes if they do not depend on the original's.
        decode: Seconds of one core for an image: read, decode, crop to 224 x 224, flip.
        options: Of `fastrecord pack`.
    """

    share: float | None
    nbytes: float | None
    decode: float
    options: str


WAYS = {
    "original": Way(1.0, None, 0.56e-3, ""),
    "crop-index": Way(105.8 / 104.6, None, 0.43e-3, "--crop-index"),
    "packed": Way(124.6 / 104.6, None, 0.29e-3, "--packed"),
    "short-side": Way(36.8 / 104.6, None, 0.24e-3, "--short-side 256"),
    "short-side-packed": Way(42.6 / 104.6, None, 0.21e-3, "--short-side 256 --packed"),
    "raw": Way(None, 261_400, 0.06e-3, "--short-side 256 --raw"),
}
