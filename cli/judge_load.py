"""`viva judge load`: load tests of judges, their speed and whether they still judge as they do without load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from viva.engine.errors import ConfigurationError

from .app import command
from .exit_codes import DONE, FAILED, FAILURES, INTERRUPTED, print_error, print_note
from .judge import judge as judge_group
from .options import Csv, Html, Json

if TYPE_CHECKING:
    from viva.loadtest.run_load_test import LoadLaunch

_RESUMABLE = ("json", "html", "csv")  # options that go with --resume
# How settings are called here, where that is not their name.
_OPTIONS = {
    "search": "--rate-search", "seconds": "--duration", "warm_up": "--warm-up", "cool_down": "--cool-down",
    **{name: f"--{name}" for name in ("arrivals", "burst", "concurrency", "drain", "pause", "rates", "tolerance")},
}  # fmt: skip


@command(
    "load",
    "viva judge load runs/mine --judge openai:gpt-4o-mini --rates 1,2,4,8",
    "viva judge load requests.jsonl --judge llama:judge.gguf --rate-search 0.5:32 "
    "--slo 'p95_e2e<3s, parse_fail<1%, drift<0.05'",
    "viva judge load --synthetic 'prompt=lognormal(800,0.5),output=100' "
    "--judge 'openai:http://127.0.0.1:8000/v1#name' --concurrency 1,4,16 --requests 200",
    "viva judge load --resume runs/load-20260101-120000",
    models=True,
    group=judge_group,
)
def _judge(
    context: typer.Context,
    work: Annotated[
        str | None,
        typer.Argument(metavar="RUN|FILE", help="What judges are asked: a run's folder, a file, or SYSTEM:FILE."),
    ] = None,
    synthetic: Annotated[
        str | None, typer.Option("--synthetic", metavar="LENGTHS", help="Requests of drawn lengths instead.")
    ] = None,
    judge: Annotated[
        list[str] | None, typer.Option("--judge", "--compare", metavar="MODEL", help="Judge to test.")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option("--rates", metavar="R,R,…", help="Open loop, after two unloaded passes: requests a second."),
    ] = None,
    rate_search: Annotated[
        str | None,
        typer.Option("--rate-search", metavar="LOW:HIGH", help="Search for the highest rate that meets --slo."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", metavar="N,N,…", help="Closed loop: requests in flight.")
    ] = None,
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="Of an open loop: poisson, constant, bursty or replay.")
    ] = "poisson",
    burst: Annotated[float, typer.Option("--burst", help="Squared variation of the gaps of bursty arrivals.")] = 4.0,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Requests a step, for each judge.")] = None,
    duration: Annotated[
        float | None,
        typer.Option("--duration", metavar="SECONDS", help="Length of a step (default: 60, or --requests)."),
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option("--warm-up", metavar="SECONDS", help="Beginning of a step to leave out (default: found)."),
    ] = None,
    cool_down: Annotated[
        float | None,
        typer.Option("--cool-down", metavar="SECONDS", help="End of a step to leave out, likewise."),
    ] = None,
    pause: Annotated[float, typer.Option("--pause", metavar="SECONDS", help="Pause between steps.")] = 0.0,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="Wait at most so long for the last answers of a step.")
    ] = 60.0,
    baseline: Annotated[
        int, typer.Option("--baseline", min=0, help="Requests of each unloaded pass at most; 0 leaves them out.")
    ] = 200,
    slo: Annotated[
        str | None, typer.Option("--slo", metavar="TERMS", help="Objective: 'p95_e2e<3s, parse_fail<1%, drift<0.05'.")
    ] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="How exactly a rate is searched, as a share.")] = 0.05,
    together: Annotated[
        bool, typer.Option("--together", help="Drive all judges at once instead of in turn at each rate.")
    ] = False,
    retries: Annotated[int, typer.Option("--retries", min=0, help="Tries after a failure that may pass.")] = 0,
    stop: Annotated[bool, typer.Option("--stop/--no-stop", help="End a step whose queue grows without bound.")] = True,
    role: Annotated[str | None, typer.Option("--role", help="Whose requests of a run (default: the judge's).")] = None,
    reader: Annotated[str | None, typer.Option("--reader", help="How answers are read (default: found).")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Different requests at most, drawn by the seed.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="File with the system prompts of a file of judgments.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in place of the requests' own.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="In place of the requests' own.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of arrivals, of what is drawn, and of each request.")] = 7,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to make (default: runs/load-TIME).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Resume the load test in this folder.")
    ] = None,
    json: Json = False,
    html: Html = None,
    csv: Csv = None,
) -> None:
    """Drive judges with recorded requests at chosen rates: speed, and whether their verdicts stay the same.

    Two unloaded passes come first; every step is compared with them. Latencies count from the intended start of a
    request. Exit code 3: the objective was not met.
    """
    from viva.loadtest.load_settings import check_load_settings, judges_by_label
    from viva.loadtest.run_load_test import new_load_test, reopen_load_test
    from viva.loadtest.synthetic_requests import SYNTHETIC_PREFIX
    from viva.loadtest.workload import WorkloadOptions
    from viva.orchestration.folders import fresh_folder

    from .output_files import check_output_files

    check_output_files(
        {"--html": html, "--csv": csv}, [Path(work)] if work is not None and Path(work).is_file() else []
    )
    if resume is not None:
        _refuse_beside_resume(context)
        _run_test(reopen_load_test(resume), json, html, csv)
    if (work is None) == (synthetic is None):
        raise ConfigurationError("name what judges are asked: the folder of a run, a file, or --synthetic LENGTHS")
    if not judge:
        raise ConfigurationError("name at least one judge with --judge MODEL")
    if rate_search is not None and slo is None:
        raise ConfigurationError("--rate-search looks for the highest rate that meets an objective; give --slo")
    fields: dict[str, Any] = {
        "judges": judges_by_label(judge),
        "arrivals": arrivals,
        "rates": _parse_numbers("--rates", rates, float),
        "concurrency": _parse_numbers("--concurrency", concurrency, int),
        "search": _parse_ends(rate_search),
        "tolerance": tolerance,
        "objective": slo,
        "requests": requests,
        "seconds": duration,
        "baseline": baseline,
        "warm_up": warm_up,
        "cool_down": cool_down,
        "pause": pause,
        "drain": drain,
        "burst": burst,
        "retries": retries,
        "stop_at_saturation": stop,
        "together": together,
        "seed": seed,
    }
    options = WorkloadOptions(role, reader, limit, seed, {}, prompts, max_tokens, temperature)
    source = work if work is not None else SYNTHETIC_PREFIX + (synthetic or "").removeprefix(SYNTHETIC_PREFIX)
    _run_test(
        new_load_test(out or fresh_folder("load"), source, options, check_load_settings(fields, _OPTIONS)),
        json,
        html,
        csv,
    )


def _run_test(launch: LoadLaunch, json: bool, html: Path | None, csv: Path | None) -> NoReturn:
    """Run, show progress, print what was found; the exit code says whether the objective was met."""
    from viva.engine.errors import SettingRefused
    from viva.loadtest.load_report import report_of_test

    from .progress import BenchProgress
    from .signals import run_in_foreground

    progress = BenchProgress(launch)
    for note in (*launch.work.notes, *launch.unloaded_notes()):
        print_note(note)
    try:
        test = run_in_foreground(launch.clock, launch.run, progress)
    except Exception as error:
        if not isinstance(error, SettingRefused) and launch.test is not None and launch.test.results:
            print(f"go on with: viva judge load --resume {launch.folder.path}", file=sys.stderr)
        raise
    record = report_of_test(test, launch.work)
    _print_report(record, json, html, csv)
    print(f"load test folder: {launch.folder.path}", file=sys.stderr)
    if test.interrupted:
        print(f"go on with: viva judge load --resume {launch.folder.path}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    speeds = [step["speed"] for judge in record["judges"] for step in judge["steps"] if step["speed"] is not None]
    if not any(speed["answered"] for speed in speeds):
        print_error("no request was answered, so nothing is known of any judge under load")
        sys.exit(FAILED)
    objective = record["objective"]
    sys.exit(DONE if objective is None or objective["met"] else FAILURES)


def _print_report(record: dict[str, Any], json: bool, html: Path | None, csv: Path | None) -> None:
    from viva.loadtest.load_page import CSV_COLUMNS, CSV_TEXTS, csv_rows, load_page
    from viva.loadtest.load_sentences import conclusions, report_notes
    from viva.loadtest.load_tables import load_tables
    from viva.reports.studies.export import write_rows

    from .output import print_json, print_paragraphs, print_tables

    if csv is not None:
        write_rows(csv_rows(record), CSV_COLUMNS, CSV_TEXTS, csv)
    if html is not None:
        from viva.web.report.html_page import write_page

        write_page(load_page(record), html)
    if json:
        print_json(record)
    else:
        print_paragraphs(conclusions(record))
        print_tables(load_tables(record, brief=True))
    for note in report_notes(record):
        print_note(note)


def _refuse_beside_resume(context: typer.Context) -> None:
    """:raises ConfigurationError: options beside ``--resume`` that would make another test of it."""
    foreign = [
        name.replace("_", "-")
        for name in context.params
        if name not in ("resume", *_RESUMABLE)
        and getattr(context.get_parameter_source(name), "name", "DEFAULT") not in ("DEFAULT", "DEFAULT_MAP")
    ]
    if foreign:
        raise ConfigurationError(
            f"--resume goes on with the test as it was set up; leave out {', '.join(f'--{name}' for name in foreign)}"
        )


def _parse_numbers(option: str, text: str | None, kind: type[int] | type[float]) -> tuple[float, ...]:
    """:raises ConfigurationError: it is not a list of numbers."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: expected numbers with commas between them, such as 1,2,4") from None


def _parse_ends(text: str | None) -> tuple[float, float] | None:
    """:raises ConfigurationError: it is not LOW:HIGH."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ConfigurationError(f"--rate-search {text}: expected LOW:HIGH, such as 0.5:32") from None
    return low, high
