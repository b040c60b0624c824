"""Studies in which something is missing: nothing begun, nothing scored, one of a kind; figures are then dashes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from case_tables import case_table
from damaged_files import damages
from scipy.stats import binomtest
from study_runs import dataset, interviewed, with_manifest_alone, written

from viva.engine.errors import VivaError
from viva.engine.journal_format import short_checksum
from viva.engine.run_folder import RunFolder, is_running
from viva.orchestration.completeness import recorded_report
from viva.reports.studies.cache import ReportCache
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


def test_only_a_run_that_has_stopped_is_said_to_be_resumed(tmp_path: Path, items: Path) -> None:
    runs = [written(tmp_path / name, items, [talk(0, GOOD)], "simulated:one") for name in ("busy", "stopped")]
    cache = ReportCache(tmp_path / "cache")
    busy = RunFolder.open(runs[0])
    busy.lock()
    for file in tmp_path.glob("*/*"):
        os.utime(file, (0, 0))  # old files are cached
    if not is_running(busy.path):
        pytest.skip("this system lists no locks")
    first, second = Study(runs, cache=cache).report()["warnings"]
    assert first == "busy: 1 of 6 conversations; 5 not finished: the run is in progress"
    assert second == f"stopped: 1 of 6 conversations; 5 not finished: viva resume {runs[1]}"
    busy.unlock()
    first, _ = Study(runs, cache=cache).report()["warnings"]
    assert first.endswith(f"viva resume {runs[0]}"), "a cached report knows that the run has stopped"


# -- runs that others made, or that are damaged ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of the candidate `good`, and one of `one` that tests damage."""
    root = tmp_path_factory.mktemp("pair")
    source = dataset(root / "quiz.jsonl", 6)
    runs = [[talk(0, GOOD, candidate=name), talk(1, [2] * 6, candidate=name)] for name in ("good", "one")]
    names = [talks[0].candidate for talks in runs]
    good, other = (
        written(root / name, source, talks, f"simulated:{name}") for name, talks in zip(names, runs, strict=True)
    )
    return good, other


def beside_good(pair: tuple[Path, Path], folder: Path, damage: Callable[[Path], None]) -> dict[str, Any]:
    """The report on the good run and a damaged copy of the other; the good run's figures are always the same."""
    good, bad = pair[0], folder / "bad"
    shutil.copytree(pair[1], bad)
    damage(bad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = Study([good, bad]).report()
        with suppress(VivaError):  # no other exception
            recorded_report(RunFolder.open(bad))
        alone = Study([good]).report()
    [cell] = [cell for cell in report["cells"] if cell["candidate"] == "good"]
    assert cell == alone["cells"][0]
    return report


def with_result(number: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Replace a result in a run's journal, with a valid checksum."""

    def damage(run: Path) -> None:
        with closing(sqlite3.connect(run / "journal.sqlite", isolation_level=None)) as journal:
            [(status, text)] = journal.execute("select status, result from ended where number = ?", (number,))
            text = orjson.dumps(change(orjson.loads(text))).decode()
            row = (status, text, short_checksum((number, status, text)), number)
            journal.execute("update ended set status = ?, result = ?, checksum = ? where number = ?", row)

    return damage


def with_manifest(**changes: Any) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        manifest = orjson.loads((run / "manifest.json").read_bytes())
        manifest.pop("seal", None)
        (run / "manifest.json").write_bytes(orjson.dumps(manifest | changes))

    return damage


@case_table(
    "change",
    [
        lambda result: [1, 2],
        lambda result: None,
        lambda result: "text",
        lambda result: {},
        lambda result: result | {"item": ["x"], "cluster": ["y"]},
        lambda result: result | {"ended_by": {"a": 1}},
        lambda result: result | {"candidate": "nobody"},
        lambda result: result | {"rounds": [[["4"] * 6, None, 0, None]]},
        lambda result: result | {"rounds": [[[1e308] * 6, None, 0, None]]},
        lambda result: result | {"rounds": 5},
        lambda result: result | {"usage": {"candidate": "many"}},
    ],
)
def test_a_result_of_a_wrong_type_counts_as_damaged(
    pair: tuple[Path, Path], tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    report = beside_good(pair, tmp_path, with_result(0, change))
    [cell] = [cell for cell in report["cells"] if cell["candidate"] == "one"]
    assert (cell["result"]["interviews"], cell["result"]["score"]["mean"]) == (1, 30.0), "as if it were not there"
    assert [name.startswith("result of conversation 0") for name in cell["damaged"]] == [True]
    assert any("bad: damaged records are left out: result of conversation 0" in text for text in report["warnings"])


@case_table(
    "changes",
    [
        {"models": None},
        {"models": [1]},
        {"dataset": "x"},
        {"dataset": {}},
        {"pack": "x"},
        {"scenario": "unknown"},
        {"scenario": None},
        {"replaced": {"a": "b"}},
        {"bank": {"items": "x"}},
        {"settings": {}},
        {"code": {"file": "/tmp/other.py"}},
        {"shard": "x"},
    ],
)
def test_a_run_with_an_unusable_manifest_is_left_out_and_named(
    pair: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    report = beside_good(pair, tmp_path, with_manifest(**changes))
    if len(report["cells"]) == 1:
        assert report["warnings"][0].startswith("left out: bad: ")


def test_a_damaged_journal_takes_no_figures_from_another_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for number, (name, damage) in enumerate([*damages(pair[1] / "journal.sqlite", bytes_=3)][::2]):
        report = beside_good(pair, tmp_path / str(number), lambda run, damage=damage: damage(run / "journal.sqlite"))
        assert len(report["cells"]) == 2 or report["warnings"][0].startswith("left out: bad: "), name


def test_if_no_run_can_be_read_the_first_reason_is_the_error(pair: tuple[Path, Path], tmp_path: Path) -> None:
    bad = [shutil.copytree(pair[1], tmp_path / name) for name in ("x", "y")]
    for run in bad:
        (run / "manifest.json").write_text("[")
    with pytest.raises(VivaError, match=r"y.manifest\.json"):
        Study(bad)
    with pytest.raises(VivaError, match="no such folder"):
        Study([pair[0], tmp_path / "missing"])
