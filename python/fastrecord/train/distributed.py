"""`Ranks`: the processes of a run and their communication.

With a single process every exchange is a local no-op.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fastrecord import FastRecordError
from fastrecord.checks import local_ranks
from fastrecord.train.config import DeviceKind, Parallel, TrainError, one_line

T = TypeVar("T")

# Sent by a failed rank instead of a signal number, which is below 65.
_FAILED = 1000


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the processes of the run.

    Attributes:
        rank: This process, in [0, world_size).
        world_size: Processes over all machines.
        local_rank: This process among the processes of its machine.
        local_world_size: Processes on this machine.
        device: Device of this process.
        control: A gloo group for small messages between the hosts, in addition to NCCL; None for a
            single process.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    control: dist.ProcessGroup | None

    @property
    def is_first(self) -> bool:
        """Whether this process writes the logs, metrics and checkpoints."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of `values` over all ranks; they are on `device`, and may be changed."""
        if self.control is not None:
            dist.all_reduce(values)
        return values

    def agree(self, signal: int, failure: Exception | None = None) -> int:
        """Report a signal or failure of any rank to all ranks, so that all stop at the same place.

        Costs a small message between the hosts, and does not wait for a device.

        Args:
            signal: The signal that this rank has received, or 0.
            failure: Why this rank cannot continue, or None.

        Returns:
            The largest signal of all ranks.

        Raises:
            TrainError: another rank failed; the message is that rank's. A rank that failed raises
                its own `failure`.
        """
        if self.control is None and failure is not None:
            raise failure
        if self.control is not None:
            worst = torch.tensor([signal if failure is None else _FAILED])
            dist.all_reduce(worst, dist.ReduceOp.MAX, group=self.control)
            signal = int(worst.item())
            if signal == _FAILED:
                self._raise_first(None if failure is None else one_line(failure), failure)
        return signal

    def copy_from_first(self, tensors: Iterator[torch.Tensor]) -> None:
        """Overwrite `tensors` on every rank with the values of rank 0."""
        if self.control is not None:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def each(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank and return its result.

        A failure on one rank is raised on all ranks, so that no rank waits for it.

        Raises:
            TrainError: `work` raised a TrainError, an OSError or a FastRecordError, here or on
                another rank.
        """
        result, message = _attempt(work)
        self._raise_first(message)
        return result  # type: ignore[return-value]  # no failure: `work` returned

    def _raise_first(self, message: str | None, error: Exception | None = None) -> None:
        """Raise the first rank's message on every rank; raise `error` itself where it exists."""
        for rank, text in enumerate(self.gather(message)):
            if text is not None:
                raise error or TrainError(text if rank == 0 else f"rank {rank}: {text}")

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, which must pickle, on every rank."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 only and return its result, which must pickle, on every rank.

        Raises:
            TrainError: `work` raised a TrainError, an OSError or a FastRecordError on rank 0.
        """
        box: list[Any] = list(_attempt(work)) if self.is_first else [None, None]
        if self.control is not None:
            dist.broadcast_object_list(box, src=0, group=self.control)
        if box[1] is not None:
            raise TrainError(box[1])
        return box[0]  # type: ignore[no-any-return]


def _attempt(work: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return work(), None
    except (TrainError, FastRecordError, OSError) as error:
        return None, one_line(error)


@contextmanager
def start_ranks(device: DeviceKind, *, parallel: Parallel = "ddp", timeout: float | None = None) -> Iterator[Ranks]:
    """Join torchrun's process group (NCCL on CUDA, gloo on the CPU), or run alone.

    An existing process group is used, and left as it is.

    Args:
        device: As in TrainConfig.
        parallel: As in TrainConfig.
        timeout: Seconds after which an exchange fails if another process does not answer; None:
            torch's default.

    Raises:
        TrainError: CUDA is requested but not available, or there are more processes than GPUs;
            `parallel` is "dp" with several processes, or without a GPU.
    """
    launched = dist.is_available() and ("WORLD_SIZE" in os.environ and "RANK" in os.environ)
    joined = dist.is_available() and dist.is_initialized()
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if launched or joined else 0
    local_world_size = (local_ranks() or 1) if launched or joined else 1
    if parallel == "dp":
        world_size = dist.get_world_size() if joined else int(os.environ["WORLD_SIZE"]) if launched else 1
        _check_data_parallel(device, world_size)
    chosen = _choose_device(device, local_rank, local_world_size)
    if not launched and not joined:
        yield Ranks(0, 1, 0, 1, chosen, None)
        return
    limit = None if timeout is None else timedelta(seconds=timeout)
    if not joined:
        if chosen.type == "cuda":
            dist.init_process_group("nccl", device_id=chosen, timeout=limit)
        else:
            dist.init_process_group("gloo", timeout=limit)
    control: Any = dist.new_group(backend="gloo", timeout=limit)
    # All ranks raise a TrainError together. After another error the other ranks may be gone, and
    # leaving the group would wait for them.
    alike = False
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank, local_world_size, chosen, control)
        alike = True
    except TrainError:
        alike = True
        raise
    finally:
        if alike and not joined:
            dist.destroy_process_group()


def _check_data_parallel(device: DeviceKind, world_size: int) -> None:
    if world_size > 1:
        raise TrainError(
            f"--parallel dp is for one process that has all GPUs, and here are {world_size}: start it without "
            "torchrun, or use --parallel ddp"
        )
    if device == "cpu" or not torch.cuda.is_available():
        raise TrainError(
            "--parallel dp divides batches among GPUs, and this run has none: use --parallel ddp, on the CPU too "
            "(torchrun starts several processes)"
        )


def _choose_device(device: DeviceKind, local_rank: int, local_world_size: int) -> torch.device:
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise TrainError("no CUDA device is available to torch; train on the CPU with --device cpu")
    if device == "cpu" or not available:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise TrainError(
            f"{local_world_size} processes on this machine, but {count} GPUs: start at most one process per GPU "
            f"(torchrun --nproc-per-node {count}), or train on the CPU with --device cpu"
        )
    chosen = torch.device("cuda", local_rank)
    torch.cuda.set_device(chosen)
    return chosen
