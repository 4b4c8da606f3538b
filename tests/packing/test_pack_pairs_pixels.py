"""Packing pixels of image pairs: shapes, compression, and equality with the decoder's pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from tests.support.packing import pack_with
from tests.support.pairing import folders, large, rows, small
from tests.support.pictures import jpeg, picture, png, reference, save, wide


def test_pixels_of_one_size_have_a_fixed_shape(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(pairs, out, format="pairs", decode="yes")
    with fr.Reader(out) as reader:
        assert repr(reader.schema["lr"]) == 'array("uint8", (10, 12, 3))'
        assert repr(reader.schema["hr"]) == 'array("uint8", (40, 48, 3))'
        batch = reader.read_batch([4, 0])
        assert np.array_equal(batch["lr"], [reference(small(4)), reference(small(0))])
        assert np.array_equal(batch["hr"], [reference(large(4)), reference(large(0))])


def test_pixels_of_many_sizes_have_a_shape_that_is_open(tmp_path: Path) -> None:
    sizes = [(12, 10), (9, 14), (12, 10)]
    lr, hr = folders(
        tmp_path,
        {f"{i}.png": small(i, *size) for i, size in enumerate(sizes)},
        {f"{i}.png": large(i, *size) for i, size in enumerate(sizes)},
    )
    pack_with([lr, hr], tmp_path / "out.frec", format="pairs", decode="yes")
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert repr(reader.schema["hr"]) == 'array("uint8", (None, None, 3))'
        for i, size in enumerate(sizes):
            assert np.array_equal(reader[i]["lr"], reference(small(i, *size)))
            assert np.array_equal(reader[i]["hr"], reference(large(i, *size)))


@pytest.mark.parametrize("compression", ["zstd", "auto"])
def test_compressed_pixels_are_the_same_and_a_pack_of_them_is_resumed(
    pairs: tuple[Path, Path], tmp_path: Path, compression: str
) -> None:
    out = tmp_path / "out.frec"
    flat = {f"f{i}": save(Image.new("RGB", (12, 10), (i, 2, 3)), "PNG") for i in range(3)}
    folders(
        tmp_path,
        {f"{name}.png": data for name, data in flat.items()},
        {f"f{i}.png": save(Image.new("RGB", (48, 40), (i, 2, 3)), "PNG") for i in range(3)},
    )
    pack_with(pairs, tmp_path / "plain.frec", format="pairs", decode="yes")
    pack_with(pairs, out, format="pairs", decode="yes", compression=compression)
    for row, expected in zip(rows(out), rows(tmp_path / "plain.frec"), strict=True):
        assert row["key"] == expected["key"]
        assert np.array_equal(row["lr"], expected["lr"])
        assert np.array_equal(row["hr"], expected["hr"])
    assert pack_with(pairs, out, format="pairs", decode="yes", compression=compression, mode="resume").packed == 0
    with pytest.raises(
        fr.FastRecordError,
        match=f"with other settings: --format pairs, --set decode=yes, --set compression={compression}, ",
    ):
        pack_with(pairs, out, format="pairs", decode="yes", mode="resume")
    if compression != "auto":
        with fr.Reader(out) as reader:
            assert repr(reader.schema["hr"].compression).startswith(f'Compression("{compression}"')
            assert reader.lengths("hr").tolist() == [48 * 40 * 3] * 8
        assert out.stat().st_size < (tmp_path / "plain.frec").stat().st_size


@pytest.mark.parametrize(
    "data", [save(picture(16, 12, "P"), "PNG"), save(picture(16, 12, "LA"), "PNG"), jpeg(16, 12, "CMYK"), png(wide(3))]
)
def test_pixels_equal_the_decoders_for_any_kind_of_image(data: bytes, tmp_path: Path) -> None:
    lr, hr = folders(tmp_path, {"a.png": data}, {"a.png": data})
    assert pack_with([lr, hr], tmp_path / "out.frec", format="pairs", decode="yes").scale == 1
    (row,) = rows(tmp_path / "out.frec")
    assert row["lr"].dtype == np.uint8
    assert np.array_equal(row["lr"], fr.decode_image(data))
    assert np.array_equal(row["lr"], reference(data)) or data.startswith(png(wide(3))[:24])
