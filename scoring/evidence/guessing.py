"""Guessing: a masked wrong choice is reproduced word for word (TS-Guessing, Deng et al. 2023).

The model sees a question, its key and all choices but one wrong choice, and is asked for the missing one. Nothing but
the benchmark's text determines it (arXiv 2311.09783). The measures are the share of exact matches, here
after normalising case, white space, quotes, a final full stop and a letter such as "B)", and ROUGE-L F1.

Needs: text only, and one of two references. `guessing`: items of a second set that the model has
not seen, of the same source and form, masked and asked in the same way. Or `compare_models` on the rates of clean
models on the same items. A chance rate of 0 is no null: good models guess choices that follow from the others ("2, 4,
8, …"), short ones and usual ones. The second set has as many of these if it is of the same source. Choices of more than
one item ("none of the above", "true") are left out of both sets, because an answer that repeats them reproduces no
particular item. What p cannot exclude: a second set whose choices are less predictable, such as longer ones; nor does
a high rate distinguish the benchmark from a source that it was taken from.
Costs: 1 call per item of either set.
Effect: difference of the rates, or of the mean F1 (0–1).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from .evidence import Evidence
from .permutation import compare_sets

_LABEL = re.compile(r"^(?:\([a-z]\)|[a-z][.):])\s+(?=\S)")
_QUOTES = "\"'`“”‘’«»"


def normalize(text: str) -> str:
    """Return a choice without what distinguishes nothing: case, white space, quotes, its letter, a final full stop."""
    line = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _LABEL.sub("", line.strip(_QUOTES)).strip(_QUOTES).removesuffix(".").strip(_QUOTES + " ")


def is_match(answer: str, choice: str) -> bool:
    """Return True if an answer is the masked choice, after `normalize`."""
    return normalize(answer) == normalize(choice) != ""


def rouge_l(answer: str, choice: str) -> float:
    """Return ROUGE-L F1: of words, by their longest common subsequence (Lin 2004); words are not stemmed."""
    first, second = (re.findall(r"\w+", normalize(text)) for text in (answer, choice))
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for index, other in enumerate(second, 1):
            diagonal, lengths[index] = (
                lengths[index],
                diagonal + 1 if word == other else max(lengths[index], lengths[index - 1]),
            )
    return 2 * lengths[-1] / (len(first) + len(second)) if lengths[-1] else 0.0


def guessing(
    answers: Sequence[str],
    choices: Sequence[str],
    reference_answers: Sequence[str],
    reference_choices: Sequence[str],
    clusters: Sequence[str] | None = None,
    reference_clusters: Sequence[str] | None = None,
    *,
    overlap: bool = False,
) -> Evidence:
    """Test whether masked choices of the benchmark are reproduced more often than those of a clean set.

    Without clusters this is Fisher's exact test over the items whose choice is that of no other item.

    Args:
        answers: The model's answer to each item with a masked choice.
        choices: The masked choices.
        reference_answers: The same model's answers to items of the second set.
        reference_choices: Their masked choices.
        clusters: See `compare_sets`.
        reference_clusters: See `compare_sets`.
        overlap: Compare by ROUGE-L F1 instead of exact matches: that also sees choices reproduced in part.
    """
    own, other = (answers, choices, clusters), (reference_answers, reference_choices, reference_clusters)
    if overlap:
        return _compare("guessing overlap", rouge_l, own, other)
    return _compare("guessing", is_match, own, other)


_Sample = tuple[Sequence[str], Sequence[str], Sequence[str] | None]


def _compare(witness: str, measure: Callable[[str, str], float], own: _Sample, other: _Sample) -> Evidence:
    _check_sample("", own)
    _check_sample("reference_", other)
    items = [_items(side, sample) for side, sample in enumerate((own, other))]
    # Items of a cluster may share a choice, such as an item and its rephrased version.
    owners = Counter(choice for choice, _ in {pair for side in items for pair in side})
    indices = [[index for index, (choice, _) in enumerate(side) if owners[choice] == 1] for side in items]
    names = [[item for _, item in side] for side in items]
    # A pair that lost one side has lost both.
    pairs = set(names[0]) & set(names[1])
    complete = {names[0][index] for index in indices[0]} & {names[1][index] for index in indices[1]}
    values: list[list[float]] = []
    clusters: list[list[str] | None] = []
    for (answers, choices, labels), side, item in zip((own, other), indices, names, strict=True):
        remaining = [index for index in side if item[index] not in pairs or item[index] in complete]
        if not remaining:
            name = "reference_choices" if values else "choices"
            raise ValueError(f"{name}: each is that of another item too; such choices say nothing")
        values.append([float(measure(answers[index], choices[index])) for index in remaining])
        clusters.append(None if labels is None else [labels[index] for index in remaining])
    return compare_sets(witness, values[0], values[1], clusters[0], clusters[1])


def _items(side: int, sample: _Sample) -> list[tuple[str, Hashable]]:
    """Return for each item its normalised choice, and its cluster or, without clusters, its own index."""
    _, choices, clusters = sample
    return [
        (normalize(choice), (side, index) if clusters is None else clusters[index])
        for index, choice in enumerate(choices)
    ]


def _check_sample(prefix: str, sample: _Sample) -> None:
    answers, choices, clusters = sample
    if not answers:
        raise ValueError(f"{prefix}answers: none; both sets need at least one item")
    for name, values in (("choices", choices), ("clusters", clusters)):
        if values is not None and len(values) != len(answers):
            raise ValueError(f"{prefix}{name}: {len(values)} for {len(answers)} answers; each answer needs one")
    for index, choice in enumerate(choices):
        if not normalize(choice):
            raise ValueError(f"{prefix}choices[{index}] is {choice!r}; a masked choice needs some text")
