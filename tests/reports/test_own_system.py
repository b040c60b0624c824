"""A system of another package has a study without writing one: its runs' own tables, exports and a page."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from small_sweeps import dataset, swept
from study_runs import interviewed, probed

from viva.engine.errors import ConfigurationError
from viva.engine.imports import load_entry_points
from viva.reports.studies.export import write_csv
from viva.reports.studies.study import Study
from viva.reports.tables import to_latex
from viva.sweeps.sweep_file import parts
from viva.web.report.html_page import write_html

TUTORING = """
from viva.data.items import Item
from viva.data.dataset import open_dataset
from viva.engine.messages import Sampling, View
from viva.reports.run_tables import failure_table
from viva.scenarios.contract import Prepared, Role, Scenario
from viva.scenarios.run_settings import RunSettings


class Settings(RunSettings):
    dataset: str
    pupil: list[str]
    turns: int = 1


class Lessons:
    def __init__(self, manifest):
        self.manifest, self.words = manifest, {label: [] for label in manifest["models"]["pupil"]}

    def add(self, key, result):
        self.words[result["pupil"]].append(result["words"])

    def add_failure(self, key, error):
        pass

    def headline(self):
        return ", ".join(f"{label} {sum(words)} words" for label, words in self.words.items())

    def report(self):
        found = {label: {"lessons": len(w), "words": {"mean": sum(w) / len(w), "n": len(w)}} for label, w in
                 self.words.items() if w}
        return {"scenario": "tutoring", "candidates": found}

    def tables(self):
        title = f"Lessons on {self.manifest['dataset']['name']}, seed {self.manifest['seed']}, words counted"
        rows = [[label, str(len(words)), f"{sum(words) / len(words):.1f}"] for label, words in self.words.items()]
        return [(title, ["pupil", "lessons", "words"], rows), ("Nothing", ["pupil"], [])]


class Tutoring(Scenario):
    name, summary, plural = "tutoring", "Lessons.", "lessons"
    settings = Settings
    roles = (Role("pupil", many=True),)

    def prepare(self, settings):
        found = open_dataset(settings.dataset, seed=settings.seed)
        return Prepared(found, {"dataset": found.to_record()})

    def protocol(self, settings, pack, records):
        async def lesson(conversation, item):
            view = View()
            view.append("user", item.question)
            answer = await conversation.generate("pupil", view, Sampling(max_tokens=50))
            return {"pupil": conversation.label, "words": len(answer.text.split())}

        return lesson

    def task(self, record):
        return Item(**record)

    def aggregate(self, manifest, scoring):
        return Lessons(manifest)


SCENARIO = Tutoring()
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two pupils taught on two datasets, by a package that is installed for the time of a test."""
    package = tmp_path / "installed"
    (package / "tutoring_viva-1.dist-info").mkdir(parents=True)
    (package / "tutoring_viva.py").write_text(TUTORING)
    about = package / "tutoring_viva-1.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tutoring-viva\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[viva.scenarios]\ntutoring = tutoring_viva:SCENARIO\n")
    monkeypatch.syspath_prepend(package)
    load_entry_points.cache_clear()
    parts.cache_clear()
    for name in ("tides", "rust"):
        dataset(tmp_path / f"{name}.jsonl", 5)
    file = tmp_path / "grid.yaml"
    file.write_text(
        'candidates: ["simulated:quick", "simulated:slow?verbosity=3"]\ndatasets: [tides.jsonl, rust.jsonl]\n'
        "lessons: {turns: 1}\n"
    )
    swept(file, tmp_path / "out")
    yield tmp_path / "out"
    load_entry_points.cache_clear()
    parts.cache_clear()


def test_a_sweep_of_a_foreign_system_has_tables_exports_and_a_page(sweep: Path, tmp_path: Path) -> None:
    study = Study([sweep])
    report = study.report()
    assert orjson.loads(orjson.dumps(report)) == report
    assert [(cell["candidate"], cell["dataset"], cell["state"]) for cell in report["cells"]] == [
        (candidate, name, "done") for name in ("tides", "rust") for candidate in ("quick", "slow")
    ]
    (title, header, rows), (cells, _, shown) = study.tables()
    assert (title, header, len(rows)) == (
        "Lessons on …, seed 7, words counted",
        ["run", "pupil", "lessons", "words"],
        4,
    )
    assert [row[1:3] for row in rows] == [["quick", "5"], ["slow", "5"]] * 2
    assert cells == "4 cells"
    assert [row[-1].startswith(f"{row[1]} ") for row in shown] == [True] * 4
    assert to_latex(study.tables()).count(r"\begin{tabular}") == 2
    write_csv(report, tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open() as file:
        figures = {(row["candidate"], row["dataset"], row["measure"]): row for row in csv.DictReader(file)}
    told = report["cells"][1]["result"]["words"]["mean"]
    assert float(figures["slow", "tides", "words"]["value"]) == told
    assert figures["slow", "tides", "lessons"]["value"] == "5"
    write_html(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<h1>Lessons: 2 candidates on 2 datasets</h1>" in page
    assert '<section id="tutoring">\n<h2>Lessons</h2>' in page
    assert "n = 20 conversations" in page


def test_systems_stand_beside_one_another_each_with_its_own_sections(sweep: Path, tmp_path: Path) -> None:
    interviews = interviewed(tmp_path / "interviews", "simulated:quick", n=3, rounds=1)
    alone, both = Study([interviews]).report(), Study([interviews, sweep]).report()
    for key in ("pooled", "comparisons", "difficulty", "costs", "ablation"):
        assert both[key] == alone[key]
    assert [run["run"].partition("/")[0] for run in both["tutoring"]] == ["out"] * 4
    titles = [table["title"] for table in both["tables"]]
    assert titles[0].startswith("KIEval on science")
    assert {"Lessons on …, seed 7, words counted", "5 cells"} <= set(titles)
    write_html(both, tmp_path / "page.html")
    assert "Interviews and lessons: 2 candidates on 3 datasets" in (tmp_path / "page.html").read_text("utf-8")


def test_a_scorer_is_named_in_vain_where_no_system_has_one(sweep: Path) -> None:
    with pytest.raises(ConfigurationError, match="tutoring has no scorer to choose"):
        Study([sweep], "linear")


def test_static_figures_that_nobody_takes_are_reported_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viva.reports.studies.study.installed_scenarios", list)
    runs = [probed(tmp_path / name, f"simulated:{name}", n=6, method=["text"]) for name in ("one", "two")]
    study = Study(runs)
    (title, header, rows), _ = study.tables()
    assert title.startswith("Accuracy on science, 0 shots, seed 7")
    assert header[:2] == ["run", "candidate"]
    assert [row[:2] for row in rows] == [["one", "one"], ["two", "two"]]
    write_html(study.report(), tmp_path / "page.html")
    assert "<h1>Probes: 2 candidates on 1 dataset</h1>" in (tmp_path / "page.html").read_text("utf-8")
