"""Scenarios for viewers, which read this file alone: with log-probabilities and cached prompts, and of any length."""

from __future__ import annotations

import viva


class Talks(viva.Backend):
    """Answers with recorded log-probabilities, some of a cached prompt."""

    label = "talker"

    async def generate(self, request: viva.Request) -> viva.Completion:
        pieces = [["<b>It", -0.1, {"<b>It": -0.1, "No": -2.5}], [" is", -0.002, {}], [" warm.", -3.0, {}]]
        return viva.Completion(
            "<b>It is warm.", prompt_tokens=30, completion_tokens=3, cached_tokens=12, latency=0.2, logprobs=pieces
        )


@viva.scenario(compare="pupil")
async def talk(conversation: viva.Conversation, topic: str) -> dict[str, float]:
    """Two questions."""
    agent = viva.Agent(conversation, "pupil", "Be brief.", sampling=viva.Sampling(logprobs=2, max_tokens=9))
    await agent.ask(f"Why {topic}?")
    await conversation.compute("count", len, topic)
    await agent.ask("And then?")
    return {"score": 1.0}


class Pupil(viva.Backend):
    """Always gives the same answer."""

    def __init__(self, label: str = "pupil") -> None:
        self.label = label

    async def generate(self, request: viva.Request) -> viva.Completion:
        return viva.Completion("an answer", prompt_tokens=1, completion_tokens=1)


@viva.scenario(many="pupil", score=(0, 100))
async def questions(conversation: viva.Conversation, task: str) -> dict[str, float]:
    """As many questions as the task's first word says."""
    view = viva.View()
    for number in range(int(task.split()[0])):
        view.append("user", f"question {number}")
        view.append("assistant", (await conversation.generate("pupil", view, viva.Sampling())).text)
    return {"score": 50.0}
