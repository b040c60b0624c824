"""Candidates by name: the label each goes by in tables and keys, its name in a fork, and what its tokens cost.

What never belongs here: anything about one scenario.
"""

from __future__ import annotations

from pathlib import Path

from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError


def candidate_labels(candidates: list[str]) -> dict[str, str]:
    """Each candidate's label in tables and keys, mapped to its model name.

    :raises ConfigurationError: two candidates would share a label.
    """
    labels: dict[str, str] = {}
    for text in candidates:
        label = ModelSpec.parse(text).label
        if label.startswith(("http://", "https://", "/", ".")):
            label = Path(label).name or label
        if label in labels:
            raise ConfigurationError(
                f"two candidates are called '{label}'; tell them apart with ?label=NAME in the model's name"
            )
        labels[label] = text
    return labels


def replayed(run: str, label: str, model: str) -> str:
    """The name of a model that says again what this one said in a run; of one that replays already, its own: a fork of
    a fork goes back to the talks themselves.
    """
    return model if ModelSpec.parse(model).kind == "replay" else f"replay:{run}?label={label}"


def prices(model: str) -> list[float]:
    """What a million prompt and completion tokens of a model cost."""
    spec = ModelSpec.parse(model)
    return [spec.number("price_in", 0.0), spec.number("price_out", 0.0)]


def label_of(key: str, labels: list[str]) -> str:
    """The candidate that a conversation's key (LABEL/ITEM) begins with; labels hold no promise about slashes."""
    return max((label for label in labels if key.startswith(f"{label}/")), key=len)
