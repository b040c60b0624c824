"""Live logs as dialogs: spans and request logs, calls joined into dialogs, and files that grow."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from viva.engine.errors import DatasetError
from viva.scenarios.flexeval.conversation_files import UnreadableRecord, read_dialogs
from viva.scenarios.flexeval.dialog import Dialog
from viva.scenarios.flexeval.readers.logs import GrowingFile, GrowingLog, GrownDialog

TALK = [("user", "Hi."), ("assistant", "Hello."), ("user", "2+2?"), ("assistant", "Four."), ("user", "Sure?")]


def _chat(messages: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in messages]


def _parts(messages: Sequence[tuple[str, str]]) -> str:
    return json.dumps([{"role": r, "parts": [{"type": "text", "content": text}]} for r, text in messages])


def _span(sent: Sequence[tuple[str, str]], said: str, **attributes: Any) -> dict[str, Any]:
    own = {"gen_ai.input.messages": _parts(sent), "gen_ai.output.messages": _parts([("assistant", said)])}
    return {
        "name": "chat m",
        "context": {"trace_id": "0xt1", "span_id": f"0x{len(sent)}"},
        "start_time": "2025-01-01T00:00:00.000000Z",
        "end_time": "2025-01-01T00:00:01.500000Z",
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **own, **attributes},
    }


def _write(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records))
    return path


def _read(path: Path) -> list[Dialog]:
    found = list(read_dialogs(path))
    assert all(isinstance(one, Dialog) for one in found), found
    return [one for one in found if isinstance(one, Dialog)]


def _texts(dialog: Dialog) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in dialog.messages]


def _otlp(span: dict[str, Any]) -> dict[str, Any]:
    def typed(value: Any) -> dict[str, Any]:
        return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}

    attributes = [{"key": key, "value": typed(value)} for key, value in span["attributes"].items()]
    made = {"traceId": "t1", "spanId": "s", "name": "chat", "startTimeUnixNano": "1735689600000000000",
            "endTimeUnixNano": "1735689600250000000", "attributes": attributes}  # fmt: skip
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": [made]}]}]}


def test_spans_of_one_conversation_are_one_dialog(tmp_path: Path) -> None:
    at = {"gen_ai.conversation.id": "c1", "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 2}
    other = _span(TALK[:1], "Bye.", **{"gen_ai.conversation.id": "c2"})
    path = _write(
        tmp_path / "spans.jsonl",
        {"name": "GET /", "context": {}, "attributes": {"http.route": "/"}},
        _span([("system", "It is 9:00."), *TALK[:1]], "Hello.", **at),
        other,
        _span([("system", "It is 9:01."), *TALK[:3]], "Four.", **at),
    )
    first, second = _read(path)
    assert (first.id, second.id) == ("c2", "c1")
    assert _texts(second) == [("system", "It is 9:01."), *TALK[:4]]
    answers = [one for one in second.messages if one.role == "assistant"]
    assert [(one.latency, one.tokens) for one in answers] == [(1.5, {"prompt": 7, "completion": 2})] * 2
    assert answers[0].metadata["model"] == "m"
    assert not any(key.endswith("messages") for key in answers[0].metadata)


def test_calls_that_continue_nothing_are_dialogs_of_their_own(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "s.jsonl",
        _span(TALK[:1], "Hello."),
        _span(TALK[:1], "Good morning."),
        _span([*TALK[:1], ("assistant", "Good morning."), ("user", "2+2?")], "4"),
        _span(TALK[:1], "Hello."),
    )
    assert {one.id: len(one.messages) for one in _read(path)} == {"t1": 2, "t1:2": 4}


def test_an_answer_that_the_application_rewrote_is_still_that_answer(tmp_path: Path) -> None:
    sent = [*TALK[:1], ("assistant", "Hello, shortened."), TALK[2]]
    again = _span(TALK[:1], "Another answer to the same.")
    [first, second] = _read(_write(tmp_path / "s.jsonl", _span(TALK[:1], "Hello."), again, _span(sent, "Four.")))
    assert [(one.id, len(one.messages)) for one in (first, second)] == [("t1", 2), ("t1:2", 4)]
    assert _texts(second) == [*sent, ("assistant", "Four.")]


def test_spans_exported_by_otlp_with_several_in_a_line(tmp_path: Path) -> None:
    lines = [_otlp(_span(TALK[:n], TALK[n][1], **{"gen_ai.usage.input_tokens": n})) for n in (1, 3)]
    lines[0]["resourceSpans"] += lines[1]["resourceSpans"]
    [dialog] = _read(_write(tmp_path / "export.json", lines[0]))
    assert (dialog.id, dialog.metadata) == ("t1", {"service.name": "shop"})
    assert _texts(dialog) == TALK[:4]
    assert [(one.latency, one.tokens) for one in dialog.messages if one.role == "assistant"] == [
        (0.25, {"prompt": 1}), (0.25, {"prompt": 3})]  # fmt: skip


def test_tool_calls_and_results_in_parts(tmp_path: Path) -> None:
    call = {"type": "tool_call", "id": "c", "name": "look", "arguments": {"at": "Paris"}}
    sent = [
        {"role": "user", "parts": [{"type": "text", "content": "Weather?"}, {"type": "uri", "uri": "x"}]},
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": {"sky": "grey"}}]},
    ]
    said = [{"role": "assistant", "finish_reason": "stop", "parts": [
        {"type": "reasoning", "content": "It said grey."}, {"type": "text", "content": "Grey."}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "Rain."}]}]  # fmt: skip
    attributes = {
        "gen_ai.input.messages": sent,
        "gen_ai.output.messages": said,
        "gen_ai.system_instructions": [{"type": "text", "content": "Be short."}],
    }
    [dialog] = _read(_write(tmp_path / "s.jsonl", {"name": "chat", "trace_id": "t", "attributes": attributes}))
    assert _texts(dialog) == [("system", "Be short."), ("user", "Weather?"), ("assistant", ""),
                              ("tool", '{"sky":"grey"}'), ("assistant", "Grey.")]  # fmt: skip
    assert [(one.text, one.result) for one in dialog.tool_calls] == [('look({"at":"Paris"})', '{"sky":"grey"}')]
    assert dialog.messages[1].metadata == {"parts": ["uri"]}
    assert dialog.messages[-1].latency is None
    last = dialog.messages[-1].metadata
    assert (last["reasoning"], last["finish_reason"], last["other_choices"]) == ("It said grey.", "stop", ["Rain."])


def test_earlier_conventions_give_the_same_dialog(tmp_path: Path) -> None:
    system, user, said = ("system", "Be short."), ("user", "Hi."), ("assistant", "Hello.")
    numbered: dict[str, Any] = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": said[1]}
    for number, (role, text) in enumerate((system, user)):
        numbered |= {f"gen_ai.prompt.{number}.role": role, f"gen_ai.prompt.{number}.content": text}
    body = {"content": said[1], "role": "assistant"}
    events = [
        {"name": "gen_ai.system.message", "attributes": {"content": system[1]}},
        {"name": "gen_ai.user.message", "attributes": {"gen_ai.event.content": json.dumps({"content": user[1]})}},
        {"name": "gen_ai.choice", "attributes": {"index": 0, "finish_reason": "stop", "message": json.dumps(body)}},
    ]
    whole = [
        {"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": json.dumps(_chat([system, user]))}},
        {"name": "gen_ai.content.completion", "attributes": {"gen_ai.completion": json.dumps([body])}},
    ]
    details = {"gen_ai.input.messages": _parts([system, user]), "gen_ai.output.messages": _parts([said])}
    kept = {"gen_ai.system": "openai", "gen_ai.prompt.name": "greeting"}
    path = _write(
        tmp_path / "s.jsonl",
        {"name": "a", "trace_id": "a", "attributes": numbered | kept},
        {"name": "b", "trace_id": "b", "attributes": kept, "events": events},
        {"name": "c", "trace_id": "c", "attributes": kept, "events": whole},
        {"name": "d", "trace_id": "d", "attributes": kept,
         "events": [{"name": "gen_ai.client.inference.operation.details", "attributes": details}]},
        {"name": "e", "trace_id": "e", "attributes": {**kept, "events": json.dumps(
            [{"event.name": "gen_ai.system.message", "content": system[1]},
             {"event.name": "gen_ai.user.message", "content": user[1], "role": "user"},
             {"event.name": "gen_ai.choice", "message": body}])}},
    )  # fmt: skip
    found = _read(path)
    assert [one.id for one in found] == list("abcde")
    assert [_texts(one) for one in found] == [[system, user, said]] * 5
    assert all(one.messages[-1].metadata["gen_ai.prompt.name"] == "greeting" for one in found)


def test_spans_without_messages_are_named_with_what_to_do(tmp_path: Path) -> None:
    silent = {"name": "chat", "trace_id": "x", "attributes": {"gen_ai.operation.name": "chat"}}
    path = _write(tmp_path / "s.jsonl", silent, silent, _span(TALK[:1], "Hello."),
                  _span(TALK[:1], "x", **{"gen_ai.input.messages": "[oops"}))  # fmt: skip
    broken, without, dialog = read_dialogs(path)
    assert isinstance(broken, UnreadableRecord)
    assert "field 'attributes.gen_ai.input.messages': not valid JSON" in str(broken)
    assert isinstance(without, UnreadableRecord)
    assert (without.line, "2 model calls" in without.message, "CAPTURE_MESSAGE" in without.message) == (
        1,
        True,
        True,
    )
    assert isinstance(dialog, Dialog)


def _request(sent: Sequence[tuple[str, str]], said: str, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}]
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    request = {"model": "m", "temperature": 0, "messages": _chat(sent)}
    response = {"id": f"chat-{said}", "choices": choices, "usage": usage}
    return {"request": request, "response": response, "latency_ms": 250, **more}


def test_request_logs_and_batches(tmp_path: Path) -> None:
    plain = _request(TALK[:1], "Hello.", user_tier="gold")
    batch = {"custom_id": "b1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": _chat(TALK[:1])},
             "response": {"status_code": 200, "body": plain["response"]}}  # fmt: skip
    failed = {**batch, "custom_id": "b2", "response": {"status_code": 500, "body": {"error": {"message": "down"}}}}
    unasked = {"request": {"input": "x"}, "response": {}}
    path = _write(tmp_path / "log.jsonl", plain, batch, failed, unasked, _request(TALK[:3], "Four."))
    bad, *found = read_dialogs(path)
    assert "log.jsonl:4: field 'request.messages': is missing; the request has: input" in str(bad)
    dialogs = {one.id: one for one in found if isinstance(one, Dialog)}
    assert {key: len(one.messages) for key, one in dialogs.items()} == {"b1": 2, "b2": 1, "chat-Hello.": 4}
    first = dialogs["chat-Hello."]
    assert _texts(first) == TALK[:4]
    assert [(one.latency, one.tokens) for one in first.messages if one.role == "assistant"] == [
        (0.25, {"prompt": 5, "completion": 2})] * 2  # fmt: skip
    assert (first.metadata["model"], first.metadata["temperature"]) == ("m", 0)
    assert dialogs["b2"].metadata["error"] == {"message": "down"}


def test_requests_without_an_id_join_behind_an_answer_alone(tmp_path: Path) -> None:
    both = [_request(TALK[:1], "Hello."), _request(TALK[:1], "Hello.")]
    path = _write(tmp_path / "log.jsonl", *both, _request(TALK[:3], "Four."), _request(TALK[:3], "4"))
    assert sorted(len(one.messages) for one in _read(path)) == [4, 4]
    named = [_request(TALK[:1], "Hello.", session_id="s"), _request(TALK[:3], "Four.", session_id="s")]
    assert [(one.id, len(one.messages)) for one in _read(_write(path, *named))] == [("s", 4)]


def _taken(follower: GrowingFile, log: GrowingLog) -> list[Any]:
    return [one for line, text in follower.lines() for one in log.take(line, text)]


def test_a_growing_log_gives_complete_lines_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    follower, log = GrowingFile(path), GrowingLog(path)
    assert _taken(follower, log) == []
    first, second = (json.dumps(_request(TALK[:n], TALK[n][1], session_id="s")) for n in (1, 3))
    with path.open("a") as file:
        file.write(first[:40])
        file.flush()
        assert _taken(follower, log) == []
        file.write(f"{first[40:]}\n{second}\nnonsense\n{second[:9]}")
    one, two, bad = _taken(follower, log)
    assert isinstance(one, GrownDialog)
    assert (one.known_count, len(one.dialog.messages), two.known_count, _texts(two.dialog)) == (0, 2, 2, TALK[:4])
    assert one.dialog.id == two.dialog.id == "s"
    assert str(bad).startswith(f"{path}:3: not valid JSON")
    state = json.loads(json.dumps(follower.state))
    follower.close()
    with path.open("a") as file:
        file.write(f"{second[9:]}\n")
    with GrowingFile(path, state) as again:
        assert [line for line, _ in again.lines()] == [4]
        assert list(again.lines()) == []
        assert again.notes == []


def test_the_state_stands_behind_the_last_line_that_was_taken(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.log", "one", "two", "three")
    with GrowingFile(path) as follower:
        lines = follower.lines()
        assert [next(lines), next(lines)] == [(1, "one\n"), (2, "two\n")]
        state = follower.state
    with GrowingFile(path, state) as again:
        assert list(again.lines()) == [(3, "three\n")]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("cut", ["new\n"]),
        ("rewritten", ["another first line\n"] * 3),
        ("renamed", ["late\n", "without end", "new\n"]),
    ],
)
def test_a_log_that_is_cut_or_replaced_is_read_from_its_beginning(
    tmp_path: Path, how: str, expected: list[str]
) -> None:
    path = _write(tmp_path / "a.log", "first line", "second line")
    with GrowingFile(path) as follower:
        assert len(list(follower.lines())) == 2
        if how == "cut":
            path.write_text("new\n")
        elif how == "rewritten":  # by now it is longer than it was
            path.write_text("another first line\n" * 3)
        else:
            with path.open("a") as file:
                file.write("late\nwithout end")
            path.rename(tmp_path / "a.log.1")
            _write(path, "new")
        assert [text for _, text in follower.lines()] == expected
        assert len(follower.notes) == 1
        assert "read from its beginning" in follower.notes[0]
        state = follower.state
    _write(tmp_path / "other", "x", "y").replace(path)
    with GrowingFile(path, state) as resumed:
        assert [text for _, text in resumed.lines()] == ["x\n", "y\n"]
        assert len(resumed.notes) == 1


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zip").write_bytes(b"\x1f\x8b\x08")
    for name, told in (("pipe", "is a pipe"), ("zip", "compressed by gzip"), (".", "is a folder")):
        with GrowingFile(tmp_path / name) as follower, pytest.raises(DatasetError, match=told):
            list(follower.lines())
    long = tmp_path / "long.log"
    long.write_bytes(b"a" * (9 * 2**20) + b"\nshort\n")
    with GrowingFile(long) as follower:
        (number, bad), last = follower.lines()
    assert (number, last) == (1, (2, "short\n"))
    assert not isinstance(bad, str)


def test_only_so_many_conversations_are_remembered(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "log.jsonl", capacity=2)
    sent = [json.dumps(_request(TALK[:1], "Hello.", session_id=name)) for name in "abc"]
    for line, text in enumerate(sent, 1):
        assert [one.known_count for one in log.take(line, text) if isinstance(one, GrownDialog)] == [0]
    later = {name: json.dumps(_request(TALK[:3], "Four.", session_id=name)) for name in "ca"}
    known = [one.known_count for text in later.values() for one in log.take(9, text) if isinstance(one, GrownDialog)]
    assert known == [2, 0]
