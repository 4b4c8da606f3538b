"""Every command runs twice in one folder: again it works the same, or says what it always says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.cli import cli
from fastrecord.interchange.registry import names
from tests.conftest import write_images
from tests.support.commands import flip, run
from tests.support.packing import pack_with
from tests.support.rewriting import write_rows

SAME = "the same output"
EXISTS = "exists already"
# What a format can hold, if not rows of bytes, label and key.
_SOURCE = {"folder": "train.frec", "recordio": "images.frec"}
# Formats whose files cannot be told from those of others: they are not replaced.
_KEPT = "remove the folder, or choose another place"
# The line of each command, in a folder that `folder` makes, and what its second run does: its whole output again
# (SAME), or something with these words; EXISTS is a refusal with a way out, which is then taken.
ROWS = [
    ("pack images new.frec", EXISTS),
    ("pack images new.frec --shards 2", EXISTS),
    ("pack images new.frec --resume", "complete already"),
    ("pack more train.frec --append", "is in the file already"),
    ("pack images new.frec --overwrite", "records in 2 classes"),
    ("pack images new.frec --crop-index --short-side 32", EXISTS),
    ("pack --format pairs lr hr new.frec", EXISTS),
    ("pack --format pairs lr hr new.frec --set decode=yes --shards 2", EXISTS),
    ("pack --set list=list.csv . new.frec", EXISTS),
    ("pack images {url}/packed --shards 2", EXISTS),
    ("pack images {url}/packed.frec", EXISTS),
    ("import train.tar new.frec", EXISTS),
    ("import train.tar new.frec --dry-run", SAME),
    ("import more.tar train.frec --append", "an earlier record has the key"),
    ("import train.tar {url}/imported --shards 2", EXISTS),
    ("info train.frec", SAME),
    ("info set", SAME),
    ("info --json {url}/set", SAME),
    ("ls train.frec", SAME),
    ("ls {url}/set", SAME),
    ("head train.frec", SAME),
    ("head {url}/set", SAME),
    ("stats train.frec", SAME),
    ("stats {url}/set", SAME),
    ("browse train.frec -o page.html", EXISTS),
    ("browse {url}/set -o page.html", EXISTS),
    ("diff train.frec copy.frec", SAME),
    ("diff {url}/set set", SAME),
    ("extract train.frec out", EXISTS),
    ("extract train.frec out --overwrite", "12 records"),
    *((f"export {_SOURCE.get(name, 'rows.frec')} new --format {name}", EXISTS) for name in names(writes=True)),
    ("export rows.frec new --format mds --shard-size 1KB", EXISTS),
    ("verify train.frec", SAME),
    ("verify --deep set", SAME),
    ("verify {url}/set", SAME),
    ("verify bad.frec", SAME),
    ("repair bad.frec new.frec", EXISTS),
    ("repair train.frec new.frec", SAME),
    ("merge train.frec copy.frec -o new.frec", EXISTS),
    ("split train.frec --shards 2", EXISTS),
    ("split train.frec --fractions 0.5,0.5 --names a,b", EXISTS),
    ("shuffle train.frec new.frec --seed 1", EXISTS),
    ("select train.frec new.frec --where label==1", EXISTS),
    ("select set new.frec", EXISTS),
    ("index train.frec", "0 indexed"),
    ("manifest set", "nothing has changed"),
    ("manifest {url}/set", "nothing has changed"),
    ("manifest set --check", SAME),
    ("copy set {url}/copied", "2 of them were there already"),
    ("copy {url}/set fetched", "2 of them were there already"),
    ("copy train.frec {url}/copied.frec", "there already"),
    ("compact train.frec", "12 records"),
    ("compact train.frec new.frec", EXISTS),
    ("doctor train.frec", "nothing found"),
    ("bench train.frec --seconds 0.1", "Expect"),
    ("plan --gpus 8 --gpu A100", SAME),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, image_folder: Path, packed: Path) -> Path:
    """Make what the commands take."""
    root = tmp_path_factory.mktemp("made")
    for name in ("train.frec", "copy.frec"):
        shutil.copy(packed, root / name)
    for name in ("cat", "owl"):
        shutil.copytree(image_folder / name, root / "images" / name)
    shutil.copytree(image_folder / "dog", root / "more" / "fox")
    pack_with(root / "more", root / "more.frec")
    fr.export(root / "more.frec", root / "more.tar", "webdataset")
    (root / "list.csv").write_text("path,label\nimages/cat/0.jpg,0\nimages/owl/1.jpg,1\n", encoding="utf-8")
    for side, size in (("lr", 16), ("hr", 32)):
        (root / side).mkdir()
        for number in range(4):
            Image.fromarray(np.full((size, size, 3), number, np.uint8)).save(root / side / f"{number}.png")
    flip(root / "train.frec", root / "bad.frec", record=3)
    for place in ("set", "store/set"):
        (root / place).mkdir(parents=True)
        for shard in range(2):
            write_images(root / place / f"{shard}.frec", [0, 1, 1], ["cat", "owl"], seed=shard)
        fr.files.write_manifest(root / place)
    fr.export(packed, root / "train.tar", "webdataset")
    fr.files.drop_field(Path(shutil.copy(packed, root / "images.frec")), "key")
    write_rows(root / "rows.frec", 50)
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_has_a_row() -> None:
    assert list(dict.fromkeys(line.split()[0] for line, _ in ROWS)) == cli.list_commands(click.Context(cli))


@pytest.mark.parametrize(("line", "again"), ROWS, ids=[line for line, _ in ROWS])
def test_a_command_runs_twice(line: str, again: str, folder: Path) -> None:
    words = line.format(url=(folder / "store").as_uri()).split()
    first, second = run(*words), run(*words)
    assert first.exit_code == (1 if "bad.frec" in words else 0), first.output
    if again == SAME:
        assert (second.exit_code, second.output) == (first.exit_code, first.output)
        return
    assert again in second.output
    assert second.exit_code == ("error: " in second.output), second.output
    if again != EXISTS or _KEPT in second.output:
        return
    assert re.search("`--overwrite`.* replaces it", second.output)
    third = run(*words, "--overwrite")  # the way out that the message names
    assert third.exit_code == first.exit_code, third.output
