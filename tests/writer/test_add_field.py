"""Adding a field to an existing file: all or nothing, beside readers, through any failure."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.conftest import encode
from tests.support.child import run_child

N = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of N records with a number and a text."""
    return labels(tmp_path / "x.frec")


@pytest.fixture
def images(packed: Path, tmp_path: Path) -> Path:
    """A file of 12 images."""
    return Path(shutil.copy(packed, tmp_path / "images.frec"))


def labels(path: Path, count: int = N) -> Path:
    with fr.Writer(path, {"label": fr.FieldType("int64"), "key": fr.string()}) as writer:
        for number in range(count):
            writer.append({"label": number, "key": f"key {number}"})
    return path


def embeddings(count: int = N, width: int = 512) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)


def assert_as_before(path: Path, before: bytes) -> None:
    assert path.read_bytes() == before
    with fr.Writer(path, mode="a") as writer:  # the lock is free
        assert list(writer.schema) == ["label", "key"]


def test_an_array_is_added_and_read_back_and_the_older_values_are_as_they_were(path: Path) -> None:
    size, values = path.stat().st_size, embeddings()
    fr.files.add_field(path, "embedding", fr.array("float32", (512,)), values)
    with fr.Reader(path) as reader:
        assert list(reader.schema) == ["label", "key", "embedding"]
        assert reader.schema["embedding"] == fr.array("float32", (512,))
        batch = reader.read_batch(range(N))
        np.testing.assert_array_equal(batch["embedding"], values)
        assert batch["embedding"].dtype == np.float32
        assert [reader[i]["key"] for i in range(N)] == [f"key {i}" for i in range(N)]
        np.testing.assert_array_equal(reader.column("label"), np.arange(N))
        assert reader.verify()["errors"] == []
    assert path.stat().st_size - size < values.nbytes + 20_000, "the older records are not written again"


def test_images_are_added_with_their_sizes(path: Path) -> None:
    images = [encode(seed) for seed in range(N)]
    fr.files.add_field(path, "image", fr.image(), images)
    with fr.Reader(path) as reader:
        assert [bytes(value) for value in reader.read_batch(range(N))["image"]] == images
        sizes = [fr.decode_image(data).shape[:2] for data in images]
        np.testing.assert_array_equal(reader.column("image.height"), [height for height, _ in sizes])
        np.testing.assert_array_equal(reader.column("image.width"), [width for _, width in sizes])
        assert fr.decode_image(reader[3]["image"]).shape[:2] == sizes[3]


def test_a_column_of_numbers_is_one_view_of_the_file_after_it_was_added(path: Path) -> None:
    fr.files.add_field(path, "score", "float32", np.arange(N, dtype=np.float32))
    with fr.Reader(path) as reader:
        column = reader.column("score")
        assert not column.flags.owndata
        assert not column.flags.writeable
        np.testing.assert_array_equal(column, np.arange(N, dtype=np.float32))


def test_a_memory_mapped_array_and_a_tensor_are_values(path: Path, tmp_path: Path) -> None:
    values = embeddings(width=7)
    np.save(tmp_path / "values.npy", values)
    fr.files.add_field(path, "mapped", fr.array("float32", (7,)), np.load(tmp_path / "values.npy", mmap_mode="r"))
    fr.files.add_field(path, "tensor", fr.array("bfloat16", (7,)), torch.from_numpy(values).to(torch.bfloat16))
    with fr.Reader(path) as reader:
        batch = reader.read_batch(range(N))
        np.testing.assert_array_equal(batch["mapped"], values)
        bits = torch.from_numpy(np.asarray(batch["tensor"]).view(np.int16).copy()).view(torch.bfloat16)
        assert torch.equal(bits, torch.from_numpy(values).to(torch.bfloat16))


def test_embeddings_go_in_batches_into_the_file_that_a_loader_reads(images: Path) -> None:
    with fr.Writer(images, mode="a") as writer, writer.add_field("mean", fr.array("float32", (3,))) as filler:
        dataset = fr.FastRecordDataset(images)
        loader = fr.FastRecordLoader(
            dataset, batch_size=5, shuffle=False, sample=[fr.transforms.Resize(32), fr.transforms.CenterCrop(32)]
        )
        for batch, _ in loader:
            filler.extend(batch.float().mean(dim=(2, 3)))
        assert len(filler) == len(dataset)
    with fr.Reader(images) as reader:
        means = reader.read_batch(range(len(reader)))["mean"]
        assert means.shape == (12, 3)
        assert np.ptp(means) > 1


def test_records_are_appended_with_the_field_afterwards_and_not_without_it(path: Path) -> None:
    with fr.Writer(path, mode="a") as writer:
        with writer.add_field("score", "float64") as filler:
            filler.extend([0.5] * N)
            with pytest.raises(fr.errors.SchemaError, match=r"x\.frec: field \"score\" is being added"):
                writer.append({"label": 1, "key": "early"})
        assert list(writer.schema) == ["label", "key", "score"]
        with pytest.raises(fr.errors.SchemaError, match=r"record 20, field score: the record has no value for it"):
            writer.append({"label": 1, "key": "without"})
        assert writer.append({"label": 1, "key": "with", "score": 2.5}) == N
    with fr.Reader(path) as reader:
        np.testing.assert_array_equal(reader.column("score"), [0.5] * N + [2.5])


def test_records_that_are_not_committed_yet_get_the_field_too(tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    with fr.Writer(path, {"label": fr.FieldType("int64")}) as writer:
        writer.append({"label": 1})
        with writer.add_field("score", "float64") as filler:
            assert writer.committed == 1
            assert (filler.name, filler.append(0.25), len(filler)) == ("score", 0, 1)
        writer.append({"label": 2, "score": 0.5})
    assert [dict(record) for record in fr.Reader(path)] == [{"label": 1, "score": 0.25}, {"label": 2, "score": 0.5}]


@pytest.mark.parametrize("count", [0, N - 1, N + 1])
@pytest.mark.parametrize("sized", [True, False], ids=["sized", "iterator"])
def test_a_wrong_number_of_values_is_refused_and_the_file_is_as_it_was(path: Path, count: int, sized: bool) -> None:
    before = path.read_bytes()
    values = [0] * count
    if sized:
        message = rf"x\.frec: field 'new': {count} values for 20 records"
    elif count > N:
        message = r"x\.frec: record 20, field new: too many values: the file has 20 records"
    else:
        message = rf"x\.frec: field \"new\" was not added: {N - count} of the 20 records have no value"
    with pytest.raises(fr.errors.SchemaError, match=message):
        fr.files.add_field(path, "new", "int64", values if sized else iter(values))
    assert_as_before(path, before)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (fr.FieldType("int64"), 0.5),
        (fr.FieldType("int8"), 128),
        (fr.string(), b"bytes"),
        (fr.image(), b"no image"),
        (fr.array("float32", (3,)), np.zeros(3)),
        (fr.array("float32", (3,)), np.zeros(4, np.float32)),
    ],
    ids=["float", "range", "bytes", "image", "dtype", "shape"],
)
def test_a_value_that_does_not_fit_names_its_record_and_the_file_is_as_it_was(
    path: Path, kind: fr.FieldType, bad: object
) -> None:
    before = path.read_bytes()
    good = {"int64": 1, "int8": 1, "string": "text", "image": encode(1), "array": np.zeros(3, np.float32)}[kind.name]
    with pytest.raises(fr.errors.SchemaError, match=r"x\.frec: record 13, field new: "):
        fr.files.add_field(path, "new", kind, (bad if i == 13 else good for i in range(N)))
    assert_as_before(path, before)


def test_a_name_that_is_there_is_refused_with_the_way_out(path: Path) -> None:
    before = path.read_bytes()
    message = r"field \"label\" cannot be added: the file already has it; add the new values as \"label_v2\""
    with pytest.raises(fr.errors.SchemaError, match=message):
        fr.files.add_field(path, "label", "int64", range(N))
    with pytest.raises(fr.errors.SchemaError, match="no dot and no NUL"):
        fr.files.add_field(path, "label.v2", "int64", range(N))
    assert_as_before(path, before)


@pytest.mark.parametrize(
    "values", ["x" * N, b"x" * N, {i: i for i in range(N)}, set(range(N))], ids=["str", "bytes", "dict", "set"]
)
def test_a_single_value_is_not_taken_for_many(path: Path, values: Any) -> None:
    with pytest.raises(TypeError, match="values are one for each record"):
        fr.files.add_field(path, "new", fr.string(), values)


def test_an_exception_of_the_values_or_of_the_progress_leaves_the_file_as_it_was(path: Path) -> None:
    before = path.read_bytes()

    def values() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    def progress(done: int, total: int) -> None:
        assert (done, total) == (N, N)
        raise KeyboardInterrupt

    with pytest.raises(ZeroDivisionError):
        fr.files.add_field(path, "new", "int64", values())
    with pytest.raises(KeyboardInterrupt):
        fr.files.add_field(path, "new", "int64", range(N), progress=progress)
    assert_as_before(path, before)


def test_progress_counts_records(tmp_path: Path) -> None:
    path, calls = labels(tmp_path / "x.frec", 2500), []
    fr.files.add_field(
        path, "new", "int64", iter(range(2500)), progress=lambda done, total: calls.append((done, total))
    )
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (2500, 2500)
    assert len(calls) > 1


def test_a_writer_that_is_closed_before_a_filler_commits_a_whole_field_and_says_what_is_missing_of_another(
    path: Path,
) -> None:
    writer = fr.Writer(path, mode="a")
    whole, part = writer.add_field("whole", "int64"), writer.add_field("part", "int64")
    whole.extend(range(N))
    part.extend(range(5))
    with pytest.raises(
        fr.errors.SchemaError, match=r"field \"part\" was not added: 15 of the 20 records have no value"
    ):
        writer.close()
    whole.close()
    part.close()
    with fr.Reader(path) as reader:
        assert list(reader.schema) == ["label", "key", "whole"]
    with fr.Writer(path, mode="a") as again:
        assert len(again) == N


def test_a_filler_that_is_left_by_an_exception_drops_its_field_and_the_writer_goes_on(path: Path) -> None:
    before = path.read_bytes()
    with fr.Writer(path, mode="a") as writer:
        filler = writer.add_field("new", fr.bytes_())
        filler.extend([bytes(100_000)] * (N - 1))
        error = ZeroDivisionError()
        filler.__exit__(type(error), error, None)
        filler.close()
        assert list(writer.schema) == ["label", "key"]
    assert_as_before(path, before)
    with fr.Writer(path, mode="a") as writer:
        filler = writer.add_field("new", fr.bytes_())
        filler.append(b"value")
        filler.abort()
        assert writer.append({"label": N, "key": "more"}) == N
    with fr.Reader(path) as reader:
        assert (len(reader), list(reader.schema)) == (N + 1, ["label", "key"])


def test_a_reader_and_a_data_set_keep_their_snapshot_until_they_refresh(images: Path) -> None:
    reader, dataset = fr.Reader(images), fr.FastRecordDataset(images)
    known, pickled = reader.schema, pickle.dumps(dataset)
    fr.files.add_field(images, "score", "float64", np.arange(12.0))
    assert reader.schema == known
    assert "score" not in reader[0]
    for old in (dataset, pickle.loads(pickled)):
        assert (len(old), old[3][1]) == (12, dataset[3][1])
        with pytest.raises((KeyError, fr.errors.SchemaError)):
            old.column("score")
    assert reader.refresh()
    assert [record["score"] for record in reader] == list(range(12))
    np.testing.assert_array_equal(fr.FastRecordDataset(images).column("score"), np.arange(12.0))


def test_a_field_of_a_file_without_records_needs_no_values(tmp_path: Path) -> None:
    path = labels(tmp_path / "x.frec", 0)
    fr.files.add_field(path, "new", fr.array("float32", (3,)), np.zeros((0, 3), np.float32))
    with fr.Writer(path, mode="a") as writer:
        writer.append({"label": 1, "key": "", "new": np.ones(3, np.float32)})
    assert fr.Reader(path)[0]["new"].tolist() == [1, 1, 1]


def test_a_writer_at_work_keeps_others_from_adding_a_field(path: Path) -> None:
    with fr.Writer(path, mode="a"), pytest.raises(fr.errors.LockedError):
        fr.files.add_field(path, "new", "int64", range(N))


def test_a_dropped_field_is_gone_and_can_be_added_again(path: Path) -> None:
    fr.files.add_field(path, "new", "int64", range(N))
    old = fr.Reader(path)
    fr.files.drop_field(path, "new")
    with fr.Reader(path) as reader:
        assert list(reader.schema) == ["label", "key"]
        assert reader.verify()["errors"] == []
    np.testing.assert_array_equal(old.column("new"), np.arange(N))
    fr.files.add_field(path, "new", fr.string(), map(str, range(N)))
    assert fr.Reader(path)[7] == {"label": 7, "key": "key 7", "new": "7"}
    with pytest.raises(KeyError, match="none"):
        fr.files.drop_field(path, "none")


def test_files_of_which_one_has_the_field_are_refused_as_one_data_set_by_name(tmp_path: Path) -> None:
    paths = [labels(tmp_path / f"{name}.frec") for name in "ab"]
    fr.files.add_field(paths[1], "score", "float64", range(N))
    with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: no field 'score'"):
        fr.FastRecordDataset(paths, fields=["score"])
    with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: no field 'score'"):
        fr.FastRecordDataset(paths[::-1])  # the first file decides the fields
    assert len(fr.FastRecordDataset(paths, fields=["label", "key"])) == 2 * N


def test_a_forked_child_that_leaves_the_block_leaves_the_field_to_its_parent(path: Path) -> None:
    out = run_child(
        """
        with fr.Writer("x.frec", mode="a") as writer:
            with writer.add_field("new", "int64") as filler:
                filler.extend(range(10))
                if (child := os.fork()) == 0:
                    try:
                        filler.__exit__(ValueError, ValueError(), None)
                        filler.append(1)
                    except fr.FastRecordError as error:
                        print(type(error).__name__, flush=True)
                    os._exit(0)
                os.waitpid(child, 0)
                filler.extend(range(10, 20))
        print(fr.Reader("x.frec").column("new").tolist() == list(range(20)))
        """,
        path.parent,
    )
    assert out.split() == ["FastRecordError", "True"]
