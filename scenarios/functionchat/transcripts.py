"""What was said in one conversation of a run, for ``viva show``.

What never belongs here: totals, and anything that asks a model or runs a tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.engine.history import RecordedCall

from .talk import CANDIDATE, JUDGE
from .turns import Turn, message_calls, said
from .users import INTERACTOR

Lines = list[tuple[str, str]]


def transcript(item: dict[str, Any], calls: Sequence[RecordedCall]) -> Lines:
    """The talk as (party, text) pairs. Of a turn: the history, the answer, the ground truth, the judge. Of a talk with
    a played user: all in the order of speaking (results of tools are not recorded: they follow from the task).
    """
    latest = {(call.role, call.ordinal): call for call in calls}
    answers = {key: said(call.completion.text, call.completion.calls or ()) for key, call in latest.items()}
    return _turn(Turn.from_record(item), answers) if "ground_truth" in item else _talk(item, latest, answers)


def _turn(turn: Turn, answers: dict[tuple[str, int], str]) -> Lines:
    lines = [(one["role"], said(one["content"] or "", message_calls(one))) for one in turn.messages]
    lines += [(CANDIDATE, text) for (role, _), text in answers.items() if role == CANDIDATE]
    lines.append(("ground truth", said(turn.ground_truth.get("content") or "", turn.expected())))
    return [*lines, *((JUDGE, answers[key]) for key in sorted(answers) if key[0] == JUDGE)]


def _talk(
    item: dict[str, Any], latest: dict[tuple[str, int], RecordedCall], answers: dict[tuple[str, int], str]
) -> Lines:
    goal = item.get("goal")
    lines: Lines = [("task", goal.strip())] if goal is not None else []
    read_out = iter(item.get("says") or ())
    asked = answered = 0
    while True:
        if goal is not None:
            if (INTERACTOR, asked) not in answers:
                return lines
            lines.append((INTERACTOR, answers[INTERACTOR, asked]))
        else:
            said_next = next(read_out, None)
            if said_next is None or (CANDIDATE, answered) not in answers:
                return lines
            lines.append(("user", said_next))
        asked += 1
        while (CANDIDATE, answered) in answers:
            lines.append((CANDIDATE, answers[CANDIDATE, answered]))
            answered += 1
            if not latest[CANDIDATE, answered - 1].completion.calls:
                break
