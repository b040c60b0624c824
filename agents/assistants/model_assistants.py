"""Assistants that are models: likelihood, another judge's grade, entailment, embedding similarity.

Entailment and similarity come from small neural models in a local folder (extra `neural`). Each is loaded once per
process and computes one pair at a time, so that a figure depends only on its pair. `torch`, `transformers` and
`sentence-transformers` are imported late.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from viva.engine.backends.base import ModelSpec
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling

from ..agent import Agent
from .assistant import Assistant, AssistantFailed, Example, load_assistant_pack, number_from_step
from .text_metrics import require_package


@dataclass(frozen=True, kw_only=True)
class LikelihoodAssistant(Assistant):
    """Geometric mean of the probabilities of the response's tokens given its context (0–1), the inverse of perplexity.

    Being a mean over tokens it does not fall with the response's length. It depends on the model's vocabulary: figures
    of two models are not comparable.

    Source: Fu et al. 2023, GPTScore (they use its logarithm).
    """

    @classmethod
    def from_name(cls, spec: str, model: str) -> LikelihoodAssistant:
        """Return the assistant that has `model` read the responses."""
        return cls(
            name=f"logprob:{short_label(model)}",
            spec=spec,
            title="token probability",
            compares="how probable a language model finds the response after its context, as a mean over tokens",
            model=model,
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        if not example.response.strip():
            raise AssistantFailed("the response is empty")
        context = example.preceding()
        # A blank line separates the response from the context, like the texts of the context.
        reading = Reading(f"{context}\n\n" if context else "", (example.response,), hint=example.hint)
        likelihoods = await conversation.read(self.role, reading)
        if not likelihoods or not likelihoods[0].logprobs:
            raise AssistantFailed("the model read no token of the response")
        return math.exp(likelihoods[0].total / len(likelihoods[0].logprobs))


def short_label(model: str) -> str:
    """Return a model's label; for a path, only its last part."""
    label = ModelSpec.parse(model).label
    return label.rpartition("/")[2] or label


GRADE_TOKENS = 512  # maximum tokens of the judge's answer


class Grade(BaseModel):
    """The form of its answer; the reasons come first so that the grade follows from them."""

    reasoning: str = Field(description="Strengths and faults of the response, in a few sentences.")
    grade: int = Field(ge=1, le=10, description="1 is useless, 10 cannot be better.")


@dataclass(frozen=True, kw_only=True)
class JudgeAssistant(Assistant):
    """Another model's grade of the response, 1 to 10, at temperature 0. It sees all texts of the example."""

    @classmethod
    def from_name(cls, spec: str, model: str) -> JudgeAssistant:
        """Return the assistant that asks `model`."""
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
        pack = load_assistant_pack()
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


NEURAL_EXTRA = "neural"
_TIMEOUT = 600.0  # the first pair loads the model
_MODEL_LOCK = threading.Lock()  # models are not thread-safe


def entailment(folder: str, premise: str, hypothesis: str) -> float:
    """Return the probability that `premise` entails `hypothesis` (0–1), by a sequence classifier.

    It is the softmax probability of the class `entailment`. If both texts together exceed the model's length, the
    end of the premise is cut off; the hypothesis is never cut.
    """
    import torch

    with _MODEL_LOCK:
        tokenizer, model = _classifier(folder)
        names = {str(name).lower(): index for index, name in model.config.id2label.items()}
        if "entailment" not in names:
            raise ValueError(f"the model has no class 'entailment', but {', '.join(sorted(names))}")
        pair = tokenizer(
            premise, hypothesis, return_tensors="pt", truncation="only_first", max_length=_max_tokens(tokenizer)
        )
        with torch.inference_mode():
            shares = model(**pair).logits[0].double().softmax(-1)
        return float(shares[int(names["entailment"])])


def similarity(folder: str, first: str, second: str) -> float:
    """Return the cosine of two texts' embeddings (-1 to 1), by a sentence-transformers model."""
    with _MODEL_LOCK:
        first_vector, second_vector = _embedder(folder).encode([first, second], batch_size=1, normalize_embeddings=True)
    return min(1.0, max(-1.0, float((first_vector.astype("float64") * second_vector.astype("float64")).sum())))


# By kind: title, function, package, lower bound, and what it compares.
NEURAL_KINDS: dict[str, tuple[str, Callable[[str, str, str], float], str, float, str]] = {
    "nli": ("entailment", entailment, "transformers", 0.0, "the probability that {} entails the response"),
    "embedding": ("embedding similarity", similarity, "sentence_transformers", -1.0, "the response with {}"),
}


@dataclass(frozen=True, kw_only=True)
class NeuralAssistant(Assistant):
    """An assistant of `NEURAL_KINDS`, by a model in a local folder."""

    comparing = True
    kind: str
    folder: Path

    @classmethod
    def from_name(cls, spec: str, kind: str, folder: str, against: str | None) -> NeuralAssistant:
        """Return the assistant of a kind in `NEURAL_KINDS` that uses this folder's model."""
        title, _, _, low, compares = NEURAL_KINDS[kind]
        return cls(
            name=f"{kind}:{Path(folder).name}{spec.partition(folder)[2]}",
            spec=spec,
            title=title,
            compares=compares.format(against or "the reference"),
            low=low,
            kind=kind,
            folder=Path(folder),
            against=against,
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        reference, function = example.text(self.against), NEURAL_KINDS[self.kind][1]
        return number_from_step(
            await conversation.compute(
                self.name, function, str(self.folder), reference, example.response, limit=_TIMEOUT
            )
        )

    def check(self) -> None:
        require_package(self.name, NEURAL_KINDS[self.kind][2], NEURAL_EXTRA)
        if not (self.folder / "config.json").is_file():
            raise ConfigurationError(
                f"assistant '{self.spec}': {self.folder} contains no model (no config.json); name a folder written "
                "by save_pretrained"
            )

    def facts(self) -> dict[str, Any]:
        config = (self.folder / "config.json").read_bytes()
        sizes = sorted(f"{file.name} {file.stat().st_size}" for file in self.folder.iterdir() if file.is_file())
        return super().facts() | {"digest": hashlib.sha256(config + "\n".join(sizes).encode()).hexdigest()[:16]}


@cache
def _classifier(folder: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer, AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()


@cache
def _embedder(folder: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu", local_files_only=True)


def _max_tokens(tokenizer: Any) -> int:
    """Return the longest input in tokens; tokenizers without a limit report a huge number."""
    return min(int(tokenizer.model_max_length), 512) if tokenizer.model_max_length else 512
