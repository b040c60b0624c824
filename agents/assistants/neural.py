"""Assistants that are small neural models in a local folder: entailment and embedding similarity (extra ``neural``).

Each model is loaded once in a process and computes one pair at a time, so that a figure depends on its pair alone.
``torch``, ``transformers`` and ``sentence-transformers`` are imported when a number is first computed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError

from .assistant import Assistant, number_of
from .example import Example
from .text_metrics import require_package

EXTRA = "neural"
_SECONDS = 600.0  # the first pair loads the model
_ONE = threading.Lock()  # models are no objects for several threads at once


def entailment(folder: str, premise: str, hypothesis: str) -> float:
    """The probability that ``premise`` entails ``hypothesis`` (0–1): the softmax share of the class ``entailment`` of a
    sequence classifier. Texts beyond the model's length are cut, the premise first.

    :raises ValueError: the model has no class of that name.
    """
    import torch

    with _ONE:
        tokenizer, model = _classifier(folder)
        names = {str(name).lower(): place for place, name in model.config.id2label.items()}
        if "entailment" not in names:
            raise ValueError(f"the model has no class 'entailment', but {', '.join(sorted(names))}")
        pair = tokenizer(
            premise, hypothesis, return_tensors="pt", truncation="only_first", max_length=_length(tokenizer)
        )
        with torch.inference_mode():
            shares = model(**pair).logits[0].double().softmax(-1)
        return float(shares[int(names["entailment"])])


def similarity(folder: str, first: str, second: str) -> float:
    """The cosine of two texts' embeddings (-1 to 1), by a sentence-transformers model; of a plain transformer the mean
    of its token vectors (Reimers and Gurevych 2019).
    """
    with _ONE:
        one, other = _embedder(folder).encode([first, second], batch_size=1, normalize_embeddings=True)
    return min(1.0, max(-1.0, float((one.astype("float64") * other.astype("float64")).sum())))


# By kind: what it is called, its function, its package, its least number, and what it compares.
KINDS: dict[str, tuple[str, Callable[[str, str, str], float], str, float, str]] = {
    "nli": ("entailment", entailment, "transformers", 0.0, "the probability that {} entails the response"),
    "embedding": ("embedding similarity", similarity, "sentence_transformers", -1.0, "the response with {}"),
}


@dataclass(frozen=True, kw_only=True)
class Neural(Assistant):
    """One of ``KINDS`` by a model in a local folder."""

    comparing = True
    kind: str
    folder: Path

    @classmethod
    def named(cls, spec: str, kind: str, folder: str, against: str | None) -> Neural:
        """The assistant of a kind in ``KINDS`` that has this folder's model compute."""
        title, _, _, low, compares = KINDS[kind]
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
        other, function = example.text(self.against), KINDS[self.kind][1]
        return number_of(
            await conversation.compute(self.name, function, str(self.folder), other, example.response, limit=_SECONDS)
        )

    def check(self) -> None:
        require_package(self.name, KINDS[self.kind][2], EXTRA)
        if not (self.folder / "config.json").is_file():
            raise ConfigurationError(
                f"assistant '{self.spec}': {self.folder} holds no model (no config.json); name a folder that "
                "save_pretrained has written"
            )

    def facts(self) -> dict[str, Any]:
        config = (self.folder / "config.json").read_bytes()
        sizes = sorted(f"{one.name} {one.stat().st_size}" for one in self.folder.iterdir() if one.is_file())
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


def _length(tokenizer: Any) -> int:
    """The longest input in tokens; tokenizers that know of no limit give a huge number."""
    return min(int(tokenizer.model_max_length), 512) if tokenizer.model_max_length else 512
