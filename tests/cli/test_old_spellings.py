"""Old spellings of verbs and options: they print what the new ones print, and a line that says the new one."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_tables import case_table
from command import viva

from viva.cli.old_spellings import OPTIONS, VERBS, modernize

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
MODELS = "--candidate simulated:c --interactor simulated:i --evaluator simulated:e"
SWEEP = f"""candidates: ['simulated:c']
datasets: [{{dataset: {ITEMS}, n: 2}}]
interviews: {{rounds: 1, interactor: 'simulated:i', evaluator: 'simulated:e'}}
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a sweep in shards, ratings, figures, and a grading folder."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "sweep.yaml").write_text(SWEEP)
    rows = [f"m{number},science,{number / 10},{number / 9 + number % 2}" for number in range(6)]
    (folder / "figures.csv").write_text("\n".join(["model,dataset,accuracy,score", *rows]))
    rows = [f"i{number},{number % 4},{(number * 3) % 4}" for number in range(6)]
    (folder / "rated.csv").write_text("\n".join(["item,people,judge", *rows]))
    for words in (
        f"run kieval --dataset {ITEMS} -n 3 --rounds 2 --out run {MODELS}",
        f"suite init {folder / 'suite'}",
        f"suite run {folder / 'suite' / 'suite.yaml'} --out suiterun",
        "sweep sweep.yaml --shard 1/2 --out shards",
        "sweep sweep.yaml --shard 2/2 --out shards",
        "judge certify run --select 2 --out next.csv",
        "sweep merge shards",
        "grade init project",
        "grade bank import project project/questions.jsonl --by Ada",
        "grade bank inspect project --all --by Ada",
        "grade bank accept project --all --by Ada",
        "grade collect project --candidate simulated:a --candidate simulated:b --round r -n 3",
    ):
        done = viva(*words.split(), cwd=folder)
        assert done.returncode in (0, 1), done.stderr
    return folder


SELECT = "`--next` is now `--select`"
# What was typed, what is typed now, and what the note says. OUT is another folder or file for each.
CASES = [
    ("bench judge -h", "judge load -h", "`viva bench judge` is now `viva judge load`"),
    ("bench -h", "judge -h", "`viva bench` is now `viva judge`"),
    (
        "meta rated.csv --human people --score judge --resamples 100 --level 0.9",
        "judge compare rated.csv --human people --score judge --resamples 100 --confidence 0.9",
        "`viva meta` is now `viva judge compare`; `--level` is now `--confidence`",
    ),
    (
        "correlate figures.csv --without m1",
        "judge compare figures.csv --exclude m1",
        "`viva correlate` is now `viva judge compare`; `--without` is now `--exclude`",
    ),
    (
        "plan sweep.yaml --simulations 2 --json --out OUT",
        "sweep plan sweep.yaml --simulations 2 --json --out OUT",
        "`viva plan` is now `viva sweep plan`",
    ),
    ("merge shards --json", "sweep merge shards --json", "`viva merge` is now `viva sweep merge`"),
    ("compact run --dry-run", "sweep compact run --dry-run", "`viva compact` is now `viva sweep compact`"),
    ("grade sit -h", "grade answer -h", "`viva grade sit` is now `viva grade answer`"),
    (
        "grade report project/rounds/r --json --whose=all",
        "grade report project/rounds/r --json --grader=all",
        "`--whose` is now `--grader`",
    ),
    ("grade queue run --next next.csv --out OUT", "grade queue run --select next.csv --out OUT", SELECT),
    (
        "judge certify run --next 2 --out OUT --level 0.9",
        "judge certify run --select 2 --out OUT --confidence 0.9",
        "`--next` is now `--select`; `--level` is now `--confidence`",
    ),
    ("export run --to openai --out OUT", "export run --format openai --out OUT", "`--to` is now `--format`"),
    ("score suiterun --by role", "score suiterun --group-by role", "`--by` is now `--group-by`"),
    (
        "run --fork run --evaluator simulated:x --out OUT",
        "run --fork run --judge simulated:x --out OUT",
        "`--evaluator` is now `--judge`",
    ),
    ("resume run --patience 0", "resume run --wait-for-endpoint 0", "`--patience` is now `--wait-for-endpoint`"),
    ("sweep run sweep.yaml --dry-run", "sweep sweep.yaml --dry-run", ""),
]  # fmt: skip


@case_table(("old", "new", "note"), CASES)
def test_an_old_spelling_prints_what_the_new_one_prints(work: Path, old: str, new: str, note: str) -> None:
    before = viva(*old.replace("OUT", "out-old").split(), cwd=work)
    after = viva(*new.replace("OUT", "out-new").split(), cwd=work)
    assert (before.returncode, before.stdout.replace("out-old", "out-new")) == (after.returncode, after.stdout)
    assert "is now" not in after.stderr
    first = f"viva: note: {note}" if note else ""
    assert [line for line in before.stderr.splitlines() if "is now" in line] == ([first] if note else [])
    assert "no option" not in before.stderr


def test_each_old_spelling_has_its_case() -> None:
    tried = " ".join(note for _, _, note in CASES)
    names = [f"`viva {old}`" for old in VERBS] + [f"`{old}`" for renamed in OPTIONS.values() for old in renamed]
    assert [name for name in names if name not in tried] == []


def test_words_of_other_commands_and_behind_two_dashes_stay() -> None:
    for words in (
        ["grade", "bank", "import", "library", "q.csv", "--by", "Ada"],
        ["run", "kieval", "--evaluator", "simulated:e"],
        ["report", "plan"],
        ["export", "run", "--", "--to"],
    ):
        assert modernize(words) == (words, "")
