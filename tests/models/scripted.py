"""A simulated model whose answers a test writes where it wants to: ``scripted:m`` while ``scripted_models`` is open."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from viva.engine.backends import registry
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import Clock
from viva.engine.messages import Completion, Request

# (role, ordinal), or ("BRANCH: ROLE", ordinal) for a call in one branch alone -> the fields of the completion that are
# not the simulated model's.
Script = Mapping[tuple[str, int], dict[str, Any]]


class Scripted(SimulatedBackend):
    """Says what the script has for a role's call, and streams it piece by piece where that is asked for."""

    script: Script = {}  # noqa: RUF012  # set while ``scripted_models`` is open
    requests: list[Request] = []  # noqa: RUF012

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        changes = self.script.get((f"{request.branch}: {request.role}", request.ordinal))
        changes = changes or self.script.get((request.role, request.ordinal))
        if changes is None:
            return await super().generate(request)
        watch, request.on_text = request.on_text, None
        completion = replace(await super().generate(request), **changes)
        for start in range(0, len(completion.text) if watch is not None else 0, 5):
            assert watch is not None
            watch(completion.text[start : start + 5])
        return completion


def _build(spec: ModelSpec, clock: Clock) -> Backend:
    return Scripted(clock, knowledge=1.0, noise=0.0)


@contextmanager
def scripted_models(script: Script) -> Iterator[list[Request]]:
    """Makes ``scripted:NAME`` a kind of model; yields the requests that come."""
    module = types.ModuleType("scripted_kind")
    module.build = _build  # type: ignore[attr-defined]
    sys.modules["scripted_kind"] = module
    registry.KINDS["scripted"] = "scripted_kind"
    Scripted.script, Scripted.requests = script, []
    try:
        yield Scripted.requests
    finally:
        del registry.KINDS["scripted"], sys.modules["scripted_kind"]
