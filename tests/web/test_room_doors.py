"""The doors of a room: who gets in, forms that work once, links and their secrets, and a server killed at the worst
moment. Asked by plain requests, without a browser."""

from __future__ import annotations

import gzip
import http.client
import importlib
import json
import pkgutil
import signal
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from people import Person
from room_pages import ROOM, Sitting, asked, pose, sitting, token_of
from viva_process import ended, started

import viva.web


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


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"token=\xff", 415),
        ({"Content-Encoding": "gzip"}, gzip.compress(b"token=x"), 415),
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({"Content-Type": "application/x-www-form-urlencoded; charset=utf-16"}, b"token=x", 415),
        ({}, b"token=%ff", 403),
        ({}, b"text=" + b"x" * 4_100_000, 413),
    ],
    ids=["bytes", "gzip", "json", "charset", "escapes", "long"],
)
def test_a_form_that_cannot_be_read_is_refused(
    shared: tuple[Sitting, Person], headers: dict[str, str], body: bytes, status: int
) -> None:
    pages, person = shared
    cookie = asked(pages, "POST", urlsplit(pages.link).path, {"name": ""})[2]["Set-Cookie"].split(";")[0]
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie} | headers
    for path in (f"/{ROOM}/name", f"/{ROOM}/q/{pose(person, f'{headers} {body[:9]!r}')}"):
        connection = http.client.HTTPConnection(urlsplit(pages.link).netloc)
        connection.request("POST", path, body, sent)
        assert connection.getresponse().status == status, path
        connection.close()


def test_no_error_is_kept_to_be_raised_again() -> None:
    """Each time an error is raised its traceback grows, and keeps the frames of the requests that it ended."""
    for module in pkgutil.walk_packages(viva.web.__path__, "viva.web."):
        kept = [name for name, value in vars(importlib.import_module(module.name)).items()
                if isinstance(value, BaseException)]  # fmt: skip
        assert kept == [], module.name


def test_the_link_stays_the_same_and_its_secret_is_for_nobody_else(tmp_path: Path) -> None:
    with sitting(tmp_path / ROOM) as pages:
        link = pages.link
        assert pages.stop(signal.SIGINT) == 0
        pages.start()
        assert pages.link == link
    assert (tmp_path / ROOM / "pages.secret").stat().st_mode & 0o077 == 0


def test_a_room_that_cannot_be_served_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    code, _, said = ended(started("grade", "answer", tmp_path / "file", "--port", "0"))
    assert (code, "cannot create the room" in said) == (2, True), said
