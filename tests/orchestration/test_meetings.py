"""Several compared roles: models that meet in pairs, and every combination of the models of two roles."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva as command
from hypothesis import given, settings
from hypothesis import strategies as st

import viva
from viva.orchestration.python_api import run_blocking
from viva.scenarios.contract import Role
from viva.scenarios.meetings import Meetings
from viva.scenarios.models import lineups

EXAMPLE = Path(__file__).parents[2] / "examples" / "debate.py"
MOTIONS = ["Tides are lunar.", "Rust is fire."]
MODELS = {"candidate": ["simulated:a", "simulated:b", "simulated:c"], "jury": "simulated:jury"}
KEYS = [f"{pair}/{motion}" for motion in MOTIONS for pair in ("a+b", "a+c", "b+a", "b+c", "c+a", "c+b")]


class Juror(viva.Backend):
    """Names the same side in every debate, and counts how often it is asked."""

    label = "juror"

    def __init__(self, winner: str) -> None:
        self.winner, self.asked = winner, 0

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.asked += 1
        return viva.Completion(f'{{"reason": "", "winner": "{self.winner}"}}')


def debate() -> Any:
    spec = importlib.util.spec_from_file_location("debate_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.debate


def test_a_debate_of_all_pairs_takes_a_file_of_at_most_30_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30


def test_a_debate_of_all_pairs_that_is_killed_resumes_to_the_same_report_byte_for_byte(tmp_path: Path) -> None:
    which = debate()
    whole = viva.run_sync(which, tasks=MOTIONS, models=MODELS, out=tmp_path / "whole")
    assert [result.key for result in whole.results()] == KEYS
    report = orjson.dumps(whole.report())

    async def killed() -> None:
        with suppress(ZeroDivisionError):
            async with viva.start(which, tasks=MOTIONS, models=MODELS, out=tmp_path / "part", concurrency=5) as run:
                seen = 0
                async for event in run.events():
                    seen += isinstance(event, viva.CallFinished)
                    if seen == 23:
                        raise ZeroDivisionError

    run_blocking(killed)
    assert len(list(viva.load(tmp_path / "part").results())) < len(KEYS)
    resumed = run_blocking(lambda: viva.resume(tmp_path / "part"))
    assert orjson.dumps(resumed.report()) == report
    for folder in ("whole", "part"):
        done = command("show", tmp_path / folder, "--conversation", "c+a/Rust is fire.", "--prompts")
        assert (done.returncode, "[pro]" in done.stdout, "[jury]" in done.stdout) == (0, True, True)


def test_a_fork_of_a_debate_asks_another_judge_and_nobody_else(tmp_path: Path) -> None:
    first, second = Juror("pro"), Juror("tie")
    run = viva.run_sync(debate(), tasks=MOTIONS, models=MODELS | {"jury": first}, out=tmp_path / "run")
    fork = run_blocking(lambda: viva.fork(run.path, judge=second, out=tmp_path / "fork"))
    assert (first.asked, second.asked) == (12, 12)
    for which, won, roles in ((run, 0.5, [1.0, 0.0]), (fork, 0.5, [0.5, 0.5])):
        report = which.report()
        standings = report["standings"]["candidate"]
        assert [one["won"]["mean"] for one in standings.values()] == [won] * 3
        assert [report["roles"][role]["won"]["mean"] for role in ("pro", "con")] == roles
        assert [one["roles"]["pro"]["won"]["mean"] for one in standings.values()] == roles[:1] * 3
    assert [(one["won"], one["tied"], one["lost"]) for one in fork.report()["pairs"]] == [(0, 4, 0)] * 3
    both = [asyncio.run(one.transcript("b+a/Rust is fire.")) for one in (run, fork)]
    assert [speech.text for speech in both[0].speeches[:-1]] == [speech.text for speech in both[1].speeches[:-1]]


def test_the_command_names_models_once_and_studies_read_the_run(tmp_path: Path) -> None:
    (tmp_path / "motions.jsonl").write_text('"Tides are lunar."\n')
    options = [text for model in MODELS["candidate"] for text in ("--candidate", model)]
    done = command("run", EXAMPLE, "--tasks", tmp_path / "motions.jsonl", *options, "--jury", "simulated:jury", "--out",
                   tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "debate on motions, seed 7, reproducible transcripts" in done.stdout
    study = command("report", tmp_path / "run", tmp_path / "run", "--json")
    assert [one["candidate"] for one in orjson.loads(study.stdout)["cells"]] == [key.split("/")[0] for key in KEYS[:6]]


@viva.scenario(compare=("attacker", "defender"), score=(0, 1), unit="wins")
async def siege(conversation: viva.Conversation, topic: str) -> float:
    """An attacker asks, a defender answers; the score is whether the answer is longer."""
    question = (await viva.Agent(conversation, "attacker").ask(topic)).text
    return float(len((await viva.Agent(conversation, "defender").ask(question)).text) > len(question))


def test_roles_that_do_not_meet_are_compared_in_every_combination(tmp_path: Path) -> None:
    models = {"attacker": ["simulated:a", "simulated:b"], "defender": ["simulated:b", "simulated:c"]}
    run = viva.run_sync(siege, tasks=["tides"], models=models, out=tmp_path / "run")
    assert [result.key for result in run.results()] == ["a+b/tides", "a+c/tides", "b+b/tides", "b+c/tides"]
    report = run.report()
    assert {role: list(models) for role, models in report["standings"].items()} == {
        "attacker": ["a", "b"],
        "defender": ["b", "c"],
    }
    assert (report["pairs"], report["unit"]) == ([], "wins")
    assert run.tables()[0][1][:3] == ["attacker", "conversations", "score (wins)"]
    scores = {result.key: result.value for result in run.results()}
    assert report["standings"]["attacker"]["a"]["score"]["mean"] == (scores["a+b/tides"] + scores["a+c/tides"]) / 2


RETURNED: dict[str, tuple[Any, str]] = {
    "a lone number": (0.5, "expected scores by role, {'pro': …, 'con': …}, or the winner's role"),
    "an unknown winner": ("Pro", "returned winner = 'Pro'; expected 'pro', 'con', 'tie', or None if it is unscored"),
    "no role": ({"words": 3}, "expected scores by role"),
    "a score beyond its range": ({"pro": 11, "con": 0}, "returned pro = 11; its decorator declares 0 to 10"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_what_says_nothing_of_the_models_that_met_fails_its_conversation(tmp_path: Path, what: str) -> None:
    value, message = RETURNED[what]

    @viva.scenario(compare=("pro", "con"), meet="pairs", score=(0, 10))
    async def wrong(conversation: viva.Conversation, motion: str) -> Any:
        return value

    run = viva.run_sync(wrong, tasks=["x"], models={"candidate": ["simulated:a", "simulated:b"]}, out=tmp_path / "run")
    for result in run.results():
        assert result.error is not None
        assert message in result.error["message"]


def test_declarations_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for options, message in (
        ({"compare": ("a", "b", "c"), "meet": "pairs"}, "with two roles to compare"),
        ({"compare": "a", "meet": "pairs"}, "with two roles to compare"),
        ({"compare": ("candidate", "b"), "meet": "pairs"}, "different for each role"),
        ({"judge": "a"}, "no role is compared"),
    ):
        with pytest.raises(viva.ConfigurationError, match=message):
            viva.scenario(**options)  # type: ignore[arg-type]
    with pytest.raises(viva.ConfigurationError, match="candidate: List should have at least 2 items"):
        viva.run_sync(debate(), tasks=["x"], models=MODELS | {"candidate": ["simulated:a"]}, out=tmp_path / "run")
    same = ["simulated:x?label=a", "simulated:x?label=a%2Ba"]
    with pytest.raises(viva.ConfigurationError, match="two pairings of models have the label 'a"):
        viva.run_sync(debate(), tasks=["x"], models=MODELS | {"candidate": same}, out=tmp_path / "run")


ROLES = [Role("pro", many=True, pool="candidate"), Role("con", many=True, pool="candidate")]


@settings(max_examples=10)
@given(st.data())
def test_wins_add_up_and_a_pair_does_not_depend_on_sides(data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.sampled_from("abcde"), min_size=2, max_size=4, unique=True))
    models = dict.fromkeys(labels, "simulated:x")
    manifest = {"scenario": "debate", "seed": 7, "tier": "C", "dataset": {"name": "d"}, "pack": None,
                "models": {"pro": models, "con": models}, "prices": {"simulated:x": [0, 0]}}  # fmt: skip
    meetings = Meetings(manifest, ROLES, {"pro": (0, 1), "con": (0, 1)})
    margins: dict[frozenset[str], list[float]] = {}
    keys = list(lineups(ROLES, manifest["models"]).items())
    assert len(keys) == len(labels) * (len(labels) - 1)
    for task in ("s", "t"):
        for key, lineup in keys:
            scores = {role: data.draw(st.sampled_from([0.0, 0.5, 1.0])) for role in lineup}
            meetings.add(f"{key}/{task}", {"task": task, "value": scores, "usage": {}})
            first = min(lineup, key=lambda role: labels.index(lineup[role]))
            [second] = lineup.keys() - {first}
            margins.setdefault(frozenset(lineup.values()), []).append(scores[first] - scores[second])
    report = meetings.report()
    standings = report["standings"]["candidate"]
    assert sum(one["won"]["mean"] * one["won"]["n"] for one in standings.values()) == pytest.approx(2 * len(keys))
    for pair in report["pairs"]:
        known = margins[frozenset(pair["models"])]
        assert pair["won"] + pair["tied"] + pair["lost"] == pair["conversations"] == len(known) == 4
        assert pair["difference"]["mean"] == pytest.approx(sum(known) / len(known), abs=1e-6)
        assert -1 <= pair["difference"]["low"] <= pair["difference"]["mean"] <= pair["difference"]["high"] <= 1


class Measured(viva.Backend):
    """Notes how it is asked."""

    label = "measured"

    def __init__(self) -> None:
        self.asked: set[tuple[float, int]] = set()

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.asked.add((request.sampling.temperature, request.sampling.max_tokens))
        return viva.Completion("words")


def test_every_scenario_has_options_of_its_roles(tmp_path: Path) -> None:
    attacker, defender = Measured(), Measured()
    defender.label = "other"
    options: dict[str, Any] = {"temperature": 0.5, "attacker_tokens": 7}
    viva.run_sync(
        siege, tasks=["x"], models={"attacker": attacker, "defender": defender}, out=tmp_path / "a", **options
    )
    assert (attacker.asked, defender.asked) == ({(0.5, 7)}, {(0.5, 512)})
