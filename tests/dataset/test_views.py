"""Views of data sets: their records and the order of these."""

from __future__ import annotations

import operator
import pickle
import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, random_split

import fastrecord as fr
from fastrecord.dataset.rows import All, Permuted
from fastrecord.dataset.split import part_sizes
from tests.conftest import encode, write_images
from tests.support.viewing import CLASSES, COUNT, LABELS, SCORES, check, numbers


@pytest.fixture
def data(numbered: Path) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(numbered, decode=None)


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
        ([0, COUNT], IndexError, "index 40 is out of range: the data set has 40"),
        (range(30, 41), IndexError, "index 40 is out of range: the data set has 40"),
        (range(COUNT + 1), IndexError, "index 40 is out of range"),
        ([-COUNT - 1], IndexError, "index -41 is out of range"),
        ([True, False], IndexError, r"a mask is bool \(40,\), .* not of shape \(2,\)"),
        ([1.5], TypeError, "indices are a 1-D sequence of integers, not float64"),
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


def test_a_filter_takes_classes_by_name(numbered_halves: list[Path]) -> None:
    data = fr.FastRecordDataset(numbered_halves, decode=None)
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
        (("nothing", "==", 1), fr.errors.SchemaError, "no field 'nothing': it has image, label, key, score, blob"),
        (("key.width", "==", 1), fr.errors.SchemaError, "no field 'key.width'"),
        (("blob", "==", b"b"), fr.errors.SchemaError, "field 'blob' holds bytes, which cannot be compared"),
        (("image", "in", [b"b"]), fr.errors.SchemaError, "field 'image' holds image, which cannot"),
        (("label", "=", 1), ValueError, 'op is "==", "!=", .* not .=.'),
        (("label", "=="), TypeError, "has no value: give one to compare with"),
        (("score", "==", "2"), TypeError, "field 'score' holds numbers, not str: '2'"),
        (("score", "==", None), TypeError, "field 'score' holds numbers, not NoneType"),
        (("key", "==", 2), TypeError, "field 'key' holds strings, not int: 2"),
        (("key", "in", "abc"), TypeError, "the value for 'in' is a list or another collection, not 'abc'"),
        (("label", "in", 3), TypeError, "the value for 'in' is a list"),
        (("label", "in", [3, None]), TypeError, "holds numbers, not NoneType"),
        (("label", "==", "dog"), ValueError, "no class is named 'dog'; the data set has 'ant', 'bee', 'cat'"),
        (("label", "<", 1j), TypeError, "complex numbers have no order"),
        (("label", lambda column: column), ValueError, r"result is a mask, bool \(40,\), not int64 of shape \(40,\)"),
        (
            ("label", lambda column: column[1:] > 0),
            ValueError,
            r"result is a mask, bool \(40,\), not bool of shape \(39",
        ),
        (("label", lambda column: column > 0, 1), TypeError, "leave out value=1"),
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
@example(records=6313, weights=[21, 50, 50, 50, 50, 50, 50])  # 6313 * (21 / 321) is just below 413
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
    assert numbers(stratified) == [4, 6, 17, 20, 23, 29, 30, 31, 33, 34]
    assert Permuted(All(1_281_167), 42).take(np.array([0, 1, 1_281_166])).tolist() == [339_414, 696_191, 1_146_389]


def test_other_seeds_split_in_other_ways_and_the_same_one_in_the_same_way(data: fr.FastRecordDataset) -> None:
    for stratify in (None, "label"):
        parts = [numbers(data.split(2, seed, stratify=stratify)[0]) for seed in (0, 0, 1, 2**64 - 1)]
        assert parts[0] == parts[1]
        assert len({tuple(part) for part in parts}) == 3


def test_a_split_is_no_order_of_an_epoch(data: fr.FastRecordDataset) -> None:
    order = fr.FastRecordBatchSampler(data, COUNT, shuffle=True, seed=5).indices(0, epoch=0).tolist()
    mixed = numbers(data.split(1, seed=5)[0])
    assert sum(a == b for a, b in zip(order, mixed, strict=True)) < 8


@given(
    labels=st.lists(st.integers(-2, 4), max_size=200),
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
@example(labels=[0] * 12 + [-1] * 3, shares=[1, 2, 2, 2, 4], seed=0)
def test_each_part_of_a_stratified_split_has_its_share_of_each_class(
    labels: list[int], shares: list[int], seed: int
) -> None:
    class Column:
        def values(self, field: str, where: Any) -> Any:
            assert (field, where) == ("label", slice(None))
            return np.array(labels, np.int64)

    from fastrecord.dataset.rows import Strata

    sizes = part_sizes(len(labels), [share / sum(shares) for share in shares])
    parts = Strata(All(len(labels)), Column(), "label", sizes, seed).parts()  # type: ignore[arg-type]
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    totals = Counter(labels)
    for part, size in zip(parts, sizes, strict=True):
        assert part.tolist() == sorted(part.tolist())
        counts = Counter(labels[row] for row in part.tolist())
        for label, total in totals.items():
            assert abs(counts[label] * len(labels) - total * size) <= len(labels)


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
        (0.9, TypeError, r"write \[0.9, 0.1\], not 0.9"),
        ("ab", TypeError, "parts is an int, not str"),
    ],
)
def test_parts_that_do_not_make_up_the_whole_are_refused(
    data: fr.FastRecordDataset, parts: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        data.split(parts)


def test_a_split_by_what_can_not_be_compared_is_refused(data: fr.FastRecordDataset) -> None:
    with pytest.raises(fr.errors.SchemaError, match="field 'blob' holds bytes, which cannot be compared"):
        data.split(2, stratify="blob")
    with pytest.raises(ValueError, match="seed is from 0 to"):
        data.split(2, seed=-1)


# --- concat ---


def test_data_sets_that_are_put_together_are_the_data_set_of_their_files(numbered_halves: list[Path]) -> None:
    first, second = (fr.FastRecordDataset(half, decode=None) for half in numbered_halves)
    assert second.classes == ["cat", "ant", "bee"]
    for whole in (fr.concat(first, second), first + second):
        check(whole, list(range(COUNT)))
        assert whole.classes == CLASSES
        assert whole.paths == [str(half) for half in numbered_halves]
        assert whole.snapshots == fr.FastRecordDataset(numbered_halves).snapshots
        assert whole.selection.rows.fingerprint is None
    swapped = second + first
    assert swapped.classes == ["cat", "ant", "bee"]
    assert numbers(swapped) == [*range(25, COUNT), *range(25)]
    assert [swapped.classes[label] for label in swapped.targets] == [CLASSES[LABELS[n]] for n in numbers(swapped)]


def test_views_of_several_files_go_together(numbered_halves: list[Path]) -> None:
    first, second = (fr.FastRecordDataset(half, decode=None) for half in numbered_halves)
    view = fr.concat(second.filter("label", "==", "ant"), first.subset([3, 1]), second.subset(slice(2)), first)
    ants = [number for number in range(25, COUNT) if LABELS[number] == 0]
    assert numbers(view) == [*ants, 3, 1, 25, 26, *range(25)]
    assert len(view.readers) == 2
    again = fr.concat(first, view.subset([0, -1]), view)
    check(again, [*range(25), ants[0], 24, *numbers(view)])


def test_folds_of_one_file_go_together_without_opening_it_again(data: fr.FastRecordDataset) -> None:
    folds = data.split(5, seed=2)
    train = fr.concat(*folds[1:])
    assert train.readers == data.readers
    assert sorted(numbers(train) + numbers(folds[0])) == list(range(COUNT))
    sent = [pickle.loads(pickle.dumps(fold)) for fold in folds]
    assert len(fr.concat(*sent).readers) == 1


def test_only_like_goes_with_like(data: fr.FastRecordDataset, numbered: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other.frec", [0, 1])
    plain = tmp_path / "plain.frec"
    with fr.Writer(plain, fr.Schema({"image": fr.image()})) as writer:
        writer.append({"image": encode(0)})
    with pytest.raises(fr.errors.SchemaError, match=r"none in .*other\.frec"):
        fr.concat(data, fr.FastRecordDataset(other, decode=None))
    with pytest.raises(ValueError, match="differ in label_field: 'label' and None"):
        fr.concat(data, fr.FastRecordDataset(plain, decode=None))
    with pytest.raises(ValueError, match="differ in decode: None and 'pil'"):
        fr.concat(data, fr.FastRecordDataset(numbered))
    with pytest.raises(ValueError, match="differ in transform: None and <built-in function len>"):
        fr.concat(data, fr.FastRecordDataset(numbered, len, decode=None))
    with pytest.raises(ValueError, match="differ in fields: None and"):
        fr.concat(data, data.select_fields(["label"]))
    for wrong in ((data, [1]), ([data],)):
        with pytest.raises(TypeError, match="each argument of concat is a FastRecordDataset, not list"):
            fr.concat(*wrong)


def test_other_data_sets_are_added_as_torch_does_it(data: fr.FastRecordDataset) -> None:
    added = data + torch.utils.data.TensorDataset(torch.zeros(3))
    assert isinstance(added, ConcatDataset)
    assert len(added) == COUNT + 3


# --- combinations ---


def step(
    view: fr.FastRecordDataset, rng: random.Random
) -> tuple[fr.FastRecordDataset, Callable[[list[int]], list[int]]]:
    """Return a view of a view, and the same operation on the list of record numbers."""
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
def test_views_of_views_have_what_the_same_steps_make_of_a_list(
    numbered: Path, numbered_halves: list[Path], seed: int
) -> None:
    rng = random.Random(seed)
    view = fr.FastRecordDataset(numbered_halves if seed % 2 else numbered, decode=None)
    expected = list(range(COUNT))
    for _ in range(4):
        view, change = step(view, rng)
        expected = change(expected)
        assert numbers(view) == expected
    check(view, expected)
    check(pickle.loads(pickle.dumps(view)), expected)
