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
    total = step["answers"] + step["errors"]
    return step["answers"] / total if total else 0.0


def compared_requests(step: Record) -> int:
    """Return the number of requests whose verdicts were compared with unloaded ones."""
    return max((figure["n"] for figure in step["figures"] if figure["figure"] in ("scores", "verdicts")), default=0)


def basis_text(step: Record) -> str:
    """Return what the statement rests on that a judge is at one load what it is unloaded."""
    total = step["answers"] + step["errors"]
    answered = percent(answered_share(step))
    compared = f"verdicts on {compared_requests(step):,} compared"
    return f"{answered} of {count_of(total, 'request')} answered, {compared}, no change above {percent(step['unseen'])}"


def unknown_sentence(step: Record) -> str:
    """Return why nothing is said of a judge's verdicts at a load at which no change was found."""
    at = f"At {step['load']}"
    if judgement_status(step) == "failed":
        lost = percent(1.0 - answered_share(step))
        total = count_of(step["answers"] + step["errors"], "request")
        return f"{at} {lost} of {total} failed, and which ones is not chance: whether its verdicts hold is not known."
    number_of, items = compared_requests(step), _compared_items(step)
    compared = count_of(number_of, "request") + (f" on {count_of(items, 'item')}" if items != number_of else "")
    sentence = f"{at} {compared} compared are too few to tell"
    if step["unseen"] is None:
        return f"{sentence}."
    sentence += f": a change of up to {percent(step['unseen'])} of its scale may go unseen"
    enough = _enough_items(step, items)
    return f"{sentence}; about {count_of(enough, 'item')} would do." if enough else f"{sentence}."


def _compared_items(step: Record) -> int:
    return max((figure["items"] for figure in step["figures"] if figure["figure"] in ("scores", "verdicts")), default=0)


def _enough_items(step: Record, items: int) -> int | None:
    """Return about how many items would leave open no change above ``RESOLVED``; None where it is not known.

    A share z² / (n + z²) of items that were not met may change altogether (Wilson's bound); beyond that intervals
    narrow with the square root of n.
    """
    drift = abs(step["drift"]["value"]) if step["drift"] is not None else 0.0
    if drift >= RESOLVED / 2:
        return None
    needed = _Z2 * (1.0 / RESOLVED - 1.0)
    if not has_same_verdicts(step):
        needed = max(needed, items * ((step["unseen"] - drift) / (RESOLVED - drift)) ** 2)
    return math.ceil(needed / 5) * 5


def step_sentence(step: Record, judgement: Record) -> str:
    """What has become of a judge's verdicts at one load."""
    at = f"At {step['load']}"
    if step["p"] is None:
        return f"{at} no verdict can be compared with unloaded ones."
    if step["flagged"]:
        changed = sorted((figure for figure in step["figures"] if figure["changed"]), key=_change_order)
        by_figure: dict[str, Record] = {}
        for figure in changed:  # the main score's figure stands for those of its aspects
            by_figure.setdefault(figure["figure"], figure)
        if not by_figure:
            return f"{at} its verdicts are not what they are unloaded, beyond its own noise."
        parts = [_change_text(figure, step, judgement) for figure in list(by_figure.values())[:_MOST_TOLD]]
        return f"{at} {', and '.join(parts)}, beyond its own noise."
    if judgement_status(step) != "same":
        return unknown_sentence(step)
    noise = "" if has_same_verdicts(step) else ", within its own noise"
    return f"{at} it judges as it does unloaded: {_unchanged_text(step, judgement)}{noise}."


def report_notes(report: Record) -> list[str]:
    """What a reader must know of the figures."""
    notes = list(report["work"]["notes"])
    for judge in report["judges"]:
        unloaded = judge["judgement"]["unloaded"]
        noise = unloaded["noise"]
        notes += _unread_notes(judge)
        if min(unloaded["answers"]) == 0:
            notes.append(f"{judge['judge']}: without two unloaded passes nothing is known of its noise")
        elif noise is not None and noise["p"] is not None and noise["p"] <= report["alpha"]:
            value = abs(noise["change"]["value"])
            notes.append(
                f"{judge['judge']}: its two unloaded passes differ by {_points_text(value, judge['judgement'])} on "
                f"average, so "
                "it is not the load alone that moves it"
            )
        speeds = [step["speed"] for step in judge["steps"] if step.get("speed")]
        notes += [f"{judge['judge']}: {note}" for note in (*_failure_notes(judge), *_unsteady_notes(judge))]
        if slow := list(dict.fromkeys(speed["bottleneck"] for speed in speeds if speed.get("bottleneck"))):
            notes.append(f"{judge['judge']}: {slow[0]}")
    return notes


def _failure_notes(judge: Record) -> list[str]:
    """Why requests failed, by type."""
    failures: dict[str, tuple[int, str]] = {}
    for step in judge["steps"]:
        for kind, count in (step.get("speed") or {}).get("errors", {}).items():
            before, message = failures.get(kind, (0, step["speed"]["error_messages"].get(kind, "")))
            failures[kind] = before + count, message
    return [
        f"{count_of(count, 'request')} failed with {kind}, the first: {' '.join(message.split())[:_EXCERPT]}"
        for kind, (count, message) in failures.items()
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
    fraction = percent(unloaded["unreadable"])
    kind, text = next(iter(unloaded["unread"].items()))
    excerpt = " ".join(text.split())[:_EXCERPT] or "(empty)"
    return [f"{judge['judge']}: {fraction} of its unloaded answers hold no verdict, such as ({kind}): {excerpt}"]


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


def _change_order(figure: Record) -> tuple[int, float]:
    return _ORDER.index(figure["figure"]), figure["p"]


def _change_text(figure: Record, step: Record, judgement: Record) -> str:
    change, digits = figure["change"], digits_of(judgement)
    aspect = _aspect_text(figure, judgement)
    size = _interval_text(change, digits)
    match figure["figure"]:
        case "unreadable":
            kinds = [_KINDS[kind] for kind, failure in sorted(step["failures"].items(), key=_by_change)
                     if failure["change"]["value"] > 0.0]  # fmt: skip
            mostly = f", mostly {kinds[0]}" if kinds and kinds[0] != "unreadable" else ""
            return (
                f"{percent(figure['loaded'])} of its answers hold no verdict{mostly}, instead of "
                f"{percent(figure['unloaded'])} unloaded"
            )
        case "scores":
            verb = "fall" if change["value"] < 0.0 else "rise"
            return f"its scores{aspect} {verb} by {size}"
        case "spread":
            verb = "flatten" if change["value"] < 0.0 else "scatter"
            loaded, unloaded = (number(figure[name], digits) for name in ("loaded", "unloaded"))
            return f"its scores{aspect} {verb} (standard deviation {loaded} instead of {unloaded})"
        case "position":
            whom = "first" if change["value"] > 0.0 else "second"
            return f"it favours the answer that stands {whom} by {_interval_text(change, 2)} more"
        case "reference" if figure["aspect"] == "label":
            size = _interval_text(change, 2, as_percent=True)
            return f"it departs from the reference labels in {size} more of its verdicts"
        case "reference":
            return f"its scores lie {size} farther from the reference ones"
    if figure["aspect"] == "label":
        return f"{percent(figure['loaded'])} of its verdicts change, instead of {percent(figure['unloaded'])} unloaded"
    return (
        f"its scores{aspect} lie {number(figure['loaded'], digits)} away from its unloaded ones, which lie "
        f"{number(figure['unloaded'], digits)} apart"
    )


def has_same_verdicts(step: Record) -> bool:
    """Whether each verdict is the same as unloaded, on requests with verdicts in all three passes."""
    figures = [figure for figure in step["figures"] if figure["figure"] == "verdicts"]
    return bool(figures) and all(figure["loaded"] == figure["unloaded"] == 0.0 for figure in figures)


def _unchanged_text(step: Record, judgement: Record) -> str:
    figures = step["figures"]
    if has_same_verdicts(step):
        number_of = max(entry["n"] for entry in figures if entry["figure"] == "verdicts")
        return f"its verdicts are the same on all {number_of:,} requests"
    for name in ("scores", "verdicts"):
        entry = next((figure for figure in figures if figure["figure"] == name), None)
        if entry is not None and name == "scores":
            size = _interval_text(entry["change"], digits_of(judgement), signed=True)
            return f"its scores{_aspect_text(entry, judgement)} change by {size}"
        if entry is not None:
            return f"{percent(entry['loaded'])} of its verdicts change, and {percent(entry['unloaded'])} unloaded"
    return f"{percent(step['unreadable'])} of its answers hold no verdict"


def _aspect_text(figure: Record, judgement: Record) -> str:
    """The aspect, where it is not the one that the judge is spoken of by."""
    return "" if figure["aspect"] in (judgement["aspect"], "", "label") else f" of {figure['aspect']}"


def _points_text(value: float, judgement: Record) -> str:
    return number(value, digits_of(judgement))


def _interval_text(change: Mapping[str, float], digits: int, *, signed: bool = False, as_percent: bool = False) -> str:
    """A change with its interval; of a fall the sizes, smallest first."""
    value, low, high = change["value"], change["low"], change["high"]
    if not signed and value < 0.0:
        value, low, high = -value, -high, -low
    if as_percent:
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
    sentences = []
    for judge in report["judges"]:
        sentences.append(judge_conclusion(judge, _missed_steps(report["objective"], judge["judge"])))
        sentences += objective_sentences(report["objective"], judge)
    return sentences


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
        quantity = f"All {len(judges)}" if len(same) == len(judges) else f"{len(same)} of {len(judges)}"
        first = f"{quantity} judges judge at every load as they do unloaded ({_least_basis(same)})."
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
    answered, compared = min(map(answered_share, steps)), min(map(compared_requests, steps))
    return f"at least {percent(answered)} of requests answered and verdicts on {compared:,} compared at each"


def judge_conclusion(judge: Record, missed: Collection[int] = ()) -> str:
    """The answer for one judge. ``missed``: steps that do not meet the objective, where there is one."""
    return " ".join(_judge_sentences(judge, missed))


def _judge_sentences(judge: Record, missed: Collection[int]) -> list[str]:
    compared, flagged = _compared_steps(judge), _flagged_steps(judge)
    if not compared:
        sentences = [f"{judge['judge']}: nothing is known of its judgement under load{_why_unknown(judge)}."]
    else:
        sentences = _sound_sentences(judge["judge"], compared)
        sentences += [step_sentence(step, judge["judgement"]) for step in flagged[:1]]
    same, best = _identity_sentence(judge), _sustained_sentence(judge, missed)
    return [*sentences, *([same] if same else []), *([best] if best else [])]


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
        fraction = percent(1.0 - broken[0]["texts"]["same"]["value"])
        load = broken[0]["load"]
        return f"Its answers should be the same at any load (tier C), but {fraction} of them differ at {load}."
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
    unit = "answers" if _reads_nothing(judge) else "verdicts"
    latency = speed["latencies"]["e2e"].get("p95")
    details = "" if latency is None else f", 95% of them within {seconds_text(latency)}"
    lost = sum(speed["errors"].values()) / speed["requests"] if speed["requests"] else 0.0
    details += f"; {percent(lost)} of its requests fail" if lost else ""
    return f"It sustains {verdicts:,.0f} {unit} a minute at {step['judgement']['load']}{details}."


def _falls_behind(speed: Record) -> bool:
    """Whether answers came clearly slower than requests of an open loop, so that its queue grew in what was seen."""
    offered = speed["offered_rate"] if speed["rate"] is not None else None
    return bool(offered and speed["throughput"] < _KEEPS_UP * offered)


def _reads_nothing(judge: Record) -> bool:
    """Whether its unloaded answers are all readable, and still there is nothing to compare: they are any text."""
    judgement = judge["judgement"]
    is_readable = min(judgement["unloaded"]["answers"]) > 0 and judgement["unloaded"]["unreadable"] < 1.0
    return is_readable and all(step["p"] is None for step in judgement["steps"])


def _missed_steps(objective: Record | None, judge: str) -> set[int]:
    steps = objective.get("steps", ()) if objective else ()
    return {step["step"] for step in steps if step["judge"] == judge and not step["met"]}


def objective_sentences(objective: Record | None, judged: Record) -> list[str]:
    """Up to which load a judge met the objective, what it missed at the next one, where its queue grew."""
    sentences: list[str] = []
    judge = judged["judge"]
    for entry in objective.get("highest", ()) if objective else ():
        if entry["judge"] != judge:
            continue
        [(kind, best)] = [(name, value) for name, value in entry.items() if name != "judge"]
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
        sentences.append(f"{sentence}.")
    return sentences


def _few_answers_text(step_indices: Collection[int], judged: Record, objective: str) -> str:
    """Return that an objective was met while many requests failed or, where it speaks of verdicts, on few of them."""
    of_verdicts = any(term.figure in _OF_VERDICTS for term in Objective.parse(objective).terms)
    steps = [step["judgement"] for step in judged["steps"] if step["step"] in step_indices]
    for step in steps:
        answered = f"{percent(answered_share(step))} of requests answered"
        if of_verdicts and judgement_status(step) in ("few", "failed"):
            return f" ({answered}, verdicts on {compared_requests(step)} compared)"
        if answered_share(step) < ANSWERED:
            return f" ({answered})"
    return ""


def _term_value(term: str, step: Record) -> str:
    """The figure of a term, in the unit of the term."""
    [parsed] = Objective.parse(term).terms
    value = _figure_of(term, step)
    assert value is not None
    if parsed.latency:
        return seconds_text(value)
    return percent(value) if parsed.figure in SHARE_FIGURES else f"{value:.3g}"


def _figure_of(term: str, step: Record) -> float | None:
    [parsed] = Objective.parse(term).terms
    value: float | None = step["figures"].get(parsed.figure)
    return value
