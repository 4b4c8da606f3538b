"""Field types, example values and record files shared by the array tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr

ACCESS = ["mmap", "pread"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
NUMPY = ["bool", *INTEGERS, *FLOATS, *COMPLEX]


def write(path: Path, schema: dict[str, fr.FieldType], *records: dict[str, Any]) -> fr.Reader:
    with fr.Writer(path, schema, "w") as writer:
        for record in records:
            writer.append(record)
    return fr.Reader(path)


def arrays_of(name: str, shape: tuple[int, ...], count: int, seed: int = 0) -> Any:
    dtype = np.dtype("uint16" if name == "bfloat16" else name)
    rng = np.random.default_rng(seed)
    if name == "bool":
        return rng.integers(0, 2, (count, *shape)).astype(bool)
    size = count * int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(count, *shape)


def same(found: Any, wanted: Any) -> bool:
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


RAGGED = {
    "rows": fr.array("float32", (None, 5)),
    "tokens": fr.array("int32", (None,)),
    "inner": fr.array("uint8", (3, None)),
    "masks": fr.array("bool", (None, 2, None)),
    "any": fr.array("int16", (None, None)),
}


def ragged_record(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    a, b = (int(n) for n in rng.integers(0, 7, 2))
    return {
        "rows": rng.random((a, 5), np.float32),
        "tokens": rng.integers(0, 1000, 3 * b).astype(np.int32),
        "inner": rng.integers(0, 255, (3, b)).astype(np.uint8),
        "masks": rng.integers(0, 2, (a, 2, b)).astype(bool),
        "any": rng.integers(-9, 9, (b, a)).astype(np.int16),
    }
