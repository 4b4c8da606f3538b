"""A Ray cluster on this machine, of which nothing remains."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Set before Ray is imported: listen on loopback only, tell nobody, leave no token in the home folder.
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # also how often reports are taken
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short name, because Ray's sockets are below it; remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def local_cluster() -> Iterator[str]:
    """Run a cluster of two CPUs, and connect this process to it; yield its address."""
    before = dict(os.environ)
    os.environ |= VARIABLES
    try:
        import ray.data

        with short_folder() as folder:
            try:
                found = ray.init(
                    num_cpus=2,
                    include_dashboard=False,
                    log_to_driver=False,
                    object_store_memory=200 << 20,
                    _temp_dir=str(folder),
                )
                ray.data.DataContext.get_current().enable_progress_bars = False
                yield str(vars(found)["address_info"]["address"])
            finally:
                ray.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)
