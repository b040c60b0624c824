"""Interviews as people read them: the first answer and the rounds, with the evaluator's scores on each reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.data.items import choice_letter
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import MalformedOutput

from ..rendering import (
    Detail,
    Mark,
    RecordedConversation,
    RenderedConversation,
    RenderedTurn,
    ResultSummary,
    Side,
    pending_turns,
    render_entry,
)
from .score import Interview, Scorer
from .verdicts import ASPECTS, PartlyReadable, Verdict, read_verdict, verdict_comments

_BEST, _WORST = 4, 1
_ENDS = {"rounds": "all rounds", "transcript": "end of the recording"}


def render_interview(recorded: RecordedConversation, sides: Mapping[str, Side]) -> RenderedConversation:
    """Return the turns by round; verdicts are marks on the reply, each score with its comment."""
    interview = None if recorded.result is None else Interview.from_record(recorded.result)
    turns: list[RenderedTurn] = []
    replies: list[RenderedTurn] = []
    questions = 0
    for entry in recorded.entries:
        turn = render_entry(entry, sides)
        if isinstance(entry, Exchange):
            if entry.role == "interactor":
                questions += 1
                turn.round = questions
            elif entry.role == "candidate":
                turn.round = len(replies) or None
                turn.marks += [] if replies else _first_marks(interview)
                replies.append(turn)
            elif entry.role == "evaluator":
                _render_verdict(turn, replies, branched=bool(entry.branch))
        turns.append(turn)
    turns += pending_turns(recorded, sides)
    if interview is not None and interview.ended_by != "rounds":
        turns.append(RenderedTurn("end", _end_text(interview), "given"))
    return RenderedConversation(turns)


def _render_verdict(turn: RenderedTurn, replies: list[RenderedTurn], *, branched: bool) -> None:
    """Move the evaluator's scores to the reply before it, and fold the raw text."""
    turn.round = max(1, len(replies) - 1)
    raw, turn.text = turn.text, ""
    if branched:  # another seed of the evaluator: the reply has the marks of the first
        turn.details.append(Detail("raw text", raw))
        return
    turn.details.append(Detail("raw text", raw))
    verdict: Verdict | None
    try:
        verdict = read_verdict(raw)
    except PartlyReadable as error:
        verdict = error.verdict
        turn.marks.append(Mark("partly readable", level=0, comment=str(error)))
    except MalformedOutput as error:
        turn.marks.append(Mark("unreadable", level=0, comment=str(error)))
        return
    comments = verdict_comments(raw)
    turn.text = comments.get("overall", "")
    # A repaired verdict replaces the first one.
    reply = replies[-1] if replies else turn
    reply.marks = [mark for mark in reply.marks if mark.name not in (*ASPECTS, "overall")]
    for name, score in zip((*ASPECTS, "overall"), verdict.scores(), strict=True):
        level = None if score is None else (score - _WORST) / (_BEST - _WORST)
        value, best = ("unscored", "") if score is None else (str(score), str(_BEST))
        reply.marks.append(Mark(name, value, level, comments.get(name, ""), best))
    if verdict.stop is not None:
        turn.marks.append(Mark("stop", verdict.stop, 0))


def _first_marks(interview: Interview | None) -> list[Mark]:
    """Return the mark of the first answer's choice; empty for questions without choices."""
    if interview is None or interview.free:
        return []
    if interview.choice is None:
        return [Mark("names no choice", level=0)]
    return [Mark(choice_letter(interview.choice), "right" if interview.right else "wrong", float(interview.right))]


def summarize_interview(result: Any, scorer: Scorer) -> ResultSummary:
    """Return an interview's summary line: its score under the run's scorer, and by aspect."""
    interview = Interview.from_record(result)
    scores = {name: scorer.score(interview, at) for at, name in enumerate(ASPECTS)}
    unscored = sum(round_.scores is None for round_ in interview.rounds)
    scored = {name: score for name, score in scores.items() if score is not None}
    return ResultSummary(scorer.score(interview), _end_text(interview), scored, unscored, len(interview.rounds))


def _end_text(interview: Interview) -> str:
    text = _ENDS.get(interview.ended_by, interview.ended_by)
    return f"{text}: {interview.reason}" if interview.reason else text
