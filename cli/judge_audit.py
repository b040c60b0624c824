"""``viva judge audit``: does what should not matter change a judge's verdicts? A run of the audit, told in sentences.

What never belongs here: asking (the scenario), statistics.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exit_codes import guarded
from .lazy_command import add_late
from .run import Config, Json, MaxFailures, Out, hold, leave

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch
    from viva.scenarios.audit.settings import AuditSettings
    from viva.scenarios.registry import AnyScenario

_SCENARIO, _CASES = "audit", "cases.jsonl"
_SUMMARY = "Audit judges: position, verbosity, format, self-preference, labels, test-retest."
_WIDE = 80


def register(judges: typer.Typer) -> None:
    """Add the command."""
    add_late(judges, "audit", _SUMMARY, _command, _example)


def _example() -> str:
    from viva.scenarios.registry import scenario

    from .options import example

    return example("viva judge audit", scenario(_SCENARIO).settings, ["judge"])


def _command() -> Any:
    from viva.scenarios.registry import scenario

    from .options import read_settings, with_settings

    which = scenario(_SCENARIO)

    def command(
        given: dict[str, Any],
        run: Annotated[
            Path | None, typer.Option("--run", help="Take the answers of this run's models as cases, two by two.")
        ] = None,
        plot: Annotated[
            Path | None, typer.Option("--plot", help="Forest plot to draw, .svg or .png (needs the extra `plots`).")
        ] = None,
        config: Config = None,
        out: Out = None,
        json: Json = False,
        max_failures: MaxFailures = 0,
    ) -> None:
        from .drawing import check_drawable

        if plot is not None:
            check_drawable(plot)
        settings = read_settings(which.settings, given, config)
        _audit(_launch(which, settings, run, out), plot, json, max_failures)

    command.__doc__ = _SUMMARY
    return guarded(with_settings(command, which.settings))


def _launch(which: AnyScenario, settings: AuditSettings, run: Path | None, out: Path | None) -> Launch:
    """The run to hold; cases taken from another run are put into its folder.

    :raises ConfigurationError: the cases or the settings are wrong.
    """
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.launch import new_run

    folder = (out or fresh_folder(_SCENARIO)).absolute()
    if run is None:
        return new_run(which, settings, folder)
    import asyncio

    from viva.engine.errors import ConfigurationError
    from viva.scenarios.audit.cases import case_lines, drawn_cases, reply_cases
    from viva.scenarios.audit.scenario import Audit
    from viva.scenarios.audit.settings import EXAMPLES
    from viva.study.meta.runs import recorded_replies

    if settings.cases != EXAMPLES:
        raise ConfigurationError("--run and --cases exclude each other: both say which cases there are")
    cases = reply_cases(asyncio.run(recorded_replies(run)))
    if not cases:
        raise ConfigurationError(f"--run {run}: no two of its models answered the same question")
    cases = drawn_cases(cases, settings.n, settings.seed)
    changed = settings.model_copy(update={"cases": str(folder / _CASES), "n": None})
    return new_run(Audit(cases), changed, folder, files={_CASES: case_lines(cases)})


def _audit(launch: Launch, plot: Path | None, json: bool, max_failures: int) -> None:
    from viva.engine.errors import ConfigurationError
    from viva.reports.controls import harmless

    from .output import print_json, print_tables, print_text

    for note in launch.prepared.notes:
        print(f"viva: note: {harmless(note)}", file=sys.stderr)
    held = hold(launch)
    report = held.aggregate.report()
    if plot is not None:
        from viva.scoring.plots.forest import ForestRow, draw_forest

        rows = [ForestRow(_name(one, len(report["answer"]) > 1), one["effect"]["value"], one["effect"]["low"],
                          one["effect"]["high"], one["found"])
                for one in report["findings"] if one["effect"]["value"] is not None]  # fmt: skip
        try:
            draw_forest(plot, "Audit of judges", rows, "effect (95%)")
        except OSError as error:
            raise ConfigurationError(f"--plot {plot}: cannot be written: {error.strerror}") from None
    if json:
        print_json(report)
    else:
        print_text("\n".join(textwrap.fill(harmless(line), _WIDE) for line in report["answer"]) + "\n\n")
        print_tables(held.aggregate.tables())
    leave(launch, held, max_failures)


def _name(one: dict[str, Any], several: bool) -> str:
    what = f"{one['audit']} {one['scale']}" if one["audit"] == "labels" else str(one["audit"])
    return f"{one['judge']}, {what}" if several else what
