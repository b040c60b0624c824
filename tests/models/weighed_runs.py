"""Runs whose scores are given: one question about each task, and the reply is the score. The viewer imports this."""

from __future__ import annotations

import math
from pathlib import Path

import viva


@viva.scenario(compare="pupil", score=(0, 1), unit="points")
async def weighed(conversation: viva.Conversation, task: str) -> float:
    """One question; the reply is its score."""
    view = viva.View()
    view.append("user", task)
    return float((await conversation.generate("pupil", view, viva.Sampling())).text)


class Scored(viva.Backend):
    """Answers each task with the score that stands for it."""

    def __init__(self, label: str, scores: dict[str, float]) -> None:
        self.label, self._scores = label, scores

    async def generate(self, request: viva.Request) -> viva.Completion:
        score = self._scores[request.messages[-1].content]
        if math.isnan(score):
            raise viva.BackendError("no answer", model=self.label)
        return viva.Completion(str(score))


def weighed_run(out: Path, scores: dict[str, list[float]], seed: int = 7) -> None:
    """Run candidates whose scores on the tasks are those of the columns of `scores`."""
    many = len(next(iter(scores.values())))
    models = [Scored(f"m{at:02}", {task: row[at] for task, row in scores.items()}) for at in range(many)]
    viva.run_sync(weighed, models={"pupil": models}, tasks=list(scores), out=out, seed=seed)
