"""Fusion-Eval as a scenario (Shu et al. 2023): judges that see the scores of automatic assistants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from viva.agents.assistants.assistant import AssistantResult
from viva.agents.assistants.model_assistants import GRADE_TOKENS, JudgeAssistant
from viva.agents.prompts import PromptPack
from viva.data.dataset import DataRecord, ManifestPart
from viva.engine.errors import ConfigurationError

from ..assistant_roles import assistant_facts, assistant_roles
from ..contract import (
    Aggregate,
    Converse,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    SupportsManifest,
    UsageForecast,
    estimate_tokens,
)
from .fusion_judge import JUDGE, FusionProtocol, score_schema, whole_scores
from .fusion_prompts import TEMPLATES, JudgePrompts, open_pack, prompts_of_pack
from .fusion_report import FusionAggregate
from .fusion_settings import FusionSettings
from .task_files import JudgedExample, open_examples


def forecast_judging(
    settings: FusionSettings, prompts: JudgePrompts, examples: Iterable[JudgedExample]
) -> dict[str, UsageForecast]:
    """Return the usage of each role for all examples of one judge, without repairs."""
    system = estimate_tokens(prompts.system())
    total: dict[str, UsageForecast] = {JUDGE: UsageForecast()}
    gaps = [AssistantResult(assistant.name, assistant.high) for assistant in prompts.assistants]
    for example in examples:
        prompt = system + estimate_tokens(prompts.question(example, gaps))
        total[JUDGE] += UsageForecast(1, prompt, settings.judge_tokens) * settings.predictions
        texts = estimate_tokens("\n\n".join(example.texts.values()))
        for assistant in prompts.assistants:
            if assistant.model is not None:
                answer = GRADE_TOKENS if isinstance(assistant, JudgeAssistant) else 0
                total[assistant.role] = total.get(assistant.role, UsageForecast()) + UsageForecast(1, texts, answer)
    return total


class FusionManifest(ManifestPart):
    """The manifest fields of a Fusion-Eval run."""

    dataset: DataRecord
    task: dict[str, str]
    plan: dict[str, str] | None
    assistants: list[dict[str, Any]]


class Fusion(Scenario[FusionSettings, JudgedExample], SupportsForecast, SupportsManifest):
    """Responses scored by judges with the help of assistants."""

    name = "fusion"
    summary = "Responses scored by judges with the help of automatic assistants (Fusion-Eval)."
    plural = "judgements"
    data = "data"
    settings = FusionSettings
    roles = (Role(JUDGE, many=True, judge=True),)
    templates = TEMPLATES
    manifest = FusionManifest
    judging = frozenset({"judge_tokens"})

    def roles_of(self, settings: FusionSettings) -> tuple[Role, ...]:
        return (*self.roles, *assistant_roles(settings.assistant))

    def open_pack(self, settings: FusionSettings) -> PromptPack:
        return open_pack(settings)

    def prepare(self, settings: FusionSettings) -> Prepared[JudgedExample]:
        prompts = self._prompts(settings)
        _check_whole_scores(settings, prompts)
        facts = assistant_facts(prompts.assistants)
        examples = open_examples(
            Path(settings.data), prompts.task, limit=settings.n, seed=settings.seed, source=settings.task
        )
        records = {"dataset": examples.to_record(), "assistants": facts, **prompts.records(settings)}
        notes = [f"{record['name']}: WordNet is not installed, so METEOR matches no synonyms"
                 for record in facts if record.get("wordnet") is False]  # fmt: skip
        return Prepared(examples, records, notes)

    def protocol(
        self, settings: FusionSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[JudgedExample]:
        assert pack is not None
        prompts = prompts_of_pack(pack, settings)
        whole_numbers = settings.scores == "expected"
        schema = score_schema(prompts.task.criteria, whole_numbers=whole_numbers)
        sampling = replace(settings.sampling_of(JUDGE), schema=schema, expected=whole_numbers)
        return FusionProtocol(prompts, sampling, settings.predictions).run

    def task(self, record: Any) -> JudgedExample:
        return JudgedExample.from_record(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        settings = FusionSettings.model_validate(manifest["settings"])
        prompts = prompts_of_pack(TEMPLATES.read(manifest["prompts"], manifest["pack"]["name"]), settings)
        return FusionAggregate(manifest, prompts.task, prompts.plan)

    def forecast(
        self, settings: FusionSettings, prepared: Prepared[JudgedExample], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        return forecast_judging(settings, prompts_of_pack(pack, settings), prepared.tasks)

    def _prompts(self, settings: FusionSettings) -> JudgePrompts:
        return prompts_of_pack(open_pack(settings), settings)


def _check_whole_scores(settings: FusionSettings, prompts: JudgePrompts) -> None:
    """Check that expected scores are possible: they need ranges of whole numbers.

    Raises:
        ConfigurationError: A criterion has another range.
    """
    if settings.scores != "expected":
        return
    for name, criterion in prompts.task.criteria.items():
        if not 2 <= len(whole_scores(criterion)) <= 11:
            low, high = criterion.range
            raise ConfigurationError(
                f"scores: expected needs ranges of 2 to 11 whole numbers; criterion '{name}' goes from {low:g} to "
                f"{high:g}; change the task file, or use --scores written"
            )


SCENARIO = Fusion()
