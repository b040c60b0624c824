"""FlexEval scenario: settings of a suite's run, tasks and metrics, and rendering of conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from viva.agents.forms import json_objects
from viva.agents.prompts import PromptPack
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.http_application_mapping import inline_name
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean
from viva.reports.tables import number

from ..contract import Aggregate, Converse, Prepared, Role, Scenario, SupportsPlugins, SupportsStudy
from ..models import model_labels
from ..rendering import (
    Detail,
    Mark,
    RecordedConversation,
    RenderedConversation,
    RenderedTurn,
    ResultSummary,
    Side,
    ToolUse,
    pending_turns,
    render_entry,
    role_sides,
)
from ..run_settings import FilePath, ModelName, ModelNames, RunSettings, absolute_file, context_folder, pack_option
from .conversation_files import DialogTasks, WatchedTasks, expand_paths
from .dialog import Dialog, Message, message_from_record
from .gate import check_baseline
from .metrics import ResolvedMetric, adopt_digests, resolve_metrics
from .rubric import TEMPLATES
from .scales import TESTS_NAME, check_attainable, required_repeats, unbreakable_notes
from .spec import Suite
from .suite_conversation import CANDIDATE, GRADER, INTERACTOR, DialogTask, SuiteProtocol
from .suite_file import SuiteFile, find_suite_file, read_suite
from .suite_report import SuiteAggregate, SuiteScoring

if TYPE_CHECKING:
    from ..study_sections import StaticFigures, SystemStudy

RECORDED_MODEL = "recorded:conversations"  # never called: recorded conversations are scored


class FlexEvalSettings(RunSettings):
    """Suites: custom evaluation of deployed systems and of finished dialogs (Christie et al. 2024)."""

    suite: str = Field(description="Suite file or folder; FILE#NAME if it has several suites.")
    candidate: ModelNames = Field(
        default=[], description="System under test instead of the suite's; several are compared."
    )
    grader: ModelName | None = Field(default=None, description="Model that grades rubrics, instead of the suite's.")
    graders: ModelNames = Field(default=[], description="Several graders; each grades every rubric.")
    interactor: ModelName | None = Field(default=None, description="Model that plays the user, instead of the suite's.")
    repeats: int = Field(default=1, ge=1, le=1000, description="Number of times that each conversation is tested.")
    n: int | None = Field(default=None, ge=1, description="Only test the first N conversations.")
    watched: str | None = Field(
        default=None, description="Dialogs of a watched log, instead of the suite's conversations."
    )
    baseline: str | None = Field(default=None, description="Baseline run folder for the gate.")
    pack: FilePath = pack_option("flexeval")

    examples: ClassVar[dict[str, str]] = {"suite": "suite.yaml"}
    defaults_in_data: ClassVar[frozenset[str]] = frozenset(
        {"candidate", "grader", "graders", "interactor", "repeats", "baseline", "seed", "concurrency"}
        | {"max_cost", "max_calls", "max_tokens_total", "max_seconds"}
    )

    @model_validator(mode="before")
    @classmethod
    def _from_the_suite(cls, data: Any, info: ValidationInfo) -> Any:
        """Take missing settings from the suite. Settings of a manifest are complete and need no file."""
        if not isinstance(data, Mapping) or not isinstance(data.get("suite"), str) or data.keys() >= _RUN_OPTIONS:
            return data
        suite = read_named_suite(data["suite"], context_folder(info)).suite
        is_watched = bool(data.get("watched"))
        defaults: dict[str, Any] = {
            "candidate": [RECORDED_MODEL] if is_watched else system_models(suite),
            "interactor": suite.interactor if suite.complete == "dialog" and not is_watched else None,
            "repeats": 1 if is_watched else suite.repeats,
            "baseline": suite.baseline,
            "seed": suite.seed,
            "concurrency": suite.concurrency,
            "max_cost": suite.budget.cost,
            "max_calls": suite.budget.calls,
            "max_tokens_total": suite.budget.tokens,
            "max_seconds": suite.budget.seconds,
        }
        if not (data.get("grader") or data.get("graders")):
            models = list(grader_models(suite).values())
            defaults |= {"grader": models[0]} if len(models) == 1 else {"graders": models}
        return {**{name: value for name, value in defaults.items() if value is not None}, **data}

    @field_validator("suite")
    @classmethod
    def _suite_by_full_path(cls, name: str, info: ValidationInfo) -> str:
        file, hash_, suite_name = name.partition("#")
        path = find_suite_file(context_folder(info) / file)
        return f"{absolute_file(str(path), context_folder(info))}{hash_}{suite_name}"

    @field_validator("baseline")
    @classmethod
    def _folder_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return None if name is None else str((context_folder(info) / name).absolute())

    @model_validator(mode="after")
    def _somebody_answers(self) -> FlexEvalSettings:
        if not self.candidate:
            raise ValueError(
                "system: the suite names no system under test; add `system: MODEL`, give --candidate MODEL, or set "
                "`complete: none` to score the recorded conversations"
            )
        return self


_RUN_OPTIONS = frozenset({"suite", "candidate", "grader", "graders", "interactor", "repeats", "baseline", "pack"})


def read_named_suite(name: str, folder: Path = Path()) -> SuiteFile:
    """Read the suite of `FILE` or `FILE#NAME`; a folder stands for its suite file."""
    file, _, suite_name = name.partition("#")
    return read_suite(folder / file, suite_name or None)


def system_models(suite: Suite) -> list[str]:
    """Return the names of the models under test."""
    if suite.complete == "none":
        return [RECORDED_MODEL]
    if isinstance(suite.system, str):
        return [suite.system]
    if "url" in suite.system:
        return [with_label(inline_name(suite.system), "application")]
    return [
        with_label(system if isinstance(system, str) else inline_name(system), label)
        for label, system in suite.system.items()
    ]


def grader_models(suite: Suite) -> dict[str, str]:
    """Return the graders' models by label."""
    if suite.grader is None or isinstance(suite.grader, str):
        return {} if suite.grader is None else {"grader": suite.grader}
    return {label: with_label(model, label) for label, model in suite.grader.items()}


def with_label(model: str, label: str) -> str:
    """Return the model's name with this label, unless it already has one."""
    if ModelSpec.parse(model).options.get("label") is not None:
        return model
    return f"{model}{'&' if ModelSpec.parse(model).options else '?'}label={label}"


_MIN_ANSWER = 40  # maximum characters of a value on a mark


def render_conversation(recorded: RecordedConversation, sides: Mapping[str, Side]) -> RenderedConversation:
    """Render the dialog, one turn per message, followed by the graders' answers."""
    task = recorded.task if isinstance(recorded.task, Mapping) else {}
    result = recorded.result if isinstance(recorded.result, Mapping) else {}
    calls = {role: [entry for entry in recorded.entries if isinstance(entry, Exchange) and entry.role == role]
             for role in (CANDIDATE, INTERACTOR)}  # fmt: skip
    turns: list[RenderedTurn] = []
    dialog = None if "messages" not in task else _complete_dialog(Dialog.from_record(task), result)
    if dialog is not None:
        turns = [
            _render_message(message, calls, sides)
            for message in dialog.messages
            if message.role != "tool" or not message.call_id
        ]
        turns = [turn for turn in turns if turn.text or turn.tools or turn.call is not None]
        _add_marks(dialog, turns, result)
    if "said" not in result:  # failed or running: append the system's answers so far
        turns += [render_entry(call, sides) for call in calls[CANDIDATE] if call.completion is not None]
    turns += [_render_grader(entry, sides) for entry in recorded.entries
              if isinstance(entry, Exchange) and entry.role not in calls]  # fmt: skip
    marks = _unit_marks(result, "conversation").get(0, [])
    return RenderedConversation([*turns, *pending_turns(recorded, sides)], marks)


def summarize_result(result: Mapping[str, Any]) -> ResultSummary:
    """Summarize a test: 100 if it passed, 0 if it failed, and the mean of each metric."""
    if "metrics" not in result:
        return ResultSummary(end=f"{result['stopped']['by']}: {result['stopped']['reason']}")
    aspects: dict[str, float] = {}
    for name, metric in result["metrics"].items():
        numbers = [float(value) for _, value in map(_unit_value, metric["values"]) if isinstance(value, int | float)]
        if numbers:
            aspects[name] = sum(numbers) / len(numbers)
    errors = sum(len(metric["errors"]) for metric in result["metrics"].values())
    passed = result.get("passed")
    end = {True: "passed", False: "failed", None: "measured"}[passed]
    if errors:
        end += f", {errors} value{'s' * (errors != 1)} missing"
    return ResultSummary(None if passed is None else 100.0 * passed, end, aspects, errors)


def _complete_dialog(task: Dialog, result: Mapping[str, Any]) -> Dialog:
    if "said" not in result:
        return task
    messages = [message_from_record(message) for message in result["said"]]
    return Dialog.from_messages(task.id, [*task.messages[: result["kept"]], *messages], task.metadata)


def _render_message(message: Message, calls: Mapping[str, list[Exchange]], sides: Mapping[str, Side]) -> RenderedTurn:
    side: Side = {"user": "asking", "assistant": "given", "tool": "tool"}.get(message.role, "given")  # type: ignore[assignment]
    role = (CANDIDATE if message.role == "assistant" else INTERACTOR) if message.new else ""
    turn = RenderedTurn(message.role, message.content, sides.get(role, side))
    turn.tools = [ToolUse(call.name, call.arguments, call.result) for call in message.tool_calls]
    if role and calls[role]:
        turn.call = calls[role].pop(0)
        turn.speaker = role
    turn.round = message.index  # index of the message, until marks are added
    return turn


def _add_marks(dialog: Dialog, turns: list[RenderedTurn], result: Mapping[str, Any]) -> None:
    """Add each unit's marks to the rendered message that contains it, and a turn's to its last message."""
    by_message = {turn.round: turn for turn in turns}
    for turn in turns:
        turn.round = None
    message_of_unit = {
        "turn": {turn.index: turn.messages[-1].index for turn in dialog.turns},
        "message": {message.index: message.index for message in dialog.messages},
        "tool_call": {call.index: call.message for call in dialog.tool_calls},
    }
    for level, messages in message_of_unit.items():
        for unit, marks in _unit_marks(result, level).items():
            index = messages.get(unit)
            while index is not None and index >= 0 and index not in by_message:
                index -= 1  # a tool's result is shown with its call
            if index in by_message:
                by_message[index].marks += marks


def _unit_marks(result: Mapping[str, Any], level: str) -> dict[int, list[Mark]]:
    marks: dict[int, list[Mark]] = {}
    for name, metric in result.get("metrics", {}).items():
        if metric["level"] != level:
            continue
        for unit, value in metric["values"]:
            marks.setdefault(unit, []).append(_value_mark(name, value))
        for unit, kind, message, *_ in metric["errors"]:
            marks.setdefault(unit or 0, []).append(Mark(name, "no value", 0, f"{kind}: {message}"))
    return marks


def _value_mark(name: str, value: Any) -> Mark:
    if isinstance(value, Mapping) and "choice" in value:
        return Mark(name, f"{value['choice']} ({number(value['score'], 2)})", None, value["reasoning"])
    if isinstance(value, Mapping):
        text = ", ".join(f"{key} {_format_value(part)}" for key, part in value.items())
        return Mark(name, text if len(text) <= _MIN_ANSWER else f"{len(value)} values", None, text)
    return Mark(name, _format_value(value))


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 2)
    text = "–" if value is None else str(value)
    return text if len(text) <= _MIN_ANSWER else f"{text[: _MIN_ANSWER - 1]}…"


def _render_grader(call: Exchange, sides: Mapping[str, Side]) -> RenderedTurn:
    """Render a grader's answer as its reasoning, with the raw text folded."""
    turn = render_entry(call, sides)
    turn.side = "judging"
    for _, value in json_objects(turn.text):
        if isinstance(value.get("reasoning"), str) and "choice" in value:
            turn.details.append(Detail("raw answer", turn.text))
            turn.text = value["reasoning"]
            turn.marks.append(Mark("choice", _format_value(value["choice"])))
            break
    return turn


def _unit_value(pair: list[Any]) -> tuple[int, Any]:
    unit, value = pair
    return unit, value["score"] if isinstance(value, Mapping) and "choice" in value else value


@dataclass(frozen=True, slots=True)
class _GraderRole(Role):
    """Role of one of several graders; `index` is its position in the setting `graders`."""

    index: int = 0

    def models(self, settings: RunSettings) -> list[str]:
        return [settings.graders[self.index]]  # type: ignore[attr-defined]


class FlexEval(Scenario[FlexEvalSettings, DialogTask], SupportsPlugins, SupportsStudy):
    """Scenario of suites (Christie et al. 2024): functions and rubrics over conversations, with release thresholds."""

    name = "flexeval"
    summary = "Tests a chatbot with a suite of conversations, metrics and thresholds (FlexEval)."
    plural = "suites"
    data = "suite"
    settings = FlexEvalSettings
    roles = (Role(CANDIDATE, many=True), Role(GRADER, judge=True), Role(INTERACTOR))
    templates = TEMPLATES
    scoring = SuiteScoring

    def roles_of(self, settings: FlexEvalSettings) -> tuple[Role, ...]:
        candidate, grader, interactor = self.roles
        roles = [candidate]
        if settings.graders:
            labels = model_labels(settings.graders)
            roles += [_GraderRole(f"{GRADER}-{label}", index=index) for index, label in enumerate(labels)]
        elif settings.grader is not None:
            roles.append(grader)
        return (*roles, *([interactor] if settings.interactor is not None else []))

    def prepare(self, settings: FlexEvalSettings) -> Prepared[DialogTask]:
        file = read_named_suite(settings.suite)
        suite, source = file.suite, settings.suite
        if settings.watched is not None:
            suite = suite.model_copy(update={"complete": "none", "scored": "new"})
        graders = self._graders(settings, suite)
        metrics = resolve_metrics(suite, list(graders), source)
        for metric in metrics:
            if not metric.by_function and not graders:
                raise ConfigurationError(
                    f"{source}: metric '{metric.name}' uses a rubric, but there is no grader; add `grader: MODEL` to "
                    "the suite, or give --grader MODEL"
                )
        check_thresholds(suite, metrics, source)
        repeats = settings.repeats if settings.watched is None else None
        check_attainable(suite, metrics, source, repeats=repeats)
        if settings.baseline is not None:
            check_baseline(Path(settings.baseline))
        if suite.complete != "dialog" and settings.interactor is not None:
            raise ConfigurationError("interactor: only used with `complete: dialog`; set `complete` in the suite")
        tasks: DialogTasks | WatchedTasks
        if settings.watched is not None:
            tasks = WatchedTasks(Path(settings.watched))
        else:
            tasks = DialogTasks(_conversation_paths(suite, file.folder, source), settings.n)
        notes = [*file.notes, *unbreakable_notes(suite, metrics)]
        if repeats is not None and (needed := required_repeats(suite)) > repeats:
            notes.append(f"pass^{needed} needs {needed} repeats and fails without them; give --repeats {needed}")
        if settings.baseline is None and any(
            threshold.fall is not None or threshold.rise is not None for threshold in suite.thresholds
        ):
            notes.append("thresholds with `fall` or `rise` need a baseline and fail without one; give --baseline RUN")
        if settings.baseline is not None and all(
            threshold.fall is threshold.rise is None for threshold in suite.thresholds
        ):
            notes.append(f"baseline {settings.baseline}: no threshold has `fall` or `rise`, so nothing is compared")
        if tasks.unreadable:
            notes.append(f"{tasks.unreadable} of {len(tasks)} conversations are unreadable and count as failed")
        suite_record = suite.model_dump(mode="json", exclude_none=True)
        records = {
            "dataset": tasks.to_record(suite.name),
            "suite": suite_record,
            "metrics": [metric.to_manifest() for metric in metrics],
            "graders": graders,
        }
        return Prepared(tasks, records, notes)

    def _graders(self, settings: FlexEvalSettings, suite: Suite) -> dict[str, str]:
        """Return the role of each grader by label."""
        if settings.graders:
            return {label: f"{GRADER}-{label}" for label in model_labels(settings.graders)}
        if settings.grader is None:
            return {}
        labels = list(grader_models(suite))
        return {labels[0] if len(labels) == 1 else GRADER: GRADER}

    def adopt(self, records: dict[str, Any], manifest: Mapping[str, Any]) -> None:
        adopt_digests(records["metrics"], manifest["metrics"])

    def protocol(
        self, settings: FlexEvalSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[DialogTask]:
        assert pack is not None
        suite = Suite.model_validate(records["suite"])
        metrics = [ResolvedMetric.from_manifest(metric) for metric in records["metrics"]]
        return SuiteProtocol(suite, metrics, records["graders"], pack, plays=settings.interactor is not None).run

    def plugins(self) -> dict[str, dict[str, str]]:
        from .builtin_metrics import BUILTIN
        from .rubric import BUILTIN_RUBRICS, builtin_rubric

        metrics = {name: function.__doc__ or "" for name, function in BUILTIN.items()}
        return {"metrics": metrics, "rubrics": {name: builtin_rubric(name).notes or "" for name in BUILTIN_RUBRICS}}

    def task(self, record: Any) -> DialogTask:
        return DialogTask.from_record(record)

    def task_payload(self, task: DialogTask) -> Any:
        return task.dialog

    def study(self, lent: StaticFigures | None = None) -> SystemStudy:
        from .release_study import FlexEvalStudy

        return FlexEvalStudy(self, lent)

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        return render_conversation(recorded, role_sides(self.roles))

    def summary_of(self, settings: FlexEvalSettings) -> Callable[[Any], ResultSummary]:
        return summarize_result

    def aggregate(self, manifest: dict[str, Any], scoring: SuiteScoring) -> Aggregate:
        return SuiteAggregate(manifest, scoring)


def _conversation_paths(suite: Suite, folder: Path, source: str) -> list[Path]:
    try:
        return expand_paths(suite.conversations, folder)
    except DatasetError as error:
        raise ConfigurationError(f"{source}: conversations: {error}") from None


def check_thresholds(suite: Suite, metrics: list[ResolvedMetric], source: str) -> None:
    """Check that each threshold names an existing metric."""
    names = {metric.name for metric in metrics}
    for index, threshold in enumerate(suite.thresholds):
        name = threshold.metric
        if name not in names and name.rpartition(".")[0] not in names and name != TESTS_NAME:
            near = did_you_mean(name, [*sorted(names), TESTS_NAME], "known")
            raise ConfigurationError(
                f"{source}: thresholds.{index}: unknown metric '{name}'{near} (all metrics with `passes`)"
            )


SCENARIO = FlexEval()
