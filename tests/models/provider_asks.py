"""Requests to providers' endpoints, and their answers, for tests of several backends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.registry import KINDS
from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.events import Event
from viva.engine.limits import Limits
from viva.engine.messages import Completion, Message, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox, ToolCall

CLOCK = RealClock()
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = Toolbox([{"name": "weather", "description": "What it is like.", "parameters": PLACE}, {"name": "time"}])
VERDICT = {
    "type": "object",
    "properties": {
        "comment": {"type": "string", "maxLength": 400, "description": "Why."},
        "score": {"type": "integer", "minimum": 1, "maximum": 4},
    },
    "required": ["comment", "score"],
}


def asking(
    *said: tuple[str, str] | Message,
    on_text: Callable[[str], None] | None = None,
    tools: Toolbox | None = None,
    seed: int = 7,
    **sampling: Any,
) -> Request:
    """A request of the conversation ``talk`` and the role ``candidate``."""
    view = View()
    for one in said or (("user", "Why is steel cold?"),):
        if isinstance(one, Message):
            view.append(one.role, one.content, calls=one.calls, call_id=one.call_id, name=one.name)
        else:
            view.append(one[0], one[1])  # type: ignore[arg-type]
    chosen = Sampling(**sampling)
    digest = request_digest(view, chosen, seed, tools)
    return Request(
        view.messages, chosen, seed, digest, "talk", "candidate", on_text=on_text, tools=tools, affinity="talk"
    )


def answers(name: str, requests: Iterable[Request], attempts: int = 3) -> list[Completion]:
    """The answers to requests, one after another, of one open model."""

    async def main() -> list[Completion]:
        async with governed(name, attempts) as backend:
            return [await backend.generate(request) for request in requests]

    return CLOCK.run(main)


def answer(name: str, request: Request, attempts: int = 3) -> Completion:
    """The answer to one request."""
    return answers(name, [request], attempts)[0]


def governed(
    name: str,
    attempts: int = 3,
    policy: RetryPolicy | None = None,
    publish: Callable[[Event], None] | None = None,
) -> RetryingBackend:
    """A model with quick retries, or those of a policy."""
    spec = ModelSpec.parse(name)
    inner = import_module(KINDS[spec.kind]).build(spec, CLOCK)
    inner.label = spec.label
    spec.finish()
    policy = policy or RetryPolicy(attempts=attempts, first=0.001)
    return RetryingBackend(inner, Limits(CLOCK), CLOCK, policy, publish)


def offline(kind: str, key: str | None = None) -> Any:
    """A provider's backend that asks nobody, to read answers with."""
    backend = import_module(KINDS[kind]).build(ModelSpec.parse(f"{kind}:http://h/v1#m"), CLOCK)
    backend.label = "m"
    backend._redact = backend._endpoint.redact = Redactor(key)
    return backend


def read_whole(kind: str, answer: Any, *, tools: bool = False) -> Completion:
    """What is read of an answer that was sent whole."""
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    read: Completion = offline(kind)._parse(data, tools=tools).completion
    return read


def after_call(request: Request, completion: Completion, *results: str) -> list[Message]:
    """The messages of a request, the answer that called tools, and the tools' results."""
    calls: tuple[ToolCall, ...] = tuple(completion.calls or ())
    told = [
        Message("tool", result, call_id=call.id, name=call.name) for call, result in zip(calls, results, strict=True)
    ]
    return [*request.messages, Message("assistant", completion.text, calls=calls), *told]
