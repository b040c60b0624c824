"""The contract: what a system says of itself to run, resume, fork, sweep, report and be looked at here.

A system is a folder with a subclass of ``Scenario``, registered under the entry-point group ``viva.scenarios``, or a
single file. It says its settings, roles and tasks, holds one conversation, and adds up results. Plans, keys, manifests,
forks, resumes and transcripts are made once for all systems (``orchestration``).

What never belongs here: anything about one system.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message

from .forecast import Use
from .graded import GradedAnswer, Grading
from .imported import Import
from .rated import TurnScores
from .review import ReviewSheet
from .settings import RunSettings
from .shown import RecordedConversation, ResultSummary, ShownConversation, shown_plainly, summary_function
from .validation import Validation

if TYPE_CHECKING:  # what studies need takes a while to import, and runs do without it
    from .measures import Ranges
    from .study.sections import SystemStudy
    from .study.static import StaticFigures

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

    ``many``: the setting holds several models, which are compared: each has conversations of its own. ``judge``: the
    model that a fork may exchange, for what it says changes nothing that the others are asked. ``replayed``: a fork
    repeats what its model said; of another role the model is called anew.
    """

    name: str
    many: bool = False
    judge: bool = False
    replayed: bool = True

    def models(self, settings: RunSettings) -> list[str]:
        """The names of its models in these settings; none where the setting is empty."""
        named = getattr(settings, self.name)
        if self.many:
            return list(named)
        return [] if named is None else [named]


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
class TakesReviews(Protocol):
    """An aggregate that heeds what people have put into the run's folder beside the journal."""

    def beside(self, folder: Path) -> None:
        """Take it in, before the first result."""


class Scenario(ABC, Generic[S, T]):
    """A system. Subclasses set the class attributes and write the methods that raise here; the rest has defaults.

    ``roles``: whoever may speak, in the order in which reports name them. ``templates``: those of its prompt packs;
    None where it takes none. ``manifest``: the manifest's typed form, where it holds more than every run's.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    settings: type[S]
    roles: ClassVar[tuple[Role, ...]]
    scoring: ClassVar[type[Scoring]] = Scoring
    templates: ClassVar[PackTemplates | None] = None
    manifest: ClassVar[type[BaseModel] | None] = None
    # Settings that a fork may change besides the judge's model.
    judging: ClassVar[frozenset[str]] = frozenset()
    # The setting that names the data; what the sweep's file calls this system's runs.
    data: ClassVar[str] = "dataset"
    plural: ClassVar[str] = ""
    # Model by model instead of task by task: what tasks share is then computed once.
    by_model: ClassVar[bool] = False
    review: ClassVar[ReviewSheet | None] = None
    validation: ClassVar[Validation | None] = None

    # -- what a system must say -----------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, settings: S) -> Prepared[T]:
        """Open the data and check everything that can be checked without a model.

        :raises ConfigurationError: something is wrong; the message names it.
        """

    @abstractmethod
    def protocol(self, settings: S, pack: PromptPack | None, records: Mapping[str, Any]) -> Converse[T]:
        """The coroutine function that holds one conversation; what it returns is recorded.

        It is made from what a manifest holds and nothing else, so that a recorded conversation can be held again.
        """

    @abstractmethod
    def task(self, record: Any) -> T:
        """The task of a record."""

    @abstractmethod
    def aggregate(self, manifest: dict[str, Any], scoring: Any) -> Aggregate:
        """An empty aggregate for a run; ``scoring`` is an instance of the class attribute ``scoring``."""

    # -- what has a default ---------------------------------------------------------------------------------------

    def roles_of(self, settings: S) -> tuple[Role, ...]:
        """The roles that are played under these settings."""
        return self.roles

    def repeats(self, settings: S) -> int:
        """How often each task is held with each model."""
        return int(getattr(settings, "repeats", 1))

    def open_pack(self, settings: S) -> PromptPack | None:
        """The prompt pack of the setting ``pack``; a shipped one as the run was recorded with it.

        :raises ConfigurationError: it is not there or does not fit the templates.
        """
        if self.templates is None:
            return None
        return self.templates.open(getattr(settings, "pack", self.name), settings.recorded_prompts)

    def value(self, result: Any) -> Any:
        """What a program that reads results is given of a recorded one."""
        return result

    def given(self, task: T) -> Any:
        """What a program that reads results is given of a task."""
        return task

    def tasks_in(self, manifest: Mapping[str, Any]) -> int:
        """How many tasks a run has, by its manifest."""
        return int(manifest["dataset"]["chosen"])

    def score_of(self, settings: S) -> Callable[[Any], float | None] | None:
        """A function that gives a result's score, 0–100, None where it is unscored: what rules that stop a run early
        watch. None where this system has no such score.
        """
        return None

    def score_ranges(self, settings: S) -> Ranges:
        """Return the least and the greatest value of the scores in a result's summary, by name, where they are known.

        As it is, 0 to 100 of the score of ``score_of`` and of whole conversations that a judge grades.
        """
        from .measures import SCORE

        return {SCORE: (0.0, 100.0)} if self.score_of(settings) or self.grading(settings) else {}

    def shown(self, recorded: RecordedConversation) -> ShownConversation:
        """How a conversation is shown to a person; as it is, a turn for each entry of its transcript."""
        return shown_plainly(recorded, self.roles)

    def summary_of(self, settings: S) -> Callable[[Any], ResultSummary]:
        """A function that gives a recorded result's line in a list; as it is, its score alone."""
        return summary_function(self.score_of(settings))

    def grading(self, settings: S, *, by_round: bool = False) -> Grading | None:
        """What a judge's grades are in such a run, so that people's can be set beside them: of whole conversations, or
        ``by_round``. None where there are none; as it is, the scores of ``score_of``, of whole conversations.
        """
        score_of = self.score_of(settings)
        if by_round or score_of is None:
            return None
        return Grading(
            0.0, 100.0, lambda key, label, task, result: [GradedAnswer(key, label, task.id, score_of(result))]
        )

    def turn_scores(self, settings: S) -> Callable[[Any], list[TurnScores]]:
        """A function that gives a result's scores by turn and criterion, which human ratings are set beside.

        As it is: the score of ``score_of``, else the numbers among the named values of ``value``.
        """
        from .measures import SCORE, named_values

        score = self.score_of(settings)

        def whole(result: Any) -> list[TurnScores]:
            if score is not None:
                return [TurnScores(None, {SCORE: score(result)})]
            named = {name: one for name, one in named_values(self.value(result)).items() if not isinstance(one, str)}
            return [TurnScores(None, {name: None if one is None else float(one) for name, one in named.items()})]

        return whole

    def takes(self, raw: Mapping[str, Any]) -> bool:
        """Whether a record of a file is a task of this system, by its fields alone: a file that is named without a
        system finds it so. As it is, none is.
        """
        return False

    def imports(self) -> tuple[Import, ...]:
        """The results of other tools that become runs of this system (``viva import``)."""
        return ()

    def offers(self) -> Mapping[str, Mapping[str, str]]:
        """What else of this system its settings and files name, by kind (``scorers``, ``metrics``): each name with one
        line on it, for ``viva list``. As it is, nothing.
        """
        return {}

    def cluster_of(self, result: Any) -> str:
        """Return what a result's task shares with others that are not independent of it; empty where it has none."""
        return ""

    def known_verdict(self, task: T, messages: Sequence[Message]) -> float | str | None:
        """The right score or label of what a judge is asked there about a task, where the data say it."""
        return None

    def in_random_order(self, cluster: str | None) -> dict[str, Any]:
        """The settings under which tasks come in an order that the seed gives, cluster by cluster: rules that stop a
        run early rest on it.

        :raises ConfigurationError: this system's tasks come in no such order.
        """
        raise ConfigurationError(f"{self.name}: its tasks have no random order for a rule to rest on")

    def study(self, lent: StaticFigures | None = None) -> SystemStudy:
        """How several of its runs are studied together; as it is, the tables of their own reports stand run beside run.

        ``lent`` are the static figures of another system that the study may set beside its own.
        """
        from .study.sections import SystemStudy

        return SystemStudy(self, lent)

    def forecast(self, settings: S, prepared: Prepared[T], pack: PromptPack | None) -> dict[str, Use]:
        """What each role takes for all tasks of one model at most: calls and tokens. The name ``ROLE, one by one``
        stands for models that take a request for each text that they read. Empty where nobody can say.
        """
        return {}


def many_role(roles: Iterable[Role]) -> Role:
    """The role whose models are compared.

    :raises ConfigurationError: there is none, or there are several.
    """
    found = [role for role in roles if role.many]
    if len(found) != 1:
        raise ConfigurationError(f"a scenario compares the models of one role; {len(found)} are marked so")
    return found[0]


def judge_role(roles: Iterable[Role]) -> Role | None:
    """The role that a fork may give to another model; None if there is none."""
    return next((role for role in roles if role.judge), None)
