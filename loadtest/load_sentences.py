"""Sentences of a load test's report: up to which load a judge judges as unloaded, what it sustains."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from viva.reports.page import Record, count_of, join_names
from viva.reports.tables import number, percent
from viva.scoring.load_schedule import SHARE_FIGURES, Objective

from .load_driver import SATURATED, TOO_MANY

# Which of several changes is told first.
_ORDER = ("unreadable", "scores", "spread", "position", "verdicts", "reference")
_MOST_TOLD = 2
_MANY_UNREADABLE = 0.1
_EXCERPT = 100  # characters
# A judge is said to judge as it does unloaded where so many requests were answered (which of them fail is not chance),
# and where a change of this share of its scale would have been seen.
ANSWERED = 0.9
RESOLVED = 0.1
_Z2 = 1.96**2
_KINDS = {"parse": "unreadable", "truncated": "truncated", "refused": "refusals", "empty": "empty"}


JudgementStatus = Literal["unknown", "changed", "failed", "few", "same"]


def judgement_status(step: Record) -> JudgementStatus:
    """Return what can be said of a judge at one load: it changed, it is the same, or why neither is known."""
    if step["p"] is None:
        return "unknown"
    if step["flagged"]:
        return "changed"
    if answered_share(step) < ANSWERED:
        return "failed"
    return "few" if step["unseen"] is None or step["unseen"] > RESOLVED else "same"


def answered_share(step: Record) -> float:
    """Return the share of a step's requests that were answered."""
    sent = step["answers"] + step["errors"]
    return step["answers"] / sent if sent else 0.0


def compared_requests(step: Record) -> int:
    """Return the number of requests whose verdicts were compared with unloaded ones."""
    return max((one["n"] for one in step["figures"] if one["figure"] in ("scores", "verdicts")), default=0)


def basis_text(step: Record) -> str:
    """Return what the statement rests on that a judge is at one load what it is unloaded."""
    sent = step["answers"] + step["errors"]
    share = percent(answered_share(step))
    compared = f"verdicts on {compared_requests(step):,} compared"
    return f"{share} of {count_of(sent, 'request')} answered, {compared}, no change above {percent(step['unseen'])}"


def unknown_sentence(step: Record) -> str:
    """Return why nothing is said of a judge's verdicts at a load at which no change was found."""
    at = f"At {step['load']}"
    if judgement_status(step) == "failed":
        lost = percent(1.0 - answered_share(step))
        sent = count_of(step["answers"] + step["errors"], "request")
        return f"{at} {lost} of {sent} failed, and which ones is not chance: whether its verdicts hold is not known."
    number_of, items = compared_requests(step), _compared_items(step)
    few = count_of(number_of, "request") + (f" on {count_of(items, 'item')}" if items != number_of else "")
    sentence = f"{at} {few} compared are too few to tell"
    if step["unseen"] is None:
        return f"{sentence}."
    sentence += f": a change of up to {percent(step['unseen'])} of its scale may go unseen"
    enough = _enough_items(step, items)
    return f"{sentence}; about {count_of(enough, 'item')} would do." if enough else f"{sentence}."


def _compared_items(step: Record) -> int:
    return max((one["items"] for one in step["figures"] if one["figure"] in ("scores", "verdicts")), default=0)


def _enough_items(step: Record, items: int) -> int | None:
    """Return about how many items would leave open no change above ``RESOLVED``; None where it is not known.

    A share z² / (n + z²) of items that were not met may change altogether (Wilson's bound); beyond that intervals
    narrow with the square root of n.
    """
    drift = abs(step["drift"]["value"]) if step["drift"] is not None else 0.0
    if drift >= RESOLVED / 2:
        return None
    least = _Z2 * (1.0 / RESOLVED - 1.0)
    if not all_the_same(step):
        least = max(least, items * ((step["unseen"] - drift) / (RESOLVED - drift)) ** 2)
    return math.ceil(least / 5) * 5


def step_sentence(step: Record, judgement: Record) -> str:
    """What has become of a judge's verdicts at one load."""
    at = f"At {step['load']}"
    if step["p"] is None:
        return f"{at} no verdict can be compared with unloaded ones."
    if step["flagged"]:
        changed = sorted((one for one in step["figures"] if one["changed"]), key=_change_order)
        told: dict[str, Record] = {}
        for one in changed:  # the main score's figure stands for those of its aspects
            told.setdefault(one["figure"], one)
        if not told:
            return f"{at} its verdicts are not what they are unloaded, beyond its own noise."
        parts = [_change_text(one, step, judgement) for one in list(told.values())[:_MOST_TOLD]]
        return f"{at} {', and '.join(parts)}, beyond its own noise."
    if judgement_status(step) != "same":
        return unknown_sentence(step)
    noise = "" if all_the_same(step) else ", within its own noise"
    return f"{at} it judges as it does unloaded: {_unchanged_text(step, judgement)}{noise}."


def report_notes(report: Record) -> list[str]:
    """What a reader must know of the figures."""
    said = list(report["work"]["notes"])
    for one in report["judges"]:
        unloaded = one["judgement"]["unloaded"]
        noise = unloaded["noise"]
        said += _unread_notes(one)
        if min(unloaded["answers"]) == 0:
            said.append(f"{one['judge']}: without two unloaded passes nothing is known of its noise")
        elif noise is not None and noise["p"] is not None and noise["p"] <= report["alpha"]:
            value = abs(noise["change"]["value"])
            said.append(
                f"{one['judge']}: its two unloaded passes differ by {_points_text(value, one['judgement'])} on "
                f"average, so "
                "it is not the load alone that moves it"
            )
        speeds = [step["speed"] for step in one["steps"] if step.get("speed")]
        said += [f"{one['judge']}: {told}" for told in (*_failure_notes(one), *_unsteady_notes(one))]
        if slow := list(dict.fromkeys(speed["bottleneck"] for speed in speeds if speed.get("bottleneck"))):
            said.append(f"{one['judge']}: {slow[0]}")
    return said


def _failure_notes(judge: Record) -> list[str]:
    """Why requests failed, by type."""
    found: dict[str, tuple[int, str]] = {}
    for step in judge["steps"]:
        for kind, count in (step.get("speed") or {}).get("errors", {}).items():
            before, message = found.get(kind, (0, step["speed"]["error_messages"].get(kind, "")))
            found[kind] = before + count, message
    return [
        f"{count_of(count, 'request')} failed with {kind}, the first: {' '.join(message.split())[:_EXCERPT]}"
        for kind, (count, message) in found.items()
    ]


def _unsteady_notes(judge: Record) -> list[str]:
    """Loads at which latencies still had a trend when the step ended."""
    loads = [step["judgement"]["load"] for step in judge["steps"] if (step.get("speed") or {}).get("steady") is False]
    if not loads:
        return []
    return [
        f"latencies had not settled when the step at {join_names(loads)} ended: a longer one (--duration) shows more"
    ]


def _unread_notes(judge: Record) -> list[str]:
    """What is no verdict, by example, where that is so of many unloaded answers."""
    unloaded = judge["judgement"]["unloaded"]
    if not unloaded["unread"] or unloaded["unreadable"] < _MANY_UNREADABLE:
        return []
    share = percent(unloaded["unreadable"])
    kind, text = next(iter(unloaded["unread"].items()))
    shown = " ".join(text.split())[:_EXCERPT] or "(empty)"
    return [f"{judge['judge']}: {share} of its unloaded answers hold no verdict, such as ({kind}): {shown}"]


def seconds_text(value: float) -> str:
    """A time with its unit."""
    if value < 0.9995:
        return f"{1000 * value:.{0 if value >= 0.00995 else 1}f} ms"
    return f"{value:.2f} s" if value < 99.5 else f"{value:,.0f} s"


def digits_of(judgement: Record) -> int:
    """So many decimals tell scores on this scale apart."""
    scale = judgement["scale"]
    width = None if scale is None else scale[1] - scale[0]
    return 1 if width is not None and width >= 20 else 3 if width is not None and width <= 1 else 2


def _change_order(one: Record) -> tuple[int, float]:
    return _ORDER.index(one["figure"]), one["p"]


def _change_text(one: Record, step: Record, judgement: Record) -> str:
    change, digits = one["change"], digits_of(judgement)
    of = _aspect_text(one, judgement)
    size = _interval_text(change, digits)
    match one["figure"]:
        case "unreadable":
            kinds = [_KINDS[kind] for kind, found in sorted(step["failures"].items(), key=_by_change)
                     if found["change"]["value"] > 0.0]  # fmt: skip
            mostly = f", mostly {kinds[0]}" if kinds and kinds[0] != "unreadable" else ""
            return (
                f"{percent(one['loaded'])} of its answers hold no verdict{mostly}, instead of "
                f"{percent(one['unloaded'])} unloaded"
            )
        case "scores":
            verb = "fall" if change["value"] < 0.0 else "rise"
            return f"its scores{of} {verb} by {size}"
        case "spread":
            verb = "flatten" if change["value"] < 0.0 else "scatter"
            loaded, unloaded = (number(one[name], digits) for name in ("loaded", "unloaded"))
            return f"its scores{of} {verb} (standard deviation {loaded} instead of {unloaded})"
        case "position":
            whom = "first" if change["value"] > 0.0 else "second"
            return f"it favours the answer that stands {whom} by {_interval_text(change, 2)} more"
        case "reference" if one["aspect"] == "label":
            return (
                f"it departs from the reference labels in {_interval_text(change, 2, share=True)} more of its verdicts"
            )
        case "reference":
            return f"its scores lie {size} farther from the reference ones"
    if one["aspect"] == "label":
        return f"{percent(one['loaded'])} of its verdicts change, instead of {percent(one['unloaded'])} unloaded"
    return (
        f"its scores{of} lie {number(one['loaded'], digits)} away from its unloaded ones, which lie "
        f"{number(one['unloaded'], digits)} apart"
    )


def all_the_same(step: Record) -> bool:
    """Whether each verdict is the same as unloaded, on requests with verdicts in all three passes."""
    found = [one for one in step["figures"] if one["figure"] == "verdicts"]
    return bool(found) and all(one["loaded"] == one["unloaded"] == 0.0 for one in found)


def _unchanged_text(step: Record, judgement: Record) -> str:
    figures = step["figures"]
    if all_the_same(step):
        number_of = max(one["n"] for one in figures if one["figure"] == "verdicts")
        return f"its verdicts are the same on all {number_of:,} requests"
    for name in ("scores", "verdicts"):
        one = next((figure for figure in figures if figure["figure"] == name), None)
        if one is not None and name == "scores":
            size = _interval_text(one["change"], digits_of(judgement), signed=True)
            return f"its scores{_aspect_text(one, judgement)} change by {size}"
        if one is not None:
            return f"{percent(one['loaded'])} of its verdicts change, and {percent(one['unloaded'])} unloaded"
    return f"{percent(step['unreadable'])} of its answers hold no verdict"


def _aspect_text(one: Record, judgement: Record) -> str:
    """The aspect, where it is not the one that the judge is spoken of by."""
    return "" if one["aspect"] in (judgement["aspect"], "", "label") else f" of {one['aspect']}"


def _points_text(value: float, judgement: Record) -> str:
    return number(value, digits_of(judgement))


def _interval_text(change: Mapping[str, float], digits: int, *, signed: bool = False, share: bool = False) -> str:
    """A change with its interval; of a fall the sizes, smallest first."""
    value, low, high = change["value"], change["low"], change["high"]
    if not signed and value < 0.0:
        value, low, high = -value, -high, -low
    if share:
        return f"{percent(value)} ({percent(low)} to {percent(high)})"
    sign = "+" if signed else ""
    return f"{value:{sign}.{digits}f} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def _by_change(kind: tuple[str, Any]) -> float:
    return -float(kind[1]["change"]["value"])


def load_sentence(settings: Record | None) -> str:
    """What load was asked for."""
    if settings is None:
        return ""
    loops = []
    if settings["rates"] or settings["search"] or settings["arrivals"] == "replay":
        kind = {"replay": "arrivals as recorded", "poisson": "Poisson arrivals"}
        loops.append(f"open loop with {kind.get(settings['arrivals'], settings['arrivals'] + ' arrivals')}")
    loops += ["closed loop"] if settings["concurrency"] else []
    bounds = [count_of(settings["requests"], "request")] if settings["requests"] else []
    bounds += [seconds_text(settings["seconds"])] if settings["seconds"] else []
    size = f"{' or '.join(bounds)} a step" if bounds else ""
    together = "all judges at once" if settings["together"] else ""
    return join_names(part for part in (*loops, size, together, f"seed {settings['seed']}") if part)


def work_sentence(work: Record) -> str:
    """What was sent."""
    parts = [count_of(work["requests"], "request")]
    if work["items"] != work["requests"]:
        parts.append(f"about {count_of(work['items'], 'item')}")
    if work["pairs"]:
        parts.append(f"{count_of(work['pairs'], 'pair')} in both orders")
    if work["with_reference"]:
        parts.append(f"{work['with_reference']:,} with a reference")
    return join_names(parts)


_OF_VERDICTS = ("drift", "agreement")
_KEEPS_UP = 0.9  # of the rate at which requests are due


def conclusions(report: Record) -> list[str]:
    """For each judge: up to which load it judges as it does unloaded, what happens beyond, how many verdicts it
    sustains; and where there is an objective, up to which load it holds.
    """
    told = []
    for judge in report["judges"]:
        told.append(judge_conclusion(judge, _missed_steps(report["objective"], judge["judge"])))
        told += objective_sentences(report["objective"], judge)
    return told


def headline(report: Record) -> list[str]:
    """The answer of a page: of one judge in its sentences, of several how many judge otherwise, then each of them."""
    if len(report["judges"]) == 1:
        [judge] = report["judges"]
        missed = _missed_steps(report["objective"], judge["judge"])
        return [*_judge_sentences(judge, missed), *objective_sentences(report["objective"], judge)]
    judges = report["judges"]
    changed = [(judge["judge"], flagged[0]["load"]) for judge in judges if (flagged := _flagged_steps(judge))]
    same = [judge for judge in judges if _all_same(judge)]
    if changed:
        first = f"{len(changed)} of {len(judges)} judges judge otherwise under load: "
        first += join_names(f"{name} first at {load}" for name, load in changed) + "."
    elif same:
        whose = f"All {len(judges)}" if len(same) == len(judges) else f"{len(same)} of {len(judges)}"
        first = f"{whose} judges judge at every load as they do unloaded ({_least_basis(same)})."
    else:
        first = "No change is found, and too little is known to say that judges judge under load as they do unloaded."
        first = (
            first if any(_compared_steps(judge) for judge in judges) else "Nothing is known of judgement under load."
        )
    return [first, *conclusions(report)]


def _all_same(judge: Record) -> bool:
    """Whether a judge is known to judge at every load as it does unloaded."""
    steps = judge["judgement"]["steps"]
    return bool(steps) and all(judgement_status(step) == "same" for step in steps)


def _least_basis(judges: Sequence[Record]) -> str:
    """What a statement about several judges rests on at least."""
    steps = [step for judge in judges for step in judge["judgement"]["steps"]]
    share, compared = min(map(answered_share, steps)), min(map(compared_requests, steps))
    return f"at least {percent(share)} of requests answered and verdicts on {compared:,} compared at each"


def judge_conclusion(judge: Record, missed: Collection[int] = ()) -> str:
    """The answer for one judge. ``missed``: steps that do not meet the objective, where there is one."""
    return " ".join(_judge_sentences(judge, missed))


def _judge_sentences(judge: Record, missed: Collection[int]) -> list[str]:
    compared, flagged = _compared_steps(judge), _flagged_steps(judge)
    if not compared:
        told = [f"{judge['judge']}: nothing is known of its judgement under load{_why_unknown(judge)}."]
    else:
        told = _sound_sentences(judge["judge"], compared)
        told += [step_sentence(step, judge["judgement"]) for step in flagged[:1]]
    same, best = _identity_sentence(judge), _sustained_sentence(judge, missed)
    return [*told, *([same] if same else []), *([best] if best else [])]


def _compared_steps(judge: Record) -> list[Record]:
    return [step for step in judge["judgement"]["steps"] if step["p"] is not None]


def _flagged_steps(judge: Record) -> list[Record]:
    return [step for step in _compared_steps(judge) if step["flagged"]]


def _identity_sentence(judge: Record) -> str:
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
    return f"Its answers are the same at every load, byte for byte (tier C), on {count_of(number_of, 'request')} each."


def _sound_sentences(name: str, compared: Sequence[Record]) -> list[str]:
    """Up to which load nothing has changed, as far as that is known, and why no further."""
    first = next((at for at, step in enumerate(compared) if judgement_status(step) != "same"), len(compared))
    if first == len(compared):
        return [
            f"{name} judges under load as it does unloaded, up to {compared[-1]['load']} ({basis_text(compared[-1])})."
        ]
    here = compared[first]
    changed = judgement_status(here) == "changed"
    if first:
        sound = (
            f"{name} judges as it does unloaded up to {compared[first - 1]['load']} ({basis_text(compared[first - 1])})"
        )
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


def _sustained_sentence(judge: Record, missed: Collection[int]) -> str:
    """The most verdicts a minute of a step whose queue does not grow, at which no change of the judge was found."""
    best: tuple[float, Record] | None = None
    for step in judge["steps"]:
        speed, verdicts = step.get("speed"), step.get("verdicts_per_minute")
        if not speed or not verdicts or speed["end"] in (SATURATED, TOO_MANY) or _falls_behind(speed):
            continue
        fit = judgement_status(step["judgement"]) not in ("changed", "failed") and step["step"] not in missed
        if fit and (best is None or verdicts > best[0]):
            best = verdicts, step
    if best is None:
        return ""
    verdicts, step = best
    speed = step["speed"]
    what = "answers" if _reads_nothing(judge) else "verdicts"
    latency = speed["latencies"]["e2e"].get("p95")
    beside = "" if latency is None else f", 95% of them within {seconds_text(latency)}"
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


def _missed_steps(objective: Record | None, judge: str) -> set[int]:
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
        sentence += _few_answers_text([step["step"] for step in steps if step[kind] == best], judged, objective["text"])
        failed = min((step for step in steps if not step["met"]), key=lambda step: float(step[kind]), default=None)
        if failed is not None:
            unknown = [term for term in failed["missed"] if _figure_of(term, failed) is None]
            missed = [f"{term} ({_term_value(term, failed)})" for term in failed["missed"] if term not in unknown]
            reasons = [f"it misses {', '.join(missed)}"] if missed else []
            reasons += [f"nothing is known of {', '.join(unknown)}"] if unknown else []
            reasons += ["its queue grows without bound"] if failed["saturated"] else []
            sentence += f"; at {failed[kind]:g} {', and '.join(reasons)}"
        told.append(f"{sentence}.")
    return told


def _few_answers_text(places: Collection[int], judged: Record, objective: str) -> str:
    """Return that an objective was met while many requests failed or, where it speaks of verdicts, on few of them."""
    of_verdicts = any(term.figure in _OF_VERDICTS for term in Objective.parse(objective).terms)
    steps = [step["judgement"] for step in judged["steps"] if step["step"] in places]
    for step in steps:
        share = f"{percent(answered_share(step))} of requests answered"
        if of_verdicts and judgement_status(step) in ("few", "failed"):
            return f" ({share}, verdicts on {compared_requests(step)} compared)"
        if answered_share(step) < ANSWERED:
            return f" ({share})"
    return ""


def _term_value(term: str, step: Record) -> str:
    """The figure of a term, in the unit of the term."""
    [read] = Objective.parse(term).terms
    value = _figure_of(term, step)
    assert value is not None
    if read.latency:
        return seconds_text(value)
    return percent(value) if read.figure in SHARE_FIGURES else f"{value:.3g}"


def _figure_of(term: str, step: Record) -> float | None:
    [read] = Objective.parse(term).terms
    found: float | None = step["figures"].get(read.figure)
    return found
