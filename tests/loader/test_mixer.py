"""MixUp and CutMix of a loader's batches: images of pairs by the threads, and their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord.transforms import CutMix, Mixing, MixUp, Resize, ToFloat
from tests.support.loading import make
from tests.support.pictures import picture, save

COUNT, CLASSES = 9, 5
SAMPLE = [Resize((12, 16)), ToFloat("float32")]
TEXT = "a text that is long enough to be found, number {}"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mixer") / "x.frec"
    schema = fr.Schema({"image": fr.bytes_(), "label": "int64", "text": fr.string()})
    with fr.Writer(made, schema) as writer:
        for number in range(COUNT):
            # The core decodes PNGs, Pillow decodes the QOI.
            image = save(picture(16, 12).rotate(20 * number), "QOI" if number == 3 else "PNG")
            writer.append({"image": image, "label": number % CLASSES, "text": TEXT.format(number)})
    return made


def loader(path: Path, fields: tuple[str, ...] = ("image", "label"), **options: Any) -> fr.FastRecordLoader:
    return make(fr.FastRecordDataset(path, fields=fields), COUNT, sample={"image": SAMPLE}, **options)


@pytest.mark.filterwarnings("ignore:fastrecord cannot decode:UserWarning")
@pytest.mark.parametrize("operation", [MixUp(0.4, CLASSES), CutMix(1.0, CLASSES)], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("threads", [1, 3])
def test_pairs_are_mixed_whoever_decodes_them(path: Path, operation: MixUp | CutMix, threads: int) -> None:
    (plain,) = loader(path, seed=2)
    (mixed,) = loader(path, seed=2, batch=operation, threads=threads)
    mixing = Mixing.of(operation)
    blend, share = mixing.draw(2, 0, 0, (12, 16))
    wanted = mixing.images(plain["image"], blend)
    wanted[COUNT // 2] = plain["image"][COUNT // 2]
    torch.testing.assert_close(mixed["image"], wanted)
    partners = torch.arange(COUNT).flip(0)
    torch.testing.assert_close(mixed["label"], mixing.labels(plain["label"], share, partners))


@pytest.mark.filterwarnings("ignore:fastrecord cannot decode:UserWarning")
def test_a_record_left_out_after_it_was_mixed_keeps_its_share_of_the_label(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(TEXT.format(1).encode()) + 3] ^= 4
    damaged = tmp_path / "damaged.frec"
    damaged.write_bytes(content)
    fields = ("image", "label", "text")
    (whole,) = loader(path, fields, seed=2, batch=MixUp(0.4, CLASSES))
    (left,) = loader(damaged, fields, seed=2, batch=MixUp(0.4, CLASSES), on_error="skip")
    kept = np.delete(np.arange(COUNT), 1)
    assert left["text"] == [TEXT.format(number) for number in kept]
    torch.testing.assert_close(left["image"], whole["image"][kept])
    torch.testing.assert_close(left["label"], whole["label"][kept])
