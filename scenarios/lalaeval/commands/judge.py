"""Command `viva grade judge`: judge models grade like people; their grades are marked as a model's.

They take no person's assignment: the overlap counts people only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.cli.options import Concurrency, MaxCost, RetryFailed, read_settings

if TYPE_CHECKING:
    from viva.grading.records import Grader
    from viva.grading.store import GradeStore
    from viva.orchestration.launch import Launch

EXAMPLE = """\b
Examples:
  viva grade judge library/rounds/2026-06 --grader openai:gpt-4o
  viva grade judge queue --grader llama:judge.gguf --shown all"""
_JUDGES_FOLDER = "judges"
_PAGE_FIELDS = ("id", "text", "labels", "context", "standard_answer", "principle")


def judge(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder, such as a round's.")],
    grader: Annotated[list[str], typer.Option("--grader", "--compare", metavar="MODEL", help="Model that grades.")],
    shown: Annotated[
        str | None,
        typer.Option(
            "--shown", metavar="one|all", help="One answer at a time (default), or all answers of a question."
        ),
    ] = None,
    grader_tokens: Annotated[
        int | None, typer.Option("--grader-tokens", min=1, help="Token limit of reasoning and grades.")
    ] = None,
    pack: Annotated[str | None, typer.Option("--pack", help="Prompt pack (default: lalaeval-judge).")] = None,
    concurrency: Concurrency = None,
    max_cost: MaxCost = None,
    retry_failed: RetryFailed = False,
) -> None:
    """Let judge models grade a folder's answers; run it again to resume."""
    from viva.cli.run import exit_with, run_launch
    from viva.grading.store import GradeStore

    options: dict[str, Any] = {"shown": shown, "grader_tokens": grader_tokens, "pack": pack}
    options |= {"concurrency": concurrency, "max_cost": max_cost}
    options = {name: value for name, value in options.items() if value is not None}
    for number, model in enumerate(grader, 1):
        with GradeStore.open(folder) as store:
            launch = launch_judging(store, model, options, retry_failed=retry_failed)
            result = run_launch(launch)
            entered = enter_grades(store, launch, model)
        print(f"{entered.grader.name}: {entered.entered:,} grades, {entered.missing:,} verdicts could not be read")
        if number == len(grader) or result.outcome.how != "done":
            exit_with(launch, result, 0)


@dataclass(slots=True, frozen=True)
class EnteredGrades:
    """Outcome of a judge's run: the numbers of grades entered and missing."""

    grader: Grader
    entered: int
    missing: int


def launch_judging(store: GradeStore, model: str, options: dict[str, Any], *, retry_failed: bool = False) -> Launch:
    """Return the run in which a judge grades a folder's pages, new or resumed.

    Raises:
        ConfigurationError: A person has the judge's name, or the run was started with other settings or pages.
    """
    from viva.orchestration.launch import continued_run

    from ..judging import SCENARIO

    label = judge_name(store, model)
    folder = store.folder / _JUDGES_FOLDER / label
    pages = _write_pages(store, folder)
    settings = read_settings(SCENARIO.settings, {"pages": str(pages), "grader": [model], **options}, None)
    return continued_run(SCENARIO, settings, folder / "run", retry_failed=retry_failed)


def judge_name(store: GradeStore, model: str) -> str:
    """Return the name of a judge among the graders.

    Raises:
        ConfigurationError: A person has it, or it is not a valid folder name.
    """
    from viva.engine.errors import ConfigurationError
    from viva.scenarios.models import model_labels

    [label] = model_labels([model])
    if "/" in label or label.startswith("."):
        raise ConfigurationError(f"{model}: give it a plain name with ?label=NAME")
    if any(grader.name == label and grader.kind == "person" for grader in store.graders()):
        raise ConfigurationError(f"a person is called '{label}'; give the judge another name with ?label=NAME")
    return label


def enter_grades(store: GradeStore, launch: Launch, model: str) -> EnteredGrades:
    """Enter a judge's recorded verdicts as grades. An unreadable verdict is a missing grade."""
    from viva.engine.journal_reader import History

    name = judge_name(store, model)
    version = launch.folder.manifest["pack"]["digest"]
    entered = missing = 0
    with store.batch():
        graders_by_name = {existing.name: existing for existing in store.graders()}
        grader = graders_by_name.get(name) or store.add_grader(name, kind="model", model=model)
        with History(launch.folder.journal) as history:
            for ended in history.ended():
                if ended.failed:
                    continue
                for answer, value in ended.result["grades"].items():
                    reason = ended.result["reasons"][answer] if value is not None else "the verdict could not be read"
                    store.grade(
                        grader.number, answer, value, reason, submission=f"judge/{name}/{version}/{answer}/{value}"
                    )
                    entered, missing = entered + (value is not None), missing + (value is None)
        store.log(name, f"graded {entered} answers as a judge model; {missing} verdicts could not be read")
    return EnteredGrades(grader, entered, missing)


def _write_pages(store: GradeStore, folder: Path) -> Path:
    """Write the pages that a judge sees, as JSON lines."""
    import orjson

    from viva.engine.errors import ConfigurationError
    from viva.engine.files import write_atomically

    lines = []
    for question in store.questions():
        if question.invalid:
            continue
        page = {name: value for name, value in question.to_record().items() if name in _PAGE_FIELDS}
        answers = [{"id": answer.id, "position": answer.position, "turns": answer.turns} for answer in question.answers]
        lines.append(orjson.dumps({**page, "answers": answers}, option=orjson.OPT_APPEND_NEWLINE))
    path = folder / "pages.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, b"".join(lines))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None
    return path
