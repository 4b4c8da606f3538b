"""Train ResNet-50 under Ray Train with FastRecordLoader, and resume in the middle of an epoch.

    python examples/ray_train.py train/ --out runs --workers 8 --gpu --epochs 90
    python examples/ray_train.py train.frec --out runs --workers 2 --model tiny --image-size 32

Each worker makes its share of every global batch, by the sampler's rule: all records come once an
epoch, whatever the number of workers. A checkpoint holds the model, the optimizer and the loader's
state. If a worker or a machine is lost, Ray Train starts the workers again, and they continue after
the last checkpoint: with the next batch, not with the next epoch. If the whole job is lost, the same
command continues it, because its --out and --name are the same.

Needs `pip install "fastrecord[ray]"`. --out is on a file system that all machines share.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

import fastrecord as fr


def make_model(name: str, classes: int) -> nn.Module:
    """Return a model of torchvision, or "tiny": two layers, to try the script."""
    if name == "tiny":
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)
        )
    found: nn.Module = models.get_model(name, num_classes=classes)
    return found


def digest(model: nn.Module) -> str:
    """Return a digest of all weights: equal runs have equal ones."""
    state = torch.cat([value.detach().flatten().double().cpu() for value in model.state_dict().values()])
    return hashlib.sha256(state.numpy().tobytes()).hexdigest()[:16]


def train_loop(config: dict[str, Any]) -> None:
    """Train in one worker; Ray Train calls it in all of them, and again after a failure."""
    if config["deterministic"]:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(config["seed"])
    device = ray.train.torch.get_device()
    dataset = fr.FastRecordDataset(config["data"])
    sampler = fr.FastRecordBatchSampler(dataset, config["batch_size"], seed=config["seed"], drop_last=True)
    loader = fr.FastRecordLoader(
        dataset,
        batch_sampler=sampler,
        sample=[fr.transforms.RandomResizedCrop(config["image_size"]), fr.transforms.RandomHorizontalFlip()],
        threads=config["threads"],
        delivery=fr.Delivery(device=device, dtype=torch.float32),
    )
    plain = make_model(config["model"], len(dataset.class_to_idx)).to(device)
    model = ray.train.torch.prepare_model(plain)
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], momentum=0.9, weight_decay=1e-4)
    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location=device, weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]

    def report(loss: float) -> None:
        done = loader.state_dict()
        metrics = {"step": step, "epoch": done["epoch"], "loss": loss, "weights": digest(plain)}
        if ray.train.get_context().get_world_rank() > 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            # The loader's state counts global batches: it is the same in all workers, of any number.
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "loader": done}
            torch.save(state | {"step": step}, Path(folder, "state.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))

    model.train()
    while loader.state_dict()["epoch"] < config["epochs"]:
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            # After the last batch of an epoch the state is the start of the next one.
            if step % config["checkpoint_every"] == 0 or loader.state_dict()["batches_done"] == 0:
                report(loss.item())


def main() -> None:
    """Parse the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a data set with labels: a .frec file, or a folder of shards")
    parser.add_argument("--out", required=True, help="folder for checkpoints, which all machines share")
    parser.add_argument("--name", default="resnet50", help="name of the run in it; the same name continues a run")
    parser.add_argument("--address", help="address of a Ray cluster; by default a new one on this machine")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("--model", default="resnet50", help='a model of torchvision, or "tiny"')
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=64, help="of a worker")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="loader threads of a worker")
    parser.add_argument("--checkpoint-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--max-failures", type=int, default=10, help="lost workers that the run survives")
    parser.add_argument("--deterministic", action="store_true", help="equal runs on CPUs have equal weights")
    options = parser.parse_args()
    if options.address is None:
        ray.init(num_cpus=options.workers, include_dashboard=False)
    else:
        ray.init(address=options.address)
    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config=vars(options) | {"data": str(Path(options.data).absolute())},
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        run_config=ray.train.RunConfig(
            name=options.name,
            storage_path=str(Path(options.out).absolute()),
            failure_config=ray.train.FailureConfig(max_failures=options.max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    print(json.dumps(result.metrics))


if __name__ == "__main__":
    main()
