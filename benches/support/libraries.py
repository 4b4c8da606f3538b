"""Other formats written and read by their own libraries, for benches/experiments/interchange.py.

Writers are fed from memory; readers turn each value into bytes, in the order of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

BATCH = 256


@cache
def images(root: str) -> list[bytes]:
    """The images of a folder with one folder per class, in order, as `fastrecord pack` takes them."""
    return [path.read_bytes() for path in sorted(Path(root).glob("*/*"))]


def labels(root: str) -> Iterator[int]:
    classes = {name: number for number, name in enumerate(sorted(os.listdir(root)))}
    return (classes[path.parent.name] for path in sorted(Path(root).glob("*/*")))


def write_webdataset(root: str, out: str) -> None:
    import webdataset

    with webdataset.TarWriter(out, encoder=False) as writer:
        for number, (image, label) in enumerate(zip(images(root), labels(root), strict=True)):
            writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": str(label).encode()})


def read_webdataset(path: str) -> int:
    import tarfile

    count = 0
    with tarfile.open(path, "r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            count += file is not None and len(file.read()) > 1000
    return count


def write_lmdb(root: str, out: str) -> None:
    import lmdb

    found = images(root)
    size = sum(map(len, found)) * 2 + (64 << 20)
    environment = lmdb.open(out, map_size=size, subdir=True)
    for start in range(0, len(found), BATCH):
        with environment.begin(write=True) as transaction:
            for number in range(start, min(start + BATCH, len(found))):
                transaction.put(f"{number:08d}".encode(), found[number], append=True)
    environment.sync(True)
    environment.close()


def read_lmdb(path: str) -> int:
    import lmdb

    environment = lmdb.open(path, readonly=True, lock=False, subdir=True)
    with environment.begin() as transaction:
        count = sum(len(value) > 1000 for _, value in transaction.cursor())
    environment.close()
    return count


def write_tfrecord(root: str, out: str) -> None:
    import tfrecord

    writer = tfrecord.TFRecordWriter(out)
    for image, label in zip(images(root), labels(root), strict=True):
        writer.write({"image": (image, "byte"), "label": (label, "int")})
    writer.close()


def read_tfrecord(path: str) -> int:
    import tfrecord

    kinds = {"image": "byte", "label": "int"}
    return sum(len(bytes(record["image"])) > 1000 for record in tfrecord.tfrecord_loader(path, None, kinds))


def write_hdf5(root: str, out: str) -> None:
    import h5py

    found, kind = images(root), h5py.vlen_dtype(np.uint8)
    with h5py.File(out, "w") as file:
        column = file.create_dataset("image", (len(found),), kind)
        file["label"] = np.fromiter(labels(root), np.int64)
        for number, image in enumerate(found):
            column[number] = np.frombuffer(image, np.uint8)


def read_hdf5(path: str) -> int:
    import h5py

    with h5py.File(path) as file:
        column, count = file["image"], 0
        for start in range(0, len(column), BATCH):
            count += sum(len(bytes(value)) > 1000 for value in column[start : start + BATCH])
    return count


def write_parquet(root: str, out: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"image": pa.binary(), "label": pa.int64()})
    found, numbers = images(root), list(labels(root))
    with pq.ParquetWriter(out, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, len(found), BATCH):
            part = slice(start, start + BATCH)
            writer.write_batch(pa.record_batch([pa.array(found[part], pa.binary()), numbers[part]], schema=schema))


def read_parquet(path: str) -> int:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            count += sum(len(value) > 1000 for value in batch.column("image").to_pylist())
    return count


def sync(path: str) -> None:
    """Write what is at a path to the disk."""
    for file in [Path(path), *Path(path).rglob("*")]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


WRITE: dict[str, Callable[[str, str], None]] = {
    "webdataset": write_webdataset,
    "lmdb": write_lmdb,
    "tfrecord": write_tfrecord,
    "hdf5": write_hdf5,
    "parquet": write_parquet,
}
READ: dict[str, Callable[[str], int]] = {
    "webdataset": read_webdataset,
    "lmdb": read_lmdb,
    "tfrecord": read_tfrecord,
    "hdf5": read_hdf5,
    "parquet": read_parquet,
}
