"""Packing with changed images: smaller, raw, with a crop index."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord._core import side_kinds
from tests.support.commands import failed, good
from tests.support.packing import metadata, pack_with, write
from tests.support.recoding import FILES, decoded, difference, encoded, picture, sizes, stored

# Smaller


def test_only_images_above_the_short_side_are_made_smaller(recode_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    summary = pack_with(recode_source, out, short_side=120)
    assert sizes(out) == {
        "a/0.jpg": (180, 120),
        "a/1.jpg": (120, 180),
        "a/2.jpg": (100, 100),
        "a/3.jpg": (333, 111),
        "b/0.png": (168, 120),
        "b/1.jpg": (120, 180),
        "b/2.jpg": (180, 120),
        "b/3.webp": (240, 120),
        "b/4.png": (40, 30),
    }
    images = stored(out)
    kept = {key for key, data in images.items() if data == FILES[key]}
    assert kept == {"a/2.jpg", "a/3.jpg", "b/4.png"}
    assert all(data.startswith(b"\xff\xd8") for key, data in images.items() if key not in kept)
    assert summary.recoded is not None
    assert summary.recoded == {
        "images": 9,
        "kept": 3,
        "smaller": 6,
        "crop_index": 0,
        "packed": 0,
        "raw": 0,
        "bytes_in": sum(map(len, FILES.values())),
        "bytes_out": sum(map(len, images.values())),
    }


def test_a_higher_quality_is_larger_and_nearer(recode_source: Path, tmp_path: Path) -> None:
    data = {}
    for quality in (None, 50, 90, 100):
        out = tmp_path / f"{quality}.frec"
        pack_with(recode_source, out, short_side=120, quality=quality)
        data[quality] = stored(out)["a/1.jpg"]
    assert data[None] == data[90]
    assert len(data[50]) < len(data[90]) < len(data[100])
    best = np.asarray(
        Image.open(io.BytesIO(FILES["a/1.jpg"])).convert("RGB").resize((120, 180), Image.Resampling.LANCZOS)
    )
    errors = [difference(decoded(data[quality]), best) for quality in (50, 90, 100)]
    assert errors == sorted(errors, reverse=True)


# Raw


@pytest.mark.parametrize("short_side", [None, 120])
def test_raw_images_are_the_decoded_pixels_made_smaller_as_pillow_does(
    recode_source: Path, tmp_path: Path, short_side: int | None
) -> None:
    out = tmp_path / "out.frec"
    summary = pack_with(recode_source, out, raw=True, short_side=short_side)
    found = sizes(out)
    assert found.keys() == FILES.keys()
    for key, data in stored(out).items():
        width, height = found[key]
        assert len(data) == len(f"P6\n{width} {height}\n255\n") + 3 * width * height
        with Image.open(io.BytesIO(FILES[key])) as image:
            expected = image.convert("RGB")
        if expected.size == found[key]:
            # Pillow rounds differently in converting CMYK and WebP.
            assert difference(decoded(data), np.asarray(expected)) <= (key in ("b/1.jpg", "b/3.webp")), key
        else:
            expected = expected.resize(found[key], Image.Resampling.LANCZOS)
            assert difference(decoded(data), np.asarray(expected)) < 1.5, key
    assert summary.recoded is not None
    assert (summary.recoded["raw"], summary.recoded["kept"]) == (9, 0)
    assert summary.recoded["smaller"] == (0 if short_side is None else 6)


def test_what_is_extracted_is_what_was_stored(recode_source: Path, tmp_path: Path) -> None:
    pack_with(recode_source, tmp_path / "index.frec", crop_index=True)
    pack_with(recode_source, tmp_path / "raw.frec", raw=True)
    good("extract", tmp_path / "index.frec", tmp_path / "index")
    for key, data in FILES.items():
        assert (tmp_path / "index" / key).read_bytes() == data, key
    good("extract", tmp_path / "raw.frec", tmp_path / "raw")
    with Image.open(tmp_path / "raw" / "a" / "0.jpg") as image:
        assert image.format == "PPM"
    good("extract", tmp_path / "raw.frec", tmp_path / "numbered", "--numbered")
    assert sorted(path.name for path in (tmp_path / "numbered").iterdir()) == [f"{i}.ppm" for i in range(9)]


# The crop index


def test_jpegs_with_a_crop_index_keep_their_bytes(recode_source: Path, tmp_path: Path) -> None:
    out, plain = tmp_path / "out.frec", tmp_path / "plain.frec"
    summary = pack_with(recode_source, out, crop_index=True)
    pack_with(recode_source, plain)
    assert stored(out) == FILES
    assert summary.recoded is not None
    assert summary.recoded["kept"] == 9
    with fr.Reader(out) as reader:
        kinds = side_kinds(reader, "image", range(9)).tolist()
        assert reader.verify(deep=True)["ok"]
    assert 4 <= summary.recoded["crop_index"] == kinds.count(2) == 9 - kinds.count(0)
    # The same images have an index if it comes later.
    fr.files.index(plain)
    with fr.Reader(plain) as reader:
        assert side_kinds(reader, "image", range(9)).tolist() == kinds
    assert fr.files.index(out).indexed == 0
    assert metadata(out)["packs"][0]["recode"] == {"crop_index": True}
    printed = good("pack", recode_source, tmp_path / "again.frec", "--crop-index")
    assert f"of 9 images 9 kept byte for byte, {kinds.count(2)} with a crop index; " in printed
    assert "recoded   --crop-index" in good("info", out)


def test_smaller_images_get_a_crop_index_too(recode_source: Path, tmp_path: Path) -> None:
    summary = pack_with(recode_source, tmp_path / "out.frec", crop_index=True, short_side=120)
    assert summary.recoded is not None
    assert (summary.recoded["smaller"], summary.recoded["kept"]) == (6, 3)
    assert summary.recoded["crop_index"] >= 6
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert reader.verify(deep=True)["ok"]


# Bad files


@pytest.mark.parametrize("options", [{"short_side": 100}, {"raw": True}])
def test_an_image_that_cannot_be_decoded_is_a_bad_file(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = encoded(picture(0, 300, 200))
    src = write(tmp_path / "src", {"a/0.jpg": whole, "a/1.jpg": whole[: len(whole) // 2], "a/2.jpg": whole})
    out = tmp_path / "out.frec"
    with pytest.raises(fr.FastRecordError, match=r"a/1\.jpg: the JPEG is truncated.*`--bad-files skip`"):
        pack_with(src, out, **options)
    assert not out.exists()
    summary = pack_with(src, out, bad_files="skip", **options)
    assert [key for key, _ in summary.skipped] == ["a/1.jpg"]
    assert list(stored(out)) == ["a/0.jpg", "a/2.jpg"]
    with fr.Writer(tmp_path / "raise.frec", fr.Schema({"image": fr.image()})) as writer:
        with pytest.raises(fr.errors.DecodeError, match=r"a/1\.jpg: the JPEG is truncated"):
            writer.append_files("image", [src / "a" / f"{i}.jpg" for i in range(3)], {}, recode=fr.Recode(**options))
        assert len(writer) == 1


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short_side": 10, "max_side": 20}, "short_side or max_side, not both"),
        ({"short_side": 0}, "short_side is from 1 to 65500"),
        ({"max_side": -1}, "max_side is from 1 to 65500"),
        ({"short_side": 10, "quality": 101}, "quality is from 1 to 100"),
        ({"short_side": 10, "quality": 0}, "quality is from 1 to 100"),
        ({"quality": 50}, "quality belongs to short_side"),
        ({"raw": True, "short_side": 10, "quality": 50}, "quality belongs to short_side"),
        ({"raw": True, "crop_index": True}, "need no crop index: leave out crop_index"),
        ({"packed": True, "crop_index": True}, "leave out raw and crop_index"),
        ({"packed": True, "raw": True}, "leave out raw and crop_index"),
        ({"sixteen_bit": "scale"}, "sixteen_bit belongs to raw"),
        ({"raw": True, "sixteen_bit": "reject"}, 'sixteen_bit is "scale", "clip" or None'),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    recode_source: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fr.Recode(**options)
    with pytest.raises(ValueError, match=message):
        pack_with(recode_source, tmp_path / "out.frec", **options)
    assert not (tmp_path / "out.frec").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--short-side", 9, "--max-side", 9], "not both"),
        (["--crop-index", "--raw"], "need no crop index: leave out --crop-index"),
        (["--packed", "--raw"], "leave out --raw and --crop-index"),
        (["--quality", 80], "--short-side or --max-side"),
        (["--raw", "--shard-size", "1GB"], "--shards"),
    ],
)
def test_wrong_usage_of_the_command_says_what_is_right(
    recode_source: Path, tmp_path: Path, arguments: list[object], message: str
) -> None:
    assert message in failed("pack", recode_source, tmp_path / "out.frec", *arguments, status=2)


def test_the_command_says_what_became_of_the_images(recode_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    printed = good("pack", recode_source, out, "--short-side", 120, "--quality", 80)
    assert "of 9 images 6 made smaller, 3 kept byte for byte; " in printed
    assert "recoded   --short-side 120 --quality 80" in good("info", out)
    assert metadata(out)["packs"][0]["recode"] == {"short_side": 120, "quality": 80}
    plain = tmp_path / "plain.frec"
    assert "byte for byte" not in good("pack", recode_source, plain)
    assert "recoded" not in good("info", plain)
    assert "recode" not in metadata(plain)["packs"][0]
