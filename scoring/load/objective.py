"""Objectives of a load test, such as ``p95_e2e<3s, parse_fail<1%, drift<0.05``: read, and held against figures.

An objective is met when every one of its terms is. A term whose figure is unknown is not met: nothing shows that it
holds.

What never belongs here: how a figure is measured.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from viva.engine.errors import ConfigurationError

# Latencies, in seconds: what is timed, and from when to when.
TIMED = {
    "e2e": "from the intended start to the last token",
    "ttft": "time to first token, from the intended start",
    "itl": "inter-token latency: mean gap between the tokens of a request",
    "service": "from dispatch to the last token",
    "dispatch": "dispatch delay: from the intended start to dispatch",
}
# Shares and other figures, by name.
SHARES = {
    "error": "failed requests",
    "throttled": "requests that the endpoint throttled",
    "parse_fail": "answers without a readable verdict",
    "truncated": "answers cut at the token limit",
    "refused": "answers that refuse to judge",
    "agreement": "verdicts equal to the unloaded ones",
    "goodput_share": "requests answered within the objective's latencies",
}
PLAIN = {
    "drift": "how far verdicts move from the unloaded ones, as a share of the scale",
    "throughput": "answers a second",
    "goodput": "answers a second within the objective's latencies",
    "cost": "cost of 1,000 verdicts",
}
_STATISTIC = re.compile(r"(p\d{1,2}(?:\.\d+)?|mean|max)_(\w+)$")
_TERM = re.compile(r"\s*([a-z_0-9.]+)\s*(<=|>=|<|>)\s*([0-9.]+(?:e-?\d+)?)\s*(s|ms|us|µs|%|)\s*$")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "%": 1e-2, "": 1.0}
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(slots=True, frozen=True)
class Term:
    """One condition; ``bound`` in seconds, as a share, or as a plain number. ``text`` is how it was written."""

    figure: str
    sign: str
    bound: float
    text: str

    @property
    def timed(self) -> str:
        """What of ``TIMED`` the term bounds; "" for other figures."""
        found = _STATISTIC.match(self.figure)
        return found[2] if found else ""

    @property
    def quantile(self) -> float | None:
        """The share of requests that the bound is for (``p95``: 0.95); None for means, maxima and other figures."""
        found = _STATISTIC.match(self.figure)
        return float(found[1][1:]) / 100 if found and found[1].startswith("p") else None

    def met(self, value: float | None) -> bool:
        """Whether a figure meets the condition; an unknown one does not."""
        return value is not None and _SIGNS[self.sign](value, self.bound)


@dataclass(slots=True, frozen=True)
class Objective:
    """All conditions of one objective."""

    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Read terms separated by commas.

        :raises ConfigurationError: a term is not FIGURE<BOUND, or its figure or unit is unknown.
        """
        return cls(tuple(_term(part) for part in text.split(",")))

    def __str__(self) -> str:
        return ", ".join(term.text for term in self.terms)

    def missed(self, figures: Mapping[str, float | None]) -> tuple[Term, ...]:
        """The terms that these figures do not meet."""
        return tuple(term for term in self.terms if not term.met(figures.get(term.figure)))

    def limits(self) -> dict[str, float]:
        """For each timed thing the most seconds that one request may take to count as goodput."""
        most: dict[str, float] = {}
        for term in self.terms:
            if term.timed and term.sign in ("<", "<="):
                most[term.timed] = min(most.get(term.timed, term.bound), term.bound)
        return most


def _term(part: str) -> Term:
    found = _TERM.match(part)
    if not found:
        raise ConfigurationError(
            f"objective '{part.strip()}': expected FIGURE<BOUND with the unit s, ms or %, such as p95_e2e<3s, "
            "parse_fail<1% or drift<0.05"
        )
    figure, sign, number, unit = found.groups()
    statistic = _STATISTIC.match(figure)
    timed = bool(statistic and statistic[2] in TIMED)
    if not timed and figure not in SHARES and figure not in PLAIN:
        known = ", ".join([*SHARES, *PLAIN])
        raise ConfigurationError(
            f"objective '{part.strip()}': unknown figure '{figure}'; known are p50_, p95_, p99_, mean_ or max_ with "
            f"{', '.join(TIMED)} (p95_e2e), and {known}"
        )
    if timed != (unit in ("s", "ms", "us", "µs")) or (unit == "%" and figure in ("throughput", "goodput", "cost")):
        wanted = "a unit of time: s, ms or us" if timed else "no unit of time" + (", or %" if figure in SHARES else "")
        raise ConfigurationError(f"objective '{part.strip()}': {figure} takes {wanted}")
    try:
        bound = float(number) * _UNITS[unit]
    except ValueError:
        raise ConfigurationError(f"objective '{part.strip()}': '{number}' is no number") from None
    return Term(figure, sign, bound, part.strip())
