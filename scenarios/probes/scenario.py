"""Probes' side of the contract: one conversation an item and candidate, in which a model is read rather than asked.

What never belongs here: wording, formulas, output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from viva.agents.prompts import PromptPack
from viva.data.selection import Dataset, open_dataset
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling

from ..contract import Converse, Prepared, Role, Scenario, Scoring
from ..forecast import Use
from ..imported import Import
from ..shown import RecordedConversation, ResultSummary, ShownConversation, sides_of
from ..validation import Validation
from .forecast import probe_use
from .manifest import ProbeManifest
from .probe import ROLE, Probe, ProbeTask
from .questions import TEMPLATES, Questions
from .report import ProbeAggregate
from .settings import ProbeSettings
from .shots import Shots, open_examples
from .shown import shown_probe, summary

if TYPE_CHECKING:
    from ..study.static import StaticFigures
    from .study.study import ProbeStudy


@dataclass(slots=True)
class ProbeTasks:
    """The items of both sets."""

    dataset: Dataset
    against: Dataset | None

    def __len__(self) -> int:
        return len(self.dataset) + (len(self.against) if self.against is not None else 0)

    def __iter__(self) -> Iterator[ProbeTask]:
        for second, dataset in ((False, self.dataset), (True, self.against)):
            for item in dataset or ():
                yield ProbeTask(item, second)


class Probes(Scenario[ProbeSettings, ProbeTask]):
    """Static probes: what a model recalls of a benchmark (KIEval, section 4.2)."""

    name = "probe"
    summary = "Static accuracy and contamination detectors: what a model recalls of a benchmark."
    plural = "probes"
    settings = ProbeSettings
    roles = (Role(ROLE, many=True),)
    templates = TEMPLATES
    manifest = ProbeManifest
    by_model = True  # examples that all items share are computed once, and a local model stays warm
    validation = Validation(
        # Each item is put as an interview puts it, without examples, and answered freely.
        {"method": ["generate"], "shots": 0},
        ("shots_from", "against", "against_n", "members"),
        lambda result: bool(result.get("generate", {}).get("right")),
    )

    def prepare(self, settings: ProbeSettings) -> Prepared[ProbeTask]:
        skip = settings.skip_bad_items
        dataset = open_dataset(settings.dataset, limit=settings.n, seed=settings.seed, skip_bad=skip, ids=settings.ids)
        against: Dataset | None = None
        if settings.against is not None:
            count = settings.against_n or settings.n
            against = open_dataset(settings.against, limit=count, seed=settings.seed, skip_bad=skip)
        choosing = [method for method in settings.method if method != "loss"]
        if dataset.free and choosing:
            raise ConfigurationError(
                f"method: {', '.join(choosing)} asks which choice a model takes, and {dataset.free:,} questions of "
                f"{dataset.name} have none; give --method loss"
            )
        records: dict[str, Any] = {
            "dataset": dataset.to_record(),
            "against": None if against is None else against.to_record(),
            "examples": None,
        }
        if settings.shots and set(settings.method) != {"loss"}:
            examples = open_examples(settings.dataset, settings.shots_from, without="give --shots 0", skip_bad=skip)
            shots = Shots.drawn(examples, settings.shots, settings.seed)
            shots.check(dataset)
            records |= {"examples": examples.to_record(), "shots": shots.to_record()}
        notes = [note for one in (dataset, against) if one is not None for note in one.notes]
        return Prepared(ProbeTasks(dataset, against), records, notes)

    def protocol(
        self, settings: ProbeSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[ProbeTask]:
        return _probe(settings, pack, records).hold

    def task(self, record: Any) -> ProbeTask:
        return ProbeTask.from_record(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> ProbeAggregate:
        return ProbeAggregate(manifest)

    def shown(self, recorded: RecordedConversation) -> ShownConversation:
        return shown_probe(recorded, sides_of(self.roles))

    def summary_of(self, settings: ProbeSettings) -> Callable[[Any], ResultSummary]:
        return summary

    def tasks_in(self, manifest: Mapping[str, Any]) -> int:
        sets = (manifest["dataset"], manifest.get("against"))
        return sum(one["chosen"] for one in sets if one is not None)

    def cluster_of(self, result: Any) -> str:
        return str(result.get("cluster", ""))

    def imports(self) -> tuple[Import, ...]:
        from .imported import SAMPLES

        return (SAMPLES,)

    def study(self, lent: StaticFigures | None = None) -> ProbeStudy:
        from .study.study import ProbeStudy

        return ProbeStudy(self, lent)

    def forecast(
        self, settings: ProbeSettings, prepared: Prepared[ProbeTask], pack: PromptPack | None
    ) -> dict[str, Use]:
        return probe_use(_probe(settings, pack, prepared.records), prepared.tasks)


def _probe(settings: ProbeSettings, pack: PromptPack | None, records: Mapping[str, Any]) -> Probe:
    assert pack is not None
    return Probe(
        settings.method,
        Questions(pack, completions=records["dataset"]["form"] == "hellaswag"),
        Shots.from_record(records["shots"]) if "shots" in records else None,
        Sampling(max_tokens=settings.answer_tokens),
        settings.against is not None and settings.members == "against",
    )


SCENARIO = Probes()
