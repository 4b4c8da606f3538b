"""Records go out to every format and come back: each value equal, or its field refused by name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord.interchange import registry
from tests.conftest import encode
from tests.support.packing import pack_with

N = 30
CLASSES = ["cat", "dog", "Übermut / x"]
Fields = dict[str, tuple[fr.FieldType, Any]]
_rng = np.random.default_rng(0)


def images() -> Fields:
    return {
        "image": (fr.image(), [encode(i) for i in range(N)]),
        "label": (fr.FieldType("int64"), [i * i % 3 for i in range(N)]),
        "key": (fr.string(), [f"n{i % 4:03d}/{i:04d}" for i in range(N)]),
    }


def mixed_images() -> Fields:
    """JPEG and PNG in one field, a second field of images, and labels without names."""
    return {
        "image": (fr.image(), [encode(i, kind="JPEG" if i % 3 else "PNG") for i in range(N)]),
        "mask": (fr.image(), [encode(i + 99, mode="L", kind="PNG") for i in range(N)]),
        "label": (fr.FieldType("int64"), [i - 4 for i in range(N)]),
    }


def odd_keys() -> Fields:
    special = [
        "a.b.c",
        "a.b/c.d/e.tar.gz",
        "katze/猫/été",
        "with space",
        "x",
        "x.y",
        "_",
        "..a",
        "A",
        "Ä",
        "-",
        "%41",
        "0",
    ]
    special += ["100%", "%2E", "", ".", "..", "../x", "/root", "end/", "a//b", "a/./b", "__meta__/x", "__x", "_x", ".h"]
    special += ["l" * 300, "new\nline", "nul\0", "%", " "]
    special += ["tab\there", "__key__", "#", "trailing.", "a~b", "a\\b", "C:", "'", '"', "$(x)", "*?[1]", "ß" * 60]
    return {
        "key": (fr.string(), special),
        "image": (fr.image(), [encode(i) for i in range(len(special))]),
    }


def texts() -> Fields:
    words = ["", "plain", "zwei\nZeilen\r\n", "猫🐈", "nul\0in it", " both ends ", "x" * 5000]
    trees: list[Any] = [{}, {"a": [1, 2.5, None, True], "ü": {"b": ""}}, [], [1, "a"], "text", 7, 1.5, None, False]
    return {
        "caption": (fr.string(), [words[i % len(words)] for i in range(N)]),
        "info": (fr.json(), [trees[i % len(trees)] for i in range(N)]),
        "blob": (fr.bytes_(), [bytes(range(256)) * (i % 5) for i in range(N)]),
        "packed": (fr.bytes_("zstd"), [b"again and " * i for i in range(N)]),
    }


def scalars() -> Fields:
    """Every scalar type, with its smallest and largest values."""
    found: Fields = {"flag": (fr.FieldType("bool"), [i % 3 == 0 for i in range(N)])}
    for bits in (8, 16, 32, 64):
        for kind, name in ((np.iinfo(f"int{bits}"), f"int{bits}"), (np.iinfo(f"uint{bits}"), f"uint{bits}")):
            ends = [kind.min, kind.max, 0, 1, kind.max // 3]
            found[f"a_{name}"] = (fr.FieldType(name), [ends[i % 5] for i in range(N)])
    for name in ("float16", "float32", "float64"):
        floats = [0.0, -0.0, 1 / 3, float("inf"), -float("inf"), float("nan"), float(np.finfo(name).max), -1.5]
        found[f"a_{name}"] = (fr.FieldType(name), np.array([floats[i % 8] for i in range(N)], name))
    found["a_complex64"] = (fr.FieldType("complex64"), (_rng.random(N) + 1j * _rng.random(N)).astype(np.complex64))
    found["a_complex128"] = (fr.FieldType("complex128"), _rng.random(N) - 1j * _rng.random(N))
    found["a_bfloat16"] = (fr.FieldType("bfloat16"), torch.arange(N).bfloat16() / 8)
    return found


def arrays() -> Fields:
    def ragged(i: int) -> np.ndarray[Any, Any]:
        return _rng.integers(0, 256, (i % 4, 3, i % 3 + 1), np.uint8)

    return {
        "vector": (fr.array("float32", (5,)), _rng.random((N, 5), np.float32)),
        "pixels": (fr.array("uint8", (4, 6, 3)), _rng.integers(0, 256, (N, 4, 6, 3), np.uint8)),
        "one": (fr.array("int16", ()), _rng.integers(-9, 9, N, np.int16)),
        "none": (fr.array("float64", (0, 2)), np.zeros((N, 0, 2))),
        "bits": (fr.array("bool", (9,)), _rng.random((N, 9)) < 0.5),
        "wave": (fr.array("complex64", (2,)), _rng.random((N, 2)).astype(np.complex64)),
        "ragged": (fr.array("uint8", (None, 3, None)), [ragged(i) for i in range(N)]),
        "bfs": (fr.array("bfloat16", (4,)), _rng.integers(0, 30_000, (N, 4)).astype(np.uint16)),
        "open": (fr.array("bfloat16", (None, None, 1)), [np.full((i % 3, i, 1), i, np.uint16) for i in range(N)]),
        "line": (fr.array("int8", (None,)), [np.arange(i, dtype=np.int8) - 5 for i in range(N)]),
        "doubles": (fr.array("float64", (None,)), [_rng.random(i) for i in range(N)]),
        "points": (fr.array("float32", (None, 2), "lz4"), [_rng.random((i, 2), np.float32) for i in range(N)]),
    }


def lists() -> Fields:
    return {
        "ids": (fr.list_("int64"), [list(range(-i, i)) for i in range(N)]),
        "scores": (fr.list_("float32"), [[j / 4 for j in range(i % 5)] for i in range(N)]),
        "flags": (fr.list_("bool"), [[True, False][: i % 3] for i in range(N)]),
        "tags": (fr.list_(fr.string()), [["", "a", "ü\n"][: i % 4] for i in range(N)]),
        "small": (fr.list_("uint8"), [list(range(i)) for i in range(N)]),
        "doubles": (fr.list_("float64"), [[0.1] * (i % 3) for i in range(N)]),
        "halves": (fr.list_("bfloat16"), [[0.5, 1.5]] * N),
        "trees": (fr.list_(fr.json()), [[{"a": i}] for i in range(N)]),
        "images": (fr.list_(fr.image()), [[encode(j) for j in range(i % 3)] for i in range(N)]),
        "boxes": (
            fr.list_(fr.array("float32", (4,))),
            [[np.full(4, i, np.float32)] * (i % 3) for i in range(N)],
        ),
        "waves": (fr.list_(fr.array("float64", (None,))), [[np.arange(i) / 2] * (i % 3) for i in range(N)]),
        "parts": (fr.list_(fr.bytes_()), [[b"", b"\0\xff"][: i % 3] for i in range(N)]),
    }


# RecordIO has one field of bytes, which comes back under this name; labels and ids, which its records
# have in any case; and no place for types and metadata.
BARE = {"recordio": ("blob", "data", {"id", "label"})}
# Formats with settings whose exports come back too.
FORMATS: list[tuple[str, dict[str, str]]] = [(name, {}) for name in registry.names(writes=True) if name != "folder"] + [
    ("parquet", {"images": "binary", "compression": "none"}),
    ("arrayrecord", {"compression": "zstd"}),
    ("lmdb", {"subdir": "yes"}),
]
FILES: list[Callable[[], Fields]] = [images, mixed_images, odd_keys, texts, scalars, arrays, lists]


def write(path: Path, fields: Fields, metadata: Mapping[str, Any]) -> Path:
    with fr.Writer(path, {name: kind for name, (kind, _) in fields.items()}, metadata=metadata) as writer:
        writer.extend({name: values for name, (_, values) in fields.items()})
    return path


def digests(path: Path) -> dict[str, list[str]]:
    """Return the checksum of each value."""
    found: dict[str, list[str]] = {}
    with fr.Reader(path) as reader:
        batch = reader.read_batch(range(len(reader)))
        for name, kind in reader.schema.items():
            found[name] = [hashlib.sha256(canonical(value, kind)).hexdigest() for value in batch[name]]
    return found


def canonical(value: Any, kind: fr.FieldType) -> bytes:
    if kind.name in ("image", "bytes"):
        return bytes(value)
    if kind.dtype is not None:
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} ".encode() + array.tobytes()
    return repr(
        [bytes(each) if isinstance(each, memoryview) else each for each in value] if kind.item else value
    ).encode()


def types_of(path: Path) -> dict[str, fr.FieldType]:
    """Return the types, without compression; an array of one number counts as that number."""
    with fr.Reader(path) as reader:
        kinds = reader.schema.items()
        return {
            name: fr.FieldType(str(kind.dtype) if kind.shape == () else kind.name, kind.dtype, kind.shape, kind.item)
            for name, kind in kinds
        }


def refused(path: Path, out: Path, name: str) -> list[str]:
    """Return the fields that a format refuses, all of which its error names."""
    with fr.Reader(path) as reader:
        fields = list(registry.load(name).refuse(reader.schema))
    if fields:
        with pytest.raises(fr.FastRecordError, match=rf"cannot hold .*\(drop={re.escape(repr(fields))}\)") as caught:
            fr.export(path, out, name)
        assert caught.value.code == "FR757"
        assert not out.exists()
    return fields


def export(path: Path, out: Path, name: str, drop: list[str], settings: Mapping[str, str]) -> list[str]:
    """Export all but some fields, and but those whose values the format cannot hold; return all left out."""
    while True:
        try:
            return fr.export(path, out, name, drop=drop, settings=settings).dropped
        except fr.FastRecordError as err:
            named = re.search(r"record \d+[:,] field '(\w+)': .*--drop", str(err))
            if err.code != "FR757" or named is None or named[1] in drop or out.exists():
                raise
            drop = [*drop, named[1]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
@pytest.mark.parametrize(("name", "settings"), FORMATS)
def test_a_round_trip_loses_nothing_that_is_not_refused_by_name(
    name: str, settings: Mapping[str, str], file: Callable[[], Fields], tmp_path: Path
) -> None:
    metadata: dict[str, Any] = {"note": {"licence": "CC0", "ü": [1, None]}}
    if file is images:
        metadata["classes"] = CLASSES
    path = write(tmp_path / "in.frec", file(), metadata)
    dropped = refused(path, tmp_path / "out", name)
    if len(dropped) == len(file()):
        return
    dropped = export(path, tmp_path / "out", name, dropped, settings)
    # What an export wrote is known for one, and replaced.
    fr.export(path, tmp_path / "out", name, drop=dropped, settings=settings, overwrite=True)
    before, kinds = digests(path), types_of(path)
    kept = [each for each in before if each not in dropped]
    summary = pack_with(tmp_path / "out", tmp_path / "back.frec", format=name)
    count = len(next(iter(file().values()))[1])
    assert summary.records == count
    old, new, more = BARE.get(name, ("", "", set()))
    renamed = {new if each == old else each: each for each in kept}
    after, types = digests(tmp_path / "back.frec"), types_of(tmp_path / "back.frec")
    assert after.keys() <= renamed.keys() | more
    equal = {new: sum(a == b for a, b in zip(after[new], before[old], strict=True)) for new, old in renamed.items()}
    assert equal == dict.fromkeys(renamed, count)
    assert {new: types[new] for new in renamed} == {new: kinds[old] for new, old in renamed.items()}
    with fr.Reader(tmp_path / "back.frec") as reader:
        assert name in BARE or {each: reader.metadata.get(each) for each in metadata} == metadata


@pytest.mark.parametrize("name", [name for name, settings in FORMATS if not settings])
def test_shards_come_back_as_one_data_set(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.frec", images(), {"classes": CLASSES})
    kind = registry.load(name)
    if not kind.shards and "shard_size" not in kind.settings:
        with pytest.raises(ValueError, match="cannot be divided into shards"):
            fr.export(path, tmp_path / "out", name, shard_size=12_000)
        return
    dropped = refused(path, tmp_path / "out", name)
    for overwrite in (False, True):
        summary = fr.export(path, tmp_path / "out", name, shard_size=12_000, drop=dropped, overwrite=overwrite)
        assert summary.files > 3
    pack_with(tmp_path / "out", tmp_path / "back.frec")
    before, after = digests(path), digests(tmp_path / "back.frec")
    kept = [field for field in before if field not in dropped]
    assert {field: after[field] for field in kept} == {field: before[field] for field in kept}
    with fr.Reader(tmp_path / "back.frec") as reader:
        assert name in BARE or reader.metadata["classes"] == CLASSES


@pytest.mark.parametrize("name", registry.names(writes=True))
def test_an_abort_leaves_nothing_beside_the_file(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.frec", {"image": images()["image"]}, {})
    (tmp_path / "out").mkdir()
    with fr.Reader(path) as reader:
        target = registry.load(name)
        destination = target.create(str(tmp_path / "out/a.npz"), reader.schema, {}, {})
        destination.write(0, {"image": reader.read_batch(range(N))["image"]})
        destination.abort()
    assert {each.name for each in (tmp_path / "out").iterdir()} <= {"a.npz", "a.idx"}


def test_a_folder_of_images_comes_back_by_pack_and_is_never_replaced(tmp_path: Path) -> None:
    classes = ["cat", "dog", "owl"]
    labels = [i // 10 for i in range(N)]
    keys = [f"{classes[label]}/{i:02d}.jpg" for i, label in enumerate(labels)]
    fields = images() | {"label": (fr.FieldType("int64"), labels), "key": (fr.string(), keys)}
    path = write(tmp_path / "in.frec", fields, {"classes": classes})
    assert fr.export(path, tmp_path / "out", "folder").files == N
    # Nothing tells it from a user's only copy.
    with pytest.raises(FileExistsError, match="may be another thing than an export"):
        fr.export(path, tmp_path / "out", "folder", overwrite=True)
    pack_with(tmp_path / "out", tmp_path / "back.frec")
    assert digests(tmp_path / "back.frec") == digests(path)
