"""The command `python -m fastrecord.train.produce`: sends a trainer's batches over ZeroMQ.

The trainer asks for each batch (docs/zmq.md); this producer answers from packed files, or noise.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fastrecord import FastRecordError
from fastrecord.dataset.decoding import Decoder, SixteenBit
from fastrecord.interchange.libraries import library
from fastrecord.store.option import store_option, store_options
from fastrecord.terminal import PrintableFormatter, drop_unwritten, occupy_streams, printable
from fastrecord.train.batches.messages import Request, encode_error, is_ipv6
from fastrecord.train.config import DEFAULT_ADDRESS, TrainConfig, TrainError, one_line
from fastrecord.train.interrupt import StopSignal

if TYPE_CHECKING:
    from fastrecord.train.batches.native import NativeBatches

_log = logging.getLogger("fastrecord.train")

# How often the producer looks for a signal, in milliseconds.
_LOOK = 200

Arrays = tuple[np.ndarray, np.ndarray]


class NoiseAnswers:
    """One batch of noise, again and again: only the transport costs time."""

    def __init__(self) -> None:
        self._made: tuple[Any, Arrays] | None = None

    def __call__(self, request: Request) -> Arrays:
        """Return images, uint8 (size, S, S, 3), and labels, int64 (size,)."""
        form = request.size, request.image_size, request.classes
        if self._made is None or self._made[0] != form:
            rng = np.random.default_rng(request.seed)
            images = rng.integers(0, 256, (request.size, request.image_size, request.image_size, 3), np.uint8)
            self._made = form, (images, rng.integers(0, max(1, request.classes), request.size))
        return self._made[1]

    def close(self) -> None:
        """Do nothing: noise has no threads."""


class FileAnswers:
    """The batches that a trainer would load from packed files itself.

    Args:
        config: Files, decoding and threads. Order, augmentation and sizes come from the requests.

    Raises:
        TrainError: a file cannot be used.
    """

    def __init__(self, config: TrainConfig) -> None:
        from fastrecord.train.batches.open import open_datasets

        self._config = config
        self._dataset = open_datasets(config)[0]
        self._streams: dict[int, _Stream] = {}
        self._shared: Any = None

    def __call__(self, request: Request) -> Arrays:
        """Return images, uint8 (size, S, S, 3), and labels, int64 (size,).

        Raises:
            TrainError, FastRecordError, ValueError: the batch cannot be made; the message has the
                reason.
        """
        if request.records != len(self._dataset):
            raise TrainError(
                f"{self._dataset.root} has {len(self._dataset)} records, the trainer's file {request.records}: "
                "give both the same files"
            )
        shared = request.world_size, request.seed, request.shuffle, request.augment, request.size, request.image_size
        if shared != self._shared:
            # Another run.
            self.close()
            self._shared = shared
        if request.rank not in self._streams:
            self._streams[request.rank] = self._open(request)
        return self._streams[request.rank].take(request)

    def _open(self, request: Request) -> _Stream:
        import dataclasses

        import torch

        from fastrecord.train.batches.native import NativeBatches
        from fastrecord.train.distributed import Ranks

        threads = self._config.threads or len(os.sched_getaffinity(0))
        settings: dict[str, Any] = {
            name: getattr(request, name) for name in ("seed", "shuffle", "augment", "image_size")
        }
        settings |= {"batch_size": request.size, "threads": max(1, threads // request.world_size)}
        config = dataclasses.replace(self._config, **settings)
        ranks = Ranks(request.rank, request.world_size, 0, 1, torch.device("cpu"), None)
        return _Stream(NativeBatches(self._dataset, config, ranks, training=True))

    def close(self) -> None:
        """End the threads."""
        for stream in self._streams.values():
            stream.batches.close()
        self._streams.clear()


class _Stream:
    """One rank's batches, made ahead in their order. A request for another position seeks it."""

    def __init__(self, batches: NativeBatches) -> None:
        self.batches = batches
        self._next: tuple[int, int] | None = None

    def take(self, request: Request) -> Arrays:
        if request.batches != len(self.batches) or request.batch >= request.batches:
            raise TrainError(f"batch {request.batch} of {request.batches}: an epoch has {len(self.batches)} for a rank")
        if self._next != (request.epoch, request.batch):
            state = self.batches.state_dict(epoch=request.epoch, steps_done=request.batch)
            self.batches.load_state_dict(state, steps_done=request.batch)
            self._drawn = iter(self.batches.epoch(request.epoch))
        self._next = None
        images, labels = next(self._drawn)
        self._next = request.epoch, request.batch + 1
        return images.permute(0, 2, 3, 1).numpy(), labels.numpy()


@dataclass(frozen=True, slots=True)
class Server:
    """Answers requests, one after the other, until something ends it.

    Attributes:
        address: Where it listens.
        make: Makes the batch of a request.
        idle: Seconds without a request after which it ends, or None.
        parent: The process without which it ends, or None.
    """

    address: str
    make: Callable[[Request], Arrays]
    idle: float | None = None
    parent: int | None = None

    def run(self, stop: StopSignal) -> None:
        """Serve; a signal ends it after the answer under way.

        Raises:
            TrainError: the address is taken, or not valid.
        """
        zmq = library("zmq", "zmq", "this producer")
        check_free(self.address)
        with zmq.Context() as context, context.socket(zmq.REP) as server:
            server.linger = 0
            server.ipv6 = is_ipv6(self.address)
            try:
                server.bind(self.address)
            except zmq.ZMQError as error:
                raise TrainError(f"{self.address}: the producer cannot listen there: {error}") from error
            _log.info(f"listening at {self.address}; Ctrl-C ends it")
            asked = time.monotonic()
            while not stop.number and (self.parent is None or os.getppid() == self.parent):
                if server.poll(_LOOK):
                    # Not copied: the arrays stay alive until they are sent.
                    server.send_multipart(self.answer(server.recv_multipart()), copy=False)
                    asked = time.monotonic()
                elif self.idle is not None and time.monotonic() - asked > self.idle:
                    _log.info(f"no request for {self.idle:g} s: the producer ends")
                    return

    def answer(self, parts: Sequence[bytes]) -> list[Any]:
        """Return the parts of the answer to a message."""
        try:
            if len(parts) != 1:
                raise ValueError(f"a request of {len(parts)} parts, not 1")
            request = Request.decode(parts[0])
            images, labels = self.make(request)
        except (TrainError, FastRecordError, OSError, ValueError, MemoryError, OverflowError) as error:
            why = one_line(error) or type(error).__name__
            _log.error(f"request refused: {why}")
            return [encode_error(why)]
        return [request.answer(), images, labels]


def check_free(address: str) -> None:
    """Refuse an ipc:// address that is taken: ZeroMQ removes whatever is at its path.

    Raises:
        TrainError: the path is not that of a socket, or another process listens at it.
    """
    path = address.removeprefix("ipc://")
    if path == address or path == "*" or path.startswith("@"):
        return
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise TrainError(f"{address}: the producer cannot listen there: {path} is a file or folder, not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return  # nothing is there, or what a killed producer left
    except OSError as error:
        raise TrainError(f"{address}: the producer cannot listen there: {error}") from error
    raise TrainError(f"{address}: the producer cannot listen there: another process does")


@contextmanager
def noise_producer() -> Iterator[str]:
    """Run a producer of noise in a process of its own during the block, and yield its address.

    Raises:
        FastRecordError: pyzmq is not installed.
        TrainError: the process does not start.
    """
    library("zmq", "zmq", "the rung zmq")
    with tempfile.TemporaryDirectory(prefix="fastrecord-") as folder:
        address = f"ipc://{folder}/batches"
        command = [sys.executable, "-m", "fastrecord.train.produce", "--noise", "--address", address]
        command += ["--parent", str(os.getpid())]
        # In its own session: a terminal's Ctrl-C ends the trainer after its step, and then this process.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                said = ""
                while "listening" not in (line := process.stdout.readline() if process.stdout is not None else ""):
                    if not line:
                        raise TrainError(f"its producer does not start: {said.strip() or 'it ends at once'}")
                    said += line
                yield address
            finally:
                process.kill()


@click.command(context_settings={"max_content_width": 120})
@click.argument("train", nargs=-1, metavar="[TRAIN.frec...]")
@click.option("--address", default=DEFAULT_ADDRESS, show_default=True, help="Where to listen: tcp:// or ipc://.")
@click.option(
    "--threads", "-j", type=click.IntRange(1), help="Threads that decode, for all ranks. Default: the cores it may use."
)
@click.option(
    "--decoder",
    type=click.Choice(["auto", "native"]),
    default="auto",
    show_default=True,
    help="As in the trainer.",
)
@click.option(
    "--sixteen-bit",
    type=click.Choice(["reject", "scale", "clip"]),
    default="reject",
    show_default=True,
    help="As in the trainer.",
)
@click.option("--allow-incomplete", is_flag=True, help="Accept unfinished files and incomplete shard sets.")
@click.option("--noise", is_flag=True, help="Send one batch of noise again and again, to measure; reads no file.")
@click.option("--idle", type=click.FloatRange(0), metavar="SECONDS", help="End after this time without a request.")
@click.option("--parent", type=int, hidden=True)
@click.pass_context
def main(
    context: click.Context,
    /,
    *,
    train: tuple[str, ...],
    address: str,
    threads: int | None,
    decoder: Decoder,
    sixteen_bit: SixteenBit,
    allow_incomplete: bool,
    noise: bool,
    idle: float | None,
    parent: int | None,
) -> None:
    """Send batches of packed files to trainers started with --data zmq, each record once an epoch.

    \b
    python -m fastrecord.train.produce train.frec --address ipc:///tmp/batches
    python -m fastrecord.train train.frec --data zmq --zmq-address ipc:///tmp/batches

    Sizes, order and augmentation follow from the trainer's options. One producer serves all ranks of a run, one run
    after the other, until Ctrl-C, SIGTERM or --idle ends it.
    """  # noqa: D301  # click reads the backspace
    if noise == bool(train):
        raise click.UsageError("give either packed files or --noise")
    occupy_streams()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    _log.setLevel(logging.INFO)
    try:
        with StopSignal() as stop:
            answers = (
                NoiseAnswers()
                if noise
                else FileAnswers(
                    TrainConfig(
                        train=train[0] if len(train) == 1 else train,
                        threads=threads,
                        decoder=decoder,
                        sixteen_bit=sixteen_bit,
                        allow_incomplete=allow_incomplete,
                    ).in_store(store_options(context))
                )
            )
            try:
                Server(address, answers, idle, parent).run(stop)
            finally:
                answers.close()
    except (TrainError, FastRecordError, OSError) as error:
        click.echo(f"Error: {printable(one_line(error))}", err=True)
        context.exit(1)
    finally:
        drop_unwritten()
    if stop.number:
        click.echo(f"stopped by {signal.Signals(stop.number).name}", err=True)
        context.exit(128 + stop.number)


main.params.append(store_option)


if __name__ == "__main__":
    main()
