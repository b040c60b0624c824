"""Every kind of work by real models, as a user types it: `make real`.

What they say is of no matter: it works, is reported, and is the same at any concurrency and after a kill.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import viva
from every_verb import ITEMS, steps
from local_models import using
from serving import serving
from small_dialogs import write_data
from small_suites import TALK, write_suite
from tiny_gguf import SHORT_PACK
from viva_process import completed, killed, recorded_rows, started

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.messages import Message, Request, Sampling

_BY_TWO = "--interactor simulated:i --evaluator simulated:e"
# Later commands read what earlier ones have written.
COMMANDS = f"""
run kieval --dataset ITEMS -n 2 --rounds 2 --candidate MODEL {_BY_TWO} --candidate-tokens 16 --strict
    --assistant rouge-l --assistant logprob:MODEL --out runs/interviews
probe --dataset ITEMS -n 2 --shots 2 --shots-from ITEMS --method letter --method text --method generate --method loss
    --candidate MODEL --answer-tokens 8 --strict --out runs/probe
run functionchat --data examples --mode user -n 2 --exchanges 2 --steps 2 --candidate MODEL --candidate-tokens 24
    --interactor simulated:u --out runs/users
run functionchat --data dialogs -n 2 --candidate MODEL --candidate-tokens 24 --judge MODEL --judge-tokens 32
    --out runs/turns
suite run suite.yaml --candidate MODEL --grader MODEL --out runs/suite => 1
judge audit --judge MODEL -n 1 --audit position --audit retest --retests 2 --judge-tokens 96 --out runs/audit
judge certify runs/interviews --rounds --select 2 --out next.csv
judge load runs/interviews --judge MODEL --max-tokens 24 --concurrency 2 --requests 2 --baseline 0 --out load
qualify MODEL --role interactor --brief --interactor-tokens 16 --out runs/fitness
sweep plan sweep.yaml --pilot 0.5 --simulations 2 --out runs/sweep
sweep run sweep.yaml --out runs/sweep
run --fork runs/interviews --judge simulated:other --out runs/judged
resume runs/interviews
score runs/interviews --scorer linear
show runs/interviews --conversation 0 --prompts
report runs/interviews --html report.html --csv report.csv
report runs/interviews runs/judged --html study.html
view runs/interviews --export viewed
export runs/interviews --format every-eval-ever --out exported
export runs/probe --format lm-eval --out lm-eval
"""
# What the reports say of the model then.
FIGURES: dict[str, dict[str, Any]] = {
    "interviews": {"interviews": 2, "scored": 2, "failed": 0},
    "judged": {"interviews": 2, "scored": 2, "failed": 0},
    "probe": {"n": 2, "failed": 0},
    "users": {"talks": 2, "failed": 0},
    "turns": {"turns": 2, "failed": 0},
    "suite": {"conversations": 2, "failed": 0},
    "audit": {"verdicts": 4, "failed": 0},
    "fitness": {"failures": {}},
}


@pytest.fixture
def name(model: Path) -> str:
    return f"llama:{model}?label=real&ctx=2048"


def prepare(work: Path, name: str) -> None:
    write_data(work / "dialogs")
    metrics = [{"function": "words", "role": "assistant"}, {"rubric": "yeasayer", "role": "assistant"}]
    never = {"metric": "words", "at_least": 1000}
    sizes = {"max_tokens": 16, "grader_tokens": 32}
    write_suite(work, [TALK, TALK[:2]], metrics=metrics, thresholds=[never], grader="simulated:g", **sizes)
    interviews = {"rounds": 1, "interactor": "simulated:i", "evaluator": "simulated:e", "candidate_tokens": 16}
    sweep: dict[str, Any] = {"candidates": [f"{name}&kv_type=q8_0"], "interviews": interviews}
    sweep["datasets"] = [{"dataset": str(ITEMS), "n": 4}]
    (work / "sweep.yaml").write_text(json.dumps(sweep))


def test_every_verb(name: str, tmp_path: Path) -> None:
    prepare(tmp_path, name)
    for words, code in steps(COMMANDS):
        done = viva(*[word.replace("MODEL", name) for word in words], cwd=tmp_path)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    reports = {run: json.loads(viva("report", tmp_path / "runs" / run, "--json").stdout) for run in FIGURES}
    told = {run: report["candidates"]["real"] for run, report in reports.items()}
    assert {run: {figure: told[run][figure] for figure in figures} for run, figures in FIGURES.items()} == FIGURES
    assert {reports[run]["tier"] for run in FIGURES} == {"C"}
    assert told["probe"]["accuracy"].keys() == {"letter", "text", "text_normalised", "generate"}
    assert 0.5 < told["probe"]["loss"]["mean"] < 8.0  # nats a token: the log of the vocabulary is 10.8 and 12.5
    [cell] = json.loads(viva("report", tmp_path / "runs" / "sweep", "--json").stdout)["cells"]
    assert (cell["ended"], cell["result"]["failed"]) == (4, 0)
    written = ["next.csv", "load", "report.html", "report.csv", "study.html", "viewed", "exported", "lm-eval"]
    assert [path for path in written if not (tmp_path / path).exists()] == []


def _interviews(model: str, count: int, work: Path, *more: str | Path) -> list[str | Path]:
    (work / "pack.yaml").write_text(SHORT_PACK)
    models = ["--candidate", model, "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    sizes = ["-n", str(count), "--rounds", "1", "--candidate-tokens", "6", "--no-early-stop", "--temperature", "0.7"]
    return ["run", "kieval", "--dataset", ITEMS, "--pack", work / "pack.yaml", *models, *sizes, "--strict", *more]


def _told(run: Path) -> bytes:
    return completed("report", run, "--json").stdout + completed("show", run, "--json").stdout


def test_reports_and_transcripts_are_the_same_bytes_at_any_concurrency_and_after_a_kill(
    name: str, tmp_path: Path
) -> None:
    # Each token of the other model costs several times as much.
    name, count = (name, 32) if "SmolLM2" in name else (f"{name}&kv_type=q8_0", 8)
    told = {}
    for concurrency in (1, 4, 16, 32):
        run = tmp_path / str(concurrency)
        arguments = _interviews(name, count, tmp_path, "--concurrency", str(concurrency))
        done = completed(*arguments, "--out", run)
        assert done.returncode == 0, done.stderr.decode()
        told[concurrency] = _told(run)
    assert [concurrency for concurrency in told if told[concurrency] != told[1]] == []
    run = tmp_path / "killed"
    process = started(*_interviews(name, count, tmp_path, "--concurrency", "4", "--out", run))
    assert 2 <= killed(process, run, 2, table="ended") < count
    done = completed("resume", run)
    assert done.returncode == 0, done.stderr.decode()
    assert _told(run) == told[1]


@pytest.mark.parametrize("interactor", ["its own", "simulated:i"])
def test_one_model_in_all_roles(smollm2: Path, interactor: str, tmp_path: Path) -> None:
    name = f"llama:{smollm2}?label=real&ctx=4096"
    asks = name if interactor == "its own" else interactor
    roles = ["--candidate", name, "--interactor", asks, "--evaluator", name]
    sizes = [
        "-n",
        "2",
        "--rounds",
        "2" if asks == name else "1",
        "--candidate-tokens",
        "24",
        "--interactor-tokens",
        "40",
    ]
    done = viva("run", "kieval", "--dataset", ITEMS, *roles, *sizes, "--strict", "--json", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    one = json.loads(done.stdout)["candidates"]["real"]
    assert (one["interviews"], one["failed"], one["parse_failures"]) == (2, 0, 0)  # each verdict held the schema
    assert sum(one["ends"].values()) == 2
    assert asks == name or one["verdicts"] >= 2  # what asks nothing twice ends its interview before any verdict


def test_a_context_too_short_is_named_before_the_first_call(model: Path, tmp_path: Path) -> None:
    done = viva(*_interviews(f"llama:{model}?ctx=64&lanes=8", 2, tmp_path, "--out", tmp_path / "run"))
    assert done.returncode == 2
    assert "its first prompt has" in done.stderr
    assert "raise ?ctx= to at least" in done.stderr
    assert recorded_rows(tmp_path / "run") == 0


def test_served_to_openai_clients_the_model_answers_as_it_does_here(name: str, tmp_path: Path) -> None:
    question = "What is the capital of France?"

    async def main(backend: LlamaBackend) -> str:
        request = Request([Message("user", question)], Sampling(max_tokens=12), 1, b"")
        return (await backend.generate(request)).text

    asked = {"model": "real", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 12}
    with serving(tmp_path, "--model", name, token="a token of the tests") as server:
        status, _, answer = server.ask("POST", "/v1/chat/completions", asked)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == using(name, main) != ""
