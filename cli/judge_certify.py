"""``viva judge certify``: a judge's figures set right by few human grades, and which answers to have graded next.

What never belongs here: formulas (``scoring.certified``), and how figures look (``study.certificate_tables``).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from .exit_codes import guarded, print_note
from .lazy_command import example_of

_WIDTH = 80


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("certify", epilog=example_of("viva judge certify runs/sweep --labels grades.csv"))(guarded(_certify))


def _certify(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a CSV, TSV or JSONL file of key and score.")],
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="People's grades: what --next wrote, or CSV, TSV or JSONL of key, grade."),
    ] = None,
    next_: Annotated[
        int | None, typer.Option("--next", metavar="N", help="Also choose N answers to have graded next (--out).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Write the answers to grade to this file.")
    ] = None,
    by_round: Annotated[
        bool, typer.Option("--rounds", help="Without --labels: draw rounds instead of whole conversations.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw of --next.")] = 0,
    correlate: Annotated[
        list[str] | None,
        typer.Option("--correlate", metavar="NAME", help="Also correct the correlation of grades with this number."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Earlier pairs of score and grade: test for drift.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="LOW:HIGH", help="The ends of the scale of scores without one of their own."),
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Level of the intervals.")] = 0.95,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write every figure to this CSV file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Correct a run's means, rates and differences by human grades of some of its answers.

    Without --labels, --next N --out FILE draws the first answers to grade.
    """
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.graded_answers import graded_answers
    from viva.orchestration.grading.labels import texts_of
    from viva.orchestration.human_grades import (
        HumanGrades,
        calibration_pairs,
        key_file,
        names_rounds,
        read_grades,
        write_next,
    )
    from viva.study.certificate import certificate_record, join, next_answers
    from viva.study.certificate_tables import notes, sentences, tables, write_csv

    from .output import print_json, print_tables, print_text
    from .targets import check_targets

    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"--level {level:g}: expected a share between 0 and 1, such as 0.95")
    if (next_ is None) != (out is None):
        raise ConfigurationError("--next N and --out FILE.csv go together: how many answers, and where to write them")
    if labels is None and next_ is None:
        raise ConfigurationError("give --labels FILE, or --next N --out FILE.csv for the first answers to grade")
    read = [path for path in (labels, calibration, run if run.is_file() else None) if path is not None]
    read += [] if labels is None else [key_file(labels)]
    keys = None if out is None else key_file(out)
    check_targets({"--out": out, "--csv": csv, "the key file of --out": keys}, read)
    if labels is not None:
        by_round = names_rounds(labels)
    answers = graded_answers(run, by_round=by_round, scale=_scale(scale))
    grades = HumanGrades() if labels is None else read_grades(labels, answers)
    matched = join(answers, grades)
    if next_ is not None and out is not None:
        chosen, probabilities = next_answers(matched, next_, seed)
        texts = texts_of(answers, chosen)
        write_next(out, answers, grades, chosen, probabilities, texts, seed)
        known = math.isfinite(answers.high - answers.low)
        scale_words = (
            "pass or fail" if answers.passes else f"{answers.low:g} to {answers.high:g}" if known else "numbers"
        )
        print(
            f"viva: note: {out}: {len(chosen)} answers to grade, without scores and candidates; fill in 'grade' "
            f"({scale_words}) and give the file to --labels; {key_file(out).name} says whose answers they are: keep it "
            "beside, and from graders",
            file=sys.stderr,
        )
    if labels is None:
        return
    pairs = None if calibration is None else calibration_pairs(calibration, answers.passes, answers.low, answers.high)
    record = certificate_record(matched, level=level, correlate=correlate or (), calibration=pairs)
    if csv is not None:
        write_csv(record, csv)
    if json:
        print_json(record)
    else:
        print_text("".join(f"{fill(one, _WIDTH)}\n" for one in sentences(record)) + "\n")
        print_tables(tables(record))
    for note in notes(record):
        print_note(note)


def _scale(text: str | None) -> tuple[float, float] | None:
    """:raises ConfigurationError: it is not LOW:HIGH."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.graded_answers import number

    if text is None:
        return None
    low, _, high = text.partition(":")
    ends = number(low), number(high)
    if ends[0] is None or ends[1] is None or not ends[0] < ends[1]:
        raise ConfigurationError(f"--scale {text}: expected LOW:HIGH, such as 1:5")
    return ends[0], ends[1]
