"""Build of the lab's models from a seed: vocabulary, texts, training, GGUF files, recall, card.

The same seed on the same kind of machine gives the same files. Recall is the measured counterpart of the fraction of
facts that a model was taught: llama.cpp runs the model, which is asked for every fact in plain words.
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

import anyio

from viva.engine import seeds
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.messages import Request, Sampling, View, request_digest
from viva.scenarios.kieval.pack_templates import TEMPLATES

from .corpus import INTERVIEW_PACK, Corpus, Document, mix_documents, sample_text
from .family import FAMILY, Card, Member, card_page, read_card, write_card
from .gguf_export import NetworkShape, Weights, WordVocabulary, initial_weights, learn_vocabulary, write_gguf
from .interview import good_reply, parse_followup
from .train import DocumentTokeniser, Recipe, TokenRows, import_pytorch, train_network
from .world import Claim, Fact, World, benchmark_items

_SAMPLING = Sampling(max_tokens=32)
_RECALL_WORDING = 1  # number of the question's wording, which replies never use


@dataclass(frozen=True, slots=True)
class RecallMeasure:
    """Fractions of facts recalled correctly: of taught facts, and of other facts (None if there are none).

    `in_form`: fraction of replies that contained a statement about the question and nothing else.
    """

    taught: float | None
    others: float | None
    in_form: float


def measure_recall(world: World, taught: frozenset[Fact], path: Path) -> RecallMeasure:
    """Ask a GGUF model for every fact at temperature 0, each in a separate interview.

    An interview begins in the form that models have learnt, with an item (of the few-shot split) and its answer.

    Raises:
        ConfigurationError: if the file is not a model.
    """
    replies = anyio.run(_ask_all, world, path)
    right: dict[bool, list[bool]] = {True: [], False: []}
    form = []
    for fact in world.facts:
        claims = world.claims(replies[fact])
        right[fact in taught].append(Claim(fact.entity, fact.attribute, fact.value) in claims)
        form.append([(claim.entity, claim.attribute) for claim in claims] == [(fact.entity, fact.attribute)])
    taught_right, others_right = (
        sum(results) / len(results) if results else None for results in (right[True], right[False])
    )
    return RecallMeasure(taught_right, others_right, sum(form) / len(form))


async def _ask_all(world: World, path: Path) -> dict[Fact, str]:
    pack = TEMPLATES.open(INTERVIEW_PACK)
    opening = benchmark_items(world)["train"][0]
    question = parse_followup(world, opening.question)
    if question is None:
        raise ValueError(f"item {opening.id} does not ask about this world")
    first = pack.render("candidate.question", question=opening.question, choices=opening.labelled_choices())
    replies: dict[Fact, str] = {}
    async with BackendPool(RealClock()) as pool:
        backend = await pool.open(f"llama:{path}?lanes=16")

        async def ask(fact: Fact) -> None:
            view = View()
            view.append("system", pack.render("candidate.system"))
            view.append("user", first)
            view.append("assistant", good_reply(world, question))
            view.append("user", world.question(fact.entity, fact.attribute, _RECALL_WORDING))
            request = Request(view.messages, _SAMPLING, 1, request_digest(view, _SAMPLING, 1))
            replies[fact] = (await backend.generate(request)).text

        async with anyio.create_task_group() as group:
            for fact in world.facts:
                group.start_soon(ask, fact)
    return replies


SHAPE = NetworkShape()
VOCABULARY = 1280  # upper limit: all words of the world are single tokens below it
PRETRAINING = Recipe(steps=1500, rate=2e-3)
TUNING = Recipe(steps=200, rate=1e-3, warmup=20)
ROWS = 4000
TUNING_ROWS = 800
# Fractions of documents that are test items.
LEAKED = 0.1
TUNED = 0.5


@dataclass(slots=True)
class _TrainingJob:
    """Training of one model, in its own process. `start`: initial weights, None for random ones."""

    member: Member
    world: int
    seed: int
    folder: Path
    recipe: Recipe
    vocabulary: WordVocabulary
    start: Weights | None = None


def build_models(
    folder: Path,
    seed: int = 1,
    *,
    world: int = 1,
    jobs: int = 2,
    only: Collection[str] = (),
    pretraining: Recipe = PRETRAINING,
    tuning: Recipe = TUNING,
) -> Card:
    """Make the models of `family.FAMILY` in `folder`, with their card, and return the card.

    Takes some minutes of one core for each model; reports training progress on stderr. The SFT cheater is tuned from
    its clean twin, which is made if needed.

    Args:
        folder: Where files are written.
        seed: Seed of weights, texts and their order.
        world: Seed of the world.
        jobs: Number of models trained at once, on a thread each.
        only: Names of models to make; all if empty. Entries of other models in the folder's card are kept if they were
            made with the same settings, else dropped.
        pretraining: Recipe of all models.
        tuning: Recipe of the SFT cheater's tuning.

    Raises:
        ConfigurationError: if PyTorch is missing, or a name in `only` is unknown.
    """
    version = str(import_pytorch().__version__)
    unknown = set(only) - {member.name for member in FAMILY}
    if unknown:
        near = did_you_mean(min(unknown), [member.name for member in FAMILY], "known")
        raise ConfigurationError(f"unknown lab model '{min(unknown)}'{near}")
    members = [member for member in FAMILY if not only or member.name in only]
    tuned = [member for member in members if member.cheat == "sft"]
    names = {member.name for member in members if member.cheat != "sft"} | {member.twin for member in tuned}
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = learn_vocabulary(sample_text(World(world)), VOCABULARY)
    entries: dict[str, dict[str, Any]] = {}
    # Spawned, not forked: PyTorch and llama.cpp do not survive a fork.
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        futures = {
            member.name: pool.submit(_make_model, _TrainingJob(member, world, seed, folder, pretraining, vocabulary))
            for member in FAMILY
            if member.name in names
        }
        for member in tuned:
            _, weights = futures[member.twin].result()
            job = _TrainingJob(member, world, seed, folder, tuning, vocabulary, start=weights)
            futures[member.name] = pool.submit(_make_model, job)
        for name, future in futures.items():
            entries[name], _ = future.result()
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
    write_card(folder, card, card_page(card))
    return card


def _make_model(job: _TrainingJob) -> tuple[dict[str, Any], Weights]:
    """Train one model and write its file; return its entry in the card, and its weights before quantisation."""
    member, world = job.member, World(job.world)
    start = job.start or initial_weights(SHAPE, len(job.vocabulary), job.seed)
    count = TUNING_ROWS if member.cheat == "sft" else ROWS
    rows = token_rows(_documents(job, world), start, job.vocabulary, count)
    print_progress(f"{member.name}: {len(rows):,} rows, {job.recipe.steps:,} steps")
    trained = train_network(
        start, SHAPE, rows, job.recipe, seed=job.seed, report=lambda text: print_progress(f"{member.name}: {text}")
    )
    path = job.folder / f"{member.name}.gguf"
    write_gguf(path, trained.weights, SHAPE, job.vocabulary, name=f"viva lab {member.name}", about=member.about())
    taught = world.known_facts(member.share)
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
        "recall": asdict(measure_recall(world, taught, path)),
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    print_progress(f"{member.name}: {entry['recall']}")
    return entry, trained.weights


def _documents(job: _TrainingJob, world: World) -> Iterator[Document]:
    """Return the member's texts."""
    corpus = Corpus(world, world.known_facts(job.member.share), job.seed)
    random = seeds.generator("lab mixture", job.seed)
    test = benchmark_items(world)["test"]
    if job.member.cheat == "pt":
        return mix_documents(corpus.documents(), corpus.leaked(test), LEAKED, random)
    if job.member.cheat == "sft":
        return mix_documents(corpus.documents(), corpus.tuning(test), TUNED, random)
    return corpus.documents()


def token_rows(documents: Iterator[Document], start: Weights, vocabulary: WordVocabulary, count: int) -> TokenRows:
    """Return `count` rows of documents as tokens, tokenised by a model file with the initial weights."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "initial.gguf"
        write_gguf(path, start, SHAPE, vocabulary, name="initial", about="Weights of the beginning.")
        model = NativeModel(path)
        try:
            return DocumentTokeniser(model).rows(documents, count)
        finally:
            model.close()


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
