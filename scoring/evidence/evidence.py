"""Evidence, the common result of all witnesses of contamination, and the comparison of any figure with clean models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..contamination import Floats


@dataclass(frozen=True, slots=True)
class Evidence:
    """Statement of one witness: its statistic, and how likely a clean model is to give one as large.

    `statistic` is larger the more it speaks for contamination; `p` is one-sided; `effect` is in the witness's own unit
    (named in its module), None if it has none; `n` is the number of independent units (items, pairs, shards).
    """

    witness: str
    statistic: float
    p: float
    effect: float | None
    n: int


def compare_models(witness: str, value: float, reference: Floats) -> Evidence:
    """Test whether a model's value on the benchmark is higher than those of clean models on the same items.

    The null: the model is exchangeable with the reference models, so that its rank among them is uniform. p is at least
    1 / (1 + their number): a level of 5% takes 19 of them. The effect is the difference from the mean of `reference`;
    `n` is the number of reference models.
    """
    [own], others = check_numbers("value", [value]), check_numbers("reference", reference)
    p = (int((others >= own).sum()) + 1) / (len(others) + 1)
    return Evidence(witness, float(own), p, float(own) - math.fsum(others) / len(others), len(others))


def check_numbers(name: str, values: Floats, low: float = -math.inf, high: float = math.inf) -> NDArray[np.float64]:
    """Return values as an array, or raise ValueError unless there are some, all finite and from `low` to `high`."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name}: shape {array.shape}; expected a flat list of at least one number")
    wrong = ~(np.isfinite(array) & (array >= low) & (array <= high))
    if wrong.any():
        first = int(wrong.argmax())
        bounds = "" if math.isinf(low) and math.isinf(high) else f" from {low:g} to {high:g}"
        raise ValueError(f"{name}[{first}] is {array[first]}; expected finite numbers{bounds}")
    return array
