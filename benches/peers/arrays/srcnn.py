"""SRCNN of Dong et al. (2014), and a training epoch whose time is split into phases."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import nn

from benches.peers.arrays import Batch

PHASES = ("data", "copy", "forward", "backward")
# What the unpadded convolutions of 9, 1 and 5 pixels take off the side of a patch.
BORDER = 12


def make() -> nn.Sequential:
    """Return the paper's network of convolutions 9-1-5 with 64 and 32 features, for RGB.

    Its input is a patch that is already enlarged to the size of the result. As in the paper's
    training nothing is padded, so the result is the inner part, `BORDER` pixels smaller.
    """
    return nn.Sequential(nn.Conv2d(3, 64, 9), nn.ReLU(), nn.Conv2d(64, 32, 1), nn.ReLU(), nn.Conv2d(32, 3, 5))


class Trainer:
    """Trains SRCNN by mean squared error and Adam, on the GPU if there is one."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = make().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-4)

    def epoch(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Train on all batches; return the seconds of each phase, whose sum is the epoch's time.

        The phases: `data`, waiting for a batch; `copy`, moving it to the device and making it
        floats; `forward`, with the loss; `backward`, with the update. On a GPU each phase ends with
        a synchronisation; otherwise its time would appear in a later one.
        """
        spent, last = dict.fromkeys(PHASES, 0.0), time.perf_counter()

        def end(phase: str) -> None:
            nonlocal last
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            spent[phase] += now - last
            last = now

        for batch in batches:
            end("data")
            inputs, target = (self._copied(batch[name]) for name in ("lr", "hr"))
            end("copy")
            loss = nn.functional.mse_loss(self._model(inputs), target)
            end("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._optimizer.zero_grad()
            end("backward")
        end("data")
        return spent

    def _copied(self, patches: torch.Tensor) -> torch.Tensor:
        """Return uint8 (B, H, W, 3) as floats (B, 3, H, W) on the device, in channels_last memory."""
        return patches.to(self.device, non_blocking=True).permute(0, 3, 1, 2).float().div_(255)
