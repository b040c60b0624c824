"""Static probes as a scenario: one conversation per item and candidate, scored by likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from viva.agents.prompts import PromptPack
from viva.data.dataset import Dataset, DatasetRecord, ManifestPart, open_dataset
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling

from ..contract import (
    Converse,
    ImportFormat,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsClusters,
    SupportsForecast,
    SupportsImports,
    SupportsManifest,
    SupportsModelOrder,
    SupportsStudy,
    SupportsTaskCount,
    SupportsValidation,
    UsageForecast,
    Validation,
    estimate_tokens,
)
from ..rendering import RecordedConversation, RenderedConversation, ResultSummary, role_sides
from .few_shot import Shots, open_examples
from .probe import CANDIDATE, Probe, ProbeSettings, ProbeTask, render_probe, summarize_probe
from .probe_prompts import TEMPLATES, Questions
from .probe_report import ProbeAggregate

if TYPE_CHECKING:
    from ..study_sections import StaticFigures
    from .probe_study import ProbeStudy


class ProbeManifest(ManifestPart):
    """The manifest fields of a run of probes: the second set and the source of examples, if any."""

    dataset: DatasetRecord
    against: DatasetRecord | None
    examples: DatasetRecord | None


def forecast_probes(probe: Probe, tasks: Iterable[ProbeTask]) -> dict[str, UsageForecast]:
    """Return the candidate's usage for all items, with batched readings and with one request per continuation."""
    batched, single = UsageForecast(), UsageForecast()
    for task in tasks:
        item = task.item
        shots = probe.shots.for_item(item) if probe.shots is not None and not task.second else []
        for method in ["loss"] if task.second else probe.methods:
            match method:
                case "loss":
                    use = UsageForecast(1, estimate_tokens(probe.questions.item_text(item)))
                    batched, single = batched + use, single + use
                case "generate":
                    prompt = sum(
                        estimate_tokens(message.content)
                        for message in probe.questions.question_view(item, shots).messages
                    )
                    use = UsageForecast(1, prompt, probe.sampling.max_tokens)
                    batched, single = batched + use, single + use
                case _:
                    make = probe.questions.by_letter if method == "letter" else probe.questions.by_text
                    reading = make(item, shots)
                    before = estimate_tokens(reading.shared) + estimate_tokens(reading.context)
                    read = sum(map(estimate_tokens, reading.continuations))
                    batched += UsageForecast(1, before + read)
                    single += UsageForecast(len(reading.continuations), len(reading.continuations) * before + read)
    return {CANDIDATE: batched, f"{CANDIDATE}, one by one": single}


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


class Probes(
    Scenario[ProbeSettings, ProbeTask],
    SupportsClusters,
    SupportsForecast,
    SupportsImports,
    SupportsManifest,
    SupportsModelOrder,
    SupportsStudy,
    SupportsTaskCount,
    SupportsValidation,
):
    """Static probes: what a model recalls of a benchmark (KIEval, section 4.2)."""

    name = "probe"
    summary = "Static accuracy and contamination detectors: what a model recalls of a benchmark."
    plural = "probes"
    settings = ProbeSettings
    roles = (Role(CANDIDATE, many=True),)
    templates = TEMPLATES
    manifest = ProbeManifest
    by_model = True  # shared examples are computed once, and a local model stays warm
    validation = Validation(
        # Items are asked as in an interview: without examples, with a free answer.
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
            shots = Shots.sample(examples, settings.shots, settings.seed)
            shots.check(dataset)
            records |= {"examples": examples.to_record(), "shots": shots.to_record()}
        notes = [note for source in (dataset, against) if source is not None for note in source.notes]
        return Prepared(ProbeTasks(dataset, against), records, notes)

    def protocol(
        self, settings: ProbeSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[ProbeTask]:
        return _probe(settings, pack, records).run

    def task(self, record: Any) -> ProbeTask:
        return ProbeTask.from_record(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> ProbeAggregate:
        return ProbeAggregate(manifest)

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        return render_probe(recorded, role_sides(self.roles))

    def summary_of(self, settings: ProbeSettings) -> Callable[[Any], ResultSummary]:
        return summarize_probe

    def tasks_in(self, manifest: Mapping[str, Any]) -> int:
        sets = (manifest["dataset"], manifest.get("against"))
        return sum(record["chosen"] for record in sets if record is not None)

    def cluster_of(self, result: Any) -> str:
        return str(result.get("cluster", ""))

    def imports(self) -> tuple[ImportFormat, ...]:
        from .import_lm_eval import SAMPLES_FORMAT

        return (SAMPLES_FORMAT,)

    def study(self, lent: StaticFigures | None = None) -> ProbeStudy:
        from .probe_study import ProbeStudy

        return ProbeStudy(self, lent)

    def forecast(
        self, settings: ProbeSettings, prepared: Prepared[ProbeTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        return forecast_probes(_probe(settings, pack, prepared.records), prepared.tasks)


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
