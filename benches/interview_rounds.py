"""Calls that interviews of KIEval would save if each ended once further rounds hardly change its score.

Two rules, at 3 and 5 points of the official score, applied to full interviews of up to five rounds (one call, and three
more for each round): those of ``viva demo``, six small models in a world of known truth, and of six simulated models,
whose evaluator stops some of them.

``exact``    the largest change if all remaining rounds got the lowest or the highest score.
``learned``  the change that 95% of a candidate's full interviews stay within after the same round, with a conformal
             correction for their number, so 19 of them at the least. One in five is always kept full; the others count
             only if the rule ended none of their wave. Waves have eight items, and learn from earlier waves.
``known``    the same if a candidate's changes were all known before: the most that any number of interviews can teach.

Errors are those of a candidate's mean over the asked items, beside the full interviews. ``shorter`` is the difference
that three rounds instead of five make.

``--quick`` leaves out the demo, which takes a minute or two, and repeats less.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import table
from running import ROOT, finish, note

import viva
from viva.scenarios.kieval.score import Interview, Scorer

sys.path.insert(0, str(ROOT / "tests" / "models"))
from probing import make_items

REACH: table.Reach = {}
POINTS, LENGTHS = (3, 5), (30, 100)
_ROUNDS, _WAVE, _KEPT, _LEVEL = 5, 8, 0.2, 0.95
_SCORER = Scorer("official")
Course = list[float]  # the score of an interview after each of its rounds
Cuts = Callable[[str, int], list[int]]  # rounds after which the interviews of a candidate's wave end


def courses(run: Path) -> dict[str, list[Course]]:
    """Return the courses of a run's interviews by candidate; interviews without a score are left out."""
    by_candidate: dict[str, list[Course]] = {}
    for result in viva.load(run).results():
        interview = Interview.from_record(result.value)
        scores = [round_.scores[-1] for round_ in interview.rounds if round_.scores is not None]
        course = [_SCORER.combine(scores[:length]) for length in range(1, len(scores) + 1)]
        if course:
            by_candidate.setdefault(interview.candidate, []).append([score for score in course if score is not None])
    return by_candidate


def smallest_exact_bound() -> float:
    """Return the smallest of the exact rule's bounds after any scores of one to four rounds."""
    bounds = []
    for length in range(1, _ROUNDS):
        for code in range(4**length):
            scores = [1 + code // 4**index % 4 for index in range(length)]
            now, *ends = (_SCORER.combine([*scores, *[fill] * (_ROUNDS - length)]) for fill in (None, 1, 4))
            bounds.append(max(abs(end - now) for end in ends if end is not None and now is not None))
    return min(bounds)


def is_small(changes: Sequence[float], points: float) -> bool:
    """Return True if 95% of further changes stay within so many points, judged by these changes."""
    rank = math.ceil(_LEVEL * (len(changes) + 1))
    return rank <= len(changes) and sorted(changes)[rank - 1] <= points


def changes_after(interviews: Sequence[Course], length: int) -> list[float]:
    """Return the later changes of the interviews that went on after this round."""
    return [abs(course[-1] - course[length - 1]) for course in interviews if len(course) > length]


def exam(
    chosen: dict[str, list[Course]], points: float, draw: random.Random, known: dict[str, list[Course]] | None
) -> tuple[float, list[float]]:
    """Return the share of calls that the rule saves, and the error of each candidate's mean.

    With ``known``, changes are those of all these interviews, and none is kept full.
    """
    calls = full = 0
    errors = []
    for label, interviews in chosen.items():
        learned: list[Course] = []
        scores = []
        for at in range(0, len(interviews), _WAVE):
            base = learned if known is None else known[label]
            cuts = [length for length in range(1, _ROUNDS) if is_small(changes_after(base, length), points)]
            wave = interviews[at : at + _WAVE]
            for course in wave:
                is_kept = known is None and draw.random() < _KEPT
                length = len(course) if is_kept or not cuts else min(cuts[0], len(course))
                calls, full = calls + 1 + 3 * length, full + 1 + 3 * len(course)
                scores.append(course[length - 1])
                if is_kept or not cuts:
                    learned = [*learned, course]
        errors.append(float(np.mean(scores) - np.mean([course[-1] for course in interviews])))
    return 1.0 - calls / full, errors


def measure(name: str, interviews: dict[str, list[Course]], repeats: int) -> tuple[list[list[str]], dict[str, float]]:
    """Return the rows and figures of one set of interviews."""
    rows, figures = [], {f"{name}_interviews": float(sum(map(len, interviews.values())))}
    for points in POINTS:
        for length in LENGTHS:
            for rule, known in (("learned", None), ("known", interviews)):
                draw, saved, errors = random.Random(length), [], []
                for _ in range(repeats):
                    chosen = {label: draw.sample(own, length) for label, own in interviews.items()}
                    share, own_errors = exam(chosen, points, draw, known)
                    saved.append(share)
                    errors += own_errors
                values = {"saved_pct": 100.0 * float(np.mean(saved)), "bias": float(np.mean(errors)),
                          "rmse": float(np.sqrt(np.mean(np.square(errors))))}  # fmt: skip
                figures |= {f"{name}_{rule}_{points}_points_{length}_items_{key}": round(value, 3)
                            for key, value in values.items()}  # fmt: skip
                rows.append([name, rule, str(points), str(length), *(f"{value:.2f}" for value in values.values())])
    shorter = [float(np.mean([course[:3][-1] for course in own]) - np.mean([course[-1] for course in own]))
               for own in interviews.values()]  # fmt: skip
    figures[f"{name}_shorter_largest_difference"] = round(max(map(abs, shorter)), 3)
    return rows, figures


def simulated(folder: Path, items: int) -> Path:
    """Run interviews of six simulated models."""
    source = make_items(folder / "quiz.jsonl", items)
    models = {"candidate": [f"simulated:c{tenths}?knowledge={tenths / 10}" for tenths in (2, 4, 5, 6, 8, 9)],
              "interactor": "simulated:i", "evaluator": "simulated:e"}  # fmt: skip
    viva.run_sync("kieval", models=models, dataset=str(source), n=items, rounds=_ROUNDS, out=folder / "simulated")
    return folder / "simulated"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the demo; 10 repeats instead of 100")
    is_quick = parser.parse_args().quick
    rows: list[list[str]] = []
    figures = {"exact_smallest_bound": round(smallest_exact_bound(), 3)}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        runs = {"simulated": simulated(folder, 200)}
        if not is_quick:
            note("viva demo")
            finish([sys.executable, "-m", "viva", "demo", "--out", str(folder / "demo")], cwd=folder)
            runs["demo"] = folder / "demo" / "seed-1" / "kieval"
        for name, run in runs.items():
            own_rows, own_figures = measure(name, courses(run), 10 if is_quick else 100)
            rows += own_rows
            figures |= own_figures
    header = ["interviews", "rule", "points", "items", "calls saved (%)", "bias", "RMSE"]
    table.show("Interviews that end once their score hardly changes", header, rows)
    table.conclude("interview_rounds", figures, REACH)


if __name__ == "__main__":
    main()
