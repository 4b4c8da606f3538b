"""Installs the example of docs/formats.md: a package that adds the format "jsonlines"."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def install(site: Path) -> Path:
    """Put the package into a folder as pip does; return the folder, which belongs into `sys.path`."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(toml|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    project = next(tomllib.loads(block) for kind, block in blocks if kind == "toml")["project"]
    (module,) = (block for kind, block in blocks if kind == "python" and "(Format):" in block)
    ((group, entries),) = project["entry-points"].items()
    name, version = project["name"].replace("-", "_"), project["version"]
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (site / f"{name}.py").write_text(module, encoding="utf-8")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    lines = [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site
