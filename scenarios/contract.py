"""The scenario contract: the base class of a system and the types that its methods take and return.

A system is a folder with a subclass of ``Scenario``, registered under the entry-point group ``viva.scenarios``, or a
single file. It states its settings, roles and tasks, runs one conversation, and aggregates results. Plans, keys,
manifests, forks, resumes and transcripts are made once for all systems (``orchestration``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from viva.agents.prompts import PackTemplates, PromptPack
from viva.data.items import Item
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Message
from viva.engine.run_folder import RunFolder

from .rendering import RecordedConversation, RenderedConversation, ResultSummary, render_plain, summary_function
from .run_settings import RunSettings

if TYPE_CHECKING:
    from .study_sections import StaticFigures, SystemStudy

CHARACTERS_PER_TOKEN = 4
SCORE = "score"
# By measure the least and the greatest value that it can have; infinite where there is none.
Ranges: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(slots=True)
class UsageForecast:
    """Calls, and tokens in and out; ``a + b`` and ``a * n`` add up and repeat."""

    calls: float = 0.0
    prompt: float = 0.0
    completion: float = 0.0

    def __add__(self, other: UsageForecast) -> UsageForecast:
        return UsageForecast(self.calls + other.calls, self.prompt + other.prompt, self.completion + other.completion)

    def __mul__(self, times: float) -> UsageForecast:
        return UsageForecast(self.calls * times, self.prompt * times, self.completion * times)


def estimate_tokens(text: str) -> float:
    """About how many tokens a text has."""
    return len(text) / CHARACTERS_PER_TOKEN


@dataclass(slots=True, frozen=True)
class JudgeGrade:
    """One thing that a judge graded.

    ``key``: the conversation's; ``round`` counts from 1 where rounds are graded. ``cluster`` names what answers have in
    common that are not independent, as a rule their item. ``score``: None where the judge's words could not be read.
    ``known``: numbers that are known of it without a judge, by name. ``question`` and ``answer``: the texts that people
    read to grade it, where they are known beforehand.
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
    """How a judge grades: from ``low`` to ``high``, or pass (1) and fail (0).

    ``answers`` makes the graded answers of a recorded result: of the conversation's key, its candidate's label, its
    task and what was recorded.
    """

    low: float
    high: float
    answers: Callable[[str, str, Any, Any], Iterable[JudgeGrade]]
    passes: bool = False


@dataclass(slots=True, frozen=True)
class ImportOptions:
    """What the user adds to a file. ``dataset`` is the benchmark that its items are of, None where the file's own words
    have to do; ``models`` are names by role, of models that the file does not name or names otherwise.
    """

    dataset: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ImportedCall:
    """One recorded answer of a role."""

    role: str
    completion: Completion


@dataclass(slots=True, frozen=True)
class ImportedConversation:
    """One finished conversation about a task; ``result`` is what the system's own protocol would have recorded, and
    names the compared model by the label of its name in the settings.
    """

    task: str
    item: Any
    calls: list[ImportedCall]
    result: Any


@dataclass(slots=True)
class ImportedRun:
    """A run to be made.

    ``settings`` are those of the system but for the data. That is ``source``, the benchmark that the user has named;
    where it is None, it is made of ``items`` and called ``dataset``. ``records`` are further fields of the manifest,
    ``facts`` what it keeps for people. ``notes``: what a person should know of the run, a sentence each.
    """

    settings: dict[str, Any]
    dataset: str
    items: list[Item]
    conversations: Iterable[ImportedConversation]
    source: str | None = None
    records: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class ImportFormat:
    """A format. ``read`` reads a whole file; its ``DatasetError`` names the line or entry that is wrong."""

    name: str
    summary: str
    read: Callable[[Path, ImportOptions], ImportedRun]


@dataclass(slots=True, frozen=True)
class TurnScores:
    """Scores by criterion; None where one is unscored. ``turn`` counts from 1, None for the whole conversation."""

    turn: int | None
    scores: dict[str, float | None]


@dataclass(slots=True, frozen=True)
class RecordedReply:
    """An answer of the compared model: what it was asked last, and what it said. ``number`` counts its calls from 0."""

    label: str
    item: str
    number: int
    question: str
    reply: str


@dataclass(slots=True)
class ReviewOutcome:
    """What came of a sheet that was taken back: corrections ``added``, those that were ``known`` before, and notes."""

    added: int
    known: int
    notes: list[str] = field(default_factory=list)


class ReviewSheet(Protocol):
    """A run's graded outputs as a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to fill in."""

    def write(self, run: RunFolder, file: Path) -> int:
        """Write the sheet; how many outputs stand in it.

        :raises ConfigurationError: nothing in this run was graded, or the file cannot be written.
        """

    def apply(self, run: RunFolder, file: Path) -> ReviewOutcome:
        """Take over the corrections that stand in a sheet.

        :raises ConfigurationError, DatasetError: the file is no such sheet; the message names line and column.
        """


@dataclass(frozen=True, slots=True)
class Validation:
    """``decided`` are the settings that validation gives itself, ``unused`` those that have no use then; ``right`` says
    of a result whether the model got the task right.
    """

    decided: dict[str, Any]
    unused: tuple[str, ...]
    right: Callable[[Any], bool]


@dataclass(slots=True, frozen=True)
class RankedCandidate:
    """A candidate's figure with the ends of its 95% interval (None where it has none). ``suspected``: something is
    wrong with it, and ``remark`` says what. ``verdict``: what was found of it in one word (``no_sign``, ``too_few``,
    …), empty where nothing was asked.
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
    """What was found on the same items: sentences, the most decisive first, and the candidates by what ``measure``
    names, the best first.

    ``about`` names the items (a dataset, or several); figures of different items or scales are in findings of their
    own, so that no chart or ranking mixes them; ``scenario`` is the system that they are of. ``rule`` says in a
    sentence what a claim takes.
    """

    sentences: list[str]
    measure: str = ""
    standings: list[RankedCandidate] = field(default_factory=list)
    about: str = ""
    scenario: str = ""
    rule: str = ""


S = TypeVar("S", bound=RunSettings)
Table = tuple[str, list[str], list[list[str]]]


class Task(Protocol):
    """What one conversation is about: anything with an id that can be written to a record."""

    @property
    def id(self) -> str:
        """Unique among the run's tasks, and the same in every run on them."""

    def to_record(self) -> Any:
        """Plain JSON data, from which ``Scenario.task`` makes the task again."""


T = TypeVar("T", bound=Task)
T_co = TypeVar("T_co", bound=Task, covariant=True)
Converse = Callable[[Conversation, T], Awaitable[Any]]


class Tasks(Protocol[T_co]):
    """The tasks of a run, read as they are taken, always in the same order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...


@dataclass(frozen=True, slots=True)
class Role:
    """A part that a model plays; the setting of the same name holds its model.

    ``many``: the setting holds several models, which are compared: each has conversations of its own; where several
    roles are compared, each combination of their models has. ``judge``: the model that a fork may exchange, for what
    it says changes nothing that the others are asked. ``replayed``: a fork repeats what its model said; of another role
    the model is called anew. ``pool``: the setting that names its models where that is not the role's own; compared
    roles of one pool meet each other: every two models of it, both ways round.
    """

    name: str
    many: bool = False
    judge: bool = False
    replayed: bool = True
    pool: str = ""

    @property
    def setting(self) -> str:
        """The setting that names its models."""
        return self.pool or self.name

    def models(self, settings: RunSettings) -> list[str]:
        """The names of its models in these settings; none where the setting is empty."""
        names = getattr(settings, self.setting)
        if self.many:
            return list(names)
        return [] if names is None else [names]


@dataclass(slots=True)
class Prepared(Generic[T]):
    """Settings checked and data opened.

    ``records`` are fields of the run's manifest: ``dataset`` (with ``name``, ``digest`` and ``chosen``), and whatever
    else ``protocol`` needs besides the settings and the prompt pack. ``notes``: what a person should know before the
    run, a sentence each.
    """

    tasks: Tasks[T]
    records: dict[str, Any]
    notes: list[str] = field(default_factory=list)


class Scoring(BaseModel):
    """The choices in how recorded results are scored; the command line makes its options from the fields. None stands
    for what the run was recorded with.
    """

    model_config = ConfigDict(extra="forbid")

    def note(self, report: Mapping[str, Any]) -> str | None:
        """What a reader of the report must know of this choice; None if nothing."""
        return None


class Aggregate(Protocol):
    """What a report is made from: takes results one by one, in any order."""

    def add(self, key: str, result: Any) -> None:
        """A conversation's recorded result."""

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        """A conversation that failed, with its error's record."""

    def headline(self) -> str:
        """The score so far in a few words, for the progress line."""

    def report(self) -> dict[str, Any]:
        """Everything, as plain data; the same results give the same report, byte for byte."""

    def tables(self) -> list[Table]:
        """The report as titled tables: title, header, rows."""


@runtime_checkable
class SupportsReviews(Protocol):
    """An aggregate that heeds what people have put into the run's folder beside the journal."""

    def beside(self, folder: Path) -> None:
        """Take it in, before the first result."""


class Scenario(ABC, Generic[S, T]):
    """A system. Subclasses set the class attributes and write the methods that raise here; the rest has defaults.

    What only some systems have are the ``Supports…`` protocols below: a subclass that has their method or attribute is
    used for it, whether or not it names them as bases.

    ``roles``: whoever may speak, in the order in which reports name them. ``templates``: those of its prompt packs;
    None where it takes none. ``ranges``: the least and the greatest value of what results are summarized as, by name,
    and ``unit`` that of its ``score``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    settings: type[S]
    roles: ClassVar[tuple[Role, ...]]
    scoring: ClassVar[type[Scoring]] = Scoring
    templates: ClassVar[PackTemplates | None] = None
    ranges: ClassVar[Ranges] = {SCORE: (0.0, 100.0)}
    unit: ClassVar[str] = ""
    # Settings that a fork may change besides the judge's model.
    judging: ClassVar[frozenset[str]] = frozenset()
    # The setting that names the data; what the sweep's file calls this system's runs.
    data: ClassVar[str] = "dataset"
    plural: ClassVar[str] = ""

    # -- what a system must say -----------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, settings: S) -> Prepared[T]:
        """Open the data and check everything that can be checked without a model.

        :raises ConfigurationError: something is wrong; the message names it.
        """

    def adopt(self, records: dict[str, Any], manifest: Mapping[str, Any]) -> None:
        """Take over from a recorded manifest what means the same in other words, before the two are compared."""

    @abstractmethod
    def protocol(self, settings: S, pack: PromptPack | None, records: Mapping[str, Any]) -> Converse[T]:
        """Return the coroutine function that holds one conversation; what it returns is recorded.

        It is made from what a manifest holds and nothing else, so that a recorded conversation can be held again.
        """

    @abstractmethod
    def task(self, record: Any) -> T:
        """Return the task of a record."""

    @abstractmethod
    def aggregate(self, manifest: dict[str, Any], scoring: Any) -> Aggregate:
        """Return an empty aggregate for a run; ``scoring`` is an instance of the class attribute ``scoring``."""

    # -- what has a default ---------------------------------------------------------------------------------------

    def roles_of(self, settings: S) -> tuple[Role, ...]:
        """Return the roles that are played under these settings."""
        return self.roles

    def open_pack(self, settings: S) -> PromptPack | None:
        """Return the prompt pack of the setting ``pack``; a shipped one as the run was recorded with it.

        :raises ConfigurationError: it is not there or does not fit the templates.
        """
        if self.templates is None:
            return None
        return self.templates.open(getattr(settings, "pack", self.name), settings.recorded_prompts)

    def result_value(self, result: Any) -> Any:
        """Return what a program that reads results is given of a recorded one."""
        return result

    def task_payload(self, task: T) -> Any:
        """Return what a program that reads results is given of a task."""
        return task

    def score_of(self, settings: S) -> Callable[[Any], float | None] | None:
        """Return a function from a result to its score, in the range of ``score``, None if it is unscored: what rules
        that stop a run early watch. Default: None, no such score.
        """
        return None

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        """Return a conversation as people read it. Default: a turn for each entry of its transcript."""
        return render_plain(recorded, self.roles)

    def summary_of(self, settings: S) -> Callable[[Any], ResultSummary]:
        """Return a function from a recorded result to its line in a list. Default: its score alone."""
        return summary_function(self.score_of(settings))


@runtime_checkable
class SupportsForecast(Protocol):
    """A system that knows before a run what it takes at most."""

    def forecast(self, settings: Any, prepared: Prepared[Any], pack: PromptPack | None) -> dict[str, UsageForecast]:
        """Return what each role takes for all tasks of one model at most: calls and tokens. The name ``ROLE, one by
        one`` stands for models that take a request for each text that they read.
        """


@runtime_checkable
class SupportsGrading(Protocol):
    """A system whose judge's grades are another thing than the scores of ``score_of``."""

    def grading(self, settings: Any, *, by_round: bool = False) -> GradeReader | None:
        """Return how a judge's grades are read, so that people's can be set beside them: of whole conversations, or
        ``by_round``. None if there are none.
        """


@runtime_checkable
class SupportsTurnScores(Protocol):
    """A system with scores by turn or criterion, which human ratings are set beside."""

    def turn_scores(self, settings: Any) -> Callable[[Any], list[TurnScores]]:
        """Return a function from a result to its scores."""


@runtime_checkable
class SupportsStudy(Protocol):
    """A system whose runs are studied together in sections of their own."""

    def study(self, lent: StaticFigures | None = None) -> SystemStudy:
        """Return the study. ``lent`` are the static figures of another system that it may set beside its own."""


@runtime_checkable
class SupportsImports(Protocol):
    """A system that results of other tools can become runs of (``viva import``)."""

    def imports(self) -> tuple[ImportFormat, ...]:
        """Return the formats."""


@runtime_checkable
class SupportsPlugins(Protocol):
    """A system whose settings and files name parts that ``viva list`` shows."""

    def plugins(self) -> Mapping[str, Mapping[str, str]]:
        """Return them by kind (``scorers``, ``metrics``): each name with one line on it."""


@runtime_checkable
class SupportsTaskDetection(Protocol):
    """A system that a file of its tasks is recognized as being for, where nobody names it."""

    def accepts_record(self, raw: Mapping[str, Any]) -> bool:
        """Return True if this record looks like one of its tasks."""


@runtime_checkable
class SupportsKnownVerdicts(Protocol):
    """A system whose data say how a judge ought to answer."""

    def known_verdict(self, task: Any, messages: Sequence[Message]) -> float | str | None:
        """Return the right score or label of what a judge is asked there about a task; None if it is not known."""


@runtime_checkable
class SupportsClusters(Protocol):
    """A system whose tasks are not all independent."""

    def cluster_of(self, result: Any) -> str:
        """Return what a result's task shares with others that are not independent of it; empty if it has none."""


@runtime_checkable
class SupportsRandomOrder(Protocol):
    """A system whose tasks can come in an order that the seed gives, on which rules that stop a run early rest."""

    def in_random_order(self, cluster: str | None) -> dict[str, Any]:
        """Return the settings for it, cluster by cluster."""


@runtime_checkable
class SupportsTaskCount(Protocol):
    """A system with other tasks than those that its manifest's ``dataset`` counts."""

    def tasks_in(self, manifest: Mapping[str, Any]) -> int:
        """Return how many tasks a run has, by its manifest."""


@runtime_checkable
class SupportsModelOrder(Protocol):
    """A system that may hold its conversations model by model instead of task by task."""

    by_model: bool


@runtime_checkable
class SupportsManifest(Protocol):
    """A system whose manifest holds more than every run's, in a typed form."""

    manifest: type[BaseModel]


@runtime_checkable
class SupportsReviewSheet(Protocol):
    """A system whose graded outputs people review in a table (``viva review``)."""

    review: ReviewSheet


@runtime_checkable
class SupportsValidation(Protocol):
    """A system that tells which of its items a model gets right (``viva validate``)."""

    validation: Validation


def count_tasks(scenario: Scenario[Any, Any], manifest: Mapping[str, Any]) -> int:
    """Return how many tasks a run has, by its manifest."""
    return (
        scenario.tasks_in(manifest) if isinstance(scenario, SupportsTaskCount) else int(manifest["dataset"]["chosen"])
    )


def study_of(scenario: Scenario[Any, Any], lent: StaticFigures | None = None) -> SystemStudy:
    """Return how several runs of a system are studied together; by default the tables of their own reports stand run
    beside run.
    """
    from .study_sections import SystemStudy

    return scenario.study(lent) if isinstance(scenario, SupportsStudy) else SystemStudy(scenario, lent)


def grade_reader(scenario: Scenario[S, Any], settings: S, *, by_round: bool = False) -> GradeReader | None:
    """Return how a judge's grades in such a run are read, None if there are none; by default they are the scores of
    ``score_of``, of whole conversations.
    """
    if isinstance(scenario, SupportsGrading):
        return scenario.grading(settings, by_round=by_round)
    score_of = scenario.score_of(settings)
    if by_round or score_of is None:
        return None
    low, high = scenario.ranges.get(SCORE, (-math.inf, math.inf))
    return GradeReader(low, high, lambda key, label, task, result: [JudgeGrade(key, label, task.id, score_of(result))])


def score_ranges(scenario: Scenario[S, Any], settings: S) -> Ranges:
    """Return the least and the greatest value of the scores in a result's summary, by name, where they are known."""
    return scenario.ranges if scenario.score_of(settings) or grade_reader(scenario, settings) else {}


def turn_scores(scenario: Scenario[S, Any], settings: S) -> Callable[[Any], list[TurnScores]]:
    """Return a function from a result to its scores by turn and criterion; by default the score of ``score_of``, else
    the numbers among the named values of ``result_value``.
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

    :raises ConfigurationError: there is none, or there are several.
    """
    compared = [role for role in roles if role.many]
    if len(compared) != 1:
        names = " and ".join(role.name for role in compared) or "no role's"
        raise ConfigurationError(f"this needs a scenario that compares the models of one role; here are {names}")
    return compared[0]


def judge_role(roles: Iterable[Role]) -> Role | None:
    """The role that a fork may give to another model; None if there is none."""
    return next((role for role in roles if role.judge), None)
