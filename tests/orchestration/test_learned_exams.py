"""Adaptive runs without a bank: the same items and bytes whatever happens, what they report, and what they leave."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import command
import orjson
import pytest
from launched import go
from probing import make_items
from viva_process import completed, ended, killed, started

import viva
from viva.data.bank_file import read_bank_file
from viva.engine.errors import ConfigurationError, Rejected
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import missing_conversations, recorded_report
from viva.orchestration.launch import new_run, resumed_run
from viva.orchestration.prepared_run import PreparedRun
from viva.orchestration.run_forecast import RunForecast
from viva.scenarios.probes.probe import ProbeSettings
from viva.scenarios.registry import get_scenario

MODELS = [f"simulated:m{number}?knowledge={number / 21:.2f}" for number in range(1, 21)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 items."""
    return make_items(tmp_path_factory.mktemp("data") / "quiz.jsonl", 60, "tides rust")


def settings(source: Path, **more: Any) -> ProbeSettings:
    values = {"candidate": MODELS, "dataset": str(source), "method": ["generate"], "shots": 0}
    return ProbeSettings.model_validate(values | {"adaptive": "learn", "n": 22} | more)


def exam(out: Path, source: Path, **more: Any) -> Path:
    assert go(new_run("probe", settings(source, **more), out)) == "done"
    return out


def traces(run: Path) -> tuple[list[Any], bytes, bytes]:
    """The recorded steps, the report and the learned bank."""
    with History(run / "journal.sqlite") as history:
        steps = [record["steps"] for record in history.control()]
    return steps, orjson.dumps(recorded_report(RunFolder.open(run))), (run / "bank.json").read_bytes()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A run that nothing disturbed."""
    return exam(tmp_path_factory.mktemp("calm") / "run", source, concurrency=16)


def test_concurrency_changes_neither_items_nor_report_nor_bank(tmp_path: Path, source: Path, calm: Path) -> None:
    for concurrency in (1, 256):
        assert traces(exam(tmp_path / str(concurrency), source, concurrency=concurrency)) == traces(calm)


def test_a_run_that_is_halted_again_and_again_learns_the_same(tmp_path: Path, source: Path, calm: Path) -> None:
    run, draw, halts = tmp_path / "run", random.Random(5), 1
    assert go(new_run("probe", settings(source), run), halt_after=33) == "halted"
    while go(resumed_run(run, changes={"concurrency": draw.choice([1, 7, 200])}), draw.randint(20, 120)) == "halted":
        halts += 1
        report = recorded_report(RunFolder.open(run))
        assert report["unfinished"]["planned"] == 20 * 22
        assert not (run / "bank.json").exists()
        assert all(own["adaptive"]["model_based"]["value"] is None for own in report["candidates"].values())
    assert halts > 3
    assert traces(run) == traces(calm)


def test_a_killed_run_learns_the_same(tmp_path: Path, source: Path) -> None:
    words = ["run", "probe", "--dataset", source, "--method", "generate", "--shots", "0", "--adaptive", "learn"]
    words += ["-n", "16", "--json", *(word for model in MODELS for word in ("--candidate", f"{model}&latency=0.01"))]
    undisturbed = completed(*words, "--out", tmp_path / "calm")
    process = started(*words, "--out", tmp_path / "run", "--concurrency", "16")
    killed(process, tmp_path / "run", 215)  # after the first bank
    code, printed, _ = ended(started("resume", tmp_path / "run", "--json"))
    assert (code, undisturbed.returncode) == (0, 0)
    assert printed == undisturbed.stdout
    assert traces(tmp_path / "run") == traces(tmp_path / "calm")


def test_a_finished_run_asks_nothing_more_and_writes_a_lost_bank_again(tmp_path: Path, source: Path) -> None:
    run = exam(tmp_path / "run", source, n=12)
    before = traces(run)
    (run / "bank.json").unlink()
    assert go(resumed_run(run)) == "done"
    assert traces(run) == before
    assert missing_conversations(RunFolder.open(run)) is None


class Moody(viva.Backend):
    """Knows everything; fails on the questions whose number ends with 3 until it is mended."""

    fallible = True
    label = "moody"

    def __init__(self) -> None:
        self.mended = False

    async def generate(self, request: viva.Request) -> viva.Completion:
        if request.conversation.endswith("3") and not self.mended:
            raise Rejected("out of sorts", model=self.label)
        return viva.Completion("The answer is A.", "stop", 3, 4)


def test_failed_conversations_teach_nothing_until_they_are_retried(tmp_path: Path, source: Path) -> None:
    model = Moody()
    chosen = settings(source, candidate=[*MODELS, "own:moody"], n=30)
    launch = new_run("probe", chosen, tmp_path / "run", backends={"own:moody": model})
    assert go(launch) == "done"
    steps, _, bank = traces(tmp_path / "run")
    figures = recorded_report(launch.folder)["candidates"]["moody"]["adaptive"]
    assert figures["asked"] == 30
    assert figures["without_score"] > 0
    model.mended = True
    assert go(resumed_run(tmp_path / "run", retry_failed=True, backends={"own:moody": model})) == "done"
    again, _, mended = traces(tmp_path / "run")
    assert again == steps
    counts = [sum(orjson.loads(text)["counts"]) for text in (bank, mended)]
    assert counts[1] - counts[0] == figures["without_score"]


def test_the_report_says_what_it_can(source: Path, calm: Path) -> None:
    report = recorded_report(RunFolder.open(calm))
    means = [own["adaptive"] for own in report["candidates"].values()]
    assert all(own["model_based"]["low"] is None for own in means)
    values = [own["model_based"]["value"] for own in means]
    assert sum(values[10:]) > sum(values[:10]) + 300.0
    assert all(own["assumption_free"]["low"] < own["assumption_free"]["high"] for own in means)
    printed = " ".join(command.viva("report", calm).stdout.split())
    assert "The item bank was learned from the answers of these candidates" in printed
    assert "model-based values have no interval" in printed


def test_few_candidates_are_asked_random_items(tmp_path: Path, source: Path) -> None:
    run = exam(tmp_path / "run", source, candidate=MODELS[:3])
    assert not (run / "bank.json").exists()
    printed = " ".join(command.viva("report", run).stdout.split())
    assert "3 candidates are too few to learn an item bank from; that takes 20" in printed
    [own, *_] = recorded_report(RunFolder.open(run))["candidates"].values()
    assert own["adaptive"]["model_based"]["value"] is None
    assert own["adaptive"]["assumption_free"]["value"] is not None
    assert missing_conversations(RunFolder.open(run)) is None


def test_the_learned_bank_serves_the_next_exam(tmp_path: Path, source: Path, calm: Path) -> None:
    file = read_bank_file(calm / "bank.json")
    assert (file.models, len(file.items), sum(file.counts)) == (20, 60, 20 * 22)
    run = exam(tmp_path / "run", source, adaptive=str(calm / "bank.json"), candidate=MODELS[::6], n=15)
    own = [record["adaptive"] for record in recorded_report(RunFolder.open(run))["candidates"].values()]
    assert own[-1]["model_based"]["low"] > own[0]["model_based"]["high"]
    fitted = command.viva("bank", "fit", calm, "--out", tmp_path / "bank.json")
    assert fitted.returncode == 0, fitted.stderr


def test_the_bounds_of_a_run_that_learns_are_those_of_all_items(source: Path) -> None:
    forecast = RunForecast(PreparedRun(get_scenario("probe"), settings(source))).report()
    assert forecast["conversations"] == 20 * 22
    assert "adaptive" not in forecast
    assert forecast["models"][MODELS[0]]["calls"] == 22


def test_what_cannot_be_learned_is_refused(tmp_path: Path, source: Path, calm: Path) -> None:
    few = make_items(tmp_path / "few.jsonl", 12, "tides rust")
    with pytest.raises(ConfigurationError, match="few has 12 items, and an adaptive exam needs at least 20"):
        new_run("probe", settings(few), tmp_path / "run")
    assert settings(source).learns
    (tmp_path / "learn").write_bytes((calm / "bank.json").read_bytes())
    chosen = ProbeSettings.model_validate(
        settings(source).model_dump() | {"adaptive": "./learn"}, context={"folder": tmp_path}
    )
    assert chosen.adaptive == str(tmp_path / "learn")
    assert not chosen.learns
