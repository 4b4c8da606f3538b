"""Two images of one scene: the same part, at the same place, in batches of both."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fastrecord as fr
from fastrecord.transforms import CenterCrop, Like, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.support.loading import make, with_info, write_pairs
from tests.support.pictures import pixels

COUNT = 30


def enlarged(image: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Return an image with each pixel repeated `factor` times across and down."""
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of pairs: `hr` is `lr` with each pixel repeated three times across and down."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.frec"
    small = [pixels(50 + number, 70 - number, seed=number) for number in range(COUNT)]
    return write_pairs(path, [(image, enlarged(image, 3)) for image in small])


def dataset(path: Path, field: str = "lr") -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, image_field=field)


def images_of(path: Path, **sample: Any) -> dict[str, torch.Tensor]:
    """Return all images of an epoch, by field."""
    batches = list(make(dataset(path), 8, sample=sample, seed=3))
    return {name: torch.cat([batch[name] for batch in batches]) for name in sample}


def enlarged_batch(images: torch.Tensor, factor: int) -> torch.Tensor:
    return images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)


@pytest.mark.parametrize("padding", [0, 8])
def test_a_pair_is_cropped_at_the_same_part_and_mirrored_together(pairs: Path, padding: int) -> None:
    small, large = [RandomCrop((16, 20), padding), RandomHorizontalFlip()], Like("lr", size=(48, 60))
    found = images_of(pairs, lr=small, hr=large)
    assert found["lr"].shape == (COUNT, 3, 16, 20)
    assert torch.equal(enlarged_batch(found["lr"], 3), found["hr"])
    again = images_of(pairs, hr=large, lr=small)
    assert list(again) == ["hr", "lr"]
    assert torch.equal(again["lr"], found["lr"])


def test_what_follows_changes_nothing_of_what_it_follows(pairs: Path) -> None:
    small = [RandomCrop(16), RandomHorizontalFlip()]
    found = images_of(pairs, hr=Like("lr", size=48), lr=small)
    assert torch.equal(torch.cat(list(make(dataset(pairs), 8, sample=small, seed=3))), found["lr"])


def test_lists_of_several_fields_draw_independently(pairs: Path) -> None:
    steps = [RandomCrop(16), RandomHorizontalFlip()]
    found = images_of(pairs, lr=steps, hr=steps)
    alone = torch.cat(list(make(dataset(pairs, "hr"), 8, sample=steps, seed=3)))
    assert torch.equal(found["hr"], alone)
    infos = [info for _, info in with_info(dataset(pairs), 8, sample={"lr": steps, "hr": steps}, seed=3)]
    low, high = (np.concatenate([info.views[name].matrix[:, 0, 0] for info in infos]) for name in ("lr", "hr"))
    assert 0 < (low != high).sum() < COUNT  # they are mirrored independently


def test_a_pair_of_resized_crops_shows_the_same_part(pairs: Path) -> None:
    # An output pixel of `hr` covers a ninth of what one of `lr` covers; the means are equal.
    found = images_of(pairs, lr=[RandomResizedCrop(12), RandomHorizontalFlip()], hr=Like("lr", size=36))
    pooled = torch.nn.functional.avg_pool2d(found["hr"].float(), 3)
    difference = (pooled - found["lr"].float()).abs().mean((1, 2, 3))
    shifted = (pooled - found["lr"].float().roll(1, 3)).abs().mean((1, 2, 3))
    mirrored = (pooled - found["lr"].float().flip(3)).abs().mean((1, 2, 3))
    assert (difference < 4).all()
    assert (difference < shifted).all()
    assert (difference < mirrored).all()


@pytest.mark.parametrize("small", [[CenterCrop(16)], [Resize(20), CenterCrop(16)]], ids=["as it is", "resized"])
def test_a_pair_of_center_crops_shows_the_same_part(pairs: Path, small: list[Any]) -> None:
    found = images_of(pairs, lr=small, hr=Like("lr", size=48))
    pooled = torch.nn.functional.avg_pool2d(found["hr"].float(), 3)
    assert (pooled - found["lr"].float()).abs().mean() < (0.1 if len(small) == 1 else 4)


@pytest.mark.parametrize("large", [47, 32])
def test_a_pair_that_does_not_fit_its_crops_is_an_error_that_names_the_record(pairs: Path, large: int) -> None:
    loader = make(dataset(pairs), sample={"lr": RandomCrop(16), "hr": Like("lr", size=large)})
    message = r"pairs\.frec: record 0, field hr: the images of the record do not match: 50 x 70 becomes 16 x 16"
    with pytest.raises(fr.errors.DecodeError, match=message):
        next(iter(loader))


def test_a_record_whose_images_do_not_fit_may_be_skipped(pairs: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(pairs, tmp_path / "pairs.frec"))
    with fr.Writer(path, mode="a") as writer, fr.Reader(pairs) as reader:
        writer.append({"lr": bytes(reader[0]["lr"]), "hr": bytes(reader[1]["hr"])})
    loader = make(dataset(path), 8, sample={"lr": RandomCrop(16), "hr": Like("lr", size=48)}, on_error="skip")
    batches = list(loader)
    assert [len(batch["lr"]) for batch in batches] == [len(batch["hr"]) for batch in batches] == [8, 8, 8, 6]
    assert [skipped.record for skipped in loader.skipped] == [COUNT]


def test_labels_follow_several_images(tmp_path: Path) -> None:
    schema = fr.Schema({"a": fr.image(), "b": fr.bytes_(), "label": "int64"})
    with (
        fr.Writer(tmp_path / "a.frec", schema) as writer,
        fr.Reader(write_pairs(tmp_path / "pairs.frec", [(pixels(30, 30), pixels(60, 60))])) as reader,
    ):
        writer.append({"a": bytes(reader[0]["lr"]), "b": bytes(reader[0]["hr"]), "label": 5})
    made = make(tmp_path / "a.frec", sample={"b": Resize((20, 20)), "a": Resize((10, 10))})
    (batch,) = list(made)
    assert list(batch) == ["b", "a", "label"]
    assert (batch["b"].shape, batch["a"].shape) == ((1, 3, 20, 20), (1, 3, 10, 10))
    assert batch["label"].tolist() == [5]
