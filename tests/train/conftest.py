"""Fixtures of the trainer tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def plot() -> None:
    """Request the plot, which `no_plot` leaves out."""


@pytest.fixture(autouse=True)
def no_plot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the plot: drawing it takes longer than a run of ten steps."""
    if "plot" not in request.fixturenames:
        monkeypatch.setattr("fastrecord.train.engine.plot_metrics", lambda *_: False)
