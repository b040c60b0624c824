"""``viva grade queue`` and ``labels``: answers of any run as questions for graders, and their grades as files again.

What never belongs here: what is a question, and how grades are added up (``orchestration.grading``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from viva.orchestration.grading.from_run import What
    from viva.orchestration.grading.records import Label

QUEUE_EXAMPLE = """\b
Examples:
  viva grade queue runs/sweep/cell --rounds -n 60 --out queue
  viva judge certify runs/kieval --next 40 --out next.csv --rounds
  viva grade queue runs/kieval --next next.csv --out queue"""
LABELS_EXAMPLE = """\b
Examples:
  viva grade labels queue --out grades.csv && viva judge certify runs/kieval --labels grades.csv
  viva grade labels queue --ratings ratings.csv && viva meta runs/kieval --ratings ratings.csv"""


def queue(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of any scenario.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Grading folder to make.")],
    rounds: Annotated[bool, typer.Option("--rounds", help="Grade rounds instead of whole conversations.")] = False,
    verdicts: Annotated[bool, typer.Option("--verdicts", help="Grade what the judge said of each round.")] = False,
    next_: Annotated[
        Path | None, typer.Option("--next", metavar="FILE", help="The answers that `viva judge certify --next` chose.")
    ] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="So many answers, drawn evenly (default: all).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw and of the blind order.")] = 0,
    overlap: Annotated[int, typer.Option("--overlap", min=1, help="How many graders each question is for.")] = 3,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="0=wrong,1=right", help="Grades that may be given, worst first.")
    ] = None,
) -> None:
    """Make a grading folder of a run's answers: whole conversations, rounds, or verdicts."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.grading.from_run import drawn, labels_for, run_answers, run_questions
    from viva.orchestration.grading.labels import chosen_by, remember
    from viva.orchestration.grading.store import GradeStore
    from viva.orchestration.human_grades import names_rounds

    if (next_ is not None) + (n is not None) > 1:
        raise ConfigurationError("--next and -n: give one of them; --next says which answers are graded")
    if rounds and verdicts:
        raise ConfigurationError("--rounds and --verdicts: give one of them")
    if next_ is not None and not verdicts:
        rounds = names_rounds(next_)
    what: What = "verdicts" if verdicts else "rounds" if rounds else "conversations"
    answers = run_answers(run, what)
    chosen = chosen_by(next_, answers) if next_ is not None else drawn(answers, n, seed) if n is not None else None
    allowed = _labels(labels) if labels is not None else labels_for(answers, what)
    questions = run_questions(run, answers, what, chosen, overlap=overlap, labels=allowed)
    about = {"run": run.name, "what": what, "kind": "evaluation"}
    with GradeStore.create(out, questions, title=f"{run.name}: {what}", seed=seed, about=about) as store:
        if what != "verdicts":
            remember(store, answers, chosen)
    count = sum(len(one.answers) for one in questions)
    print(f"{out}: {count:,} answers on {len(questions):,} pages, for {overlap} graders each")
    print(f"viva: note: add graders and serve the pages: viva grade graders {out} add NAME; viva grade serve {out}",
          file=sys.stderr)  # fmt: skip


def labels(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder that `viva grade queue` made.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Grades for `viva judge certify --labels`.")
    ] = None,
    ratings: Annotated[
        Path | None, typer.Option("--ratings", metavar="FILE.csv", help="Each grader's, for `viva meta --ratings`.")
    ] = None,
) -> None:
    """Write the grades that people gave as files for `viva judge certify` and `viva meta`."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.grading.labels import write_labels, write_ratings
    from viva.orchestration.grading.store import GradeStore

    if out is None and ratings is None:
        raise ConfigurationError("give --out FILE.csv, --ratings FILE.csv, or both")
    with GradeStore.open(folder) as store:
        if out is not None:
            graded, waiting = write_labels(store, out)
            print(f"{out}: {graded:,} graded answers" + (f", {waiting:,} still to grade" if waiting else ""))
        if ratings is not None:
            print(f"{ratings}: {write_ratings(store, ratings):,} rated answers")


def _labels(text: str) -> list[Label]:
    """:raises ConfigurationError: it is not VALUE=MEANING with commas between."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.graded_answers import number
    from viva.orchestration.grading.records import Label

    found = []
    for part in text.split(","):
        value, _, meaning = part.partition("=")
        read = number(value.strip())
        if read is None:
            raise ConfigurationError(f"--labels: expected NUMBER=MEANING with commas between, found '{part}'")
        found.append(Label(read, meaning.strip()))
    if len({one.value for one in found}) < max(2, len(found)):
        raise ConfigurationError(f"--labels {text}: expected at least two different grades")
    return sorted(found, key=lambda one: one.value)
