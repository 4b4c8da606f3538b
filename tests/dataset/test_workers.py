"""FastRecordDataset under torch's DataLoader: start methods, samplers, wrappers, worker errors."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

import fastrecord as fr
from tests.conftest import encode, folder_records
from tests.support.commands import flip_in

WORKERS = 2


def records(loader: DataLoader[Any]) -> list[tuple[bytes, int]]:
    """Return all samples of an epoch, in order, as bytes and label."""
    return [sample for data, labels in loader for sample in zip(data, labels.tolist(), strict=True)]


def worker_loader(dataset: Dataset[Any], start_method: str = "fork", **options: Any) -> DataLoader[Any]:
    """Return a loader of batches of 5 with two workers."""
    defaults: dict[str, Any] = {"batch_size": 5, "num_workers": WORKERS, "collate_fn": fr.collate}
    return DataLoader(dataset, multiprocessing_context=start_method, **(defaults | options))


@pytest.fixture
def expected(image_folder: Path) -> list[tuple[bytes, int]]:
    """The content of each record, in order."""
    return [(data, label) for data, label, _ in folder_records(image_folder)]


@pytest.mark.parametrize(
    ("start_method", "access"),
    [("fork", "mmap"), ("fork", "pread"), pytest.param("spawn", "mmap", marks=pytest.mark.slow)],
)
def test_workers_read_what_the_main_process_reads(
    packed: Path, expected: list[tuple[bytes, int]], start_method: str, access: str
) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None, access=access)
    # The parent uses its reader and threads first: a child must not inherit a dead pool.
    assert dataset.__getitems__(range(12)) == expected
    loader = worker_loader(dataset, start_method, persistent_workers=True)
    assert records(loader) == expected
    assert records(loader) == expected
    assert dataset.__getitems__(range(12)) == expected


def test_workers_decode_what_this_process_decodes(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, decode="native")
    # This process already has its thread pool: a forked worker must not wait for those threads.
    here = dataset.__getitems__(range(12))
    there = [sample for batch in worker_loader(dataset, collate_fn=list) for sample in batch]
    assert all(torch.equal(a, b) and m == n for (a, m), (b, n) in zip(here, there, strict=True))


@pytest.mark.parametrize("workers", [0, WORKERS])
def test_batches_of_tensors_are_those_of_image_folder(image_folder: Path, packed: Path, workers: int) -> None:
    transform = transforms.Compose([transforms.RandomCrop(24), transforms.ToTensor()])
    batches: list[list[Any]] = []
    for dataset, collate in (
        (fr.FastRecordDataset(packed, transform), fr.collate),
        (fr.FastRecordDataset(packed, transform), None),
        (ImageFolder(str(image_folder), transform), None),
    ):
        torch.manual_seed(3)
        batches.append(list(DataLoader(dataset, 5, shuffle=True, num_workers=workers, collate_fn=collate)))
    for ours, defaults, theirs in zip(*batches, strict=True):
        assert ours[0].dtype == torch.float32
        assert ours[1].dtype == torch.int64
        for column in range(2):
            assert torch.equal(ours[column], theirs[column])
            assert torch.equal(defaults[column], theirs[column])


def test_a_worker_collates_into_shared_memory(packed: Path) -> None:
    dataset = fr.FastRecordDataset(packed, transforms.Compose([transforms.CenterCrop(24), transforms.PILToTensor()]))
    for images, _ in worker_loader(dataset):
        assert images.dtype == torch.uint8
        assert images.is_shared()


def test_wrapped_data_sets_read_the_same_records_in_workers(packed: Path, expected: list[tuple[bytes, int]]) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None)
    assert records(worker_loader(Subset(dataset, [11, 0, 5, 5]))) == [expected[row] for row in (11, 0, 5, 5)]
    parts = random_split(dataset, [7, 5], torch.Generator().manual_seed(1))
    for part in parts:
        assert records(worker_loader(part)) == [expected[row] for row in part.indices]
    both: ConcatDataset[Any] = ConcatDataset([dataset, parts[1]])
    assert records(worker_loader(both)) == expected + [expected[row] for row in parts[1].indices]


def test_torchs_samplers_drive_it(packed: Path, expected: list[tuple[bytes, int]]) -> None:
    dataset = fr.FastRecordDataset(packed, decode=None)
    # Balanced by class, as scripts do it: from targets.
    weights = 1.0 / torch.bincount(torch.tensor(dataset.targets))[torch.tensor(dataset.targets)]
    makers: list[Callable[[], Sampler[int]]] = [
        lambda: RandomSampler(dataset, generator=torch.Generator().manual_seed(5)),
        lambda: WeightedRandomSampler(weights.tolist(), 30, generator=torch.Generator().manual_seed(5)),
        lambda: DistributedSampler(dataset, num_replicas=2, rank=1, seed=5),
    ]
    for make in makers:
        order = list(make())
        assert records(worker_loader(dataset, sampler=make())) == [expected[row] for row in order]
        assert len(order) in (12, 30, 6)


class WithProcess(fr.FastRecordDataset):
    """Returns each sample with the process that read it."""

    def __getitem__(self, index: int) -> Any:
        """Return (label, process id)."""
        return super().__getitem__(index)[1], os.getpid()


def test_a_subclass_that_changes_getitem_is_asked_in_workers_too(packed: Path) -> None:
    batches = list(worker_loader(WithProcess(packed)))
    assert [label for labels, _ in batches for label in labels.tolist()] == [0] * 5 + [1] * 3 + [2] * 4
    processes = {process for _, ids in batches for process in ids.tolist()}
    assert len(processes) == WORKERS
    assert os.getpid() not in processes


# --- errors cross from a worker to the main process with their type and message ---


def write(path: Path, payloads: Sequence[bytes]) -> Path:
    """Write a file with keys img0, img1, ..."""
    with fr.Writer(path, fr.Schema({"image": fr.bytes_(), "label": "int64", "key": fr.string()})) as writer:
        for number, payload in enumerate(payloads):
            writer.append({"image": payload, "label": number, "key": f"img{number}"})
    return path


def check_error(loader: DataLoader[Any], kind: type[Exception], words: str) -> None:
    """Check that an epoch ends with an error of this type whose message has these words."""
    with pytest.raises(kind) as caught:
        list(loader)
    assert re.search(words, str(caught.value))
    # torch's exception holds itself through its frames. If the garbage collector frees it, its
    # loader waits seconds for workers that it can no longer reach.
    traceback.clear_frames(caught.tb)


@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_corrupt_record_is_named_from_a_worker(tmp_path: Path, start_method: str) -> None:
    path = write(tmp_path / "a.frec", [encode(number) for number in range(8)])
    flip_in(path, encode(6))
    loader = worker_loader(fr.FastRecordDataset(path, decode=None), start_method)
    check_error(loader, fr.errors.CorruptFileError, r"a\.frec: record 6.*key 'img6'")


@pytest.mark.slow
def test_a_file_replaced_before_a_worker_opens_it_is_an_error_of_its_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.frec", [b"one", b"two"])
    # One worker: if an error ends torch's loader while a second worker starts, torch warns about
    # the end of that worker.
    loader = worker_loader(fr.FastRecordDataset(path, decode=None), "spawn", num_workers=1)
    path.unlink()
    write(path, [b"one", b"two"])
    check_error(loader, fr.FastRecordError, r"a\.frec")
