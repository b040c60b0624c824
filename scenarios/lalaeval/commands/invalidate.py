"""``viva grade invalidate``: take a grade or a question out of the figures, with who and why; or put it back.

What never belongs here: deleting anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = """\b
Examples:
  viva grade invalidate library/rounds/2026-06 lifeguard --by Dora --reason "the source is outdated"
  viva grade invalidate library/rounds/2026-06 lifeguard --grader Cleo --candidate alpha --by Dora --reason "misread"
  viva grade invalidate library/rounds/2026-06 lifeguard --by Dora --reason "" """


def invalidate(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder, such as a round's.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Id of the question.")],
    by: Annotated[str, typer.Option("--by", help="Who takes it out.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; empty to put it back.")],
    grader: Annotated[str | None, typer.Option("--grader", help="Only the grades of this grader.")] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", help="Only the grade of this candidate's answer (with --grader).")
    ] = None,
) -> None:
    """Take a question, or a grader's grades of it, out of the figures. What was given stays, with who and why."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.grading.store import GradeStore

    if not by.strip():
        raise ConfigurationError("--by: expected a name")
    if candidate is not None and grader is None:
        raise ConfigurationError("--candidate: names one grade; say whose with --grader")
    reason = reason.strip()
    with GradeStore.open(folder) as store:
        row = store.connection.execute("select number from questions where id = ?", (question,)).fetchone()
        if row is None:
            raise ConfigurationError(f"{folder}: there is no question '{question}'")
        what = "counts again" if not reason else "is out of the figures"
        if grader is None:
            store.invalidate_question(row[0], by, reason)
            print(f"question {question} {what}")
            return
        number = store.grader(grader).number
        answers = {one.id: one.candidate for one in store.question(row[0]).answers}
        if candidate is not None and candidate not in answers.values():
            raise ConfigurationError(f"question '{question}': has no answer of '{candidate}'")
        given = [one.answer for one in store.grades(grader=number, question=row[0])]
        chosen = [one for one in given if candidate is None or answers[one] == candidate]
        if not chosen:
            raise ConfigurationError(f"question '{question}': {grader} gave no such grade")
        with store.batch():
            for one in chosen:
                store.invalidate(one, number, by, reason)
        print(f"{len(chosen)} grade{'s' * (len(chosen) != 1)} of {grader} for question {question}: {what}")
