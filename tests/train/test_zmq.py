"""Batches from another process: docs/zmq.md, the producer, and what either side refuses."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.batches.base import Batch, Batches
from fastrecord.train.batches.messages import Request
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.distributed import Ranks
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.ladder import endless
from fastrecord.train.produce import FileAnswers, NoiseAnswers, Server
from fastrecord.train.produce import main as produce
from tests.support.commands import flip
from tests.support.training import (
    losses,
    numbers_of,
    read_rest,
    read_until,
    running,
    signalled,
    small_config,
    write_marked,
    write_numbered,
)

zmq = pytest.importorskip("zmq")
pytestmark = pytest.mark.usefixtures("one_thread")
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)
PAGE = Path(__file__).parents[2] / "docs/zmq.md"
REQUEST = Request(
    epoch=0,
    batch=0,
    batches=10,
    rank=0,
    world_size=1,
    records=76,
    classes=4,
    seed=0,
    shuffle="full",
    augment="none",
    size=8,
    image_size=32,
)


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"ipc://{tmp_path_factory.mktemp('z')}/b"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "fastrecord.train")
    return caplog


@contextmanager
def producing(*arguments: str | Path, address: str) -> Iterator[subprocess.Popen[str]]:
    """Run the producer in a process of its own."""
    with running("-m", "fastrecord.train.produce", *arguments, "--address", address) as process:
        read_until(process, "listening")
        yield process


@contextmanager
def opened(config: TrainConfig, rank: int = 0, world_size: int = 1) -> Iterator[Batches]:
    ranks = Ranks(rank, world_size, rank, world_size, torch.device("cpu"), None)
    batches = open_batches(open_datasets(config)[0], config, ranks, training=True)
    yield batches
    batches.close()


def equal(given: list[Batch], expected: list[Batch]) -> bool:
    return len(given) == len(expected) and all(
        torch.equal(images, others) and torch.equal(labels, numbers)
        for (images, labels), (others, numbers) in zip(given, expected, strict=True)
    )


@contextmanager
def own_producer(folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the producer of the page."""
    (program,) = re.findall(r'^```python title="producer.py"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert "fastrecord" not in program
    (folder / "producer.py").write_text(program)
    process = subprocess.Popen([sys.executable, folder / "producer.py", address])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# Whole runs


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A file of 48 records, and the address of the process that produces its batches."""
    folder = tmp_path_factory.mktemp("z")
    path = write_marked(folder / "train.frec", 48)
    with producing(path, address=f"ipc://{folder}/b"):
        yield path, f"ipc://{folder}/b"


def test_the_ranks_get_each_record_once_an_epoch_as_if_they_loaded_it(served: tuple[Path, str], tmp_path: Path) -> None:
    path, address = served
    config = small_config(path, tmp_path, augment="imagenet", accumulate=2, batch_size=4)
    orders = []
    for epoch in (0, 1):
        seen = []
        for rank in (0, 1):
            asking = dataclasses.replace(config, data="zmq", zmq_address=address)
            with opened(asking, rank, 2) as batches, opened(config, rank, 2) as expected:
                drawn = list(batches.epoch(epoch))
                assert len(drawn) == 2 * len(batches)
                assert all(images.shape == (4, 3, 32, 32) for images, _ in drawn)
                assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in drawn)
                assert equal(drawn, list(expected.epoch(epoch)))
                seen += [number for images, _ in drawn for number in numbers_of(images)]
        assert sorted(seen) == list(range(48))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_a_run_learns_what_it_would_from_the_file_stops_and_goes_on_in_mid_epoch(
    served: tuple[Path, str], tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    path, address = served
    options: dict[str, Any] = {"val": str(path), "augment": "imagenet", "accumulate": 2, "epochs": 2}
    whole = train(small_config(path, tmp_path / "whole", **options))
    options |= {"data": "zmq", "zmq_address": address}
    train(small_config(path, tmp_path / "parts", **options, max_steps=2))
    result = train(small_config(path, tmp_path / "parts", **options, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert result.val == whole.val
    assert f"--data zmq: the batches come from {address}" in log.text
    with pytest.raises(TrainError, match="was made with data 'zmq', not 'real'"):
        train(small_config(path, tmp_path / "parts", resume="auto"))


def test_a_run_stopped_during_evaluation_trains_its_next_epoch(served: tuple[Path, str], tmp_path: Path) -> None:
    path, address = served
    options: dict[str, Any] = {"val": str(path), "epochs": 2, "data": "zmq", "zmq_address": address}
    train(small_config(path, tmp_path / "whole", **options))
    with signalled("[6/6]", signal.SIGTERM):
        assert train(small_config(path, tmp_path / "parts", **options)).step == 6
    train(small_config(path, tmp_path / "parts", **options, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_the_producer_of_the_page_needs_nothing_of_fastrecord(colours: Path, tmp_path: Path, address: str) -> None:
    config = small_config(colours, tmp_path / "out", data="zmq", zmq_address=address, epochs=1)
    with own_producer(tmp_path, address):
        assert train(config).step == 10
        with opened(config) as batches:
            images, labels = next(iter(batches.epoch(0)))
    assert labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert images[:, 2, 5, 5].tolist() == [0, 50, 100, 150] * 2


# What goes wrong


def test_a_producer_that_was_killed_is_replaced_in_mid_epoch_and_no_batch_is_lost(
    colours: Path, tmp_path: Path, address: str, log: pytest.LogCaptureFixture
) -> None:
    with opened(small_config(colours, tmp_path, data="zmq", zmq_address=address)) as batches:
        with own_producer(tmp_path, address) as producer:
            drawing = iter(batches.epoch(3))
            drawn = [next(drawing) for _ in range(3)]
            producer.kill()
            producer.wait()
        with own_producer(tmp_path, address):
            drawn += drawing
    # Batch b has the labels from b on.
    assert [labels.tolist() for _, labels in drawn] == [[(b + n) % 4 for n in range(8)] for b in range(10)]
    assert f"the producer at {address} is gone: waiting up to 60 s for another one" in log.text


def test_a_killed_producer_that_nobody_replaces_ends_the_run(colours: Path, tmp_path: Path, address: str) -> None:
    config = small_config(colours, tmp_path / "out", data="zmq", zmq_address=address, zmq_timeout=2)
    with (
        own_producer(tmp_path, address) as producer,
        signalled("[2/10]", signal.SIGKILL, producer.pid),
        pytest.raises(TrainError, match=r"no batch came within 2 s .* python -m fastrecord\.train\.produce"),
    ):
        train(config)
    assert list(losses(tmp_path / "out"))[:2] == [1, 2]


def test_an_interrupt_ends_the_wait_for_a_producer(
    colours: Path, tmp_path: Path, address: str, log: pytest.LogCaptureFixture
) -> None:
    with signalled("waiting up to 60 s for a batch", signal.SIGINT):
        result = train(small_config(colours, tmp_path, data="zmq", zmq_address=address))
    assert (result.signal, result.step) == (signal.SIGINT, 0)
    assert f"waiting up to 60 s for a batch from {address}" in log.text


def test_a_signal_ends_the_wait_in_a_ladder(colours: Path, tmp_path: Path, address: str) -> None:
    config = small_config(colours, tmp_path, data="zmq", zmq_address=address)
    with StopSignal() as stop:
        batches = open_batches(open_datasets(config)[0], config, ALONE, training=True, signals=stop)
        os.kill(os.getpid(), signal.SIGINT)
        assert list(endless(batches, stop)) == []
        batches.close()


def test_what_hangs_up_at_once_is_tried_again_without_haste(
    colours: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        config = small_config(colours, tmp_path, data="zmq", zmq_address=address, zmq_timeout=1)
        ended = threading.Event()

        def hang_up() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    listening.accept()[0].close()
                    accepted.append(1)

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with opened(config) as batches, pytest.raises(TrainError, match="no batch came within 1 s"):
                next(iter(batches.epoch(0)))
        finally:
            ended.set()
            thread.join()
    assert 0 < len(accepted) < 100
    assert log.text.count("is gone") == 1


def test_both_sides_take_addresses_of_ipv6(colours: Path, tmp_path: Path) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
            address = f"tcp://[::1]:{free.getsockname()[1]}"
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    with (
        producing("--noise", address=address),
        opened(small_config(colours, tmp_path, data="zmq", zmq_address=address)) as batches,
    ):
        assert next(iter(batches.epoch(0)))[0].shape == (8, 3, 32, 32)


@contextmanager
def answering(address: str, answer: Callable[[bytes], list[Any]]) -> Iterator[None]:
    """Answer requests in a thread of this process."""
    stop = threading.Event()

    def serve() -> None:
        with zmq.Context() as context, context.socket(zmq.REP) as server:
            server.linger = 0
            server.bind(address)
            while not stop.is_set():
                if server.poll(20):
                    server.send_multipart(answer(server.recv()))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


IMAGES, LABELS = bytes(8 * 32 * 32 * 3), bytes(64)
SMALL = {"shape": [8, 28, 28, 3], "dtype": "uint8"}


def changed(**changes: Any) -> Callable[[bytes], list[Any]]:
    return lambda request: [json.dumps({**json.loads(request), **changes}).encode(), IMAGES, LABELS]


def parts(*answer: bytes) -> Callable[[bytes], list[Any]]:
    return lambda request: [request if part == b"HEADER" else part for part in answer]


WRONG: dict[str, tuple[Callable[[bytes], list[Any]], str]] = {
    "version": (changed(version=2), "version is 2, not 1"),
    "epoch": (changed(epoch=7), "epoch is 7, not 0"),
    "batch": (changed(batch=1), "batch is 1, not 0"),
    "batches": (changed(batches=9), "batches is 9, not 10"),
    "shape": (changed(images=SMALL), r"images.shape is \[8, 28, 28, 3\], not \[8, 32, 32, 3\]"),
    "dtype": (changed(images={**SMALL, "shape": [8, 32, 32, 3], "dtype": "float32"}), "images.dtype is 'float32'"),
    "labels": (changed(labels={"shape": [8], "dtype": "int32"}), "labels.dtype is 'int32', not 'int64'"),
    "no labels": (changed(labels=None), "labels is None, not an object with shape and dtype"),
    "not JSON": (parts(b"\xff{", IMAGES, LABELS), "the header is not a JSON object"),
    "no object": (parts(b"[1]", IMAGES, LABELS), "the header is not a JSON object"),
    "deep": (parts(b"[" * 60000, IMAGES, LABELS), "the header is not a JSON object"),
    "long": (parts(b" " * (1 << 17), IMAGES, LABELS), "the header is not a JSON object"),
    "cut": (parts(b"HEADER", IMAGES[:-1], LABELS), "images are 24575 bytes, not the 24576 of their shape"),
    "cut labels": (parts(b"HEADER", IMAGES, LABELS[:-8]), "labels are 56 bytes, not the 64"),
    "two parts": (parts(b"HEADER", IMAGES), "2 parts, not 3: header, images, labels"),
    "four parts": (parts(b"HEADER", IMAGES, LABELS, b""), "4 parts, not 3"),
    "no part": (parts(b""), "the header is not a JSON object|without any part"),
    "class": (parts(b"HEADER", IMAGES, b"\4" + LABELS[1:]), "labels has 4, but the 4 classes are numbered from 0"),
    "negative": (parts(b"HEADER", IMAGES, b"\xff" * 64), "labels has -1, but"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_does_not_fit_ends_the_run_with_address_and_field(
    name: str, colours: Path, tmp_path: Path, address: str
) -> None:
    answer, message = WRONG[name]
    start = f"^{re.escape(address)}: the answer for batch 0 of epoch 0 does not fit: "
    with (
        answering(address, answer),
        opened(small_config(colours, tmp_path, data="zmq", zmq_address=address)) as batches,
        pytest.raises(TrainError, match=rf"{start}({message}).* \[FR809\]$"),
    ):
        next(iter(batches.epoch(0)))


def test_the_error_of_a_producer_ends_the_run(colours: Path, tmp_path: Path, address: str) -> None:
    bad = tmp_path / "bad.frec"
    flip(colours, bad, record=40)
    options: dict[str, Any] = {"data": "zmq", "zmq_address": address}
    server = Server("", FileAnswers(TrainConfig(train=str(bad))))
    with answering(address, lambda message: server.answer([message])):
        with pytest.raises(TrainError, match=r"the producer answers: .*bad\.frec: record 40, .*'blue/40\.jpg'"):
            train(small_config(bad, tmp_path / "out", **options))
        other = write_numbered(tmp_path / "other.frec", 20)
        with pytest.raises(TrainError, match=r"bad\.frec has 76 records, the trainer's file 20: give both the same"):
            train(small_config(other, tmp_path / "other", **options))


def test_an_address_that_is_none_is_refused(colours: Path, tmp_path: Path) -> None:
    for wrong in ("train.frec", "tcp://127.0.0.1:port"):
        with pytest.raises(TrainError, match=f"{wrong}: no address of ZeroMQ"):
            train(small_config(colours, tmp_path / "out", data="zmq", zmq_address=wrong))


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(TrainError, match=r"--data zmq needs the package zmq: .*pip install 'fastrecord\[zmq\]'.*FR751"):
        train(small_config(colours, tmp_path / "out", data="zmq"))


def test_options_that_do_not_go_with_it_are_refused() -> None:
    with pytest.raises(ValueError, match="'raise' with data zmq"):
        TrainConfig(train="x", data="zmq", on_error="skip")
    with pytest.raises(ValueError, match="zmq_timeout is 0: it must be above 0"):
        TrainConfig(train="x", zmq_timeout=0)


# The producer


def refusal(server: Server, *message: bytes) -> str:
    (answer,) = server.answer(list(message))
    return str(json.loads(answer)["error"])


def test_a_request_that_does_not_fit_is_answered_with_its_reason(colours: Path) -> None:
    server = Server("", FileAnswers(TrainConfig(train=str(colours))))
    assert Request.decode(REQUEST.encode()) == REQUEST
    asked = json.loads(REQUEST.encode())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"version": 2}, "version is 2, not 1"),
        ({"epoch": -1}, "epoch is -1, not a number"),
        ({"seed": True}, "seed is True, not a number"),
        ({"shuffle": 3}, "shuffle is 3, not a text"),
        ({"shuffle": "some"}, "shuffle is 'some': it must be one of full, blocks"),
        ({"images": {"shape": [8, 32, 32], "dtype": "uint8"}}, "images.shape is [8, 32, 32], not four positive"),
        ({"images": {"shape": [8, 32, 28, 3], "dtype": "uint8"}}, "images.shape is [8, 32, 28, 3], not [8, 32, 32, 3]"),
        ({"labels": {"shape": [8], "dtype": "int8"}}, "labels.dtype is 'int8'"),
        ({"batch": 10}, "batch 10 of 10: an epoch has 10 for a rank"),
        ({"batches": 5}, "batch 0 of 5: an epoch has 10 for a rank"),
        ({"rank": 1}, "rank is 1, not below the world_size of 1"),
        ({"world_size": 0}, "rank is 0, not below the world_size of 0"),
    ]
    for change, message in wrong:
        assert message in refusal(server, json.dumps({**asked, **change}).encode()), change
    assert refusal(server, b"{") == "the header is not a JSON object"
    assert refusal(server, b"{}", b"{}") == "a request of 2 parts, not 1"
    header, images, labels = server.answer([REQUEST.encode()])
    REQUEST.check_answer([header, memoryview(images).cast("B"), memoryview(labels).cast("B")])


def test_noise_has_the_shape_and_the_classes_of_the_request() -> None:
    made = NoiseAnswers()
    images, labels = made(REQUEST)
    assert (images.shape, str(images.dtype)) == ((8, 32, 32, 3), "uint8")
    assert (labels.shape, str(labels.dtype)) == ((8,), "int64")
    assert set(labels.tolist()) <= set(range(4))
    assert made(dataclasses.replace(REQUEST, batch=1))[0] is images
    assert made(dataclasses.replace(REQUEST, size=3))[0].shape == (3, 32, 32, 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_producer(number: signal.Signals, address: str) -> None:
    with producing("--noise", address=address) as process:
        process.send_signal(number)
        assert read_rest(process) == (128 + number, f"stopped by {number.name}\n")


def test_the_producer_ends_when_nothing_asks_it(address: str) -> None:
    with producing("--noise", "--idle", "0.1", address=address) as process:
        assert read_rest(process) == (0, "no request for 0.1 s: the producer ends\n")


def test_a_request_for_more_memory_than_there_is_is_answered() -> None:
    asked = json.loads(REQUEST.encode())
    huge = {"shape": [1 << 20, 1 << 20, 1 << 20, 3], "dtype": "uint8"}
    labels = {"shape": [1 << 20], "dtype": "int64"}
    assert refusal(Server("", NoiseAnswers()), json.dumps({**asked, "images": huge, "labels": labels}).encode())


def test_the_producer_removes_no_file_and_takes_no_address_of_another(tmp_path: Path, address: str) -> None:
    file = tmp_path / "train.frec"
    file.write_bytes(b"records")
    done = CliRunner().invoke(produce, ["--noise", "--address", f"ipc://{file}"])
    assert done.exit_code == 1
    assert "is a file or folder, not a socket" in done.stderr
    assert file.read_bytes() == b"records"
    with producing("--noise", address=address) as process:
        done = CliRunner().invoke(produce, ["--noise", "--address", address])
        assert (done.exit_code, "another process does" in done.stderr) == (1, True)
        process.kill()
        process.wait()
    # The socket of a killed producer is taken over.
    with producing("--noise", address=address):
        pass


def test_the_producer_reports_what_it_cannot_use(tmp_path: Path, address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as server:
        port = server.bind_to_random_port("tcp://127.0.0.1")
        taken = f"tcp://127.0.0.1:{port}"
        done = CliRunner().invoke(produce, ["--noise", "--address", taken])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {taken}: the producer cannot listen there: Address already in use")
    done = CliRunner().invoke(produce, [str(tmp_path / "none.frec"), "--address", address])
    assert done.exit_code == 1
    assert "none.frec" in done.stderr
    assert CliRunner().invoke(produce, []).exit_code == 2
