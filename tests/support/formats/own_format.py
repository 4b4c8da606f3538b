"""Installs the example of a format of one's own: a package that adds the format "jsonlines"."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "examples" / "jsonlines"


def install(site: Path) -> Path:
    """Put the package into a folder as pip does; return the folder, which belongs into `sys.path`."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((group, entries),) = project["entry-points"].items()
    name, version = project["name"].replace("-", "_"), project["version"]
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    shutil.copy(PACKAGE / f"{name}.py", site)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    lines = [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site
