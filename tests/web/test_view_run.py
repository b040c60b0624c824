"""The page of a run in the viewer: live facts, the buttons of `--control`, refused forms, and hostile folders."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from browser import Browser
from case_tables import case_table
from fake_socket import fake_socket
from viewed_runs import gated_run, steering_viewer

from viva.engine.errors import ConfigurationError
from viva.orchestration.control import ControlRequest
from viva.orchestration.control_socket import SOCKET, ask
from viva.web.view import live
from viva.web.view.live import LiveAnswer, RunAsker
from viva.web.view.run_figures import RunFigures
from viva.web.view.run_view import RunLoad, RunView
from viva.web.view.steering import read_request

FORM = "application/x-www-form-urlencoded"
STATUS = {"state": "running", "total": 3, "finished": 1, "failed": 0, "restored": 0, "in_flight": 1, "models": {}}


@dataclass
class Steered:
    """A run of gated calls, its folder, and a viewer that may steer it."""

    run: Popen[str]
    folder: Path
    site: str
    link: str
    cookie: str
    form: str


def _send(
    site: str, path: str, headers: dict[str, str], method: str = "GET", body: bytes | None = None
) -> tuple[int, dict[str, str], str]:
    address = urlsplit(site)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request(method, path, body, {"Host": address.netloc} | headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steered]:
    root = tmp_path_factory.mktemp("runs")
    folder = root / "long run"
    with gated_run(folder) as run:
        assert run.stdin is not None
        run.stdin.write("one\ntwo\nthree\n")
        while not (folder / SOCKET).exists():
            assert run.poll() is None
        with steering_viewer(root, tmp_path_factory.mktemp("index")) as (site, link):
            status, headers, _ = _send(site, urlsplit(link).path, {})
            assert status == 303
            cookie = headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            cookie = cookie.partition(";")[0]
            form = None
            while form is None:  # until the run has answered the viewer, which waits half a second for it
                assert run.poll() is None
                form = re.search(r'name="form" value="([^"]+)"', _send(site, "/run/long%20run", {"Cookie": cookie})[2])
            yield Steered(run, folder, site, link, cookie, form[1])


def _post(steered: Steered, fields: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], str]:
    own = {"Cookie": steered.cookie, "Content-Type": FORM, "Origin": steered.site, "Sec-Fetch-Site": "same-origin"}
    sent = {name: value for name, value in (own | headers).items() if value}
    body = urlencode({"form": steered.form} | fields, doseq=True).encode()
    return _send(steered.site, "/run/long%20run", sent, "POST", body)


def _state(steered: Steered) -> str:
    return str(ask(steered.folder, ControlRequest())["status"]["state"])


@case_table(
    "fields, headers, status",
    [
        ({}, {"Cookie": ""}, 403),
        ({}, {"Cookie": "viva-view-00000000=x.y"}, 403),
        ({"form": ""}, {}, 403),
        ({"form": "guess"}, {}, 403),
        ({"form": "ImZha2Ui.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}, {}, 403),
        ({}, {"Origin": "http://foreign.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({}, {"Origin": "http://foreign.example", "Sec-Fetch-Site": ""}, 403),
        ({}, {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403),
        ({}, {"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403),
        ({}, {"Origin": "", "Sec-Fetch-Site": "same-site"}, 403),
        ({}, {"Host": "rebound.example", "Origin": "http://rebound.example"}, 421),
        ({}, {"Host": "127.0.0.1.rebound.example", "Origin": ""}, 421),
        ({}, {"Content-Type": "text/plain"}, 415),
        ({}, {"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({}, {"Content-Type": "application/json"}, 403),
        ({}, {"Content-Encoding": "gzip"}, 415),
        ({"do": "add", "n": "5"}, {}, 400),
        ({"do": "status"}, {}, 400),
        ({"do": "pause", "more": "x" * 70_000}, {}, 413),
        ({"do": ["pause", "resume"]}, {}, 400),
        ({"do": "set", "model": "gated", "rpm": "-1"}, {}, 400),
        ({"do": "set", "model": "gated"}, {}, 400),
        ({"do": "cancel"}, {}, 400),
    ],
)
def test_a_form_that_is_not_the_operators_own_changes_nothing(
    steered: Steered, fields: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    assert _post(steered, {"do": "pause"} | fields, **headers)[0] == status
    assert _state(steered) == "running"


def test_only_the_page_of_a_run_takes_forms_and_only_the_holder_of_the_link_sees_them(steered: Steered) -> None:
    own = {"Cookie": steered.cookie, "Content-Type": FORM, "Origin": steered.site, "Sec-Fetch-Site": "same-origin"}
    body = urlencode({"form": steered.form, "do": "pause"}).encode()
    for path, status in (("/", 405), ("/conversations", 405), (urlsplit(steered.link).path, 405), ("/run/none", 404),
                         ("/run/..%2F..%2Ftmp", 404)):  # fmt: skip
        assert _send(steered.site, path, own, "POST", body)[0] == status, path
    for method in ("PUT", "DELETE", "PATCH"):
        assert _send(steered.site, "/run/long%20run", own, method, body)[0] == 405
    page = _send(steered.site, "/run/long%20run", {})[2]
    assert 'method="post"' not in page
    assert "open the link that the viewer printed" in page
    assert _send(steered.site, "/link/guess", {})[0] == 404
    assert _state(steered) == "running"


def test_work_ends_only_after_a_second_form(steered: Steered) -> None:
    for do, question in (("stop", "Stop this run?"), ("drain", "Drain this run?")):
        status, _, page = _post(steered, {"do": do})
        assert (status, question in page, 'name="sure" value="yes"' in page) == (200, True, True)
    status, _, page = _post(steered, {"do": "cancel", "key": ["gated/question 30", "gated/question 31"]})
    assert "<li>gated/question 31</li>" in page
    assert _state(steered) == "running"
    status, headers, _ = _post(steered, {"do": "cancel", "key": "gated/question 30", "sure": "yes"})
    answered = _send(steered.site, headers["location"], {"Cookie": steered.cookie})[2]
    assert "The run answered: 0 conversations cancelled; 1 not in flight: cancelled if they have not begun" in answered
    assert "The run answered" not in _send(steered.site, headers["location"], {})[2], "others do not see it"
    status, headers, _ = _post(steered, {"do": "set", "model": "nobody", "concurrency": "5"})
    page = _send(steered.site, headers["location"], {"Cookie": steered.cookie})[2]
    assert "Not done: no model &#39;nobody&#39;" in page


def test_a_run_is_steered_and_watched_in_a_browser(browser: Browser, steered: Steered) -> None:
    browser.open(steered.link, 1000)
    for width, dark in ((360, True), (768, False), (1440, False)):
        page = browser.open(f"{steered.site}/run/long%20run", width, dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints == []
        small = page.evaluate(
            "[...document.querySelectorAll('.steering button, .steering input:not([type=hidden])')].filter((one) =>"
            " one.getBoundingClientRect().height < 24 || one.getBoundingClientRect().width < 24).length"
        )
        assert small == 0
        unnamed = (
            "[...document.querySelectorAll('.steering input:not([type=hidden])')].filter((one) => !one.labels.length)"
        )
        assert page.evaluate(f"{unnamed}.length") == 0
    page.until(
        "document.querySelector('#live').textContent.includes('3 of 40 conversations have ended; 2 are in flight')"
    )
    page.leave("document.querySelector('[name=do][value=pause]').form.requestSubmit()")
    assert page.evaluate("document.querySelector('[role=status].answered').textContent") == (
        "The run answered: no further calls begin; those in flight are finished"
    )
    assert steered.run.stdin is not None
    steered.run.stdin.write("four\n")  # the page hears of it without being loaded again
    page.until("document.querySelector('#live').textContent.includes('4 of 40 conversations have ended')")
    page.until("document.querySelector('#live .lead').textContent.startsWith('Paused: no call begins')")
    page.leave("document.querySelector('[name=do][value=resume]').form.requestSubmit()")
    page.until("document.querySelector('#live .lead').textContent === 'In progress.'")
    moving = "document.getAnimations().length"
    assert page.evaluate(moving) == 1
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    page.until(f"{moving} === 0")
    assert page.complaints == []


# -- hostile folders -------------------------------------------------------------------------------------------------


def _says(answer: Any) -> Callable[[socket.socket], None]:
    line = answer if isinstance(answer, bytes) else json.dumps({"message": "hi", "status": STATUS | answer}).encode()

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(line + b"\n")

    return serve


_ROLE = {"roles": ["judge"], "models": ["m"]}
_NO_RUN = "its answer is not that of a run"


@case_table(
    "answer, words",
    [
        (b"nope", _NO_RUN),
        (b"x" * (3 << 20), _NO_RUN),
        (b"[" * 100_000, _NO_RUN),
        ({"roles": [_ROLE | {"retrying": [{"after": "429", "calls": 1, "next": 1e18}]}]}, _NO_RUN),
        ({"roles": [_ROLE | {"in_flight": -1}]}, _NO_RUN),
        ({"budgets": {"cost": {"used": 1e300}}}, _NO_RUN),
        ({"at": -5.0}, _NO_RUN),
        ({}, ""),
        ({"roles": [_ROLE]}, ""),
    ],
)
def test_an_answer_is_checked_before_it_is_shown(tmp_path: Path, answer: Any, words: str) -> None:
    async def look() -> LiveAnswer:
        asker = RunAsker()
        try:
            return await asker.status(tmp_path / "run")
        finally:
            asker.close()

    (tmp_path / "run").mkdir()
    with fake_socket(tmp_path / "run" / SOCKET, _says(answer)):
        said = asyncio.run(look())
    assert words in said.problem
    assert (said.status is None) == bool(words)


def test_a_run_is_asked_once_a_second_whoever_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        requests.append(connection.recv(1 << 16))
        connection.sendall(json.dumps({"message": "hi", "status": STATUS}).encode() + b"\n")

    monkeypatch.setattr(live, "_SHORTEST_INTERVAL", 1e6)

    async def look() -> list[LiveAnswer]:
        asker = RunAsker()
        try:
            first = await asyncio.gather(*(asker.status(tmp_path / "run") for _ in range(500)))
            return [*first, *[await asker.status(tmp_path / "run") for _ in range(500)]]
        finally:
            asker.close()

    (tmp_path / "run").mkdir()
    with fake_socket(tmp_path / "run" / SOCKET, serve):
        answers = asyncio.run(look())
    assert all(answer.status is not None for answer in answers)
    assert len(requests) == 1


def test_a_socket_that_says_nothing_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_ASK_SECONDS", 0.05)
    over = threading.Event()

    async def look() -> LiveAnswer:
        asker = RunAsker()
        try:
            await asker.status(tmp_path / "run")
            return await asker.status(tmp_path / "run")
        finally:
            asker.close()

    (tmp_path / "run").mkdir()
    with fake_socket(tmp_path / "run" / SOCKET, lambda connection: over.wait() and None):
        said = asyncio.run(look())
        over.set()
    assert said.status is None
    assert re.search(r"no answer within 0\.05 s|has not answered yet", said.problem)


def test_no_socket_of_another_user_gets_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []
    user = os.getuid()

    async def send() -> None:
        asker = RunAsker()
        try:
            assert "belongs to another user" in (await asker.status(tmp_path / "run")).problem
            with pytest.raises(ConfigurationError, match="belongs to another user"):
                await asker.steer(tmp_path / "run", ControlRequest(do="stop"))
        finally:
            asker.close()

    (tmp_path / "run").mkdir()
    with fake_socket(tmp_path / "run" / SOCKET, lambda connection: requests.append(connection.recv(1 << 16))):
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        asyncio.run(send())
    assert requests == []
    monkeypatch.undo()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / SOCKET).symlink_to(tmp_path / "run" / SOCKET)
    assert asyncio.run(RunAsker().status(tmp_path / "other")).status is None


# -- sentences -------------------------------------------------------------------------------------------------------


def _view(load: RunLoad, planned: int | None = 40, running: bool = True, **status: Any) -> RunView:
    figures = RunFigures("run", "kieval", "items", 1, "", planned, "", running)
    answer = live.ControlAnswer.model_validate({"message": "", "status": STATUS | {"total": 40} | status})
    now = load.latest + 5
    return RunView(figures, load, LiveAnswer(answer.status) if running else None, now, "viva resume run")


def test_the_end_is_estimated_only_when_it_can_be_told() -> None:
    base: dict[str, Any] = {"finished": 12, "open_calls": [1, 2], "lengths": {3: 6, 5: 6}, "latest": 1e9}
    early = RunLoad(**base, pace=[(4, 1)] * 2)
    assert _view(early).pace == "Too early to tell its pace."
    assert _view(RunLoad(**base, pace=[(4, 1)] * 3)).remaining == "Too early to tell when it ends."
    steady = _view(RunLoad(**base, pace=[(4, 1), (5, 1)] * 15))
    assert steady.pace == "In the last 5 min: 6.0 conversations and 27.0 calls a minute."
    assert re.fullmatch(
        r"About \d+ min left \(95% interval \d+ min to \d+ min\), until \d\d:\d\d, if the recent pace holds\.",
        steady.remaining,
    )
    idle = _view(RunLoad(**base, pace=[(4, 0)] * 30))
    assert idle.pace == "In the last 5 min: no conversation and 24.0 calls a minute."
    assert "not estimated" in _view(RunLoad(**base, pace=[(4, 1)] * 30), state="paused").remaining
    assert "Every conversation has begun" in _view(RunLoad(**base, pace=[(4, 1)] * 30), total=14).remaining
    wild = RunLoad(**base, pace=[(0, 0)] * 27 + [(100, 1)] * 3)
    assert _view(wild).remaining == "Too early to tell when it ends."


def test_every_wait_is_a_sentence_with_its_time() -> None:
    at = 1e9
    role = {
        "roles": ["interactor", "evaluator"], "models": ["m"], "in_flight": 4, "queued": 1_200, "paused": 2,
        "retrying": [{"after": "429", "calls": 3, "next": at + 30}],
        "endpoints": [{"model": "m", "reason": "<b>refused</b>", "since": at - 60}],
        "batches": [{"model": "m", "calls": 500, "since": at - 86_400}],
    }  # fmt: skip
    people = {"roles": ["grader"], "models": ["human:room"], "person": True, "in_flight": 2}
    view = _view(RunLoad(latest=at), roles=[role, people, {"roles": ["x"], "models": ["own"]}])
    first, second, third = view.roles
    assert first.name == "interactor and evaluator"
    moment = time.strftime("%H:%M:%S", time.localtime(at + 30))
    assert first.waits[:4] == [
        "4 in flight", "1,200 queued at a limit", "2 held back until resumed",
        f"3 retrying after 429, the next at {moment}"]  # fmt: skip
    assert first.waits[4].endswith(": <b>refused</b>"), "the template escapes it"
    assert re.fullmatch(r"batch of 500 since \d{4}-\d\d-\d\d \d\d:\d\d", first.waits[5])
    assert second.waits == ["2 waiting for a person"]
    mixed = people | {"models": ["human:room", "m"], "person_calls": 1, "in_flight": 5}
    assert _view(RunLoad(latest=at), roles=[mixed]).roles[0].waits == ["1 waiting for a person", "4 in flight"]
    assert third.waits == ["calls of this kind of model are not counted while they are in flight"]


def test_an_ended_run_says_if_it_is_done() -> None:
    load = RunLoad(finished=38, failed=2, latest=1.0)
    assert _view(load, running=False).state == "Done: all 40 conversations have ended, 2 of them failed."
    assert _view(load, running=False).continuing == ("repeats the failed ones", "viva resume run --retry-failed")
    assert _view(load, running=False).counts == "40 of 40 conversations have ended, 2 of them failed"
    part = RunLoad(finished=3, open_calls=[1], latest=1.0)
    assert "may run elsewhere" in _view(part, running=False).state
    assert _view(part, running=False).counts == "3 of 40 conversations have ended; 1 had begun"
    assert _view(part, running=False).continuing == ("continues it", "viva resume run")
    assert _view(part).continuing is None
    unknown = _view(part, planned=None, running=False)
    unknown.now += 100
    assert unknown.state.endswith("how many conversations it was to have is not known here.")


def test_a_form_is_read_as_the_commands_words() -> None:
    limits = {"do": ["set"], "model": ["m"], "rpm": ["0"], "tpm": [""], "concurrency": [" 5 "]}
    assert read_request(limits) == ControlRequest(do="set", model="m", rpm=0, concurrency=5)
    assert read_request({"do": ["requeue"], "reason": [""]}) == ControlRequest(do="requeue", failed=True)
    assert read_request({"do": ["requeue"], "reason": ["timeout"]}) == ControlRequest(do="requeue", reason="timeout")
    assert read_request({"do": ["pause"]}) == ControlRequest(do="pause")
