"""The scenario contract: the base class of scenarios and the types that its methods take and return.

A scenario is a folder with a subclass of `Scenario`, registered under the entry-point group `viva.scenarios`, or a
single file. It states its settings, roles and tasks, runs one conversation, and aggregates results. Plans, keys,
manifests, forks, resumes and transcripts are the same for all scenarios (`orchestration`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from viva.agents.prompts import PackTemplates, PromptPack
from viva.data.items import Item
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Message
from viva.engine.run_folder import RunFolder

from .rendering import RecordedConversation, RenderedConversation, ResultSummary, render_plain, summary_function
from .run_settings import RunSettings

if TYPE_CHECKING:
    from viva.scoring.evidence.observations import Observations
    from viva.scoring.pairwise import PairVerdicts

    from .fitness import FitnessCheck
    from .study_sections import StaticFigures, SystemStudy

CHARACTERS_PER_TOKEN = 4
SCORE = "score"
# The smallest and the largest value of each measure; infinite if there is no limit.
Ranges: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(slots=True)
class UsageForecast:
    """Numbers of calls, input tokens and output tokens; `a + b` adds forecasts, `a * n` repeats one."""

    calls: float = 0.0
    prompt: float = 0.0
    completion: float = 0.0

    def __add__(self, other: UsageForecast) -> UsageForecast:
        return UsageForecast(self.calls + other.calls, self.prompt + other.prompt, self.completion + other.completion)

    def __mul__(self, times: float) -> UsageForecast:
        return UsageForecast(self.calls * times, self.prompt * times, self.completion * times)


def estimate_tokens(text: str) -> float:
    """Estimate how many tokens a text has."""
    return len(text) / CHARACTERS_PER_TOKEN


@dataclass(slots=True, frozen=True)
class JudgeGrade:
    """A grade of a judge.

    `key` is the conversation's key; `round` counts from 1 if rounds are graded. `cluster` names what dependent answers
    share, usually their item. `score` is None if the judge's answer could not be read. `known` maps names to numbers
    that are known without a judge. `question` and `answer` are the texts that human graders read, if known beforehand.
    """

    key: str
    candidate: str
    cluster: str
    score: float | None
    round: int | None = None
    known: Mapping[str, float] = field(default_factory=dict)
    question: str = ""
    answer: str = ""


@dataclass(slots=True, frozen=True)
class GradeReader:
    """The grading scale of a judge: from `low` to `high`, or pass (1) and fail (0).

    `answers` returns the graded answers of a recorded result. Its arguments are the conversation's key, the candidate's
    label, the task and the recorded result.
    """

    low: float
    high: float
    answers: Callable[[str, str, Any, Any], Iterable[JudgeGrade]]
    passes: bool = False


@dataclass(slots=True, frozen=True)
class ImportOptions:
    """User options of an import.

    `dataset` is the benchmark of the items; if it is None, the items come from the file. `models` maps roles to names
    of models; these names take precedence over those in the file.
    """

    dataset: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ImportedCall:
    """A recorded answer of a role."""

    role: str
    completion: Completion


@dataclass(slots=True, frozen=True)
class ImportedConversation:
    """A finished conversation about a task.

    `result` is what the scenario's protocol would have recorded. It names the compared model by the label that the
    model has in the settings.
    """

    task: str
    item: Any
    calls: list[ImportedCall]
    result: Any


@dataclass(slots=True)
class ImportedRun:
    """A run to be created from a file of another tool.

    `settings` are the scenario's settings without the data. The data is `source`, the benchmark that the user has
    named. If `source` is None, the data is made of `items` and called `dataset`. If tasks are no items, `lines` are the
    data file's lines instead, and `records` has the manifest's `dataset`. `records` are further fields of the manifest;
    `facts` are kept in the manifest for human readers. `notes` are what a person should know about the run, one
    sentence each.
    """

    settings: dict[str, Any]
    dataset: str
    items: list[Item]
    conversations: Iterable[ImportedConversation]
    source: str | None = None
    records: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lines: bytes = b""


@dataclass(slots=True, frozen=True)
class ImportFormat:
    """A file format.

    `read` reads a whole file; its `DatasetError` names the wrong line or entry.
    """

    name: str
    summary: str
    read: Callable[[Path, ImportOptions], ImportedRun]


@dataclass(slots=True, frozen=True)
class TurnScores:
    """Scores by criterion, None if unscored; `turn` counts from 1 and is None for the whole conversation."""

    turn: int | None
    scores: dict[str, float | None]


@dataclass(slots=True, frozen=True)
class RecordedReply:
    """A reply of the compared model, with the last question to that model; `number` counts the model's calls from 0."""

    label: str
    item: str
    number: int
    question: str
    reply: str


@dataclass(slots=True)
class ReviewOutcome:
    """The result of applying a review sheet: corrections `added`, corrections already `known`, and notes."""

    added: int
    known: int
    notes: list[str] = field(default_factory=list)


class ReviewSheet(Protocol):
    """A run's graded outputs as a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to fill in."""

    def write(self, run: RunFolder, file: Path) -> int:
        """Write the sheet and return the number of outputs in it.

        Raises:
            ConfigurationError: Nothing in this run was graded, or the file cannot be written.
        """

    def apply(self, run: RunFolder, file: Path) -> ReviewOutcome:
        """Apply the corrections of a sheet.

        Raises:
            ConfigurationError: The run cannot be corrected.
            DatasetError: The file is no such sheet; the message names line and column.
        """


@dataclass(frozen=True, slots=True)
class Validation:
    """The settings and the test of `viva validate`.

    `decided` are the settings that validation sets; `unused` are the settings that have no effect during validation.
    `right` returns True if a result solves its task.
    """

    decided: dict[str, Any]
    unused: tuple[str, ...]
    right: Callable[[Any], bool]


@dataclass(slots=True, frozen=True)
class RankedCandidate:
    """A candidate's figure with the ends of its 95% interval (None if it has none).

    `suspected` candidates may be contaminated, and `remark` says why. `verdict` is a word such as `no_sign` or
    `too_few`, empty if nothing was tested.
    """

    candidate: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    suspected: bool = False
    remark: str = ""
    verdict: str = ""


@dataclass(slots=True)
class Findings:
    """The conclusions about one set of items: sentences, the most decisive first, and a ranking by `measure`.

    `about` names the items (one dataset or several). Figures of different items or scales are separate findings, so
    that no chart or ranking mixes them. `scenario` names the scenario. `rule` states in a sentence what a claim
    requires. `terms` has the meaning of each verdict that the ranking may have.
    """

    sentences: list[str]
    measure: str = ""
    standings: list[RankedCandidate] = field(default_factory=list)
    about: str = ""
    scenario: str = ""
    rule: str = ""
    terms: dict[str, str] = field(default_factory=dict)


S = TypeVar("S", bound=RunSettings)
Table = tuple[str, list[str], list[list[str]]]


class Task(Protocol):
    """The subject of one conversation: anything with an id that can be written to a record."""

    @property
    def id(self) -> str:
        """An id unique among the run's tasks, and the same in every run."""

    def to_record(self) -> Any:
        """Return plain JSON data, from which `Scenario.task` makes the task again."""


T = TypeVar("T", bound=Task)
T_co = TypeVar("T_co", bound=Task, covariant=True)
Converse = Callable[[Conversation, T], Awaitable[Any]]


class Tasks(Protocol[T_co]):
    """The tasks of a run, read lazily, always in the same order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...


@dataclass(frozen=True, slots=True)
class Role:
    """A part that a model plays; the setting of the same name holds its model.

    Attributes:
        many: The setting holds several models, which are compared. Each model has its own conversations or, if several
            roles are compared, each combination of their models.
        judge: A fork may exchange this model, because its answers do not affect the requests to other models.
        replayed: A fork replays this model's answers. If this is False, a fork calls the model again.
        pool: The setting that names the role's models (default: the setting with the role's name). If compared roles
            share a pool, every two models of the pool meet, in both assignments.
        panel: The setting holds several models that all take part in each conversation, each in a role of its own
            (`panel_members`).
    """

    name: str
    many: bool = False
    judge: bool = False
    replayed: bool = True
    pool: str = ""
    panel: bool = False

    @property
    def setting(self) -> str:
        """The setting that names the role's models."""
        return self.pool or self.name

    def models(self, settings: RunSettings) -> list[str]:
        """Return the names of the role's models in these settings; empty if the setting is empty."""
        names = getattr(settings, self.setting)
        if self.many:
            return list(names)
        return [] if names is None else [names]


@dataclass(frozen=True, slots=True)
class PanelMember(Role):
    """The role of the model at index `position` of a list setting, the pool."""

    position: int = 0

    def models(self, settings: RunSettings) -> list[str]:
        return list(getattr(settings, self.setting))[self.position : self.position + 1]


def panel_members(setting: str, models: Sequence[str], first: int = 0) -> tuple[PanelMember, ...]:
    """Return a role `SETTING-N` for each model of a list setting, from index `first` on; N counts from 1."""
    return tuple(
        PanelMember(f"{setting}-{position + 1}", pool=setting, position=position)
        for position in range(first, len(models))
    )


@dataclass(slots=True)
class Prepared(Generic[T]):
    """Checked settings and opened data.

    `records` are fields of the run's manifest: `dataset` (with `name`, `digest` and `chosen`), and everything else that
    `protocol` needs besides the settings and the prompt pack. `notes` are what a person should know before the run, a
    sentence each. `later` are the tasks that may replace dropped ones, in order.
    """

    tasks: Tasks[T]
    records: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    later: Iterable[T] = ()


class Scoring(BaseModel):
    """Options for scoring recorded results.

    The command line makes its options from the fields. A field that is None has the value in the run's settings.
    """

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the options of `NAME,SWITCH,…`: a scorer, and switches such as `no-decay` or `early-stop`.

        Raises:
            ConfigurationError: There is no such scorer or switch; the message lists the known ones.
        """
        name, *words = (word.strip() for word in text.split(","))
        if "scorer" not in cls.model_fields:
            raise ConfigurationError(f"--scorer {text}: this scenario has no scorer to choose")
        switches = [field for field in cls.model_fields if field != "scorer"]
        options: dict[str, Any] = {"scorer": name}
        for word in words:
            field = word.removeprefix("no-").replace("-", "_")
            if field not in switches:
                known = ", ".join(field.replace("_", "-") for field in switches)
                raise ConfigurationError(f"--scorer {text}: unknown switch '{word}'; known, also with 'no-': {known}")
            options[field] = not word.startswith("no-")
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"]
            raise ConfigurationError(f"--scorer {text}: {message}, found '{name}'") from None

    def note(self, report: Mapping[str, Any]) -> str | None:
        """Return what a reader of the report must know about these options, or None."""
        return None


class Aggregate(Protocol):
    """The base of a report: it takes results one by one; their order must not affect the report."""

    def add(self, key: str, result: Any) -> None:
        """Add a conversation's recorded result."""

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        """Add a failed conversation, with its error's record."""

    def headline(self) -> str:
        """Return the score so far in a few words, for the progress line."""

    def report(self) -> dict[str, Any]:
        """Return the report as plain data; the same results give the same report, byte for byte."""

    def tables(self) -> list[Table]:
        """Return the report as titled tables: title, header, rows."""


@runtime_checkable
class SupportsNotes(Protocol):
    """An aggregate with notes about results that may be incomplete; they are printed after its tables."""

    def notes(self) -> list[str]:
        """Return the notes, one sentence each."""


@runtime_checkable
class SupportsReviews(Protocol):
    """An aggregate that also uses a file that people have put into the run folder."""

    def beside(self, folder: Path) -> None:
        """Read the file; this is called before the first result is added."""


@runtime_checkable
class SupportsRemarks(Protocol):
    """An aggregate with sentences that a reader must see before its tables."""

    def remarks(self) -> list[str]:
        """Return the sentences."""


class Scenario(ABC, Generic[S, T]):
    """The base class of scenarios; abstract methods are required, all others have defaults.

    Optional features are the `Supports…` protocols below. A subclass offers a feature by having its method or
    attribute; it need not name the protocol as a base.

    Attributes:
        roles: All roles, in the order in which reports name them.
        templates: The templates of its prompt packs; None if it has no packs.
        ranges: The smallest and the largest value of each figure in a result's summary, by name.
        unit: The unit of its `score`.
        rate: Each `score` is one end of its range, right or wrong, so means have the interval of a proportion.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    settings: type[S]
    roles: ClassVar[tuple[Role, ...]]
    scoring: ClassVar[type[Scoring]] = Scoring
    templates: ClassVar[PackTemplates | None] = None
    ranges: ClassVar[Ranges] = {SCORE: (0.0, 100.0)}
    unit: ClassVar[str] = ""
    rate: ClassVar[bool] = False
    # Settings that a fork may change besides the judge's model.
    judging: ClassVar[frozenset[str]] = frozenset()
    # `data` is the setting that names the data; `plural` names runs in sweep files and on pages (default: `name`).
    data: ClassVar[str] = "dataset"
    plural: ClassVar[str] = ""

    # -- required ------------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, settings: S) -> Prepared[T]:
        """Open the data and check everything that can be checked without a model.

        Raises:
            ConfigurationError: Something is wrong; the message names it.
        """

    def adopt(self, records: dict[str, Any], manifest: Mapping[str, Any]) -> None:
        """Replace values of `records` by those of a recorded manifest that mean the same, before both are compared."""

    @abstractmethod
    def protocol(self, settings: S, pack: PromptPack | None, records: Mapping[str, Any]) -> Converse[T]:
        """Return the coroutine function that runs one conversation; its return value is recorded.

        The function is made from a manifest's contents and nothing else, so that a recorded conversation can be
        replayed.
        """

    @abstractmethod
    def task(self, record: Any) -> T:
        """Return the task of a record."""

    @abstractmethod
    def aggregate(self, manifest: dict[str, Any], scoring: Any) -> Aggregate:
        """Return an empty aggregate for a run; `scoring` is an instance of the class attribute `scoring`."""

    # -- with defaults -------------------------------------------------------------------------------------------

    def roles_of(self, settings: S) -> tuple[Role, ...]:
        """Return the roles that are played under these settings."""
        return self.roles

    def open_pack(self, settings: S) -> PromptPack | None:
        """Return the prompt pack that the setting `pack` names; for a recorded run, a shipped pack as it was recorded.

        Raises:
            ConfigurationError: The pack does not exist or does not fit the templates.
        """
        if self.templates is None:
            return None
        return self.templates.open(getattr(settings, "pack", self.name), settings.recorded_prompts)

    def result_value(self, result: Any) -> Any:
        """Return the value of a recorded result, for programs that read results."""
        return result

    def task_payload(self, task: T) -> Any:
        """Return the payload of a task, for programs that read results."""
        return task

    def score_of(self, settings: S) -> Callable[[Any], float | None] | None:
        """Return a function from a result to its score, for early-stopping rules; None if results have no score."""
        return None

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        """Return a conversation as people read it. Default: one turn for each entry of its transcript."""
        return render_plain(recorded, self.roles)

    def summary_of(self, settings: S) -> Callable[[Any], ResultSummary]:
        """Return a function from a recorded result to its summary line. Default: its score alone."""
        return summary_function(self.score_of(settings))


@runtime_checkable
class SupportsForecast(Protocol):
    """A scenario that can estimate its maximum usage before a run."""

    def forecast(self, settings: Any, prepared: Prepared[Any], pack: PromptPack | None) -> dict[str, UsageForecast]:
        """Return the maximum numbers of calls and tokens of each role for all tasks of one model.

        The entry `ROLE, one by one` is for models that need one request for each text that they read. Entries with
        other words after the comma, `ROLE, PART` and `ROLE, PART, one by one`, say what parts of the total are for.
        """


@runtime_checkable
class SupportsExams(Protocol):
    """A scenario whose items adaptive exams may choose; its settings extend `ExamSettings`."""

    def exam_score(self, settings: Any) -> Callable[[Any], float | None]:
        """Return a function from a result to its score from 0 to 1, on which the item bank is fitted; None without."""


@runtime_checkable
class SupportsOpenings(Protocol):
    """A scenario that knows its first prompts before a run; a context too short for one of them is an error at once."""

    def openings(self, settings: Any, task: Any, pack: PromptPack | None) -> dict[str, list[Message]]:
        """Return each role's first prompt for a task, without the parts that other models will write."""


@runtime_checkable
class SupportsFitnessChecks(Protocol):
    """A scenario that has its models tested before a run: is each of them fit for its role?"""

    def fitness_checks(self, settings: Any) -> list[FitnessCheck]:
        """Return the tests; a model that was tested before with the same prompts is not tested again."""


@runtime_checkable
class SupportsGrading(Protocol):
    """A scenario whose judge's grades differ from the scores of `score_of`."""

    def grading(self, settings: Any, *, by_round: bool = False) -> GradeReader | None:
        """Return the reader of a judge's grades, for comparison with human grades; None if there are none.

        Whole conversations are graded or, with `by_round`, rounds.
        """


@runtime_checkable
class SupportsTurnScores(Protocol):
    """A scenario with scores by turn or criterion, for comparison with human ratings."""

    def turn_scores(self, settings: Any) -> Callable[[Any], list[TurnScores]]:
        """Return a function from a result to its scores."""


@runtime_checkable
class SupportsPairVerdicts(Protocol):
    """A scenario whose judges compare pairs of answers."""

    def pair_verdicts(self, result: Any) -> PairVerdicts | None:
        """Return the verdicts of a recorded result on a pair, in both orders; None if it has none."""


@runtime_checkable
class SupportsStudy(Protocol):
    """A scenario with its own sections in studies of several runs."""

    def study(self, lent: StaticFigures | None = None) -> SystemStudy:
        """Return the study; it may show `lent`, static figures of another scenario, beside its own figures."""


@runtime_checkable
class SupportsImports(Protocol):
    """A scenario that can import results of other tools (`viva import`)."""

    def imports(self) -> tuple[ImportFormat, ...]:
        """Return the formats."""


@runtime_checkable
class SupportsPlugins(Protocol):
    """A scenario whose settings and files name parts that `viva list` shows."""

    def plugins(self) -> Mapping[str, Mapping[str, str]]:
        """Return the parts by kind (`scorers`, `metrics`): names with one-line descriptions."""


@runtime_checkable
class SupportsTaskDetection(Protocol):
    """A scenario that recognizes its own task files, if the user does not name a scenario."""

    def accepts_record(self, raw: Mapping[str, Any]) -> bool:
        """Return True if this record looks like one of its tasks."""


@runtime_checkable
class SupportsKnownVerdicts(Protocol):
    """A scenario whose data say how a judge ought to answer."""

    def known_verdict(self, task: Any, messages: Sequence[Message]) -> float | str | None:
        """Return the right score or label for a judge's question about a task; None if unknown."""


@runtime_checkable
class SupportsClusters(Protocol):
    """A scenario whose tasks are not all independent."""

    def cluster_of(self, result: Any) -> str:
        """Return the name of the cluster to which a result belongs; empty if it belongs to none."""


@runtime_checkable
class SupportsObservations(Protocol):
    """A scenario whose results say something about contamination."""

    def observe(self, results: Iterable[Any]) -> Observations:
        """Return what one candidate's results say, in any order; columns that they do not fill are None."""

    def gathers_evidence(self, manifest: Mapping[str, Any]) -> bool:
        """Return whether a run with this manifest was made for the contamination court."""


@runtime_checkable
class SupportsItems(Protocol):
    """A scenario whose models write items of a new dataset (`viva export --format items`)."""

    def item_of(self, result: Any) -> Item | None:
        """Return the item that a recorded result adds to the dataset; None if it adds none."""


@runtime_checkable
class SupportsRandomOrder(Protocol):
    """A scenario that can shuffle its tasks by the seed, as early-stopping rules require."""

    def in_random_order(self, cluster: str | None) -> dict[str, Any]:
        """Return the settings for a random order; tasks of one cluster stay together."""


@runtime_checkable
class SupportsTaskCount(Protocol):
    """A scenario whose number of tasks differs from the count in its manifest's `dataset`."""

    def tasks_in(self, manifest: Mapping[str, Any]) -> int:
        """Return the number of tasks of a run, from its manifest."""


@runtime_checkable
class SupportsProjection(Protocol):
    """A scenario whose usage is not proportional to the number of compared models."""

    def usage_factors(self, settings: Any, models: int) -> Mapping[str, float] | None:
        """Return by role how many times as much a run with so many models would use as this one; None if unknown."""


@runtime_checkable
class SupportsModelOrder(Protocol):
    """A scenario that may run its conversations model by model instead of task by task."""

    by_model: bool


@runtime_checkable
class SupportsManifest(Protocol):
    """A scenario with further typed fields in its manifest."""

    manifest: type[BaseModel]


@runtime_checkable
class SupportsReplacement(Protocol):
    """A scenario that may drop a task after a model's answer; the model then gets the next of `Prepared.later`."""

    def dropped(self, settings: Any) -> Callable[[Any], bool] | None:
        """Return a function that is true for the results of dropped tasks; None if dropped tasks are not replaced."""


@runtime_checkable
class SupportsReviewSheet(Protocol):
    """A scenario whose graded outputs people review in a table (`viva review`)."""

    review: ReviewSheet


@runtime_checkable
class SupportsValidation(Protocol):
    """A scenario that can tell which items a model gets right (`viva validate`)."""

    validation: Validation


def count_tasks(scenario: Scenario[Any, Any], manifest: Mapping[str, Any]) -> int:
    """Return the number of tasks of a run, from its manifest; without those that replace dropped ones."""
    tasks = scenario.tasks_in(manifest) if isinstance(scenario, SupportsTaskCount) else manifest["dataset"]["chosen"]
    return int(tasks) + sum(int(added["tasks"]) for added in manifest.get("added", ()))


def study_of(scenario: Scenario[Any, Any], lent: StaticFigures | None = None) -> SystemStudy:
    """Return the study of a scenario's runs; the default study shows the tables of their reports side by side."""
    from .study_sections import SystemStudy

    return scenario.study(lent) if isinstance(scenario, SupportsStudy) else SystemStudy(scenario, lent)


def grade_reader(scenario: Scenario[S, Any], settings: S, *, by_round: bool = False) -> GradeReader | None:
    """Return the reader of a judge's grades in such a run, None if there are none.

    By default the grades are the scores of whole conversations (`score_of`).
    """
    if isinstance(scenario, SupportsGrading):
        return scenario.grading(settings, by_round=by_round)
    score_of = scenario.score_of(settings)
    if by_round or score_of is None:
        return None
    low, high = scenario.ranges.get(SCORE, (-math.inf, math.inf))
    return GradeReader(low, high, lambda key, label, task, result: [JudgeGrade(key, label, task.id, score_of(result))])


def score_ranges(scenario: Scenario[S, Any], settings: S) -> Ranges:
    """Return by name the smallest and the largest value of each score in a result's summary, if they are known."""
    return scenario.ranges if scenario.score_of(settings) or grade_reader(scenario, settings) else {}


def turn_scores(scenario: Scenario[S, Any], settings: S) -> Callable[[Any], list[TurnScores]]:
    """Return a function from a result to its scores by turn and criterion.

    By default the score is that of `score_of`. Without it, the scores are the numbers among `result_value`'s named
    values.
    """
    if isinstance(scenario, SupportsTurnScores):
        return scenario.turn_scores(settings)
    from .default_aggregate import named_values

    score = scenario.score_of(settings)

    def conversation_scores(result: Any) -> list[TurnScores]:
        if score is not None:
            return [TurnScores(None, {SCORE: score(result)})]
        values = {name: value for name, value in named_values(scenario.result_value(result)).items()
                  if not isinstance(value, str)}  # fmt: skip
        return [TurnScores(None, {name: None if value is None else float(value) for name, value in values.items()})]

    return conversation_scores


def compared_role(roles: Iterable[Role]) -> Role:
    """Return the only role whose models are compared.

    Raises:
        ConfigurationError: No role is compared, or several are.
    """
    roles = list(roles)
    compared = [role for role in roles if role.many]
    if len(compared) != 1:
        names = " and ".join(role.name for role in compared) or "no role"
        if any(role.panel or isinstance(role, PanelMember) for role in roles):
            names = "a panel, all in each conversation"
        raise ConfigurationError(
            f"expected a scenario that compares one role's models; this one compares those of {names}"
        )
    return compared[0]


def judge_role(roles: Iterable[Role]) -> Role | None:
    """Return the role whose model a fork may exchange; None if there is none."""
    return next((role for role in roles if role.judge), None)
