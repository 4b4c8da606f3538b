"""Data that need too much memory raise `MemoryError`; the process never ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord import _core
from fastrecord.loader.sample import Picture
from fastrecord.transforms import Pipeline, Resize

MIB = 1 << 20
COUNT = 12
SCHEMA = fr.Schema(
    {
        "image": fr.image(),
        "data": fr.bytes_(),
        "packed": fr.bytes_("zstd"),
        "rows": fr.array("uint8", (None, 4)),
        "grid": fr.array("float32", (300, 100)),
        "label": "int64",
        "text": fr.string(),
        "json": fr.json(),
        "list": fr.list_(fr.string()),
        "small": fr.array("uint8", (3,)),
        "mask": fr.array("uint8", (None, None)),
    }
)


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (1500, 1500), (number, 2, 3)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "a.frec"
    with fr.Writer(path, SCHEMA) as writer:
        for number in range(COUNT):
            values = {
                "image": picture(number),
                "data": bytes([number]) * 2_000_000,
                "packed": bytes([number]) * 4_000_000,
                "rows": np.full((200_000 + number, 4), number, np.uint8),
                "grid": np.full((300, 100), number, np.float32),
                "label": number,
                "text": f"text {number}",
                "json": {"number": number},
                "list": [f"one of {number}", "two"],
                "small": np.full(3, number, np.uint8),
                "mask": np.full((2, 3), number, np.uint8),
            }
            writer.append(values)
    return path


# Images as the loader's threads make them: resized.
RESIZED = Picture("image", "image", Pipeline.of(Resize((224, 224))), (224, 224)).spec(["image"])
# Many numbers of records.
MANY = "r = core.Reader(path); n = np.zeros(300_000, np.int64)"
# For each case: the setup before the memory limit, and the action after it.
WORK = {
    "open": ("", "core.Reader(path)"),
    "views": ("r = core.Reader(path)", "r.read_batch(range(12), ['data', 'label'])"),
    "copies": ("r = core.Reader(path)", "r.read_batch(range(12), copy=True)"),
    "records": ("r = core.Reader(path)", "[r[i] for i in range(12)]"),
    "padded": ("r = core.Reader(path)", "r.read_batch(range(12), ['rows'])['rows'].padded()"),
    "many rows": (MANY, "r.read_batch(n, ['label', 'small'])"),
    "many views": (MANY, "b = r.read_batch(n, ['data', 'image']); b['data'].lengths; b['data'].tolist()"),
    "many shapes": (MANY, "b = r.read_batch(n, ['mask'])['mask']; b.shapes; b.packed(); b.padded(); b.tolist()"),
    "many texts": (MANY, "b = r.read_batch(n, ['text', 'json', 'list']); b['text'], b['json']"),
    "many copies": (MANY, "r.read_batch(n, ['mask', 'small', 'label'], copy=True)['mask'].tolist()"),
    "into": (
        MANY + "; out = bytearray(12 * len(n))",
        "r.read_batch_into(n, 'mask', out); r.read_batch_into(n, 'small', out)",
    ),
    "lengths": (MANY, "[r.lengths(name, n) for name in ('image', 'data', 'packed', 'rows', 'grid', 'mask', 'text')]"),
    "checksums": (MANY, "r.checksums('data', n); core.side_kinds(r, 'image', n)"),
    "indices": (MANY, "r.lengths('grid', n[::-1]); r.lengths('grid', n.astype('u4')); r.lengths('grid', n.tolist())"),
    "parts": (MANY, "core.payload_parts(r, 'data', n); r.prefetch(n[:9], 'data'); r.column('label', copy=True)"),
    "decode": ("r = core.Reader(path); d = bytes(r[0]['image'])", "core.decode_image(d)"),
    "decode records": ("r = core.Reader(path)", "core.decode_records(r, range(6), 'image')"),
    "append": (
        "r = core.Reader(path); v = [r[i] for i in range(3)]; w = core.Writer(out, r.schema, 'w')",
        "[w.append(x) for x in v]; w.close()",
    ),
    "verify": ("r = core.Reader(path)", "r.verify()"),
    "verify deep": ("r = core.Reader(path)", "r.verify(deep=True)"),
    "load": (
        f"r = core.Reader(path); n = np.arange(12); plan = core.LoadPlan([(r, ['image'])], [{RESIZED!r}])",
        "t = plan.start(2); check([e for x in [t.submit(0, 0, n, n) for _ in range(2)] for _, e in x.wait()[1]])",
    ),
    "stack": (
        "plan = core.LoadPlan([(core.Reader(path), ['grid'])], [None]); n = np.arange(12)",
        "t = plan.start(2); check([e for x in [t.submit(0, 0, n) for _ in range(2)] for _, e in x.wait()[1]])",
    ),
}
SCRIPT = """
import os, resource, sys
import numpy as np
from fastrecord import _core as core

path, out = sys.argv[1:3]
before, work, limits = sys.argv[3], sys.argv[4], [int(limit) for limit in sys.argv[5:]]

def check(errors):
    if errors:
        raise errors[0]

def run(limit):
    scope = {**globals()}
    exec(before, scope)
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
    try:
        exec(work, scope)
        return "done"
    except MemoryError:
        return "memory"
    except RuntimeError as error:
        return "threads" if "no thread can be started" in str(error) else str(error)

# Each in a child of its own, forked before the core has made any thread.
for limit in limits:
    child = os.fork()
    if child == 0:
        os.write(1, run(limit).encode() + b"\\n")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        os.write(1, b"status %d, %d bytes\\n" % (status, limit))
"""


@pytest.mark.parametrize("name", WORK)
def test_work_under_any_limit_of_memory_is_done_or_a_memory_error(path: Path, tmp_path: Path, name: str) -> None:
    limits = [0, 1 / 16, 1 / 4, 1 / 2, 1, 3 / 2, 2, 5 / 2, 3, 4, 6, 8, 12, 16, 24, 40, 64, 1024]
    arguments = [str(path), str(tmp_path / "out.frec"), *WORK[name], *(str(int(limit * MIB)) for limit in limits)]
    package = os.path.dirname(os.path.dirname(_core.__file__ or ""))
    environment = {**os.environ, "PYTHONPATH": package, "MALLOC_ARENA_MAX": "1", "RUST_BACKTRACE": "0"}
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    outcomes = child.stdout.split("\n")[:-1]
    assert len(outcomes) == len(limits), child.stderr
    assert set(outcomes) <= {"done", "memory", "threads"}, (outcomes, child.stderr)
    assert outcomes[-1] == "done"


LIMITED = """
import os, resource, sys
import fastrecord.files.extraction
from fastrecord.cli import main
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), used + int(sys.argv[1])))
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.fixture(scope="module")
def swelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few KB that decompress to 20 values of 60 MB and a small one."""
    path = tmp_path_factory.mktemp("swelling") / "a.frec"
    with fr.Writer(path, {"data": fr.bytes_("zstd"), "text": fr.string("zstd")}) as writer:
        for _ in range(20):
            writer.append({"data": bytes(60_000_000), "text": ""})
        writer.append({"data": b"small", "text": "small"})
    return path


def limited(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(limit * MIB), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_extract_holds_one_value_at_a_time(swelling: Path, tmp_path: Path) -> None:
    result = limited(
        600, "extract", swelling, tmp_path / "out", "--field", "data", "--records", "0,1,2,3,4,5,6,7,20", "-q"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(list((tmp_path / "out").iterdir())) == 9


def test_values_that_memory_does_not_hold_are_one_line_each_and_the_others_are_extracted(
    swelling: Path, tmp_path: Path
) -> None:
    result = limited(40, "extract", swelling, tmp_path / "out", "--field", "data", "-q")
    lines = result.stderr.splitlines()
    assert result.returncode == 1, result.stderr
    assert [line.split(", ")[0] for line in lines] == [f"error: {swelling}: record {n}" for n in range(20)]
    assert all("no memory" in line and line.endswith("[FR107]") for line in lines)
    assert [file.read_bytes() for file in (tmp_path / "out").iterdir()] == [b"small"]


def test_a_deep_check_goes_on_behind_values_that_memory_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, {"text": fr.string("zstd")}) as writer:
        for text in ("first", "x" * 60_000_000, "y" * 60_000_000, "last"):
            writer.append({"text": text})
    result = limited(40, "verify", "--deep", path, "-q")
    assert result.returncode == 1, result.stderr
    lines = [line for line in result.stderr.splitlines() if line]
    assert [line.split(", ")[0] for line in lines] == [f"error: {path}: record {n}" for n in (1, 2)], result.stderr
    assert all("no memory for 60000000 bytes" in line and line.endswith("[FR107]") for line in lines)
