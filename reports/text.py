"""Figures as the cells of a table: so many digits, and a dash where there is nothing.

What never belongs here: markup, and which table shows what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Table: TypeAlias = tuple[str, list[str], list[list[str]]]
DASH = "–"


def number(value: float | None, digits: int = 1) -> str:
    """A number, or a dash."""
    return DASH if value is None else f"{value:z,.{digits}f}"


def signed(value: float | None, digits: int = 1) -> str:
    """A number with its sign."""
    return DASH if value is None else f"{value:+z,.{digits}f}"


def percent(share: float | None) -> str:
    """A share, 0–1, as per cent."""
    return DASH if share is None else f"{100 * share:z.1f}%"


def small(p: float | None) -> str:
    """A p-value: three digits, or the power of ten."""
    return DASH if p is None else f"{p:.3f}" if p >= 0.0005 else f"{p:.1e}"


def both(told: Mapping[str, Any] | None, digits: int = 1) -> tuple[str, str]:
    """A mean and its standard error."""
    return number((told or {}).get("mean"), digits), number((told or {}).get("se"), digits)


def mean(told: Mapping[str, Any] | None, digits: int = 1) -> str:
    """A mean with its standard error in one cell; one dash where there is neither."""
    value, error = both(told, digits)
    return value if value == DASH else f"{value} ± {error}"


def interval(told: Mapping[str, Any] | None, digits: int = 1) -> str:
    """A value with the ends of its interval."""
    if told is None or told.get("value") is None:
        return DASH
    if told["low"] is None:
        return number(told["value"], digits)
    return f"{number(told['value'], digits)} ({number(told['low'], digits)} to {number(told['high'], digits)})"


def ranged(told: Mapping[str, Any] | None, digits: int = 1) -> str:
    """A mean with the ends of its interval."""
    return interval(None if told is None else {**told, "value": told["mean"]}, digits)


_NUMBER = r"(?:[-−+]?(?:\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|∞)%?|–)"
_NUMERIC = re.compile(rf"{_NUMBER}(?: ± {_NUMBER}| of {_NUMBER}|/{_NUMBER}| \({_NUMBER} to {_NUMBER}\))?")


def numeric(table: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column holds numbers: each cell is one, with its error or interval maybe, or a dash."""
    return all(_NUMERIC.fullmatch(row[column]) for row in table)
