"""`Transport`: a constant batch of images, handed over by another process or by a thread."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import queue
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch

from benches.harness import Missing

KINDS = ("copy", "queue", "zmq")


class Transport:
    """One way of handing a batch to the consumer.

    Args:
        kind: "copy": a copy in this thread, "queue": by a Python thread through a queue, "zmq": by a
            process over ZeroMQ, which answers each request with one batch.
        batch: Images in a batch.
        pixels: Their height and width.
    """

    def __init__(self, *, kind: str, batch: int, pixels: int) -> None:
        self._images = torch.randint(0, 256, (batch, pixels, pixels, 3), dtype=torch.uint8)
        self._stack = contextlib.ExitStack()
        self.version = f"torch {torch.__version__}"
        self._next: Callable[[], torch.Tensor] = {"copy": self._copy, "queue": self._queue, "zmq": self._zmq}[kind]()

    def receive(self, *, count: int) -> int:
        """Take some batches; return their bytes."""
        return sum(self._next().numel() for _ in range(count))

    def _copy(self) -> Callable[[], torch.Tensor]:
        return self._images.clone

    def _queue(self) -> Callable[[], torch.Tensor]:
        waiting: queue.Queue[torch.Tensor] = queue.Queue(2)

        def produce() -> None:
            while True:
                waiting.put(self._images.clone())

        threading.Thread(target=produce, daemon=True).start()
        return waiting.get

    def _zmq(self) -> Callable[[], torch.Tensor]:
        try:
            zmq: Any = importlib.import_module("zmq")
        except ImportError as error:
            raise Missing("pyzmq is not installed") from error
        self.version = f"pyzmq {zmq.__version__}"
        address = f"ipc://{self._stack.enter_context(tempfile.TemporaryDirectory())}/batches"
        context = multiprocessing.get_context("spawn")
        context.Process(target=_answer, args=(address, bytes(self._images.numpy().data)), daemon=True).start()
        socket = zmq.Context().socket(zmq.REQ)
        socket.connect(address)

        def ask() -> torch.Tensor:
            socket.send(b"")
            return torch.frombuffer(socket.recv(copy=False).buffer, dtype=torch.uint8)

        return ask


def _answer(address: str, images: bytes) -> None:
    zmq: Any = importlib.import_module("zmq")
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(address)
    while True:
        socket.recv()
        socket.send(images)
