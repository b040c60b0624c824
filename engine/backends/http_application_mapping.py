"""Mapping of an HTTP application: which request to send, and where its answer contains the reply.

A mapping is a YAML file (`http:FILE.yaml`) or compact JSON in the model name (`http:{…}`). It contains no key:
`${NAME}` is filled from the environment when the backend opens, `{message}` and the like for each request; all other
braces are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import ConfigurationError
from ..messages import Message, Request
from ..permissions import permissions
from ..yaml_file import LineOf, parse_with_lines, read_text
from .model_name import USE_VARIABLE_ADVICE, describe_value, is_secret_header, secret_in_url

MESSAGES_PLACEHOLDER = "{messages}"
_PLACEHOLDER = re.compile(r"\{(message|system|session|seed)\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class PlaceholderValues:
    """Values of one request's placeholders. `messages` is the history in the form of chat endpoints."""

    message: str = ""
    system: str = ""
    session: str = ""
    seed: int = 0
    messages: Sequence[Mapping[str, Any]] = ()

    def text(self, template: str, quoted: Callable[[str], str] = str) -> str:
        """Fill the template in one pass; braces inside values are left alone. `quoted` is applied to each value."""
        return _PLACEHOLDER.sub(lambda match: quoted(str(getattr(self, match[1]))), template)

    def json(self, template: Any) -> Any:
        """Fill the texts of JSON data. A text that is just `{messages}` becomes the list, `{seed}` a number."""
        if isinstance(template, str):
            if template == MESSAGES_PLACEHOLDER:
                return self.messages
            return self.seed if template == "{seed}" else self.text(template)
        if isinstance(template, dict):
            return {name: self.json(value) for name, value in template.items()}
        return [self.json(value) for value in template] if isinstance(template, list) else template


def fill_values(request: Request, session: str, *, system_apart: bool) -> PlaceholderValues:
    """Return a request's values. If `system_apart`, the template has `{system}`, and the history omits that message."""
    messages: Sequence[Message] = request.messages
    message = next((turn.content for turn in reversed(messages) if turn.role == "user"), "")
    system = "\n\n".join(turn.content for turn in messages if turn.role == "system")
    history = [turn.to_openai() for turn in messages if not (system_apart and turn.role == "system")]
    return PlaceholderValues(message, system, session, request.seed, history)


def iter_texts(template: Any) -> Iterator[str]:
    """Yield all texts of JSON data except keys."""
    if isinstance(template, str):
        yield template
    inner = template.values() if isinstance(template, dict) else template if isinstance(template, list) else ()
    for value in inner:
        yield from iter_texts(value)


def has_placeholder(template: Any, name: str) -> bool:
    """Return True if a text of the JSON data contains the placeholder."""
    return any(f"{{{name}}}" in text for text in iter_texts(template))


def fill_from_environment(text: str, field: str, name: str) -> tuple[str, list[str]]:
    """Return the text with `${NAME}` replaced, and the values used; a variable without a value is an error."""
    values: list[str] = []

    def value(match: re.Match[str]) -> str:
        value_text = (permissions().variable(match[1]) or "").strip()
        if not value_text:
            raise ConfigurationError(f"{name}: {field}: no value in the environment variable {match[1]}; set it")
        values.append(value_text)
        return value_text

    return _VARIABLE.sub(value, text), values


def has_variable(text: str) -> bool:
    """Return True if the text refers to environment variables."""
    return _VARIABLE.search(text) is not None


Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_PLACEHOLDERS_OF_TURNS = ("message", "messages", "system", "seed")


class RequestTemplate(BaseModel):
    """A request: URL, method, and a body of any JSON data (null: no body)."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(min_length=1, description="URL; may hold ${NAME} (environment) and placeholders.")
    method: Method = Field(default="POST", description="HTTP method; GET sends no body.")
    body: Any = Field(default=None, description="JSON body; its texts may hold placeholders.")

    @field_validator("url")
    @classmethod
    def _usable_url(cls, url: str) -> str:
        if secret := secret_in_url(url):
            raise ValueError(f"the URL {secret}; {USE_VARIABLE_ADVICE}")
        if not url.lower().startswith(("http://", "https://", "${")):
            raise ValueError(f"found {url!r}; a URL begins with http:// or https://, or with ${{NAME}} for that part")
        return url

    @field_validator("body")
    @classmethod
    def _whole_history(cls, body: Any) -> Any:
        for text in iter_texts(body):
            if MESSAGES_PLACEHOLDER in text and text != MESSAGES_PLACEHOLDER:
                raise ValueError(f"found {text[:80]!r}; {MESSAGES_PLACEHOLDER} is a list and must be the whole text")
        return body


class OpenRequest(RequestTemplate):
    """The request that opens a session. Without `id`, the session keeps the identifier that was sent."""

    id: str | None = Field(default=None, min_length=1, description="Path to the session's identifier in the answer.")


class Application(RequestTemplate):
    """The requests and answers of an application."""

    headers: dict[str, str] = Field(
        default_factory=dict, description="Headers of each request; may hold ${NAME} (environment) and {session}."
    )
    answer: str | None = Field(
        default=None,
        min_length=1,
        description="Path to the reply in the answer's JSON, e.g. choices.0.message.content; null: the body is text.",
    )
    stream: Literal["none", "sse", "lines"] = Field(
        default="none", description="none: one answer; sse: server-sent events; lines: one JSON value per line."
    )
    done: str | dict[str, Any] | None = Field(
        default=None, description="End of a stream: an event's name or data, or {member: value} of its JSON object."
    )
    tool_calls: str | None = Field(default=None, min_length=1, description="Path to tool calls in OpenAI's form.")
    tokens: str | None = Field(
        default=None,
        min_length=1,
        description="Path to token counts: prompt_tokens and completion_tokens, or input_tokens and output_tokens.",
    )
    timeout: float = Field(
        default=120.0, ge=0.001, le=86_400, description="Seconds per attempt; at most 10 of them to connect."
    )
    cookies: bool = Field(default=False, description="Keep cookies, separately per conversation.")
    session: Literal["none", "conversation"] = Field(
        default="none", description="conversation: each conversation is a session."
    )
    session_salt: str = Field(
        default="", description="Changes all session identifiers; may hold ${NAME} (environment)."
    )
    open: OpenRequest | None = Field(
        default=None, description="Request that opens a session, and id, the path to its identifier."
    )
    close: RequestTemplate | None = Field(default=None, description="Request at the end of a conversation.")

    @field_validator("headers")
    @classmethod
    def _no_keys(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if is_secret_header(name, value):
                raise ValueError(f"the header {name} holds a key; {USE_VARIABLE_ADVICE}")
            if not (name + value).isascii() or not (name + value).isprintable() or not name or set(name) & set(" :"):
                raise ValueError(f"the header {name!r}: names and values must be printable ASCII")
        return headers

    @model_validator(mode="after")
    def _consistent(self) -> Application:
        if not (has_placeholder([self.url, self.body], "message") or self.sends_history):
            raise ValueError(
                "neither url nor body contains {message} or {messages}: the application would get no question"
            )
        if self.method == "GET" and self.body is not None:
            raise ValueError("method GET sends no body; put {message} into the url")
        if self.answer is None and (self.tool_calls or self.tokens or self.stream == "lines"):
            raise ValueError("tool_calls, tokens and stream: lines are read from JSON; give answer as well")
        if self.done is not None and self.stream == "none":
            raise ValueError("done ends a stream; set stream: sse or stream: lines, or remove it")
        if self.session == "none":
            if self.open or self.close or self.session_salt:
                raise ValueError("open, close and session_salt require sessions; set session: conversation")
            if has_placeholder([self.url, self.body, self.headers], "session"):
                raise ValueError("it contains {session}, but sessions are off; set session: conversation")
        for name, other in (("open", self.open), ("close", self.close)):
            for placeholder in _PLACEHOLDERS_OF_TURNS if other else ():
                if other and has_placeholder([other.url, other.body], placeholder):
                    raise ValueError(f"{name} holds {{{placeholder}}}; only {{session}} is known there")
        return self

    @property
    def sends_history(self) -> bool:
        """Return True if each request contains the whole history, so that the application can be stateless."""
        return has_placeholder(self.body, "messages")


def inline_name(mapping: Mapping[str, Any]) -> str:
    """Return the model name for a mapping: `http:{…}`."""
    parse_mapping(dict(mapping), "http:{…}")
    return f"http:{orjson.dumps(mapping).decode()}"


def read_mapping(file: Path) -> Application:
    """Read a mapping from a YAML file."""
    value, line_of = parse_with_lines(read_text(file), str(file))
    return parse_mapping(value, str(file), line_of)


def parse_mapping(value: Any, name: str, line_of: LineOf | None = None) -> Application:
    """Parse a mapping from plain data; errors state `name`, line and field."""
    if not isinstance(value, dict):
        description = "nothing" if value is None else describe_value(value)
        raise ConfigurationError(
            f"{name}: expected the mapping of an application (url, body, answer, …), found {description}"
        )
    try:
        return Application.model_validate(value)
    except ValidationError as error:
        problems = [_mapping_problem(dict(detail), name, line_of) for detail in error.errors(include_url=False)]
        raise ConfigurationError("; ".join(problems)) from None


def _mapping_problem(detail: dict[str, Any], name: str, line_of: LineOf | None) -> str:
    loc = tuple(detail["loc"])
    location = name if line_of is None else f"{name}:{line_of(loc)}"
    field = f" field '{'.'.join(map(str, loc))}':" if loc else ""
    if detail["type"] == "missing":
        return f"{location}:{field} is missing"
    if detail["type"] == "extra_forbidden":
        model = {"open": OpenRequest, "close": RequestTemplate}.get(str(loc[0]) if loc[1:] else "", Application)
        known = ", ".join(model.model_fields)
        return f"{location}:{field} unknown; known are {known}"
    message = str(detail["msg"])
    if detail["type"] == "value_error":  # our own message already says what is wrong
        return f"{location}:{field} {message.removeprefix('Value error, ')}"
    return f"{location}:{field} {message}, found {describe_value(detail.get('input'))}"
