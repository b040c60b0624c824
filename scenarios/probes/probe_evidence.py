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
    answers = [result[method] for method in CHOOSING if method in result]
    scores = Signals(**result["signals"]).scores() if "signals" in result else {}
    context, samples, guess = result.get("context"), result.get("samples"), result.get("guess")
    results.add(
        result["item"],
        result.get("cluster") or result["item"],
        right=float(answers[0]["right"]) if answers else None,
        loss=-scores["loss"] if "loss" in scores else None,
        min_k_plus_plus=scores.get(_DETECTOR),
        context_change=context["within"] - context["alone"] if context else None,
        peak=samples["peak"] if samples else None,
        masked=guess["choice"] if guess else None,
        guesses=guess["answer"] if guess else None,
    )
