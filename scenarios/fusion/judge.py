"""The judge: several predictions of all criteria's scores for one example, each in a view of its own.

A prediction that cannot be read, or not for every criterion, is asked for once more; what is missing then stays
unscored. What never belongs here: wording, and what scores are worth together (``protocol``, ``report``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from viva.agents.prompts import PromptPack
from viva.agents.reading import answer_in, own_objects
from viva.engine.conversation import Conversation
from viva.engine.gathering import gathered
from viva.engine.messages import Completion, Sampling, View

from .task_file import Criterion

ROLE = "judge"


@dataclass(slots=True)
class Prediction:
    """What one answer gives: scores and explanations by criterion. ``problem``: why some are missing; ``failures``
    counts texts that broke a rule; ``weighted`` whether scores are means over the model's probabilities.
    """

    scores: dict[str, float] = field(default_factory=dict)
    explanations: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    failures: int = 0
    weighted: bool = False


def score_schema(criteria: Mapping[str, Criterion], *, whole: bool) -> dict[str, Any]:
    """The JSON schema of a prediction. ``whole``: scores are whole numbers, from a list, so that a model can tell the
    probability of each.
    """
    properties: dict[str, Any] = {}
    for name, criterion in criteria.items():
        score: dict[str, Any] = {"type": "number"}
        if whole:
            score = {"type": "integer", "enum": whole_scores(criterion)}
        properties[name] = {
            "type": "object",
            "properties": {"explanation": {"type": "string"}, "score": score},
            "required": ["explanation", "score"],
            "additionalProperties": False,
        }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def whole_scores(criterion: Criterion) -> list[int]:
    """The whole numbers of a criterion's range; none where its ends are none."""
    low, high = criterion.range
    return list(range(int(low), int(high) + 1)) if low == int(low) and high == int(high) else []


class Judge:
    """One judge of one example. ``hint``: what a simulated one may know."""

    def __init__(
        self,
        conversation: Conversation,
        pack: PromptPack,
        criteria: Mapping[str, Criterion],
        sampling: Sampling,
        hint: Any = None,
    ) -> None:
        self._conversation, self._pack, self._criteria = conversation, pack, criteria
        self._sampling, self._hint = sampling, hint

    async def predict(self, system: str, question: str, count: int, judged: str = "") -> list[Prediction]:
        """Ask for so many predictions at once, and for each that cannot be read once more. ``judged`` is the example's
        text: what is quoted of it is no prediction.

        :raises ConversationStopped, BackendError, LimitReached: as ``Conversation.generate``.
        """
        view = View()
        view.append("system", system)
        view.append("user", question)
        # First answers have the seeds of calls in turn, as in runs of versions without branches.
        names = [f"prediction {number}" for number in range(1, count + 1)]
        parts = [self._conversation.branch(name, continuing=ROLE) for name in names]
        return await gathered([partial(self._predicted, part, view, judged) for part in parts])

    async def _predicted(self, conversation: Conversation, view: View, judged: str) -> Prediction:
        first = await conversation.generate(ROLE, view, self._sampling, hint=self._hint)
        found = self._read(first, judged)
        if found.problem is None:
            return found
        again = view.branch()
        again.append("assistant", first.text, first.pieces)
        again.append("user", self._pack.render("judge.again", problem=found.problem))
        second = await conversation.generate(ROLE, again, self._sampling, hint=self._hint)
        return _mended(found, self._read(second, judged))

    def _read(self, completion: Completion, judged: str) -> Prediction:
        if completion.kept_silent is not None:
            return Prediction(problem=f"it holds nothing (the call ended by {completion.kept_silent})", failures=1)
        found = read_scores(completion.text, self._criteria, judged)
        if found.problem is not None and completion.finish == "length":
            found.problem += "; it was cut off at the token limit"
        expected = completion.expected
        if self._sampling.expected and found.problem is None and expected and len(expected) == len(self._criteria):
            found.scores = dict(zip(self._criteria, expected, strict=True))
            found.weighted = True
        return found


def read_scores(text: str, criteria: Mapping[str, Criterion], judged: str = "") -> Prediction:
    """What a judge's text says: the usable scores of the last JSON object of its own that names a criterion."""
    objects = [value for _, value in own_objects(answer_in(text), judged) if criteria.keys() & value.keys()]
    if not objects:
        return Prediction(problem="it holds no JSON object with the criteria", failures=1)
    found, problems = Prediction(), []
    for name, criterion in criteria.items():
        part = objects[-1].get(name)
        said = part.get("score") if isinstance(part, dict) else part
        score = _number(said)
        low, high = criterion.range
        if score is None or not low <= score <= high:
            what = "is missing" if said is None else f"is {str(said)[:40]!r}"
            problems.append(f"{name}: the score {what}, expected a number from {low:g} to {high:g}")
            continue
        found.scores[name] = score
        if isinstance(part, dict) and isinstance(part.get("explanation"), str):
            found.explanations[name] = part["explanation"].strip()
    if problems:
        found.problem, found.failures = "; ".join(problems), 1
    return found


def _mended(first: Prediction, second: Prediction) -> Prediction:
    """Both answers together: the second counts where it has a score, for it was asked for with the mistake in mind."""
    scores = first.scores | second.scores
    explanations = first.explanations | second.explanations
    weighted = second.weighted
    return Prediction(scores, explanations, second.problem, first.failures + second.failures, weighted)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value.strip())
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
