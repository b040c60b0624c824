"""Fusion-Eval's side of the contract (Shu et al. 2023): judges that are told what automatic assistants say.

What never belongs here: judging itself (``protocol``), formulas, wording (``packs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from viva.agents.prompts import PromptPack
from viva.data.records import DataRecord, ManifestPart
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling

from ..assistants import assistant_roles, checked_facts
from ..contract import Aggregate, Converse, Prepared, Role, Scenario, Scoring
from ..forecast import Use
from .examples_file import Examples, JudgedExample
from .forecast import judging_use
from .judge import ROLE, score_schema, whole_scores
from .protocol import FusionProtocol
from .report import FusionAggregate
from .settings import FusionSettings
from .words import TEMPLATES, Words, open_pack, words_of


class FusionManifest(ManifestPart):
    """The manifest of a run, besides what every run's has."""

    dataset: DataRecord
    task: dict[str, str]
    plan: dict[str, str] | None
    assistants: list[dict[str, Any]]


class Fusion(Scenario[FusionSettings, JudgedExample]):
    """Responses scored by judges with the help of assistants."""

    name = "fusion"
    summary = "Responses scored by judges that are told what automatic assistants say of them (Fusion-Eval)."
    plural = "judgements"
    data = "data"
    settings = FusionSettings
    roles = (Role(ROLE, many=True, judge=True),)
    templates = TEMPLATES
    manifest = FusionManifest
    judging = frozenset({"judge_tokens"})

    def roles_of(self, settings: FusionSettings) -> tuple[Role, ...]:
        return (*self.roles, *assistant_roles(settings.assistant))

    def open_pack(self, settings: FusionSettings) -> PromptPack:
        return open_pack(settings)

    def prepare(self, settings: FusionSettings) -> Prepared[JudgedExample]:
        words = self._words(settings)
        _check_whole(settings, words)
        facts = checked_facts(words.assistants)
        examples = Examples(Path(settings.data), words.task, limit=settings.n, seed=settings.seed)
        records = {"dataset": examples.to_record(), "assistants": facts, **words.records(settings)}
        notes = [f"{one['name']}: WordNet is not installed, so METEOR matches no synonyms"
                 for one in facts if one.get("wordnet") is False]  # fmt: skip
        return Prepared(examples, records, notes)

    def protocol(
        self, settings: FusionSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[JudgedExample]:
        assert pack is not None
        words = words_of(pack, settings)
        whole = settings.scores == "expected"
        sampling = Sampling(
            temperature=settings.temperature,
            max_tokens=settings.judge_tokens,
            schema=score_schema(words.task.criteria, whole=whole),
            expected=whole,
        )
        return FusionProtocol(words, sampling, settings.predictions).hold

    def task(self, record: Any) -> JudgedExample:
        return JudgedExample.from_record(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        settings = FusionSettings.model_validate(manifest["settings"])
        words = words_of(TEMPLATES.read(manifest["prompts"], manifest["pack"]["name"]), settings)
        return FusionAggregate(manifest, words.task, words.plan)

    def forecast(
        self, settings: FusionSettings, prepared: Prepared[JudgedExample], pack: PromptPack | None
    ) -> dict[str, Use]:
        assert pack is not None
        return judging_use(settings, words_of(pack, settings), prepared.tasks)

    def _words(self, settings: FusionSettings) -> Words:
        return words_of(open_pack(settings), settings)


def _check_whole(settings: FusionSettings, words: Words) -> None:
    """See that expected scores can be taken: they are over whole numbers.

    :raises ConfigurationError: a criterion has too few of them.
    """
    if settings.scores != "expected":
        return
    for name, criterion in words.task.criteria.items():
        if not 2 <= len(whole_scores(criterion)) <= 11:
            low, high = criterion.range
            raise ConfigurationError(
                f"scores: expected needs ranges of 2 to 11 whole numbers; criterion '{name}' goes from {low:g} to "
                f"{high:g}; change the task file, or take --scores written"
            )


SCENARIO = Fusion()
