"""The page in a browser: it fits narrow and wide screens in both themes, loads nothing and logs no error."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.tools.report.page import Confusion, Headline, ModelReport, Number, Page, PageSection, Pairs, Table, render_html
from tests.tools.report.test_rendering import HOSTILE, everything

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
LONG = "an unbroken name " + "x" * 300

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_the_page_fits_the_screen_and_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    page_file, trouble = tmp_path / "page.html", list[str]()
    for text in (LONG, *HOSTILE):
        page_file.write_text(render_html(everything(text)), encoding="utf-8")
        for width, scheme in ((320, "light"), (390, "dark"), (1280, "light")):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page = context.new_page()
            page.on("console", lambda message: trouble.append(message.text))
            page.on("dialog", lambda dialog: trouble.append(dialog.message))
            page.on("request", lambda request: trouble.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
            page.goto(page_file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (text, width)
            context.close()
    assert trouble == []


def test_the_first_screen_has_the_overview_with_the_confusion_matrix_beside_the_classes(browser: Any, tmp_path: Path) -> None:
    page_file, names = tmp_path / "page.html", [f"automobile {number}" for number in range(10)]
    cells = tuple(Number(900) for _ in names)
    classes = Table(("class", "precision", "recall", "f1", "support"), tuple((name, *map(Number, (0.5, 0.5, 0.5, 1000))) for name in names))
    errors = PageSection("Errors", (Confusion(("", *names), tuple((name, *cells) for name in names)), classes))
    changed = Table(("", "before", "now", "change"), (("optimizer.learning_rate", "0.001", "0.003", "+0.0020"),) * 9)
    before = PageSection("Compared with the run before", (changed, LONG[:80], LONG[:80]))
    result = PageSection(
        "Result", (Headline("accuracy", Number(0.9), LONG[:60]), Pairs((("baseline: the most frequent class", Number(0.1)),) * 4))
    )
    model = ModelReport("a model", "a task", (result, before, errors), (), (), {})
    page_file.write_text(render_html(Page("a page", (), (model,))), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(page_file.as_uri())
    overview, _, matrix, table = (
        page.locator(each).bounding_box() for each in (".overview", "table >> nth=0", "table >> nth=1", "table >> nth=2")
    )
    assert overview["y"] + overview["height"] <= 900
    assert matrix["y"] == table["y"]


def test_a_narrow_screen_says_that_the_matrix_scrolls_and_keeps_the_names_of_its_rows(browser: Any, tmp_path: Path) -> None:
    page_file, names = tmp_path / "page.html", [str(number) for number in range(10)]
    for shown, width in ((names, 390), (names, 1280), (names[:2], 390)):
        matrix = Confusion(("", *shown), tuple((name, *(Number(900) for _ in shown)) for name in shown))
        page_file.write_text(render_html(Page("a page", (PageSection("Errors", (matrix,)),), ())), encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(page_file.as_uri())
        is_cut = page.evaluate("(wide => wide.scrollWidth > wide.clientWidth)(document.querySelector('.wide'))")
        assert (
            is_cut == (page.locator(".hint").is_visible() if page.locator(".hint").count() else False) == (len(shown) > 2 and width == 390)
        )
        page.evaluate("document.querySelector('.wide').scrollLeft = 1000")
        assert page.locator("tbody th >> nth=0").bounding_box()["x"] >= page.locator(".wide").bounding_box()["x"]
