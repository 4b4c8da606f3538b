"""A loader's threads and memory: when they exist, and their release after every ending."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord import _core
from fastrecord.loader.sample import Sample
from fastrecord.transforms import Resize
from tests.support.loader_kinds import Kind
from tests.support.loading import load_threads, make, wait_for_load_threads
from tests.support.patches import expected, plain

pytestmark = pytest.mark.usefixtures("no_load_thread_is_left")


def test_threads_live_as_long_as_an_iteration(kind: Kind) -> None:
    loader = kind.make(threads=3)
    batches = iter(loader)
    assert load_threads() == []
    next(batches)
    assert loader.threads == 3
    wait_for_load_threads(3)
    assert sum(1 for _ in batches) == kind.batches - 1
    wait_for_load_threads(0)


def test_a_broken_loop_leaves_no_thread(kind: Kind) -> None:
    for _ in kind.make():
        wait_for_load_threads(2)
        break
    wait_for_load_threads(0)


def test_an_exception_in_the_loop_leaves_no_thread_once_it_was_handled(kind: Kind) -> None:
    loader = kind.make()

    def train() -> None:
        for _ in loader:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        train()
    gc.collect()
    wait_for_load_threads(0)
    assert len(list(loader)) == kind.batches


def test_a_forgotten_iterator_or_loader_leaves_no_thread(kind: Kind) -> None:
    loader = kind.make()
    batches = iter(loader)
    next(batches)
    del loader
    # Like its caller, it does not need its loader.
    assert kind.contents([next(batches)]) == kind.contents(kind.make())[1:2]
    del batches
    wait_for_load_threads(0)
    iter(kind.make())
    wait_for_load_threads(0)
    batches = iter(kind.make(1, prefetch=0))
    next(batches)
    del batches
    wait_for_load_threads(0)


def test_closing_ends_threads_and_a_closed_iteration_raises_instead_of_waiting(kind: Kind) -> None:
    loader = kind.make(1, prefetch=0)
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    loader.close()
    wait_for_load_threads(0)
    for batches in (first, second):
        with pytest.raises(RuntimeError, match=r"the loader's threads were closed .*: iterate anew"):
            list(batches)
    loader.close()
    with loader as same:
        assert same is loader
        batches = iter(loader)
        next(batches)
    wait_for_load_threads(0)
    with pytest.raises(RuntimeError, match="iterate anew"):
        list(batches)
    assert len(list(loader)) == kind.count


def test_iterating_in_another_thread_gives_the_same(kind: Kind) -> None:
    batches = iter(kind.make(5, shuffle=True, seed=1))
    found = kind.contents(itertools.islice(batches, 3))
    thread = threading.Thread(target=lambda: found.extend(kind.contents(batches)))
    thread.start()
    thread.join()
    assert found == kind.contents(kind.make(5, shuffle=True, seed=1))


def test_a_loader_and_its_iterator_are_freed_without_the_garbage_collector(kind: Kind) -> None:
    loader = kind.make()
    reference = weakref.ref(loader)
    gc.disable()
    try:
        next(iter(loader))
        del loader
        assert reference() is None
    finally:
        gc.enable()


def test_lent_memory_of_a_batch_that_nobody_waits_for_is_let_go(photos: Path) -> None:
    dataset = fr.FastRecordDataset(photos)
    spec = Sample.of(dataset, Resize((24, 24)), None).pictures["image"].spec(["image"])
    plan = _core.LoadPlan([(reader, ["image"]) for reader in dataset.readers], [spec])
    numbers = np.arange(4)
    for wait in (True, False):
        loading = plan.start(2)
        memory = np.zeros(4 * 24 * 24 * 3, np.uint8)
        load = loading.submit(0, 0, numbers, numbers, [memory])
        if wait:
            assert load.wait() == ([], [])
            assert memory.any()
        before = sys.getrefcount(memory)
        loading.close()
        del load
        assert sys.getrefcount(memory) == before - (not wait)


def test_lent_memory_of_several_types_is_filled_in_place(patches: Path) -> None:
    plan = _core.LoadPlan([(fr.Reader(patches), ["mean", "flag"])], [None, None])
    loading = plan.start(2)
    memory = [np.zeros(6 * 80, np.uint8), np.zeros(6, np.uint8)]
    rows = np.arange(6)
    assert loading.submit(0, 0, rows, None, memory).wait() == ([], [])
    assert plain(torch.from_numpy(memory[0]).view(torch.bfloat16).view(6, 40)) == plain(expected(range(6))["mean"])
    assert memory[1].tolist() == [1, 0, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"6 rows need buffers of .* bytes"):
        loading.submit(0, 0, rows, None, memory[:1])
    with pytest.raises(ValueError, match="6 rows and 3 positions"):
        loading.submit(0, 0, rows, rows[:3])
    loading.close()


def test_threads_are_the_cpus_shared_among_the_local_processes(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(os.sched_getaffinity(0))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert make(photos, threads=None).threads == cpus
    for size, threads in ((1, cpus), (2, max(1, cpus // 2)), (10_000, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
        assert make(photos, threads=None).threads == threads
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert make(photos, threads=None).threads == cpus
