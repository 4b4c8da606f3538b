"""FastRecordLoader in frameworks that drive the training loop, and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fastrecord as fr
from fastrecord.transforms import CenterCrop
from tests.support.child import ROOT
from tests.support.loading import COUNT, epoch, make

pytestmark = pytest.mark.usefixtures("no_load_thread_is_left")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed:UserWarning")
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning")
def test_lightning_trains_on_it_as_on_any_iterable(photos: Path) -> None:
    lightning: Any = pytest.importorskip("lightning")

    class Recorder(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 1, 1)
            self.seen: list[tuple[int, torch.Tensor]] = []

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            images, _ = batch
            self.seen.append((self.current_epoch, images))
            loss: torch.Tensor = self.layer(images.float()).mean()
            return loss

        def validation_step(self, batch: list[torch.Tensor]) -> None:
            self.seen.append((-1, batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(use_distributed_sampler=False, **dict.fromkeys(quiet, False), **options)
    module = Recorder()
    trainer.fit(module, make(photos, shuffle=True), make(photos, sample=CenterCrop(24)))
    assert trainer.global_step == 12
    expected = make(photos, shuffle=True)
    for number in range(2):
        assert torch.equal(torch.cat([images for seen, images in module.seen if seen == number]), epoch(expected))
    assert sum(len(images) for seen, images in module.seen if seen == -1) == 2 * COUNT


RANK = """
import json, os, sys
import torch, torch.distributed as dist
import fastrecord as fr
from tests.support.loading import make
dist.init_process_group("gloo")
data = fr.FastRecordDataset("train.frec", fields=("image", "key"))
loader = make(data, 4, shuffle=True, seed=5, threads=None)
epochs = [[[batch["key"], batch["image"].sum((1, 2, 3)).tolist()] for batch in loader] for _ in range(2)]
out = [None, None]
dist.all_gather_object(out, {"epochs": epochs, "threads": loader.threads, "length": len(loader)})
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(out, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.ddp
def test_two_ranks_under_torchrun_share_the_batches_and_the_cpus(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RANK, encoding="utf-8")
    os.symlink(photos, tmp_path / "train.frec")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, *torchrun, "script.py", "out.json"]
    subprocess.run(command, check=True, timeout=110, cwd=tmp_path, env=environment)
    ranks = json.loads((tmp_path / "out.json").read_text())
    assert [rank["threads"] for rank in ranks] == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
    assert [rank["length"] for rank in ranks] == [3, 3]
    one = make(fr.FastRecordDataset(photos, fields=("image", "key")), 8, shuffle=True, seed=5)
    for number in range(2):
        # Global batches and crops equal those of a single process; the last batch is padded.
        batches = [[batch["key"], batch["image"].sum((1, 2, 3)).tolist()] for batch in one]
        for step, (keys, sums) in enumerate(batches):
            shares = [rank["epochs"][number][step] for rank in ranks]
            for part, values in enumerate((keys, sums)):
                mixed = [share[part][place] for place in range(4) for share in shares]
                assert mixed[: len(values)] == values
