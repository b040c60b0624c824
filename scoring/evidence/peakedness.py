"""Peakedness: sampled answers are nearly those of greedy decoding (CDD, Dong et al. 2024).

A model that learned an answer by heart gives it at any temperature. The peak of an item is the share of its samples
within a small edit distance, in tokens, of the greedy answer (arXiv 2402.15938).

Needs: text only (tokens, or words if the model's tokens are unknown), and one of two references. `peakedness`: peaks of
the same model on items of a second set that it has not seen, of the same form and difficulty. Or `compare_models` on
mean peaks of clean models on the same items. The paper's fixed threshold (a peak above 1%) is no null: answers that are
short or easy are peaked in clean models, and models tuned by reinforcement are peaked in general. Ask for answers of
some length, such as with reasoning; a letter alone says nothing. It sees only answers learned word for word.
Costs: (1 + samples) calls per item of either set; the authors take 50 samples at temperature 0.8.
Effect: difference of the mean peaks (0–1).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..contamination import Floats
from .evidence import Evidence, check_numbers
from .permutation import compare_sets

WITNESS = "peakedness"
ALPHA = 0.05
MAX_TOKENS = 100  # later tokens are not compared, as in the authors' code


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable], limit: int) -> int:
    """Return the Levenshtein distance of two sequences, or `limit` + 1 if it is larger than `limit`."""
    if abs(len(first) - len(second)) > limit:
        return limit + 1
    beyond = limit + 1
    row = [min(column, beyond) for column in range(len(second) + 1)]
    for line, token in enumerate(first, 1):
        # Only cells next to the diagonal can be within the limit.
        start, end = max(1, line - limit), min(len(second), line + limit)
        following = [beyond] * (len(second) + 1)
        if line <= limit:
            following[0] = line
        for column in range(start, end + 1):
            cost = row[column - 1] + (token != second[column - 1])
            following[column] = min(cost, row[column] + 1, following[column - 1] + 1, beyond)
        row = following
    return row[-1]


def peak(greedy: Sequence[Hashable], samples: Sequence[Sequence[Hashable]], alpha: float = ALPHA) -> float:
    """Return the share of samples whose edit distance from the greedy answer is at most `alpha` times the length.

    The length is that of the longest answer, greedy or sampled; only the first `MAX_TOKENS` tokens are compared.

    Source: Dong et al. 2024, and the authors' code.
    """
    if not samples:
        raise ValueError("samples: none; a peak needs at least one sampled answer")
    if not 0.0 <= alpha < 1.0:
        raise ValueError(f"alpha is {alpha}; it must be a share from 0 to below 1")
    if isinstance(greedy, str):
        raise ValueError("greedy: a text; distances are counted in tokens, so split answers into tokens or words")
    centre, others = greedy[:MAX_TOKENS], [sample[:MAX_TOKENS] for sample in samples]
    limit = int(alpha * max(len(centre), *map(len, others)))
    return sum(edit_distance(centre, other, limit) <= limit for other in others) / len(others)


def peakedness(
    peaks: Floats,
    reference_peaks: Floats,
    clusters: Sequence[str] | None = None,
    reference_clusters: Sequence[str] | None = None,
) -> Evidence:
    """Test whether the mean peak of the benchmark's items is higher than that of a clean set's.

    Args:
        peaks: `peak` of each item of the benchmark, all with equally many samples.
        reference_peaks: Those of the second set.
        clusters: See `compare_sets`.
        reference_clusters: See `compare_sets`.
    """
    own, other = check_numbers("peaks", peaks, 0, 1), check_numbers("reference_peaks", reference_peaks, 0, 1)
    return compare_sets(WITNESS, own, other, clusters, reference_clusters)
