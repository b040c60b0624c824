"""`viva lab` and `viva demo`: the experiment on the invented world, and the training of its models."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from viva.orchestration.folders import fresh_folder

from .app import command, command_group
from .exit_codes import DONE, FAILURES
from .options import Html, Json, Plot
from .run import exit_with, run_launch

if TYPE_CHECKING:
    from viva.lab.experiment import Experiment

World = Annotated[int, typer.Option("--world", min=1, help="Seed of the invented world.")]


lab = command_group("lab", "Experiments with models whose knowledge is known.")


@command("run", "viva lab run --ideal", "viva lab run --real", models=True, group=lab)
def _run(
    models: Annotated[
        Path | None, typer.Option("--models", metavar="FOLDER", help="Folder of models made by `viva lab build`.")
    ] = None,
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Use simulated models, whose knowledge is exact, instead of trained ones.")
    ] = False,
    real: Annotated[bool, typer.Option("--real", help="Use SmolLM2 with adapters, on real facts.")] = False,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", "--compare", metavar="MODEL", help="Another model, whose knowledge is unknown."),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="Seed of a repetition (default: 1).")] = None,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Interviews per candidate (default: 100; with --real: 40).")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, max=100, help="Maximum rounds of an interview (default: 5; with --real: 4)."),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option("--shots", min=0, help="Examples before each probed question (default: 0; with --real: 5)."),
    ] = None,
    probed: Annotated[
        int | None, typer.Option("--probed", min=2, help="Number of items to probe (default: all).")
    ] = None,
    world: World = 1,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Maximum number of conversations in flight.")
    ] = 500,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Folder to create or resume (default: runs/lab-TIME)."),
    ] = None,
    plot: Plot = None,
    json: Json = False,
    html: Html = None,
) -> None:
    """Probe and interview models whose knowledge is known, to see if scores reflect it and if cheating pays."""
    from viva.engine.errors import ConfigurationError
    from viva.lab.experiment import ExaminedModel, Experiment, ideal_family, trained_family
    from viva.lab.facts import REAL
    from viva.lab.family import MODELS
    from viva.lab.real_experiment import RealExperiment, real_family

    if ideal and (real or models is not None):
        raise ConfigurationError(f"--ideal and {'--real' if real else '--models'} exclude each other")
    if real and world != 1:
        raise ConfigurationError("--real and --world exclude each other")
    if real:
        examined = real_family(models or REAL)
    else:
        examined = ideal_family(world) if ideal else trained_family(world, models or MODELS)
    experiment = (RealExperiment if real else Experiment)(
        [*examined, *(ExaminedModel(model) for model in candidate or [])],
        out or fresh_folder("lab"),
        probed=probed,
        concurrency=concurrency,
    )
    options: dict[str, Any] = {"items": n, "rounds": rounds, "shots": shots} | ({} if real else {"world": world})
    experiment = replace(experiment, **{name: value for name, value in options.items() if value is not None})
    _examine(experiment, list(dict.fromkeys(seed or [1])), plot, json, html)


@command("demo", "viva demo", "viva demo --out runs/mine --plot line.svg")
def _demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to create (default: runs/demo-TIME).")
    ] = None,
    plot: Plot = None,
    json: Json = False,
    html: Html = None,
) -> None:
    """Probe and interview six shipped models, two of them cheaters. Takes about a minute."""
    from viva.lab.experiment import Experiment, trained_family

    _examine(Experiment(trained_family(), out or fresh_folder("demo")), [1], plot, json, html)


def _examine(experiment: Experiment, seeds: list[int], plot: Path | None, json: bool, html: Path | None) -> NoReturn:
    """Run all conversations of the experiment, print the findings, and exit."""
    from viva.lab.experiment import Findings
    from viva.lab.real_experiment import RealExperiment, RealFindings

    from .output import print_paragraphs, print_report, print_text
    from .output_files import check_output_files, check_plot_file, write_plot

    check_output_files({"--plot": plot, "--html": html})
    if plot is not None:
        check_plot_file(plot)
    seconds = sum(_run_seed(experiment, seed, f"seed {seed}, " * (len(seeds) > 1)) for seed in seeds)
    findings = (RealFindings if isinstance(experiment, RealExperiment) else Findings)(experiment, seeds)
    if html is not None or not json:
        lines = _write_findings_page(experiment, seeds, html or experiment.folder / "report.html")
        if not json:
            print_text("".join(f"{line}\n" for line in lines) + "\n")
    print_report(findings, json=json)
    if not json and not isinstance(experiment, RealExperiment):
        from viva.reports.studies.court import court

        print_paragraphs(court(*experiment.run_folders(seeds)).summary())
    if plot is not None and findings.figures():
        write_plot(plot, findings.figures(), findings.lines())
    counts = f"{findings.interviews:,} interviews, {findings.calls:,} calls, {findings.tokens:,} candidate tokens"
    print(f"{counts}; {seconds:.1f} s\nfolder: {experiment.folder}", file=sys.stderr)
    sys.exit(FAILURES if findings.failed else DONE)


def _write_findings_page(experiment: Experiment, seeds: list[int], page: Path) -> list[str]:
    """Write the page of all runs; return two lines: its first sentence (if it has one) and `page: PATH`."""
    from viva.reports.studies.study import Study, study_findings
    from viva.web.report.html_page import write_html

    report = Study(experiment.run_folders(seeds)).report()
    write_html(report, page)
    findings = study_findings(report)
    return [*(findings[0].sentences[:1] if findings else []), f"page: {page}"]


def _run_seed(experiment: Experiment, seed: int, prefix: str) -> float:
    """Run the experiment with one seed; return its duration in seconds. Progress lines begin with `prefix`."""
    from viva.reports.run_tables import failure_lines

    from .progress import print_progress

    began = time.monotonic()
    for launch in experiment.launches(seed):
        result = run_launch(launch)
        if result.outcome.how != "done":
            exit_with(launch, result, 0)
        print_progress(f"{prefix}{launch.scenario.name}: {result.progress}")
        for line in failure_lines(result.reasons, launch.folder.path):
            print(line, file=sys.stderr)
    return time.monotonic() - began


@command("build", group=lab)
def _build(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to write the models and their card to.")],
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and texts.")] = 1,
    world: World = 1,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Models to train at the same time, each on one core.")] = 2,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Train only this model.")] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Train adapters of SmolLM2 instead of the lab's models.")
    ] = False,
    family: Annotated[
        Literal["demo", "court"],
        typer.Option(
            "--family",
            help="demo: the six models that ship with viva; court: 40 clean models and 96 cheaters by kind and dose, "
            "with their evidence (three hours on two cores; an interrupted build goes on).",
        ),
    ] = "demo",
) -> None:
    """Train the lab's models from a seed (needs PyTorch: the extra `lab`). Takes minutes for each model."""
    if family == "court":
        from viva.engine.errors import ConfigurationError
        from viva.lab.court_family import build_court_models

        if real or only or seed != 1:
            raise ConfigurationError("--family court excludes --real, --only and --seed: each model has its own seed")
        print(f"evidence: {build_court_models(out, world=world, jobs=jobs)}", file=sys.stderr)
        return
    if real:
        from viva.lab.real_models import build_adapters

        build_adapters(out, seed, jobs=jobs, only=only or ())
    else:
        from viva.lab.build import build_models

        build_models(out, seed, world=world, jobs=jobs, only=only or ())
    print(f"models and card: {out}", file=sys.stderr)
