"""FastRecordLoader's batches of arrays: content, order, and ownership of the memory."""

from __future__ import annotations

import itertools
import json
import platform
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

import fastrecord as fr
from fastrecord.loader import outputs
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.transforms import BatchInfo, CenterCrop
from tests.support.child import run_child
from tests.support.loading import photo, python_calls
from tests.support.patches import (
    COUNT,
    STACKED,
    check,
    expected,
    make,
    numbers,
    opened,
    plain,
    write_patches,
)


@pytest.fixture(params=[1, 3, 64], ids=["1 batch a group", "3 batches a group", "64 batches a group"])
def grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Groups of at most this many batches."""
    monkeypatch.setattr(outputs, "_GROUP_BATCHES", request.param)
    return int(request.param)


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 5}, {"prefetch": 0}, {"prefetch": 4, "threads": 3}])
@pytest.mark.usefixtures("grouped")
def test_batches_are_stacked_values_of_their_records_in_order(
    patches: Path, options: dict[str, Any], access: str
) -> None:
    loader = make(opened(patches, access=access), 8, **options)
    batches = list(loader)
    assert len(batches) == len(loader) == 14
    for start, batch in zip(range(0, COUNT, 8), batches, strict=True):
        check(batch, range(start, min(start + 8, COUNT)))


@pytest.mark.parametrize("batch_size", [1, 50, 200])
@pytest.mark.parametrize(
    ("rank", "world_size", "drop_last"), [(0, 1, "exact"), (1, 3, "pad"), (2, 3, "exact"), (0, 2, True)]
)
@pytest.mark.usefixtures("grouped")
def test_batches_are_those_of_the_sampler(
    patches: Path, batch_size: int, rank: int, world_size: int, drop_last: Any
) -> None:
    dataset = fr.FastRecordDataset(patches, fields=("number",))
    if drop_last is True and batch_size > COUNT // 2:
        batch_size = COUNT // 2
    options = {"rank": rank, "world_size": world_size, "drop_last": drop_last, "seed": 7, "shuffle": True}
    sampler = FastRecordBatchSampler(dataset, batch_size, **options)
    loader = make(dataset, None, batch_sampler=FastRecordBatchSampler(dataset, batch_size, **options))
    for _ in range(2):
        assert numbers(loader) == list(sampler)


@pytest.mark.parametrize("shuffle", [fr.Blocks(records=4, window=3), True, False])
@pytest.mark.usefixtures("grouped")
def test_every_shuffle_gives_the_batches_of_its_sampler(patches: Path, shuffle: Any) -> None:
    dataset = fr.FastRecordDataset(patches, fields=("hr", "number"))
    sampler = FastRecordBatchSampler(dataset, 6, shuffle=shuffle, seed=2)
    loader = make(dataset, None, batch_sampler=sampler)
    wanted = [sampler.indices(batch, epoch=0).tolist() for batch in range(len(sampler))]
    for batch, chosen in zip(loader, wanted, strict=True):
        assert batch["number"].tolist() == chosen
        assert plain(batch["hr"]) == plain(expected(chosen)["hr"])


@pytest.mark.usefixtures("grouped")
def test_batch_samplers_of_others_may_have_batches_of_any_size(patches: Path) -> None:
    batches: list[Any] = [[3, 3, 5], [106], [], list(range(90)), [-1, 0], np.array([7, 8])]
    loader = make(patches, None, batch_sampler=batches)
    for batch, chosen in zip(loader, [batches[i] for i in (0, 1, 3, 4, 5)], strict=True):
        check(batch, [int(row) % COUNT for row in chosen])
    torch.manual_seed(1)
    theirs = BatchSampler(RandomSampler(range(COUNT)), 9, drop_last=True)
    drawn = list(itertools.chain(*numbers(make(patches, None, batch_sampler=theirs))))
    assert len(drawn) == len(set(drawn)) == 99


@pytest.mark.usefixtures("grouped")
def test_records_of_several_files_and_of_views_come_from_where_they_lie(patches: Path, tmp_path: Path) -> None:
    other = write_patches(tmp_path / "more.frec", range(COUNT, COUNT + 20))
    dataset = opened(patches, other)
    for batch in make(dataset, 7, shuffle=True, seed=1):
        check(batch, batch["number"].tolist())
    some = dataset.filter("number", ">=", 100).select_fields(("number", "hr"))
    (batch,) = list(make(some, 100))
    assert batch["number"].tolist() == list(range(100, 127))
    assert list(batch) == ["number", "hr"]
    assert plain(batch["hr"]) == plain(expected(range(100, 127))["hr"])


@pytest.mark.parametrize("files", [1, 2])
def test_arrays_of_varying_shape_are_listed_padded_or_packed(patches: Path, tmp_path: Path, files: int) -> None:
    other = [write_patches(tmp_path / "more.frec", range(COUNT, COUNT + 20))] * (files - 1)
    dataset = opened(patches, *other, fields=("number", "tokens", "boxes"))
    kinds = {"tokens": "pad", "boxes": "packed"}
    for batch in make(dataset, 8, shuffle=True, seed=1, ragged=kinds):
        wanted = expected(batch["number"].tolist())
        padded = torch.nn.utils.rnn.pad_sequence(wanted["tokens"], batch_first=True)
        tokens, lengths = batch["tokens"]
        assert plain(tokens) == plain(padded)
        assert plain(lengths) == plain(torch.tensor([len(value) for value in wanted["tokens"]]))
        values, offsets = batch["boxes"]
        assert plain(values) == plain(torch.cat(wanted["boxes"]))
        assert plain(offsets) == plain(torch.tensor([0, *itertools.accumulate(map(len, wanted["boxes"]))]))
    for batch in make(dataset, 8, ragged={"tokens": "list"}):
        assert plain(batch["tokens"]) == plain(expected(batch["number"].tolist())["tokens"])


@pytest.mark.parametrize("files", [1, 3])
def test_padded_arrays_come_with_the_lengths_of_every_dimension_that_varies(tmp_path: Path, files: int) -> None:
    schema = fr.Schema({"words": fr.array("uint8", (None, 3)), "maps": fr.array("int16", (None, 2, None))})
    shapes = np.random.default_rng(0).integers(0, 6, (24, 2))
    for part, rows in enumerate(np.split(shapes, files)):
        with fr.Writer(tmp_path / f"{part}.frec", schema) as writer:
            for height, width in rows:
                maps = np.ones((height, 2, width), np.int16)
                writer.append({"words": np.ones((height, 3), np.uint8), "maps": maps})
    dataset = fr.FastRecordDataset([tmp_path / f"{part}.frec" for part in range(files)], fields=("words", "maps"))
    options: dict[str, Any] = {"ragged": {"words": "pad", "maps": "pad"}, "shuffle": True, "seed": 1}
    for batch, rows in make(dataset, 8, batch_transform=lambda batch, info: (batch, info.rows), **options):
        (words, word_lengths), (maps, map_lengths) = batch["words"], batch["maps"]
        assert word_lengths.tolist() == shapes[rows][:, 0].tolist() == words.sum((1, 2)).div(3).tolist()
        assert map_lengths.tolist() == shapes[rows].tolist()
        assert maps.sum((1, 2, 3)).tolist() == (2 * shapes[rows].prod(1)).tolist()


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrays_are_decompressed_into_the_batch(tmp_path: Path, codec: str, access: str) -> None:
    schema = fr.Schema({"rows": fr.array("int32", (300,), codec), "tokens": fr.array("int32", (None,), codec)})
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        for number in range(50):
            writer.append({"rows": np.arange(300, dtype=np.int32) + number, "tokens": np.full(number, 7, np.int32)})
    dataset = fr.FastRecordDataset(tmp_path / "a.frec", access=access)
    batches = list(make(dataset, 8, ragged={"tokens": "packed"}))
    whole = torch.cat([batch["rows"] for batch in batches])
    assert torch.equal(whole, torch.arange(300, dtype=torch.int32) + torch.arange(50, dtype=torch.int32)[:, None])
    assert sum(len(batch["tokens"][0]) for batch in batches) == sum(range(50))


def test_a_batch_that_is_kept_never_changes(patches: Path) -> None:
    kept, seen = [], []
    for number, batch in enumerate(make(patches, 3, shuffle=True, prefetch=1)):
        if number % 5 == 2:
            kept.append(batch)
            seen.append({name: plain(value) for name, value in batch.items()})
        else:
            for name in STACKED:
                batch[name].zero_()
    assert [{name: plain(value) for name, value in batch.items()} for batch in kept] == seen


def test_changing_a_batch_in_place_is_no_change_to_its_neighbours(patches: Path) -> None:
    first, second, *_ = list(make(fr.FastRecordDataset(patches, fields=("noise",)), 4))
    weight = torch.ones(50, dtype=torch.float16, requires_grad=True)
    loss = (first["noise"] * weight).sum()
    second["noise"].add_(1)
    loss.backward()  # autograd detects changes of its saved tensors
    assert weight.grad is not None
    assert torch.equal(weight.grad, first["noise"].sum(0))
    assert not first["noise"]._is_view()


def addresses(batches: list[dict[str, torch.Tensor]]) -> set[int]:
    return {batch["hr"].untyped_storage().data_ptr() for batch in batches}


def test_memory_comes_back_once_no_batch_of_its_group_is_left(patches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_GROUP_BATCHES", 4)
    dataset = fr.FastRecordDataset(patches, fields=("hr",))
    loader = make(dataset, 1, prefetch=1)
    used = set()
    for _ in range(5):
        for batch in loader:
            used |= addresses([batch])
    del batch
    # 4 batches per group, the last of 3; per size: in progress, the consumer's, the one before.
    assert len(used) <= 8
    assert len(addresses(list(loader))) == 27


@pytest.mark.parametrize("size", [4, 50_000])
@pytest.mark.parametrize("damaged", [False, True])
def test_values_of_any_length_are_read_for_a_few_mib_of_batches(tmp_path: Path, size: int, damaged: bool) -> None:
    values = [number.to_bytes(4, "big") * (size // 4 + number % 7) for number in range(1000)]
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"data": fr.bytes_()})) as writer:
        for value in values:
            writer.append({"data": value})
    if damaged:
        data = (tmp_path / "a.frec").read_bytes().replace(values[500], b"x" * len(values[500]))
        (tmp_path / "a.frec").write_bytes(data)
    dataset = fr.FastRecordDataset(tmp_path / "a.frec", fields=("data",))
    loader = fr.FastRecordLoader(
        dataset,
        batch_sampler=FastRecordBatchSampler(dataset, 8, shuffle=False, drop_last="exact"),
        on_error="skip" if damaged else "raise",
    )
    tracemalloc.start()
    try:
        found = []
        for batch in loader:
            found += [(len(value), value[:4]) for value in batch["data"]]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    expected = [(len(value), value[:4]) for value in values]
    if damaged:
        del expected[500]
    assert found == expected
    # One group of 64 batches has 25 MB.
    assert peak < 12_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have rules of their own")
def test_values_of_several_files_use_the_memory_of_the_batches_before_them(tmp_path: Path) -> None:
    script = """
        for shard in range(4):
            with fr.Writer(f"{shard}.frec", fr.Schema({"data": fr.bytes_()})) as writer:
                for number in range(200):
                    writer.append({"data": bytes([shard]) * 100_000})
        dataset = fr.FastRecordDataset([f"{shard}.frec" for shard in range(4)], fields=("data",))
        sampler = fr.FastRecordBatchSampler(dataset, 100, rank=0, world_size=1)
        loader = fr.FastRecordLoader(dataset, batch_sampler=sampler)
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            assert sum(len(value) for batch in loader for value in batch["data"]) == 80_000_000
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        faults(), faults()
        print(faults())
    """
    # The values of an epoch fill 20,000 pages.
    assert int(run_child(script, tmp_path)) < 2_000


@pytest.mark.usefixtures("grouped")
def test_state_is_of_batches_handed_out_also_in_the_middle_of_a_group(patches: Path) -> None:
    dataset = fr.FastRecordDataset(patches, fields=("number", "hr"))
    whole = numbers(make(dataset, 4, shuffle=True, seed=5))
    for done in (0, 1, 2, 5, 26):
        loader = make(dataset, 4, shuffle=True, seed=5)
        begun = iter(loader)
        assert numbers(itertools.islice(begun, done)) == whole[:done]
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["batches_done"] == done
        other = make(dataset, 4, shuffle=True, seed=5)
        other.load_state_dict(state)
        assert numbers(other) == whole[done:]
        assert numbers(other)[0] != whole[0]  # the next epoch
        assert numbers(begun) == whole[done:]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_without_prefetch_a_batch_is_asked_for_when_its_turn_has_come(patches: Path, prefetch: int) -> None:
    asked = []

    class Batches:
        def __iter__(self) -> Iterator[list[int]]:
            for number in range(10):
                asked.append(number)
                yield [number]

    batches = iter(make(patches, None, batch_sampler=Batches(), prefetch=prefetch))
    next(batches)
    assert len(asked) == (10 if prefetch else 1)


def test_no_python_runs_for_a_record_and_little_for_a_batch(tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(write_patches(tmp_path / "many.frec", range(640)), fields=STACKED)
    loaders = (make(dataset, size, shuffle=True) for size in (640, 64, 8))
    one, ten, small = (python_calls(loader, events=["call"]) for loader in loaders)
    assert ten < one + 9 * 6
    assert small < one + 79 * 6 + 100


@pytest.mark.usefixtures("grouped")
def test_a_batch_transform_gets_each_batch_and_its_info(patches: Path) -> None:
    dataset = fr.FastRecordDataset(patches, fields=("lr", "hr", "number"))
    told: list[tuple[BatchInfo, list[int]]] = []

    def note(batch: dict[str, Any], info: BatchInfo) -> Any:
        told.append((info, batch["number"].tolist()))
        return batch["number"] + 1

    loader = make(dataset, 6, shuffle=True, seed=9, batch_transform=note)
    made = torch.cat(list(loader)).tolist()
    assert [number - 1 for number in made] == [number for _, batch in told for number in batch]
    assert np.concatenate([info.positions for info, _ in told]).tolist() == list(range(COUNT))
    for info, batch in told:
        assert (info.seed, info.epoch, info.rows.tolist()) == (9, 0, batch)
    draws = np.concatenate([info.uniform(2) for info, _ in told])
    whole = BatchInfo(9, 0, np.arange(COUNT), np.arange(COUNT)).uniform(2)
    assert np.array_equal(draws, whole)
    next(iter(loader))
    assert told[-1][0].epoch == 1


def test_an_error_of_a_batch_transform_ends_the_iteration_and_a_new_one_may_begin(patches: Path) -> None:
    def fail(batch: Any, info: BatchInfo) -> Any:
        if info.epoch == 0 and 20 in info.rows:
            raise RuntimeError("no luck with 20")
        return batch

    loader = make(patches, 8, batch_transform=fail)
    batches = iter(loader)
    next(batches)
    next(batches)
    with pytest.raises(RuntimeError, match="no luck with 20"):
        next(batches)
    assert loader.state_dict()["batches_done"] == 2
    loader.set_epoch(1)
    assert len(list(loader)) == 14


def test_a_batch_transform_that_returns_nothing_is_refused(patches: Path) -> None:
    with pytest.raises(TypeError, match="batch_transform returned None"):
        next(iter(make(patches, 8, batch_transform=lambda *_: None)))


def test_stats_count_records_batches_and_bytes(patches: Path) -> None:
    dataset = fr.FastRecordDataset(patches, fields=("lr", "hr", "noise", "number"))
    loader = make(dataset, 10)
    list(loader)
    stats = loader.stats()
    assert (stats.records, stats.images, stats.batches, stats.skipped) == (COUNT, 0, 11, 0)
    assert (stats.reads, stats.bytes_read) == (2 * COUNT, COUNT * (48 + 768 + 100 + 8))
    assert f"{stats}".startswith(f"{stats.records_per_second:.0f} records/s")
    assert stats.seconds >= stats.wait_seconds > 0


def write_both(path: Path, count: int = 9) -> Path:
    """Write images with arrays, a label and a bfloat16 number."""
    fields = {
        "image": fr.image(),
        "label": fr.FieldType("int64"),
        "map": fr.array("float32", (30, 2)),
        "score": fr.FieldType("bfloat16"),
    }
    with fr.Writer(path, fr.Schema({**fields, "boxes": fr.array("int32", (None,))})) as writer:
        for number in range(count):
            rows, boxes = np.full((30, 2), number, np.float32), np.full(number, number, np.int32)
            arrays = {"map": rows, "score": float(number), "boxes": boxes}
            writer.append({"image": photo(number), "label": number, **arrays})
    return path


def test_arrays_follow_images_as_tensors(tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(write_both(tmp_path / "a.frec"), fields=("image", "label", "map", "score", "boxes"))
    loader = make(dataset, 4, sample=CenterCrop(24), ragged={"boxes": "pad"})
    images, labels, maps, scores, boxes = next(iter(loader)).values()
    assert boxes[0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 2, 0], [3, 3, 3]]
    assert boxes[1].tolist() == [0, 1, 2, 3]
    assert images.shape == (4, 3, 24, 24)
    assert (maps.dtype, maps.shape, scores.dtype) == (torch.float32, (4, 30, 2), torch.bfloat16)
    assert maps[:, 7, 1].tolist() == labels.tolist() == scores.tolist() == [0, 1, 2, 3]


def test_in_fields_mode_images_named_are_decoded_and_the_rest_follows(tmp_path: Path) -> None:
    path = write_both(tmp_path / "a.frec")
    dataset = fr.FastRecordDataset(path, fields=("score", "image", "map"))
    batches = list(make(dataset, 4, sample={"image": CenterCrop(24)}))
    assert [list(batch) for batch in batches] == [["score", "image", "map"]] * 3
    alone = torch.cat([images for images, _ in make(fr.FastRecordDataset(path), 4, sample=CenterCrop(24))])
    assert torch.equal(torch.cat([batch["image"] for batch in batches]), alone)
    assert torch.cat([batch["score"] for batch in batches]).tolist() == list(range(9))
    with pytest.raises(fr.errors.SchemaError, match=r"write sample=\{'image': \[transforms.CenterCrop\(224\)\]\} or"):
        make(dataset)
    with pytest.raises(fr.errors.SchemaError, match="sample= names 'label' for 'label', which is not among"):
        make(dataset, sample={"label": CenterCrop(24)})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sample": [CenterCrop(8)]}, ValueError, "sample=: the data set is in fields mode"),
        ({"dtype": torch.float32}, ValueError, "dtype of delivery is for images"),
        ({"ragged": "pad"}, TypeError, "ragged is a form for each field, such as .*, not 'pad'"),
        ({"ragged": {"tokens": "pads"}}, ValueError, 'tokens.* is "list", "pad" or "packed", not \'pads\''),
        ({"ragged": {"hr": "pad"}}, fr.errors.SchemaError, "field 'hr' is not one of .* arrays of varying shape"),
        (
            {"ragged": {"nowhere": "pad"}},
            fr.errors.SchemaError,
            "field 'nowhere' is not one of .* arrays of varying shape",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    patches: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(patches, **options)
