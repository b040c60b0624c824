"""A judge's labels beside those of people: who says what how often, and agreement corrected for chance.

Agreement itself misleads where one label is common: two raters who say "pass" nine times in ten agree 82% of the time
by chance alone. So kappa is what to look at; its interval draws whole groups with replacement. What never belongs here:
kappas of many raters and alpha (``agreement``), and scores without labels (``levels``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .agreement import Rating, cohen
from .coefficients import Floats
from .levels import ends


@dataclass(slots=True, frozen=True)
class Confusion:
    """``counts[i][j]``: the first said ``labels[i]`` where the second said ``labels[j]``.

    ``agreement``: the share of the same label, 0–1. ``kappa``: Cohen's, with its percentile interval; None where it is
    not defined. ``n``: what both have labelled.
    """

    labels: list[Rating]
    counts: list[list[int]]
    agreement: float | None
    kappa: float | None
    low: float | None
    high: float | None
    n: int


def confusion(
    first: Sequence[Rating | None],
    second: Sequence[Rating | None],
    *,
    groups: Sequence[str] | None = None,
    weights: Literal["quadratic"] | None = None,
    seed: int = 7,
    resamples: int = 1_000,
    level: float = 0.95,
) -> Confusion:
    """The labels of two raters of the same things; None where one said nothing, and such things are left out.

    ``weights`` as in ``agreement.cohen``, for labels that have an order, which is then that of their values.

    :raises ValueError: lengths differ.
    """
    if len(first) != len(second) or (groups is not None and len(groups) != len(first)):
        raise ValueError(f"{len(first)} labels against {len(second)}")
    both = [at for at in range(len(first)) if first[at] is not None and second[at] is not None]
    ones, others = [first[at] for at in both], [second[at] for at in both]
    labels = in_order({label for label in (*ones, *others) if label is not None})
    places = {label: place for place, label in enumerate(labels)}
    cells = np.array(
        [places[one] * len(labels) + places[other] for one, other in zip(ones, others, strict=True)  # type: ignore[index]
         ], dtype=np.int64
    )  # fmt: skip
    counts = np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))
    if not both:
        return Confusion([], [], None, None, None, None, 0)
    kappa = cohen(ones, others, labels, weights).value
    names = [str(at) if groups is None else groups[at] for at in both]
    low, high = (
        _interval(cells, names, len(labels), weights, seed, resamples, level) if kappa is not None else (None, None)
    )
    return Confusion(labels, counts.tolist(), float(np.trace(counts) / len(both)), kappa, low, high, len(both))


def in_order(labels: set[Rating]) -> list[Rating]:
    """Labels in the order of a scale: numbers by value, then texts."""
    return sorted(labels, key=lambda label: (isinstance(label, str), label if isinstance(label, str) else float(label)))


def kappas_of(tables: Floats, size: int, weights: Literal["quadratic"] | None = None) -> Floats:
    """Cohen's kappa of each row of ``tables``, a flattened table of ``size`` × ``size`` counts; nan where undefined."""
    square = tables.reshape(len(tables), size, size)
    places = np.arange(size)
    cost = (places[:, None] - places[None, :]) ** 2 if weights == "quadratic" else 1.0 - np.eye(size)
    total = square.sum(axis=(1, 2))
    expected = np.einsum("bi,ij,bj->b", square.sum(axis=2), cost, square.sum(axis=1)) / total
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1.0 - (square * cost).sum(axis=(1, 2)) / expected, dtype=np.float64)


def _interval(
    cells: np.ndarray[tuple[int], np.dtype[np.int64]],
    groups: Sequence[str],
    size: int,
    weights: Literal["quadratic"] | None,
    seed: int,
    resamples: int,
    level: float,
) -> tuple[float | None, float | None]:
    codes = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    by_group = np.zeros((len(codes), size * size))
    np.add.at(by_group, (np.array([codes[group] for group in groups]), cells), 1.0)
    drawn = np.random.default_rng([seed, 2]).multinomial(
        len(codes), np.full(len(codes), 1 / len(codes)), size=resamples
    )
    return ends(kappas_of(drawn @ by_group, size, weights), level, len(codes))
