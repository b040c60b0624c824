"""Reads an interview back from what an examiner is shown: item, questions and replies, in any prompt pack's words.

A real model in the oracle's place gets the same messages and no more. What never belongs here: what is true
(``world``) and what a reply is worth (``judging``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from viva.agents.reading import answer_in
from viva.engine.messages import Message

# A reply may hold markers itself: it ends at the last one, its question at the first.
_EXCHANGE = re.compile(
    r"\[BEGIN INTERACTOR\](.*?)\[END INTERACTOR\].*?\[BEGIN CANDIDATE\](.*)\[END CANDIDATE\]", re.DOTALL
)
_CHOICE = re.compile(r"^\s*([A-Z])[.)]\s+(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LabExchange:
    """What was asked and what the candidate said, without blanks around; a reply as far as any reader reads one."""

    question: str
    reply: str


def exchanges(messages: Sequence[Message]) -> list[LabExchange]:
    """The exchanges that an evaluator was shown, in order; the first is the benchmark item and its answer.

    They stand between the party markers of the protocol (``[BEGIN INTERACTOR]`` … ``[END CANDIDATE]``). A request to
    repair a verdict shows none and is passed over.
    """
    found = [_EXCHANGE.search(message.content) for message in messages if message.role == "user"]
    return [
        LabExchange(match.group(1).strip(), answer_in(match.group(2)).strip()) for match in found if match is not None
    ]


def choices_in(text: str) -> list[str]:
    """The options of an item, from lines ``A. …``, ``B. …`` in the order of the alphabet; empty if there are none."""
    options: list[str] = []
    for letter, words in _CHOICE.findall(text):
        if letter == chr(65 + len(options)):
            options.append(words)
    return options


def own_questions(messages: Sequence[Message]) -> list[str]:
    """What an interactor has asked so far."""
    return [message.content.strip() for message in messages if message.role == "assistant"]


def opening(messages: Sequence[Message]) -> str:
    """The message in which an interactor is told of the item; empty if there is none."""
    return next((message.content for message in messages if message.role == "user"), "")
