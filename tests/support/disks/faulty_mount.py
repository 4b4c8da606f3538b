"""A mount of one file that can fail: ranges become unreadable, or the server is killed.

A child process speaks the kernel's FUSE protocol, only as much as reading one file needs. The mount
stands for a disk with bad sectors, or a network mount that goes away. Needs root and /dev/fuse.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NAME = "data.frec"
_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2
_HEADER = struct.Struct("<IIQQIIIHH")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 27, 29, 36, 42
_SILENT = (_FORGET, _INTERRUPT, _BATCH_FORGET)


def why_not() -> str | None:
    """Return why such a mount cannot be made here; None if it can."""
    if sys.platform != "linux" or not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    if os.geteuid() != 0:
        return "mounting takes root"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error}"
    return None


@dataclass
class Mount:
    """A mounted file.

    Attributes:
        path: The path of the mounted file.
        source: The file that holds its bytes.
    """

    path: Path
    source: Path
    bad: Path
    server: subprocess.Popen[bytes]

    def break_bytes(self, start: int, end: int) -> None:
        """Make reads of a range fail from now on, except for cached pages."""
        self.bad.write_text(f"{start} {end}")

    def heal(self) -> None:
        """Make all reads succeed again."""
        self.bad.unlink(missing_ok=True)

    def go_away(self) -> None:
        """End the server, like a network mount that goes away."""
        self.server.kill()
        self.server.wait()


@contextmanager
def mounted(source: Path, folder: Path) -> Iterator[Mount]:
    """Mount a file in a new folder; unmount it at the end, also after a failure."""
    target = folder / "mount"
    target.mkdir()
    bad = folder / "bad"
    words: list[str | Path] = ["-m", "tests.support.disks.faulty_mount", target, source, bad]
    command = [sys.executable, "-W", "error", *words]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline() != b"mounted\n":
                raise OSError("the mount's server did not start")
            yield Mount(target / NAME, source, bad, server)
        finally:
            server.kill()
            server.wait()
            _LIBC.umount2(os.fsencode(target), _DETACH)


class _Server:
    def __init__(self, device: int, source: str, bad: str) -> None:
        self._device, self._source, self._bad = device, os.open(source, os.O_RDONLY), bad

    def serve(self) -> None:
        """Serve requests until the mount is gone."""
        while True:
            try:
                request = os.read(self._device, 1 << 17)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue  # the kernel took the request back
                raise
            _, kind, unique, node, *_ = _HEADER.unpack_from(request)
            if kind in _SILENT:
                continue
            try:
                status, answer = 0, self._answer(kind, node, request[_HEADER.size :])
            except OSError as error:
                status, answer = -(error.errno or errno.EIO), b""
            with suppress(FileNotFoundError):  # the kernel took it back meanwhile
                os.write(self._device, struct.pack("<IiQ", 16 + len(answer), status, unique) + answer)

    def _answer(self, kind: int, node: int, body: bytes) -> bytes:
        if kind == _INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 9, 1 << 16, 1, 0, 0, 0)
        if kind == _LOOKUP:
            if body.rstrip(b"\0") != NAME.encode():
                raise FileNotFoundError(errno.ENOENT, "no such file")
            return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + self._attributes(2)
        if kind == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if kind in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if kind == _READ:
            return self._read(*struct.unpack_from("<8xQI", body))
        if kind == _STATFS:
            return struct.pack("<QQQQQIII28x", 0, 0, 0, 0, 0, 4096, 255, 4096)
        if kind in (_RELEASE, _RELEASEDIR, _FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "not served")

    def _attributes(self, node: int) -> bytes:
        size = os.fstat(self._source).st_size
        mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o444
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            with open(self._bad) as file:
                start, end = map(int, file.read().split() or (0, 0))  # empty while it is written
        except FileNotFoundError:
            start = end = 0
        if offset < end and start < offset + size:
            raise OSError(errno.EIO, "a bad sector")
        return os.pread(self._source, size, offset)


def main(target: str, source: str, bad: str) -> None:
    """Mount and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if _LIBC.mount(b"faulty", os.fsencode(target), b"fuse", 6, options.encode()) != 0:  # nosuid, nodev
        raise OSError(ctypes.get_errno(), "mount")
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    _Server(device, source, bad).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
