"""Twins: data sets whose shards have one id and one history, and differ only in the labels of the last commit."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

import fastrecord as fr
from tests.store.conftest import EACH, data_of, payload, write_shards
from tests.support.machines.stores import Server

NAME = "train-00000-of-00001.frec"
MORE = 10


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    one = write_shards(tmp_path / "one", shards=1)
    two = shutil.copytree(one, tmp_path / "two")
    for label, folder in enumerate((one, two)):
        with fr.Writer(folder / NAME, mode="a") as writer:
            for record in range(EACH, EACH + MORE):
                writer.append({"data": payload(record), "label": label, "key": "the same"})
        fr.files.write_manifest(folder)
    sizes = {(folder / NAME).stat().st_size for folder in (one, two)}
    assert len(sizes) == 1
    return one, two


def test_twins_have_different_footers_and_a_manifest_names_the_other_one(twins: tuple[Path, Path]) -> None:
    one, two = twins
    with fr.Reader(one / NAME) as first, fr.Reader(two / NAME) as second:
        assert (first.file_id, first.commit, first.nbytes) == (second.file_id, second.commit, second.nbytes)
        assert first.footer_crc != second.footer_crc
        assert first.covers_content
        assert second.covers_content
    shutil.copy(two / NAME, one / NAME)
    assert [(found.name, found.kind) for found in fr.files.check_manifest(one)] == [(NAME, "changed")]
    with pytest.raises(fr.FastRecordError, match=r"one/train-00000.*twin.*FR205"):
        fr.FastRecordDataset(one, fields=("label",))[0]


def test_a_reader_does_not_travel_to_a_twin(twins: tuple[Path, Path]) -> None:
    one, two = twins
    with fr.Reader(one / NAME) as reader:
        text = pickle.dumps(reader)
    assert len(pickle.loads(text)) == EACH + MORE
    shutil.copy(two / NAME, one / NAME)
    with pytest.raises(fr.FastRecordError, match=r"one/train-00000.*twin.*FR205"):
        pickle.loads(text)


def test_a_copy_sends_a_twin(server: Server, twins: tuple[Path, Path]) -> None:
    one, two = twins
    url = "s3://bucket/twins-copied"
    fr.files.copy(one, url, store=fr.Store(server.options))
    assert fr.files.copy(one, url, store=fr.Store(server.options)).copied == []
    assert fr.files.copy(two, url, overwrite=True, store=fr.Store(server.options)).copied == [NAME]
    dataset = fr.FastRecordDataset(url, fields=("label",), store=fr.Store(server.options))
    assert {dataset[EACH + at]["label"] for at in range(MORE)} == {1}


def test_a_twin_put_over_an_open_object_is_an_error_and_never_a_mixture(
    server: Server, twins: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = twins
    url = server.put_folder("over", one)
    dataset = data_of(url, server, tmp_path / "cache")
    assert dataset[0]["data"] == payload(0)
    server.put(f"over/{NAME}", two / NAME)
    for record in range(1, EACH + MORE):
        with pytest.raises(fr.FastRecordError, match=r"s3://bucket/over/train-.*has been replaced.*FR205"):
            dataset[record]
    assert dataset[0]["data"] == payload(0)
    with pytest.raises(fr.FastRecordError, match="FR205"):  # it is not what the manifest names
        fr.FastRecordDataset(url, fields=("label",), store=fr.Store(server.options, cache=tmp_path / "new"))
    fr.files.write_manifest(url, store=fr.Store(server.options))
    other = fr.FastRecordDataset(url, fields=("label",), store=fr.Store(server.options, cache=tmp_path / "cache"))
    assert {other[EACH + at]["label"] for at in range(MORE)} == {1}


def test_a_state_does_not_resume_on_a_twin(twins: tuple[Path, Path]) -> None:
    one, two = (fr.FastRecordDataset(folder, fields=("label",)) for folder in twins)
    state = fr.FastRecordLoader(one, batch_size=5).state_dict()
    fr.FastRecordLoader(fr.FastRecordDataset(twins[0], fields=("label",)), batch_size=5).load_state_dict(state)
    with pytest.raises(ValueError, match=r"file 0 of the data \(.*two/train-.*with \d+ records, footer"):
        fr.FastRecordLoader(two, batch_size=5).load_state_dict(state)
