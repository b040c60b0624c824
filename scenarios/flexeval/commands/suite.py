"""Commands `viva suite run`, `check`, `gate`, `init`, `export`, `watch` and `schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.cli.app import HELP, CommandGroup, command
from viva.cli.exit_codes import print_message, print_note
from viva.cli.options import Concurrency, MaxCost, read_settings

if TYPE_CHECKING:
    from viva.cli.run import RunResult
    from viva.orchestration.launch import Launch

    from ..scenario import FlexEvalSettings

RUN_EXAMPLE = """\b
Exit codes: 0 all thresholds hold; 1 a threshold is broken;
2 the suite cannot run; 3 tests failed or did not run; 130 interrupted.

\b
Examples:
  viva suite init mysuite && viva suite run mysuite/suite.yaml
  viva suite run suite.yaml --baseline runs/last --junit gate.xml \\
      --candidate 'openai:http://127.0.0.1:8000/v1#bot'"""

_MAX_SHOWN = 10
SuiteFile = Annotated[str, typer.Argument(metavar="SUITE", help="Suite file or folder; FILE#NAME if it has several.")]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="RUN", help="Baseline run folder for thresholds with `fall` or `rise`."),
]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Also write the gate as JUnit XML, for CI systems.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML page.")]


def run(
    suite: SuiteFile,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", "--compare", metavar="MODEL", help="System under test instead of the suite's."),
    ] = None,
    grader: Annotated[
        str | None,
        typer.Option("--grader", metavar="MODEL", help="Model that grades rubrics instead of the suite's."),
    ] = None,
    baseline: Baseline = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="Number of times that each conversation is tested.")
    ] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Only test the first N conversations.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all random choices.")] = None,
    concurrency: Concurrency = None,
    max_cost: MaxCost = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Run folder to create (default: runs/NAME-TIME).")
    ] = None,
    junit: JUnit = None,
    json: Json = False,
    html: Html = None,
    max_failures: Annotated[
        int, typer.Option("--max-failures", min=0, help="Number of failed or missing tests to tolerate.")
    ] = 0,
) -> None:
    """Run a suite. Exit code 0 if all thresholds hold, 1 if one is broken."""
    from viva.cli.output_files import check_output_files
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.launch import new_run

    from ..scenario import SCENARIO

    check_output_files({"--junit": junit, "--html": html}, [Path(suite.partition("#")[0])])
    options: dict[str, Any] = {"candidate": candidate, "grader": grader, "baseline": baseline, "repeats": repeats}
    options |= {"n": n, "seed": seed, "concurrency": concurrency, "max_cost": max_cost}
    launch = new_run(SCENARIO, suite_settings(suite, options), out or fresh_folder("suite"))
    run_and_report(launch, junit=junit, json=json, html=html, max_failures=max_failures)


def suite_settings(suite: str, options: dict[str, Any]) -> FlexEvalSettings:
    """Return the settings of a suite's run with these options; empty options are ignored."""
    from ..scenario import SCENARIO

    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value}
    return read_settings(SCENARIO.settings, {"suite": suite, **chosen}, None)


def run_and_report(launch: Launch, *, junit: Path | None, json: bool, html: Path | None, max_failures: int) -> None:
    """Run, print the report, write the gate, and exit with the matching code."""
    from viva.cli.exit_codes import DONE, FAILED, FAILURES
    from viva.cli.output import print_results
    from viva.cli.run import exit_with, run_launch, write_run_page
    from viva.orchestration.completeness import missing_conversations

    from ..result_files import missing_tests, write_results
    from .suite_runs import SoftBudget

    for note in launch.prepared.notes:
        print_note(note)
    budget = SoftBudget(launch)
    result: RunResult = run_launch(launch)
    write_results(launch.folder.path)
    if json or result.has_conversations:
        unfinished = None if result.outcome.how == "done" else missing_conversations(launch.folder)
        print_results(result.aggregate, launch.folder.path, json=json, missing=unfinished)
    write_run_page(result, launch, html)
    broken = report_gate(result.aggregate, junit, launch.folder.path)
    missing = missing_tests(launch.folder.path)
    if missing:
        keys = ", ".join(key for key, _ in missing[:_MAX_SHOWN]) + (", …" if len(missing) > _MAX_SHOWN else "")
        print_message(f"viva: {len(missing):,} tests did not run: {keys}")
    code = None
    if result.outcome.how == "done" or budget.used is not None:
        acceptable = result.outcome.failed + len(missing) <= max_failures
        code = FAILED if broken else DONE if acceptable else FAILURES
    exit_with(launch, result, max_failures, code)


def report_gate(aggregate: Any, junit: Path | None, path: Path) -> bool:
    """Print the gate of the run at `path`, write it as JUnit XML if requested, and return True if it is broken."""
    from viva.cli.output_files import print_file

    from ..result_files import write_junit

    checks = aggregate.gate()
    broken = [check for check in checks if check.broken]
    for check in broken:
        print_note(check.describe(), "BROKEN")
    if checks and not broken:
        print_message(f"viva: the gate holds: {len(checks)} thresholds")
    if junit is not None:
        write_junit(aggregate, junit, path)
        print_file("JUnit file", junit)
    return bool(broken)


def gate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a suite's run.")],
    baseline: Baseline = None,
    thresholds: Annotated[
        Path | None, typer.Option("--thresholds", help="Suite file with the thresholds to use instead of the run's.")
    ] = None,
    junit: JUnit = None,
    json: Json = False,
    html: Html = None,
) -> None:
    """Check a recorded run's thresholds without calling a model. Exit code 1 if one is broken."""
    from viva.cli.exit_codes import FAILED
    from viva.cli.output import print_json, print_tables
    from viva.cli.output_files import check_output_files, write_tables_page
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.launch import recorded_results

    from ..suite_file import read_suite
    from ..suite_report import gate_table

    check_output_files({"--junit": junit, "--html": html}, [] if thresholds is None else [thresholds])
    options = {} if baseline is None else {"baseline": str(baseline)}
    aggregate = recorded_results(RunFolder.open(run), options)
    if thresholds is not None:
        suite = read_suite(thresholds).suite
        aggregate.take_thresholds(suite, str(thresholds))  # type: ignore[attr-defined]
    report = aggregate.report()
    if json:
        print_json({"gate": report["gate"], "untested": report["untested"]})
    else:
        print_tables([gate_table(report)])
    if html is not None:
        write_tables_page(html, f"Gate of {run.name}", [], [gate_table(report)])
    if report_gate(aggregate, junit, run):
        sys.exit(FAILED)


def check(suite: SuiteFile) -> None:
    """Check a suite and print what it would test, without calling a model."""
    from textwrap import fill

    from viva.orchestration.prepared_run import PreparedRun

    from ..scenario import SCENARIO

    prepared = PreparedRun(SCENARIO, read_settings(SCENARIO.settings, {"suite": suite}, None))
    for note in prepared.notes:
        print_note(note)
    records = prepared.opened.records
    body = records["suite"]
    typer.echo(f"{body['name']}: {len(prepared.opened.tasks):,} conversations, {', '.join(prepared.lineups)}")
    typer.echo(f"  {prepared.total:,} tests ({body['complete']}), {len(body.get('thresholds', []))} thresholds")
    for metric in records["metrics"]:
        spec = metric["metric"]
        source = f"function {metric['reference']}" if metric["reference"] else f"rubric {spec['rubric']}"
        role = f" of the {spec['role']}" if "role" in spec else ""
        condition_text = (
            f", depending on {', '.join(condition['metric'] for condition in spec['when'])}" if spec.get("when") else ""
        )
        line = f"{metric['name']}: {source}, each {metric['level']}{role}{condition_text}"
        typer.echo(fill(line, 80, initial_indent="  ", subsequent_indent="    "))


def schema(
    indent: Annotated[int, typer.Option("--indent", min=0, max=8, help="Spaces per level.")] = 2,
) -> None:
    """Print the JSON schema of suite files, for editors (yaml-language-server: $schema=…)."""
    import json

    from ..spec import Suite

    typer.echo(json.dumps(Suite.model_json_schema(), indent=indent, ensure_ascii=False))


_TEMPLATE_FILES = ("suite.yaml", "conversations.jsonl", "metrics.py")
_TEMPLATES = Path(__file__).parent.parent / "templates"


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")] = Path("suite"),
) -> None:
    """Create a small commented suite that runs at once against a simulated application."""
    import shlex

    from viva.engine.errors import ConfigurationError
    from viva.reports.tables import one_line

    metrics_path = shlex.quote(one_line(str(folder / "metrics.py")))
    existing = [name for name in _TEMPLATE_FILES if (folder / name).exists()]
    if existing:
        raise ConfigurationError(f"{folder} already contains {', '.join(existing)}; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _TEMPLATE_FILES:
            template = (_TEMPLATES / name).with_suffix(".txt" if name.endswith(".py") else Path(name).suffix)
            text = template.read_text(encoding="utf-8").replace("FOLDER/metrics.py", metrics_path)
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be created: {error.strerror}") from None
    for name, description in zip(
        _TEMPLATE_FILES, ("the suite, with comments", "ten conversations", "your own metrics"), strict=True
    ):
        typer.echo(f"{folder / name}: {description}")
    typer.echo(f"run it with: viva suite run {shlex.quote(str(folder / 'suite.yaml'))}")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a suite's run.")],
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FOLDER", help="Folder for CSV files, one per table.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FOLDER", help="Folder for Parquet files (extra `parquet`).")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FOLDER", help="Folder for JSON Lines files.")] = None,
) -> None:
    """Write results.sqlite into the run folder (conversations, turns, messages, tool_calls, metrics), and copies."""
    from ..result_files import export_tables as write
    from ..result_files import write_results

    typer.echo(write_results(run))
    for kind, folder in (("csv", csv), ("parquet", parquet), ("json", json)):
        if folder is not None:
            for file in write(run, folder, kind):
                typer.echo(file)


def watch(
    log: Annotated[
        Path, typer.Argument(help="Growing log of OpenTelemetry spans, OpenAI requests or dialogs, one per line.")
    ],
    suite: Annotated[str, typer.Option("--suite", metavar="FILE", help="Suite with the metrics and thresholds.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Run folder to create or to continue.")
    ] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.05, help="Seconds between reads of the log.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Score the log's current lines, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON at the end.")] = False,
    html: Html = None,
) -> None:
    """Score new lines of a growing log as they arrive; Ctrl-C ends with the report.

    Recorded conversations are scored; if a conversation grows, only its new part is scored. The same command with the
    same --out continues where it stopped.
    """
    from viva.cli.exit_codes import FAILED
    from viva.cli.output import print_json, print_tables
    from viva.cli.output_files import check_output_files, write_report_page
    from viva.cli.signals import run_with_signals
    from viva.engine.errors import ConfigurationError
    from viva.engine.event_loop import gc_tuned
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.launch import recorded_results

    from ..result_files import write_results

    check_output_files({"--html": html}, [log])
    path = (out or fresh_folder("watch")).absolute()
    if once and not log.exists():
        raise ConfigurationError(f"{log}: no such file")
    watcher, show = _open_watcher(log, suite, path)
    later = "" if log.exists() else " (it does not exist yet)"
    print_message(f"viva: watching {log}{later}; run folder: {path}")
    with gc_tuned():
        show.clock.run(lambda: run_with_signals(lambda ready: watcher.follow(None if once else every, ready), show))
    for note in watcher.notes:
        print_note(note)
    write_results(path)
    aggregate: Any = recorded_results(show.folder)
    if json:
        print_json(aggregate.report())
    else:
        print_tables(aggregate.tables())
    if html is not None:
        write_report_page(html, [path])
    if report_gate(aggregate, None, path):
        sys.exit(FAILED)


class _WatchDisplay:
    """Display that prints a line after each batch, and when a threshold breaks or holds again."""

    def __init__(self, folder: Any, clock: Any) -> None:
        from viva.orchestration.launch import empty_results
        from viva.orchestration.run_progress import RunProgress

        self.folder, self.clock = folder, clock
        self.note = ""
        self._aggregate: Any = empty_results(folder)
        self._tally = RunProgress(self._aggregate)
        self._broken: set[str] = set()

    def on_event(self, event: Any) -> None:
        """Handle an event of any batch."""
        self._tally.hear(event)

    def on_batch(self, count: int) -> None:
        """Print a batch's counts and threshold changes."""
        tally = self._tally
        counts = f"{count:,} new, {tally.done:,} in all" + (f", {tally.failed:,} failed" if tally.failed else "")
        print_message(f"viva: {counts}; {self._aggregate.headline()}")
        for check in self._aggregate.gate():
            name = f"{check.system} {check.name}"
            if check.broken and check.found is not None and name not in self._broken:
                self._broken.add(name)
                print_note(check.describe(), "BROKEN")
            elif not check.broken and name in self._broken:
                self._broken.discard(name)
                print_note(check.describe(), "holds again")

    async def show(self) -> None:
        """Wait forever, as nothing changes between batches."""
        import anyio

        await anyio.sleep_forever()


def _open_watcher(log: Path, suite: str, path: Path) -> tuple[Any, _WatchDisplay]:
    """Return the watcher of a new folder, or of one to continue.

    Raises:
        ConfigurationError: The suite is invalid, or the folder contains another run.
    """
    from viva.engine.clock import RealClock
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.launch import check_settings, check_unchanged
    from viva.orchestration.prepared_run import PreparedRun

    from ..scenario import SCENARIO
    from .suite_runs import SPOOL_FILE, Watcher

    settings = suite_settings(suite, {"watched": str(path / SPOOL_FILE)})
    if (path / "manifest.json").exists():
        folder = RunFolder.open(path)
        check_settings(folder, SCENARIO.name, settings)
        prepared = PreparedRun(SCENARIO, settings, recorded=folder.manifest)
        check_unchanged(folder, prepared)
    else:
        prepared = PreparedRun(SCENARIO, settings)
        folder = RunFolder.create(path, prepared.manifest())
    clock = RealClock()
    display = _WatchDisplay(folder, clock)
    return Watcher(log, folder, prepared, clock, display.on_event, display.on_batch), display


app = typer.Typer(
    cls=CommandGroup,
    name="suite",
    help="Test a chatbot with a suite of conversations, metrics and thresholds.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
)
command("run", group=app, epilog=RUN_EXAMPLE)(run)
command("check", group=app)(check)
command("gate", group=app)(gate)
command("init", group=app)(init)
command("export", group=app)(export)
command("watch", group=app)(watch)
command("schema", group=app)(schema)
