"""The core's log records: from its threads, in workers, and with handlers that misbehave."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord import _core, logs
from tests.conftest import encode, write_bytes, write_images
from tests.support.child import run_child
from tests.support.commands import good, run
from tests.support.packing import pack_with

CORE = "fastrecord.core"
SAMPLE = [fr.transforms.Resize(16), fr.transforms.CenterCrop(16)]


def told(caplog: pytest.LogCaptureFixture, module: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == f"{CORE}.{module}"]


def torn(path: Path, tail: int = 5000) -> Path:
    """Write a file of one commit, followed by the beginning of another."""
    write_bytes(path, [b"one", b"two"])
    with path.open("ab") as file:
        file.write(b"x" * tail)
    return path


@pytest.fixture
def handled() -> Iterator[logging.Logger]:
    """The core's logger, restored afterwards."""
    logger = logging.getLogger(CORE)
    level, handlers = logger.level, logger.handlers[:]
    yield logger
    logger.setLevel(level)
    logger.handlers[:] = handlers


class Calls(logging.Handler):
    """Calls a function for each record; its errors are not caught."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def emit(self, record: logging.LogRecord) -> None:
        assert callable(self.function)
        self.function(record)


def test_a_torn_tail_is_told_by_readers_and_by_the_writer_that_cuts_it_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = torn(tmp_path / "a.frec")
    before = time.time()
    with caplog.at_level(logging.INFO, CORE):
        fr.Reader(path).close()
        (seen,) = told(caplog, "open")
        assert (seen.levelname, seen.threadName) == ("INFO", "MainThread")
        assert seen.getMessage().startswith(f"{path}: 5000 bytes after commit 1: ")
        assert before <= seen.created <= time.time()
        assert seen.pathname.endswith("rust/core/src/file/find_commit.rs")
        assert seen.lineno > 0
        caplog.clear()
        with fr.Writer(path, mode="a"):
            pass
        (cut,) = told(caplog, "writer")
        assert cut.levelname == "WARNING"
        assert "5000 bytes after commit 1 were cut off" in cut.getMessage()
        caplog.clear()
        fr.Reader(path).close()
    assert not told(caplog, "open")


def test_slots_that_can_not_be_read_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = torn(tmp_path / "a.frec")
    content = bytearray(path.read_bytes())
    for slot in (512, 1024):
        content[slot : slot + 32] = b"\xff" * 32
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, CORE):
        assert len(fr.Reader(path)) == 2
    assert [record.levelname for record in told(caplog, "open")] == ["WARNING"]


def test_stale_temporaries_commits_and_replaced_files_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_bytes(tmp_path / "a.frec", [b"one"])
    stale = tmp_path / "a.frec.tmp-0123abcd"
    shutil.copy(path, stale)
    with caplog.at_level(logging.DEBUG, CORE), fr.Writer(path, {"n": "int64"}, mode="w") as writer:
        for number in range(3):
            writer.append({"n": number})
            writer.commit()
    assert not stale.exists()
    assert [record.getMessage().split(":")[0] for record in told(caplog, "temporary")] == [str(stale)]
    commits = [record.getMessage() for record in told(caplog, "commit")]
    assert [text.split(": ")[1] for text in commits[:3]] == ["commit 1", "commit 2", "commit 3"]
    assert ": 3 records, " in commits[-1]
    assert "the old file was replaced" in told(caplog, "writer")[-1].getMessage()
    assert told(caplog, "chunks")


def test_a_single_module_can_be_listened_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, f"{CORE}.commit"):
        write_bytes(tmp_path / "a.frec", [b"one"])
    assert {record.name for record in caplog.records} == {f"{CORE}.commit"}
    caplog.clear()
    write_bytes(tmp_path / "b.frec", [b"one"])
    assert not caplog.records


def test_logging_that_is_disabled_stays_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, CORE):
        logging.disable(logging.CRITICAL)
        try:
            assert logs.threshold() > logging.CRITICAL
            fr.Reader(torn(tmp_path / "a.frec")).close()
        finally:
            logging.disable(logging.NOTSET)
    assert not caplog.records


def test_events_of_a_loaders_threads_have_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = bytearray(write_images(tmp_path / "a.frec", [0, 1] * 8).read_bytes())
    with fr.Reader(tmp_path / "a.frec") as reader:
        images = [bytes(image) for image in reader.read_batch(range(16))["image"]]
    for image in images[::4]:
        content[content.index(image) + 20] ^= 0xFF
    (tmp_path / "a.frec").write_bytes(content)
    loader = fr.FastRecordLoader(
        fr.FastRecordDataset(tmp_path / "a.frec"),
        batch_size=8,
        shuffle=False,
        sample=SAMPLE,
        threads=2,
        on_error="skip",
    )
    with caplog.at_level(logging.DEBUG, CORE):
        assert sum(len(labels) for _, labels in loader) == 12
    failed = [record for record in told(caplog, "loader") if "cannot be loaded" in record.getMessage()]
    assert len(failed) == 4
    assert {record.threadName.rstrip("01") for record in failed if record.threadName} == {"frec-load-"}
    assert all("[FR302]" in record.getMessage() for record in failed)
    begun = [record for record in told(caplog, "loader") if "threads started" in record.getMessage()]
    assert [record.threadName for record in begun] == ["MainThread"]


def test_workers_log_by_their_own_configuration(tmp_path: Path) -> None:
    torn(tmp_path / "a.frec")
    script = """
    import logging, os
    from pathlib import Path
    from torch.utils.data import DataLoader
    import fastrecord as fr

    def configure(worker=0):
        handler = logging.FileHandler(f"log-{os.getpid()}")
        handler.setFormatter(logging.Formatter("%(process)d %(name)s %(message)s"))
        logging.getLogger("fastrecord").addHandler(handler)
        logging.getLogger("fastrecord").setLevel(logging.DEBUG)

    class Opens:
        def __len__(self): return 4
        def __getitem__(self, i):
            with fr.Reader("a.frec") as reader:
                return len(reader)

    if __name__ == "__main__":
        loader = DataLoader(Opens(), num_workers=2, multiprocessing_context="fork", worker_init_fn=configure)
        assert [int(n) for batch in loader for n in batch] == [2] * 4
        logs = list(Path().glob("log-*"))
        assert len(logs) == 2
        for log in logs:
            lines = log.read_text().splitlines()
            assert sum("5000 bytes after commit 1" in line for line in lines) == 2, lines
            assert all(line.startswith(log.name.removeprefix("log-") + " fastrecord.core.") for line in lines)
        print("done")
    """
    (tmp_path / "script.py").write_text("\n".join(line[4:] for line in script.splitlines()))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_handler_that_raises_is_reported_and_is_no_outcome_of_the_call(
    tmp_path: Path, handled: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(what.exc_value))
    handled.setLevel(logging.DEBUG)
    handled.addHandler(Calls(lambda _: 1 // 0))
    path = torn(tmp_path / "a.frec")
    reported.clear()
    assert len(fr.Reader(path)) == 2
    assert [type(error) for error in reported] == [ZeroDivisionError] * 2
    monkeypatch.setattr(logging, "raiseExceptions", False)
    reported.clear()
    assert len(fr.Reader(path)) == 2
    assert not reported


def test_ctrl_c_amid_a_handler_is_raised_and_the_rest_is_told_later(tmp_path: Path, handled: logging.Logger) -> None:
    path = torn(tmp_path / "a.frec")
    seen: list[str] = []

    def interrupt(record: logging.LogRecord) -> None:
        seen.append(record.name)
        if len(seen) == 1:
            raise KeyboardInterrupt

    handled.setLevel(logging.DEBUG)
    handled.addHandler(Calls(interrupt))
    with pytest.raises(KeyboardInterrupt):
        fr.Reader(path)
    assert seen == [f"{CORE}.open"]
    _core.deliver_events()
    assert seen == [f"{CORE}.open", f"{CORE}.snapshot"]


def test_a_handler_may_use_fastrecord_itself(tmp_path: Path, handled: logging.Logger) -> None:
    path, other = torn(tmp_path / "a.frec"), torn(tmp_path / "b.frec", 100)
    seen: list[str] = []

    def opens(record: logging.LogRecord) -> None:
        seen.append(record.getMessage())
        if str(path) in seen[-1]:
            assert len(fr.Reader(other)) == 2

    handled.setLevel(logging.INFO)
    handled.addHandler(Calls(opens))
    assert len(fr.Reader(path)) == 2
    _core.deliver_events()
    assert [text.split(":")[0] for text in seen] == [str(path), str(other)]


def test_a_handler_may_use_the_writer_that_tells(tmp_path: Path, handled: logging.Logger) -> None:
    with fr.Writer(tmp_path / "a.frec", {"n": "int64"}) as writer:
        lengths: list[int] = []
        handled.setLevel(logging.DEBUG)
        handled.addHandler(Calls(lambda _: lengths.append(len(writer))))
        writer.extend({"n": np.arange(100)})
        writer.commit()
        assert lengths == [100]
        handled.handlers.clear()


def test_more_events_than_the_queue_holds_are_counted(tmp_path: Path, handled: logging.Logger) -> None:
    # Enough to overflow the queue before or during the wait for the batch.
    path = write_bytes(tmp_path / "a.frec", [encode(0), *[b"text"] * 2100])
    dataset = fr.FastRecordDataset(path, image_field="data")
    loader = fr.FastRecordLoader(dataset, batch_size=2101, shuffle=False, sample=SAMPLE, on_error=fr.Skip(limit=None))
    seen: list[str] = []
    handled.setLevel(logging.DEBUG)
    handled.addHandler(Calls(lambda record: seen.append(record.getMessage())))
    assert len(list(loader)) == 1
    told = sum("a record cannot be loaded" in text for text in seen)
    dropped = [int(text.split(" ")[0]) for text in seen if "events were dropped: 1024 were waiting" in text]
    assert dropped
    assert told <= 2048
    assert told + sum(dropped) >= 2100


def test_no_thread_of_the_core_waits_for_a_handler_and_a_fork_in_the_middle_hangs_nobody(tmp_path: Path) -> None:
    write_images(tmp_path / "a.frec", [0, 1] * 32)
    out = run_child(
        """
        import logging, warnings
        # CPython 3.12 warns of every fork of a process with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        lock = threading.RLock()
        class Locked(logging.Handler):
            count = 0
            def emit(self, record):
                with lock:
                    Locked.count += 1
        logging.getLogger("fastrecord").addHandler(Locked())
        logging.getLogger("fastrecord").setLevel(logging.DEBUG)
        data = bytearray(open("a.frec", "rb").read())
        with fr.Reader("a.frec") as reader:
            places = [data.index(bytes(image)) for image in reader.read_batch(range(64))["image"]]
        for place in places[::2]:
            data[place + 20] ^= 255
        open("a.frec", "wb").write(data)
        sample = [fr.transforms.Resize(16), fr.transforms.CenterCrop(16)]
        loader = fr.FastRecordLoader(
            "a.frec", 8, shuffle=False, sample=sample, threads=2, on_error=fr.Skip(limit=None)
        )
        before = Locked.count
        for epoch in range(8):
            with lock:  # while the loader's threads tell of the records that fail
                iterator = iter(loader)
                kept = sum(len(labels) for _, labels in [next(iterator) for _ in range(4)])
                pid = os.fork()
                if pid == 0:
                    fr.Reader("a.frec").close()
                    kept = sum(len(labels) for _, labels in loader)
                    os._exit(0 if kept == 32 else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                kept += sum(len(labels) for _, labels in iterator)
            assert kept == 32
        assert Locked.count - before >= 8 * 32
        print("done")
        """,
        tmp_path,
        timeout=300,
    )
    assert out == "done\n"


def test_what_is_left_is_told_at_exit(tmp_path: Path) -> None:
    torn(tmp_path / "a.frec")
    out = run_child(
        """
        import logging
        class Opens(logging.Handler):
            def emit(self, record):
                print(record.name, len(opened))
                if not opened:
                    opened.append(fr.Reader("a.frec"))  # what this tells has to wait
        opened = []
        logging.getLogger("fastrecord").addHandler(Opens())
        logging.getLogger("fastrecord").setLevel(logging.INFO)
        fr.Reader("a.frec")
        print("ends")
        """,
        tmp_path,
    )
    assert out.splitlines() == ["fastrecord.core.open 0", "ends", "fastrecord.core.open 1"]


def test_nothing_is_printed_unless_asked_for(tmp_path: Path) -> None:
    torn(tmp_path / "a.frec")
    script = 'import fastrecord as fr; fr.Writer("a.frec", mode="a").close(); print(len(fr.Reader("a.frec")))'
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_the_command_line_logs_to_stderr_if_asked(tmp_path: Path, image_folder: Path) -> None:
    out = tmp_path / "a.frec"
    level = logging.getLogger("fastrecord").level
    told = run("-v", "pack", image_folder, out).stderr
    assert f"INFO fastrecord.pack: {out}: 12 records packed, of 12 in 1 file(s), in " in told
    assert "DEBUG" not in told
    assert "DEBUG fastrecord.core.commit: " in run("-vv", "pack", "--overwrite", image_folder, out).stderr
    assert good("info", out)  # quiet again
    assert logging.getLogger("fastrecord").level == level


def test_skipped_files_and_records_are_told_and_after_some_only_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(30):
        (tmp_path / "images" / "a" / f"{number:02}.jpg").write_bytes(encode(number) if number < 5 else b"text")
    pack_with(tmp_path / "images", tmp_path / "a.frec", bad_files="skip")
    lines = [record.getMessage() for record in caplog.records if record.name == "fastrecord.pack"]
    assert len(lines) == 21
    assert lines[0].startswith("skipped: a/05.jpg: ")
    assert lines[-1] == "skipped 5 more files"
    caplog.clear()
    path = write_bytes(tmp_path / "b.frec", [encode(0), *[b"text"] * 25])
    dataset = fr.FastRecordDataset(path, image_field="data")
    loader = fr.FastRecordLoader(dataset, batch_size=26, shuffle=False, sample=SAMPLE, on_error=fr.Skip(limit=None))
    assert len(list(loader)) == 1
    lines = [record.getMessage() for record in caplog.records if record.name == "fastrecord.loader"]
    assert len(lines) == 21
    assert lines[0].endswith("fields=('data', ...) reads it as bytes [FR501]")
    assert lines[-1] == "skipped more records: further ones are only counted"
