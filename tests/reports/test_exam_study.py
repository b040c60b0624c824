"""Two adaptive runs reported together: the lab's ideal examinees, of whom two have seen the benchmark."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from command import viva

from viva.data.bank_file import BankFile, CalibrationRecord, Matrix, fit_bank_file, read_bank_file, write_bank_file
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.lab.corpus import INTERVIEW_PACK, PROBE_PACK
from viva.lab.court_evidence import read_evidence
from viva.lab.experiment import ideal_family
from viva.lab.world import World, write_benchmark
from viva.orchestration.launch import new_run
from viva.reports.studies.exam_study import ExamStudy, are_exams
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.probes.probe import ProbeSettings

CHEATERS, CLEAN = {"sft-cheater", "pt-cheater"}, ["clean-100", "clean-75", "clean-50", "clean-25"]


def bank(column: str) -> BankFile:
    """A bank fitted to every second model of the court."""
    records = read_evidence()[::2]
    cells = [[math.nan if value is None else value for value in own["benchmark"][column]] for own in records]
    scores = np.array(cells, dtype=np.float64)
    has_scores = ~np.isnan(scores).all(axis=0)
    items = [item for item, known in zip(records[0]["benchmark"]["items"], has_scores.tolist(), strict=True) if known]
    names = [f"unit-{own['unit']}/{own['model']}" for own in records]
    return fit_bank_file(Matrix(scores[:, has_scores], names, items), ["the court"])


@dataclass
class Exams:
    """The folders of both runs, and the settings of the probes."""

    probes: Path
    interviews: Path
    settings: dict[str, Any]


def run(scenario: str, settings: Any, out: Path) -> Path:
    launch = new_run(scenario, settings, out)
    outcome = RealClock().run(launch.run)
    assert (outcome.how, outcome.failed) == ("done", 0)
    return out


@pytest.fixture(scope="module")
def exams(tmp_path_factory: pytest.TempPathFactory) -> Exams:
    folder = tmp_path_factory.mktemp("exams")
    dataset = str(write_benchmark(World(1), folder / "benchmark")["test"])
    write_bank_file(folder / "accuracy.json", bank("right"))
    write_bank_file(folder / "score.json", bank("interview"))
    common: dict[str, Any] = {"dataset": dataset, "candidate": [model.model for model in ideal_family()], "seed": 3}
    probe = common | {"method": ["text"], "shots": 0, "pack": PROBE_PACK, "n": 40, "until": "half_width=1"}
    probe |= {"adaptive": str(folder / "accuracy.json")}
    oracle = "oracle:examiner?world=1&seed=1"
    kieval = common | {"interactor": oracle, "evaluator": oracle, "first_answer": "text", "pack": INTERVIEW_PACK}
    kieval |= {"adaptive": str(folder / "score.json"), "n": 30}
    return Exams(
        run("probe", ProbeSettings(**probe), folder / "probes"),
        run("kieval", KievalSettings(**kieval), folder / "interviews"),
        probe,
    )


def test_the_cheaters_are_suspected_and_the_others_ranked(exams: Exams) -> None:
    done = viva("report", exams.probes, exams.interviews)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "Contamination suspected: sft-cheater, pt-cheater." in text or (
        "Contamination suspected: pt-cheater, sft-cheater." in text
    )
    assert "Suspected: significantly below the line" in text
    report = json.loads(viva("report", exams.interviews, exams.probes, "--json").stdout)
    ranked = [own["candidate"] for own in report["verdicts"]["candidates"]]
    assert [name for name in ranked if name not in CHEATERS] == CLEAN
    for own in report["verdicts"]["candidates"]:
        assert (own["verdict"] == "suspected") == (own["candidate"] in CHEATERS)
        estimates = report["candidates"][own["candidate"]]
        score = estimates["score"]["model_based"]  # not cut at 0 or 100, so the error is that of the interval
        assert own["candidate"] == "clean-100" or score["high"] == pytest.approx(
            score["value"] + 1.959964 * score["se"]
        )
        assert own["answered"] == min(estimates[name]["asked"] for name in ("accuracy", "score"))


def test_the_order_of_the_folders_and_a_second_reading_change_nothing(exams: Exams) -> None:
    first, second = (
        ExamStudy(folders) for folders in ([exams.probes, exams.interviews], [exams.interviews, exams.probes])
    )
    assert orjson.dumps(first.report()) == orjson.dumps(second.report())
    assert first.tables() == second.tables()


def test_a_pair_that_cannot_be_compared_is_refused_with_the_reason(exams: Exams, tmp_path: Path) -> None:
    copy = shutil.copytree(exams.interviews, tmp_path / "again")
    with pytest.raises(ConfigurationError, match="expected one adaptive run that estimates accuracy"):
        ExamStudy([exams.interviews, copy])
    full = run("probe", ProbeSettings(**{**exams.settings, "adaptive": None, "until": None, "n": 4}), tmp_path / "full")
    assert not are_exams([full, exams.interviews])
    done = viva("report", full, exams.interviews)
    assert done.returncode == 0, done.stderr
    assert "Adaptive exams: mean over all items" in " ".join(done.stdout.split())
    assert "suspected:" not in done.stdout
    done = viva("report", exams.probes, exams.interviews, "--markdown")
    assert "adaptive runs are reported in tables or with --json" in " ".join(done.stderr.split())


def test_a_bank_of_unknown_error_gives_no_verdict(exams: Exams, tmp_path: Path) -> None:
    file = read_bank_file(Path(exams.settings["adaptive"]))
    file.calibration = CalibrationRecord()
    write_bank_file(tmp_path / "raw.json", file)
    settings = exams.settings | {"adaptive": str(tmp_path / "raw.json"), "n": 12}
    study = ExamStudy([run("probe", ProbeSettings(**settings), tmp_path / "probes"), exams.interviews])
    assert study.report()["verdicts"] is None
    assert study.sentences()[-1].startswith("No verdicts: the error of estimates is unknown, as raw.json")
    assert {row[1] for _, _, rows in study.tables() for row in rows} == {"not tested"}


def test_five_answers_are_too_few_for_a_verdict(exams: Exams, tmp_path: Path) -> None:
    settings = exams.settings | {"n": 5}
    study = ExamStudy([run("probe", ProbeSettings(**settings), tmp_path / "probes"), exams.interviews])
    verdicts = study.report()["verdicts"]["candidates"]
    assert {own["verdict"] for own in verdicts} == {"too_few"}
    assert any("needs 10 answers in each exam" in sentence for sentence in study.sentences())
