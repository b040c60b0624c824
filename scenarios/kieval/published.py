"""The setup of the paper where it differs from viva's own: the first answer, dropped items, and the paper's figures.

The authors' code (github.com/zhuohaoyu/KIEval) asks for the first answer after five solved examples, in one text, and
stops at the first letter of a choice. The same five examples precede every item.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from viva.agents.prompts import PromptPack
from viva.data.dataset import Dataset
from viva.data.items import Item, choice_letter
from viva.engine.errors import ConfigurationError
from viva.engine.messages import View
from viva.reports.tables import Table, number

from ..choice_questions import answer_fields, item_fields

FIRST_TOKENS = 20  # of the first answer
SHOTS = 5
_SHUFFLE_SEED = 2  # of the authors' configuration
_TEMPLATES = ("shots.question", "shots.answer")
_BETWEEN = "\n\n"
_SPLIT = re.compile(r"[-_ ](?:test|validation|val|dev|train)$")


def published_examples(source: Dataset) -> list[Item]:
    """Return the five examples that the authors' code takes from a file: the first of its shuffled order.

    Raises:
        ConfigurationError: The source has fewer items.
    """
    order = list(range(source.total))
    random.Random(_SHUFFLE_SEED).shuffle(order)
    chosen = order[:SHOTS]
    if len(chosen) < SHOTS:
        raise ConfigurationError(
            f"shots: {SHOTS} requested, {source.name} has {source.total} items; name another source"
        )
    items = {position: item for position, item in enumerate(source) if position in chosen}
    return [items[position] for position in chosen]


def check_shot_templates(pack: PromptPack) -> None:
    """Raise `ConfigurationError` if a pack lacks the templates of solved examples."""
    if missing := [name for name in _TEMPLATES if name not in pack]:
        raise ConfigurationError(
            f"prompt pack '{pack.name}' has no template {' or '.join(missing)}, which --first-answer published needs; "
            "write it, or put `base: kieval` into the file to use those of the shipped pack"
        )


def published_view(pack: PromptPack, item: Item, examples: Sequence[Item]) -> View:
    """Return the request for the first answer: examples and item in one message."""
    parts = [
        text
        for example in examples
        for text in (
            pack.render("shots.question", **item_fields(example)),
            pack.render("shots.answer", **answer_fields(example)),
        )
    ]
    view = View()
    view.append("user", _BETWEEN.join([*parts, pack.render("shots.question", **item_fields(item))]))
    return view


def published_choice(text: str, count: int) -> int | None:
    """Return the choice that the authors' code reads from a first answer; None if it names none.

    The answer ends after the first letter of a choice that ends a word, as at their server, where letters are stop
    strings that stay in the text. Of the letters in it, the first of the alphabet counts.
    """
    letters = [choice_letter(index) for index in range(count)]
    end = re.search(rf"[{''.join(letters)}](?![A-Za-z])", text)
    answer = text if end is None else text[: end.end()]
    return next((index for index, letter in enumerate(letters) if letter in answer), None)


def is_dropped(result: Any) -> bool:
    """Return True if a result is of an item whose first answer names no choice, so that there was no interview."""
    return bool(
        isinstance(result, dict)
        and result.get("ended_by") == "candidate"
        and result.get("choice") is None
        and not result.get("rounds")
    )


def published_figures(dataset: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the paper's figures for the benchmark of a manifest's `dataset`; None if the paper does not have it."""
    content = _content()
    name = re.sub(r"[^a-z]", "", _SPLIT.sub("", str(dataset["name"]).lower()))
    for entry in content["tables"]:
        if dataset.get("benchmark", entry["benchmark"]) == entry["benchmark"] and (
            "benchmark" in dataset or name in entry["names"]
        ):
            models = {
                model: dict(zip(content["columns"], values, strict=True)) for model, values in entry["models"].items()
            }
            source = {"source": content["source"], "table": entry["table"], "benchmark": entry["title"]}
            return source | {"models": models}
    return None


def published_table(figures: Mapping[str, Any]) -> Table:
    """Return the paper's figures as a table of their own: other models, other judges, other prompts."""
    header = ["model of the paper", *_content()["columns"]]
    rows = [
        [model, *(number(value, 2 if name == "rounds" else 1) for name, value in values.items())]
        for model, values in figures["models"].items()
    ]
    title = f"Published: {figures['source']}, table {figures['table']}, {figures['benchmark']}"
    return (f"{title}; GPT-4 as interactor and evaluator, not to be ranked with other judges' scores", header, rows)


@cache
def _content() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))
    return data
