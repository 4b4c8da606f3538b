"""Deep verification: defects that were written with valid checksums."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from tests.conftest import SCHEMA, encode
from tests.support.child import run_child
from tests.support.commands import failed, good, run


def write(path: Path, images: list[bytes]) -> Path:
    with fr.Writer(path, SCHEMA) as writer:
        for i, image in enumerate(images):
            writer.append({"image": image, "label": i, "key": f"cat/{i}.jpg"})
    return path


def deep(path: Path, **options: Any) -> dict[str, Any]:
    with fr.Reader(path, **options) as reader:
        return reader.verify(deep=True)


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_every_image_of_a_good_file_is_decoded(tmp_path: Path, access: str) -> None:
    kinds = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]
    path = write(tmp_path / "x.frec", [encode(i, kind=kind) for i, kind in enumerate(kinds * 3)])
    report = deep(path, access=access)
    assert (report["ok"], report["errors"], report["decoded"], report["undecoded"]) == (True, [], 21, 0)
    with fr.Reader(path) as reader:
        assert reader.verify()["decoded"] == 0
    assert "21 records" in good("verify", "--deep", path)
    assert "21 images decoded" in good("verify", "--deep", path)


def test_an_image_that_ends_too_early_is_named_by_record_field_and_key(tmp_path: Path) -> None:
    images = [encode(i) for i in range(6)]
    images[2] = images[2][: len(images[2]) // 2]
    images[4] = encode(4, kind="PNG")[:-40]
    path = write(tmp_path / "x.frec", images)
    with fr.Reader(path) as reader:
        assert reader.verify()["ok"]
    report = deep(path)
    named = [(value["record"], value["field"], value["key"]) for value in report["damaged"]]
    assert named == [(2, "image", "cat/2.jpg"), (4, "image", "cat/4.jpg")]
    assert [value["error"] for value in report["damaged"]] == report["errors"]
    assert (report["ok"], report["decoded"]) == (False, 4)
    assert "x.frec: record 2, field image: the JPEG is truncated" in report["errors"][0]
    stderr = failed("verify", "--deep", path)
    assert "record 2, field image" in stderr
    assert " (key cat/2.jpg) [FR502]\n" in stderr
    good("verify", path)
    # They were packed this way, so nothing can be saved.
    assert "good, nothing to repair" in good("repair", path, tmp_path / "out.frec")


def test_an_image_of_a_kind_that_is_not_decoded_is_counted_and_no_error(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    try:
        Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(buffer, "AVIF")
    except (KeyError, OSError):
        pytest.skip("this Pillow writes no AVIF")
    path = write(tmp_path / "x.frec", [encode(0), buffer.getvalue()])
    report = deep(path)
    assert (report["ok"], report["decoded"], report["undecoded"]) == (True, 1, 1)
    assert "1 of kinds that fastrecord does not decode" in good("verify", "--deep", path)


def test_more_pixels_than_allowed_are_an_error_and_take_no_memory(tmp_path: Path) -> None:
    bomb = bytearray(encode(1, kind="PNG"))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    report = deep(write(tmp_path / "x.frec", [bytes(bomb)]))
    assert "60000 x 60000 pixels are more than the limit" in report["errors"][0]


def test_json_says_what_was_decoded_and_what_is_damaged(tmp_path: Path) -> None:
    images = [encode(i) for i in range(3)]
    images[1] = images[1][:-300]
    path = write(tmp_path / "x.frec", images)
    result = run("verify", "--deep", "--json", path, tmp_path / "absent.frec")
    assert result.exit_code == 1
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["ok"], first["decoded"], len(first["errors"])) == (False, 2, 1)
    assert first["damaged"][0] | {"error": ""} == {"record": 1, "field": "image", "key": "cat/1.jpg", "error": ""}
    assert set(second) == set(first)


def test_ctrl_c_ends_it_before_all_is_decoded(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", quality=95)
    write(tmp_path / "x.frec", [buffer.getvalue()] * 80)
    script = """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        seen = []
        def show(done, total):
            seen.append(done)
            if len(seen) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        with fr.Reader("x.frec", threads=1) as reader:
            try:
                reader.verify(deep=True, progress=show)
            except KeyboardInterrupt:
                print(seen[-1], reader.nbytes)
        """
    at, size = (int(word) for word in run_child(script, tmp_path, timeout=300).split())
    assert at < size / 2
