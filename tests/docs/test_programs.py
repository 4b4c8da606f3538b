"""Every program and command of the pages runs, or is listed here with the reason why it does not.

Other modules run README.md, datasets.md, records.md, pairs.md, order.md and cli.md.
"""

from __future__ import annotations

import ast
import gzip
import io
import logging
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastrecord as fr
from fastrecord import transforms as T  # noqa: N812
from fastrecord.train.__main__ import main as trainer
from tests.support.packing import pack_with
from tests.support.pictures import jpeg
from tests.support.programs import command as run_command
from tests.support.programs import execute

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(python|sh)(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "README.md": "test_readme.py",
    "docs/pairs.md": "test_readme.py",
    "docs/datasets.md": "test_pages.py",
    "docs/records.md": "test_pages.py",
    "docs/order.md": "../loader/test_frameworks.py",
    "docs/cli.md": "../cli/test_cli.py",
    "docs/plan.md": "../inspect/test_plan_cli.py",
    "docs/ray.md": "../ray/test_ray_page.py",
}
NOT_RUN = {
    "CONTRIBUTING.md": "make, which CI runs, and fuzzing, which takes hours",
    "docs/benchmarks.md": "installs other packages, and measures for many minutes",
    "docs/performance.md": "measures for many minutes",
    "docs/stores.md": "needs a bucket; tests/store does the same with a server on loopback",
    "tests/README.md": "runs the tests",
}
# What is shortened before a program runs: it would take long, or a GPU.
SHORTER = {
    "range(90)": "range(2)",
    "// 89": "// 1",
    "(224": "(32",
    "view(96": "view(16",
    "batch_size=256": "batch_size=4",
    '.frec", 256,': '.frec", 4,',
    "Resize(256)": "Resize(40)",
    "num_workers=8": "num_workers=0",
    'device="cuda",': "",
    'Delivery(device="cuda")': "Delivery()",
    "pin_memory=True": "pin_memory=False",
    "--model resnet18 --epochs 1": "--model squeezenet1_1 --epochs 1 --max-steps 2 --warmup-epochs 0",
    "--image-size 32": "--image-size 64",
}
INSTALLS = ("pip install .", "make ", "sudo ")


class Block(NamedTuple):
    kind: str
    title: str
    text: str


def blocks(page: str, heading: str | None = None) -> list[Block]:
    """Return the programs of a page, or of one of its sections."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if heading is not None:
        section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None
        text = section[1]
    return [Block(*found) for found in BLOCK.findall(text)]


def shorter(text: str) -> str:
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def command(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    if program == "fastrecord":
        run_command(line, *arguments)
        return
    start = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}[program]
    finished = subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, f"{line}\n{finished.stdout}\n{finished.stderr}"


def run(page: str, programs: Sequence[Block], names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the programs in order, each twice, in one namespace."""
    names = {"__name__": "snippet"} if names is None else names
    for kind, _, text in programs:
        short = shorter(text)
        if kind == "python":
            execute(short, page, names)
            continue
        for line in short.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith(("#", *INSTALLS)):
                command(line)
    return names


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Programs run in this process: what one of them logs is not for the tests after it."""
    logger = logging.getLogger("fastrecord")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: Path) -> Path:
    """Work in a folder with train.frec and val.frec of 12 images."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.frec", "val.frec"):
        shutil.copy(packed, tmp_path / name)
    return tmp_path


def with_programs() -> set[str]:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/README.md"]
    names = {str(page.relative_to(ROOT)) for page in pages}
    return {name for name in names if blocks(name)}


RUN_HERE = {
    "docs/compression.md",
    "docs/errors.md",
    "docs/formats.md",
    "docs/guide/nodes.md",
    "docs/guide/options.md",
    "docs/guide/start.md",
    "docs/index.md",
    "docs/loader.md",
    "docs/logging.md",
    "docs/look.md",
    "docs/scale.md",
}


def test_every_page_with_programs_is_run_by_a_test() -> None:
    assert with_programs() == {
        *ELSEWHERE,
        *NOT_RUN,
        *RUN_HERE,
        *(f"docs/from/{page}.md" for page in ("imagefolder", *SOURCES)),
        *(f"docs/howto/{page}.md" for page in (*RECIPES, *HOWTO, *LIBRARIES)),
    }
    for page, module in ELSEWHERE.items():
        assert Path(page).name in (Path(__file__).parent / module).read_text(encoding="utf-8"), page


@pytest.mark.parametrize("page", sorted(with_programs() - {"README.md", "docs/pairs.md"}))
def test_every_program_is_python_and_only_a_before_may_need_another_package(page: str) -> None:
    own = {
        "fastrecord",
        "torch",
        "torchvision",
        "numpy",
        "PIL",
        "accelerate",
        "lightning",
        "ray",
        "timm",
        "transformers",
        *sys.stdlib_module_names,
    }
    for kind, title, text in blocks(page):
        if kind == "python":
            tree = ast.parse(text)
            imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
            imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            others = {name.partition(".")[0] for name in imported} - own
            assert others <= {title.removeprefix("Before: ")}, text


@pytest.mark.parametrize(
    "page",
    ["docs/compression.md", "docs/errors.md", "docs/index.md", "docs/logging.md", "docs/look.md", "docs/scale.md"],
)
def test_a_page_of_one_program_runs(page: str, folder: Path) -> None:
    (folder / "imagenet").mkdir()
    programs = [block for block in blocks(page) if block.kind == "python"]
    assert len(programs) == 1
    run(page, programs)


def test_start_in_five_minutes_works_from_an_empty_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.frec").unlink()
    (folder / "val.frec").unlink()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names = run("docs/guide/start.md", blocks("docs/guide/start.md"))
    assert "64 ['dark', 'light'] (80, 64) 0\n" in capsys.readouterr().out
    assert names["loss"].item() < 0.7
    assert (folder / "runs/squeezenet1_1/metrics.jsonl").stat().st_size > 0


def test_each_way_to_store_images_is_what_the_page_says(image_folder: Path, folder: Path) -> None:
    (folder / "images").mkdir()
    (folder / "images/train").symlink_to(image_folder)
    run("docs/guide/options.md", blocks("docs/guide/options.md"))
    made = {path.stem for path in folder.glob("*.frec")} - {"train", "val"}
    assert made == {"plain", "packed", "small", "raw", "converted", "original"}


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.timeout(600)
def test_train_on_many_nodes_runs_with_two_processes(folder: Path) -> None:
    _, _, loop, start = blocks("docs/guide/nodes.md")
    (folder / "loop.py").write_text(shorter(loop.text), encoding="utf-8")
    run("docs/guide/nodes.md", [Block("sh", "", start.text.replace("torchrun", "torchrun --standalone"))])


@pytest.mark.parametrize("page", ["docs/guide/nodes.md", "docs/training.md", "README.md"])
def test_the_trainer_has_the_options_that_a_page_gives_it(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^.*-m fastrecord\.train (train\.frec.*)$", text, re.MULTILINE)
    assert found
    for arguments in found:
        trainer.make_context("train", shlex.split(arguments))


def encoded(path: str = "train.frec") -> list[tuple[bytes, int]]:
    with fr.Reader(path) as reader:
        return [(bytes(record["image"]), record["label"]) for record in reader]


def tar_shards() -> None:
    Path("shards").mkdir()
    for shard in range(3):
        with tarfile.open(f"shards/train-{shard:03}.tar", "w") as tar:
            for number, (image, label) in list(enumerate(encoded()))[shard::3]:
                for suffix, data in (("jpg", image), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def tuples_in_lmdb() -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open("train.lmdb", subdir=False, map_size=1 << 24) as env, env.begin(write=True) as transaction:
        keys = [b"%d" % number for number in range(len(encoded()))]
        for key, sample in zip(keys, encoded(), strict=True):
            transaction.put(key, pickle.dumps(sample))
        transaction.put(b"__keys__", pickle.dumps(keys))
        transaction.put(b"__len__", pickle.dumps(len(keys)))


def tfrecords() -> None:
    """Write the names that TensorFlow's script for ImageNet writes."""
    with fr.Writer("named.frec", {"image/encoded": fr.image(), "image/class/label": "int64"}) as writer:
        for image, label in encoded():
            writer.append({"image/encoded": image, "image/class/label": label})
    Path("tfrecords").mkdir()
    fr.export("named.frec", "tfrecords/train-00000-of-00001", "tfrecord")


def beton_file() -> None:
    """Unpack a file that FFCV wrote."""
    packed = ROOT / "tests/formats/records/data/beton/jpg.beton.gz"
    Path("train.beton").write_bytes(gzip.decompress(packed.read_bytes()))


def litdata_chunks() -> None:
    pytest.importorskip("litdata")
    from litdata.streaming.writer import BinaryWriter
    from litdata.types import Jpeg

    writer = BinaryWriter("litdata", chunk_size=5)
    for number, (image, label) in enumerate(encoded()):
        writer.add_item(number, (Jpeg(bytes=image), label))
    writer.done()
    writer.merge()


def parquet_files() -> None:
    Path("parquet").mkdir()
    fr.export("train.frec", "parquet/train.parquet", "parquet")


# For each page: what makes its source.
SOURCES: dict[str, Callable[[], object]] = {
    "ffcv": beton_file,
    "huggingface": parquet_files,
    "index": tar_shards,
    "litdata": litdata_chunks,
    "lmdb": tuples_in_lmdb,
    "mosaicml": lambda: fr.export("train.frec", "mds", "mds"),
    "tfrecord": tfrecords,
    "webdataset": tar_shards,
}


@pytest.mark.parametrize("page", sorted(SOURCES))
def test_what_comes_from_another_format_trains_as_the_page_says(page: str, folder: Path) -> None:
    # All but a PNG, which LitData turns into a JPEG.
    images, count = {sample for sample in encoded() if sample[0].startswith(b"\xff\xd8")}, len(encoded())
    SOURCES[page]()
    (folder / "train.frec").unlink()
    programs = [block for block in blocks(f"docs/from/{page}.md") if not block.title.startswith("Before")]
    names = run(f"docs/from/{page}.md", programs)
    if page == "ffcv":  # images of its own
        assert len(encoded()) > 4
    else:
        assert images <= set(encoded())
        assert len(encoded()) == count
    if page != "index":
        assert tuple(names["images"].shape[1:]) == (3, 32, 32)
        assert names["labels"].dtype == torch.int64


def test_a_folder_of_images_trains_as_the_page_says(image_folder: Path, folder: Path) -> None:
    (folder / "imagenet").mkdir()
    (folder / "imagenet/train").symlink_to(image_folder)
    (folder / "train.frec").unlink()
    programs = blocks("docs/from/imagefolder.md")
    assert programs[1].title == "Before"
    run("docs/from/imagefolder.md", programs)  # torchvision is here, so this "before" runs too


# Pages of recipes, and what both their programs, "Before" and "After", make for the model.
RECIPES = {
    "captions": ("images", "tokens"),
    "depth": ("images", "metres"),
    "detection": ("images", "targets"),
    "dino": ("crops",),
    "imagenet": ("images", "labels"),
    "keypoints": ("images", "points"),
    "segmentation": ("images", "masks"),
    "simclr": ("images",),
}
# Pages that need no other package, and those of another one.
HOWTO = ("audio", "deleting")
LIBRARIES = {"timm": "timm", "trainer": "transformers"}


@pytest.mark.parametrize("page", HOWTO)
def test_what_people_come_with_trains_as_the_page_says(page: str) -> None:
    names = run(f"docs/howto/{page}.md", blocks(f"docs/howto/{page}.md"))
    if page == "deleting":
        assert len(fr.Reader("rest.frec")) == len(fr.Reader("chosen.frec")) == len(names["data"]) - 1


def forms(value: Any) -> Any:
    """Return the types and shapes of tensors in lists; in dicts they have any length."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, dict):
        return {name: (one.dtype, tuple(one.shape[1:])) for name, one in value.items()}
    return [forms(one) for one in value]


@pytest.mark.parametrize("page", RECIPES)
def test_a_recipe_makes_what_the_code_makes_that_it_replaces(page: str) -> None:
    names: dict[str, Any] = {"__name__": "snippet"}
    made = {}
    for block in blocks(f"docs/howto/{page}.md"):
        if block.title:
            for name in RECIPES[page]:
                names.pop(name, None)
        run(f"docs/howto/{page}.md", [block], names)
        if block.title:
            made[block.title] = [forms(names[name]) for name in RECIPES[page]]
    assert list(made) == ["Before", "After"]
    assert made["Before"] == made["After"]
    if page == "detection":
        for found, row in zip(names["results"], names["rows"].values(), strict=True):
            np.testing.assert_allclose(found, row["boxes"], atol=1e-3)
    if page == "keypoints":
        assert_mirrored_points_have_their_sides(names)


def assert_mirrored_points_have_their_sides(names: dict[str, Any]) -> None:
    stored = np.stack([row["points"] for row in names["rows"]])
    mirrored = (stored * (-1, 1) + (128, 0))[:, names["SWAP"]]
    for p, wanted in ((0.0, stored), (1.0, mirrored)):
        sample = {"image": [T.CenterCrop((96, 128)), T.RandomHorizontalFlip(p)], "points": names["sample"]["points"]}
        swap = names["swap_sides"]
        loader = fr.FastRecordLoader(names["dataset"], 16, shuffle=False, sample=sample, batch_transform=swap)
        (batch,) = loader
        np.testing.assert_allclose(batch["points"], wanted, atol=1e-3)
        assert batch["points_kept"].all()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "package"), LIBRARIES.items())
def test_another_library_trains_as_the_page_says(page: str, package: str) -> None:
    pytest.importorskip(package)
    run(f"docs/howto/{page}.md", blocks(f"docs/howto/{page}.md"))


def test_the_programs_of_the_page_on_formats_run(folder: Path) -> None:
    tar_shards()
    own = 'fr.pack(torch_dataset, "own.frec")'
    for block in blocks("docs/formats.md"):
        if "s3://" not in block.text:  # tests/store/test_importing.py runs those
            for made in ("train.frec", "train.parquet"):
                (folder / made).unlink(missing_ok=True)
            text = block.text.replace('fr.pack(torch_dataset, "train.frec")', own)
            run("docs/formats.md", [block._replace(text=text)], {"torch_dataset": [(3,), (4,)]})


def test_the_page_on_the_loader_runs(folder: Path) -> None:
    page = "docs/loader.md"
    train, evaluate, sample, mixed, from_torchvision, places, lines, changes, pairs, arrays, padded, stats = blocks(
        page
    )
    names = run(page, [train], {"torch": torch})
    assert names["images"].shape[1:] == (3, 32, 32)
    assert names["images"].dtype == torch.bfloat16
    run(page, [evaluate], {"fr": fr, "T": T, "val": fr.FastRecordDataset("val.frec")})
    labels = run(page, [mixed], {"fr": fr, "T": T})["labels"]
    torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
    run(page, [from_torchvision])
    write_places(folder)
    made = run(page, [sample], {"fr": fr, "T": T})["batch"]
    assert {name: tuple(made[name].shape) for name in ("image", "small", "mask", "label")} == {
        "image": (16, 3, 32, 32), "small": (16, 6, 3, 96, 96), "mask": (16, 32, 32), "label": (16,),
    }  # fmt: skip
    moved = run(page, [places], {"fr": fr, "T": T})
    assert [len(rows) for rows in moved["boxes"]] == [int(kept.sum()) for kept in moved["batch"]["boxes_kept"]]
    assert_moved_as_by_torchvision()
    assert_moved_by_the_matrix(run(page, [lines], {"fr": fr, "T": T, "torch": torch}))
    run(page, [changes, stats], names)
    for field, side in (("lr", 60), ("hr", 240)):
        (folder / field).mkdir()
        for number in range(16):
            Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(folder / field / f"{number}.png")
    pack_with([folder / "lr", folder / "hr"], folder / "images.frec", format="pairs")
    pack_with([folder / "lr", folder / "hr"], folder / "pairs.frec", format="pairs", decode="yes")
    names = run(page, [pairs], {"fr": fr, "T": T, "dataset": fr.FastRecordDataset("images.frec", image_field="lr")})
    assert {name: tuple(batch.shape) for name, batch in names["batch"].items()} == {
        "lr": (16, 3, 48, 48), "hr": (16, 3, 192, 192),
    }  # fmt: skip
    with fr.Writer(folder / "text.frec", fr.Schema({"tokens": fr.array("int64", (None,))})) as writer:
        for number in range(8):
            writer.append({"tokens": np.arange(1, number + 1)})
    names = run(page, [padded], {"fr": fr, "torch": torch})
    assert sorted(names["lengths"].tolist()) == list(range(8))
    assert torch.equal(names["mask"], names["tokens"] > 0)
    names = run(page, [arrays], {"fr": fr, "T": T})
    assert {name: tuple(batch.shape) for name, batch in names["batch"].items()} == {
        "lr": (8, 24, 24, 3), "hr": (8, 96, 96, 3),
    }  # fmt: skip


def write_places(folder: Path) -> None:
    """Write images with boxes and with masks of a palette, and images with lines."""
    scene = {"image": fr.image(), "mask": fr.image(), "boxes": fr.array("float32", (None, 4)), "label": "int64"}
    with (
        fr.Writer(folder / "scenes.frec", scene) as scenes,
        fr.Writer(folder / "lines.frec", {"image": fr.image(), "line": fr.array("float32", (4,))}) as lines,
    ):
        for number in range(16):
            height, width = 90 + number, 120 - number
            image = jpeg(width, height)
            mask = Image.fromarray(np.random.default_rng(number).integers(0, 200, (height, width), np.uint8))
            mask.putpalette([255 - n // 3 for n in range(768)])
            buffer = io.BytesIO()
            mask.save(buffer, "PNG")
            boxes = np.array([[10, 20, 40, 70], [50, number, 90, 30]], np.float32)
            scenes.append({"image": image, "mask": buffer.getvalue(), "boxes": boxes, "label": number})
            lines.append({"image": image, "line": boxes[0]})


def assert_moved_as_by_torchvision() -> None:
    """Compare boxes and masks with transforms v2 of the same crop."""
    stored = fr.FastRecordDataset("scenes.frec", fields=("mask", "boxes"), decode=None)
    found: list[fr.transforms.BatchInfo] = []

    def keep(batch: Any, info: fr.transforms.BatchInfo) -> Any:
        found.append(info)
        return batch

    sample: dict[str, Any] = {
        "image": [T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
        "mask": T.Like("image", interpolation="nearest"),
        "boxes": T.Like("image", boxes="xyxy"),
    }
    data = fr.FastRecordDataset("scenes.frec", fields=("image", "mask", "boxes"))
    (batch,) = fr.FastRecordLoader(data, 16, sample=sample, batch_transform=keep)
    view = found[0].views["image"]
    for slot, row in enumerate(found[0].rows.tolist()):
        height, width = view.sizes[slot].tolist()
        left, top, right, bottom = (int(side) for side in view.boxes[slot])
        mask = tv_tensors.Mask(np.array(Image.open(io.BytesIO(stored[row]["mask"]))))
        boxes = tv_tensors.BoundingBoxes(stored[row]["boxes"], format="XYXY", canvas_size=(height, width))
        for source, moved in ((mask, batch["mask"][slot]), (boxes, batch["boxes"][slot])):
            wanted = v2.functional.resized_crop(source, top, left, bottom - top, right - left, [32, 32])
            wanted = v2.functional.horizontal_flip(wanted) if view.matrix[slot, 0, 0] < 0 else wanted
            torch.testing.assert_close(moved, wanted.as_subclass(torch.Tensor), atol=1e-3, rtol=0)


def assert_moved_by_the_matrix(names: dict[str, Any]) -> None:
    """Compare the lines that the page moves with each end, moved alone."""
    matrices = np.random.default_rng(0).normal(0, 0.001, (3, 3, 3)) + np.eye(3)
    view = T.ViewInfo(np.full((3, 2), 100), np.zeros((3, 4)), matrices, (32, 32))
    info = T.BatchInfo(0, 0, np.arange(3), np.arange(3), {"image": view})
    line = np.array([10, 20, 40, 70], np.float32)
    moved = names["move_lines"]({"line": torch.from_numpy(line).repeat(3, 1)}, info)["line"]
    for matrix, found in zip(matrices, moved, strict=True):
        ends = [matrix @ (x, y, 1) for x, y in line.reshape(2, 2)]
        np.testing.assert_allclose(found, np.concatenate([end[:2] / end[2] for end in ends]), rtol=1e-4)


def test_the_programs_of_the_page_on_training_run() -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    section = text.partition("## From Python\n")[2]
    program = textwrap.dedent(re.findall(r"^    .*(?:\n(?:    .*)?)*", section, re.MULTILINE)[0])
    short = program.replace(
        'model="resnet50", epochs=90', 'model="squeezenet1_1", epochs=1, image_size=64, batch_size=4'
    )
    names: dict[str, Any] = {"__name__": "snippet"}
    execute(short, "training.md", names)
    assert names["result"].checkpoint.is_file()
