"""Comparisons of models: both orders, ties, juries, pairings, grades; imports of MT-Bench judgments; wrong files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from command import viva
from probing import recorded
from scripted import scripted_models
from study_runs import interviewed

from viva.engine.clock import VirtualClock
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import new_run, recorded_results
from viva.reports.studies.study import Study
from viva.scenarios.pairwise.pairwise_report import jury_outcome, outcome_of
from viva.scenarios.pairwise.pairwise_settings import PairwiseSettings, open_prompts
from viva.scenarios.pairwise.scenario import SCENARIO

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve() / "mt_bench"
STRONG, MIDDLE, WEAK = (f"simulated:{name}?knowledge={share}" for name, share in
                        (("strong", 0.8), ("middle", 0.6), ("weak", 0.4)))  # fmt: skip
SURE = "simulated:judge?noise=0"


def _prompts(folder: Path, count: int = 12, turns: int = 2) -> Path:
    lines = [
        {
            "question_id": at + 1,
            "category": "ab"[at % 2],
            "turns": [f"Why is thing {at} so?", "And in a line?"][:turns],
            "reference": ["Because of the wind.", "The wind."][:turns] if at == 0 else None,
        }
        for at in range(count)
    ]
    (path := folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


def _run(out: Path, prompts: Path, candidates: list[str], judges: list[str], *more: str | Path, code: int = 0) -> Any:
    models = [part for name in candidates for part in ("--candidate", name)]
    models += [part for name in judges for part in ("--judge", name)]
    done = viva("run", "pairwise", "--prompts", prompts, *models, "--out", out, "--json", *more)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)["candidates"]["all"] if code == 0 else done.stderr


def test_better_models_rank_higher_and_a_sure_judge_says_the_same_in_both_orders(tmp_path: Path) -> None:
    prompts = _prompts(tmp_path, 24)
    figures = _run(tmp_path / "run", prompts, [WEAK, STRONG, MIDDLE], [SURE])
    standings = figures["standings"]
    assert figures["leader"]["model"] == "strong"
    assert figures["comparisons"] == {"judged": 24 * 2 * 3, "unscored": 0, "earlier": 0}
    for measure in ("strength", "elo"):
        values = [standings[name][measure]["value"] for name in ("strong", "middle", "weak")]
        assert values == sorted(values, reverse=True)
    assert figures["orders"]["judge"]["agree"]["mean"] == 100.0
    assert figures["orders"]["judge"]["first"]["value"] == 0.0
    for record in standings.values():  # ties are half wins
        played = record["won"] + record["tied"] + record["lost"]
        assert record["win_rate"]["mean"] == pytest.approx(100 * (record["won"] + record["tied"] / 2) / played)
        assert record["win_rate"]["items"] == 24
    viva("report", tmp_path / "run", "--csv", tmp_path / "figures.csv")
    assert ",standings.strong.strength," in (tmp_path / "figures.csv").read_text()
    shown = viva("show", tmp_path / "run", "--conversation", "all/1").stdout
    assert "Why is thing 0 so?" in shown
    assert "[judge in 1 and 2, turn 2/second]" in shown


def test_a_planted_position_bias_makes_ties_and_no_winners(tmp_path: Path) -> None:
    prompts = _prompts(tmp_path)
    figures = _run(tmp_path / "all", prompts, [STRONG, WEAK], ["simulated:j?traits=position:1"])
    [pair] = figures["pairs"].values()
    assert (pair["won"], pair["tied"], pair["lost"], pair["orders_differ"]) == (0, 24, 0, 24)
    assert pair["win_rate"]["mean"] == 50.0
    assert figures["orders"]["j"]["agree"]["mean"] == 0.0
    assert figures["orders"]["j"]["first"]["value"] == 1.0
    text = viva("report", tmp_path / "all").stdout
    assert "j prefers the answer shown first (+1.00" in " ".join(text.split())

    last = _run(tmp_path / "last", prompts, [STRONG, WEAK], ["simulated:j?traits=position:-0.5&noise=0"])
    [pair] = last["pairs"].values()
    assert last["orders"]["j"]["first"]["value"] < 0
    assert pair["won"] > pair["lost"]  # where both orders agree, the better answer wins
    assert pair["tied"] == pair["orders_differ"] > 0


def test_an_interrupted_run_goes_on_to_the_same_report_and_a_fork_asks_no_candidate(tmp_path: Path) -> None:
    prompts = _prompts(tmp_path, 6)
    models = [STRONG, WEAK]
    whole = _run(tmp_path / "whole", prompts, models, ["simulated:j?traits=position:0.5"])
    _run(tmp_path / "part", prompts, models, ["simulated:j?traits=position:0.5"], "--max-calls", "30", code=1)
    assert len(recorded(tmp_path / "part")) < 6
    assert viva("resume", tmp_path / "part", "--max-calls", "1000").returncode == 0
    parts = [viva("report", tmp_path / name, "--json").stdout for name in ("whole", "part")]
    assert parts[0] == parts[1]
    assert viva("verify", tmp_path / "whole").returncode == 0

    done = viva("run", "--fork", tmp_path / "whole", "--judge", SURE, "--out", tmp_path / "fork", "--json")
    fork = json.loads(done.stdout)["candidates"]["all"]
    assert fork["judges"] == ["judge"]
    assert list(fork["standings"]) == ["strong", "weak"]
    assert fork["orders"]["judge"]["agree"]["mean"] == 100.0
    assert [record["length"] for record in fork["standings"].values()] == [
        record["length"] for record in whole["standings"].values()
    ]
    manifest = RunFolder.open(tmp_path / "fork").manifest
    assert all(name.startswith("replay:") for name in manifest["settings"]["candidate"])


def test_a_jury_takes_the_side_of_most_judges(tmp_path: Path) -> None:
    for outcomes, verdict in (((1, 1, -1), 1), ((1, -1, 0), 0), ((0, 0, 1), 1), ((None, -1, None), -1)):
        assert jury_outcome(outcomes) == verdict
    assert jury_outcome([None, None]) is None
    assert [outcome_of(1, -1), outcome_of(1, 1), outcome_of(0, 0), outcome_of(-1, 1), outcome_of(1, 0)] == [
        1, 0, 0, -1, 0,
    ]  # fmt: skip
    biased = "simulated:biased?traits=position:1"
    figures = _run(tmp_path / "run", _prompts(tmp_path), [STRONG, WEAK], [SURE, "simulated:second?noise=0", biased])
    assert list(figures["jury"]) == ["judge", "second", "biased"]
    agreement = {judge: record["agree"]["mean"] for judge, record in figures["jury"].items()}
    assert agreement["judge"] == agreement["second"] == 100.0
    assert agreement["biased"] == 0.0
    [pair] = figures["pairs"].values()
    assert pair["won"] + pair["lost"] == 24  # two of three decide
    assert pair["orders_differ"] == 24


def test_a_baseline_is_compared_with_every_model_and_an_unreadable_verdict_is_unscored(tmp_path: Path) -> None:
    prompts = _prompts(tmp_path, 3, turns=1)
    script = {("1 and 2, turn 1/second: judge", at): {"text": "I cannot say."} for at in (0, 1)}
    with scripted_models(script) as requests:
        figures = _run(
            tmp_path / "run", prompts, [STRONG, "simulated:base", WEAK], ["scripted:judge"], "--pairs", "baseline:base"
        )
    assert [pair["models"] for pair in figures["pairs"].values()] == [["strong", "base"], ["weak", "base"]]
    assert [pair["unscored"] for pair in figures["pairs"].values()] == [3, 0]
    assert figures["comparisons"] == {"judged": 3, "unscored": 3, "earlier": 0}
    assert figures["orders"]["judge"]["unscored"] == 3
    assert figures["standings"]["base"]["length_controlled"] is None
    first = next(request for request in requests if request.conversation == "all/1" and request.role == "judge")
    assert "Because of the wind." in first.messages[-1].content  # the reference of prompt 1
    other = next(request for request in requests if request.conversation == "all/2" and request.role == "judge")
    assert "Reference" not in other.messages[-1].content


def test_each_turn_is_graded_with_the_conversation_before_it(tmp_path: Path) -> None:
    with scripted_models({}) as requests:
        figures = _run(tmp_path / "run", _prompts(tmp_path, 2), [STRONG], ["scripted:reader", SURE], "--mode", "single")
    [standing] = figures["standings"].values()
    assert standing["grade"]["n"] == 4
    assert set(standing["turns"]) == {"1", "2"}
    assert set(standing["categories"]) == {"a", "b"}
    last = [request for request in requests if request.conversation == "all/1"][-1].messages[-1].content
    assert last.index("Why is thing 0 so?") < last.index("And in a line?") < last.index("The wind.")
    record = recorded(tmp_path / "run")["all/1"]
    assert [len(entry["verdicts"]) for entry in record["grades"]] == [2, 2]
    mean = sum(sum(entry["verdicts"]) for one in recorded(tmp_path / "run").values() for entry in one["grades"]) / 8
    assert standing["grade"]["mean"] == pytest.approx(mean, abs=1e-6)


def test_adaptive_pairs_follow_from_an_earlier_run_and_its_comparisons_count(tmp_path: Path) -> None:
    prompts, models = _prompts(tmp_path, 20), [STRONG, MIDDLE, WEAK]
    _run(tmp_path / "first", prompts, models, [SURE], "-n", "8")
    adaptive = ["--pairs", "adaptive", "--after", tmp_path / "first"]
    second, again = (_run(tmp_path / name, prompts, models, [SURE], *adaptive) for name in ("second", "again"))
    assert second == again
    assert second["comparisons"]["earlier"] == 8 * 2 * 3
    assert second["comparisons"]["judged"] == 12 * 2  # one pair a prompt, two turns
    manifest = RunFolder.open(tmp_path / "second").manifest
    records = recorded(tmp_path / "second")
    earlier = set(manifest["earlier"]["prompts"])
    assert len(earlier) == 8
    assert not earlier & set(manifest["planned"])
    for prompt, [pair] in manifest["planned"].items():
        record = records[f"all/{prompt}"]
        assert {tuple(entry["models"]) for entry in record["pairs"]} == {tuple(pair)}
        assert [at for at, length in enumerate(record["lengths"]) if length] == pair  # others were not asked
    third = _run(tmp_path / "third", _prompts(tmp_path, 22), models, [SURE], "--after", tmp_path / "second")
    assert third["comparisons"] == {"judged": 2 * 2 * 3, "unscored": 0, "earlier": 8 * 2 * 3 + 12 * 2}

    _run(tmp_path / "based", prompts, models, [SURE], "--after", tmp_path / "first", "--pairs", "baseline:strong")
    based = json.loads(viva("report", tmp_path / "based", "--json").stdout)["candidates"]["all"]["pairs"]
    assert list(based) == ["middle and strong", "middle and weak", "weak and strong"]
    assert sum(based["middle and strong"][name] for name in ("won", "tied", "lost")) == 22 * 2  # the file has 22 by now
    (copy := tmp_path / "second" / "manifest.json").write_text(
        json.dumps(manifest | {"earlier": {"prompts": ["1"], "comparisons": [["1", 0, 3, 1.0, None]]}})
    )
    damaged = viva("report", tmp_path / "second")
    assert damaged.returncode == 2
    assert "field 'earlier.comparisons[0]'" in damaged.stderr
    copy.write_text(json.dumps(manifest))

    refused = _run(tmp_path / "no", prompts, [STRONG, WEAK], [SURE], "--after", tmp_path / "first", code=2)
    assert "expected the same candidates and judges" in " ".join(refused.split())
    refused = _run(tmp_path / "no", _prompts(tmp_path, 8), models, [SURE], "--after", tmp_path / "third", code=2)
    assert "has no prompts besides those of the earlier run" in " ".join(refused.split())
    _run(tmp_path / "half", prompts, models, [SURE], "--max-calls", "60", code=1)
    refused = _run(tmp_path / "no", prompts, models, [SURE], "--after", tmp_path / "half", code=2)
    assert "finish it with `viva resume" in " ".join(refused.split())


@case_table(
    "options, message",
    [
        (["--candidate", STRONG], "pairs need at least two candidates"),
        (["--candidate", STRONG, "--candidate", WEAK, "--pairs", "some"], "expected all, baseline:LABEL or adaptive"),
        (["--candidate", STRONG, "--candidate", WEAK, "--pairs", "baseline:stron"], "did you mean 'strong'"),
        (["--candidate", STRONG, "--candidate", WEAK, "--pairs", "adaptive"], "name it with --after"),
        (["--candidate", STRONG, "--candidate", STRONG], "two models have the label 'strong'"),
        (["--candidate", STRONG, "--candidate", WEAK, "--judge", "simulated:k?traits=family:1"], "no trait 'family'"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, options: list[str], message: str) -> None:
    done = viva(
        "run", "pairwise", "--prompts", _prompts(tmp_path, 1), "--judge", SURE, *options, "--out", tmp_path / "r"
    )
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


@case_table(
    "line, message",
    [
        ('{"id": "a"}', "field 'turns': is missing"),
        ('{"id": "a", "turns": []}', "field 'turns': expected a list of 1 to 10 texts"),
        ('{"id": "a", "turns": ["x", " "]}', "field 'turns.1': expected text"),
        ('{"id": "a", "turns": "x"}', "field 'turns': expected a list"),
        (
            '{"id": "a", "prompt": "x", "reference": ["y", "z"]}',
            "field 'reference': expected at most one text per turn",
        ),
        ('{"id": "a", "prompt": "x", "reference": [3]}', "field 'reference.0': expected text or null"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "already in line 1"),
        ("", "has no prompts"),
    ],
)
def test_wrong_prompts_are_named(tmp_path: Path, line: str, message: str) -> None:
    (path := tmp_path / "prompts.jsonl").write_text(line)
    done = viva("run", "pairwise", "--prompts", path, "--candidate", STRONG, "--candidate", WEAK, "--judge", SURE)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_prompts_are_read_in_every_form(tmp_path: Path) -> None:
    lines = ['{"prompt": "p"}', '{"instruction": "i", "reference": "r"}', '{"question_id": 5, "turns": ["a", "b"]}']
    (path := tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    plain, instructed, questions = open_prompts(str(path), None, 7)
    assert (plain.id, plain.turns, plain.references) == ("line 1", ("p",), ("",))
    assert (instructed.turns, instructed.references) == (("i",), ("r",))
    assert (questions.id, questions.turns, questions.references) == ("5", ("a", "b"), ("", ""))
    assert len(open_prompts(str(path), 2, 7)) == 2


def _judgment(question: int, turn: int, model: str, score: Any) -> dict[str, Any]:
    return {"question_id": question, "turn": turn, "model": model, "judge": ["gpt-4", "single-v1"], "score": score,
            "judgment": f"Rating: [[{score}]]"}  # fmt: skip


def _game(question: int, first: str, second: str, *winners: str) -> dict[str, Any]:
    game = {"question_id": question, "turn": 1, "model_1": first, "model_2": second, "judge": ["gpt-4", "pair-v2"]}
    texts = {"g1_judgment": "[[A]]", "g2_judgment": "[[B]]"}
    return game | texts | {"g1_winner": winners[0], "g2_winner": winners[1]}


def _imported(tmp_path: Path, lines: list[dict[str, Any]], *more: str | Path) -> Any:
    (path := tmp_path / "judgments.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return viva("import", path, "--from", "mt-bench", "--out", tmp_path / "imported", *more)


def test_published_grades_are_imported_with_their_means(tmp_path: Path) -> None:
    lines = [_judgment(1, 1, "a", 8), _judgment(1, 2, "a", 5.5), _judgment(2, 1, "a", -1), _judgment(1, 1, "b", 10)]
    done = _imported(tmp_path, lines, "--dataset", _prompts(tmp_path, 2))
    assert done.returncode == 0, done.stderr
    figures = json.loads(viva("report", tmp_path / "imported", "--json").stdout)["candidates"]["all"]
    standings = figures["standings"]
    assert standings["a"]["grade"]["mean"] == 6.75
    assert standings["a"]["turns"]["1"]["mean"] == 8.0
    assert standings["a"]["unscored"] == 1  # -1 is no grade
    assert standings["b"]["grade"]["mean"] == 10.0
    assert figures["judges"] == ["gpt-4"]
    assert set(standings["a"]["categories"]) == {"a"}
    refused = viva("resume", tmp_path / "imported")
    assert refused.returncode == 2
    assert "imported (mt-bench)" in " ".join(refused.stderr.split())


def test_published_pairs_are_imported_with_both_orders(tmp_path: Path) -> None:
    lines = [
        _game(1, "a", "b", "model_1", "model_1"),
        _game(2, "b", "a", "model_1", "model_1"),  # the other way round: b wins
        _game(3, "a", "b", "model_1", "model_2"),
        _game(4, "a", "b", "model_2", "error"),
        _game(5, "a", "b", "tie", "tie"),
    ]
    assert _imported(tmp_path, lines).returncode == 0
    figures = json.loads(viva("report", tmp_path / "imported", "--json").stdout)["candidates"]["all"]
    [pair] = figures["pairs"].values()
    assert pair["models"] == ["a", "b"]
    assert (pair["won"], pair["tied"], pair["lost"], pair["orders_differ"], pair["unscored"]) == (1, 2, 1, 1, 1)
    assert figures["standings"]["a"]["strength"]["value"] == 0.0
    assert figures["standings"]["a"]["length_controlled"] is None  # the file has no answers


@case_table(
    "lines, message",
    [
        ([_judgment(1, 1, "a", "8")], "field 'score': expected a number"),
        ([_judgment(1, 1, "a", 11)], "field 'score': expected -1, or a number from 1 to 10"),
        ([_judgment(1, 0, "a", 8)], "field 'turn': expected a whole number from 1 to 10"),
        ([_judgment(1, 1, "a", 8)] * 2, "already in line 1"),
        ([_judgment(1, 1, "a", 8), _game(1, "a", "b", "tie", "tie")], "split it into two files"),
        ([_judgment(1, 1, "a", 8), _judgment(2, 1, "a", 8) | {"judge": "claude"}], "split the file by judge"),
        ([_game(1, "a", "a", "tie", "tie")], "field 'model_2': is the same as model_1"),
        ([_game(1, "a", "b", "a", "tie")], "field 'g1_winner': expected model_1, model_2, tie or error"),
        ([_judgment(1, 1, "a", 8) | {"question_id": None}], "field 'question_id': is missing"),
        ([_judgment(9, 1, "a", 8)], "has no question '9'"),
        ([], "has no judgments"),
    ],
)
def test_wrong_judgments_are_named(tmp_path: Path, lines: list[dict[str, Any]], message: str) -> None:
    done = _imported(tmp_path, lines, "--dataset", _prompts(tmp_path, 2))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "imported").exists()


def test_mt_bench_means_follow_the_rule_of_its_authors(tmp_path: Path) -> None:
    """Means of all scores but -1, as FastChat's `show_result.py` prints them: by turn, and over both turns."""
    judgments = DATA / "judgments_gpt-4_single.jsonl"
    if not judgments.is_file():
        pytest.skip(f"{judgments} is missing (set VIVA_DATA to the folder with the benchmark data)")
    done = viva(
        "import", judgments, "--from", "mt-bench", "--dataset", DATA / "question.jsonl", "--out", tmp_path / "r"
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(viva("report", tmp_path / "r", "--json").stdout)["candidates"]["all"]
    [(model, standing)] = figures["standings"].items()
    assert (model, standing["grade"]["n"], standing["unscored"]) == ("phi-3-dpo", 160, 0)
    assert [standing["turns"][turn]["mean"] for turn in "12"] == [8.3625, 8.0375]
    assert standing["grade"]["mean"] == 8.2
    assert len(standing["categories"]) == 8

    own = _run(tmp_path / "own", DATA / "question.jsonl", [STRONG, WEAK], [SURE], "-n", "6")
    assert own["prompts"] == 6


@pytest.mark.parametrize("pairs", ["all", "baseline:m1"])
def test_a_projection_to_more_models_is_what_a_run_with_them_uses(tmp_path: Path, pairs: str) -> None:
    prompts, clock = _prompts(tmp_path, 4), VirtualClock()
    usage: dict[int, dict[str, int]] = {}
    for count in (3, 5):
        settings = PairwiseSettings(
            prompts=str(prompts), pairs=pairs, judge=["simulated:j"],
            candidate=[f"simulated:m{at}" for at in range(1, count + 1)],
        )  # fmt: skip
        launch = new_run("pairwise", settings, tmp_path / f"run-{count}", clock)
        assert clock.run(launch.run).how == "done"
        [record] = recorded_results(launch.folder).report()["candidates"].values()
        usage[count] = {role: used["calls"] for role, used in record["usage"].items()}
        factors = SCENARIO.usage_factors(settings, 5)
        assert factors is not None
        projected = {role: factors[role] * calls for role, calls in usage[count].items()}
        answers, verdicts = (
            [calls for role, calls in projected.items() if role.startswith(kind)] for kind in ("candidate", "judge")
        )
        assert (sum(answers), sum(verdicts)) == (5 * 4 * 2, (10 if pairs == "all" else 4) * 4 * 2 * 2)
    assert SCENARIO.usage_factors(settings, 1) is None
    interviews = interviewed(tmp_path / "interviews", "simulated:a", "simulated:b", n=3, rounds=2)
    study = Study([interviews, tmp_path / "run-3"])
    [table] = [rows for title, _, rows in study.tables() if title.startswith("Cost of each method")]
    assert [(row[0], row[2]) for row in table] == [
        (name, count) for name in ("interviews", "comparisons") for count in ("1", "10", "100")
    ]
    calls = {(row[0], row[2]): row[3] for row in table}
    [mean] = [record["roles"] for record in study.report()["costs"]["projected"] if record["models"] == 10]
    assert calls["interviews", "10"] == f"{sum(used['calls'] for used in mean.values()):,.0f}"
    assert calls["comparisons", "1"] == "–"
    assert "method_costs" not in Study([interviews]).report()
