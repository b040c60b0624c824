"""Questions without choices: what each role sees, and that nothing pretends to know which first answers are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_sweeps import swept
from spoken import transcripts_of

import viva
from viva.data.items import Item
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import forked_run, new_run, recorded_results
from viva.reports.studies.study import Study
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.scenario import SCENARIO
from viva.scenarios.probes.probe import ProbeSettings
from viva.scenarios.probes.scenario import SCENARIO as PROBES

_MODELS = {"interactor": "simulated:i", "evaluator": "simulated:e?noise=0"}
_KNOWS, _GUESSES = "simulated:knows?knowledge=1", "simulated:guesses?knowledge=0"


@pytest.fixture
def questions(tmp_path: Path) -> str:
    """Questions of a benchmark with free answers, in the form in which it is published."""
    for split in ("test", "train"):
        rows = [
            {"question": f"In {split} {n} hens lay 3 eggs each. How many?", "answer": f"{n}*3=<<{n}*3>>\n#### {3 * n}"}
            for n in range(2, 8)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"gsm8k:{tmp_path}:test"


def held(questions: str, out: Path, **said: Any) -> viva.Run:
    said = {"models": _MODELS | {"candidate": [_KNOWS, _GUESSES]}, "rounds": 2, **said}
    return viva.run_sync("kieval", out=out, clock=VirtualClock(), dataset=questions, **said)


def test_the_evaluator_compares_with_the_reference_and_starts_from_no_verdict(questions: str, tmp_path: Path) -> None:
    held(questions, tmp_path / "run", n=1)
    told = next(one for key, one in transcripts_of(tmp_path / "run").items() if key.startswith("guesses"))
    (item,) = {one.text for one in told.speeches if one.party == "benchmark"}
    question, reference = item.removesuffix(")").split("\n(reference answer: ")
    assert "<<" not in reference, "what was meant for a calculator is for nobody else"
    first: dict[str, list[dict[str, str]]] = {}
    for speech in told.speeches:
        if speech.prompt is not None:
            first.setdefault(speech.party, speech.prompt["messages"])
    assert all(reference not in one["content"] for one in first["candidate"])
    assert question in first["candidate"][-1]["content"]
    assert "multiple-choice" not in str(first)
    opening = first["interactor"][-1]["content"]
    assert all(part in opening for part in (question, reference, "that it cannot be told"))
    # One message: the first answer with the reference, then the exchange. No verdict was put into its mouth.
    assert [one["role"] for one in first["evaluator"]] == ["system", "user"]
    begun, exchange = first["evaluator"][-1]["content"].split("the first exchange that you grade.")
    assert all(part in begun for part in (question, reference, "that it cannot be told"))
    assert exchange.count("[BEGIN CANDIDATE]") == 1


def test_reports_have_no_accuracy_and_say_so(questions: str, tmp_path: Path) -> None:
    held(questions, tmp_path / "run")
    results = recorded_results(RunFolder.open(tmp_path / "run"))
    report = results.report()
    for one in report["candidates"].values():
        assert (one["interviews"], one["free"], one["accuracy"]["n"], one["unanswered"]) == (6, 6, 0, 0)
        assert one["unanswered_rate"] is None
    assert report["candidates"]["knows"]["score"]["mean"] > report["candidates"]["guesses"]["score"]["mean"] + 20
    title, header, rows = results.tables()[0]
    assert "questions without choices have no accuracy" in title
    assert not {"first answer", "unanswered"} & set(header)
    assert {len(row) for row in rows} == {len(header)}
    assert report["dataset"]["free"] == report["dataset"]["items"] == 6


def test_a_fork_with_another_evaluator_asks_the_candidate_nothing_again(questions: str, tmp_path: Path) -> None:
    held(questions, tmp_path / "run")
    changes = {"evaluator": "simulated:other"}
    launch = forked_run(tmp_path / "run", tmp_path / "fork", VirtualClock(), changes=changes)
    launch.clock.run(launch.run)
    report = recorded_results(launch.folder).report()
    assert [(one["interviews"], one["failed"], one["free"]) for one in report["candidates"].values()] == [(6, 0, 6)] * 2


def test_a_study_sets_losses_beside_the_score_and_no_accuracy(questions: str, tmp_path: Path) -> None:
    sweep = {
        "candidates": [_KNOWS, _GUESSES],
        "datasets": [{"dataset": questions, "against": questions.replace(":test", ":train")}],
        "interviews": {**_MODELS, "rounds": 1},
        "probes": {"method": ["loss"]},
    }
    file = tmp_path / "grid.yaml"
    file.write_text(json.dumps(sweep))
    swept(file, tmp_path / "out", VirtualClock())
    study = Study([tmp_path / "out"])
    tables = {title: (header, rows) for title, header, rows in study.tables()}
    (main,) = (title for title in tables if title.startswith("KIEval on ") and "have no accuracy" in title)
    assert not [name for name in tables[main][0] if "accuracy" in name or name == "unanswered"]
    (losses,) = (both for both in tables.values() if "loss of the other set" in both[0])
    assert "–" not in losses[1][0][losses[0].index("gap")]


def test_what_needs_choices_is_refused_before_the_run(questions: str, tmp_path: Path) -> None:
    base: dict[str, Any] = {"dataset": questions, "candidate": [_KNOWS], **_MODELS}
    with pytest.raises(ConfigurationError, match=r"five-shot asks for a choice, and 6 questions of .* have none"):
        new_run("kieval", KievalSettings(**base, first_answer="five-shot"), tmp_path / "run", VirtualClock())
    with pytest.raises(ConfigurationError, match=r"'kieval-informed' has no template candidate\.free_question"):
        new_run("kieval", KievalSettings(**base, pack="kieval-informed"), tmp_path / "run", VirtualClock())
    settings = ProbeSettings(dataset=questions, candidate=[_KNOWS], method=["letter", "loss"])
    with pytest.raises(ConfigurationError, match=r"method: letter asks which choice .* --method free or --method loss"):
        PROBES.prepare(settings)


def test_a_forecast_is_never_below_what_is_used(questions: str, tmp_path: Path) -> None:
    settings = KievalSettings(dataset=questions, candidate=[_KNOWS], **_MODELS, rounds=2, early_stop=False)
    prepared = SCENARIO.prepare(settings)
    assert all(isinstance(task, Item) and task.free for task in prepared.tasks)
    most = SCENARIO.forecast(settings, prepared, SCENARIO.open_pack(settings))
    held(questions, tmp_path / "run", models=_MODELS | {"candidate": [_KNOWS]}, early_stop=False)
    report = recorded_results(RunFolder.open(tmp_path / "run")).report()
    used = report["candidates"]["knows"]["usage"]
    assert {role: use["calls"] for role, use in used.items()} == {role: use.calls for role, use in most.items()}
    assert all(used[role]["prompt_tokens"] <= most[role].prompt for role in used)
