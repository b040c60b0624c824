"""One example judged: assistants first, at once, then the judge's predictions; the record of what came of it.

What never belongs here: figures over examples (``report``), waiting and recording (the engine).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from viva.agents.assistants.assistant import consult, share
from viva.agents.assistants.example import Advice
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Sampling

from .examples_file import JudgedExample
from .judge import Judge, Prediction
from .persona import Judged
from .settings import DIRECT
from .words import Words


class FusionProtocol:
    """How a run's examples are judged."""

    def __init__(self, words: Words, sampling: Sampling, predictions: int) -> None:
        self.words, self.sampling, self.predictions = words, sampling, predictions
        self._system = words.system()

    async def hold(self, conversation: Conversation, example: JudgedExample) -> dict[str, Any]:
        """The example's record. ``scores`` by criterion: mean and standard deviation of its ``n`` predictions."""
        record: dict[str, Any] = {
            "judge": conversation.label,
            "item": example.id,
            "system": example.system,
            "group": example.group,
            "ratings": example.ratings,
            "assistants": [],
            "scores": {},
            "explanations": {},
            "repaired": 0,
            "weighted": 0,
        }
        task = self.words.task
        titles = [(task.texts[name].title, text) for name, text in example.texts.items()]
        conversation.tell(lambda: titles)
        try:
            hint = self._hint(example, [])
            advice = await consult(conversation, self.words.assistants, self.words.given(example, hint))
            record["assistants"] = [one.to_record() for one in advice]
            shown = [] if self.words.mode == DIRECT else advice
            judge = Judge(conversation, self.words.pack, task.criteria, self.sampling, self._hint(example, shown))
            question, judged = self.words.question(example, shown), "\n\n".join(example.texts.values())
            record |= self._scored(await judge.predict(self._system, question, self.predictions, judged))
        except ConversationStopped as stop:
            record["stopped"] = stop.by
        usage = conversation.usage
        record["usage"] = {role: usage[role].to_record() for role in sorted(usage)}
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    def _scored(self, predictions: Sequence[Prediction]) -> dict[str, Any]:
        scores: dict[str, Any] = {}
        explanations: dict[str, str] = {}
        for name in self.words.task.criteria:
            given = [one.scores[name] for one in predictions if name in one.scores]
            scores[name] = {
                "mean": statistics.fmean(given) if given else None,
                "sd": statistics.stdev(given) if len(given) > 1 else None,
                "n": len(given),
            }
            said = next((one.explanations[name] for one in predictions if one.explanations.get(name)), None)
            if said is not None:
                explanations[name] = said
        return {
            "scores": scores,
            "explanations": explanations,
            "repaired": sum(one.failures for one in predictions),
            "weighted": sum(one.weighted for one in predictions),
        }

    def _hint(self, example: JudgedExample, advice: Sequence[Advice]) -> Judged:
        """What simulated models may know; real ones read."""
        words, criteria = self.words, self.words.task.criteria
        truth = {name: criteria[name].share(rating) for name, rating in example.ratings.items()}
        shares = {
            one.name: share(asked.low, asked.high, asked.better, one.value)
            for asked, one in zip(words.assistants, advice, strict=False)
            if one.value is not None
        }
        use = {name: list(shares) for name in criteria}
        if words.plan is not None and words.mode == "plan":
            use = {name: words.plan.use.get(name, []) for name in criteria}
        told = {name: [shares[one] for one in names if one in shares] for name, names in use.items()}
        return Judged(example.id, criteria, truth, told)
