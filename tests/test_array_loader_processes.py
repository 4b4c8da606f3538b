"""What loading of arrays leaves behind; damaged and missing values; signals, forks, spawned processes."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

import fastrecord as fr
from fastrecord import _core
from fastrecord.skipping import SkippedRecord
from tests.child import run_child
from tests.loading import wait_for_load_threads
from tests.patches import COUNT, check, expected, make, numbers, opened, plain, record, write_patches
from tests.training import read_rest, read_until, running

ROOT = Path(__file__).parents[1]
BAD = 13

SCRIPT = f"""
import sys, warnings
sys.path.insert(0, {str(ROOT)!r})
# CPython 3.12 warns of every fork of a process with threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
import torch
from tests.loading import load_threads
from tests.patches import make, numbers, opened
from pathlib import Path
"""


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 107 records with fields of every kind."""
    return write_patches(tmp_path_factory.mktemp("patches") / "train.frec")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_for_load_threads(0)


def run_script(script: str, patches: Path) -> str:
    return run_child(SCRIPT + textwrap.dedent(script), patches.parent)


def test_threads_live_as_long_as_an_iteration(patches: Path) -> None:
    loader = make(patches, threads=3)
    batches = iter(loader)
    wait_for_load_threads(0)
    next(batches)
    wait_for_load_threads(3)
    assert sum(1 for _ in batches) == 26
    wait_for_load_threads(0)


def test_a_broken_loop_and_a_forgotten_iterator_leave_no_thread(patches: Path) -> None:
    loader = make(patches)
    for _ in loader:
        break
    wait_for_load_threads(0)
    batches = iter(loader)
    next(batches)
    del batches
    wait_for_load_threads(0)
    batches = iter(make(patches, 1, prefetch=0))
    next(batches)
    del batches
    wait_for_load_threads(0)


def test_a_closed_iteration_raises_instead_of_waiting(patches: Path) -> None:
    loader = make(patches, 1, prefetch=0)
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    loader.close()
    wait_for_load_threads(0)
    for batches in (first, second):
        with pytest.raises(RuntimeError, match=r"the loader's threads were closed .*: iterate anew"):
            list(batches)
    assert len(list(loader)) == COUNT


def test_an_exception_in_the_loop_leaves_no_thread_once_it_was_handled(patches: Path) -> None:
    loader = make(patches)

    def train() -> None:
        for _ in loader:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        train()
    gc.collect()
    wait_for_load_threads(0)
    assert len(list(loader)) == 27


def test_batches_may_be_taken_by_another_thread(patches: Path) -> None:
    loader = make(patches, 5, shuffle=True, seed=1)
    batches = iter(loader)
    found = numbers(itertools.islice(batches, 3))
    thread = threading.Thread(target=lambda: found.extend(numbers(batches)))
    thread.start()
    thread.join()
    assert found == numbers(make(patches, 5, shuffle=True, seed=1))


def test_hundreds_of_broken_iterations_leave_no_memory_and_no_file(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"rows": fr.array("float32", (256, 256))})) as writer:
        for number in range(64):
            writer.append({"rows": np.full((256, 256), number, np.float32)})

    def use() -> tuple[int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096, len(os.listdir("/proc/self/fd"))

    def work(times: int) -> None:
        for number in range(times):
            # 4 MiB a group, 16 MiB an iteration.
            kept = list(itertools.islice(make(fr.FastRecordDataset(tmp_path / "a.frec"), 4), number % 5 + 1))
            assert len(kept) == number % 5 + 1

    work(20)
    memory, files = use()
    work(200)
    gc.collect()
    after = use()
    assert after[0] - memory < 48 << 20
    assert after[1] == files


def test_lent_memory_of_several_types_is_filled_in_place(patches: Path) -> None:
    plan = _core.ArrayPlan([(fr.Reader(patches), ["mean", "flag"])])
    loading = plan.start(2)
    memory = [np.zeros(6 * 80, np.uint8), np.zeros(6, np.uint8)]
    rows = np.arange(6)
    assert loading.submit(0, 0, rows, None, memory).wait() == ([], [])
    assert plain(torch.from_numpy(memory[0]).view(torch.bfloat16).view(6, 40)) == plain(expected(range(6))["mean"])
    assert memory[1].tolist() == [1, 0, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"buffers of .* bytes are wanted for 6 rows"):
        loading.submit(0, 0, rows, None, memory[:1])
    with pytest.raises(ValueError, match="6 rows and 6 positions"):
        loading.submit(0, 0, rows, rows)
    loading.close()


def test_a_plan_of_values_without_one_size_is_refused(patches: Path, tmp_path: Path) -> None:
    reader = fr.Reader(patches)
    for name in ("tokens", "key", "words"):
        with pytest.raises(TypeError, match=rf"field {name} .*its values are not all of one size"):
            _core.ArrayPlan([(reader, [name])])
    with fr.Writer(tmp_path / "b.frec", fr.Schema({"hr": fr.array("uint8", (16, 16, 4))})) as writer:
        writer.append({"hr": np.zeros((16, 16, 4), np.uint8)})
    with pytest.raises(TypeError, match=r"b\.frec: field hr .*in the first file its values have 768 bytes each"):
        _core.ArrayPlan([(reader, ["hr"]), (fr.Reader(tmp_path / "b.frec"), ["hr"])])


def damage(source: Path, target: Path, needle: bytes) -> Path:
    """Copy a file and flip a bit in the only place that has these bytes."""
    data = bytearray(source.read_bytes())
    assert data.count(needle) == 1
    data[data.index(needle) + len(needle) // 2] ^= 1
    target.write_bytes(data)
    return target


@pytest.fixture(params=["hr", "noise", "tokens", "boxes"])
def bad(request: pytest.FixtureRequest, patches: Path, tmp_path: Path) -> tuple[Path, str]:
    """A file with a damaged value in record 13, and its field."""
    value = np.ascontiguousarray(record(BAD)[request.param])
    if request.param == "tokens":
        value = record(17)["tokens"]  # five numbers that nothing else in the file looks like
    return damage(patches, tmp_path / "bad.frec", value.tobytes()), request.param


def place(field: str) -> int:
    return 17 if field == "tokens" else BAD


def test_the_error_names_file_record_and_field_when_the_turn_of_its_batch_has_come(bad: tuple[Path, str]) -> None:
    path, field = bad
    loader = make(path, 2)
    batches = iter(loader)
    before = place(field) // 2
    assert numbers(itertools.islice(batches, before)) == [[2 * i, 2 * i + 1] for i in range(before)]
    message = rf"bad\.frec: record {place(field)}, field {field}: .*damaged, key 'patch {place(field)}'"
    with pytest.raises(fr.CorruptFileError, match=message):
        next(batches)
    assert loader.state_dict()["batches_done"] == before
    assert loader.skipped == []


@pytest.mark.parametrize("ragged", [None, {"tokens": "pad", "boxes": "packed"}])
def test_a_skipped_record_is_missing_from_all_fields_of_its_batch_alone(bad: tuple[Path, str], ragged: Any) -> None:
    path, field = bad
    others = [number for number in range(COUNT) if number != place(field)]
    infos = []

    def note(batch: Any, info: Any) -> Any:
        infos.append(info)
        return batch

    loader = make(path, 5, on_error="skip", ragged=ragged, batch_transform=note)
    batches = list(loader)
    assert list(itertools.chain(*numbers(batches))) == others
    assert np.concatenate([info.rows for info in infos]).tolist() == others
    for batch in batches:
        if ragged is None:
            check(batch, batch["number"].tolist())
        else:
            assert len(batch["tokens"]) == len(batch["boxes"][1]) - 1 == len(batch["number"])
    (skipped,) = loader.skipped
    assert (skipped.path, skipped.record, skipped.key) == (str(path), place(field), f"patch {place(field)}")
    assert loader.stats().skipped == 1


def test_a_callable_is_told_of_each_record_that_is_skipped(bad: tuple[Path, str]) -> None:
    path, field = bad
    told: list[SkippedRecord] = []
    loader = make(path, 50, on_error=lambda _, record: told.append(record))
    assert sum(map(len, numbers(loader))) == COUNT - 1
    assert [skipped.record for skipped in told] == [place(field)]
    assert len(list(make(path, 1, on_error="skip"))) == COUNT - 1
    with pytest.raises(fr.FastRecordError, match="none of the 1 records of a batch could be loaded"):
        list(make(path, 1, on_error="skip", drop_last=True))


def test_damage_goes_unnoticed_where_the_data_set_does_not_verify(patches: Path, tmp_path: Path) -> None:
    path = damage(patches, tmp_path / "bad.frec", record(BAD)["hr"].tobytes())
    batches = list(make(opened(path, verify=False, fields=("hr", "number")), 50))
    assert torch.cat([batch["number"] for batch in batches]).tolist() == list(range(COUNT))
    assert not torch.equal(batches[0]["hr"][BAD], torch.from_numpy(record(BAD)["hr"]))


def test_a_damaged_block_of_a_column_fails_its_records_alone(tmp_path: Path) -> None:
    # 48 bytes a record: 85.3 of them in a block of 4 KiB.
    with fr.Writer(tmp_path / "sound.frec", fr.Schema({"lr": fr.array("uint8", (4, 4, 3))})) as writer:
        for number in range(400):
            writer.append({"lr": record(number)["lr"]})
    path = damage(tmp_path / "sound.frec", tmp_path / "bad.frec", record(100)["lr"].tobytes())
    loader = make(fr.FastRecordDataset(path), 400, on_error="skip", max_skipped=90)
    (batch,) = list(loader)
    lost = [skipped.record for skipped in loader.skipped]
    assert 100 in lost
    assert 80 <= len(lost) <= 90
    others = [number for number in range(400) if number not in lost]
    assert torch.equal(batch["lr"], torch.from_numpy(np.stack([record(number)["lr"] for number in others])))
    with pytest.raises(fr.CorruptFileError, match=r"bad\.frec: .*lr.*damaged"):
        list(make(fr.FastRecordDataset(path), 400))


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_file_that_is_cut_short_under_the_loader_is_an_error_and_no_crash(
    patches: Path, tmp_path: Path, access: str
) -> None:
    path = tmp_path / "train.frec"
    path.write_bytes(patches.read_bytes())
    batches = iter(make(opened(path, access=access, fields=("hr", "number")), 2, prefetch=0))
    next(batches)
    os.truncate(path, 8192)
    with pytest.raises(fr.CorruptFileError, match=r"train\.frec.*truncated"):
        list(batches)


FORK = """
    loader = make(opened(Path("train.frec")), 4, shuffle=True)
    expected = numbers(make(opened(Path("train.frec")), 4, shuffle=True))
    batches = iter(loader)
    seen = numbers([next(batches)])
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        told = []
        try:
            next(batches)
        except RuntimeError as error:
            told.append(str(error))
        told.append(str(len(load_threads())))
        told.append(str(numbers(loader) == expected))
        del batches, loader
        os.write(write_end, "|".join(told).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    told = os.read(read, 10000).decode().split("|")
    seen += numbers(batches)
    print(told, seen == expected)
"""


def test_a_fork_in_the_middle_of_a_group_leaves_the_parent_alone_and_the_child_begins_anew(patches: Path) -> None:
    message = "this iteration began in another process, where its threads are: iterate over the loader anew"
    assert run_script(FORK, patches) == f"{[message, '0', 'True']} True\n"


def test_forks_at_any_moment_of_busy_threads_leave_children_that_load(patches: Path) -> None:
    script = """
        from fastrecord import array_batches
        array_batches._GROUP_BATCHES = 2
        loader = make(opened(Path("train.frec")), 2, prefetch=4)
        expected = numbers(loader)
        for number in range(20):
            loader.set_epoch(0)
            batches = iter(loader)
            for _ in range(number % 9 + 1):
                next(batches)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                loader.set_epoch(0)
                os._exit(0 if numbers(loader) == expected else 3)
            del batches
            assert os.waitpid(child, 0)[1] == 0, number
        print("all")
    """
    assert run_script(script, patches) == "all\n"


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_loader_works_in_processes_that_were_started_before_it_iterated(patches: Path, method: str) -> None:
    loader = make(patches, 10, shuffle=True, seed=4)
    context: Any = mp.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=put_numbers, args=(loader, queue))
    process.start()
    found = queue.get()
    process.join()
    assert found == numbers(loader)


def put_numbers(loader: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put(numbers(loader))


def test_a_loader_pickles_as_its_file_and_snapshot(patches: Path) -> None:
    loader = make(patches, shuffle=True, ragged={"tokens": "pad"})
    next(iter(loader))
    data = pickle.dumps(loader)
    assert len(data) < 6000
    loader.set_epoch(0)
    assert numbers(pickle.loads(data)) == numbers(loader)


def test_an_interrupt_while_json_is_parsed_is_no_damage(patches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> Any:
        raise KeyboardInterrupt

    batches = iter(make(opened(patches, fields=("meta",)), on_error="skip"))
    monkeypatch.setattr(json, "loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)


def test_a_script_that_is_stopped_by_ctrl_c_ends_at_once_and_cleanly(patches: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nfrom pathlib import Path\nsys.path[:0] = {sys.path!r}\nfrom tests.patches import make\n"
        f"loader = make(Path({str(patches)!r}), 1)\n"
        "while True:\n    for number, batch in enumerate(loader):\n        print('step', number)\n"
    )
    with running(script) as process:
        read_until(process, "step 5")
        process.send_signal(2)
        status, output = read_rest(process)
    assert status in (-2, 130, 1)
    assert "KeyboardInterrupt" in output
