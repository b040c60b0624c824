"""Forks that ask one evaluator with several seeds, early stop switched on again, and measured hours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import viva
from study_runs import dataset, interviewed

from viva.engine.backends.base import Backend
from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.engine.messages import Completion, Request
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import forked_run, new_run, recorded_results
from viva.reports.studies.study import Study
from viva.scenarios.kieval.judge_seeds import SeedVotes, seed_record
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.score import Interview, Round, Scorer, SeedVerdicts
from viva.scenarios.kieval.verdicts import bare_verdict


def _fork(source: Path, path: Path, judge: str, **changes: Any) -> Path:
    clock = VirtualClock()
    launch = forked_run(source, path, clock, changes={"evaluator": judge, **changes})
    assert clock.run(launch.run).how == "done"
    return path


def _report(run: Path, **options: Any) -> dict[str, Any]:
    aggregate: Any = recorded_results(RunFolder.open(run), options)
    return dict(aggregate.report())


def _interviews(run: Path) -> list[Interview]:
    with History(RunFolder.open(run).journal) as history:
        return [Interview.from_record(ended.result) for ended in history.ended()]


def test_only_the_evaluator_is_asked_again_and_its_first_seed_is_a_plain_fork(tmp_path: Path) -> None:
    source = interviewed(tmp_path / "run", "simulated:one", "simulated:two?knowledge=0.4", rounds=3, early_stop=False)
    judge = "simulated:other?noise=0.5"
    plain = _report(_fork(source, tmp_path / "plain", judge))["candidates"]
    forked = _fork(source, tmp_path / "seeds", judge, judge_seeds=4)
    assert plain["one"]["score"] != _report(source)["candidates"]["one"]["score"]
    for label, record in _report(forked)["candidates"].items():
        votes, used = record.pop("judge_seeds"), record.pop("usage")
        alone = plain[label].pop("usage")
        assert record == plain[label]
        assert [used[role] for role in ("candidate", "interactor")] == [
            alone[role] for role in ("candidate", "interactor")
        ]
        assert used["evaluator"]["calls"] == 4 * alone["evaluator"]["calls"]
        assert (votes["seeds"], votes["interviews"], votes["equal"]) == (4, 40, False)
        assert 0.0 < votes["unanimous"] <= votes["decided"] <= 1.0
        own = votes["own_share"]
        assert 0.0 < own["low"] < own["value"] < own["high"] < 0.5
        assert "is the evaluator's own" in votes["summary"]
        scorer = Scorer(early_stop=False)
        by_hand = [[scorer.score(judged) for judged in interview.by_seed()] for interview in _interviews(forked)
                   if interview.candidate == label]  # fmt: skip
        assert sorted([entry["scores"] for entry in votes["by_interview"]]) == [
            pytest.approx(scores) for scores in sorted(by_hand)
        ]
    assert viva("verify", forked).returncode == 0


def test_a_judge_that_a_seed_does_not_change_is_named_so(tmp_path: Path) -> None:
    source = interviewed(tmp_path / "run", "simulated:one", n=4, rounds=2)
    done = viva(
        "run", "--fork", source, "--judge", "simulated:e?noise=0", "--judge-seeds", "3", "--out", tmp_path / "f"
    )
    assert "one: All verdicts are equal: seeds change nothing (4 interviews, 3 seeds of the evaluator)." in (
        " ".join(done.stdout.split())
    )
    assert "The evaluator with several seeds" in done.stdout
    again = viva("run", "--fork", tmp_path / "f", "--judge-seeds", "2", "--judge-temperature", "1", "--json",
                 "--out", tmp_path / "again")  # fmt: skip
    assert json.loads(again.stdout)["candidates"]["one"]["judge_seeds"]["seeds"] == 2
    manifest = RunFolder.open(tmp_path / "again").manifest
    assert manifest["settings"]["evaluator_temperature"] == 1.0
    assert manifest["models"]["evaluator"] == "simulated:e?noise=0"


def test_few_interviews_say_nothing_about_the_variance(tmp_path: Path) -> None:
    source = interviewed(tmp_path / "run", "simulated:one", n=5, rounds=2)
    [record] = _report(_fork(source, tmp_path / "f", "simulated:e?noise=0.8", judge_seeds=3))["candidates"].values()
    assert record["judge_seeds"]["own_share"] is None
    assert "too few interviews to tell" in record["judge_seeds"]["summary"]


def test_seeds_differ_also_where_all_calls_share_one_seed_and_with_overlap(tmp_path: Path) -> None:
    judge = "simulated:e?noise=0.6"
    source = interviewed(tmp_path / "run", "simulated:one", n=6, rounds=3, fixed_seed=0, early_stop=False)
    [record] = _report(_fork(source, tmp_path / "f", judge, judge_seeds=3))["candidates"].values()
    assert not record["judge_seeds"]["equal"]
    runs = [
        interviewed(
            tmp_path / f"overlap-{overlap}",
            "simulated:one?knowledge=0.3",
            n=12,
            rounds=3,
            overlap=overlap,
            evaluator=judge,
            judge_seeds=3,
        )
        for overlap in (False, True)
    ]
    verdicts = [[(judged.item, judged.rounds, judged.seeds) for judged in _interviews(run)] for run in runs]
    assert sorted(verdicts[0], key=str) == sorted(verdicts[1], key=str)


class _Stopper(Backend):
    """An evaluator that flags the first reply in one branch, and nothing else."""

    def __init__(self, branch: str) -> None:
        self._branch = branch

    async def generate(self, request: Request) -> Completion:
        verdict = json.loads(bare_verdict(4))
        if request.branch == self._branch:
            verdict |= {"stop_conversation": True, "stop_reason": "off_topic"}
        return Completion(json.dumps(verdict), "stop", 1, 1)


@pytest.mark.parametrize("branch", ["", "seed-2"])
def test_each_seed_stops_for_itself_and_the_interview_goes_on_for_the_others(tmp_path: Path, branch: str) -> None:
    names = {"dataset": str(dataset(tmp_path / "quiz.jsonl", 1)), "candidate": ["simulated:c"]}
    settings = KievalSettings(
        **names, interactor="simulated:i", evaluator="own:judge", rounds=3, judge_seeds=3, qualify=False
    )
    clock = VirtualClock()
    launch = new_run("kieval", settings, tmp_path / "run", clock, backends={"own:judge": _Stopper(branch)})
    assert clock.run(launch.run).how == "done"
    [interview] = _interviews(tmp_path / "run")
    ends = [(len(judged.rounds), judged.ended_by, judged.reason) for judged in interview.by_seed()]
    stopped, whole = (1, "evaluator", "off_topic"), (3, "rounds", "")
    assert ends == ([stopped, whole, whole] if branch == "" else [whole, stopped, whole])
    assert {role: used[0] for role, used in interview.usage.items()} == {
        "candidate": 4, "evaluator": 7, "interactor": 3,
    }  # fmt: skip


def test_a_seed_that_would_go_on_ends_with_the_recording(tmp_path: Path) -> None:
    source = interviewed(tmp_path / "run", "simulated:one?knowledge=0", rounds=4)
    stopped = {interview.item: len(interview.rounds) for interview in _interviews(source)
               if interview.ended_by == "evaluator" and len(interview.rounds) < 4}  # fmt: skip
    assert stopped
    clock, backend = VirtualClock(), _Stopper("seed-2")
    launch = forked_run(source, tmp_path / "fork", clock, changes={"evaluator": "own:judge", "judge_seeds": 2},
                        backends={"own:judge": backend})  # fmt: skip
    assert clock.run(launch.run).how == "done"
    for interview in _interviews(tmp_path / "fork"):
        if interview.item in stopped:
            first, second = interview.by_seed()
            assert (first.ended_by, len(first.rounds)) == ("transcript", stopped[interview.item])
            assert (second.ended_by, len(second.rounds)) == ("evaluator", 1)


def _judged(*courses: list[tuple[int, str | None]]) -> Interview:
    """An interview with the overall verdicts and flags of each seed."""
    first, *others = [[Round([2] * 5 + [score], stop) for score, stop in course] for course in courses]
    ends = ["evaluator" if rounds[-1].stop else "rounds" for rounds in (first, *others)]
    interview = Interview("c", "item", 3, rounds=first, ended_by=ends[0])
    interview.seeds = [SeedVerdicts(rounds, end) for rounds, end in zip(others, ends[1:], strict=True)]
    return interview


def test_the_majority_ends_with_most_seeds_and_a_tie_is_unscored() -> None:
    course = [(4, None), (2, None), (1, None)]
    record = seed_record(_judged(course, course, [(3, None), (2, "off_topic")]), Scorer())
    assert (record.majority, record.verdicts[2]) == ((4, 2, 1), (1, 1, None))
    assert record.by_majority == record.scores[0]
    record = seed_record(_judged(course, [(4, "off_topic")], [(4, "off_topic")]), Scorer())
    assert record.majority == (4,)
    record = seed_record(_judged([(4, None)], [(2, None)]), Scorer())
    assert (record.majority, record.by_majority, record.agreement) == ((None,), None, 0.0)
    assert record.spread == pytest.approx((100 - 30) / 2**0.5)


def test_votes_do_not_depend_on_the_order_of_results() -> None:
    courses = [[(1 + (at + seed) % 4, None), (4, None)] for at in range(12) for seed in range(2)]
    interviews = [_judged(*courses[at : at + 2]) for at in range(0, 24, 2)]
    for at, interview in enumerate(interviews):
        interview.item = f"item-{at:02}"
    orders = []
    for order in (interviews, interviews[::-1]):
        first, second = SeedVotes(), SeedVotes()
        for at, interview in enumerate(order):
            (first if at % 3 else second).add(interview, Scorer())
        first.merge(second)
        orders.append(first.to_record())
    assert orders[0] == orders[1]


def test_results_without_seeds_are_recorded_as_before() -> None:
    interview = Interview("c", "item", 3, rounds=[Round([1] * 6)])
    assert "seeds" not in interview.to_record()
    assert Interview.from_record(interview.to_record()) == interview
    seeded = _judged([(4, None)], [(2, "off_topic")])
    assert Interview.from_record(json.loads(json.dumps(seeded.to_record()))) == seeded


def test_a_run_that_cannot_be_judged_with_seeds_is_refused(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "Why?"}\n')
    viva("run", "pairwise", "--prompts", prompts, "--candidate", "simulated:a", "--candidate", "simulated:b",
         "--judge", "simulated:j", "--out", tmp_path / "pairs")  # fmt: skip
    done = viva("run", "--fork", tmp_path / "pairs", "--judge-seeds", "3", "--out", tmp_path / "f")
    assert (done.returncode, "cannot change judge_seeds" in done.stderr) == (2, True)
    assert "or --judge-seeds N" in viva("run", "--fork", tmp_path / "pairs").stderr


# -- early stop switched on again -------------------------------------------------------------------------------------


def test_early_stop_scores_the_rounds_up_to_the_flag_and_counts_the_saved_calls(tmp_path: Path) -> None:
    items = str(dataset(tmp_path / "quiz.jsonl", 30))
    whole = interviewed(tmp_path / "whole", "simulated:one?knowledge=0.2", dataset=items, rounds=4, early_stop=False)
    stopped = interviewed(tmp_path / "stopped", "simulated:one?knowledge=0.2", dataset=items, rounds=4)
    [cut] = _report(whole, early_stop=True)["candidates"].values()
    [real] = _report(stopped)["candidates"].values()
    for name in ("score", "aspects", "rounds", "verdicts", "stop_reasons"):
        assert cut[name] == real[name], name
    [all_rounds] = _report(whole)["candidates"].values()
    saved = cut["saved_by_early_stop"]
    for role, count in saved["calls"].items():
        assert count == all_rounds["usage"][role]["calls"] - real["usage"][role]["calls"]
    assert "saved_by_early_stop" not in all_rounds
    assert saved["of_rounds"] == all_rounds["verdicts"]
    study = Study([whole], "official,early-stop")
    [row] = next(rows for title, _, rows in study.tables() if title.startswith("Calls saved by early stop"))
    assert row[-1] == str(sum(saved["calls"].values()))
    assert study.report()["scorer"] == "official"
    [note] = [note for note in Study([stopped], "linear,no-early-stop").report()["notes"] if "stop flags" in note]
    assert note == "interviews of this run ended at their stop flags; there are no rounds after them"


# -- measured hours ---------------------------------------------------------------------------------------------------


def test_hours_are_those_with_a_call_under_way_and_no_part_of_the_default_report(tmp_path: Path) -> None:
    hours = {}
    for concurrency in (1, 50):
        name = "simulated:one?latency=20"
        run = interviewed(tmp_path / f"run-{concurrency}", name, n=10, rounds=2, concurrency=concurrency)
        with History(RunFolder.open(run).journal) as history:
            seconds = sum(latency for _, role, _, latency in history.latencies() if role == "candidate")
        aggregate: Any = recorded_results(RunFolder.open(run))
        assert "timing" not in aggregate.report()
        aggregate.add_times()
        [record] = [record for record in aggregate.report()["timing"] if record["roles"] == ["candidate"]]
        hours[concurrency] = record["hours"], seconds / 3600
    measured, summed = hours[1]
    assert measured == pytest.approx(summed, abs=1e-5)
    measured, summed = hours[50]
    assert measured < summed / 2
    fork = _fork(tmp_path / "run-1", tmp_path / "fork", "simulated:other")
    aggregate = recorded_results(RunFolder.open(fork))
    aggregate.add_times()
    assert [record["model"] for record in aggregate.report()["timing"]] == ["simulated:other"]
