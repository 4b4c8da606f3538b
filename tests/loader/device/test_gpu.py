"""Batches on a GPU: what the CPU makes, whatever the streams do."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastrecord.transforms import CenterCrop
from tests.support import patches as arrays
from tests.support.child import ROOT, run_child
from tests.support.loader_kinds import Kind
from tests.support.loading import make, photo, write_payloads

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_load_thread_is_left")]

CUDA = "cuda"
# Clock cycles: some ten milliseconds.
LONG = 50_000_000


def occupy_stream(cycles: int = LONG) -> None:
    """Keep the current stream busy for so many clock cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def host(value: Any) -> Any:
    """Return a value with its tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: host(item) for name, item in value.items()}
    return type(value)(host(item) for item in value) if isinstance(value, (list, tuple)) else value


def contents(kind: Kind, batches: Iterable[Any]) -> list[Any]:
    """Return what identifies the batches of any device."""
    return kind.contents([host(batch) for batch in batches])


@pytest.mark.parametrize("pin_memory", [True, False, "auto"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_all_batches_of_an_epoch_are_kept_unchanged_on_the_device(kind: Kind, prefetch: int, pin_memory: Any) -> None:
    loader = kind.make(shuffle=True, device=CUDA, prefetch=prefetch, pin_memory=pin_memory)
    plain = kind.make(shuffle=True)
    for _ in range(2):
        kept = list(loader)
        first = next(iter(kept[0].values() if isinstance(kept[0], dict) else kept[0]))
        assert first.device == torch.device(CUDA, torch.cuda.current_device())
        assert contents(kind, kept) == kind.contents(plain)


def test_all_fields_of_a_batch_arrive(photos: Path, patches: Path) -> None:
    extra = {"fields": ("image", "label", "weight", "key")}
    for moved, stays in zip(make(photos, 8, device=CUDA, **extra), make(photos, 8, **extra), strict=True):
        assert [value.is_cuda for value in moved.values() if isinstance(value, torch.Tensor)] == [True] * 3
        assert arrays.plain(host([*moved.values()])) == arrays.plain([*stays.values()])
    options: dict[str, Any] = {"ragged": {"tokens": "packed"}}
    given = arrays.make(patches, 8, device=CUDA, **options), arrays.make(patches, 8, **options)
    for moved, stays in zip(*given, strict=True):
        assert {name: arrays.plain(host(value)) for name, value in moved.items()} == {
            name: arrays.plain(value) for name, value in stays.items()
        }


@pytest.mark.parametrize("pin_memory", [True, False])
def test_memory_is_not_reused_before_the_work_that_reads_it_is_done(photos: Path, pin_memory: bool) -> None:
    sums = []
    for images, labels in make(photos, 4, device=CUDA, pin_memory=pin_memory):
        occupy_stream()  # the loader is batches ahead when the next line is reached on the device
        sums.append(images.double().sum() + labels.sum())
        del images, labels
    expected = [images.double().sum() + labels.sum() for images, labels in make(photos, 4)]
    assert torch.stack(sums).tolist() == torch.stack(expected).tolist()


def test_work_waits_for_a_slow_copy(photos: Path) -> None:
    loader = make(photos, 4, device=CUDA)
    stream = loader._destination.stream
    sums = []
    with torch.cuda.stream(stream):
        occupy_stream()
    for images, labels in loader:
        sums.append(images.double().sum() + labels.sum())
        with torch.cuda.stream(stream):
            occupy_stream()
    expected = [images.double().sum() + labels.sum() for images, labels in make(photos, 4)]
    assert torch.stack(sums).tolist() == torch.stack(expected).tolist()


def test_a_batch_may_be_used_on_the_stream_that_is_current_when_it_is_drawn(kind: Kind) -> None:
    streams: list[Any] = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    found: list[Any] = []
    batches = iter(kind.make(device=CUDA))
    for number in range(kind.batches):
        with torch.cuda.stream(streams[number % 2]):
            occupy_stream(LONG // 10)
            batch = next(batches)
            values = batch if isinstance(batch, dict) else dict(enumerate(batch))
            found.append({name: value.clone() if torch.is_tensor(value) else value for name, value in values.items()})
            del batch, values
    torch.cuda.synchronize()
    if kind.name == "images":
        found = [tuple(batch.values()) for batch in found]
    assert contents(kind, found) == kind.contents(kind.make())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_device_normalises(photos: Path, dtype: torch.dtype) -> None:
    for (made, _), (expected, _) in zip(
        make(photos, 8, device=CUDA, dtype=dtype), make(photos, 8, dtype=dtype), strict=True
    ):
        assert (made.is_cuda, made.dtype) == (True, dtype)
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(made.cpu().float(), expected.float(), rtol=0.01, atol=1e-5)


def test_without_a_device_batches_are_pinned_where_cuda_is(photos: Path) -> None:
    for images, labels in make(photos, 8):
        assert (images.is_pinned(), labels.is_pinned(), images.is_cuda) == (True, True, False)
    for images, labels in make(photos, 8, pin_memory=False):
        assert (images.is_pinned(), labels.is_pinned()) == (False, False)


def test_records_that_fail_or_that_pillow_decodes_are_as_on_the_cpu(tmp_path: Path) -> None:
    kinds = ["JPEG", "TIFF", "PNG", "JPEG2000"]
    payloads = [photo(number, kinds[number % 4]) for number in range(12)]
    payloads[5] = payloads[5][:40]
    path = write_payloads(tmp_path / "mixed.frec", payloads, images=False)
    options: dict[str, Any] = {"sample": CenterCrop(24), "on_error": "skip"}
    with pytest.warns(UserWarning, match="Pillow decodes"):
        moved = [host(batch) for batch in make(path, 4, device=CUDA, **options)]
    with pytest.warns(UserWarning, match="Pillow decodes"):
        stays = list(make(path, 4, **options))
    assert [len(labels) for _, labels in stays] == [4, 3, 4]
    assert arrays.plain(moved) == arrays.plain(stays)


def test_a_loader_that_was_used_pickles_and_can_be_used_again(kind: Kind) -> None:
    loader = kind.make(shuffle=True, device=CUDA)
    before = contents(kind, loader)
    again = pickle.loads(pickle.dumps(loader))
    loader.set_epoch(0)
    again.set_epoch(0)
    assert contents(kind, loader) == contents(kind, again) == before


@pytest.mark.parametrize("stop", [1, 3])
def test_an_iteration_may_be_left_with_copies_under_way(kind: Kind, stop: int) -> None:
    expected = kind.contents(kind.make())
    loader = kind.make(device=CUDA)
    for _ in range(5):
        batches = iter(loader)
        kept = [next(batches) for _ in range(stop)]
        del batches
        assert contents(kind, kept) == expected[:stop]
        loader.set_epoch(0)


@pytest.mark.parametrize("use", ["", "torch.zeros(1, device='cuda')"])
def test_a_process_forked_after_cuda_was_used_takes_plain_memory(photos: Path, use: str) -> None:
    script = f"""
    import os, sys, warnings
    sys.path.insert(0, {str(ROOT)!r})
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    import torch
    from pathlib import Path
    from tests.support.loading import epoch, make
    loader = make(Path({photos.name!r}), 4)
    expected = epoch(loader)
    assert expected.numel() and next(iter(loader))[0].is_pinned()
    {use}
    loader.set_epoch(0)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        same = all(
            images.numpy().tobytes() == part.numpy().tobytes()
            for (images, _), part in zip(loader, expected.split(4))
        )
        os._exit(0 if same else 1)
    print(os.waitpid(child, 0)[1])
    """
    assert run_child(script, photos.parent) == "0\n"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_loader_of_the_second_gpu_leaves_the_first_one_alone(photos: Path) -> None:
    script = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    import torch
    from pathlib import Path
    from tests.support.loading import make
    images, labels = next(iter(make(Path({photos.name!r}), 4, device="cuda:1", dtype=torch.float32)))
    assert images.device.index == labels.device.index == 1
    print(torch._C._cuda_hasPrimaryContext(0))
    """
    assert run_child(script, photos.parent) == "False\n"


def test_a_batch_transform_gets_the_batch_on_the_device(photos: Path) -> None:
    seen: list[torch.device] = []

    def note(batch: Any, _: Any) -> Any:
        seen.append(batch[0].device)
        return batch[0].float().mean((1, 2, 3)), batch[1]

    means = torch.cat([mean for mean, _ in make(photos, 8, device=CUDA, batch_transform=note)])
    expected = torch.cat([images.float().mean((1, 2, 3)) for images, _ in make(photos, 8)])
    assert {device.type for device in seen} == {"cuda"}
    assert torch.allclose(means.cpu(), expected, rtol=1e-5)
