"""Judging of one example: assistants first, concurrently, then the judge's predictions of all criteria.

The module also has the knowledge of simulated judges.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any

import orjson

from viva.agents.agent import repair_view
from viva.agents.assistants.assistant import AssistantResult, score_all, to_unit_scale
from viva.agents.forms import finite_number, readable_text, unquoted_objects
from viva.agents.prompts import PromptPack
from viva.engine import seeds
from viva.engine.backends.simulated import SimulatedBackend, SimulatedReply
from viva.engine.cancellation import gather
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Completion, Request, Sampling, View

from ..run_aggregate import conversation_costs
from ..simulated_knowledge import judgement
from .fusion_prompts import JudgePrompts
from .fusion_settings import DIRECT
from .task_files import Criterion, JudgedExample

JUDGE = "judge"


@dataclass(slots=True)
class Prediction:
    """A judge's prediction in one answer: scores and explanations by criterion.

    `problem` says why some scores are missing; `failures` counts invalid texts; `weighted` scores are means over the
    model's probabilities.
    """

    scores: dict[str, float] = field(default_factory=dict)
    explanations: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    failures: int = 0
    weighted: bool = False


def score_schema(criteria: Mapping[str, Criterion], *, whole_numbers: bool) -> dict[str, Any]:
    """Return the JSON schema of a prediction.

    With `whole_numbers`, scores are from a list of whole numbers, so that a model can return the probability of each.
    """
    properties: dict[str, Any] = {}
    for name, criterion in criteria.items():
        score: dict[str, Any] = {"type": "number"}
        if whole_numbers:
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
    """Return the whole numbers of a criterion's range; empty if its ends are not whole numbers."""
    low, high = criterion.range
    return list(range(int(low), int(high) + 1)) if low == int(low) and high == int(high) else []


def prediction_name(number: int) -> str:
    """Return the name of a prediction's branch; predictions are counted from 1."""
    return f"prediction {number}"


class Judge:
    """A judge of one example; `hint` is for simulated judges."""

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
        """Request `count` predictions at once, and retry each unreadable one once.

        `judged` is the text of the example: quotations of it are not read as predictions. Errors are as for
        `Conversation.generate`.
        """
        view = View()
        view.append("system", system)
        view.append("user", question)
        # First answers have the seeds of consecutive calls, as in versions without branches.
        names = map(prediction_name, range(1, count + 1))
        parts = [self._conversation.branch(name, continuing=JUDGE) for name in names]
        return await gather([partial(self._predict_once, part, view, judged) for part in parts])

    async def _predict_once(self, conversation: Conversation, view: View, judged: str) -> Prediction:
        first = await conversation.generate(JUDGE, view, self._sampling, hint=self._hint)
        prediction = self._read(first, judged)
        if prediction.problem is None:
            return prediction
        repair = repair_view(view, first, self._pack.render("judge.again", problem=prediction.problem))
        second = await conversation.generate(JUDGE, repair, self._sampling, hint=self._hint)
        return _merge_repair(prediction, self._read(second, judged))

    def _read(self, completion: Completion, judged: str) -> Prediction:
        if completion.refusal_reason is not None:
            return Prediction(problem=f"it holds nothing (the call ended by {completion.refusal_reason})", failures=1)
        prediction = read_scores(completion.text, self._criteria, judged)
        if prediction.problem is not None and completion.finish == "length":
            prediction.problem += "; it was cut off at the token limit"
        expected = completion.expected
        if self._sampling.expected and prediction.problem is None and expected and len(expected) == len(self._criteria):
            prediction.scores = dict(zip(self._criteria, expected, strict=True))
            prediction.weighted = True
        return prediction


def read_scores(text: str, criteria: Mapping[str, Criterion], judged: str = "") -> Prediction:
    """Parse a judge's text: the usable scores of its last JSON object that names a criterion and is no quotation."""
    objects = [value for _, value in unquoted_objects(readable_text(text), judged) if criteria.keys() & value.keys()]
    if not objects:
        return Prediction(problem="it holds no JSON object with the criteria", failures=1)
    prediction, problems = Prediction(), []
    for name, criterion in criteria.items():
        part = objects[-1].get(name)
        raw_score = part.get("score") if isinstance(part, dict) else part
        score = finite_number(raw_score)
        low, high = criterion.range
        if score is None or not low <= score <= high:
            fault = "is missing" if raw_score is None else f"is {str(raw_score)[:40]!r}"
            problems.append(f"{name}: the score {fault}, expected a number from {low:g} to {high:g}")
            continue
        prediction.scores[name] = score
        if isinstance(part, dict) and isinstance(part.get("explanation"), str):
            prediction.explanations[name] = part["explanation"].strip()
    if problems:
        prediction.problem, prediction.failures = "; ".join(problems), 1
    return prediction


def _merge_repair(first: Prediction, second: Prediction) -> Prediction:
    """Merge both predictions; scores of the second one win, because it knows the mistakes of the first."""
    scores = first.scores | second.scores
    explanations = first.explanations | second.explanations
    weighted = second.weighted
    return Prediction(scores, explanations, second.problem, first.failures + second.failures, weighted)


_NORMAL = NormalDist()
_JITTER = 0.25


@dataclass(slots=True, frozen=True)
class JudgeHint:
    """The facts that a simulated model may use about an example.

    `truth` has the true share (0–1) of each criterion; `assistant_shares` has the shares that its assistants gave.
    """

    example: str
    criteria: Mapping[str, Criterion]
    truth: Mapping[str, float]
    assistant_shares: Mapping[str, list[float]] = field(default_factory=dict)

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return a judge's answer, or the grade of a judging assistant."""
        shares = {name: self._unit_score(model, name, request.seed) for name in self.criteria}
        if request.role != JUDGE:
            mean = sum(shares.values()) / len(shares)
            return orjson.dumps({"reasoning": "As a whole.", "grade": 1 + round(9 * mean)}).decode(), None
        whole_numbers = _has_whole_scores(request.sampling.schema)
        answer: dict[str, Any] = {}
        for name, criterion in self.criteria.items():
            low, high = criterion.range
            score = low + shares[name] * (high - low)
            answer[name] = {
                "explanation": f"It is at {shares[name]:.2f} of the range.",
                "score": round(score) if whole_numbers else round(score, 3),
            }
        return judgement(model, orjson.dumps(answer).decode(), chance), None

    def _unit_score(self, model: SimulatedBackend, name: str, seed: int) -> float:
        true = self.truth.get(name, seeds.uniform(self.example, name, "true"))
        own = true + model.noise * _normal_deviate(model.label, self.example, name, "impression")
        own += _JITTER * model.noise * _normal_deviate(seed, name, "prediction")
        assistant_shares = self.assistant_shares.get(name, [])
        if assistant_shares:
            own = (own + sum(assistant_shares) / len(assistant_shares)) / 2
        return min(1.0, max(0.0, own))


def _normal_deviate(*parts: object) -> float:
    return _NORMAL.inv_cdf(min(max(seeds.uniform(*parts), 1e-9), 1 - 1e-9))


def _has_whole_scores(schema: Any) -> bool:
    parts = schema["properties"].values() if schema else ()
    return any(part["properties"]["score"]["type"] == "integer" for part in parts)


class FusionProtocol:
    """The judging conversations of a run."""

    def __init__(self, prompts: JudgePrompts, sampling: Sampling, predictions: int) -> None:
        self.prompts, self.sampling, self.predictions = prompts, sampling, predictions
        self._system = prompts.system()

    async def run(self, conversation: Conversation, example: JudgedExample) -> dict[str, Any]:
        """Judge an example and return its record.

        Its `scores` have the mean and standard deviation of `n` predictions by criterion.
        """
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
        task = self.prompts.task
        titles = [(task.texts[name].title, text) for name, text in example.texts.items()]
        conversation.tell(lambda: titles)
        try:
            hint = self._hint(example, [])
            advice = await score_all(
                conversation, self.prompts.assistants, self.prompts.assistant_example(example, hint)
            )
            record["assistants"] = [result.to_record() for result in advice]
            results = [] if self.prompts.mode == DIRECT else advice
            judge = Judge(conversation, self.prompts.pack, task.criteria, self.sampling, self._hint(example, results))
            question, judged = self.prompts.question(example, results), "\n\n".join(example.texts.values())
            record |= self._score_record(await judge.predict(self._system, question, self.predictions, judged))
        except ConversationStopped as stop:
            record["stopped"] = stop.by
        return record | conversation_costs(conversation)

    def _score_record(self, predictions: Sequence[Prediction]) -> dict[str, Any]:
        scores: dict[str, Any] = {}
        explanations: dict[str, str] = {}
        for name in self.prompts.task.criteria:
            values = [prediction.scores[name] for prediction in predictions if name in prediction.scores]
            scores[name] = {
                "mean": statistics.fmean(values) if values else None,
                "sd": statistics.stdev(values) if len(values) > 1 else None,
                "n": len(values),
            }
            explanation = next(
                (prediction.explanations[name] for prediction in predictions if prediction.explanations.get(name)), None
            )
            if explanation is not None:
                explanations[name] = explanation
        return {
            "scores": scores,
            "explanations": explanations,
            "repaired": sum(prediction.failures for prediction in predictions),
            "weighted": sum(prediction.weighted for prediction in predictions),
        }

    def _hint(self, example: JudgedExample, advice: Sequence[AssistantResult]) -> JudgeHint:
        """Return the facts for simulated models; real models read the example."""
        prompts, criteria = self.prompts, self.prompts.task.criteria
        truth = {name: criteria[name].to_unit(rating) for name, rating in example.ratings.items()}
        shares = {
            result.name: to_unit_scale(assistant.low, assistant.high, assistant.better, result.value)
            for assistant, result in zip(prompts.assistants, advice, strict=False)
            if result.value is not None
        }
        use = {name: list(shares) for name in criteria}
        if prompts.plan is not None and prompts.mode == "plan":
            use = {name: prompts.plan.use.get(name, []) for name in criteria}
        assistant_shares = {
            name: [shares[source] for source in names if source in shares] for name, names in use.items()
        }
        return JudgeHint(example.id, criteria, truth, assistant_shares)
