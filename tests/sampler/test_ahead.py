"""The prefetch of a shuffle by blocks: complete, once, in time, in file order, evenly."""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import fastrecord as fr
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.read_ahead import ReadAhead
from fastrecord.sampler.state import Last
from tests.sampler.test_sampler import LAST, ranks

runs = st.tuples(
    st.integers(12, 400),  # records
    st.integers(1, 6),  # batch size
    st.integers(1, 2),  # ranks
    st.integers(1, 40),  # block
    st.integers(1, 12),  # window
    st.sampled_from(LAST),
)


def named(sampler: FastRecordBatchSampler) -> list[list[int]]:
    """Return the records named for prefetch with each batch of an iteration."""
    spans = list(sampler._spans(sampler._begin()))
    assert all(span.ahead is not None and span.ahead.dtype == np.int64 for span in spans)
    return [span.ahead.tolist() for span in spans if span.ahead is not None]


def read_ahead(sampler: FastRecordBatchSampler) -> ReadAhead:
    ahead = sampler._read_ahead(sampler._epoch(0))
    assert ahead is not None
    return ahead


@given(runs, st.data())
def test_every_record_is_named_once_and_before_its_turn_on_each_rank_after_a_resume_too(
    shape: tuple[int, int, int, int, int, Last], data: st.DataObject
) -> None:
    n, batch_size, world_size, block, window, last = shape
    blocks = fr.Blocks(records=block, window=window)
    samplers = ranks(n, batch_size, world_size, shuffle=blocks, drop_last=last)
    done = data.draw(st.integers(0, len(samplers[0]) - 1))
    state = samplers[0].state_dict(batches_done=done)
    for sampler in samplers:
        sampler.load_state_dict(state)
        known: set[int] = set()
        rest = range(done, len(sampler))
        for batch, rows in zip(rest, named(sampler), strict=True):
            assert not known & set(rows)
            known |= set(rows)
            # Padding of the last batch is from the first window and is not read again.
            wrapped = last == "pad" and (batch + 1) * sampler.global_batch_size > n
            assert wrapped or set(sampler.indices(batch, epoch=0).tolist()) <= known
        exact = FastRecordBatchSampler(
            range(n),
            batch_size,
            shuffle=fr.Blocks(records=block, window=window),
            rank=sampler.rank,
            world_size=world_size,
            drop_last=True if last is True else "exact",
        )
        own = [exact.indices(batch).tolist() for batch in range(done, len(exact))]
        assert known == set(itertools.chain.from_iterable(own))


def test_a_window_is_named_in_the_order_of_the_file_at_the_pace_of_the_one_before() -> None:
    sampler = FastRecordBatchSampler(range(64_000), 64, shuffle=fr.Blocks(records=32, window=100))
    batches = named(sampler)
    assert len(batches[0]) == 3200 + 64  # includes its own window
    assert {len(rows) for rows in batches[1:950]} == {64}
    assert {len(rows) for rows in batches[950:]} == {0}  # the last window has no successor
    for start in range(50, 900, 50):
        window = list(itertools.chain.from_iterable(batches[start : start + 50]))
        assert window == sorted(window)
        coming = [sampler.indices(batch, epoch=0).tolist() for batch in range(start + 50, start + 100)]
        assert window == sorted(itertools.chain.from_iterable(coming))
        breaks = sum(b != a + 1 for a, b in itertools.pairwise(window))
        assert breaks < 100  # whole blocks of 32 neighbours


def test_ranks_together_name_whole_blocks_and_no_record_twice() -> None:
    samplers = ranks(6400, 16, 4, shuffle=fr.Blocks(records=32, window=10))
    shares = [named(sampler) for sampler in samplers]
    first = sorted(row for share in shares for row in share[0])
    assert len(first) == len(set(first))
    everything = sorted(row for share in shares for rows in share for row in rows)
    assert everything == list(range(6400))


def test_a_batch_that_does_not_follow_names_the_rest_of_its_own_window() -> None:
    sampler = FastRecordBatchSampler(range(6400), 64, shuffle=fr.Blocks(records=32, window=20))
    ahead = read_ahead(sampler)
    ahead.indices(0)
    jumped = ahead.indices(35)  # half of the fourth window is left, and half of the fifth should have been named
    left = [sampler.indices(batch, epoch=0).tolist() for batch in range(35, 40)]
    coming = [sampler.indices(batch, epoch=0).tolist() for batch in range(40, 50)]
    rest = sorted(itertools.chain.from_iterable(left))
    assert jumped[: len(rest)].tolist() == rest
    assert jumped[len(rest) :].tolist() == sorted(itertools.chain.from_iterable(coming))[:384]


@pytest.mark.parametrize("shuffle", [True, False])
def test_without_blocks_nothing_is_named(shuffle: bool) -> None:
    sampler = FastRecordBatchSampler(range(100), 8, shuffle=shuffle)
    assert all(span.ahead is None for span in sampler._spans(sampler._begin()))


# --- the loader ---


@pytest.fixture
def noise(tmp_path: Path) -> tuple[Path, list[int]]:
    """A file of 96 images of about 20 KB, with the offset of each payload."""
    path = tmp_path / "noise.frec"
    generator = np.random.default_rng(0)
    payloads = []
    for _ in range(96):
        stream = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (96, 96, 3), np.uint8)).save(stream, "JPEG", quality=90)
        payloads.append(stream.getvalue())
    with fr.Writer(path, {"image": fr.image(), "label": "int64"}) as writer:
        for label, payload in enumerate(payloads):
            writer.append({"image": payload, "label": label})
    data = path.read_bytes()
    return path, [data.index(payload) for payload in payloads]


def loader(path: Path, **options: Any) -> fr.FastRecordLoader:
    data = fr.FastRecordDataset(path, access="pread")
    sampler = FastRecordBatchSampler(data, 8, shuffle=fr.Blocks(records=4, window=4), seed=5)
    return fr.FastRecordLoader(
        data, batch_sampler=sampler, sample=[fr.transforms.Resize((16, 16))], threads=1, **options
    )


class PageCache:
    """Return the pages of a file that are in the page cache."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        os.fsync(self._file.fileno())
        # Uses an untouched mapping: a read would make the kernel fetch the pages.
        self._map = np.memmap(path, np.uint8, "r")
        self._pages = np.zeros(-(-len(self._map) // mmap.PAGESIZE), np.uint8)
        self._mincore = ctypes.CDLL(None, use_errno=True).mincore

    def drop(self) -> None:
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def has(self, offset: int) -> bool:
        address, size = self._map.ctypes.data, len(self._map)
        done = self._mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(self._pages.ctypes.data))
        assert done == 0, os.strerror(ctypes.get_errno())
        return bool(self._pages[offset // mmap.PAGESIZE] & 1)

    def close(self) -> None:
        self._file.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what is in the page cache")
def test_the_kernel_reads_the_next_window_while_batches_of_this_one_are_made(noise: tuple[Path, list[int]]) -> None:
    path, offsets = noise
    images = loader(path, delivery=fr.Delivery(prefetch=0))
    sampler = images.batch_sampler
    ahead = read_ahead(sampler)
    first = set(sampler.indices(0, epoch=0).tolist())
    coming = set(ahead.indices(0).tolist()) - first
    assert len(coming) == 16  # the other half of the window, and half of the next
    with images, contextlib.closing(PageCache(path)) as cache:
        batches = iter(images)
        cache.drop()
        if any(map(cache.has, offsets)):
            pytest.skip("this file system keeps what it is told to drop")
        next(batches)  # starts no other batch
        deadline = time.monotonic() + 60
        while not all(cache.has(offsets[row]) for row in coming):
            assert time.monotonic() < deadline, "not all records that were asked for have been read"
        later = set(range(96)) - coming - first
        assert not all(cache.has(offsets[row]) for row in later)
