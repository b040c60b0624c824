"""Launch of runs of any scenario: start, resume, fork and score.

The command line, the Python API and sweeps all use this module.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from pydantic import ValidationError

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import BackendPool, build
from viva.engine.budget import Budget, Meter
from viva.engine.clock import Clock, RealClock
from viva.engine.computation import StepExecutor
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.event_loop import LoopYield
from viva.engine.events import ConversationsAdded, Event
from viva.engine.journal import Journal, damaged_journal_error
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Feed, Outcome, Runner, Slots
from viva.engine.stream import EventStream
from viva.scenarios.contract import (
    Aggregate,
    Converse,
    PanelMember,
    Role,
    Scoring,
    SupportsFitnessChecks,
    SupportsReviews,
    judge_role,
)
from viva.scenarios.fitness import FitnessCheck, fitness_record, fitness_warnings, write_fitness
from viva.scenarios.models import check_prices, model_labels, replay_name
from viva.scenarios.registry import AnyScenario, get_scenario
from viva.scenarios.run_settings import BANK_FILE, ExamSettings, RunSettings
from viva.scenarios.study_cells import add_ended, add_results
from viva.scoring.aggregates import Failures

from .control import RunControl
from .control_socket import listening
from .manifest import read_manifest_settings
from .prepared_run import PreparedRun, Shard
from .result_cache import FitnessCache
from .run_progress import ModelWaits
from .tracing import traced

_log = logging.getLogger("viva")
# If this environment variable is "off", fitness tests before runs are skipped, as with `--no-qualify`.
FITNESS_SWITCH = "VIVA_QUALIFY"
_TEST_SHARE = 0.25  # share of a run's budget that one fitness test may use


@dataclass(frozen=True, slots=True)
class SharedResources:
    """Resources shared by runs in one event loop: open models, slots, fair turns on the loop, and the step executor.

    The creator closes the step executor, and passes the models' events to `waits`.
    """

    pool: BackendPool
    slots: Slots
    loop_yield: LoopYield
    computer: StepExecutor
    testing: anyio.Lock = field(
        default_factory=anyio.Lock
    )  # runs one fitness test at a time; later runs reuse its result
    waits: ModelWaits = field(default_factory=ModelWaits)


class Launch:
    """A run about to start. Subscribe to `events` before `run`; `runner` exists while it runs."""

    def __init__(
        self,
        prepared: PreparedRun,
        folder: RunFolder,
        clock: Clock,
        *,
        resumed: bool = False,
        retry_failed: bool = False,
        backends: Mapping[str, Backend] | None = None,
    ) -> None:
        """Prepare a launch; `backends` are the caller's own backends, by their names in the settings."""
        self.prepared, self.folder = prepared, folder
        self.scenario, self.settings = prepared.scenario, prepared.settings
        self.clock = clock
        self.events = EventStream()
        self.runner: Runner | None = None
        self.control: RunControl | None = None  # while it runs
        self.begun = anyio.Event()  # set when it can be controlled, or has ended
        self.waits = ModelWaits()
        self.pool = BackendPool(
            clock, self._publish_of_models, backends, self.settings.patience, prepared.chaos, folder.path
        )
        self.journal_statistics: dict[str, int] = {}
        self._resumed, self._retry_failed = resumed, retry_failed

    async def run(
        self, on_ready: Callable[[Runner], None] | None = None, shared: SharedResources | None = None
    ) -> Outcome:
        """Check the models, then run to the end.

        Args:
            on_ready: Called with the runner, which can interrupt or halt the run.
            shared: Resources shared with other runs. The models in it are already open and stay open.

        Returns:
            How the run ended. An error that ended it after its start is in the outcome's `error`, and not raised.

        Raises:
            ConfigurationError: A model is invalid; nothing has started.
            BackendError: A model is unreachable; nothing has started.
            JournalError: The run folder cannot be used.
        """
        self.folder.lock()
        if shared is not None:
            self.pool, self.waits = shared.pool, shared.waits
        try:
            async with self.pool if shared is None else nullcontext():
                try:
                    backends = {name: await self.pool.open(name) for name in self.prepared.models}
                    await self.pool.check(backends)
                    if not self._resumed:
                        self.prepared.check_openings(backends)
                    spent = await self._check_fitness(shared)
                except BaseException:
                    self.folder.remove()  # removes a new folder, so that its name is free again
                    raise
                with History(self.folder.journal) if self._resumed else nullcontext() as history:
                    if history is not None and not history.sound:
                        raise damaged_journal_error(self.folder.journal)
                    durability = self.settings.durability
                    if durability == "power":
                        self.folder.sync()
                    async with Journal(self.folder.journal, self.clock, durability=durability) as journal:
                        try:
                            async with traced(self, backends):
                                outcome = await self._run(journal, history, backends, on_ready, shared, spent)
                            if outcome.error is None:
                                await journal.flush()
                        finally:
                            self.journal_statistics = journal.statistics()
        finally:
            self.begun.set()
            self.events.close()
            self.folder.unlock()
        return outcome

    def _publish_of_models(self, event: Event) -> None:
        """Publish an event of a model. Those of calls, which are far more, need not be heard here."""
        self.waits.hear(event)
        self.events.publish(event)

    async def _run(
        self,
        journal: Journal,
        history: History | None,
        backends: dict[str, Any],
        on_ready: Callable[[Runner], None] | None,
        shared: SharedResources | None,
        spent: Meter,
    ) -> Outcome:
        s = self.settings
        self.runner = Runner(
            seed=s.seed,
            clock=self.clock,
            journal=journal,
            events=self.events,
            concurrency=s.concurrency,
            run_budget=Budget(s.max_tokens_total, s.max_calls, s.max_cost, s.max_seconds),
            conversation_budget=Budget(
                s.conversation_tokens, s.conversation_calls, s.conversation_cost, s.conversation_seconds
            ),
            history=history,
            retry_failed=self._retry_failed,
            slots=None if shared is None else shared.slots,
            loop_yield=None if shared is None else shared.loop_yield,
            computer=None if shared is None else shared.computer,
        )
        self.runner.services.meter.charge(spent)
        self.control = RunControl(self, self.runner, journal, backends)
        self.begun.set()
        try:
            for note in self.control.restore(history) if history is not None else ():
                _log.warning("%s", note, extra={"label": ""})
            if on_ready is not None:
                on_ready(self.runner)
            prepared = self.prepared
            feed = self._exam_feed(journal, history, backends) if prepared.is_adaptive else None
            plans = prepared.plans(backends) if feed is None else ()
            total = prepared.total if feed is None else None
            real = isinstance(self.clock, RealClock)
            converse = prepared.converse
            if prepared.is_dropped is not None:
                converse = self._with_replacements(converse, prepared.is_dropped, history, backends)
            async with listening(self.folder.path, self.control) if real else nullcontext():
                return await self.runner.run(plans, converse, total, feed)
        except BaseException:
            self.runner.halt()  # if it was cancelled before it began, a sweep would wait for its first conversations
            raise
        finally:
            self.control.close()
            self.control = None

    def _with_replacements(
        self,
        converse: Converse[Any],
        is_dropped: Callable[[Any], bool],
        history: History | None,
        backends: dict[str, Backend],
    ) -> Converse[Any]:
        """Return a protocol after which a dropped task's model gets the next later task."""
        prepared, runner = self.prepared, self.runner
        assert prepared.replacements is not None
        assert runner is not None
        for ended in history.ended() if history is not None else ():
            if not ended.failed and is_dropped(ended.result):
                prepared.replacement(ended.number, backends)  # None: the manifest was written before its end

        async def converse_and_replace(conversation: Conversation, task: Any) -> Any:
            result = await converse(conversation, task)
            if is_dropped(result):
                self._replace(conversation.number, runner, backends)
            return result

        return converse_and_replace

    def _replace(self, number: int, runner: Runner, backends: dict[str, Backend]) -> None:
        plan = self.prepared.replacement(number, backends)
        if plan is None:
            return
        assert self.prepared.replacements is not None
        self.folder.change_manifest({"replaced": self.prepared.replacements.counts})
        self.events.publish(ConversationsAdded(self.clock.wall(), "", 1))
        runner.add_replacement(plan)

    def _exam_feed(self, journal: Journal, history: History | None, backends: dict[str, Backend]) -> Feed:
        from .exams import ExamFeed

        feed = ExamFeed(self.prepared, self.folder.path, backends, journal)
        if history is not None:
            feed.restore(history)
        self.events.listen(feed.listen)
        return feed

    async def _check_fitness(self, shared: SharedResources | None) -> Meter:
        """Test the models of a new run in their roles, record the verdicts, and return the usage of the tests."""
        spent = Meter(Budget(), "run", self.clock.now())
        scenario, s = self.scenario, self.settings
        if self._resumed or self.prepared.shard is not None or os.environ.get(FITNESS_SWITCH) == "off":
            return spent
        checks = scenario.fitness_checks(s) if isinstance(scenario, SupportsFitnessChecks) else []
        if not checks:
            return spent
        shared = shared or SharedResources(
            self.pool, Slots(s.concurrency), LoopYield(), StepExecutor(self.clock), waits=self.waits
        )
        async with shared.testing:
            records = [await self._check_model(check, shared, spent) for check in checks]
        if verdicts := [record for record in records if record is not None]:
            write_fitness(self.folder.path, verdicts)
            for warning in fitness_warnings(self.folder.path):
                _log.warning("%s", warning)
        return spent

    async def _check_model(self, check: FitnessCheck, shared: SharedResources, spent: Meter) -> dict[str, str] | None:
        """Return the verdict on a model, from the cache or from a test; None if the test did not finish.

        A model behind a batch API is not tested, because the run would wait for its batches.
        """
        s = self.settings
        if ModelSpec.parse(check.model).is_batched:
            return None
        budget = {name: bound and type(bound)(bound * _TEST_SHARE)
                  for name in ("max_tokens_total", "max_calls", "max_cost", "max_seconds")
                  if (bound := getattr(s, name)) is not None}  # fmt: skip
        # Calls in flight are not yet counted, so with a budget of tokens or cost they are made one after the other.
        if budget.keys() & {"max_tokens_total", "max_cost"}:
            shared = replace(shared, slots=Slots(1))
        circumstances = {"concurrency": s.concurrency, "patience": s.patience, **budget}
        prepared = PreparedRun(check.scenario, check.settings.model_copy(update=circumstances))
        manifest, cache = prepared.manifest(), FitnessCache()
        if (known := cache.load(manifest)) is not None:
            return known
        if not all(budget.values()) or budget.get("max_calls", prepared.total) < prepared.total:
            return None
        name, extra = next(iter(model_labels([check.model]))), {"label": ""}
        _log.warning("testing first if %s is fit as %s (--no-qualify skips this)", name, check.role, extra=extra)
        with TemporaryDirectory(prefix="viva-") as folder:
            launch = Launch(prepared, RunFolder.create(Path(folder) / "run", manifest), self.clock)
            outcome = await launch.run(shared=shared)
            assert launch.runner is not None
            spent.charge(launch.runner.services.meter)
            if outcome.how != "done" or outcome.failed:
                return None
            aggregate = check.scenario.aggregate(launch.folder.manifest, check.scenario.scoring())
            with History(launch.folder.journal) as history:
                for ended in history.ended():
                    aggregate.add(ended.key, ended.result)
        if (fitness := check.read(aggregate.report())) is None:
            return None
        record = fitness_record(check, fitness)
        cache.store(manifest, record)
        return record


def new_run(
    scenario: str | AnyScenario,
    settings: RunSettings,
    path: Path,
    clock: Clock | None = None,
    *,
    backends: Mapping[str, Backend] | None = None,
    files: Mapping[str, bytes] | None = None,
    shard: Shard | None = None,
) -> Launch:
    """Prepare a new run, or a shard of one, in a new folder.

    `files` are the contents of further files in the folder, by name; `backends` the caller's own backends, by their
    names in the settings.

    Raises:
        ConfigurationError: The settings are invalid, or the folder exists.
    """
    prepared = PreparedRun(get_scenario(scenario) if isinstance(scenario, str) else scenario, settings, shard)
    check_prices(settings, prepared.models)
    clock = clock or RealClock()
    if isinstance(settings, ExamSettings) and settings.adaptive is not None and not settings.learns:
        files = {**(files or {}), BANK_FILE: Path(settings.adaptive).read_bytes()}
    for model in prepared.models:
        if model not in (backends or {}):
            build(model, clock)  # reject an invalid name before creating a folder
    return Launch(prepared, RunFolder.create(path, prepared.manifest(), files), clock, backends=backends)


def resumed_run(
    path: Path,
    clock: Clock | None = None,
    *,
    retry_failed: bool = False,
    changes: dict[str, Any] | None = None,
    backends: Mapping[str, Backend] | None = None,
) -> Launch:
    """Prepare to resume a run. `changes` are limited to settings that do not affect results, such as concurrency.

    Raises:
        ConfigurationError: There is no run here, its dataset or prompt pack has changed, or `changes` has other
            settings.
        JournalError: The journal is missing.
    """
    folder = RunFolder.open(path)
    refuse_imported(folder)
    scenario, settings = recorded_settings(folder)
    folder.require_journal()
    changes = changes or {}
    unsupported = changes.keys() - settings.circumstances
    if unsupported:
        raise ConfigurationError(
            f"{', '.join(sorted(unsupported))} cannot change when a run is resumed; start a new run"
        )
    settings = _with_changes(settings, changes)
    shard = Shard.from_manifest(folder.manifest)
    prepared = PreparedRun(scenario, settings, shard, folder.manifest, folder.path / BANK_FILE)
    check_prices(settings, prepared.models)
    check_unchanged(folder, prepared)
    return Launch(prepared, folder, clock or RealClock(), resumed=True, retry_failed=retry_failed, backends=backends)


def continued_run(
    scenario: str | AnyScenario,
    settings: RunSettings,
    path: Path,
    clock: Clock | None = None,
    *,
    retry_failed: bool = False,
    shard: Shard | None = None,
) -> Launch:
    """Resume the run with these settings in this folder, or start it (or this shard of it) if there is none.

    Raises:
        ConfigurationError: The settings are invalid, the folder contains another run (the message names the differing
            fields), or the run's inputs have changed.
    """
    if not (path / "manifest.json").exists():
        return new_run(scenario, settings, path, clock, shard=shard)
    check_settings(RunFolder.open(path), scenario if isinstance(scenario, str) else scenario.name, settings)
    changes = {field: getattr(settings, field) for field in settings.circumstances}
    return resumed_run(path, clock, retry_failed=retry_failed, changes=changes)


def check_settings(folder: RunFolder, name: str, settings: RunSettings) -> None:
    """Check that a folder contains a run of this scenario with these settings.

    Settings that do not affect results (`RunSettings.circumstances`) may differ.

    Raises:
        ConfigurationError: There is no such run; the message gives the old and new value of each differing field.
    """
    scenario, recorded = recorded_settings(folder)
    if scenario.name != name:
        raise ConfigurationError(
            f"{folder.path} already contains a run of {scenario.name}, not of {name}; choose another folder"
        )
    old, new = recorded.model_dump(mode="json"), settings.model_dump(mode="json")
    differences = [f"{key} was {old[key]!r}, is {new[key]!r}" for key in new
                 if key not in settings.circumstances and old[key] != new[key]]  # fmt: skip
    if differences:
        raise ConfigurationError(
            f"{folder.path} already contains a run with other settings: {'; '.join(differences)}; "
            "restore them, or choose another folder with --out"
        )


def check_unchanged(folder: RunFolder, prepared: PreparedRun) -> None:
    """Check that a run's inputs (dataset, prompt pack, model files) are unchanged.

    Fields that earlier versions did not write are ignored.

    Raises:
        ConfigurationError: An input has changed; the message names it.
    """
    current, recorded = prepared.manifest(), folder.manifest
    compared = [key for key in current if key in recorded and key not in ("settings", "versions")]
    differences = [key for key in compared if _has_changed(recorded[key], current[key])]
    if differences:
        files = _file_changes(recorded["files"], current["files"]) if "files" in differences else ""
        raise ConfigurationError(
            f"{folder.path}: cannot resume: changed since the run began: {', '.join(differences)}; "
            f"{files}restore the original files, or start a new run"
        )


def _file_changes(recorded: Mapping[str, str], current: Mapping[str, str]) -> str:
    """Describe which model files have changed, as the beginning of a message."""
    changed = (name for name, record in recorded.items() if current.get(name) != record)
    return "".join(f"{name} was {recorded[name]}, is {current.get(name, 'missing')}; " for name in changed)


def _has_changed(recorded: Any, current: Any) -> bool:
    """Return True if a recorded value differs from the current one; keys that are not recorded are ignored."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        return any(name not in current or _has_changed(value, current[name]) for name, value in recorded.items())
    return bool(recorded != current)


def forked_run(
    source: Path,
    path: Path,
    clock: Clock | None = None,
    *,
    changes: dict[str, Any],
    backends: Mapping[str, Backend] | None = None,
) -> Launch:
    """Prepare a new run that judges the conversations of another run with a different judge.

    `changes` has the judge model, under its role's name or as `evaluator`, and optionally settings that only affect
    judging.

    Raises:
        ConfigurationError: The source is not a run, has no judge, or the changes affect more than judging.
    """
    folder = RunFolder.open(source)
    refuse_imported(folder)
    scenario, settings = recorded_settings(folder)
    roles = scenario.roles_of(settings)
    judge = judge_role(roles)
    if judge is None:
        raise ConfigurationError(f"{source}: this run of {scenario.name} has no judge to replace; start a new run")
    changes = {judge.name if name == "evaluator" else name: value for name, value in changes.items()}
    unsupported = sorted(changes.keys() - {judge.name, "concurrency"} - scenario.judging)
    if unsupported:
        raise ConfigurationError(f"a fork keeps the conversations and cannot change {', '.join(unsupported)}")
    if folder.manifest.get("bank") is not None:
        raise ConfigurationError(
            f"{source}: an adaptive run cannot be forked: its judge's grades chose its items; start a new run with the "
            "other judge"
        )
    run = str(source.resolve())
    if (judge.many or isinstance(judge, PanelMember)) and isinstance(changes.get(judge.name), str):  # a list of judges
        changes[judge.name] = [changes[judge.name]]
    for role in roles:
        if role is not judge and role.replayed:
            replays = [replay_name(run, label, model) for label, model in _models_by_label(role, settings).items()]
            if not isinstance(role, PanelMember):
                changes[role.setting] = replays if role.many else next(iter(replays), None)
            elif role.setting != judge.setting:
                changes[role.setting] = [*changes.get(role.setting, ()), *replays]
    settings = _with_changes(settings, {name: changes.pop(name) for name in ("concurrency",) if name in changes})
    shard, forked = Shard.from_manifest(folder.manifest), settings.model_copy(update=changes)
    try:
        type(settings).model_validate(forked.model_dump())  # a change may contradict a recorded setting
    except ValidationError as error:
        raise ConfigurationError(str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")) from None
    return new_run(scenario, forked, path, clock, backends=backends, shard=shard)


def refuse_imported(folder: RunFolder) -> None:
    """Raise ConfigurationError for a run imported from another tool, because its prompts are unknown."""
    if (imported := folder.manifest.get("imported")) is not None:
        raise ConfigurationError(
            f"{folder.path}: imported ({imported['from']}): its prompts are unknown, so it cannot be resumed, "
            "forked or verified; use `viva score` or `viva report`"
        )


def _with_changes(settings: RunSettings, changes: Mapping[str, Any]) -> RunSettings:
    """Return a copy of the settings with validated changes."""
    copy = settings.model_copy()
    for name, value in changes.items():
        try:
            type(copy).__pydantic_validator__.validate_assignment(copy, name, value)
        except ValidationError as error:
            message = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
            raise ConfigurationError(f"{name}: {message}, found {value!r:.80}") from None
    return copy


def _models_by_label(role: Role, settings: RunSettings) -> dict[str, str]:
    models = role.models(settings)
    if role.many or isinstance(role, PanelMember):
        return model_labels(models)
    return dict.fromkeys([role.name], models[0]) if models else {}


def recorded_settings(folder: RunFolder) -> tuple[AnyScenario, Any]:
    """Validate a run's manifest, and return the recorded scenario and the settings with defaults filled in.

    Raises:
        ConfigurationError: The manifest is invalid; the message names file and field.
    """
    scenario, settings = read_manifest_settings(folder.manifest, folder.path / "manifest.json")
    if folder.manifest["prompts"] is not None:
        settings.remember_prompts(folder.manifest["prompts"])
    folder.manifest["settings"] = settings.model_dump(mode="json")
    return scenario, settings


def scoring_of(scenario: AnyScenario, options: Mapping[str, Any]) -> Scoring:
    """Return scoring options as the scenario's `Scoring` model.

    Raises:
        ConfigurationError: The scenario has no such option, or the value is invalid.
    """
    choices = {name: value for name, value in options.items() if value is not None}
    unknown = [name for name in choices if name not in scenario.scoring.model_fields]
    if unknown:
        raise ConfigurationError(f"{scenario.name} has no option {' or '.join(unknown)}")
    try:
        return scenario.scoring.model_validate(choices)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigurationError(f"{name}: {first['msg']}, found '{choices[name]}'") from None


def recorded_results(folder: RunFolder, options: Mapping[str, Any] | None = None) -> Aggregate:
    """Aggregate a run's results so far, without calling a model."""
    return results_and_damage(folder, options)[0]


def recorded_failures(folder: RunFolder) -> Failures:
    """Return the failed conversations of a run by reason."""
    failures = Failures()
    with History(folder.journal) as history:
        for ended in history.ended():
            if ended.failed:
                failures.add(ended.result)
    return failures


def empty_results(folder: RunFolder, options: Mapping[str, Any] | None = None) -> Aggregate:
    """Return a run's aggregate without results; it includes people's reviews from the run's folder.

    Raises:
        ConfigurationError: The folder or a scoring option is invalid.
    """
    scenario, _ = recorded_settings(folder)
    aggregate = scenario.aggregate(folder.manifest, scoring_of(scenario, options or {}))
    if isinstance(aggregate, SupportsReviews):
        aggregate.beside(folder.path)
    return aggregate


def results_and_damage(folder: RunFolder, options: Mapping[str, Any] | None = None) -> tuple[Aggregate, list[str]]:
    """Return the aggregate of a run's results so far, and the names of damaged records, which are skipped."""
    return add_results(folder.journal, lambda: empty_results(folder, options), add_ended)
