"""Records of any types survive every way of writing and reading: seeded."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

import fastrecord as fr
from tests.conftest import encode

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
IMAGES = [encode(seed) for seed in range(4)]
Make = Callable[[Generator], Any]


def numbers(rng: Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits of the type, including NaN and infinities; bool of 0 and 1."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


def any_compression(rng: Generator) -> fr.Compression | str | None:
    choices = [None, None, "lz4", "zstd", "auto", fr.Compression("zstd", level=1, dictionary=1000)]
    return choices[rng.integers(len(choices))]


def text(rng: Generator) -> str:
    return "".join(rng.choice(list("aé猫🐈\0\n"), rng.integers(0, 30)))


def some_bytes(rng: Generator) -> bytes:
    """Bytes, some compressible and some not."""
    alphabet = int(rng.choice([1, 4, 256]))
    return rng.integers(0, alphabet, rng.integers(0, 3000)).astype(np.uint8).tobytes()


def some_json(rng: Generator) -> Any:
    return [None, True, int(rng.integers(-(2**53), 2**53)), text(rng), {"é": [1, 2.5], "": {}}][rng.integers(5)]


def any_scalar(rng: Generator) -> tuple[fr.FieldType, Make]:
    dtype = str(rng.choice([*INTS, *FLOATS, "bool"]))
    kind = fr.FieldType(dtype)
    return kind, lambda rng: numbers(rng, dtype, ())[()]


def any_array(rng: Generator) -> tuple[fr.FieldType, Make]:
    dtype = str(rng.choice([*INTS, *FLOATS, "bool"]))
    shape = tuple(None if rng.random() < 0.4 else int(rng.integers(1, 6)) for _ in range(rng.integers(0, 4)))
    if None not in shape and rng.random() < 0.1:
        shape = (*shape, 0)

    def make(rng: Generator) -> np.ndarray:
        return numbers(rng, dtype, tuple(int(rng.integers(0, 9)) if dim is None else dim for dim in shape))

    kind = fr.array(dtype, shape)
    if kind.nbytes is not None and kind.nbytes <= 64 and 0 not in shape:  # values of an index column
        return kind, make
    return fr.array(dtype, shape, compression=any_compression(rng)), make


def any_plain(rng: Generator) -> tuple[fr.FieldType, Make]:
    choices: list[tuple[fr.FieldType, Make]] = [
        (fr.string(compression=any_compression(rng)), text),
        (fr.json(compression=any_compression(rng)), some_json),
        (fr.bytes_(compression=any_compression(rng)), some_bytes),
        (fr.image(), lambda rng: IMAGES[rng.integers(len(IMAGES))]),
    ]
    return choices[rng.integers(len(choices))]


def any_list(rng: Generator) -> tuple[fr.FieldType, Make]:
    item, make = [any_scalar, any_array, any_plain][rng.integers(3)](rng)
    item = replace(item, compression=None)  # the list has the compression
    return fr.list_(item, compression=any_compression(rng)), lambda rng: [make(rng) for _ in range(rng.integers(0, 5))]


def any_field(rng: Generator) -> tuple[fr.FieldType, Make]:
    return [any_scalar, any_array, any_plain, any_list][rng.integers(4)](rng)


def normal(value: Any) -> Any:
    """Convert any value to plain data that equals itself: NaN by its bits."""
    if isinstance(value, (list, fr._core.Arrays, fr._core.Payloads)):
        return [normal(item) for item in value]
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array.dtype.name, array.shape, array.tobytes()
    return value


def as_field(value: Any, kind: fr.FieldType) -> Any:
    """Apply `normal`; convert a Python number to its field's type."""
    if kind.item is not None:
        return [as_field(item, kind.item) for item in value]
    if kind.dtype is not None and kind.name != "array":
        # Python's floats are wider: they lose which NaN it was.
        value = np.asarray(value, kind.dtype)
        if np.isnan(value).any() if value.dtype.kind in "fc" else False:
            return value.dtype.name, "nan"
    return normal(value)


def assert_holds(path: Path, schema: dict[str, fr.FieldType], rows: list[dict[str, Any]], rng: Generator) -> None:
    """Read a file in every way."""
    wanted = [{name: as_field(row[name], kind) for name, kind in schema.items()} for row in rows]
    for access in ("mmap", "pread"):
        with fr.Reader(path, access) as reader:
            kinds = {name: replace(kind, compression=None) for name, kind in reader.schema.items()}
            assert (len(reader), kinds) == (len(rows), schema)
            picks = rng.integers(0, len(rows), rng.integers(0, 20)) if rows else np.zeros(0, np.int64)
            for name, kind in schema.items():
                one_by_one = [as_field(reader.get(i, name, verify=True), kind) for i in range(len(rows))]
                assert one_by_one == [row[name] for row in wanted], f"{access}, get of {name}: {kind}"
                for verify in (False, True):
                    batch = reader.read_batch(picks, [name], verify=verify)[name]
                    found = [as_field(value, kind) for value in batch]
                    assert found == [wanted[i][name] for i in picks], f"{access}, batch of {name}: {kind}"
                if kind.name == "array" and kind.nbytes is not None:
                    shape = (dim for dim in kind.shape or () if dim is not None)
                    out = np.empty((len(picks), *shape), np.dtype(kind.dtype))
                    reader.read_batch_into(picks, name, out)
                    assert [as_field(value, kind) for value in out] == [wanted[i][name] for i in picks]
                if kind.nbytes is not None and (kind.name != "array" or 1 <= kind.nbytes <= 64):
                    column = [as_field(value, kind) for value in reader.column(name)]
                    assert column == [row[name] for row in wanted], f"{access}, column of {name}: {kind}"
            again = pickle.loads(pickle.dumps(reader))
            assert (len(again), again.commit) == (len(rows), reader.commit)
            if rows:
                last = reader[len(rows) - 1]
                assert {name: as_field(last[name], kind) for name, kind in schema.items()} == wanted[-1]
            assert reader.verify()["errors"] == []


def write(path: Path, rng: Generator) -> Iterator[tuple[dict[str, fr.FieldType], list[dict[str, Any]]]]:
    """Write a file in several sessions of several steps; yield its content after each session."""
    fields = {f"field {i} é": any_field(rng) for i in range(rng.integers(1, 6))}
    rows: list[dict[str, Any]] = []

    def row() -> dict[str, Any]:
        return {name: make(rng) for name, (_, make) in fields.items()}

    schema = {name: kind for name, (kind, _) in fields.items()}
    commit_bytes = int(rng.choice([1, 5000, 1 << 30]))
    for session in range(rng.integers(1, 4)):
        mode, given = ("a", None) if session else ("x", schema)
        with fr.Writer(path, given, mode, commit_bytes=commit_bytes) as writer:
            for step in range(rng.integers(0, 5)):
                new = [row() for _ in range(rng.integers(0, 15))]
                match rng.integers(5):
                    case 0:
                        rows += new
                        for record in new:
                            writer.append(record)
                    case 1:
                        rows += new
                        writer.extend({name: [record[name] for record in new] for name in fields})
                    case 2:
                        writer.commit()
                    case 3:
                        name = f"new {session}.{step}".replace(".", "-")
                        kind, make = any_field(rng)
                        values = [make(rng) for _ in rows]
                        with writer.add_field(name, kind) as filler:
                            cut = int(rng.integers(0, len(rows) + 1))
                            filler.extend(values[:cut])
                            for value in values[cut:]:
                                filler.append(value)
                        fields[name] = (kind, make)
                        for record, value in zip(rows, values, strict=True):
                            record[name] = value
                    case 4 if len(fields) > 1:
                        name = list(fields)[rng.integers(len(fields))]
                        writer.drop_field(name)
                        del fields[name]
                        for record in rows:
                            del record[name]
        # The file does not report the requested compression ("auto" or a dictionary).
        yield {name: replace(kind, compression=None) for name, (kind, _) in fields.items()}, rows


@pytest.mark.parametrize("seed", range(16))
def test_any_records_come_back_however_they_were_written(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for schema, rows in write(tmp_path / "x.frec", rng):
        assert_holds(tmp_path / "x.frec", schema, rows, rng)


@pytest.mark.parametrize("seed", range(40, 48))
def test_any_two_files_of_a_schema_make_one_and_a_copy_without_dead_bytes_holds_the_same(
    tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    path = tmp_path / "x.frec"
    *_, (schema, rows) = write(path, rng)
    fr.files.compact(path, tmp_path / "compact.frec")
    assert_holds(tmp_path / "compact.frec", schema, rows, rng)
    fr.files.merge([path, tmp_path / "compact.frec"], tmp_path / "merged.frec", allow_incomplete=True)
    assert_holds(tmp_path / "merged.frec", schema, rows + rows, rng)
