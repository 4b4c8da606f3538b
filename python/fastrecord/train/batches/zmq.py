"""`ZmqBatches`: batches that another process sends over ZeroMQ, at the trainer's request.

Reads no record. docs/zmq.md has the format of the messages.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fastrecord import FastRecordDataset
from fastrecord.interchange.libraries import library
from fastrecord.train.batches.base import Batch, SampledBatches
from fastrecord.train.batches.messages import ProducerError, Request, is_ipv6, producer_error
from fastrecord.train.config import TrainConfig
from fastrecord.train.distributed import Ranks
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.labels import class_names

_log = logging.getLogger("fastrecord.train")

# Requests under way: while one batch trains, the others are made and sent.
_AHEAD = 3
# How often a wait looks for a signal, in milliseconds.
_LOOK = 100
# A longer wait is logged, in seconds.
_TELL = 2.0


class ZmqBatches(SampledBatches):
    """Batches that a producer answers to this rank's requests, in the order of the requests.

    Each request names epoch and position, so the producer keeps no state that the trainer relies
    on: the run may resume anywhere, and a producer that ends may be replaced by another one during
    the run. At most three batches are under way.

    Args:
        dataset: Gives the number of records and of classes. No record is read.
        config: Address and time limit; batch size, accumulation, seed, shuffle, augmentation.
        ranks: The processes that share each global batch.
        signals: A signal ends a wait, and the iteration with it. None: only an exception does.

    Raises:
        FastRecordError: pyzmq is not installed.
        TrainError: the address is not valid.
    """

    def __init__(
        self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks, signals: StopSignal | None = None
    ) -> None:
        super().__init__(dataset, config, ranks, training=True)
        self._zmq: Any = library("zmq", "zmq", "--data zmq")
        self._address, self._limit = config.zmq_address, config.zmq_timeout
        self._signals = signals
        self._tells = ranks.is_first
        self._pin = ranks.device.type == "cuda"
        self._pending: deque[Request] = deque()
        self._about: dict[str, Any] = {
            "batches": self._steps,
            "rank": ranks.rank,
            "world_size": ranks.world_size,
            "records": len(dataset),
            "classes": len(class_names(dataset)),
            "seed": config.seed,
            "shuffle": config.shuffle,
            "augment": config.augment,
            "size": config.batch_size * config.accumulate,
            "image_size": config.image_size,
        }
        self._context = self._zmq.Context()
        self._socket: Any = None
        try:
            self._connect()
        except self._zmq.ZMQError as error:
            self.close()
            raise producer_error(
                self._address, f"no address of ZeroMQ ({error}): such as tcp://127.0.0.1:5557 or ipc:///tmp/batches"
            ) from error

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """See `Batches.epoch`.

        Raises:
            TrainError: no producer answers in time, or an answer does not fit its request.
        """
        first, self._steps_done = self._steps_done, 0
        if self._pending:
            # The answers to an iteration that ended early go nowhere.
            self._pending.clear()
            self._connect()
        for step in range(first, self._steps):
            for asked in range(step if step == first else step + _AHEAD - 1, min(step + _AHEAD, self._steps)):
                self._pending.append(Request(epoch=epoch, batch=asked, **self._about))
                self._ask(self._pending[-1])
            parts = self._receive()
            if parts is None:
                return
            images, labels = self._tensors(self._pending.popleft(), parts)
            yield from zip(*(torch.tensor_split(part, self._passes) for part in (images, labels)), strict=True)

    def _connect(self) -> None:
        """Connect anew, and repeat the requests that are under way."""
        self._disconnect()
        zmq = self._zmq
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        # No limit for sending: a full queue would block it, and neither time limit nor signal end that.
        self._socket.rcvhwm = _AHEAD
        self._socket.ipv6 = is_ipv6(self._address)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(self._address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        for request in self._pending:
            self._ask(request)

    def _ask(self, request: Request) -> None:
        # The empty part is the envelope that a REP socket expects.
        self._socket.send_multipart([b"", request.encode()])

    def _receive(self) -> list[Any] | None:
        """Return the parts of the next answer as zmq frames; None if a signal came."""
        start, told, gone = time.monotonic(), False, False
        while self._signals is None or not self._signals.number:
            ready = dict(self._poller.poll(_LOOK))
            if self._socket in ready:
                parts: list[Any] = self._socket.recv_multipart(copy=False)
                # The answer of a REP socket begins with the envelope.
                return parts[1:] if not len(parts[0]) else parts
            if self._monitor in ready:
                if not gone:
                    self._say(
                        f"the producer at {self._address} is gone: waiting up to {self._limit:g} s for another one"
                    )
                told = gone = True
                time.sleep(_LOOK / 1000)  # what listens there may hang up each time
                self._connect()
            waited = time.monotonic() - start
            if waited > self._limit:
                raise producer_error(
                    self._address,
                    f"no batch came within {self._limit:g} s (--zmq-timeout): start a producer, such as "
                    f"python -m fastrecord.train.produce TRAIN.frec --address {self._address}",
                )
            if waited > _TELL and not told:
                told = True
                self._say(f"waiting up to {self._limit:g} s for a batch from {self._address}")
        return None

    def _tensors(self, request: Request, parts: list[Any]) -> Batch:
        try:
            request.check_answer([part.buffer for part in parts])
            # Copied, because a small message need not be aligned.
            labels = np.frombuffer(parts[2].buffer, "<i8").astype(np.int64)
            outside = labels[(labels < 0) | (labels >= request.classes)]
            if outside.size:
                raise ValueError(f"labels has {outside[0]}, but the {request.classes} classes are numbered from 0")
        except ProducerError as error:
            raise producer_error(self._address, f"the producer answers: {error}") from error
        except ValueError as error:
            raise producer_error(
                self._address, f"the answer for batch {request.batch} of epoch {request.epoch} does not fit: {error}"
            ) from error
        # Not copied, except for a GPU: the tensor keeps the message. The memory format is channels_last.
        images = torch.frombuffer(parts[1].buffer, dtype=torch.uint8)
        shape = (request.size, request.image_size, request.image_size, 3)
        made = images.view(shape).permute(0, 3, 1, 2), torch.from_numpy(labels)
        return (made[0].pin_memory(), made[1].pin_memory()) if self._pin else made

    def _say(self, line: str) -> None:
        if self._tells:
            _log.info(line)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close()

    def close(self) -> None:
        """See `Batches.close`."""
        self._disconnect()
        self._socket = None
        self._context.destroy(linger=0)
