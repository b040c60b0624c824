"""The report of a qualification: a sentence for each model and role, and the figures behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.reports.page import Record
from viva.reports.tables import DASH, Table, number, percent, signed

from ...contract import Findings
from ...fitness import Fitness
from ...run_aggregate import ModelResults, RunAggregate, common_tables, tier_name
from ...study_sections import SystemStudy
from .fitness import WORDS, evaluator_figures, evaluator_fitness, turn_figures, turns_fitness
from .qualification_protocol import MODEL


class QualifiedModel(ModelResults):
    """The turns of one model by role. They are added in any order; the report is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[str, list[dict[str, Any]]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        turns = self.turns.setdefault(record["role"], [])
        turns += [{**turn, "case": record["case"]} for turn in record["turns"]]
        if "stopped" in record:
            self.stops.add(record["stopped"])
        self.add_usage(record)

    def figures(self, role: str) -> dict[str, Any]:
        """Return the figures of a role; equal turns give equal figures, in whatever order they came."""
        turns = sorted(self.turns.get(role, []), key=lambda turn: sorted((key, str(turn[key])) for key in turn))
        return evaluator_figures(turns) if role == "evaluator" else turn_figures(turns)


def fitness(role: str, figures: Mapping[str, Any]) -> Fitness:
    """Return the verdict on a model in a role."""
    return evaluator_fitness(figures) if role == "evaluator" else turns_fitness(role, figures)


class QualificationAggregate(RunAggregate[QualifiedModel]):
    """The models of a run."""

    fields = (*RunAggregate.fields, "answer")

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, QualifiedModel, MODEL)

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(result)

    def in_brief(self, results: QualifiedModel) -> str:
        turns = [turn for own in results.turns.values() for turn in own]
        return f"{sum(turn['seconds'] for turn in turns) / len(turns):.1f} s a turn" if turns else ""

    def facts(self) -> dict[str, Any]:
        return {"answer": self.remarks()}

    def remarks(self) -> list[str]:
        """Return a sentence for each model and role."""
        return [f"{label}: {fitness(role, model.figures(role)).sentence}."
                for label, model in self.candidates.items() for role in sorted(model.turns)]  # fmt: skip

    def figures(self, label: str, results: QualifiedModel) -> dict[str, Any]:
        roles = {}
        for role in sorted(results.turns):
            figures = results.figures(role)
            outcome = fitness(role, figures)
            roles[role] = {"verdict": outcome.verdict, "sentence": outcome.sentence, **figures}
        return {"roles": roles, "stopped": results.stops.to_dict(), **results.common_figures(self.prices(label))}

    def tables(self) -> list[Table]:
        report = self.report()
        title = f"Qualification, seed {report['seed']}, {tier_name(report['tier'])}"
        by_role = [(label, role, figures) for label, record in report["candidates"].items()
                   for role, figures in record["roles"].items()]  # fmt: skip
        verdicts = [
            [label, role, WORDS[figures["verdict"]], number(figures["tokens_each"])] for label, role, figures in by_role
        ]
        judges = [[label, *_judge_cells(figures)] for label, role, figures in by_role if role == "evaluator"]
        others = [(label, role, figures) for label, role, figures in by_role if role != "evaluator"]
        flaws = sorted({flaw for *_, figures in others for flaw in figures["flaws"]})
        turns = [
            [
                label,
                role,
                str(figures["turns"]),
                _ends(figures["sound_share"], 100),
                *(str(figures["flaws"].get(flaw, 0)) for flaw in flaws),
            ]
            for label, role, figures in others
        ]
        return [
            (title, ["model", "role", "verdict", "tokens each"], verdicts),
            ("Evaluators", ["model", *_JUDGE_HEADER], judges),
            ("Turns without a flaw (%), and flaws", ["model", "role", "turns", "sound", *flaws], turns),
            *common_tables(report),
        ]


class QualificationStudy(SystemStudy):
    """Study of qualifications: the sentence on each model and role comes first."""

    def findings(self, report: Record) -> list[Findings]:
        sentences = [
            f"{cell['candidate']}: {figures['sentence']}."
            for cell in report["cells"]
            for figures in (cell["result"] or {}).get("roles", {}).values()
        ]
        return [Findings(sentences, scenario=self.scenario.name)] if sentences else []


_JUDGE_HEADER = (
    *("verdicts", "unread", "read at once", "without schema", "AUC", "rho", "distinct", "same score", "copied"),
    *("later − first", "long − short", "stops: bad", "stops: right"),
)


def _judge_cells(figures: Mapping[str, Any]) -> list[str]:
    return [
        str(figures["verdicts"]),
        str(figures["unread"]),
        str(figures["read_at_once"]),
        f"{figures['unforced_read']} of {figures['unforced']}" if figures["unforced"] else DASH,
        _ends(figures["auc"]),
        number(figures["rho"], 2),
        str(figures["distinct"]),
        *(
            DASH if share is None else percent(share["value"])
            for share in (figures["common_share"], figures["copied_share"])
        ),
        *(
            DASH if effect is None else signed(effect["value"], 2)
            for effect in (figures["position"], figures["length"])
        ),
        *("{} of {}".format(*figures["stops"][kind]) for kind in ("bad", "right")),
    ]


def _ends(estimate: Mapping[str, float] | None, factor: int = 1) -> str:
    if estimate is None:
        return DASH
    decimals = 2 if factor == 1 else 0
    value, low, high = (f"{factor * estimate[name]:.{decimals}f}" for name in ("value", "low", "high"))
    return f"{value} ({low}–{high})"
