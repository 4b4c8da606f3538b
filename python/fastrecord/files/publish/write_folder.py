"""`WriteFolder`: the hidden folder of a write of shards; `settle_dead` ends the ones of killed processes.

A write has a folder `.write-ID` in the folder of its data set. Its tasks make shards there, where
no reader looks. `owner.json` in it is locked while the process lives that began the write, and
names the machine of that process. `commit.json` says, just before shards are moved out, which ones
they are and which ones they replace. The manifest decides how a write has ended: if it names the
shards, the write is done, and only the replaced shards remain to be removed; if not, the shards
are removed.

Callers hold the lock of the manifest, except for `WriteFolder.make`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from fastrecord.dataset.manifest import NAME, read_manifest
from fastrecord.files.publish.staging import remove_stale, sync_folder, write_journal

_FOLDER = re.compile(r"\.write-[0-9a-f]{16}(-new|-gone)?")
_OWNER, _JOURNAL = "owner.json", "commit.json"


@dataclass(frozen=True, slots=True)
class CleanedFile:
    """What `clean_manifest` found that a write has left.

    Attributes:
        name: The file or folder, in the folder of the data set.
        kind: "removed", or "left": it may belong to a write that is running.
        message: What it is, and why it was left.
    """

    name: str
    kind: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes for JSON."""
        return asdict(self)


class WriteFolder:
    """The hidden folder of one write.

    Attributes:
        path: The folder.
        id: The write's random name, 16 hexadecimal digits.
    """

    def __init__(self, path: str, lock: int) -> None:
        self.path, self._lock = path, lock
        self.id = os.path.basename(path).removeprefix(".write-")

    @classmethod
    def make(cls, folder: str) -> Self:
        """Make and lock the folder of a new write.

        Args:
            folder: The folder of the data set.

        Raises:
            OSError: nothing can be written there.
        """
        while True:
            path = os.path.join(folder, f".write-{secrets.token_hex(8)}")
            os.mkdir(path + "-new", 0o777)
            # Until it has its final name, anybody may remove it: nothing is in it.
            with suppress(FileNotFoundError):
                lock = os.open(os.path.join(path + "-new", _OWNER), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
                try:
                    os.write(lock, json.dumps(_this_machine() | {"locked": _locked(lock)}).encode())
                    os.rename(path + "-new", path)
                except BaseException:
                    os.close(lock)
                    raise
                sync_folder(folder)
                return cls(path, lock)

    def note(self, shards: Sequence[str], replaced: Sequence[str], *, made_manifest: bool) -> None:
        """Write down what `settle` needs to know, durably.

        Args:
            shards: The names that shards of this write are about to get in the folder of the data
                set.
            replaced: The shards that are to be removed once the manifest names the new ones.
            made_manifest: Whether this write makes the folder's first manifest.
        """
        folder = os.path.dirname(self.path)
        old = {name: state for name in replaced if (state := _state(os.path.join(folder, name))) is not None}
        journal = {"shards": list(shards), "replaced": old, "made_manifest": made_manifest}
        write_journal(os.path.join(self.path, _JOURNAL), journal)

    def end(self) -> None:
        """Remove all that does not belong to the data set, and the folder."""
        try:
            settle(self.path)
        finally:
            os.close(self._lock)


def settle(path: str) -> list[CleanedFile]:
    """End a write whose process does not run: remove its folder, and shards by what the manifest says.

    Args:
        path: The folder of the write.

    Returns:
        What was removed.

    Raises:
        CorruptFileError: the manifest is damaged.
        OSError: something cannot be removed.
    """
    folder, name = os.path.split(path)
    journal = _json(os.path.join(path, _JOURNAL))
    removed = [] if journal is None else _removed(folder, journal)
    with suppress(OSError):
        staged = sum(entry.endswith(".frec") for entry in os.listdir(path))
        removed.append(CleanedFile(name, "removed", f"the folder of a write that ended, with {staged:,} shards"))
    gone = path if path.endswith("-gone") else f"{path.removesuffix('-new')}-gone"
    with suppress(FileNotFoundError):
        # Tasks that still run find no folder to write to.
        os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
    return removed


def settle_dead(folder: str) -> list[CleanedFile]:
    """End the writes of killed processes in the folder of a data set, and remove half-made manifests.

    Returns:
        What was removed; and folders that were left, because their writes run or may run.
    """
    found: list[CleanedFile] = []
    for name in sorted(os.listdir(folder)):
        if not _FOLDER.fullmatch(name):
            continue
        path = os.path.join(folder, name)
        lock = -1
        try:
            lock = _taken(path)
            found += settle(path)
        except _AliveError as alive:
            found.append(CleanedFile(name, "left", str(alive)))
        finally:
            if lock >= 0:
                os.close(lock)
    target = os.path.join(folder, NAME)
    return found + [CleanedFile(name, "removed", "a manifest that was not finished") for name in remove_stale(target)]


class _AliveError(Exception):
    """A write runs, or may run; the text is the reason."""


def _taken(path: str) -> int:
    """Return the lock of a write whose process is certain to have ended; -1 if it never had one.

    Raises:
        _AliveError: that is not certain.
    """
    if path.endswith("-gone"):
        return -1
    try:
        lock = os.open(os.path.join(path, _OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    except OSError as err:
        raise _AliveError(f"it belongs to someone else: {err.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner, this = _json(os.path.join(path, _OWNER)) or {}, _this_machine()
        # A lock of the same running system is certain. Others may not see it, as on some network file systems.
        here = owner.get("boot") == this["boot"] and owner.get("locked") is True
        rebooted = bool(this["machine"]) and owner.get("boot") != this["boot"]
        rebooted &= (owner.get("machine"), owner.get("host")) == (this["machine"], this["host"])
        if here or rebooted or path.endswith("-new"):
            return lock
        reason = (
            f"a process on {owner.get('host')!r:.80} began it, and may run: call `fastrecord manifest --clean` there, "
        )
        reason += "or remove this folder when the process has ended"
    except BlockingIOError:
        reason = "its write is running"
    except OSError as err:
        reason = f"the file system has no locks ({err.strerror}): remove this folder when no write is running"
    os.close(lock)
    raise _AliveError(reason)


def _removed(folder: str, journal: Mapping[str, Any]) -> list[CleanedFile]:
    """Remove shards that do not belong to the data set, by the note of a write."""
    manifest = read_manifest(folder)
    named = set() if manifest is None else set(manifest.columns["name"])
    mine: list[str] = [name for name in journal["shards"] if name not in named]
    removed = []
    if len(mine) < len(journal["shards"]):  # a manifest names all of them at once
        for name, state in journal["replaced"].items():
            path = os.path.join(folder, name)
            if name not in named and _state(path) == state:
                os.unlink(path)
                removed.append(CleanedFile(name, "removed", "a shard that a finished write has replaced"))
    for name in mine:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
            removed.append(CleanedFile(name, "removed", "a shard of a write that was not finished"))
    if journal["made_manifest"] and manifest is not None and not len(manifest):
        os.unlink(os.path.join(folder, NAME))
        removed.append(CleanedFile(NAME, "removed", "the manifest of a write that was not finished"))
    sync_folder(folder)
    return removed


def _state(path: str) -> list[int] | None:
    """Return what distinguishes a file from one that replaces it."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return [found.st_ino, found.st_size]


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _this_machine() -> dict[str, str]:
    return {
        "host": socket.gethostname(),
        "machine": _text("/etc/machine-id"),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
    }


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="ascii") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
