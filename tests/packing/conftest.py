"""What several tests of packing read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.packing import small_folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two class folders, ant and bee, of two and three images."""
    return small_folder(tmp_path / "small")
