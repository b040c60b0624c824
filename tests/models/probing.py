"""Probes through the ``viva`` command, for its tests: running one, items to probe, what was recorded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import command
import orjson

from viva.engine.clock import RealClock
from viva.engine.journal_reader import History
from viva.engine.likelihood import Likelihood
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.probes.probe import ProbeSettings

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
PACK = Path(__file__).parents[2] / "scenarios" / "probes" / "prompts" / "probe.yaml"
_WORDS = "tin fog steel rain glass sand wood ice salt wool clay coal"


def probe(out: Path, *options: str | Path) -> dict[str, Any]:
    """The JSON report of a probe that succeeds."""
    done = command.viva("run", "probe", *options, "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report


def make_items(path: Path, count: int, subjects: str = "", seed: int = 1) -> Path:
    """``count`` items of four choices in one file, their subjects in turn."""
    draw, names = random.Random(seed), subjects.split()
    with path.open("w") as file:
        for number in range(count):
            choices = draw.sample(_WORDS.split(), 4)
            item = {"id": f"{path.stem}-{number}", "question": f"Which one is number {seed}.{number}?"}
            item |= {"choices": choices, "answer": draw.randrange(4)}
            file.write(json.dumps(item | ({"subject": names[number % len(names)]} if names else {})) + "\n")
    return path


def recorded(run: Path) -> dict[str, dict[str, Any]]:
    """The recorded results of a run by key."""
    with History(run / "journal.sqlite") as history:
        return {one.key: one.result for one in history.ended()}


def probed(folder: Path, name: str, **settings: Any) -> tuple[dict[str, Any], dict[str, list[list[Likelihood]]]]:
    """A probe run's report, and the recorded readings by item id."""
    chosen = ProbeSettings(candidate=[name], **settings)
    launch = new_run("probe", chosen, folder)
    outcome = RealClock().run(launch.run)
    assert (outcome.how, outcome.failed) == ("done", 0)
    readings = {}
    with History(launch.folder.journal) as history:
        for number in history.numbers():
            _, item = history.started(number) or ("", {})
            readings[item["id"]] = [call.completion.likelihoods or [] for call in history.calls(number)]
    return recorded_results(launch.folder).report(), readings
