"""The page of a load test in a browser: on a phone and on a desk, light and dark, with drawings that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser
from judged_load import flattening, reported, smaller, sound

from viva.loadtest.load_page import load_page
from viva.web.report.html_page import write_page


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    file = tmp_path_factory.mktemp("load") / "load.html"
    write_page(load_page(reported({"steady": sound, "flat": flattening, "small": smaller})), file)
    return file


@pytest.mark.parametrize(("width", "dark"), [(320, False), (1280, True)])
def test_it_opens_without_complaint_and_fits(browser: Browser, page_file: Path, width: int, dark: bool) -> None:
    page = browser.open(page_file, width, dark)
    assert page.complaints == []
    assert page.requests == [page_file.resolve().as_uri()]
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth") == width
    told = "document.querySelector('h1').textContent"
    verdict = "The verdicts of 2 of 3 judges change under load: flat from 8 requests/s, small from 4 requests/s."
    assert page.evaluate(told) == verdict
    sizes = """[...document.querySelectorAll('svg')].flatMap(svg => [...svg.querySelectorAll('text')].map(text =>
        parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
    assert page.evaluate(f"Math.min(...{sizes})") >= 8
    folded = "[...document.querySelectorAll('td.words')].every(cell => cell.getBoundingClientRect().width < innerWidth)"
    assert page.evaluate(f"{folded} && document.querySelectorAll('td.words').length") == 9


def test_its_tables_sort(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file, 1280)
    table = "[...document.querySelectorAll('table')].find(one => one.caption.textContent.startsWith('Verdicts under'))"
    same = f"[...{table}.tBodies[0].rows].map(row => parseFloat(row.cells[5].textContent))"
    before = page.evaluate(same)
    page.evaluate(f"{table}.querySelectorAll('thead button')[5].click()")
    assert page.evaluate(same) == sorted(before, reverse=True)
    assert page.complaints == []
