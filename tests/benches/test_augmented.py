"""The loaders of the experiment "augmented" make the same outputs, and each image once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benches.experiments import augmented
from benches.experiments.augmented import AUGMENTED, FLOATS, RAW, SCENES, VIEWS, checked
from benches.harness import Answer, Missing
from benches.peers import Data
from benches.peers.augmented import RECIPES
from benches.peers.augmented.contender import Augmented
from benches.support.pictures import make_images
from benches.support.scenes import Scenes
from tests.benches.made import rows_of

RECORDS = 6
GROUPS = (AUGMENTED, FLOATS, RAW, VIEWS, SCENES)
MADE = [(module, recipe) for modules, cases in GROUPS for module in modules.values() for recipe in cases]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTRECORD_BENCH_IMAGES", str(image_folder / "owl"))
        yield make_images(tmp_path_factory.mktemp("augmented"), RECORDS)


@pytest.fixture
def make(data: Data) -> Iterator[Callable[[str], Augmented]]:
    threads = torch.get_num_threads()

    def made(module: str) -> Augmented:
        try:
            return Augmented(module=module, root=str(data.root), records=RECORDS, threads=1, batch=4)
        except (ImportError, Missing) as missing:
            pytest.skip(str(missing))

    yield made
    torch.set_num_threads(threads)


def outputs(made: Augmented, recipe: str) -> dict[str, list[int]]:
    made.files(recipe)
    return {name: shape for name, (_, shape, _) in made.check(recipe).items()}


@pytest.mark.filterwarnings("ignore:The image decoding")  # torchvision.io, of torchvision
@pytest.mark.parametrize(("module", "recipe"), [pair for pair in MADE if pair[0].startswith(("ours", "torchvision"))])
def test_a_recipe_makes_the_outputs_of_all_its_loaders(
    module: str, recipe: str, make: Callable[[str], Augmented]
) -> None:
    expected = {"image": [3, 224, 224]}
    if recipe == "views":
        expected = {"first": [3, 224, 224], "second": [3, 224, 224], "small": [6, 3, 96, 96]}
    if recipe.startswith("mask"):
        expected["mask"] = [224, 224]
    if recipe == "boxes":
        expected["boxes"] = [20, 4]
    made = make(module)
    assert outputs(made, recipe) == expected
    assert made.epoch(recipe) == RECORDS


def test_all_recipes_are_described() -> None:
    assert {recipe for _, recipe in MADE} | {"crop", "raw-crop"} == RECIPES.keys()


def test_masks_as_pictures_and_as_arrays_are_the_same(data: Data) -> None:
    from PIL import Image

    scenes = Scenes(data)
    scenes.make()
    for picture, array in zip(scenes.masks(".png"), scenes.masks(".npy"), strict=True):
        with Image.open(picture) as image:
            assert image.mode == "P"
            assert np.array_equal(np.asarray(image), np.load(array))
    sides = scenes.boxes()[..., 2:] - scenes.boxes()[..., :2]
    assert (sides > 0).all()


class Told:
    """A contest whose contenders say what they made."""

    def __init__(self, **made: dict[str, Any]) -> None:
        self.made = made

    def call(self, name: str, method: str, *, recipe: str) -> Answer:
        assert recipe
        return Answer(0.1, 0.1, self.made[name] if method == "check" else None)


def test_outputs_that_differ_are_found() -> None:
    image = ("float16", [3, 224, 224], 110.0)
    told: Any = Told(one={"image": image}, two={"image": ("uint8", [3, 224, 224], 112.0)})
    assert checked(told, "trivial", ["one", "two"]) == {"one": "float16", "two": "uint8"}
    for other, why in (
        ({"image": ("uint8", [3, 96, 96], 110.0)}, "several shapes"),
        ({"image": ("uint8", [3, 224, 224], 200.0)}, "mean of image"),
        ({"image": image, "mask": ("uint8", [224, 224], 3.0)}, "mask has several shapes"),
    ):
        told = Told(one={"image": image}, two=other)
        with pytest.raises(ValueError, match=why):
            checked(told, "trivial", ["one", "two"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_short_run_has_the_recipe_of_a_training(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTRECORD_BENCH_IMAGES", str(image_folder / "owl"))
    monkeypatch.setattr(augmented, "TRAINERS", {})
    monkeypatch.setattr(augmented, "ENOUGH", 0.0)
    rows = rows_of(tmp_path, "augmented", augmented.run, full=False)
    measured = [row for row in rows if row.values]
    assert {row.contender for row in measured} <= {"fastrecord", "fastrecord, 1 thread"}
    assert measured[0].case.startswith("a training's images/s")
    assert all(len(row.values) == 3 and row.unit == "images/s" for row in measured)
    assert {"TurboLoader", "FFCV"} == {row.contender for row in rows if row.missing}
