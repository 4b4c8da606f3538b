"""Packs that change images: resumed, appended to, and split into shards."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.packing.summary import PackProgress
from tests.support.commands import good, run
from tests.support.packing import is_complete, metadata, pack_with, records, write
from tests.support.recoding import encoded, picture, sizes


def stop_after(files: int) -> Any:
    def progress(state: PackProgress) -> None:
        if state.files >= files:
            signal.raise_signal(signal.SIGINT)

    return progress


SETTINGS: list[dict[str, Any]] = [
    {"max_side": 96, "quality": 70},
    {"raw": True, "short_side": 64},
    {"crop_index": True, "short_side": 64},
    {"crop_index": True},
    {"packed": True},
    {"packed": True, "max_side": 96},
]


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images, which take several chunks. Read only."""
    files = {f"{'ab'[i % 2]}/{i:02d}.jpg": encoded(picture(i, 120 + i, 150 - i)) for i in range(40)}
    return write(tmp_path_factory.mktemp("more"), files)


@pytest.mark.parametrize("options", SETTINGS)
def test_ctrl_c_and_resume_give_the_file_of_an_undisturbed_pack(
    more: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    out, expected = tmp_path / "out.frec", tmp_path / "expected.frec"
    pack_with(more, expected, **options)
    with pytest.raises(KeyboardInterrupt, match="2 records are committed"):
        pack_with(more, out, progress=stop_after(1), **options)
    assert not is_complete(out)
    for others in ({}, *(o for o in SETTINGS if o != options)):
        with pytest.raises(fr.FastRecordError, match=r"was begun with other settings: --.*, but this pack has"):
            pack_with(more, out, mode="resume", **others)
    summary = pack_with(more, out, mode="resume", **options)
    assert summary.packed == 38
    assert summary.recoded is not None
    assert summary.recoded["images"] == 38
    assert records(out) == records(expected)
    assert sizes(out) == sizes(expected)
    assert metadata(out) == metadata(expected)
    assert pack_with(more, out, mode="resume", **options).packed == 0
    with pytest.raises(fr.FastRecordError, match="is complete, and was packed with other settings"):
        pack_with(more, out, mode="resume")


def test_a_plain_pack_is_not_resumed_with_settings(more: Path, tmp_path: Path) -> None:
    pack_with(more, tmp_path / "out.frec")
    with pytest.raises(fr.FastRecordError, match="other settings: no change to the images, but this pack has --raw"):
        pack_with(more, tmp_path / "out.frec", mode="resume", raw=True)


def test_each_append_has_settings_of_its_own(more: Path, recode_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(recode_source, out, short_side=64)
    good("pack", more, out, "--append", "--crop-index")
    assert "recoded   --short-side 64 --quality 90 (from record 0); --crop-index (from record 9)" in good("info", out)
    assert "complete already" in good("pack", more, out, "--resume", "--crop-index")
    assert run("pack", more, out, "--resume", "--raw").exit_code == 1
