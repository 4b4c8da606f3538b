"""`TrainConfig`: the settings of a training run, one frozen object that checks its values."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from fastrecord.dataset.decoding import Decoder, SixteenBit
from fastrecord.options import hint, texts
from fastrecord.store.address import Url
from fastrecord.train.settings_file import read_settings, recipe_path

Augment = Literal["imagenet", "trivialaugment", "randaugment", "none"]
Amp = Literal["off", "bf16", "fp16"]
Schedule = Literal["cosine", "step"]
LoaderKind = Literal["native", "torch"]
DataKind = Literal["real", "gpu", "cpu", "dataset"]
ShuffleKind = Literal["full", "blocks"]
OnError = Literal["raise", "skip"]
DeviceKind = Literal["auto", "cpu", "cuda"]
Parallel = Literal["ddp", "dp"]


class TrainError(Exception):
    """A run cannot start or continue, and the user can fix the cause; the message explains how."""


def one_line(error: BaseException) -> str:
    """Return an error's message; for a data worker's wrapped traceback, its last line."""
    text = str(error).strip()
    if "Original Traceback" not in text:
        return text
    kind = type(error)
    return text.splitlines()[-1].removeprefix(f"{kind.__module__}.{kind.__qualname__}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a run. Equal configurations produce the same batches and augmentation.

    Attributes:
        train: Packed file, glob, or several files, to train on.
        val: Packed files for an evaluation after every epoch. By default nothing is evaluated.
        cache: For URLs: a folder on a local disk that keeps what was read.
        cache_size: Bytes of the cache at most, such as "500GiB". By default all that is read.
        model: Name of a torchvision classifier, or "timm:" and the name of a model of timm, which must
            be installed.
        zero_init_residual: Let each residual block begin as the identity (ResNet, ResNeXt, Wide
            ResNet): the last scale of its normalisation starts at 0, which makes the first steps
            gentler.
        epochs: Passes over the training records.
        batch_size: Images per process in one forward and backward pass.
        accumulate: Passes per optimizer step; the global batch is `batch_size * accumulate *
            processes`.
        global_batch: Images of an optimizer step over all processes. `batch_size` and `accumulate`
            then follow from the number of processes, which must divide it: as few passes of equal
            size as possible, each of at most `batch_size` images. By default they are as given.
        image_size: Height and width of the images in training, in pixels. A list, such as 128, 160,
            192, gives each size an equal part of the epochs, with the native loader.
        eval_size: Height and width of the images in evaluation. By default the last size of training.
        eval_resize: In evaluation, the shorter side of an image before the centre is cut out. By
            default 256/224 of `eval_size`; with `augment` "none", `eval_size`.
        augment: In training, "imagenet": random resized crop and flip. "trivialaugment",
            "randaugment": the same, and torchvision's TrivialAugmentWide or RandAugment. "none": resize
            the shorter side to `image_size` and centre crop.
        random_erasing: Probability with which a rectangle of a training image is erased, with the native
            loader.
        mixup: Alpha of MixUp, which blends pairs of training images and their labels, with the native
            loader; 0: none.
        cutmix: Alpha of CutMix, which exchanges a rectangle between pairs, likewise. With both, each batch
            gets one of them.
        repeated_augmentation: How many times in a row a record comes in training, each time with other
            draws. An epoch has as many steps as without, and so fewer records.
        loader: "native": FastRecordLoader, whose threads decode in the training process. "torch":
            decode with Pillow in the worker processes of a torch DataLoader.
        parallel: "ddp": DistributedDataParallel, if there are several processes. "dp": nn.DataParallel
            divides each batch among all visible GPUs of a single process.
        data: "real": the records of `train`. Other values use a constant batch, to measure the cost
            of each layer; `train` then only gives the numbers of records and classes, and there is
            nothing to evaluate. "gpu": the batch is on the device. "cpu": on the host, copied for
            each pass. "dataset": delivered image by image by the worker processes of a torch DataLoader.
        shuffle: "full": every order of the records is possible. "blocks", for disks and mounts with
            slow random reads: blocks of neighbouring records in random order, mixed within a window
            of blocks.
        threads: Per process, the threads of the native loader or the workers of a DataLoader (0: no
            workers, it works in the training process). By default the cores that this process may
            use, divided by the number of processes on the machine; at most 8 workers.
        decoder: With the native loader, what decodes kinds of images that the core does not support:
            "auto": Pillow. "native": nothing; they are bad records.
        sixteen_bit: With the native loader, 16-bit grey images: "reject": they are bad records.
            "scale": divided by 257 and rounded. "clip": values above 255 become white.
        allow_incomplete: Accept unfinished files and incomplete shard sets, which are refused by
            default.
        on_error: What the native loader does with a record that is damaged or cannot be decoded:
            "raise" ends the run, "skip" leaves it out of its batch, logged and counted.
        max_skipped: With "skip": how many records each process may skip in an epoch, and in an
            evaluation; one more ends the run. 0.05: that share of its records, but at least 10; 100:
            a number; None ("none" on the command line and in files): no limit.
        lr: Peak learning rate for a global batch of 256; scaled linearly with the global batch.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        decay_norm_bias: Whether biases and normalisation parameters decay too. By default they do.
        schedule: Schedule after the warm-up: "cosine" to 0, or "step": times `lr_gamma` every
            `lr_step_epochs`.
        lr_step_epochs: Epochs between the drops of the step schedule; or a list of the epochs of the
            drops, such as 30, 60, 80.
        lr_gamma: Factor of each drop.
        warmup_epochs: Epochs of linear warm-up, fractions allowed. By default 5, but at most a tenth
            of `epochs`.
        warmup_start: Share of the peak learning rate at which the warm-up begins.
        label_smoothing: Label smoothing, in [0, 1).
        ema_decay: Decay of an exponential moving average of the weights, which is evaluated too and
            kept in the checkpoints; 0: no average. As in torchvision's trainer, every `ema_steps` steps
            it keeps 1 - (1 - decay) * global batch * steps / epochs of itself, and it is a copy of the
            model until the warm-up ends.
        ema_steps: Optimizer steps after which the average moves.
        amp: Mixed precision: "off", "bf16", or "fp16" with a gradient scaler.
        channels_last: Keep the weights and images in channels_last memory.
        compile: Run the model through torch.compile; the first steps take minutes.
        seed: Seed of the record order, the augmentation, the initial weights and dropout.
        device: "auto" uses CUDA if available.
        timeout: Seconds after which the run ends if another process does not answer. By default
            torch's: 10 minutes for NCCL and 30 for gloo.
        out: Folder for metrics, checkpoints and plot. By default `runs/<model>`, with - for a colon.
        resume: A checkpoint file, the folder of a run, or "auto": the run in `out`, if there is one.
            By default a new run begins.
        overwrite: Replace an existing run in `out`, which is refused by default.
        max_steps: Stop after this many optimizer steps, counted from the start of the run, also
            after a resume; the schedule does not change.
        checkpoint_every: Optimizer steps between checkpoints, in addition to the checkpoint at
            every epoch's end; 0: only those.
        print_freq: Optimizer steps between log lines.

    Raises:
        ValueError: a value is out of range; the message names the option.
    """

    train: str | Sequence[str]
    val: str | Sequence[str] | None = None
    model: str = "resnet50"
    zero_init_residual: bool = False
    epochs: int = 90
    batch_size: int = 256
    accumulate: int = 1
    global_batch: int | None = None
    image_size: int | Sequence[int] = 224
    eval_size: int | None = None
    eval_resize: int | None = None
    augment: Augment = "imagenet"
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    repeated_augmentation: int = 1
    loader: LoaderKind = "native"
    parallel: Parallel = "ddp"
    data: DataKind = "real"
    shuffle: ShuffleKind = "full"
    threads: int | None = None
    decoder: Decoder = "auto"
    sixteen_bit: SixteenBit = "reject"
    allow_incomplete: bool = False
    cache: str | None = None
    cache_size: str | None = None
    on_error: OnError = "raise"
    max_skipped: float | int | None = 0.05
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay_norm_bias: bool = True
    schedule: Schedule = "cosine"
    lr_step_epochs: int | Sequence[int] = 30
    lr_gamma: float = 0.1
    warmup_epochs: float | None = None
    warmup_start: float = 0.0
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    ema_steps: int = 32
    amp: Amp = "off"
    channels_last: bool = False
    compile: bool = False
    seed: int = 0
    device: DeviceKind = "auto"
    timeout: float | None = None
    out: str | Path | None = None
    resume: str | Path | None = None
    overwrite: bool = False
    max_steps: int | None = None
    checkpoint_every: int = 0
    print_freq: int = 10

    def __post_init__(self) -> None:
        for name in ("train", "val"):  # the run's folder keeps the settings, and no secret of a URL
            if isinstance(files := getattr(self, name), str):
                object.__setattr__(self, name, Url(files))
            elif isinstance(files, list):
                object.__setattr__(self, name, [Url(file) if isinstance(file, str) else file for file in files])
        for name in texts(TrainConfig):
            kind, _ = hint(TrainConfig, name)
            if get_origin(kind) is Literal:
                self._check(name, getattr(self, name) in get_args(kind), f"one of {', '.join(get_args(kind))}")
        counts = "epochs batch_size accumulate global_batch eval_size eval_resize print_freq max_steps"
        for name in (*counts.split(), "repeated_augmentation", "ema_steps"):
            self._check(name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1")
        for name in ("checkpoint_every", "threads"):
            self._check(name, (getattr(self, name) or 0) >= 0, "at least 0")
        for name in ("lr", "momentum", "weight_decay", "lr_gamma", "mixup", "cutmix"):
            self._check(name, 0 <= getattr(self, name) < math.inf, "at least 0 and finite")
        given = self.lr_step_epochs
        drops = [0, given] if isinstance(given, int) else [0, *given]
        rising = len(drops) > 1 and all(before < after for before, after in itertools.pairwise(drops))
        most, warmup, native = self.max_skipped, self.warmup_epochs, self.loader == "native"
        bounded = most is None or (0 <= most <= 1 if isinstance(most, float) else most >= 0)
        for name, holds, allowed in (
            ("lr_step_epochs", rising, "at least 1, or a list of epochs, each after the one before"),
            ("timeout", self.timeout is None or 0 < self.timeout < math.inf, "above 0 and finite"),
            (
                "image_size",
                1 <= len(self.sizes) <= self.epochs and min(self.sizes) >= 1,
                f"at least 1, or a list of 1 to {self.epochs} sizes, as many as there are epochs at most",
            ),
            (
                "image_size",
                native or self.data != "real" or isinstance(self.image_size, int),
                "one size with loader torch: only the native loader changes it",
            ),
            ("random_erasing", 0 <= self.random_erasing <= 1, "in [0, 1]"),
            ("random_erasing", native or not self.random_erasing, "0 with loader torch: only the native loader erases"),
            *(
                (name, native or not getattr(self, name), "0 with loader torch: only the native loader mixes")
                for name in ("mixup", "cutmix")
            ),
            (
                "repeated_augmentation",
                self.repeated_augmentation == 1 or self.shuffle == "full",
                "1 with shuffle blocks: only a full shuffle repeats records",
            ),
            ("warmup_start", 0 <= self.warmup_start <= 1, "in [0, 1]"),
            ("seed", 0 <= self.seed < 2**63, "in [0, 2**63)"),
            ("ema_decay", 0 <= self.ema_decay < 1, "in [0, 1)"),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)"),
            ("max_skipped", bounded, "a share from 0.0 to 1.0, or a number of records, at least 0"),
            (
                "warmup_epochs",
                warmup is None or 0 <= warmup <= self.epochs,
                f"between 0 and the {self.epochs} epochs of the run",
            ),
            (
                "compile",
                self.parallel == "ddp" or not self.compile,
                "False with parallel dp, whose threads torch.compile cannot follow",
            ),
            (
                "threads",
                self.threads != 0 or not native or self.data != "real",
                "at least 1 (0, no worker at all, is for loader torch)",
            ),
            ("cache_size", self.cache_size is None or self.cache is not None, "absent without a folder (--cache)"),
            ("on_error", native or self.on_error == "raise", "'raise' with loader torch: only the native loader skips"),
            ("decoder", native or self.decoder == "auto", "'auto' with loader torch, where Pillow decodes all images"),
            (
                "sixteen_bit",
                native or self.sixteen_bit == "reject",
                "'reject' with loader torch, where Pillow makes all values above 255 white",
            ),
        ):
            self._check(name, holds, allowed)
        size, resize = self.evaluation
        self._check("eval_resize", size <= resize, f"at least eval_size, which is {size}")
        if self.global_batch is not None and self.accumulate > 1:
            raise ValueError(
                "give global_batch or accumulate, not both: the number of passes follows from global_batch"
            )
        if self.overwrite and self.resume is not None:
            raise ValueError("give overwrite or resume, not both: one replaces the run that the other continues")

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name} is {getattr(self, name)!r}: it must be {allowed}")

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], **settings: Any) -> Self:
        """Read a configuration from a TOML file, whose keys are the options of the command line.

        Args:
            path: The file: `batch-size = 32` in it sets `batch_size`. Relative paths in it are
                relative to the working directory.
            settings: Further settings, by their names here; they replace the file's.

        Raises:
            ValueError: the file is not TOML, a key is unknown, a value has the wrong type or is out
                of range, or `train` is missing; the message names the file.
            OSError: the file cannot be read.
        """
        read = read_settings(path, cls)
        if "train" not in {**read, **settings}:
            raise ValueError(f'{path} has no files to train on: add train = "FILE.frec" to it, or give them')
        try:
            return cls(**{**read, **settings})
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            if name in settings or name not in read:
                raise
            raise ValueError(f"{path}: {name.replace('_', '-')} {rest}") from error

    @classmethod
    def from_recipe(cls, name: str, **settings: Any) -> Self:
        """Read the configuration of a recipe of the package, as `from_toml` does.

        Args:
            name: Its name, such as "resnet50-v2".
            settings: Further settings, by their names here; they replace the recipe's.

        Raises:
            ValueError: there is no such recipe, or as `from_toml`.
        """
        return cls.from_toml(recipe_path(name), **settings)

    def in_store(self, options: Mapping[str, Any]) -> TrainConfig:
        """Return the settings with options of the store in the URLs to read, where no file or log shows them.

        Args:
            options: As in `fastrecord.Store`; they replace all that the URLs had.
        """
        if not options:
            return self

        def given(files: str | Sequence[str]) -> str | Sequence[str]:
            return Url(files).given(options) if isinstance(files, str) else [Url(file).given(options) for file in files]

        return replace(self, train=given(self.train), val=None if self.val is None else given(self.val))

    def on_processes(self, count: int) -> TrainConfig:
        """Return the settings for a number of processes, with `global_batch` divided among them.

        Raises:
            TrainError: the processes cannot have equal shares of it.
        """
        if self.global_batch is None:
            return self
        share, rest = divmod(self.global_batch, count)
        if rest:
            fitting = " or ".join(str(number) for number in (share * count, (share + 1) * count) if number)
            raise TrainError(
                f"{count} processes cannot have equal shares of a global batch of {self.global_batch}: use "
                f"--global-batch {fitting}, or another number of processes. A number that all numbers of processes "
                "divide lets a job continue on what is left of it"
            )
        passes = next(
            number for number in range(1, share + 1) if share % number == 0 and share // number <= self.batch_size
        )
        return replace(self, global_batch=None, batch_size=share // passes, accumulate=passes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of training images, each for an equal part of the epochs."""
        return (self.image_size,) if isinstance(self.image_size, int) else tuple(self.image_size)

    def size_in(self, epoch: int) -> int:
        """Return the size of training images in an epoch."""
        return self.sizes[min(epoch, self.epochs - 1) * len(self.sizes) // self.epochs]

    @property
    def evaluation(self) -> tuple[int, int]:
        """In evaluation, the size of images, and the shorter side from which they are cut, defaults filled in."""
        size = self.sizes[-1] if self.eval_size is None else self.eval_size
        resize = size if self.augment == "none" else size * 256 // 224
        return size, resize if self.eval_resize is None else self.eval_resize

    @property
    def folder(self) -> Path:
        """The run's output folder."""
        return Path("runs") / self.model.replace(":", "-") if self.out is None else Path(self.out)

    @property
    def warmup(self) -> float:
        """Epochs of warm-up, with the default filled in."""
        return min(5.0, self.epochs / 10) if self.warmup_epochs is None else self.warmup_epochs
