"""What a load test found, the answer first: up to which load a judge judges as it does unloaded, how much it sustains.

What never belongs here: computing figures, tables, one load by itself (``sentences``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from viva.orchestration.load.driver import SATURATED, TOO_MANY
from viva.reports.page import Record, counted, joined
from viva.reports.text import percent
from viva.scoring.load.objective import SHARES, Objective

from .sentences import (
    ANSWERED,
    answered_share,
    basis,
    compared_requests,
    seconds,
    standing,
    step_sentence,
    unknown_sentence,
)

_OF_VERDICTS = ("drift", "agreement")
_KEEPS_UP = 0.9  # of the rate at which requests are due


def conclusions(report: Record) -> list[str]:
    """For each judge: up to which load it judges as it does unloaded, what happens beyond, how many verdicts it
    sustains; and where there is an objective, up to which load it holds.
    """
    told = []
    for judge in report["judges"]:
        told.append(conclusion(judge, _missed(report["objective"], judge["judge"])))
        told += objective_sentences(report["objective"], judge)
    return told


def headline(report: Record) -> list[str]:
    """The answer of a page: of one judge in its sentences, of several how many judge otherwise, then each of them."""
    if len(report["judges"]) == 1:
        [judge] = report["judges"]
        missed = _missed(report["objective"], judge["judge"])
        return [*_told(judge, missed), *objective_sentences(report["objective"], judge)]
    judges = report["judges"]
    changed = [(judge["judge"], flagged[0]["load"]) for judge in judges if (flagged := _flagged(judge))]
    same = [judge for judge in judges if _all_same(judge)]
    if changed:
        first = f"{len(changed)} of {len(judges)} judges judge otherwise under load: "
        first += joined(f"{name} first at {load}" for name, load in changed) + "."
    elif same:
        whose = f"All {len(judges)}" if len(same) == len(judges) else f"{len(same)} of {len(judges)}"
        first = f"{whose} judges judge at every load as they do unloaded ({_least_basis(same)})."
    else:
        first = "No change is found, and too little is known to say that judges judge under load as they do unloaded."
        first = first if any(_compared(judge) for judge in judges) else "Nothing is known of judgement under load."
    return [first, *conclusions(report)]


def _all_same(judge: Record) -> bool:
    """Whether a judge is known to judge at every load as it does unloaded."""
    steps = judge["judgement"]["steps"]
    return bool(steps) and all(standing(step) == "same" for step in steps)


def _least_basis(judges: Sequence[Record]) -> str:
    """What a statement about several judges rests on at least."""
    steps = [step for judge in judges for step in judge["judgement"]["steps"]]
    share, compared = min(map(answered_share, steps)), min(map(compared_requests, steps))
    return f"at least {percent(share)} of requests answered and verdicts on {compared:,} compared at each"


def conclusion(judge: Record, missed: Collection[int] = ()) -> str:
    """The answer for one judge. ``missed``: steps that do not meet the objective, where there is one."""
    return " ".join(_told(judge, missed))


def _told(judge: Record, missed: Collection[int]) -> list[str]:
    compared, flagged = _compared(judge), _flagged(judge)
    if not compared:
        told = [f"{judge['judge']}: nothing is known of its judgement under load{_why_unknown(judge)}."]
    else:
        told = _sound_up_to(judge["judge"], compared)
        told += [step_sentence(step, judge["judgement"]) for step in flagged[:1]]
    same, best = _identity(judge), _sustained(judge, missed)
    return [*told, *([same] if same else []), *([best] if best else [])]


def _compared(judge: Record) -> list[Record]:
    return [step for step in judge["judgement"]["steps"] if step["p"] is not None]


def _flagged(judge: Record) -> list[Record]:
    return [step for step in _compared(judge) if step["flagged"]]


def _identity(judge: Record) -> str:
    """Whether a judge whose answers are to be the same at any load keeps that."""
    steps = [step for step in judge["judgement"]["steps"] if step["texts"] is not None]
    if judge["tier"] != "C" or not steps:
        return ""
    broken = [step for step in steps if step["texts"]["same"]["value"] < 1.0]
    if broken:
        share = percent(1.0 - broken[0]["texts"]["same"]["value"])
        load = broken[0]["load"]
        return f"Its answers should be the same at any load (tier C), but {share} of them differ at {load}."
    number_of = min(step["texts"]["n"] for step in steps)
    return f"Its answers are the same at every load, byte for byte (tier C), on {counted(number_of, 'request')} each."


def _sound_up_to(name: str, compared: Sequence[Record]) -> list[str]:
    """Up to which load nothing has changed, as far as that is known, and why no further."""
    first = next((at for at, step in enumerate(compared) if standing(step) != "same"), len(compared))
    if first == len(compared):
        return [f"{name} judges under load as it does unloaded, up to {compared[-1]['load']} ({basis(compared[-1])})."]
    here = compared[first]
    changed = standing(here) == "changed"
    if first:
        sound = f"{name} judges as it does unloaded up to {compared[first - 1]['load']} ({basis(compared[first - 1])})"
        return [f"{sound}, and no longer at {here['load']}."] if changed else [f"{sound}.", unknown_sentence(here)]
    if changed:
        return [f"{name} does not judge as it does unloaded at {here['load']}, the lowest load."]
    return [f"{name}: {_uncapitalised(unknown_sentence(here))}"]


def _uncapitalised(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _why_unknown(judge: Record) -> str:
    if judge["judgement"]["unloaded"]["unreadable"] == 1.0:
        return ": none of its unloaded answers holds a verdict"
    return ": nothing is read of its answers" if _reads_nothing(judge) else ""


def _sustained(judge: Record, missed: Collection[int]) -> str:
    """The most verdicts a minute of a step whose queue does not grow, at which no change of the judge was found."""
    best: tuple[float, Record] | None = None
    for step in judge["steps"]:
        speed, verdicts = step.get("speed"), step.get("verdicts_per_minute")
        if not speed or not verdicts or speed["end"] in (SATURATED, TOO_MANY) or _falls_behind(speed):
            continue
        fit = standing(step["judgement"]) not in ("changed", "failed") and step["step"] not in missed
        if fit and (best is None or verdicts > best[0]):
            best = verdicts, step
    if best is None:
        return ""
    verdicts, step = best
    speed = step["speed"]
    what = "answers" if _reads_nothing(judge) else "verdicts"
    latency = speed["latencies"]["e2e"].get("p95")
    beside = "" if latency is None else f", 95% of them within {seconds(latency)}"
    lost = sum(speed["errors"].values()) / speed["requests"] if speed["requests"] else 0.0
    beside += f"; {percent(lost)} of its requests fail" if lost else ""
    return f"It sustains {verdicts:,.0f} {what} a minute at {step['judgement']['load']}{beside}."


def _falls_behind(speed: Record) -> bool:
    """Whether answers came clearly slower than requests of an open loop, so that its queue grew in what was seen."""
    offered = speed["offered_rate"] if speed["rate"] is not None else None
    return bool(offered and speed["throughput"] < _KEEPS_UP * offered)


def _reads_nothing(judge: Record) -> bool:
    """Whether its unloaded answers are all readable, and still there is nothing to compare: they are any text."""
    judgement = judge["judgement"]
    known = min(judgement["unloaded"]["answers"]) > 0 and judgement["unloaded"]["unreadable"] < 1.0
    return known and all(step["p"] is None for step in judgement["steps"])


def _missed(objective: Record | None, judge: str) -> set[int]:
    steps = objective.get("steps", ()) if objective else ()
    return {step["step"] for step in steps if step["judge"] == judge and not step["met"]}


def objective_sentences(objective: Record | None, judged: Record) -> list[str]:
    """Up to which load a judge met the objective, what it missed at the next one, where its queue grew."""
    told: list[str] = []
    judge = judged["judge"]
    for one in objective.get("highest", ()) if objective else ():
        if one["judge"] != judge:
            continue
        [(kind, best)] = [(name, value) for name, value in one.items() if name != "judge"]
        unit = "requests a second" if kind == "rate" else "requests in flight"
        holds = f"holds up to {best:g} {unit}" if best is not None else "holds at no load that was tried"
        assert objective is not None
        steps = [step for step in objective["steps"] if step["judge"] == judge and kind in step]
        sentence = f"{judge}: {objective['text']} {holds}"
        sentence += _on_few([step["step"] for step in steps if step[kind] == best], judged, objective["text"])
        failed = min((step for step in steps if not step["met"]), key=lambda step: float(step[kind]), default=None)
        if failed is not None:
            unknown = [term for term in failed["missed"] if _figure_of(term, failed) is None]
            missed = [f"{term} ({_value(term, failed)})" for term in failed["missed"] if term not in unknown]
            reasons = [f"it misses {', '.join(missed)}"] if missed else []
            reasons += [f"nothing is known of {', '.join(unknown)}"] if unknown else []
            reasons += ["its queue grows without bound"] if failed["saturated"] else []
            sentence += f"; at {failed[kind]:g} {', and '.join(reasons)}"
        told.append(f"{sentence}.")
    return told


def _on_few(places: Collection[int], judged: Record, objective: str) -> str:
    """Return that an objective was met while many requests failed or, where it speaks of verdicts, on few of them."""
    of_verdicts = any(term.figure in _OF_VERDICTS for term in Objective.parse(objective).terms)
    steps = [step["judgement"] for step in judged["steps"] if step["step"] in places]
    for step in steps:
        share = f"{percent(answered_share(step))} of requests answered"
        if of_verdicts and standing(step) in ("few", "failed"):
            return f" ({share}, verdicts on {compared_requests(step)} compared)"
        if answered_share(step) < ANSWERED:
            return f" ({share})"
    return ""


def _value(term: str, step: Record) -> str:
    """The figure of a term, in the unit of the term."""
    [read] = Objective.parse(term).terms
    value = _figure_of(term, step)
    assert value is not None
    if read.timed:
        return seconds(value)
    return percent(value) if read.figure in SHARES else f"{value:.3g}"


def _figure_of(term: str, step: Record) -> float | None:
    [read] = Objective.parse(term).terms
    found: float | None = step["figures"].get(read.figure)
    return found
