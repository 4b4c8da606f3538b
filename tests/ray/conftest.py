"""A Ray cluster on this machine, for all tests of the folder in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.support.machines.cluster import VARIABLES, local_cluster

# Ray reads this one at its import, which comes with the tests.
os.environ |= {name: VARIABLES[name] for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",)}
if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Run a cluster of two CPUs; yield its address."""
    with local_cluster() as found:
        yield found
