"""Starts ``batch_server`` in a process of its own and ends it: ``with running() as server``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from process import serving_port

_SERVER = Path(__file__).with_name("batch_server.py")
_PATIENCE_SECONDS = 120.0  # a server that is stuck fails its test instead of hanging it
_PATHS = {"openai": "/v1", "anthropic": "", "gemini": ""}
WAIT = 0.02  # seconds without a new call after which a batch is sent; all other pauses are multiples of it


class BatchServer:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"

    def model(self, kind: str, name: str = "candidate", **options: object) -> str:
        """A model name on this server, by batches unless the options say otherwise."""
        options = {"batch": "on", "batch_wait": WAIT} | options
        if options["batch"] == "off":
            del options["batch_wait"]
        query = "&".join(f"{option}={value}" for option, value in options.items())
        return f"{kind}:{self.root}{_PATHS[kind]}#{name}?{query}"

    def replan(self, plan: dict[str, Any]) -> None:
        """Another plan, and an empty log; the batches stay."""
        sent = Request(f"{self.root}/plan", json.dumps(plan).encode(), {"Content-Type": "application/json"})
        urlopen(sent, timeout=_PATIENCE_SECONDS).close()

    def number(self) -> int:
        """Return how many requests have come since the plan."""
        with urlopen(f"{self.root}/number", timeout=_PATIENCE_SECONDS) as answer:
            return int(json.load(answer))

    def log(self, requests: int = 0) -> dict[str, Any]:
        """Return what came since the plan, as soon as there were so many requests."""
        with urlopen(f"{self.root}/log?requests={requests}", timeout=_PATIENCE_SECONDS) as answer:
            entries: dict[str, Any] = json.load(answer)
        return entries


@contextmanager
def running() -> Iterator[BatchServer]:
    """The server while entered."""
    with serving_port([sys.executable, str(_SERVER)]) as port:
        yield BatchServer(port)
