"""Command `viva grade collect`: draw a round's questions, collect answers, and make the grading folder."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.cli.exit_codes import print_message, print_note
from viva.cli.options import Concurrency, MaxCost, RetryFailed, read_settings

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch

    from ..project import Counts, Project
    from ..rounds import Round, RoundKind

_NO_CANDIDATE = "give the models that answer: --candidate MODEL (repeatable)"
EXAMPLE = """\b
Examples:
  viva grade collect library --round 2026-06 \\
      --candidate openai:gpt-4o --candidate llama:ours.gguf
  viva grade collect library --trial --candidate openai:gpt-4o -n 8

Run the same command again to resume an interrupted round."""


def collect(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")],
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", "--compare", metavar="MODEL", help="Model that answers.")
    ] = None,
    round_name: Annotated[
        str | None,
        typer.Option(
            "--round", metavar="NAME", help="Name of the round (default: the unfinished one, else a new number)."
        ),
    ] = None,
    trial: Annotated[
        bool, typer.Option("--trial", help="Make a trial round, in which every grader grades everything, for training.")
    ] = False,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Number of questions overall, instead of the quota.")
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota", metavar="simple=2,difficult=1", help="Number of questions per dimension, by difficulty."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the draw (default: the project's).")] = None,
    reuse: Annotated[
        bool,
        typer.Option("--reuse-questions", help="Allow questions of trials in evaluations, and vice versa."),
    ] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sampling temperature of the candidates (default: 0).")
    ] = None,
    candidate_tokens: Annotated[
        int | None, typer.Option("--candidate-tokens", min=1, help="Token limit of an answer.")
    ] = None,
    pack: Annotated[str | None, typer.Option("--pack", help="Prompt pack (default: lalaeval).")] = None,
    concurrency: Concurrency = None,
    max_cost: MaxCost = None,
    retry_failed: RetryFailed = False,
    max_failures: Annotated[
        int, typer.Option("--max-failures", min=0, help="Let grading begin with up to N answers missing.")
    ] = 0,
) -> None:
    """Draw questions, collect answers, and make a round's grading folder; run it again to resume."""
    from viva.cli.run import exit_with, run_launch
    from viva.engine.errors import ConfigurationError
    from viva.grading.store import GRADES_FILE
    from viva.reports.page import count_of

    from ..project import Project
    from ..rounds import is_round
    from .grading_folder import make_grading_folder

    if n is not None and quota is not None:
        raise ConfigurationError("-n and --quota: give only one of them")
    opened = Project.open(project)
    kind: RoundKind = "trial" if trial else "evaluation"
    name = round_name or _next_round_name(opened)
    if not candidate and not is_round(opened.round(name)):
        raise ConfigurationError(_NO_CANDIDATE)  # before any question is drawn
    round_ = _open_or_make_round(opened, name, kind, seed, n, _parse_quota(quota, opened), reuse=reuse)
    options: dict[str, Any] = {"candidate": candidate, "temperature": temperature, "candidate_tokens": candidate_tokens}
    options |= {"pack": pack, "concurrency": concurrency, "max_cost": max_cost}
    launch = launch_collection(
        round_, {name: value for name, value in options.items() if value}, retry_failed=retry_failed
    )
    result = run_launch(launch)
    outcome, grades = result.outcome, round_.path / GRADES_FILE
    if outcome.how == "done" and outcome.failed <= max_failures and not grades.exists():
        held_back = _print_barred(opened, kind)
        incomplete = make_grading_folder(round_, held_back)
        if incomplete:
            print_note(f"{count_of(incomplete, 'question')} without an answer; the others can be graded")
    try:
        exit_with(launch, result, max_failures)
    finally:  # the next step is the last line
        if grades.exists():
            gold = f" and {count_of(len(round_.gold), 'gold question')}" if round_.gold else ""
            candidates = count_of(len(launch.prepared.lineups), "candidate")
            answered = f"{count_of(len(round_.pairs), 'question')}{gold}, {candidates}"
            print(f"{round_.path}: {answered}, ready to grade: viva grade serve {round_.path}")
        elif outcome.how == "done":
            print_message(f"viva: missing answers: {outcome.failed}; retry with --retry-failed, or begin without them "
                          f"with --max-failures {outcome.failed}")  # fmt: skip


def launch_collection(round_: Round, options: dict[str, Any], *, retry_failed: bool = False) -> Launch:
    """Return the run that collects a round's answers, new or resumed.

    Raises:
        ConfigurationError: No candidate is given, or the run was started with other settings.
    """
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.launch import continued_run, resumed_run

    from ..scenario import SCENARIO

    begun = (round_.answers / "manifest.json").is_file()
    if "candidate" not in options and begun:
        circumstances = SCENARIO.settings.circumstances
        fixed = sorted(options.keys() - circumstances)
        if fixed:
            raise ConfigurationError(f"{', '.join(fixed)}: also give --candidate, or resume without {', '.join(fixed)}")
        return resumed_run(round_.answers, changes=options, retry_failed=retry_failed)
    if "candidate" not in options:
        raise ConfigurationError(_NO_CANDIDATE)
    settings = {"questions": str(round_.questions), "seed": round_.record.seed, **options}
    return continued_run(
        SCENARIO, read_settings(SCENARIO.settings, settings, None), round_.answers, retry_failed=retry_failed
    )


def _open_or_make_round(
    project: Project,
    name: str,
    kind: RoundKind,
    seed: int | None,
    n: int | None,
    quota: dict[str, Counts] | None,
    *,
    reuse: bool,
) -> Round:
    from ..question_bank import Bank
    from ..rounds import check_unchanged, is_round, make_round, open_round

    path = project.round(name)
    if is_round(path):
        round_ = open_round(path)
        check_unchanged(round_, kind, seed, n, quota)
        return round_
    with Bank.open(project) as bank:
        round_ = make_round(project, bank, name, kind=kind, seed=seed, n=n, quota=quota, reuse=reuse, day=date.today())
    if project.file.gold and not round_.gold:
        print_note("the bank has no question with gold answers, so the round has no gold questions")
    return round_


def _print_barred(project: Project, kind: RoundKind) -> dict[str, str]:
    """Return the graders who may not grade in an evaluation, and print them on stderr."""
    from .grading_folder import barred_graders

    barred = barred_graders(project) if kind == "evaluation" else {}
    for name, reason in barred.items():
        print_note(
            f"{name} is paused by the deployment gate: {reason}; override with `viva grade graders FOLDER resume NAME`"
        )
    return barred


def _next_round_name(project: Project) -> str:
    """Return the round whose answers are still being collected, else the next number."""
    from viva.grading.store import GRADES_FILE

    from ..rounds import is_round

    rounds = [path for path in project.rounds() if is_round(path)]
    begun = [path.name for path in rounds if not (path / GRADES_FILE).exists()]
    if begun:
        return begun[-1]
    number = len(rounds) + 1
    while project.round(str(number)).exists():
        number += 1
    return str(number)


def _parse_quota(text: str | None, project: Project) -> dict[str, Counts] | None:
    """Parse DIFFICULTY=COUNT, separated by commas.

    Raises:
        ConfigurationError: It has another form.
    """
    from viva.engine.errors import ConfigurationError

    from ..project import DIFFICULTIES

    if text is None:
        return None
    counts: Counts = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        difficulty = next((level for level in DIFFICULTIES if level == name.strip()), None)
        if difficulty is None or not count.strip().isdecimal():
            expected = ", ".join(f"{level}=N" for level in DIFFICULTIES)
            raise ConfigurationError(f"--quota: expected some of {expected}, found '{part}'")
        counts[difficulty] = int(count)
    return {path: dict(counts) for path in project.dimensions}
