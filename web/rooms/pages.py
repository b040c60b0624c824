"""Pages of a room as HTML: waiting requests, and one request as the conversation that its role sees."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment

from viva.engine.backends.human_queue import AnswerQueue, PendingQuestion, QueueStatus

from ..markdown import MODEL_TEXT_FILTERS
from ..page_server import render, template_environment
from .schema_form import SchemaForm

TEMPLATES = Path(__file__).with_name("templates")
ASSETS = ("people.css", "mark.svg", "room.js", "room.css")
_WORDS_A_TOKEN = 0.75  # an estimate for English; the displayed number of words is a hint
_MIN_WORDS = 50  # hints are rounded down to multiples of this number
_RECENT = 20  # maximum answered requests in the list
_EMPTY_SCHEMA = {"type": "object", "properties": {}}  # schema for functions without a parameter schema
_UNIT_SECONDS = (("day", 86400.0), ("h", 3600.0), ("min", 60.0))


@dataclass(slots=True, frozen=True)
class Reader:
    """The person who reads a page: a name, which may be empty, and the token for forms."""

    name: str = ""
    token: str = ""


@dataclass(slots=True, frozen=True)
class RejectedForm:
    """A form that was not accepted: its fields, and the errors by field."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class CallableFunction:
    """A function that may be called: its name and purpose, and the form of its arguments."""

    name: str
    description: str
    form: SchemaForm


def room_templates() -> Environment:
    environment = template_environment(TEMPLATES)
    environment.filters |= MODEL_TEXT_FILTERS | {"waited": format_wait, "lines": json_lines}
    return environment


class RoomPages:
    """The pages of one room, under `/NAME/`."""

    def __init__(self, room: AnswerQueue, name: str, templates: Environment) -> None:
        self.room, self.name, self._templates = room, name, templates

    def entrance(self, name: str, action: str, token: str = "") -> str:
        """Render the page behind a link, which asks for the person's name and sends it to `action`."""
        return self._render("entrance.html", Reader(name, token), action=action)

    def listed(self, reader: Reader, now: float) -> str:
        """Render the list: all waiting requests, oldest first, and the latest answered ones."""
        waiting, fingerprint = self.render_waiting(now)
        return self._render(
            "room.html",
            reader,
            fragment=waiting,
            fingerprint=fingerprint,
            answered=self.room.standings("answered", limit=_RECENT),
            counts=self.room.counts(),
        )

    def render_waiting(self, now: float) -> tuple[str, str]:
        """Render the live part of the list; return it with a fingerprint of its content."""
        listed, attended = self.room.standings("waiting"), self.room.attended
        state = [attended, [[request.name, request.asked_at, request.deadline] for request in listed]]
        fingerprint = blake2b(orjson.dumps(state), digest_size=8).hexdigest()
        html = render(self._templates, "waiting.html", base=self.name, waiting=listed, attended=attended, now=now)
        return html, fingerprint

    def request(self, name: str, reader: Reader, now: float, filled: RejectedForm | None = None) -> str | None:
        """Render a request with its answer form, or with the answer; None if there is no such request."""
        record = self.room.request(name)
        if record is None:
            return None
        standing, question, answer = record
        return self._render(
            "request.html",
            reader,
            standing=standing,
            question=question,
            answer=answer,
            form=None if question.schema is None else SchemaForm(question.schema),
            calls_offered=callable_functions(question),
            words_hint=estimate_words(question.max_tokens),
            submission=secrets.token_urlsafe(12),
            filled=filled or RejectedForm(),
            attended=self.room.attended,
            now=now,
        )

    def state(self, name: str, reader: Reader) -> dict[str, Any] | None:
        """Return the state that an open page of a request polls; None if there is no such request."""
        record = self.room.standing(name)
        if record is None:
            return None
        standing, reader_name = record
        waiting = self.room.standings("waiting")
        return {
            "state": standing.state,
            "who": reader_name,
            "next": next_request(waiting, standing),
            "others": sum(request.name != name for request in waiting),
            "attended": self.room.attended,
            "token": reader.token,
        }

    def _render(self, template: str, reader: Reader, **values: Any) -> str:
        return render(self._templates, template, base=self.name, reader=reader, **values)


def next_request(waiting: list[QueueStatus], last: QueueStatus) -> str | None:
    """Return the name of the next waiting request with the last one's role and conversation; None if there is none."""
    later = [request for request in waiting if request.number > last.number and request.name != last.name
             and (request.conversation, request.role) == (last.conversation, last.role)]  # fmt: skip
    return later[0].name if later else None


def callable_functions(question: PendingQuestion) -> list[CallableFunction]:
    """Return the functions that may be called instead of answering."""
    functions = [tool["function"] for tool in question.tools]
    return [
        CallableFunction(
            function["name"],
            function.get("description", ""),
            SchemaForm(function.get("parameters") or _EMPTY_SCHEMA, f"call{number}/"),
        )
        for number, function in enumerate(functions)
    ]


def read_answer(
    question: PendingQuestion, fields: Mapping[str, str]
) -> tuple[str, list[tuple[str, str]], dict[str, str]]:
    """Parse a form; return (text, calls as (function, arguments as JSON), errors by field name)."""
    calls = callable_functions(question)
    chosen = fields.get("way", "" if question.required else "text") if calls else "text"
    if chosen != "text":
        number = int(chosen) if chosen.isascii() and chosen.isdigit() and len(chosen) < 4 else len(calls)
        if number >= len(calls):
            return "", [], {"way": "please choose a function" if question.required else "please choose how to answer"}
        arguments, errors = calls[number].form.read(fields)
        return "", [] if errors else [(calls[number].name, arguments)], errors
    if question.required and calls:
        return "", [], {"way": "please call one of the functions"}
    if question.schema is not None:
        text, errors = SchemaForm(question.schema).read(fields)
        return text, [], errors
    text = fields.get("text", "").replace("\r\n", "\n")
    return text, [], {} if text.strip() else {"text": "please write an answer first"}


def estimate_words(tokens: int) -> int:
    """Estimate the words of an answer from its tokens, rounded down unless small."""
    words = int(tokens * _WORDS_A_TOKEN)
    return words if words < _MIN_WORDS else words // _MIN_WORDS * _MIN_WORDS


def format_wait(seconds: float) -> str:
    """Format a wait as `2 days`, `5 h`, `12 min` or `< 1 min`."""
    for unit, size in _UNIT_SECONDS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return "< 1 min"


def json_lines(text: str) -> list[tuple[str, str]]:
    """Return the fields of a JSON object as readable (name, value) pairs; empty if the text is no JSON object."""
    try:
        value = orjson.loads(text.encode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return []
    if not isinstance(value, dict):
        return []
    return [(name.replace("_", " "), line) for name, item in value.items() if (line := _format_value(item))]


def _format_value(value: Any) -> str:
    """Format a value on one line; in an object, numbers come before texts."""
    if isinstance(value, dict):
        return " · ".join(
            filter(None, map(_format_value, sorted(value.values(), key=lambda text: isinstance(text, str))))
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else orjson.dumps(value).decode()
