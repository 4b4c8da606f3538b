"""Damaged and missing array values: errors that name them, skipped records, impossible plans."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord import _core
from tests.support.commands import flip_in
from tests.support.patches import COUNT, check, make, numbers, opened, record

BAD = 13

pytestmark = pytest.mark.usefixtures("no_load_thread_is_left")


def test_a_plan_of_values_without_one_size_is_refused(patches: Path, tmp_path: Path) -> None:
    reader = fr.Reader(patches)
    for name in ("tokens", "key", "words"):
        with pytest.raises(TypeError, match=rf"field {name} .*its values are not all of one size"):
            _core.LoadPlan([(reader, [name])], [None])
    with fr.Writer(tmp_path / "b.frec", fr.Schema({"hr": fr.array("uint8", (16, 16, 4))})) as writer:
        writer.append({"hr": np.zeros((16, 16, 4), np.uint8)})
    with pytest.raises(TypeError, match=r"b\.frec: field hr .*in the first file its values have 768 bytes each"):
        _core.LoadPlan([(reader, ["hr"]), (fr.Reader(tmp_path / "b.frec"), ["hr"])], [None])


@pytest.fixture(params=["hr", "noise", "tokens", "boxes"])
def bad(request: pytest.FixtureRequest, patches: Path, tmp_path: Path) -> tuple[Path, str]:
    """A file with a damaged value in record 13, and the name of its field."""
    value = np.ascontiguousarray(record(BAD)[request.param])
    if request.param == "tokens":
        value = record(17)["tokens"]  # five numbers that appear only here in the file
    return flip_in(patches, value.tobytes(), tmp_path / "bad.frec"), request.param


def place(field: str) -> int:
    return 17 if field == "tokens" else BAD


def test_the_error_names_file_record_and_field_when_the_turn_of_its_batch_has_come(bad: tuple[Path, str]) -> None:
    path, field = bad
    loader = make(path, 2)
    batches = iter(loader)
    before = place(field) // 2
    assert numbers(itertools.islice(batches, before)) == [[2 * i, 2 * i + 1] for i in range(before)]
    message = rf"bad\.frec: record {place(field)}, key 'patch {place(field)}', field {field}: .*damaged"
    with pytest.raises(fr.errors.CorruptFileError, match=message):
        next(batches)
    assert loader.state_dict()["batches_done"] == before
    assert loader.skipped == []


@pytest.mark.parametrize("ragged", [None, {"tokens": "pad", "boxes": "packed"}])
def test_a_skipped_record_is_missing_from_all_fields_of_its_batch_alone(bad: tuple[Path, str], ragged: Any) -> None:
    path, field = bad
    others = [number for number in range(COUNT) if number != place(field)]
    infos = []

    def note(batch: Any, info: Any) -> Any:
        infos.append(info)
        return batch

    loader = make(path, 5, on_error="skip", ragged=ragged, batch_transform=note)
    batches = list(loader)
    assert list(itertools.chain(*numbers(batches))) == others
    assert np.concatenate([info.rows for info in infos]).tolist() == others
    for batch in batches:
        if ragged is None:
            check(batch, batch["number"].tolist())
        else:
            assert [len(part) for part in batch["tokens"]] == 2 * [len(batch["boxes"][1]) - 1]
            assert len(batch["tokens"][0]) == len(batch["number"])
    (skipped,) = loader.skipped
    assert (skipped.path, skipped.record, skipped.key) == (str(path), place(field), f"patch {place(field)}")
    assert loader.stats().skipped == 1


def test_a_damaged_block_of_a_column_fails_its_records_alone(tmp_path: Path) -> None:
    # 48 bytes per record: 85.3 records in a block of 4 KiB.
    with fr.Writer(tmp_path / "sound.frec", fr.Schema({"lr": fr.array("uint8", (4, 4, 3))})) as writer:
        for number in range(400):
            writer.append({"lr": record(number)["lr"]})
    path = flip_in(tmp_path / "sound.frec", record(100)["lr"].tobytes(), tmp_path / "bad.frec")
    loader = make(fr.FastRecordDataset(path), 400, on_error="skip", limit=90)
    (batch,) = list(loader)
    lost = [skipped.record for skipped in loader.skipped]
    assert 100 in lost
    assert 80 <= len(lost) <= 90
    others = [number for number in range(400) if number not in lost]
    assert torch.equal(batch["lr"], torch.from_numpy(np.stack([record(number)["lr"] for number in others])))
    with pytest.raises(fr.errors.CorruptFileError, match=r"bad\.frec: .*lr.*damaged"):
        list(make(fr.FastRecordDataset(path), 400))


def test_an_interrupt_while_json_is_parsed_is_no_damage(patches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> Any:
        raise KeyboardInterrupt

    batches = iter(make(opened(patches, fields=("meta",)), on_error="skip"))
    monkeypatch.setattr(json, "loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
