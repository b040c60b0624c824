"""Sentences of a load test's report: the highest load with unchanged verdicts, and the sustained throughput."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from viva.reports.page import Record, count_of, join_names
from viva.reports.tables import number, percent
from viva.scoring.load_schedule import SHARE_FIGURES, Objective

from .load_driver import SATURATED, TOO_MANY

# Order in which changes are reported.
_ORDER = ("unreadable", "scores", "spread", "position", "verdicts", "reference")
_MOST_TOLD = 2
_MANY_UNREADABLE = 0.1
_EXCERPT = 100  # characters
# Verdicts are reported as unchanged only if the first share of requests was answered (failures are not random), and if
# a change by the second share of the scale would have been detected.
ANSWERED = 0.9
RESOLVED = 0.1
_Z2 = 1.96**2
_KINDS = {"parse": "unreadable", "truncated": "truncated", "refused": "refusals", "empty": "empty"}


JudgementStatus = Literal["unknown", "changed", "failed", "few", "same"]


def judgement_status(step: Record) -> JudgementStatus:
    """Return `changed` or `same` for a judge's verdicts at one load; if neither is known, the reason."""
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
    """Return the number of requests whose verdicts were compared with unloaded verdicts."""
    return max((figure["n"] for figure in step["figures"] if figure["figure"] in ("scores", "verdicts")), default=0)


def basis_text(step: Record) -> str:
    """Return the evidence for unchanged verdicts at a load."""
    total = step["answers"] + step["errors"]
    answered = percent(answered_share(step))
    compared = f"verdicts on {compared_requests(step):,} compared"
    return f"{answered} of {count_of(total, 'request')} answered, {compared}, no change above {percent(step['unseen'])}"


def unknown_sentence(step: Record) -> str:
    """Return why a load without a detected change does not count as unchanged."""
    at = f"At {_load_text(step)},"
    if judgement_status(step) == "failed":
        failed = percent(1.0 - answered_share(step))
        total = count_of(step["answers"] + step["errors"], "request")
        return f"{at} {failed} of {total} failed, and not at random: it is unknown whether its verdicts change."
    number_of, items = compared_requests(step), _compared_items(step)
    compared = count_of(number_of, "request") + (f" on {count_of(items, 'item')}" if items != number_of else "")
    sentence = f"{at} {compared} are too few to tell"
    if step["unseen"] is None:
        return f"{sentence}."
    sentence += f": a change of up to {percent(step['unseen'])} of its scale may go unnoticed"
    enough = _enough_items(step, items)
    return f"{sentence}; about {count_of(enough, 'item')} are needed." if enough else f"{sentence}."


def _compared_items(step: Record) -> int:
    return max((figure["items"] for figure in step["figures"] if figure["figure"] in ("scores", "verdicts")), default=0)


def _enough_items(step: Record, items: int) -> int | None:
    """Estimate the number of items that would rule out a change above `RESOLVED`; None if unknown.

    A share z² / (n + z²) of unseen items may change completely (Wilson's bound); the rest of an interval narrows with
    the square root of n.
    """
    drift = abs(step["drift"]["value"]) if step["drift"] is not None else 0.0
    if drift >= RESOLVED / 2:
        return None
    needed = _Z2 * (1.0 / RESOLVED - 1.0)
    if not has_same_verdicts(step):
        needed = max(needed, items * ((step["unseen"] - drift) / (RESOLVED - drift)) ** 2)
    return math.ceil(needed / 5) * 5


def step_sentence(step: Record, judgement: Record) -> str:
    """Return a sentence on a judge's verdicts at one load."""
    at = f"At {_load_text(step)},"
    if step["p"] is None:
        return f"{at} no verdict can be compared with unloaded ones."
    if step["flagged"]:
        changed = sorted((figure for figure in step["figures"] if figure["changed"]), key=_change_order)
        by_figure: dict[str, Record] = {}
        for figure in changed:  # the main score's sentence replaces those of its aspects
            by_figure.setdefault(figure["figure"], figure)
        if not by_figure:
            return f"{at} its verdicts differ from the unloaded ones by more than its own noise."
        parts = [_change_text(figure, step, judgement) for figure in list(by_figure.values())[:_MOST_TOLD]]
        return f"{at} {', and '.join(parts)}; this exceeds its own noise."
    if judgement_status(step) != "same":
        return unknown_sentence(step)
    noise = "" if has_same_verdicts(step) else ", within its own noise"
    return f"{at} no change in verdicts found: {_unchanged_text(step, judgement)}{noise}."


def report_notes(report: Record) -> list[str]:
    """Return notes that are needed to interpret the figures."""
    notes = list(report["work"]["notes"])
    for judge in report["judges"]:
        unloaded = judge["judgement"]["unloaded"]
        noise = unloaded["noise"]
        notes += _unread_notes(judge)
        if min(unloaded["answers"]) == 0:
            notes.append(f"{judge['judge']}: its noise is unknown without two unloaded passes")
        elif noise is not None and noise["p"] is not None and noise["p"] <= report["alpha"]:
            value = abs(noise["change"]["value"])
            notes.append(
                f"{judge['judge']}: its two unloaded passes differ by {_points_text(value, judge['judgement'])} on "
                "average, so its verdicts also change without load"
            )
        speeds = [step["speed"] for step in judge["steps"] if step.get("speed")]
        notes += [f"{judge['judge']}: {note}" for note in (*_failure_notes(judge), *_unsteady_notes(judge))]
        if slow := list(dict.fromkeys(speed["bottleneck"] for speed in speeds if speed.get("bottleneck"))):
            notes.append(f"{judge['judge']}: {slow[0]}")
    return notes


def _failure_notes(judge: Record) -> list[str]:
    """Return the reasons for failed requests, by type."""
    failures: dict[str, tuple[int, str]] = {}
    for step in judge["steps"]:
        for kind, count in (step.get("speed") or {}).get("errors", {}).items():
            before, message = failures.get(kind, (0, step["speed"]["error_messages"].get(kind, "")))
            failures[kind] = before + count, message
    return [
        f"{count_of(count, 'request')} failed with {kind}; the first: {' '.join(message.split())[:_EXCERPT]}"
        for kind, (count, message) in failures.items()
    ]


def _unsteady_notes(judge: Record) -> list[str]:
    """Return a note on loads at which latencies still had a trend when the step ended."""
    loads = [step["judgement"]["load"] for step in judge["steps"] if (step.get("speed") or {}).get("steady") is False]
    if not loads:
        return []
    return [f"latencies had not settled when the step at {join_names(loads)} ended: use a longer --duration"]


def _unread_notes(judge: Record) -> list[str]:
    """Return a note with an example if many unloaded answers are unreadable."""
    unloaded = judge["judgement"]["unloaded"]
    if not unloaded["unread"] or unloaded["unreadable"] < _MANY_UNREADABLE:
        return []
    fraction = percent(unloaded["unreadable"])
    kind, text = next(iter(unloaded["unread"].items()))
    excerpt = " ".join(text.split())[:_EXCERPT] or "(empty)"
    return [f"{judge['judge']}: {fraction} of its unloaded answers contain no verdict, for example ({kind}): {excerpt}"]


def seconds_text(value: float) -> str:
    """Return a duration with its unit."""
    if value < 0.9995:
        return f"{1000 * value:.{0 if value >= 0.00995 else 1}f} ms"
    return f"{value:.2f} s" if value < 99.5 else f"{value:,.0f} s"


def _load_text(step: Record) -> str:
    """Return a step's load with its unit."""
    load = str(step["load"])
    noun = "request" if load in ("1/s", "1 in flight") else "requests"
    return load.replace("/s", f" {noun}/s").replace(" in flight", f" {noun} in flight")


def digits_of(judgement: Record) -> int:
    """Return the number of decimals that scores on this judge's scale are shown with."""
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
                f"{percent(figure['loaded'])} of its answers contain no verdict{mostly}, compared with "
                f"{percent(figure['unloaded'])} unloaded"
            )
        case "scores":
            verb = "fall" if change["value"] < 0.0 else "rise"
            return f"its scores{aspect} {verb} by {size}"
        case "spread":
            verb = "falls" if change["value"] < 0.0 else "rises"
            loaded, unloaded = (number(figure[name], digits) for name in ("loaded", "unloaded"))
            return f"the spread of its scores{aspect} {verb} (standard deviation {loaded} instead of {unloaded})"
        case "position":
            whom = "first" if change["value"] > 0.0 else "second"
            return f"it favours the {whom} answer by {_interval_text(change, 2)} more"
        case "reference" if figure["aspect"] == "label":
            size = _interval_text(change, 2, as_percent=True)
            return f"{size} more of its verdicts disagree with the reference labels"
        case "reference":
            return f"its scores are {size} farther from the reference scores"
    if figure["aspect"] == "label":
        return (
            f"{percent(figure['loaded'])} of its verdicts change, compared with {percent(figure['unloaded'])} unloaded"
        )
    return (
        f"its scores{aspect} differ from the unloaded ones by {number(figure['loaded'], digits)} on average, compared "
        f"with {number(figure['unloaded'], digits)} between unloaded passes"
    )


def has_same_verdicts(step: Record) -> bool:
    """Return True if each verdict equals the unloaded one, on requests with verdicts in all three passes."""
    figures = [figure for figure in step["figures"] if figure["figure"] == "verdicts"]
    return bool(figures) and all(figure["loaded"] == figure["unloaded"] == 0.0 for figure in figures)


def _unchanged_text(step: Record, judgement: Record) -> str:
    figures = step["figures"]
    if has_same_verdicts(step):
        number_of = max(entry["n"] for entry in figures if entry["figure"] == "verdicts")
        return f"its verdicts are identical on all {number_of:,} requests"
    for name in ("scores", "verdicts"):
        entry = next((figure for figure in figures if figure["figure"] == name), None)
        if entry is not None and name == "scores":
            size = _interval_text(entry["change"], digits_of(judgement), signed=True)
            return f"its scores{_aspect_text(entry, judgement)} change by {size}"
        if entry is not None:
            unloaded = percent(entry["unloaded"])
            return f"{percent(entry['loaded'])} of its verdicts change, compared with {unloaded} unloaded"
    return f"{percent(step['unreadable'])} of its answers contain no verdict"


def _aspect_text(figure: Record, judgement: Record) -> str:
    """Return the name of the aspect; "" for the judge's main aspect."""
    return "" if figure["aspect"] in (judgement["aspect"], "", "label") else f" of {figure['aspect']}"


def _points_text(value: float, judgement: Record) -> str:
    return number(value, digits_of(judgement))


def _interval_text(change: Mapping[str, float], digits: int, *, signed: bool = False, as_percent: bool = False) -> str:
    """Return a change with its interval; for a decrease, both as magnitudes."""
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
    """Return a sentence on the requested load."""
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
    """Return a sentence on the workload."""
    parts = [count_of(work["requests"], "request")]
    if work["items"] != work["requests"]:
        parts.append(f"about {count_of(work['items'], 'item')}")
    if work["pairs"]:
        parts.append(f"{count_of(work['pairs'], 'pair')} in both orders")
    if work["with_reference"]:
        parts.append(f"{work['with_reference']:,} with a reference")
    return join_names(parts)


_OF_VERDICTS = ("drift", "agreement")
_KEEPS_UP = 0.9  # share of the rate at which requests are due


def conclusions(report: Record) -> list[str]:
    """Return each judge's conclusion: highest load with unchanged verdicts, sustained throughput, and the objective."""
    sentences = []
    for judge in report["judges"]:
        sentences.append(judge_conclusion(judge, _missed_steps(report["objective"], judge["judge"])))
        sentences += objective_sentences(report["objective"], judge)
    return sentences


def headline(report: Record) -> list[str]:
    """Return the page's summary: one judge's sentences; or how many of several judges changed, then each judge's."""
    if len(report["judges"]) == 1:
        [judge] = report["judges"]
        missed = _missed_steps(report["objective"], judge["judge"])
        return [*_judge_sentences(judge, missed), *objective_sentences(report["objective"], judge)]
    judges = report["judges"]
    changed = [(judge["judge"], _load_text(flagged[0])) for judge in judges if (flagged := _flagged_steps(judge))]
    same = [judge for judge in judges if _all_same(judge)]
    if changed:
        first = f"The verdicts of {len(changed)} of {len(judges)} judges change under load: "
        first += join_names(f"{name} from {load}" for name, load in changed) + "."
    elif same:
        quantity = f"all {len(judges)}" if len(same) == len(judges) else f"{len(same)} of {len(judges)}"
        first = f"No change in verdicts found at any load for {quantity} judges ({_least_basis(same)})."
    else:
        first = "No change in verdicts found, but too little is known to say that they are the same under load."
        first = (
            first if any(_compared_steps(judge) for judge in judges) else "Nothing is known about verdicts under load."
        )
    return [first, *conclusions(report)]


def _all_same(judge: Record) -> bool:
    """Return True if a judge's verdicts are known to be unchanged at every load."""
    steps = judge["judgement"]["steps"]
    return bool(steps) and all(judgement_status(step) == "same" for step in steps)


def _least_basis(judges: Sequence[Record]) -> str:
    """Return the weakest evidence behind a statement about several judges."""
    steps = [step for judge in judges for step in judge["judgement"]["steps"]]
    answered, compared = min(map(answered_share, steps)), min(map(compared_requests, steps))
    return f"at least {percent(answered)} of requests answered and verdicts on {compared:,} compared at each"


def judge_conclusion(judge: Record, missed: Collection[int] = ()) -> str:
    """Return the conclusion for one judge; `missed` are the steps that did not meet the objective."""
    return " ".join(_judge_sentences(judge, missed))


def _judge_sentences(judge: Record, missed: Collection[int]) -> list[str]:
    compared, flagged = _compared_steps(judge), _flagged_steps(judge)
    if not compared:
        sentences = [f"{judge['judge']}: nothing is known about its verdicts under load{_why_unknown(judge)}."]
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
    """Return whether a judge that promises identical answers at any load keeps that promise."""
    steps = [step for step in judge["judgement"]["steps"] if step["texts"] is not None]
    if judge["tier"] != "C" or not steps:
        return ""
    broken = [step for step in steps if step["texts"]["same"]["value"] < 1.0]
    if broken:
        fraction = percent(1.0 - broken[0]["texts"]["same"]["value"])
        load = _load_text(broken[0])
        return (
            f"Its answers should be identical at any load (reproducible transcript), but {fraction} differ at {load}."
        )
    number_of = min(step["texts"]["n"] for step in steps)
    requests = count_of(number_of, "request")
    return f"Its answers are byte-identical at every load (reproducible transcript), on {requests} each."


def _sound_sentences(name: str, compared: Sequence[Record]) -> list[str]:
    """Return the highest load without a known change, and why it is not higher."""
    first = next((at for at, step in enumerate(compared) if judgement_status(step) != "same"), len(compared))
    changed = first < len(compared) and judgement_status(compared[first]) == "changed"
    if not first:
        load = _load_text(compared[0])
        sentence = (
            f"verdicts change at {load}, the lowest load." if changed else _uncapitalised(unknown_sentence(compared[0]))
        )
        return [f"{name}: {sentence}"]
    last = compared[first - 1]
    sound = f"{name}: no change in verdicts found up to {_load_text(last)} ({basis_text(last)})"
    if first == len(compared):
        return [f"{sound}."]
    changed_step = compared[first]
    return (
        [f"{sound}, but they change at {_load_text(changed_step)}."]
        if changed
        else [f"{sound}.", unknown_sentence(changed_step)]
    )


def _uncapitalised(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _why_unknown(judge: Record) -> str:
    if judge["judgement"]["unloaded"]["unreadable"] == 1.0:
        return ": none of its unloaded answers contains a verdict"
    return ": its answers are free text" if _reads_nothing(judge) else ""


def _sustained_sentence(judge: Record, missed: Collection[int]) -> str:
    """Return the highest throughput of a step in which the queue did not grow and no change was detected."""
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
    failed = sum(speed["errors"].values()) / speed["requests"] if speed["requests"] else 0.0
    details += f"; {percent(failed)} of its requests fail" if failed else ""
    return f"It sustains {verdicts:,.0f} {unit} per minute at {_load_text(step['judgement'])}{details}."


def _falls_behind(speed: Record) -> bool:
    """Return True if answers came at a clearly lower rate than the requests of an open loop."""
    offered = speed["offered_rate"] if speed["rate"] is not None else None
    return bool(offered and speed["throughput"] < _KEEPS_UP * offered)


def _reads_nothing(judge: Record) -> bool:
    """Return True if unloaded answers can be read but are free text, so that no verdicts can be compared."""
    judgement = judge["judgement"]
    is_readable = min(judgement["unloaded"]["answers"]) > 0 and judgement["unloaded"]["unreadable"] < 1.0
    return is_readable and all(step["p"] is None for step in judgement["steps"])


def _missed_steps(objective: Record | None, judge: str) -> set[int]:
    steps = objective.get("steps", ()) if objective else ()
    return {step["step"] for step in steps if step["judge"] == judge and not step["met"]}


def objective_sentences(objective: Record | None, judge_record: Record) -> list[str]:
    """Return the highest load at which a judge met the objective, and the terms it missed at the next load."""
    sentences: list[str] = []
    judge = judge_record["judge"]
    for entry in objective.get("highest", ()) if objective else ():
        if entry["judge"] != judge:
            continue
        [(kind, best)] = [(name, value) for name, value in entry.items() if name != "judge"]
        unit = "requests/s" if kind == "rate" else "requests in flight"
        met = f"is met up to {best:g} {unit}" if best is not None else "is met at no tested load"
        assert objective is not None
        steps = [step for step in objective["steps"] if step["judge"] == judge and kind in step]
        sentence = f"{judge}: {objective['text']} {met}"
        sentence += _few_answers_text(
            [step["step"] for step in steps if step[kind] == best], judge_record, objective["text"]
        )
        failed = min((step for step in steps if not step["met"]), key=lambda step: float(step[kind]), default=None)
        if failed is not None:
            unknown = [term for term in failed["missed"] if _figure_of(term, failed) is None]
            missed = [f"{term} ({_term_value(term, failed)})" for term in failed["missed"] if term not in unknown]
            reasons = [f"it misses {', '.join(missed)}"] if missed else []
            reasons += [f"{', '.join(unknown)} is unknown"] if unknown else []
            reasons += ["its queue grows without bound"] if failed["saturated"] else []
            sentence += f"; at {failed[kind]:g} {', and '.join(reasons)}"
        sentences.append(f"{sentence}.")
    return sentences


def _few_answers_text(step_indices: Collection[int], judge: Record, objective: str) -> str:
    """Return a caveat if an objective was met with many failures or on few verdicts."""
    of_verdicts = any(term.figure in _OF_VERDICTS for term in Objective.parse(objective).terms)
    steps = [step["judgement"] for step in judge["steps"] if step["step"] in step_indices]
    for step in steps:
        answered = f"{percent(answered_share(step))} of requests answered"
        if of_verdicts and judgement_status(step) in ("few", "failed"):
            return f" ({answered}, verdicts on {compared_requests(step)} compared)"
        if answered_share(step) < ANSWERED:
            return f" ({answered})"
    return ""


def _term_value(term: str, step: Record) -> str:
    """Return the value of a term in its unit."""
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
