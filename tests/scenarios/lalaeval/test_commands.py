"""The verbs from an empty folder to a folder that graders can open."""

from __future__ import annotations

import json
from pathlib import Path

from grade_projects import TEMPLATES, project, viva

from viva.grading.store import GradeStore


def test_what_init_writes_goes_all_the_way_to_a_grading_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    printed, _ = viva("grade", "init", folder)
    assert f"viva grade bank import {folder}" in printed
    _, said = viva("grade", "init", folder, code=2)
    assert "already contains project.yaml, questions.jsonl; choose another folder" in said
    viva("grade", "bank", "import", folder, folder / "questions.jsonl", "--by", "Ada")
    assert viva("grade", "bank", "accept", folder, "--all")[0].startswith("0 accepted; no question has been inspected")
    assert viva("grade", "bank", "inspect", folder, "--all")[0] == "8 inspected\n"
    assert viva("grade", "bank", "accept", folder, "--all")[0] == "8 accepted\n"
    printed, said = viva("grade", "check", folder)
    assert said == ""  # nothing is to be said against it
    assert "bank: 0 draft, 0 inspected, 8 accepted, 0 returned" in printed
    assert "P0 sports facilities/swimming pools/our pool" in printed
    _, said = viva("grade", "collect", folder, code=2)
    assert "give the models that answer" in said
    assert not (folder / "rounds").exists()
    printed, said = viva("grade", "collect", folder, "--candidate", "simulated:a", "--candidate", "simulated:b")
    assert printed.endswith(f"ready to grade: viva grade serve {folder / 'rounds' / '1'}\n")
    assert "a 8" not in said  # the length of answers is no score
    _, said = viva("grade", "report", folder, code=2)
    assert f"not a grading folder: it contains no grades.sqlite; did you mean {folder / 'rounds' / '1'}?" in said
    printed, _ = viva("grade", "check", folder)
    assert "0 grades; assignments: 0 finished, 0 begun, 21 open" in printed
    with GradeStore.open(folder / "rounds" / "1") as store:
        assert sum(one.gold for one in store.questions()) == 1
        assert [one.name for one in store.graders()] == ["Ada", "Ben", "Cleo", "Dora"]


def test_lists_and_exports_name_the_state_of_each_question(tmp_path: Path) -> None:
    project(tmp_path, (TEMPLATES / "library.yaml").read_text())
    _, said = viva("grade", "bank", "import", tmp_path, TEMPLATES / "library.jsonl")
    assert "summer-hours: expired on 2024-08-31" in said
    assert "ghost: has no source" in said
    assert "loan-period and loan-period-again are nearly the same question" in said
    assert viva("grade", "bank", "inspect", tmp_path, "--all")[0] == "32 inspected\n"  # all but the first two
    viva("grade", "bank", "accept", tmp_path, "isbn", "renewal")
    listed = json.loads(viva("grade", "bank", "list", tmp_path, "--state", "accepted", "--json")[0])
    assert [one["id"] for one in listed["questions"]] == ["isbn", "renewal"]
    assert listed["near_duplicates"][0]["second"] == "loan-period-again"
    file = tmp_path / "out.csv"
    assert viva("grade", "bank", "export", tmp_path, file, "--state", "accepted")[0] == f"{file}: 2 questions\n"
    printed, _ = viva("grade", "bank", "import", tmp_path, file)
    assert "0 new, 0 changed, 2 unchanged" in printed
    _, said = viva("grade", "bank", "list", tmp_path, "--state", "done", code=2)
    assert "expected one of draft, inspected, accepted, returned" in said
    _, said = viva("grade", "bank", "accept", tmp_path, code=2)
    assert "give question ids, or --all" in said
    _, said = viva("grade", "bank", "accept", tmp_path, "isbm", code=2)
    assert "there is no question 'isbm'" in said
    _, said = viva("grade", "bank", "export", tmp_path, tmp_path / "out.txt", code=2)
    assert "expected a file that ends in .csv, .tsv or .jsonl" in said
