"""Starts the M/M/c queue of ``queue_server`` in a process of its own: ``with running_queue(servers=8) as queue``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from process import serving_port

_SERVER = Path(__file__).with_name("queue_server.py")
_PATIENCE_SECONDS = 60.0


class RunningQueue:
    """A running queue. ``root`` is its address, ``model`` its name for ``viva``."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.model = f"openai:{self.root}/v1#judge"

    def counts(self, requests: int = 0) -> dict[str, Any]:
        """What it has counted, once so many requests have come."""
        with urlopen(f"{self.root}/stats?requests={requests}", timeout=_PATIENCE_SECONDS) as answer:
            counts: dict[str, Any] = json.load(answer)
        return counts

    def plan(self, **plan: Any) -> None:
        """Begin anew; the plan is described in ``queue_server``."""
        urlopen(Request(f"{self.root}/plan", json.dumps(plan).encode()), timeout=_PATIENCE_SECONDS).close()


@contextmanager
def running_queue(**plan: Any) -> Iterator[RunningQueue]:
    """A queue while entered."""
    with serving_port([sys.executable, str(_SERVER), "--plan", json.dumps(plan)]) as port:
        yield RunningQueue(port)
