"""What an endpoint sends is bounded while it comes, and nothing of a broken answer is left behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import gzip
import json
import subprocess
import sys
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest
from case_tables import case_table
from provider_asks import asking

from viva.engine.backends import endpoint, openai, sse
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.endpoint_answer import MOST_VALUES
from viva.engine.backends.registry import build
from viva.engine.backends.retry import RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.durations import seconds_until
from viva.engine.errors import AnswerTooLarge, BackendError, Redirected, Unavailable
from viva.engine.event_loop import gc_tuned
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()


def ask(model: str, on_text: Any = None) -> Completion:
    """One attempt at an answer."""

    async def main() -> Completion:
        async with openai.build(ModelSpec.parse(model), _CLOCK) as backend:
            return await backend.generate(asking(on_text=on_text))

    return _CLOCK.run(main)


def chunk(text: str) -> str:
    """One event of a stream."""
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}"


@pytest.mark.parametrize("trouble", ["half_body", "truncated", "reset", "garbage", "500", "never"])
@pytest.mark.parametrize("streaming", [False, True])
def test_line_24_a_broken_answer_leaves_nothing_to_the_collector(
    chaos: StartChaos, trouble: str, streaming: bool
) -> None:
    server = chaos({"default": trouble})
    watched = ("ClientResponse", "StreamReader", "ClientPayloadError", "Body", "Unavailable", "TimedOut", "Request")

    def alive() -> Counter[str]:
        kinds = Counter(type(one).__name__ for one in gc.get_objects())
        return Counter({name: kinds[name] for name in watched})

    async def main() -> None:
        model = server.model("candidate", timeout=0.05 if trouble == "never" else 10)
        async with openai.build(ModelSpec.parse(model), _CLOCK) as backend:
            for number in range(12):
                if number == 2:
                    before = alive()
                try:
                    await backend.generate(asking(on_text=(lambda piece: None) if streaming else None))
                except BackendError:
                    pass
            left = alive() - before
            assert sum(left.values()) <= 2, left

    gc.collect()
    with gc_tuned():
        gc.disable()
        try:
            _CLOCK.run(main)
        finally:
            gc.enable()


@pytest.mark.parametrize("streaming", [False, True])
def test_line_24_an_error_holds_nothing_of_the_answer(chaos: StartChaos, streaming: bool) -> None:
    server = chaos({"default": {"do": "raw", "say": "data: ", "zeros": 10, "packed": True}})

    async def main() -> int:
        async with openai.build(ModelSpec.parse(server.model("candidate")), _CLOCK) as backend:
            tracemalloc.start()
            try:
                await backend.generate(asking(on_text=(lambda piece: None) if streaming else None))
            except Unavailable:  # held here as in a pause before the next try
                return tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
        raise AssertionError("the answer was taken")

    assert _CLOCK.run(main) < 2_000_000


def test_line_24_cookies_are_not_kept(chaos: StartChaos) -> None:
    server = chaos({"default": {"do": "raw", "say": "{}", "headers": {"Set-Cookie": f"session={'x' * 900}"}}})

    async def main() -> None:
        model = server.model("candidate").replace("127.0.0.1", "localhost")  # cookies of a bare address never count
        async with openai.build(ModelSpec.parse(model), _CLOCK) as backend:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await backend.generate(asking())

    _CLOCK.run(main)
    assert [entry["cookies"] for entry in server.log()] == [0, 0, 0]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("streaming", [False, True])
def test_line_24_a_packed_bomb_is_not_unpacked(
    chaos: StartChaos, monkeypatch: pytest.MonkeyPatch, status: int, streaming: bool
) -> None:
    unpacked: list[int] = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, *options: int) -> None:
            self._inner = real(*options)

        def decompress(self, data: bytes, most: int) -> bytes:
            piece = self._inner.decompress(data, most)
            unpacked.append(len(piece))
            return piece

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    monkeypatch.setattr(endpoint.zlib, "decompressobj", Counting)
    server = chaos({"default": {"do": "raw", "status": status, "zeros": 30, "packed": True}})
    expected = AnswerTooLarge if status == 200 else Unavailable
    with pytest.raises(expected) as caught:
        ask(server.model("candidate", answer_mb=2), (lambda piece: None) if streaming else None)
    assert type(caught.value) is expected
    assert sum(unpacked) < (2_600_000 if status == 200 else 600_000)
    assert max(unpacked) <= 1 << 18


def test_line_24_an_answer_is_bounded_by_64_mb_if_nothing_else_is_said(chaos: StartChaos) -> None:
    server = chaos({"default": {"do": "raw", "zeros": 65, "packed": True}})
    with pytest.raises(AnswerTooLarge, match="64 MB"):
        ask(server.model("candidate"))


@pytest.mark.parametrize(
    ("begin", "value", "end"), [("[", "[]", "]"), ('{"choices":[', "{}", "]}"), ("[NaN,", "1", "]")]
)
@pytest.mark.parametrize("streaming", [False, True])
def test_line_24_an_answer_of_very_many_values_is_not_parsed(
    chaos: StartChaos, begin: str, value: str, end: str, streaming: bool
) -> None:
    body = begin + f"{value}," * MOST_VALUES + value + end
    if streaming:
        body = f"data: {body}\n\ndata: [DONE]\n\n"
    server = chaos({"default": {"do": "raw", "say": body}})
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge, match="more than 2,000,000 values"):
            ask(server.model("candidate"), (lambda text: None) if streaming else None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * len(body)


def test_line_24_a_long_text_of_commas_is_read(chaos: StartChaos) -> None:
    text = "[],{}," * 300_000
    body = json.dumps({"choices": [{"message": {"content": text}}]})
    assert ask(chaos({"default": {"do": "raw", "say": body}}).model("candidate")).text == text


def test_line_24_calls_that_nobody_numbered_are_read_in_linear_time() -> None:
    # Of quadratic time these would take minutes.
    calls = sse.CallPieces()
    calls.add([{"id": f"a{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(100_000)])
    calls.add([{"function": {"arguments": "1"}}])
    whole = calls.whole() or []
    assert (len(whole), whole[-1].arguments) == (100_000, "{}1")


def test_line_24_a_packed_answer_is_read(chaos: StartChaos) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Cold. " * 100_000}}]})
    server = chaos({"default": {"do": "raw", "say": body, "packed": True, "pieces": 100}})
    assert ask(server.model("candidate")).text == "Cold. " * 100_000


@pytest.mark.parametrize("pieces", [1, 1 << 16])
def test_line_24_gzip_in_several_parts_and_filled_up_is_read(pieces: int) -> None:
    class Content:
        data = gzip.compress(b"one ") + gzip.compress(b"two") + bytes(50)

        async def readany(self) -> bytes:
            piece, self.data = self.data[:pieces], self.data[pieces:]
            return piece

    class Response:
        headers = {"Content-Encoding": "gzip"}  # noqa: RUF012
        status = 200
        content = Content()

    body = endpoint.AnswerBody(cast(aiohttp.ClientResponse, Response()), 100, "m")
    assert _CLOCK.run(body.read_all) == b"one two"


def test_line_24_what_is_not_packed_as_it_says_is_asked_again(chaos: StartChaos) -> None:
    cycle = [{"do": "raw", "say": "plain", "headers": {"Content-Encoding": packing}} for packing in ("gzip", "br")]
    server = chaos({"cycle": cycle})
    for packing in ("gzip", "br"):
        with pytest.raises(Unavailable, match=f"compressed as '?{packing}"):
            ask(server.model("candidate"))


def test_line_29_a_stream_with_a_mark_long_lines_and_all_line_ends(chaos: StartChaos) -> None:
    long = "x" * 900_000
    lines = ["\ufeff" + chunk("one "), chunk(long), chunk(" two"), "data: [DONE]"]
    short = "\n\n".join([lines[0], *lines[2:]])
    cycle: list[Any] = [{"do": "raw", "say": end.join(lines) + end} for end in ("\n\n", "\r\n\r\n", "\r\r")]
    server = chaos({"cycle": [*cycle, {"do": "raw", "say": short, "pieces": 1}]})
    for expected in [f"one {long} two"] * 3 + ["one  two"]:
        heard: list[str] = []
        assert ask(server.model("candidate"), heard.append).text == "".join(heard) == expected


@pytest.mark.parametrize("pieces", [1, 10_000])
def test_line_29_a_whole_answer_with_a_byte_order_mark_is_read(chaos: StartChaos, pieces: int) -> None:
    answer = {"choices": [{"message": {"content": "B"}, "finish_reason": "stop"}]}
    server = chaos({"default": {"do": "raw", "say": "\ufeff" + json.dumps(answer), "pieces": pieces}})
    assert ask(server.model("candidate")).text == "B"


def test_line_29_a_redirect_to_another_host_is_not_followed(chaos: StartChaos) -> None:
    other = chaos({})
    target = f"{other.url}/chat/completions?token=t"
    every = (301, 302, 303, 307, 308)
    server = chaos({"cycle": [{"do": "raw", "status": one, "headers": {"Location": target}} for one in every]})
    for status in every:
        with pytest.raises(Redirected, match=f"HTTP {status}: {server.url}.* redirects to {other.url}") as caught:
            ask(server.model("candidate"))
        assert "token" not in str(caught.value)
    assert other.log() == []


def test_line_29_a_redirect_on_the_same_host_is_followed_with_its_body(chaos: StartChaos) -> None:
    away = {"do": "raw", "status": 307, "headers": {"Location": "/v1/chat/completions"}}
    server = chaos({"schedule": {"0": away, "1": away}})
    assert ask(server.model("candidate")).text == server.log()[2]["text"]
    circle = chaos({"default": away})
    with pytest.raises(Redirected, match="in a loop"):
        ask(circle.model("candidate"))
    assert len(circle.log()) == 4


@pytest.mark.parametrize("skew", [-86_400, 0, 86_400])
def test_line_29_a_date_to_wait_for_counts_from_the_answers_own_date(skew: int) -> None:
    now = 1_700_000_000 + skew
    assert seconds_until(formatdate(now + 30, usegmt=True), formatdate(now, usegmt=True)) == 30.0


def test_line_29_a_date_to_wait_for_is_bounded_by_the_longest_pause() -> None:
    assert seconds_until("Fri, 31 Dec 9999 23:59:59 GMT", None) is not None
    assert seconds_until("Fri, 99 Dec 9999 23:59:59 GMT", "nonsense") is None


@case_table(
    ("given", "seconds"),
    [("7s", 7.0), ("1m 30s", 90.0), ("500ms", 0.5), ("PT30S", 30.0), ("2 minutes", 120.0), ("1700000030", 30.0),
     ("1700000030000", 30.0), ("2023-11-14T22:13:50Z", 30.0), ("99 Dec", None), ("7;", None), ("9" * 400, None)],
)  # fmt: skip
def test_line_20_a_time_to_wait_for_is_read_in_the_forms_that_servers_send(given: str, seconds: float | None) -> None:
    assert seconds_until(given, formatdate(1_700_000_000, usegmt=True)) == seconds


def test_line_20_calls_wait_where_few_files_may_be_open(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 0.1}})
    dataset, count = tmp_path / "items.jsonl", 70
    items = [{"id": f"i{n}", "question": f"Why {n}?", "choices": list("abcd"), "answer": "A"} for n in range(count)]
    dataset.write_text("".join(json.dumps(item) + "\n" for item in items))
    arguments = ["run", "kieval", "--dataset", str(dataset), "--rounds", "1", "--concurrency", str(count)]
    arguments += ["--out", str(tmp_path / "run")]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", server.model(role, retries=0)]
    done = in_little_room(f"sys.argv = {['viva', *arguments]!r}\nfrom viva.cli.main import main\nmain()", 64)
    assert done.returncode == 0, done.stderr
    assert f"{count}/{count} done" in done.stderr
    assert "the limit of 64 open files (ulimit -n) allows 16 connections" in done.stderr


def test_line_20_the_command_raises_its_limit_and_an_embedder_is_left_alone() -> None:
    code = "from viva.engine.file_descriptors import raise_descriptor_limit; from viva import *\n"
    code += "limit = resource.RLIMIT_NOFILE\n"
    done = in_little_room(
        code + "print(resource.getrlimit(limit)[0], raise_descriptor_limit(), resource.getrlimit(limit)[0])", 999
    )
    assert done.stdout.split() == ["64", "999", "999"]


def test_line_20_no_open_file_left_is_no_failed_try(chaos: StartChaos, monkeypatch: pytest.MonkeyPatch) -> None:
    server = chaos({})
    clock, real, tries = RealClock(), aiohttp.ClientSession.request, []
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: 0.0)

    def request(self: aiohttp.ClientSession, *arguments: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) <= 5:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self, *arguments, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "request", request)

    async def main() -> Completion:
        async with build(server.model("candidate", retries=0), clock) as backend:
            return await backend.generate(asking())

    completion = clock.run(main)
    assert (completion.attempts, len(tries)) == (1, 6)


def in_little_room(code: str, hard: int) -> subprocess.CompletedProcess[str]:
    """A program that begins with 64 open files allowed, and may raise that to ``hard``."""
    head = f"import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False)


def test_line_20_a_journal_says_that_no_file_is_left(tmp_path: Path) -> None:
    code = f"""
import sqlite3
from pathlib import Path
from viva.engine.errors import JournalError
from viva.engine.journal import journal_error
path = Path({str(tmp_path / "journal.sqlite")!r})
held = []
try:
    while True:
        held.append(sqlite3.connect(path))
        held[-1].execute("create table if not exists t(a)")
except sqlite3.OperationalError as error:
    said = journal_error(path, error)
del held
print(said)
"""
    done = in_little_room(code, 64)
    assert "too many open files, raise the limit (ulimit -n)" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("head", "advised"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", True),  # a server of TLS, asked in plain
        (b"SSH-2.0-OpenSSH\r\n", True),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: v\r\n" * 20_000 + b"\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", False),
    ],
)
def test_line_29_https_is_advised_only_where_no_http_was_spoken(head: bytes, advised: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(head)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            name = ModelSpec.parse(f"openai:http://127.0.0.1:{port}/v1#m")
            async with openai.build(name, _CLOCK) as backend:
                await backend.generate(asking())

    with pytest.raises(Unavailable) as raised:
        _CLOCK.run(main)
    assert ("write https://" in str(raised.value)) is advised


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".test"])
def test_line_29_a_name_that_no_host_can_have_is_said(host: str) -> None:
    async def main() -> None:
        async with build(f"openai:http://{host}/v1#m?retries=0", _CLOCK) as backend:
            await backend.check()

    with pytest.raises(BackendError, match="not a valid host name"):
        _CLOCK.run(main)
