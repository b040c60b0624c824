"""``viva suite run``: hold a suite's conversations, print the report, and leave with the gate's exit code.

What never belongs here: how a run works, and what a threshold is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from viva.cli.run import Held
    from viva.orchestration.launch import Launch

    from ..settings import FlexEvalSettings

EXAMPLE = """\b
Exit codes: 0 every threshold holds; 1 one is broken; 2 the suite cannot be run; 3 tests failed or were not made;
130 interrupted.

Examples:
  viva suite init mysuite && viva suite run mysuite/suite.yaml
  viva suite run suite.yaml --candidate 'openai:http://127.0.0.1:8000/v1#bot' --baseline runs/last --junit gate.xml"""

_SHOWN = 10
SuiteFile = Annotated[str, typer.Argument(metavar="SUITE", help="The suite file; FILE#NAME where it holds several.")]
Baseline = Annotated[Path | None, typer.Option("--baseline", help="Run folder that `fall` and `rise` compare with.")]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Also write the gate as JUnit XML, for CI systems.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")]


def run(
    suite: SuiteFile,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", help="System under test in place of the suite's; or several.")
    ] = None,
    grader: Annotated[str | None, typer.Option("--grader", help="Model that grades rubrics, likewise.")] = None,
    baseline: Baseline = None,
    repeats: Annotated[int | None, typer.Option("--repeats", min=1, help="How often each is tested.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Only the first so many conversations.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Every random choice derives from it.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Conversations in flight.")] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", help="Begin nothing more beyond this.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder to make (default: runs/NAME-TIME).")] = None,
    junit: JUnit = None,
    json: Json = False,
    max_failures: Annotated[
        int, typer.Option("--max-failures", min=0, help="Failed or missing tests that count as success.")
    ] = 0,
) -> None:
    """Run a suite: exit code 0 where every threshold holds, 1 where one is broken."""
    from viva.cli.targets import check_targets
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.launch import new_run

    from ..scenario import SCENARIO

    check_targets({"--junit": junit}, [Path(suite.partition("#")[0])])
    given: dict[str, Any] = {"candidate": candidate, "grader": grader, "baseline": baseline, "repeats": repeats}
    given |= {"n": n, "seed": seed, "concurrency": concurrency, "max_cost": max_cost}
    launch = new_run(SCENARIO, suite_settings(suite, given), out or fresh_folder("suite"))
    carry(launch, junit=junit, json=json, max_failures=max_failures)


def suite_settings(suite: str, given: dict[str, Any]) -> FlexEvalSettings:
    """The settings of a suite's run with what was given besides; what is empty counts as not given.

    :raises ConfigurationError: the suite, or what was given, is wrong.
    """
    from viva.cli.options import read_settings

    from ..scenario import SCENARIO

    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in given.items() if value}
    return read_settings(SCENARIO.settings, {"suite": suite, **chosen}, None)


def carry(launch: Launch, *, junit: Path | None, json: bool, max_failures: int) -> None:
    """Run, print the report, write the gate, and leave with the exit code that says how it went."""
    from viva.cli.exit_codes import DONE, FAILED, FAILURES
    from viva.cli.output import print_json, print_tables
    from viva.cli.run import hold, leave
    from viva.reports.controls import harmless

    from ..results import untested, write_results
    from .budget import SoftBudget

    for note in launch.prepared.notes:
        print(f"viva: note: {harmless(note)}", file=sys.stderr)
    budget = SoftBudget(launch)
    held: Held = hold(launch)
    write_results(launch.folder.path)
    if json:
        print_json(held.aggregate.report())
    else:
        print_tables(held.aggregate.tables())
    broken = verdict(held.aggregate, junit, launch.folder.path)
    missing = untested(launch.folder.path)
    if missing:
        named = ", ".join(key for key, _ in missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
        print(f"viva: {len(missing):,} tests were not made: {named}", file=sys.stderr)
    code = None
    if held.outcome.how == "done" or budget.used is not None:
        enough = held.outcome.failed + len(missing) <= max_failures
        code = FAILED if broken else DONE if enough else FAILURES
    leave(launch, held, max_failures, code)


def verdict(aggregate: Any, junit: Path | None, path: Path) -> bool:
    """Say how the gate stands, write it where it is wanted, and give whether it is broken."""
    from ..junit import write_junit

    checks = aggregate.gate()
    broken = [check for check in checks if check.broken]
    for check in broken:
        print(f"viva: BROKEN: {check.told()}", file=sys.stderr)
    if checks and not broken:
        print(f"viva: the gate holds: {len(checks)} thresholds", file=sys.stderr)
    if junit is not None:
        write_junit(aggregate, junit, path)
    return bool(broken)
