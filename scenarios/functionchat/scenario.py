"""FunctionChat-Bench as a scenario: recorded turns to answer, or whole dialogs with a simulated user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from viva.agents.judge import RULING_SCHEMA
from viva.agents.prompts import PromptPack
from viva.engine.errors import ConfigurationError

from ..contract import (
    Aggregate,
    Converse,
    GradeReader,
    JudgeGrade,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsClusters,
    SupportsGrading,
    SupportsReviewSheet,
)
from ..rendering import RecordedConversation, RenderedConversation, ResultSummary, role_sides
from .dialog_prompts import TEMPLATES, DialogPrompts, open_prompts
from .dialog_protocols import CANDIDATE, INTERACTOR, JUDGE, TurnProtocol, UserProtocol
from .dialog_rendering import render_dialog, summarize_dialog
from .functionchat_report import AS_PUBLISHED, TurnAggregate, UserAggregate
from .functionchat_settings import FunctionChatSettings
from .turn_files import open_turns
from .turns import DialogTurn
from .user_tasks import DialogTask, open_tasks
from .verdict_review import TurnReview


class FunctionChat(
    Scenario[FunctionChatSettings, "DialogTurn | DialogTask"], SupportsClusters, SupportsGrading, SupportsReviewSheet
):
    """Tool-use dialogs (Lee et al. 2024)."""

    name = "functionchat"
    summary = "Tool-use dialogs, graded by rules where possible, else by a judge (FunctionChat-Bench)."
    plural = "dialogs"
    data = "data"
    settings = FunctionChatSettings
    roles = (Role(CANDIDATE, many=True), Role(JUDGE, judge=True), Role(INTERACTOR))
    templates = TEMPLATES
    review = TurnReview()

    def roles_of(self, settings: FunctionChatSettings) -> tuple[Role, ...]:
        unused = INTERACTOR if settings.mode == "turns" else JUDGE
        return tuple(role for role in self.roles if role.name != unused)

    def open_pack(self, settings: FunctionChatSettings) -> PromptPack:
        return open_prompts(settings, "").pack

    def prepare(self, settings: FunctionChatSettings) -> Prepared[DialogTurn | DialogTask]:
        s = settings
        if s.mode == "turns":
            turns = open_turns(s.data, s.subset, limit=s.n, seed=s.seed, skip_bad=s.skip_bad_items)
            return Prepared(turns, self._records(s, turns.to_record(), turns.language), turns.notes)
        tasks = open_tasks(s.data, limit=s.n, seed=s.seed)
        played = [task.id for task in tasks if task.goal is not None]
        if played and s.interactor is None:
            raise ConfigurationError(
                f"interactor: task {played[0]} needs a model that plays the user; give --interactor"
            )
        return Prepared(tasks, self._records(s, tasks.to_record(), ""))

    def _records(self, settings: FunctionChatSettings, dataset: dict[str, Any], language: str) -> dict[str, Any]:
        prompts = open_prompts(settings, settings.reply_language(language))
        records = {"dataset": dataset, "system": prompts.system, "language": prompts.language}
        published = settings.matching == "official" and settings.rubrics is not None and settings.mode == "turns"
        return records | ({AS_PUBLISHED: True} if published else {})

    def protocol(
        self, settings: FunctionChatSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[Any]:
        assert pack is not None
        s = settings
        # Earlier versions recorded no language: use their setting, or Korean.
        prompts = DialogPrompts(pack, records.get("language", s.reply_language("Korean")), records["system"])
        answering = s.sampling_of(CANDIDATE)
        if s.mode == "user":
            asking = s.sampling_of(INTERACTOR)
            return UserProtocol(prompts, answering, asking, s.exchanges, s.steps).run
        # Rubrics from a folder define the form of verdicts themselves, so no schema is used.
        schema = RULING_SCHEMA if s.rubrics is None else None
        judging = replace(s.sampling_of(JUDGE), schema=schema)
        # Earlier versions had no such field: their runs are resumed as they began.
        published = bool(records.get(AS_PUBLISHED))
        return TurnProtocol(prompts, answering, judging, s.matching, as_published=published).run

    def grading(self, settings: FunctionChatSettings, *, by_round: bool = False) -> GradeReader | None:
        """Return the reader of a judge's passes and failures; outputs decided by rules have no judge's grade."""
        if by_round or settings.mode == "user":
            return None

        def answers(key: str, label: str, turn: Any, record: Any) -> Iterator[JudgeGrade]:
            if record["judge"] is not None:
                passed = record["judge"]["passed"]
                yield JudgeGrade(key, label, turn.cluster, None if passed is None else float(passed))

        return GradeReader(0.0, 1.0, answers, passes=True)

    def cluster_of(self, result: Any) -> str:
        return str(result.get("cluster", ""))

    def task(self, record: Any) -> DialogTurn | DialogTask:
        return DialogTurn.from_record(record) if "ground_truth" in record else DialogTask.model_validate(record)

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        return render_dialog(recorded, role_sides(self.roles))

    def summary_of(self, settings: FunctionChatSettings) -> Callable[[Any], ResultSummary]:
        return summarize_dialog

    def score_rule(self, settings: FunctionChatSettings) -> str:
        return "The score is 100 if the dialog passed, and 0 if not."

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        return UserAggregate(manifest) if manifest["settings"]["mode"] == "user" else TurnAggregate(manifest)


SCENARIO = FunctionChat()
