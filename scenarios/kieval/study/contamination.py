"""Static figures beside the interview (Table 3): accuracy, losses and detectors; and the interview score of items that
a candidate answers rightly or wrongly.

The figures are part of the pooled ones. What never belongs here: detectors (``scoring.contamination``).
"""

from __future__ import annotations

from viva.reports.page import Record
from viva.reports.text import Table, both, interval, mean, number, ranged

from ...study.sections import Section, Subject
from ...study.static import StaticFigures
from ..score import ASPECTS
from .accuracies import accuracy_of
from .pools import InterviewMaterial
from .results import SHORT_ASPECTS
from .words import FIRST_ANSWER, title_facts

_DETECTOR = "min_k_20"  # k = 20, as Shi et al. 2024 recommend


class Contamination(Section[InterviewMaterial]):
    """What a model recalls beside how it interviews about it."""

    subject, heading, anchor = Subject.CONTAMINATION, "Contamination", "contamination"

    def __init__(self, lent: StaticFigures | None) -> None:
        self._preferred = () if lent is None else lent.preferred

    def tables(self, report: Record) -> list[Table]:
        return [self._beside(report), _by_item(report)]

    def _beside(self, report: Record) -> Table:
        """Accuracy, losses and Min-K% beside the interview, of candidates with losses. Accuracy is the preferred
        static one where there is any, else that of the first answers.
        """
        lines = []
        for row in report["pooled"]:
            static = row["probe"]
            if row["dataset"] is None or static is None or static["loss"] is None:
                continue
            detector = (static["detectors"] or {}).get(_DETECTOR)
            source = next((name for name in self._preferred if name in static["accuracy"]), FIRST_ANSWER)
            loss = [number((static[name] or {}).get("mean"), 2) for name in ("loss", "loss_against")]
            line = [row["candidate"], row["dataset"], number(accuracy_of(row, source)["mean"]), *loss]
            line += [interval(static["loss_gap"], 2), interval(detector, 2)]
            line += [number(row["aspects"][name]["mean"]) for name in ASPECTS[:-1]]
            lines.append([*line, *both(row["score"])])
        header = ["candidate", "dataset", "accuracy", "loss", "loss against", "gap", "AUC Min-20%"]
        title = f"Contamination: {title_facts(report)}; gap: members less others, nats per token"
        return (title, [*header, *SHORT_ASPECTS, "KIEval", "±"], lines)


def _by_item(report: Record) -> Table:
    """Static accuracies, and the score of interviews about items answered rightly and wrongly."""
    rows = [row for row in report["pooled"] if row["probe"] is not None and row["probe"]["accuracy"]]
    methods = list(dict.fromkeys(name for row in rows for name in row["probe"]["accuracy"]))
    lines = []
    for row in rows:
        static = row["probe"]
        line = [row["candidate"], row["dataset"] or "all"]
        line += [ranged(static["accuracy"].get(name)) for name in methods]
        found = static.get("joined")
        line += ["–"] * 3 if found is None else [str(found["n"]), mean(found["right"]), mean(found["wrong"])]
        lines.append(line)
    header = ["candidate", "dataset", *(name.replace("_", " ") for name in methods)]
    header += ["items in both", "KIEval where right", "KIEval where wrong"]
    return (f"Probed accuracy, and KIEval on the same items: {title_facts(report)}", header, lines)
