"""Evidence of the court's models: each is probed and interviewed as in the lab's experiment, and the results are kept.

`lab/court/evidence.jsonl` has one line for each model, so that the court can compare others with them without the
models themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.reports.studies.cells import find_cells
from viva.reports.studies.court import read_cases
from viva.scoring.evidence.observations import Observations

from .experiment import ExaminedModel, Experiment

EVIDENCE = Path(__file__).parent / "court" / "evidence.jsonl"
_ON_ONE = ("order", "options")  # methods that need no second set


@dataclass(frozen=True, slots=True)
class CourtExperiment(Experiment):
    """Experiment with all methods that the lab's models can answer; they cannot be asked for a masked choice."""

    methods: Sequence[str] = ("text", "loss", "order", "options", "context", "samples")

    def _probe_settings(self) -> dict[str, Any]:
        settings = Experiment._probe_settings(self)  # a dataclass with slots is another class than `super` knows
        return settings | {"against_method": [method for method in self.methods if method not in _ON_ONE]}


def gather(models: Mapping[str, Path], folder: Path, world: int = 1) -> dict[str, Observations]:
    """Probe and interview models, by name, in run folders below `folder`; an interrupted run is continued.

    Raises:
        ConfigurationError: if a run does not end, or a conversation fails.
    """
    candidates = [ExaminedModel(f"llama:{path}?label={name}&threads=1") for name, path in models.items()]
    experiment = CourtExperiment(candidates, folder, world)
    clock = RealClock()
    for launch in experiment.launches(1, clock):
        outcome = clock.run(launch.run)
        if outcome.how != "done" or outcome.failed:
            raise ConfigurationError(f"{launch.folder.path}: {outcome.how}, {outcome.failed} failed: {outcome.error}")
    [case] = read_cases(find_cells(experiment.run_folders([1])))
    return case.observations()


def write_evidence(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one line for each model, sorted by unit and name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    ordered = sorted(records, key=lambda record: (record["unit"], record["kind"] or "", record["model"]))
    partial.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in ordered))
    os.replace(partial, path)


def read_evidence(path: Path = EVIDENCE) -> list[dict[str, Any]]:
    """Return the lines of a file of evidence; none if it does not exist."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
