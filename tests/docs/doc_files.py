"""What the reader of a page has: files of the names that pages use, made small."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from drawn_benchmarks import drawn_items
from grade_projects import viva
from pair_outputs import judgebench
from small_dialogs import write_data, write_rubrics
from small_sweeps import swept
from study_runs import interviewed, probed
from tiny_gguf import make_model

from viva.engine.clock import VirtualClock

ROOT = Path(__file__).parents[2]
SCIENCE = ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
_GRID = """
candidates: ['simulated:a', 'simulated:b?knowledge=0.3']
datasets: [scenarios/kieval/items/science.jsonl]
interviews: {interactor: 'simulated:i', evaluator: 'simulated:e', n: 3, rounds: 1}
"""


def provide(folder: Path, name: str) -> None:
    """Make the file or folder, unless it is there, or change what a page has made.

    :raises AssertionError: no such file is known.
    """
    if name in _CHANGED:
        _CHANGED[name](folder)
        return
    path = folder / name.partition(" of ")[0]
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    make = _model if name.endswith(".gguf") else _MADE.get(name)
    assert make is not None, f"`needs {name}`: doc_files.py does not know how to make it"
    make(path)


def _model(path: Path) -> None:
    make_model(path, seed=3, quantised=True, quote_bias=3.0)


def _mmlu(folder: Path) -> None:
    for split in ("dev", "test"):
        (folder / split).mkdir(parents=True)
        for subject in ("astronomy", "world_law"):
            drawn = drawn_items(8, len(subject + split))
            rows = [[question, *choices, "ABCD"[answer]] for question, choices, answer in drawn]
            lines = (",".join(f'"{cell}"' for cell in row) for row in rows)
            (folder / split / f"{subject}_{split}.csv").write_text("\n".join(lines) + "\n")


def _arc(folder: Path) -> None:
    folder.mkdir()
    for split, ending in (("train", "Train"), ("test", "Test")):
        records = [
            {"id": f"{split}-{number}", "answerKey": "ABCD"[answer], "question": {
                "stem": question, "choices": [{"text": text, "label": "ABCD"[n]} for n, text in enumerate(choices)]}}
            for number, (question, choices, answer) in enumerate(drawn_items(8, len(split)))
        ]  # fmt: skip
        _lines(folder / f"{folder.name}-{ending}.jsonl", records)


def _lines(path: Path, records: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _dialogs(folder: Path) -> None:
    write_data(folder)
    write_rubrics(folder)
    (folder / "system_prompt.txt").write_text("You are a helpful assistant.\n")


def _scores(path: Path) -> None:
    """Ratings by people and a judge's scores of forty answers, in one table."""
    rows = ["item,system,human_overall,judge_overall"]
    rows += [f"i{n},{name},{1 + (n * 3) % 5},{1 + (n * 3 + n % 2) % 5}" for n in range(20) for name in ("one", "two")]
    path.write_text("\n".join(rows) + "\n")


def _matrix(path: Path) -> None:
    """Right and wrong answers of twelve models to 24 items."""
    rows = [[f"org-{model % 4}/m{model}", *(int((item * 7 + model * 5) % 24 < 2 * model + 2) for item in range(24))]
            for model in range(12)]  # fmt: skip
    header = ["model", *(f"q{item}" for item in range(24))]
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")


def _scored(path: Path) -> None:
    rows = [{"id": item, "model": model, "judge_overall": 1 + at % 4} for at, (item, model) in enumerate(_answers())]
    _lines(path, rows)


def _votes(path: Path) -> None:
    """Votes of three judges on sixty items, the first thirty of which are labelled."""
    rows = ["item,human,judge_a,judge_b,judge_c"]
    for n in range(60):
        label = n % 2 if n < 30 else ""
        rows.append(f"i{n},{label},{(n + (n % 7 == 0)) % 2},{(n + (n % 4 == 0)) % 2},{(n + (n % 5 == 0)) % 2}")
    path.write_text("\n".join(rows) + "\n")


def _vote_labels(path: Path) -> None:
    path.write_text("item,label\n" + "".join(f"i{n},{n % 2}\n" for n in range(30, 45)))


def _pairs(path: Path) -> None:
    """A judge's decisions on twelve pairs in both orders, in JudgeBench's form."""
    shown = [("A>B", "B>A"), ("B>A", "A>B")]
    decisions = [("A>B", *shown[n % 4 == 0]) for n in range(12)]
    judgebench(path, path.stem, [(label, first, second) for label, first, second in decisions])


def _audited(path: Path) -> None:
    judges = [word for name in "xyz" for word in ("--judge", f"simulated:{name}")]
    viva("judge", "audit", *judges, "--audit", "position", "--out", path)


def _people(path: Path) -> None:
    rows = [f"{item},{model},{1 + at % 4},The cause is heat." for at, (item, model) in enumerate(_answers())]
    path.write_text("\n".join(["id,model,human,reference", *rows]) + "\n")


def _answers() -> list[tuple[str, str]]:
    """What people and judges grade: two models' interviews about the shipped items."""
    items = [json.loads(line)["id"] for line in SCIENCE.read_text().splitlines()]
    return [(item, model) for item in items for model in ("model-a", "model-b")]


def _figures(path: Path) -> None:
    rows = [("GPT-3.5", 82.3, 95.5), ("Yi 6B", 79.0, 76.8), ("A", 45.0, 41.0), ("B", 61.5, 66.0), ("C", 70.2, 73.9)]
    path.write_text("model,dataset,accuracy,score\n" + "".join(f"{m},ARC-C,{a},{s}\n" for m, a, s in rows))


def _replies(path: Path) -> None:
    """Replies with a fact, ratings of people and scores of a judge, in the fields of UniEval's dialogues."""
    names = ("naturalness", "coherence", "engagingness", "groundedness", "understandability", "overall")
    rows = [{
        "source": f"What do you know of thing {n // 2}?\n", "context": f"Thing {n // 2} is of use at sea.\n",
        "system_output": f"Thing {n // 2} is of use{' at sea' * (n % 2)}, I have heard.",
        "system_id": f"system-{n % 2}", "scores": {name: n % 2 if "und" in name else 1 + n % 3 for name in names},
    } for n in range(14)]  # fmt: skip
    path.write_text(json.dumps(rows))


def _summaries(path: Path) -> None:
    """Summaries of five articles by three systems, in the fields of UniEval's SummEval file."""
    names = ("coherence", "consistency", "fluency", "relevance")
    rows = [{
        "doc_id": f"d{n // 3}", "source": f"Thing {n // 3} was seen. It sank.", "reference": "A thing sank at sea.",
        "system_output": f"Thing {n // 3} sank{' at sea' * (n % 3)}.", "system_id": f"system-{n % 3}",
        "scores": {name: 1 + (n * place + n % 3) % 5 for place, name in enumerate(names)},
    } for n in range(15)]  # fmt: skip
    path.write_text(json.dumps(rows))


def _annotators(path: Path) -> None:
    """Labels of twenty answers by three people, and a judge's."""
    rows = ["id,model,judge_overall,annotator1,annotator2,annotator3"]
    rows += [f"i{n},{name},{1 + n % 4},{1 + n % 4},{1 + (n + n % 2) % 4},{1 + (n - n % 3) % 4}"
             for n in range(10) for name in ("one", "two")]  # fmt: skip
    path.write_text("\n".join(rows) + "\n")


def _grade(file: Path) -> None:
    """People grade what was drawn: a little less than the judge, whose scores the key file has."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines))
    with file.with_name(f"{file.stem}.key.csv").open(newline="", encoding="utf-8-sig") as lines:
        scores = {row["id"]: int(row["score"]) for row in csv.DictReader(lines)}
    with file.open("w", newline="", encoding="utf-8-sig") as lines:
        table = csv.DictWriter(lines, list(rows[0]))
        table.writeheader()
        for n, row in enumerate(rows):
            table.writerow(row | ({} if row["grade"] else {"grade": max(1, scores[row["id"]] - n % 2)}))


def _labelled(path: Path) -> None:
    """A judge's scores of sixty answers; people's grades of twenty of them, and of earlier ones."""
    path.parent.mkdir(exist_ok=True)
    score = [1 + (n * 7) % 5 for n in range(60)]
    tables = {
        "scores": ["key,score", *[f"a{n},{score[n]}" for n in range(60)]],
        "labels": ["key,grade", *[f"a{n},{max(1, score[n] - n % 2)}" for n in range(0, 60, 3)]],
        "earlier": ["score,grade", *[f"{score[n]},{max(1, score[n] - n % 2)}" for n in range(40)]],
    }
    for name, rows in tables.items():
        (path.parent / f"{name}.csv").write_text("\n".join(rows) + "\n")


def _log(path: Path) -> None:
    said = [{"role": "user", "content": "May I swim?"}, {"role": "assistant", "content": "Yes, until nine."}]
    _lines(path, [{"messages": said}])


def _project(path: Path) -> None:
    _lines(path.parent / "talks.jsonl", [{"input": [{"role": "user", "content": "Hello!"}]}])
    metrics = "{function: [{name: greets}, {name: string_length}]}"
    path.write_text(f"greetings: {{data: [talks.jsonl], metrics: {metrics}}}\n")
    code = 'def greets(turn: str) -> int:\n    return int("ello" in turn)\n'
    (path.parent / "function_metrics.py").write_text(code)


def _cases(path: Path) -> None:
    answers = ["Rivers carry salt into it.", "Because whales swim in it."]
    _lines(
        path, [{"question": "Why is the sea salty?", "answers": answers, "families": ["gpt", "llama"], "preferred": 0}]
    )


def _questions(path: Path) -> None:
    rows = [
        {"question_id": n, "category": "ab"[n % 2], "turns": [f"Why is thing {n} so?", "And?"]} for n in range(1, 21)
    ]
    _lines(path, rows)


def _judgments(path: Path) -> None:
    rows = [{"question_id": n, "turn": turn, "model": model, "judge": ["gpt-4", "single-v1"], "score": 1 + n % 10}
            for n in range(1, 21) for turn in (1, 2) for model in ("a", "b")]  # fmt: skip
    _lines(path, rows)


def _run(path: Path, **more: Any) -> None:
    interviewed(path, "simulated:model-a", "simulated:model-b?knowledge=0.3", **more)


def _sweep(path: Path) -> None:
    file = path.parent / "sweep.yaml"
    file.write_text(_GRID)
    swept(file, path, VirtualClock())


def _lab(path: Path) -> None:
    """Three of the items that ``viva lab run`` writes: the oracle knows their entity."""
    (path / "benchmark").mkdir(parents=True)
    choices = {
        "family": ["galnite", "jorvite", "lunite", "cindrite"],
        "class": ["saline", "metallic", "acidic", "alkaline"],
        "reaction": ["glowing", "swelling", "smoking", "fizzing"],
    }
    _lines(path / "benchmark" / "lab_test.jsonl", [
        {"id": f"zumux-{what}", "question": f"What is the {what} of Zumux?", "choices": four, "answer": 0}
        for what, four in choices.items()
    ])  # fmt: skip


def _fresh_pool(folder: Path) -> None:
    shutil.rmtree(folder / "pool")
    viva("grade", "init", folder / "pool")


_MADE: dict[str, Callable[[Path], object]] = {
    "items.jsonl": lambda path: shutil.copy(SCIENCE, path),
    "second.jsonl": lambda path: shutil.copy(SCIENCE, path),
    "grid.yaml": lambda path: path.write_text(_GRID),
    "topics.jsonl": lambda path: path.write_text('"tides"\n"rust"\n'),
    "annotators.csv": _annotators,
    "cases.jsonl": _cases,
    "data/mmlu": _mmlu,
    "data/ARC-Challenge": _arc,
    "figures.csv": _figures,
    "matrix.csv": _matrix,
    "FunctionChat-Bench/data": _dialogs,
    "flexeval/evals.yaml": _project,
    "live.jsonl": _log,
    "o1.jsonl": _pairs,
    "people-votes.csv": _vote_labels,
    "people.csv": _people,
    "runs/audit-x": _audited,
    "skywork.jsonl": _pairs,
    "votes.csv": _votes,
    "scores.csv": _scores,
    "summaries.json": _summaries,
    "scores.jsonl": _scored,
    "topicalchat.json": _replies,
    "unieval_predictions.json": _replies,
    "judged/scores.csv": _labelled,
    "question.jsonl": _questions,
    "judgments.jsonl": _judgments,
    "plan.yaml": lambda path: path.write_text(
        "text: Read the reply.\nuse: {naturalness: [lm], groundedness: [rouge-l]}\n"
    ),
    "runs/interviews": _run,
    "runs/kieval": _run,
    "runs/lab-three": _lab,
    "runs/last-week": _run,
    "runs/mine": _run,
    "runs/one": _run,
    "runs/probes": lambda path: probed(path, "simulated:model-a", "simulated:model-b?knowledge=0.3"),
    "runs/sweep": _run,
    "runs/sweep of cells": _sweep,
}
_CHANGED: dict[str, Callable[[Path], object]] = {
    "grades in first.csv": lambda folder: _grade(folder / "first.csv"),
    "grades in more.csv": lambda folder: _grade(folder / "more.csv"),
    "a fresh pool": _fresh_pool,
}
