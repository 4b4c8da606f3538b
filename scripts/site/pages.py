"""A hook of mkdocs: pages for files outside docs/, and links that hold on the forge and on the site.

A page links to another file as the forge wants it, such as `../SECURITY.md` or
`../examples/srcnn.py`. Each such file becomes a page of the site, and the link leads there.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
# Beside the pages that are linked to.
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", *sorted(f"examples/{path.name}" for path in ROOT.glob("examples/*.ipynb")))
LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)#\s]+)")
FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".rs": "rust", ".c": "c", ".toml": "toml", ".sh": "sh"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that a page links to, and for the notebooks."""
    waiting = [*ALWAYS]
    for file in files.documentation_pages():
        waiting += _targets(DOCS + file.src_uri, file.content_string)
    done = set()
    while waiting:
        path = waiting.pop()
        if path in done or path.startswith(DOCS) or not (ROOT / path).is_file():
            continue
        done.add(path)
        text = _text(ROOT / path)
        files.append(File.generated(config, _site(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        if path.endswith(".md"):
            waiting += _targets(path, text)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links lead to the pages of the site."""
    source = page.file.src_uri
    if page.file.generated_by is None:
        source = DOCS + source
    here = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = _resolve(source, match[2])
        if not (ROOT / target).is_file():
            return match[0]  # mkdocs names the link
        return match[1] + posixpath.relpath(_site(target), here or ".")

    return _outside_of_fences(markdown, lambda text: LINK.sub(lead, text))


def _outside_of_fences(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _targets(source: str, text: str) -> list[str]:
    return [_resolve(source, match[2]) for match in LINK.finditer(FENCE.sub("", text))]


def _resolve(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _site(path: str) -> str:
    """Return where the site has a file of the project, as the path of its source."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path == "README.md":
        return "overview.md"  # mkdocs takes a README for an index
    if path.endswith(".ipynb"):
        return path.removesuffix("ipynb") + "md"
    return path if path.endswith(".md") else path + ".md"


def _text(path: Path) -> str:
    """Return a file as a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return _notebook(json.loads(text))
    fence = "`" * 4
    return f"# {path.relative_to(ROOT)}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


def _notebook(notebook: dict[str, Any]) -> str:
    """Return the cells as Markdown, with the text that they printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/jpeg" in data:
        picture = "".join(data["image/jpeg"]).strip()
        return f'<img class="output" alt="The output of the cell" src="data:image/jpeg;base64,{picture}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    printed = "".join(output.get("text", data.get("text/plain", "")))
    return f"```{{.text .output}}\n{printed.rstrip()}\n```"
