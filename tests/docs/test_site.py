"""The documentation as a site: built strictly, complete, and without anything from elsewhere."""

from __future__ import annotations

import html
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import fastrecord as fr
from tests.support.browser import needs_browser, open_browser

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    return folder


def test_the_site_has_each_page_and_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in ROOT.glob("docs/**/*.md")}
    pages |= {str(notebook.relative_to(ROOT).with_suffix(".html")) for notebook in ROOT.glob("examples/*.ipynb")}
    assert pages <= {str(page.relative_to(site)) for page in site.rglob("*.html")}
    loaded = re.compile(r"""<(?:script|img|iframe)[^>]* src=["']?(?:https?:)?//|<link[^>]* href=["']?(?:https?:)?//""")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))] == []


def test_the_reference_describes_each_public_name(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("api/*.html"))
    described = set(re.findall(r'id="fastrecord\.(\w+)"', text))
    assert set(fr.__all__) - described == {"errors", "files", "inspect", "transforms"}
    for folder in ("files", "inspect"):
        names = set(re.findall(rf'id="fastrecord\.{folder}\.(\w+)"', text))
        assert set(getattr(fr, folder).__all__) <= names
    assert {f"transforms.{name}" for name in fr.transforms.__all__ if name not in ("Geometry", "Size")} <= set(
        re.findall(r'id="fastrecord\.(transforms\.\w+)"', text)
    )
    plain = html.unescape(re.sub(r"<[^>]+>", "", text))
    # The docstrings of the compiled module, with the types of its stub.
    for part in ("Read many records in one call, without the GIL.", "commit_bytes: int = 1 << 30"):
        assert part in plain


def test_a_broken_link_or_anchor_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[a](gone.md) [b](#nowhere) [c](index.md#start)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nhooks: []\nnav: [index.md]\nplugins: []\n")
    done = build(config, tmp_path / "site")
    assert done.returncode == 1
    assert re.findall(r"contains a link '(.*?)'", done.stderr) == ["gone.md", "#nowhere"]


def test_the_table_and_the_picture_of_options_are_those_of_the_measurements() -> None:
    outputs = runpy.run_path(str(ROOT / "scripts/draw_options.py"))["outputs"]()
    assert len(outputs) == 2
    for path, text in outputs.items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/draw_options.py: {path.name} is old"


@pytest.mark.parametrize("page", [*ROOT.glob("docs/from/*.md"), ROOT / "docs/index.md"], ids=lambda page: page.stem)
def test_a_page_for_newcomers_cites_only_numbers_that_were_measured(page: Path) -> None:
    pages = [ROOT / name for name in ("benches/results/full/tables.md", "docs/performance.md")]
    measured = {text for page in pages for text in re.findall(r"\d[\d.,]*\d|\d", page.read_text(encoding="utf-8"))}
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    claims = re.findall(r"(\d[\d.,]*) (?:x as|ns|ms|images/s)|(?<=\| )(\d,\d{3})(?= \|)", text)
    assert {number for claim in claims for number in claim if number} - measured == set()


def test_the_search_has_what_it_needs_without_a_server(site: Path) -> None:
    """Opened from disk, a page can fetch nothing and start no worker: the index and the worker are scripts."""
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    for page in (site / "index.html", site / "api" / "files.html"):
        scripts = re.findall(r'<script src="([^"]+)"', page.read_text(encoding="utf-8"))
        assert [Path(script).name.split(".")[0] for script in scripts][:2] == ["iframe-worker", "bundle"]
        assert all((page.parent / script).is_file() for script in scripts)


@needs_browser
@pytest.mark.parametrize("page", ["index.html", "howto/audio.html"])
def test_the_search_finds_a_page_of_a_site_that_was_opened_from_disk(site: Path, tmp_path: Path, page: str) -> None:
    with open_browser(tmp_path) as browser:
        browser.get((site / page).as_uri())
        browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys("BatchSampler")
        link = WebDriverWait(browser, 60).until(
            lambda driver: next(iter(driver.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")), None)
        )
        assert link is not None
        assert re.match(re.escape(f"{site.as_uri()}/") + r"[\w/]+\.html\?h=", str(link.get_attribute("href")))
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
