from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.inspect.statistics import Duplicates, FieldStats, FileStats, _head, _subsampling
from tests.conftest import CLASS_COUNTS, write_images
from tests.support.commands import failed, good
from tests.support.packing import pack_with
from tests.support.pictures import KINDS, jpeg, picture, save


def field(stats: FileStats, name: str) -> FieldStats:
    return next(one for one in stats.fields if one.name == name)


def write_mixed(path: Path) -> list[bytes]:
    images = [
        jpeg(40, 30, subsampling="4:2:0"),
        jpeg(40, 30, subsampling="4:4:4", progressive=True),
        jpeg(40, 30, mode="L"),
        jpeg(60, 20, mode="CMYK"),
        save(picture(40, 30, "RGBA"), "PNG"),
        save(picture(40, 30), "WEBP"),
        jpeg(40, 30, quality=40),
        jpeg(40, 30, subsampling="4:2:0"),
    ]
    with fr.Writer(path, fr.Schema({"image": fr.image()})) as writer:
        for image in images:
            writer.append({"image": image})
    data = bytearray(path.read_bytes())
    at = data.index(images[6])
    data[at + 3 : at + len(images[6])] = bytes(len(images[6]) - 3)
    path.write_bytes(data)
    return images


def test_bytes_of_a_field_are_those_of_its_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 1000, 501)
    schema = fr.Schema({"data": fr.bytes_(), "text": fr.json("zstd"), "x": "float32", "a": fr.array("int16", (100,))})
    for number, part in enumerate(np.array_split(sizes, 3)):
        with fr.Writer(tmp_path / f"{number}.frec", schema) as writer:
            for size in part.tolist():
                writer.append(
                    {"data": rng.bytes(size), "text": ["word"] * 100, "x": 1.0, "a": rng.integers(0, 9, 100, np.int16)}
                )
    stats = fr.inspect.stats(tmp_path)
    assert (stats.records, len(stats.files)) == (501, 3)
    data = field(stats, "data").bytes
    ordered = np.sort(sizes)
    assert data is not None
    assert (data.min, data.median, data.p99, data.max, data.sum) == (
        *ordered[[0, 250, 495, 500]].tolist(),
        sizes.sum(),
    )
    assert sum(data.counts) == 501
    text = field(stats, "text")
    assert text.ratio is not None
    assert text.ratio > 5
    assert text.stored == sum(fr.Reader(tmp_path / f"{i}.frec").compression()["text"]["stored"] for i in range(3))
    assert field(stats, "x").stored == 4 * 501
    assert field(stats, "a").ratio == 1


def test_kinds_of_images_are_counted(tmp_path: Path) -> None:
    write_mixed(tmp_path / "m.frec")
    images = field(fr.inspect.stats(tmp_path / "m.frec"), "image").images
    assert images is not None
    assert images.sampled == 8
    assert images.formats == {"JPEG": 6, "PNG": 1, "WebP": 1}
    assert images.modes == {"RGB": 4, "L": 1, "CMYK": 1, "RGBA": 1}
    assert images.subsampling["4:2:0"] == 2
    assert images.progressive == 1
    assert images.unreadable == 1
    assert images.common_sizes[0] == (40, 30, 7)
    assert images.width is not None
    assert (images.width.min, images.width.max) == (40, 60)
    assert images.aspect is not None
    assert images.aspect.max == 3


def test_images_with_a_crop_index_are_counted(tmp_path: Path) -> None:
    for name, size in (("a", 200), ("b", 40)):
        (tmp_path / "in" / "x").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "x" / f"{name}.jpg").write_bytes(jpeg(size, size))
    pack_with(tmp_path / "in", tmp_path / "o.frec", crop_index=True)
    images = field(fr.inspect.stats(tmp_path / "o.frec"), "image").images
    assert images is not None
    assert images.crop_index == 1


def test_a_sample_is_of_the_size_asked_for_and_the_same_for_a_seed(tmp_path: Path) -> None:
    path = write_images(tmp_path / "i.frec", [0] * 40)
    first, again = (fr.inspect.stats(path, sample=10, seed=3) for _ in range(2))
    assert first == again
    images = field(first, "image").images
    assert images is not None
    assert images.sampled == 10
    assert images.width is not None
    assert sum(images.width.counts) == 40  # from the index, of all
    none = field(fr.inspect.stats(path, sample=0), "image").images
    assert none is not None
    assert none.formats == {}
    assert "10 of 40 records, at random with seed 3" in good("stats", path, "--sample", 10, "--seed", 3)


def test_images_in_a_field_of_bytes_are_looked_at_too(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "b.frec", fr.Schema({"data": fr.bytes_(), "other": fr.bytes_()})) as writer:
        for _ in range(3):
            writer.append({"data": jpeg(), "other": b"text"})
    stats = fr.inspect.stats(tmp_path / "b.frec")
    images = field(stats, "data").images
    assert images is not None
    assert images.common_sizes == [(61, 43, 3)]
    assert field(stats, "other").images is None


def test_classes_are_counted_with_their_imbalance(packed: Path, tmp_path: Path) -> None:
    classes = fr.inspect.stats(packed).classes
    assert classes is not None
    assert classes.counts == CLASS_COUNTS
    assert classes.imbalance == 5 / 3
    path = write_images(tmp_path / "c.frec", [2, 2, 2, 0, -1], ["a", "empty", "c"])
    classes = fr.inspect.stats(path).classes
    assert classes is not None
    assert classes.counts == {"a": 1, "empty": 0, "c": 3}
    assert (classes.empty, classes.unlabelled, classes.largest, classes.smallest) == (["empty"], 1, 3, 1)
    # Classes of several files are matched by name.
    other = write_images(tmp_path / "d.frec", [0, 1], ["c", "b"])
    classes = fr.inspect.stats([path, other]).classes
    assert classes is not None
    assert classes.counts == {"a": 1, "empty": 0, "c": 4, "b": 1}


def test_labels_of_other_types_are_counted_or_left_out(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {"string": ["b", "a", "b"], "bool": [True, False, True], "float32": [0.5, 1, 2]}
    for kind, labels in values.items():
        with fr.Writer(tmp_path / f"{kind}.frec", fr.Schema({"label": fr.FieldType(kind)})) as writer:
            writer.extend({"label": labels})
    named, flags, floats = (fr.inspect.stats(tmp_path / f"{kind}.frec").classes for kind in values)
    assert named is not None
    assert named.counts == {"a": 1, "b": 2}
    assert flags is not None
    assert flags.counts == {"0": 1, "1": 2}
    assert floats is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if re.match(r"(progressive )?JPEG 4:\d:\d$", kind)])
def test_the_sampling_of_colours_has_its_usual_name(kind: str) -> None:
    head = _head(memoryview(KINDS[kind]()), None)
    assert head is not None
    assert _subsampling(head) == [kind[-5:]]


def test_duplicates_are_counted_over_all_files(tmp_path: Path) -> None:
    schema = fr.Schema({"data": fr.bytes_(), "name": fr.string()})
    for number in range(2):
        with fr.Writer(tmp_path / f"{number}.frec", schema) as writer:
            for i in range(10):
                writer.append({"data": bytes([i % 4]) * 50, "name": f"{number} {i}"})
    stats = fr.inspect.stats(tmp_path)
    assert field(stats, "data").duplicates == Duplicates(4, 16, compared=True)
    assert field(stats, "name").duplicates == Duplicates(0, 0, compared=True)
    assert "duplicates in data: 16 records" in good("stats", tmp_path)


def test_equal_checksums_of_other_values_are_no_duplicates(tmp_path: Path) -> None:
    one, other = colliding()
    with fr.Writer(tmp_path / "x.frec", fr.Schema({"data": fr.bytes_()})) as writer:
        writer.extend({"data": [one, other]})
    reader = fr.Reader(tmp_path / "x.frec")
    assert len(set(reader.checksums("data").tolist())) == 1
    assert field(fr.inspect.stats(tmp_path / "x.frec"), "data").duplicates == Duplicates(0, 0, compared=True)


def colliding() -> tuple[bytes, bytes]:
    """Return two texts of one length and one CRC-32C: they differ by a multiple of its polynomial."""
    polynomial = 0x11EDC6F41  # 33 bits; a stream of bytes has its lowest bit first
    one = int.from_bytes(b"sixteen bytes...", "big")
    width = 128
    difference = polynomial << 40
    bits = f"{difference:0{width}b}"
    turned = int("".join(bits[i : i + 8][::-1] for i in range(0, width, 8)), 2)
    return one.to_bytes(16, "big"), (one ^ turned).to_bytes(16, "big")


def test_many_equal_values_are_counted_by_their_checksums_alone(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "x.frec", fr.Schema({"data": fr.bytes_()})) as writer:
        writer.extend({"data": [b"same"] * 5000})
    assert field(fr.inspect.stats(tmp_path / "x.frec"), "data").duplicates == Duplicates(1, 4999, compared=False)
    assert "(equal checksums and lengths)" in good("stats", tmp_path / "x.frec")


def test_a_file_without_records_has_no_sizes(tmp_path: Path) -> None:
    schema = fr.Schema({"image": fr.image(), "label": "int64", "x": fr.json()})
    fr.Writer(tmp_path / "e.frec", schema).close()
    stats = fr.inspect.stats(tmp_path / "e.frec")
    assert [one.bytes for one in stats.fields] == [None] * 3
    assert good("stats", tmp_path / "e.frec")
    assert json.loads(good("stats", tmp_path / "e.frec", "--json"))["records"] == 0


def test_the_command_prints_a_table_or_json(packed: Path) -> None:
    table = good("stats", packed)
    for text in ("12 records", "JPEG 91.67 %", "PNG 8.333 %", "imbalance 1.667", "cat 5", "all 12 records"):
        assert text in table, text
    about = json.loads(good("stats", packed, "--json"))
    assert about == fr.inspect.stats(packed).to_dict() | {"fields": about["fields"]}
    assert about["classes"]["counts"] == CLASS_COUNTS
    assert [one["name"] for one in about["fields"]] == ["image", "label", "key"]


def test_files_of_other_fields_are_refused(packed: Path, tmp_path: Path) -> None:
    write_mixed(tmp_path / "m.frec")
    assert "[FR410]" in failed("stats", packed, tmp_path / "m.frec")
    assert "nothing.frec" in failed("stats", tmp_path / "nothing.frec")


def test_the_plot_is_a_picture_and_replaces_another(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.png"
    assert good("stats", packed, "--plot", out) == good("stats", packed)
    with Image.open(io.BytesIO(out.read_bytes())) as image:
        assert image.size == (1500, 850)
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 20
    before = out.read_bytes()
    assert "name ends with .png, .svg, .pdf" in failed("stats", packed, "--plot", tmp_path / "p.txt", status=2)
    out.write_bytes(b"")
    good("stats", packed, "--plot", out)
    assert len(out.read_bytes()) > len(before) // 2
    fr.inspect.plot_stats(fr.inspect.stats(packed), tmp_path / "other.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.png", "stats.png"]


def test_names_with_odd_characters_are_drawn(tmp_path: Path) -> None:
    path = write_images(tmp_path / "$a_b$ 猫.frec", [0, 1], ["$x^", "鳥"])
    good("stats", path, "--plot", tmp_path / "p.png")


def test_a_missing_package_is_an_error_with_the_pip_line(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'fastrecord[plot]'" in failed("stats", packed, "--plot", tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []
