"""How data sets of very many shards open: by one process, and by eight at once.

Each process may have 1,024 files open, as by default on Linux. The shards are small and real, with
ids of their own: a data set that opened each would take as long as here. A manifest is written for
them in their folder; a folder of the same shards without one is what it competes with.
"""

from __future__ import annotations

import os
import resource
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr
from benches.harness import Bench, Contender
from fastrecord._core import crc32c
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry

RECORDS = 8  # in a shard
SHARDS = {False: 2_000, True: 100_000}
# A folder without a manifest opens every file, and must stay below the limit on open files.
OPENED = 500
PROCESSES = 8
OPEN_FILES = 1024
_PAGE = 4096
SCHEMA = fr.Schema({"value": "int64", "text": fr.string()})


class Opener:
    """Opens a data set again and again, and reads a record of its last shard."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, folder: str, rank: int = 0, ranks: int = 1) -> None:
        """Take the limit on open files."""
        self.folder, self.rank, self.ranks = folder, rank, ranks
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
        self.data = fr.FastRecordDataset(folder, fields=("value",))

    def close(self) -> None:
        """Close the data set, and free what it holds."""
        self.data.close()
        del self.data

    def open(self) -> int:
        """Open the data set; return how many files are open then."""
        self.data = fr.FastRecordDataset(self.folder, fields=("value",))
        return len(os.listdir("/proc/self/fd"))

    def read(self, records: int) -> int:
        """Read records at random, each of another shard, one by one."""
        rows = np.random.default_rng(self.rank).choice(len(self.data) // RECORDS, records, replace=False) * RECORDS
        return sum(int(self.data[row]["value"]) == 0 for row in rows.tolist())

    def state(self) -> int:
        """Return the bytes of a sampler's state."""
        return len(repr(fr.FastRecordBatchSampler(self.data, 8, rank=0, world_size=1).state_dict()))


def run(bench: Bench) -> None:
    """Measure opening with and without a manifest, alone and together."""
    shards = SHARDS[bench.full]
    many = make(bench.folder / f"shards-{shards}", shards)
    few = make(bench.folder / f"shards-{OPENED}", OPENED)
    bare = make(bench.folder / f"shards-{OPENED}-bare", OPENED, manifest=False)
    target = "benches.experiments.scale:Opener"

    def opener(name: str, folder: Path, copies: int = 1) -> Contender:
        return Contender(name, target, {"folder": str(folder)}, copies=copies)

    with bench.contest([opener("fastrecord", few), opener("fastrecord, without a manifest", bare)]) as contest:
        answers = contest.rounds("open", rounds=bench.rounds, before=partial(contest.call, method="close"))
        bench.rows(f"opening a data set of {OPENED} shards", answers, contest, shards=OPENED)
    for processes in (1, PROCESSES):
        with bench.contest([opener("fastrecord", many, processes)]) as contest:
            at_once = "" if processes == 1 else f", {processes} processes at once"
            about: dict[str, Any] = {"shards": shards, "processes": processes, "open_files": OPEN_FILES}
            answers = contest.rounds("open", rounds=bench.rounds, before=partial(contest.call, method="close"))
            bench.rows(f"opening a data set of {shards:,} shards{at_once}", answers, contest, **about)
            reads = contest.rounds("read", rounds=bench.rounds, arguments=lambda _: {"records": 1_000})
            case = f"single records of random shards of {shards:,}{at_once}"
            bench.rows(case, reads, contest, records=1_000 * processes, **about)
            if processes == 1 and (state := contest.call("fastrecord", "state")) is not None:
                bench.row(f"a sampler's state, {shards:,} shards", "fastrecord", "bytes", [state.value], **about)


def make(folder: Path, shards: int, *, manifest: bool = True) -> Path:
    """Make a folder of small shards, each with an id of its own."""
    if (folder / "made").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    template = folder / "template"
    with fr.Writer(template, SCHEMA, mode="w") as writer:
        for number in range(RECORDS):
            writer.append({"value": number, "text": f"record {number}"})
    whole = template.read_bytes()
    template.unlink()
    entries = []
    for number in range(shards):
        file_id = struct.pack("<QQ", 0x6D616E79, number + 1)
        data = with_id(whole, file_id)
        name = f"train-{number:05d}-of-{shards:05d}.frec"
        (folder / name).write_bytes(data)
        page = crc32c(data[-_PAGE:-4])
        entries.append(ShardEntry(name, file_id.hex(), 1, RECORDS, len(data), page, None))
    if manifest:
        (folder / NAME).write_bytes(Manifest.of(entries, SCHEMA).dump())
    (folder / "made").touch()
    return folder


def with_id(whole: bytes, file_id: bytes) -> bytes:
    """Return a file of one commit with another id (docs/format.md, sections 1 and 6)."""
    data = bytearray(whole)
    data[16:32] = file_id
    data[12:16] = struct.pack("<I", crc32c(bytes(data[:12] + data[16:32])))
    for slot in (512, 1024):
        if any(data[slot : slot + 32]):
            data[slot + 28 : slot + 32] = struct.pack("<I", crc32c(bytes(data[slot : slot + 28]) + file_id))
    footer = len(data) - _PAGE
    data[footer + 16 : footer + 32] = file_id
    data[-4:] = struct.pack("<I", crc32c(bytes(data[footer:-4])))
    return bytes(data)
