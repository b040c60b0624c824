"""``viva suite check`` and ``schema``: whether a suite file can be run, and what editors need to complete one.

What never belongs here: running anything.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .run import SuiteFile


def check(suite: SuiteFile) -> None:
    """Say what a suite would test, and what is wrong with it; no model is asked."""
    from viva.cli.options import read_settings
    from viva.orchestration.prepared_run import PreparedRun
    from viva.reports.controls import harmless

    from ..scenario import SCENARIO

    prepared = PreparedRun(SCENARIO, read_settings(SCENARIO.settings, {"suite": suite}, None))
    for note in prepared.notes:
        print(f"viva: note: {harmless(note)}", file=sys.stderr)
    records = prepared.opened.records
    told = records["suite"]
    typer.echo(f"{told['name']}: {len(prepared.opened.tasks):,} conversations, {', '.join(prepared.labels)}")
    typer.echo(f"  {prepared.total:,} tests ({told['complete']}), {len(told.get('thresholds', []))} thresholds")
    for metric in records["metrics"]:
        spec = metric["metric"]
        what = f"function {metric['reference']}" if metric["reference"] else f"rubric {spec['rubric']}"
        role = f" of the {spec['role']}" if "role" in spec else ""
        after = f", where {', '.join(one['metric'] for one in spec['when'])} allows" if spec.get("when") else ""
        typer.echo(f"  {metric['name']}: {what}, each {metric['level']}{role}{after}")


def schema(
    indent: Annotated[int, typer.Option("--indent", min=0, max=8, help="Blanks for each level.")] = 2,
) -> None:
    """Print the JSON schema of suite files, for editors (yaml-language-server: $schema=…)."""
    import json

    from ..spec import Suite

    typer.echo(json.dumps(Suite.model_json_schema(), indent=indent, ensure_ascii=False))
