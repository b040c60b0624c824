"""What a study says of figures that little stands behind: unanswered items, few items, intervals at the bounds."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from study_runs import dataset, interviewed, probed, written

from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.reports.figures import clustered_score
from viva.reports.studies.export import write_csv
from viva.reports.studies.page import study_page
from viva.reports.studies.study import Study
from viva.scenarios.kieval.score import Interview, Round

ITEMS = 20


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return dataset(tmp_path / "quiz.jsonl", ITEMS)


def talk(item: int, *rounds: int | None, candidate: str = "one", **more: Any) -> Interview:
    """An interview about an item of the dataset, by its overall verdicts; answered rightly if not told otherwise."""
    held = [Round(None if verdict is None else [verdict] * 6) for verdict in rounds]
    given = {"choice": 0, "right": True, "usage": {"candidate": [1, 10, 5]}} | more
    return Interview(candidate, f"quiz-{item}", 5, rounds=held, **given)


def table(study: Study, title: str) -> list[dict[str, str]]:
    [(header, rows)] = [(header, rows) for name, header, rows in study.tables() if name.startswith(title)]
    return [dict(zip(header, row, strict=True)) for row in rows]


def models(path: Path, items: Path, silent: str) -> list[Path]:
    """Runs of five candidates; of ``silent`` one item in four has a first answer without a choice."""
    runs = []
    for place, name in enumerate(("a", "b", "c", "d", "e")):
        talks = []
        for item in range(ITEMS):
            verdict = 4 if (item * 7) % 20 < 4 * place + 3 else 2
            more: dict[str, Any] = {"right": (item * 3) % 20 < 3 * place + 4}
            if name == silent and item % 4 == 0:
                more = {"choice": None, "right": False}
            talks.append(talk(item, verdict, candidate=name, **more))
        runs.append(written(path / name, items, talks, f"simulated:{name}"))
    return runs


def test_line_4_a_candidate_that_seldom_answers_is_shown_and_left_out_of_lines(tmp_path: Path, items: Path) -> None:
    study = Study(models(tmp_path / "some", items, "c"))
    report = study.report()
    shown = {row["candidate"]: row["no answer"] for row in table(study, "KIEval on")}
    assert shown == {"a": "0.0%", "b": "0.0%", "c": "25.0%", "d": "0.0%", "e": "0.0%"}
    told = report["correlations"]
    assert told["left_out"] == [{"model": "c", "dataset": "quiz", "unanswered_rate": 0.25}]
    assert [one["model"] for one in told["figures"]] == ["a", "b", "d", "e"]
    assert told["overall"]["n"] == 4
    assert set(told["lines"]["quiz"]["residuals"]) == {"a", "b", "d", "e"}
    [note] = [note for note in report["notes"] if "name no choice" in note]
    assert "25.0% of the first answers of 'c' on 'quiz'" in note
    assert {one["accuracy"]["n"] for one in report["ablation"] if one["accuracy"]} == {4}
    write_csv(report, tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open() as file:
        rates = [row for row in csv.DictReader(file) if row["measure"] == "unanswered_rate" and not row["seed"]]
    assert {row["candidate"]: float(row["value"]) for row in rates}["c"] == 0.25
    everyone = Study(models(tmp_path / "none", items, "")).report()
    assert everyone["correlations"]["left_out"] == []
    assert everyone["correlations"]["overall"]["n"] == 5
    assert not any("name no choice" in note for note in everyone["notes"])


def test_line_4_a_runs_own_report_shows_unanswered_first_answers(tmp_path: Path, items: Path) -> None:
    titles = {}
    for silent in ("", "c"):
        run = models(tmp_path / f"runs-{silent}", items, silent)[2]
        [(title, header, [row])] = [one for one in recorded_results(RunFolder.open(run)).tables() if "KIEval" in one[0]]
        titles[silent] = title
        assert dict(zip(header, row, strict=True))["no answer"] == ("25.0%" if silent else "0.0%")
    assert titles["c"] == titles[""] + "; more than 10% of first answers name no choice: c"


def test_line_6a_twenty_of_twenty_is_no_certainty(tmp_path: Path, items: Path) -> None:
    run = written(tmp_path / "run", items, [talk(item, 4, 4) for item in range(ITEMS)], "simulated:one")
    [row] = Study([run]).report()["pooled"]
    wilson = stats.binomtest(20, 20).proportion_ci(method="wilson")
    for told in (row["accuracy"], row["score"], *row["by_round"]):
        assert (told["mean"], told["high"]) == (100.0, 100.0)
        assert told["low"] == pytest.approx(100 * wilson.low, abs=1e-6)


def test_line_6a_seventeen_of_twenty_is_wilsons_interval(tmp_path: Path, items: Path) -> None:
    talks = [talk(item, 4 if item else 3, right=item >= 3) for item in range(ITEMS)]
    [row] = Study([written(tmp_path / "run", items, talks, "simulated:one")]).report()["pooled"]
    wilson = stats.binomtest(17, 20).proportion_ci(method="wilson")
    ends = [row["accuracy"]["low"], row["accuracy"]["high"]]
    assert ends == pytest.approx([100 * wilson.low, 100 * wilson.high], abs=1e-6)
    assert 0 < row["score"]["low"] < row["score"]["mean"] < row["score"]["high"] <= 100


def test_line_6a_items_needed_are_those_of_the_intervals_that_the_report_has(tmp_path: Path, items: Path) -> None:
    talks = [talk(item, 4 if item else 3) for item in range(ITEMS)]
    [row] = Study([written(tmp_path / "run", items, talks, "simulated:one")]).report()["pooled"]

    def half_width(times: int) -> float:  # of so many times as many items, which spread alike
        told = clustered_score(np.tile([100.0] * 19 + [70.0], times), [f"item-{n}" for n in range(20 * times)])
        return float(told["high"] - told["low"]) / 2

    assert half_width(1) == pytest.approx((row["score"]["high"] - row["score"]["low"]) / 2)
    for width in (1, 2, 5):
        enough = -(-row["items_needed"][str(width)] // ITEMS)
        assert half_width(enough) <= width
        assert half_width(enough - 1) > 0.97 * width


def test_line_6a_models_of_one_talk_each_are_not_flagged(tmp_path: Path, items: Path) -> None:
    # Three on a line by chance, and one off it by what one verdict makes of one talk.
    told = {"a": (True, 4), "b": (True, 4), "c": (False, 2), "d": (False, 2), "e": (True, 3)}
    runs = [
        written(tmp_path / name, items, [talk(0, verdict, candidate=name, right=right)], f"simulated:{name}")
        for name, (right, verdict) in told.items()
    ]
    report = Study(runs).report()["correlations"]
    assert (report["lines"]["quiz"]["below"], report["lines"]["quiz"]["above"]) == ([], [])
    assert min(one["se"] for one in report["lines"]["quiz"]["tests"].values()) > 10


def test_line_6a_the_pooled_row_and_the_cells_row_of_a_rate_agree(tmp_path: Path) -> None:
    study = Study([probed(tmp_path / "probe", "simulated:mid?knowledge=0.8", n=20, method=["text"])])
    [cell], [pooled] = table(study, "1 cells"), table(study, "Probed accuracy")
    assert cell["result"] == f"accuracy {pooled['text']}"
    assert " to " in pooled["text"]


def test_line_6d_rounds_of_one_item_are_one_cluster(tmp_path: Path, items: Path) -> None:
    marks = [4 if item % 3 else 1 for item in range(ITEMS)]
    talks = [talk(item, mark, 4) for item, mark in enumerate(marks)]
    once = Study([written(tmp_path / "1", items, talks, "simulated:one", seed=1)]).report()["pooled"]
    runs = [written(tmp_path / str(seed), items, talks, "simulated:one", seed=seed) for seed in (2, 3, 4)]
    thrice = Study(runs).report()["pooled"]
    [one], [three] = once, thrice
    # The same said three times is not three times as much.
    for name in ("mean", "se", "low", "high", "items"):
        assert three["by_round"][0][name] == pytest.approx(one["by_round"][0][name], abs=1e-6)
    assert (three["by_round"][0]["n"], one["by_round"][0]["n"]) == (3 * ITEMS, ITEMS)
    assert three["by_round"][0]["se"] == pytest.approx(stats.sem([100.0 if mark == 4 else 10.0 for mark in marks]))


def test_line_6e_models_left_out_for_lying_below_have_no_p(tmp_path: Path, items: Path) -> None:
    runs = []
    for place, name in enumerate("abcdef"):
        cheats = name == "f"
        talks = [
            talk(item, 1 if cheats else 4 if item < 3 * place else 2, candidate=name, right=item < 3 * place + 3)
            for item in range(ITEMS)
        ]
        runs.append(written(tmp_path / name, items, talks, f"simulated:{name}"))
    study = Study(runs)
    told = study.report()["correlations"]
    assert told["excluding"]["models"] == ["f"]
    assert told["overall"]["pearson"]["p"] is not None
    assert set(told["excluding"]["overall"]["pearson"]) == {"value"}
    [row] = table(study, "The same without f")
    assert "p" not in row
    write_csv(study.report(), tmp_path / "figures.csv")
    text = (tmp_path / "figures.csv").read_text()
    assert "correlation.excluding.pearson," in text
    assert "correlation.excluding.pearson.p" not in text


def test_line_6f_fleiss_counts_the_rounds_that_all_have_rated(tmp_path: Path, items: Path) -> None:
    runs = []
    for number, name in enumerate("xyz"):
        held = range(ITEMS) if number < 2 else range(4)  # the third has rated a few only
        talks = [talk(item, 1 + (item + number) % 4, 1 + item % 3) for item in held]
        runs.append(written(tmp_path / name, items, talks, "simulated:one", evaluator=f"simulated:{name}"))
    study = Study(runs)
    [told] = [one for one in study.report()["agreement"] if one["candidate"] is None]
    assert (told["n"], told["fleiss_n"]) == (2 * ITEMS, 8)
    row = table(study, "Agreement")[0]
    assert (row["rounds"], row["rounds rated by all"]) == ("40", "8")
    write_csv(study.report(), tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open() as file:
        counts = {row["measure"]: row["n"] for row in csv.DictReader(file)}
    assert (counts["agreement.evaluators.fleiss"], counts["agreement.evaluators.kappa"]) == ("8", "40")


def test_line_6g_comparisons_of_few_items_are_told(tmp_path: Path, items: Path) -> None:
    good = [talk(item, 4, candidate="good") for item in range(10)]
    less = [talk(item, 3, candidate="less") for item in range(10)]
    runs = [
        written(tmp_path / "g", items, good, "simulated:good"),
        written(tmp_path / "l", items, less, "simulated:less"),
    ]
    report = Study(runs).report()
    [one] = report["comparisons"]
    assert (one["difference"]["value"], one["p"], one["test"]) == (
        30.0,
        pytest.approx(2 / 1024, rel=1e-5),
        "sign flips",
    )
    assert one["difference"]["low"] < one["difference"]["value"] < one["difference"]["high"]
    assert any("1 of 1 comparisons have 100 items or fewer" in note for note in report["notes"])
    several = interviewed(tmp_path / "s", "simulated:one", n=3)
    assert not any("comparisons rest" in note for note in Study([several]).report()["notes"])


def test_line_11_a_study_tells_a_cost_of_0_from_one_that_is_not_known(tmp_path: Path, items: Path) -> None:
    unknown = "openai:http://127.0.0.1:9/v1#one"
    for name, model, expected in (("free", "simulated:one", "0.00"), ("unknown", unknown, "–")):
        rows = table(Study([written(tmp_path / name, items, [talk(0, 4)], model)]), "Tokens and cost")
        assert {row["role"]: row["cost"] for row in rows} == {"candidate": expected}


def test_line_2_the_page_counts_texts_of_partly_scored_rounds_as_the_run_does(tmp_path: Path, items: Path) -> None:
    rounds = [Round([4, 4, 4, 4, None, 4], failures=2), Round([4] * 6, failures=1), Round(None, failures=2)]
    run = written(tmp_path / "run", items, [replace(talk(0), rounds=rounds)], "simulated:one")
    report = Study([run]).report()
    assert report["pooled"][0]["parse_failure_rate"] == pytest.approx(5 / 6, abs=1e-6)
    assert dict(study_page(report).facts)["Unreadable verdicts"] == "83.3% (5 of 6 texts of the evaluator)"
