"""FlexEval's side of the contract: conversations of a suite, metrics of them, thresholds.

What never belongs here: how a conversation goes (``protocol``), figures (``report``), and the commands (``commands``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viva.agents.prompts import PromptPack
from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean
from viva.scenarios.models import model_labels

from ..contract import Aggregate, Converse, Prepared, Role, Scenario
from ..settings import RunSettings
from ..shown import RecordedConversation, ResultSummary, ShownConversation, sides_of
from .gates import check_baseline
from .graph import Measured, measured
from .protocol import CANDIDATE, GRADER, INTERACTOR, DialogTask, SuiteProtocol
from .readers import expand
from .report import SuiteAggregate, SuiteScoring
from .rubric import TEMPLATES
from .scales import TESTS, check_attainable, most_repeats, never_broken
from .settings import FlexEvalSettings, grader_models, read_named
from .shown import shown_suite, summary
from .spec import Suite
from .tasks import DialogTasks, WatchedTasks

if TYPE_CHECKING:
    from ..study.sections import SystemStudy
    from ..study.static import StaticFigures


@dataclass(frozen=True, slots=True)
class _OneOfTheGraders(Role):
    """One of several graders; ``place`` in the setting ``graders``."""

    place: int = 0

    def models(self, settings: RunSettings) -> list[str]:
        return [settings.graders[self.place]]  # type: ignore[attr-defined]


class FlexEval(Scenario[FlexEvalSettings, DialogTask]):
    """Suites (Christie et al. 2024): functions and rubrics over conversations, with thresholds for a release."""

    name = "flexeval"
    summary = "Tests a chatbot by a suite of conversations, metrics and thresholds (FlexEval)."
    plural = "suites"
    data = "suite"
    settings = FlexEvalSettings
    roles = (Role(CANDIDATE, many=True), Role(GRADER, judge=True), Role(INTERACTOR))
    templates = TEMPLATES
    scoring = SuiteScoring

    def roles_of(self, settings: FlexEvalSettings) -> tuple[Role, ...]:
        candidate, grader, interactor = self.roles
        found = [candidate]
        if settings.graders:
            labels = model_labels(settings.graders)
            found += [_OneOfTheGraders(f"{GRADER}-{label}", place=place) for place, label in enumerate(labels)]
        elif settings.grader is not None:
            found.append(grader)
        return (*found, *([interactor] if settings.interactor is not None else []))

    def prepare(self, settings: FlexEvalSettings) -> Prepared[DialogTask]:
        file = read_named(settings.suite)
        suite, where = file.suite, settings.suite
        if settings.watched is not None:
            suite = suite.model_copy(update={"complete": "none", "scored": "new"})
        graders = self._graders(settings, suite)
        metrics = measured(suite, list(graders), where)
        for metric in metrics:
            if not metric.by_function and not graders:
                raise ConfigurationError(
                    f"{where}: metric '{metric.name}' is graded by a rubric, and there is no grader; write "
                    "`grader: MODEL` there, or give --grader MODEL"
                )
        check_thresholds(suite, metrics, where)
        repeats = settings.repeats if settings.watched is None else None
        check_attainable(suite, metrics, where, repeats=repeats)
        if settings.baseline is not None:
            check_baseline(Path(settings.baseline))
        if suite.complete != "dialog" and settings.interactor is not None:
            raise ConfigurationError("interactor: only a dialog held anew has one; write `complete: dialog`")
        tasks: DialogTasks | WatchedTasks
        if settings.watched is not None:
            tasks = WatchedTasks(Path(settings.watched))
        else:
            tasks = DialogTasks(_conversations(suite, file.folder, where), settings.n)
        notes = [*file.notes, *never_broken(suite, metrics)]
        if repeats is not None and (most := most_repeats(suite)) > repeats:
            notes.append(f"pass^{most} needs {most} repeats, and is broken without; give --repeats {most}")
        if settings.baseline is None and any(one.fall is not None or one.rise is not None for one in suite.thresholds):
            notes.append(
                "thresholds with `fall` or `rise` need a baseline, and are broken without; give --baseline RUN"
            )
        if settings.baseline is not None and all(one.fall is one.rise is None for one in suite.thresholds):
            notes.append(f"baseline {settings.baseline}: no threshold has `fall` or `rise`, so nothing is compared")
        if tasks.unreadable:
            notes.append(f"{tasks.unreadable} of {len(tasks)} conversations cannot be read; they count as failed")
        told = suite.model_dump(mode="json", exclude_none=True)
        records = {
            "dataset": tasks.to_record(suite.name),
            "suite": told,
            "metrics": [metric.to_manifest() for metric in metrics],
            "graders": graders,
        }
        return Prepared(tasks, records, notes)

    def _graders(self, settings: FlexEvalSettings, suite: Suite) -> dict[str, str]:
        """The role of each grader, by its label."""
        if settings.graders:
            return {label: f"{GRADER}-{label}" for label in model_labels(settings.graders)}
        if settings.grader is None:
            return {}
        labels = list(grader_models(suite))
        return {labels[0] if len(labels) == 1 else GRADER: GRADER}

    def protocol(
        self, settings: FlexEvalSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[DialogTask]:
        assert pack is not None
        suite = Suite.model_validate(records["suite"])
        metrics = [Measured.from_manifest(one) for one in records["metrics"]]
        return SuiteProtocol(suite, metrics, records["graders"], pack, plays=settings.interactor is not None).hold

    def offers(self) -> dict[str, dict[str, str]]:
        from .builtin import BUILTIN
        from .builtin.rubrics import SHIPPED, shipped_rubric

        metrics = {name: function.__doc__ or "" for name, function in BUILTIN.items()}
        return {"metrics": metrics, "rubrics": {name: shipped_rubric(name).notes or "" for name in SHIPPED}}

    def task(self, record: Any) -> DialogTask:
        return DialogTask.from_record(record)

    def given(self, task: DialogTask) -> Any:
        return task.dialog

    def study(self, lent: StaticFigures | None = None) -> SystemStudy:
        from .study import FlexEvalStudy

        return FlexEvalStudy(self, lent)

    def shown(self, recorded: RecordedConversation) -> ShownConversation:
        return shown_suite(recorded, sides_of(self.roles))

    def summary_of(self, settings: FlexEvalSettings) -> Callable[[Any], ResultSummary]:
        return summary

    def aggregate(self, manifest: dict[str, Any], scoring: SuiteScoring) -> Aggregate:
        return SuiteAggregate(manifest, scoring)


def _conversations(suite: Suite, folder: Path, where: str) -> list[Path]:
    try:
        return expand(suite.conversations, folder)
    except DatasetError as error:
        raise ConfigurationError(f"{where}: conversations: {error}") from None


def check_thresholds(suite: Suite, metrics: list[Measured], where: str) -> None:
    """See that each threshold names a metric that there is.

    :raises ConfigurationError: one does not.
    """
    names = {metric.name for metric in metrics}
    for place, threshold in enumerate(suite.thresholds):
        name = threshold.metric
        if name not in names and name.rpartition(".")[0] not in names and name != TESTS:
            known = ", ".join([*sorted(names), TESTS])
            raise ConfigurationError(
                f"{where}: thresholds.{place}: there is no metric '{name}'; known: {known} (all metrics with `passes`)"
                f"{did_you_mean(name, [*names, TESTS])}"
            )


SCENARIO = FlexEval()
