"""Questions for graders out of a recorded run: whole conversations, rounds, or what the judge said of them.

Conversations are held again against their record, and graders see their turns without the judge's. Answers of several
candidates to one task stand on one page. What never belongs here: files of grades (``labels``), pages.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.scenarios.contract import many_role
from viva.scenarios.graded import GradedAnswer
from viva.scenarios.models import label_of
from viva.scenarios.shown import RecordedConversation, ShownTurn

from ..graded_answers import GradedAnswers, graded_answers
from ..launch import recorded_settings
from ..transcripts import Transcripts
from .records import Answer, Label, Question, Said

What = Literal["conversations", "rounds", "verdicts"]
Place = tuple[str, str, int | None]  # candidate, key, round
_HIDDEN = ("judging", "step")
_STEPS = 5  # grades on a scale that has too many whole numbers
_MOST_LABELS = 11
_GENERAL = [Label(0, "wrong"), Label(1, "partly right"), Label(2, "right"), Label(3, "right, and more than was asked")]
_PASSED = [Label(0, "fail"), Label(1, "pass")]
_JUST = [Label(0, "the verdict is wrong"), Label(1, "the verdict is right")]


@dataclass(slots=True)
class Chosen:
    """Which answers are to be graded, with the probability of each answer of the run to have been chosen.

    ``probabilities`` is empty where all answers are graded. ``grades`` are those that people gave before.
    """

    places: set[Place]
    probabilities: dict[Place, float] = field(default_factory=dict)
    grades: dict[Place, float] = field(default_factory=dict)


def run_answers(source: Path, what: What) -> GradedAnswers:
    """What can be graded in a run: what its judge was asked about, else every finished conversation.

    :raises ConfigurationError: the folder is no run, has no rounds, or for verdicts none that could be read.
    """
    folder = RunFolder.open(source)
    which, settings = recorded_settings(folder)
    rounds = what != "conversations"
    if which.grading(settings, by_round=rounds) is not None:
        found = graded_answers(source, by_round=rounds, what="choice of what is graded", need_scores=what == "verdicts")
        if found.answers:
            return found
    if rounds:
        raise ConfigurationError(f"{source}: a run of {which.name} has no graded rounds; grade its conversations")
    labels = list(folder.manifest["models"][many_role(which.roles_of(settings)).name])
    answers = []
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed:
                label = label_of(ended.key, labels)
                answers.append(GradedAnswer(ended.key, label, ended.key.removeprefix(f"{label}/"), None))
    if not answers:
        raise ConfigurationError(f"{source}: no conversation of this run has finished")
    return GradedAnswers(source, answers, 0.0, 3.0, False, False)


def drawn(answers: GradedAnswers, count: int, seed: int) -> Chosen:
    """So many answers, each with the same probability, by a hash of the seed and their names.

    :raises ConfigurationError: there are fewer.
    """
    places = [place_of(one) for one in answers.answers]
    if not 1 <= count <= len(places):
        raise ConfigurationError(f"-n {count}: {answers.source} has {len(places)} answers; ask for 1 to {len(places)}")
    ranked = sorted(places, key=lambda place: seeds.uniform(seed, "graded", *place))
    return Chosen(set(ranked[:count]), dict.fromkeys(places, count / len(places)))


def place_of(one: GradedAnswer) -> Place:
    """What tells an answer from the others of a run."""
    return one.candidate, one.key, one.round


def labels_for(answers: GradedAnswers, what: What) -> list[Label]:
    """The grades that people may give: the judge's own scale, in whole numbers where they are few, else in five steps.

    Answers without a judge's scale get the general one from 0 to 3.
    """
    if what == "verdicts":
        return list(_JUST)
    if answers.passes:
        return list(_PASSED)
    low, high = answers.low, answers.high
    if not math.isfinite(high - low) or not any(one.score is not None for one in answers.answers):
        return list(_GENERAL)
    if low == int(low) and high == int(high) and high - low < _MOST_LABELS:
        values = [float(value) for value in range(int(low), int(high) + 1)]
    else:
        values = [low + (high - low) * step / (_STEPS - 1) for step in range(_STEPS)]
    words = {values[0]: "worst", values[-1]: "best"}
    return [Label(value, words.get(value, "")) for value in values]


def run_questions(
    source: Path, answers: GradedAnswers, what: What, chosen: Chosen | None, *, overlap: int, labels: Sequence[Label]
) -> list[Question]:
    """The chosen answers of a run (all of them where ``chosen`` is None) as questions, in the order of the run.

    :raises ConfigurationError: a chosen answer cannot be shown, with the reason.
    """
    folder = RunFolder.open(source)
    wanted: dict[str, list[GradedAnswer]] = {}
    for one in answers.answers:
        if chosen is None or place_of(one) in chosen.places:
            wanted.setdefault(one.key, []).append(one)
    conversations = _Conversations(folder)
    made = _rounds if what != "conversations" else _wholes
    questions: dict[str, Question] = {}
    with History(folder.journal) as history:
        numbers = history.keys()
        results = {ended.key: ended.result for ended in history.ended() if ended.key in wanted}
        for key, held in wanted.items():
            turns = conversations.turns(history, numbers[key], results[key])
            for name, question in made(held, turns, what):
                known = questions.get(name)
                if known is None:
                    questions[name] = question
                    question.id, question.labels, question.overlap = name, list(labels), overlap
                else:
                    known.answers += question.answers
    for question in questions.values():
        for answer in question.answers:
            place = answer.candidate, answer.key, answer.round
            answer.probability = None if chosen is None else chosen.probabilities.get(place)
    return list(questions.values())


class _Conversations:
    """The turns of a run's conversations as its system shows them."""

    def __init__(self, folder: RunFolder) -> None:
        self._which, _ = recorded_settings(folder)
        self._transcripts = Transcripts(folder)

    def turns(self, history: History, number: int, result: Any) -> list[ShownTurn]:
        rerun = asyncio.run(self._transcripts.rerun(history, number))
        _, task = history.started(number) or ("", None)
        return self._which.shown(RecordedConversation(rerun.lines, rerun.unanswered, task, result)).turns


def _wholes(held: list[GradedAnswer], turns: list[ShownTurn], what: What) -> Iterator[tuple[str, Question]]:
    """A conversation: what stands before the candidate's first turn is the question, the rest is its answer."""
    talk = [turn for turn in turns if turn.side not in _HIDDEN]
    first = next((place for place, turn in enumerate(talk) if turn.side == "compared"), len(talk))
    before, after = talk[:first], talk[first:]
    while after and after[-1].side == "given":  # how it ended says what the judge made of it
        after.pop()
    for one in held:
        name = one.key.removeprefix(f"{one.candidate}/")
        answer = Answer(one.candidate, _said(after), one.key, one.round, one.score)
        yield name, _question(before, one, answer)


def _rounds(held: list[GradedAnswer], turns: list[ShownTurn], what: What) -> Iterator[tuple[str, Question]]:
    """Rounds of a conversation: each a question of its own, with what was said before; the reply, or the verdict on it,
    is the answer.
    """
    for one in held:
        inside = [turn for turn in turns if turn.round == one.round]
        talk = [turn for turn in turns[: turns.index(inside[0])] if turn.side not in _HIDDEN] if inside else []
        replies = [turn for turn in inside if turn.side == "compared"]
        asked = [turn for turn in inside if turn.side not in (*_HIDDEN, "compared")]
        if what == "verdicts":
            said = _verdicts(inside)
            asked += replies
        else:
            said = _said(replies)
        answer = Answer(one.candidate, said or [Said("answer", "")], one.key, one.round, one.score)
        # Of which conversation it is, graders may not see: its key names the candidate.
        token = hashlib.blake2b(one.key.encode(), digest_size=4).hexdigest()
        item = one.key.removeprefix(f"{one.candidate}/")
        yield f"{item} round {one.round} ({token})", _question([*talk, *asked], one, answer)


def _question(before: list[ShownTurn], one: GradedAnswer, answer: Answer) -> Question:
    said = _said(before)
    asked = said.pop().text if said else ""
    return Question("", asked, [], [answer], context=said, cluster=one.cluster)


def _said(turns: Iterable[ShownTurn]) -> list[Said]:
    return [Said(turn.speaker, text) for turn in turns if (text := _text(turn))]


def _text(turn: ShownTurn) -> str:
    calls = [f"`{tool.name}({tool.arguments})`" for tool in turn.tools]
    return "\n\n".join([*([turn.text] if turn.text else []), *calls])


def _verdicts(turns: Iterable[ShownTurn]) -> list[Said]:
    """What the judge said of a round: its scores, which stand on the reply, and its words."""
    found: list[Said] = []
    for turn in turns:
        marks = [f"{mark.name}: {mark.value}" + (f" – {mark.comment}" if mark.comment else "") for mark in turn.marks]
        if turn.side == "compared" and marks:
            found.append(Said("scores", "\n".join(f"- {mark}" for mark in marks)))
        elif turn.side == "judging" and turn.text:
            found.append(Said("judge", turn.text))
    return found
