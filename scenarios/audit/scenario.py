"""Audits of judges as a scenario: judges are compared, and each is asked about each case in several ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viva.agents.judge import SCALES
from viva.agents.prompts import PromptPack
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.messages import Message
from viva.scoring.pairwise import PairVerdicts

from ..contract import (
    Converse,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    SupportsKnownVerdicts,
    SupportsPairVerdicts,
    SupportsTaskDetection,
    UsageForecast,
    estimate_tokens,
)
from ..models import model_labels
from .audit_cases import TIE, AuditCase, AuditSettings, cases_digest, check_has_pairs, is_case_record, open_cases
from .audit_protocol import JUDGE, TEMPLATES, AuditProtocol, AuditTask, questions_for
from .audit_report import AuditAggregate, pair_verdicts
from .simulated_judge import check_traits


class Audit(
    Scenario[AuditSettings, AuditTask],
    SupportsForecast,
    SupportsKnownVerdicts,
    SupportsPairVerdicts,
    SupportsTaskDetection,
):
    """Audits of judges; cases may be passed in instead of named in the settings."""

    name = "audit"
    summary = "Audits of judges: position, verbosity, format, self-preference, labels, test-retest."
    plural = "audits"
    data = "cases"
    settings = AuditSettings
    roles = (Role(JUDGE, many=True),)
    templates = TEMPLATES

    def __init__(self, cases: Iterable[AuditCase] | None = None) -> None:
        self._cases = None if cases is None else list(cases)

    def prepare(self, settings: AuditSettings) -> Prepared[AuditTask]:
        s = settings
        check_traits(s.judge)
        cases = self._cases if self._cases is not None else open_cases(s.cases, s.n, s.seed)
        check_has_pairs(cases, s.audits)
        tasks = [
            AuditTask(case, question)
            for case in cases
            for question in questions_for(s.audits)
            if case.paired or question != "pair"
        ]
        name = "examples" if s.cases == "examples" else s.cases.rpartition("/")[2].rpartition(".")[0] or s.cases
        dataset = {"name": name, "digest": cases_digest(cases), "chosen": len(tasks), "cases": len(cases)}
        families = families_of(s, cases)
        notes = []
        if "self" in s.audits and (unknown := [label for label in model_labels(s.judge) if label not in families]):
            notes.append(
                f"the family of {', '.join(unknown)} is unknown, so self-preference is not audited; set it with "
                "--family LABEL=FAMILY"
            )
        return Prepared(tasks, {"dataset": dataset, "families": families}, notes)

    def protocol(
        self, settings: AuditSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[AuditTask]:
        assert pack is not None
        return AuditProtocol(pack, settings, records["families"]).run

    def task(self, record: Any) -> AuditTask:
        return AuditTask.from_record(record)

    def accepts_record(self, raw: Mapping[str, Any]) -> bool:
        return is_case_record(raw)

    def pair_verdicts(self, result: Any) -> PairVerdicts | None:
        return pair_verdicts(result)

    def known_verdict(self, task: AuditTask, messages: Sequence[Message]) -> str | None:
        preferred, text = task.case.preferred, messages[-1].content
        if task.question != "pair" or preferred is None:
            return None
        if not isinstance(preferred, int):
            return TIE
        rejected = task.case.answers[1 - preferred]
        return "A" if text.find(task.case.answers[preferred]) < text.find(rejected) else "B"

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> AuditAggregate:
        return AuditAggregate(manifest)

    def forecast(
        self, settings: AuditSettings, prepared: Prepared[AuditTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        prompt = estimate_tokens(pack.text) / 2
        calls = {"labels": len(SCALES), "retest": settings.retests}
        total = UsageForecast()
        for task in prepared.tasks:
            # The padded answer is about three times as long as the plain one.
            text = estimate_tokens(task.case.question) + 4 * max(map(estimate_tokens, task.case.answers))
            total += UsageForecast(1, prompt + text, settings.judge_tokens) * (
                2 * calls.get(task.question, 2)
            )  # at most one retry
        return {JUDGE: total}


def families_of(settings: AuditSettings, cases: Iterable[AuditCase]) -> dict[str, str]:
    """Return the family of each judge: from the settings or, if it is not set, the longest family name in the label.

    Raises:
        ConfigurationError: The settings name an unknown judge or family.
    """
    case_families = {family for case in cases for family in case.families if family is not None}
    labels = model_labels(settings.judge)
    families = {}
    for label in labels:
        within = [family for family in case_families if family.casefold() in label.casefold()]
        if within:
            families[label] = max(within, key=lambda family: (len(family), family))
    for text in settings.family:
        label, _, family = text.rpartition("=")
        if label not in labels:
            near = did_you_mean(label, labels, "judges")
            raise ConfigurationError(f"family: there is no judge '{label}'{near}")
        if family not in case_families:
            names = ", ".join(sorted(case_families)) or "none"
            raise ConfigurationError(f"family: no answer is of the family '{family}'; families in the cases: {names}")
        families[label] = family
    return families


SCENARIO = Audit()
