"""The leak detector finds leaks."""

from __future__ import annotations

import gc
import os
import random
import sys
from pathlib import Path

import pytest

import fastrecord as fr
from tests.support.child import run_child
from tests.torture import known
from tests.torture.loaders.leaks import Samples, slope
from tests.torture.processes import descendants, identity, still_there

ROOT = Path(__file__).parents[2]

# Each step leaves PLANT bytes: a Python list, or memory outside of Python's allocator.
PLANTED = """
import ctypes
sys.path.insert(0, {root!r})
from tests.torture.loaders.leaks import watch
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
kept = []
def step():
    fr.Reader("a.frec").read_batch([1, 2, 3])
    {leak}
write("a.frec", 5, mode="w")
failures, samples = watch(3000, [step], [], 30)
assert failures == [], failures
print(len(samples.leaks()[0]), samples.leaks())
"""


def leaks_of(tmp_path: Path, leak: str) -> str:
    return run_child(PLANTED.format(root=str(ROOT), leak=leak), tmp_path, timeout=300)


def test_a_kibibyte_that_each_loader_leaves_is_seen(tmp_path: Path) -> None:
    assert leaks_of(tmp_path, "pass").startswith("0 ")
    assert leaks_of(tmp_path, "ctypes.memset(libc.malloc(1024), 1, 1024)").startswith("1 ")
    # Found by the object check only: too small to be seen in pages.
    assert leaks_of(tmp_path, "kept.append(bytearray(100))").startswith("1 ")


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_what_is_read_leaves_nothing_once_it_is_let_go(tmp_path: Path, access: str) -> None:
    schema = fr.Schema({name: kind for name, (kind, _) in known.FIELDS.items()})
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        for number in range(4):
            writer.append(known.record(1, number, schema))
    reader = fr.Reader(tmp_path / "a.frec", access)

    def read() -> None:
        for name in schema:
            reader.get(3, name)
            list(reader.read_batch([2, 3], [name])[name])
        assert len(reader[3]) == len(reader.schema)

    for _ in range(20):
        read()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        read()
    gc.collect()
    assert (sys.getallocatedblocks() - before) / 500 < 2


def test_a_slope_is_seen_through_noise_and_steps() -> None:
    draw = random.Random(1)
    made = range(100, 10_001, 100)
    noise = [draw.randrange(200_000) + (5_000_000 if number % 17 == 0 else 0) for number in made]
    assert abs(slope(made, noise)) < 10
    assert 990 < slope(made, [1000 * number + more for number, more in zip(made, noise, strict=True)]) < 1010


def test_few_loaders_may_grow_by_what_a_process_needs_and_no_more() -> None:
    assert Samples([10, 20], [0, 1 << 20], [0, 0]).leaks()[0] == []
    assert Samples([10, 20], [0, 1 << 30], [0, 0]).leaks()[0] != []


def test_processes_that_go_on_are_seen() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    there = identity(child)
    assert there in descendants(os.getpid())
    assert still_there([there], seconds=0.1) == [there]
    os.close(write)
    assert still_there([there]) == []
    os.waitpid(child, 0)
    os.close(read)
