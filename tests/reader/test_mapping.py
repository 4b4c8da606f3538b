"""Reads of a truncated, replaced, deleted or unreadable file: errors that name it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import write_images
from tests.support.child import PRELUDE, run_child
from tests.support.disks.faulty_mount import Mount, mounted, why_not

pytestmark = pytest.mark.timeout(300)
FAULTHANDLER = "import faulthandler; faulthandler.enable()"
needs_mount = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
SCHEMA = fr.Schema(
    {
        "data": fr.bytes_(),
        "label": "int64",
        "key": fr.string(),
        "row": fr.array("float32", (200,)),
        "wave": fr.array("int16", (None,)),
        "words": fr.list_(fr.string()),
        "packed": fr.bytes_(compression="zstd"),
    }
)
COUNT, SIZE = 200, 4000


def copied(reader: fr.Reader, **options: bool) -> bytearray:
    out = bytearray(COUNT * SIZE)
    reader.read_batch_into(range(COUNT), "data", out, **options)
    return out


# Every way in which the core reads; each takes a reader.
WAYS: dict[str, Callable[[fr.Reader], object]] = {
    "copies": copied,
    "unchecked copies": lambda r: copied(r, verify=False),
    "one copy": lambda r: r.get(COUNT // 2, "data", copy=True),
    "a batch of copies": lambda r: r.read_batch(range(COUNT), ["data"], copy=True),
    "a checked batch": lambda r: r.read_batch(range(COUNT), ["data"], verify=True),
    "a checked view": lambda r: r.get(COUNT // 2, "data", verify=True),
    "labels": lambda r: r.read_batch(range(COUNT), ["label"]),
    "a column": lambda r: r.column("label", copy=True),
    "lengths": lambda r: r.lengths("data"),
    "texts": lambda r: r.read_batch(range(COUNT), ["key"])["key"],
    "stacked arrays": lambda r: r.read_batch(range(COUNT), ["row"]),
    "padded arrays": lambda r: r.read_batch(range(COUNT), ["wave"])["wave"].padded(),
    "packed arrays": lambda r: r.read_batch(range(COUNT), ["wave"])["wave"].packed(),
    "lists": lambda r: r.read_batch(range(COUNT), ["words"]),
    "compressed values": lambda r: r.read_batch(range(COUNT), ["packed"]),
    "one compressed value": lambda r: r.get(COUNT // 2, "packed"),
    "verify": lambda r: r.verify(),
}


def write(path: Path, first: int = 0) -> Path:
    with fr.Writer(path, SCHEMA) as writer:
        for i in range(first, first + COUNT):
            values = {"data": bytes([i]) * SIZE, "label": i, "key": f"key {i}", "words": ["a", f"b{i}"]}
            arrays = {"row": np.full(200, i, np.float32), "wave": np.arange(i % 7 + 1, dtype=np.int16)}
            writer.append({**values, **arrays, "packed": b"a text that becomes smaller %d " % i * 20})
    return path


def refusal(way: Callable[[], object], path: Path) -> BaseException:
    """Return the error of a read, which names the file."""
    with pytest.raises((fr.FastRecordError, OSError)) as caught:
        way()
    error = caught.value
    assert str(path) in str(error)
    return error


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(write(tmp_path / "source.frec"), tmp_path) as found:
        yield found


def ended(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


@needs_mount
@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("name", WAYS)
def test_a_mount_that_goes_away_is_an_error_of_every_read(mount: Mount, name: str, access: str) -> None:
    reader = fr.Reader(mount.path, access)
    reader.get(0, "data", copy=True)
    mount.go_away()
    error = refusal(lambda: WAYS[name](reader), mount.path)
    assert isinstance(error, OSError)
    refusal(reader.refresh, mount.path)


@needs_mount
@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("name", WAYS)
def test_a_disk_that_fails_is_an_error_of_every_read_and_refresh_goes_on(mount: Mount, name: str, access: str) -> None:
    reader = fr.Reader(mount.path, access)
    mount.break_bytes(4096, reader.nbytes)
    error = refusal(lambda: WAYS[name](reader), mount.path)
    assert isinstance(error, OSError)
    assert error.errno == 5
    mount.heal()
    assert reader.refresh() is False
    WAYS[name](reader)
    assert reader.get(7, "data", copy=True) == bytes([7]) * SIZE


@needs_mount
@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_bad_sector_names_its_record_and_others_stay_readable_by_system_calls(mount: Mount, access: str) -> None:
    with fr.Reader(mount.source) as source:
        at = mount.source.read_bytes().index(bytes([90]) * SIZE)
        assert source.nbytes > at
    reader = fr.Reader(mount.path, access)
    mount.break_bytes(at + SIZE // 2, at + SIZE // 2 + 1)
    out = bytearray(COUNT * SIZE)
    error = refusal(lambda: reader.read_batch_into([90], "data", out), mount.path)
    assert "record 90, field data" in str(error)
    assert isinstance(error, OSError)
    assert error.filename == str(mount.path)
    if access == "pread":
        reader.read_batch_into([3], "data", out)
        assert out[:SIZE] == bytes([3]) * SIZE
    else:
        # A mapping that lost a part is not read again.
        refusal(lambda: reader.read_batch_into([3], "data", out), mount.path)
    assert fr.Reader(mount.path).get(3, "data", copy=True) == bytes([3]) * SIZE


@needs_mount
def test_a_disk_that_fails_amid_an_epoch_ends_the_loaders_with_an_error_and_not_the_process(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source.frec", [number % 3 for number in range(64)])
    with mounted(source, tmp_path) as mount:
        script = f"""
        import multiprocessing
        from pathlib import Path
        from torch.utils.data import DataLoader
        import torch

        path, bad = {str(mount.path)!r}, Path({str(mount.bad)!r})
        end = os.path.getsize(path)
        def broken(batches):
            seen = 0
            try:
                for _ in batches:
                    seen += 1
                    bad.write_text(f"{{4096 * 3}} {{end}}")
                    with open(path) as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            except (OSError, fr.FastRecordError) as error:
                assert path in str(error), error
                return
            finally:
                bad.unlink(missing_ok=True)
            raise AssertionError(f"all of {{seen}} batches came")
        for access in ("mmap", "pread"):
            data = fr.FastRecordDataset(path, access=access, decode=None)
            images = fr.FastRecordDataset(path, access=access)
            broken(fr.FastRecordLoader(images, batch_size=2, shuffle=False, sample=[fr.transforms.CenterCrop(16)]))
            broken(DataLoader(data, batch_size=2, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"))
        print("done")
        """
        assert run_child(script, tmp_path, timeout=240) == "done\n"


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("name", WAYS)
def test_a_file_that_was_cut_short_is_an_error_of_every_read(tmp_path: Path, name: str, access: str) -> None:
    path = write(tmp_path / "a.frec")
    reader = fr.Reader(path, access)
    os.truncate(path, 100_000)
    error = refusal(lambda: WAYS[name](reader), path)
    assert isinstance(error, fr.errors.CorruptFileError)
    assert "the file is truncated: it has 100000 bytes" in str(error)
    refusal(reader.refresh, path)


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("name", WAYS)
def test_another_file_written_over_it_is_an_error_of_every_read(tmp_path: Path, name: str, access: str) -> None:
    path, other = write(tmp_path / "a.frec"), write(tmp_path / "b.frec")
    reader = fr.Reader(path, access)
    shutil.copyfile(other, path)  # in place, as cp does
    error = refusal(lambda: WAYS[name](reader), path)
    assert "the file was replaced" in str(error)
    assert fr.Reader(other).file_id in str(error)
    refusal(reader.refresh, path)


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_file_that_was_renamed_over_or_deleted_is_read_to_the_end_and_not_refreshed(
    tmp_path: Path, access: str
) -> None:
    path, other = write(tmp_path / "a.frec"), write(tmp_path / "b.frec")
    reader = fr.Reader(path, access)
    os.replace(other, path)
    assert "the file was replaced" in str(refusal(reader.refresh, path))
    assert reader.get(7, "data", copy=True) == bytes([7]) * SIZE
    path.unlink()
    assert isinstance(refusal(reader.refresh, path), FileNotFoundError)
    assert reader.verify()["ok"]


def test_copies_are_no_views_and_equal_them(tmp_path: Path) -> None:
    for access in ("mmap", "pread"):
        with fr.Reader(write(tmp_path / f"{access}.frec"), access) as reader:
            copied = reader.read_batch([5, 6], copy=True)
            seen = reader.read_batch([5, 6])
            for at, record in enumerate((5, 6)):
                one = {name: reader.get(record, name, copy=True) for name in SCHEMA}
                assert type(one["data"]) is type(one["packed"]) is bytes
                assert one["data"] == bytes(copied["data"][at]) == bytes(seen["data"][at]) == bytes([record]) * SIZE
                assert one["packed"] == bytes(copied["packed"][at])
                assert one["words"] == copied["words"][at] == ["a", f"b{record}"]
                for name in ("row", "wave"):
                    np.testing.assert_array_equal(one[name], copied[name][at])
                    np.testing.assert_array_equal(one[name], seen[name][at])
            np.testing.assert_array_equal(reader.column("label", copy=True), reader.column("label"))
            if access == "mmap":
                assert not np.shares_memory(reader.column("label", copy=True), reader.column("label"))


@pytest.mark.parametrize(("before", "after"), [("", ""), ("", FAULTHANDLER), (FAULTHANDLER, "")])
def test_a_view_of_a_file_that_was_cut_short_ends_the_process_as_ever_and_says_why(
    tmp_path: Path, before: str, after: str
) -> None:
    script = f"""
    {before}
    reader = fr.Reader(write("a.frec", 100, 40_000))
    view = reader.get(90, "data")
    {after}
    reader.read_batch([1], ["label"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.truncate("a.frec", 100_000)
    bytes(view)
    print("zeros were read")
    """
    done = ended(script, tmp_path)
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == ""
    assert "a.frec: a view of the file's mapping was read" in done.stderr
    assert done.stderr.count("Fatal Python error: Bus error") == (1 if before or after else 0)


def test_a_view_keeps_its_bus_error_where_a_copy_got_an_exception(tmp_path: Path) -> None:
    script = """
    reader = fr.Reader(write("a.frec", 100, 40_000))
    view = reader.get(90, "data")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = os.path.getsize("a.frec")
    os.truncate("a.frec", 100_000)
    for _ in range(3):
        try:
            reader.read_batch_into([90], "data", bytearray(40_000))
        except fr.errors.CorruptFileError:
            print("exception", flush=True)
    bytes(view)
    print("zeros were read")
    """
    done = ended(script, tmp_path)
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "exception\n" * 3


@pytest.mark.parametrize("first", [True, False])
def test_a_bus_error_that_is_sent_goes_to_the_handler_that_was_there(tmp_path: Path, first: bool) -> None:
    script = f"""
    seen = []
    def handle(number, frame):
        seen.append(number)
    if {first}:
        signal.signal(signal.SIGBUS, handle)
    reader = fr.Reader(write("a.frec", 10))
    if not {first}:
        signal.signal(signal.SIGBUS, handle)
    for count in range(1, 4):
        reader.read_batch([1], ["label"])
        signal.raise_signal(signal.SIGBUS)
        assert seen == [signal.SIGBUS] * count, seen
    signal.signal(signal.SIGBUS, signal.SIG_IGN)
    reader.read_batch([1], ["label"])
    signal.raise_signal(signal.SIGBUS)
    print("done", flush=True)
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    reader.read_batch([1], ["label"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.raise_signal(signal.SIGBUS)
    """
    done = ended(script, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGBUS, "done\n", "")


def test_a_file_cut_short_amid_an_epoch_ends_the_loaders_with_an_error_and_not_the_process(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source.frec", [number % 3 for number in range(64)])
    script = f"""
    import shutil
    from torch.utils.data import DataLoader
    import torch

    def broken(batches, path):
        try:
            for _ in batches:
                os.truncate(path, 4096 * 3)
        except fr.errors.CorruptFileError as error:
            assert path in str(error) and "[FR303]" in str(error), error
            return
        raise AssertionError("all batches came")
    def copied():
        return shutil.copyfile({str(source)!r}, "a.frec")
    for access, start, decode in (("mmap", "spawn", "native"), ("pread", "fork", None), ("mmap", "fork", None)):
        data = fr.FastRecordDataset(copied(), access=access)
        broken(fr.FastRecordLoader(data, batch_size=2, shuffle=False, sample=[fr.transforms.CenterCrop(16)]), "a.frec")
        data = fr.FastRecordDataset(copied(), access=access, decode=decode)
        options = dict(num_workers=1, prefetch_factor=1, multiprocessing_context=start)
        broken(DataLoader(data, batch_size=1, **options), "a.frec")
    print("done")
    """
    assert run_child(script, tmp_path, timeout=240) == "done\n"
