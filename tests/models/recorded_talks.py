"""A scenario whose answers have log-probabilities and cached prompts; viewers read this file alone."""

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
