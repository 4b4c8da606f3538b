"""What FastRecordLoader leaves behind, and how it lives with signals, forks, spawned processes and frameworks."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from PIL import Image

import fastrecord as fr
from fastrecord import _core
from fastrecord.transforms import CenterCrop
from tests.child import run_child
from tests.loading import epoch, load_threads, make, photo, wait_for_load_threads, write_payloads, write_photos
from tests.pictures import save
from tests.training import read_rest, read_until, running

COUNT = 22
ROOT = Path(__file__).parents[1]

# What scripts in processes of their own begin with; `train.frec` is in their folder.
SCRIPT = f"""
import sys, warnings
sys.path.insert(0, {str(ROOT)!r})
# CPython 3.12 warns of every fork of a process with threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
import torch
from tests.loading import epoch, load_threads, make, wait_for_load_threads
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 22 JPEGs."""
    return write_photos(tmp_path_factory.mktemp("photos") / "train.frec", COUNT)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_for_load_threads(0)  # one in a huge image ends behind it


def run_script(script: str, photos: Path) -> str:
    return run_child(SCRIPT + textwrap.dedent(script), photos.parent)


def test_threads_live_as_long_as_an_iteration(photos: Path) -> None:
    loader = make(photos, threads=3)
    batches = iter(loader)
    assert load_threads() == []
    next(batches)
    assert loader.threads == 3
    wait_for_load_threads(3)
    assert sum(1 for _ in batches) == 5
    wait_for_load_threads(0)


def test_a_broken_loop_leaves_no_thread(photos: Path) -> None:
    for _ in make(photos):
        wait_for_load_threads(2)
        break
    wait_for_load_threads(0)


def test_an_exception_in_the_loop_leaves_no_thread_once_it_was_handled(photos: Path) -> None:
    loader = make(photos)

    def train() -> None:
        for _ in loader:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        train()
    gc.collect()
    wait_for_load_threads(0)
    assert len(list(loader)) == 6


def test_a_forgotten_iterator_or_loader_leaves_no_thread(photos: Path) -> None:
    loader = make(photos)
    batches = iter(loader)
    next(batches)
    del loader
    assert len(next(batches)[0]) == 4  # it needs its loader no more than its caller does
    del batches
    wait_for_load_threads(0)
    iter(make(photos))
    wait_for_load_threads(0)


def test_closing_ends_threads_and_a_closed_iteration_raises_instead_of_waiting(photos: Path) -> None:
    loader = make(photos, 1, prefetch=0)
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    loader.close()
    wait_for_load_threads(0)
    for batches in (first, second):
        with pytest.raises(RuntimeError, match=r"the loader's threads were closed .*: iterate anew"):
            for _ in batches:
                pass
    loader.close()
    with loader as same:
        assert same is loader
        batches = iter(loader)
        next(batches)
    wait_for_load_threads(0)
    with pytest.raises(RuntimeError, match="iterate anew"):
        list(batches)
    assert len(list(loader)) == COUNT


def test_iterating_in_another_thread_gives_the_same(photos: Path) -> None:
    loader = make(photos)
    found: list[torch.Tensor] = []
    batches = iter(loader)
    first = next(batches)[0]
    thread = threading.Thread(target=lambda: found.extend(batch[0] for batch in batches))
    thread.start()
    thread.join()
    loader.set_epoch(0)
    assert torch.equal(torch.cat([first, *found]), epoch(loader))


def use() -> tuple[int, int]:
    """Return the resident bytes and the open files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096, len(os.listdir("/proc/self/fd"))


def test_hundreds_of_loaders_and_broken_iterations_leave_no_memory_and_no_file(photos: Path) -> None:
    def work(times: int) -> None:
        for number in range(times):
            # 4 MB a batch, 16 MB an iteration.
            loader = make(photos, 7, image=CenterCrop(450))
            kept = [images for images, _ in itertools.islice(loader, number % 3 + 1)]
            assert len(kept) == number % 3 + 1

    work(20)
    memory, files = use()
    work(200)
    gc.collect()
    after = use()
    assert after[0] - memory < 48 << 20
    assert after[1] == files


def test_a_loader_and_its_iterator_are_freed_without_the_garbage_collector(photos: Path) -> None:
    loader = make(photos)
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
    plan = _core.ImagePlan([(reader, ["image"]) for reader in dataset.readers], [("resize", (24, 24))])
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


def test_an_iterator_that_is_alive_at_the_end_of_the_process_holds_up_nothing(photos: Path) -> None:
    script = """
        loader = make("train.frec")
        batches = iter(loader)
        sys.kept = [batches, next(batches)]
        wait_for_load_threads(2)
        print("at the end")
    """
    assert run_script(script, photos) == "at the end\n"


FORK = """
    loader = make("train.frec")
    expected = list(make("train.frec"))
    batches = iter(loader)
    seen = [next(batches)[0]]
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
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
        again = [images for images, _ in loader]
        told.append(str(all(torch.equal(a, b[0]) for a, b in zip(again, expected, strict=True))))
        told.append(str(loader.stats().batches))
        del batches, loader
        os.write(write_end, "|".join(told).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    told = os.read(read, 10000).decode().split("|")
    seen += [images for images, _ in batches]
    print(told, all(torch.equal(a, b[0]) for a, b in zip(seen, expected, strict=True)))
"""


def test_a_fork_in_the_middle_of_an_epoch_leaves_the_parent_alone_and_the_child_begins_anew(photos: Path) -> None:
    message = "this iteration began in another process, where its threads are: iterate over the loader anew"
    assert run_script(FORK, photos) == f"{[message, 'over', '0', 'True', '7']} True\n"


def test_forks_at_any_moment_of_busy_threads_leave_children_that_load(photos: Path) -> None:
    script = """
        loader = make("train.frec", 2, prefetch=4)
        expected = epoch(make("train.frec", 2))
        for number in range(30):
            batches = iter(loader)
            for _ in range(number % 9 + 1):
                next(batches)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                loader.set_epoch(0)
                os._exit(0 if torch.equal(epoch(loader), expected) else 3)
            del batches
            assert os.waitpid(child, 0)[1] == 0, number
        print("all")
    """
    assert run_script(script, photos) == "all\n"


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_loader_works_in_processes_that_were_started_before_it_iterated(photos: Path, method: str) -> None:
    loader = make(photos)
    context: Any = mp.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=put_sum, args=(loader, queue))
    process.start()
    found = queue.get()
    process.join()
    assert found == int(epoch(loader).sum())


def put_sum(loader: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put(int(epoch(loader).sum()))


def test_a_loader_pickles_as_its_file_and_snapshot(photos: Path) -> None:
    loader = make(photos, shuffle=True)
    next(iter(loader))
    data = pickle.dumps(loader)
    assert len(data) < 4000
    loader.set_epoch(0)
    assert torch.equal(epoch(pickle.loads(data)), epoch(loader))


def huge() -> bytes:
    """Return a progressive JPEG of 130 million pixels in 1 MB, which takes seconds to decode."""
    image = Image.new("RGB", (13_000, 10_000), (10, 200, 30))
    return save(image, "JPEG", progressive=True, quality=50)


@pytest.fixture(scope="module")
def with_huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 41 records whose record 1 takes as long as all others."""
    payloads = [photo(number) for number in range(41)]
    payloads[1] = huge()
    return write_payloads(tmp_path_factory.mktemp("huge") / "train.frec", payloads)


@pytest.fixture(scope="module")
def mostly_huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose first record is there at once, and whose 15 others take seconds together."""
    return write_payloads(tmp_path_factory.mktemp("huge") / "train.frec", [photo(0), *[huge()] * 15])


@pytest.mark.slow
def test_a_slow_record_holds_up_no_other_of_its_batch_or_the_next_ones(with_huge: Path) -> None:
    loader = make(with_huge, 10, threads=2, prefetch=3)
    batches = iter(loader)
    plan = loader._plan
    assert plan is not None
    loading = plan.start(2)
    rows = [np.arange(start, start + 10) for start in range(0, 40, 10)]
    loads = [loading.submit(0, 0, row, row) for row in rows]
    for load in loads[1:]:
        load.wait()
    # All images of the batches behind it are made, and those beside it: it is the last one.
    assert plan.counters()[0] == 39
    assert not loads[0].is_ready()
    loads[0].wait()
    assert plan.counters()[0] == 40
    loading.close()
    assert [len(images) for images, _ in batches] == [10, 10, 10, 10, 1]


@pytest.mark.slow
def test_closing_wakes_another_thread_that_waits_for_a_batch(mostly_huge: Path) -> None:
    loader = make(mostly_huge, 16, threads=1)
    found: list[str] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except RuntimeError as error:
            found.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    while loader.stats().images == 0:
        pass
    loader.close()
    consumer.join()
    assert found == ["the loader's threads were closed before the batch was whole: iterate anew"]
    assert loader.stats().images < 16


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_the_batch_that_is_being_decoded(mostly_huge: Path) -> None:
    script = """
        loader = make("train.frec", 16, threads=1)
        def interrupt():
            while loader.stats().images == 0:
                pass
            os.kill(os.getpid(), signal.SIGINT)
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            for _ in loader:
                raise RuntimeError("the batch with the huge images was waited for")
        except KeyboardInterrupt:
            print("interrupted", loader.stats().images < 16)
        interrupter.join()
    """
    assert run_script(script, mostly_huge) == "interrupted True\n"


def test_an_interrupt_ends_a_loop_that_computes_while_the_threads_wait_for_it(photos: Path) -> None:
    script = """
        loader = make("train.frec", 1)
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
    assert run_script(script, photos) == "interrupted\n22\n"


def test_threads_are_the_cpus_shared_among_the_local_processes(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(os.sched_getaffinity(0))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert make(photos, threads=None).threads == cpus
    for size, threads in ((1, cpus), (2, max(1, cpus // 2)), (10_000, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
        assert make(photos, threads=None).threads == threads
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert make(photos, threads=None).threads == cpus


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed:UserWarning")
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning")
def test_lightning_trains_on_it_as_on_any_iterable(photos: Path) -> None:
    lightning: Any = pytest.importorskip("lightning")

    class Recorder(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 1, 1)
            self.seen: list[tuple[int, torch.Tensor]] = []

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            images, _ = batch
            self.seen.append((self.current_epoch, images))
            loss: torch.Tensor = self.layer(images.float()).mean()
            return loss

        def validation_step(self, batch: list[torch.Tensor]) -> None:
            self.seen.append((-1, batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(use_distributed_sampler=False, **dict.fromkeys(quiet, False), **options)
    module = Recorder()
    trainer.fit(module, make(photos, shuffle=True), make(photos, image=CenterCrop(24), flip=False))
    assert trainer.global_step == 12
    expected = make(photos, shuffle=True)
    for number in range(2):
        assert torch.equal(torch.cat([images for seen, images in module.seen if seen == number]), epoch(expected))
    assert sum(len(images) for seen, images in module.seen if seen == -1) == 2 * COUNT


@pytest.mark.slow
def test_accelerate_leaves_it_as_it_is(photos: Path) -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Conv2d(3, 1, 1)
    loader = make(photos, shuffle=True)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
    assert prepared is loader
    seen = []
    for images, _ in prepared:
        with accelerator.accumulate(model):
            accelerator.backward(model(images.float()).mean())
            optimizer.step()
            optimizer.zero_grad()
        seen.append(images)
    loader.set_epoch(0)
    assert torch.equal(torch.cat(seen), epoch(loader))


RANK = """
import json, os, sys
import torch, torch.distributed as dist
import fastrecord as fr
from tests.loading import make
dist.init_process_group("gloo")
data = fr.FastRecordDataset("train.frec", extra_fields=("key",))
loader = make(data, 4, shuffle=True, seed=5, threads=None)
epochs = [[[batch[2], batch[0].sum((1, 2, 3)).tolist()] for batch in loader] for _ in range(2)]
out = [None, None]
dist.all_gather_object(out, {"epochs": epochs, "threads": loader.threads, "length": len(loader)})
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(out, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.ddp
def test_two_ranks_under_torchrun_share_the_batches_and_the_cpus(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RANK, encoding="utf-8")
    os.symlink(photos, tmp_path / "train.frec")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, *torchrun, "script.py", "out.json"]
    subprocess.run(command, check=True, timeout=110, cwd=tmp_path, env=environment)
    ranks = json.loads((tmp_path / "out.json").read_text())
    assert [rank["threads"] for rank in ranks] == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
    assert [rank["length"] for rank in ranks] == [3, 3]
    one = make(fr.FastRecordDataset(photos, extra_fields=("key",)), 8, shuffle=True, seed=5)
    for number in range(2):
        # Global batches are those of one process, and so are the crops; the last one is filled up.
        batches = [[batch[2], batch[0].sum((1, 2, 3)).tolist()] for batch in one]
        for step, (keys, sums) in enumerate(batches):
            shares = [rank["epochs"][number][step] for rank in ranks]
            for part, values in enumerate((keys, sums)):
                mixed = [share[part][place] for place in range(4) for share in shares]
                assert mixed[: len(values)] == values


def test_a_training_script_that_is_stopped_by_ctrl_c_ends_at_once_and_cleanly(photos: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path[:0] = {sys.path!r}\nfrom tests.loading import make\nloader = make({str(photos)!r}, 1)\n"
        "while True:\n    for number, batch in enumerate(loader):\n        print('step', number)\n"
    )
    with running(script) as process:
        read_until(process, "step 5")
        process.send_signal(2)
        status, output = read_rest(process)
    assert status in (-2, 130, 1)
    assert "KeyboardInterrupt" in output


def test_a_forked_child_skips_records_though_torch_had_threads_at_work_in_its_parent(tmp_path: Path) -> None:
    write_payloads(
        tmp_path / "a.frec", [photo(number) if number % 4 else b"text" for number in range(32)], images=False
    )
    out = run_child(
        """
        import torch, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.set_num_threads(2)
        image = fr.transforms.CenterCrop(64, resize=64)
        loader = fr.FastRecordLoader(
            fr.FastRecordDataset("a.frec", image_field="image"), batch_size=16, image=image, on_error="skip"
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
