"""Answers from the journal of an earlier run: `replay:RUN`. It calls no model.

A recorded reply is given only to the very same request (same conversation, role, ordinal and hash).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ..clock import Clock
from ..errors import Rejected, TranscriptEnded
from ..journal_reader import History
from ..messages import Completion, Request
from ..run_folder import RunFolder
from .base import Backend, ModelSpec


class ReplayBackend(Backend):
    """A recorded run as a backend.

    `generate` raises `TranscriptEnded` if the record has no further call of the role, and `Rejected` if the recorded
    call differs or is damaged.
    """

    replays = True

    def __init__(self, run: Path) -> None:
        self._run = run
        self._numbers: dict[str, int] | None = None
        self._answered = 0

    async def __aenter__(self) -> Backend:
        self._history = History(RunFolder.open(self._run).journal)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._history.close()

    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(0)
        if self._numbers is None:
            self._numbers = self._history.keys()
        number = self._numbers.get(request.conversation)
        calls = self._history.calls(number) if number is not None else []
        own = [call for call in calls if call.role == request.role]
        # Equal digests mean equal seeds, so the position is the same, in the calling branch or the branch that it
        # continues.
        same = [call for call in own if call.digest == request.digest]
        position = (request.branch, request.ordinal)
        matching = same or [call for call in own if (call.branch, call.ordinal) == position]
        if not matching and number in self._history.broken:
            raise Rejected(
                f"the record of {request.conversation} is damaged before {request.role} #{request.ordinal}",
                model=self.label,
            )
        if not matching:
            raise TranscriptEnded(
                f"no recorded call {request.role} #{request.ordinal} of {request.conversation}", model=self.label
            )
        if matching[-1].digest != request.digest:
            raise Rejected(
                f"{request.role} #{request.ordinal} of {request.conversation} was asked differently when it was "
                "recorded (another seed, prompt pack, sampling or item); use the recorded ones",
                model=self.label,
            )
        self._answered += 1
        if request.on_text is not None:
            request.on_text(matching[-1].completion.text)
        return matching[-1].completion

    def statistics(self) -> dict[str, Any]:
        return {"answered": self._answered}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build `replay:RUN`, a run folder; `replay:?run=RUN` if its percent-encoded path contains ? or #."""
    named = spec.take("run")
    run = Path(named if named and not spec.where else spec.where)
    RunFolder.open(run)
    return ReplayBackend(run)
