"""Static probes as a scenario: one conversation per item and candidate, scored by likelihood."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from viva.agents.prompts import PromptPack
from viva.data.dataset import Dataset, DatasetRecord, ManifestPart, open_dataset
from viva.data.items import Item
from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling, View

from ..contract import (
    Converse,
    ImportFormat,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsClusters,
    SupportsExams,
    SupportsForecast,
    SupportsImports,
    SupportsManifest,
    SupportsModelOrder,
    SupportsObservations,
    SupportsStudy,
    SupportsTaskCount,
    SupportsValidation,
    UsageForecast,
    Validation,
    estimate_tokens,
)
from ..models import model_labels
from ..rendering import RecordedConversation, RenderedConversation, ResultSummary, role_sides
from .few_shot import Shots, open_examples
from .probe import (
    ANSWERING,
    CANDIDATE,
    CHOOSING,
    READING,
    Method,
    Probe,
    ProbeSettings,
    ProbeTask,
    ShardTask,
    read_task,
    render_probe,
    score_rule,
    summarize_probe,
)
from .probe_prompts import TEMPLATES, Questions
from .probe_report import ProbeAggregate, observe
from .witness_calls import (
    SAMPLE_TOKENS,
    SAMPLES,
    SHARD_ITEMS,
    SHUFFLES,
    WitnessCalls,
    neighbours_of,
    option_orders,
    permuted_items,
    shards,
)

if TYPE_CHECKING:
    from viva.scoring.evidence.observations import Observations

    from ..study_sections import StaticFigures
    from .probe_study import ProbeStudy


class ProbeManifest(ManifestPart):
    """The manifest fields of a run of probes: the second set and the source of examples, if any."""

    dataset: DatasetRecord
    against: DatasetRecord | None
    examples: DatasetRecord | None
    shards: int = 0  # of method order


Use = tuple[UsageForecast, UsageForecast]  # with batched readings, and with one request per continuation


def forecast_probes(probe: Probe, tasks: Iterable[ProbeTask | ShardTask]) -> dict[str, UsageForecast]:
    """Return the candidate's usage for all items, with batched readings and with one request per continuation.

    If methods gather evidence, the usage of each method follows.
    """
    by_method: dict[str, Use] = {}
    for task in tasks:
        for method, use in _forecast_task(probe, task):
            batched, single = by_method.get(method, (UsageForecast(), UsageForecast()))
            by_method[method] = batched + use[0], single + use[1]
    batched, single = (sum((use[side] for use in by_method.values()), UsageForecast()) for side in (0, 1))
    forecast = {CANDIDATE: batched, f"{CANDIDATE}, one by one": single}
    if _gather_evidence(by_method):
        for name, use in by_method.items():
            forecast |= {f"{CANDIDATE}, {name}": use[0], f"{CANDIDATE}, {name}, one by one": use[1]}
    return forecast


def _gather_evidence(methods: Iterable[str]) -> bool:
    """Return whether one of the methods is asked for the court alone."""
    return any(method not in (*ANSWERING, "unconditional", "loss", "lower") for method in methods)


def _forecast_task(probe: Probe, task: ProbeTask | ShardTask) -> Iterator[tuple[Method, Use]]:
    questions = probe.questions
    if isinstance(task, ShardTask):
        yield "order", _reading_use(Reading("", (questions.shard_text(task.items),) * (1 + SHUFFLES)))
        return
    item = task.item
    shots = probe.shots.for_item(item) if probe.shots is not None else []
    for method in probe.second_methods if task.second else probe.methods:
        match method:
            case "loss" | "lower":
                yield method, _reading_use(Reading("", (questions.item_text(item),)))
            case "letter":
                yield method, _reading_use(questions.by_letter(item, shots))
            case "text":
                yield method, _reading_use(questions.by_text(item, shots))
            case "unconditional":
                yield method, _reading_use(questions.by_text_unconditional(item))
            case "generate":
                yield method, _view_use(questions.question_view(item, shots), probe.sampling.max_tokens)
            case "free":
                yield method, _view_use(questions.question_view(item, shots), probe.free_sampling.max_tokens)
            case "options":
                orders = 1 + len(option_orders(item, probe.calls.seed))
                if orders > 1:
                    batched, single = _reading_use(questions.by_letter(item, ()))
                    texts = _reading_use(Reading("", (questions.item_text(item),) * orders))
                    yield method, (texts[0] + batched * orders, texts[1] + single * orders)
            case "permute":
                for variant in permuted_items(item, probe.calls.seed):
                    yield method, _view_use(questions.question_view(variant, ()), probe.sampling.max_tokens)
            case "context":
                before, text = questions.shard_text(task.neighbours), questions.item_text(item)
                alone, within = _reading_use(Reading("", (text,))), _reading_use(Reading(before, (text,)))
                yield method, (alone[0] + within[0], alone[1] + within[1])
            case "guess":
                if len(item.choices) > 1:
                    yield method, _view_use(questions.masked_view(item, 0), SAMPLE_TOKENS)
            case "samples":
                batched, single = _view_use(questions.free_view(item), SAMPLE_TOKENS)
                yield method, (batched * (1 + SAMPLES), single * (1 + SAMPLES))
            case "order" | "court":
                pass


def _reading_use(reading: Reading) -> Use:
    before = estimate_tokens(reading.shared) + estimate_tokens(reading.context)
    read, texts = sum(map(estimate_tokens, reading.continuations)), len(reading.continuations)
    return UsageForecast(1, before + read), UsageForecast(texts, texts * before + read)


def _view_use(view: View, tokens: int) -> Use:
    use = UsageForecast(1, sum(estimate_tokens(message.content) for message in view.messages), tokens)
    return use, use


@dataclass(slots=True)
class ProbeTasks:
    """The items of both sets, then shards of the whole benchmark in the source's order.

    `neighbours` has the sets whose items get neighbours, by `second`; `shards` counts the shards of `whole`.
    """

    dataset: Dataset
    against: Dataset | None
    neighbours: Collection[bool] = ()
    whole: Dataset | None = None
    shards: int = 0
    seed: int = 0

    def __len__(self) -> int:
        return len(self.dataset) + (len(self.against) if self.against is not None else 0) + self.shards

    def __iter__(self) -> Iterator[ProbeTask | ShardTask]:
        for second, dataset in ((False, self.dataset), (True, self.against)):
            if dataset is None:
                continue
            items: Iterable[Item] = dataset
            if second in self.neighbours:
                items = list(dataset)
            for item in items:
                yield ProbeTask(item, second, neighbours_of(item, items, self.seed) if isinstance(items, list) else ())
        if self.whole is not None:
            for number, shard in shards(list(self.whole), self.shards, self.seed):
                yield ShardTask(number, shard)


class Probes(
    Scenario[ProbeSettings, ProbeTask | ShardTask],
    SupportsClusters,
    SupportsExams,
    SupportsForecast,
    SupportsImports,
    SupportsManifest,
    SupportsModelOrder,
    SupportsObservations,
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
    rate = True
    by_model = True  # shared examples are computed once, and a local model stays warm
    validation = Validation(
        # Items are asked as in an interview: without examples, with a free answer.
        {"method": ["generate"], "shots": 0},
        ("shots_from", "against", "against_n", "members"),
        lambda result: bool(result.get("generate", {}).get("right")),
    )

    def prepare(self, settings: ProbeSettings) -> Prepared[ProbeTask | ShardTask]:
        skip = settings.skip_bad_items
        dataset = open_dataset(
            settings.dataset, limit=settings.sample_size, seed=settings.seed, skip_bad=skip, ids=settings.ids
        )
        against: Dataset | None = None
        if settings.against is not None:
            count = settings.against_n or settings.n
            against = open_dataset(settings.against, limit=count, seed=settings.seed, skip_bad=skip)
        choosing = [
            method
            for method in settings.method
            if method in (*CHOOSING, "unconditional", "options", "permute", "guess")
        ]
        if dataset.free and choosing:
            raise ConfigurationError(
                f"method: {', '.join(choosing)} asks which choice a model takes, and {dataset.free:,} questions of "
                f"{dataset.name} have none; give --method free or --method loss"
            )
        if "free" in settings.method and dataset.free < len(dataset):
            raise ConfigurationError(
                f"method: free asks questions without choices, and {len(dataset) - dataset.free:,} questions of "
                f"{dataset.name} have choices; give --method generate"
            )
        reading = [method for method in settings.method if method in READING]
        batched = [model for model in settings.candidate if ModelSpec.parse(model).is_batched]
        if reading and batched:
            raise ConfigurationError(
                f"method: {', '.join(reading)}: needs the likelihood of given texts, which a batch API does not give; "
                f"leave batch=on out of {', '.join(batched)}, or give --method generate"
            )
        records: dict[str, Any] = {
            "dataset": dataset.to_record(),
            "against": None if against is None else against.to_record(),
            "examples": None,
        }
        if settings.shots and any(method in ANSWERING for method in settings.method):
            examples = open_examples(settings.dataset, settings.shots_from, without="give --shots 0", skip_bad=skip)
            shots = Shots.sample(examples, settings.shots, settings.seed)
            shots.check(dataset)
            if against is not None and any(method in CHOOSING for method in settings.second_methods):
                shots.check(against)
            records |= {"examples": examples.to_record(), "shots": shots.to_record()}
        whole, count = None, 0
        if "order" in settings.method:
            whole = open_dataset(settings.dataset, seed=settings.seed, skip_bad=skip)
            count = min(len(whole) // SHARD_ITEMS, -(-len(dataset) // SHARD_ITEMS))
            if not count:
                raise ConfigurationError(
                    f"method: order needs at least {SHARD_ITEMS} items, and {dataset.name} has {len(whole)}"
                )
            records["shards"] = count
        used = {False: settings.method, True: settings.second_methods}
        neighbours = [second for second, methods in used.items() if "context" in methods]
        for second in neighbours:
            own = against if second else dataset
            if own is not None and len(own) < 2:
                raise ConfigurationError(f"method: context needs at least 2 items, and {own.name} has 1")
        labels = model_labels(settings.candidate)
        if settings.reference is not None and settings.reference not in labels:
            raise ConfigurationError(
                f"reference: no candidate has the label '{settings.reference}'; their labels: {', '.join(labels)}"
            )
        notes = [note for source in (dataset, against) if source is not None for note in source.notes]
        tasks = ProbeTasks(dataset, against, neighbours, whole, count, settings.seed)
        return Prepared(tasks, records, notes)

    def protocol(
        self, settings: ProbeSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[ProbeTask | ShardTask]:
        return _probe(settings, pack, records).run

    def task(self, record: Any) -> ProbeTask | ShardTask:
        return read_task(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> ProbeAggregate:
        return ProbeAggregate(manifest)

    def exam_score(self, settings: ProbeSettings) -> Callable[[Any], float | None]:
        method = next((method for method in settings.method if method in CHOOSING), None)
        if method is None:
            raise ConfigurationError(f"probe: no score without one of the methods {', '.join(CHOOSING)}")
        return lambda result: float(result[method]["right"]) if method in result else None

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        return render_probe(recorded, role_sides(self.roles))

    def summary_of(self, settings: ProbeSettings) -> Callable[[Any], ResultSummary]:
        return summarize_probe

    def score_rule(self, settings: ProbeSettings) -> str:
        return score_rule(settings.method)

    def tasks_in(self, manifest: Mapping[str, Any]) -> int:
        sets = (manifest["dataset"], manifest.get("against"))
        items: int = sum(record["chosen"] for record in sets if record is not None)
        return items + int(manifest.get("shards") or 0)

    def cluster_of(self, result: Any) -> str:
        return str(result.get("cluster", ""))

    def observe(self, results: Iterable[Any]) -> Observations:
        return observe(results)

    def gathers_evidence(self, manifest: Mapping[str, Any]) -> bool:
        return _gather_evidence(manifest["settings"]["method"])

    def imports(self) -> tuple[ImportFormat, ...]:
        from .import_lm_eval import SAMPLES_FORMAT

        return (SAMPLES_FORMAT,)

    def study(self, lent: StaticFigures | None = None) -> ProbeStudy:
        from .probe_study import ProbeStudy

        return ProbeStudy(self, lent)

    def forecast(
        self, settings: ProbeSettings, prepared: Prepared[ProbeTask | ShardTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        return forecast_probes(_probe(settings, pack, prepared.records), prepared.tasks)


def _probe(settings: ProbeSettings, pack: PromptPack | None, records: Mapping[str, Any]) -> Probe:
    assert pack is not None
    questions = Questions(pack, completions=records["dataset"]["form"] == "hellaswag")
    questions.check_templates(settings.method)
    return Probe(
        settings.method,
        settings.second_methods,
        questions,
        Shots.from_record(records["shots"]) if "shots" in records else None,
        Sampling(max_tokens=settings.answer_tokens),
        WitnessCalls(questions, settings.seed, CANDIDATE),
        Sampling(max_tokens=settings.free_tokens),
        settings.against is not None and settings.members == "against",
    )


SCENARIO = Probes()
