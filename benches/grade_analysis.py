"""What analysing grades costs: 100,000 grades of one folder, from the file to the report, and a second round beside it.

Fifty graders, three a question, eight candidates, twelve dimensions.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import table
from running import note

from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GradeStore
from viva.scenarios.lalaeval.commands.grading_folder import read_round
from viva.scenarios.lalaeval.round_figures import make_report

GRADERS, CANDIDATES, DIMENSIONS, OVERLAP = 50, 8, 12, 3
T = TypeVar("T")


def make_folder(folder: Path, grades: int, seed: int) -> None:
    """A folder with that many grades, the later candidates the better and the later graders the severer."""
    draw = random.Random(seed)
    labels = [Label(float(value), f"grade {value}") for value in range(4)]
    names = [f"m{number}" for number in range(CANDIDATES)]
    count = -(-grades // (CANDIDATES * OVERLAP))
    questions = [
        Question(f"q{k}", f"question {k}", labels, [Answer(name, [Turn("assistant", f"{name} {k}")]) for name in names],
                 dimension=f"{'domain/facts' if k % DIMENSIONS < 7 else 'general'}/{k % DIMENSIONS}")
        for k in range(count)
    ]  # fmt: skip
    responses = {f"q{k}": dict.fromkeys(names, "same") for k in range(count)}
    about = {"versions": dict.fromkeys(responses, "same"), "responses": responses}
    with GradeStore.create(folder, questions, title="a bench", seed=seed, about=about) as store, store.batch():
        numbers = [store.add_grader(f"g{number}").number for number in range(GRADERS)]
        rows = []
        for answer, question, candidate in store.connection.execute("select id, question, candidate from answers"):
            quality = names.index(candidate) / CANDIDATES
            for at in random.Random(question).sample(range(GRADERS), OVERLAP):
                value = round(3 * quality + draw.gauss(0.3, 0.7) - at / GRADERS / 2)
                rows.append((answer, numbers[at], float(min(3, max(0, value))), 0.0))
        store.connection.executemany("insert into grades (answer, grader, value, at) values (?, ?, ?, ?)", rows)


def analysis(quick: bool) -> dict[str, float]:
    """Seconds from a folder to its report."""
    grades = 100_000  # also where ``quick``: of fewer the parts of the cost are others
    note(f"two folders of {grades:,} grades")
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("earlier", "later")]
        for seed, folder in enumerate(folders):
            make_folder(folder, grades, seed)
        note(f"analysing {grades:,} grades")
        import scipy.stats  # noqa: F401  # loaded once in a process, whatever the number of grades

        later, read = _timed(lambda: read_round(folders[1]))
        _, computed = _timed(lambda: make_report(later))
        earlier = read_round(folders[0])
        _, compared = _timed(lambda: make_report(later, earlier))
    steps = {"reading the file": read, "all figures": computed, "all figures and changes": compared}
    rows = [[name, f"{len(later.table):,}", f"{seconds:.2f}"] for name, seconds in steps.items()]
    table.show("analysis (seconds)", ["what", "grades", "seconds"], rows)
    return {"analysis_seconds": read + computed, "analysis_against_seconds": read + compared}


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    done = work()
    return done, time.perf_counter() - began
