"""A command for every verb of the command line, in an order in which later ones read what earlier ones have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer
from other_tools import write_details
from small_dialogs import write_data

from viva.cli.main import app
from viva.grading.store import GradeStore

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
BY_TWO = "--interactor gemini:interactor?retries=0 --evaluator anthropic:evaluator?retries=0"
# Commands, with the exit code behind ``=>`` where it is another than 0, or 3 (some conversations failed). Later ones
# read what earlier ones have written. One conversation at a time, so that the same ones fail every time.
COMMANDS = f"""
run kieval --dataset ITEMS -n 8 --rounds 2 --candidate openai:candidate?retries=0
    --candidate anthropic:hostile?retries=0 {BY_TWO} --detectors repetition --concurrency 1 --out runs/run
run functionchat --data dialogs -n 4 --candidate gemini:candidate?retries=0 --judge anthropic:judge?retries=0
    --concurrency 1 --out runs/tools
run --fork runs/run --judge gemini:evaluator?retries=0 --concurrency 1 --out runs/fork
resume runs/run --retry-failed
probe --dataset ITEMS -n 6 --candidate openai:candidate?retries=0 --shots 0 --method generate --method letter
    --concurrency 1 --out runs/probe
run rephrase --dataset ITEMS -n 4 --writer openai:candidate?retries=0 --checker anthropic:evaluator?retries=0
    --concurrency 1 --out runs/rephrased
run pairwise --prompts questions.jsonl --candidate openai:candidate?retries=0
    --candidate anthropic:hostile?retries=0&label=second --judge gemini:evaluator?retries=0 --concurrency 1
    --out runs/pairs
verify runs/run --json
verify runs/tools
verify runs/fork
verify runs/probe
verify runs/rephrased
court runs/probe runs/run
qualify openai:evaluator?retries=0 --role evaluator --brief --concurrency 1 --out runs/fitness
invariance openai:candidate?retries=0 => 1
sweep run sweep.yaml --concurrency 1 --out runs/sweep
sweep run sweep.yaml --shard 1/2 --concurrency 1 --out runs/shards
sweep run sweep.yaml --shard 2/2 --concurrency 1 --out runs/shards
sweep merge runs/shards
sweep plan sweep.yaml --from runs/sweep --pilot 0.5 --simulations 2 --out runs/planned
sweep compact runs/run
sweep compact runs/sweep --dry-run
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
bank fit matrix.csv --out bank.json
bank show bank.json
bank check bank.json --json
list datasets --json
export runs/run --format every-eval-ever --out exported
export runs/tools --format openai --out tools.jsonl
import details/interact_details.json --from kieval --out runs/imported
judge compare figures.csv --json
judge audit --judge anthropic:judge?retries=0 --cases cases.jsonl --concurrency 1 --out runs/audit
judge certify runs/run --select 2 --out next.csv
judge advise votes.csv --out labels.csv
judge compare rated.csv --human people --score judge --item item --baselines single --judge openai:judge?retries=0
    --output text --resamples 100 --out runs/meta --html meta.html
judge load runs/run --judge openai:evaluator --concurrency 1 --requests 6 --baseline 4 --out bench
lab run --ideal -n 1 --rounds 1 --probed 2 --candidate openai:candidate?retries=0 --concurrency 1
    --out lab
suite init suite
suite check suite/suite.yaml
suite run suite/suite.yaml --candidate anthropic:app?retries=0 --grader openai:grader?retries=0 --out runs/suite
    --concurrency 1 --junit gate.xml => 1
suite gate runs/suite => 1
verify runs/suite
verify runs/audit
verify runs/fitness
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
verify project/rounds/r/answers
grade report project/rounds/r --json --csv grades.csv
grade queue runs/run --out queue
grade graders queue add Ada --role admin
grade labels queue --out labels.csv
"""
SOME_FAILED = 3
NAMED = {"grade bank show", "grade bank return", "grade invalidate"}
SERVED = {"view", "serve", "grade serve", "grade answer"}
WITHOUT_MODELS = {
    "control": "asks a process that runs a run; no model, and its answer names labels alone",
    "demo": "lab run over the shipped models, which are files; takes a minute",
    "lab build": "trains models, asks none; takes minutes",
    "grade demo": "an example of simulated people and models; takes seconds",
}


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


def steps(commands: str = COMMANDS) -> Iterator[tuple[list[str], int]]:
    """The words of each command, and its exit code."""
    for line in commands.strip().replace("\n    ", " ").splitlines():
        words, _, code = line.partition(" => ")
        yield [str(ITEMS) if word == "ITEMS" else word for word in words.split()], int(code or 0)


def prepare(work: Path) -> None:
    write_data(work / "dialogs")
    rows = [f"m{number},science,{number / 10},{number / 9 + number % 2}" for number in range(6)]
    (work / "figures.csv").write_text("\n".join(["model,dataset,accuracy,score", *rows]))
    answers = [f"m{model}," + ",".join(str(int(item <= model)) for item in range(12)) for model in range(12)]
    (work / "matrix.csv").write_text("\n".join(["model," + ",".join(f"q{item}" for item in range(12)), *answers]))
    rated = [
        f"i{number},{number % 4},{(number * 3) % 4},An answer of {number} words.,Why {number}?" for number in range(6)
    ]
    (work / "rated.csv").write_text("\n".join(["item,people,judge,text,question", *rated]))
    votes = [f"i{number},{number % 2},{number % 2},{number % 3 % 2},{number % 5 % 2}" for number in range(12)]
    (work / "votes.csv").write_text("\n".join(["item,human,judge_a,judge_b,judge_c", *votes]))
    (work / "sweep.yaml").write_text(
        "candidates: ['openai:candidate?retries=0', 'anthropic:candidate?retries=0&label=second']\n"
        f"datasets: [{{dataset: {ITEMS}, n: 3}}]\n"
        "interviews: {rounds: 1, interactor: 'gemini:interactor?retries=0', evaluator: 'anthropic:evaluator?retries=0'}"
    )
    said = [{"role": "user", "content": "Is two even?"}, {"role": "assistant", "content": "Yes, it is even."}]
    write_details(work / "details")
    (work / "log.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    case = {"question": "Is two even?", "reference": "Yes.", "answers": ["Yes, for it is twice one.", "No, it is odd."]}
    turns = {"question_id": 1, "turns": ["Is two even?", "And three?"], "reference": ["Yes.", "No."]}
    (work / "questions.jsonl").write_text(json.dumps(turns) + "\n")
    (work / "cases.jsonl").write_text(json.dumps(case) + "\n")


def named_steps(work: Path) -> Iterator[list[str]]:
    """The words of commands that take a name out of what the others have written."""
    question = (work / "bank.csv").read_text().splitlines()[1].split(",")[0]
    yield ["grade", "bank", "show", "project", question]
    yield ["grade", "bank", "return", "project", question, "--reason", "no source", "--by", "Ada"]
    with GradeStore.open(work / "queue") as store:
        asked = next(store.questions()).id
    yield ["grade", "invalidate", "queue", asked, "--by", "Ada", "--reason", "unclear"]
