"""Drawing an evaluation's questions from the bank: by dimension, difficulty and quota, and by nothing but the seed.

A question's rank is a hash of seed and id, so the order of the bank does not matter, and a larger draw holds a smaller
one. What never belongs here: the bank itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date
from types import MappingProxyType

from viva.engine import seeds
from viva.engine.errors import ConfigurationError

from .bank_rows import Pair
from .project_file import Counts


def draw(
    pairs: Iterable[Pair],
    seed: int,
    day: date,
    *,
    n: int | None = None,
    quota: Mapping[str, Counts] | None = None,
    without: Mapping[str, str] = MappingProxyType({}),
) -> list[Pair]:
    """Questions whose standard answer holds on that day: ``n`` of all, or as many as ``quota`` says of each dimension
    and difficulty, or all of them; by dimension, then in the order of the draw.

    Args:
        without: ids of questions that are not to be drawn, each with the name of the round that it was in.

    :raises ConfigurationError: there are not so many; the message names every dimension and difficulty that lacks some,
        and how many were left out.
    """
    valid = [pair for pair in pairs if pair.valid_on(day)]
    left = [pair for pair in valid if pair.id not in without]
    ranked = sorted(left, key=lambda pair: (_rank(seed, pair), pair.id))
    used = _used(len(valid) - len(left), {without[pair.id] for pair in valid if pair.id in without})
    if quota:
        return _by_quota(ranked, quota, day, used)
    if not ranked:
        raise ConfigurationError(f"no accepted question is valid on {day}{used}; see `viva grade bank list`")
    if n is not None and n > len(ranked):
        raise ConfigurationError(f"{n} questions are wanted, and {len(ranked)} accepted ones are valid on {day}{used}")
    return _in_order(ranked[:n])


def _used(count: int, rounds: Collection[str]) -> str:
    """Say how many questions were left out because graders have seen them; nothing where there are none."""
    if not count:
        return ""
    names = " and ".join(f"round {name}" for name in sorted(rounds))
    return f" ({count} more were in {names}; --reuse-questions draws these too)"


def draw_gold(pairs: Iterable[Pair], wanted: int, seen: Collection[str], seed: int, day: date) -> list[Pair]:
    """Return ``wanted`` questions with gold answers, as far as there are such. Those that are ``seen`` in this round or
    another one, by their ids, come last, for nobody should meet a question twice.
    """
    able = [pair for pair in pairs if pair.gold and pair.valid_on(day)]
    return sorted(able, key=lambda pair: (pair.id in seen, _rank(seed, pair), pair.id))[:wanted]


def _by_quota(ranked: list[Pair], quota: Mapping[str, Counts], day: date, used: str) -> list[Pair]:
    chosen: list[Pair] = []
    short = []
    for dimension, counts in quota.items():
        for difficulty, wanted in counts.items():
            able = [pair for pair in ranked if pair.dimension == dimension and pair.difficulty == difficulty]
            if len(able) < wanted:
                short.append(f"{dimension}, {difficulty}: {wanted} wanted, {len(able)} there")
            chosen += able[:wanted]
    if short:
        raise ConfigurationError(
            f"the quota cannot be met from accepted questions that are valid on {day}{used}: {'; '.join(short)}; "
            "accept more, or lower the quota"
        )
    return _in_order(chosen)


def _in_order(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair.dimension)  # stable: within a dimension the order of the draw


def _rank(seed: int, pair: Pair) -> float:
    return seeds.uniform(seed, "draw", pair.id)
