"""Figures of metrics as plain data: means with intervals, percentiles, shares, pass rates and F1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.scoring.aggregates import pass_hat_k
from viva.scoring.clustered_means import clustered_mean

from .metric_values import SeriesValues, SystemValues
from .scales import TRUTH_SCALE, Scale, are_truth_values
from .spec import Bounds


def number_figures(system: SystemValues, values: SeriesValues, scale: Scale | None = None) -> dict[str, Any]:
    """Return mean with interval (clustered by conversation), median, 98th percentile and range of a series' numbers.

    The interval stays within `scale`; for numbers that are all 0 or 1 it is a rate's interval. Without a scale it is
    Student's interval, which needs at least five conversations.
    """
    numbers = values.numbers
    figures: dict[str, Any] = {"n": len(numbers)}
    if not len(numbers):
        return figures
    mean = clustered_mean(numbers, system.dialogs(values.number_tests))
    assert mean is not None
    truth = are_truth_values(numbers)
    ends = mean.ends(*(TRUTH_SCALE if truth else scale or (-math.inf, math.inf)), rate=truth)
    median, high = (float(figure) for figure in np.percentile(numbers, (50, 98)))
    figures |= {"mean": mean.mean, "se": mean.se, "low": ends and ends.low, "high": ends and ends.high}
    figures |= {"median": median, "p98": high, "min": float(numbers.min()), "max": float(numbers.max())}
    return {key: round(figure, 9) if isinstance(figure, float) else figure for key, figure in figures.items()}


def statistic(
    system: SystemValues,
    values: SeriesValues,
    name: str,
    passes: Bounds | None,
    tests: NDArray[np.bool_] | None = None,
) -> float | None:
    """Return the figure that a threshold names, or None without suitable values; `tests` is a mask of tests."""
    numbers = values.numbers
    if name == "count":
        return float(len(values.rows))
    if name == "errors":
        errors = values.series.error_count(tests)
        checked = errors + len(values.series.select(None, tests).rows)
        return errors / checked if checked else None
    if name == "pass_rate":
        rate = pass_rate(system, values, passes)
        return None if rate is None else rate["mean"]
    if name.startswith("share:"):
        counts = values.counts()
        return counts.get(name[6:], 0) / sum(counts.values()) if counts else None
    if name.startswith("f1"):
        classes = class_figures(values.labelled())
        return class_f1(classes, name[3:])
    if not len(numbers):
        return None
    if name.startswith("p"):
        return float(np.percentile(numbers, float(name[1:])))
    if name in ("mean", "sum"):
        total = math.fsum(numbers)
        return total if name == "sum" else total / len(numbers)
    return float({"median": np.percentile(numbers, 50), "min": numbers.min(), "max": numbers.max()}[name])


def pass_rate(system: SystemValues, values: SeriesValues, passes: Bounds | None) -> dict[str, Any] | None:
    """Return the share of values that pass (without `passes`: numbers other than 0), or None without values."""
    passed = [float(meets_bounds(value, passes)) for value in values.values()]
    return _rate_record(passed, system.dialogs(values.tests))


def flat_value(value: Any) -> float | str | tuple[float, str]:
    """Return a recorded value in the form of `SeriesValues.values`; a dict of values becomes 0."""
    if isinstance(value, Mapping):
        return (float(value["score"]), str(value["choice"])) if "choice" in value else 0.0
    return value if isinstance(value, str) else float(value or 0.0)


def meets_bounds(value: float | str | tuple[float, str], passes: Bounds | None) -> bool:
    """Return True if a value, or a rubric's score or choice, meets the bounds."""
    if passes is None:
        return not isinstance(value, str) and bool(value[0] if isinstance(value, tuple) else value)
    if not isinstance(value, tuple):
        return passes.allow(value)
    by_choice = isinstance(passes.equals, str) or any(isinstance(choice, str) for choice in passes.among or ())
    return passes.allow(value[1] if by_choice else value[0])


def _rate_record(passed: Sequence[float], clusters: Sequence[str]) -> dict[str, Any] | None:
    mean = clustered_mean(passed, clusters)
    if mean is None:
        return None
    ends = mean.bounded_interval(0.0, 1.0, rate=True)
    return {"n": mean.n, "mean": mean.mean, "low": round(ends.low, 9), "high": round(ends.high, 9)}


def tests_passed(system: SystemValues, checks: Mapping[str, Bounds]) -> tuple[int, int]:
    """Return how many ended tests passed, and how many are decided (see `test_figures`)."""
    bad, undecided = _wrong_and_undecided(system, checks)
    return int((~bad & ~undecided).sum()), int((~undecided).sum())


def _wrong_and_undecided(
    system: SystemValues, checks: Mapping[str, Bounds | None]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks: of tests with a value that misses `passes`, and of tests with an error as a value."""
    bad, undecided = np.zeros(len(system.tests), dtype=bool), np.zeros(len(system.tests), dtype=bool)
    for name, passes in checks.items():
        series = system.series.get(name)
        if series is None:
            continue
        undecided[list(series.failed_tests)] = True
        values = series.select(None, None)
        wrong = [
            test for test, value in zip(values.tests, values.values(), strict=True) if not meets_bounds(value, passes)
        ]
        bad[wrong] = True
    return bad, undecided


def decided_tests(
    system: SystemValues, checks: Mapping[str, Bounds], chosen: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], list[float]]:
    """Return the numbers of the decided tests, and for each test 1 if it passed, else 0."""
    bad, undecided = _wrong_and_undecided(system, checks)
    decided = np.flatnonzero(~undecided if chosen is None else ~undecided & chosen)
    return decided, (~bad[decided]).astype(float).tolist()


def test_figures(
    system: SystemValues,
    checks: Mapping[str, Bounds | None],
    failed: Mapping[str, int],
    chosen: NDArray[np.bool_] | None = None,  # noqa: PT028 (no test)
) -> dict[str, Any] | None:
    """Count the tests that pass, i.e. in which every value of every metric with `passes` meets these bounds.

    A failed conversation, or a test in which one of these values is an error, is undecided: neither passed nor failed.
    `pass^k` is the probability that k repeats of a conversation all pass. `failed` counts failed conversations by
    dialog; `chosen` masks the tests. The result is None if no metric has `passes`.

    Source:
        Yao et al. 2024, section 3.
    """
    if not checks:
        return None
    bad, undecided = _wrong_and_undecided(system, checks)
    selected = np.ones(len(undecided), dtype=bool) if chosen is None else chosen
    decided = np.flatnonzero(~undecided & selected)
    tries: dict[str, list[int]] = {}
    for test in decided:
        tries.setdefault(system.tests[test].dialog, []).append(int(not bad[test]))
    tallies = sorted((len(outcomes), sum(outcomes)) for outcomes in tries.values())
    max_tries = max((n for n, _ in tallies), default=0)
    rate = _rate_record([float(not bad[test]) for test in decided], [system.tests[test].dialog for test in decided])
    hats = {}
    for k in range(1, max_tries + 1):
        mean = pass_hat_k(tallies, k)
        hats[str(k)] = {"mean": mean.mean, "se": mean.standard_error, "n": mean.n}
    not_decided = int((undecided & selected).sum()) + sum(failed.values())
    return {"tests": int(selected.sum()) + sum(failed.values()), "passed": int((~bad[decided]).sum()),
            "undecided": not_decided, "rate": rate, "pass^k": hats}  # fmt: skip


def class_figures(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return precision, recall and F1 of each class that occurs in `pairs`, which are (label, answer)."""
    counts = Counter(pairs)
    figures = {}
    for name in sorted({category for pair in pairs for category in pair}):
        true = counts[(name, name)]
        answered = sum(count for (_, answer), count in counts.items() if answer == name)
        labelled = sum(count for (label, _), count in counts.items() if label == name)
        figures[name] = {
            "precision": true / answered if answered else None,
            "recall": true / labelled if labelled else None,
            "f1": 2 * true / (answered + labelled),
            "labels": labelled,
            "answers": answered,
        }
    return figures


def class_f1(classes: Mapping[str, Any], name: str) -> float | None:
    """Return the F1 of a class or, if `name` is empty, the mean over all classes that are labels (macro F1)."""
    if name:
        return None if name not in classes else float(classes[name]["f1"])
    scores = [figures["f1"] for figures in classes.values() if figures["labels"]]
    return math.fsum(scores) / len(scores) if scores else None
