"""Grading by keyboard in a real browser: three graders, an adjudicator, an admin; nothing that was pressed is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page
from command import viva
from grading_site import GradingSite, grading_site, make_folder

from viva.grading.records import Question
from viva.grading.store import GradeStore

Pressed = dict[tuple[str, int, int], int]  # grader, question, position
_SAVED = "document.querySelector('#saved').dataset.state === 'saved'"
_AWAY = "document.querySelector('#saved').textContent.startsWith('Offline')"


class _Server:
    """The server of a folder, which can be ended and started again on the same port. Links are printed once."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self.site: GradingSite = stack.enter_context(grading_site(folder))
        self.links = self.site.links

    def again(self) -> None:
        """Start it again where it was."""
        self.site = self._stack.enter_context(grading_site(self._folder, port=self.site.port))
        assert self.site.links == {}

    def enter(self, browser: Browser, name: str, width: int = 1200) -> Page:
        """A page of somebody who opened their link."""
        page = browser.open(self.site.url + self.links[name], width)
        page.leave("document.querySelector('form button').click()")
        return page


def _number(page: Page) -> int | None:
    found = page.evaluate("document.querySelector('#page').dataset.question ?? null")
    return None if found is None else int(found)


def _press_all(page: Page, name: str, draw: random.Random, pressed: Pressed) -> None:
    """Give each answer of the question a grade."""
    number = _number(page)
    assert number is not None
    for position in range(1, 5):
        at = page.evaluate("document.querySelector('.answer.current').dataset.position")
        assert at == str(position), "a grade leads to the next answer"
        pressed[name, number, position] = draw.randint(0, 2)
        page.press(str(pressed[name, number, position]))


def _go_on(page: Page) -> None:
    before = _number(page)
    page.press("ArrowRight")
    page.until(f"document.querySelector('#page').dataset.question !== '{before}'")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    with ExitStack() as stack:
        yield _Server(stack, make_folder(tmp_path / "folder"))


def _grade_with_a_reload(page: Page, draw: random.Random, pressed: Pressed) -> None:
    for place in range(12):
        if place != 4:
            _press_all(page, "Ada", draw, pressed)
        else:
            number = _number(page)
            for position, value in ((1, 2), (2, 0), (3, 1), (4, 1)):
                if position == 3:
                    page.leave("location.reload()")
                    assert page.evaluate("document.querySelector('.answer.current').dataset.position") == "3"
                    marks = page.evaluate("[...document.querySelectorAll('.mark')].map((one) => one.textContent)")
                    assert marks == ["✓ 2", "✓ 0", "", ""]
                page.press(str(value))
                pressed["Ada", number, position] = value
        _go_on(page)


def _grade_without_a_connection(page: Page, server: _Server, draw: random.Random, pressed: Pressed) -> None:
    for place in range(12):
        if place == 5:  # it goes within a question, stays away over the next one, and comes again
            number = _number(page)
            page.press("1")
            pressed["Ben", number, 1] = 1
            ahead = f"performance.getEntriesByType('resource').some((one) => one.name.endsWith('/next?after={number}'))"
            page.until(f"{_SAVED} && {ahead}")
            server.site.kill()
            for position, value in ((2, 2), (3, 0), (4, 1)):
                page.press(str(value))
                pressed["Ben", number, position] = value
            page.until(_AWAY)
            _go_on(page)
            continue
        _press_all(page, "Ben", draw, pressed)
        if place == 6:
            page.until("document.querySelector('#saved').textContent === 'Offline, unsent grades: 7'")
            before = _number(page)
            page.press("ArrowRight")
            page.until("document.querySelector('#told').textContent.startsWith('No connection.')")
            server.again()
            page.until(f"document.querySelector('#page').dataset.question !== '{before}'")
        else:
            _go_on(page)


def _decide(page: Page, draw: random.Random) -> dict[tuple[int, int], int]:
    """Decide all disputes by keyboard."""
    decided: dict[tuple[int, int], int] = {}
    page.leave("document.querySelector('a.first').click()")
    while "/disputes/" in (path := page.evaluate("location.pathname")):
        number, position = (int(part) for part in path.split("/")[-2:])
        decided[number, position] = draw.randint(0, 2)
        assert page.evaluate("document.querySelectorAll('.voices li').length") == 3
        page.press(str(decided[number, position]))
        page.browser.ask("Input.insertText", text=f"because of {number}/{position}")
        page.leave_by("Enter")
    return decided


def test_what_is_pressed_is_recorded_whatever_happens(browser: Browser, server: _Server, tmp_path: Path) -> None:
    draw, pressed = random.Random(3), Pressed()

    page = server.enter(browser, "Ada")
    _grade_with_a_reload(page, draw, pressed)
    assert page.until("document.querySelector('h1').textContent") == "All done. Thank you!"
    assert page.complaints == []

    page = server.enter(browser, "Ben", width=360)
    _grade_without_a_connection(page, server, draw, pressed)
    assert page.until("document.querySelector('h1').textContent") == "All done. Thank you!"

    page = server.enter(browser, "Cem")
    for _ in range(12):
        _press_all(page, "Cem", draw, pressed)
        _go_on(page)
    page.until(_SAVED)

    page = server.enter(browser, "Dora")
    decided = _decide(page, draw)
    assert page.evaluate("document.querySelector('h1').textContent") == "Nothing to decide"

    page = server.enter(browser, "Eva")
    assert page.evaluate("document.querySelector('h1').textContent") == "36 of 36 gradings finished"
    assert page.complaints == []

    with GradeStore.open(tmp_path / "folder") as store:
        questions = {one.number: one for one in store.questions()}
        assert _recorded(store, questions) == pressed
        assert len(pressed) == 3 * 12 * 4
        given: dict[tuple[int, int], list[int]] = {}
        for (_, number, position), value in pressed.items():
            given.setdefault((number, position), []).append(value)
        assert set(decided) == {place for place, values in given.items() if 0 in values and any(values)}
        decisions = {one.answer: one for one in store.decisions().values()}
        for (number, position), value in decided.items():
            found = decisions[questions[number].answers[position - 1].id]
            assert (found.value, found.reason) == (value, f"because of {number}/{position}")
    final = {place: [decided[place]] * 3 if place in decided else values for place, values in given.items()}
    report = _report(tmp_path / "folder")
    counts = report["counts"]
    assert (counts["grades"], counts["missing"], counts["decided"], counts["undecided"]) == (144, 0, len(decided), 0)
    assert sum(line["grades"] for line in report["graders"]) == 144
    for line in report["candidates"]:
        own = [value for (number, position), values in final.items() for value in values
               if questions[number].answers[position - 1].candidate == line["candidate"]]  # fmt: skip
        assert line["grade"]["overall"]["value"] == pytest.approx(100 * sum(own) / 36 / 2)
        assert line["accuracy"]["overall"]["value"] == pytest.approx(100 * sum(map(bool, own)) / 36)


def _report(folder: Path) -> dict[str, Any]:
    """What ``viva grade report`` says."""
    done = viva("grade", "report", folder, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _recorded(store: GradeStore, questions: dict[int, Question]) -> Pressed:
    names = {one.number: one.name for one in store.graders()}
    places = {answer.id: (one.number, answer.position) for one in questions.values() for answer in one.answers}
    return {(names[one.grader], *places[one.answer]): int(one.value) for one in store.grades() if one.value is not None}
