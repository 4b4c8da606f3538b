"""Packing on a local Ray cluster of two workers against `fastrecord pack` with two threads.

The cluster runs before the clock does, and has packed once: it stays while jobs come and go. Each
pack ends with a sync, and what was packed before is removed before each round. The page cache is
warm.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import fastrecord as fr
from benches.experiments.interchange import SIZE, make_images
from benches.harness import Bench, Contender

HERE = "benches.experiments.ray:"
OURS, ALONE = "fastrecord", "fastrecord pack"
WORKERS = 2
SHARDS = 4


class Cluster:
    """`fastrecord.ray.pack` on a cluster of this machine."""

    def __init__(self, *, root: str, out: str) -> None:
        # Set before Ray is imported: only loopback, no usage reports, no token in the home folder.
        os.environ |= {
            "RAY_AUTH_MODE": "disabled",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        import ray

        self._root, self._out = root, out
        folder = tempfile.mkdtemp(prefix="fr-", dir="/tmp")  # short: sockets are below it
        atexit.register(_end, folder)
        ray.init(
            num_cpus=WORKERS,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=256 << 20,
            _temp_dir=folder,
        )
        self.version = f"fastrecord {fr.__version__}, ray {version('ray')}"

    def turn(self) -> None:
        """Pack."""
        from fastrecord.ray import Workers, pack

        pack(self._root, self._out, output=fr.Output(shards=SHARDS), workers=Workers(WORKERS))


def _end(folder: str) -> None:
    """End the cluster, then remove its files."""
    import ray

    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


class Alone:
    """`fastrecord pack` in one process."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, root: str, out: str) -> None:
        self._root, self._out = root, out

    def turn(self) -> None:
        """Pack."""
        os.mkdir(self._out)
        fr.pack(self._root, Path(self._out, "train.frec"), output=fr.Output(shards=SHARDS))


def run(bench: Bench) -> None:
    """Measure packing unchanged files."""
    records = 10_000 if bench.full else 1000
    folder = bench.folder / f"interchange-{records}"
    root = make_images(folder, records)
    for path in root.glob("*/*"):
        path.read_bytes()
    out = folder / "out-ray"
    settings = {"root": str(root), "out": str(out)}
    contenders = [
        Contender(OURS, f"{HERE}Cluster", settings, cores=WORKERS),
        Contender(ALONE, f"{HERE}Alone", settings, cores=WORKERS),
    ]

    def before(name: str) -> None:
        del name
        shutil.rmtree(out, ignore_errors=True)
        os.sync()

    case = f"pack {records:,} files of {SIZE // 1000} KB to {SHARDS} shards, page cache warm"
    with bench.contest(contenders) as contest:
        answers = contest.rounds("turn", rounds=bench.rounds, before=before)
        bench.rows(case, answers, contest, records=records, unit="images/s", workers=WORKERS)
    shutil.rmtree(out, ignore_errors=True)
