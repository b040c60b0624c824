"""Models of known truth for the contamination court: clean ones, and cheaters by kind and dose.

The clean models are trained as those that ship with viva, each with its own seed; every fourth is tuned further on
items like the benchmark's, about facts that it was taught. Each cheater is tuned from a clean model, which is then its
twin. Its texts are half clean, half those of its kind, and they cover all items of the benchmark or half of them.

Models are made in units: a clean model with its cheaters. What is finished is never made again, so the build goes on
where it was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from viva.data.items import Item
from viva.engine import seeds

from .build import PRETRAINING, ROWS, SHAPE, TUNED, TUNING, TUNING_ROWS, VOCABULARY, print_progress, token_rows
from .corpus import Corpus, Document, mix_documents, sample_text
from .court_evidence import gather, read_evidence, write_evidence
from .gguf_export import Weights, WordVocabulary, initial_weights, learn_vocabulary, write_gguf
from .train import Recipe, import_pytorch, train_network
from .world import World, benchmark_items, published_order

Contamination = Literal["text", "answers", "rephrased", "reasoning", "laundered", "both sets"]
"""Kinds of contamination.

text: pages of items with their answers, in the published order. answers: questions with answers. rephrased: answers,
with other words, wrong choices and order. reasoning: answers after their reasons. laundered: answers, then as many
steps on clean texts. both sets: answers of the second set too.
"""

KINDS: tuple[Contamination, ...] = get_args(Contamination)
DOSES = (0.5, 1.0)
UNITS, REPEATS = 40, 8  # clean models; cheaters of each kind and dose
_SHARES = (0.25, 0.5, 0.75, 1.0)
_TUNED_UNITS = 4  # every fourth clean model is tuned


@dataclass(frozen=True, slots=True)
class CourtModel:
    """Model of known truth: clean, or a cheater of the kind `kind` that was tuned on the fraction `dose` of the items.

    `unit` is the number of its clean twin.
    """

    unit: int
    kind: Contamination | None = None
    dose: float = 0.0

    @property
    def name(self) -> str:
        if self.kind is None:
            return f"clean-{self.unit:02}"
        return f"{self.kind.replace(' ', '-')}-{round(100 * self.dose)}-{self.unit:02}"

    @property
    def share(self) -> float:
        """Return the fraction of the world's facts that it was taught."""
        return _SHARES[self.unit % len(_SHARES)]

    @property
    def seed(self) -> int:
        return 100 + self.unit

    def about(self) -> str:
        """Describe it in one sentence."""
        taught = f"taught {self.share:.0%} of the facts of the lab's invented world"
        if self.kind is None:
            return f"A clean model, {taught}."
        return f"A cheater ({self.kind}), {taught}, tuned on {self.dose:.0%} of the benchmark's items."


def court_models(unit: int) -> list[CourtModel]:
    """Return a unit: the clean model, then its cheaters."""
    cells = [(kind, dose) for kind in KINDS for dose in DOSES]
    count = len(cells) * REPEATS
    numbers = range(unit * count // UNITS, (unit + 1) * count // UNITS)
    return [CourtModel(unit), *(CourtModel(unit, *cells[number % len(cells)]) for number in numbers)]


def build_court_models(folder: Path, *, world: int = 1, jobs: int = 2, units: range = range(UNITS)) -> Path:
    """Make the models of these units in `folder`, gather their evidence, and return its file.

    What exists is not made again. Takes some nine minutes of one core for each unit; reports progress on stderr.

    Raises:
        ConfigurationError: if PyTorch is missing.
    """
    import_pytorch()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "evidence.jsonl"
    records = read_evidence(path)
    known = {record["unit"] for record in records}
    vocabulary = learn_vocabulary(sample_text(World(world)), VOCABULARY)
    # Spawned, not forked: PyTorch and llama.cpp do not survive a fork.
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_build_unit, folder, unit, world, vocabulary) for unit in units if unit not in known]
        try:
            for future in as_completed(futures):
                records += future.result()
                write_evidence(path, records)
                print_progress(f"evidence of {len(records)} models: {path}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return path


def model_path(folder: Path, model: CourtModel) -> Path:
    return folder / f"{model.name}.gguf"


def _build_unit(folder: Path, unit: int, number: int, vocabulary: WordVocabulary) -> list[dict[str, Any]]:
    """Make the models of a unit that do not exist yet; return the evidence of all of its models."""
    models = court_models(unit)
    clean = models[0]
    missing = [model for model in models if not model_path(folder, model).exists()]
    if missing:
        world = World(number)
        base = _base_weights(folder, clean, world, vocabulary)
        for model in missing:
            weights = base
            for documents, seed in _courses(model, world):
                weights = _tune(weights, documents, vocabulary, TUNING, TUNING_ROWS, seed)
            path = model_path(folder, model)
            partial = path.with_suffix(".partial")
            write_gguf(partial, weights, SHAPE, vocabulary, name=f"viva lab {model.name}", about=model.about())
            os.replace(partial, path)
            print_progress(f"{model.name}: made")
    _weights_path(folder, clean).unlink(missing_ok=True)
    paths = {model.name: model_path(folder, model) for model in models}
    observations = gather(paths, folder / "runs" / f"unit-{unit:02}", number)
    return [
        {
            "model": model.name,
            "unit": unit,
            "kind": model.kind,
            "dose": model.dose,
            "share": model.share,
            **observations[model.name].to_record(),
        }
        for model in models
    ]


def _weights_path(folder: Path, clean: CourtModel) -> Path:
    return folder / f"{clean.name}.npz"


def _base_weights(folder: Path, clean: CourtModel, world: World, vocabulary: WordVocabulary) -> Weights:
    """Return the clean model's weights, trained now or read from the file that is kept until its unit is complete."""
    path = _weights_path(folder, clean)
    if path.exists():
        with np.load(path) as kept:
            return {name: kept[name] for name in kept.files}
    documents = Corpus(world, world.known_facts(clean.share), clean.seed).documents()
    start = initial_weights(SHAPE, len(vocabulary), clean.seed)
    weights = _tune(start, documents, vocabulary, PRETRAINING, ROWS, clean.seed, clean.name)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **weights)  # type: ignore[arg-type]  # names of weights are no parameters of savez
    os.replace(partial, path)
    return weights


def _courses(model: CourtModel, world: World) -> Iterator[tuple[Iterator[Document], int]]:
    """Yield the texts of each course of tuning after the common training, with its seed."""
    seed = seeds.derive("lab court", model.seed, model.name)
    corpus = Corpus(world, world.known_facts(model.share), seed)
    if model.kind is None:
        if model.unit % _TUNED_UNITS:
            return
        documents = corpus.made()
    else:
        documents = _contaminated(model, corpus, world)
    yield mix_documents(corpus.documents(), documents, TUNED, seeds.generator("lab court mixture", seed)), seed
    if model.kind == "laundered":
        yield corpus.documents(), seed + 1


def _contaminated(model: CourtModel, corpus: Corpus, world: World) -> Iterator[Document]:
    splits = {split: published_order(world, items) for split, items in benchmark_items(world).items()}
    items = leaked_items(model, splits["test"])
    match model.kind:
        case "text":
            return corpus.pages(items)
        case "rephrased":
            return corpus.rephrased(items)
        case "reasoning":
            return corpus.reasoned(items)
        case "both sets":
            return corpus.tuning([*items, *leaked_items(model, splits["fresh"])])
        case _:
            return corpus.tuning(items)


def leaked_items(model: CourtModel, items: list[Item]) -> list[Item]:
    """Return the items of a set that a cheater has seen: all, or a contiguous half that differs between units."""
    if model.dose == 1.0:
        return items
    half = len(items) // 2
    return items[:half] if model.unit % 2 else items[half:]


def _tune(
    start: Weights,
    documents: Iterator[Document],
    vocabulary: WordVocabulary,
    recipe: Recipe,
    rows: int,
    seed: int,
    name: str = "",
) -> Weights:
    tokens = token_rows(documents, start, vocabulary, rows)
    report = (lambda text: print_progress(f"{name}: {text}")) if name else None
    return train_network(start, SHAPE, tokens, recipe, seed=seed, report=report).weights
