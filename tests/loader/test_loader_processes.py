"""Loaders and processes: fork, spawn, pickles, Ctrl-C, and the end of the loader's process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tests.support.child import run_child
from tests.support.loader_kinds import Kind
from tests.support.loading import photo, write_payloads

pytestmark = pytest.mark.usefixtures("no_load_thread_is_left")

FORK = """
    loader = kind.make(shuffle=True)
    expected = kind.contents(kind.make(shuffle=True))
    batches = iter(loader)
    seen = kind.contents([next(batches)])
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        told = []
        try:
            next(batches)
        except RuntimeError as error:
            told.append(str(error))
        try:
            next(batches)
        except StopIteration:
            told.append("over")
        told.append(str(len(load_threads())))
        told.append(str(kind.contents(loader) == expected))
        told.append(str(loader.stats().batches))
        del batches, loader
        os.write(write_end, "|".join(told).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    told = os.read(read, 10000).decode().split("|")
    seen += kind.contents(batches)
    print(told, seen == expected)
"""


def test_a_fork_in_the_middle_of_an_epoch_leaves_the_parent_alone_and_the_child_begins_anew(kind: Kind) -> None:
    message = "this iteration began in another process, which has its threads: start a new iteration"
    assert kind.run(FORK, timeout=110) == f"{[message, 'over', '0', 'True', str(kind.batches + 1)]} True\n"


@pytest.mark.parametrize(
    ("kind", "method"),
    [("images", "fork"), ("arrays", "fork"), pytest.param("arrays", "spawn", marks=pytest.mark.slow)],
    indirect=["kind"],
)
def test_a_loader_works_in_processes_that_were_started_before_it_iterated(kind: Kind, method: str) -> None:
    loader = kind.make(10, shuffle=True, seed=4)
    context: Any = mp.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=put_contents, args=(kind, loader, queue))
    process.start()
    found = queue.get()
    process.join()
    assert found == kind.contents(loader)


def put_contents(kind: Kind, loader: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put(kind.contents(loader))


def test_a_loader_pickles_as_its_file_and_snapshot(kind: Kind) -> None:
    loader = kind.make(shuffle=True, **kind.options)
    next(iter(loader))
    data = pickle.dumps(loader)
    assert len(data) < kind.pickled_bytes
    loader.set_epoch(0)
    assert kind.contents(pickle.loads(data)) == kind.contents(loader)


@pytest.mark.parametrize("kind", ["images"], indirect=True)
def test_an_interrupt_ends_a_loop_that_computes_while_the_threads_wait_for_it(kind: Kind) -> None:
    script = """
        loader = kind.make(1)
        try:
            for _ in loader:
                threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    pass
        except KeyboardInterrupt:
            import gc
            gc.collect()
            wait_for_load_threads(0)
            print("interrupted")
        print(len(list(loader)))
    """
    assert kind.run(script) == f"interrupted\n{kind.count}\n"


def test_a_forked_child_skips_records_though_torch_had_threads_at_work_in_its_parent(tmp_path: Path) -> None:
    write_payloads(
        tmp_path / "a.frec", [photo(number) if number % 4 else b"text" for number in range(32)], images=False
    )
    out = run_child(
        """
        import torch, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.set_num_threads(2)
        sample = [fr.transforms.Resize(64), fr.transforms.CenterCrop(64)]
        loader = fr.FastRecordLoader(
            fr.FastRecordDataset("a.frec", image_field="image"), 16, shuffle=False, sample=sample, on_error="skip"
        )
        def count():
            return sum(len(batch if isinstance(batch, torch.Tensor) else batch[0]) for batch in loader)
        assert int(torch.arange(1 << 20)[torch.arange(1 << 20)].sum()) > 0
        pid = os.fork()
        if pid == 0:
            os._exit(0 if count() == 24 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), count())
        """,
        tmp_path,
        timeout=110,
    )
    assert out == "0 24\n"
