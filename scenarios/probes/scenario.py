"""Probes as a registered scenario: from settings to conversations, one an item and candidate, and to the report.

Keys are LABEL/ITEM as an interview's are, so that both join by item; the second set's are LABEL/against/ITEM.
What never belongs here: wording, formulas, output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viva.agents.prompts import PromptPack, load_pack
from viva.data.items import Item, letter
from viva.data.selection import Dataset, open_dataset
from viva.engine.backends.base import Backend
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling
from viva.engine.runner import Plan

from ..candidates import candidate_labels, prices
from .probe import ROLE, Probe, Task
from .questions import SIGNATURE, Questions
from .report import ProbeAggregate
from .settings import ProbeSettings
from .shots import Shots, open_examples


class PreparedProbe:
    """Settings checked, datasets read through once, examples drawn, prompt pack compiled."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self.labels = candidate_labels(settings.candidate)
        self.models = list(settings.candidate)
        self.pack: PromptPack = load_pack(settings.pack, SIGNATURE)
        skip = settings.skip_bad_items
        self.dataset = open_dataset(
            settings.dataset, limit=settings.n, seed=settings.seed, skip_bad=skip, ids=settings.ids
        )
        self.against: Dataset | None = None
        if settings.against is not None:
            count = settings.against_n or settings.n
            self.against = open_dataset(settings.against, limit=count, seed=settings.seed, skip_bad=skip)
        self.examples: Dataset | None = None
        shots: Shots | None = None
        if settings.shots and set(settings.method) != {"loss"}:
            self.examples = open_examples(
                settings.dataset, settings.shots_from, without="give --shots 0", skip_bad=skip
            )
            shots = Shots(self.examples, settings.shots, settings.seed)
            shots.check(self.dataset.items())
        self.probe = Probe(
            settings.method,
            Questions(self.pack, completions=self.dataset.form == "hellaswag"),
            shots,
            Sampling(max_tokens=settings.answer_tokens),
            settings.against is not None and settings.members == "against",
        )
        self.notes = [note for one in (self.dataset, self.against) if one is not None for note in one.notes]
        self.total = len(self.labels) * (len(self.dataset) + (len(self.against) if self.against else 0))

    def manifest(self) -> dict[str, Any]:
        return {
            "models": {"candidate": self.labels},
            "prices": {model: prices(model) for model in self.models},
            "pack": {"name": self.pack.name, "version": self.pack.version, "digest": self.pack.digest},
            "dataset": self.dataset.to_record(),
            "against": None if self.against is None else self.against.to_record(),
            "examples": None if self.examples is None else self.examples.to_record(),
            "prompts": self.pack.text,
        }

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        # Candidate by candidate: examples that all items share are computed once, and a local model stays warm.
        number = 0
        for label, model in self.labels.items():
            for second, dataset in ((False, self.dataset), (True, self.against)):
                for item in dataset.items() if dataset is not None else ():
                    key = f"{label}/against/{item.id}" if second else f"{label}/{item.id}"
                    yield Plan(number, key, {ROLE: backends[model]}, Task(label, item, second), item.to_record())
                    number += 1

    async def converse(self, conversation: Conversation, payload: Task) -> dict[str, Any]:
        record = await self.probe.carry_out(conversation, payload)
        record["usage"] = {role: used.to_record() for role, used in conversation.usage.items()}
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})


class Probes:
    """The scenario object that the entry point names."""

    name = "probe"
    summary = "Static accuracy and contamination detectors: what a model recalls of a benchmark."
    settings = ProbeSettings

    def prepare(self, settings: ProbeSettings) -> PreparedProbe:
        return PreparedProbe(settings)

    def forked(self, settings: ProbeSettings, run: str, changes: dict[str, Any]) -> ProbeSettings:
        raise ConfigurationError("a probe has no evaluator to exchange: start a new run")

    def aggregate(self, manifest: dict[str, Any], options: dict[str, Any]) -> ProbeAggregate:
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise ConfigurationError(f"a probe has no {' or '.join(given)} to choose")
        return ProbeAggregate(manifest)

    def transcript(self, item: Any, calls: list[Any]) -> list[tuple[str, str]]:
        shown = Item(**item)
        lines = [("benchmark", f"{shown.question}\n{shown.labelled_choices()}\n(correct: {letter(shown.answer)})")]
        for call in calls:
            likelihoods = call.completion.likelihoods
            if likelihoods is None:
                lines.append((ROLE, call.completion.text))
            elif len(likelihoods) == 1:
                [one] = likelihoods
                lines.append((ROLE, f"the item's text: {one.total:.4f} nats over {len(one.logprobs)} tokens"))
            else:
                sums = [f"{letter(index)} {one.total:.4f}" for index, one in enumerate(likelihoods)]
                lines.append((ROLE, "log-probabilities: " + ", ".join(sums)))
        return lines


SCENARIO = Probes()
