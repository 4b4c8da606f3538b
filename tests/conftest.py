"""Data shared by several test modules: a small folder of images, and its packed file."""

from __future__ import annotations

import gc
import io
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

import fastrecord as fr

if TYPE_CHECKING:
    from tests.support.loader_kinds import Kind

# On a busy machine any example may take long.
for profile in ("default", "ci"):
    settings.register_profile(
        profile,
        settings.get_profile(profile),
        deadline=None,
        max_examples=50,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("default")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what the tests import: some collect after each test."""
    gc.collect()
    gc.freeze()


# A shell starts background jobs with Ctrl-C ignored, and the children of a test inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

SCHEMA = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string()})
CLASS_COUNTS = {"cat": 5, "dog": 3, "owl": 4}


def encode(seed: int, *, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    """Return an encoded image of seeded noise over a gradient, 32 to 71 pixels wide and high."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(32, 72, 2)
    noise = rng.integers(0, 64, (height, width, 3))
    gradient = np.linspace(0, 190, width)[None, :, None] * rng.random(3)
    buffer = io.BytesIO()
    Image.fromarray((noise + gradient).astype(np.uint8)).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def folder_records(folder: Path) -> Iterator[tuple[bytes, int, str]]:
    """Yield (bytes, label, key) of a class folder in the order of torchvision's ImageFolder."""
    for label, class_folder in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        for path in sorted(class_folder.iterdir()):
            yield path.read_bytes(), label, path.relative_to(folder).as_posix()


def pack_folder(folder: Path, out: Path) -> Path:
    """Pack a class folder with the writer alone: fields image, label and key, and class names."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    with fr.Writer(out, SCHEMA, metadata={"classes": classes}) as writer:
        for data, label, key in folder_records(folder):
            writer.append({"image": data, "label": label, "key": key})
    return out


def write_images(
    path: Path, labels: Sequence[int], classes: Sequence[str] | None = None, *, complete: bool = True, seed: int = 0
) -> Path:
    """Write a file whose record i has label `labels[i]` and the key "<stem>/<i>"."""
    metadata = {} if classes is None else {"classes": list(classes)}
    with fr.Writer(path, SCHEMA, metadata=metadata, complete=complete) as writer:
        for number, label in enumerate(labels):
            writer.append({"image": encode(seed + number), "label": label, "key": f"{path.stem}/{number}"})
    return path


def large_images(path: Path) -> Path:
    """Write 12 uncompressed images of 3 MB each."""
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8).tobytes()
    with fr.Writer(path, fr.Schema({"image": fr.image()})) as writer:
        for number in range(12):
            writer.append({"image": b"P6\n1000 1000\n255\n" + bytes([number]) + pixels[1:]})
    return path


def write_bytes(path: Path, payloads: Sequence[bytes]) -> Path:
    """Write a file of fields data and key."""
    with fr.Writer(path, fr.Schema({"data": fr.bytes_(), "key": fr.string()})) as writer:
        for number, payload in enumerate(payloads):
            writer.append({"data": payload, "key": f"{number}.bin"})
    return path


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images in 3 uneven class folders, with grey and CMYK JPEGs and an RGBA PNG. Read only."""
    root = tmp_path_factory.mktemp("images")
    special = {"cat/1.jpg": ("L", "JPEG"), "dog/2.png": ("RGBA", "PNG"), "owl/0.jpg": ("CMYK", "JPEG")}
    seed = 0
    for name, count in CLASS_COUNTS.items():
        (root / name).mkdir()
        for number in range(count):
            file = "dog/2.png" if (name, number) == ("dog", 2) else f"{name}/{number}.jpg"
            mode, kind = special.get(file, ("RGB", "JPEG"))
            (root / file).write_bytes(encode(seed, mode=mode, kind=kind))
            seed += 1
    return root


@pytest.fixture(scope="session")
def packed(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`image_folder` as one .frec file, in ImageFolder order. Read only: copy it to change it."""
    return pack_folder(image_folder, tmp_path_factory.mktemp("packed") / "train.frec")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute like the DDP test processes: another order of sums changes the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training file: each class has images of one colour."""
    from tests.support.training import write_colours

    return write_colours(tmp_path_factory.mktemp("colours") / "train.frec", 76, seed=0)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation file with the same classes."""
    from tests.support.training import write_colours

    return write_colours(tmp_path_factory.mktemp("colours") / "val.frec", 37, seed=1)


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 40 numbered records. Read only."""
    from tests.support.viewing import COUNT, write

    return write(tmp_path_factory.mktemp("numbered") / "whole.frec", range(COUNT))


@pytest.fixture(scope="session")
def numbered_halves(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The records of `numbered` in two files with different class numbers. Read only."""
    from tests.support.viewing import COUNT, write

    folder = tmp_path_factory.mktemp("halves")
    return [
        write(folder / "a.frec", range(25)),
        write(folder / "b.frec", range(25, COUNT), ["cat", "ant", "bee"]),
    ]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 22 JPEGs in 3 classes. Read only."""
    from tests.support.loading import COUNT, write_photos

    return write_photos(tmp_path_factory.mktemp("photos") / "train.frec", COUNT)


@pytest.fixture(scope="session")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 107 records with fields of every kind. Read only."""
    from tests.support.patches import write_patches

    return write_patches(tmp_path_factory.mktemp("patches") / "train.frec")


@pytest.fixture(params=["images", "arrays"])
def kind(request: pytest.FixtureRequest, photos: Path, patches: Path) -> Kind:
    """Each kind of loader, with its file."""
    from tests.support.loader_kinds import KINDS

    return KINDS[request.param]({"images": photos, "arrays": patches}[request.param])


@pytest.fixture
def no_load_thread_is_left() -> Iterator[None]:
    """Wait after the test until its loaders' threads have ended; one in a huge image ends later."""
    from tests.support.loading import wait_for_load_threads

    yield
    gc.collect()
    wait_for_load_threads(0)


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of five pairs of 12 x 10 and 48 x 40 pixels."""
    from tests.support.pairing import numbered_pairs

    return numbered_pairs(tmp_path, 5)


@pytest.fixture(scope="session")
def recode_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two class folders of nine images of several kinds and sizes. Read only."""
    from tests.support.packing import write
    from tests.support.recoding import FILES

    return write(tmp_path_factory.mktemp("recode"), FILES)
