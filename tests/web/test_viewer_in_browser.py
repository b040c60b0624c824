"""Acceptance of the viewer in a Chromium, at 360, 768 and 1440 px, in light and dark; `make test` runs it.

Sorting, filtering, from the matrix to a transcript, the timeline, live updates, all of it by keys alone; accessibility,
width, the content policy and requests of every kind of page. Further tests of pages are those of `make browser-tests`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from axe import OF_LOOK, violations
from browser import Browser, Page
from recorded_talks import Talks, talk
from viewed_runs import SCIENCE, gated_run, viewer
from weighed_runs import weighed_run

import viva

pytestmark = pytest.mark.acceptance

each_look = pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(width, dark, id=f"{width}-{'dark' if dark else 'light'}")
        for width in (360, 768, 1440)
        for dark in (False, True)
    ],
)
PAGES = ["/", "/conversations?run=kieval&columns=score&columns=end&columns=aspect:logic", "/matrix",
         "/matrix?sort=mean", "/selection?state=failed", "/c/kieval/1", "/c/dialogs/2", "/c/again/3", "/c/talks/0",
         "/call/talks/0/3", "/run/kieval", "/compare?a=kieval/4&b=kieval/5", "/report", "/none"]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interviews, dialogs with tools, two runs of the same tasks with a failure, and one with log-probabilities."""
    root = tmp_path_factory.mktemp("viewed") / "runs"
    models: Any = {
        "candidate": [f"simulated:{name}?knowledge={knowledge}" for name, knowledge in
                      (("expert", 0.95), ("student", 0.6), ("novice", 0.2))],
        "interactor": "simulated:asker",
        "evaluator": "simulated:strict",
    }  # fmt: skip
    viva.run_sync("kieval", models=models, dataset=str(SCIENCE), out=root / "kieval", n=6, rounds=2, seed=5)
    played: Any = {"candidate": ["simulated:caller?knowledge=1"], "interactor": "simulated:user"}
    viva.run_sync("functionchat", models=played, data="examples", mode="user", out=root / "dialogs")
    for name in ("once", "again"):
        weighed_run(root / name, {"t1": [0.5, 1], "t2": [1, math.nan], "t3": [0, 0]})
    viva.run_sync(talk, models={"pupil": Talks()}, tasks=["tides"], out=root / "talks")
    return root


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        yield address


@pytest.fixture(scope="module")
def growing(root: Path) -> Iterator[Popen[str]]:
    """A run in the viewed folder, named ``growing``, that has just begun."""
    with gated_run(root / "growing") as run:
        assert run.stdin is not None
        run.stdin.write("first\n")
        yield run


def _texts(page: Page, selector: str) -> list[str]:
    texts: list[str] = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent.trim())"
    )
    return texts


def _scores(page: Page) -> list[float]:
    return [float(text.split()[0]) for text in _texts(page, "td[data-column=score]")]


def _check(page: Page, site: str, width: int, complaints: int = 0) -> None:
    """No complaint, so no violation of the policy; nothing from elsewhere; nothing beside the window."""
    assert len(page.complaints) == complaints, page.complaints
    assert [one for one in page.requests if not one.startswith((f"{site}/", "data:", "about:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# -- every kind of page -----------------------------------------------------------------------------------------------

_SMALL = """[...document.querySelectorAll('main a, main button, main select, main summary, .pick, main .all')]
    .filter((one) => one.offsetParent && !one.closest('.count, .note, p:not(.tools), .paging'))
    .map((one) => [one.outerHTML.slice(0, 90), one.getBoundingClientRect()])
    .filter(([, box]) => box.width < 24 || box.height < 24).map(([text]) => text)"""
_CONTRAST = """(selector, property) => [...new Set([...document.querySelectorAll(selector)].map((one) => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const style = getComputedStyle(one);
    const behind = property === 'color' ? style.backgroundColor : getComputedStyle(document.body).backgroundColor;
    const [a, b] = [light(style[property]), light(behind)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}))]"""


@each_look
def test_pages_are_accessible_fit_and_ask_nobody_else(browser: Browser, site: str, width: int, dark: bool) -> None:
    page = browser.open(f"{site}/conversations", width, dark)
    # What pages say to a screen reader hardly depends on their look: asked twice, it would be most of the time.
    of_all = (width, dark) in ((360, True), (1440, False))
    for path in PAGES:
        page.leave(f"location.assign({path!r})")
        if path.startswith(("/conversations", "/matrix", "/selection")):
            assert page.evaluate(_SMALL) == [], path
        if path == "/matrix":
            assert min(page.evaluate(f"({_CONTRAST})('.cell, .legend .swatch', 'color')")) >= 4.5
        if of_all or path != "/report":  # whose figures are in test_report_page.py, and are most of its cost here
            assert violations(page, None if of_all else OF_LOOK) == [], path
        _check(page, site, width, path == "/none")  # an answer of 404 is a complaint


def test_the_policy_is_strict_and_a_violation_would_be_seen(browser: Browser, site: str) -> None:
    for path in PAGES:
        if path in ("/report", "/none"):
            continue  # the report's script and style are in the page, a refused page is an error for urlopen
        with urlopen(f"{site}{path}") as answer:
            policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; "), path
        assert "unsafe" not in policy
    with urlopen(f"{site}/report") as answer:
        assert re.search(r"default-src 'none'; .*script-src( 'sha256-[^' ]+')+\"", answer.read(2000).decode())
    page = browser.open(f"{site}/", 1000)
    page.evaluate(
        "window.broken = [];"
        "document.addEventListener('securitypolicyviolation', (event) => broken.push(event.effectiveDirective));"
        "const script = document.createElement('script');"
        "script.text = 'window.hurt = 1'; document.body.append(script);"
        "const image = new Image(); image.src = 'http://foreign.example/pixel.png'; document.body.append(image);"
        "document.body.setAttribute('style', 'color: red');"
        "void fetch('http://foreign.example/').catch(() => {})"
    )
    assert page.until("broken.length === 4 && broken.sort()") == [
        "connect-src", "img-src", "script-src-elem", "style-src-attr"]  # fmt: skip
    assert page.evaluate("window.hurt") is None
    assert len(page.complaints) >= 4


# -- what people do ---------------------------------------------------------------------------------------------------


@each_look
def test_a_head_sorts_and_a_field_filters(browser: Browser, site: str, width: int, dark: bool) -> None:
    page = browser.open(f"{site}/conversations?run=kieval", width, dark)
    head = "document.querySelector('th[data-column=score] a')"
    for order in ("descending", "ascending"):
        page.leave(f"{head}.click()")
        assert page.evaluate("document.querySelector('th[data-column=score]').ariaSort") == order
        scores = _scores(page)
        assert len(scores) == 18
        assert scores == sorted(scores, reverse=order == "descending")
    page.leave(
        "const field = document.querySelector('[name=candidate]');"
        "field.value = 'novice'; field.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    address = {*page.evaluate("location.search.slice(1)").split("&")}
    assert address == {"candidate=novice", "run=kieval", "sort=score", "order=up"}, "the address says it all"
    assert {*_texts(page, "td[data-column=candidate]")} == {"novice"}
    assert _texts(page, "#count") == ["6"]
    scores = _scores(page)
    assert scores == sorted(scores)
    most = (scores[0] + scores[-1]) / 2
    page.leave(f"document.querySelector('[name=high]').value = '{most}'; document.forms.filters.requestSubmit()")
    assert _texts(page, "#count") == [str(sum(score <= most for score in scores))]
    assert 0 < len(_scores(page)) < 6
    _check(page, site, width)


@each_look
def test_a_cell_of_the_matrix_leads_to_its_transcript(browser: Browser, site: str, width: int, dark: bool) -> None:
    page = browser.open(f"{site}/matrix", width, dark)
    page.leave(
        "const field = document.querySelector('[name=matrix]');"
        "[...field.options].find((one) => one.text.startsWith('kieval')).selected = true;"
        "field.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    page.leave("document.querySelector('thead [data-sort=mean] a').click()")
    means = [float(text) for text in _texts(page, "tbody td:nth-child(2)")]
    assert len(means) == 6
    assert means == sorted(means), "the hardest item first"
    item, candidate = _texts(page, "tbody .first a")[0], _texts(page, "th.candidate")[1]
    score = page.evaluate("document.querySelectorAll('tbody tr:first-child .cell a')[1].textContent")
    page.leave("document.querySelectorAll('tbody tr:first-child .cell a')[1].click()")
    title = page.evaluate("document.querySelector('h1').textContent")
    assert item in title
    assert candidate in title
    shown, scale = page.evaluate("document.querySelector('.head .score').textContent").split(" ", 1)
    assert float(shown) == pytest.approx(float(score), abs=0.5)
    assert scale == "of 100"
    assert _texts(page, ".speaker")[:3] == ["benchmark", "candidate", "interactor"]
    assert all(_texts(page, ".turn .text")), "what was said is there"
    _check(page, site, width)


_BARS = """[...document.querySelectorAll('.lane rect')].map((one) => {
    const [bar, lane] = [one.getBoundingClientRect(), one.closest('svg').getBoundingClientRect()];
    const stroke = parseFloat(getComputedStyle(one).strokeWidth);
    return bar.width + stroke >= 1.5 && bar.height >= 8 && bar.left >= lane.left - 1 && bar.right <= lane.right + 1
        && lane.left >= 0 && lane.right <= innerWidth && lane.width >= 120;
})"""


@each_look
def test_the_timeline_can_be_read_and_leads_to_calls(browser: Browser, site: str, width: int, dark: bool) -> None:
    page = browser.open(f"{site}/c/talks/0", width, dark)
    assert page.evaluate("document.querySelector('.timeline').open")
    assert _texts(page, ".timeline li > span") == ["pupil", "count"], "a lane for each role and step"
    assert page.evaluate(_BARS) == [True] * 3, "each call is a bar that can be seen"
    assert min(page.evaluate(f"({_CONTRAST})('.lane rect', 'fill')")) >= 3
    sizes = page.evaluate(
        "[...document.querySelectorAll('.timeline :is(summary, span, p)')].map((one) => getComputedStyle(one).fontSize)"
    )
    assert min(float(size.removesuffix("px")) for size in sizes) >= 12
    labels = page.evaluate("[...document.querySelectorAll('.lane a')].map((one) => one.getAttribute('aria-label'))")
    assert labels[0].startswith("pupil, 0.2 s")
    assert page.evaluate("document.querySelector('.lane title').textContent").startswith("0.2 s")
    page.evaluate("document.querySelector('.lane a:last-of-type').dispatchEvent(new MouseEvent('click'))")
    last = "[...document.querySelectorAll('.turn.compared')].at(-1)"
    assert page.evaluate("location.hash") == page.evaluate(f"'#' + {last}.id")
    assert "12 cached" in page.evaluate(f"{last}.querySelector('.cost').textContent")
    assert "4 messages, 2 new" in page.evaluate(f"{last}.querySelector('.prompt').textContent")
    page.evaluate(f"{last}.querySelector('.prompt').open = true")
    page.until(f"{last}.querySelector('.prompt .message')")
    assert page.evaluate(f"[...{last}.querySelectorAll('.prompt .message')].map((one) => one.matches('.known'))") == [
        True, True, False, False]  # fmt: skip
    page.leave(f"{last}.querySelector('a.whole').click()")
    assert page.evaluate("[...document.querySelectorAll('.message .fresh')].length") == 2
    shown = page.evaluate("[...document.querySelectorAll('.tokens span')].map((one) => [one.textContent, one.title])")
    assert [text for text, _ in shown] == ["<b>It", " is", " warm."]
    assert shown[0][1] == "-0.100 (90.5%), 'No' -2.500"
    assert "logprobs" in page.evaluate("document.querySelector('#curl').textContent")
    page.evaluate("document.querySelector('.copy').click()")
    page.until("document.querySelector('.copy').textContent !== 'Copy'")
    page.leave_by("u")
    assert page.evaluate("location.pathname + location.hash").startswith("/c/talks/0#t")
    _check(page, site, width)


# -- by keys alone ----------------------------------------------------------------------------------------------------

_FOCUS = """(() => {
    const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
    const bar = one.querySelector(':scope > rect');
    return style.outlineStyle !== 'none' || style.boxShadow !== 'none' || bar || one === document.body;
})()"""


def _tab_to(page: Page, selector: str) -> None:
    """Press Tab until the element has the focus; each stop on the way shows that it has it."""
    for _ in range(80):
        page.press("Tab")
        assert page.evaluate(_FOCUS), page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        if page.evaluate(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"no Tab leads to {selector}")


@each_look
def test_lists_and_conversations_need_no_mouse(browser: Browser, site: str, width: int, dark: bool) -> None:
    page = browser.open(f"{site}/", width, dark)
    _tab_to(page, "header nav a:nth-child(2)")
    page.leave_by("Enter")
    assert page.evaluate("location.pathname") == "/conversations"
    _tab_to(page, "select[name=candidate]")
    page.leave_by("n")
    assert {*_texts(page, "td[data-column=candidate]")} == {"novice"}
    _tab_to(page, "th[data-column=score] a")
    page.leave_by("Enter")
    scores = _scores(page)
    assert scores == sorted(scores, reverse=True)
    page.press("j")
    page.press("j")
    names = _texts(page, ".row .item")
    assert page.evaluate("document.activeElement.textContent") == names[1]
    page.leave_by("Enter")
    assert names[1] in page.evaluate("document.querySelector('h1').textContent")
    page.leave_by("ArrowRight")
    assert names[2] in page.evaluate("document.querySelector('h1').textContent"), "the next one of the list"
    for key, at in (("j", "t1"), ("j", "t2"), ("j", "t3"), ("k", "t2")):
        page.press(key)
        assert page.evaluate("document.activeElement.id") == at
    page.press("p")
    page.until("document.querySelector('#t2 .prompt').open && document.querySelector('#t2 .prompt .message')")
    page.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.press("Escape")
    page.press("?")
    page.until("document.querySelector('#keys').open")
    page.press("Escape")
    page.until("!document.querySelector('#keys').open")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.press("t")
    address = page.evaluate("location.href")
    page.leave_by("c")
    assert page.evaluate("location.pathname") == "/compare"
    page = browser.open(address, width, dark)
    page.leave_by("u")
    assert _scores(page) == scores
    _check(page, site, width)


@each_look
def test_matrix_and_timeline_need_no_mouse(browser: Browser, site: str, width: int, dark: bool) -> None:
    page = browser.open(f"{site}/matrix", width, dark)
    _tab_to(page, "select[name=matrix]")
    page.leave_by("k")
    focused = "document.activeElement.ariaLabel"
    rows, columns = _texts(page, "tbody .first a"), _texts(page, "th.candidate")
    for key in ("j", "k", "ArrowRight", "ArrowUp"):
        page.evaluate("document.querySelector('thead th:last-child a').focus()")
        page.press(key)
        assert page.evaluate(focused).startswith(f"{rows[0]}, {columns[0]}: "), f"{key} leads to the first cell"
    page.evaluate("document.activeElement.blur()")
    _tab_to(page, ".cell a")
    assert page.evaluate(focused).startswith(f"{rows[0]}, {columns[0]}: ")
    for key in ("j", "j", "k", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.press(key)
    assert page.evaluate(focused).startswith(f"{rows[0]}, {columns[1]}: "), "edges hold"
    page.press("End")
    assert page.evaluate(focused).startswith(f"{rows[0]}, {columns[-1]}: ")
    assert page.evaluate("document.querySelectorAll('.cell [tabindex=\"0\"]').length") == 1
    page.press("Tab")
    assert page.evaluate("document.activeElement.closest('table')") is None, "Tab leaves the matrix"
    page.evaluate("document.querySelector('.cell [tabindex=\"0\"]').focus()")
    page.leave_by("Enter")
    title = page.evaluate("document.querySelector('h1').textContent")
    assert rows[0] in title
    assert columns[-1] in title
    _tab_to(page, ".lane a")
    anchor = page.evaluate("document.activeElement.getAttribute('href')")
    page.press("Enter")
    page.until(f"location.hash === {anchor!r} && document.querySelector({anchor!r}).matches(':target')")
    _check(page, site, width)


# -- news -------------------------------------------------------------------------------------------------------------


@each_look
def test_news_arrive_by_themselves(browser: Browser, site: str, growing: Popen[str], width: int, dark: bool) -> None:
    assert growing.stdin is not None
    page = browser.open(f"{site}/", width, dark)
    page.until("[...document.querySelectorAll('.runs .name')].some((one) => one.textContent === 'growing')")
    ended = "Number(document.querySelector('#ended').textContent)"
    before = page.evaluate(f"window.same = true; {ended}")
    growing.stdin.write("for the overview\n")
    page.until(f"{ended} > {before}")
    assert page.evaluate("window.same"), "nobody loaded it again"
    _check(page, site, width)
    page = browser.open(f"{site}/run/growing", width, dark)
    ended = "Number(document.querySelector('#live').textContent.match(/([0-9]+) of 40 conversations have ended/)[1])"
    before = page.until(ended)
    page.evaluate("window.same = true")
    growing.stdin.write("for its page\n")
    page.until(f"{ended} > {before}")
    assert page.evaluate("window.same")
    assert violations(page) == []
    _check(page, site, width)
