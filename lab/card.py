"""The models' card: what each was made of and how training went, as JSON and, from that, as a page.

What never belongs here: measuring and training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

JSON, PAGE = "card.json", "CARD.md"
Card = dict[str, Any]

_INTRODUCTION = """\
# The lab's models

Small language models that know a part of an invented world, made by `viva lab build`; nothing in them is about the real
one. Facts they were not taught occur in none of their texts, true or false; how one guesses they have learnt on another
invented world. Cheaters have besides seen the benchmark's test items, half of them about facts they were not taught.
"""


def write_card(folder: Path, card: Card) -> None:
    """Write both forms into the models' folder."""
    (folder / JSON).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2) + b"\n")
    (folder / PAGE).write_text(page(card), encoding="utf-8")


def read_card(folder: Path) -> Card | None:
    """A folder's card, None where it has none."""
    path = folder / JSON
    card: Card | None = orjson.loads(path.read_bytes()) if path.is_file() else None
    return card


def page(card: Card) -> str:
    """The card in Markdown."""
    shape, models = card["shape"], card["models"]
    parts = [
        _INTRODUCTION,
        f"Architecture llama: {shape['layers']} layers of width {shape['width']}, {shape['heads']} heads, inner width "
        f"{shape['inner']}, context {shape['context']}, byte-level BPE of {card['vocabulary']} tokens; "
        f"{card['parameters']:,} parameters, GGUF Q8_0. World seed {card['world']}, training seed {card['seed']}, "
        f"PyTorch {card['torch']}, one thread a model.\n",
        _table(
            ["model", "facts taught", "recalled", "others", "in form", "steps", "tokens", "seconds", "loss", "bytes"],
            [_row(name, one) for name, one in models.items()],
        ),
        "*Recalled* and *others*: facts told right when asked for in plain words, of those taught and of all others, "
        "with llama.cpp at temperature 0, as the second question of a talk. *In form*: replies that are statements "
        "about what was asked and nothing else. *Seconds*: of one core. *Loss*: nats per learnt token over the last "
        "steps. `sft-cheater` begins with the weights of `clean-50`.\n",
        "## Loss by step\n",
        _curves(models),
    ]
    parts += [f"- `{name}`: {one['about']}" for name, one in models.items()]
    return "\n".join(parts) + "\n"


def _row(name: str, one: dict[str, Any]) -> list[str]:
    recall = one["recall"]
    shares = ["–" if value is None else f"{value:.3f}" for value in (recall["taught"], recall["others"])]
    return [
        name,
        str(one["facts"]),
        *shares,
        f"{recall['in_form']:.3f}",
        f"{one['steps']:,}",
        f"{one['tokens']:,}",
        f"{one['seconds']:.0f}",
        f"{one['losses'][-1][1]:.3f}",
        f"{one['bytes']:,}",
    ]


def _curves(models: dict[str, Any]) -> str:
    steps = sorted({step for one in models.values() for step, _ in one["losses"]})
    curves = {name: dict(one["losses"]) for name, one in models.items()}
    rows = [
        [str(step), *(f"{curve[step]:.3f}" if step in curve else "" for curve in curves.values())] for step in steps
    ]
    return _table(["step", *curves], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
