"""Context gain: other items of the benchmark in the context make an item less likely (CoDeC, Zawalski et al. 2025).

Examples from the same source help a model that does not know the source; they disturb one that knows the item by heart.
The score is the share of items whose likelihood falls (arXiv 2510.27055). On a benchmark that nobody has
seen it is above 0 as well, by how well the model learns from context: only a comparison has a p-value.

Needs: log-likelihoods, and one of two references. `context_gain`: items of a second set that the model has not seen,
of the same source and form (newer items, rephrased items), read by the same model with contexts of that set. Or
`compare_models` on the shares of clean models of similar size on the same items. Draw each item's context
independently: a context that is shared makes items depend on each other; name it in `clusters`.
It does not see a benchmark whose sources alone were read, and sees models that were trained on very similar data.
Costs: 2 calls per item of either set; one is longer by the context.
Effect: difference of the shares (0–1).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contamination import POSITIVE_LOGPROB_SLACK, Floats
from .evidence import Evidence, check_numbers
from .permutation import compare_sets

WITNESS = "context gain"


def context_falls(alone: Floats, in_context: Floats) -> list[bool]:
    """Return for each item whether its mean log-likelihood per token falls with other items in the context.

    Both are likelihoods of the same tokens of the item; no change is no fall.
    """
    before = check_numbers("alone", alone, high=POSITIVE_LOGPROB_SLACK)
    after = check_numbers("in_context", in_context, high=POSITIVE_LOGPROB_SLACK)
    if len(before) != len(after):
        raise ValueError(f"in_context: {len(after)} for {len(before)} items; each item needs both likelihoods")
    return [bool(fall) for fall in after < before]


def context_gain(
    falls: Sequence[bool],
    reference_falls: Sequence[bool],
    clusters: Sequence[str] | None = None,
    reference_clusters: Sequence[str] | None = None,
) -> Evidence:
    """Test whether likelihoods fall for a larger share of the benchmark's items than of a clean set's.

    Without clusters this is Fisher's exact test. Only signs are compared, as in the paper: sizes of gains depend on the
    length and form of items. Clusters are those of `compare_sets`.

    Args:
        falls: `context_falls` of the benchmark's items.
        reference_falls: Those of the second set.
        clusters: See `compare_sets`.
        reference_clusters: See `compare_sets`.
    """
    own = check_numbers("falls", [float(fall) for fall in falls], 0, 1)
    other = check_numbers("reference_falls", [float(fall) for fall in reference_falls], 0, 1)
    return compare_sets(WITNESS, own, other, clusters, reference_clusters)
