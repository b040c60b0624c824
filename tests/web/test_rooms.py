"""Rooms in a real browser: an interview that somebody sits, a verdict filled in as a form, and what is kept when
connection, server or run is gone."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe import violations
from browser import Browser, Page
from people import Person, answering
from room_pages import ROOM, Sitting, pose, running, sitting
from viva_process import ended, started

from viva.engine.journal_reader import History
from viva.engine.tools import Toolbox, ToolCall

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
TYPED = (
    "B. It follows from *conservation* of momentum.",
    "I would measure the light's spectrum first.\n\n<b>Then</b> the mass; 5 < 7.",
    "Ünd ein Ende – 끝.",
)
WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}


def enter(browser: Browser, pages: Sitting, who: str = "", width: int = 1000) -> Page:
    page = browser.open(pages.link, width)
    page.evaluate(f"document.querySelector('[name=name]').value = {who!r}")
    page.leave("document.querySelector('form button').click()")
    return page


def write(page: Page, text: str) -> None:
    """Type into the answer, as a keyboard does."""
    page.evaluate("document.querySelector('[name=text]').select()")
    page.browser.ask("Input.insertText", text=text)


def chord(page: Page) -> None:
    for kind in ("keyDown", "keyUp"):
        page.browser.ask("Input.dispatchKeyEvent", type=kind, key="Enter", modifiers=2)


def draft_kept(page: Page, text: str) -> None:
    page.until(f"Object.values(localStorage).some((one) => JSON.parse(one).values?.text === {json.dumps(text)})")


def interview(room: Path, out: Path) -> list[str | Path]:
    models = ["--candidate", f"human:{room}", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    return ["run", "kieval", "--dataset", ITEMS, "-n", "1", "--rounds", "2", "--no-early-stop", *models, "--out", out]


def test_an_interview_that_somebody_sits_outlives_server_run_and_connection(browser: Browser, tmp_path: Path) -> None:
    room, out = tmp_path / ROOM, tmp_path / "run"
    with ExitStack() as processes:
        run = processes.enter_context(running(*interview(room, out)))
        Person(room).asked()
        pages = processes.enter_context(sitting(room))
        page = enter(browser, pages, "Ada Lovelace")
        page.until("document.querySelector('.row a')")
        assert "1 question to answer" in page.evaluate("document.querySelector('h1').textContent")
        page.leave("document.querySelector('.row a').click()")
        assert page.evaluate("document.querySelector('.instructions').open"), "who comes first reads the instructions"
        write(page, TYPED[0])
        browser.loading(lambda: chord(page))  # which sends it, and the next question opens by itself
        assert page.evaluate("document.querySelectorAll('.turn.own').length") == 1, (
            "one's own turn, as the role sees it"
        )
        write(page, TYPED[1])
        draft_kept(page, TYPED[1])
        run.kill()
        pages.stop(signal.SIGKILL)
        page.evaluate("document.querySelector('#send').click()")
        page.until("document.querySelector('#status').textContent.startsWith('No connection')")
        pages.start()
        page.until("document.querySelector('#after .said').textContent.includes('No run is asking')")
        resumed = processes.enter_context(running("resume", out))
        browser.loading(lambda: None)  # the next question opens by itself
        assert page.evaluate("document.querySelectorAll('.turn.own').length") == 2
        write(page, TYPED[2])
        draft_kept(page, TYPED[2])
        page.leave("location.reload()")
        assert page.evaluate("document.querySelector('[name=text]').value") == TYPED[2]
        page.evaluate("document.querySelector('#send').click()")
        page.until("document.querySelector('#after .said').textContent.startsWith('Your answer was received')")
        code, _, said = ended(resumed)
        assert code == 0, said
    with History(out / "journal.sqlite") as history:
        calls = [call for number in history.keys().values() for call in history.calls(number)]
    assert [call.completion.text for call in calls if call.role == "candidate"] == list(TYPED)
    person = Person(room)
    assert person.room.counts() == {"answered": 3}
    assert {given.person for _, _, given in person.room.answers_since(0)} == {"Ada Lovelace"}
    with answering(tmp_path / "other" / ROOM, lambda posed: TYPED[posed.ordinal]):
        code, _, said = ended(started(*interview(tmp_path / "other" / ROOM, tmp_path / "again")))
    assert code == 0, said
    assert _report(out) == _report(tmp_path / "again"), "the report is that of the answers"


def _report(run: Path) -> Any:
    code, printed, said = ended(started("report", run, "--json"))
    assert code == 0, said
    return json.loads(printed)["candidates"]


VERDICT = {
    "type": "object",
    "properties": {
        "logic": {
            "type": "object",
            "properties": {
                "comment": {"type": "string", "maxLength": 200},
                "score": {"type": "integer", "enum": [1, 2, 3, 4]},
            },
            "required": ["comment", "score"],
        },
        "stop": {"type": "boolean"},
        "reason": {"type": "string", "enum": ["off_topic", "none"]},
        "notes": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["logic", "stop", "reason"],
}


def test_a_verdict_is_filled_in_as_a_form(browser: Browser, shared: tuple[Sitting, Person]) -> None:
    pages, person = shared
    enter(browser, pages)
    name = pose(person, "Grade this.", "evaluator", schema=VERDICT, before=[("assistant", '{"logic": {"score": 3}}')])
    page = browser.open(pages.question(name), 360)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.querySelector('.lines').textContent") == "logic3", "earlier verdicts can be read"

    def wrong() -> dict[str, str]:
        page.until("!document.querySelector('#send').disabled && document.querySelector('.error:not([hidden])')")
        found: dict[str, str] = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('.field:has(.error:not([hidden]))')]"
            ".map((one) => [one.dataset.field, one.querySelector('.error').textContent]))"
        )
        return found

    page.evaluate("document.querySelector('#send').click()")
    assert wrong() == {"value/logic/score": "please choose one", "value/stop": "please choose one",
                       "value/reason": "please choose one"}  # fmt: skip
    assert page.evaluate("document.activeElement.name") == "value/logic/score"
    page.evaluate("document.querySelectorAll('[name=\"value/logic/score\"]')[2].click()")
    page.evaluate("document.querySelectorAll('[name=\"value/stop\"]')[1].click()")
    page.evaluate("document.querySelector('[name=\"value/reason\"]').value = '\"off_topic\"'")
    page.evaluate("document.querySelector('[name=\"value/notes\"]').value = '[1, \"two\"]'")
    page.evaluate("document.querySelector('[name=\"value/logic/comment\"]').value = 'sound \\u2013 mostly'")
    page.evaluate("document.querySelector('#send').click()")
    assert wrong() == {"value/notes": "1: 'two' is not of type 'integer'"}
    page.evaluate("document.querySelector('[name=\"value/notes\"]').value = '[1, 2]'")
    page.evaluate("document.querySelector('#send').click()")
    page.until("document.querySelector('#answer').hidden")
    found = person.room.request(name)
    assert found is not None
    assert found[2] is not None
    assert found[2].text == (
        '{"logic":{"comment":"sound – mostly","score":3},"stop":false,"reason":"off_topic","notes":[1,2]}'
    )
    assert page.complaints == ["Failed to load resource: the server responded with a status of 422 "
                               "(Unprocessable Entity)"] * 2  # fmt: skip


def test_functions_can_be_called(browser: Browser, shared: tuple[Sitting, Person]) -> None:
    pages, person = shared
    enter(browser, pages)
    name = pose(person, "Rain in Oslo?", "assistant", tools=Toolbox([WEATHER, {"name": "now"}]), before=[])
    page = browser.open(pages.question(name), 1000)
    visible = "[...document.querySelectorAll('.body')].map((one) => one.checkVisibility())"
    assert page.evaluate(visible) == [True, False, False]
    page.evaluate("document.querySelectorAll('[name=way]')[1].click()")
    assert page.evaluate(visible) == [False, True, False]
    page.evaluate("document.querySelector('[name=\"call0/value/city\"]').value = 'Oslo'")
    page.evaluate("document.querySelector('#send').click()")
    page.until("document.querySelector('#answer').hidden")
    found = person.room.request(name)
    assert found is not None
    assert found[2] is not None
    assert found[2].tool_calls() == [ToolCall("call-1", "weather", '{"city":"Oslo"}')]


def test_a_withdrawn_question_says_so_and_comes_back_with_the_draft(
    browser: Browser, shared: tuple[Sitting, Person]
) -> None:
    pages, person = shared
    enter(browser, pages)
    name = pose(person, "Still there?")
    page = browser.open(pages.question(name), 1000)
    write(page, "half a thought")
    person.room.withdraw([name], "test")
    page.until("document.querySelector('#answer').hidden")
    assert "was withdrawn" in page.evaluate("document.querySelector('#after .said').textContent")
    person.room.reopen([name], "test")
    page.until("!document.querySelector('#answer').hidden")
    assert page.evaluate("document.querySelector('[name=text]').value") == "half a thought"
    person.says(person.room.request(name)[0], "a faster one", who="Grace")  # type: ignore[index]
    page.until("document.querySelector('#after .said').textContent.startsWith('Grace has answered')")
    assert page.evaluate("document.querySelector('[name=text]').value") == "half a thought", "to be copied"


def test_what_models_write_does_nothing(browser: Browser, shared: tuple[Sitting, Person]) -> None:
    pages, person = shared
    enter(browser, pages, "<img src=x onerror=alert(1)>")
    hostile = "<script>document.title = 'taken'</script><img src=http://example.com/x.png onerror=alert(1)> \u202egnp"
    name = pose(
        person, f"{hostile}\n![x](http://example.com/y.png) [go](javascript:alert(1))", before=[("user", hostile)]
    )
    for address in (pages.question(name), f"{pages.base}/"):
        page = browser.open(address, 360)
        page.until("document.body.textContent.includes('example.com')")
        assert page.evaluate("document.title") != "taken"
        assert page.evaluate("document.querySelectorAll('main img, main script, a[href^=javascript]').length") == 0
        assert {urlsplit(one).netloc for one in page.requests} <= {urlsplit(pages.link).netloc, ""}
        assert page.complaints == []


@pytest.mark.parametrize("width", [360, 1440])
def test_news_come_by_themselves(browser: Browser, shared: tuple[Sitting, Person], width: int) -> None:
    pages, person = shared
    page = enter(browser, pages, width=width)
    before = page.evaluate("Number(document.querySelector('[data-count]').dataset.count)")
    name = pose(person, f"News at {width}?")
    page.until(f"document.querySelector('a[href$=\"{name}\"]')")
    assert page.evaluate("document.title") == f"({before + 1}) {ROOM}"
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_somebody_can_take_another_name_while_a_question_is_open(
    browser: Browser, shared: tuple[Sitting, Person]
) -> None:
    pages, person = shared
    enter(browser, pages, "Ada")
    name = pose(person, "By which name?")
    page = browser.open(pages.question(name), 1000)
    write(page, "by another one")
    renaming = """(async () => {
        const text = await (await fetch('name')).text();
        const token = text.match(/name="token" value="([^"]+)"/)[1];
        await fetch('name', { method: 'POST', body: new URLSearchParams({ token, name: ' Grace  Hopper ' }) });
        document.querySelector('#send').click();
    })()""".replace("'name'", f"'/{ROOM}/name'")
    page.evaluate(renaming)
    page.until("document.querySelector('#answer').hidden")
    found = person.room.standing(name)
    assert found is not None
    assert found[1] == "Grace Hopper", "the page had the token of the session before"
