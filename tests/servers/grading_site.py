"""A small grading folder, and ``viva grade serve`` over it in a process of its own, asked by plain requests."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from process_template import Process
from viva_process import ended, started

from viva.grading.records import Answer, GraderRole, Label, Question, Turn
from viva.grading.store import GradeStore

PATIENCE_SECONDS = 60.0  # far beyond what any answer takes
CANDIDATES = ("alpaca-secret", "bison-secret", "civet-secret", "dingo-secret")
LABELS = [
    Label(0, "Incorrect information"),
    Label(1, "Correct information but incomplete"),
    Label(2, "Correct information and complete"),
]
PRINCIPLE = (
    "- wrong information: **0**\n- correct, but less complete than the standard answer: **1**\n- as complete: **2**"
)
_ANSWERS = (
    "A lock raises boats by letting water in:\n\n1. the boat enters and the gate closes,\n2. sluices open, and the "
    "water rises,\n3. the upper gate opens.\n\nNo pump is needed.",
    "The chamber is filled from the **upper** level, so the boat rises with the water.",
    "A lock works with a crane that lifts the boat. It takes about `20 minutes`.",
    "| step | what happens |\n|---|---|\n| 1 | gates close |\n| 2 | sluices open |\n| 3 | boat rises |",
)


def questions(count: int = 12, *, overlap: int = 3, labels: list[Label] | None = None) -> list[Question]:
    """Questions with an answer of each candidate; each answer names its question, none its candidate."""
    found = []
    for number in range(count):
        answers = [
            Answer(name, [Turn("assistant", f"{_ANSWERS[(place + number) % 4]}\n\nSo much for canal {number}.")],
                   key=f"{name}/item-{number}", round=1, score=0.123 + place)
            for place, name in enumerate(CANDIDATES)
        ]  # fmt: skip
        found.append(
            Question(f"item-{number}", f"How does a lock on canal {number} raise a boat?", labels or LABELS, answers,
                     dimension="domain/factuality/terms", standard_answer="Water flows in from the upper level through "
                     "sluices until both levels are equal; the upper gate opens then. No power is needed.",
                     principle=PRINCIPLE, source=f"source-{number}", overlap=overlap)
        )  # fmt: skip
    return found


def make_folder(folder: Path, count: int = 12, *, roles: dict[str, GraderRole] | None = None, **options: Any) -> Path:
    """A folder with these holders; three graders, an adjudicator and an admin if nothing else is said."""
    everybody: dict[str, GraderRole] = {"Ada": "grader", "Ben": "grader", "Cem": "grader", "Dora": "adjudicator"}
    with GradeStore.create(folder, questions(count, **options), title="Locks and canals", seed=5) as store:
        for name, role in (roles if roles is not None else everybody | {"Eva": "admin"}).items():
            store.add_grader(name, role=role)
    return folder


class GradingSite:
    """A running server. ``links``: the secret links by name that it printed, as paths."""

    def __init__(self, process: subprocess.Popen[bytes] | Process, url: str, links: dict[str, str]) -> None:
        self.process, self.url, self.links = process, url, links
        self.port = int(url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)


class Visitor:
    """Somebody with a session, without a browser. ``base`` is the path of their pages."""

    def __init__(self, port: int, link: str) -> None:
        self.port, self.cookie = port, ""
        status, headers, _ = self.ask("POST", link, b"", {"Content-Type": "application/x-www-form-urlencoded"})
        assert status == 303, status
        self.cookie = headers["set-cookie"].partition(";")[0]
        self.base = headers["location"]
        self._form = ""

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, body, ({"Cookie": self.cookie} if self.cookie else {}) | (headers or {}))
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page below the own path, redirects followed."""
        address = path if path.startswith("/") else self.base + path
        while True:
            status, headers, text = self.ask("GET", address)
            if status != 303:
                return status, text
            address = self.base + headers["location"].removeprefix("../")

    def post(self, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Send a form with its token; status and text, or the place that it leads to."""
        body = urlencode({"form": self.form(), **fields}).encode()
        sent = {"Content-Type": "application/x-www-form-urlencoded"} | (headers or {})
        status, found, text = self.ask("POST", self.base + path, body, sent)
        return status, found.get("location", text)

    def form(self) -> str:
        """The token of this session's forms."""
        if not self._form:
            self._form = field(self.get("done")[1], "data-form")
        return self._form

    def next(self) -> tuple[int | None, str]:
        """The number of the question to go on with and its seal; None where nothing is left."""
        status, text = self.get("next")
        assert status == 200, text
        found = re.search(r'data-question="(\d+)" data-seal="([^"]+)"', text)
        return (int(found[1]), found[2]) if found else (None, "")

    def grade(self, *items: dict[str, Any]) -> tuple[int, Any]:
        """Send grades as the page's script does; status and JSON."""
        body = json.dumps({"form": self.form(), "items": items}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        status, _, text = self.ask("POST", f"{self.base}grades", body, headers)
        return status, json.loads(text)


def field(text: str, name: str) -> str:
    """The first value of an attribute in a page."""
    found = re.search(rf'{name}="([^"]*)"', text)
    assert found is not None, (name, text[:2000])
    return found[1]


@contextmanager
def grading_site(folder: Path, *options: str | Path, port: int = 0) -> Iterator[GradingSite]:
    """Run the server while entered; what it says on stderr has no traceback in it."""
    log = folder.parent / f"{folder.name}.log"
    with log.open("a") as said:
        process = started("grade", "serve", folder, "--port", str(port), *options, errors=said.fileno())
    try:
        assert process.stdout is not None
        links, url = {}, ""
        while not url and (line := process.stdout.readline().decode()):
            if found := re.fullmatch(r"(.+) \((?:grader|adjudicator|admin)\): http://[^/]+(/link/\S+)\n", line):
                links[found[1]] = found[2]
            elif found := re.match(r"viva grade: (http://\S+)/ ", line):
                url = found[1]
        assert url, log.read_text()
        yield GradingSite(process, url, links)
    finally:
        process.kill()
        ended(process)
    assert "Traceback" not in log.read_text(), log.read_text()
