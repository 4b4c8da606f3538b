"""Bytes of a copy that something else changes on the disk after they were checked: brought again, or blamed."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import fastrecord as fr
from tests.store.conftest import payload, write_shards
from tests.support.machines.stores import Fault, Server

_BAD = (3, 4, 21, 39)


@pytest.fixture
def url(server: Server, tmp_path: Path) -> str:
    return server.put_folder("mended", write_shards(tmp_path / "mended", shards=1))


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def _filled(url: str, server: Server, cache: Path, **more: Any) -> fr.FastRecordDataset:
    """Return a data set whose values are in the cache, with flipped bits in some of them."""
    options = {**server.options, "retry_seconds": 0.1}
    assert _together(fr.FastRecordDataset(url, fields=("data",), store=fr.Store(options, cache=cache)))
    (copy,) = cache.glob("*.frec")
    content = copy.read_bytes()
    for record in _BAD:
        _flip(copy, content.index(payload(record)[:64]) + 1000)
    return fr.FastRecordDataset(url, fields=("data",), store=fr.Store(options, cache=cache), **more)


def _one_by_one(dataset: fr.FastRecordDataset) -> list[bytes]:
    return [bytes(dataset[i]["data"]) for i in range(len(dataset))]


def _together(dataset: fr.FastRecordDataset) -> list[bytes]:
    return [bytes(value) for value in dataset.readers[0].read_batch(range(len(dataset)), ["data"])["data"]]


def _into_a_buffer(dataset: fr.FastRecordDataset) -> list[bytes]:
    out = bytearray(sum(dataset.readers[0].lengths("data")))
    ends = dataset.readers[0].read_batch_into(range(len(dataset)), "data", out)
    return [bytes(out[start:end]) for start, end in pairwise(ends)]


def _by_a_loader(dataset: fr.FastRecordDataset) -> list[bytes]:
    return [bytes(value) for batch in fr.FastRecordLoader(dataset, 8, shuffle=False) for value in batch["data"]]


def _by_workers(dataset: fr.FastRecordDataset) -> list[bytes]:
    loader = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    return [bytes(record["data"]) for batch in loader for record in batch]


def _after_verify(dataset: fr.FastRecordDataset) -> list[bytes]:
    assert dataset.readers[0].verify()["ok"]
    return _together(dataset)


_WAYS = [_one_by_one, _together, _into_a_buffer, _by_a_loader, _by_workers, _after_verify]


@pytest.mark.parametrize("read", _WAYS)
def test_values_damaged_in_a_copy_are_brought_again(
    url: str,
    server: Server,
    tmp_path: Path,
    read: Callable[[fr.FastRecordDataset], list[bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = _filled(url, server, tmp_path / "cache")
    server.requests.clear()
    with caplog.at_level(logging.WARNING, "fastrecord"):
        assert read(dataset) == [payload(i) for i in range(len(dataset))]
    if read is not _by_workers:
        assert "brought again, as the copy here was damaged" in caplog.text
    asked = len(server.requests)
    assert asked >= 1
    assert read(dataset) == [payload(i) for i in range(len(dataset))]
    assert len(server.requests) == asked


@pytest.mark.parametrize("read", _WAYS[:-1])
def test_a_damaged_copy_is_blamed_if_the_store_does_not_answer(
    url: str, server: Server, tmp_path: Path, read: Callable[[fr.FastRecordDataset], list[bytes]]
) -> None:
    dataset = _filled(url, server, tmp_path / "cache")
    assert len(dataset[0]["data"]) > 0
    server.faults.append(Fault("503", 1000))
    with pytest.raises(fr.FastRecordError, match=r"/cache/[^ ]*.frec, is damaged.*remove the copy.*FR212"):
        read(dataset)


def test_images_that_the_threads_decode_are_brought_again(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    draws = np.random.default_rng(0)
    images = [draws.integers(0, 255, (64, 64, 3), dtype=np.uint8) for _ in range(20)]
    fields = {"image": fr.image(), "label": fr.FieldType("int64")}
    with fr.Writer(folder / "a.frec", fr.Schema(fields)) as writer:
        for number, image in enumerate(images):
            head = b"P6 64 64 255\n"
            writer.append({"image": head + image.tobytes(), "label": number})
    fr.files.write_manifest(folder)
    url, cache = server.put_folder("images", folder), tmp_path / "cache"
    dataset = fr.FastRecordDataset(url, store=fr.Store(server.options, cache=cache))

    def pixels() -> list[list[int]]:
        loader = fr.FastRecordLoader(dataset, 6, sample=[fr.transforms.CenterCrop(64)], shuffle=False)
        return [image.flatten().tolist() for batch, _ in loader for image in batch]

    before = pixels()
    (copy,) = cache.glob("*.frec")
    content = copy.read_bytes()
    for number in (2, 9, 19):
        _flip(copy, content.index(images[number].tobytes()) + 500)
    dataset = fr.FastRecordDataset(url, store=fr.Store(server.options, cache=cache))
    assert pixels() == before


def test_bits_that_flip_anywhere_in_a_copy_in_use_are_mended(url: str, server: Server, tmp_path: Path) -> None:
    draws, cache = random.Random(0), tmp_path / "cache"
    expected = [payload(i) for i in range(40)]

    def opened() -> fr.FastRecordDataset:  # what one has checked, it does not check again
        return fr.FastRecordDataset(url, store=fr.Store(server.options, cache=cache))

    assert _together(opened()) == expected
    (copy,) = cache.glob("*.frec")
    size = copy.stat().st_size
    heads = (9, size - 9, size - 4000, size - 4200, size - 9000)
    for at in (*heads, *(draws.randrange(size) for _ in range(10))):
        _flip(copy, at)
        dataset = opened()
        assert _together(dataset) == expected
        assert dataset.readers[0].read_batch(range(40), ["key"])["key"] == [f"record-{i}" for i in range(40)]
