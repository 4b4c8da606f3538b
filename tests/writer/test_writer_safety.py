from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import fastrecord as fr
from tests.support.child import run_child
from tests.writer.test_writer import GOOD, SCHEMA, labels, write


def test_a_second_writer_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.frec", range(3))
    writer = fr.Writer(path, mode="a")
    for mode in ("a", "w"):
        with pytest.raises(fr.errors.LockedError, match=rf"a\.frec: another writer has it open \(pid {os.getpid()}: "):
            fr.Writer(path, SCHEMA, mode)
    script = """
        try:
            fr.Writer("a.frec", mode="a")
        except fr.errors.LockedError as error:
            print(error)
    """
    assert f"(pid {os.getpid()}: " in run_child(script, tmp_path)
    assert labels(path) == [0, 1, 2]
    writer.close()
    write(path, range(3, 4), "a")
    assert labels(path) == [0, 1, 2, 3]


def test_a_forked_child_can_neither_use_nor_spoil_the_writer_of_its_parent(tmp_path: Path) -> None:
    script = """
        writer = fr.Writer("a.frec", SCHEMA)
        writer.append(record(0))
        writer.commit()
        writer.append(record(1))
        read, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            outcomes = []
            for call in (lambda: writer.append(record(9)), writer.commit, writer.close, lambda: len(writer)):
                try:
                    outcomes.append(str(call()))
                except fr.FastRecordError as error:
                    outcomes.append("pid " + str(error))
            outcomes.append(repr(writer) + writer.path + repr(writer.schema))
            writer.abort()
            writer.__exit__(SystemExit, None, None)
            del writer
            outcomes.append(str(len(fr.Reader("a.frec"))))
            os.write(write_end, "|".join(outcomes).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        *refused, shown, seen = os.read(read, 10000).decode().split("|")
        pids = f"(pid {os.getpid()}), this is pid {child}"
        assert len(refused) == 4 and all(pids in text for text in refused), refused
        assert "a.frec" in shown and seen == "1"
        writer.append(record(2))
        writer.close()
        print(fr.Reader("a.frec").column("label").tolist())
    """
    assert run_child(script, tmp_path) == "[0, 1, 2]\n"


def test_a_child_forked_in_the_middle_of_a_call_gets_an_error_and_no_hang(tmp_path: Path) -> None:
    script = """
        open("file", "wb").write(bytes(1000))
        writer = fr.Writer("a.frec", SCHEMA)
        count = 100_000
        values = {"label": np.arange(count), "key": ["k"] * count}
        thread = threading.Thread(target=writer.append_files, args=("data", ["file"] * count, values))
        thread.start()
        while os.path.getsize("a.frec") <= 4096:
            pass
        child = os.fork()
        if child == 0:
            try:
                writer.append(record(0))
            except fr.FastRecordError as error:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        thread.join()
        writer.close()
        print(len(fr.Reader("a.frec")))
    """
    assert run_child(script, tmp_path) == "7\n100000\n"


def test_many_threads_may_append_and_each_record_gets_the_number_that_was_returned(tmp_path: Path) -> None:
    numbers: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    writer = fr.Writer(tmp_path / "a.frec", SCHEMA, commit_bytes=100_000)

    def work(thread: int) -> None:
        for i in range(300):
            label = 1000 * thread + i
            size = 100_000 if i % 50 == 0 else 50
            number = writer.append(
                {"data": bytes([thread]) * size, "label": label, "score": label / 2, "key": f"{label}"}
            )
            numbers[thread].append((number, label))
            if i % 100 == 0:
                writer.commit()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    pairs = dict(pair for mine in numbers for pair in mine)
    assert labels(tmp_path / "a.frec") == [pairs[number] for number in range(1200)]
    reader = fr.Reader(tmp_path / "a.frec")
    for number, label in pairs.items():
        record = reader[number]
        assert (record["score"], record["key"], set(record["data"])) == (label / 2, f"{label}", {label // 1000})


def test_a_signal_handler_that_uses_a_busy_writer_raises_and_the_writer_goes_on(tmp_path: Path) -> None:
    script = """
        open("file", "wb").write(bytes(1000))
        writer = fr.Writer("a.frec", SCHEMA)
        count = 1_000_000
        signal.signal(signal.SIGALRM, lambda *_: writer.commit())
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # again, if the call has not begun
        try:
            writer.append_files("data", ["file"] * count, {"label": np.arange(count), "key": ["k"] * count})
        except RuntimeError as error:
            print(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        done = len(writer)
        writer.append(record(5))
        writer.close()
        assert fr.Reader("a.frec").column("label").tolist() == [*range(done), 5]
    """
    assert "a signal handler cannot use it" in run_child(script, tmp_path)


def test_a_relative_path_stays_the_same_file_when_the_process_changes_its_directory(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    script = """
        write("there/a.frec", 3)
        os.chdir("here")
        for mode in "xw":
            writer = fr.Writer("a.frec", SCHEMA, mode)
            os.chdir("../there")
            writer.append(record(0))
            writer.abort()
            assert os.listdir("../here") == [] and len(fr.Reader("a.frec")) == 3
            os.chdir("../here")
            writer = fr.Writer("a.frec", SCHEMA, mode)
            assert writer.path == "a.frec"
            os.chdir("../there")
            writer.append(record(0))
            writer.close()
            assert len(fr.Reader("../here/a.frec")) == 1 and len(fr.Reader("a.frec")) == 3
            os.chdir("../here")
            os.remove("a.frec")
    """
    run_child(script, tmp_path)


def test_a_second_writer_is_refused_where_the_first_one_has_nothing_to_replace(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    first = fr.Writer(path, SCHEMA, "w")
    for mode in ("w", "a"):
        with pytest.raises(fr.errors.LockedError, match=rf"a\.frec: .*pid {os.getpid()}"):
            fr.Writer(path, SCHEMA, mode)
    with pytest.raises(FileExistsError, match=r"a\.frec"):
        fr.Writer(path, SCHEMA)
    first.append({**GOOD, "label": 7})
    first.close()
    assert labels(path) == [7]
    assert [file.name for file in tmp_path.iterdir()] == ["a.frec"]


def test_commits_of_a_new_file_stay_and_those_of_a_replacement_go_with_an_exception(tmp_path: Path) -> None:
    def broken_off(label: int) -> None:
        with fr.Writer(tmp_path / "a.frec", SCHEMA, "w") as writer:
            writer.append({**GOOD, "label": label})
            writer.commit()
            raise RuntimeError("as was asked")

    for label in (7, 8):
        with pytest.raises(RuntimeError, match="as was asked"):
            broken_off(label)
        assert labels(tmp_path / "a.frec") == [7]
        assert [file.name for file in tmp_path.iterdir()] == ["a.frec"]


def test_a_link_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, file = tmp_path / "link.frec", tmp_path / "folder" / "a.frec"
    link.symlink_to(Path("folder", "a.frec"))
    with pytest.raises(FileNotFoundError, match=r"link\.frec"):
        fr.Writer(link, SCHEMA, "w")
    write(file, range(2))
    write(link, range(5), "w")
    assert link.is_symlink()
    assert labels(file) == labels(link) == list(range(5))
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["a.frec"]
