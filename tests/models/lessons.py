"""A small scenario of a user's own, its tasks and models: what tests of users' faults share."""

from __future__ import annotations

from typing import Any

import viva

TOPICS = [f"topic {number}" for number in range(8)]
MODELS: dict[str, Any] = {"pupil": "simulated:a", "tutor": "simulated:t"}


@viva.scenario(many="pupil", one="tutor")
async def lesson(conversation: viva.Conversation, topic: str) -> float:
    question = await viva.Agent(conversation, "tutor").ask(topic)
    return float(len((await viva.Agent(conversation, "pupil").ask(question.text)).text))


class Mine(Exception):
    """The user's own."""
