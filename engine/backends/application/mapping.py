"""The mapping of an application: which request asks it, and where in its answer the reply stands.

A mapping stands in a YAML file (``http:FILE.yaml``) or, as compact JSON, in the model's name (``http:{…}``). Nothing
here holds a key: ``${NAME}`` stays as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ...errors import ConfigurationError
from ...yamlfile import LineOf, parse_places, read_text
from ..credentials import INSTEAD, header_secret, shown_value, url_secret
from .placeholders import MESSAGES, mentions, texts_of

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_PLACEHOLDERS_OF_TURNS = ("message", "messages", "system", "seed")


class RequestTemplate(BaseModel):
    """A request: URL, method, and a body of any JSON data, left out where it is null."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(min_length=1, description="URL; may hold ${NAME} (environment) and {session}.")
    method: Method = Field(default="POST", description="HTTP method.")
    body: Any = Field(default=None, description="JSON body; its texts may hold placeholders such as {message}.")

    @field_validator("url")
    @classmethod
    def _usable_url(cls, url: str) -> str:
        if found := url_secret(url):
            raise ValueError(f"the URL {found}; {INSTEAD}")
        if not url.lower().startswith(("http://", "https://", "${")):
            raise ValueError(f"found {url!r}; a URL begins with http:// or https://, or with ${{NAME}} that does")
        return url

    @field_validator("body")
    @classmethod
    def _whole_history(cls, body: Any) -> Any:
        for text in texts_of(body):
            if MESSAGES in text and text != MESSAGES:
                raise ValueError(f"found {text[:80]!r}; {MESSAGES} is a list and stands alone in its text")
        return body


class OpenRequest(RequestTemplate):
    """The request that opens a session; without ``id`` the session keeps the identifier that was sent."""

    id: str | None = Field(default=None, min_length=1, description="Path to the session's identifier in the answer.")


class Application(RequestTemplate):
    """How an application is asked and understood."""

    headers: dict[str, str] = Field(
        default_factory=dict, description="Headers of each request; may hold ${NAME} (environment) and {session}."
    )
    answer: str | None = Field(
        default=None,
        min_length=1,
        description="Path to the reply in the answer's JSON, e.g. choices.0.message.content; null: the body is text.",
    )
    stream: Literal["none", "sse", "lines"] = Field(
        default="none", description="Form of the answer: whole, server-sent events, or a JSON value a line."
    )
    done: str | dict[str, Any] | None = Field(
        default=None, description="What ends the stream: an event's data or name, or members of its JSON object."
    )
    tool_calls: str | None = Field(
        default=None, min_length=1, description="Path to calls of tools, in OpenAI's form, in the answer."
    )
    tokens: str | None = Field(
        default=None, min_length=1, description="Path to the counts of tokens in the answer, e.g. usage."
    )
    timeout: float = Field(default=120.0, ge=0.001, le=86_400, description="Seconds for one attempt.")
    cookies: bool = Field(default=False, description="Keep cookies, for each conversation its own.")
    session: Literal["none", "conversation"] = Field(default="none", description="Whether conversations are sessions.")
    session_salt: str = Field(
        default="", description="Makes other session identifiers; may hold ${NAME} (environment)."
    )
    open: OpenRequest | None = Field(default=None, description="Request that opens a session.")
    close: RequestTemplate | None = Field(default=None, description="Request that closes a session.")

    @field_validator("headers")
    @classmethod
    def _no_keys(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if header_secret(name, value):
                raise ValueError(f"the header {name} holds a key; {INSTEAD}")
            if not (name + value).isascii() or not (name + value).isprintable() or not name or set(name) & set(" :"):
                raise ValueError(f"the header {name!r}: names and values are printable ASCII")
        return headers

    @model_validator(mode="after")
    def _consistent(self) -> Application:
        if not (mentions([self.url, self.body], "message") or self.sends_history):
            raise ValueError("neither url nor body holds {message} or {messages}: nothing would be asked")
        if self.method == "GET" and self.body is not None:
            raise ValueError("method GET sends no body; put {message} into the url")
        if self.answer is None and (self.tool_calls or self.tokens or self.stream == "lines"):
            raise ValueError("tool_calls, tokens and stream: lines are read from JSON; give answer as well")
        if self.done is not None and self.stream == "none":
            raise ValueError("done ends a stream; give stream: sse or stream: lines, or leave it out")
        if self.session == "none":
            if self.open or self.close or self.session_salt:
                raise ValueError("open, close and session_salt belong to sessions; give session: conversation")
            if mentions([self.url, self.body, self.headers], "session"):
                raise ValueError("{session} stands in it, but there are no sessions; give session: conversation")
        for name, other in (("open", self.open), ("close", self.close)):
            for placeholder in _PLACEHOLDERS_OF_TURNS if other else ():
                if other and mentions([other.url, other.body], placeholder):
                    raise ValueError(f"{name} holds {{{placeholder}}}; only {{session}} is known there")
        return self

    @property
    def sends_history(self) -> bool:
        """Whether each request holds the whole history, so that the application needs to remember nothing."""
        return mentions(self.body, "messages")


def inline_name(mapping: Mapping[str, Any]) -> str:
    """The model's name that holds a mapping: ``http:{…}``.

    :raises ConfigurationError: the mapping is wrong.
    """
    check_mapping(dict(mapping), "http:{…}")
    return f"http:{orjson.dumps(mapping).decode()}"


def read_mapping(file: Path) -> Application:
    """The mapping in a YAML file.

    :raises ConfigurationError: it cannot be read, or a field is wrong; the message names file, line and field.
    """
    value, line_of = parse_places(read_text(file), str(file))
    return check_mapping(value, str(file), line_of)


def check_mapping(value: Any, shown: str, line_of: LineOf | None = None) -> Application:
    """A mapping from plain data. ``shown`` is its file's name in errors, ``line_of`` says where its fields stand there.

    :raises ConfigurationError: a field is wrong; the message names it and what was found.
    """
    if not isinstance(value, dict):
        found = "nothing" if value is None else shown_value(value)
        raise ConfigurationError(
            f"{shown}: expected the mapping of an application (url, body, answer, …), found {found}"
        )
    try:
        return Application.model_validate(value)
    except ValidationError as error:
        problems = [_problem(dict(detail), shown, line_of) for detail in error.errors(include_url=False)]
        raise ConfigurationError("; ".join(problems)) from None


def _problem(detail: dict[str, Any], shown: str, line_of: LineOf | None) -> str:
    loc = tuple(detail["loc"])
    place = shown if line_of is None else f"{shown}:{line_of(loc)}"
    field = f" field '{'.'.join(map(str, loc))}':" if loc else ""
    if detail["type"] == "missing":
        return f"{place}:{field} is missing"
    if detail["type"] == "extra_forbidden":
        model = {"open": OpenRequest, "close": RequestTemplate}.get(str(loc[0]) if loc[1:] else "", Application)
        known = ", ".join(model.model_fields)
        return f"{place}:{field} unknown; known are {known}"
    message = str(detail["msg"])
    if detail["type"] == "value_error":  # ours: it says what was found
        return f"{place}:{field} {message.removeprefix('Value error, ')}"
    return f"{place}:{field} {message}, found {shown_value(detail.get('input'))}"
