"""Rooms in a real browser: an interview that somebody sits, a verdict filled in as a form, who may enter, and what is
kept when connection, server or run is gone."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from browser import Browser, Page
from people import Person, answering
from viva_process import ended, started

from viva.engine.backends.human.posed import Posed
from viva.engine.history import History
from viva.engine.messages import Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox, ToolCall

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
TYPED = (
    "B. It follows from *conservation* of momentum.",
    "I would measure the light's spectrum first.\n\n<b>Then</b> the mass; 5 < 7.",
    "Ünd ein Ende – 끝.",
)
ROOM = "expert"
WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}


class Sitting:
    """``viva grade sit`` in a process of its own; ``restart`` kills it and serves at the same address."""

    def __init__(self, room: Path) -> None:
        self._room, self._port = room, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "viva", "grade", "sit", self._room, "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\S+", line)
        assert found, line + self._process.stdout.read()
        self.link, self._port = found[0], int(found[1])

    def stop(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            said = stream.read()
        self._process.wait()
        assert "Traceback" not in said, said
        return self._process.returncode

    @property
    def stopped(self) -> bool:
        return self._process.poll() is not None

    @property
    def base(self) -> str:
        """Below which the room's pages are."""
        return self.link.partition("/open/")[0]

    def question(self, name: str) -> str:
        """The address of a question's page."""
        return f"{self.base}/q/{name}"


@contextmanager
def sitting(room: Path) -> Iterator[Sitting]:
    one = Sitting(room)
    try:
        yield one
    finally:
        if not one.stopped:
            one.stop(signal.SIGKILL)


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """``viva`` with these arguments; it does not outlive the test."""
    process = started(*arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sitting, Person]]:
    """A room where only tests ask, and its pages."""
    room = tmp_path_factory.mktemp("shared") / ROOM
    with sitting(room) as pages:
        yield pages, Person(room)


def pose(person: Person, text: str, role: str = "candidate", **more: Any) -> str:
    """Ask somebody something; the request's name."""
    view, tools, sampling = View(), more.pop("tools", None), Sampling(schema=more.pop("schema", None))
    view.append("system", "You are **kind**.")
    for party, said in more.pop("before", ()):
        view.append(party, said)
    view.append("user", text)
    digest = request_digest(view, sampling, 7, tools)
    posed = Posed.of(Request(view.messages, sampling, 7, digest, text[:20], role, **more, tools=tools))
    person.room.ask(posed, "test", None)
    return posed.name


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
        assert "1 question waits" in page.evaluate("document.querySelector('h1').textContent")
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
        page.until("document.querySelector('#after .said').textContent.startsWith('Your answer has arrived')")
        code, _, said = ended(resumed)
        assert code == 0, said
    with History(out / "journal.sqlite") as history:
        calls = [call for number in history.keys().values() for call in history.calls(number)]
    assert [call.completion.text for call in calls if call.role == "candidate"] == list(TYPED)
    person = Person(room)
    assert person.room.counts() == {"answered": 3}
    assert {given.who for _, _, given in person.room.answers_since(0)} == {"Ada Lovelace"}
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


def asked(
    pages: Sitting, method: str, path: str, form: dict[str, str] | None = None, **headers: str
) -> tuple[int, str, Any]:
    """A request as any program may make it: status, body and headers."""
    connection = http.client.HTTPConnection(urlsplit(pages.link).netloc)
    sent = {"Content-Type": "application/x-www-form-urlencoded"} if form is not None else {}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if form is None else urlencode(form), sent | names)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


def token_of(pages: Sitting, path: str, cookie: str) -> str:
    """What the form of a page carries."""
    found = re.search(r'name="token" value="([^"]+)"', asked(pages, "GET", path, Cookie=cookie)[1])
    assert found
    return found[1]


def test_an_answer_that_arrives_while_the_server_is_killed_counts_once(tmp_path: Path) -> None:
    person = Person(tmp_path / ROOM)
    with sitting(tmp_path / ROOM) as pages:
        cookie = asked(pages, "POST", urlsplit(pages.link).path, {"name": ""})[2]["Set-Cookie"].split(";")[0]
        for number in range(6):
            path = f"/{ROOM}/q/{pose(person, f'Question {number}')}"
            form = {
                "token": token_of(pages, path, cookie),
                "submission": f"the-form-{number}",
                "text": f"Answer {number}",
            }
            connection = http.client.HTTPConnection(urlsplit(pages.link).netloc)
            headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
            connection.request("POST", path, urlencode(form), headers)
            if number % 2:
                connection.getresponse()  # else it is killed at whatever moment
            pages.stop(signal.SIGKILL)
            connection.close()
            pages.start()
            body = asked(pages, "POST", path, form, Cookie=cookie, Accept="application/json")[1]
            assert json.loads(body).get("receipt") == "taken", body
    assert [given.text for _, _, given in person.room.answers_since(0)] == [f"Answer {number}" for number in range(6)]


def test_only_those_with_the_link_get_in_and_a_form_works_once(shared: tuple[Sitting, Person]) -> None:
    pages, person = shared
    name = pose(person, "Who may answer?")
    path = f"/{ROOM}/q/{name}"
    link = urlsplit(pages.link).path
    for place in (f"/{ROOM}/", path, f"{path}/state", f"/{ROOM}/waiting", f"/{ROOM}/name"):
        status, body, _ = asked(pages, "GET", place)
        assert (status, "Who may answer" in body) == (403, False), place
    assert asked(pages, "GET", f"/{ROOM}/open/guessed")[0] == 403
    assert asked(pages, "POST", f"/{ROOM}/open/guessed", {"name": ""})[0] == 403
    assert asked(pages, "GET", "/elsewhere/")[0] == 404
    assert asked(pages, "GET", link, Host="evil.example")[0] == 421
    assert "Set-Cookie" not in asked(pages, "GET", link)[2], "who only looks at a link begins nothing"
    status, _, headers = asked(pages, "POST", link, {"name": "Ada"})
    assert (status, headers["Location"]) == (303, f"/{ROOM}/")
    cookie = headers["Set-Cookie"].split(";")[0]
    assert {"HttpOnly", "SameSite=Strict", f"Path=/{ROOM}/"} <= {
        part.strip() for part in headers["Set-Cookie"].split(";")
    }
    token = token_of(pages, path, cookie)
    form = {"token": token, "submission": "a-name-of-the-form", "text": "I may."}
    assert asked(pages, "POST", path, form)[0] == 403, "no session"
    assert asked(pages, "POST", path, form | {"token": "x"}, Cookie=cookie)[0] == 403, "no page of ours"
    assert asked(pages, "POST", path, form, Cookie=cookie, Origin="http://evil.example")[0] == 403
    assert asked(pages, "POST", path, form | {"text": "  "}, Cookie=cookie)[0] == 422, "nothing is no answer"
    assert asked(pages, "POST", path.replace(name, "0" * 24), form, Cookie=cookie)[0] == 404
    status, _, headers = asked(pages, "POST", path, form, Cookie=cookie)
    assert (status, headers["Location"]) == (303, path), "without a script, too"
    for again in (form, form | {"submission": "another-form", "text": "Me too."}):
        status, body, _ = asked(pages, "POST", path, again, Cookie=cookie, Accept="application/json")
        assert (status, json.loads(body)["receipt"]) == (200, "taken" if again is form else "late")
    status, body, headers = asked(pages, "GET", path, Cookie=cookie)
    assert "I may." in body
    assert "Me too." not in body
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    forged = cookie[:-4] + "AAAA"
    assert asked(pages, "GET", path, Cookie=forged)[0] == 403


def test_the_link_stays_the_same_and_its_secret_is_for_nobody_else(tmp_path: Path) -> None:
    with sitting(tmp_path / ROOM) as pages:
        link = pages.link
        assert pages.stop(signal.SIGINT) == 0
        pages.start()
        assert pages.link == link
    assert (tmp_path / ROOM / "pages.secret").stat().st_mode & 0o077 == 0


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


def test_a_room_that_cannot_be_served_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    code, _, said = ended(started("grade", "sit", tmp_path / "file", "--port", "0"))
    assert (code, "cannot be made a room" in said) == (2, True), said
