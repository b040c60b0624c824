"""Conversations as people read them: turns with marks, tools and folded details, and a summary line.

A scenario makes both from recorded data (`Scenario.render_conversation`, `Scenario.summary_of`); both have defaults.
Viewers and exports add the markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import orjson

from viva.engine.conversation_replay import Aside, Entry, Exchange, Step
from viva.engine.steps import Computed
from viva.reports.tables import number

if TYPE_CHECKING:
    from .contract import Role, Scenario

_ONE_LINE = 80  # characters; a longer value of a step is folded
# The side of a turn: a compared model, an asking or a judging one, the data, a tool, a recorded step.
Side = Literal["compared", "asking", "judging", "given", "tool", "step"]


@dataclass(slots=True)
class Mark:
    """A small figure or word on a turn: an aspect's score, a verdict, a flag.

    `level` runs from 0 (bad) to 1 (good); None if it is neither. `comment` is shown on request. `best` is the best
    possible value, for values that do not explain themselves.
    """

    name: str
    value: str = ""
    level: float | None = None
    comment: str = ""
    best: str = ""


@dataclass(slots=True)
class ToolUse:
    """A function that a model called, or should have called.

    `arguments` are as written; `result` is what the tool answered, None if unknown.
    """

    name: str
    arguments: str
    result: str | None = None


@dataclass(slots=True)
class Detail:
    """A text behind its title, folded until it is opened."""

    title: str
    text: str


@dataclass(slots=True)
class RenderedTurn:
    """One party's turn; `round` counts from 1 and is None outside rounds.

    `call` is the model call behind the turn, which has its prompt, tokens, latency and tries. `waiting` calls have no
    answer yet.
    """

    speaker: str
    text: str = ""
    side: Side = "given"
    round: int | None = None
    marks: list[Mark] = field(default_factory=list)
    tools: list[ToolUse] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    call: Exchange | None = None
    waiting: bool = False


@dataclass(slots=True)
class RenderedConversation:
    """A whole conversation; `marks` apply to all of it."""

    turns: list[RenderedTurn] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class RecordedConversation:
    """The records of a conversation: its entries in order, the calls without an answer, and its end.

    `result` is what the protocol recorded, `error` the record of its failure; both are None if it has not ended. `task`
    is the task's record, None if that is damaged.
    """

    entries: Sequence[Entry]
    unanswered: Sequence[Exchange] = ()
    task: Any = None
    result: Any = None
    error: Mapping[str, Any] | None = None


@runtime_checkable
class SupportsScoreRule(Protocol):
    """A scenario that says how the score of a conversation comes about."""

    def score_rule(self, settings: Any) -> str:
        """Return the rule as a sentence for readers of a conversation's page, "" if there is none to state."""


@dataclass(slots=True)
class ResultSummary:
    """A recorded result as one line of a list.

    `score` is a number for which higher is better, None if unscored; `end` says in a few words how the conversation
    ended; `aspects` are further figures by name; `unscored` counts unreadable verdicts; `rounds` is None if the
    conversation has no rounds.
    """

    score: float | None = None
    end: str = ""
    aspects: dict[str, float] = field(default_factory=dict)
    unscored: int = 0
    rounds: int | None = None


def render_plain(recorded: RecordedConversation, roles: Iterable[Role]) -> RenderedConversation:
    """Return a turn for each entry, in order; calls without an answer come last."""
    sides = role_sides(roles)
    turns = [render_entry(entry, sides) for entry in recorded.entries]
    return RenderedConversation([*turns, *pending_turns(recorded, sides)])


def role_sides(roles: Iterable[Role]) -> dict[str, Side]:
    """Return the side of each role."""
    return {role.name: "compared" if role.many else "judging" if role.judge else "asking" for role in roles}


def render_entry(entry: Entry, sides: Mapping[str, Side]) -> RenderedTurn:
    """Return one entry of a transcript as a turn."""
    if isinstance(entry, Aside):
        return RenderedTurn(entry.party, entry.text)
    if isinstance(entry, Step):
        return _render_step(entry)
    turn = RenderedTurn(entry.role, side=sides.get(entry.role, "asking"), call=entry)
    completion = entry.completion
    if completion is None:
        turn.waiting = True
        return turn
    turn.text = completion.text
    turn.tools = [ToolUse(call.name, call.arguments) for call in completion.calls or ()]
    turn.marks = list(finish_marks(entry))
    if completion.thoughts:
        turn.details.append(Detail("thoughts", completion.thoughts))
    if completion.likelihoods is not None:
        turn.tools = []
        turn.marks += _reading_marks(entry)
    return turn


def pending_turns(recorded: RecordedConversation, sides: Mapping[str, Side]) -> list[RenderedTurn]:
    """Return the calls without an answer, if the conversation failed or is still running."""
    return [render_entry(call, sides) for call in recorded.unanswered] if recorded.result is None else []


def finish_marks(call: Exchange) -> Iterable[Mark]:
    """Return marks for an answer that did not end normally."""
    finish = call.completion.finish if call.completion is not None else "stop"
    if finish == "length":
        yield Mark("truncated at the token limit", level=0)
    elif finish not in ("stop", "tool_calls"):
        yield Mark("ended by", finish.removeprefix("watch:"), 0)


def pass_mark(name: str, passed: bool | None, comment: str = "") -> Mark:
    """Return the mark `passed`, `failed` or `unscored`."""
    return Mark(name, {True: "passed", False: "failed", None: "unscored"}[passed],
                None if passed is None else float(passed), comment)  # fmt: skip


def summary_function(score: Callable[[Any], float | None] | None) -> Callable[[Any], ResultSummary]:
    """Return a summary function for results that have only a score, or no score."""
    return lambda result: ResultSummary(None if score is None else score(result))


SETS = ("benchmark", "second")


def set_function(scenario: Scenario[Any, Any] | None, manifest: Mapping[str, Any]) -> Callable[[Any], str] | None:
    """Return a function from a result to the set of its item (`SETS`); None if the run has no second set.

    The function may raise any error if another version recorded the result in another form.
    """
    from .contract import SupportsObservations  # imports this module

    if manifest.get("against") is None or not isinstance(scenario, SupportsObservations):
        return None

    def set_of(result: Any) -> str:
        observations = scenario.observe([result])
        return SETS[len(observations.second) > 0 and not len(observations.benchmark)]

    return set_of


def _render_step(step: Step) -> RenderedTurn:
    computed: Computed = step.computed
    turn = RenderedTurn(step.name, side="step")
    if computed.error is not None:
        turn.text = "{type}: {message} ({at})".format(**computed.error)
        turn.marks.append(Mark("failed", level=0))
    elif isinstance(computed.value, str):
        turn.text = computed.value
    else:
        text = _json(computed.value)
        if len(text) <= _ONE_LINE:
            turn.text = text
        else:
            turn.details.append(Detail("value", _json(computed.value, indented=True)))
    return turn


def _json(value: Any, *, indented: bool = False) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indented else None).decode()
    except TypeError as error:  # a record by others is nested deeper than viva writes any
        return f"({error})"


def _reading_marks(call: Exchange) -> list[Mark]:
    """Return the log-probability of each text in nats."""
    likelihoods = (call.completion.likelihoods if call.completion is not None else None) or []
    texts = [text.strip() for text in call.reading.continuations] if call.reading is not None else []
    if len(likelihoods) == 1:
        [likelihood] = likelihoods
        tokens = len(likelihood.logprobs)
        return [Mark("log-probability", f"{likelihood.total:.2f} nats over {tokens:,} tokens")]
    return [
        Mark(_shorten(texts[at]) if at < len(texts) else str(at + 1), number(likelihood.total, 2))
        for at, likelihood in enumerate(likelihoods)
    ]


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
