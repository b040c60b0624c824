"""Starts the chaos server in a process of its own and ends it: ``with running(plan) as server``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from process_template import Process, can_fork, forked

Plan = dict[str, Any]

_CHAOS = Path(__file__).with_name("chaos.py")
# Far beyond what any answer takes; a server that is stuck fails its test instead of hanging it.
_PATIENCE_SECONDS = 30.0


class Server:
    """A running chaos server."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"
        self.url = f"{self._root}/v1"

    def model(self, name: str, **options: object) -> str:
        """A model name on this server, as ``viva`` takes it."""
        return self._named("openai", self.url, name, options)

    @staticmethod
    def _named(kind: str, url: str, name: str, options: dict[str, object]) -> str:
        query = "&".join(f"{option}={value}" for option, value in options.items())
        return f"{kind}:{url}#{name}" + (f"?{query}" if query else "")

    def anthropic(self, name: str, **options: object) -> str:
        """As ``model``, at the server's Messages API."""
        return self._named("anthropic", self._root, name, options)

    def gemini(self, name: str, **options: object) -> str:
        """As ``model``, at the server's Gemini API."""
        return self._named("gemini", self._root, name, options)

    def replan(self, plan: Plan) -> Server:
        """The same server with another plan and an empty log."""
        sent = Request(f"{self._root}/plan", json.dumps(plan).encode(), {"Content-Type": "application/json"})
        urlopen(sent, timeout=_PATIENCE_SECONDS).close()
        return self

    def log(self, *, requests: int = 0, left: int = 0) -> list[dict[str, Any]]:
        """What came so far, in order of arrival, as soon as there were so many requests and clients that left."""
        with urlopen(f"{self._root}/log?requests={requests}&left={left}", timeout=_PATIENCE_SECONDS) as answer:
            entries: list[dict[str, Any]] = json.load(answer)
        return entries


@contextmanager
def serving_port(command: list[str]) -> Iterator[int]:
    """The port that a server prints as its first line, while it runs."""
    with _started(command) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the server ended with {process.wait()} before it served"
            yield int(json.loads(line)["port"])
        finally:
            process.terminate()


def _started(command: list[str]) -> subprocess.Popen[bytes] | Process:
    program, script, *arguments = command
    if program == sys.executable and script.endswith(".py") and can_fork():
        return forked(script, *arguments, errors=2)
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@contextmanager
def running(plan: Plan) -> Iterator[Server]:
    """The server while entered; its plan is described in ``chaos``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        with serving_port([sys.executable, str(_CHAOS), "--plan", str(path)]) as port:
            yield Server(port)
