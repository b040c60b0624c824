"""A parametric model that can play candidate, interactor and evaluator on any multiple-choice item.

It answers in plain sentences built from the item that the request hints at, and an evaluator of this kind really reads
the reply it judges. Every draw follows from the call's seed, so the same run says the same things. It costs nothing,
which makes it the model of the demo, of tests, and of forecasts under the virtual clock.

What never belongs here: anything that a real backend's result could depend on.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import orjson

from .. import seeds
from ..clock import Clock
from ..errors import Throttled, Unavailable
from ..likelihood import Likelihood, Reading
from ..messages import Completion, Request
from .base import Backend, ModelSpec, hint_field
from .simulated_tools import Said, mistaken_answer, true_answer, verdict_text

_NORMAL = NormalDist()
_ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
_QUESTIONS = (
    "Suppose one condition in this problem were reversed: which part of your reasoning would no longer hold?",
    "Which mechanism links the facts you rely on, and how could one observe it?",
    "Name a case that looks similar but has another outcome, and say what makes the difference.",
    "Which assumption carries most of the weight here, and what would show that it is wrong?",
    "How would you explain the underlying principle to somebody who holds the opposite view?",
    "What quantity would you measure first to decide between the competing explanations?",
)
_FILLERS = (
    "That follows from the principle the question rests on.",
    "The other options do not fit the observations described.",
    "One can check this by changing one condition at a time.",
    "The effect grows with the cause and vanishes without it.",
)
_OFF_TOPIC = "That reminds me of a recipe for lemon cake, which needs three eggs and patience."


class SimulatedBackend(Backend):
    """See the module. All rates are probabilities in 0…1.

    :param knowledge: share of items whose subject the candidate understands; where tools are offered and the hint
        tells the ``ground_truth``, an OpenAI-form message of the assistant: the chance that it answers with that.
    :param memorisation: share of items whose answer it can recite without understanding.
    :param verbosity: scales the number of extra sentences, 0 to twice this.
    :param noise: chance that a verdict's score is off by one, that a verdict of the role ``judge``, whose hint tells
        whether the answer ``passed``, is wrong; :param malformed: that a verdict is not valid JSON.
    :param latency: median seconds of a log-normal with ``sigma``.
    :param fail: chance that an attempt ends in Unavailable; :param throttle: in Throttled.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        knowledge: float = 0.7,
        memorisation: float = 0.0,
        verbosity: float = 1.0,
        noise: float = 0.1,
        malformed: float = 0.0,
        latency: float = 0.0,
        sigma: float = 0.8,
        fail: float = 0.0,
        throttle: float = 0.0,
    ) -> None:
        self.knowledge, self.memorisation, self.verbosity = knowledge, memorisation, verbosity
        self.noise, self.malformed = noise, malformed
        self.latency, self.sigma = latency, sigma
        self.fail, self.throttle = fail, throttle
        self.fallible = fail > 0 or throttle > 0
        self._clock = clock
        self._tries: dict[bytes, int] = {}
        self._calls = 0

    async def generate(self, request: Request) -> Completion:
        self._calls += 1
        chance = seeds.draws(request.seed, "simulated")
        seconds = 0.0
        if self.latency:
            seconds = self.latency * math.exp(self.sigma * _NORMAL.inv_cdf(min(max(chance[0], 1e-9), 1 - 1e-9)))
        await self._clock.sleep(seconds)
        if self.fallible:
            self._maybe_fail(request.digest, request.seed)
        text, calls = self._say(request, chance)
        if request.on_text is not None and (text or not calls):
            for piece in text.split(" "):
                request.on_text(piece + " ")
        said = len(text)
        if calls:
            said += sum(len(call.name) + len(call.arguments) for call in calls)
        return Completion(text, "stop", request.characters // 4, max(1, said // 4), seconds, calls=calls)

    async def read(self, reading: Reading) -> Completion:
        """Options of an item it knows, or recites, are likely where they are right; a text it recites is likely."""
        self._calls += 1
        digest = int.from_bytes(reading.digest()[:8])
        await self._clock.sleep(self.latency)
        if self.fallible:
            self._maybe_fail(reading.digest(), digest)
        chance = seeds.draws(digest, "read")
        key = (self.label, hint_field(reading.hint, "id"))
        unseen = bool(hint_field(reading.hint, "unseen"))
        recites = not unseen and seeds.uniform(*key, "recites") < self.memorisation
        knows = seeds.uniform(*key, "knows") < self.knowledge
        right = hint_field(reading.hint, "answer") if len(reading.continuations) > 1 else None
        likelihoods = []
        for index, text in enumerate(reading.continuations):
            # About a token for four characters; a token's surprise is exponential, as natural text's roughly is.
            count = max(1, len(text) // 4)
            mean = 0.7 if (index == right and (knows or recites)) or (right is None and recites) else 2.5
            logprobs = [mean * math.log(1 - seeds.uniform(digest, index, place) * 0.9999) for place in range(count)]
            if index == right and (knows or recites):
                logprobs[0] = -0.05 * (1 + chance[index % len(chance)])
            likelihoods.append(Likelihood(logprobs, index == right and knows))
        prompt = sum(map(len, [reading.shared, reading.context, *reading.continuations])) // 4
        return Completion("", "stop", prompt, 0, self.latency, likelihoods=likelihoods)

    def statistics(self) -> dict[str, Any]:
        return {"calls": self._calls}

    def _maybe_fail(self, digest: bytes, seed: int) -> None:
        # Drawn by attempt, so a retry may succeed; forgotten on success, so memory does not grow.
        attempt = self._tries.get(digest, 0)
        chance = seeds.uniform(seed, "attempt", attempt)
        if chance < self.fail + self.throttle:
            self._tries[digest] = attempt + 1
            if chance < self.fail:
                raise Unavailable("simulated failure", model=self.label)
            raise Throttled("simulated 429", model=self.label, status=429, retry_after=1.0)
        self._tries.pop(digest, None)

    def _say(self, request: Request, chance: list[float]) -> Said:
        if request.role == "evaluator":
            return self._judge(request, chance), None
        if request.role == "interactor":
            return _QUESTIONS[int(chance[1] * len(_QUESTIONS))], None
        if request.role == "judge" and (passed := hint_field(request.hint, "passed")) is not None:
            text = verdict_text(bool(passed) != (chance[1] < self.noise))
            return _spoil(text, chance[14]) if chance[13] < self.malformed else text, None
        if request.tools is not None and (truth := hint_field(request.hint, "ground_truth")) is not None:
            # Drawn for each call, not by item: turns of one talk, and repeated runs, differ as a model's do.
            said = true_answer(truth)
            return said if chance[1] < self.knowledge else mistaken_answer(said, request, request.tools, chance[2:4])
        return self._answer(request, chance), None

    # -- candidate ------------------------------------------------------------------------------------------------

    def _answer(self, request: Request, chance: list[float]) -> str:
        choices = hint_field(request.hint, "choices")
        if not choices:
            return _FILLERS[int(chance[2] * len(_FILLERS))]
        right = int(hint_field(request.hint, "answer"))
        # What it knows belongs to the model and the item, not to the turn: it stays the same through the talk.
        key = (self.label, hint_field(request.hint, "id"))
        knows = seeds.uniform(*key, "knows") < self.knowledge
        if request.ordinal == 0 or hint_field(request.hint, "static"):
            recites = seeds.uniform(*key, "recites") < self.memorisation
            pick = right if knows or recites else int(chance[3] * len(choices))
            return f"The answer is {chr(65 + pick)}. {choices[pick]}."
        wrong = (right + 1 + int(chance[3] * (len(choices) - 1))) % len(choices)
        mood = chance[4]
        if knows:
            say = f"It comes down to this: {choices[right]}." if mood < 0.95 else "I believe it depends on the details."
        elif mood < 0.55:
            say = f"It comes down to this: {choices[wrong]}."
        elif mood < 0.75:
            say = "I believe it depends on the details."
        elif mood < 0.83:
            say = f"It comes down to this: {choices[right]}."
        elif mood < 0.90:
            return _OFF_TOPIC
        elif mood < 0.96:
            return " ".join([f"It is {choices[wrong]}, it is {choices[wrong]}."] * 6)
        else:
            return ""
        extra = int(self.verbosity * 2 * chance[5])
        return " ".join([say, *(_FILLERS[(i + int(chance[6] * 4)) % 4] for i in range(extra))])

    # -- evaluator ------------------------------------------------------------------------------------------------

    def _judge(self, request: Request, chance: list[float]) -> str:
        reply = str(hint_field(request.hint, "reply") or "")
        choices = hint_field(request.hint, "choices") or []
        right = int(hint_field(request.hint, "answer") or 0)
        said_right = any(choice in reply for choice in choices[right : right + 1])
        said_wrong = any(choice in reply for i, choice in enumerate(choices) if i != right)
        stop = "none"
        if not reply.strip():
            level, stop = 1, "empty_response"
        elif _OFF_TOPIC in reply:
            level, stop = 1, "off_topic"
        elif said_wrong and reply.count("it is") >= 5:
            level, stop = 1, "repetition"
        elif said_right and not said_wrong:
            level = 4
        elif said_wrong:
            level = 1 if not said_right else 2
        else:
            level = 2
        scores = [self._noisy(level if i < 2 or level < 3 else 4, chance[7 + i]) for i in range(5)]
        if stop == "none" and level < 3:
            scores[2:] = [self._noisy(3, chance[9 + i]) for i in range(3)]
        verdict: dict[str, Any] = {
            name: {"comment": f"The reply is at level {score} here.", "score": score}
            for name, score in zip(_ASPECTS, scores, strict=True)
        }
        verdict["overall_comment"] = "Taken over the talk so far."
        verdict["overall_score"] = self._noisy(level, chance[12])
        verdict["stop_conversation"] = stop != "none"
        verdict["stop_reason"] = stop
        text = orjson.dumps(verdict).decode()
        if chance[13] < self.malformed:
            return _spoil(text, chance[14])
        return text

    def _noisy(self, score: int, chance: float) -> int:
        if chance >= self.noise:
            return score
        return min(4, max(1, score + (1 if chance < self.noise / 2 else -1)))


def _spoil(text: str, chance: float) -> str:
    """What judges really send when they do not send JSON; the first two can still be read, the others cannot."""
    if chance < 0.2:
        return f"Here is my verdict:\n```json\n{text}\n```"
    if chance < 0.4:
        return text[:-1] + ",}"
    if chance < 0.7:
        return text[: len(text) // 2]
    return "The candidate did rather well on the whole."


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """A simulated model from ``simulated:label?knowledge=…&…``; the options are the constructor's parameters."""
    rate = {name: spec.number(name, default, 0.0, 1.0) for name, default in _RATES.items()}
    amount = {name: spec.number(name, default) for name, default in _AMOUNTS.items()}
    return SimulatedBackend(clock, **rate, **amount)


_RATES = {"knowledge": 0.7, "memorisation": 0.0, "noise": 0.1, "malformed": 0.0, "fail": 0.0, "throttle": 0.0}
_AMOUNTS = {"verbosity": 1.0, "latency": 0.0, "sigma": 0.8}
