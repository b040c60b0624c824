"""Studies of interviews: read as columns, pooled, and compared with static figures of other scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.journal_reader import EndedConversation
from viva.reports.page import Record
from viva.reports.tables import Row, interval, mean, record_rows
from viva.scoring.correlation import ModelScores

from ...contract import Findings
from ...fitness import fitness_warnings
from ...study_cells import ItemCatalogue, ItemNumbers, RunReading, StudyCell, add_results
from ...study_sections import Material, Section, SystemStudy, insert_after, static_readings
from ..interview_report import KievalAggregate
from ..score import NO_LATER_ROUNDS, SCORERS, Interview, KievalScoring, Scorer
from . import methods
from .agreement_and_difficulty import AgreementSection, DifficultySection
from .claims import Claims, Comparisons, findings
from .correlations import AgainstAccuracy
from .costs import Costs
from .exam_verdicts import judge_exams
from .interview_pools import (
    InterviewColumns,
    InterviewMaterial,
    conversation_keys,
    round_figures,
    rule_notes,
    with_rule_interval,
)
from .rounds_and_stops import RunningMeans, StopsSection, running_rows
from .score_tables import Ablation, Contamination, Results, round_rows


class InterviewStudy(SystemStudy):
    """The tables and plots of the KIEval paper, with additions for several seeds and evaluators."""

    by_item: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("rounds",)
    takes_static: ClassVar[bool] = True
    has_plots: ClassVar[bool] = True

    def make_sections(self) -> Sequence[Section[Any]]:
        return [
            Results(),
            Contamination(self.lent),
            Comparisons(),
            AgreementSection(),
            DifficultySection(),
            AgainstAccuracy(self.lent),
            Ablation(),
            StopsSection(),
            RunningMeans(),
            Costs(),
            Claims(),
        ]

    # -- computing --------------------------------------------------------------------------------------------------

    def scoring(self, cells: Sequence[StudyCell], name: str | None) -> Scorer:
        """Return the scorer of a study: the named one, else the common scorer of its interviews.

        It uses the switches that are named, else those that the runs recorded. If these differ, both are on: interviews
        that continued after a flag can be cut there, but those that ended there cannot continue.
        """
        base = None if name is None else name.partition(",")[0]
        if base is not None and base not in SCORERS:
            raise ConfigurationError(f"unknown scorer '{base}'{did_you_mean(base, SCORERS, 'known')}")
        chosen = KievalScoring() if name is None else KievalScoring.parse(name)
        scorer = chosen.scorer
        recorded = [cell.manifest["settings"] for cell in cells if cell.scenario == methods.NAME and cell.manifest]
        names = list(dict.fromkeys(settings["scorer"] for settings in recorded))
        if scorer is None and len(names) > 1:
            raise ConfigurationError(f"the runs have different scorers ({', '.join(names)}); choose one with --scorer")
        switches = {
            switch: next(iter(values)) if len(values) == 1 else True
            for switch in ("decay", "early_stop")
            for values in [{settings[switch] for settings in recorded}]
        } | chosen.model_dump(include={"decay", "early_stop"}, exclude_none=True)
        return Scorer(scorer or (names[0] if names else "official"), **switches)

    def read(self, readings: Sequence[RunReading], scoring: Scorer, items: ItemNumbers) -> None:
        cell = readings[0].cell
        assert cell.run is not None
        stopping = bool(cell.settings("early_stop"))

        def make() -> tuple[KievalAggregate, dict[str, InterviewColumns]]:
            aggregate = KievalAggregate(scoring, cell.manifest)
            candidates = aggregate.candidates.items()
            return aggregate, {label: InterviewColumns(own, items, stopping) for label, own in candidates}

        def add(total: tuple[KievalAggregate, dict[str, InterviewColumns]], ended: EndedConversation) -> None:
            aggregate, columns = total
            if ended.failed:
                aggregate.add_failure(ended.key, ended.result)
            else:
                interview = Interview.from_record(ended.result)
                columns[interview.candidate].add(ended.number, interview)

        (aggregate, columns), damaged = add_results(cell.run.journal, make, add, cell.stopped_at)
        results = aggregate.report()["candidates"]
        for reading in readings:
            result = results[reading.cell.candidate]
            reading.fill(aggregate, result, damaged, columns[reading.cell.candidate])
            reading.ended, reading.usage = result["interviews"] + result["failed"], result["usage"]

    def material(self, readings: list[RunReading], scoring: Scorer, catalogue: ItemCatalogue) -> InterviewMaterial:
        return InterviewMaterial(Material(scoring, readings, catalogue), self.lent)

    def judge_exams(self, figures: Sequence[ModelScores], answered: Mapping[str, int]) -> dict[str, Any]:
        return judge_exams(figures, answered)

    def head(self, scoring: Scorer) -> dict[str, Any]:
        return {"scorer": scoring.describe()}

    def facts(self, common: dict[str, Any], readings: Sequence[RunReading]) -> dict[str, Any]:
        read = [reading for reading in readings if reading.result is not None]
        interviewed = [reading for reading in read if isinstance(reading.columns, InterviewColumns)]
        results = [reading.result for reading in interviewed if reading.result is not None]
        labels = [reading.cell.label("interactor") for reading in readings]
        facts = insert_after(
            common, "evaluators", interactors=list(dict.fromkeys(label for label in labels if label is not None))
        )
        facts = insert_after(
            facts,
            "tiers",
            rounds=sorted({reading.cell.settings("rounds") for reading in interviewed}),
            recorded_with_early_stop=sorted({reading.cell.settings("early_stop") for reading in interviewed}),
            interviews=sum(result["interviews"] for result in results),
        )
        verdicts = sum(result["verdicts"] for result in results)
        probes = sum(reading.ended for reading in static_readings(self.lent, read))
        return insert_after(facts, "failed", verdicts=verdicts, probes=probes)

    def cell(self, common: dict[str, Any], reading: RunReading, scoring: Scorer) -> dict[str, Any]:
        cell, columns = reading.cell, reading.columns
        record = insert_after(common, "evaluator", interactor=cell.label("interactor"))
        record = insert_after(record, "tier", scorer=scoring.describe() if cell.scenario == methods.NAME else None)
        record = insert_after(record, "pack", rounds=cell.settings("rounds"), shots=cell.settings("shots"))
        if isinstance(columns, InterviewColumns) and cell.run is not None:
            if reading.result is not None and cell.stopped_at is not None:
                score = with_rule_interval(reading.result["score"], [cell], scoring)
                record["result"] = reading.result | {"score": score}
            record["by_round"] = round_figures([columns], [columns.clusters], scoring)
            record["running"] = columns.running()
            record["transcripts"] = {"folder": cell.folder, "examples": conversation_keys(cell.run, columns.examples())}
        return record

    def notes(self, cells: Sequence[StudyCell], scoring: Scorer) -> list[str]:
        folders = dict.fromkeys(cell.run.path for cell in cells if cell.run is not None)
        unfit = dict.fromkeys(warning for folder in folders for warning in fitness_warnings(folder))
        ended = not scoring.early_stop and any(cell.settings("early_stop") for cell in cells if cell.manifest)
        return [*unfit, *([NO_LATER_ROUNDS] if ended else []), *rule_notes(cells, scoring)]

    # -- from the report --------------------------------------------------------------------------------------------

    def shown_result(self, cell: Record) -> str:
        score = (cell["result"] or {}).get("score") or {}
        if "low" in score:  # the interval of the rule that ended the cell
            return interval({"value": score["mean"], "low": score["low"], "high": score["high"]})
        return mean(score)

    def cell_rows(self, cell: Record, prefix: Row) -> Iterator[Row]:
        yield from record_rows(prefix, "", cell["result"] or {})
        for record in cell.get("by_round", []):
            yield from round_rows(prefix, record)
        yield from running_rows(prefix, cell.get("running", {"n": []}))

    def page_facts(self, common: dict[str, str], report: Record) -> dict[str, str]:
        return methods.page_facts(common, report)

    def origin(self, report: Record) -> str:
        return methods.origin(report)

    def methods(self, report: Record) -> list[tuple[str, str]]:
        return methods.methods(report, self.lent)

    def findings(self, report: Record) -> Sequence[Findings]:
        return findings(report)
