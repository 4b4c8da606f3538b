"""The doctor: its findings on this machine and in real files, and for simulated machines."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord._core import resident_bytes
from fastrecord.inspect.diagnosis import FileReport, doctor, judge_file
from fastrecord.inspect.findings import Finding
from fastrecord.inspect.machine import (
    Group,
    Machine,
    judge_machine,
    parse_choice,
    parse_group,
    parse_memory,
)
from fastrecord.inspect.mounts import Disk, disk_of, judge_disk, judge_mount, mount_of, parse_locks, parse_mounts
from fastrecord.inspect.packed_gain import PackedGain
from fastrecord.inspect.page_cache import drop_from_cache
from tests.conftest import large_images, write_bytes
from tests.support.commands import good, run

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 25 0:27 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=65536k
41 27 0:44 / /mnt/data rw,relatime shared:5 - nfs4 server:/export/data rw,vers=4.2,hard,proto=tcp,local_lock=none
42 27 0:45 / /mnt/old rw,relatime - nfs 10.0.0.1:/old rw,vers=3,soft,nolock,local_lock=all
43 27 0:46 /sub/folder /mnt/with\\040blank\\134 ro,relatime master:9 - fuse.sshfs me@host:/a\\040b rw,user_id=0
44 27 0:47 / / rw,relatime - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/u,workdir=/w
45 27 0:48 / /mnt/c rw,noatime - 9p C:\\134 rw,aname=drvfs,cache=5
46 27 0:49 / /lustre rw - lustre 10.1.1.1@o2ib:/scratch rw,flock,lazystatfs
47 27 0:50 / /lustre2 rw - lustre 10.1.1.1@o2ib:/scratch rw
48 27 0:51 / /mnt/data/deeper rw - xfs /dev/nvme0n1p1 rw
not a line of it
49 27 x:y / /bad rw - ext4 /dev/x rw
"""


def mount(path: str) -> Any:
    found = mount_of(path, parse_mounts(MOUNTS))
    assert found is not None
    return found


def levels(found: list[Finding]) -> dict[str, str]:
    return {finding.code: finding.level for finding in found}


# The system's text files


def test_a_path_lies_on_the_deepest_mount_and_of_two_there_on_the_later() -> None:
    assert len(parse_mounts(MOUNTS)) == 11
    assert mount("/mnt/data/train.frec").kind == "nfs4"
    assert mount("/mnt/data/deeper/train.frec").kind == "xfs"
    assert mount("/mnt/data2/train.frec").kind == "overlay"
    assert mount("/train.frec").kind == "overlay"
    assert mount("/mnt/with blank\\/x").source == "me@host:/a b"
    assert mount("/mnt/data").device == "0:44"
    assert mount_of("/x", []) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mnt/data/a.frec", {"nfs": "note"}),
        ("/mnt/old/a.frec", {"nfs": "note", "nfs-locks": "warning", "nfs-soft": "warning"}),
        ("/mnt/with blank\\/a.frec", {"fuse": "warning", "read-only": "note"}),
        ("/a.frec", {"overlay": "warning"}),
        ("/mnt/c/a.frec", {"9p": "warning"}),
        ("/lustre/a.frec", {"lustre": "note"}),
        ("/lustre2/a.frec", {"lustre": "note", "lustre-locks": "warning"}),
        ("/dev/shm/a.frec", {"tmpfs": "note"}),
        ("/mnt/data/deeper/a.frec", {"filesystem": "ok"}),
    ],
)
def test_each_file_system_has_its_traps_named(path: str, expected: dict[str, str]) -> None:
    found = judge_mount(path, mount(path))
    assert levels(found) == expected
    assert all(finding.file == path and finding.message for finding in found)


@pytest.mark.parametrize(
    ("kind", "code", "level"),
    [
        ("cifs", "smb", "warning"), ("ceph", "network", "note"), ("gpfs", "network", "note"), ("zfs", "zfs", "note"),
        ("vfat", "foreign", "warning"), ("squashfs", "image", "note"), ("virtiofs", "fuse", "note"),
        ("xfs", "filesystem", "ok"),
        ("something", "filesystem", "note"), ("fuse.gcsfuse", "fuse", "warning"), ("ramfs", "tmpfs", "note"),
    ],
)  # fmt: skip
def test_file_systems_that_are_not_here_are_known_too(kind: str, code: str, level: str) -> None:
    assert levels(judge_mount("/a.frec", replace(mount("/proc"), kind=kind))) == {code: level}


def test_a_command_names_the_file_as_a_shell_takes_it() -> None:
    found = judge_mount("/mnt/data/it's; rm.frec", mount("/mnt/data/x"))
    assert found[0].command == "cp '/mnt/data/it'\"'\"'s; rm.frec' LOCAL_DISK/"


CGROUP2 = "30 23 0:26 / /cg2 rw - cgroup2 cgroup2 rw,nsdelegate\n"
CGROUP1 = (
    "31 23 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 23 0:30 / /cg/memory rw - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("membership", "mounts", "files", "expected"),
    [
        ("0::/\n", CGROUP2, {"/cg2/cpu.max": "150000 100000\n", "/cg2/memory.max": "4096"}, Group(1.5, 4096)),
        ("0::/\n", CGROUP2, {"/cg2/cpu.max": "max 100000\n", "/cg2/memory.max": "max\n"}, Group()),
        ("0::/a/b\n", CGROUP2, {"/cg2/a/cpu.max": "400000 100000", "/cg2/a/b/memory.max": "9"}, Group(4.0, 9)),
        ("0::/../host\n", CGROUP2, {"/cg2/memory.max": "7"}, Group(None, 7)),
        (
            "4:memory:/job\n1:cpu,cpuacct:/\n",
            CGROUP1,
            {
                "/cg/memory/job/memory.limit_in_bytes": "1000",
                "/cg/memory/memory.limit_in_bytes": "9223372036854771712",
                "/cg/cpu/cpu.cfs_quota_us": "50000",
                "/cg/cpu/cpu.cfs_period_us": "100000",
            },
            Group(0.5, 1000),
        ),
        ("1:cpu,cpuacct:/\n", CGROUP1, {"/cg/cpu/cpu.cfs_quota_us": "-1", "/cg/cpu/cpu.cfs_period_us": "9"}, Group()),
        ("", "", {}, Group()),
        ("nonsense\n", CGROUP2, {}, Group()),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_a_process_and_its_parents_counts(
    membership: str, mounts: str, files: dict[str, str], expected: Group
) -> None:
    assert parse_group(membership, mounts, files.get) == expected


def test_memory_choices_and_locks_are_read_from_the_kernels_texts() -> None:
    memory = parse_memory("MemTotal:       24684092 kB\nHugePages_Total:       3\nBad\nOdd: x kB\n")
    assert memory == {"MemTotal": 24684092 * 1024, "HugePages_Total": 3}
    assert parse_choice("always [madvise] never\n") == "madvise"
    assert parse_choice("") is None
    locks = "1: POSIX  ADVISORY  WRITE 11 fd:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 fd:01:77 0 EOF\n3: FLOCK x\n"
    assert parse_locks(locks, 77) == 12
    assert parse_locks(locks, 7) is None


# Findings about a machine

GOOD = Machine(
    system="Linux 6.1 x86_64", cpus=8, allowed_cpus=8, cpu_quota=None, threads=8, memory=64 << 30,
    memory_available=60 << 30, memory_limit=None, huge_pages="madvise", open_files=65536, open_files_hard=65536,
    shared_memory=32 << 30, shared_memory_free=32 << 30, start_method="fork", instructions={"jpeg": "avx2"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "files", "expected"),
    [
        ({}, 1, {}),
        ({"allowed_cpus": 2}, 1, {"cpu-affinity": "note"}),
        ({"cpu_quota": 1.5}, 1, {"cpu-quota": "note"}),
        ({"cpu_quota": 8.0}, 1, {}),
        ({"instructions": {"jpeg": "sse2"}}, 1, {"instructions": "note"}),
        ({"memory_limit": 4 << 30}, 1, {"memory-limit": "note"}),
        ({"memory_available": 100 << 20}, 1, {"memory": "note"}),
        ({"shared_memory": 64 << 20, "shared_memory_free": 64 << 20}, 1, {"shared-memory": "warning"}),
        ({"shared_memory_free": 1 << 20}, 1, {"shared-memory": "warning"}),
        ({"shared_memory": None, "shared_memory_free": None}, 1, {}),
        ({"open_files": 256}, 1, {"open-files": "warning"}),
        ({"open_files": 512}, 1, {"open-files": "note"}),
        ({"open_files": 1024}, 1000, {"open-files": "warning"}),
        ({"open_files": -1, "open_files_hard": -1}, 100_000, {}),
        ({"memory": None, "memory_available": None, "huge_pages": None}, 1, {}),
    ],
)
def test_what_a_machine_lacks_is_reported(changes: dict[str, Any], files: int, expected: dict[str, str]) -> None:
    found = judge_machine(replace(GOOD, **changes), files)
    assert {code: level for code, level in levels(found).items() if level != "ok"} == expected


@pytest.mark.parametrize(
    ("soft", "hard", "command", "root"),
    [
        (20, 20, None, True),
        (20, 100, "ulimit -n 100", True),
        (20, 4096, "ulimit -n 4096", False),
        (20, -1, "ulimit -n unlimited", False),
    ],
)
def test_a_hard_limit_that_is_too_low_is_sent_to_root(soft: int, hard: int, command: str | None, root: bool) -> None:
    found = {f.code: f for f in judge_machine(replace(GOOD, open_files=soft, open_files_hard=hard), 1)}["open-files"]
    assert (found.level, found.command) == ("warning", command)
    assert ("only root raises the hard limit" in found.message) == root


def test_this_machine_is_looked_at_without_importing_torch() -> None:
    program = (
        "import json, sys\n"
        "from fastrecord.inspect.machine import this_machine, versions\n"
        "print(json.dumps([this_machine().to_dict(), versions(), 'torch' in sys.modules, 'numpy' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    machine, found, torch, _ = json.loads(done.stdout)
    assert not torch
    assert machine["threads"] <= machine["allowed_cpus"] <= machine["cpus"]
    assert machine["allowed_cpus"] == len(os.sched_getaffinity(0))
    assert set(machine["instructions"]) == {"jpeg", "resize", "crc"}
    assert found["fastrecord"] == fr.__version__
    assert all(found[name] for name in ("numpy", "torch", "pillow", "libjpeg-turbo", "zstd", "lz4")), found
    assert found["libjpeg-turbo"][0].isdigit()


# Findings about files


def only(path: Path) -> tuple[FileReport, dict[str, str]]:
    report = doctor([path])
    return report.files[0], {f.code: f.level for f in report.findings if f.file is not None}


def test_a_good_file_is_described_and_nothing_is_changed(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(packed, tmp_path / "a.frec"))
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    file, found = only(path)
    assert (file.error, file.records, file.commits, file.complete, file.tail_bytes, file.chunks) == (
        None,
        12,
        1,
        True,
        0,
        1,
    )
    assert file.size == path.stat().st_size
    assert file.resident is not None
    assert 0 < file.resident <= file.size
    assert file.mount is not None
    # The images are too small for this to matter.
    assert file.crop_index is None
    assert found["state"] == "ok"
    assert "unreadable" not in found
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_file_in_pieces_with_a_tail_is_sent_to_compact_and_good_afterwards(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.frec", [b"x"])
    writer = fr.Writer(path, mode="a")
    for i in range(70):
        writer.append({"data": b"y" * 100, "key": str(i)})
        writer.commit()
    shutil.copy(path, tmp_path / "b.frec")
    writer.close()
    with (tmp_path / "b.frec").open("ab") as file:
        file.write(b"tail")
    about, found = only(tmp_path / "b.frec")
    assert about.tail_bytes == 4
    assert found["tail"] == "note"
    assert (about.chunks or 0) >= 1
    good("compact", tmp_path / "b.frec")
    about, found = only(tmp_path / "b.frec")
    assert (about.tail_bytes, about.chunks, found["state"]) == (0, 1, "ok")


def test_what_lies_in_memory_is_what_lay_there_before_the_doctor_looked(tmp_path: Path) -> None:
    path = large_images(tmp_path / "a.frec")
    drop_from_cache(path)
    before = resident_bytes(path)[0]
    if before > 0.1 * path.stat().st_size:
        pytest.skip("this file system keeps its files in memory")
    about, _ = only(path)
    assert about.resident is not None
    assert about.resident <= before


def test_an_incomplete_file_and_its_writer_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, fr.Schema({"data": fr.bytes_()}), complete=False) as writer:
        writer.append({"data": b"x"})
        writer.commit()
        about, found = only(path)
        assert found["incomplete"] == "warning"
        if Path("/proc/locks").exists():
            assert about.writer == os.getpid()
            assert found["writer"] == "note"
    about, found = only(path)
    assert about.writer is None
    assert "writer" not in found


def test_looking_takes_no_lock_that_a_writer_would_be_refused_for(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(packed, tmp_path / "a.frec"))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert only(path)[0].error is None


@pytest.mark.parametrize("speed", [1.0, 2.5])
def test_images_that_another_form_makes_faster_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    from tests.support.pictures import jpeg

    monkeypatch.setattr(PackedGain, "measure", lambda _: PackedGain(1.223, speed))
    for name, options in (
        ("plain.frec", ()),
        ("index.frec", ("--crop-index",)),
        ("packed.frec", ("--packed",)),
    ):
        folder = tmp_path / "images" / "a"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(3):
            (folder / f"{i}.jpg").write_bytes(jpeg(200 + i, 160))
        good("pack", tmp_path / "images", tmp_path / name, *options)
    about, found = only(tmp_path / "plain.frec")
    assert (about.crop_index, about.packed) == (0.0, 0.0)
    assert found.keys() & {"crop-index", "packed"} == {"packed" if speed > 2 else "crop-index"}
    if speed > 2:
        printed = good("doctor", tmp_path / "plain.frec")
        assert "could be packed, with the same values: 22 % more bytes, decoded 2.5 times as fast here" in printed
        assert f"fastrecord compact {tmp_path / 'plain.frec'} --packed" in printed
    good("index", tmp_path / "plain.frec")
    for name, shares in {"index.frec": (1.0, 0.0), "plain.frec": (1.0, 0.0), "packed.frec": (0.0, 1.0)}.items():
        about, found = only(tmp_path / name)
        assert (about.crop_index, about.packed, about.packed_gain) == (*shares, None)
        assert not found.keys() & {"crop-index", "packed"}


def test_what_packing_gains_is_measured_with_the_images() -> None:
    from tests.support.pictures import jpeg, picture, save

    gain = PackedGain.measure([jpeg(200, 160), save(picture(20, 20), "PNG")])
    assert gain is not None
    assert gain.size > 1
    assert gain.speed > 0
    assert PackedGain.measure([save(picture(20, 20), "PNG")]) is None


def test_a_file_that_everyone_may_write_to_is_warned_of(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(packed, tmp_path / "a.frec"))
    path.chmod(0o666)
    assert only(path)[1]["writable"] == "warning"
    path.chmod(0o644)
    assert "writable" not in only(path)[1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"size": 100 << 30, "resident": 0}, {"larger-than-memory": "note"}),
        ({"size": 1 << 30, "resident": 0}, {"cold": "note"}),
        ({"size": 1 << 20, "resident": 0}, {}),
        ({"size": 1 << 30, "resident": 1 << 30}, {}),
        ({"chunks": 64}, {"chunks": "note"}),
        ({"pieces": 4000, "size": 1 << 30, "resident": 1 << 30}, {"fragmented": "note"}),
        ({"mappable": False}, {"no-mapping": "warning"}),
        ({"crop_index": 0.375}, {"crop-index": "note"}),
        ({"crop_index": 0.375, "packed": 0.625}, {}),
        ({"crop_index": 0.0, "packed": 0.0, "packed_gain": PackedGain(1.2, 2.0)}, {"packed": "note"}),
        ({"crop_index": 0.0, "packed": 0.0, "packed_gain": PackedGain(1.2, 1.1)}, {"crop-index": "note"}),
        ({"crop_index": 0.75}, {}),
        ({"disk": Disk("sda", True, "none", 128, 1280)}, {"rotational": "note"}),
        ({"disk": Disk("vda", True, "none", 128, 1280)}, {}),
        ({"disk": Disk("nvme0n1", False, "none", 0, 64)}, {"read-ahead": "note"}),
    ],
)
def test_the_state_of_a_file_decides_what_is_found(
    tmp_path: Path, changes: dict[str, Any], expected: dict[str, str]
) -> None:
    path = write_bytes(tmp_path / "a.frec", [b"x"])
    path.chmod(0o644)
    about = FileReport(
        str(path), size=4096, resident=4096, records=1, commits=1, complete=True, tail_bytes=0, chunks=1, mappable=True
    )
    found = judge_file(replace(about, **changes), GOOD)
    assert {code: level for code, level in levels(found).items() if level != "ok"} == expected


def test_the_disk_of_a_partition_is_the_whole_disk(tmp_path: Path) -> None:
    disk = tmp_path / "devices/sda"
    (disk / "queue").mkdir(parents=True)
    for name, text in {
        "rotational": "1", "scheduler": "none [bfq]", "read_ahead_kb": "128", "max_sectors_kb": "512",
    }.items():  # fmt: skip
        (disk / "queue" / name).write_text(text + "\n", encoding="ascii")
    (disk / "sda1").mkdir()
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/8:1").symlink_to(disk / "sda1")
    found = disk_of(os.makedev(8, 1), str(tmp_path))
    assert found == Disk("sda", rotational=True, scheduler="bfq", read_ahead_kib=128, largest_request_kib=512)
    assert disk_of(os.makedev(0, 99), str(tmp_path)) is None
    assert levels(judge_disk("/a.frec", found)) == {"rotational": "note"}


# The command


def test_doctor_prints_one_json_object_of_the_same_keys_always(packed: Path) -> None:
    told = json.loads(good("doctor", "--json", packed, packed))
    assert list(told) == ["versions", "machine", "files", "stores", "findings"]
    assert [file["file"] for file in told["files"]] == [str(packed)] * 2
    assert list(told["files"][0]) == [
        "file", "error", "size", "mode", "mappable", "resident", "pieces", "mount", "disk", "writer", "records",
        "commits",
        "complete", "tail_bytes", "chunks", "crop_index", "packed", "packed_gain",
    ]  # fmt: skip
    for finding in told["findings"]:
        assert list(finding) == ["level", "code", "message", "command", "file"]
        assert finding["level"] in ("ok", "note", "warning")
    assert json.loads(good("doctor", "--json"))["files"] == []
    with fr.Reader(packed) as reader:
        assert told["versions"]["format"] == str(reader.version)


def test_doctor_says_it_in_few_lines(packed: Path) -> None:
    text = good("doctor", packed)
    assert text.startswith("versions\n  fastrecord ")
    assert "\nmachine\n  system       " in text
    assert f"\n{packed}\n  records      12, complete, commit 1\n" in text
    shards = good("doctor", *[packed] * 30)
    assert "22 more files (--json has all)" in shards
    assert len(shards.splitlines()) < 80


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut, "truncated"),
        (Path.unlink, "No such file or directory"),
        (lambda path: path.write_bytes(b"not at all"), "not a .frec file"),
        (lambda path: path.write_bytes(b""), "it is empty"),
    ],
)
def test_an_unreadable_file_is_a_finding_and_status_1(
    packed: Path, tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    path = Path(shutil.copy(packed, tmp_path / "bad.frec"))
    spoil(path)
    result = run("doctor", path, packed)
    assert result.exit_code == 1
    assert f"  warning  unreadable: {path}: " in result.stdout
    assert reason in result.stdout
    told = json.loads(run("doctor", "--json", path, packed).stdout)
    assert reason in told["files"][0]["error"]
    assert told["files"][1]["error"] is None
