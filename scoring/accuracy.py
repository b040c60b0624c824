"""Choice of an option by log-probabilities, agreement of short answers, and difficulty and discrimination by item.

Choices follow lm-evaluation-harness (`acc`, `acc_norm`), so that figures are comparable; ties go to the first option.

Source: classical test theory (Lord and Novick 1968, chapter 15; Crocker and Algina 1986, chapter 14).
"""

from __future__ import annotations

import re
import string
import unicodedata
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .contamination import POSITIVE_LOGPROB_SLACK, Floats


def choose_letter(logprobs: Floats) -> int:
    """Return the index of the option with the likeliest letter. -inf is a letter that cannot be produced."""
    return int(_option_array(logprobs).argmax())


def choose_raw(option_sums: Floats) -> int:
    """Return the index of the option whose text has the highest summed log-probability (the harness's `acc`)."""
    return int(_option_array(option_sums).argmax())


def choose_normalized(option_sums: Floats, lengths: Sequence[int]) -> int:
    """Return the index of the option with the highest log-probability per unit of length (the harness's `acc_norm`).

    In the harness the length is the number of characters (Unicode code points) of the option's text, without the
    delimiter before it. With lengths in UTF-8 bytes this is the harness's `acc_bytes`, and with numbers of tokens the
    normalisation of Brown et al. 2020.
    """
    sums = _option_array(option_sums)
    sizes = np.asarray(lengths, dtype=np.float64)
    if sizes.shape != sums.shape:
        raise ValueError(f"lengths: {sizes.size} for {sums.size} options; each option needs one")
    if not (sizes >= 1).all():
        raise ValueError(f"lengths: {list(lengths)}; an option has at least one character")
    return int((sums / sizes).argmax())


def choose_unconditional(option_sums: Floats, unconditional_sums: Floats) -> int:
    """Return the index of the option whose log-probability the question raises most (the harness's `acc_mutual_info`).

    Args:
        option_sums: Log-probabilities of the options after the question.
        unconditional_sums: Those of the options without the question.

    Source: Brown et al. 2020, section 2.4; Holtzman et al. 2021 (PMI_DC).
    """
    sums, without = _option_array(option_sums), _option_array(unconditional_sums)
    if sums.shape != without.shape:
        raise ValueError(f"unconditional_sums: {without.size} for {sums.size} options; each option needs one")
    if np.isneginf(without).any():
        raise ValueError("unconditional_sums: -inf; an option must be possible without the question")
    return int((sums - without).argmax())


def _option_array(values: Floats) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"options: shape {array.shape}; expected a flat list of at least one number")
    if np.isnan(array).any() or array.max() > POSITIVE_LOGPROB_SLACK:
        raise ValueError(f"options: {array.tolist()}; log-probabilities are at most 0")
    if np.isneginf(array).all():
        raise ValueError("options: all are -inf; at least one must be possible")
    return array


_ALIKE = (
    dict.fromkeys(map(ord, "‘’‚ʼ"), "'") | dict.fromkeys(map(ord, "“”„"), '"') | dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return a short answer in lower case, without ASCII punctuation, articles and repeated blanks.

    Curly quotes and dashes count as ASCII ones, which the original script leaves in.

    Source: Rajpurkar et al. 2016 (SQuAD), evaluation script.
    """
    plain = unicodedata.normalize("NFC", text).translate(_ALIKE).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def token_f1(answer: str, reference: str) -> float:
    """Return the F1 of the words of two normalised answers; 0 if one of them is a yes or no that the other is not.

    Source: Yang et al. 2018 (HotpotQA), evaluation script; otherwise as for SQuAD.
    """
    plain, expected = normalize_answer(answer), normalize_answer(reference)
    if plain == expected:
        return 1.0
    if {plain, expected} & {"yes", "no", "noanswer"}:
        return 0.0
    words, right = plain.split(), expected.split()
    common = (Counter(words) & Counter(right)).total()
    return 2 * common / (len(words) + len(right)) if common else 0.0


FloatArray = NDArray[np.float64]


@dataclass(slots=True, frozen=True)
class ItemDifficulty:
    """Difficulty of one item: its `mean` score over the `n` candidates scored on it; lower is harder.

    `discrimination`, from -1 to 1, is the correlation over candidates between the score on this item and the mean score
    on all other items. Near 0 or below, the item measures something else, or its answer key is wrong. It is None with
    fewer than three candidates, or if either score is the same for all of them. `solved_by` is `nobody` or `everybody`
    if the item does not separate candidates, else None.
    """

    item: str
    mean: float
    n: int
    discrimination: float | None
    solved_by: Literal["nobody", "everybody"] | None


def item_difficulties(scores: Mapping[str, Mapping[str, float | None]], *, solved: float) -> list[ItemDifficulty]:
    """Return all items with a score, hardest first, ties by name.

    Candidates must not gain by lacking scores on hard items: a candidate's mean over the other items is taken after
    subtracting each item's mean. Without gaps this changes no correlation.

    Args:
        scores: By candidate, then by item (means over seeds, if there are several); None is unscored.
        solved: The lowest score that counts as solved.
    """
    candidates, items = sorted(scores), sorted({item for scored in scores.values() for item in scored})
    columns = {item: index for index, item in enumerate(items)}
    table = np.full((len(candidates), len(items)), np.nan)
    for row, candidate in enumerate(candidates):
        for item, score in scores[candidate].items():
            if score is not None:
                if not np.isfinite(score):
                    raise ValueError(f"{candidate!r} on {item!r}: {score} is not finite; None stands for unscored")
                table[row, columns[item]] = score
    scored = ~np.isnan(table)
    counts = scored.sum(axis=0)
    items = [item for item, count in zip(items, counts, strict=True) if count]
    table, scored, counts = table[:, counts > 0], scored[:, counts > 0], counts[counts > 0]
    if not items:
        return []
    means = np.nansum(table, axis=0) / counts
    solvers = (np.where(scored, table, -np.inf) >= solved).sum(axis=0)
    difficulties = [
        ItemDifficulty(
            item, mean, n, discrimination, "nobody" if not solving else "everybody" if solving == n else None
        )
        for item, mean, n, discrimination, solving in zip(
            items,
            means.tolist(),
            counts.tolist(),
            _item_rest_correlations(table, scored, means),
            solvers.tolist(),
            strict=True,
        )
    ]
    return sorted(difficulties, key=lambda difficulty: (difficulty.mean, difficulty.item))


def _item_rest_correlations(table: FloatArray, scored: NDArray[np.bool_], means: FloatArray) -> list[float | None]:
    """Return Pearson's r of each column with the mean of the others, all measured from the columns' means."""
    above = np.where(scored, table - means, 0.0)
    other_counts = scored.sum(axis=1, keepdims=True) - scored
    with np.errstate(invalid="ignore", divide="ignore"):
        rest_means = (above.sum(axis=1, keepdims=True) - above) / other_counts
    both = scored & (other_counts > 0)
    n = both.sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a pair are None below
        x = np.where(both, above - np.nanmean(np.where(both, above, np.nan), axis=0), 0.0)
        y = np.where(both, rest_means - np.nanmean(np.where(both, rest_means, np.nan), axis=0), 0.0)
        r = (x * y).sum(axis=0) / np.sqrt((x * x).sum(axis=0) * (y * y).sum(axis=0))
    # Equal numbers minus their mean leave only rounding.
    scale = np.abs(np.where(scored, table, 0.0)).max()
    flat = (np.abs(x).max(axis=0) <= 1e-12 * scale) | (np.abs(y).max(axis=0) <= 1e-12 * scale)
    usable = (n > 2) & ~flat
    return [float(np.clip(value, -1.0, 1.0)) if use else None for value, use in zip(r, usable, strict=True)]
