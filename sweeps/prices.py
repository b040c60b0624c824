"""Prices of models: from the model's name, or from dated list prices of public APIs (models/prices.yaml)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError
from viva.reports.run_tables import token_cost
from viva.scenarios.models import known_price

# If these environment variables are set, a public API's model names mean models of another server.
_BASE_URL_VARIABLES = {
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
}
_KINDS = {"copies": "according to several copies", "copy": "according to one copy"}
_VERSION = re.compile(r"-(latest|\d{4}-?\d{2}-?\d{2})$")


@dataclass(slots=True, frozen=True)
class Price:
    """Prices per million prompt, completion and (if different) cached prompt tokens.

    `source` names the price list and its date; it is empty for a price in the model's name.
    """

    prompt: float
    completion: float
    source: str = ""
    cached: float | None = None

    def cost(self, prompt: float, completion: float, cached: float = 0.0) -> float:
        """Return the cost of these tokens; the prompt tokens include the cached ones."""
        return token_cost(
            [self.prompt, self.completion, self.prompt if self.cached is None else self.cached],
            prompt,
            completion,
            cached,
        )


@cache
def _price_tables() -> list[dict[str, Any]]:
    text = (files(__package__) / "models" / "prices.yaml").read_text("utf-8")
    tables: list[dict[str, Any]] = yaml.safe_load(text)
    return tables


def price_of(model: str) -> Price | None:
    """Return a model's price; None if neither its name nor the table has one."""
    own = known_price(model)
    if own is not None:
        return Price(own[0], own[1], cached=own[2] if len(own) > 2 else None)
    spec = ModelSpec.parse(model)
    if "://" in spec.where or os.environ.get(_BASE_URL_VARIABLES.get(spec.kind, ""), ""):
        return None
    for table in _price_tables():
        if table["kind"] == spec.kind:
            for name in (spec.where, _VERSION.sub("", spec.where)):
                if name in table["models"]:
                    prompt, completion, date, kind = table["models"][name]
                    prompt, completion = prompt * spec.price_factor, completion * spec.price_factor
                    half = ", half of it in batches" if spec.is_batched else ""
                    return Price(prompt, completion, f"{table['source']}; {date}, {_KINDS[kind]}{half}")
    return None


def require_prices(budget: float | None, models: list[str]) -> None:
    """Check that a budget can be compared with a cost.

    Raises:
        ConfigurationError: There is a budget, but a model has no price.
    """
    unpriced = [model for model in dict.fromkeys(models) if price_of(model) is None]
    if budget is not None and unpriced:
        raise ConfigurationError(
            f"--budget: the price of {', '.join(unpriced)} is unknown; give price_in= and price_out= (per million "
            "tokens) in the model's name, 0 if it is free"
        )
