"""Samples are pure functions of the position: on any threads and ranks, after a resume, beside bad records."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.transforms import (
    CenterCrop,
    ColorJitter,
    Decode,
    Like,
    RandomErasing,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    ToFloat,
    TrivialAugmentWide,
    View,
)
from tests.support.commands import flip
from tests.support.loading import make, write_payloads
from tests.support.patches import plain
from tests.support.pictures import picture, pixels, png, reference, save
from tests.support.scenes import COUNT, SCHEMA, scene, size_of, write_scenes

SAMPLE: dict[str, Any] = {
    "image": [RandomResizedCrop(24), RandomHorizontalFlip(), TrivialAugmentWide(), ToFloat("float16"), RandomErasing()],
    "small": View("image", [RandomResizedCrop(16), RandomPerspective(), ColorJitter(0.3)], count=2),
    "grey": View("image", [Decode(1), RandomResizedCrop(16), RandomRotation(20)]),
    "mask": Like("image", interpolation="nearest"),
    "depth": Like("image"),
    "boxes": Like("image", boxes="xyxy"),
    "points": Like("image", keypoints=True),
}
FIELDS = tuple(SCHEMA)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("scenes") / "x.frec", kind="JPEG")


def opened(path: Path) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, fields=FIELDS)


def records(batches: Any) -> list[dict[str, Any]]:
    """Return the values of each record, as bits that `==` compares, in order."""
    return [
        {name: plain(values[slot : slot + 1]) for name, values in batch.items()}
        for batch in batches
        for slot in range(len(batch["label"]))
    ]


@pytest.fixture(scope="module")
def expected(scenes: Path) -> list[dict[str, Any]]:
    """Two epochs in order of the sampler, made by one thread."""
    loader = make(opened(scenes), 4, sample=SAMPLE, shuffle=True, seed=5, threads=1, prefetch=0)
    return records([*loader, *loader])


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("batch_size", [3, COUNT])
def test_on_any_threads_in_batches_of_any_size(
    scenes: Path, expected: list[dict[str, Any]], threads: int, batch_size: int
) -> None:
    loader = make(opened(scenes), batch_size, sample=SAMPLE, shuffle=True, seed=5, threads=threads)
    assert records([*loader, *loader]) == expected
    first = records(loader)
    assert len(first) == COUNT
    assert first != expected[:COUNT]  # another epoch


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_make_what_one_process_makes_at_their_positions(
    scenes: Path, expected: list[dict[str, Any]], world_size: int
) -> None:
    data = opened(scenes)
    by_position: dict[int, dict[str, Any]] = {}
    for rank in range(world_size):
        sampler = fr.FastRecordBatchSampler(data, 2, shuffle=True, seed=5, rank=rank, world_size=world_size)
        seen: list[int] = []
        made = list(
            make(
                data,
                None,
                batch_sampler=sampler,
                sample=SAMPLE,
                batch_transform=lambda batch, info, seen=seen: seen.extend(info.positions.tolist()) or batch,
            )
        )
        by_position |= dict(zip(seen, records(made), strict=True))
    assert [by_position[position] for position in sorted(by_position)] == expected[:COUNT]


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_loaded_state_continues_with_the_same_samples(
    scenes: Path, expected: list[dict[str, Any]], done: int
) -> None:
    loader = make(opened(scenes), 4, sample=SAMPLE, shuffle=True, seed=5)
    batches = iter(loader)
    begun = records([next(batches) for _ in range(done)])
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(opened(scenes), 4, sample=SAMPLE, shuffle=True, seed=5, threads=3)
    other.load_state_dict(state)
    copied = pickle.loads(pickle.dumps(loader))
    copied.load_state_dict(state)
    for again in (other, copied):
        assert begun + records(again) == expected[:COUNT]
        assert records(again) == expected[COUNT:]


def test_bad_records_are_skipped_alone(scenes: Path, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    flip(scenes, tmp_path / "flipped.frec", record=4)  # its image has a wrong checksum
    with fr.Writer(tmp_path / "x.frec", SCHEMA) as writer:
        for number in range(COUNT):
            record = scene(number, "JPEG")
            if number == 7:
                record["mask"] = record["image"]  # of several channels
            writer.append(record)
    for path, bad in ((tmp_path / "flipped.frec", 4), (tmp_path / "x.frec", 7)):
        loader = make(opened(path), 4, sample=SAMPLE, shuffle=True, seed=5, on_error="skip")
        found = records(loader)
        assert found == [record for record in expected[:COUNT] if record["key"] != [str(bad)]]
        assert [skipped.record for skipped in loader.skipped] == [bad]
        with pytest.raises(fr.FastRecordError, match=f"record {bad}"):
            list(make(opened(path), 4, sample=SAMPLE, shuffle=True, seed=5))


# --- images that only Pillow decodes ---


@pytest.mark.filterwarnings("ignore:fastrecord cannot decode")
@pytest.mark.parametrize("kind", ["JPEG2000", "AVIF", "QOI"])
def test_what_pillow_decodes_has_views_masks_and_boxes_too(tmp_path: Path, kind: str) -> None:
    paths = [tmp_path / "ours.frec", tmp_path / "theirs.frec"]
    options: dict[str, Any] = {"irreversible": False} if kind == "JPEG2000" else {}
    for path in paths:
        with fr.Writer(path, SCHEMA) as writer:
            for number in range(COUNT):
                record = scene(number)
                height, width = size_of(number)
                image = save(Image.fromarray(pixels(width, height, seed=number)), kind, **options)
                if number % 3 == 0:  # the same pixels: as it is, and as a PNG
                    again = save(Image.fromarray(reference(image)), "PNG")
                    record["image"] = image if path is paths[0] else again
                writer.append(record)
    found, wanted = (make(opened(path), 4, sample=SAMPLE, shuffle=True, seed=5) for path in paths)
    assert records(found) == records(wanted)
    assert found.stats().by_pillow == 5
    assert wanted.stats().by_pillow == 0


@pytest.mark.parametrize("decode", [Decode(4), Decode(1, bits=16)], ids=repr)
def test_alpha_and_sixteen_bits_of_what_only_pillow_decodes_are_an_error(tmp_path: Path, decode: Decode) -> None:
    data = save(picture(mode="RGBA"), "AVIF")
    path = write_payloads(tmp_path / "x.frec", [png(pixels(61, 43, 1)), data])
    loader = make(path, 2, sample=[decode, CenterCrop(24)], on_error="skip")
    ((images, _),) = loader
    assert len(images) == 1
    assert "AVIF" in loader.skipped[0].reason
