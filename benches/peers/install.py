"""Install the peers: `python -m benches.peers.install`.

They go into a separate environment, .cache/bench/peers, on top of the one that runs this. Some need
old versions of packages that others need too. The shared torch, torchvision, numpy and Pillow must
not change. A peer that does not install is left out, and the benchmark reports it. The environment
has its name only when all of them were tried.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / ".cache" / "bench" / "peers"

SHARED = ("torch", "torchvision", "numpy", "pillow")

# Name -> arguments of each pip call.
PEERS: dict[str, list[list[str]]] = {
    "torchcodec": [["torchcodec==0.17.0"]],  # BSD-3-Clause; decodes JPEGs without FFmpeg
    "albumentations": [["albumentations==2.0.8"]],  # MIT
    "turboloader": [["turboloader==2.39.0"]],  # MIT
    "webdataset": [["webdataset==1.0.2"]],  # BSD-3-Clause
    "lmdb": [["lmdb==3.0.0", "lz4==4.4.5"]],  # OpenLDAP Public License; BSD-3-Clause
    "hdf5": [["h5py==3.16.0"]],  # BSD-3-Clause
    "litdata": [["litdata==0.2.76"]],  # Apache-2.0
    # Apache-2.0; some required parts are under NVIDIA's own licences; runs without a GPU.
    "nvidia-dali": [["nvidia-dali-cuda130==2.4.0"]],
    # BSD-2-Clause; needs FFmpeg's libraries from the system (Debian: ffmpeg).
    "spdl": [["spdl==0.8.0"]],
    # Apache-2.0; its reader of RecordIO works without the rest, which needs numpy < 1.24.
    "mxnet": [["--no-deps", "mxnet==1.9.1"]],
    # Apache-2.0. It requires numpy < 2.2, transformers < 5 (which `datasets` cannot be beside) and the clients of all
    # clouds; local files need none of these.
    "mosaicml-streaming": [
        ["transformers>=5", "huggingface-hub>=2", "xxhash", "zstd", "brotli", "python-snappy", "cramjam", "catalogue"],
        ["--no-deps", "mosaicml-streaming==0.13.0"],
    ],
    # Apache-2.0; built here: needs pkg-config and the headers of OpenCV and TurboJPEG (Debian: libopencv-dev,
    # libturbojpeg0-dev).
    "ffcv": [
        ["setuptools", "wheel", "numba", "opencv-python-headless", "fastargs", "pytorch-pfn-extras"],
        ["--no-deps", "--no-build-isolation", "ffcv==1.0.2"],
    ],
}


def main() -> int:
    """Install all peers that can be installed."""
    partial = FOLDER.with_name(f"{FOLDER.name}.partial")
    venv.create(partial, with_pip=True, clear=True)
    python = partial / "bin" / "python"
    # Its own packages come first on the path, then the packages of the running environment.
    below = Path(sysconfig.get_path("purelib", vars={"base": str(partial), "platbase": str(partial)}))
    (below / "below.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    constraints = partial / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version(name)}\n" for name in SHARED))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    failed = [
        name
        for name, calls in PEERS.items()
        if any(subprocess.run(pip + call, check=False).returncode for call in calls)
    ]
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    partial.rename(FOLDER)
    print(f"installed into {FOLDER}: {', '.join(name for name in PEERS if name not in failed)}")
    if failed:
        print(f"could not be installed: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
