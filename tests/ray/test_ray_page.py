"""The programs of docs/ray.md."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
from PIL import Image

import fastrecord as fr
from tests.conftest import encode
from tests.support.programs import execute

pytestmark = [
    pytest.mark.usefixtures("address"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray's own
]
PAGE = Path(__file__).parents[2] / "docs/ray.md"


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = []
    for number in range(8):
        jpeg = io.BytesIO()
        Image.new("RGB", (600 if number % 2 else 300, 40), (number, 0, 0)).save(jpeg, "JPEG")
        rows.append({"jpg": jpeg.getvalue(), "text": f"caption {number}", "aesthetic": number})
    ray.data.from_items(rows).write_parquet(str(tmp_path / "laion"))
    for name in ("cat", "dog"):
        folder = tmp_path / "shared/imagenet/train" / name
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f"{number}.jpg").write_bytes(encode(number))
    write, read, pack = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for text in (write, read, pack):
        text = text.replace("/shared", str(tmp_path / "shared")).replace("Workers(64)", "Workers(2)")
        execute(text.replace('"laion/"', repr(str(tmp_path / "laion"))), str(PAGE), names)
        if "write_frec" in text:
            found = fr.FastRecordDataset(tmp_path / "shared/laion", fields=["caption"])
            assert sorted(found[at]["caption"] for at in range(len(found))) == ["caption 6", "caption 7"]
    assert [row["caption"] for row in names["images"].take_all()] == ["caption 7"]
    assert len(fr.FastRecordDataset(tmp_path / "shared/packed")) == 6
