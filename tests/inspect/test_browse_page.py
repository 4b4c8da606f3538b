"""The page of `fastrecord browse` in a browser: what it shows, clicks, filters, keys."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import fastrecord as fr
from tests.conftest import CLASS_COUNTS
from tests.support.browser import needs_browser, open_browser
from tests.support.commands import flip, good
from tests.support.pictures import jpeg

pytestmark = needs_browser
EVIL = '</script><img src=x onerror="document.title=1">'
FIELD = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def show(browser: Chrome, page: Path) -> None:
    browser.get(page.as_uri())
    WebDriverWait(browser, 20).until(
        lambda driver: driver.execute_script("return [...document.images].every((image) => image.complete)")
    )


def found(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def text(browser: Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def press(browser: Chrome, *keys: str) -> None:
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def is_clean(browser: Chrome) -> bool:
    log: list[object] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return log == []


@pytest.fixture(scope="module")
def page(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "sheet.html"
    good("browse", packed, "-o", out)
    return out


def test_the_page_shows_every_image_with_its_label_and_key(browser: Chrome, page: Path) -> None:
    show(browser, page)
    assert len(found(browser, ".tile img")) == 12
    assert browser.execute_script("return [...document.images].every((image) => image.naturalWidth > 0)")
    assert text(browser, ".tile .about").splitlines()[:2] == ["cat", "cat/0.jpg"]
    shot = browser.get_screenshot_as_png()
    with Image.open(io.BytesIO(shot)) as image:
        colours = len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0))
    assert colours > 5000  # images, not only text and frames
    assert is_clean(browser)


def test_a_class_filters_the_page(browser: Chrome, page: Path) -> None:
    show(browser, page)
    rows = {row.text.split("\n")[0]: row for row in found(browser, "#classes button")}
    assert [row.text.split("\n") for row in rows.values()] == [
        ["All", "12"],
        *([name, str(count)] for name, count in sorted(CLASS_COUNTS.items(), key=lambda one: -one[1])),
    ]
    rows["owl"].click()
    assert [tile.text.split("\n")[0] for tile in found(browser, ".tile")] == ["owl"] * 4
    assert text(browser, "#count") == "4 of 12 records"
    assert rows["owl"].get_attribute("aria-pressed") == "true"
    browser.find_element(By.ID, "search").send_keys("owl/1")
    assert len(found(browser, ".tile")) == 1
    rows["cat"].click()
    assert len(found(browser, ".tile")) == 0
    assert browser.find_element(By.ID, "none").is_displayed()
    browser.find_element(By.ID, "search").clear()
    browser.find_element(By.ID, "search").send_keys(" ")
    rows["All"].click()
    assert len(found(browser, ".tile")) == 12
    assert is_clean(browser)


def test_a_click_shows_the_full_image_and_all_fields_and_keys_move_on(browser: Chrome, page: Path) -> None:
    show(browser, page)
    found(browser, ".tile")[2].click()
    assert browser.find_element(By.ID, "dialog").is_displayed()
    assert len(found(browser, "#full img")) == 1
    names = [name.text.split()[0] for name in found(browser, "#fields dt")]
    assert names == ["record", "image", "label", "key"]
    assert text(browser, "#name") == "cat · cat/2.jpg"
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert text(browser, "#name") == "cat · cat/4.jpg"
    press(browser, Keys.ARROW_LEFT)
    assert text(browser, "#name") == "cat · cat/3.jpg"
    browser.find_element(By.ID, "before").click()
    assert text(browser, "#name") == "cat · cat/2.jpg"
    press(browser, Keys.ESCAPE)
    assert not browser.find_element(By.ID, "dialog").is_displayed()
    # Back on the tile, keys move in the grid.
    press(browser, Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ENTER)
    assert text(browser, "#name") == "cat · cat/1.jpg"
    press(browser, Keys.ESCAPE, Keys.END, Keys.ENTER)
    assert text(browser, "#name") == "owl · owl/3.jpg"
    assert not browser.find_element(By.ID, "after").is_enabled()
    assert is_clean(browser)


def test_names_from_a_file_are_shown_as_text_and_never_run(browser: Chrome, tmp_path: Path) -> None:
    types = {"image": fr.image(), "label": fr.FieldType("int64"), "key": fr.string()}
    schema = fr.Schema({**types, FIELD: fr.json(), "note": fr.string()})
    path = tmp_path / "<b>x & y.frec"
    with fr.Writer(path, schema, metadata={"classes": [EVIL, "<!--"]}) as writer:
        for i in range(2):
            note = "\u2028 <!-- <script> ]]> \0 \ud7ff 猫 {{}} DATA TITLE"
            writer.append({"image": jpeg(), "label": i, "key": EVIL, FIELD: {EVIL: EVIL}, "note": note})
    good("browse", path, "-o", tmp_path / "evil.html", "--where", "key != '<script>alert(1)</script>'")
    assert EVIL.encode() not in (tmp_path / "evil.html").read_bytes()
    show(browser, tmp_path / "evil.html")
    assert browser.title == "<b>x & y.frec"
    assert text(browser, "h1") == "<b>x & y.frec"
    assert "<script>alert(1)</script>" in text(browser, "#chosen")
    assert text(browser, ".tile .about").splitlines()[:2] == [EVIL, EVIL]
    found(browser, ".tile")[0].click()
    assert EVIL in text(browser, "#fields")
    assert "<!-- <script> ]]>" in text(browser, "#fields")
    assert len(found(browser, "img")) == 3  # two tiles and the full image: none from a name
    assert browser.title == "<b>x & y.frec"
    assert is_clean(browser)


def test_damaged_images_are_tiles_with_their_error(browser: Chrome, packed: Path, tmp_path: Path) -> None:
    flip(packed, tmp_path / "bad.frec", record=1)
    assert "1 of them damaged" in good("browse", tmp_path / "bad.frec", "-o", tmp_path / "bad.html")
    show(browser, tmp_path / "bad.html")
    assert len(found(browser, ".tile img")) == 11
    assert "[FR302]" in text(browser, ".tile .error")
    found(browser, ".tile")[1].click()
    assert "[FR302]" in text(browser, "#full .error")
    assert "cat/1.jpg" in text(browser, "#fields")
    assert is_clean(browser)


def test_arrays_pairs_and_records_without_images_have_tiles(browser: Chrome, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 2, (9, 7), dtype=np.uint8) * 255
    schema = fr.Schema({"mask": fr.array("uint8", (None, None)), "hr": fr.image(), "x": "float32"})
    with fr.Writer(tmp_path / "pairs.frec", schema) as writer:
        writer.append({"mask": mask, "hr": jpeg(80, 60), "x": 0.5})
    with fr.Writer(tmp_path / "table.frec", fr.Schema({"x": "float32", "name": fr.string()})) as writer:
        writer.append({"x": 0.25, "name": "only text"})
    good("browse", tmp_path / "pairs.frec", tmp_path / "table.frec", "-o", tmp_path / "both.html")
    show(browser, tmp_path / "both.html")
    assert len(found(browser, ".tile img")) == 1
    assert text(browser, ".tile:nth-child(2) .plain").splitlines() == ["x: 0.25", "name: only text"]
    assert "of table.frec" in text(browser, ".tile:nth-child(2) .about")
    found(browser, ".tile")[0].click()
    assert [caption.text for caption in found(browser, "#full figcaption")] == ["hr: 80 x 60", "mask: 7 x 9"]
    assert not browser.find_element(By.ID, "side").is_displayed()
    press(browser, Keys.ARROW_RIGHT)
    assert len(found(browser, "#full img")) == 0
    assert "only text" in text(browser, "#fields")
    assert is_clean(browser)


def test_the_page_is_light_or_dark_as_the_system_is(browser: Chrome, page: Path) -> None:
    def brightness() -> float:
        with Image.open(io.BytesIO(browser.get_screenshot_as_png())) as image:
            return float(np.asarray(image.convert("L"))[:60, :200].mean())

    show(browser, page)
    light = brightness()
    for scheme in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        if scheme == "dark":
            assert brightness() < 60 < 180 < light
    assert is_clean(browser)
