"""The formats of benches/contenders: each gives back the records that were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benches.contenders import FORMATS, Source
from benches.contenders.source import BATCH, make_small
from benches.experiments.formats.contestant import Contestant

RECORDS = 20


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    folder = tmp_path_factory.mktemp("sources")
    noise = np.random.default_rng(0).integers(0, 256, (RECORDS, 8, 8, 3), np.uint8)
    for number, pixels in enumerate(noise):
        path = folder / "images" / f"{number:06d}" / f"{number:06d}.JPEG"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).resize((64 + number, 48)).save(path, quality=95)
    return {"images": Source(folder, RECORDS), "small": make_small(folder, BATCH + RECORDS)}


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize("data", ["images", "small"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_format_gives_back_what_was_written(form: str, data: str, sources: dict[str, Source], tmp_path: Path) -> None:
    told = {name: (str(source.root), source.records) for name, source in sources.items()}
    try:
        contestant = Contestant(form=form, sources=told, place=str(tmp_path))
    except ImportError as error:
        pytest.skip(f"not installed: {error}")
    if contestant.unfit(data):
        pytest.skip(contestant.unfit(data))
    records = sources[data].records
    assert contestant.pack(data, sync=False) > sources[data].total * 0.9
    assert contestant.first(data, 1) == 1
    assert contestant.check(data) == records
    assert contestant.sequential(data, seconds=10) == records
    if not contestant.unfit(data, random=True):
        assert contestant.random(data, 0, seconds=0) > 0
        assert contestant.random(data, 0, seconds=0, copied=False) > 0
    contestant.drop(data)
    assert contestant.check(data) == records
    contestant.close()
