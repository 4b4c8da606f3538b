"""FastRecordLoader with undecodable records and bad arguments, and its counters."""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import SequentialSampler, Subset

import fastrecord as fr
from fastrecord.loader.loader import FastRecordLoader
from fastrecord.loader.skip import SkippedRecord
from fastrecord.loader.stats import LoaderStats
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.transforms import CenterCrop, RandomResizedCrop, Resize
from tests.support.commands import flip
from tests.support.loading import epoch, loader_of, make, photo, write_payloads, write_photos

COUNT = 10
BAD = 5


def damaged(tmp_path: Path) -> Path:
    path = write_photos(tmp_path / "sound.frec", COUNT)
    flip(path, tmp_path / "train.frec", record=BAD)
    return tmp_path / "train.frec"


def with_payload(payload: bytes) -> Callable[[Path], Path]:
    """Return a function that makes a file with a given payload in record 5."""

    def write(tmp_path: Path) -> Path:
        payloads = [photo(number) for number in range(COUNT)]
        payloads[BAD] = payload
        return write_payloads(tmp_path / "train.frec", payloads, images=False)

    return write


def wide() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (1000, 101)).save(buffer, "PNG")
    return buffer.getvalue()


KINDS = {
    "damaged": (damaged, fr.errors.CorruptFileError, "field image: stored CRC .*: the payload is damaged"),
    "no image": (with_payload(b"hello"), fr.errors.DecodeError, "field image: not an image of a known type: 5 bytes"),
    "empty": (with_payload(b""), fr.errors.DecodeError, "field image: not an image of a known type: 0 bytes"),
    "truncated": (with_payload(photo(BAD)[:-400]), fr.errors.DecodeError, "field image: the JPEG is truncated"),
    "too large": (with_payload(wide()), fr.errors.DecodeError, "1000 x 101 pixels are more than the limit of 100000"),
}


@pytest.fixture(params=KINDS)
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, type[Exception], str]:
    """A file whose record 5 is not decodable, and the error for it."""
    write, error, reason = KINDS[request.param]
    return write(tmp_path), error, rf"train\.frec: record 5, key '(train|sound)/5', .*{reason}"


def load(path: Path, batch_size: int = 4, **options: Any) -> FastRecordLoader:
    return make(fr.FastRecordDataset(path, fields=("image", "label", "key")), batch_size, max_pixels=100_000, **options)


def test_the_error_names_file_record_key_and_reason_when_the_turn_of_its_batch_has_come(
    bad: tuple[Path, type[Exception], str],
) -> None:
    path, error, message = bad
    loader = load(path, prefetch=3)
    batches = iter(loader)
    assert len(next(batches)["image"]) == 4
    with pytest.raises(error, match=message) as caught:
        next(batches)
    assert str(caught.value).count("record 5") == 1
    assert caught.value.record == pickle.loads(pickle.dumps(caught.value)).record == BAD  # type: ignore[attr-defined]
    assert next(batches, None) is None
    assert loader.state_dict()["batches_done"] == 1
    assert loader.skipped == []


def test_a_skipped_record_is_missing_from_its_batch_alone(bad: tuple[Path, type[Exception], str]) -> None:
    path, _, message = bad
    loader = load(path, on_error="skip")
    batches = list(loader)
    assert [len(batch["image"]) for batch in batches] == [4, 3, 2]
    keys = [key.split("/")[1] for batch in batches for key in batch["key"]]
    assert keys == [str(number) for number in range(COUNT) if number != BAD]
    labels = torch.cat([batch["label"] for batch in batches])
    assert labels.tolist() == [number % 3 for number in range(COUNT) if number != BAD]
    sound = epoch(make(write_photos(path.parent / "again.frec", COUNT), 4))
    others = [number for number in range(COUNT) if number != BAD]
    assert torch.equal(torch.cat([batch["image"] for batch in batches]), sound[others])
    (skipped,) = loader.skipped
    assert (skipped.path, skipped.record, skipped.key in ("train/5", "sound/5")) == (str(path), BAD, True)
    assert re.search(message, skipped.reason)
    assert (loader.stats().images, loader.stats().skipped) == (9, 1)
    list(loader)
    assert (len(loader.skipped), loader.stats().skipped) == (2, 2)
    assert all(batch["image"].is_contiguous(memory_format=torch.channels_last) for batch in batches)


def test_a_callable_is_told_of_each_record_and_may_raise(bad: tuple[Path, type[Exception], str]) -> None:
    path, error, message = bad
    told: list[tuple[Exception, SkippedRecord]] = []
    loader = load(path, on_error=lambda *both: told.append(both))
    assert sum(len(batch["image"]) for batch in loader) == COUNT - 1
    ((raised, record),) = told
    assert isinstance(raised, error)
    assert record.record == BAD
    assert record.reason == str(raised)
    with pytest.raises(error, match=message):
        raise raised
    assert loader.skipped == [record]

    def stop(_: Exception, record: SkippedRecord) -> None:
        raise RuntimeError(f"no more: {record.key}")

    with pytest.raises(RuntimeError, match=r"no more: (train|sound)/5"):
        list(load(path, on_error=stop))


def test_a_truncated_image_may_be_accepted(tmp_path: Path) -> None:
    path = with_payload(photo(BAD)[:-400])(tmp_path)
    sound = write_photos(tmp_path / "sound.frec", COUNT)
    images, whole = (epoch(load(p, truncated="accept", sample=Resize((32, 32)))) for p in (path, sound))
    others = [number for number in range(COUNT) if number != BAD]
    assert torch.equal(images[others], whole[others])
    assert torch.equal(images[BAD][:, :10], whole[BAD][:, :10])
    assert not torch.equal(images[BAD], whole[BAD])


def nothing_left(tmp_path: Path) -> Path:
    """Return a file whose second batch of two is empty."""
    return write_payloads(tmp_path / "train.frec", [photo(0), photo(1), b"no", b"none", photo(4)], images=False)


@pytest.mark.parametrize("drop_last", ["pad", True])
def test_a_batch_of_which_nothing_is_left_is_an_error_where_ranks_take_equally_many(
    tmp_path: Path, drop_last: Any
) -> None:
    dataset = fr.FastRecordDataset(nothing_left(tmp_path))
    sampler = FastRecordBatchSampler(dataset, 2, shuffle=False, drop_last=drop_last)
    loader = make(dataset, None, batch_sampler=sampler, on_error="skip")
    batches = iter(loader)
    next(batches)
    with pytest.raises(
        fr.FastRecordError,
        match=r"none of the 2 records of a batch .*use larger batches; the last one: .*record 3.*'train/3'",
    ):
        next(batches)
    assert [record.record for record in loader.skipped] == [2, 3]


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("arrays", [False, True])
def test_a_batch_of_which_nothing_is_left_is_left_out_where_nobody_waits_for_it(
    tmp_path: Path, prefetch: int, foreign: bool, arrays: bool
) -> None:
    dataset = fr.FastRecordDataset(nothing_left(tmp_path))
    options: dict[str, Any] = {"prefetch": prefetch, "on_error": "skip"}
    if arrays:
        options |= {"sample": {"image": CenterCrop(16)}}
        dataset = dataset.select_fields(("label", "image"))
    if foreign:
        options["batch_sampler"] = [[0, 1], [2, 3], [4]]
    loader = make(dataset, None if foreign else 2, **options)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["batches_done"] == 1
    last = next(batches)
    assert len(last["label"] if arrays else last[0]) == 1
    # The skipped record counts as done too.
    assert loader.state_dict()["batches_done"] in (0, 3)
    assert next(batches, None) is None
    assert (loader.stats().skipped, loader.stats().batches) == (2, 2)


def test_an_epoch_that_gives_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    path = write_payloads(tmp_path / "train.frec", [b"no"] * 5, images=False)
    with pytest.raises(fr.FastRecordError, match=r"none of the 5 records of an iteration .*record 4.*'train/4'"):
        list(make(path, 2, on_error="skip"))


@pytest.mark.parametrize("images", [range(COUNT), [*range(3), 999, *range(4, COUNT)]], ids=["sound", "one bad"])
@pytest.mark.parametrize("field", ["label", "note"])
def test_a_record_whose_label_or_further_value_is_damaged_is_skipped(
    tmp_path: Path, field: str, images: list[int]
) -> None:
    path = tmp_path / "train.frec"
    schema = {"image": fr.bytes_(), "label": fr.string(), "note": fr.string()}
    with fr.Writer(path, schema, metadata={"classes": [f"class {n}" for n in range(COUNT)]}) as writer:
        for number, image in enumerate(images):
            payload = photo(image) if image < 999 else b"no image"
            writer.append({"image": payload, "label": f"class {number}", "note": f"note {number}"})
    content = bytearray(path.read_bytes())
    damaged = (b"class %d" if field == "label" else b"note %d") % BAD
    content[content.index(damaged)] ^= 1
    path.write_bytes(content)
    options: dict[str, Any] = {"sample": Resize((8, 8)), "fields": ["image", "label", "note"]}
    with pytest.raises(fr.FastRecordError):
        list(make(path, 4, **options))
    loader = make(path, 4, on_error="skip", **options)
    expected = [number for number, image in enumerate(images) if number != BAD and image < 999]
    assert [int(label) for batch in loader for label in batch["label"]] == expected
    assert [int(note[5:]) for batch in loader for note in batch["note"]] == expected
    assert loader.skipped[-1].record == BAD
    assert f"field {field}" in loader.skipped[-1].reason
    whole = {int(one["label"]): one["image"] for one in make(path, 1, on_error="skip", **options)}
    for pictures, labels, _ in map(dict.values, loader):
        assert all(torch.equal(a, whole[int(n)][0]) for a, n in zip(pictures, labels, strict=True))


@pytest.mark.parametrize("fields", [None, ("image", "label"), ("label",)], ids=["image mode", "images", "arrays"])
def test_a_label_of_an_unknown_class_is_never_skipped(tmp_path: Path, fields: tuple[str, ...] | None) -> None:
    with fr.Writer(tmp_path / "a.frec", {"image": fr.image(), "label": fr.string()}) as writer:
        for number in range(6):
            writer.append({"image": photo(number), "label": "bee" if number == BAD else "ant"})
    dataset = fr.FastRecordDataset(tmp_path / "a.frec", fields=fields, classes=["ant"])
    images: dict[str, Any] = {"sample": {"image": Resize((8, 8))}} if fields is None or "image" in fields else {}
    with pytest.raises(fr.errors.SchemaError, match="the class 'bee' is not among the 1 that classes= names"):
        list(fr.FastRecordLoader(dataset, 2, shuffle=False, on_error="skip", **images))


def test_the_first_thousand_skipped_records_are_listed_and_all_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_payloads(tmp_path / "train.frec", [photo(0), *[b"none"] * 1100], images=False)
    loader = make(path, 1101, on_error="skip", limit=None)
    assert len(epoch(loader)) == 1
    assert [record.record for record in loader.skipped] == list(range(1, 1001))
    assert loader.stats().skipped == 1100
    told = [f"skipped: {record.reason}" for record in loader.skipped[:20]]
    assert caplog.messages == [*told, "skipped more records: further ones are only counted"]


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_is_cut_short_under_the_loader_is_an_error_and_no_crash(
    tmp_path: Path, access: str, on_error: Any
) -> None:
    path = write_photos(tmp_path / "train.frec", 40)
    loader = make(fr.FastRecordDataset(path, access=access), 2, prefetch=0, on_error=on_error)
    batches = iter(loader)
    next(batches)
    os.truncate(path, 8192)
    with pytest.raises(
        fr.errors.CorruptFileError if on_error == "raise" else fr.FastRecordError, match=r"train\.frec.*truncated"
    ):
        list(batches)


def test_a_record_of_a_file_without_keys_is_skipped_without_one(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.bytes_()})) as writer:
        writer.append({"image": photo(0)})
        writer.append({"image": b"none"})
    loader = make(tmp_path / "a.frec", on_error="skip")
    assert [len(images) for images in loader] == [1]
    (skipped,) = loader.skipped
    assert (skipped.record, skipped.key) == (1, None)
    assert "key" not in skipped.reason


def test_counters_say_what_was_read_and_made(tmp_path: Path) -> None:
    path = write_photos(tmp_path / "train.frec", COUNT)
    size = sum(len(photo(number)) + 8 for number in range(COUNT))  # and the labels
    loader = make(path, 4, prefetch=4)
    assert loader.stats() == LoaderStats(threads=2)
    assert str(loader.stats()).startswith("0 images/s")
    batches = iter(loader)
    next(batches)
    middle = loader.stats()
    assert middle.batches == 1
    assert 4 <= middle.images <= COUNT
    list(batches)
    stats = loader.stats()
    assert (stats.images, stats.batches, stats.reads, stats.bytes_read) == (COUNT, 3, COUNT, size)
    assert stats.skipped == 0
    assert loader.stats() == stats  # idle: no time passes
    list(loader)
    window = loader.stats() - stats
    assert (window.images, window.batches, window.bytes_read, window.threads) == (COUNT, 3, size, 2)
    for part in (middle, stats, window):
        shares = [part.read_share, part.decode_share, part.resize_share, part.idle_share]
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares) == pytest.approx(1)
        assert 0 <= part.wait_share <= 1
        assert part.wait_seconds <= part.seconds
        assert part.images_per_second == part.images / part.seconds
        assert part.reads_per_second == part.reads / part.seconds
        assert part.megabytes_per_second == pytest.approx(part.bytes_read / 1e6 / part.seconds)
        assert all(seconds > 0 for seconds in (part.read_seconds, part.decode_seconds, part.resize_seconds))


def test_several_images_of_a_record_are_several_reads_of_one_image(tmp_path: Path) -> None:
    loader = make(write_photos(tmp_path / "train.frec", COUNT), sample={"image": CenterCrop(8)})
    list(loader)
    assert (loader.stats().images, loader.stats().reads) == (COUNT, COUNT)


def test_shares_stay_shares_where_work_of_before_falls_into_a_window() -> None:
    window = LoaderStats(seconds=1.0, threads=2, decode_seconds=3.0, read_seconds=1.0, wait_seconds=2.0, skipped=2)
    assert (window.decode_share, window.read_share, window.resize_share, window.idle_share) == (0.75, 0.25, 0, 0)
    assert window.wait_share == 1
    assert str(window).endswith("(read 25 %, decode 75 %, resize 0 %, idle 0 %); consumer waited 100 %, 2 skipped")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 10 JPEGs."""
    return write_photos(tmp_path_factory.mktemp("photos") / "train.frec", COUNT)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 4, "batch_sampler": [[0]]}, ValueError, "give one of batch_size and batch_sampler"),
        ({"batch_size": None}, ValueError, "give one of batch_size and batch_sampler"),
        ({"batch_size": 0}, ValueError, "batch_size is at least 1, not 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size is an int, not float"),
        (
            {"batch_size": None, "batch_sampler": 7},
            TypeError,
            "batch_sampler is an iterable of batches of record numbers, not int",
        ),
        (
            {"batch_size": None, "batch_sampler": [[0]], "shuffle": True},
            ValueError,
            "leave it out with batch_sampler",
        ),
        ({"shuffle": "block"}, (TypeError, ValueError), "shuffle is"),
        ({"sample": None}, ValueError, "give sample=, such as"),
        ({"sample": {}}, ValueError, "sample= names no output"),
        ({"sample": 224}, TypeError, "the transforms of 'image' are of fastrecord.transforms, .*, not int"),
        (
            {"sample": {"depth": Resize((4, 4))}},
            fr.errors.SchemaError,
            "no field 'depth': it has image, label",
        ),
        ({"sample": {"key": Resize((4, 4))}}, fr.errors.SchemaError, "field 'key' holds string, not images"),
        ({"threads": 0}, ValueError, "threads is from 1 to"),
        ({"threads": 1.5}, TypeError, "threads is an int, not float"),
        ({"delivery": {"device": "cuda"}}, TypeError, "delivery is a fastrecord.Delivery, not .*device"),
        ({"prefetch": -1}, ValueError, "prefetch is from 0 to"),
        ({"pin_memory": "yes"}, ValueError, 'pin_memory is True, False or "auto"'),
        ({"device": "toaster"}, ValueError, "device: .*toaster"),
        ({"dtype": torch.int32}, TypeError, "dtype is torch.float32, .*, not torch.int32"),
        ({"dtype": "float16"}, TypeError, "dtype is torch.float32, .*, not 'float16'"),
        ({"on_error": "ignore"}, ValueError, 'on_error is "raise", "skip", a callable or a fastrecord.Skip, not'),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(
    photos: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "sample": RandomResizedCrop(24), **options}
    arguments.setdefault("shuffle", False if arguments["batch_size"] else None)
    with pytest.raises(error, match=message):
        loader_of(fr.FastRecordDataset(photos), arguments.pop("batch_size"), **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"pin_memory": True}, {"device": "cuda:3"}])
def test_without_cuda_pinned_memory_and_cuda_devices_are_refused(photos: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="torch finds no CUDA device"):
        make(photos, **options)


def test_data_sets_that_are_none_or_transform_in_python_are_refused(photos: Path) -> None:
    with pytest.raises(TypeError, match=r"dataset is a FastRecordDataset or a path, not Subset: write dataset\.subset"):
        FastRecordLoader(Subset(fr.FastRecordDataset(photos), [1]), 4, sample=Resize((4, 4)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the data set has a transform, which runs in Python: write sample="):
        make(fr.FastRecordDataset(photos, transform=lambda image: image))


def test_a_sampler_of_other_data_is_refused(photos: Path) -> None:
    dataset = fr.FastRecordDataset(photos)
    with pytest.raises(ValueError, match="the batch sampler is for 9 records, the data set has 10"):
        make(dataset, None, batch_sampler=FastRecordBatchSampler(range(9), 4, shuffle=True))
    # A sampler of single records instead of a batch sampler.
    with pytest.raises(TypeError, match="indices are a 1-D sequence of integers"):
        list(make(dataset, None, batch_sampler=SequentialSampler(dataset)))


def test_a_closed_data_set_is_an_error(photos: Path) -> None:
    dataset = fr.FastRecordDataset(photos)
    dataset.close()
    with pytest.raises(ValueError, match=r"train\.frec: the reader is closed"):
        make(dataset)
