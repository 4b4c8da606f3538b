"""`Batches`: the base of the sources of batches: the sampler and its state."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fastrecord import FastRecordBatchSampler, FastRecordDataset, FastRecordError
from fastrecord.loader.stats import LoaderStats
from fastrecord.train.config import TrainConfig, TrainError
from fastrecord.train.distributed import Ranks

Batch = tuple[torch.Tensor, torch.Tensor]
# Skipped records of an epoch that are listed; further ones are only counted.
LISTED = 1000


class Batches:
    """A source of batches. One optimizer step takes `accumulate` batches, one after the other.

    Its subclasses make tensors of records, or of none. Training uses shuffled, whole global batches;
    the last one is filled up by wrapping around.
    Evaluation uses the records in order, each exactly once over all ranks.

    Args:
        dataset: The data set that the sampler numbers.
        config: Batch size, accumulation, shuffle, seed.
        ranks: The processes that share each global batch.
        training: True for training, False for evaluation.
    """

    def __init__(self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks, *, training: bool) -> None:
        self._passes = config.accumulate if training else 1
        self._sampler = FastRecordBatchSampler(
            dataset,
            config.batch_size * self._passes,
            shuffle=("blocks" if config.shuffle == "blocks" else True) if training else False,
            seed=config.seed,
            repeat=config.repeated_augmentation if training else 1,
            rank=ranks.rank,
            world_size=ranks.world_size,
            drop_last="pad" if training else "exact",
        )
        self._steps = len(self._sampler)
        # Steps of the next epoch that a loaded state counts as done.
        self._steps_done = 0

    def __len__(self) -> int:
        """Return the optimizer steps (in evaluation: the batches) of an epoch for this rank."""
        return self._steps

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Iterate over this rank's batches of an epoch.

        A batch has images (B, 3, S, S), uint8, or normalised floats, and labels, int64 (B,), or
        of mixed images float32 (B, classes).

        After `load_state_dict`, the first call continues from the state. One iteration at a time.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the threads or workers. No more batches can be drawn."""

    def state_dict(self, *, epoch: int, steps_done: int) -> dict[str, Any]:
        """Return the position after `steps_done` steps of an epoch, as a JSON-able dict."""
        self._sampler.set_epoch(epoch)
        return self._sampler.state_dict(batches_done=steps_done)

    def load_state_dict(self, state: Mapping[str, Any], *, steps_done: int) -> None:
        """Start the next `epoch` after the `steps_done` steps that `state` counts as done.

        Raises:
            TrainError: the state is of other data, or of another global batch size.
        """
        then, passes = state.get("global_batch_size"), self._passes * self._sampler.world_size
        if isinstance(then, int) and then != self._sampler.global_batch_size:
            fitting, rest = divmod(then, passes)
            way_out = f"no --batch-size makes {then} of {passes} equal parts" if rest else f"use --batch-size {fitting}"
            raise TrainError(
                f"the checkpoint has a global batch of {then}, this run one of {self._sampler.global_batch_size}: "
                f"{way_out} with {self._passes} pass(es) a step on {self._sampler.world_size} process(es), "
                f"or --global-batch {then}"
            )
        try:
            self._sampler.load_state_dict(state)
        except (FastRecordError, TypeError, ValueError) as error:
            raise TrainError(str(error)) from error
        # After the last step the state is the next epoch's beginning.
        self._steps_done = steps_done % self._steps

    def stats(self) -> LoaderStats | None:
        """Return statistics of this rank's loader; None if the source does not measure them."""
        return None

    def take_skipped(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of records skipped since the last call, and the first of them, ready for JSON."""
        return 0, []


def derive_seed(*key: int) -> int:
    """Return a seed in [0, 2**63) for a tuple of numbers.

    Seeds of different tuples are unrelated; the same tuple gives the same seed on every machine.
    """
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
