"""Runs by others in the viewer: odd records, very long names, texts and conversations, and commands to copy."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import urlopen

import orjson
import pytest
from browser import Browser
from hypothesis import given
from hypothesis import strategies as st
from recorded_talks import Pupil, questions
from viewed_runs import opened_pages, viewer

import viva
from viva.engine.conversation_replay import Exchange
from viva.engine.files import shell_path
from viva.engine.journal_format import call_checksum, short_checksum
from viva.engine.messages import Completion, Message
from viva.scenarios.rendering import RenderedConversation, RenderedTurn
from viva.web.view.calls import curl_command, suite_case, timeline
from viva.web.view.conversations import (
    LONGEST_TEXT,
    TURNS,
    PageTurn,
    TurnPair,
    TurnsPart,
    common_length,
    limit_words,
    page_turns,
    pair_turns,
    share_prompts,
)
from viva.web.view.export import export_pages
from viva.web.view.filters import Filter
from viva.web.view.index import index_name
from viva.web.view.matrix import MatrixView
from viva.web.view.pages import PageContext, bounded_text
from viva.web.view.selections import Selection


def _run(out: Path, tasks: list[str], *labels: str) -> Path:
    viva.run_sync(questions, models={"pupil": [Pupil(label) for label in labels or ["pupil"]]}, tasks=tasks, out=out)
    return out


def _add_call(run: Path, role: str, text: str, extra: str | None = None, finish: str = "stop") -> None:
    row = (0, role, 70, bytes(16), text, finish, 1, 1, 1.7e9, 0.1, extra)
    with sqlite3.connect(run / "journal.sqlite") as connection:
        connection.execute(f"insert into calls values ({','.join('?' * 12)})", (*row, call_checksum(row)))
    connection.close()


def _set_end(run: Path, number: int, status: str, result: Any) -> None:
    row = (number, status, orjson.dumps(result).decode())
    with sqlite3.connect(run / "journal.sqlite") as connection:
        connection.execute("update ended set status = ?, result = ?, checksum = ? where number = ?",
                           (*row[1:], short_checksum(row), number))  # fmt: skip
    connection.close()


ODD_CALLS = {
    "step without JSON": ("compute:x", "x", None, "stop"),
    "deep step": ("compute:x", "[" * 300 + "]" * 300, None, "stop"),
    "failed step without fields": ("compute:x", '{"type": 1}', None, "raised"),
    "failed step of another type": ("compute:x", "[1]", None, "raised"),
    "likelihoods": ("pupil", "x", '{"likelihoods": [{"total": "x"}]}', "stop"),
    "huge likelihoods": ("pupil", "x", '{"likelihoods": [[[1e308, 1e308], true, null, null]]}', "stop"),
    "first token": ("pupil", "x", '{"first_token": "x"}', "stop"),
    "log-probabilities": ("pupil", "x", '{"logprobs": [5, null, [], ["a", "NaN", {}], {}]}', "stop"),
    "calls": ("pupil", "x", '{"calls": [{"name": 1}]}', "stop"),
    "attempts": ("pupil", "x", '{"attempts": "3"}', "stop"),
    "branch": ("/a/<b>:pupil", "x", None, "stop"),
}


@pytest.mark.filterwarnings("ignore::viva.engine.errors.JournalNotice")
@pytest.mark.parametrize("scenario", ["questions", "unknown"])
def test_no_odd_record_takes_a_page_or_an_export(tmp_path: Path, scenario: str) -> None:
    root = tmp_path / "runs"
    for name, call in ODD_CALLS.items():
        _add_call(_run(root / name, ["1 question"]), *call)
    results: list[Any] = [{"score": [1]}, {"score": {}}, [], "x", None, 5]
    odd = _run(root / "results", [f"1 {number}" for number in range(len(results))])
    for number, result in enumerate(results):
        _set_end(odd, number, "finished", result)
    if scenario == "unknown":
        for file in root.glob("*/manifest.json"):
            record = orjson.loads(file.read_bytes())
            file.write_bytes(
                orjson.dumps({key: value for key, value in record.items() if key != "code"} | {"scenario": scenario})
            )
    with opened_pages(root, tmp_path / "index") as pages:
        listed = list(pages.reader.every())
        assert len(listed) == len(ODD_CALLS) + len(results)
        for own in listed:
            html = pages.conversation(own.run, own.number)
            assert "an answer" in html, (own.run, re.findall("Some prompts[^<]*|A record of[^<]*", html))
            for turn in re.findall(rf"/call/[^/]*/{own.number}/(\d+)", html):
                pages.call(own.run, own.number, int(turn))
        if scenario == "unknown":
            assert export_pages(root, tmp_path / "out", index=tmp_path / "index") == len(listed)
            files = list((tmp_path / "out" / "c").glob("*/*.html"))
            assert len(files) == len(listed)


def test_an_export_goes_on_after_a_conversation_that_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viva.engine.journal_reader.JournalTail.most_bytes", 40)
    _run(tmp_path / "run", ["9 questions", "1 question"])
    assert export_pages(tmp_path / "run", tmp_path / "out", index=tmp_path / "index") == 2
    refused, shown = ((tmp_path / "out" / "c" / "run" / f"{number}.html").read_text() for number in (0, 1))
    assert "too long for a page" in refused
    assert 'href="../../index.html"' in refused
    assert "an answer" in shown


def test_very_long_names_are_short_in_lists_and_their_links_lead_to_them(tmp_path: Path) -> None:
    tasks = [f"1 {'t' * 5_000}{end}" for end in ("", "x", "y")]
    run = _run(tmp_path / "run", tasks, "c" * 300, "c" * 300 + "-weak")
    _set_end(run, 0, "failed", {"type": "E" * 100_000, "message": "m" * 100_000, "at": "a" * 100_000})
    with opened_pages(tmp_path, tmp_path / "index") as pages:
        every = {
            "list": pages.conversations(Filter()),
            "overview": pages.overview(PageContext()),
            "matrix": pages.matrix(MatrixView()),
            "run": pages.run("run", None),
            "selection": pages.selection(Selection(Filter())),
            "picked": pages.selection(Selection(Filter(), (("run", 0),))),
        }
        assert {name for name, html in every.items() if len(html) > 60_000} == set()
        chosen = [
            parse_qsl(urlsplit(unescape(link)).query)
            for name in ("matrix", "overview")
            for link in re.findall(r'href="(/conversations\?[^"]*(?:candidate|task|error)=[^"]*)"', every[name])
        ]
        assert len(chosen) > 4
        for query in chosen:
            found = pages.reader.listed(Filter.from_query(dict(query)))
            assert found
            for own in found:
                for name in ("candidate", "task", "error"):
                    assert dict(query).get(name, getattr(own, name)) == getattr(own, name)
        raw = Filter.from_query({"candidate": "c" * 300 + "-weak"})  # a link by the name itself
        assert {own.candidate for own in pages.reader.listed(raw)} == {index_name("c" * 300 + "-weak")}


@given(st.text(max_size=3).map(lambda text: text * 120), st.text(max_size=3).map(lambda text: text * 120))
def test_names_of_the_index_are_short_and_tell_names_apart(first: str, second: str) -> None:
    short = index_name(first)
    assert len(short) <= 200
    assert index_name(short) == short
    assert (short == index_name(second)) == (first == second)


def test_a_question_that_is_too_long_is_refused_and_not_cut() -> None:
    with pytest.raises(viva.ConfigurationError, match="q: expected at most"):
        Filter.from_query({"q": "word " * 400})


@pytest.mark.parametrize("name", ["-x", "--help", "--python-tools=evil.py", "a b", "a'b$(id)`id`", "new\nline", "é"])
def test_a_folder_in_a_command_to_copy_is_no_option(name: str) -> None:
    [word] = shlex.split(shell_path(Path(name)))
    assert not word.startswith("-")
    assert Path(word) == Path(name)


@pytest.mark.parametrize("text", ["\x7f\x80\x9b\x9f", "\x00\x1b\n\u2028", "[1-300]{a,b}", "é" * 70_000, "END\nEND"])
def test_a_copied_request_is_json_and_no_pattern(text: str) -> None:
    call = Exchange("pupil", 1, None, (Message("user", text),))
    assert orjson.loads(suite_case(call, "x"))["messages"][0]["content"] == text
    command = curl_command(call, "openai:http://example.org/[1-300]#m")
    script = 'curl() { for word; do case "$word" in @-) cat;; {*) printf %s "$word";; esac; done; }\n' + command
    done = subprocess.run(["bash", "-s"], input=script.encode(), capture_output=True, check=True)
    assert orjson.loads(done.stdout)["messages"][0]["content"] == text
    assert command.startswith("curl -g 'http://example.org/[1-300]/chat/completions'")
    assert not re.search("[\x7f-\x9f]", command)


def test_a_very_long_text_is_bounded_and_says_so() -> None:
    assert bounded_text("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    assert bounded_text("x" * (LONGEST_TEXT + 1_500)).endswith("\n… (1,500 more characters; `viva show` writes all)")


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_beginnings_are_as_long_as_one_by_one(first: list[int], second: list[int]) -> None:
    count = common_length(first, second)
    assert first[:count] == second[:count]
    assert first[count : count + 1] != second[count : count + 1] or count == min(len(first), len(second))


parties = st.tuples(st.sampled_from(["", "a"]), st.sampled_from(["pupil", "judge"]))


@given(st.lists(st.tuples(parties, st.booleans()), max_size=15), st.integers(0, 5))
def test_prompts_can_be_put_together_from_what_turns_share(
    said: list[tuple[tuple[str, str], bool]], skipped: int
) -> None:
    views: dict[tuple[str, str], viva.View] = {}
    turns, sent = [], []
    for number, ((branch, role), fresh) in enumerate(said):
        view = views.setdefault((branch, role), viva.View())
        if fresh:
            view = views[branch, role] = viva.View()
        view.append("user", f"{role} {number % 4}")
        turns.append(RenderedTurn(role, call=Exchange(role, number, Completion("x"), view.messages, branch=branch)))
        sent.append([(message.role, message.content) for message in view.messages])
    page = page_turns(RenderedConversation(turns))
    assert [[page.messages[number] for number in turn.prompt] for turn in page.turns] == sent
    on_page = page.turns[skipped:]
    share_prompts(on_page)
    by_anchor: dict[str, PageTurn] = {}
    whole: dict[str, list[int]] = {}
    for turn in on_page:
        if turn.shared:
            assert turn.after in by_anchor
        whole[turn.anchor] = (whole[turn.after][: turn.shared] if turn.shared else []) + turn.prompt[turn.shared :]
        assert whole[turn.anchor] == turn.prompt
        by_anchor[turn.anchor] = turn


def _talk(count: int, words: str = "a") -> list[RenderedTurn]:
    return [RenderedTurn(("examiner", "pupil")[number % 2], f"{words} {number}") for number in range(count)]


def test_the_work_for_long_conversations_is_bounded() -> None:
    began = time.process_time()
    left, right = (page_turns(RenderedConversation(_talk(count))) for count in (9_000, 10_001))
    pairs = pair_turns(left, right)
    assert [(pair.left is None, pair.right is None) for pair in pairs[8_999:9_001]] == [(False, False), (True, False)]
    other = page_turns(RenderedConversation([RenderedTurn("item"), *_talk(9_000)]))
    assert len(pair_turns(left, other)) == 18_001  # too long to look for counterparts
    calls = [Exchange("pupil", at, Completion("x", latency=1.0), at=10.0 * at) for at in range(20_000)]
    drawn = timeline(calls, {})
    assert drawn is not None
    assert (sum(len(lane.bars) for lane in drawn.lanes), drawn.hidden) == (2_000, 18_000)
    part = TurnsPart.select(pairs, 99)
    assert (part.number, part.first, part.last, part.total) == (11, 10_001, 10_001, 10_001)
    long = [
        TurnPair(PageTurn("t1", turn), PageTurn("t1", RenderedTurn("pupil", f"{turn.text}.")))
        for turn in _talk(40, "word " * 1_400)
    ]
    limit_words(long)
    assert 10 < sum(pair.by_words for pair in long) < 40
    assert long[0].changes is not None
    assert long[-1].changes is None
    assert time.process_time() - began < 20  # with the square of the number, it takes minutes


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("long")
    _run(root / "new\nline", [f"{TURNS + 4} questions", f"{TURNS + 2} questions"])
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        yield address


def test_a_long_conversation_has_pages_of_turns_with_whole_prompts(browser: Browser, site: str) -> None:
    with urlopen(f"{site}/c/new%0Aline/0") as answer:
        first = answer.read()
    assert len(first) < 3_000_000
    assert b"turns 1\xe2\x80\x931,000 of 1,004" in first
    page = browser.open(f"{site}/c/new%0Aline/0?turns=2", 360)
    assert page.evaluate("document.querySelectorAll('.turn').length") == 4
    page.evaluate("document.querySelector('#t1003 .prompt').open = true")
    page.until("document.querySelector('#t1003 .prompt .message')")
    shown = "[...document.querySelectorAll('#t1003 .prompt .message')]"
    assert page.evaluate(f"{shown}.length") == 2_005
    assert page.evaluate(f"{shown}.at(-1).textContent") == "user newquestion 1002"
    assert page.evaluate(f"{shown}.filter((one) => !one.matches('.known')).length") == 2
    bars = page.evaluate("[...document.querySelectorAll('.lane a')].map((one) => one.getAttribute('href'))")
    assert (bars[0], bars[-1]) == ("/c/new%0Aline/0?turns=1#t1", "#t1004")
    page.leave("document.querySelector('#t1003 a.whole').click()")
    assert page.evaluate("document.querySelector('a[rel=up]').getAttribute('href')") == "/c/new%0Aline/0?turns=2#t1003"
    compared = browser.open(f"{site}/compare?a=new%0Aline%2F0&b=new%0Aline%2F1&turns=2", 1440)
    assert compared.evaluate("document.querySelectorAll('.turn').length") == 4
    assert page.complaints == []
