"""The command `python -m fastrecord.train`: options and exit status. Trains nothing itself."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click

from fastrecord import FastRecordError
from fastrecord.options import as_flags, derived, given, texts
from fastrecord.store.option import store_option, store_options
from fastrecord.terminal import PrintableFormatter, drop_unwritten, occupy_streams, printable
from fastrecord.train.config import TrainConfig, TrainError, one_line
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.settings_file import recipe_names, recipe_path


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
    "--recipe",
    type=click.Choice(recipe_names()),
    help="Take settings from a file of this name that comes with fastrecord: the settings of a published run. Options "
    "given here replace them.",
)
@click.option("--show", is_flag=True, help="Print the file of --recipe or --config, and train nothing.")
@derived(
    TrainConfig, *(name for name in texts(TrainConfig) if name != "train"), negatable=True, words={"train": "TRAIN"}
)
@click.option(
    "--ladder",
    is_flag=True,
    help="Train some steps on each kind of --data in turn, on real data by either loader; print what each layer costs "
    "and which one limits, and write ladder.json to --out, nothing else. --max-steps: steps to measure on each kind.",
)
@click.pass_context
def main(
    context: click.Context, /, *, file: str | None, recipe: str | None, show: bool, ladder: bool, **options: Any
) -> None:
    """Train a classifier of torchvision or timm on packed files, on one process or under torchrun on many.

    \b
    python -m fastrecord.train train.frec --val val.frec
    torchrun --nproc-per-node 8 -m fastrecord.train train.frec --val val.frec --amp bf16 --channels-last
    torchrun --nproc-per-node 8 -m fastrecord.train train.frec --val val.frec --recipe resnet50-v2

    Ctrl-C and SIGTERM end the run after the step under way; the checkpoint they leave goes on with --resume auto.
    """  # noqa: D301  # click reads the backspace
    if file is not None and recipe is not None:
        raise click.UsageError("give --recipe or --config, not both: --show prints a recipe, to copy and change")
    source = recipe_path(recipe) if recipe is not None else file
    if show:
        if source is None:
            raise click.UsageError("--show prints a settings file: give --recipe or --config")
        context.exit(_print(source))
    options = given(options)
    for name in options.keys() & {"train", "val"}:
        paths = options[name]
        options[name] = paths[0] if len(paths) == 1 else list(paths)
    if file is None and "train" not in options:
        raise click.UsageError("Missing argument 'TRAIN.frec...'.")
    try:
        config = TrainConfig(**options) if source is None else TrainConfig.from_toml(source, **options)
    except (ValueError, OSError) as error:
        raise click.UsageError(as_flags(str(error), TrainConfig) if source is None else str(error)) from error
    if ladder and (config.data != "real" or config.resume is not None or config.overwrite):
        raise click.UsageError(
            "--ladder measures all kinds of data and continues no run: leave out --data, --resume and --overwrite"
        )
    context.exit(_run(config.in_store(store_options(context)), ladder=ladder))


main.params.append(store_option)


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
    is_first = os.environ.get("RANK", "0") == "0"
    try:
        with StopSignal() as stop:
            number, left = (_measure if ladder else _train)(config, stop)
        if number and is_first:
            click.echo(printable(f"stopped by {signal.Signals(number).name}{left}"), err=True)
        return 128 + number if number else 0
    except (TrainError, FastRecordError, OSError) as error:
        if is_first:  # all ranks raise this error, or one that reports it
            click.echo(f"Error: {printable(one_line(error))}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("interrupted in the middle of a step: no checkpoint was written for it", err=True)
        return 128 + signal.SIGINT
    finally:
        drop_unwritten()


def _print(path: Path | str) -> int:
    """Print a text file; return 0, or raise a usage error if it cannot be read."""
    try:
        click.echo(Path(path).read_text(encoding="utf-8"), nl=False)
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    return 0


def _train(config: TrainConfig, stop: StopSignal) -> tuple[int, str]:
    """Train; return the signal that ended the run, or 0, and what it left."""
    from fastrecord.train.engine import train

    result = train(config, stop)
    left = "before the first step" if result.checkpoint is None else f"{result.checkpoint} goes on with --resume auto"
    return result.signal, f" after step {result.step}: {left}"


def _measure(config: TrainConfig, stop: StopSignal) -> tuple[int, str]:
    from fastrecord.train.ladder import run_ladder

    # Possibly only another rank received the signal.
    ended = 0 if run_ladder(config, stop) is not None else stop.number or signal.SIGINT
    return ended, ": the ladder is not complete, and nothing was written"


if __name__ == "__main__":
    main()
