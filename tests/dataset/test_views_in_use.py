"""Views of data sets: their size in memory, and their use in workers, loaders and samplers."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import fastrecord as fr
from fastrecord.dataset.rows import All, Permuted, Span
from tests.conftest import encode
from tests.support.viewing import CLASSES, COUNT, check, numbers, write

SMALL = [fr.transforms.Resize((8, 8))]


@pytest.fixture
def data(numbered: Path) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(numbered, decode=None)


# --- the memory of a view ---


def test_views_pickle_as_recipes_however_many_records_they_have(tmp_path: Path) -> None:
    path, count = tmp_path / "a.frec", 20_000
    with fr.Writer(path, fr.Schema({"label": "int64", "name": fr.string()})) as writer:
        for number in range(count):
            writer.append({"label": number % 10, "name": f"{number % 7}"})
    data = fr.FastRecordDataset(path)
    size = len(pickle.dumps(data))
    train, val = data.split([0.9, 0.1], seed=1)
    views = {
        "slice": data.subset(slice(1, None, 2)),
        "filter": data.filter("label", "<", 5),
        "filter by names": data.filter("name", "in", ["1", "2"]),
        "split": train,
        "stratified": data.split(2, stratify="label")[0],
        "concat": val + train,
        "all of it": data.filter("label", "!=", 3).split(3)[1].filter("name", ">", "2").subset(slice(10, 500)),
    }
    for name, view in views.items():
        assert len(view.rows(range(len(view)))) > 400  # computed already, but not pickled
        assert len(pickle.dumps(view)) < size + 800, name
    held = data.subset(np.arange(5000))
    assert size + 40_000 <= len(pickle.dumps(held)) < size + 41_000


def test_a_slice_of_a_long_run_costs_nothing() -> None:
    run = Span(All(1 << 60), 5, 3, 1 << 50)
    assert run.take(np.array([0, (1 << 50) - 1])).tolist() == [5, 5 + 3 * ((1 << 50) - 1)]
    assert Permuted(run, 1).take(np.array([7])).tolist()[0] % 3 == 2


def test_a_view_keeps_settings_and_class_and_has_its_own(numbered: Path) -> None:
    class Mine(fr.FastRecordDataset):
        extra = "kept"

        def __getitem__(self, index: int) -> Any:
            return ("mine", super().__getitem__(index))

    data = Mine(numbered, len, str, decode=None, verify=False)
    data.extra = "changed"
    view = data.filter("label", "==", 1).subset(slice(2, 4))
    assert isinstance(view, Mine)
    assert (view.extra, view.decode, view.verify) == ("changed", None, False)
    number = int(view.key(0))
    assert view[0] == view.__getitems__([0])[0] == ("mine", (len(encode(number)), "1"))
    view.transform = None
    assert data.transform is len
    assert view.classes == CLASSES
    assert "Number of datapoints: 2" in repr(view)


def test_targets_of_views_are_read_only_and_those_of_slices_no_copies(data: fr.FastRecordDataset) -> None:
    for view in (data.subset([1, 2]), data.subset(slice(4)), data.filter("label", "==", 1)):
        with pytest.raises(ValueError, match="read-only"):
            view.targets[0] = 7
    assert np.shares_memory(data.subset(slice(30, 2, -2)).targets, data.targets)


def test_recipes_tell_views_apart(data: fr.FastRecordDataset, numbered_halves: list[Path]) -> None:
    mapped = fr.FastRecordDataset(numbered_halves)
    renamed = fr.FastRecordDataset(numbered_halves, classes=["bee", "ant", "cat"])
    views = [
        data.subset(slice(10)),
        data.subset(slice(11)),
        data.subset(list(range(10))),
        data.subset(list(range(9, -1, -1))),
        data.filter("label", "==", 1),
        data.filter("label", "==", 2),
        data.filter("label", "!=", 1),
        data.filter("score", "==", 1),
        data.filter("label", "in", [1]),
        data.filter("label", "in", [1, 2]),
        data.filter("key", "in", ["001"]),
        data.filter("label", "==", 1).subset(slice(3)),
        data.subset(slice(3)).filter("label", "==", 1),
        *data.split(2),
        *data.split(2, seed=1),
        *data.split(2, stratify="label"),
        mapped.filter("label", "==", 1),
        renamed.filter("label", "==", 1),
        data + data.subset(slice(1)),
    ]
    marks = [view.selection.rows.fingerprint for view in views]
    assert None not in marks
    assert len(set(marks)) == len(marks)
    for view, mark in zip(views, marks, strict=True):
        assert pickle.loads(pickle.dumps(view)).selection.rows.fingerprint == mark
    one, same = (data.filter("label", "in", members).selection.rows for members in ({2, 1}, [1, 1, 2]))
    assert one.fingerprint == same.fingerprint
    assert data.selection.rows.fingerprint is data.subset(slice(None)).selection.rows.fingerprint is None


# --- processes ---


def composed(data: fr.FastRecordDataset) -> fr.FastRecordDataset:
    train: fr.FastRecordDataset = fr.concat(*data.split(3, seed=4)[1:])
    kept = train.filter("label", "!=", "bee").subset(slice(None, None, -1))
    joined: fr.FastRecordDataset = fr.concat(kept, data.filter("key", "<", "005"))
    return joined


@pytest.mark.parametrize(("start_method", "counted"), [("fork", True), ("spawn", False)])
def test_workers_agree_about_a_view(numbered_halves: list[Path], start_method: str, counted: bool) -> None:
    expected = numbers(composed(fr.FastRecordDataset(numbered_halves, fields=("label", "key"))))
    view = composed(fr.FastRecordDataset(numbered_halves, fields=("label", "key")))
    if not counted:
        view = pickle.loads(pickle.dumps(view))
    sampler = fr.FastRecordBatchSampler(view, 4, shuffle=False)
    loader = DataLoader(
        view, batch_sampler=sampler, num_workers=2, collate_fn=list, multiprocessing_context=start_method
    )
    assert [int(sample["key"]) for batch in loader for sample in batch] == expected


def test_a_file_that_was_replaced_is_an_error_of_the_view_too(numbered: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(numbered, tmp_path / "copy.frec"))
    sent = pickle.dumps(fr.FastRecordDataset(copy).filter("label", "==", 1))
    copy.unlink()
    write(copy, range(20))
    view = pickle.loads(sent)
    with pytest.raises(fr.FastRecordError, match=r"copy\.frec"):
        len(view)


# --- in the loader and the sampler ---


def loaded(view: fr.FastRecordDataset, **options: Any) -> list[tuple[int, int, bytes]]:
    """Return number, label and pixels of each record from the loader, in order."""
    loader = fr.FastRecordLoader(view, 6, sample=SMALL, **{"shuffle": False, **options})
    return [
        (int(key), label, image.numpy().tobytes())
        for images, labels, keys in map(dict.values, loader)
        for image, label, key in zip(images, labels.tolist(), keys, strict=True)
    ]


def test_the_loader_makes_the_records_of_a_view(numbered_halves: list[Path]) -> None:
    data = fr.FastRecordDataset(numbered_halves, fields=["image", "label", "key"])
    every = {number: (number, label, pixels) for number, label, pixels in loaded(data)}
    assert len(every) == COUNT
    view = composed(data)
    assert loaded(view) == [every[number] for number in numbers(view)]
    assert sorted(loaded(view, shuffle=True)) == sorted(every[number] for number in numbers(view))
    again = pickle.loads(pickle.dumps(fr.FastRecordLoader(view, 6, shuffle=False, sample=SMALL)))
    assert [label for batch in again for label in batch["label"].tolist()] == view.targets.tolist()


def test_the_loader_takes_numbers_of_the_view_from_any_batch_sampler(numbered: Path) -> None:
    view = fr.FastRecordDataset(numbered, fields=["image", "key"]).subset([7, 30, 2])
    loader = fr.FastRecordLoader(view, batch_sampler=[[2, 0], [-2]], sample=SMALL)
    assert [batch["key"] for batch in loader] == [["002", "007"], ["030"]]
    with pytest.raises(IndexError, match="index 3 is out of range: the data set has 3"):
        list(fr.FastRecordLoader(view, batch_sampler=[[3]], sample=SMALL))


def test_a_record_of_a_view_that_is_skipped_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, fr.Schema({"data": fr.bytes_(), "key": fr.string()})) as writer:
        for number in range(6):
            writer.append({"data": b"no image" if number == 4 else encode(number), "key": f"{number}.jpg"})
    view = fr.FastRecordDataset(path).subset([5, 4, 3])
    loader = fr.FastRecordLoader(view, 3, shuffle=False, sample=SMALL, on_error="skip")
    assert [len(batch) for batch in loader] == [2]
    assert [(record.record, record.key) for record in loader.skipped] == [(4, "4.jpg")]


def test_a_state_is_of_the_view_it_was_saved_with(data: fr.FastRecordDataset) -> None:
    def sampler(view: fr.FastRecordDataset) -> fr.FastRecordBatchSampler:
        return fr.FastRecordBatchSampler(view, 4, shuffle=True, seed=3)

    state = sampler(data.split(2, seed=1)[0]).state_dict(batches_done=2)
    same = sampler(data.split(2, seed=1)[0])
    same.load_state_dict(state)
    whole = [batch for _, batch in zip(range(5), sampler(data.split(2, seed=1)[0]), strict=True)]
    assert list(same) == whole[2:]
    for other in (data.split(2, seed=1)[1], data.split(2, seed=2)[0], data.subset(slice(20))):
        with pytest.raises(ValueError, match=r"the state has view \w{32} of them, but the data are view \w{32}"):
            sampler(other).load_state_dict(state)
    with pytest.raises(ValueError, match=r"the data are all records of the files: make the same view"):
        sampler(data).load_state_dict(state)


def test_spans_of_spans_stay_spans(data: fr.FastRecordDataset) -> None:
    view = data
    for _ in range(50):
        view = view.subset(slice(None, None, -1)).subset(slice(None))
    assert len(pickle.dumps(view)) < len(pickle.dumps(data)) + 200
    check(view, list(range(COUNT)))


def test_the_loader_refuses_a_sampler_of_another_view(numbered: Path) -> None:
    train, val = fr.FastRecordDataset(numbered).split(2)
    sampler = fr.FastRecordBatchSampler(train, 4, shuffle=True)
    with pytest.raises(ValueError, match="the batch sampler is for other records of the files than the data set has"):
        fr.FastRecordLoader(val, batch_sampler=sampler, sample=SMALL)
    same, _ = fr.FastRecordDataset(numbered).split(2)
    assert len(list(fr.FastRecordLoader(same, batch_sampler=sampler, sample=SMALL))) == 5
    plain = fr.FastRecordBatchSampler(range(20), 4, shuffle=True)
    assert len(list(fr.FastRecordLoader(val, batch_sampler=plain, sample=SMALL))) == 5
