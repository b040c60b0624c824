"""Comparisons as a scenario: one conversation per prompt, in which all candidates answer and the judges decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, Strict

from viva.agents.prompts import PromptPack
from viva.data.dataset import DataRecord, ManifestPart
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.scoring.pairwise_rank import Comparisons, informative_pairs

from ..audit.simulated_judge import check_traits
from ..contract import (
    Converse,
    ImportFormat,
    PanelMember,
    Prepared,
    Ranges,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    SupportsImports,
    SupportsManifest,
    SupportsProjection,
    UsageForecast,
    estimate_tokens,
    panel_members,
)
from ..rendering import RecordedConversation, RenderedConversation, ResultSummary
from .import_judgments import JUDGMENTS_FORMAT
from .pairwise_judging import (
    CANDIDATE,
    JUDGE,
    TEMPLATES,
    PairwiseProtocol,
    grade_prompt,
    judge_role,
    pair_prompt,
    render_judging,
)
from .pairwise_report import PairwiseAggregate, PairwiseResults
from .pairwise_settings import ADAPTIVE, ALL, PAIRS, JudgedPrompt, PairwiseSettings, open_prompts

_TRAITS = ("position", "length", "unsteady")
_LIST = Strict(False)  # JSON has lists where these are tuples


class EarlierComparisons(ManifestPart):
    """Comparisons of the run named by `after`: its prompts, and prompt, both models, score and difference in length."""

    prompts: list[str]
    comparisons: list[Annotated[tuple[str, int, int, float, float | None], _LIST]]


class PairwiseManifest(ManifestPart):
    """The manifest fields of a run; `planned` has the adaptive pairs by prompt."""

    dataset: DataRecord
    earlier: EarlierComparisons | None = None
    planned: dict[str, list[Annotated[tuple[int, int], _LIST]]] = Field(default_factory=dict)


class Pairwise(
    Scenario[PairwiseSettings, JudgedPrompt], SupportsForecast, SupportsImports, SupportsManifest, SupportsProjection
):
    """Answers of several models to the same prompts, compared in pairs or graded one by one."""

    name = "pairwise"
    summary = "Comparisons: models answer prompts, a judge compares answers in pairs or grades them (MT-Bench)."
    plural = "comparisons"
    data = "prompts"
    settings = PairwiseSettings
    roles = (Role(CANDIDATE, panel=True), Role(JUDGE, judge=True, panel=True))
    templates = TEMPLATES
    manifest = PairwiseManifest
    judging = frozenset({"judge_temperature", "judge_tokens"})
    ranges: ClassVar[Ranges] = {}

    def roles_of(self, settings: PairwiseSettings) -> tuple[Role, ...]:
        candidates = panel_members(CANDIDATE, settings.candidate)
        first = PanelMember(JUDGE, judge=True, pool=JUDGE)
        return (*candidates, first, *panel_members(JUDGE, settings.judge, first=1))

    def prepare(self, settings: PairwiseSettings) -> Prepared[JudgedPrompt]:
        s = settings
        check_traits(s.judge, _TRAITS)
        labels, judges = s.labels, s.judge_labels
        records: dict[str, Any] = {}
        if s.mode == PAIRS:
            s.plain_pairs()  # an unknown baseline is an error now
        if s.after is not None:
            records["earlier"] = earlier_comparisons(Path(s.after), labels, judges)
        used = records.get("earlier", {}).get("prompts", [])
        prompts = open_prompts(s.prompts, s.n, s.seed, used)
        if s.pairs == ADAPTIVE and s.mode == PAIRS:
            rows = [(*row[:4], 0.0) for row in records["earlier"]["comparisons"]]
            wins = Comparisons.from_rows(len(labels), rows).wins()
            names = [prompt.id for prompt in prompts]
            chosen = informative_pairs(wins, names, s.per_prompt, s.seed)
            records["planned"] = {name: list(map(list, pairs)) for name, pairs in zip(names, chosen, strict=True)}
        notes = [f"{label} judges its own answers; name another judge" for label in judges if label in labels]
        return Prepared(prompts, {"dataset": prompts.to_record(), **records}, notes)

    def protocol(
        self, settings: PairwiseSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[JudgedPrompt]:
        assert pack is not None
        return PairwiseProtocol(pack, settings, records.get("planned", {})).run

    def task(self, record: Any) -> JudgedPrompt:
        return JudgedPrompt.from_record(record)

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> PairwiseAggregate:
        return PairwiseAggregate(manifest)

    def summary_of(self, settings: PairwiseSettings) -> Callable[[Any], ResultSummary]:
        def summarize(result: Any) -> ResultSummary:
            results = PairwiseResults()
            results.add(result)
            outcomes = [pair.outcome for pair in results.pairs()]
            unscored = sum(outcome is None for outcome in outcomes)
            unscored += sum(grade is None for entry in result["grades"] for grade in entry["verdicts"])
            decided = sum(outcome not in (None, 0) for outcome in outcomes)
            end = f"{decided} of {len(outcomes)} comparisons decided" if outcomes else f"{len(result['grades'])} grades"
            return ResultSummary(end=result.get("stopped", end), unscored=unscored)

        return summarize

    def render_conversation(self, recorded: RecordedConversation) -> RenderedConversation:
        return render_judging(recorded)

    def imports(self) -> tuple[ImportFormat, ...]:
        return (JUDGMENTS_FORMAT,)

    def forecast(
        self, settings: PairwiseSettings, prepared: Prepared[JudgedPrompt], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        candidates, judges = len(settings.candidate), len(settings.judge)
        answer, verdict = UsageForecast(), UsageForecast()
        protocol = PairwiseProtocol(pack, settings, prepared.records.get("planned", {}))
        for prompt in prepared.tasks:
            size = estimate_tokens(pack.render("candidate.system"))
            pairs = len(protocol.pairs_of(prompt.id)) if settings.mode == PAIRS else 0
            for turn, question in enumerate(prompt.turns):
                size += estimate_tokens(question)
                answer += UsageForecast(1, size, settings.candidate_tokens)
                size += settings.candidate_tokens
                blank = [""] * (turn + 1)
                if settings.mode == PAIRS:
                    text, sides, count = pair_prompt(pack, prompt, turn, [blank, blank]), 2, 2 * pairs
                else:
                    text, sides, count = grade_prompt(pack, prompt, turn, blank), 1, candidates
                length = estimate_tokens(pack.render("judge.system") + text)
                length += sides * (turn + 1) * settings.candidate_tokens
                verdict += UsageForecast(1, length, settings.judge_tokens) * (2 * count)  # at most one repair each
        roles = {f"{CANDIDATE}-{at + 1}": answer for at in range(candidates)}
        return roles | {judge_role(at): verdict for at in range(judges)}

    def usage_factors(self, settings: PairwiseSettings, models: int) -> dict[str, float] | None:
        """Return the growth of answers, with the models, and of verdicts, with the pairs of models."""
        own = len(settings.candidate)
        judged = models / own
        if settings.mode == PAIRS:
            if models < 2 or settings.pairs == ADAPTIVE:
                return None  # one model has no pair; informative pairs depend on the results
            each = (models - 1) / (own - 1)  # opponents of each model, or models beside the baseline
            judged = judged * each if settings.pairs == ALL else each
        answers = {f"{CANDIDATE}-{at + 1}": models / own for at in range(own)}
        return answers | {judge_role(at): judged for at in range(len(settings.judge))}


def earlier_comparisons(path: Path, labels: list[str], judges: list[str]) -> dict[str, Any]:
    """Return the comparisons of an earlier run for the manifest: names of its prompts, and rows of `Comparisons`.

    They include those that the earlier run took from runs before it.

    Raises:
        ConfigurationError: The folder has no finished comparisons of these models by these judges.
    """
    folder = RunFolder.open(path)
    manifest = folder.manifest
    if manifest["scenario"] != Pairwise.name:
        raise ConfigurationError(f"after: {path} is a run of {manifest['scenario']}; expected one of {Pairwise.name}")
    aggregate = PairwiseAggregate(manifest)
    if (aggregate.labels, aggregate.judges) != (labels, judges) or aggregate.settings.mode != PAIRS:
        raise ConfigurationError(
            f"after: {path} compares {', '.join(aggregate.labels)} by {', '.join(aggregate.judges)} (mode "
            f"{aggregate.settings.mode}); expected the same candidates and judges in the same order, in the mode pairs"
        )
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed:
                aggregate.add(ended.key, ended.result)
    missing = int(manifest["dataset"]["chosen"]) - len(aggregate.results.records)
    if missing:
        raise ConfigurationError(
            f"after: {path} has no result for {missing:,} of its prompts; finish it with `viva resume {path}`"
        )
    earlier = manifest.get("earlier", {"prompts": [], "comparisons": []})
    rows = [
        [pair.prompt, pair.first, pair.second, pair.score, None if pair.longer != pair.longer else pair.longer]
        for pair in aggregate.results.pairs()
        if pair.score is not None
    ]
    return {
        "prompts": sorted({*earlier["prompts"], *aggregate.results.records}),
        "comparisons": [*earlier["comparisons"], *rows],
    }


SCENARIO = Pairwise()
