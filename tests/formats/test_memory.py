"""Imports and exports need the same memory for large sources as for small ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.child import run_child

RECORDS, SIZE = 2000, 110_000  # 220 MB
ROOM = 160 << 20  # three runs of 8 MiB, the buffers of the pack, and the ones of the library
LIMITED = """
def limited(room):
    \"\"\"Limit the memory to what the process has now, and some more.\"\"\"
    with open("/proc/self/status") as file:
        status = file.read()
    used = int(status.split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "large.frec"
    noise = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    ppm = b"P6 100 350 255 " + bytes(105_000)
    schema = {"image": fr.image(), "noise": fr.bytes_(), "label": fr.FieldType("int64"), "key": fr.string()}
    with fr.Writer(path, schema, metadata={"classes": list("abcdefghij")}) as writer:
        for i in range(RECORDS):
            data = noise.copy()
            data[:8] = np.frombuffer(i.to_bytes(8, "little"), np.uint8)
            writer.append({"image": ppm, "noise": data.tobytes(), "label": i % 10, "key": f"k{i}"})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names(writes=True))
def test_memory_does_not_grow_with_the_source(name: str, packed: Path, tmp_path: Path) -> None:
    with fr.Reader(packed) as reader:
        refused = list(registry.load(name).refuse(reader.schema))
    drop = sorted({*refused, "image"}) if "noise" not in refused else refused
    back = "" if name == "folder" else "fr.pack(out, 'back.frec', output=fr.Output(mode='overwrite'))"
    script = f"""
def there_and_back(out):
    fr.export({str(packed)!r}, out, {name!r}, drop={drop!r})
    {back}
there_and_back("first")  # loads the library, which may start its threads
limited({ROOM})
there_and_back("second")
"""
    run_child(LIMITED + script, tmp_path)
