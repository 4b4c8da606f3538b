"""The example of a format of one's own, installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastrecord.interchange import registry
from tests.support.formats.own_format import install


@pytest.fixture
def jsonlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the format "jsonlines"; yield the folder of its package."""
    site = install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    registry._others.cache_clear()
    yield site
    registry._others.cache_clear()
