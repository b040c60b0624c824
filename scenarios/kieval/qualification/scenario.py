"""Qualification of models as a scenario: is a model fit to be candidate, interactor or evaluator of an interview?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from viva.agents.prompts import PromptPack

from ...contract import (
    Converse,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    SupportsStudy,
    UsageForecast,
    estimate_tokens,
)
from ...fitness import Fitness, FitnessCheck
from ...run_settings import RunSettings
from ..pack_templates import TEMPLATES
from .qualification_cases import (
    ROLES,
    QualificationTask,
    QualifySettings,
    cases_digest,
    qualification_tasks,
    shipped_cases,
)
from .qualification_protocol import MODEL, QualificationProtocol
from .qualification_report import QualificationAggregate

if TYPE_CHECKING:
    from ...study_sections import StaticFigures
    from .qualification_report import QualificationStudy


class Qualify(Scenario[QualifySettings, QualificationTask], SupportsForecast, SupportsStudy):
    """Tests of models in the roles of an interview, on scripted exchanges of known quality."""

    name = "qualify"
    summary = "Is a model fit for its role? Tests evaluators, interactors, candidates on exchanges of known quality."
    plural = "tests"
    data = "role"
    settings = QualifySettings
    roles = (Role(MODEL, many=True),)
    templates = TEMPLATES

    def prepare(self, settings: QualifySettings) -> Prepared[QualificationTask]:
        cases = shipped_cases()
        tasks = qualification_tasks(cases, settings.tested_roles, brief=settings.brief)
        name = "brief" if settings.brief else "exchanges"
        return Prepared(tasks, {"dataset": {"name": name, "digest": cases_digest(cases), "chosen": len(tasks)}})

    def protocol(
        self, settings: QualifySettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[QualificationTask]:
        assert pack is not None
        return QualificationProtocol(pack, {role: settings.sampling_of(role) for role in ROLES}).run

    def task(self, record: Any) -> QualificationTask:
        return QualificationTask.from_record(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> QualificationAggregate:
        return QualificationAggregate(manifest)

    def study(self, lent: StaticFigures | None = None) -> QualificationStudy:
        from .qualification_report import QualificationStudy

        return QualificationStudy(self, lent)

    def forecast(
        self, settings: QualifySettings, prepared: Prepared[QualificationTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        total = UsageForecast()
        for task in prepared.tasks:
            prompt = estimate_tokens(pack.render(f"{task.role}.system")) + estimate_tokens(
                orjson.dumps(asdict(task.case)).decode()
            )
            calls = {"evaluator": 2 * len(task.exchanges), "interactor": 4, "candidate": 3}[task.role]  # with retries
            total += UsageForecast(1, prompt, getattr(settings, f"{task.role}_tokens")) * calls
        return {MODEL: total}


SCENARIO = Qualify()


def brief_check(role: str, model: str, settings: RunSettings) -> FitnessCheck:
    """Return the test of a model in a role, with the prompts and the sampling of an interview's settings."""
    names = ("pack", "temperature", "evaluator_tokens", "interactor_tokens")
    options = {name: getattr(settings, name) for name in names}
    tested = QualifySettings.model_validate({"model": [model], "role": [role], "brief": True, **options})

    def read(report: Mapping[str, Any]) -> Fitness | None:
        figures = next(iter(report["candidates"].values()))["roles"].get(role)
        return None if figures is None else Fitness(figures["verdict"], figures["sentence"])

    return FitnessCheck(role, model, SCENARIO, tested, read)
