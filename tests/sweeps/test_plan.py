"""Sweeps planned from a pilot, an earlier run or guesses, against the same sweeps held in simulated time."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from small_sweeps import INTERVIEWS, calls_in, swept, write_file
from tiny_gguf import SHORT_PACK, make_model

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.orchestration.launch import recorded_results
from viva.sweeps.pilot import open_pilot
from viva.sweeps.plan import Plan
from viva.sweeps.plan_report import PlanReport
from viva.sweeps.recorded_sweep import recorded_cells

STEADY = "latency=1&sigma=0"
TALKS = {
    "interactor": f"simulated:i?{STEADY}",
    "evaluator": f"simulated:e?{STEADY}&price_in=1&price_out=2",
    "rounds": 2,
    "early_stop": False,
}


def _file(folder: Path, items: int = 20, candidate: str = f"simulated:a?{STEADY}", **said: Any) -> Path:
    return write_file(folder, items=items, candidates=[candidate], **{"interviews": TALKS, **said})


def _piloted(file: Path, out: Path, share: float = 0.15) -> VirtualClock:
    clock = VirtualClock()
    pilot = open_pilot(file, out, share, clock)
    clock.run(pilot.run)
    return clock


def _took(file: Path, out: Path) -> float:
    clock = VirtualClock()
    swept(file, out, clock)
    return clock.now()


def test_where_all_calls_are_alike_the_plan_is_what_the_sweep_takes(tmp_path: Path) -> None:
    file, out = _file(tmp_path, concurrency=4), tmp_path / "out"
    _piloted(file, out)
    plan = Plan(file, out, simulations=2)
    assert plan.conversations == 17
    assert PlanReport(plan).bottleneck() == "concurrency: 4 conversations at once"
    before, [journal] = calls_in(out), [cell.folder.journal for cell in recorded_cells(out) if cell.folder is not None]
    held = journal.stat().st_size
    took = _took(file, out)
    assert plan.journal_bytes == pytest.approx(journal.stat().st_size - held, rel=0.3)
    assert plan.prediction.seconds.value == pytest.approx(took, rel=0.01)
    calls = sum(tally.calls for tally in plan.prediction.courses[0].models.values())
    assert calls == calls_in(out) - before


def test_a_sweep_goes_on_behind_its_pilot_and_says_the_same(tmp_path: Path) -> None:
    file = write_file(tmp_path, items=20, interviews={**INTERVIEWS, "rounds": 2})
    _piloted(file, tmp_path / "out")
    piloted = calls_in(tmp_path / "out")
    swept(file, tmp_path / "out", VirtualClock())
    swept(file, tmp_path / "whole", VirtualClock())
    assert 0 < piloted < calls_in(tmp_path / "out") == calls_in(tmp_path / "whole")
    told = [
        [recorded_results(one.folder).report() for one in recorded_cells(tmp_path / name) if one.folder is not None]
        for name in ("out", "whole")
    ]
    assert told[0] == told[1]


def test_the_bound_that_holds_calls_back_is_named_and_widening_it_helps(tmp_path: Path) -> None:
    file, out = _file(tmp_path, items=60, candidate=f"simulated:a?{STEADY}&rpm=60"), tmp_path / "out"
    _piloted(file, out, 0.1)
    plan = Plan(file, out, simulations=2)
    told = PlanReport(plan)
    assert told.bottleneck() == "rpm=60 of simulated:a"
    [wider] = [one for one in told.changes if one.change == "twice rpm=60 of simulated:a"]
    assert wider.seconds == pytest.approx(plan.prediction.seconds.value / 2, rel=0.1)
    assert plan.prediction.seconds.value == pytest.approx(_took(file, out), rel=0.05)
    narrow = Plan(file, tmp_path / "new", earlier=[out], limits=["a=concurrency:1"], simulations=2)
    assert PlanReport(narrow).bottleneck().startswith("concurrency=1 of simulated:a")
    with pytest.raises(ConfigurationError, match="expected one of concurrency, rpm, rps, tpm with a whole number"):
        Plan(file, out, limits=["a=speed:3"])
    with pytest.raises(ConfigurationError, match="one of the models a, i, e"):
        Plan(file, out, limits=["other=rpm:3"])


def test_an_earlier_run_is_learned_from_as_far_as_it_is_alike(tmp_path: Path) -> None:
    file = _file(tmp_path / "one", concurrency=4)
    _piloted(file, tmp_path / "out")
    learned = Plan(file, tmp_path / "new", earlier=[tmp_path / "out"], simulations=2)
    assert [source.words for source in learned.sources.values()] == ["an earlier run, same data and models"]
    assert learned.conversations == 20
    other = _file(tmp_path / "two", candidate="simulated:other", names=("beta",), concurrency=4)
    [source] = Plan(other, tmp_path / "new", earlier=[tmp_path / "out"], simulations=2).sources.values()
    assert (source.words, source.conversations) == ("an earlier run, other models", 3)
    [cell] = recorded_cells(tmp_path / "out")
    assert cell.folder is not None
    alone = Plan(file, tmp_path / "new", earlier=[cell.folder.path], simulations=2)
    assert alone.prediction == learned.prediction


def test_guesses_are_called_guesses(tmp_path: Path) -> None:
    report = PlanReport(Plan(_file(tmp_path), tmp_path / "out", simulations=3)).report()
    assert {one["from"] for one in report["cells"].values()} == {"guessed"}
    assert any("a call takes 0.5 s" in note for note in report["notes"])
    assert report["level"] is None
    low, value, high = (report["seconds"][name] for name in ("low", "value", "high"))
    assert 0 < low < value < high
    assert report["cost"]["value"] > 0
    assert not (tmp_path / "out").exists()  # nothing was begun


@pytest.mark.parametrize("early", [False, True])
def test_the_range_of_guesses_contains_what_is_guessed_and_what_the_sweep_takes(tmp_path: Path, early: bool) -> None:
    file = _file(tmp_path, interviews={**TALKS, "rounds": 4, "early_stop": early})
    plan = Plan(file, tmp_path / "out", simulations=3)
    most = sum(use.prompt + use.completion for use in plan.forecast.models.values())
    tokens = plan.prediction.tokens
    assert tokens.high == pytest.approx(most, rel=0.02), "every conversation to its end, every answer to its limit"
    assert tokens.low < 0.2 * most, "conversations that end early, with answers of a fifth of their limits"
    assert plan.prediction.cost is not None
    assert plan.prediction.cost.low < plan.prediction.cost.value < plan.prediction.cost.high
    assert PlanReport(plan).tables()[0][1] == ["", "guessed", "from", "to"]
    swept(file, tmp_path / "out", VirtualClock())
    [cell] = recorded_cells(tmp_path / "out")
    assert cell.folder is not None
    with contextlib.closing(sqlite3.connect(cell.folder.journal)) as journal:
        [(used,)] = journal.execute("select sum(prompt_tokens + completion_tokens) from calls")
    assert tokens.low < used < tokens.high
    # What is known of one cell is no guess.
    assert Plan(file, tmp_path / "new", earlier=[tmp_path / "out"], simulations=2).guessed is False


def test_a_plan_without_a_pilot_needs_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_KEY"):
        monkeypatch.delenv(name, raising=False)
    talks = {**TALKS, "interactor": "anthropic:claude-3-5-haiku-latest"}
    azure = "openai:https://azure.example/v1#m?key_env=AZURE_KEY&header.x-id=$AZURE_KEY"
    file = _file(tmp_path, candidate="openai:gpt-4o-mini", interviews={**talks, "evaluator": azure})
    plan = Plan(file, tmp_path / "out", simulations=2)
    assert plan.forecast.problems == {}
    assert plan.conversations == 20
    wrong = Plan(_file(tmp_path / "wrong", candidate="simulated:a?surprise=1"), tmp_path / "other", simulations=2)
    assert list(wrong.forecast.problems) == ["simulated:a?surprise=1"]


def test_a_rule_that_stops_early_is_among_what_could_be(tmp_path: Path) -> None:
    said = {"interviews": {**INTERVIEWS, "rounds": 1}, "until": {"half_width": 15.0}, "concurrency": 4}
    file, out = write_file(tmp_path, items=300, candidates=["simulated:a?latency=1"], **said), tmp_path / "out"
    _piloted(file, out, 0.05)
    plan = Plan(file, out, simulations=2)
    assert plan.conversations == 285
    [row] = [one for one in PlanReport(plan).changes if one.change.startswith("until")]
    assert row.change == "until: {half_width: 15} (estimated from the scores so far)"
    assert 0 < row.seconds < 0.8 * plan.prediction.seconds.value


def test_a_pilot_that_fills_the_slots_of_a_local_model_once_is_said_to_be_short(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m.gguf")
    model.with_name("short.yaml").write_text(SHORT_PACK)
    said = {**INTERVIEWS, "rounds": 1, "pack": str(tmp_path / "short.yaml"), "candidate_tokens": 4}
    file = write_file(tmp_path, items=60, candidates=[f"llama:{model}?lanes=4&ctx=512"], interviews=said, concurrency=4)
    pilot = open_pilot(file, tmp_path / "out", 0.1)
    pilot.clock.run(pilot.run)
    plan = Plan(file, tmp_path / "out", simulations=2)
    assert plan.rounds == 1.5
    assert any("32 or more (a larger --pilot)" in note for note in PlanReport(plan).notes())
    seconds = plan.prediction.seconds
    assert seconds.high > 1.2 * seconds.value


def test_a_folder_without_records_is_nothing_to_learn_from(tmp_path: Path) -> None:
    file = _file(tmp_path)
    with pytest.raises(ConfigurationError, match="nothing: not a run folder"):
        Plan(file, tmp_path / "out", earlier=[tmp_path / "nothing"])
