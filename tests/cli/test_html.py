"""`--html` on the commands that print a report, and `--compare` for the role that a scenario compares."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_tables import case_table
from command import viva

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
MODELS = "--interactor simulated:i --evaluator simulated:e"
SWEEP = f"""candidates: ['simulated:c']
datasets: [{{dataset: {ITEMS}, n: 2}}]
interviews: {{rounds: 1, interactor: 'simulated:i', evaluator: 'simulated:e'}}
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    (folder / "sweep.yaml").write_text(SWEEP)
    rows = [f"m{number},science,{number / 10},{number / 9 + number % 2}" for number in range(6)]
    (folder / "figures.csv").write_text("\n".join(["model,dataset,accuracy,score", *rows]))
    (folder / "scores.csv").write_text("\n".join(["key,score", *(f"k{number},{number % 5}" for number in range(20))]))
    (folder / "grades.csv").write_text("\n".join(["key,grade", *(f"k{number},{number % 4}" for number in range(12))]))
    assert viva("suite", "init", folder / "suite").returncode == 0
    return folder


@case_table(
    "words",
    [
        f"run kieval --dataset {ITEMS} -n 3 --rounds 1 --compare simulated:a --compare simulated:b {MODELS} --out run",
        "run --fork OLD --judge simulated:x --out fork",
        "resume OLD",
        "score OLD --scorer linear",
        "sweep sweep.yaml --out sweep",
        "sweep plan sweep.yaml --simulations 2 --out sweep",
        "judge audit --compare simulated:j -n 1 --audit retest --out audit",
        "judge certify scores.csv --scale 0:4 --labels grades.csv",
        "judge compare figures.csv",
        "suite run suite/suite.yaml --out suiterun",
        f"data check {ITEMS}",
    ],
)
def test_a_report_is_also_a_page(work: Path, words: str) -> None:
    old = work / "old"
    if "OLD" in words and not old.exists():
        command = f"run kieval --dataset {ITEMS} -n 2 --rounds 1 --candidate simulated:a {MODELS}"
        assert viva(*command.split(), "--out", old).returncode == 0
    page = work / "page.html"
    page.unlink(missing_ok=True)
    done = viva(*words.replace("OLD", str(old)).split(), "--html", page, cwd=work)
    assert done.returncode in (0, 1), done.stderr
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "<table" in text


def test_a_shard_and_a_dry_run_have_no_page(work: Path) -> None:
    for option in ("--dry-run", "--shard=1/2"):
        done = viva("sweep", "sweep.yaml", option, "--html", "page.html", "--out", "none", cwd=work)
        assert done.returncode == 2
        assert "there is no report yet" in done.stderr
