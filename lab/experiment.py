"""The lab's experiment: the same candidates probed and interviewed on the invented world's benchmark, seed by seed.

Each seed is one probe run and one KIEval run in folders of their own (``seed-1/probe``, ``seed-1/kieval``), made by the
same scenarios that users run; a second start goes on where the first one ended. ``findings`` reads the results back.
What never belongs here: statistics and tables (``findings``), and what runs do (``scenarios``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from viva.engine.backends.base import ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.orchestration.launch import Launch, continued_run
from viva.scenarios.kieval.settings import KievalSettings
from viva.scenarios.probes.settings import ProbeSettings

from .benchmark import write_benchmark
from .card import read_card
from .corpus import PACK, PROBE_PACK
from .family import FAMILY, MODELS, model_file
from .world import World

_REPLY_TOKENS = 64  # what the models are trained to say takes half of it


@dataclass(frozen=True, slots=True)
class ExaminedModel:
    """A model with what is known of it: the ``share`` of the world's facts it was taught, None where nobody knows.

    ``twin``: the label of the clean candidate that was taught the same, if this one cheats.
    """

    model: str
    share: float | None = None
    twin: str | None = None

    @property
    def label(self) -> str:
        """Its name in runs and tables."""
        return ModelSpec.parse(self.model).label

    @property
    def clean(self) -> bool:
        """Whether it is known to have seen nothing of the benchmark."""
        return self.share is not None and self.twin is None


def family(world: int = 1, folder: Path = MODELS) -> list[ExaminedModel]:
    """The lab's trained models, shipped or from a folder that ``viva lab build`` has filled.

    :raises ConfigurationError: one of the files is missing, or their card tells of another world.
    """
    card = read_card(folder)
    if card is not None and card["world"] != world:
        raise ConfigurationError(f"{folder}: the models know world {card['world']}, not {world}; build others")
    return [
        ExaminedModel(
            f"llama:{model_file(one.name, folder)}?label={one.name}", one.share, one.twin if one.cheat else None
        )
        for one in FAMILY
    ]


def ideal_family(world: int = 1) -> list[ExaminedModel]:
    """The same family without any training: examinees that know exactly their share, and guess the rest."""
    saw = {None: "none", "sft": "answers", "pt": "texts"}
    return [
        ExaminedModel(
            f"oracle:{one.name}?world={world}&knows={one.share:g}&saw={saw[one.cheat]}",
            one.share,
            one.twin if one.cheat else None,
        )
        for one in FAMILY
    ]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is done with each seed. ``items``: interviews for each candidate, drawn from the test split's 112 items;
    ``probed``: items of the test and of the fresh split that are probed, None for all.
    """

    candidates: Sequence[ExaminedModel]
    folder: Path
    world: int = 1
    items: int = 100
    rounds: int = 5
    shots: int = 0
    probed: int | None = None
    concurrency: int = 500

    def launches(self, seed: int, clock: Clock | None = None) -> Iterator[Launch]:
        """The runs of a seed, each made when the one before has ended.

        :raises ConfigurationError: a model's name is wrong, or a folder holds another experiment.
        """
        files = write_benchmark(World(self.world), self.folder / "benchmark")
        oracle = f"oracle:examiner?world={self.world}&seed={seed}"
        models = [candidate.model for candidate in self.candidates]
        probe = ProbeSettings(
            seed=seed,
            concurrency=self.concurrency,
            dataset=str(files["test"]),
            against=str(files["fresh"]),
            candidate=models,
            method=["text", "loss"],
            n=self.probed,
            shots=self.shots,
            shots_from=str(files["train"]) if self.shots else None,
            pack=PROBE_PACK,
        )
        yield continued_run("probe", probe, self.run_folder(seed, "probe"), clock)
        kieval = KievalSettings(
            seed=seed,
            concurrency=self.concurrency,
            dataset=str(files["test"]),
            n=self.items,
            candidate=models,
            interactor=oracle,
            evaluator=oracle,
            rounds=self.rounds,
            first_answer="text",  # the models are trained to go on from their own words
            pack=PACK,
            candidate_tokens=_REPLY_TOKENS,
        )
        yield continued_run("kieval", kieval, self.run_folder(seed, "kieval"), clock)

    def run_folders(self, seeds: Sequence[int]) -> list[Path]:
        """Where the runs of these seeds lie, interviews before probes."""
        return [self.run_folder(seed, scenario) for seed in seeds for scenario in ("kieval", "probe")]

    def run_folder(self, seed: int, scenario: str) -> Path:
        """Where a seed's run of a scenario lies."""
        return self.folder / f"seed-{seed}" / scenario
