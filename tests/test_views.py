"""Views of data sets: which records they have, in which order, how little they hold, and who agrees about them."""

from __future__ import annotations

import operator
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, random_split

import fastrecord as fr
from fastrecord.rows import All, Permuted, Span
from fastrecord.splitting import part_sizes
from tests.conftest import encode, write_images
from tests.test_workers import START_METHODS

CLASSES = ["ant", "bee", "cat"]
COUNT = 40
LABELS = [number * 7 % 3 for number in range(COUNT)]
SCORES = [(number * 37 % 41) / 8 for number in range(COUNT)]
SCHEMA = fr.Schema(
    {"image": fr.image(), "label": fr.int64(), "key": fr.string(), "score": fr.float64(), "blob": fr.bytes_()}
)


def write(path: Path, numbers: range, classes: list[str] = CLASSES) -> Path:
    """Write records by their numbers, which are in their keys."""
    with fr.Writer(path, SCHEMA, metadata={"classes": classes}) as writer:
        for number in numbers:
            label = classes.index(CLASSES[LABELS[number]])
            values = {"image": encode(number), "key": f"{number:03d}", "score": SCORES[number], "blob": b"b"}
            writer.append({**values, "label": label})
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 40 records. Read only."""
    return write(tmp_path_factory.mktemp("views") / "whole.frec", range(COUNT))


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same records in two files, which number their classes in different ways."""
    folder = tmp_path_factory.mktemp("halves")
    return [
        write(folder / "a.frec", range(25)),
        write(folder / "b.frec", range(25, COUNT), ["cat", "ant", "bee"]),
    ]


@pytest.fixture
def data(path: Path) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, decode=None)


def numbers(view: fr.FastRecordDataset) -> list[int]:
    """Return the numbers that the records of a view were written with, by their keys."""
    return [int(key) for key, _ in view.samples]


def check(view: fr.FastRecordDataset, expected: list[int]) -> None:
    """Check everything that a view says about its records."""
    n = len(expected)
    assert len(view) == n
    assert numbers(view) == expected
    assert view.targets.tolist() == [LABELS[number] for number in expected]
    assert view.column("score").tolist() == [SCORES[number] for number in expected]
    assert view.column("key").tolist() == [f"{number:03d}" for number in expected]
    samples = [(encode(number), LABELS[number]) for number in expected]
    assert view.__getitems__(range(n)) == samples
    rows = view.rows(range(n))
    assert rows.dtype == np.int64
    assert view.labels(rows).tolist() == view.targets.tolist()
    assert view.values(rows, ["key", "score"])[0] == [f"{number:03d}" for number in expected]
    for index in [0, -1, n // 2] if n else []:
        assert view[index] == samples[index]
        assert view.key(index) == f"{expected[index]:03d}"
        shard, record = view.locate(index)
        assert view.readers[shard][record]["key"] == view.key(index)
        assert view.samples[index] == (view.key(index), samples[index][1])
    for index in (n, -n - 1):
        with pytest.raises(IndexError, match=f"record {index} is out of range: the data set has {n}"):
            view[index]


# --- subset ---


@pytest.mark.parametrize(
    "picked",
    [
        slice(3, 20),
        slice(None, None, -1),
        slice(-5, None),
        slice(30, 10, -7),
        slice(8, 8),
        range(2, 30, 3),
        range(9, -1, -1),
        range(0),
        [5, 5, -1, 0],
        np.array([39, 1], np.uint8),
        torch.tensor([4, 2]),
        (),
    ],
    ids=str,
)
def test_a_subset_has_the_records_that_indexing_a_list_gives(data: fr.FastRecordDataset, picked: Any) -> None:
    every = np.arange(COUNT)
    expected = every[picked] if isinstance(picked, slice) else every[np.array(list(picked), np.int64)]
    check(data.subset(picked), expected.tolist())


def test_a_subset_by_a_mask_has_the_records_where_it_is_true(data: fr.FastRecordDataset) -> None:
    check(data.subset(data.column("score") > 2), [number for number in range(COUNT) if SCORES[number] > 2])


@pytest.mark.parametrize(
    ("picked", "error", "message"),
    [
        ([0, COUNT], IndexError, "record 40 is out of range: the data set has 40"),
        (range(30, 41), IndexError, "record 40 is out of range: the data set has 40"),
        (range(COUNT + 1), IndexError, "record 40 is out of range"),
        ([-COUNT - 1], IndexError, "record -41 is out of range"),
        ([True, False], IndexError, r"a mask has a value for each of the 40 records, not shape \(2,\)"),
        ([1.5], TypeError, "record numbers are a 1-D sequence of integers, not float64"),
        ([[1, 2]], TypeError, "1-D sequence of integers"),
        ("abc", TypeError, "1-D sequence of integers"),
    ],
)
def test_what_is_no_subset_is_refused(
    data: fr.FastRecordDataset, picked: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        data.subset(picked)


def test_a_subset_keeps_its_records_when_the_array_that_named_them_changes(data: fr.FastRecordDataset) -> None:
    picked = np.array([3, 1])
    view = data.subset(picked)
    picked[:] = 0
    check(view, [3, 1])


# --- filter ---

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, members: value in members,
    "not in": lambda value, members: value not in members,
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    ("field", "values", "one", "several"),
    [
        ("label", LABELS, 1, [0, 2, 5]),
        ("score", SCORES, 2.5, [2.5, 0.125, 99]),
        ("key", [f"{number:03d}" for number in range(COUNT)], "017", ["000", "039", "none"]),
    ],
)
def test_a_filter_has_the_records_that_python_would_choose(
    data: fr.FastRecordDataset, op: str, field: str, values: list[Any], one: Any, several: Any
) -> None:
    value = several if "in" in op else one
    expected = [number for number in range(COUNT) if OPERATORS[op](values[number], value)]
    assert 0 < len(expected) < COUNT
    check(data.filter(field, op, value), expected)


@pytest.mark.parametrize("value", [2**70, -(2**70), 1.5, True, np.int8(1), np.float32(0.5)])
@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
def test_a_filter_compares_integers_with_any_number(data: fr.FastRecordDataset, op: str, value: Any) -> None:
    expected = [number for number in range(COUNT) if OPERATORS[op](LABELS[number], value)]
    assert numbers(data.filter("label", op, value)) == expected


def test_a_filter_takes_sizes_of_images(data: fr.FastRecordDataset) -> None:
    wide = data.filter("image.width", ">", 50)
    widths = data.column("image.width")
    assert numbers(wide) == np.flatnonzero(widths > 50).tolist()
    assert 0 < len(wide) < COUNT


def test_a_filter_takes_classes_by_name(halves: list[Path]) -> None:
    data = fr.FastRecordDataset(halves, decode=None)
    assert set(data.readers[1].column("label").tolist()) == {0, 1, 2}
    for label, name in enumerate(CLASSES):
        expected = [number for number in range(COUNT) if LABELS[number] == label]
        check(data.filter("label", "==", name), expected)
        check(data.filter("label", "==", label), expected)
    check(data.filter("label", "in", ["ant", 2]), [number for number in range(COUNT) if LABELS[number] != 1])


def test_a_filter_with_a_callable_has_the_records_of_its_mask(data: fr.FastRecordDataset) -> None:
    asked = []

    def even(column: Any) -> Any:
        asked.append(column)
        return column.astype(int) % 2 == 0

    view = data.subset(slice(10, 20)).filter("key", even)
    check(view, [10, 12, 14, 16, 18])
    assert [column.tolist() for column in asked] == [[f"{number:03d}" for number in range(10, 20)]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("nothing", "==", 1), fr.SchemaError, "no field 'nothing': it has image, label, key, score, blob"),
        (("key.width", "==", 1), fr.SchemaError, "no field 'key.width'"),
        (("blob", "==", b"b"), fr.SchemaError, "field 'blob' holds bytes, which == does not compare"),
        (("image", "in", [b"b"]), fr.SchemaError, "field 'image' holds image, which in does not compare"),
        (("label", "=", 1), ValueError, "op is one of ==, !=, .* not '='"),
        (("label", "=="), TypeError, "wants a value to compare with"),
        (("score", "==", "2"), TypeError, "field 'score' holds numbers, not str: '2'"),
        (("score", "==", None), TypeError, "field 'score' holds numbers, not NoneType"),
        (("key", "==", 2), TypeError, "field 'key' holds strings, not int: 2"),
        (("key", "in", "abc"), TypeError, "'in' wants several values, such as a list, not 'abc'"),
        (("label", "in", 3), TypeError, "'in' wants several values"),
        (("label", "in", [3, None]), TypeError, "holds numbers, not NoneType"),
        (("label", "==", "dog"), ValueError, "no class is named 'dog'; the data set has 'ant', 'bee', 'cat'"),
        (("label", "<", 1j), TypeError, "complex numbers have no order"),
        (("label", lambda column: column), ValueError, r"returns a mask, bool \(40,\), not int64 of shape \(40,\)"),
        (("label", lambda column: column[1:] > 0), ValueError, r"returns a mask, bool \(40,\), not bool of shape \(39"),
        (("label", lambda column: column > 0, 1), TypeError, "leave value out"),
    ],
)
def test_what_is_no_filter_is_refused_when_it_is_made(
    data: fr.FastRecordDataset, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        data.filter(*arguments)


def test_a_filter_looks_at_no_record_before_it_is_needed(tmp_path: Path) -> None:
    path = write_images(tmp_path / "a.frec", [0, 1, 0])
    data = fr.FastRecordDataset(path)
    view = data.filter("key", "==", "a/1").subset(slice(None)).filter("label", "<", 1)
    data.close()
    with pytest.raises(ValueError, match="closed"):
        len(view)


# --- split ---


@pytest.mark.parametrize(
    "parts", [[0.9, 0.1], [25, 15], [40], [0, 40], 4, 40, 50, [0.5, 0.25, 0.25], [1.0], [1 / 3] * 3]
)
@pytest.mark.parametrize("stratify", [None, "label", "key"])
def test_the_parts_of_a_split_have_each_record_once(
    data: fr.FastRecordDataset, parts: Any, stratify: str | None
) -> None:
    split = data.split(parts, seed=3, stratify=stratify)
    assert [len(part) for part in split] == part_sizes(COUNT, parts)
    assert sorted(number for part in split for number in numbers(part)) == list(range(COUNT))


@given(records=st.integers(0, 10_000), weights=st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_sizes_of_parts_make_up_the_whole_and_are_those_of_random_split(records: int, weights: list[int]) -> None:
    if not sum(weights):
        return
    fractions = [weight / sum(weights) for weight in weights]
    sizes = part_sizes(records, fractions)
    assert sum(sizes) == records
    assert all(abs(size - records * fraction) < len(weights) for size, fraction in zip(sizes, fractions, strict=True))
    if 0 not in sizes and sum(fractions) <= 1:
        theirs: list[Any] = random_split(range(records), fractions)  # type: ignore[arg-type]
        assert sizes == [len(part) for part in theirs]


def test_the_records_of_a_split_never_change(data: fr.FastRecordDataset) -> None:
    _, val = data.split([0.75, 0.25], seed=1)
    assert numbers(val) == [12, 11, 33, 5, 20, 0, 25, 26, 19, 13]
    stratified = data.split([30, 10], seed=1, stratify="label")[1]
    assert numbers(stratified) == [4, 6, 18, 20, 23, 29, 30, 31, 33, 34]
    assert Permuted(All(1_281_167), 42).take(np.array([0, 1, 1_281_166])).tolist() == [339_414, 696_191, 1_146_389]


def test_other_seeds_split_in_other_ways_and_the_same_one_in_the_same_way(data: fr.FastRecordDataset) -> None:
    for stratify in (None, "label"):
        parts = [numbers(data.split(2, seed, stratify=stratify)[0]) for seed in (0, 0, 1, 2**64 - 1)]
        assert parts[0] == parts[1]
        assert len({tuple(part) for part in parts}) == 3


def test_a_split_is_no_order_of_an_epoch(data: fr.FastRecordDataset) -> None:
    order = fr.FastRecordBatchSampler(data, COUNT, seed=5).rows(0, epoch=0).tolist()
    mixed = numbers(data.split(1, seed=5)[0])
    assert sum(a == b for a, b in zip(order, mixed, strict=True)) < 8


@given(
    labels=st.lists(st.integers(-2, 4), max_size=200),
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_each_part_of_a_stratified_split_has_its_share_of_each_class(
    labels: list[int], shares: list[int], seed: int
) -> None:
    class Column:
        def values(self, field: str, where: Any) -> Any:
            assert (field, where) == ("label", slice(None))
            return np.array(labels, np.int64)

    from fastrecord.rows import Strata

    sizes = part_sizes(len(labels), [share / sum(shares) for share in shares])
    parts = Strata(All(len(labels)), Column(), "label", sizes, seed).parts()  # type: ignore[arg-type]
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    totals = Counter(labels)
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert part.tolist() == sorted(part.tolist())
        counts = Counter(labels[row] for row in part.tolist())
        for label, total in totals.items():
            assert abs(counts[label] - total * size / len(labels)) < (1 if number < 2 and len(sizes) < 3 else 2)


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([0.9, 0.2], ValueError, "parts sum up to 1.1, not to 1"),
        ([0.5], ValueError, "sum up to 0.5, not to 1: each record is in one part, so name the rest"),
        ([30, 9], ValueError, "parts have 39 records together, the data set has 40"),
        ([41, -1], ValueError, "a part is at least 0, not -1"),
        ([1.5, -0.5], TypeError, "at least 0, not"),
        ([float("nan"), 1.0], TypeError, "at least 0, not"),
        (["0.5", "0.5"], TypeError, "fractions or numbers of records"),
        ([], ValueError, "parts is empty"),
        (0, ValueError, "parts is at least 1, not 0"),
        (2.5, TypeError, "parts is an int, not float"),
        ("ab", TypeError, "parts is an int, not str"),
    ],
)
def test_parts_that_do_not_make_up_the_whole_are_refused(
    data: fr.FastRecordDataset, parts: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        data.split(parts)


def test_a_split_by_what_can_not_be_compared_is_refused(data: fr.FastRecordDataset) -> None:
    with pytest.raises(fr.SchemaError, match="field 'blob' holds bytes, which can not be compared"):
        data.split(2, stratify="blob")
    with pytest.raises(ValueError, match="seed is from 0 to"):
        data.split(2, seed=-1)


# --- concat ---


def test_data_sets_that_are_put_together_are_the_data_set_of_their_files(halves: list[Path]) -> None:
    first, second = (fr.FastRecordDataset(half, decode=None) for half in halves)
    assert second.classes == ["cat", "ant", "bee"]
    for whole in (first.concat(second), fr.concat(first, second), first + second):
        check(whole, list(range(COUNT)))
        assert whole.classes == CLASSES
        assert whole.paths == [str(half) for half in halves]
        assert whole.snapshots == fr.FastRecordDataset(halves).snapshots
        assert whole.fingerprint is None
    swapped = second + first
    assert swapped.classes == ["cat", "ant", "bee"]
    assert numbers(swapped) == [*range(25, COUNT), *range(25)]
    assert [swapped.classes[label] for label in swapped.targets] == [CLASSES[LABELS[n]] for n in numbers(swapped)]


def test_views_of_several_files_go_together(halves: list[Path]) -> None:
    first, second = (fr.FastRecordDataset(half, decode=None) for half in halves)
    view = fr.concat(second.filter("label", "==", "ant"), first.subset([3, 1]), second.subset(slice(2)), first)
    ants = [number for number in range(25, COUNT) if LABELS[number] == 0]
    assert numbers(view) == [*ants, 3, 1, 25, 26, *range(25)]
    assert len(view.readers) == 2
    again = first.concat(view.subset([0, -1]), view)
    check(again, [*range(25), ants[0], 24, *numbers(view)])


def test_folds_of_one_file_go_together_without_opening_it_again(data: fr.FastRecordDataset) -> None:
    folds = data.split(5, seed=2)
    train = fr.concat(*folds[1:])
    assert train.readers == data.readers
    assert sorted(numbers(train) + numbers(folds[0])) == list(range(COUNT))
    sent = [pickle.loads(pickle.dumps(fold)) for fold in folds]
    assert len(fr.concat(*sent).readers) == 1


def test_only_like_goes_with_like(data: fr.FastRecordDataset, path: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other.frec", [0, 1])
    plain = tmp_path / "plain.frec"
    with fr.Writer(plain, fr.Schema({"image": fr.image()})) as writer:
        writer.append({"image": encode(0)})
    with pytest.raises(fr.SchemaError, match=r"other\.frec do not"):
        data.concat(fr.FastRecordDataset(other, decode=None))
    with pytest.raises(ValueError, match="differ in label_field: 'label' and None"):
        data.concat(fr.FastRecordDataset(plain, decode=None))
    with pytest.raises(ValueError, match="differ in decode: None and 'pil'"):
        data.concat(fr.FastRecordDataset(path))
    with pytest.raises(ValueError, match="differ in transform: None and <built-in function len>"):
        data.concat(fr.FastRecordDataset(path, len, decode=None))
    with pytest.raises(ValueError, match="differ in fields: None and"):
        data.concat(data.select(["label"]))
    with pytest.raises(TypeError, match="concat takes data sets of fastrecord, not list"):
        data.concat([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="concat takes data sets of fastrecord, one after the other, not list"):
        fr.concat([data])  # type: ignore[arg-type]


def test_other_data_sets_are_added_as_torch_does_it(data: fr.FastRecordDataset) -> None:
    added = data + torch.utils.data.TensorDataset(torch.zeros(3))
    assert isinstance(added, ConcatDataset)
    assert len(added) == COUNT + 3


# --- any of them, one after the other ---


def step(
    view: fr.FastRecordDataset, rng: random.Random
) -> tuple[fr.FastRecordDataset, Callable[[list[int]], list[int]]]:
    """Return a view of a view, and what it does to the list of its numbers."""
    n = len(view)
    match rng.randrange(6):
        case 0:
            piece = slice(rng.randint(-n, n), rng.choice([None, rng.randint(-n, n)]), rng.choice([1, 2, -1, -3]))
            return view.subset(piece), lambda have: have[piece]
        case 1:
            picked = [rng.randrange(n) for _ in range(rng.randint(1, 2 * n))] if n else []
            return view.subset(picked), lambda have: [have[i] for i in picked]
        case 2:
            limit = rng.choice(SCORES)
            return view.filter("score", ">=", limit), lambda have: [i for i in have if SCORES[i] >= limit]
        case 3:
            wanted = rng.sample(CLASSES, 2)
            labels = [CLASSES.index(name) for name in wanted]
            return view.filter("label", "in", wanted), lambda have: [i for i in have if LABELS[i] in labels]
        case 4:
            parts = view.split(3, seed=rng.randrange(1000), stratify=rng.choice([None, "label"]))
            order = [numbers(part) for part in parts]
            assert sorted(chain(*order)) == sorted(numbers(view))
            return fr.concat(parts[2], parts[0]), lambda _: order[2] + order[0]
        case _:
            return view + view.subset(slice(2)), lambda have: have + have[:2]


@pytest.mark.parametrize("seed", range(40))
def test_views_of_views_have_what_the_same_steps_make_of_a_list(path: Path, halves: list[Path], seed: int) -> None:
    rng = random.Random(seed)
    view = fr.FastRecordDataset(halves if seed % 2 else path, decode=None)
    expected = list(range(COUNT))
    for _ in range(4):
        view, change = step(view, rng)
        expected = change(expected)
        assert numbers(view) == expected
    check(view, expected)
    check(pickle.loads(pickle.dumps(view)), expected)


# --- what a view holds and keeps ---


def test_views_pickle_as_recipes_however_many_records_they_have(tmp_path: Path) -> None:
    path, count = tmp_path / "a.frec", 20_000
    with fr.Writer(path, fr.Schema({"label": fr.int64(), "name": fr.string()})) as writer:
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
        assert len(view.rows(range(len(view)))) > 400  # found already, and yet not sent
        assert len(pickle.dumps(view)) < size + 800, name
    held = data.subset(np.arange(5000))
    assert size + 40_000 <= len(pickle.dumps(held)) < size + 41_000


def test_a_slice_of_a_long_run_costs_nothing() -> None:
    run = Span(All(1 << 60), 5, 3, 1 << 50)
    assert run.take(np.array([0, (1 << 50) - 1])).tolist() == [5, 5 + 3 * ((1 << 50) - 1)]
    assert Permuted(run, 1).take(np.array([7])).tolist()[0] % 3 == 2


def test_a_view_keeps_settings_and_class_and_has_its_own(path: Path) -> None:
    class Mine(fr.FastRecordDataset):
        extra = "kept"

        def __getitem__(self, index: int) -> Any:
            return ("mine", super().__getitem__(index))

    data = Mine(path, len, str, decode=None, extra_fields=("key",), verify=False)
    data.extra = "changed"
    view = data.filter("label", "==", 1).subset(slice(2, 4))
    assert isinstance(view, Mine)
    assert (view.extra, view.decode, view.verify, view.extra_fields) == ("changed", None, False, ("key",))
    number = int(view.key(0))
    assert view[0] == view.__getitems__([0])[0] == ("mine", (len(encode(number)), "1", f"{number:03d}"))
    view.transform = None
    assert data.transform is len
    assert view.classes == CLASSES
    assert "Number of datapoints: 2" in repr(view)


def test_targets_of_views_are_read_only_and_those_of_slices_no_copies(data: fr.FastRecordDataset) -> None:
    for view in (data.subset([1, 2]), data.subset(slice(4)), data.filter("label", "==", 1)):
        with pytest.raises(ValueError, match="read-only"):
            view.targets[0] = 7
    assert np.shares_memory(data.subset(slice(30, 2, -2)).targets, data.targets)


def test_recipes_tell_views_apart(data: fr.FastRecordDataset, halves: list[Path]) -> None:
    mapped = fr.FastRecordDataset(halves)
    renamed = fr.FastRecordDataset(halves, classes=["bee", "ant", "cat"])
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
    marks = [view.fingerprint for view in views]
    assert None not in marks
    assert len(set(marks)) == len(marks)
    for view, mark in zip(views, marks, strict=True):
        assert pickle.loads(pickle.dumps(view)).fingerprint == mark
    assert data.filter("label", "in", {2, 1}).fingerprint == data.filter("label", "in", [1, 1, 2]).fingerprint
    assert data.fingerprint is data.subset(slice(None)).fingerprint is None


# --- processes ---


def composed(data: fr.FastRecordDataset) -> fr.FastRecordDataset:
    train: fr.FastRecordDataset = fr.concat(*data.split(3, seed=4)[1:])
    kept = train.filter("label", "!=", "bee").subset(slice(None, None, -1))
    return kept.concat(data.filter("key", "<", "005"))


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("counted", [True, False], ids=["found before", "found there"])
def test_workers_agree_about_a_view(halves: list[Path], start_method: str, counted: bool) -> None:
    expected = numbers(composed(fr.FastRecordDataset(halves, decode=None, extra_fields=("key",))))
    view = composed(fr.FastRecordDataset(halves, decode=None, extra_fields=("key",)))
    if not counted:
        view = pickle.loads(pickle.dumps(view))
    sampler = fr.FastRecordBatchSampler(view, 4, shuffle=False)
    loader = DataLoader(
        view, batch_sampler=sampler, num_workers=2, collate_fn=list, multiprocessing_context=start_method
    )
    assert [int(sample[2]) for batch in loader for sample in batch] == expected


def test_a_file_that_was_replaced_is_an_error_of_the_view_too(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path / "copy.frec"))
    sent = pickle.dumps(fr.FastRecordDataset(copy).filter("label", "==", 1))
    copy.unlink()
    write(copy, range(20))
    view = pickle.loads(sent)
    with pytest.raises(fr.FastRecordError, match=r"copy\.frec"):
        len(view)


# --- under the loader and the sampler ---


def loaded(view: fr.FastRecordDataset, **options: Any) -> list[tuple[int, int, bytes]]:
    """Return number, label and pixels of each record that the loader makes, in order."""
    loader = fr.FastRecordLoader(view, 6, image=fr.transforms.Resize((8, 8)), fields=["key"], **options)
    return [
        (int(key), label, image.numpy().tobytes())
        for images, labels, keys in loader
        for image, label, key in zip(images, labels.tolist(), keys, strict=True)
    ]


def test_the_loader_makes_the_records_of_a_view(halves: list[Path]) -> None:
    data = fr.FastRecordDataset(halves)
    every = {number: (number, label, pixels) for number, label, pixels in loaded(data)}
    assert len(every) == COUNT
    view = composed(data)
    assert loaded(view) == [every[number] for number in numbers(view)]
    assert sorted(loaded(view, shuffle=True)) == sorted(every[number] for number in numbers(view))
    again = pickle.loads(pickle.dumps(fr.FastRecordLoader(view, 6, image=fr.transforms.Resize((8, 8)))))
    assert [label for _, labels in again for label in labels.tolist()] == view.targets.tolist()


def test_the_loader_takes_numbers_of_the_view_from_any_batch_sampler(path: Path) -> None:
    view = fr.FastRecordDataset(path).subset([7, 30, 2])
    loader = fr.FastRecordLoader(view, batch_sampler=[[2, 0], [-2]], image=fr.transforms.Resize(8), fields=["key"])
    assert [keys for _, _, keys in loader] == [["002", "007"], ["030"]]
    with pytest.raises(IndexError, match="record 3 is out of range: the data set has 3"):
        list(fr.FastRecordLoader(view, batch_sampler=[[3]], image=fr.transforms.Resize(8)))


@pytest.mark.parametrize("kind", ["slice", "split"])
def test_a_shuffle_by_blocks_of_a_view_has_each_of_its_records_once(path: Path, kind: str) -> None:
    data = fr.FastRecordDataset(path)
    view = data.subset(slice(5, 35)) if kind == "slice" else data.split(2, seed=1)[0]
    sampler = fr.FastRecordBatchSampler(view, 4, shuffle="blocks", block_records=3, window_blocks=3, seed=2)
    loader = fr.FastRecordLoader(view, batch_sampler=sampler, image=fr.transforms.Resize(8), fields=["key"])
    keys = [int(key) for _, _, keys in loader for key in keys]
    assert keys != sorted(keys)
    assert sorted(keys) == sorted(numbers(view))


def test_a_record_of_a_view_that_is_skipped_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, fr.Schema({"data": fr.bytes_(), "key": fr.string()})) as writer:
        for number in range(6):
            writer.append({"data": b"no image" if number == 4 else encode(number), "key": f"{number}.jpg"})
    view = fr.FastRecordDataset(path).subset([5, 4, 3])
    loader = fr.FastRecordLoader(view, 3, image=fr.transforms.Resize(8), on_error="skip")
    assert [len(batch) for batch in loader] == [2]
    assert [(record.record, record.key) for record in loader.skipped] == [(4, "4.jpg")]


def test_a_state_is_of_the_view_it_was_saved_with(data: fr.FastRecordDataset) -> None:
    def sampler(view: fr.FastRecordDataset) -> fr.FastRecordBatchSampler:
        return fr.FastRecordBatchSampler(view, 4, seed=3)

    state = sampler(data.split(2, seed=1)[0]).state_dict(batches_done=2)
    same = sampler(data.split(2, seed=1)[0])
    same.load_state_dict(state)
    whole = [batch for _, batch in zip(range(5), sampler(data.split(2, seed=1)[0]), strict=True)]
    assert list(same) == whole[2:]
    for other in (data.split(2, seed=1)[1], data.split(2, seed=2)[0], data.subset(slice(20))):
        with pytest.raises(ValueError, match=r"the state is of view \w{32} of them, the data are view \w{32} of them"):
            sampler(other).load_state_dict(state)
    with pytest.raises(ValueError, match=r"the data are all records of the files: make the same view"):
        sampler(data).load_state_dict(state)


@pytest.mark.parametrize("version", [1, 2])
def test_a_state_from_before_there_were_views_is_of_all_records(data: fr.FastRecordDataset, version: int) -> None:
    state = fr.FastRecordBatchSampler(data, 4).state_dict(batches_done=3)
    for name in ("view", "draw", "samples") + (("block_records", "window_blocks") if version == 1 else ()):
        del state[name]
    state["version"] = version
    sampler = fr.FastRecordBatchSampler(data, 4, seed=9)
    sampler.load_state_dict(state)
    assert len(list(sampler)) == 7
    view = data.subset(list(range(COUNT))[::-1])
    with pytest.raises(ValueError, match="the state is of all records of the files, the data are view"):
        fr.FastRecordBatchSampler(view, 4).load_state_dict(state)


def test_spans_of_spans_stay_spans(data: fr.FastRecordDataset) -> None:
    view = data
    for _ in range(50):
        view = view.subset(slice(None, None, -1)).subset(slice(None))
    assert len(pickle.dumps(view)) < len(pickle.dumps(data)) + 200
    check(view, list(range(COUNT)))


def test_neighbours_of_a_split_are_unrelated(data: fr.FastRecordDataset) -> None:
    steps = Counter((b - a) % COUNT for seed in range(100) for a, b in pairwise(numbers(data.split(1, seed=seed)[0])))
    expected = 100 * (COUNT - 1) / (COUNT - 1)
    statistic = sum((steps[i] - expected) ** 2 / expected for i in range(1, COUNT))
    assert abs(statistic - (COUNT - 2)) < 4 * (2 * (COUNT - 2)) ** 0.5
