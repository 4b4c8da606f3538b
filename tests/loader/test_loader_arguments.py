"""Loader and sampler arguments: order, paths, changes between epochs, foreign arguments."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as theirs
from torchvision.transforms import v2

import fastrecord as fr
from fastrecord.sampler.blocks import Shuffle
from fastrecord.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.support.commands import run
from tests.support.loading import COUNT, photo, write_payloads


@pytest.fixture
def data(photos: Path) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(photos)


# --- order ---


def test_the_sampler_and_the_loader_shuffle_by_the_same_default(data: fr.FastRecordDataset) -> None:
    sampler = fr.FastRecordBatchSampler(data, 4)
    loader = fr.FastRecordLoader(data, 4, sample=Resize((8, 8)))
    assert sampler.shuffle is loader.batch_sampler.shuffle is True
    assert [labels.tolist() for _, labels in loader] == [data.targets[rows].tolist() for rows in sampler]
    orders: tuple[Shuffle, ...] = (True, False, "blocks")
    for shuffle in orders:
        sampler = fr.FastRecordBatchSampler(data, 4, shuffle=shuffle, seed=0)
        loader = fr.FastRecordLoader(data, 4, shuffle=shuffle, sample=Resize((8, 8)))
        assert [labels.tolist() for _, labels in loader] == [data.targets[rows].tolist() for rows in sampler]
    assert fr.FastRecordBatchSampler(data, 4, balance="label").shuffle is True
    assert fr.FastRecordBatchSampler(data, 4, weights=[1.0] * COUNT).shuffle is True


@pytest.fixture(scope="module")
def in_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images of two classes, packed class by class."""
    path = tmp_path_factory.mktemp("runs") / "train.frec"
    schema = fr.Schema({"image": fr.image(), "label": "int64"})
    with fr.Writer(path, schema) as writer:
        for number in range(40):
            writer.append({"image": photo(number), "label": number // 20})
    return path


@pytest.mark.parametrize(
    "augmented",
    [RandomResizedCrop(8), {"image": RandomCrop(8)}, [Resize((8, 8)), RandomHorizontalFlip()]],
)
def test_augmenting_in_file_order_over_runs_of_a_class_warns_once(in_runs: Path, augmented: Any) -> None:
    loader = fr.FastRecordLoader(in_runs, 4, shuffle=False, sample=augmented)
    with pytest.warns(UserWarning, match="neighbours are mostly of one class: write shuffle=True") as caught:
        list(loader)
    assert caught[0].filename == __file__
    list(loader)


def test_nothing_is_warned_of_where_the_order_does_no_harm(in_runs: Path, photos: Path) -> None:
    runs, random = fr.FastRecordDataset(in_runs), RandomResizedCrop(8)
    loaders = [
        fr.FastRecordLoader(runs, 4, shuffle=True, sample=random),
        fr.FastRecordLoader(runs, 4, shuffle=False, sample=CenterCrop(8)),
        fr.FastRecordLoader(runs, 40, shuffle=False, sample=random),  # one batch
        fr.FastRecordLoader(runs.filter("label", "==", 1), 4, shuffle=False, sample=random),
        fr.FastRecordLoader(photos, 4, shuffle=False, sample=random),  # alternating classes
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loader in loaders:
            list(loader)


# --- changes ---


def test_images_grow_from_the_next_iteration_on(data: fr.FastRecordDataset) -> None:
    loader = fr.FastRecordLoader(data, 8, shuffle=True, sample=RandomResizedCrop(16), threads=2)
    under_way = iter(loader)
    first = next(under_way)[0]
    loader.sample = [RandomResizedCrop(24), RandomHorizontalFlip()]
    assert loader.sample == [RandomResizedCrop(24), RandomHorizontalFlip()]
    assert [images.shape[-1] for images, _ in under_way] == [16, 16]
    assert loader.stats().records == COUNT
    loader.batch_transform = lambda batch, _: (batch[0].float(), batch[1])
    again = list(loader)
    assert {images.shape[-1] for images, _ in again} == {24}
    assert loader.stats().records == loader.stats().images == 2 * COUNT
    made = fr.FastRecordLoader(data, 8, shuffle=True, sample=[RandomResizedCrop(24), RandomHorizontalFlip()])
    made.set_epoch(1)
    for (images, labels), (expected, their_labels) in zip(again, made, strict=True):
        assert torch.equal(images, expected.float())
        assert torch.equal(labels, their_labels)
    assert first.shape[-1] == 16
    assert pickle.loads(pickle.dumps(made)).sample == made.sample


def test_a_transform_that_the_data_set_gets_later_is_refused_too(data: fr.FastRecordDataset) -> None:
    loader = fr.FastRecordLoader(data, 4, shuffle=True, sample=Resize((8, 8)))
    data.transform = str
    with pytest.raises(ValueError, match="the data set has a transform"):
        iter(loader)
    data.transform = None
    assert len(list(loader)) == len(loader)


def test_a_change_that_is_refused_changes_nothing(data: fr.FastRecordDataset) -> None:
    loader = fr.FastRecordLoader(data, 8, shuffle=False, sample=Resize((16, 16)))
    arrays = fr.FastRecordLoader(data.select_fields(["label"]), 8, shuffle=False)
    for wrong, name, value, error in (
        (loader, "sample", 16, TypeError),
        (loader, "sample", None, ValueError),
        (loader, "sample", {}, ValueError),
        (loader, "batch_transform", 3, TypeError),
        (arrays, "sample", Resize((4, 4)), ValueError),
    ):
        with pytest.raises(error):
            setattr(wrong, name, value)
    assert [images.shape[-1] for images, _ in loader] == [16, 16, 16]
    assert len(list(arrays)) == 3
    pairs = fr.FastRecordLoader(data, 8, shuffle=False, sample={"image": Resize((16, 16))})
    pairs.sample = {"image": Resize((4, 4))}
    assert next(iter(pairs))["image"].shape[-1] == 4


@pytest.mark.parametrize("name", ["weights", "shuffle", "batch_size", "epoch", "sede", "num_samples"])
def test_a_sampler_refuses_attributes_that_would_change_nothing(data: fr.FastRecordDataset, name: str) -> None:
    sampler = fr.FastRecordBatchSampler(data, 4, shuffle=True)
    way_out = "call set_epoch" if name == "epoch" else "make another one"
    with pytest.raises(AttributeError, match=f"'{name}' of a FastRecordBatchSampler cannot be set: {way_out}"):
        setattr(sampler, name, 1)
    assert not hasattr(sampler, "weights")


@pytest.mark.parametrize("name", ["threads", "dataset", "imgae", "dtype", "batch_size", "drop_last", "sampler"])
def test_a_loader_refuses_attributes_that_would_change_nothing(data: fr.FastRecordDataset, name: str) -> None:
    loader = fr.FastRecordLoader(data, 4, shuffle=True, sample=Resize((8, 8)))
    with pytest.raises(AttributeError, match=f"'{name}' of a FastRecordLoader .* set one of batch_transform, sample"):
        setattr(loader, name, 1)


def test_a_class_derived_from_them_has_attributes_of_its_own(data: fr.FastRecordDataset) -> None:
    class Mine(fr.FastRecordBatchSampler):
        rounds = 1

        def __init__(self) -> None:
            super().__init__(data, 4, shuffle=True)
            self.name = "mine"
            self.rounds = 2

    mine = Mine()
    mine.name = "yours"
    mine.rounds = 3
    with pytest.raises(AttributeError, match="'seed' of a Mine cannot be set"):
        mine.seed = 3  # type: ignore[misc]


# --- constructor arguments ---


@pytest.mark.parametrize("path", ["hdfs://bucket/train.frec", "ftp://host/*.frec"])
def test_a_url_of_an_unknown_kind_is_said_not_to_be_read(path: str) -> None:
    text = "it is not a file of this machine: FastRecordDataset reads URLs"
    for use in (fr.Reader, fr.FastRecordDataset, lambda path: fr.FastRecordLoader(path, 4, shuffle=True)):
        with pytest.raises(FileNotFoundError, match=text):
            use(path)
    for command in (["info"], ["ls"], ["doctor"], ["bench"], ["merge", "-o", "out.frec"]):
        result = run(*command[:1], path, *command[1:])
        assert text in result.output, command
        assert result.exit_code != 0


def test_a_path_stands_for_its_data_set(photos: Path) -> None:
    several: list[str | Path] = [photos, str(photos)]
    for paths in (photos, str(photos), several):
        loader = fr.FastRecordLoader(paths, 4, shuffle=False, sample=Resize((8, 8)))
        assert len(loader.dataset) == COUNT * (2 if paths is several else 1)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("num_workers", "no worker processes: write threads="),
        ("collate_fn", "change whole batches by batch_transform="),
        ("mean", r"Delivery\(dtype=\.\.\.\) .* fastrecord\.transforms\.Normalize\(mean, std\)"),
        ("std", r"Normalize\(mean, std\)"),
        ("persistent_workers", "no worker processes: leave it out"),
        ("worker_init_fn", "leave it out"),
        ("multiprocessing_context", "leave it out"),
        ("timeout", "leave it out"),
        ("prefetch_factor", r"write delivery=fr\.Delivery\(prefetch=\.\.\.\)"),
        ("device", r"write delivery=fr\.Delivery\(device=\.\.\.\)"),
        ("sixteen_bit", r"write FastRecordDataset\(path, decode=fr\.Decoding\(sixteen_bit=\.\.\.\)\)"),
        ("images", "write sample= .* for several fields"),
        ("image", "write sample= with fastrecord.transforms"),
        ("flip", r"write RandomHorizontalFlip\(\) in sample="),
        ("decoding", r"write FastRecordDataset\(path, decode=fr\.Decoding\(\.\.\.\)\)"),
        ("max_skipped", r"write on_error=fr\.Skip\(limit=\.\.\.\)"),
        ("fields", r"write FastRecordDataset\(path, fields=\.\.\.\)"),
        ("sampler", "write batch_sampler="),
        ("generator", "seed="),
        ("pin_memory_device", "device="),
        ("in_order", "leave it out"),
        ("transform", "write sample= .* for whole batches batch_transform="),
        ("weights", r"FastRecordBatchSampler\(dataset, batch_size, weights=\.\.\.\)"),
        ("classes", r"FastRecordDataset\(path, classes=\.\.\.\)"),
        ("batchsize", "is batch_size= meant"),
        ("xyzzy", "it has dataset, batch_size"),
    ],
)
def test_an_argument_of_other_loaders_is_answered_by_what_to_write(photos: Path, name: str, answer: str) -> None:
    options: dict[str, Any] = {name: 2}
    with pytest.raises(TypeError, match=f"FastRecordLoader has no argument '{name}': .*{answer}"):
        fr.FastRecordLoader(photos, 4, shuffle=True, sample=Resize((8, 8)), **options)


def test_every_argument_of_torchs_loader_is_known_or_answered(photos: Path) -> None:
    import inspect

    ours = inspect.signature(fr.FastRecordLoader).parameters
    for name in set(inspect.signature(DataLoader).parameters) - set(ours) - {"self"}:
        options: dict[str, Any] = {name: None}
        with pytest.raises(TypeError) as raised:
            fr.FastRecordLoader(photos, 4, shuffle=True, sample=Resize((8, 8)), **options)
        assert "it has dataset" not in str(raised.value)
        assert "meant" not in str(raised.value)


@pytest.mark.parametrize(
    "transform",
    [
        theirs.RandomResizedCrop(224),
        [v2.RandomResizedCrop(8), RandomHorizontalFlip()],
        v2.Compose([v2.Resize(256), v2.CenterCrop(224)]),
        theirs.ColorJitter(),
    ],
    ids=["crop", "list", "Compose", "ColorJitter"],
)
def test_a_transform_of_torchvision_is_answered_by_its_conversion(photos: Path, transform: Any) -> None:
    way_out = r"not \w+ of torchvision: write fastrecord\.transforms\.from_torchvision\(\.\.\.\)"
    for sample in (transform, {"image": transform}):
        with pytest.raises(TypeError, match=f"the transforms of 'image' are of fastrecord.transforms, .*, {way_out}"):
            fr.FastRecordLoader(photos, 4, shuffle=True, sample=sample)


def test_a_filter_of_a_callable_alone_is_answered_by_the_two_forms(data: fr.FastRecordDataset) -> None:
    for arguments in ((lambda sample: sample[1] == 0,), ("label",)):
        with pytest.raises(TypeError, match=r"filter\('label', '==', 3\), .* filter\('score', lambda column"):
            data.filter(*arguments)


def test_a_repr_says_what_there_is(tmp_path: Path) -> None:
    path = write_payloads(tmp_path / "a.frec", [photo(number) for number in range(6)])
    data = fr.FastRecordDataset(path)
    sampler = fr.FastRecordBatchSampler(data, 4, shuffle=True, seed=3)
    loader = fr.FastRecordLoader(
        data, batch_sampler=sampler, sample=[Resize((8, 8)), RandomHorizontalFlip()], threads=2
    )
    shown = repr(loader)
    for part in (
        "FastRecordLoader",
        "Number of datapoints: 6",
        "Sample: image (image), label (int64)",
        "Number of classes: 3",
        "Batches: FastRecordBatchSampler(6 records, 2 batches of 4, shuffle=True, seed=3, drop_last='exact', epoch=0)",
        "sample: [Resize(size=(8, 8)",
        "RandomHorizontalFlip(p=0.5)]",
        "threads: 2, prefetch: 2",
    ):
        assert part in shown
    assert "weights" in repr(fr.FastRecordBatchSampler(data, 4, weights=[1] * 6, rank=1, world_size=2))
    assert "Fields: label" in repr(fr.FastRecordLoader(data.select_fields(["label"]), 4, shuffle=False))
