"""Grading pages in a real browser: every key, comments, undo, other tabs, pages without script, hostile texts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from axe import violations
from browser import Browser, Page
from grading_site import GradingSite, Visitor, field, grading_site, make_folder
from viewed_runs import HOSTILE, LINK, MARKUP

from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GradeStore

_SAVED = "document.querySelector('#saved').dataset.state === 'saved'"
_SCALE = [Label(value, "") for value in (-1.0, 0.0, 0.5, 1.0)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "folder", 5)


@pytest.fixture
def site(folder: Path) -> Iterator[GradingSite]:
    with grading_site(folder) as one:
        yield one


def _enter(browser: Browser, site: GradingSite, name: str = "Ada", width: int = 1200) -> Page:
    page = browser.open(site.url + site.links[name], width)
    page.leave("document.querySelector('form button').click()")
    return page


def _text(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({selector!r}).textContent"))


def _current(page: Page) -> int:
    return int(page.evaluate("document.querySelector('.answer.current').dataset.position"))


def _number(page: Page) -> int:
    return int(page.evaluate("document.querySelector('#page').dataset.question"))


def _given(folder: Path) -> list[tuple[int, int, float | None, str]]:
    """Question, position, grade and comment of all grades."""
    with GradeStore.open(folder) as store:
        places = {answer.id: (one.number, answer.position) for one in store.questions() for answer in one.answers}
        return sorted((*places[one.answer], one.value, one.comment) for one in store.grades())


def _type(page: Page, text: str) -> None:
    page.browser.ask("Input.insertText", text=text)


def _go(page: Page, key: str) -> None:
    before = _number(page)
    page.press(key)
    page.until(f"document.querySelector('#page').dataset.question !== '{before}'")


def test_every_key(browser: Browser, site: GradingSite, folder: Path) -> None:
    page = _enter(browser, site)
    first = _number(page)
    for key, at in (("ArrowDown", 2), ("j", 3), ("ArrowUp", 2), ("k", 1), ("k", 1)):
        page.press(key)
        assert _current(page) == at
    page.press("9")  # no grade here
    page.browser.ask("Input.dispatchKeyEvent", type="keyDown", key="2", code="Digit2", modifiers=2)
    assert page.evaluate("document.querySelectorAll('.graded').length") == 0, "no chords"
    page.press("2")
    page.browser.ask("Input.dispatchKeyEvent", type="keyDown", key="é", code="Digit2", text="é")
    assert _current(page) == 3, "a digit is where it stands on the keyboard, too"
    page.press("c")
    _type(page, "not 2 of 3")
    for key in ("1", "u", "?", "ArrowRight"):  # dead while somebody writes
        page.press(key)
    assert page.evaluate("document.activeElement.value") == "not 2 of 31u?"
    assert page.evaluate("document.querySelector('#keys').open") is False
    page.press("Escape")
    page.press("0")
    page.press("1")
    page.press("Enter")
    page.until(f"document.querySelector('#page').dataset.question !== '{first}'")
    page.press("?")
    assert page.evaluate("document.querySelector('#keys').open")
    page.press("1")  # the list of keys is open
    page.evaluate("document.querySelector('#keys').close()")
    _go(page, "ArrowLeft")
    assert _number(page) == first
    assert _text(page, "#a3 .mark") == "✓ 0"
    page.until(_SAVED)
    assert _given(folder) == [(first, 1, 2, ""), (first, 2, 2, ""), (first, 3, 0, "not 2 of 31u?"), (first, 4, 1, "")]
    assert _text(page, "#finished") == "1"
    assert page.complaints == []


def test_pages_of_graders_have_no_violations(browser: Browser, site: GradingSite) -> None:
    assert violations(browser.open(site.url + site.links["Ada"], 360, dark=True)) == []
    assert violations(_enter(browser, site)) == []


def test_undo_goes_back_to_the_beginning_across_questions_and_loads(
    browser: Browser, site: GradingSite, folder: Path
) -> None:
    page = _enter(browser, site)
    first = _number(page)
    for key in "2101":
        page.press(key)
    _go(page, "ArrowRight")
    second = _number(page)
    page.press("1")
    page.press("k")
    page.press("2")  # changed
    page.press("c")
    _type(page, "why")
    page.press("Escape")
    page.until(_SAVED)
    page.leave("location.reload()")
    assert [_text(page, "#a1 .mark"), page.evaluate("document.querySelector('#a1 textarea').value")] == ["✓ 2", "why"]
    page.press("u")
    page.until("document.querySelector('#a1 textarea').value === ''")
    page.press("u")
    page.until("document.querySelector('#a1 .mark').textContent === '✓ 1'")
    page.press("u")
    page.until("document.querySelector('#a1 .mark').textContent === ''")
    page.press("u")
    page.until(f"document.querySelector('#page').dataset.question === '{first}'")
    page.until("document.querySelector('#a4 .mark').textContent === ''")
    assert _current(page) == 4
    page.until(_SAVED)
    left = [(first, 1, 2, ""), (first, 2, 1, ""), (first, 3, 0, ""), (first, 4, None, ""), (second, 1, None, "")]
    assert _given(folder) == sorted(left, key=lambda one: one[:2])
    for place in (3, 2, 1):
        page.press("u")
        page.until(f"document.querySelector('#a{place} .mark').textContent === ''")
    page.press("u")
    page.until("document.querySelector('#told').textContent === 'There is nothing to undo.'")


def test_grades_that_are_no_digits_have_keys_in_order(browser: Browser, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder", 2, labels=_SCALE)
    with grading_site(folder) as site:
        page = _enter(browser, site)
        for key in "1234":
            page.press(key)
        page.until(_SAVED)
        assert [one[2] for one in _given(folder)] == [-1, 0, 0.5, 1]
        assert _text(page, "#a3 .mark") == "✓ 0.5"


def test_a_mouse_and_a_phone_do_as_well(browser: Browser, site: GradingSite, folder: Path) -> None:
    page = _enter(browser, site, width=360)
    for place, label in ((1, 2), (4, 0), (1, 1)):
        page.evaluate(f"document.querySelectorAll('#a{place} .grade')[{label}].click()")
    page.evaluate("document.querySelector('#a2 summary').click()")
    page.evaluate("document.querySelector('#a2 textarea').focus()")
    _type(page, "typed on a phone")
    page.until(f"{_SAVED} && performance.getEntriesByType('resource').length > 5")
    before = _number(page)
    page.evaluate("document.querySelector('#next').click()")
    page.until(f"document.querySelector('#page').dataset.question !== '{before}'")
    page.until(_SAVED)
    assert _given(folder) == [(before, 1, 1, ""), (before, 2, None, "typed on a phone"), (before, 4, 0, "")]


def test_what_was_written_is_kept_by_a_reload_at_once(browser: Browser, site: GradingSite, folder: Path) -> None:
    page = _enter(browser, site)
    page.press("c")
    _type(page, "half a sentence")
    page.leave("location.reload()")
    assert page.evaluate("document.querySelector('#a1 textarea').value") == "half a sentence"
    page.until(_SAVED)
    assert [one[3] for one in _given(folder)] == ["half a sentence"]


def test_a_tab_of_an_earlier_session_goes_on(browser: Browser, site: GradingSite, folder: Path) -> None:
    page = _enter(browser, site)
    page.press("1")
    page.until(_SAVED)
    # The link is opened once more: the tab's form token is of a session that has gone.
    form = "{method: 'POST', headers: {'Content-Type': 'application/x-www-form-urlencoded'}}"
    page.evaluate(f"fetch('{site.links['Ada']}', {form}).then((answer) => {{ window.again = answer.ok }}); 0")
    page.until("window.again")
    page.press("2")
    page.until(f"{_SAVED} && document.querySelectorAll('.graded').length === 2")
    assert [one[2] for one in _given(folder)] == [1, 2]


def test_a_paused_grader_loses_nothing(browser: Browser, site: GradingSite, folder: Path) -> None:
    page = _enter(browser, site)
    with GradeStore.open(folder) as store:
        store.set_state(1, "paused", "test")
    page.press("2")
    page.until("document.querySelector('#saved').textContent === 'Unsent grades: 1'")
    assert "You are paused" in _text(page, "#told")
    with GradeStore.open(folder) as store:
        store.set_state(1, "active", "test")
    page.leave("location.reload()")
    page.until(f"{_SAVED} && document.querySelectorAll('.graded').length === 1")
    assert [one[2] for one in _given(folder)] == [2]


def test_pages_do_without_a_script(browser: Browser, site: GradingSite, folder: Path) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page = _enter(browser, site)
        number = _number(page)
        assert page.evaluate("getComputedStyle(document.querySelector('.plain-only')).display") != "none"
        page.evaluate("document.querySelectorAll('#a2 input[type=radio]')[1].checked = true")
        page.evaluate("document.querySelector('#a2 textarea').value = 'two\\nlines'")
        page.leave("document.querySelector('.plain-only button').click()")
        assert page.evaluate("document.querySelectorAll('#a2 input[type=radio]')[1].checked")
        page.leave("document.querySelector('.plain-only .first').click()")
        assert _number(page) != number
        assert _given(folder) == [(number, 2, 1, "two\nlines")]
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def _hostile_folder(folder: Path) -> Path:
    hostile = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    said = [
        *hostile,
        "y" * 200_000,
        "</textarea></article></main>" + MARKUP,
        f"[go](javascript:window.hurt=1) ![p]({LINK})",
    ]
    answers = [Answer(f"c{place}", [Turn("assistant", text)]) for place, text in enumerate(said)]
    question = Question("q", MARKUP, [Label(0, MARKUP), Label(1, "fine")], answers, dimension=f"a/{MARKUP}",
                        context=[Turn(MARKUP, text) for text in said], standard_answer=MARKUP, principle=MARKUP,
                        overlap=2)  # fmt: skip
    with GradeStore.create(folder, [question], title=f"Title {MARKUP}") as store:
        for name in ("Ada", f"Ben {MARKUP}", "Dora", "Eva"):
            store.add_grader(name, role={"Dora": "adjudicator", "Eva": "admin"}.get(name, "grader"))  # type: ignore[arg-type]
        for answer in store.question(1).answers:
            store.grade(2, answer.id, 1, MARKUP, submission=answer.id)
            store.grade(1, answer.id, 0, MARKUP, submission=f"1 {answer.id}")
        store.invalidate(answer.id, 2, MARKUP, MARKUP)
    return folder


def test_hostile_texts_do_nothing(browser: Browser, tmp_path: Path) -> None:
    folder = _hostile_folder(tmp_path / "folder")
    with grading_site(folder) as site:
        visits = [("Ada", ["next", "q/1?written=1", "mine", "done"]), ("Dora", ["disputes", "disputes/1/2"]),
                  ("Eva", ["admin", "admin/q/1"])]  # fmt: skip
        for name, paths in visits:
            page = _enter(browser, site, name, width=360)
            base = page.evaluate("location.pathname").split("/")[2]
            for path in paths:
                page = browser.open(f"{site.url}/g/{base}/{path}", 360)
                found = "script:not([src^='/asset/']), img, main link, main b b, [onerror], iframe, style"
                assert page.evaluate(f'document.querySelectorAll("{found}").length') == 0
                assert page.evaluate("window.hurt") is None
                assert [one for one in page.requests if not one.startswith(site.url)] == []
                assert page.complaints == []
                assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
                text = page.evaluate("document.body.textContent")
                assert not set(text) & {"\x1b", "\u202e", "\x9b"}
        page = _enter(browser, site, "Ada")
        heights = "[...document.querySelectorAll('.answer')].map((one) => one.offsetHeight)"
        assert max(page.evaluate(heights)) < 1500, "long answers are folded"
        longest = page.evaluate("Math.max(...[...document.querySelectorAll('.answer .text')].map((one) => "
                                "one.textContent.length))")  # fmt: skip
        assert longest == 200_000
        at = page.evaluate(
            "[...document.querySelectorAll('.answer')].findIndex((one) => one.querySelector('.unfold')) + 1"
        )
        while _current(page) != at:
            page.press("j")
        page.press("x")
        assert max(page.evaluate(heights)) > 3000, "and open as a whole"


@contextmanager
def _other_site(folder: Path) -> Iterator[int]:
    """Pages of another port."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_of_another_site_can_do_nothing(
    browser: Browser, site: GradingSite, folder: Path, tmp_path: Path, host: str
) -> None:
    page = _enter(browser, site)
    number = _number(page)
    visitor = Visitor(site.port, site.links["Ada"])
    text = visitor.get(f"q/{number}")[1]
    fields = {
        "form": visitor.form(),
        "name": "evil",
        "seal": field(text, "data-seal"),
        "value-1": "2.0",
        "comment-1": "e",
    }
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "index.html").write_text(f'<form method="post" action="{site.url}/g/1/q/{number}">{inputs}</form>')
    with _other_site(evil) as port:
        page = browser.open(f"http://{host}:{port}/", 800)
        page.evaluate(f"fetch('{site.url}/g/1/mine', {{credentials: 'include'}}).then(() => {{ window.read = 'read' }})"
                      ".catch(() => { window.read = 'not read' }); 0")  # fmt: skip
        assert page.until("window.read") == "not read"
        page.leave("document.querySelector('form').submit()")
        assert "A page of another site may not send this form" in _text(page, "main")
        framed = browser.open(f"http://{host}:{port}/", 800)
        framed.evaluate(f"document.body.innerHTML = '<iframe src=\"{site.url}/g/1/mine\"></iframe>'; 0")
        framed.until("document.querySelector('iframe').contentDocument === null")
    assert _given(folder) == []
