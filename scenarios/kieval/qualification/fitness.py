"""Fitness of a model for a role: figures of its turns, and a verdict in words with the figure that supports it.

A verdict claims only what its interval allows: `usable` and `not_usable` need an interval on one side of a stated
bound; everything else is `too_few`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viva.scoring.aggregates import Mean
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.comparison import mean_effect
from viva.scoring.contamination import auc
from viva.scoring.correlation import spearman
from viva.scoring.intervals import Estimate, welch

from ...fitness import Fitness, FitnessVerdict

Turn = Mapping[str, Any]
WORDS: dict[FitnessVerdict, str] = {"usable": "usable", "not_usable": "not usable", "too_few": "too few to tell"}

# A usable evaluator's AUC interval lies above MIN_AUC; one that contains 0.5 and ends below GOOD_AUC is a fault.
MIN_AUC, GOOD_AUC = 0.6, 0.85
# A larger bias, in points on the scale of 1 to 4, is a fault of an evaluator.
MAX_BIAS = 0.3
BIAS_LEVEL = 0.99  # of the intervals of both biases of an evaluator
# The largest acceptable shares of verdicts that are unreadable, have the most frequent score, or are copied.
MAX_UNREAD, MAX_SAME, MAX_COPIED = 0.2, 0.85, 0.5
# A usable interactor's or candidate's share of sound turns lies above MIN_SOUND, an unfit model's below GOOD_SOUND.
MIN_SOUND, GOOD_SOUND = 0.6, 0.8
_SCALE = 3  # points from the lowest to the highest score
_OVERALL = 5
_STOPPING = ("empty", "off_topic", "repeated")  # kinds of replies at which an evaluator may stop an interview


def evaluator_figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the figures of an evaluator's verdicts."""
    forced = [turn for turn in turns if turn["forced"]]
    read = [turn for turn in forced if turn["scores"] is not None]
    scored = [turn for turn in read if turn["scores"][_OVERALL] is not None]
    first = [turn for turn in scored if turn["position"] == 1]
    choices = [turn for turn in first if turn["kind"] in ("right", "wrong")]
    common = Counter(turn["scores"][_OVERALL] for turn in scored).most_common(1)
    unforced = [turn for turn in turns if not turn["forced"]]
    flags = {kind: [turn["stop"] is not None for turn in read if turn["position"] == 1 and turn["kind"] in kinds]
             for kind, kinds in (("bad", _STOPPING), ("right", ("right",)))}  # fmt: skip
    return {
        "verdicts": len(forced),
        "scored": len(scored),
        "unread": len(forced) - len(scored),
        "unread_share": _share([turn["scores"] is None or turn["scores"][_OVERALL] is None for turn in forced]),
        "read_at_once": sum(turn["failures"] == 0 for turn in forced),
        "unforced": len(unforced),
        "unforced_read": sum(turn["failures"] == 0 for turn in unforced),
        "auc": _auc(choices),
        "right": sum(turn["kind"] == "right" for turn in choices),
        "wrong": sum(turn["kind"] == "wrong" for turn in choices),
        "rho": _rho(first),
        "distinct": len({(*turn["scores"], turn["stop"]) for turn in read}),
        "common_score": common[0][0] if common else None,
        "common_share": _share([turn["scores"][_OVERALL] == common[0][0] for turn in scored]) if common else None,
        "copied_share": _share([turn["copied"] for turn in read]),
        "position": _position_effect(scored),
        "length": _length_effect(choices),
        "stops": {kind: [sum(values), len(values)] for kind, values in flags.items()},
        **_size(turns),
    }


def evaluator_fitness(figures: Mapping[str, Any]) -> Fitness:
    """Return the verdict on an evaluator."""
    area, faults = figures["auc"], []
    n = figures["verdicts"]
    if _above(figures["unread_share"], MAX_UNREAD):
        faults.append(f"{figures['unread']} of {n} verdicts cannot be read")
    if _above(figures["copied_share"], MAX_COPIED):
        faults.append(f"{_percent(figures['copied_share'])} of its verdicts copy an earlier one")
    if _above(figures["common_share"], MAX_SAME):
        faults.append(
            f"gives {_percent(figures['common_share'])} of all replies the same score, {figures['common_score']}"
        )
    if area is not None and area["low"] <= 0.5 and area["high"] < GOOD_AUC:
        faults.append(f"does not tell right from wrong ({_area_text(area)})")
    biases = {name: effect for name in _BIASED if (effect := figures[name]) is not None and _side(effect, 0.0)}
    faults += [_bias_text(name, effect) for name, effect in biases.items() if _side(effect, MAX_BIAS)]
    if faults:
        return Fitness("not_usable", f"not usable as evaluator: {'; '.join(faults)}")
    notes = "".join(f"; but it {_bias_text(name, effect)}" for name, effect in biases.items())
    unknown = "too few to tell whether it is usable as evaluator"
    if area is None:
        return Fitness("too_few", f"{unknown}: {figures['unread']} of {n} verdicts cannot be read")
    counts = f"{figures['right']} right and {figures['wrong']} wrong replies"
    if area["low"] > MIN_AUC:
        return Fitness("usable", f"usable as evaluator: tells right from wrong ({_area_text(area)}; {counts}){notes}")
    return Fitness("too_few", f"{unknown}: {_area_text(area)}, with {counts}{notes}")


def turn_figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the figures of an interactor's or a candidate's turns."""
    flaws = Counter(flaw for turn in turns for flaw in turn["flaws"])
    return {
        "turns": len(turns),
        "sound": sum(not turn["flaws"] for turn in turns),
        "sound_share": _share([not turn["flaws"] for turn in turns], [turn["case"] for turn in turns]),
        "flaws": dict(sorted(flaws.items())),
        **_size(turns),
    }


_FLAWS = {
    "empty": "empty",
    "no_question": "without a question",
    "echo": "that echo what it was told",
    "repeated_question": "asked before",
    "cut_question": "cut before they ask anything",
    "answers_itself": "with an answer to its own question",
    "leak": "that give the right answer away",
    "cut": "cut at the token limit",
    "loop": "that loop",
    "repeated": "given before",
    "role_shift": "in another party's name",
    "no_choice": "that name no choice",
}


def turns_fitness(role: str, figures: Mapping[str, Any]) -> Fitness:
    """Return the verdict on an interactor or a candidate."""
    share, n = figures["sound_share"], figures["turns"]
    name = "questions" if role == "interactor" else "answers"
    if share is None:
        return Fitness("too_few", f"too few to tell whether it is usable as {role}: no {name}")
    counts = f"{figures['sound']} of {n} {name} have no flaw"
    flaws = ", ".join(f"{count} {_FLAWS[flaw]}" for flaw, count in figures["flaws"].items())
    ends = f"95% interval {_percent(share, 'low')} to {_percent(share, 'high')}"
    text = f"{counts} ({ends})" + (f": {flaws}" if flaws else "")
    if share["low"] > MIN_SOUND:
        return Fitness("usable", f"usable as {role}: {text}")
    if share["high"] < GOOD_SOUND:
        return Fitness("not_usable", f"not usable as {role}: {text}")
    return Fitness("too_few", f"too few to tell whether it is usable as {role}: {text}")


def _above(share: Mapping[str, float] | None, bound: float) -> bool:
    return share is not None and share["low"] > bound


def _area_text(area: Mapping[str, float]) -> str:
    return f"AUC {area['value']:.2f}, 95% interval {area['low']:.2f} to {area['high']:.2f}"


_BIASED = {"position": ("later", "earlier"), "length": ("longer", "shorter")}


def _side(effect: Mapping[str, float], bound: float) -> bool:
    """Return True if an effect's interval lies beyond a bound, on either side."""
    return max(effect["low"], -effect["high"]) > bound


def _bias_text(name: str, effect: Mapping[str, float]) -> str:
    low, high = sorted((abs(effect["low"]), abs(effect["high"])))
    size = f"by {abs(effect['value']):.1f} points, 99% interval {low:.1f} to {high:.1f}"
    return f"grades {_BIASED[name][effect['value'] < 0]} replies higher ({size})"


def _percent(share: Mapping[str, float], end: str = "value") -> str:
    return f"{100 * share[end]:.0f}%"


def _record(estimate: Estimate | None, factor: float = 1.0) -> dict[str, float] | None:
    if estimate is None:
        return None
    return {name: round(factor * getattr(estimate, name), 6) for name in ("value", "low", "high")}


def _share(values: Sequence[bool], clusters: Sequence[str] | None = None) -> dict[str, float] | None:
    """Return the share of true values with its 95% interval; None without values."""
    mean = clustered_mean([float(value) for value in values], clusters or [str(at) for at in range(len(values))])
    return _record(None if mean is None else mean.bounded_interval(0.0, 1.0, rate=True))


def _auc(turns: Sequence[Turn]) -> dict[str, float] | None:
    """Return the chance that a right reply gets a higher score than a wrong one; a tie counts half."""
    member = [turn["kind"] == "right" for turn in turns]
    if min(member.count(True), member.count(False)) < 2:
        return None
    return _record(auc([turn["scores"][_OVERALL] for turn in turns], member))


def _rho(turns: Sequence[Turn]) -> float | None:
    """Return the rank correlation of scores and known grades; None without any spread."""
    if len(turns) < 3:
        return None
    coefficient = spearman([turn["scores"][_OVERALL] for turn in turns], [turn["grade"] for turn in turns])
    return None if coefficient is None else round(coefficient.value, 6)


def _position_effect(turns: Iterable[Turn]) -> dict[str, float] | None:
    """Return by how many points a reply is graded higher as a later exchange than as the first, with its interval."""
    first: dict[str, float] = {}
    later: dict[str, float] = {}
    for turn in turns:
        (first if turn["position"] == 1 else later)[turn["exchange"]] = turn["scores"][_OVERALL]
    effect = mean_effect({name: (score - first[name]) / _SCALE for name, score in later.items() if name in first},
                         level=BIAS_LEVEL)  # fmt: skip
    if effect.value is None or effect.low is None or effect.high is None:
        return None
    return _record(Estimate(effect.value, effect.low, effect.high), _SCALE)


def _length_effect(turns: Sequence[Turn]) -> dict[str, float] | None:
    """Return by how many points long replies are graded higher than equally correct short ones, with its interval."""
    sides = {"short": Mean(), "long": Mean()}
    for kind in ("right", "wrong"):
        same = [turn for turn in turns if turn["kind"] == kind]
        average = math.fsum(turn["scores"][_OVERALL] for turn in same) / len(same) if same else 0.0
        for turn in same:
            sides[turn["length"]].add(turn["scores"][_OVERALL] - average)
    if min(side.n for side in sides.values()) < 2:
        return None
    return _record(welch(sides["short"], sides["long"], BIAS_LEVEL))


def _size(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the mean number of tokens of a turn."""
    return {"tokens_each": round(math.fsum(turn["tokens"] for turn in turns) / len(turns), 1) if turns else None}
