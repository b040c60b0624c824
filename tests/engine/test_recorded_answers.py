"""Answers, streams and errors in the forms that Anthropic, Google and OpenAI-compatible servers send, as files in
``recorded``.

A file is a status, headers and a body, as they would stand on the wire; what they say is made up. A file named
``…stream`` is asked for as a stream, and arrives in pieces of seven bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from case_tables import case_table
from provider_asks import CLOCK, TOOLS, answer, asking, governed, offline

from viva.engine.backends.endpoint import AnswerBody
from viva.engine.backends.http_application import AnswerReader
from viva.engine.backends.http_application_mapping import parse_mapping
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.sse import SseParser
from viva.engine.errors import (
    AccountBlocked,
    BackendError,
    ContextTooLong,
    Rejected,
    Throttled,
    Unauthorized,
    Unavailable,
)
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_FILES = Path(__file__).with_name("recorded")
_NAMES = sorted(f"{path.parent.name}/{path.stem}" for path in _FILES.glob("*/*.http"))
_WHOLE = "Steel takes heat from the hand faster than wood does."
_STREAMED = "Steel takes heat from the hand faster: 50 W/(m·K) – wood has 0.1."
_LOOKED_UP = "The weather decides; I look it up."
_HALVES = "ok 😀 und 💀 \ufffd end"
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
    "anthropic/whole_stream": (_STREAMED, "stop", 1045, 23, "Conduction."),
    "anthropic/halves_stream": (_HALVES, "stop", 1045, 23, ""),
    "anthropic/other_text": ("It conducts heat well.", "stop", 1045, 17, ""),
    "anthropic/other_text_stream": ("It conducts heat well.", "stop", 1045, 23, ""),
    "openai/text_stream": (_STREAMED, "stop", 21, 23, ""),
    "openai/keep_alive_stream": (_STREAMED, "stop", 21, 23, ""),
    "openai/several_lines_stream": (_STREAMED, "stop", 21, 23, ""),
    "openai/single_lines_stream": (_STREAMED, "stop", 21, 23, ""),
    "openai/halves_stream": (_HALVES, "stop", 21, 23, "🤔?"),
    "openai/whole_stream": (_STREAMED, "stop", 21, 23, ""),
    "openai/other_choice_stream": (_STREAMED, "stop", 21, 23, ""),
    "openai/calls_stream": ("One moment.", "stop", 1045, 61, ""),
    "gemini/list_stream": (_STREAMED, "stop", 21, 23, ""),
    "gemini/halves_stream": (_HALVES, "stop", 21, 23, ""),
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
    "anthropic/cut_stream": (Unavailable, "the stream contains data that is not", None),
    "anthropic/cut_call_stream": (Unavailable, "the stream broke off before its end", None),
    "anthropic/overloaded_stream": (Unavailable, "HTTP 529: Overloaded", None),
    "anthropic/overloaded": (Unavailable, "HTTP 529: Overloaded", None),
    "anthropic/rate_limited": (Throttled, "rate limit of 30,000 input tokens", 27.0),
    "anthropic/rate_limited_until": (Throttled, "Too many input tokens", 41.0),
    "anthropic/spend_limit": (AccountBlocked, "spend limit for this month", None),
    "anthropic/prompt_too_long": (ContextTooLong, "prompt is too long", None),
    "anthropic/too_large": (ContextTooLong, "HTTP 413", None),
    "anthropic/wrong_key": (Unauthorized, "invalid x-api-key; check the key", None),
    "anthropic/gateway_page": (Unavailable, "HTTP 502: <html>", None),
    "anthropic/unknown_block": (Rejected, "a part of type 'hologram', which has no text", None),
    "anthropic/unknown_block_stream": (Rejected, "a part of type 'hologram', which has no text", None),
    "openai/cut_stream": (Unavailable, "the stream contains data that is not", None),
    "openai/error_event_stream": (Throttled, "HTTP 429: Rate limit reached for m", None),
    "openai/error_stream": (Unavailable, "HTTP 502: Provider disconnected", None),
    "openai/error_words_stream": (Unavailable, "upstream timed out", None),
    "openai/error_object_stream": (ContextTooLong, "maximum context length is 8192 tokens", None),
    "openai/error_whole_stream": (Unauthorized, "invalid api key", None),
    "openai/unknown_part_stream": (Rejected, "a part of type 'output_audio', which has no text", None),
    "openai/page_stream": (Unavailable, "the stream broke off before its end: <html>", None),
    "gemini/unknown_part": (Rejected, "a part of type 'inlineData', which has no text", None),
    "gemini/unknown_part_stream": (Rejected, "a part of type 'executableCode', which has no text", None),
    "gemini/cut_stream": (Unavailable, "the stream contains data that is not", None),
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
    options = {"gemini": {"thinking": "low"}, "anthropic": {"thinking": "adaptive"}}.get(provider, {})
    start = server.model if provider == "openai" else getattr(server, provider)
    model = start("gemini-3-flash" if provider == "gemini" else "m", **options)
    tools = TOOLS if "call" in said else None
    return answer(model, asking(tools=tools, on_text=heard.append if said.endswith("stream") else None), attempts=1)


def test_every_file_is_expected_to_be_read_or_raised() -> None:
    assert sorted([*_ANSWERS, *_ERRORS]) == _NAMES


@case_table("name", _ANSWERS)
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


@case_table("name", _ERRORS)
def test_an_error_has_its_type_and_its_time(name: str, replanned: StartChaos) -> None:
    expected, said, after = _ERRORS[name]
    with pytest.raises(BackendError, match=said) as caught:
        _asked(replanned({"default": _recorded(name)}), name, [])
    assert (type(caught.value), caught.value.retry_after) == (expected, after)


_STREAMS = [name for name in _NAMES if name.endswith("stream")]


class _Response:
    """What a body is read from: the pieces in which it arrives."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.headers: dict[str, str] = {}
        self.status, self.content = 200, self
        self._pieces = iter([piece for piece in pieces if piece])

    async def readany(self) -> bytes:
        return next(self._pieces, b"")


def _read(name: str, pieces: Iterable[bytes], key: str | None = None) -> tuple[Any, ...]:
    """What is heard, and read or raised, of the stream of a recorded file that arrives in such pieces."""
    heard: list[str] = []
    body: Any = AnswerBody(_Response(pieces), 10**7, "m")  # type: ignore[arg-type]
    reading = offline(name.partition("/")[0], key)._receive(body, heard.append, tools="call" in name)
    try:
        reading.send(None)
    except StopIteration as done:
        read: Completion = done.value.completion
        read.first_token = None
        return "".join(heard), read
    except BackendError as error:
        return "", type(error), str(error)
    raise AssertionError("nothing is waited for")


def _bytes(name: str) -> bytes:
    body: str = _recorded(name)["say"]
    return body.encode()


@case_table("name", _STREAMS)
def test_line_21_every_recorded_stream_reads_the_same_wherever_it_is_split(name: str) -> None:
    data = _bytes(name)
    whole, events = _read(name, [data]), _events([data])
    assert whole[0] == (_ANSWERS[name][0] if name in _ANSWERS else "")
    for place in range(1, len(data)):
        assert _events([data[:place], data[place:]]) == events
    assert _read(name, [data[place : place + 1] for place in range(len(data))]) == whole
    chance = random.Random(name)
    for _ in range(8):
        places = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(chance.randrange(1, 40)))})
        assert _read(name, [data[start:end] for start, end in pairwise(places)], "sk-0123456789abcdef") == whole


def _events(pieces: Iterable[bytes]) -> list[tuple[str, bytes]]:
    parser = SseParser(records=True)
    return [event for piece in pieces for event in parser.feed(piece)] + parser.end()


@pytest.mark.parametrize("name", ["openai/other_choice_stream", "gemini/halves_stream"])
def test_s7_a_piece_of_a_choice_that_was_not_asked_for_is_no_part_of_the_answer(name: str) -> None:
    data = _bytes(name)
    assert b'"index": 5' in data
    heard, read = _read(name, [data])
    assert "Wood" not in heard
    assert heard == read.text == _ANSWERS[name][0]


def test_s7_an_endpoint_that_counts_choices_from_another_number_is_read() -> None:
    data = _bytes("openai/text_stream").replace(b'"index": 0', b'"index": 1')
    assert _read("openai/", [data])[0] == _STREAMED


@pytest.mark.parametrize("name", ["anthropic/unknown_block_stream", "gemini/unknown_part_stream"])
def test_s7_an_unknown_block_is_an_error_that_names_it_and_no_empty_answer(name: str) -> None:
    _, kind, said = _read(name, [_bytes(name)])
    assert (kind, "which has no text" in said) == (Rejected, True)


@case_table("end", [b"\n", b"\r", b"\r\n"])
@case_table("mark", [b"", b"\xef\xbb\xbf"])
def test_line_21_every_end_of_lines_and_a_mark_before_them_is_read(end: bytes, mark: bytes) -> None:
    name = "openai/text_stream"
    data = mark + _bytes(name).replace(b"\n", end)
    for size in (1, 2, 3, len(data)):
        read = _read(name, [data[start : start + size] for start in range(0, len(data), size)])
        assert read == _read(name, [_bytes(name)])


@pytest.mark.parametrize("name", [name for name in _STREAMS if name in _ANSWERS])
def test_a_stream_that_is_cut_anywhere_is_asked_for_again_and_never_half_an_answer(name: str) -> None:
    data = _bytes(name)
    heard, whole = _read(name, [data])
    for cut in range(0, len(data), 3):
        got = _read(name, [data[:cut]])
        if got[1] is Unavailable:
            continue
        read = got[1]  # the reason for the end had come, and what may follow it had not begun
        assert (got[0], read.text, read.finish, read.calls) == (heard, whole.text, whole.finish, whole.calls)


def test_line_21_bytes_of_a_character_that_come_in_two_events_are_joined() -> None:
    def event(content: bytes, field: bytes = b"content") -> bytes:
        return b'data: {"choices": [{"index": 0, "delta": {"%b": "%b"}}]}\n\n' % (field, content)

    emoji = "😀".encode()
    for at in (1, 2, 3):
        data = event(b"ok " + emoji[:at]) + event("é".encode(), b"reasoning") + event(emoji[at:] + b" so")
        heard, read = _read("openai/", [data, b"data: [DONE]\n\n"])
        assert (heard, read.text, read.thoughts) == ("ok 😀 so", "ok 😀 so", "é")
    in_surrogates = event(b"ok \xed\xa0\xbd") + event(b"\xed\xb8\x80")  # as Java writes them
    assert _read("openai/", [in_surrogates, b"data: [DONE]\n\n"])[0] == "ok 😀"
    broken = event(b"ok \xff\xfe so") + b"data: [DONE]\n\n"
    assert _read("openai/", [broken])[1] is Unavailable


@case_table("name", ["text", "keep_alive", "several_lines", "single_lines", "halves"])
def test_line_21_an_application_that_streams_like_an_endpoint_is_read_by_the_same_reader(name: str) -> None:
    said = {"url": "http://h/chat", "body": {"text": "{message}"}, "answer": "choices.0.delta.content", "stream": "sse"}
    reader = AnswerReader(parse_mapping(said, "app.yaml"), "m", Redactor(None), CLOCK)
    data = _bytes(f"openai/{name}_stream")
    for size in (1, 7, len(data)):
        heard: list[str] = []
        body: Any = AnswerBody(_Response(data[start : start + size] for start in range(0, len(data), size)), 10**7, "m")  # type: ignore[arg-type]
        with pytest.raises(StopIteration) as done:
            reader.read(body, heard.append).send(None)  # type: ignore[attr-defined]
        assert "".join(heard) == done.value.value.text == _ANSWERS[f"openai/{name}_stream"][0]


def test_line_17_a_zero_at_the_end_of_an_applications_stream_replaces_no_count() -> None:
    said = {"url": "http://h/chat", "body": {"text": "{message}"}, "answer": "text", "stream": "sse", "tokens": "usage"}
    data = _sse({"text": "Hi", "usage": _USED}, {"text": " you", "usage": _ZEROS}, done=False)
    body: Any = AnswerBody(_Response([data]), 10**7, "m")  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as done:
        AnswerReader(parse_mapping(said, "app.yaml"), "m", Redactor(None), CLOCK).read(body, None).send(None)  # type: ignore[attr-defined]
    assert (done.value.value.prompt_tokens, done.value.value.completion_tokens) == (21, 5)


def test_line_21_plain_text_events_may_end_within_a_character() -> None:
    said = {"url": "http://h/chat", "body": {"text": "{message}"}, "answer": None, "stream": "sse"}
    mapping = parse_mapping({name: value for name, value in said.items() if value}, "app.yaml")
    data = b"data: ok \xf0\x9f\n\ndata: \x98\x80 so\n\n"
    body: Any = AnswerBody(_Response([data]), 10**7, "m")  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as done:
        AnswerReader(mapping, "m", Redactor(None), CLOCK).read(body, None).send(None)  # type: ignore[attr-defined]
    assert done.value.value.text == "ok 😀 so"


def _chunk(content: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    delta = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def _sse(*records: Any, done: bool = True) -> bytes:
    """Events of records, or of what stands on lines of their own."""
    lines = [one if isinstance(one, bytes) else b"data: " + json.dumps(one).encode() for one in records]
    return b"".join(line + b"\n\n" for line in [*lines, *([b"data: [DONE]"] if done else [])])


_END = _chunk(finish="stop")
_USED = {"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26}
_ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@case_table(
    "sign",
    ["data: [PING]", "data: [heartbeat]", "data: [KEEP_ALIVE]", "data: []", "data: undefined", "data: None", "data: -",
     "data: ...", "data: {}", "data: pong", "event: keep_alive\ndata: {\"time\": 1}", "\0\0", " \t", "data: data:"],
)  # fmt: skip
def test_line_21_what_only_keeps_a_stream_alive_is_passed_over(sign: str) -> None:
    data = _sse(sign.encode(), _chunk("Hi"), sign.encode(), _chunk(" you"), sign.encode(), _END)
    heard, read = _read("openai/", [data])
    assert heard == read.text == "Hi you"


def test_line_21_words_that_are_no_keep_alive_are_an_error() -> None:
    for words in ("upstream died", "服务器错误", "0"):
        got = _read("openai/", [_sse(_chunk("Hi"), f"data: {words}".encode(), _END)])
        assert (got[1], words in got[2]) == (Unavailable, True)


@case_table(
    "data",
    [
        _sse(_chunk("Hi"), _END).replace(b"data: ", b"data: data: "),
        _sse(_chunk("Hi"), _END).replace(b"data: ", b" data: "),
        _sse(_chunk("Hi"), _END).replace(b"data: ", b"\0data: "),
        b": begins\n\n" + _sse(_chunk("Hi"), _END).replace(b"data: {", b"{"),
        _sse({"choices": [{"index": 0, "delta": None, "text": "Hi"}]}, _END),
        _sse({"choices": [{"index": 0, "message": {"content": "H"}}]},
             {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}),
        _sse({"choices": [{"index": 0, "message": {"content": "H"}}]},
             {"choices": [{"index": 0, "message": {"content": "i"}, "finish_reason": "stop"}]}),
        _sse(_chunk("Hi"), {"choices": [{"delta": {}, "message": {"content": "Hi"}, "finish_reason": "stop"}]}),
    ],
)  # fmt: skip
def test_line_21_a_stream_in_another_common_form_is_read(data: bytes) -> None:
    heard, read = _read("openai/", [data[place : place + 1] for place in range(len(data))])
    assert heard == read.text == "Hi"


def test_line_21_a_control_character_in_a_text_is_read() -> None:
    assert _read("openai/", [_sse(b'data: {"choices": [{"delta": {"content": "a\tb\0c"}}]}', _END)])[0] == "a\tb\0c"


@case_table(
    ("record", "kind", "said"),
    [
        (b'{"error": {"message": "upstream died", "code": 503}}', Unavailable, "HTTP 503: upstream died"),
        (b'data: [{"error": {"message": "slow down", "code": 429}}]', Throttled, "HTTP 429: slow down"),
        (b'data: {"code": "Throttling", "message": "slow down"}', Unavailable, "slow down"),
        (b'data: {"detail": "Not authenticated"}', Unavailable, "Not authenticated"),
        (b"error: upstream died", Unavailable, "broke off before its end: error: upstream died"),
        (b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}', Unavailable, "ended the answer with 'error'"),
        (b'data: {"choices": [{"delta": {}, "finish_reason": "insufficient_system_resource"}]}', Unavailable, "ended"),
    ],
)  # fmt: skip
def test_line_21_an_error_in_a_stream_is_raised_with_its_words_in_whatever_form_it_comes(
    record: bytes, kind: type[BackendError], said: str
) -> None:
    got = _read("openai/", [_sse(_chunk("Hi"), record, done=False)])
    assert (got[1], said in got[2]) == (kind, True)


def test_line_20_an_error_within_a_choice_has_its_type_and_words() -> None:
    failed = {"choices": [{"error": {"code": 429, "message": "slow down"}, "finish_reason": "error", "message": {}}]}
    for data in (_sse(_chunk("Hi"), failed), json.dumps(failed).encode()):
        assert _read("openai/", [data])[1:] == (Throttled, "m: HTTP 429: slow down")


@pytest.mark.parametrize("field", ["images", "audio"])
def test_line_22_a_picture_or_sound_in_place_of_text_is_no_empty_answer(field: str) -> None:
    message = {"content": "", field: [{"type": "image_url"}]}
    for said in ("", "Hi"):
        chunk = {"choices": [{"index": 0, "delta": message | {"content": said}}]}
        whole = {"choices": [{"message": message | {"content": said}, "finish_reason": "stop"}]}
        for data in (_sse(chunk, _END), json.dumps(whole).encode()):
            heard, read, *words = _read("openai/", [data])
            assert read.text == heard == said if said else (read, field in words[0]) == (Rejected, True)


def test_line_22_log_probabilities_of_a_stream_are_read() -> None:
    told = [{"content": [{"token": token, "logprob": -0.5, "top_logprobs": []}]} for token in ("H", "i")]
    chunks = [{"choices": [{"delta": {"content": one["content"][0]["token"]}, "logprobs": one}]} for one in told]
    assert _read("openai/", [_sse(*chunks, _END)])[1].logprobs == [["H", -0.5, {}], ["i", -0.5, {}]]


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_line_21_a_stream_that_nobody_asked_for_is_read(provider: str, replanned: StartChaos) -> None:
    say = {
        "openai": _sse(_chunk("Hi"), _END),
        "anthropic": _messages(_block(0, type="text", text="Hi"), _ENDED),
        "gemini": _sse({"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}),
    }[provider].decode()
    headers = {"Content-Type": "text/event-stream; charset=utf-8"}
    server = replanned({"default": {"do": "raw", "status": 200, "say": say, "headers": headers}})
    model = server.model("m") if provider == "openai" else getattr(server, provider)("m")
    assert answer(model, asking(), attempts=1).text == "Hi"


@case_table(
    "data",
    [_sse(), _sse({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}), _sse({"token": {"text": "Hi"}}),
     _sse({"choices": [{"index": 0, "output": "Hi", "finish_reason": "stop"}]}),
     _sse({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}})],
)  # fmt: skip
def test_line_22_a_stream_without_an_answer_is_no_empty_answer(data: bytes) -> None:
    assert _read("openai/", [data])[1] is Unavailable


def test_line_22_the_end_of_an_anthropic_stream_without_a_message_is_no_empty_answer() -> None:
    assert _read("anthropic/", [b'data: {"type": "message_stop"}\n\n'])[1] is Unavailable


@case_table(
    "records",
    [
        [_chunk("Hi", usage=_USED), _chunk(finish="stop", usage=_ZEROS)],
        [_chunk("Hi", usage=_ZEROS), _chunk(finish="stop", usage=_USED)],
        [_chunk("Hi", usage={"prompt_tokens": 21}), _END, {"choices": [], "usage": {"completion_tokens": 5}}],
        [_chunk("Hi", usage=None), _chunk(finish="stop", x_groq={"usage": _USED})],
        [_chunk("Hi"), {"choices": [{"delta": {}, "finish_reason": "stop", "usage": _USED}]}],
        [_chunk("Hi", usage={"prompt_tokens": 21, "completion_tokens": 1}), _chunk(finish="stop", usage=_USED)],
    ],
)
def test_line_17_tokens_are_counted_wherever_in_a_stream_they_are_told(records: list[Any]) -> None:
    read = _read("openai/", [_sse(*records)])[1]
    assert (read.text, read.prompt_tokens, read.completion_tokens) == ("Hi", 21, 5)


def _call(arguments: Any, id_: str = "a", name: str = "x") -> dict[str, Any]:
    return {"index": 0, "id": id_, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "choices",
    [
        [{"delta": {"tool_calls": [_call('{"p": 1}')]}}, {"delta": {"tool_calls": [_call('{"p": 1}')]}}],
        [{"delta": {"tool_calls": [_call({})]}}, {"delta": {"tool_calls": [_call('{"p"')]}},
         {"delta": {"tool_calls": [_call(": 1}")]}}],
        [{"delta": {"tool_calls": [_call('{"p": 1}')]}}, {"message": {"tool_calls": [_call('{"p": 1}')]}}],
    ],
)  # fmt: skip
def test_line_22_a_call_that_is_repeated_or_begun_with_an_empty_object_is_put_together(choices: list[Any]) -> None:
    read = _read("openai/calls", [_sse(*({"choices": [one]} for one in choices), _chunk(finish="tool_calls"))])[1]
    assert [call.to_record() for call in read.calls] == [["a", "x", '{"p": 1}']]


def test_line_22_calls_of_other_names_under_one_id_and_index_are_apart() -> None:
    parts = [_call('{"p": 1}'), _call("{}", name="y")]
    read = _read("openai/calls", [_sse(*({"choices": [{"delta": {"tool_calls": [one]}}]} for one in parts), _END)])[1]
    assert [call.to_record() for call in read.calls] == [["a", "x", '{"p": 1}'], ["call-2", "y", "{}"]]


def _messages(*records: dict[str, Any]) -> bytes:
    begin = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 10, "output_tokens": 1}}}
    return _sse(begin, *records, done=False)


def _block(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


_ENDED = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"input_tokens": 0, "output_tokens": 5},
}


def test_s7_an_anthropic_delta_of_unknown_type_that_has_text_is_text() -> None:
    data = _messages(_block(0, type="text", text=""), _delta(0, type="output_text_delta", text="Hi"), _ENDED)
    heard, read = _read("anthropic/", [data])
    assert heard == read.text == "Hi"
    assert (read.prompt_tokens, read.completion_tokens) == (10, 5)  # a gateway's 0 replaces no count


def test_s7_a_call_keeps_the_input_that_its_anthropic_block_begins_with() -> None:
    block = _block(0, type="tool_use", id="a", name="x", input={"p": 1})
    read = _read("anthropic/calls", [_messages(block, _delta(0, type="input_json_delta", partial_json=""), _ENDED)])[1]
    assert [call.to_record() for call in read.calls] == [["a", "x", '{"p":1}']]


_FOUND = {"type": "web_search_result", "title": "Steel", "url": "https://a.example", "encrypted_content": "x"}
_SERVERS_TOOLS = [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [_FOUND]},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "web_search_tool_result_error"}},
    {"type": "mcp_tool_use", "id": "m", "name": "ask", "server_name": "a", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "50 W/(m·K)"}]},
    {"type": "mcp_tool_result", "tool_use_id": "m", "content": "50 W/(m·K)"},
    {"type": "bash_code_execution_tool_result", "tool_use_id": "b", "content": {"stdout": "50"}},
    {"type": "container_upload", "file_id": "f"},
    {"type": "compaction", "content": "They spoke of steel."},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
]


def _anthropic_answers(blocks: list[dict[str, Any]], finish: str = "end_turn") -> list[Any]:
    """What is read of a message, sent whole and as a stream."""
    whole = {"type": "message", "content": blocks, "stop_reason": finish, "usage": _ENDED["usage"]}
    ended = {**_ENDED, "delta": {"stop_reason": finish}}
    streams = [[json.dumps(whole).encode()], [_messages(*(_block(n, **one) for n, one in enumerate(blocks)), ended)]]
    return [_read("anthropic/", stream) for stream in streams]


@case_table("block", _SERVERS_TOOLS, ids=lambda block: block["type"])
def test_line_22_text_beside_tools_that_anthropic_runs_itself_is_the_answer(block: dict[str, Any]) -> None:
    text = {"type": "text", "text": "It conducts."}
    for heard, read in _anthropic_answers([text, block, text | {"text": " Well."}]):
        assert heard == read.text == "It conducts. Well."
    for got in _anthropic_answers([block], "pause_turn"):
        assert (got[1], f"'{block['type']}', which has no text" in got[2]) == (Rejected, True)


@pytest.mark.parametrize("part", ["executableCode", "codeExecutionResult", "toolCall", "toolResponse"])
def test_line_22_text_beside_tools_that_gemini_runs_itself_is_the_answer(part: str) -> None:
    told = {part: {"id": "t"}, "thoughtSignature": "x"}
    for parts, said in ([told, {"text": "It conducts."}], "It conducts."), ([told], Rejected):
        answer = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
        for data in (_sse(answer), json.dumps(answer).encode()):
            got = _read("gemini/", [data])
            assert (got[1] if said is Rejected else got[1].text) == said


def test_s7_thoughts_in_any_anthropic_block_are_kept_apart() -> None:
    blocks = [_block(0, type="reasoning", text="Hm."), _block(1, type="thinking"), _block(2, type="text", text="Hi")]
    read = _read("anthropic/", [_messages(*blocks, _ENDED)])[1]
    assert (read.text, read.thoughts) == ("Hi", "Hm.")


def test_counts_of_a_gemini_stream_are_put_together() -> None:
    counts = [{"promptTokenCount": 21, "candidatesTokenCount": 5}, {"promptTokenCount": 21}]
    parts = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}
    read = _read("gemini/", [_sse(*({"candidates": [parts], "usageMetadata": one} for one in counts))])[1]
    assert (read.prompt_tokens, read.completion_tokens) == (21, 5)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_line_20_an_error_that_comes_as_an_answer_has_its_type(provider: str, replanned: StartChaos) -> None:
    say = json.dumps({"type": "error", "error": {"type": "insufficient_quota", "message": "You exceeded your quota."}})
    server = replanned({"default": {"do": "raw", "status": 200, "say": say}})
    model = server.model("m") if provider == "openai" else getattr(server, provider)("m")
    with pytest.raises(AccountBlocked, match="HTTP 429: You exceeded your quota"):
        answer(model, asking(), attempts=1)


@case_table("way", ["echo", "prompt_logprobs", "generate"])
@case_table(
    ("say", "kind"),
    [('{"error": {"code": 429, "message": "slow down"}}', Throttled),
     ('{"error": {"code": "insufficient_quota", "message": "no quota"}}', AccountBlocked), ("{}", Rejected)],
)  # fmt: skip
def test_line_20_an_error_that_comes_as_the_answer_to_a_reading_has_its_type(
    say: str, kind: type[BackendError], way: str, replanned: StartChaos
) -> None:
    server = replanned({"default": {"do": "raw", "status": 200, "say": say}})

    async def main() -> None:
        async with governed(server.model("m", reading=way), attempts=1) as backend:
            await backend.read(Reading("Steel is ", ("cold",)))

    with pytest.raises(BackendError) as raised:
        CLOCK.run(main)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "headers"),
    [(201, {}), (203, {}), (200, {"Content-Encoding": "none"}), (200, {"Content-Encoding": "UTF-8"})],
)
def test_an_answer_with_another_status_of_success_or_an_encoding_that_is_none_is_read(
    status: int, headers: dict[str, str], replanned: StartChaos
) -> None:
    say = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})
    server = replanned({"default": {"do": "raw", "status": status, "headers": headers, "say": say}})
    assert answer(server.model("m"), asking(), attempts=1).text == "Hi"


def test_s5_half_a_key_stands_in_no_error() -> None:
    key = "sk-0123456789abcdef-ABCDEF"
    part = _sse({"choices": [{"delta": {"content": [{"type": "a" * 25 + key}]}}]})
    with pytest.raises(Unavailable) as packed:
        AnswerBody(_packed(key), 10**7, "m")._unpacked(b"x")
    for said in (_read("openai/", [part], key)[2], str(packed.value)):
        assert not any(key[place : place + 5] in said for place in range(len(key) - 4))


def _packed(coding: str) -> Any:
    response = _Response([])
    response.headers["Content-Encoding"] = coding
    return response
