"""What the engine draws batches from, and what all such sources share: the sampler and its state."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from fastrecord import FastRecordBatchSampler, FastRecordDataset, FastRecordError, LoaderStats
from fastrecord.train.config import TrainConfig, TrainError
from fastrecord.train.distributed import Ranks

Batch = tuple[torch.Tensor, torch.Tensor]


class Batches(Protocol):
    """A source of batches. One optimizer step takes `accumulate` batches, one after the other."""

    def __len__(self) -> int:
        """Return the optimizer steps (in evaluation: the batches) of an epoch for this rank."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Iterate over this rank's batches of an epoch: images, uint8 (B, 3, S, S); labels, int64 (B,).

        After `load_state_dict`, the first call goes on where the state was taken. One iteration at a time.
        """
        ...

    def state_dict(self, *, epoch: int, steps_done: int) -> dict[str, Any]:
        """Return where a run stands after `steps_done` optimizer steps of an epoch, as a JSON-able dict."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, steps_done: int) -> None:
        """Let the next `epoch` start behind the `steps_done` optimizer steps that `state` was taken after."""
        ...

    def stats(self) -> LoaderStats | None:
        """Return what this rank's loader has done since it was made; None if the source does not measure it."""
        ...

    def take_skipped(self) -> tuple[int, list[dict[str, Any]]]:
        """Return how many records this rank has skipped since it was last asked, and the first of them."""
        ...

    def close(self) -> None:
        """End the threads or workers. Nothing can be drawn any more."""
        ...


class SampledBatches:
    """The part of `Batches` that does not depend on how records become tensors.

    Training goes through shuffled, whole global batches, the last one filled up by wrapping round. Evaluation goes in
    order, with each record exactly once over all ranks.

    Args:
        dataset: What the sampler numbers.
        config: Batch size, accumulation, shuffle, seed.
        ranks: The processes that share each global batch.
        training: Which of the two.
    """

    def __init__(self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks, *, training: bool) -> None:
        self._passes = config.accumulate if training else 1
        self._sampler = FastRecordBatchSampler(
            dataset,
            config.batch_size * self._passes,
            shuffle=("blocks" if config.shuffle == "blocks" else True) if training else False,
            seed=config.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
            tail="pad" if training else "exact",
        )
        self._steps = len(self._sampler)
        # Those of the next epoch that a loaded state has behind it.
        self._steps_done = 0

    def __len__(self) -> int:
        return self._steps

    def state_dict(self, *, epoch: int, steps_done: int) -> dict[str, Any]:
        """See `Batches.state_dict`."""
        self._sampler.set_epoch(epoch)
        return self._sampler.state_dict(batches_done=steps_done)

    def load_state_dict(self, state: Mapping[str, Any], *, steps_done: int) -> None:
        """See `Batches.load_state_dict`.

        Raises:
            TrainError: the state was taken of other data, or with another global batch size.
        """
        then, passes = state.get("global_batch_size"), self._passes * self._sampler.world_size
        if isinstance(then, int) and then != self._sampler.global_batch_size:
            fitting, rest = divmod(then, passes)
            raise TrainError(
                f"the checkpoint has a global batch of {then}, this run one of {self._sampler.global_batch_size}: "
                + (
                    f"use --batch-size {fitting}"
                    if rest == 0
                    else f"no --batch-size makes {then} of {passes} equal parts"
                )
                + f" with {self._passes} pass(es) a step on {self._sampler.world_size} process(es)"
            )
        try:
            self._sampler.load_state_dict(state)
        except (FastRecordError, TypeError, ValueError) as error:
            raise TrainError(str(error)) from error
        self._steps_done = steps_done

    def stats(self) -> LoaderStats | None:
        """See `Batches.stats`."""
        return None

    def take_skipped(self) -> tuple[int, list[dict[str, Any]]]:
        """See `Batches.take_skipped`."""
        return 0, []


def derive_seed(*key: int) -> int:
    """Return a seed in [0, 2**63) for a tuple of numbers: unrelated for any two tuples, equal on every machine."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
