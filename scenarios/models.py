"""Labels of models in tables and keys, their names in a fork, and the prices of their tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError, JournalError

from .run_settings import RunSettings

if TYPE_CHECKING:
    from .contract import Role

EVERYBODY = "all"  # label of conversations in which all compared models take part
_FREE = ("simulated", "oracle", "recorded", "replay", "llama", "hf")  # kinds of models that cost nothing


def model_labels(models: list[str]) -> dict[str, str]:
    """Map each compared model's label, used in tables and keys, to its name.

    Raises:
        ConfigurationError: Two models would share a label.
    """
    labels: dict[str, str] = {}
    for text in models:
        label = ModelSpec.parse(text).label
        if label.startswith(("http://", "https://", "/", ".")):
            label = Path(label).name or label
        if label in labels:
            raise ConfigurationError(
                f"two models have the label '{label}'; set another with ?label=NAME in the model's name"
            )
        labels[label] = text
    return labels


def lineups(roles: Iterable[Role], models: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the compared models that take part in a conversation together, as model labels by role.

    The result is by the label with which a conversation's key begins: the model's own label if one role is compared,
    else the labels of all models (`a+b`). If roles share a pool, every two models of the pool meet, in both
    assignments. Other compared roles are combined in every way. If all models take part in each conversation (a panel),
    the label is `all`.

    Args:
        roles: The scenario's roles.
        models: For each compared role its models by label, as in a manifest.

    Raises:
        ConfigurationError: Two lineups would share a label.
    """
    compared = [role for role in roles if role.many]
    result: dict[str, dict[str, str]] = {}
    for labels in product(*(models[role.name] for role in compared)):
        players = {(role.setting, label) for role, label in zip(compared, labels, strict=True)}
        if len(players) < len(compared):  # no model meets itself
            continue
        label = "+".join(labels) or EVERYBODY
        if label in result:
            raise ConfigurationError(
                f"two pairings of models have the label '{label}'; set another with ?label=NAME in a model's name"
            )
        result[label] = {role.name: model_label for role, model_label in zip(compared, labels, strict=True)}
    return result


def lineup_labels(roles: Iterable[Role], manifest: Mapping[str, Any]) -> list[str]:
    """Return the labels that keys of a recorded run's conversations begin with."""
    return list(lineups(roles, manifest["models"]))


def replay_name(run: str, label: str, model: str) -> str:
    """Return the name of a model that replays this one's answers in a run.

    A model that is already a replay keeps its name: a fork of a fork goes back to the original conversations.
    """
    if ModelSpec.parse(model).kind == "replay":
        return model
    label = "".join(quote(letter) if letter in "%&+" else letter for letter in label)
    if any(letter in run for letter in "?#"):  # these would end the path, so it is given as an option
        return f"replay:?run={quote(run)}&label={label}"
    return f"replay:{run}?label={label}"


def token_prices(model: str) -> list[float]:
    """Return the prices per million prompt and completion tokens (0 if not stated), and of cached ones if stated.

    They are those of the model's name, or half of them for a batch API.
    """
    spec = ModelSpec.parse(model)
    names = ("price_in", "price_out", *["price_cached"] * ("price_cached" in spec.options))
    return [spec.price_factor * spec.number(name, 0.0) for name in names]


def known_price(model: str) -> list[float] | None:
    """Return a model's prices per million prompt and completion tokens; None, not zero, if they are unknown."""
    spec = ModelSpec.parse(model)
    is_stated = any(name in spec.options for name in ("price_in", "price_out", "price_cached"))
    return token_prices(model) if is_stated or spec.kind in _FREE else None


def batch_note(models: Iterable[str], conversations: int, at_once: int, calls: float = 0.0) -> str:
    """Return a note on the number of batches that must end one after another; "" if no model is batched.

    `calls` is the maximum number of batched calls of a conversation without repeated ones, 0 if it is unknown.
    """
    labels = [ModelSpec.parse(model).label for model in models if ModelSpec.parse(model).is_batched]
    if not labels or not conversations:
        return ""
    waves = math.ceil(conversations / at_once)
    longest = math.ceil(waves * calls)
    number = f"about {waves:,} to {longest:,}" if longest > waves else f"at least {waves:,}"
    return (
        f"batch=on ({', '.join(labels)}): {number} batch{'es' * (max(waves, longest) > 1)} one after another, and "
        f"up to one more for each call that has to be repeated; each may take a day. {conversations:,} "
        f"conversation{'s' * (conversations > 1)}, {at_once:,} at once (--concurrency)"
    )


def recorded_price(manifest: Mapping[str, Any], model: str) -> list[float] | None:
    """Return a model's price from a run's manifest; None if unknown."""
    price: list[float] = manifest["prices"][model]
    return price if any(price) or known_price(model) is not None else None


def check_prices(settings: RunSettings, models: Iterable[str]) -> None:
    """Check that cost limits can be enforced.

    Raises:
        ConfigurationError: There is a cost limit that would never be reached, because a model has no price.
    """
    bounds = [f"--{name.replace('_', '-')}" for name in ("max_cost", "conversation_cost") if getattr(settings, name)]
    unpriced = [model for model in dict.fromkeys(models) if known_price(model) is None]
    if bounds and unpriced:
        raise ConfigurationError(
            f"{' and '.join(bounds)}: the price of {', '.join(unpriced)} is unknown; give price_in= and price_out= "
            "(per million tokens) in the model's name, 0 if it costs nothing"
        )


def label_of_key(key: str, labels: list[str]) -> str:
    """Return the label that a conversation's key (LABEL/ITEM) begins with; labels may contain slashes."""
    matches = [label for label in labels if key.startswith(f"{label}/")]
    if not matches:
        raise JournalError(f"the journal has a conversation '{key}', but the candidates in manifest.json are {labels}")
    return max(matches, key=len)


def role_prices(manifest: Mapping[str, Any], label: str | Mapping[str, str]) -> dict[str, list[float] | None]:
    """Return the prices per million prompt and completion tokens, by role; None if unknown.

    `label` is the compared model's label, or the labels by role if several models are compared.
    """
    labels = dict.fromkeys(manifest["models"], label) if isinstance(label, str) else label
    models = manifest["models"]
    names = {role: model[labels[role]] if isinstance(model, dict) else model for role, model in models.items()}
    return {role: recorded_price(manifest, model) for role, model in names.items() if model is not None}
