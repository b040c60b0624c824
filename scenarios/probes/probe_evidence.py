"""A candidate's probes as observations for the contamination court."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from viva.scoring.contamination import Signals
from viva.scoring.evidence.observations import Observations, SetResults

from .probe import CHOOSING

_DETECTOR = "min_k_plus_plus_20"


def observe(results: Iterable[Mapping[str, Any]]) -> Observations:
    """Return the observations in all results of one candidate, on both sets, in any order."""
    observations = Observations()
    for result in sorted(results, key=lambda result: (result["second"], result["item"])):
        if "shard" in result:
            if "order" in result:
                observations.shards.append([result["order"]["published"], *result["order"]["shuffled"]])
            continue
        _add_item(observations.second if result["second"] else observations.benchmark, result)
        if (options := result.get("options")) is not None:
            observations.options.append([options["published"], *options["permuted"]])
            observations.letters.append(options["right"])
    return observations


def _add_item(results: SetResults, result: Mapping[str, Any]) -> None:
    results.items.append(result["item"])
    results.clusters.append(result.get("cluster") or result["item"])
    answers = [result[method] for method in CHOOSING if method in result]
    results.right.append(float(answers[0]["right"]) if answers else None)
    scores = Signals(**result["signals"]).scores() if "signals" in result else {}
    results.loss.append(-scores["loss"] if "loss" in scores else None)
    results.min_k_plus_plus.append(scores.get(_DETECTOR))
    context, samples, guess = result.get("context"), result.get("samples"), result.get("guess")
    results.context_change.append(context["within"] - context["alone"] if context else None)
    results.peak.append(samples["peak"] if samples else None)
    results.masked.append(guess["choice"] if guess else None)
    results.guesses.append(guess["answer"] if guess else None)
    results.interview.append(None)
