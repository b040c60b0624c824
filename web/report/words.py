"""A study's facts in words: what was run, how figures came about, and how they are computed.

What never belongs here: markup, and figures that need more than adding up.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
_SHOWN = 40  # names in a list; a study of more says how many more
_EXAMPLES = {1: ("only",), 2: ("lowest", "highest"), 3: ("lowest", "median", "highest")}
_SCORERS = {
    "official": (
        "Verdicts of 1, 2, 3 and 4 count 1, 3, 7 and 10 (0 counts 0); the i-th scored round, from 0, weighs "
        "exp(−0.2 i); a talk's score is ten times the weighted mean of its scored rounds, 0–100. This is how the "
        "published KIEval figures were computed."
    ),
    "linear": (
        "A verdict counts a quarter of its points; the i-th scored round, from 0, weighs exp(−0.2 i); a talk's score "
        "is a hundred times the weighted mean of its scored rounds."
    ),
    "corrected": (
        "Verdicts of 1, 2, 3 and 4 count 1, 3, 7 and 10 (0 counts 0); round i, from 0, weighs exp(−0.2 i) by its true "
        "number; unscored rounds are left out without moving others up, and rounds lost to an early stop count 0."
    ),
}
_TIERS = {
    "A": "A: which items, in which order, and all means are the same at every run; answers of models need not be.",
    "B": "B: answers are those of a recorded run, replayed.",
    "C": "C: the models give the same bytes in any company, so the same settings give the same report.",
}


def heading(study: Record) -> str:
    """The page's title."""
    kinds = {"kieval": "Interviews", "probe": "Probes"}
    ran = [kinds.get(name, name) for name in dict.fromkeys(cell["scenario"] for cell in study["cells"])]
    what = " and ".join([*ran[:1], *(name.lower() for name in ran[1:])]) or "A study"
    numbers = [
        counted(len(_distinct(study, "candidate")), "candidate"),
        counted(len(_distinct(study, "dataset")), "dataset"),
    ]
    return f"{what}: {numbers[0]} on {numbers[1]}"


def facts(study: Record) -> list[tuple[str, str]]:
    """What was run, as terms and their descriptions."""
    cells = study["cells"]
    totals = _totals(study)
    lines = [(name, line) for name, line in ((study.get("correlations") or {}).get("lines") or {}).items() if line]
    told = [
        ("Candidates", _listed(_distinct(study, "candidate"))),
        ("Datasets", _listed(_distinct(study, "dataset"))),
        ("Seeds", joined(map(str, sorted(_distinct(study, "seed"))))),
        ("Interactor", _listed(_distinct(study, "interactor"))),
        ("Evaluator", _listed(_distinct(study, "evaluator"))),
        ("Scorer", study["scorer"] if totals["interviews"] else ""),
        ("Rounds", joined(map(str, sorted(_distinct(study, "rounds"))))),
        ("Tier", joined(sorted(_distinct(study, "tier")))),
        ("Prompt pack", _listed(sorted({_pack(cell.get("pack")) for cell in cells} - {""}))),
        ("Cells", _states(cells)),
        ("Talks", _talks(totals)),
        ("Failed", f"{totals['failed']:,}"),
        ("Unscored rounds", _share(totals["unscored_rounds"], totals["verdicts"], "rounds")),
        ("Unreadable verdicts", _share(totals["parse_failures"], _texts(totals), "texts of the evaluator")),
        ("Ended by a rule", _ruled(cells)),
        ("Below the line", _off(lines, "below") if lines else ""),
        ("Above the line", _off(lines, "above") if lines else ""),
    ]
    return [(term, text) for term, text in told if text]


def circumstances(study: Record) -> str:
    """One line for under a figure: n, scorer, seeds, tier, and the rates of what could not be scored or read."""
    totals, seeds = _totals(study), sorted(_distinct(study, "seed"))
    probes = sum(cell.get("ended") or 0 for cell in study["cells"] if cell["scenario"] == "probe")
    told = []
    if totals["interviews"] or not probes:
        told += [f"n = {totals['interviews']:,} talks", f"scorer {study['scorer']}"]
    if probes:
        told.append(f"n = {probes:,} probes")
    told.append(f"seed{'s' * (len(seeds) > 1)} {joined(map(str, seeds)) or '–'}")
    told.append(f"tier {joined(sorted(_distinct(study, 'tier'))) or '–'}")
    if totals["interviews"] or not probes:
        told.append(f"unscored {_percent(totals['unscored_rounds'], totals['verdicts'])}")
        told.append(f"unparsed {_percent(totals['parse_failures'], _texts(totals))}")
    return " · ".join(told)


def methods(study: Record) -> list[tuple[str, str]]:
    """How figures are computed, as terms and their descriptions."""
    scorer, totals = str(study["scorer"]), _totals(study)
    told = []
    if totals["interviews"]:
        known = _SCORERS.get(scorer.split(" ")[0], "")
        switched = " No decay: all rounds weigh the same." if "no decay" in scorer else ""
        switched += " No early stop: flags of talks that went on are ignored." if "no early stop" in scorer else ""
        told = [
            (f"Score, scorer {scorer}", known + switched),
            (
                "Errors and intervals",
                "Standard errors are clustered by item: talks about one item under several seeds or evaluators are "
                "not independent. ± stands before one standard error; intervals are of 95% and stay within what a "
                "figure can be: Wilson's for rates, their likes for scores. p-values of comparisons are those of sign "
                "flips up to 100 items, of Student's t beyond."
                + (
                    " Where a rule ended the interviews, those of scores are its confidence sequences, which hold "
                    "however often they are looked at."
                    if any("low" in ((cell.get("result") or {}).get("score") or {}) for cell in study["cells"])
                    else ""
                ),
            ),
            (
                "Unanswered, unscored, unparsed",
                "A first answer that names no choice is unanswered and counts as not right. "
                "A round whose verdict could not be read, repairs included, is unscored, which is not the same as 0. "
                "Unparsed is the share of the evaluator's texts that could not be read. Failed talks ended with an "
                "error and are counted, not scored.",
            ),
        ]
    if any(cell["scenario"] == "probe" for cell in study["cells"]):
        text = (
            "Loss is nats per token. AUC is the chance that a member is ranked over another text by the detector; 0.5 "
            "is chance; its interval is Newcombe's (2006). Min-K% averages the k% least likely tokens (Shi et al. "
            "2024)."
        )
        told.append(("Probes", text))
    if (study.get("correlations") or {}).get("figures"):
        text = (
            "Coefficients over models with two-sided p-values; pooled over datasets they take figures of one model for "
            "independent, so those p-values are too small. Lines: reweighted least trimmed squares of score on "
            "accuracy; a model is off the line beyond three expected spreads of the residuals, its own standard errors "
            "joined. Of few models without errors, chance alone often puts one off the line."
        )
        told.append(("Correlations and lines", text))
    tiers = [_TIERS[name] for name in sorted(map(str, _distinct(study, "tier"))) if name in _TIERS]
    return [*told, *([("Tier", " ".join(tiers))] if tiers else [])]


def transcripts(study: Record) -> dict[str, list[tuple[str, list[tuple[str, str]]]]]:
    """By candidate, for each cell that has them, the talks worth a look, each with the command that shows it."""
    found: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {}
    for cell in study["cells"]:
        told = cell.get("transcripts") or {}
        keys = list(told.get("examples") or ())
        said = _EXAMPLES.get(len(keys), tuple(str(number) for number in range(1, len(keys) + 1)))
        folder = shlex.quote(str(told.get("folder", "")))
        commands = [f"viva show {folder} --conversation {shlex.quote(key)}" for key in keys]
        if keys:
            found.setdefault(cell["candidate"], []).append((cell["name"], list(zip(said, commands, strict=True))))
    return found


# -- small words ----------------------------------------------------------------------------------------------------


def joined(names: Iterable[str]) -> str:
    """Names with commas between them."""
    return ", ".join(names)


def counted(number: int, name: str) -> str:
    """``1 model``, ``2 models``."""
    return f"{number:,} {name}" + "s" * (number != 1)


def span(numbers: Iterable[int]) -> str:
    """One number, or the least and the greatest of several."""
    low, high = min(known := list(numbers)), max(known)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def said_accuracy(source: str | None) -> str:
    """Where accuracies come from, for an axis."""
    ways = {"text": "probed by options' texts", "letter": "probed by letters", "generate": "probed by generating"}
    return ways.get(source or "", source or "first answer")


def _distinct(study: Record, name: str) -> list[Any]:
    return list(dict.fromkeys(cell.get(name) for cell in study["cells"] if cell.get(name) is not None))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return joined(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _totals(study: Record) -> dict[str, int]:
    names = ("interviews", "verdicts", "unscored_rounds", "partly_scored_rounds", "parse_failures", "failed")
    totals = dict.fromkeys((*names, "planned"), 0)
    for cell in study["cells"]:
        result = cell.get("result") or {}
        for name in names:
            totals[name] += result.get(name) or 0
        if cell["scenario"] == "kieval":
            totals["planned"] += cell.get("planned") or 0
    return totals


def _texts(totals: Mapping[str, int]) -> int:
    # Of a round that is not scored in full the last text is itself a failure.
    return totals["verdicts"] + totals["parse_failures"] - totals["unscored_rounds"] - totals["partly_scored_rounds"]


def _talks(totals: Mapping[str, int]) -> str:
    if not totals["planned"] and not totals["interviews"]:
        return ""
    return f"{totals['interviews']:,} finished of {totals['planned']:,} planned"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "–"


def _share(part: int, whole: int, of: str) -> str:
    return f"{_percent(part, whole)} ({part:,} of {whole:,} {of})" if whole else ""


def _states(cells: Sequence[Record]) -> str:
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell["state"]] = counts.get(cell["state"], 0) + 1
    return f"{len(cells):,} (" + joined(f"{count:,} {state}" for state, count in counts.items()) + ")"


def _ruled(cells: Sequence[Record]) -> str:
    stopped = [cell for cell in cells if (cell.get("until") or {}).get("stopped_at") is not None]
    if not stopped:
        return ""
    counting, planned = (
        sum(n) for n in zip(*((c["until"]["stopped_at"], c["planned"] or 0) for c in stopped), strict=True)
    )
    return f"{counted(len(stopped), 'cell')}, after {counting:,} of {planned:,} talks planned"


def _off(lines: Sequence[tuple[str, Record]], side: str) -> str:
    """The models off the line, each with the datasets where it is."""
    found: dict[str, list[str]] = {}
    for dataset, line in lines:
        for model in line[side]:
            found.setdefault(model, []).append(dataset)
    return "; ".join(f"{model} ({joined(datasets)})" for model, datasets in found.items()) or "none"


def _pack(pack: Any) -> str:
    if not isinstance(pack, Mapping):
        return ""
    digest = str(pack.get("digest", ""))
    return str(pack.get("name", "")) + (f" ({digest[:12]})" if digest else "")
