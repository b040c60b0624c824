"""A room where people answer, and ``viva grade answer`` over it in a process of its own; questions put into it by
tests.
"""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from people import Person
from viva_process import ended, started

from viva.engine.backends.human_queue import PendingQuestion
from viva.engine.messages import Request, Sampling, View, request_digest

ROOM = "expert"


class Sitting:
    """``viva grade answer`` in a process of its own; ``restart`` kills it and serves at the same address."""

    def __init__(self, room: Path) -> None:
        self._room, self._port = room, 0
        self.start()

    def start(self) -> None:
        self._process = started("grade", "answer", self._room, "--port", str(self._port))
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\S+", line)
        assert found, line + ended(self._process)[2]
        self.link, self._port = found[0], int(found[1])

    def stop(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        return ended(self._process)[0]

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


def pose(person: Person, text: str, role: str = "candidate", **more: Any) -> str:
    """Ask somebody something; the request's name."""
    view, tools, sampling = View(), more.pop("tools", None), Sampling(schema=more.pop("schema", None))
    view.append("system", "You are **kind**.")
    for party, said in more.pop("before", ()):
        view.append(party, said)
    view.append("user", text)
    digest = request_digest(view, sampling, 7, tools)
    posed = PendingQuestion.from_request(
        Request(view.messages, sampling, 7, digest, text[:20], role, **more, tools=tools)
    )
    person.room.ask(posed, "test", None)
    return posed.name


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
