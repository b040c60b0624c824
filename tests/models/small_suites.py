"""Small suites in a folder, and their runs: what tests of suites share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from viva.engine.clock import Clock, VirtualClock
from viva.engine.permissions import grant
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome
from viva.orchestration.launch import new_run, recorded_results, resumed_run
from viva.scenarios.flexeval.scenario import SCENARIO

TALK = [("system", "You help."), ("user", "Is two even?"), ("assistant", "Yes."), ("user", "And nine?")]


def write_suite(folder: Path, talks: Sequence[Any], functions: str = "", **suite: Any) -> Path:
    """A suite of these conversations: lists of (role, text), or whole lines as dicts. ``functions``: the text of
    ``mine.py``, which the suite then names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(one if isinstance(one, dict) else {"messages": [{"role": r, "content": c} for r, c in one]})
        if not isinstance(one, str)
        else one
        for one in talks
    ]
    (folder / "talks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if functions:
        (folder / "mine.py").write_text(functions, encoding="utf-8")
        grant(folder / "mine.py")
        suite.setdefault("functions", ["mine.py"])
    suite = {"name": "small", "conversations": ["talks.jsonl"], "system": "simulated:app", **suite}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def run_suite(suite: Path, out: Path, clock: Clock | None = None, **given: Any) -> tuple[Outcome, dict[str, Any]]:
    """Run a suite in this process, under a virtual clock if no other is given; the outcome and the report."""
    settings = SCENARIO.settings.model_validate({"suite": str(suite), **given})
    launch = new_run(SCENARIO, settings, out, clock or VirtualClock())
    outcome = launch.clock.run(launch.run)
    return outcome, recorded_results(launch.folder).report()


def resume_suite(run: Path, clock: Clock | None = None, **changes: Any) -> tuple[Outcome, dict[str, Any]]:
    """Go on with a run in this process; as ``run_suite``."""
    launch = resumed_run(run, clock or VirtualClock(), changes=changes)
    outcome = launch.clock.run(launch.run)
    return outcome, report_of(run)


def report_of(run: Path) -> dict[str, Any]:
    """The report of a recorded run."""
    return recorded_results(RunFolder.open(run)).report()


def metric(report: dict[str, Any], name: str, system: str = "app") -> dict[str, Any]:
    """The figures of one metric of one system."""
    return report["candidates"][system]["metrics"][name]  # type: ignore[no-any-return]
