"""Requests in OpenAI's form, as pydantic models: what is taken, within which bounds.

A field that would change the answer and cannot be obeyed is refused by name, never ignored; ``IGNORED`` are those that
change nothing. What never belongs here: what the engine makes of them (``asking``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from viva.engine.backends.openai_message import part_text

from ..server.problems import Problem

# Fields of OpenAI's that do not change what a model answers.
IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_retention"})
MOST_CHOICES = 128
_MOST_MESSAGES = 1_024  # templates render a conversation once for each of its answers
_MOST_PARTS = 1_024  # of a message: parts of its content, or calls
_MOST_TOOLS = 512
_MOST_STOPS = 16
_MOST_PROMPTS = 128

# Of a list that is wrong the first mistake is told (``fail_fast``): to find them all takes seconds.
Stop = Annotated[str, StringConstraints(max_length=1_000)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="allow")


class CalledFunction(_Form):
    """The function of a call, with its arguments as JSON text."""

    name: str
    arguments: str = ""


class MessageCall(_Form):
    """A call in a message of the assistant's."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(_Form):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: Annotated[list[MessageCall], Field(fail_fast=True, max_length=_MOST_PARTS)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _of_text(cls, content: Any) -> Any:
        """Parts of any type that has text are joined; any other is refused by its type."""
        if not isinstance(content, list):
            return content
        if len(content) > _MOST_PARTS:
            raise ValueError(f"expected at most {_MOST_PARTS:,} parts, found {len(content):,}")
        return "".join(map(_text_of_part, content))

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content or ""


def _text_of_part(part: Any) -> str:
    told = part if isinstance(part, dict) else {}
    try:
        text = part_text(part)
    except TypeError:
        text = ""
    if not text and told.get("text") != "":
        kind = told.get("type")
        raise ValueError(f"only text is taken, found a part of type {kind!r:.40}")
    return text


class StreamOptions(_Form):
    """What a stream tells besides text."""

    include_usage: bool = False


class NamedSchema(_Form):
    """A JSON schema that the answer must follow."""

    name: str = "answer"
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Form):
    """The form of the answer. ``schema`` beside ``json_object`` is the dialect of llama.cpp's servers."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class ChosenFunction(_Form):
    """The name of a function."""

    name: str


class NamedChoice(_Form):
    """The one function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class SamplingForm(_Form):
    """What chat and plain completions have in common."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=_MOST_STOPS)] | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logit_bias: dict[str, Any] | None = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    # Not OpenAI's, but taken by all local servers.
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)

    def refuse_unknown(self) -> None:
        """:raises Problem: a field is given that cannot be obeyed."""
        if self.logit_bias:
            raise Problem(400, "logit_bias is not supported", field="logit_bias")
        for name, value in (self.model_extra or {}).items():
            if name not in IGNORED and value is not None:
                shown = name[:60]
                raise Problem(400, f"'{shown}' is not supported; leave it out", field=shown, code="unknown_parameter")


class ChatForm(SamplingForm):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(fail_fast=True, min_length=1, max_length=_MOST_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=_MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None


class TextForm(SamplingForm):
    """The body of ``POST /v1/completions``."""

    prompt: str | Annotated[list[str], Field(fail_fast=True, max_length=_MOST_PROMPTS)]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def refuse_unknown(self) -> None:
        """:raises Problem: a field is given that cannot be obeyed."""
        super().refuse_unknown()
        if self.echo:
            raise Problem(
                400, "echo is not supported: texts are not read here; name the file itself (llama:FILE)", field="echo"
            )
        if self.suffix:
            raise Problem(400, "suffix is not supported", field="suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise Problem(400, "best_of is not supported; leave it out", field="best_of")
