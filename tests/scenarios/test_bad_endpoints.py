"""``viva run kieval`` as a user starts it, on endpoints that fail in every way: it ends, and says what happened."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import viva
from viva_process import ended, started

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.scenarios.kieval.score import Interview, Scorer
from viva.scenarios.kieval.verdicts import ASPECTS

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_CHOSEN, _ROUNDS = 12, 2
_THROTTLED = {"do": "429", "retry_after": 0.3}
_TROUBLES: list[Any] = [
    *["ok", "ok", "ok", _THROTTLED, "ok", "ok", "500", "ok", "ok", "reset"],
    *["ok", "ok", "ok", "truncated", "ok", "ok", "garbage", "ok", "ok", "never"],
]
# The evaluator has troubles of its own; all of these come up within its 24 verdicts.
_JUDGING: list[Any] = [
    *["ok", "garbage_verdict", "ok", "garbage_verdict", "garbage_verdict", "ok", "truncated", "ok", "never"],
    *["ok", "garbage_verdict", "ok", "500", "garbage_verdict", "ok", "ok", "reset", "ok", _THROTTLED, "ok", "garbage"],
]


class Run:
    """What a finished ``viva run kieval`` left: exit code, report, stderr, run folder."""

    def __init__(self, path: Path, models: dict[str, str], *options: str) -> None:
        self.path = path
        arguments = ["run", "kieval", "--dataset", str(_ITEMS), "-n", str(_CHOSEN), "--rounds", str(_ROUNDS)]
        arguments += ["--out", str(path), "--json", *options]
        for role, model in models.items():
            arguments += [f"--{role}", model]
        self.code, printed, self.stderr = ended(started(*arguments))
        self.stdout = printed.decode()

    @property
    def results(self) -> dict[str, Any]:
        """The report on the one candidate."""
        one: dict[str, Any] = json.loads(self.stdout)["candidates"]["candidate"]
        return one

    def interviews(self) -> Iterator[tuple[Interview, list[str]]]:
        """Each finished interview as it was recorded, with the texts its evaluator sent."""
        with History(RunFolder.open(self.path).journal) as history:
            for ended in history.ended():
                if not ended.failed:
                    texts = [call.completion.text for call in history.calls(ended.number) if call.role == "evaluator"]
                    yield Interview.from_record(ended.result), texts

    def errors(self) -> list[dict[str, Any]]:
        """The errors of the failed conversations."""
        with History(RunFolder.open(self.path).journal) as history:
            return [ended.result for ended in history.ended() if ended.failed]


def on(server: Server, **options: object) -> dict[str, str]:
    """All three roles on one server, each under its own name."""
    return {role: server.model(role, **options) for role in ("candidate", "interactor", "evaluator")}


def given_scores(text: str) -> list[int] | None:
    """The scores in a verdict as the server wrote it, None if it wrote something else."""
    if not text.startswith("{"):
        return None
    verdict = json.loads(text)
    return [*(verdict[aspect]["score"] for aspect in ASPECTS), verdict["overall_score"]]


def rounds_as_given(texts: list[str]) -> list[tuple[list[int] | None, int]]:
    """Scores and unreadable texts of each round: one text if it can be read, else also the one that mends it."""
    rounds: list[tuple[list[int] | None, int]] = []
    rest = iter(texts)
    for text in rest:
        scores = given_scores(text)
        mended = given_scores(next(rest)) if scores is None else None
        rounds.append((scores or mended, 0 if scores else 1 if mended else 2))
    return rounds


def test_a_run_survives_every_kind_of_trouble(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"cycle": _TROUBLES, "by_model": {"evaluator": {"cycle": _JUDGING}}})
    run = Run(tmp_path / "run", on(server, timeout=1, retries=4))
    log = server.log()
    planned = {one if isinstance(one, str) else one["do"] for one in _TROUBLES + _JUDGING}
    assert {entry["behaviour"] for entry in log} == planned

    results, interviews = run.results, list(run.interviews())
    assert run.code == (3 if results["failed"] else 0)
    assert results["interviews"] == len(interviews)
    assert results["interviews"] + results["failed"] == _CHOSEN
    assert sum(results["failures"].values()) == results["failed"] == len(run.errors())
    assert set(results["failures"]) <= {"Throttled", "Unavailable", "TimedOut"}

    given = {entry["text"] for entry in log if entry["model"] == "evaluator"}
    for interview, texts in interviews:
        assert given.issuperset(texts)
        # Every score in the record is one that the server gave, in its place; nothing else was made of garbage.
        assert [(held.scores, held.failures) for held in interview.rounds] == rounds_as_given(texts)
        assert len(interview.rounds) == _ROUNDS
    rounds = [held for interview, _ in interviews for held in interview.rounds]
    assert results["verdicts"] == len(rounds) == _ROUNDS * len(interviews)
    assert results["unscored_rounds"] == sum(held.scores is None for held in rounds)
    assert results["parse_failures"] == sum(held.failures for held in rounds) > 0
    scores = [score for interview, _ in interviews if (score := Scorer().score(interview)) is not None]
    assert results["scored"] == len(scores) == len(interviews) - results["unscored_interviews"]
    assert results["score"]["mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-5)
    assert f"{_CHOSEN}/{_CHOSEN} done" in run.stderr
    assert "retries" in run.stderr


def test_the_tables_say_how_much_is_missing(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"by_model": {"evaluator": {"cycle": ["ok", "garbage_verdict", "garbage_verdict"]}}})
    run = Run(tmp_path / "run", on(server))
    tables = viva("report", run.path).stdout
    row = next(line for line in tables.splitlines() if line.split()[:1] == ["candidate"] and "%" in line)
    share = run.results["unscored_rate"]
    assert 0 < share < 1
    assert f"{100 * share:.1f}%" in row


def test_a_clean_endpoint_has_nothing_to_report(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({})
    run = Run(tmp_path / "run", on(server))
    results = run.results
    assert (run.code, results["interviews"], results["failed"]) == (0, _CHOSEN, 0)
    assert (results["unscored_rounds"], results["parse_failures"]) == (0, 0)
    assert "retries" not in run.stderr
    calls = {role: used["calls"] for role, used in results["usage"].items()}
    assert calls == {"candidate": 36, "interactor": 24, "evaluator": 24}
    assert len(server.log()) == sum(calls.values())


def test_two_runs_on_the_same_answers_are_the_same(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({})
    one, other = (Run(tmp_path / f"run{width}", on(server), "--concurrency", str(width)) for width in (1, 12))
    assert one.stdout == other.stdout


def test_an_unreachable_endpoint_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound but not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        models = {"candidate": f"openai:{url}#candidate", "interactor": "simulated:i", "evaluator": "simulated:e"}
        run = Run(tmp_path / "run", models)
    assert run.code == 1
    [line] = run.stderr.splitlines()
    assert line.startswith("viva: error: ")
    assert url in line
    assert run.stdout == ""


def test_a_wrong_key_is_a_usage_error(chaos: StartChaos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KEY", "sk-wrong-0123456789")
    server = chaos({"model_list": 401})
    run = Run(tmp_path / "run", on(server, key_env="CHAOS_KEY"))
    assert run.code == 2
    [line] = run.stderr.splitlines()
    assert line.startswith("viva: error: ")
    assert "401" in line
    assert "sk-wrong" not in run.stderr + run.stdout
    assert server.log() == []


def test_a_key_that_no_call_works_with_ends_the_run(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"model_list": 404, "by_model": {"evaluator": {"default": "401"}}})
    run = Run(tmp_path / "run", on(server))
    assert run.code == 2
    assert "viva: error: " in run.stderr
    assert "viva resume" in run.stderr


def test_line_22_a_key_refused_under_way_fails_that_interview(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"model_list": 404, "by_model": {"candidate": {"schedule": {"5": "401"}}}})
    run = Run(tmp_path / "run", on(server))
    assert run.code == 3
    assert run.results["failures"] == {"Forbidden": 1}


@pytest.mark.parametrize("refuses", [["json_schema"], ["json_schema", "json_object+schema", "json_object"]])
def test_an_endpoint_without_schemas_works(chaos: StartChaos, tmp_path: Path, refuses: list[str]) -> None:
    server = chaos({"default": {"do": "no_schema", "refuses": refuses}})
    run = Run(tmp_path / "run", on(server))
    assert run.code == 0
    assert (run.results["interviews"], run.results["unscored_rounds"]) == (_CHOSEN, 0)


def test_an_evaluator_that_never_sends_json_scores_nothing(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"by_model": {"evaluator": {"default": "garbage_verdict"}}})
    run = Run(tmp_path / "run", on(server))
    results = run.results
    assert (run.code, results["interviews"], results["failed"]) == (0, _CHOSEN, 0)
    assert (results["unscored_rate"], results["parse_failure_rate"]) == (1.0, 1.0)
    assert (results["scored"], results["unscored_interviews"]) == (0, _CHOSEN)
    assert results["score"] == {"mean": None, "se": None, "n": 0}
    assert results["verdicts"] == _CHOSEN * _ROUNDS
    assert sum(entry["model"] == "evaluator" for entry in server.log()) == 2 * _CHOSEN * _ROUNDS


@pytest.mark.parametrize("role", ["candidate", "evaluator"])
def test_a_talk_too_long_for_the_model_fails_at_once(chaos: StartChaos, tmp_path: Path, role: str) -> None:
    server = chaos({"by_model": {role: {"default": "context_too_long"}}})
    run = Run(tmp_path / "run", on(server))
    results = run.results
    assert (run.code, results["interviews"], results["failed"]) == (3, 0, _CHOSEN)
    assert results["failures"] == {"ContextTooLong": _CHOSEN}
    assert {error["type"] for error in run.errors()} == {"ContextTooLong"}
    assert sum(entry["model"] == role for entry in server.log()) == _CHOSEN
    assert "retries" not in run.stderr
