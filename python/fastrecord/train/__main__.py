"""The command `python -m fastrecord.train`: options and exit status. Trains nothing itself."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO, get_args

import click
from click.core import ParameterSource

from fastrecord import FastRecordError
from fastrecord.dataset.decoding import Decoder, SixteenBit
from fastrecord.store.option import store_option, store_options
from fastrecord.terminal import PrintableFormatter, drop_unwritten, occupy_streams, printable
from fastrecord.train.config import (
    Amp,
    Augment,
    DataKind,
    DeviceKind,
    LoaderKind,
    OnError,
    Parallel,
    Schedule,
    ShuffleKind,
    TrainConfig,
    TrainError,
    one_line,
)
from fastrecord.train.interrupt import StopSignal

_Decorator = Callable[[Callable[..., None]], Callable[..., None]]
_DEFAULTS = {field.name: field.default for field in fields(TrainConfig)}


def _most(value: Any) -> float | int | None:
    """Convert the text of --max-skipped: a share, a number, or "none"."""
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]  # the default
    if value.lower() == "none":
        return None
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a share such as 0.01, a number such as 100, or none") from error


def _drops(value: Any) -> int | list[int]:
    """Convert the text of --lr-step-epochs: a number, or a list of numbers."""
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]  # the default
    try:
        return [int(each) for each in value.split(",")] if "," in value else int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a number such as 30, or a list such as 30,60,80") from error


def _option(name: str, text: str, *, choices: object = None, kind: Any = None, **more: Any) -> _Decorator:
    """Declare the option for a field of TrainConfig; `name` as on the command line."""
    field = name.removeprefix("--").replace("-", "_")
    default = _DEFAULTS[field]
    flags = [name, *more.pop("also", ())]
    if default is False:
        # The second form is for settings of --config.
        return click.option(f"{name}/--no-{name.removeprefix('--')}", field, default=False, help=text)
    if choices is not None:
        kind = click.Choice(get_args(choices))
    shown = default is not None
    return click.option(*flags, field, type=kind, default=default, show_default=shown, help=text, **more)


@click.command(context_settings={"max_content_width": 120})
@click.argument("train", nargs=-1, metavar="TRAIN.frec...")
@click.option(
    "--config",
    "file",
    metavar="FILE.toml",
    help="Take settings from a TOML file. Its keys are these options (batch-size = 256), and train. Options given here "
    "replace them.",
)
@click.option(
    "--val", multiple=True, metavar="FILE", help="File or glob to evaluate on after every epoch; may be repeated."
)
@_option("--cache", "For URLs: a folder on a local disk that keeps what was read.", metavar="DIR")
@_option("--cache-size", "Bytes of the cache at most, such as 500GiB. Default: all that is read.", metavar="SIZE")
@_option("--model", "Any classifier of torchvision, by its name.", metavar="NAME")
@_option("--zero-init-residual", "Let each residual block of a ResNet begin as the identity: a gentler start.")
@_option("--epochs", "Passes over the training records.", kind=int)
@_option("--batch-size", "Images per process in one forward and backward pass.", kind=int, also=("-b",))
@_option("--accumulate", "Passes per optimizer step. Global batch: batch size x this x processes.", kind=int)
@_option(
    "--global-batch",
    "Images of an optimizer step over all processes. --batch-size is then the most in a pass, and the passes follow "
    "from the number of processes: for jobs that continue on fewer of them.",
    kind=int,
)
@_option("--image-size", "Height and width of the images the model sees, in pixels.", kind=int)
@_option("--augment", "imagenet: random resized crop and flip; none: resize and centre crop.", choices=Augment)
@_option(
    "--loader",
    "native: threads of this process decode; torch: worker processes of a DataLoader decode with Pillow.",
    choices=LoaderKind,
)
@_option(
    "--parallel",
    "ddp: DistributedDataParallel, under torchrun; dp: nn.DataParallel, all GPUs in one process, each batch divided "
    "among them.",
    choices=Parallel,
)
@_option(
    "--shuffle",
    "full: any order of the records; blocks: neighbours stay near each other, for disks that are slow at random reads.",
    choices=ShuffleKind,
)
@_option(
    "--threads",
    "Per process: threads of the native loader, or workers of a DataLoader (0: none). Default: its share of the cores.",
    kind=int,
    also=("--workers", "-j"),
)
@_option(
    "--decoder",
    "Images that the core cannot decode, such as AVIF: auto: Pillow decodes them; native: they are bad records.",
    choices=Decoder,
)
@_option(
    "--sixteen-bit",
    "16-bit grey images: reject: they are bad records; scale: divide by 257; clip: values above 255 become white.",
    choices=SixteenBit,
)
@_option("--allow-incomplete", "Accept unfinished files and incomplete shard sets.")
@_option(
    "--on-error",
    "A record that is damaged or cannot be decoded: raise ends the run; skip leaves it out, logged and counted.",
    choices=OnError,
)
@_option(
    "--max-skipped",
    "With --on-error skip: what each process may skip in an epoch; one more ends the run. 0.01: a share of its records "
    "(10 at least); 100: a number; none: no limit.",
    kind=_most,
    metavar="SHARE|NUMBER|none",
)
@_option(
    "--data",
    "real: the records of TRAIN. Else a constant batch, no evaluation; gpu: it lies on the device; cpu: is copied from "
    "the host; queue: and comes through a Python thread's queue; dataset: through the workers of a DataLoader.",
    choices=DataKind,
)
@click.option(
    "--ladder",
    is_flag=True,
    help="Train some steps on each kind of --data in turn, on real data by either loader; print what each layer costs "
    "and which one limits, and write ladder.json and ladder.png to --out, nothing else. --max-steps: steps to measure "
    "on each kind.",
)
@_option("--lr", "Peak learning rate for a global batch of 256; scaled linearly with the global batch.", kind=float)
@_option("--momentum", "Momentum of SGD.", kind=float)
@_option("--weight-decay", "Weight decay of SGD.", kind=float)
@click.option(
    "--decay-norm-bias/--no-decay-norm-bias",
    default=True,
    show_default=True,
    help="Whether biases and normalisation parameters decay too.",
)
@_option("--schedule", "Learning rate after the warm-up: cosine to 0, or drops in steps.", choices=Schedule)
@_option(
    "--lr-step-epochs",
    "Epochs between the drops of the step schedule; or the epochs of the drops, as 30,60,80.",
    kind=_drops,
    metavar="EPOCHS",
)
@_option("--lr-gamma", "Factor of each drop of the step schedule.", kind=float)
@_option(
    "--warmup-epochs",
    "Epochs of linear warm-up, fractions allowed. Default: 5, at most a tenth of the epochs.",
    kind=float,
)
@_option("--label-smoothing", "Label smoothing, in [0, 1).", kind=float)
@_option("--amp", "Mixed precision; fp16 scales the gradients.", choices=Amp)
@_option("--channels-last", "Keep weights and images in channels_last memory.")
@_option("--compile", "Run the model through torch.compile; the first steps take minutes.")
@_option("--seed", "Seed of record order, augmentation, initial weights and dropout.", kind=int)
@_option("--device", "auto takes CUDA if it is available.", choices=DeviceKind)
@_option("--timeout", "Seconds to wait for another process before the run ends. Default: torch's.", kind=float)
@_option(
    "--out", "Folder for metrics.jsonl, checkpoints/ and training.png. Default: runs/MODEL.", kind=Path, metavar="DIR"
)
@_option(
    "--resume",
    "Resume a checkpoint, the folder of a run, or 'auto': the run in --out, if there is one.",
    metavar="PATH",
)
@_option("--overwrite", "Replace the run that --out holds; otherwise that is an error.")
@_option("--max-steps", "Stop after this many optimizer steps, including those before a resume.", kind=int)
@_option("--checkpoint-every", "Optimizer steps between checkpoints, in addition to those after each epoch.", kind=int)
@_option("--print-freq", "Optimizer steps between log lines.", kind=int, also=("-p",))
@click.pass_context
def main(context: click.Context, /, *, file: str | None, ladder: bool, **options: Any) -> None:
    """Train a torchvision classifier on packed files, on one process or under torchrun on many.

    \b
    python -m fastrecord.train train.frec --val val.frec
    torchrun --nproc-per-node 8 -m fastrecord.train train.frec --val val.frec --amp bf16 --channels-last
    torchrun --nproc-per-node 4 -m fastrecord.train train.frec --val val.frec --config recipes/resnet50-90.toml

    Ctrl-C and SIGTERM end the run after the step under way; the checkpoint they leave goes on with --resume auto.
    """  # noqa: D301  # click reads the backspace
    for name in ("train", "val"):
        paths = options[name]
        options[name] = None if not paths else paths[0] if len(paths) == 1 else list(paths)
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if file is None and "train" not in given:
        raise click.UsageError("Missing argument 'TRAIN.frec...'.")
    try:
        config = TrainConfig(**given) if file is None else TrainConfig.from_toml(file, **given)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if ladder and (config.data != "real" or config.resume is not None or config.overwrite):
        raise click.UsageError(
            "--ladder measures all kinds of data and continues no run: leave out --data, --resume and --overwrite"
        )
    context.exit(_run(config.in_store(store_options(context)), ladder=ladder))


# After --cache-size, with which it belongs.
main.params.insert([param.name for param in main.params].index("cache_size") + 1, store_option)


class _LogHandler(logging.StreamHandler[TextIO]):
    """Logs to standard output. If the output is closed, the run continues and reports it once."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Report once that output has become impossible; handle other errors as usual."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            with suppress(OSError):
                click.echo(f"the log ends here ({error.strerror}); the run continues, see metrics.jsonl", err=True)


def _run(config: TrainConfig, *, ladder: bool) -> int:
    """Run, and return the exit status.

    It is 0, 1 after a reported error, or 128 + the signal that ended the run.
    """
    occupy_streams()
    handler = _LogHandler(sys.stdout)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("fastrecord.train").setLevel(logging.INFO)
    try:
        with StopSignal() as stop:
            return _measure(config, stop) if ladder else _train(config, stop)
    except (TrainError, FastRecordError, OSError) as error:
        # All ranks raise this error, or one that reports it.
        if os.environ.get("RANK", "0") == "0":
            click.echo(f"Error: {printable(one_line(error))}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("interrupted in the middle of a step: no checkpoint was written for it", err=True)
        return 128 + signal.SIGINT
    finally:
        drop_unwritten()


def _train(config: TrainConfig, stop: StopSignal) -> int:
    from fastrecord.train.engine import train

    result = train(config, stop)
    if not result.signal:
        return 0
    left = "before the first step" if result.checkpoint is None else f"{result.checkpoint} goes on with --resume auto"
    _tell_signal(result.signal, f" after step {result.step}: {left}")
    return 128 + result.signal


def _measure(config: TrainConfig, stop: StopSignal) -> int:
    from fastrecord.train.ladder import run_ladder

    if run_ladder(config, stop) is not None:
        return 0
    # Possibly only another rank received it.
    number = stop.number or signal.SIGINT
    _tell_signal(number, ": the ladder is not complete, and nothing was written")
    return 128 + number


def _tell_signal(number: int, rest: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        click.echo(printable(f"stopped by {signal.Signals(number).name}{rest}"), err=True)


if __name__ == "__main__":
    main()
