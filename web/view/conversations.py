"""Conversations prepared for a page: turns with figures of their calls, and each message of their prompts once.

Prompts grow by one turn at a time, so a page with every prompt in full would repeat most texts. Therefore the page
has each message once, and turns have the numbers of their messages.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import orjson

from viva.engine.conversation_replay import Exchange
from viva.engine.journal_reader import JournalTail
from viva.engine.messages import Message
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.orchestration.transcripts import Transcripts
from viva.scenarios.registry import scenario_of_manifest
from viva.scenarios.rendering import (
    RecordedConversation,
    RenderedConversation,
    RenderedTurn,
    SupportsScoreRule,
    render_plain,
)
from viva.scoring.aggregates import failure_reason

from .calls import Timeline, models_of, timeline
from .index import strings_in
from .live import clip_text

_OPEN_RUNS = 16
_MOST_PAIRED = 2_000  # turns in which counterparts are looked for
_SHORT = 20  # characters of a mark's value in a sentence
LONG_TEXT = 6_000  # maximum characters of a text that are shown at first
LONGEST_TEXT = 1_000_000  # maximum characters of a text that a page has
TURNS = 1_000  # maximum turns on one page
_MOST_CALLS = 3_000  # calls of a conversation whose prompts are reconstructed: their cost grows with the square


@dataclass(slots=True)
class PageTurn:
    """A turn and the figures of its call.

    `prompt` has the numbers of the messages that the model received; the first `known` of them began its previous
    prompt, too. On a page, the first `shared` of them are those of an earlier turn, `after`, so that the page need not
    repeat them. `cached_tokens` are those of the prompt that came from the endpoint's cache.
    """

    anchor: str
    rendered: RenderedTurn
    prompt: list[int] = field(default_factory=list)
    known: int = 0
    after: str = ""
    shared: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    tries: int = 1

    @property
    def head(self) -> str:
        """The text, or the first part of a long one."""
        return self.rendered.text if len(self.rendered.text) <= LONG_TEXT + 500 else self.rendered.text[:LONG_TEXT]

    @property
    def rest(self) -> str:
        return self.rendered.text[len(self.head) :]


@dataclass(slots=True)
class PageConversation:
    """A whole conversation.

    `messages` are tuples (role, text); `problem` says why some prompts are unknown, `failure` why the conversation
    failed. `models` are the names of the models by role, as far as they are known. `rule` says how the score comes
    about, "" if that is unknown.
    """

    turns: list[PageTurn]
    rendered: RenderedConversation
    messages: list[tuple[str, str]]
    problem: str | None = None
    failure: str = ""
    ended: bool = False
    damaged: bool = False
    timeline: Timeline | None = None
    models: dict[str, str] = field(default_factory=dict)
    rule: str = ""

    @property
    def has_comments(self) -> bool:
        """True if a mark has a comment."""
        marks = (mark for turn in self.turns for mark in turn.rendered.marks)
        return any(mark.comment for mark in (*self.rendered.marks, *marks))


@dataclass(slots=True)
class TurnPair:
    """Two turns side by side; one is None if the other conversation has no counterpart.

    `by_words` is False if there are too many texts on the page to compare all of them word by word.
    """

    left: PageTurn | None
    right: PageTurn | None
    by_words: bool = True

    @property
    def same(self) -> bool:
        """True if both turns have the same text, which is then shown once."""
        if self.left is None or self.right is None:
            return False
        first, second = self.left.rendered, self.right.rendered
        return (first.speaker, first.text, first.tools) == (second.speaker, second.text, second.tools)

    @property
    def changes(self) -> tuple[Pieces, Pieces] | None:
        """The texts of both turns in pieces, as of `word_changes`."""
        if self.left is None or self.right is None or not self.by_words:
            return None
        return word_changes(self.left.rendered.text, self.right.rendered.text)

    @property
    def comments(self) -> tuple[dict[str, Pieces], dict[str, Pieces]]:
        """The comments of marks that both turns have, by the mark's name, in pieces as of `word_changes`."""
        pieces: tuple[dict[str, Pieces], dict[str, Pieces]] = {}, {}
        if self.left is not None and self.right is not None and self.by_words:
            comments = {mark.name: mark.comment for mark in self.left.rendered.marks if mark.comment}
            for mark in self.right.rendered.marks:
                if changes := word_changes(comments.get(mark.name, ""), mark.comment):
                    pieces[0][mark.name], pieces[1][mark.name] = changes
        return pieces

    @property
    def differing(self) -> frozenset[str]:
        """Names of marks that have different values in both turns, or that only one has."""
        if self.left is None or self.right is None:
            return frozenset()
        first, second = ({mark.name: mark.value for mark in turn.rendered.marks} for turn in (self.left, self.right))
        return frozenset(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))

    @property
    def round(self) -> int | None:
        turn = self.left or self.right
        return None if turn is None else turn.rendered.round


@dataclass(slots=True)
class Difference:
    """Turns of one round, None outside rounds, that differ: the names of their marks that do, in order.

    `anchor` is that of the first such pair, and `speaker` its speaker. Marks that only one has come with their values.
    """

    round: int | None
    anchor: str
    speaker: str
    marks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Differences:
    """In what two conversations differ: marks, else texts. `lone` has the rounds that only the first or second has."""

    marks: list[Difference] = field(default_factory=list)
    texts: list[Difference] = field(default_factory=list)
    lone: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))


def differences(pairs: Sequence[TurnPair]) -> Differences:
    """Return in what two conversations differ, by round."""
    result = Differences()
    rounds: tuple[set[int], set[int]] = set(), set()
    for number, pair in enumerate(pairs, 1):
        for side, turn in zip(rounds, (pair.left, pair.right), strict=True):
            if turn is not None and turn.rendered.round is not None:
                side.add(turn.rendered.round)
        if differing := pair.differing:
            _of_round(result.marks, pair, number).marks += _in_order(pair, differing)
        if pair.left is not None and pair.right is not None and not pair.same:
            _of_round(result.texts, pair, number)
    result.lone = sorted(rounds[0] - rounds[1]), sorted(rounds[1] - rounds[0])
    return result


def _of_round(differing: list[Difference], pair: TurnPair, number: int) -> Difference:
    """Return the last difference if it is in the pair's round, else a new one."""
    if not differing or differing[-1].round != pair.round:
        turn = pair.left or pair.right
        differing.append(Difference(pair.round, f"t{number}", "" if turn is None else turn.rendered.speaker))
    return differing[-1]


def _in_order(pair: TurnPair, names: Collection[str]) -> list[str]:
    marks = [mark for turn in (pair.left, pair.right) if turn is not None for mark in turn.rendered.marks]
    counts = Counter(mark.name for mark in marks)
    texts = [mark.name if counts[mark.name] > 1 else f"{mark.name} {mark.value[:_SHORT]}".rstrip() for mark in marks
             if mark.name in names]  # fmt: skip
    return list(dict.fromkeys(texts))


_WORDS = re.compile(r"\s*\S+|\s+")
_MOST_WORDS = 1_500  # of a text that is compared word by word
_MOST_COMPARED = 400_000  # characters of all texts on a page that are compared so
_ALIKE = 0.4  # least share of common words: below it, marks on nearly all words would say nothing
Pieces: TypeAlias = list[tuple[str, bool]]


def word_changes(left: str, right: str) -> tuple[Pieces, Pieces] | None:
    """Return both texts in pieces (text, True if the other text lacks it).

    None if the texts are equal, too long, or have too little in common.
    """
    first, second = _WORDS.findall(left), _WORDS.findall(right)
    if left == right or max(len(first), len(second)) > _MOST_WORDS:
        return None
    matcher = SequenceMatcher(None, first, second)
    if matcher.quick_ratio() < _ALIKE or matcher.ratio() < _ALIKE:
        return None
    pieces: tuple[Pieces, Pieces] = [], []
    for operation, a, b, c, d in matcher.get_opcodes():
        for own, words in ((pieces[0], first[a:b]), (pieces[1], second[c:d])):
            if words:
                own.append(("".join(words), operation != "equal"))
    return pieces


def limit_words(pairs: Iterable[TurnPair]) -> None:
    """Let only the first turns of a page be compared word by word, if their texts are long together."""
    total = 0
    for pair in pairs:
        if pair.left is not None and pair.right is not None and not pair.same:
            turns = pair.left.rendered, pair.right.rendered
            total += sum(len(turn.text) + sum(len(mark.comment) for mark in turn.marks) for turn in turns)
            pair.by_words = total <= _MOST_COMPARED


@dataclass(slots=True)
class _OpenRun:
    files: tuple[int, ...]
    folder: RunFolder
    transcripts: Transcripts
    history: JournalTail
    rule: str


class ConversationReader:
    """Recorded conversations of runs, replayed for pages. Used by one thread, outside an event loop."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Path, _OpenRun] = OrderedDict()

    def read(self, path: Path, number: int) -> PageConversation:
        """Read a conversation of the run in a folder.

        Raises:
            VivaError: The run cannot be read.
        """
        run = self._opened(path)
        history, folder = run.history, run.folder
        rerun = asyncio.run(run.transcripts.replay(history, number, _MOST_CALLS))
        end = history.end_of(number)
        key, task = history.started(number) or ("", None)
        damaged = number in history.broken
        recorded = RecordedConversation(rerun.lines, rerun.unanswered, task)
        if end is not None and end.failed:
            recorded.error = end.result
        elif end is not None:
            recorded.result = end.result
        rendered, problem = _render(folder, recorded)
        page = page_turns(rendered)
        page.problem = "; ".join(filter(None, (rerun.problem, problem))) or None
        page.damaged, page.ended = damaged, end is not None
        page.failure = failure_reason(end.result) if end is not None and end.failed else ""
        anchors = {id(turn.rendered.call): (turn.anchor, turn.rendered.side) for turn in reversed(page.turns)}
        page.timeline = timeline(rerun.lines, anchors)
        page.models = models_of(folder.manifest, key)
        page.rule = run.rule
        return page

    def texts(self, path: Path, number: int) -> list[str]:
        """Return the answers of a conversation, then the texts of its task."""
        history = self._opened(path).history
        _, task = history.started(number) or ("", None)
        return [*(call.completion.text for call in history.calls(number)), *strings_in(task)]

    def close(self) -> None:
        while self._runs:
            self._runs.popitem()[1].history.close()

    def _opened(self, path: Path) -> _OpenRun:
        """Return the open run of a folder; reopen it if the folder now contains another run."""
        files = _file_identity(path)
        opened = self._runs.get(path)
        if opened is not None and opened.files != files:
            self._runs.pop(path).history.close()
            opened = None
        if opened is None:
            folder = RunFolder.open(path)
            opened = _OpenRun(files, folder, Transcripts(folder), JournalTail(folder.journal), _score_rule(path))
            self._runs[path] = opened
            if len(self._runs) > _OPEN_RUNS:
                self._runs.popitem(last=False)[1].history.close()
        self._runs.move_to_end(path)
        return opened


def _file_identity(path: Path) -> tuple[int, ...]:
    """Return a key that changes if another run replaces the run at this path."""
    identity = []
    for name in ("manifest.json", "journal.sqlite"):
        try:
            identity.append(os.stat(path / name).st_ino)
        except OSError:
            identity.append(0)
    return tuple(identity)


def _score_rule(path: Path) -> str:
    """Return how a run's scores come about; nothing if its scenario is unknown or another version's."""
    try:
        scenario, settings = recorded_settings(RunFolder.open(path))
        return scenario.score_rule(settings) if isinstance(scenario, SupportsScoreRule) else ""
    except Exception:
        return ""


def _render(folder: RunFolder, recorded: RecordedConversation) -> tuple[RenderedConversation, str | None]:
    """Render a conversation with its scenario; as plain turns if the scenario is unknown or refuses the record.

    Nothing is rendered if the records are damaged.
    """
    try:
        rendered, problem = scenario_of_manifest(folder.manifest).render_conversation(recorded), None
        if damage := _damage_of(rendered):
            raise TypeError(damage)
    except Exception as error:  # the scenario is not installed, or its recorded form was another
        problem = f"its scenario cannot display it: {type(error).__name__}: {clip_text(error)}"
        try:
            rendered = render_plain(recorded, ())
        except Exception as damaged:
            rendered, problem = RenderedConversation(), f"a record is damaged: {clip_text(damaged)}"
    return rendered, problem


def _damage_of(rendered: RenderedConversation) -> str:
    """Return which text of a rendered conversation is no text, as damaged results make it; "" if all are."""
    for turn in rendered.turns:
        texts = [turn.speaker, turn.text]
        texts += [text for mark in turn.marks for text in (mark.name, mark.value, mark.comment, mark.best)]
        texts += [text for tool in turn.tools for text in (tool.name, tool.arguments, tool.result or "")]
        texts += [text for detail in turn.details for text in (detail.title, detail.text)]
        for text in texts:
            if not isinstance(text, str):
                return f"expected a text, found {text!r:.80}"
    return ""


def page_turns(rendered: RenderedConversation) -> PageConversation:
    """Collect the messages of all prompts, and give each turn the numbers of its messages."""
    messages: dict[tuple[str, str], int] = {}
    # The last prompt of a role in a branch, as messages and as their numbers.
    earlier: dict[tuple[str, str], tuple[Sequence[Message], list[int]]] = {}
    latest: dict[tuple[str, str], list[int]] = {}  # the whole prompt in numbers
    offered: dict[bytes, str] = {}  # tools by their digest
    turns = []

    def number_of(kind: str, text: str) -> int:
        return messages.setdefault((kind, text), len(messages))

    for number, turn in enumerate(rendered.turns, 1):
        page_turn = PageTurn(f"t{number}", turn)
        if turn.call is not None:
            party = turn.call.branch, turn.call.role
            sent, (before, numbers) = turn.call.messages or (), earlier.get(party, ((), []))
            # Prompts grow: without this comparison, the time would grow with the square of their number.
            count = common_length(before, sent)
            reading = [number_of(*each) for each in _texts_to_read(turn.call)]
            page_turn.prompt = reading + numbers[:count] + [number_of(*_message_text(own)) for own in sent[count:]]
            earlier[party] = sent, page_turn.prompt[len(reading) :]
            if (tools := turn.call.tools) is not None:
                if tools.digest not in offered:
                    offered[tools.digest] = _json(tools.specs)
                page_turn.prompt.append(number_of("tools offered", offered[tools.digest]))
            page_turn.known = common_length(latest.get(party, []), page_turn.prompt)
            latest[party] = page_turn.prompt
            if (completion := turn.call.completion) is not None:
                page_turn.prompt_tokens, page_turn.completion_tokens = (
                    completion.prompt_tokens,
                    completion.completion_tokens,
                )
                page_turn.seconds, page_turn.tries = completion.latency, completion.attempts
                page_turn.cached_tokens = completion.cached_tokens
        turns.append(page_turn)
    return PageConversation(turns, rendered, list(messages))


def common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the number of equal entries at the start of two sequences."""
    low, high = 0, min(len(first), len(second))
    middle = high  # usually, one sequence continues the other
    while low < high:
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def share_prompts(turns: Iterable[PageTurn]) -> None:
    """Note which messages the turns of one page share with an earlier one of the same role."""
    latest: dict[Any, PageTurn] = {}
    for turn in turns:
        if turn.rendered.call is None or not turn.prompt:
            continue
        branch, role = turn.rendered.call.branch, turn.rendered.call.role
        before = latest.get((branch, role)) or latest.get(role)
        if before is not None:
            turn.after, turn.shared = before.anchor, common_length(before.prompt, turn.prompt)
        latest[branch, role] = latest[role] = turn


def _texts_to_read(call: Exchange) -> Iterator[tuple[str, str]]:
    """Iterate over the texts of a reading as (kind, text)."""
    if call.reading is not None:
        yield "text", call.reading.shared + call.reading.context
        for text in call.reading.continuations:
            yield "continuation", text


def _message_text(message: Message) -> tuple[str, str]:
    calls = "\n".join(f"{tool_call.name}({tool_call.arguments})" for tool_call in message.calls)
    return message.role, "\n".join(filter(None, (message.content, calls)))


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


T = TypeVar("T", PageTurn, TurnPair)


@dataclass(slots=True)
class TurnsPart(Generic[T]):
    """The turns, or pairs of turns, of one page: those from `first` to `last`, counted from 1, of `total`."""

    turns: Sequence[T]
    number: int
    count: int
    first: int
    last: int
    total: int

    @classmethod
    def select(cls, turns: Sequence[T], number: int, size: int = TURNS) -> TurnsPart[T]:
        """Return the turns of a page; the last page if there are fewer."""
        count = max(1, -(-len(turns) // size))
        number = max(1, min(number, count))
        start = (number - 1) * size
        selected = turns[start : start + size]
        return cls(selected, number, count, start + 1, start + len(selected), len(turns))


def part_of(anchor: str) -> int:
    """Return the number of the page that has a turn, by the turn's anchor."""
    return (int(anchor.removeprefix("t")) - 1) // TURNS + 1


def pair_turns(left: PageConversation, right: PageConversation) -> list[TurnPair]:
    """Pair the turns of two conversations by speaker and round.

    Turns without a counterpart stand alone, in the order of the rounds; turns outside any round come before or after
    them. In long conversations, so do all turns after the first that has another speaker or round.
    """
    first, second = ([(turn.rendered.round, turn.rendered.speaker) for turn in side.turns] for side in (left, right))
    alike = common_length(first, second)
    pairs = [TurnPair(*both) for both in zip(left.turns[:alike], right.turns[:alike], strict=True)]
    rest = first[alike:], second[alike:]
    if max(map(len, rest)) > _MOST_PAIRED:
        operations = [("replace", 0, len(rest[0]), 0, len(rest[1]))]
    else:
        operations = list(SequenceMatcher(None, *rest, autojunk=False).get_opcodes())
    for operation, *ends in operations:
        a, b, c, d = (end + alike for end in ends)
        if operation == "equal":
            pairs += [TurnPair(*both) for both in zip(left.turns[a:b], right.turns[c:d], strict=True)]
        else:
            alone = [TurnPair(turn, None) for turn in left.turns[a:b]] + [
                TurnPair(None, turn) for turn in right.turns[c:d]
            ]
            outside = -math.inf if a == c == 0 else math.inf
            pairs += sorted(alone, key=lambda pair: _round(pair, outside))
    return pairs


def _round(pair: TurnPair, outside: float) -> float:
    return outside if pair.round is None else pair.round
