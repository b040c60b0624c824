"""Rephrasing of a benchmark as a scenario: writers are compared, and a checker answers what they have written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from viva.agents.prompts import PromptPack
from viva.data.dataset import open_dataset
from viva.data.items import Item
from viva.reports.tables import Table
from viva.scoring.aggregates import Tally

from ..choice_questions import question_view
from ..contract import (
    Converse,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    SupportsItems,
    UsageForecast,
    estimate_tokens,
)
from ..rendering import ResultSummary
from ..run_aggregate import ModelResults, RunAggregate, common_tables, tier_name
from ..run_settings import (
    DataSource,
    FilePath,
    ModelName,
    ModelNames,
    RunSettings,
    count_option,
    pack_option,
    skip_option,
    temperature_option,
    tokens_option,
)
from .rephrasing import CHECKER, TEMPLATES, WRITER, Rephrasing, writer_prompt


class RephrasingSettings(RunSettings):
    """A second set for a benchmark: its items in other words."""

    dataset: DataSource = Field(
        description="Benchmark: NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    )
    writer: ModelNames = Field(min_length=1, description="Model that rephrases.")
    checker: ModelName = Field(description="Model that answers what was rephrased: neither writer nor candidate.")
    n: int | None = count_option("Items")
    ids: FilePath | None = Field(default=None, description="File of item ids: use only these items.")
    temperature: float = temperature_option("both roles")
    writer_tokens: int = tokens_option("rephrased item", 1024)
    checker_tokens: int = tokens_option("answer of the checker", 256)
    pack: FilePath = pack_option("rephrase")
    skip_bad_items: bool = skip_option("are not items")


class RephrasedItems(ModelResults):
    """The results of one writer."""

    def __init__(self) -> None:
        super().__init__()
        self.items = self.kept = self.unchecked = 0
        self.reasons = Tally()

    def add(self, record: Mapping[str, Any]) -> None:
        self.items += 1
        self.kept += record["kept"]
        self.unchecked += record["kept"] and not record["checked"]
        if record["reason"]:
            self.reasons.add(record["reason"])
        self.add_usage(record)

    def warnings(self) -> list[str]:
        unchecked = f"; the key of {self.unchecked:,} without choices was not checked" if self.unchecked else ""
        return [f"{self.kept:,} of {self.items:,} items were rephrased and kept{unchecked}"]


class RephrasingReport(RunAggregate[RephrasedItems]):
    """The report of a run: kept items by writer, and why others were not kept."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, RephrasedItems, WRITER)

    def add(self, key: str, result: Any) -> None:
        self.model_of(key).add(result)

    def in_brief(self, results: RephrasedItems) -> str:
        return f"{results.kept:,} kept" if results.items else ""

    def figures(self, label: str, results: RephrasedItems) -> dict[str, Any]:
        counts = {"items": results.items, "kept": results.kept, "unchecked": results.unchecked}
        return counts | {"reasons": results.reasons.to_dict()} | results.common_figures(self.prices(label))

    def tables(self) -> list[Table]:
        report = self.report()
        title = f"Rephrased items of {report['dataset']['name']}, seed {report['seed']}, {tier_name(report['tier'])}"
        counts = [
            [label, f"{results.items:,}", f"{results.kept:,}", f"{results.failures.total:,}"]
            for label, results in self.candidates.items()
        ]
        reasons = [
            [label, reason, f"{count:,}"]
            for label, results in self.candidates.items()
            for reason, count in results.reasons.to_dict().items()
        ]
        return [
            (title, [WRITER, "items", "kept", "failed"], counts),
            ("Items that were not kept", [WRITER, "reason", "items"], reasons),
            *common_tables(report, WRITER),
        ]


class Rephrase(Scenario[RephrasingSettings, Item], SupportsForecast, SupportsItems):
    """A benchmark's items in other words, each kept if another model still takes its right choice."""

    name = "rephrase"
    summary = "A second set for the contamination court: a benchmark's items in other words."
    plural = "rephrasings"
    settings = RephrasingSettings
    roles = (Role(WRITER, many=True), Role(CHECKER))
    templates = TEMPLATES

    def prepare(self, settings: RephrasingSettings) -> Prepared[Item]:
        dataset = open_dataset(
            settings.dataset, limit=settings.n, seed=settings.seed, skip_bad=settings.skip_bad_items, ids=settings.ids
        )
        notes = list(dataset.notes)
        if settings.checker in settings.writer:
            notes.append(f"{settings.checker} checks its own items; name another model with --checker")
        return Prepared(dataset, {"dataset": dataset.to_record()}, notes)

    def protocol(
        self, settings: RephrasingSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[Item]:
        assert pack is not None
        return Rephrasing(pack, settings.sampling_of(WRITER), settings.sampling_of(CHECKER)).run

    def task(self, record: Any) -> Item:
        return Item(**record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> RephrasingReport:
        return RephrasingReport(manifest)

    def summary_of(self, settings: RephrasingSettings) -> Callable[[Any], ResultSummary]:
        return lambda result: ResultSummary(end=result["reason"] or "kept")

    def item_of(self, result: Any) -> Item | None:
        return Item(**result["rephrased"]) if result["kept"] else None

    def forecast(
        self, settings: RephrasingSettings, prepared: Prepared[Item], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        total = {WRITER: UsageForecast(), CHECKER: UsageForecast()}
        for item in prepared.tasks:
            prompt = estimate_tokens(pack.render("writer.system") + writer_prompt(pack, item))
            total[WRITER] += UsageForecast(1, prompt, settings.writer_tokens) * 2  # at most one repair
            if not item.free:
                question = sum(estimate_tokens(message.content) for message in question_view(pack, item).messages)
                total[CHECKER] += UsageForecast(1, question, settings.checker_tokens)
        return total


SCENARIO = Rephrase()
