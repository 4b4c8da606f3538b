"""A reader of `readers`: `python -m tests.torture.readers.reading KIND FOLDER` until it is killed.

It reads FOLDER/x.frec beside a writer and checks all visible records. Failures go to
FOLDER/failures, one JSON text per line. FOLDER/use-<pid> has its resources when it holds no file.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import fastrecord as fr
from tests.torture import known
from tests.torture.known import WrongDataError
from tests.torture.processes import use
from tests.torture.readers.appending import committed

# Snapshots that are kept and read again while the file grows.
_KEPT = 3
_ROWS = 24


def note(folder: Path, text: str) -> None:
    """Append a failure for the experiment."""
    with (folder / "failures").open("a") as file:
        file.write(json.dumps(text[-2000:]) + "\n")


class Snapshot:
    """A reader's view of a file, and the least that it must show.

    Args:
        reader: A reader of the newest commit.
        least: Generation and record count that were committed before the reader opened.

    Raises:
        WrongDataError: the reader shows a partial commit, or less than was committed.
    """

    def __init__(self, reader: fr.Reader, least: tuple[int, int]) -> None:
        self.reader = reader
        self.count = len(reader)
        self.generation: int = reader.metadata["generation"]
        self.commit = reader.commit
        if not known.Commits(self.generation).is_end(self.count):
            raise WrongDataError(f"generation {self.generation}: {self.count} records are a part of a commit")
        if (self.generation, self.count) < least:
            raise WrongDataError(f"generation and records {self.generation, self.count} where {least} were committed")

    def refreshed(self, folder: Path) -> Snapshot | None:
        """Refresh the reader; return its view, or None if the path has a new file.

        Raises:
            WrongDataError: the reader shows less than before.
        """
        least = committed(folder)
        try:
            newer = self.reader.refresh()
        except fr.FastRecordError as error:
            if "was replaced" not in str(error):
                raise
            return None
        if newer != (self.reader.commit > self.commit) or self.reader.commit < self.commit:
            raise WrongDataError(f"commit {self.commit} became {self.reader.commit}, and refresh said {newer}")
        # A killed writer no longer replaces the file, so its log is about this file.
        return Snapshot(self.reader, max(least, (self.generation, self.count)))

    def look(self, draw: Random) -> None:
        """Read some records in a random way, and compare them with the written values.

        Raises:
            WrongDataError: a value differs.
        """
        reader, generation = self.reader, self.generation
        if (len(reader), reader.commit) != (self.count, self.commit):
            raise WrongDataError(f"{self.count} records of commit {self.commit} became {len(reader)}: {reader!r}")
        if not self.count:
            return
        rows = sorted(draw.choices(range(self.count), k=_ROWS) + list(range(max(0, self.count - 4), self.count)))
        names = list(reader.schema)
        match draw.randrange(8):
            case 0 | 1 | 2:
                chosen = draw.sample(names, 4)
                batch = reader.read_batch(rows, chosen, verify=True)
                for name in chosen:
                    known.compare(generation, rows, name, batch[name], "read_batch")
            case 3:
                for row in rows[::4]:
                    for name, found in reader[row].items():
                        known.compare(generation, [row], name, [found], "a record")
            case 4:
                name = draw.choice(names)
                got = [reader.get(row, name, verify=True) for row in rows]
                known.compare(generation, rows, name, got, f"get({name})")
            case 5:
                for name in ("label", "weight", "flag", "point"):
                    known.compare(generation, rows, name, reader.column(name)[rows], "column")
            case 6:
                out = bytearray(int(reader.lengths("data", rows).sum()))
                ends = reader.read_batch_into(rows, "data", out)
                parts = [out[start:end] for start, end in itertools.pairwise(ends.tolist())]
                known.compare(generation, rows, "data", parts, "read_batch_into")
            case _:
                if draw.random() < 0.1 and (errors := reader.verify()["errors"]):
                    raise WrongDataError(f"verify: {errors[:5]}")
                batch = reader.read_batch(rows[::4], ["image"], verify=True)
                for row, data in zip(rows[::4], batch["image"], strict=True):
                    if not np.array_equal(fr.decode_image(data), known.pixels(generation, row)):
                        raise WrongDataError(f"generation {generation}, record {row}: other pixels")


def look_elsewhere(folder: Path, reader: fr.Reader, count: int, seed: int) -> None:
    """Read and refresh in a forked or spawned process whose reader shows the parent's snapshot."""
    try:
        seen = Snapshot(reader, (0, 0))
        if seen.count != count:
            raise WrongDataError(f"{seen.count} records, {count} in the parent")
        draw = Random(seed)
        for _ in range(3):
            seen.look(draw)
            seen = seen.refreshed(folder) or seen
    except (WrongDataError, fr.FastRecordError, OSError):
        note(folder, traceback.format_exc())


class Looker:
    """Opens, reads, refreshes and drops files; each method is one round of a kind of reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "x.frec"
        self.draw = Random()
        self.kept: list[Snapshot] = []
        self._last = (0, 0)

    def open(self, access: str | None = None) -> Snapshot:
        """Open the newest commit; no reader of this process may have seen a newer one.

        Raises:
            WrongDataError: a reader has.
        """
        least = max(self._last, committed(self.folder))
        seen = Snapshot(fr.Reader(self.path, access or self.draw.choice(("mmap", "pread"))), least)
        self._last = (seen.generation, seen.count)
        return seen

    def plain(self, access: str | None = None) -> None:
        """Read the newest commit and old snapshots; a batch outlives its reader's refresh."""
        seen = self.open(access)
        seen.look(self.draw)
        rows = [self.draw.randrange(seen.count) for _ in range(5)]
        batch = seen.reader.read_batch(rows, ["data", "wave"])
        newer = seen.refreshed(self.folder)
        (newer or seen).look(self.draw)
        known.compare(seen.generation, rows, "data", batch["data"], "a batch of before a refresh")
        known.compare(seen.generation, rows, "wave", batch["wave"], "a batch of before a refresh")
        self.kept.append(newer or seen)
        if len(self.kept) > _KEPT:
            old = self.kept.pop(self.draw.randrange(len(self.kept)))
            if self.draw.random() < 0.5:
                old.reader.close()
        for old in self.kept:
            old.look(self.draw)

    def fork(self) -> None:
        """Read in this process, which then has busy threads, and in a forked or spawned child."""
        seen = self.open()
        for _ in range(3):
            seen.look(self.draw)
        if self.draw.random() < 0.05:
            context = multiprocessing.get_context("spawn")
            arguments = (self.folder, seen.reader, seen.count, self.draw.randrange(1000))
            child = context.Process(target=look_elsewhere, args=arguments)
            child.start()
            child.join()
            # The child refuses the reader if the file was replaced before it opened it.
            if child.exitcode and seen.refreshed(self.folder) is not None:
                note(self.folder, f"a spawned reader ended with {child.exitcode}")
            child.close()
            return
        child_id = os.fork()
        if child_id == 0:
            look_elsewhere(self.folder, seen.reader, seen.count, self.draw.randrange(1000))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1])
        if status:
            note(self.folder, f"a forked reader ended with {status}")
        seen.look(self.draw)

    def dataset(self, **fields: Any) -> tuple[Snapshot, list[list[int]], fr.FastRecordDataset]:
        """Return the newest commit, batches of its records, and a data set: of another file, if it was replaced."""
        seen = self.open()
        batches = [self.draw.choices(range(seen.count), k=_ROWS) for _ in range(6)]
        return seen, batches, fr.FastRecordDataset(self.path, access=self.draw.choice(("mmap", "pread")), **fields)

    def workers(self) -> None:
        """Read through DataLoader workers, forked and sometimes spawned, which reopen the files."""
        from torch.utils.data import DataLoader

        from fastrecord.train.interrupt import ignore_launcher

        names = self.draw.sample(known.ARRAY_FIELDS, 5)
        seen, batches, data = self.dataset(fields=names)
        if data.snapshots[0]["file_id"] != seen.reader.file_id:
            return
        method = "spawn" if self.draw.random() < 0.03 else "fork"
        options: dict[str, Any] = {"collate_fn": fr.collate, "worker_init_fn": ignore_launcher}
        loader = DataLoader(data, batch_sampler=batches, num_workers=2, multiprocessing_context=method, **options)
        try:
            for numbers, batch in zip(batches, loader, strict=True):
                for name in names:
                    known.compare(seen.generation, numbers, name, batch[name], f"a worker by {method}")
        except (RuntimeError, fr.FastRecordError):
            # A spawned worker reopens the file and fails if it was replaced. A forked one does not.
            if method == "fork" or seen.refreshed(self.folder) is not None:
                raise

    def native(self) -> None:
        """Read through FastRecordLoader, images and arrays, fully or partly, and keep a batch."""
        images = self.draw.random() < 0.5
        fields = ("image", "label", "key") if images else self.draw.sample(known.ARRAY_FIELDS, 5)
        seen, batches, data = self.dataset(fields=fields)
        if data.snapshots[0]["file_id"] != seen.reader.file_id:
            return
        sample = [fr.transforms.CenterCrop(known.SIDE)] if images else None
        loader = fr.FastRecordLoader(data, batch_sampler=batches, threads=2, sample=sample)
        stop = self.draw.choice((None, None, 1, 5))
        kept = list(zip(batches, itertools.islice(loader, stop), strict=False))
        for numbers, batch in kept:
            pictures = batch.pop("image", None)
            for name, values in batch.items():
                known.compare(seen.generation, numbers, name, values, "FastRecordLoader")
            for number, image_found in zip(numbers, pictures, strict=True) if images else ():
                if not np.array_equal(image_found.permute(1, 2, 0), known.pixels(seen.generation, number)):
                    raise WrongDataError(f"generation {seen.generation}, record {number}: other pixels in a batch")

    def measure(self) -> None:
        """Release all files and log the remaining resources."""
        self.kept.clear()
        place = self.folder / f"use-{os.getpid()}"
        held: list[dict[str, int]] = json.loads(place.read_text()) if place.exists() else []
        # The first entry and the newest ones suffice, however long the run.
        held = [*held[:20], *held[20:][-20:], asdict(use())]
        temporary = place.with_suffix(".new")
        temporary.write_text(json.dumps(held))
        os.replace(temporary, place)


KINDS: dict[str, Callable[[Looker], None]] = {
    **{access: partial(Looker.plain, access=access) for access in ("mmap", "pread")},
    "fork": Looker.fork,
    "workers": Looker.workers,
    "native": Looker.native,
}


def main() -> None:
    """Read until the parent is gone."""
    kind, folder, parent = sys.argv[1], Path(sys.argv[2]), os.getppid()
    os.nice(0 if kind in ("workers", "native") else 5)  # readers with torch need a turn
    looker = Looker(folder)
    for number in itertools.count(1):
        if os.getppid() != parent:
            break
        try:
            KINDS[kind](looker)
        except (WrongDataError, fr.FastRecordError, OSError, RuntimeError):
            note(folder, f"{kind}: {traceback.format_exc()}")
        if number % 20 == 0:
            looker.measure()
        with (folder / f"rounds-{kind}").open("a") as file:
            file.write(".")


if __name__ == "__main__":
    main()
