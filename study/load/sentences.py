"""What became of a judge's verdicts at one load, what a reader must know, and what was sent, in sentences.

What never belongs here: computing figures, tables, the answer for a judge (``conclusions``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from viva.reports.page import Record, counted, joined
from viva.reports.text import number, percent

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


Standing = Literal["unknown", "changed", "failed", "few", "same"]


def standing(step: Record) -> Standing:
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


def basis(step: Record) -> str:
    """Return what the statement rests on that a judge is at one load what it is unloaded."""
    sent = step["answers"] + step["errors"]
    share = percent(answered_share(step))
    compared = f"verdicts on {compared_requests(step):,} compared"
    return f"{share} of {counted(sent, 'request')} answered, {compared}, no change above {percent(step['unseen'])}"


def unknown_sentence(step: Record) -> str:
    """Return why nothing is said of a judge's verdicts at a load at which no change was found."""
    at = f"At {step['load']}"
    if standing(step) == "failed":
        lost = percent(1.0 - answered_share(step))
        sent = counted(step["answers"] + step["errors"], "request")
        return f"{at} {lost} of {sent} failed, and which ones is not chance: whether its verdicts hold is not known."
    number_of, items = compared_requests(step), _compared_items(step)
    few = counted(number_of, "request") + (f" on {counted(items, 'item')}" if items != number_of else "")
    sentence = f"{at} {few} compared are too few to tell"
    if step["unseen"] is None:
        return f"{sentence}."
    sentence += f": a change of up to {percent(step['unseen'])} of its scale may go unseen"
    enough = _enough(step, items)
    return f"{sentence}; about {counted(enough, 'item')} would do." if enough else f"{sentence}."


def _compared_items(step: Record) -> int:
    return max((one["items"] for one in step["figures"] if one["figure"] in ("scores", "verdicts")), default=0)


def _enough(step: Record, items: int) -> int | None:
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
        changed = sorted((one for one in step["figures"] if one["changed"]), key=_place)
        told: dict[str, Record] = {}
        for one in changed:  # the main score's figure stands for those of its aspects
            told.setdefault(one["figure"], one)
        if not told:
            return f"{at} its verdicts are not what they are unloaded, beyond its own noise."
        parts = [_changed(one, step, judgement) for one in list(told.values())[:_MOST_TOLD]]
        return f"{at} {', and '.join(parts)}, beyond its own noise."
    if standing(step) != "same":
        return unknown_sentence(step)
    noise = "" if all_the_same(step) else ", within its own noise"
    return f"{at} it judges as it does unloaded: {_unchanged(step, judgement)}{noise}."


def notes(report: Record) -> list[str]:
    """What a reader must know of the figures."""
    said = list(report["work"]["notes"])
    for one in report["judges"]:
        unloaded = one["judgement"]["unloaded"]
        noise = unloaded["noise"]
        said += _unread(one)
        if min(unloaded["answers"]) == 0:
            said.append(f"{one['judge']}: without two unloaded passes nothing is known of its noise")
        elif noise is not None and noise["p"] is not None and noise["p"] <= report["alpha"]:
            value = abs(noise["change"]["value"])
            said.append(
                f"{one['judge']}: its two unloaded passes differ by {_points(value, one['judgement'])} on average, so "
                "it is not the load alone that moves it"
            )
        speeds = [step["speed"] for step in one["steps"] if step.get("speed")]
        said += [f"{one['judge']}: {told}" for told in (*_failed(one), *_unsteady(one))]
        if slow := list(dict.fromkeys(speed["bottleneck"] for speed in speeds if speed.get("bottleneck"))):
            said.append(f"{one['judge']}: {slow[0]}")
    return said


def _failed(judge: Record) -> list[str]:
    """Why requests failed, by type."""
    found: dict[str, tuple[int, str]] = {}
    for step in judge["steps"]:
        for kind, count in (step.get("speed") or {}).get("errors", {}).items():
            before, message = found.get(kind, (0, step["speed"]["error_messages"].get(kind, "")))
            found[kind] = before + count, message
    return [
        f"{counted(count, 'request')} failed with {kind}, the first: {' '.join(message.split())[:_EXCERPT]}"
        for kind, (count, message) in found.items()
    ]


def _unsteady(judge: Record) -> list[str]:
    """Loads at which latencies still had a trend when the step ended."""
    loads = [step["judgement"]["load"] for step in judge["steps"] if (step.get("speed") or {}).get("steady") is False]
    if not loads:
        return []
    return [f"latencies had not settled when the step at {joined(loads)} ended: a longer one (--duration) shows more"]


def _unread(judge: Record) -> list[str]:
    """What is no verdict, by example, where that is so of many unloaded answers."""
    unloaded = judge["judgement"]["unloaded"]
    if not unloaded["unread"] or unloaded["unreadable"] < _MANY_UNREADABLE:
        return []
    share = percent(unloaded["unreadable"])
    kind, text = next(iter(unloaded["unread"].items()))
    shown = " ".join(text.split())[:_EXCERPT] or "(empty)"
    return [f"{judge['judge']}: {share} of its unloaded answers hold no verdict, such as ({kind}): {shown}"]


def seconds(value: float) -> str:
    """A time with its unit."""
    if value < 0.9995:
        return f"{1000 * value:.{0 if value >= 0.00995 else 1}f} ms"
    return f"{value:.2f} s" if value < 99.5 else f"{value:,.0f} s"


def digits_of(judgement: Record) -> int:
    """So many decimals tell scores on this scale apart."""
    scale = judgement["scale"]
    width = None if scale is None else scale[1] - scale[0]
    return 1 if width is not None and width >= 20 else 3 if width is not None and width <= 1 else 2


def _place(one: Record) -> tuple[int, float]:
    return _ORDER.index(one["figure"]), one["p"]


def _changed(one: Record, step: Record, judgement: Record) -> str:
    change, digits = one["change"], digits_of(judgement)
    of = _of(one, judgement)
    size = _interval(change, digits)
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
            return f"it favours the answer that stands {whom} by {_interval(change, 2)} more"
        case "reference" if one["aspect"] == "label":
            return f"it departs from the reference labels in {_interval(change, 2, share=True)} more of its verdicts"
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


def _unchanged(step: Record, judgement: Record) -> str:
    figures = step["figures"]
    if all_the_same(step):
        number_of = max(one["n"] for one in figures if one["figure"] == "verdicts")
        return f"its verdicts are the same on all {number_of:,} requests"
    for name in ("scores", "verdicts"):
        one = next((figure for figure in figures if figure["figure"] == name), None)
        if one is not None and name == "scores":
            size = _interval(one["change"], digits_of(judgement), signed=True)
            return f"its scores{_of(one, judgement)} change by {size}"
        if one is not None:
            return f"{percent(one['loaded'])} of its verdicts change, and {percent(one['unloaded'])} unloaded"
    return f"{percent(step['unreadable'])} of its answers hold no verdict"


def _of(one: Record, judgement: Record) -> str:
    """The aspect, where it is not the one that the judge is spoken of by."""
    return "" if one["aspect"] in (judgement["aspect"], "", "label") else f" of {one['aspect']}"


def _points(value: float, judgement: Record) -> str:
    return number(value, digits_of(judgement))


def _interval(change: Mapping[str, float], digits: int, *, signed: bool = False, share: bool = False) -> str:
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
    bounds = [counted(settings["requests"], "request")] if settings["requests"] else []
    bounds += [seconds(settings["seconds"])] if settings["seconds"] else []
    size = f"{' or '.join(bounds)} a step" if bounds else ""
    together = "all judges at once" if settings["together"] else ""
    return joined(part for part in (*loops, size, together, f"seed {settings['seed']}") if part)


def work_sentence(work: Record) -> str:
    """What was sent."""
    parts = [counted(work["requests"], "request")]
    if work["items"] != work["requests"]:
        parts.append(f"about {counted(work['items'], 'item')}")
    if work["pairs"]:
        parts.append(f"{counted(work['pairs'], 'pair')} in both orders")
    if work["with_reference"]:
        parts.append(f"{work['with_reference']:,} with a reference")
    return joined(parts)
