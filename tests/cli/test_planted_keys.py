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

import click
import typer
from crawled_pages import Visitor
from forked_viva import Forked, forked_viva
from other_tools import write_details
from planted_keys import KEYS, leaking_files, leaks
from small_dialogs import write_data

from viva.cli.main import app

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    Chaos = Callable[[Plan], Server]

_ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_BY_TWO = "--interactor gemini:interactor?retries=0 --evaluator anthropic:evaluator?retries=0"
# Commands, with the exit code behind ``=>`` where it is another than 0, or 3 (some conversations failed). Later ones
# read what earlier ones have written. One conversation at a time, so that the same ones fail every time.
_COMMANDS = f"""
run kieval --dataset ITEMS -n 8 --rounds 2 --candidate openai:candidate?retries=0
    --candidate anthropic:hostile?retries=0 {_BY_TWO} --detectors repetition --concurrency 1 --out runs/run
run functionchat --data dialogs -n 4 --candidate gemini:candidate?retries=0 --judge anthropic:judge?retries=0
    --concurrency 1 --out runs/tools
run --fork runs/run --evaluator gemini:evaluator?retries=0 --concurrency 1 --out runs/fork
resume runs/run --retry-failed
probe --dataset ITEMS -n 6 --candidate openai:candidate?retries=0 --shots 0 --method generate --method letter
    --concurrency 1 --out runs/probe
sweep sweep.yaml --concurrency 1 --out runs/sweep
sweep sweep.yaml --shard 1/2 --concurrency 1 --out runs/shards
sweep sweep.yaml --shard 2/2 --concurrency 1 --out runs/shards
merge runs/shards
plan sweep.yaml --from runs/sweep --pilot 0.5 --simulations 2 --out runs/planned
compact runs/run
compact runs/sweep --dry-run
report runs/run --html report.html --csv report.csv
report runs/run runs/fork --html study.html --parquet study.parquet
show runs/run --conversation 0 --prompts --thoughts
show runs/run --json
score runs/run --scorer linear
view runs/run --export viewed
review runs/tools --out review.tsv
validate --dataset ITEMS --model openai:candidate?retries=0 --model gemini:other?retries=0 -n 4 --out ids.txt
    --concurrency 1 --run runs/validate
data check ITEMS
list datasets --json
export runs/run --to every-eval-ever --out exported
export runs/tools --to openai --out tools.jsonl
import details/interact_details.json --from kieval --out runs/imported
correlate figures.csv --json
judge audit --judge anthropic:judge?retries=0 --cases cases.jsonl --concurrency 1 --out runs/audit
judge certify runs/run --next 2 --out next.csv
meta rated.csv --human people --score judge --item item --baselines single --judge openai:judge?retries=0 --output text
    --resamples 100 --out runs/meta --html meta.html
bench judge runs/run --judge openai:evaluator --concurrency 1 --requests 6 --baseline 4 --out bench
lab run --ideal -n 1 --rounds 1 --probed 2 --candidate openai:candidate?retries=0 --concurrency 1
    --out lab
suite init suite
suite check suite/suite.yaml
suite run suite/suite.yaml --candidate anthropic:app?retries=0 --grader openai:grader?retries=0 --out runs/suite
    --concurrency 1 --junit gate.xml => 1
suite gate runs/suite => 1
suite export runs/suite --csv suite-csv
suite watch log.jsonl --suite suite/suite.yaml --once --out runs/watch
suite schema
grade init project
grade bank import project project/questions.jsonl --by Ada
grade bank inspect project --all --by Ada
grade bank accept project --all --by Ada
grade bank list project
grade bank export project bank.csv
grade check project
grade collect project --candidate openai:candidate?retries=0 --candidate gemini:interactor?retries=0 --round r -n 6
    --concurrency 1 --max-failures 99
grade judge project/rounds/r --grader anthropic:grader?retries=0 --grader simulated:second
    --concurrency 1
grade report project/rounds/r --json --csv grades.csv
grade queue runs/run --out queue
grade graders queue add Ada --role admin
grade labels queue --out labels.csv
"""
_SOME_FAILED = 3
# Verbs that take a name out of what others have written; how they are asked stands in the test.
_NAMED = {"grade bank show", "grade bank return", "grade invalidate"}
_SERVED = {"view", "serve", "grade serve", "grade sit"}
_WITHOUT_MODELS = {
    "demo": "lab run over the shipped models, which are files; takes a minute",
    "lab build": "trains models, asks none; takes minutes",
    "grade demo": "an example of simulated people and models; takes seconds",
}
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


def verbs() -> Iterator[str]:
    """Every verb that the command line has."""

    def below(command: Any, words: list[str]) -> Iterator[str]:
        names = command.list_commands(click.Context(command)) if hasattr(command, "list_commands") else []
        # ``run`` has scenarios below it, which are the same verb.
        if not names or words == ["run"]:
            yield " ".join(words)
            return
        for name in names:
            yield from below(command.get_command(click.Context(command), name), [*words, name])

    yield from below(typer.main.get_command(app), [])


def _steps() -> Iterator[tuple[list[str], int]]:
    """The words of each command, and its exit code."""
    for line in _COMMANDS.strip().replace("\n    ", " ").splitlines():
        words, _, code = line.partition(" => ")
        yield [str(_ITEMS) if word == "ITEMS" else word for word in words.split()], int(code or 0)


def test_every_verb_is_tried_with_planted_keys() -> None:
    known = sorted(verbs(), key=len, reverse=True)
    commands = [f"{' '.join(words)} " for words, _ in _steps()]
    tried = {next((verb for verb in known if line.startswith(f"{verb} ")), line) for line in commands}
    missing = set(known) - tried - _NAMED - _SERVED - _WITHOUT_MODELS.keys()
    assert not missing, "a new verb: have it run in _COMMANDS with a model that sends the key back, or say why not"
    assert (tried | _NAMED | _SERVED | _WITHOUT_MODELS.keys()) <= set(known)


def _prepare(work: Path) -> None:
    write_data(work / "dialogs")
    rows = [f"m{number},science,{number / 10},{number / 9 + number % 2}" for number in range(6)]
    (work / "figures.csv").write_text("\n".join(["model,dataset,accuracy,score", *rows]))
    rated = [
        f"i{number},{number % 4},{(number * 3) % 4},An answer of {number} words.,Why {number}?" for number in range(6)
    ]
    (work / "rated.csv").write_text("\n".join(["item,people,judge,text,question", *rated]))
    (work / "sweep.yaml").write_text(
        "candidates: ['openai:candidate?retries=0', 'anthropic:candidate?retries=0&label=second']\n"
        f"datasets: [{{dataset: {_ITEMS}, n: 3}}]\n"
        "interviews: {rounds: 1, interactor: 'gemini:interactor?retries=0', evaluator: 'anthropic:evaluator?retries=0'}"
    )
    said = [{"role": "user", "content": "Is two even?"}, {"role": "assistant", "content": "Yes, it is even."}]
    write_details(work / "details")
    (work / "log.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    case = {"question": "Is two even?", "reference": "Yes.", "answers": ["Yes, for it is twice one.", "No, it is odd."]}
    (work / "cases.jsonl").write_text(json.dumps(case) + "\n")


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
    _prepare(work)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIVA_")} | KEYS
    environment |= {"OPENAI_BASE_URL": server.url, "ANTHROPIC_BASE_URL": root, "GOOGLE_GEMINI_BASE_URL": root}
    environment |= dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"), str(home))
    pages: dict[str, bytes] = {}
    wrong: list[str] = []
    with forked_viva(tmp_path / "own", environment, work) as viva, _process_list(viva.pid) as processes:
        for words, expected in _steps():
            code, screen = viva.run(*words)
            if code != expected and (code, expected) != (_SOME_FAILED, 0):
                wrong.append(f"viva {' '.join(words)} ended with {code}: {_printed(screen)[-1000:]}")
        assert not wrong, "\n\n".join(wrong)
        _ask_by_name(viva, work)
        _visit(viva, pages)
        asked = server.log()
        server.replan({"model_list": 403})
        code, screen = viva.run("run", "kieval", "--dataset", _ITEMS, "--candidate", "gemini:c", *_BY_TWO.split())
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


def _ask_by_name(viva: Forked, work: Path) -> None:
    listed = (work / "bank.csv").read_text().splitlines()[1]
    name = listed.split(",")[0]
    for verb, more in (("bank show", []), ("bank return", ["--reason", "no source", "--by", "Ada"])):
        assert viva.run("grade", *verb.split(), "project", name, *more)[0] == 0
    question = (work / "next.csv").read_text().splitlines()[1].partition(",")[0].rpartition("/")[2]
    code, screen = viva.run("grade", "invalidate", "queue", question, "--by", "Ada", "--reason", "unclear")
    assert code == 0, _printed(screen)


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
    with _server(viva, "grade", "sit", "room") as (visitor, printed):
        visitor.follow(re.findall(r"http://[^/\s]+(/\S+)", printed))
    pages |= visitor.seen
    assert sum(b"***" in body for body in pages.values()) > 10
