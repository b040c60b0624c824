"""``viva serve`` in a process of its own, and plain requests to it: ``with serving(folder, …) as server``."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from process_template import Process
from viva_process import ended, started

_PATIENCE_SECONDS = 60.0  # far beyond what any answer takes
JSON = {"Content-Type": "application/json"}


class Serving:
    """A running server; ``token`` is sent with every request that names no other."""

    def __init__(self, process: subprocess.Popen[bytes] | Process, port: int, token: str) -> None:
        self.process, self.port, self.token = process, port, token
        self.url = f"http://127.0.0.1:{port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        sent = ({"Authorization": f"Bearer {self.token}"} if self.token else {}) | (JSON if body is not None else {})
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, sent | (headers or {}))
        answer = connection.getresponse()
        read = answer.read()
        connection.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(read) if "json" in found.get("content-type", "") else read

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer that is no refusal."""
        status, _, answer = self.ask(method, f"/api/v1{path}", body)
        assert status < 300, (status, answer)
        return answer

    @contextmanager
    def watching(self, path: str, last: str = "") -> Iterator[Iterator[tuple[str, str, Any]]]:
        """The server-sent events of a path, as id, name and data, while entered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}"} | ({"Last-Event-ID": last} if last else {})
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield _events(answer)
        finally:
            answer.close()
            connection.close()

    def terminate(self) -> int:
        """Send SIGTERM and wait for the end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_SECONDS)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    found: dict[str, str] = {}
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name:
            found[name] = value
        elif "event" in found:
            yield found.get("id", ""), found["event"], json.loads(found["data"])
            found = {}
        else:
            found = {}


@contextmanager
def serving(folder: Path, *options: str | Path, token: str = "") -> Iterator[Serving]:
    """The server while entered, started in ``folder``."""
    with (folder / "serve.log").open("a") as log, patch.dict(os.environ, {"VIVA_TOKENS": token}):
        process = started("serve", "--port", "0", *options, cwd=folder, errors=log.fileno())
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert port is not None, (line, (folder / "serve.log").read_text())
        yield Serving(process, int(port[1]), token)
    finally:
        process.kill()
        ended(process)
    assert "Traceback" not in (folder / "serve.log").read_text()
