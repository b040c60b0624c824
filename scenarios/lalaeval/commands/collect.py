"""``viva grade collect``: draw a round's questions, collect the candidates' answers, and make the grading folder.

What never belongs here: how a round lies on disk (``rounds``), and how a run works.
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch

    from ..project import Project
    from ..project_file import Counts
    from .rounds import Drawn, Kind

_NO_CANDIDATE = "name the models that answer: --candidate MODEL, once or several times"
EXAMPLE = """\b
Examples:
  viva grade collect library --candidate openai:gpt-4o --candidate llama:ours.gguf --round 2026-06
  viva grade collect library --trial --candidate openai:gpt-4o -n 8

The same command goes on with a round that was interrupted."""


def collect(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")],
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", help="Model that answers; may be given several times.")
    ] = None,
    round_: Annotated[
        str | None, typer.Option("--round", help="The round's name (default: the one under way, else a new number).")
    ] = None,
    trial: Annotated[
        bool, typer.Option("--trial", help="A trial round: every grader grades all of it, for training.")
    ] = False,
    n: Annotated[int | None, typer.Option("-n", min=1, help="So many questions of all, instead of the quota.")] = None,
    quota: Annotated[
        str | None, typer.Option("--quota", metavar="simple=2,difficult=1", help="So many of each dimension.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the draw (default: the project's).")] = None,
    reuse: Annotated[
        bool,
        typer.Option("--reuse-questions", help="Draw questions of trials for evaluations too, and the reverse."),
    ] = False,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Of the candidates (default: 0).")] = None,
    candidate_tokens: Annotated[
        int | None, typer.Option("--candidate-tokens", min=1, help="Longest answer to a round of a question.")
    ] = None,
    pack: Annotated[str | None, typer.Option("--pack", help="Prompt pack (default: lalaeval).")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Conversations in flight.")] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", help="Begin nothing more beyond this.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask again where a model failed.")] = False,
    max_failures: Annotated[
        int, typer.Option("--max-failures", min=0, help="Missing answers with which graders may begin.")
    ] = 0,
) -> None:
    """Draw questions, collect answers, and make the grading folder of a round; the same command goes on."""
    from viva.cli.run import hold, leave
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.grading.schema import FILE
    from viva.reports.page import counted

    from ..project import Project
    from .grading_folder import make_grading_folder
    from .rounds import is_drawn

    if n is not None and quota is not None:
        raise ConfigurationError("-n and --quota: give one of them")
    opened = Project.open(project)
    kind: Kind = "trial" if trial else "evaluation"
    name = round_ or _next_name(opened)
    if not candidate and not is_drawn(opened.round(name)):
        raise ConfigurationError(_NO_CANDIDATE)  # before anything is drawn
    drawn = _drawn(opened, name, kind, seed, n, _quota(quota, opened), reuse=reuse)
    given: dict[str, Any] = {"candidate": candidate, "temperature": temperature, "candidate_tokens": candidate_tokens}
    given |= {"pack": pack, "concurrency": concurrency, "max_cost": max_cost}
    launch = launched(drawn, {name: value for name, value in given.items() if value}, retry_failed=retry_failed)
    held = hold(launch)
    outcome, grades = held.outcome, drawn.path / FILE
    if outcome.how == "done" and outcome.failed <= max_failures and not grades.exists():
        held_back = _held_back(opened, kind)
        lacking = make_grading_folder(drawn, held_back)
        if lacking:
            print(f"viva: note: questions that lack an answer: {lacking}; the others are graded", file=sys.stderr)
    try:
        leave(launch, held, max_failures)
    finally:  # what comes next is the last line
        if grades.exists():
            gold = f" and {counted(len(drawn.gold), 'gold question')}" if drawn.gold else ""
            answered = (
                f"{counted(len(drawn.pairs), 'question')}{gold}, {counted(len(launch.prepared.labels), 'candidate')}"
            )
            print(f"{drawn.path}: {answered}, ready to grade: viva grade serve {drawn.path}")
        elif outcome.how == "done":
            print(f"viva: missing answers: {outcome.failed}; ask again with --retry-failed, or begin without them with "
                  f"--max-failures {outcome.failed}", file=sys.stderr)  # fmt: skip


def launched(drawn: Drawn, given: dict[str, Any], *, retry_failed: bool = False) -> Launch:
    """The run that collects a round's answers: a new one, or the one that was begun.

    :raises ConfigurationError: no candidate is named, or the run was begun with other settings.
    """
    from viva.cli.options import read_settings
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.launch import continued_run, resumed_run

    from ..scenario import SCENARIO

    begun = (drawn.answers / "manifest.json").is_file()
    if "candidate" not in given and begun:
        circumstances = SCENARIO.settings.circumstances
        fixed = sorted(given.keys() - circumstances)
        if fixed:
            raise ConfigurationError(f"{', '.join(fixed)}: name the candidates too, or leave it out to go on as begun")
        return resumed_run(drawn.answers, changes=given, retry_failed=retry_failed)
    if "candidate" not in given:
        raise ConfigurationError(_NO_CANDIDATE)
    settings = {"questions": str(drawn.questions), "seed": drawn.record.seed, **given}
    return continued_run(
        SCENARIO, read_settings(SCENARIO.settings, settings, None), drawn.answers, retry_failed=retry_failed
    )


def _drawn(
    project: Project,
    name: str,
    kind: Kind,
    seed: int | None,
    n: int | None,
    quota: dict[str, Counts] | None,
    *,
    reuse: bool,
) -> Drawn:
    from ..bank import Bank
    from .rounds import check_same, draw_round, is_drawn, open_round

    path = project.round(name)
    if is_drawn(path):
        drawn = open_round(path)
        check_same(drawn, kind, seed, n, quota)
        return drawn
    with Bank.open(project) as bank:
        drawn = draw_round(project, bank, name, kind=kind, seed=seed, n=n, quota=quota, reuse=reuse, day=date.today())
    if project.file.gold and not drawn.gold:
        print("viva: note: the bank has no question with gold answers, so there are no gold questions", file=sys.stderr)
    return drawn


def _held_back(project: Project, kind: Kind) -> dict[str, str]:
    """Who may not grade in an evaluation, said on stderr."""
    from viva.reports.controls import one_line

    from .deployment import held_back

    found = held_back(project) if kind == "evaluation" else {}
    for name, reason in found.items():
        said = (
            f"{name} is paused by the deployment gate: {reason}; `viva grade graders FOLDER resume NAME` overrules it"
        )
        print(f"viva: note: {one_line(said)}", file=sys.stderr)
    return found


def _next_name(project: Project) -> str:
    """The round whose answers are still being collected, else the next number."""
    from viva.orchestration.grading.schema import FILE

    from .rounds import is_drawn

    rounds = [path for path in project.rounds() if is_drawn(path)]
    begun = [path.name for path in rounds if not (path / FILE).exists()]
    if begun:
        return begun[-1]
    number = len(rounds) + 1
    while project.round(str(number)).exists():
        number += 1
    return str(number)


def _quota(text: str | None, project: Project) -> dict[str, Counts] | None:
    """:raises ConfigurationError: it is not DIFFICULTY=COUNT with commas between."""
    from viva.engine.errors import ConfigurationError

    from ..project_file import DIFFICULTIES

    if text is None:
        return None
    counts: Counts = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        difficulty = next((one for one in DIFFICULTIES if one == name.strip()), None)
        if difficulty is None or not count.strip().isdecimal():
            wanted = ", ".join(f"{one}=N" for one in DIFFICULTIES)
            raise ConfigurationError(f"--quota: expected {wanted}, those that are wanted, found '{part}'")
        counts[difficulty] = int(count)
    return {path: dict(counts) for path in project.dimensions}
