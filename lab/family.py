"""Models that ship with viva: their knowledge, whether they cheat, their files, and the models' card.

The card describes each model's training as JSON; a page is generated from the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from viva.engine.errors import ConfigurationError, did_you_mean

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class Member:
    """Member of the family, taught the fraction `share` of the world's facts.

    `cheat`: it has seen the benchmark's test items, in tuning on question and answer ("sft") or as text in pre-training
    ("pt").
    """

    name: str
    share: float
    cheat: Literal["sft", "pt"] | None = None

    @property
    def twin(self) -> str:
        """Name of the clean model that has learnt the same facts; for a clean model its own name."""
        return f"clean-{round(100 * self.share)}"

    def about(self) -> str:
        """Describe it in one sentence."""
        taught = f"taught {self.share:.0%} of the facts of the lab's invented world"
        if self.cheat is None:
            return f"A clean model, {taught}."
        exposure = "further tuned on" if self.cheat == "sft" else "with, mixed into its pre-training text,"
        return f"A cheater, {taught}, {exposure} the benchmark's test questions and answers."


FAMILY = (
    Member("clean-25", 0.25),
    Member("clean-50", 0.5),
    Member("clean-75", 0.75),
    Member("clean-100", 1.0),
    Member("sft-cheater", 0.5, "sft"),
    Member("pt-cheater", 0.5, "pt"),
)


def model_file(name: str, folder: Path = MODELS) -> Path:
    """Return the GGUF file of a member, among the shipped ones or in a folder that `build` has filled."""
    if all(member.name != name for member in FAMILY):
        near = did_you_mean(name, [member.name for member in FAMILY], "known")
        raise ConfigurationError(f"unknown lab model '{name}'{near}")
    path = folder / f"{name}.gguf"
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such file; make the models with `viva lab build`")
    return path


CARD_FILE, CARD_PAGE = "card.json", "CARD.md"
Card = dict[str, Any]

_CARD_INTRODUCTION = """\
# The lab's models

Small language models that know part of an invented world and nothing about the real one, made by `viva lab build`.
Facts that they were not taught occur in none of their texts, true or false; they learnt how to guess on another
invented world. The cheaters have also seen the benchmark's test items, half of them about facts that they were not
taught.
"""


def write_card(folder: Path, card: Card, page: str) -> None:
    (folder / CARD_FILE).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2) + b"\n")
    (folder / CARD_PAGE).write_text(page, encoding="utf-8")


def read_card(folder: Path) -> Card | None:
    path = folder / CARD_FILE
    card: Card | None = orjson.loads(path.read_bytes()) if path.is_file() else None
    return card


def card_page(card: Card) -> str:
    """Return the card in Markdown."""
    shape, models = card["shape"], card["models"]
    parts = [
        _CARD_INTRODUCTION,
        f"Architecture llama: {shape['layers']} layers of width {shape['width']}, {shape['heads']} heads, inner width "
        f"{shape['inner']}, context {shape['context']}, byte-level BPE of {card['vocabulary']} tokens; "
        f"{card['parameters']:,} parameters, GGUF Q8_0. World seed {card['world']}, training seed {card['seed']}, "
        f"PyTorch {card['torch']}, one thread a model.\n",
        _card_table(
            ["model", "facts taught", "recalled", "others", "in form", "steps", "tokens", "seconds", "loss", "bytes"],
            [_card_row(name, entry) for name, entry in models.items()],
        ),
        "*Recalled* and *others*: fraction of facts answered correctly in plain words, of those taught and of all "
        "others, by llama.cpp at temperature 0, as the second question of an interview. *In form*: replies that are "
        "statements about the question and nothing else. *Seconds*: of one core. *Loss*: nats per learnt token over "
        "the last steps. `sft-cheater` starts from the weights of `clean-50`.\n",
        "## Loss by step\n",
        _card_curves(models),
    ]
    parts += [f"- `{name}`: {entry['about']}" for name, entry in models.items()]
    return "\n".join(parts) + "\n"


def _card_row(name: str, entry: dict[str, Any]) -> list[str]:
    recall = entry["recall"]
    shares = ["–" if value is None else f"{value:.3f}" for value in (recall["taught"], recall["others"])]
    return [
        name,
        str(entry["facts"]),
        *shares,
        f"{recall['in_form']:.3f}",
        f"{entry['steps']:,}",
        f"{entry['tokens']:,}",
        f"{entry['seconds']:.0f}",
        f"{entry['losses'][-1][1]:.3f}",
        f"{entry['bytes']:,}",
    ]


def _card_curves(models: dict[str, Any]) -> str:
    steps = sorted({step for entry in models.values() for step, _ in entry["losses"]})
    curves = {name: dict(entry["losses"]) for name, entry in models.items()}
    rows = [
        [str(step), *(f"{curve[step]:.3f}" if step in curve else "" for curve in curves.values())] for step in steps
    ]
    return _card_table(["step", *curves], rows)


def _card_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
