"""The wheel: built, installed in a clean environment, and used outside of the checkout."""

from __future__ import annotations

import email
import json
import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import fastrecord
from tests.packaging.test_hardening import assert_hardened

ROOT = Path(__file__).parents[2]
GLIBC = "2.28"
PROGRAM = """
import json, sys
import numpy as np
from PIL import Image
from pathlib import Path
import fastrecord as fr

noise = np.random.default_rng(0)
for name in ("cat/0", "cat/1", "dog/0"):
    file = Path("images", name + ".jpg")
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise.integers(0, 256, (24, 32, 3), np.uint8)).save(file)
if sys.argv[1:] == ["read"]:
    with fr.Reader("three.frec") as reader:
        same = [bytes(r["image"]) == Path("images", r["key"]).read_bytes() for r in map(reader.__getitem__, range(3))]
        labels = reader.column("label").tolist()
    image, label = fr.FastRecordDataset("three.frec")[2]
    print(json.dumps({
        "module": fr._core.__file__, "version": fr.__version__, "same": same, "labels": labels,
        "sample": [image.mode, list(image.size), label],
    }))
"""

pytestmark = [pytest.mark.wheel, pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    # Only a new user's shell variables: nothing may point back at the checkout.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV"))}
    kept |= variables
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=kept,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # With the flags of `make`: other flags would compile everything again. `make wheel` also compiles
    # with zig; here it only links, against the symbols of that C library.
    flags = os.environ.get("RUSTFLAGS") or run("make", "-s", "rustflags").strip()
    linker = out / "zig-cc"
    target = f"{platform.machine()}-linux-gnu.{GLIBC}"
    zig = f"CARGO_ZIGBUILD_ZIG_COMMAND='{sys.executable}' CARGO_ZIGBUILD_ZIG_COMMAND_ARGS='-m ziglang'"
    command = f"'{sys.executable}' -m maturin zig cc -- -g -target {target}"
    linker.write_text(f'#!/bin/sh\nexport {zig}\nexec {command} "$@"\n')
    linker.chmod(0o755)
    tag = f"manylinux_{GLIBC.replace('.', '_')}"
    maturin = (sys.executable, "-m", "maturin", "build", "--release", "--quiet", "--compatibility", tag, "--out", out)
    run(*maturin, "--", "-C", f"linker={linker}", RUSTFLAGS=flags)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def outside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `venv` has the wheel, and the dependencies of this test's environment."""
    folder = tmp_path_factory.mktemp("outside")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    python = folder / "venv/bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    # Torch is not installed twice. Path files there are not followed, so fastrecord is not found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--ignore-installed",  # pip also searches along the path file
        wheel,
        folder=folder,
    )
    run(python, "-c", PROGRAM, folder=folder)
    return folder


def test_auditwheel_accepts_the_wheel_for_glibc_2_28(wheel: Path) -> None:
    said = run(sys.executable, "-m", "auditwheel", "show", wheel)
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
    assert tag in wheel.name
    assert f'is consistent with the following platform tag: "{tag}"' in " ".join(said.split())


def test_make_wheel_and_the_workflow_build_for_the_same_c_library() -> None:
    recipe = run("make", "-n", "wheel")
    assert f"--zig --compatibility manylinux_{GLIBC.replace('.', '_')} " in recipe
    assert f'manylinux: "{GLIBC.replace(".", "_")}"' in (ROOT / ".github/workflows/release.yml").read_text()


def test_wheel_is_one_for_every_cpython_from_3_11_on_and_holds_types_and_license(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))))
    package = {name for name in names if name.startswith("fastrecord/")}
    sources = (file for kind in ("py", "pyi", "html", "toml") for file in ROOT.glob(f"python/fastrecord/**/*.{kind}"))
    checkout = {str(file.relative_to(ROOT / "python")) for file in sources}
    assert package == checkout | {"fastrecord/py.typed", "fastrecord/_core.abi3.so"}
    texts = {name.rpartition(".dist-info/licenses/")[2] for name in names if ".dist-info/licenses/" in name}
    assert texts == {"LICENSE", "THIRD_PARTY_LICENSES"}
    assert metadata["Version"] == fastrecord.__version__
    assert metadata["License-Expression"] == "MIT"
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert sorted(need.split(">")[0].strip() for need in needs) == [
        "click", "numpy", "pillow", "torch", "torchvision", "tqdm",
    ]  # fmt: skip


def test_the_module_brings_its_own_jpeg_library_and_shows_none_of_it(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        module = archive.extract("fastrecord/_core.abi3.so", tmp_path)
    # torchvision and Pillow load their own libjpeg into the same process.
    shown = run("nm", "-D", "--defined-only", module, folder=tmp_path).splitlines()
    assert [line.split()[-1] for line in shown] == ["PyInit__core"]
    dynamic = run("readelf", "-d", module, folder=tmp_path)
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    system = ("libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "ld-linux-")
    assert {name for name in needed if not name.startswith(system)} == set()


def test_the_module_in_the_wheel_is_hardened_and_names_no_path_of_this_machine(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        module = archive.read("fastrecord/_core.abi3.so")
    assert_hardened(module)
    home = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
    for path in (home, str(ROOT)):
        assert f"{path}/".encode() not in module


def test_installed_wheel_packs_and_reads_outside_of_the_checkout(outside: Path) -> None:
    bin_ = outside / "venv/bin"
    run(bin_ / "fastrecord", "pack", "images", "three.frec", folder=outside)
    info = json.loads(run(bin_ / "fastrecord", "info", "--json", "three.frec", folder=outside))
    assert (info["records"], info["classes"]) == (3, ["cat", "dog"])
    run(bin_ / "fastrecord", "verify", "three.frec", folder=outside)

    seen = json.loads(run(bin_ / "python", "-c", PROGRAM, "read", folder=outside))
    assert Path(seen["module"]).is_relative_to(outside)
    assert seen["version"] == fastrecord.__version__
    assert seen["same"] == [True, True, True]
    assert seen["labels"] == [0, 0, 1]
    assert seen["sample"] == ["RGB", [32, 24], 1]


def test_trainer_of_the_installed_wheel_starts(outside: Path) -> None:
    assert "--image-size" in run(outside / "venv/bin/python", "-m", "fastrecord.train", "--help", folder=outside)
