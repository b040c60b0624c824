"""The assistant that is another judge: a model that grades the response by itself, without assistants.

What never belongs here: its wording (``packs/assistants.yaml``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, Field

from viva.engine.conversation import Conversation
from viva.engine.messages import Sampling

from ..agent import Agent
from .assistant import Assistant
from .example import AssistantFailed, Example
from .likelihood import short_label
from .words import open_words

GRADE_TOKENS = 512  # its longest answer


class Grade(BaseModel):
    """The form of its answer; the reasons come first so that the grade follows from them."""

    reasoning: str = Field(description="Strengths and faults of the response, in a few sentences.")
    grade: int = Field(ge=1, le=10, description="1 is useless, 10 cannot be better.")


@dataclass(frozen=True, kw_only=True)
class OtherJudge(Assistant):
    """A model's own grade of the response, 1 to 10, at temperature 0. It sees all texts of the example."""

    @classmethod
    def named(cls, spec: str, model: str) -> OtherJudge:
        """The assistant that asks ``model``."""
        return cls(
            name=f"judge:{short_label(model)}",
            spec=spec,
            title="another judge",
            compares="its grade of the response as a whole",
            low=1.0,
            high=10.0,
            model=model,
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        pack = open_words()
        agent = Agent(
            conversation,
            self.role,
            pack.render("judge.system"),
            Sampling(max_tokens=GRADE_TOKENS),
            example.hint,
        )
        texts = "\n\n".join(f"{name}:\n{text}" for name, text in example.texts.items() if text.strip())
        answer = await agent.ask_for(Grade, pack.render("judge.question", texts=texts, response=example.response))
        if answer is None:
            raise AssistantFailed("its grade could not be read, twice")
        return float(answer.grade)
