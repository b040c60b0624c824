"""What a load test found, in sentences: the answer first, then each judge at each load.

What never belongs here: computing figures, tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from viva.orchestration.load.driver import SATURATED, TOO_MANY
from viva.reports.page import Record, counted, joined
from viva.reports.text import number, percent

# Which of several changes is told first.
_ORDER = ("unreadable", "scores", "spread", "position", "verdicts", "reference")
_MOST_TOLD = 2
_MANY_UNREADABLE = 0.1
_EXCERPT = 100  # characters
_KINDS = {"parse": "unreadable", "truncated": "truncated", "refused": "refusals", "empty": "empty"}


def conclusions(report: Record) -> list[str]:
    """For each judge: up to which load it judges as it does unloaded, what happens beyond, how many verdicts it
    sustains; and where there is an objective, up to which load it holds.
    """
    told = []
    for judge in report["judges"]:
        told.append(conclusion(judge, _missed(report["objective"], judge["judge"])))
        told += objective_sentences(report["objective"], judge["judge"])
    return told


def conclusion(judge: Record, missed: Collection[int] = ()) -> str:
    """The answer for one judge. ``missed``: steps that do not meet the objective, where there is one."""
    steps = judge["judgement"]["steps"]
    compared = [step for step in steps if step["p"] is not None]
    sentences = []
    if not compared:
        sentences.append(f"{judge['judge']}: nothing is known of its judgement under load{_why_unknown(judge)}.")
    else:
        flagged = [step for step in compared if step["flagged"]]
        sentences.append(_sound_up_to(judge["judge"], compared, flagged))
        sentences += [step_sentence(flagged[0], judge["judgement"])] if flagged else []
    best = _sustained(judge, missed)
    sentences += [best] if best else []
    return " ".join(sentences)


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
        parts = [_changed(one, step, judgement) for one in list(told.values())[:_MOST_TOLD]]
        return f"{at} {', and '.join(parts)}, beyond its own noise."
    return f"{at} it judges as it does unloaded: {_unchanged(step, judgement)}, within its own noise."


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
        if slow := list(dict.fromkeys(speed["bottleneck"] for speed in speeds if speed.get("bottleneck"))):
            said.append(f"{one['judge']}: {slow[0]}")
    return said


def _sound_up_to(name: str, compared: Sequence[Record], flagged: Sequence[Record]) -> str:
    if not flagged:
        most = compared[-1]["load"]
        return f"{name} judges under load as it does unloaded, up to {most}."
    before = compared[: compared.index(flagged[0])]
    if not before:
        return f"{name} does not judge as it does unloaded at any load from {flagged[0]['load']} on."
    return f"{name} judges as it does unloaded up to {before[-1]['load']}, and no longer at {flagged[0]['load']}."


def _why_unknown(judge: Record) -> str:
    if judge["judgement"]["unloaded"]["unreadable"] == 1.0:
        return ": none of its unloaded answers holds a verdict"
    return ": nothing is read of its answers" if _reads_nothing(judge) else ""


def _unread(judge: Record) -> list[str]:
    """What is no verdict, by example, where that is so of many unloaded answers."""
    unloaded = judge["judgement"]["unloaded"]
    if not unloaded["unread"] or unloaded["unreadable"] < _MANY_UNREADABLE:
        return []
    share = percent(unloaded["unreadable"])
    kind, text = next(iter(unloaded["unread"].items()))
    shown = " ".join(text.split())[:_EXCERPT] or "(empty)"
    return [f"{judge['judge']}: {share} of its unloaded answers hold no verdict, such as ({kind}): {shown}"]


def _sustained(judge: Record, missed: Collection[int]) -> str:
    """The most verdicts a minute of a step whose queue does not grow, at which the judge judges as it does unloaded."""
    best: tuple[float, Record] | None = None
    for step in judge["steps"]:
        speed, verdicts = step.get("speed"), step.get("verdicts_per_minute")
        if not speed or not verdicts or speed["end"] in (SATURATED, TOO_MANY):
            continue
        fit = not step["judgement"]["flagged"] and step["step"] not in missed
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


def _reads_nothing(judge: Record) -> bool:
    """Whether its unloaded answers are all readable, and still there is nothing to compare: they are any text."""
    judgement = judge["judgement"]
    known = min(judgement["unloaded"]["answers"]) > 0 and judgement["unloaded"]["unreadable"] < 1.0
    return known and all(step["p"] is None for step in judgement["steps"])


def _missed(objective: Record | None, judge: str) -> set[int]:
    steps = objective.get("steps", ()) if objective else ()
    return {step["step"] for step in steps if step["judge"] == judge and not step["met"]}


def objective_sentences(objective: Record | None, judge: str) -> list[str]:
    """Up to which load a judge met the objective, what it missed at the next one, where its queue grew."""
    told: list[str] = []
    for one in objective.get("highest", ()) if objective else ():
        if one["judge"] != judge:
            continue
        [(kind, best)] = [(name, value) for name, value in one.items() if name != "judge"]
        unit = "requests a second" if kind == "rate" else "requests in flight"
        holds = f"holds up to {best:g} {unit}" if best is not None else "holds at no load that was tried"
        assert objective is not None
        told.append(f"{judge}: {objective['text']} {holds}.")
        steps = [step for step in objective["steps"] if step["judge"] == judge and kind in step]
        failed = min((step for step in steps if not step["met"]), key=lambda step: float(step[kind]), default=None)
        if failed is not None:
            unknown = [term for term in failed["missed"] if _figure_of(term, failed) is None]
            missed = [term for term in failed["missed"] if term not in unknown]
            reasons = [f"it misses {', '.join(missed)}"] if missed else []
            reasons += [f"nothing is known of {', '.join(unknown)}"] if unknown else []
            reasons += ["its queue grows without bound"] if failed["saturated"] else []
            told.append(f"At {failed[kind]:g} {unit} {', and '.join(reasons)}.")
    return told


def _figure_of(term: str, step: Record) -> float | None:
    found: float | None = next((value for name, value in step["figures"].items() if term.startswith(name)), None)
    return found


def seconds(value: float) -> str:
    """A time with its unit."""
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.2f} s" if value < 99.5 else f"{value:,.0f} s"


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


def _unchanged(step: Record, judgement: Record) -> str:
    figures = step["figures"]
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
