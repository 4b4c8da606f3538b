"""JPEGs stored as packed coefficients: every way out gives the bytes that went in."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord._core import codecs
from tests.support.commands import failed, good
from tests.support.packing import metadata, pack_with, records, write
from tests.support.pictures import jpeg, picture, save
from tests.support.recoding import FILES, stored

JPEGS = [key for key, data in FILES.items() if data.startswith(b"\xff\xd8")]


def packed_keys(path: Path) -> list[str]:
    """Return the keys of the images that are stored as packed coefficients."""
    with fr.Reader(path) as reader:
        found = codecs(reader, "image", range(len(reader))).tolist()
        return [reader[i]["key"] for i, codec in enumerate(found) if codec == 3]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, recode_source: Path) -> Path:
    """The images of the recoding tests, packed. Read only."""
    out = tmp_path_factory.mktemp("packed") / "out.frec"
    pack_with(recode_source, out, packed=True)
    return out


def test_a_pack_keeps_every_byte_and_says_what_it_packed(recode_source: Path, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    summary = json.loads(good("pack", recode_source, out, "--packed", "--json"))
    assert stored(out) == FILES
    assert packed_keys(out) == JPEGS
    counts = summary["recoded"]
    assert (counts["images"], counts["kept"], counts["packed"]) == (9, 9, len(JPEGS))
    assert (counts["smaller"], counts["raw"], counts["crop_index"]) == (0, 0, 0)
    assert counts["bytes_in"] == sum(map(len, FILES.values()))
    assert f"of 9 images {len(JPEGS)} packed, {9 - len(JPEGS)} not; " in good(
        "pack", recode_source, out, "--packed", "--overwrite"
    )
    text = good("info", path)
    assert f"stored    image {len(JPEGS)} packed, of 9 looked at" in text
    assert "recoded   --packed" in text
    (images,) = (field.images for field in fr.inspect.stats(path).fields if field.images is not None)
    assert images.packed == len(JPEGS)
    good("verify", "--deep", path)


def test_smaller_images_are_packed_too(recode_source: Path, tmp_path: Path) -> None:
    small, plain = tmp_path / "small.frec", tmp_path / "plain.frec"
    printed = good("pack", recode_source, small, "--packed", "--short-side", 120)
    pack_with(recode_source, plain, short_side=120)
    assert stored(small) == stored(plain)
    assert "of 9 images 6 made smaller, 8 packed, 1 not; " in printed
    assert metadata(small)["packs"][0]["recode"] == {"short_side": 120, "quality": 90, "packed": True}


def test_other_images_stay_as_they_came(tmp_path: Path) -> None:
    files = {f"a/{i}.png": save(picture(20 + i, 30), "PNG") for i in range(3)}
    printed = good("pack", write(tmp_path / "src", files), tmp_path / "out.frec", "--packed")
    assert "of 3 images 0 packed, 3 not; " in printed
    assert stored(tmp_path / "out.frec") == files


def test_appends_imports_and_shards_are_packed(recode_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    pack_with(write(tmp_path / "more", {"a/x.jpg": FILES["a/0.jpg"], "b/x.jpg": FILES["b/1.jpg"]}), out)
    good("pack", recode_source, out, "--append", "--packed")
    assert stored(out) == {"a/x.jpg": FILES["a/0.jpg"], "b/x.jpg": FILES["b/1.jpg"], **FILES}
    assert packed_keys(out) == JPEGS
    good("pack", recode_source, tmp_path / "part.frec", "--packed", "--shards", 3)
    parts = sorted(tmp_path.glob("part-*.frec"))
    assert len(parts) == 3
    assert {key: data for part in parts for key, data in stored(part).items()} == FILES
    assert [key for part in parts for key in packed_keys(part)] == JPEGS
    images = [jpeg(200 + i, 160) for i in range(4)]
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for i, image in enumerate(images):
            for name, data in ((f"a/{i}.jpg", image), (f"a/{i}.cls", str(i).encode())):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    imported = tmp_path / "imported.frec"
    assert "of 4 images 4 packed; " in good("import", tmp_path / "in.tar", imported, "--packed")
    assert list(stored(imported).values()) == images
    assert packed_keys(imported) == [f"a/{i}" for i in range(4)]


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("verify", [False, True, "once"])
def test_readers_give_the_original(
    path: Path, access: Literal["mmap", "pread"], verify: Literal["once"] | bool
) -> None:
    with fr.Reader(path, access, verify=verify) as reader:
        expected = [FILES[reader[i]["key"]] for i in range(9)]
        assert [bytes(reader.get(i, "image")) for i in range(9)] == expected
        assert [bytes(reader.get(i, "image", copy=True)) for i in range(9)] == expected
        assert [bytes(value) for value in reader.read_batch([8, 0, 0, 3], ["image"])["image"]] == [
            expected[i] for i in (8, 0, 0, 3)
        ]
        lengths = reader.lengths("image").tolist()
        assert lengths == [len(data) for data in expected]
        out = np.empty(sum(lengths), np.uint8)
        reader.read_batch_into(range(9), "image", out)
        assert out.tobytes() == b"".join(expected)


def test_what_is_exported_is_the_original(path: Path, tmp_path: Path) -> None:
    good("extract", path, tmp_path / "extracted")
    for key, data in FILES.items():
        assert (tmp_path / "extracted" / key).read_bytes() == data, key
    good("export", path, tmp_path / "out.tar", "--format", "webdataset")
    with tarfile.open(tmp_path / "out.tar") as tar:
        found = {file.read() for entry in tar if (file := tar.extractfile(entry)) is not None}
    assert set(FILES.values()) <= found


def test_pixels_and_crops_are_those_of_the_original(recode_source: Path, path: Path, tmp_path: Path) -> None:
    pack_with(recode_source, tmp_path / "plain.frec")
    views: list[list[Any]] = []
    for file in (path, tmp_path / "plain.frec"):
        by_core, by_pillow = fr.FastRecordDataset(file, decode="native"), fr.FastRecordDataset(file)
        native = [by_core[i][0].numpy() for i in range(9)]
        pillow = [np.asarray(by_pillow[i][0]) for i in range(9)]
        loader = fr.FastRecordLoader(fr.FastRecordDataset(file), 4, sample=[fr.transforms.RandomResizedCrop(48)])
        views.append([*native, *pillow, *(batch[0].numpy() for batch in loader)])
    assert all(np.array_equal(one, other) for one, other in zip(*views, strict=True))


def is_good(reader: fr.Reader, record: int) -> bool:
    try:
        return bytes(reader.get(record, "image")) in FILES.values()
    except fr.errors.CorruptFileError:
        return False


def test_a_damaged_image_names_its_record_and_the_way_out(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.frec"
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1  # within the images, which come first
    copy.write_bytes(data)
    for verify in (False, True):
        with fr.Reader(copy, verify=verify) as reader:
            damaged = [i for i in range(9) if not is_good(reader, i)]
            assert len(damaged) == 1
            with pytest.raises(fr.errors.CorruptFileError) as caught:
                reader.get(damaged[0], "image")
        assert f"{copy}: record {damaged[0]}, field image: stored CRC" in str(caught.value)
        assert (caught.value.code, caught.value.record, caught.value.field) == ("FR302", damaged[0], "image")
    assert "FR302" in failed("verify", copy)
    out = tmp_path / "repaired.frec"
    failed("repair", copy, out)
    assert records(out) == [row for i, row in enumerate(records(path)) if i not in damaged]
    assert set(packed_keys(out)) < set(JPEGS)


def test_progressive_jpegs_come_back_too(tmp_path: Path) -> None:
    image = Image.open(io.BytesIO(jpeg(200, 160)))
    files = {
        "a/0.jpg": save(image, "JPEG", progressive=True, quality=80),
        "a/1.jpg": save(image.convert("L"), "JPEG", progressive=True),
        "a/2.jpg": save(image, "JPEG", optimize=True, comment=b"a comment") + b"and more",
    }
    pack_with(write(tmp_path / "src", files), tmp_path / "out.frec", packed=True)
    assert stored(tmp_path / "out.frec") == files
    assert packed_keys(tmp_path / "out.frec") == list(files)
