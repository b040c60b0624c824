"""Inputs from public bug reports, run with the commands that their READMEs give (``cases`` of the benchmark data).

Each case is a folder with a README line: the report, the command, what came out and what should.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import viva

CASES = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data").resolve() / "cases"
_SIMULATED = {"candidate": "simulated:c", "interactor": "simulated:i", "evaluator": "simulated:e"}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """``url = case(name)``: makes a copy of the case's folder the current one and starts its endpoint if it has one."""
    with contextlib.ExitStack() as stack:

        def start(name: str) -> str:
            if not (CASES / name).is_dir():
                pytest.skip(f"{CASES / name} is missing (set VIVA_DATA to the folder with the benchmark data)")
            folder = tmp_path / name
            shutil.copytree(CASES / name, folder)
            monkeypatch.chdir(folder)
            return stack.enter_context(_endpoint(folder / "server.py")) if Path("server.py").exists() else ""

        yield start


@contextlib.contextmanager
def _endpoint(script: Path) -> Iterator[str]:
    """The case's endpoint on a free port in place of its fixed one, so that cases run side by side."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = script.read_text().replace("18790", str(port))
    script.write_text(text.replace("s.serve_forever()", "print('up', flush=True); s.serve_forever()"))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        try:
            yield f"http://127.0.0.1:{port}/v1#m"
        finally:
            server.kill()


def _run(*more: str, dataset: str = "one.jsonl", **models: str) -> subprocess.CompletedProcess[str]:
    roles = [word for role, model in (_SIMULATED | models).items() for word in (f"--{role}", model)]
    return viva("run", "kieval", "--dataset", dataset, "--rounds", "1", *roles, "--out", "out", *more)


def _report() -> dict[str, Any]:
    [report] = json.loads(viva("report", "out", "--json").stdout)["candidates"].values()
    return dict(report)


def _conversation(key: str) -> str:
    done = viva("show", "out", "--conversation", key, "--prompts")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["choice-eliminated-first", "choice-json-xml-lower", "choice-typography"])
def test_the_choice_that_is_meant_is_read(case: Callable[[str], str], name: str) -> None:
    case(name)
    assert _run(candidate="python:says.py#answer").returncode == 0
    assert (_report()["accuracy"]["mean"], _report()["unanswered"]) == (100, 0)


@pytest.mark.parametrize("text", ["b", '{"answer": "B"}'])
def test_a_letter_alone_and_in_json_is_read(case: Callable[[str], str], text: str) -> None:
    case("choice-json-xml-lower")
    Path("says.py").write_text(f"def answer(messages):\n    return {text!r}\n")
    assert _run(candidate="python:says.py#answer").returncode == 0
    assert _report()["accuracy"]["mean"] == 100


def test_a_planted_choice_is_not_the_verdict(case: Callable[[str], str]) -> None:
    case("planted-choice-rubric")
    done = viva("suite", "run", "suite.yaml", "--python-tools", "sys.py", "--python-tools", "rub.py", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert re.search(r"names_line +1 +0\.000 ", done.stdout)  # the grader's last line is no
    assert viva("suite", "run", "suite.yaml", "--out", "other").returncode == 2  # nobody has granted its two files


def test_letters_in_choices_are_taken_off_or_noted(case: Callable[[str], str]) -> None:
    case("choices-with-letters")
    _run(dataset="items.jsonl")
    shown = _conversation("c/1")
    assert "A. Moon" in shown
    assert "A. A. Moon" not in shown
    assert "letters removed from choices" in viva("data", "check", "items.jsonl").stdout


def test_tables_made_by_spreadsheets_are_read_or_named(case: Callable[[str], str]) -> None:
    case("excel-trailing-row")
    done = viva("data", "check", "items.csv")
    assert (done.returncode, "expected text" in done.stdout + done.stderr) == (0, False)
    done = viva("data", "check", "semicolon.csv")
    assert done.returncode == 0 or "semicolon" in done.stdout + done.stderr


def test_text_in_a_part_of_another_type_is_text(case: Callable[[str], str]) -> None:
    model = f"openai:{case('content-part-output-text')}?retries=0"
    done = _run(candidate=model)
    assert done.returncode != 0 or _report()["accuracy"]["mean"] == 100


@pytest.mark.parametrize(("name", "said"), [("sse-keepalive-data", "Because."), ("sse-surrogates", "ok \U0001f600")])
def test_streams_that_are_common_are_read(case: Callable[[str], str], name: str, said: str) -> None:
    model = f"openai:{case(name)}?retries=0"
    assert _run("--detectors", "empty", candidate=model).returncode == 0
    assert said in _conversation("m/q-0")


def test_calls_of_one_index_are_told_apart_by_their_ids(case: Callable[[str], str]) -> None:
    case("stream-calls-index0")
    done = subprocess.run([sys.executable, "show.py"], capture_output=True, text=True, check=True)
    assert done.stdout.count("ToolCall(") == 2
    assert '{"p":1}{"q":2}' not in done.stdout


def test_a_proxy_is_asked(case: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = case("proxy-variables").removesuffix("/v1#m")
    monkeypatch.setenv("http_proxy", url)
    assert _run("--wait-for-endpoint", "0", candidate="openai:http://model.internal/v1#m?retries=0").returncode == 0
    assert _report()["accuracy"]["mean"] == 100


def test_a_quota_that_is_used_up_stops_the_run(case: Callable[[str], str]) -> None:
    done = _run(candidate=f"openai:{case('quota-429')}")
    assert done.returncode != 0
    assert "quota" in done.stderr
    assert "viva resume" in done.stderr


def test_a_reasoning_model_is_one_role_among_others(case: Callable[[str], str]) -> None:
    model = f"openai:{case('reasoning-model-temperature')}?tokens_field=max_completion_tokens&retries=0"
    done = _run(evaluator=model)
    assert "sampling=off" in done.stderr
    assert "start a new run" in done.stderr
    assert "viva resume" not in done.stderr
    shutil.rmtree("out")
    assert _run(evaluator=f"{model}&sampling=off").returncode == 0


def test_thoughts_outside_of_completion_tokens_are_paid_for(case: Callable[[str], str]) -> None:
    model = f"openai:{case('usage-thoughts-apart')}?price_in=1&price_out=1000"
    done = _run("--max-cost", "1", candidate=model)
    assert done.returncode != 0
    assert "the run's cost budget of 1 is used up" in done.stderr
    assert _report()["interviews"] == 0
