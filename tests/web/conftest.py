"""What tests of pages and of the server share: a study's report with figures as runs give them, a headless browser to
read it in, and one ``viva serve`` over a small model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from people import Person
from room_pages import ROOM, Sitting, sitting
from serving import Serving, serving
from tiny_gguf import make_model

from viva.scoring.correlation import ModelScores, fit_lines

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
REASONS = ("off_topic", "empty_response", "repetition", "rule_violation")
Study = dict[str, Any]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests, with a token, a small local model and a simulated one; its folder holds items."""
    folder = tmp_path_factory.mktemp("served")
    model = make_model(folder / "tiny.gguf", seed=3, quantised=True, quote_bias=3.0)
    text = f"llama:{model}?lanes=8&ctx=1024"
    (folder / "items.jsonl").write_bytes(ITEMS.read_bytes())
    token = "a token of the tests"
    with serving(folder, "--model", text, "--model", "simulated:sim", token=token) as server:
        yield Served(server, folder, text)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sitting, Person]]:
    """A room where only tests ask, and its pages."""
    room = tmp_path_factory.mktemp("shared") / ROOM
    with sitting(room) as pages:
        yield pages, Person(room)


@dataclass(frozen=True)
class Served:
    """The shared server, the folder that it was started in, and the full name of its local model (``tiny``)."""

    server: Serving
    folder: Path
    text: str


@pytest.fixture(scope="session")
def make_study() -> Callable[..., Study]:
    """``make_study(candidates, datasets, seeds)``: what ``Study.report()`` gives, by names."""
    return study_of


def study_of(candidates: list[str], datasets: list[str], seeds: list[int], talks: int = 60) -> Study:
    """Interviews and probes of each candidate on each dataset; the second candidate is as good as contaminated."""
    chance = random.Random(5)
    cells, pooled, figures = [], [], []
    for at, candidate in enumerate(candidates):
        for dataset in datasets:
            level = 82 - 55 * at / len(candidates) + chance.gauss(0, 2)
            accuracy = min(99.0, level + chance.gauss(3, 1.5) + (25 if at == 1 else 0))
            own = [_cell(chance, candidate, dataset, seed, level, accuracy, talks) for seed in seeds]
            cells += own
            pooled.append(_pooled(own, candidate, dataset, level, accuracy))
            figures.append(ModelScores(candidate, dataset, accuracy, level, 2.9, 2.1))
        pooled.append(pooled[-1] | {"dataset": None})
    lines = dict.fromkeys(datasets)
    if len(candidates) > 2:
        lines |= fit_lines(figures)
    report: Study = {
        "study": 1,
        "scorer": "official",
        "facts": {"seeds": seeds, "tiers": ["C"], "rounds": [5]},
        "notes": [],
        "cells": cells,
        "pooled": pooled,
        "comparisons": [],
        "agreement": [],
        "difficulty": [],
        "correlations": {
            "accuracy": "letter",
            "accuracies": dict.fromkeys(datasets, "letter"),
            "left_out": [],
            "figures": [asdict(one) for one in figures],
            "overall": {"n": len(figures)} | dict.fromkeys(("pearson", "spearman", "kendall")),
            "datasets": {},
            "excluding": None,
            "lines": {name: None if fit is None else _line(fit) for name, fit in lines.items()},
        },
    }
    report["ablation"] = []
    report["costs"] = {"models": 0, "interviews": 0, "seeds": [], "datasets": {}, "overall": {}, "projected": []}
    report["costs"]["priced"] = True
    report["verdicts"] = {
        "candidates": [_judged(one, dataset, at == 1) for dataset in datasets for at, one in enumerate(candidates)],
        "leads": [],
    }
    return report


def _cell(
    chance: random.Random, candidate: str, dataset: str, seed: int, level: float, accuracy: float, talks: int
) -> dict[str, Any]:
    keep = 0.9 + level / 1000
    held = [round(talks * keep**step) for step in range(5)]
    running: dict[str, list[Any]] = {"n": [], "mean": [], "low": [], "high": []}
    total = 0.0
    for n in range(1, talks + 1):
        total += chance.gauss(level, 18)
        half = 36 / math.sqrt(n)
        for name, value in (("n", n), ("mean", total / n), ("low", total / n - half), ("high", total / n + half)):
            running[name].append(None if n == 1 and name in ("low", "high") else round(value, 6))
    stops = {reason: chance.randint(0, max(1, (talks - held[-1]) // 4)) for reason in REASONS}
    name = f"{candidate}/{dataset}/kieval-{seed}"
    return {
        "name": name,
        "scenario": "kieval",
        "candidate": candidate,
        "model": f"sim:{candidate}",
        "dataset": dataset,
        "seed": seed,
        "evaluator": "judge",
        "interactor": "examiner",
        "tier": "C",
        "scorer": "official",
        "pack": {"name": "standard", "digest": "0f" * 32},
        "rounds": 5,
        "planned": talks,
        "ended": talks + 1,
        "state": "done",
        "result": {
            "interviews": talks,
            "failed": 1,
            "verdicts": sum(held),
            "unscored_rounds": 2,
            "parse_failures": 5,
            "stop_reasons": stops,
            "score": {"mean": level, "se": 2.1, "n": talks},
        },
        "by_round": [],
        "running": running,
        "until": None,
        "transcripts": {"folder": name, "examples": [f"{candidate}/item-{number}" for number in (3, 17, 40)]},
        "held": held,
    }


def _pooled(cells: list[dict[str, Any]], candidate: str, dataset: str, level: float, accuracy: float) -> dict[str, Any]:
    stops: dict[str, int] = {}
    for cell in cells:
        for reason, count in cell["result"]["stop_reasons"].items():
            stops[reason] = stops.get(reason, 0) + count
    talks = sum(cell["result"]["interviews"] for cell in cells)
    held = [sum(counts) for counts in zip(*(cell.pop("held") for cell in cells), strict=True)]
    by_round = [
        {"round": at + 1, "held": n, "share_held": round(n / talks, 6), "mean": level - 2.5 * at, "se": 1.8, "n": n}
        for at, n in enumerate(held)
    ]
    return {
        "scenario": "kieval",
        "candidate": candidate,
        "dataset": dataset,
        "n_items": talks // len(cells),
        "n_observations": talks,
        "accuracy": _mean(accuracy, 2.9, talks),
        "score": _mean(level, 2.1, talks),
        "aspects": {name: _mean(min(100, level + 3 * at - 5), 2.0, talks) for at, name in enumerate(ASPECTS)},
        "rounds": _mean(sum(held) / talks, 0.05, talks),
        "by_round": by_round,
        "unanswered_rate": 0.0,
        "unscored_rate": 0.007,
        "parse_failure_rate": 0.018,
        "failed": len(cells),
        "stop_reasons": stops,
        "failures": {},
        "items_needed": None,
        "probe": None,
    }


def _judged(candidate: str, dataset: str, cheats: bool) -> dict[str, Any]:
    p = 0.001 if cheats else 1.0
    test = {"test": "line", "value": -30.0 if cheats else 1.0, "p_corrected": p, "power": 0.9, "n": 60, "needed": 50}
    verdict = "suspected" if cheats else "no_sign"
    return {"dataset": dataset, "candidate": candidate, "verdict": verdict, "tests": [test]}


def _mean(value: float, error: float, n: int) -> dict[str, Any]:
    return {"mean": value, "se": error, "low": value - 2 * error, "high": value + 2 * error, "n": n}


def _line(fit: Any) -> dict[str, Any]:
    line = fit.line
    told = {name: getattr(line, name) for name in ("slope", "intercept", "threshold", "residuals", "deviations")}
    tests = {name: {"p": 0.001 if name in (*line.below, *line.above) else 1.0} for name in line.residuals}
    return told | {"spread": fit.spread, "below": line.below, "above": line.above, "tests": tests}
