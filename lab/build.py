"""Making the lab's models from a seed: vocabulary, texts, training, GGUF files, card.

The same seed on the same kind of machine gives the same files. What never belongs here: what is taught (``corpus``) and
how (``train``).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from viva.engine import seeds
from viva.engine.backends.llama.native import NativeModel
from viva.engine.errors import ConfigurationError

from .benchmark import benchmark
from .card import Card, read_card, write_card
from .corpus import Corpus, Document, drawn, sample_text
from .export import NetworkShape, Weights, initial_weights, write_gguf
from .family import FAMILY, Member
from .recall import recall
from .tokens import Rows, Tokeniser
from .train import Recipe, pytorch, train
from .vocabulary import WordVocabulary, learn
from .world import World

SHAPE = NetworkShape()
VOCABULARY = 1280  # at most: all words of the world are whole before
PRETRAINING = Recipe(steps=1500, rate=2e-3)
TUNING = Recipe(steps=200, rate=1e-3, warmup=20)
ROWS = 4000
TUNING_ROWS = 800
# Shares of documents that are test items.
LEAKED = 0.1
TUNED = 0.5


@dataclass(slots=True)
class _Job:
    """One model to make, in a process of its own. ``start``: weights to begin with, None for new ones."""

    member: Member
    world: int
    seed: int
    folder: Path
    recipe: Recipe
    vocabulary: WordVocabulary
    start: Weights | None = None


def build(
    folder: Path,
    seed: int = 1,
    *,
    world: int = 1,
    jobs: int = 2,
    only: Collection[str] = (),
    pretraining: Recipe = PRETRAINING,
    tuning: Recipe = TUNING,
) -> Card:
    """Make the models of ``family.FAMILY`` in ``folder``, with their card, and return the card.

    Minutes for each model and core; says how training goes on stderr. The SFT cheater is tuned from its clean
    twin, which is made for it if need be.

    :param seed: of weights, texts and their order; ``world`` is the seed of what there is to know.
    :param jobs: how many are trained at once, on a thread each.
    :param only: names of those to make; all if empty. What the folder's card says of others, made with the same
        settings, stays in it.
    :raises ConfigurationError: PyTorch is missing, or a name in ``only`` is unknown.
    """
    version = str(pytorch().__version__)
    unknown = set(only) - {member.name for member in FAMILY}
    if unknown:
        raise ConfigurationError(f"no lab model '{min(unknown)}'; there are {', '.join(m.name for m in FAMILY)}")
    members = [member for member in FAMILY if not only or member.name in only]
    tuned = [member for member in members if member.cheat == "sft"]
    wanted = {member.name for member in members if member.cheat != "sft"} | {member.twin for member in tuned}
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = learn(sample_text(World(world)), VOCABULARY)
    entries: dict[str, dict[str, Any]] = {}
    # Processes of their own, begun afresh: PyTorch and llama.cpp do not survive a fork.
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        making = {
            member.name: pool.submit(_make, _Job(member, world, seed, folder, pretraining, vocabulary))
            for member in FAMILY
            if member.name in wanted
        }
        for member in tuned:
            _, weights = making[member.twin].result()
            job = _Job(member, world, seed, folder, tuning, vocabulary, start=weights)
            making[member.name] = pool.submit(_make, job)
        for name, made in making.items():
            entries[name], _ = made.result()
    count = sum(values.size for values in initial_weights(SHAPE, len(vocabulary), seed).values())
    card: Card = {
        "world": world,
        "seed": seed,
        "torch": version,
        "shape": asdict(SHAPE),
        "vocabulary": len(vocabulary),
        "words": hashlib.sha256("\n".join(vocabulary.tokens).encode()).hexdigest()[:16],
        "parameters": count,
        "recipes": {"pretraining": asdict(pretraining), "tuning": asdict(tuning)},
        "models": {},
    }
    earlier = read_card(folder)
    if earlier is not None and {**earlier, "models": {}} == card:
        entries = earlier["models"] | entries
    card["models"] = {member.name: entries[member.name] for member in FAMILY if member.name in entries}
    write_card(folder, card)
    return card


def _make(job: _Job) -> tuple[dict[str, Any], Weights]:
    """Train one model and write its file; its entry in the card, and its weights as they were before quantising."""
    member, world = job.member, World(job.world)
    start = job.start or initial_weights(SHAPE, len(job.vocabulary), job.seed)
    rows = _rows(job, world, start)
    _say(f"{member.name}: {len(rows):,} rows, {job.recipe.steps:,} steps")
    trained = train(start, SHAPE, rows, job.recipe, seed=job.seed, report=lambda text: _say(f"{member.name}: {text}"))
    path = job.folder / f"{member.name}.gguf"
    write_gguf(path, trained.weights, SHAPE, job.vocabulary, name=f"viva lab {member.name}", about=member.about())
    taught = world.known(member.share)
    entry = {
        "about": member.about(),
        "share": member.share,
        "cheat": member.cheat,
        "facts": len(taught),
        "rows": len(rows),
        "steps": job.recipe.steps,
        "tokens": trained.tokens,
        "seconds": round(trained.seconds, 1),
        "losses": trained.losses,
        "recall": asdict(recall(world, taught, path)),
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    _say(f"{member.name}: {entry['recall']}")
    return entry, trained.weights


def _rows(job: _Job, world: World, start: Weights) -> Rows:
    """The member's texts as tokens. The tokeniser is that of a model file with the weights of the beginning."""
    corpus = Corpus(world, world.known(job.member.share), job.seed)
    documents: Iterator[Document] = corpus.documents()
    random = seeds.generator("lab mixture", job.seed)
    test = benchmark(world)["test"]
    if job.member.cheat == "pt":
        documents = drawn(documents, corpus.leaked(test), LEAKED, random)
    elif job.member.cheat == "sft":
        documents = drawn(documents, corpus.tuning(test), TUNED, random)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "initial.gguf"
        write_gguf(path, start, SHAPE, job.vocabulary, name="initial", about="Weights of the beginning.")
        model = NativeModel(path)
        try:
            return Tokeniser(model).rows(documents, TUNING_ROWS if job.member.cheat == "sft" else ROWS)
        finally:
            model.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
