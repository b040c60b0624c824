"""KIEval as a registered scenario: from settings to conversations, and from a run's records to its report.

What never belongs here: the interview itself (``interview``), formulas (``scoring``), output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viva.agents.prompts import PromptPack, load_pack
from viva.agents.verdicts import read_verdict, verdict_schema
from viva.data.selection import Dataset, open_dataset
from viva.engine.backends.base import Backend
from viva.engine.conversation import Conversation
from viva.engine.detectors import detector_makers
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.messages import Sampling
from viva.engine.runner import Plan
from viva.scoring.kieval import SCORERS, Scorer

from ..candidates import candidate_labels, prices, replayed
from ..probes.questions import SIGNATURE as PROBE_SIGNATURE
from ..probes.questions import Questions
from ..probes.shots import Shots, open_examples
from .interview import Protocol, Talk, Task
from .pack import interview_pack
from .report import KievalAggregate
from .settings import KievalSettings

_SHOTS, _SHOTS_PACK = 5, "probe"


class PreparedKieval:
    """Settings checked, dataset read through once, prompt pack compiled."""

    def __init__(self, settings: KievalSettings) -> None:
        self.settings = settings
        self.labels = candidate_labels(settings.candidate)
        self.pack: PromptPack = interview_pack(settings.pack, settings.recorded_prompts)
        self.dataset: Dataset = open_dataset(
            settings.dataset,
            limit=settings.n,
            seed=settings.seed,
            skip_bad=settings.skip_bad_items,
            ids=settings.ids,
            shuffled=settings.shuffled,
            cluster=settings.cluster,
        )
        self.notes = self.dataset.notes
        self.total = len(self.dataset) * len(settings.candidate)
        self.models = list(dict.fromkeys([*settings.candidate, settings.interactor, settings.evaluator]))
        tokens = {
            "candidate": settings.candidate_tokens,
            "interactor": settings.interactor_tokens,
            "evaluator": settings.evaluator_tokens,
        }
        sampling = {
            role: Sampling(
                temperature=settings.temperature,
                max_tokens=count,
                schema=verdict_schema(count) if role == "evaluator" else None,
            )
            for role, count in tokens.items()
        }
        self.protocol = Protocol(
            self.pack,
            settings.rounds,
            settings.early_stop,
            settings.overlap,
            detector_makers(settings.detectors),
            sampling,
            settings.first_answer,
        )
        self.examples: Dataset | None = None
        if settings.first_answer == "five-shot":
            self.examples = open_examples(
                settings.dataset,
                settings.shots_from,
                without="give another --first-answer",
                skip_bad=settings.skip_bad_items,
            )
            shots = Shots(self.examples, _SHOTS, settings.seed)
            shots.check(self.dataset.items())
            questions = Questions(load_pack(_SHOTS_PACK, PROBE_SIGNATURE))
            self.protocol.examples = lambda item: questions.talk(item, shots.of(item))

    def manifest(self) -> dict[str, Any]:
        s = self.settings
        return {
            "models": {"candidate": self.labels, "interactor": s.interactor, "evaluator": s.evaluator},
            "prices": {model: prices(model) for model in self.models},
            "pack": {"name": self.pack.name, "version": self.pack.version, "digest": self.pack.digest},
            "dataset": self.dataset.to_record(),
            "prompts": self.pack.text,
            **({} if self.examples is None else {"examples": self.examples.to_record()}),
        }

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        # Item by item, all candidates on each: a run that is stopped half-way has still compared like with like.
        number = 0
        for item in self.dataset.items():
            record = item.to_record()
            for label, model in self.labels.items():
                roles = {
                    "candidate": backends[model],
                    "interactor": backends[self.settings.interactor],
                    "evaluator": backends[self.settings.evaluator],
                }
                yield Plan(number, f"{label}/{item.id}", roles, Task(label, item), record)
                number += 1

    async def converse(self, conversation: Conversation, payload: Task) -> dict[str, Any]:
        talk = Talk(conversation, self.protocol, payload)
        return (await talk.hold(payload.item)).to_record()


class Kieval:
    """The scenario object that the entry point names."""

    name = "kieval"
    summary = "Interviews on benchmark items, judged turn by turn (KIEval)."
    settings = KievalSettings

    def prepare(self, settings: KievalSettings) -> PreparedKieval:
        return PreparedKieval(settings)

    def forked(self, settings: KievalSettings, run: str, changes: dict[str, Any]) -> KievalSettings:
        judging = {"evaluator", "evaluator_tokens", "early_stop", "scorer", "decay", "concurrency"}
        foreign = sorted(changes.keys() - judging)
        if foreign:
            raise ConfigurationError(f"a fork keeps the talks and may not change {', '.join(foreign)}")
        labels = candidate_labels(settings.candidate)
        return settings.model_copy(
            update={
                **changes,
                "candidate": [replayed(run, label, model) for label, model in labels.items()],
                "interactor": replayed(run, "interactor", settings.interactor),
            }
        )

    def aggregate(self, manifest: dict[str, Any], options: dict[str, Any]) -> KievalAggregate:
        s = manifest["settings"]
        name = options.get("scorer") or s["scorer"]
        if name not in SCORERS:
            raise ConfigurationError(f"unknown scorer '{name}'; known: {', '.join(SCORERS)}")
        decay = options.get("decay")
        early_stop = options.get("early_stop")
        scorer = Scorer(
            name, s["decay"] if decay is None else decay, s["early_stop"] if early_stop is None else early_stop
        )
        return KievalAggregate(scorer, manifest)

    def transcript(self, item: Any, calls: list[Any]) -> list[tuple[str, str]]:
        lines = []
        if item is not None:
            choices = "\n".join(f"{chr(65 + i)}. {choice}" for i, choice in enumerate(item["choices"]))
            lines.append(("benchmark", f"{item['question']}\n{choices}\n(correct: {chr(65 + item['answer'])})"))
        # In the order of speaking, whatever order overlapping calls were answered in.
        latest = {(call.role, call.ordinal): call.completion.text for call in calls}
        lines.extend(("candidate", latest[key]) for key in [("candidate", 0)] if key in latest)
        verdicts = 0
        for held in range(len(latest)):
            for key in (("interactor", held), ("candidate", held + 1)):
                lines.extend((key[0], latest[key]) for _ in range(key in latest))
            while ("evaluator", verdicts) in latest:
                text = latest["evaluator", verdicts]
                lines.append(("evaluator", text))
                verdicts += 1
                if _readable(text):  # else the next one is the repair of this one
                    break
                if verdicts >= 2 and not _readable(latest["evaluator", verdicts - 2]):
                    break
        return lines


def _readable(text: str) -> bool:
    try:
        read_verdict(text)
    except MalformedOutput:
        return False
    return True


SCENARIO = Kieval()
