"""How many records a FastRecordLoader iteration may skip before it ends, and its messages."""

from __future__ import annotations

import errno
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.loader.skip import EpochSkips, SkippedRecord, Skipper, as_skip
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from tests.support.commands import flip
from tests.support.loading import loader_of, make, photo, write_payloads, write_photos


def with_bad(path: Path, count: int, bad: range) -> Path:
    """Pack `count` records; `bad` ones are not images, and the others are the same photo."""
    good = photo(0)
    return write_payloads(path, [b"none" if number in bad else good for number in range(count)], images=False)


def drained(loader: Any) -> tuple[int, str]:
    """Return the number of images of an epoch, and the error that ended it."""
    images = 0
    try:
        for batch in loader:
            images += len(batch[0])
    except fr.FastRecordError as error:
        return images, str(error)
    return images, ""


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 100 records; 30 of them, from the 40th on, are not images."""
    return with_bad(tmp_path_factory.mktemp("bad") / "train.frec", 100, range(40, 70))


@pytest.mark.parametrize("most", [30, 0.3, 0.301, 1.0, None, 1000, np.int64(30), np.float64(0.5)])
def test_an_epoch_goes_on_while_no_more_is_skipped_than_allowed(thirty: Path, most: Any) -> None:
    loader = make(thirty, 8, on_error="skip", limit=most)
    for epoch in range(1, 4):  # each epoch counts separately
        assert drained(loader) == (70, "")
        assert loader.stats().skipped == len(loader.skipped) == 30 * epoch


@pytest.mark.parametrize(("most", "allowed"), [(29, 29), (0.299, 29), (0, 0), (0.0, 0), (0.001, 10), (8, 8)])
def test_one_more_ends_it_with_what_was_lost_and_what_to_do(thirty: Path, most: Any, allowed: int) -> None:
    loader = make(thirty, 10, on_error="skip", limit=most)
    # Batches are counted as a whole: records 40 to 49, and so on.
    count = 10 * (allowed // 10 + 1)
    images, said = drained(loader)
    assert images == 40
    assert re.match(
        rf"{count} of the epoch's first {40 + count} records could not be loaded: limit={most} allows {allowed} "
        rf"to be skipped in an epoch; the last ones: \S*train\.frec: record {37 + count}, key 'train/{37 + count}'; "
        rf"\S*train\.frec: record {38 + count}, key 'train/{38 + count}'; \S*train\.frec: record {39 + count}, "
        rf"key 'train/{39 + count}'; the reason of the last: .*not an image of a known type.*; "
        r"`fastrecord verify --deep \S*train\.frec` finds every bad record .*`fastrecord repair`",
        said,
    ), said
    # Batches that were returned are done; the failed one is not.
    assert loader.state_dict()["batches_done"] == 4 + allowed // 10
    assert loader.stats().skipped == count


def test_by_default_a_twentieth_may_be_lost(tmp_path: Path) -> None:
    some, more = (with_bad(tmp_path / f"{bad}.frec", 1200, range(9, 9 + bad)) for bad in (60, 61))
    assert drained(make(some, 100, on_error="skip")) == (1140, "")
    assert "limit=0.05 allows 60 to be" in drained(make(more, 100, on_error="skip"))[1]
    assert "limit=0.05 allows 60 to be" in drained(make(more, 100, on_error=lambda *_: None))[1]


def test_a_share_is_of_the_rank_s_part_of_the_epoch(tmp_path: Path) -> None:
    path = with_bad(tmp_path / "train.frec", 800, range(100, 140, 2))
    dataset = fr.FastRecordDataset(path)

    def lost(rank: int, share: float) -> str:
        sampler = FastRecordBatchSampler(dataset, 50, shuffle=False, rank=rank, world_size=2)
        return drained(make(dataset, None, batch_sampler=sampler, on_error="skip", limit=share))[1]

    # All 20 bad records are even, and so on rank 0, which has 400 records.
    assert lost(0, 0.05) == ""
    assert "allows 19 to be skipped" in lost(0, 0.0499)
    assert lost(1, 0.0) == ""


def test_with_another_batch_sampler_a_share_is_of_the_data_set_or_of_the_records_so_far(tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(with_bad(tmp_path / "train.frec", 400, range(0, 40, 2)))

    def load(share: float, *batches: range) -> Any:
        # One of them is endless: its epoch has no length.
        sampler = itertools.cycle(list(batch) for batch in batches)
        return make(dataset, None, batch_sampler=sampler, on_error="skip", limit=share)

    # 20 of the first 40, but only 5 % of the data set.
    assert len(list(itertools.islice(load(0.05, range(40), range(100, 200)), 2))) == 2
    # Five of each 100, without end.
    assert sum(len(batch[0]) for batch in itertools.islice(load(0.05, range(30, 130)), 30)) == 2850
    images, said = drained(load(0.0499, range(30, 130)))
    # 20 of 400 are more than 4.99 %.
    assert images == 3 * 95
    assert said.startswith("20 of the epoch's first 400 records could not be loaded: limit=0.0499 allows 19 ")


def test_batches_of_arrays_are_bounded_alike(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "sound.frec", fr.Schema({"data": fr.bytes_(), "key": fr.string()})) as writer:
        for number in range(40):
            writer.append({"data": bytes([number]) * 64, "key": f"k{number}"})
    data = (tmp_path / "sound.frec").read_bytes()
    for number in (3, 17, 18):
        data = data.replace(bytes([number]) * 64, bytes([number]) * 63 + b"\xff")
    (tmp_path / "train.frec").write_bytes(data)
    dataset = fr.FastRecordDataset(tmp_path / "train.frec", fields=("data", "key"))
    for prefetch in (0, 2):
        loader = loader_of(dataset, 4, on_error="skip", limit=3, prefetch=prefetch)
        assert sum(len(batch["key"]) for batch in loader) == 37
        loader = loader_of(dataset, 4, on_error="skip", limit=2, prefetch=prefetch)
        with pytest.raises(fr.FastRecordError, match=r"3 of the epoch's first 20 .*record 18, key 'k18'"):
            list(loader)
        assert loader.state_dict()["batches_done"] == 4


def test_a_resumed_iteration_counts_from_its_start(thirty: Path) -> None:
    loader = make(thirty, 10, on_error="skip", limit=20)
    batches = iter(loader)
    # From record 50 on.
    list(itertools.islice(batches, 4))
    state = loader.state_dict()
    assert state["batches_done"] == 4
    state["batches_done"] = 5
    resumed = make(thirty, 10, on_error="skip", limit=20)
    resumed.load_state_dict(state)
    # Each loader reports only its own skipped records.
    assert resumed.stats().skipped == len(resumed.skipped) == 0
    assert drained(resumed) == (30, "")
    assert resumed.stats().skipped == len(resumed.skipped) == 20


def test_a_callable_is_told_before_the_bound_ends_the_epoch(tmp_path: Path) -> None:
    write_photos(tmp_path / "sound.frec", 12)
    flip(tmp_path / "sound.frec", tmp_path / "one.frec", record=2)
    flip(tmp_path / "one.frec", tmp_path / "train.frec", record=9)
    told: list[SkippedRecord] = []
    loader = make(tmp_path / "train.frec", 4, on_error=lambda _, record: told.append(record), limit=1)
    images, said = drained(loader)
    assert images == 7
    assert [record.key for record in told] == ["sound/2", "sound/9"]
    assert said.startswith("2 of the epoch's first 12 records could not be loaded: limit=1 allows 1 ")
    assert "the payload is damaged" in said


@pytest.mark.parametrize("decide", ["skip", lambda *_: None])
def test_an_error_of_the_disk_is_never_skipped(tmp_path: Path, decide: Any) -> None:
    dataset = fr.FastRecordDataset(write_photos(tmp_path / "train.frec", 4))
    skips = EpochSkips(Skipper(as_skip(decide), dataset), 4, may_fall_short=True)
    failure = OSError(errno.EIO, "Input/output error", "train.frec")
    with pytest.raises(OSError, match="Input/output error") as caught:
        skips.keep(np.arange(4), [(2, failure)])
    assert caught.value.errno == errno.EIO
    assert re.fullmatch(r".*train\.frec: record 2, key 'train/2'", caught.value.__notes__[0])


@pytest.mark.parametrize(
    ("most", "error", "message"),
    [
        (-1, ValueError, "limit is at least 0, not -1"),
        (-0.1, ValueError, "limit is a share of an epoch's records from 0.0 to 1.0, or .* as an int, not -0.1"),
        (1.5, ValueError, "limit is a share"),
        (float("nan"), ValueError, "limit is a share"),
        (True, TypeError, "limit is an int, not a bool"),
        ("1%", TypeError, "limit is an int, not str"),
    ],
)
def test_a_limit_that_is_not_allowed_is_refused(most: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fr.Skip(limit=most)
