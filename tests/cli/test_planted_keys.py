"""Keys of three providers in the environment, endpoints that send them back, and every verb of the command line: no
part of a key is on a screen, in a file, on a page or in a process list.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crawled_pages import Visitor
from every_verb import BY_TWO, ITEMS, NAMED, SERVED, SOME_FAILED, WITHOUT_MODELS, named_steps, prepare, steps, verbs
from forked_viva import Forked, forked_viva
from planted_keys import KEYS, leaking_files, leaks

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    Chaos = Callable[[Plan], Server]

_ECHO = "You sent {key} to me. Written otherwise: {key:unicode} {key:percent} {key:html} {key:login}"
_CYCLE: list[Any] = [
    "ok",
    {"do": "ok", "say": _ECHO, "thoughts": "They sent {key}."},
    {"do": "400", "say": "bad key {key}, {key:percent}, {key:login}"},
    {"do": "garbage", "say": "<html>{key} {key:html} {key:unicode}</html>"},
    "half_body",
    {"do": "raw", "status": 500, "say": '{"error": {"message": "bad {key:json}", "code": "{key:unicode}"}}'},
]
_MOSTLY = ["ok", "ok", "ok", {"do": "ok", "say": _ECHO}, "ok", {"do": "400", "say": "bad key {key}"}, "ok"]


def test_every_verb_is_tried_with_planted_keys() -> None:
    known = sorted(verbs(), key=len, reverse=True)
    commands = [f"{' '.join(words)} " for words, _ in steps()]
    tried = {next((verb for verb in known if line.startswith(f"{verb} ")), line) for line in commands}
    missing = set(known) - tried - NAMED - SERVED - WITHOUT_MODELS.keys()
    assert not missing, "a new verb: have it run in every_verb with a model that sends the key back, or say why not"
    assert (tried | NAMED | SERVED | WITHOUT_MODELS.keys()) <= set(known)


@contextmanager
def _process_list(root: int) -> Iterator[set[bytes]]:
    """The words of each process below ``root`` that is seen while entered."""
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            seen.update(_command_lines(root))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _command_lines(root: int) -> Iterator[bytes]:
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            yield Path(f"/proc/{pid}/cmdline").read_bytes()
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:  # gone in the meantime
            continue


@contextmanager
def _server(viva: Forked, *arguments: str | Path) -> Iterator[tuple[Visitor, str]]:
    """A visitor of a verb that serves, and what it printed."""
    pid, screen = viva.run(*arguments, "--port", "0", wait=False)
    try:
        for _ in range(3_000):
            printed = _printed(screen)
            if found := re.search(r"^(?!.*warning).*?(http://127\.0\.0\.1:\d+).*\n", printed, re.MULTILINE):
                break
            assert Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z", printed
            threading.Event().wait(0.02)
        assert found is not None, printed
        yield Visitor(found[1]), printed
    finally:
        os.kill(pid, signal.SIGTERM)


def _printed(screen: Path) -> str:
    return "".join(screen.with_suffix(ending).read_text() for ending in (".out", ".err"))


def test_no_part_of_a_key_is_left_anywhere(chaos: Chaos, tmp_path: Path) -> None:
    scripts = {name: {"cycle": _MOSTLY} for name in ("candidate", "interactor", "evaluator")}
    server = chaos({"cycle": _CYCLE, "by_model": scripts})
    root = server.url.removesuffix("/v1")
    work, home = tmp_path / "work", tmp_path / "home"
    for folder in (work, home):
        folder.mkdir()
    prepare(work)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIVA_")} | KEYS
    environment |= {"OPENAI_BASE_URL": server.url, "ANTHROPIC_BASE_URL": root, "GOOGLE_GEMINI_BASE_URL": root}
    environment |= dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"), str(home))
    pages: dict[str, bytes] = {}
    wrong: list[str] = []
    with forked_viva(tmp_path / "own", environment, work) as viva, _process_list(viva.pid) as processes:
        for words, expected in steps():
            code, screen = viva.run(*words)
            if code != expected and (code, expected) != (SOME_FAILED, 0):
                wrong.append(f"viva {' '.join(words)} ended with {code}: {_printed(screen)[-1000:]}")
        assert not wrong, "\n\n".join(wrong)
        for words in named_steps(work):
            code, screen = viva.run(*words)
            assert code == 0, _printed(screen)
        _visit(viva, pages)
        asked = server.log()
        server.replan({"model_list": 403})
        code, screen = viva.run("run", "kieval", "--dataset", ITEMS, "--candidate", "gemini:c", *BY_TWO.split())
        assert (code, "***" in _printed(screen)) == (2, True), "the key is refused before the run"
        written, started = viva.audited()
    assert {entry["key"] for entry in asked} == set(KEYS.values())
    kept = b"".join(path.read_bytes() for path in (work / "runs").rglob("*") if path.is_file())
    assert b"You sent *** to me" in kept
    assert b"bad key ***" in kept

    files = {path for path in [*work.rglob("*"), *home.rglob("*"), *written, *viva.screens] if path.is_file()}
    assert len(files) > 150
    assert leaking_files(files) == []
    assert [page for page, body in pages.items() if leaks(body)] == []
    assert [line for line in [*processes, *map(str.encode, started)] if leaks(line)] == []
    outside = {path for path in written if not path.is_relative_to(tmp_path)}
    assert outside <= {Path("/dev/null"), Path("/dev/tty")}, "nothing is written but where the user says"


def _visit(viva: Forked, pages: dict[str, bytes]) -> None:
    with _server(viva, "view", "runs/run") as (visitor, _):
        visitor.follow(["/"])
    pages |= visitor.seen
    models = ("openai:candidate?retries=0", "anthropic:app?retries=0", "gemini:other?retries=0")
    named = [word for model in models for word in ("--model", model)]
    with _server(viva, "serve", "--runs", "runs", *named) as (visitor, _):
        visitor.follow(["/v1/models", "/api/v1/openapi.json", "/api/v1/scenarios", "/api/v1/runs"])
        for path in ("", "/report", "/transcripts?prompts=true"):
            visitor.ask(f"/api/v1/runs/run{path}")
        for model in ("candidate", "app", "other"):
            for stream in (False, True):
                body = {"model": model, "messages": [{"role": "user", "content": "Why?"}], "stream": stream}
                for _ in _CYCLE:
                    visitor.ask("/v1/chat/completions", json.dumps(body).encode())
    pages |= visitor.seen
    [link] = re.findall(r"(/link/\S+)", _printed(viva.run("grade", "graders", "queue", "link", "Ada")[1]))
    with _server(viva, "grade", "serve", "queue") as (visitor, _):
        visitor.follow([link])
        visitor.ask(link, b"", "application/x-www-form-urlencoded")
        visitor.follow(["/"])
    pages |= visitor.seen
    with _server(viva, "grade", "answer", "room") as (visitor, printed):
        visitor.follow(re.findall(r"http://[^/\s]+(/\S+)", printed))
    pages |= visitor.seen
    assert sum(b"***" in body for body in pages.values()) > 10
