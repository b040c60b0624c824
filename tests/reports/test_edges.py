"""Studies in which something is missing: nothing begun, nothing scored, one of a kind; figures are then dashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from scipy.stats import binomtest
from study_runs import dataset, interviewed, with_manifest_alone, written

from viva.engine.run_folder import RunFolder
from viva.reports.studies.export import long_rows
from viva.reports.studies.study import Study, cell_record, group_systems, read_cells
from viva.reports.tables import to_latex, to_markdown
from viva.scenarios.kieval.score import Interview, Round, Scorer
from viva.scenarios.study_cells import ItemNumbers, StudyCell

GOOD = [4, 4, 4, 4, 4, 4]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return dataset(tmp_path / "quiz.jsonl", 6)


def talk(item: int, *rounds: list[int] | None, stop: str | None = None, candidate: str = "one") -> Interview:
    """An interview about an item of the dataset; ``stop`` flags its last round."""
    held = [Round(None if scores is None else list(scores)) for scores in rounds]
    interview = Interview(candidate, f"quiz-{item}", 3, choice=0, right=True, rounds=held)
    interview.usage = {"candidate": [len(held) + 1, 10, 5]}
    if stop is not None:
        held[-1].stop = stop
        interview.ended_by, interview.reason = "evaluator", stop
    return interview


def whole(study: Study) -> dict[str, Any]:
    """The report, having been through every form that it can take."""
    report = study.report()
    assert orjson.loads(orjson.dumps(report)) == report
    assert to_latex(study.tables()).count(r"\begin{tabular}") == len(study.tables())
    assert to_markdown(study.tables()).count("### ") == len(study.tables())
    for row in long_rows(report):
        assert isinstance(row["measure"], str)
        assert row["measure"]
    return report


def table(study: Study, title: str) -> list[list[str]]:
    [rows] = [rows for name, _, rows in study.tables() if name.startswith(title)]
    return rows


def test_a_run_that_has_not_begun(tmp_path: Path, items: Path) -> None:
    run = written(tmp_path / "run", items, [], "simulated:one")
    with_manifest_alone(run)
    study = Study([run])
    [cell] = whole(study)["cells"]
    assert (cell["state"], cell["ended"], cell["planned"], cell["result"]) == ("not begun", 0, 6, None)
    assert study.report()["pooled"] == []
    assert table(study, "1 cells")[0][5:] == ["not begun", "0/6", "–", "–"]


def test_a_journal_without_an_end(tmp_path: Path, items: Path) -> None:
    study = Study([written(tmp_path / "run", items, [], "simulated:one")])
    [cell] = whole(study)["cells"]
    assert (cell["state"], cell["ended"], cell["by_round"], cell["transcripts"]["examples"]) == ("part", 0, [], [])
    assert table(study, "KIEval on")[0] == ["one", "–", "–", "–", "–", "0", "–", "–", "–", "0"]


def test_failures_alone_are_counted_and_score_nothing(tmp_path: Path, items: Path) -> None:
    study = Study([written(tmp_path / "run", items, [{"type": "TimedOut"}] * 6, "simulated:one")])
    report = whole(study)
    [row] = report["pooled"]
    assert (row["failed"], row["n_observations"], row["score"]["mean"], row["accuracy"]["mean"]) == (6, 0, None, None)
    assert report["cells"][0]["state"] == "done"
    assert table(study, "KIEval on")[0] == ["one", "–", "–", "–", "–", "0", "–", "–", "–", "6"]
    assert table(study, "Early stops") == [["one", "6"]]
    assert (report["comparisons"], report["agreement"], report["difficulty"]) == ([], [], [])


def test_unscored_rounds_and_interviews_are_told_and_never_scored(tmp_path: Path, items: Path) -> None:
    talks = [talk(0, GOOD, None, GOOD), talk(1, None, None, None), talk(2, None, stop="off_topic"), talk(3)]
    study = Study([written(tmp_path / "run", items, talks, "simulated:one")])
    [row] = whole(study)["pooled"]
    of_one = binomtest(1, 1).proportion_ci(method="wilson").low
    low = pytest.approx(100 * of_one, abs=1e-6)
    assert row["score"] == {"mean": 100.0, "se": None, "low": low, "high": 100.0, "n": 1, "items": 1}
    assert (row["unscored_interviews"], row["verdicts"], row["unscored_rounds"]) == (3, 7, 5)
    assert row["unscored_rate"] == pytest.approx(5 / 7, abs=1e-6)
    held = [(one["held"], one["n"], one["mean"]) for one in row["by_round"]]
    assert held == [(3, 1, 100.0), (2, 0, None), (2, 1, 100.0)]
    [cell] = study.report()["cells"]
    assert (cell["state"], cell["running"]["n"], cell["transcripts"]["examples"]) == ("part", [1], ["one/quiz-0"])


def test_one_candidate_on_one_item(tmp_path: Path, items: Path) -> None:
    study = Study([written(tmp_path / "run", items, [talk(0, GOOD)], "simulated:one")])
    report = whole(study)
    assert report["correlations"]["overall"] == {"n": 1, "pearson": None, "spearman": None, "kendall": None}
    assert report["correlations"]["lines"] == {"quiz": None}
    assert [one["n"] for one in report["difficulty"]] == [1]
    assert table(study, "KIEval on")[0][:5] == ["one", "100.0", "100.0", "–", "1.00"]


def test_a_candidate_without_a_dataset_has_no_overall_figure(tmp_path: Path, items: Path) -> None:
    other = dataset(tmp_path / "more.jsonl", 3)
    both = [interviewed(tmp_path / one.stem, "simulated:one", dataset=str(one)) for one in (items, other)]
    lacking = interviewed(tmp_path / "lacking", "simulated:two", dataset=str(items))
    study = Study([*both, lacking])
    whole(study)
    one, two = table(study, "KIEval on")
    assert "–" not in one
    assert two[4:11] == ["–"] * 7, "neither the other dataset nor a mean over all"
    assert [(c["dataset"], c["n"]) for c in study.report()["comparisons"]] == [("quiz", 6), (None, 6)]


@pytest.mark.parametrize("stopping", [True, False])
def test_early_stop_is_undone_only_where_talks_went_on(tmp_path: Path, items: Path, stopping: bool) -> None:
    flagged = talk(0, [1] * 6, stop="off_topic") if stopping else talk(0, [1] * 6, GOOD)
    flagged.rounds[0].stop = "off_topic"
    run = written(tmp_path / "run", items, [flagged, talk(1, GOOD)], "simulated:one", early_stop=stopping)
    found = {(o["decay"], o["early_stop"]): o["candidates"]["one"]["mean"] for o in whole(Study([run]))["ablation"]}
    assert found[True, True] == found[False, True] == 55.0
    assert (found[False, False], found[True, False]) == ((None, None) if stopping else (77.5, pytest.approx(72.5, 0.1)))


def test_a_rule_that_stopped_a_cell_keeps_what_came_later_out(tmp_path: Path, items: Path) -> None:
    talks = [talk(0, GOOD), talk(1, [2] * 6), {"type": "TimedOut"}, talk(3, [1] * 6), talk(4, [1] * 6)]
    run = RunFolder.open(written(tmp_path / "run", items, talks, "simulated:one"))
    known = {"n": 2, "observations": 2, "mean": 65.0, "low": 20.5, "high": 99.5}
    until = {"stopped_at": 3, "saved": 3, "independent": "item", "intervals": {"one": known}}
    cell = StudyCell("a", "a", "kieval", "one", "simulated:one", "quiz", 7, "e", run, 6, until, run.manifest)
    [interviews] = group_systems(["kieval"])
    [reading] = read_cells([cell], [interviews], {"kieval": Scorer()}, {"quiz": ItemNumbers()})
    told = interviews.study.cell(cell_record(reading), reading, Scorer())
    assert (told["state"], told["ended"], told["until"]) == ("stopped", 3, until)
    assert (told["result"]["interviews"], told["result"]["failed"], told["result"]["score"]["mean"]) == (2, 1, 65.0)
    assert (told["result"]["score"]["low"], told["result"]["score"]["high"]) == (20.5, 99.5)
    assert told["running"]["mean"] == [100.0, 65.0]


def test_another_evaluator_on_the_same_talks(tmp_path: Path, items: Path) -> None:
    verdicts = [(4, 4), (3, 4), (2, 1), (1, 1), (4, 3), (2, 2)]
    runs = []
    for judge in (0, 1):
        talks = [talk(item, [marks[judge]] * 6, GOOD) for item, marks in enumerate(verdicts)]
        models = {"evaluator": f"simulated:judge-{judge}", "rounds": 3}
        runs.append(written(tmp_path / f"by-{judge}", items, talks, "simulated:one", **models))
    report = whole(Study(runs))
    [told] = report["agreement"]
    assert (told["over"], told["raters"], told["n"], told["interviews"]) == (
        "evaluators",
        ["judge-0", "judge-1"],
        12,
        6,
    )
    from sklearn.metrics import cohen_kappa_score

    first, second = ([marks[judge] for marks in verdicts] + [4] * 6 for judge in (0, 1))
    assert told["kappa"] == pytest.approx(float(cohen_kappa_score(first, second)), abs=1e-6)
    [row] = report["pooled"]
    assert (row["n_items"], row["n_observations"], row["evaluators"]) == (6, 12, ["judge-0", "judge-1"])
    assert report["comparisons"] == []


def test_what_is_mixed_is_said(tmp_path: Path, items: Path) -> None:
    one = written(tmp_path / "a", items, [talk(0, GOOD)], "simulated:one", rounds=3)
    other = written(tmp_path / "b", items, [talk(0, GOOD)], "simulated:one?latency=1", rounds=4)
    notes = " | ".join(whole(Study([one, other]))["notes"])
    assert "rounds: 3, 4" in notes
    assert "'one' names 2 different models" in notes
    assert "are all counted: a, b" in notes
    assert Study([one]).report()["notes"] == []
