"""Default aggregate if several roles are compared: each model's scores and wins, and results of pairs of models.

A conversation has one model for each compared role. The number returned under a role's name is the score of that role's
model; `winner` names the role that won, or is `tie`. Intervals are over tasks: all conversations of a model about one
task are a cluster. They do not generalize to other opponents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

from viva.reports.tables import Table, mean_and_interval, number
from viva.scoring.clustered_means import clustered_mean

from .contract import SCORE, Ranges, Role
from .default_aggregate import TRUTH_RANGE, Measures, estimate_record, measure_interval, named_values
from .models import label_of_key
from .run_aggregate import join_headline

WINNER, TIE = "winner", "tie"
_UNBOUNDED = (-math.inf, math.inf)


def check_meeting(value: Any, roles: Sequence[str], name: str) -> Any:
    """Return the value of a conversation between models; a lone text becomes the `winner`.

    Raises:
        ValueError: The value has neither a winner nor a score of a role.
    """
    value = {WINNER: value} if isinstance(value, str) else value
    values = named_values(value)
    winner = values.get(WINNER)
    if winner is not None and winner not in (*roles, TIE):
        expected = ", ".join(f"'{role}'" for role in roles)
        raise ValueError(
            f"{name} returned {WINNER} = {winner!r}; expected {expected}, '{TIE}', or None if it is unscored"
        )
    if value is not None and WINNER not in values and not values.keys() & set(roles):
        scores = ", ".join(f"'{role}': …" for role in roles)
        raise ValueError(f"{name} returned {value!r:.80}; expected scores by role, {{{scores}}}, or the winner's role")
    return value


class _Results:
    """Scores and wins of one model, or in one role, as pairs of task and value."""

    def __init__(self) -> None:
        self.conversations = self.unscored = self.failed = 0
        self.scores: list[tuple[str, float]] = []
        self.wins: list[tuple[str, float]] = []

    def add(self, task: str, score: float | None, won: float | None) -> None:
        """Add a conversation."""
        self.conversations += 1
        self.unscored += score is None and won is None
        self.scores += [] if score is None else [(task, score)]
        self.wins += [] if won is None else [(task, won)]

    def mean(self) -> float | None:
        """Return the mean score, or the mean of wins if there are no scores."""
        values = [value for _, value in self.scores or self.wins]
        return math.fsum(values) / len(values) if values else None

    def to_dict(self, scale: tuple[float, float] | None) -> dict[str, Any]:
        """Return all figures as plain data."""
        return {
            "conversations": self.conversations,
            "failed": self.failed,
            "unscored": self.unscored,
            "score": _clustered_record(self.scores, scale),
            "won": _clustered_record(self.wins, TRUTH_RANGE),
        }


class _Pair:
    """The results of one model against another, in all roles; `margins` are its scores minus the second model's."""

    def __init__(self) -> None:
        self.conversations = 0
        self.margins: list[tuple[str, float]] = []
        self.wins: list[float] = []

    def add(self, task: str, first: float | None, second: float | None, won: float | None) -> None:
        """Add the scores of both models in a conversation, and the first model's win."""
        self.conversations += 1
        self.margins += [] if first is None or second is None else [(task, first - second)]
        self.wins += [] if won is None else [won]

    def to_dict(self, scale: tuple[float, float] | None) -> dict[str, Any]:
        """Return all figures as plain data."""
        low, high = scale or _UNBOUNDED
        mean = clustered_mean([value for _, value in self.margins], [task for task, _ in self.margins])
        ends = None if mean is None else mean.ends(low - high, high - low)
        won, lost = self.wins.count(1.0), self.wins.count(0.0)
        return {
            "conversations": self.conversations,
            "won": won,
            "tied": len(self.wins) - won - lost,
            "lost": lost,
            "difference": estimate_record(mean, ends),
        }


class Meetings(Measures):
    """The compared models of a run with several compared roles."""

    def __init__(
        self, manifest: dict[str, Any], roles: Sequence[Role], ranges: Ranges | None = None, unit: str = ""
    ) -> None:
        super().__init__(manifest, roles, ranges, unit)
        self._pools = {role.name: role.setting for role in roles if role.many}
        players = [(role, label) for role in self._pools for label in manifest["models"][role]]
        self._models = {(self._pools[role], label): _Results() for role, label in players}
        self._players = {player: _Results() for player in players}
        self._roles = {role: _Results() for role in self._pools}
        pools = list(self._pools.values())
        meeting = [[label for pool, label in self._models if pool == setting]
                   for setting in dict.fromkeys(pools) if pools.count(setting) > 1]  # fmt: skip
        self._pairs = {pair: _Pair() for labels in meeting for pair in combinations(labels, 2)}

    def add(self, key: str, result: Any) -> None:
        super().add(key, result)
        lineup = self.lineups[label_of_key(key, list(self.lineups))]
        stopped = "stopped" in result and result["value"] is None
        values = {} if stopped else named_values(result["value"])
        scores = {role: _to_number(values.get(role, values.get(SCORE))) for role in lineup}
        wins = self._wins(values)
        for role, label in lineup.items():
            for results in self._results_of(role, label):
                results.add(result["task"], scores[role], wins.get(role))
        for first, second in permutations(lineup, 2):  # each pair is there in one order only
            pair = self._pairs.get((lineup[first], lineup[second]))
            if pair is not None and self._pools[first] == self._pools[second]:
                pair.add(result["task"], scores[first], scores[second], wins.get(first))

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        super().add_failure(key, error)
        for role, label in self.lineups[label_of_key(key, list(self.lineups))].items():
            for results in self._results_of(role, label):
                results.failed += 1

    def _results_of(self, role: str, label: str) -> list[_Results]:
        return [self._models[self._pools[role], label], self._players[role, label], self._roles[role]]

    def _wins(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return each role's win in a conversation: 1, 0, or an equal part of a tie; empty if unknown.

        Without a `winner` the roles' scores decide, but only if the roles share a pool: otherwise the scores are not on
        one scale.
        """
        roles, winner = list(self._pools), values.get(WINNER)
        if WINNER in values:
            best = [winner] if winner in roles else roles if winner == TIE else []
        elif len(set(self._pools.values())) > 1:
            best = []
        else:
            scores = {role: score for role in roles if (score := _to_number(values.get(role))) is not None}
            best = [role for role in scores if scores[role] == max(scores.values()) and len(scores) == len(roles)]
        return {role: 1.0 / len(best) if role in best else 0.0 for role in roles} if best else {}

    def _scale(self, roles: Sequence[str]) -> tuple[float, float] | None:
        """Return the range of these roles' scores, None if it is not declared."""
        ranges = [self._ranges.get(role, self._ranges.get(SCORE, _UNBOUNDED)) for role in roles]
        ends = min(low for low, _ in ranges), max(high for _, high in ranges)
        return None if ends == _UNBOUNDED else ends

    def headline(self) -> str:
        means = [(label, results.mean()) for (_, label), results in self._models.items()]
        return join_headline((label, "" if mean is None else number(mean, 2)) for label, mean in means)

    def report(self) -> dict[str, Any]:
        standings: dict[str, dict[str, Any]] = {}
        for (pool, label), results in self._models.items():
            roles = [role for role, setting in self._pools.items() if setting == pool]
            entry = results.to_dict(self._scale(roles))
            if len(roles) > 1:
                entry["roles"] = {role: self._players[role, label].to_dict(self._scale([role])) for role in roles}
            standings.setdefault(pool, {})[label] = entry
        scale = self._scale(list(self._pools))
        return super().report() | {
            "standings": standings,
            "pairs": [{"models": list(models), **pair.to_dict(scale)} for models, pair in self._pairs.items()],
            "roles": {role: results.to_dict(self._scale([role])) for role, results in self._roles.items()},
        }

    def tables(self) -> list[Table]:
        report = self.report()
        [(title, header, rows), *remaining] = super().tables()
        tables = [
            _results_table(title if number == 0 else f"By {pool}", pool, models, self.score_header())
            for number, (pool, models) in enumerate(report["standings"].items())
        ]
        tables.append(_pairs_table(report["pairs"]))
        tables.append(_results_table("By role, over all models", "role", report["roles"], self.score_header()))
        return [*tables, (f"By pairing ({'+'.join(self._pools)})", header, rows), *remaining]


def _results_table(title: str, first: str, results: Mapping[str, Mapping[str, Any]], score: str) -> Table:
    kinds = [kind for kind in ("score", "won") if any(record[kind]["n"] for record in results.values())]
    roles = list(next(iter(results.values()), {}).get("roles", {}))
    titles = [score if kind == SCORE else kind for kind in kinds]
    header = [first, "conversations", *titles, *(f"as {role}" for role in roles), "unscored", "failed"]
    rows = []
    for label, record in results.items():
        means = [record[kind] for kind in kinds] + [record["roles"][role][kind] for role in roles for kind in kinds[:1]]
        counts = [f"{record[name]:,}" for name in ("unscored", "failed")]
        rows.append([label, f"{record['conversations']:,}", *(mean_and_interval(mean, 2) for mean in means), *counts])
    return (title, header if kinds else [name for name in header if not name.startswith("as ")], rows)


def _pairs_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    scored = ["score difference"] if any(pair["difference"]["n"] for pair in pairs) else []
    rows = []
    for pair in pairs:
        difference = [mean_and_interval(pair["difference"], 2) for _ in scored]
        counts = [f"{pair[name]:,}" for name in ("won", "tied", "lost")]
        rows.append([*pair["models"], f"{pair['conversations']:,}", *difference, *counts])
    header = ["first", "second", "conversations", *scored, "won", "tied", "lost"]
    return ("Results of the first model of each pair against the second, in both roles", header, rows)


def _clustered_record(values: Sequence[tuple[str, float]], scale: tuple[float, float] | None) -> dict[str, Any]:
    numbers = [value for _, value in values]
    mean = clustered_mean(numbers, [task for task, _ in values])
    return estimate_record(mean, None if mean is None else measure_interval(mean, numbers, scale))


def _to_number(value: float | bool | str | None) -> float | None:
    return None if value is None or isinstance(value, str) else float(value)
