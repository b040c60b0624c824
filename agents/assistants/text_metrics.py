"""Text metrics of a response against a reference (ROUGE, BLEU, chrF, METEOR), as functions and assistants.

The packages rouge-score, sacrebleu and nltk (extra `metrics`) compute the figures. Each package is imported when one of
its metrics is first computed. An empty text scores 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.imports import import_under_lock

from .assistant import Assistant, Example, number_from_step

METRICS_EXTRA = "metrics"
# nltk's tokenizer needs downloaded data; this one yields runs of letters and digits, and single other characters.
_WORDS = re.compile(r"\w+|[^\w\s]")


def rouge_1(text: str, reference: str) -> float:
    """Compute ROUGE-1: F1 of single words, stemmed (Lin 2004; rouge-score)."""
    return _rouge("rouge1", text, reference)


def rouge_2(text: str, reference: str) -> float:
    """Compute ROUGE-2: F1 of pairs of words, stemmed (Lin 2004; rouge-score)."""
    return _rouge("rouge2", text, reference)


def rouge_l(text: str, reference: str) -> float:
    """Compute ROUGE-L: F1 of the longest common subsequence of words, stemmed (Lin 2004; rouge-score)."""
    return _rouge("rougeL", text, reference)


def bleu(text: str, reference: str) -> float:
    """Compute BLEU of a sentence as sacrebleu does, divided by 100 (Papineni et al. 2002; Chen and Cherry 2014)."""
    return 0.0 if not text.strip() else _clip_to_one(float(_bleu().sentence_score(text, [reference]).score) / 100)


def chrf(text: str, reference: str) -> float:
    """Compute sentence chrF (Popović 2015; sacrebleu): F2 of sequences of up to six characters, divided by 100."""
    return 0.0 if not text.strip() else _clip_to_one(float(_chrf().sentence_score(text, [reference]).score) / 100)


def meteor(text: str, reference: str) -> float:
    """Compute METEOR (Banerjee and Lavie 2005) by nltk with alpha 0.9, beta 3, gamma 0.5.

    Without WordNet (`has_wordnet`) synonyms do not match, and figures are slightly lower.
    """
    single_meteor_score = import_under_lock("nltk.translate.meteor_score").single_meteor_score
    words, reference_words = _WORDS.findall(text), _WORDS.findall(reference)
    if not words or not reference_words:
        return 0.0
    return _clip_to_one(float(single_meteor_score(reference_words, words, wordnet=_load_wordnet())))


@cache
def has_wordnet() -> bool:
    """Return True if nltk finds WordNet (`python -m nltk.downloader wordnet` fetches it).

    Raises:
        ImportError: nltk is not installed.
    """
    wordnet = import_under_lock("nltk.corpus").wordnet
    try:
        wordnet.ensure_loaded()
    except LookupError:
        return False
    return True


# By name: title, function and required package.
METRICS: dict[str, tuple[str, Callable[[str, str], float], str]] = {
    "rouge-1": ("ROUGE-1", rouge_1, "rouge_score"),
    "rouge-2": ("ROUGE-2", rouge_2, "rouge_score"),
    "rouge-l": ("ROUGE-L", rouge_l, "rouge_score"),
    "bleu": ("BLEU", bleu, "sacrebleu"),
    "chrf": ("chrF", chrf, "sacrebleu"),
    "meteor": ("METEOR", meteor, "nltk"),
}


def require_package(name: str, package: str, extra: str) -> None:
    """Raise `ConfigurationError`, naming the extra, if the package that the assistant `name` needs is not installed."""
    if find_spec(package) is None:
        raise ConfigurationError(
            f"assistant '{name}': needs the package {package}; install it with: pip install 'viva-exam[{extra}]'"
        )


def _rouge(kind: str, text: str, reference: str) -> float:
    if not _tokenizer().tokenize(reference):
        raise ValueError("the reference holds no word of Latin letters or digits, which are all that ROUGE counts")
    return _clip_to_one(float(_scorer(kind).score(reference, text)[kind].fmeasure))


def _clip_to_one(value: float) -> float:
    """Clip to 0–1: rounding may leave a last bit above 1."""
    return min(1.0, max(0.0, value))


@cache
def _scorer(kind: str) -> Any:
    return import_under_lock("rouge_score.rouge_scorer").RougeScorer([kind], tokenizer=_tokenizer())


@cache
def _tokenizer() -> Any:
    return import_under_lock("rouge_score.tokenizers").DefaultTokenizer(use_stemmer=True)


@cache
def _bleu() -> Any:
    return import_under_lock("sacrebleu.metrics.bleu").BLEU(effective_order=True)


@cache
def _chrf() -> Any:
    return import_under_lock("sacrebleu.metrics.chrf").CHRF()


class _NoSynonyms:
    """Replacement for WordNet if it is not installed."""

    def synsets(self, word: str) -> list[Any]:
        return []


def _load_wordnet() -> Any:
    if not has_wordnet():
        return _NoSynonyms()
    return import_under_lock("nltk.corpus").wordnet


_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class MetricAssistant(Assistant):
    """A text metric."""

    comparing = True
    function: Callable[[str, str], float]
    package: str

    @classmethod
    def from_name(cls, name: str, metric: str, against: str | None) -> MetricAssistant:
        """Return the metric called `metric`; raise `KeyError` if there is none."""
        title, function, package = METRICS[metric]
        return cls(
            name=name,
            spec=name,
            title=title,
            compares=f"the response with {against or 'the reference'}",
            function=function,
            package=package,
            against=against,
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        reference = example.text(self.against)
        return number_from_step(
            await conversation.compute(self.name, self.function, example.response, reference, limit=_TIMEOUT)
        )

    def check(self) -> None:
        require_package(self.name, self.package, METRICS_EXTRA)

    def facts(self) -> dict[str, Any]:
        # Figures with synonyms and figures without them are not comparable.
        return super().facts() | ({"wordnet": has_wordnet()} if self.package == "nltk" else {})
