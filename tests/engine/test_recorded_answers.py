"""Answers, streams and errors in the forms that Anthropic and Google document, as files in ``recorded``.

A file is a status, headers and a body, as they would stand on the wire; what they say is made up. A file named
``…stream`` is asked for as a stream, and arrives in pieces of seven bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from provider_asks import TOOLS, answer, asking

from viva.engine.errors import (
    BackendError,
    ContextTooLong,
    Rejected,
    Throttled,
    Unauthorized,
    Unavailable,
)
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_FILES = Path(__file__).with_name("recorded")
_NAMES = sorted(f"{path.parent.name}/{path.stem}" for path in _FILES.glob("*/*.http"))
_WHOLE = "Steel takes heat from the hand faster than wood does."
_STREAMED = "Steel takes heat from the hand faster: 50 W/(m·K) – wood has 0.1."
_LOOKED_UP = "The weather decides; I look it up."
_CALLED = {"place": "Bern", "days": [1, 2]}

# What is read: text, finish, tokens of prompt and answer, thoughts.
_ANSWERS: dict[str, tuple[str, str, int, int, str]] = {
    "anthropic/text": (_WHOLE, "stop", 1045, 17, ""),
    "anthropic/stop_sequence": ("It conducts heat well.", "stop", 1045, 17, ""),
    "anthropic/silence": ("", "stop", 1045, 2, ""),
    "anthropic/thoughts_only": ("", "length", 1045, 17, "First the units, then"),
    "anthropic/calls": ("One moment.", "stop", 1045, 17, _LOOKED_UP),
    "anthropic/text_stream": (_STREAMED, "stop", 1045, 23, ""),
    "anthropic/calls_stream": ("One moment.", "stop", 1045, 61, _LOOKED_UP),
    "anthropic/refusal_stream": ("", "refusal", 1045, 3, ""),
    "gemini/text": (_WHOLE, "stop", 21, 17, ""),
    "gemini/calls": ("One moment.", "stop", 21, 61, f"**Weather first**\n\n{_LOOKED_UP}"),
    "gemini/thoughts_only": ("", "length", 21, 512, ""),
    "gemini/safety": ("", "content_filter", 21, 0, ""),
    "gemini/recitation": ("The hand that touches", "content_filter", 21, 17, ""),
    "gemini/blocked_prompt": ("", "content_filter", 21, 0, ""),
    "gemini/malformed_call": ("", "malformed_function_call", 21, 0, ""),
    "gemini/logprobs": ("Yes.", "stop", 21, 17, ""),
    "gemini/text_stream": (_STREAMED, "stop", 21, 23, ""),
    "gemini/thoughts_stream": ("Steel takes heat fast.", "stop", 21, 61, "Units first; then the hand."),
    "gemini/calls_stream": ("One moment.", "stop", 21, 61, f"**Weather first**\n\n{_LOOKED_UP}"),
    "gemini/safety_stream": ("First, take", "content_filter", 21, 3, ""),
    "gemini/blocked_prompt_stream": ("", "content_filter", 21, 0, ""),
}
# What is raised: type, some of its words, and after how many seconds to ask again.
_ERRORS: dict[str, tuple[type[BackendError], str, float | None]] = {
    "anthropic/cut_stream": (Unavailable, "the stream holds what is no", None),
    "anthropic/cut_call_stream": (Unavailable, "the stream broke off before its end", None),
    "anthropic/overloaded_stream": (Unavailable, "HTTP 529: Overloaded", None),
    "anthropic/overloaded": (Unavailable, "HTTP 529: Overloaded", None),
    "anthropic/rate_limited": (Throttled, "rate limit of 30,000 input tokens", 27.0),
    "anthropic/rate_limited_until": (Throttled, "Too many input tokens", 41.0),
    "anthropic/spend_limit": (Rejected, "spend limit for this month", None),
    "anthropic/prompt_too_long": (ContextTooLong, "prompt is too long", None),
    "anthropic/too_large": (Rejected, "HTTP 413", None),
    "anthropic/wrong_key": (Unauthorized, "invalid x-api-key; check the key", None),
    "anthropic/gateway_page": (Unavailable, "HTTP 502: <html>", None),
    "gemini/cut_stream": (Unavailable, "the stream holds what is no", None),
    "gemini/overloaded_stream": (Unavailable, "HTTP 503: The model is overloaded", None),
    "gemini/overloaded": (Unavailable, "HTTP 503: The model is overloaded", None),
    "gemini/errors_listed": (Unavailable, "HTTP 503: The model is overloaded", None),
    "gemini/deadline": (Unavailable, "HTTP 504", None),
    "gemini/quota": (Throttled, "exceeded your current quota", 27.4),
    "gemini/wrong_key": (Unauthorized, "API key not valid.*check the key", None),
    "gemini/prompt_too_long": (ContextTooLong, "input token count", None),
    "gemini/not_found": (Rejected, "HTTP 404: models/gemini-none", None),
}


def _recorded(name: str) -> dict[str, Any]:
    """The behaviour that sends a file."""
    head, _, body = (_FILES / f"{name}.http").read_bytes().decode().partition("\n\n")
    status, *lines = head.split("\n")
    headers = dict(line.split(": ", 1) for line in lines)
    pieces = 7 if name.endswith("stream") else 1 << 20
    return {"do": "raw", "status": int(status), "headers": headers, "say": body, "pieces": pieces}


def _asked(server: Server, name: str, heard: list[str]) -> Completion:
    provider, _, said = name.partition("/")
    model = getattr(server, provider)(
        "gemini-3-flash" if provider == "gemini" else "m", thinking="low" if provider == "gemini" else "adaptive"
    )
    tools = TOOLS if "call" in said else None
    return answer(model, asking(tools=tools, on_text=heard.append if said.endswith("stream") else None), attempts=1)


def test_every_file_is_expected_to_be_read_or_raised() -> None:
    assert sorted([*_ANSWERS, *_ERRORS]) == _NAMES


@pytest.mark.parametrize("name", _ANSWERS)
def test_an_answer_is_read(name: str, replanned: StartChaos) -> None:
    heard: list[str] = []
    got = _asked(replanned({"default": _recorded(name)}), name, heard)
    assert (got.text, got.finish, got.prompt_tokens, got.completion_tokens, got.thoughts) == _ANSWERS[name]
    assert "".join(heard) == (got.text if name.endswith("stream") else "")
    assert got.usage_note == ""
    if "calls" in name:
        assert got.calls is not None
        assert [(call.name, json.loads(call.arguments)) for call in got.calls] == [("weather", _CALLED), ("time", {})]
        assert len({call.id for call in got.calls}) == 2
    else:
        assert got.calls is None
    if name == "gemini/logprobs":
        assert got.logprobs == [["Yes", -0.125, {"Yes": -0.125, "No": -2.5}], [".", -0.0625, {".": -0.0625}]]


@pytest.mark.parametrize("name", _ERRORS)
def test_an_error_has_its_type_and_its_time(name: str, replanned: StartChaos) -> None:
    expected, said, after = _ERRORS[name]
    with pytest.raises(BackendError, match=said) as caught:
        _asked(replanned({"default": _recorded(name)}), name, [])
    assert (type(caught.value), caught.value.retry_after) == (expected, after)


@pytest.mark.parametrize("name", [name for name in _ANSWERS if name.endswith("stream")])
def test_a_stream_that_is_cut_anywhere_is_asked_for_again_and_never_half_an_answer(
    name: str, replanned: StartChaos
) -> None:
    whole = _recorded(name)
    data = whole["say"].encode()
    # Before the event that ends the answer, after each event and in the middle of it.
    ends = [at for at in range(len(data)) if data.startswith(b"data: ", at)]
    cuts = [cut for at in ends for cut in (at, at + 20)]
    schedule = {
        str(number): whole | {"say": data[:cut].decode("utf-8", "ignore"), "pieces": 1 << 20}
        for number, cut in enumerate(cuts)
    }
    server = replanned({"schedule": schedule})
    for _ in cuts:
        with pytest.raises(Unavailable):
            _asked(server, name, [])
