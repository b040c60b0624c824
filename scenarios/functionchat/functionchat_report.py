"""Reports of FunctionChat runs: the paper's tables of judged turns, and success of dialogs with a simulated user.

For turns, the report has passes by tool list (Table 3) and by type (Table 4), as judged and as corrected, and reviewed
verdicts (Table 5). Runs that match and judge as the authors' code does have Tables 3 and 4 as it counts them, too. For
dialogs, it has success and its reliability over repeats. All figures are by candidate, as plain data and as tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from viva.reports.figures import estimate_record, mean_record, round_figure
from viva.reports.tables import DASH, Table, interval, number, percent
from viva.scoring.aggregates import Mean, Tally, pass_hat_k
from viva.scoring.clustered_means import clustered_mean

from ..run_aggregate import ModelResults, RunAggregate, common_tables, tier_name
from .rule_grading import TAGS
from .turns import OUTPUT_TYPES, TOOL_LISTS, OutputType, Subset
from .verdict_review import Correction, disputed_outputs, effective_corrections, recorded_corrections

R = TypeVar("R", bound=ModelResults)
AS_PUBLISHED = "as_published"  # the manifest's mark of a run that matches and judges as the authors' code does


class CandidateDialogs(ModelResults):
    """The dialogs of one candidate. They are added in any order; the report is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: dict[str, list[int]] = {}  # by task: [tried, succeeded]
        self.ends, self.faults = Tally(), Tally()
        self.calls, self.exchanges = Mean(), Mean()

    def add(self, result: dict[str, Any]) -> None:
        trial = self.trials.setdefault(result["item"], [0, 0])
        trial[0] += 1
        trial[1] += result["success"]
        self.ends.add(result["ended_by"])
        for fault, is_present in (
            ("expected call missing", result["missing"]),
            ("forbidden call made", result["forbidden"]),
            ("state not reached", not result["state_reached"]),
        ):
            if is_present:
                self.faults.add(fault)
        self.calls.add(len(result["calls"]))
        self.exchanges.add(result["exchanges"])
        self.add_usage(result)

    def to_dict(self, prices: dict[str, list[float] | None], repeats: int) -> dict[str, Any]:
        trials = [(tried, succeeded) for tried, succeeded in self.trials.values()]
        tried, succeeded = sum(n for n, _ in trials), sum(c for _, c in trials)
        outcomes = [(float(at < won), task) for task, (count, won) in self.trials.items() for at in range(count)]
        mean = clustered_mean([value for value, _ in outcomes], [task for _, task in outcomes])
        return {
            "tasks": len(trials),
            "talks": tried,
            "succeeded": succeeded,
            "success": None if mean is None else estimate_record(mean.bounded_interval(0.0, 1.0, rate=True), 100),
            "pass_hat": {str(k): mean_record(pass_hat_k(trials, k)) for k in range(1, repeats + 1)},
            "faults": self.faults.to_dict(),
            "ends": self.ends.to_dict(),
            "calls": mean_record(self.calls),
            "exchanges": mean_record(self.exchanges),
            "failed": self.failures.total,
            **self.common_figures(prices),
        }


class FunctionChatAggregate(RunAggregate[R]):
    """The common part of the reports of both modes."""

    fields = (*("scenario", "mode", "seed", "tier", "repeats"), *("models", "dataset", "pack"))

    def facts(self) -> dict[str, Any]:
        settings = self.manifest["settings"]
        return {"mode": settings["mode"], "repeats": settings["repeats"]}


class UserAggregate(FunctionChatAggregate[CandidateDialogs]):
    """The candidates of a run in mode user."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, CandidateDialogs, "candidate")

    def add(self, key: str, result: Any) -> None:
        self.candidates[result["candidate"]].add(result)

    def in_brief(self, dialogs: CandidateDialogs) -> str:
        return _share_text(sum(c for _, c in dialogs.trials.values()), sum(n for n, _ in dialogs.trials.values()))

    def figures(self, label: str, dialogs: CandidateDialogs) -> dict[str, Any]:
        return dialogs.to_dict(self.prices(label), self.manifest["settings"]["repeats"])

    def tables(self) -> list[Table]:
        report = self.report()
        return [self._main(report), self._ends(report), *common_tables(report)]

    def _main(self, report: dict[str, Any]) -> Table:
        ks = _listed_ks(report["repeats"])
        header = [
            "candidate",
            "tasks",
            "dialogs",
            "success",
            *(f"pass^{k}" for k in ks),
            "calls",
            "exchanges",
            "failed",
        ]
        rows = []
        for label, record in report["candidates"].items():
            row = [label, str(record["tasks"]), str(record["talks"]), interval(record["success"])]
            row += [number(record["pass_hat"][str(k)]["mean"], 3) for k in ks]
            row += [number(record[name]["mean"]) for name in ("calls", "exchanges")]
            rows.append([*row, str(record["failed"])])
        title = f"Dialogs with a simulated user on {report['dataset']['name']}, {report['repeats']} per task, "
        return (title + f"seed {report['seed']}, {tier_name(report['tier'])}", header, rows)

    def _ends(self, report: dict[str, Any]) -> Table:
        candidates = report["candidates"]
        counts: dict[str, dict[str, int]] = {label: {} for label in candidates}
        for part, prefix in (("faults", ""), ("ends", "ended by "), ("failures", "failed: ")):
            for name in sorted({name for record in candidates.values() for name in record[part]}):
                for label, record in candidates.items():
                    counts[label][prefix + name] = record[part].get(name, 0)
        names = list(next(iter(counts.values())))
        rows = [[label, *map(str, record.values())] for label, record in counts.items()]
        return ("Faults and ends of dialogs", ["candidate", *names], rows)


def _listed_ks(repeats: int) -> list[int]:
    """Return the ks shown in the table: all up to 4, then powers of two, and the last."""
    return [k for k in range(1, repeats + 1) if k <= 4 or k == repeats or k.bit_count() == 1]


def _share_text(part: int, total: int) -> str:
    return f"{100 * part / total:.1f}%" if total else ""


_TYPE_NAMES = {"call": "tool call", "completion": "answer completion", "slot": "slot question"}
_TYPE_NAMES["relevance"] = "relevance detection"


@dataclass(slots=True, frozen=True)
class GradedTurn:
    """The grade of one turn.

    `key` is the conversation's key, unique in the run; `cluster` is `DialogTurn.cluster`; `passed` is None without a
    verdict; `judged` turns were sent to a judge.
    """

    key: str
    cluster: str
    subset: Subset
    type: OutputType
    tool_list: str | None
    passed: bool | None
    judged: bool = False
    category: str | None = None


def apply_corrections(outcomes: Iterable[GradedTurn], corrections: Mapping[str, Correction]) -> list[GradedTurn]:
    """Return the outcomes, each with the verdict of the correction that has its key, if any."""
    return [
        replace(outcome, passed=corrections[outcome.key].passed) if outcome.key in corrections else outcome
        for outcome in outcomes
    ]


def singlecall_figures(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """Return passes by tool list, their sum and their average over the tool lists (Table 3: the sum divided by five).

    `rate` is the share of all turns that passed, with its standard error over queries. Outcomes of dialogs are left
    out.
    """
    selected = [outcome for outcome in outcomes if outcome.subset == "singlecall"]
    lists = {name: _pass_counts([outcome for outcome in selected if outcome.tool_list == name]) for name in TOOL_LISTS}
    tried = [counts for counts in lists.values() if counts["n"]]
    total = sum(counts["passed"] for counts in tried)
    average = round_figure(total / len(tried)) if tried else None
    return {"lists": lists, "sum": total, "average": average, "rate": _pass_rate(selected)}


def dialog_figures(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """Return pass rates of dialogs by type, their plain mean (macro), and the share of all turns (micro)."""
    selected = [outcome for outcome in outcomes if outcome.subset == "dialog"]
    types = {kind: _pass_counts([outcome for outcome in selected if outcome.type == kind]) for kind in OUTPUT_TYPES}
    return {"types": types, "macro": _macro_mean(selected), "micro": _pass_rate(selected)}


def published_figures(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """Return Tables 3 and 4 as the authors' code counts them; turns without a verdict have not passed.

    A rate by type is of turns with a verdict only, the micro average of all turns; the paper adds the macro average,
    the mean of the rates. Averages are None for tables with an empty column.
    """
    cases = list(outcomes)
    single, dialog = ([case for case in cases if case.subset == subset] for subset in ("singlecall", "dialog"))
    lists = {name: [case.passed is True for case in single if case.tool_list == name] for name in TOOL_LISTS}
    passes = {name: sum(passed) for name, passed in lists.items() if passed}
    rates: dict[str, float] = {}
    for kind in OUTPUT_TYPES:
        verdicts = [case.passed for case in dialog if case.type == kind and case.passed is not None]
        if verdicts:
            rates[kind] = sum(verdicts) / len(verdicts)
    return {
        "singlecall": {
            "lists": passes,
            "sum": sum(passes.values()),
            "average": round_figure(sum(passes.values()) / len(TOOL_LISTS)) if len(passes) == len(TOOL_LISTS) else None,
        },
        "dialog": {
            "types": {kind: round_figure(rate) for kind, rate in rates.items()},
            "macro": round_figure(sum(rates.values()) / len(rates)) if len(rates) == len(OUTPUT_TYPES) else None,
            "micro": _rounded_share(sum(case.passed is True for case in dialog), len(dialog)),
        },
    }


def category_figures(outcomes: Iterable[GradedTurn]) -> dict[str, dict[str, Any]]:
    """Return for each subset with categories the pass rates by category, and `rate`, the share of all turns.

    The standard error of `rate` is over groups of turns that begin with the same user message.
    """
    selected = [outcome for outcome in outcomes if outcome.category is not None]
    figures: dict[str, dict[str, Any]] = {}
    for subset in sorted({outcome.subset for outcome in selected}):
        part = [outcome for outcome in selected if outcome.subset == subset]
        names = sorted({str(outcome.category) for outcome in part})
        categories = {name: _pass_counts([outcome for outcome in part if outcome.category == name]) for name in names}
        figures[subset] = {"categories": categories, "rate": _pass_rate(part)}
    return figures


def averages(rates: Mapping[str, float], counts: Mapping[str, int]) -> tuple[float, float]:
    """Return the macro and the micro average of rates by type: Σ rate / types, and Σ rate · count / Σ count."""
    if not rates or any(counts.get(name, 0) < 1 for name in rates):
        raise ValueError(f"averages need at least one rate, and a count for each: {dict(rates)}, {dict(counts)}")
    micro = sum(rate * counts[name] for name, rate in rates.items()) / sum(counts[name] for name in rates)
    return sum(rates.values()) / len(rates), micro


def _scored_outcomes(outcomes: Iterable[GradedTurn]) -> list[GradedTurn]:
    return [outcome for outcome in outcomes if outcome.passed is not None]


def _pass_counts(outcomes: Sequence[GradedTurn]) -> dict[str, Any]:
    scored = _scored_outcomes(outcomes)
    mean = clustered_mean(
        [float(outcome.passed is True) for outcome in scored], [outcome.cluster for outcome in scored]
    )
    ends = None if mean is None else estimate_record(mean.bounded_interval(0.0, 1.0, rate=True))
    passed = sum(outcome.passed is True for outcome in scored)
    return {"n": len(outcomes), "passed": passed, "unscored": len(outcomes) - len(scored), "rate": ends}


def _pass_rate(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    scored = _scored_outcomes(outcomes)
    return _clustered_mean(
        [float(outcome.passed is True) for outcome in scored], [outcome.cluster for outcome in scored]
    )


def _macro_mean(outcomes: Iterable[GradedTurn]) -> dict[str, Any]:
    """Return the mean of the types' rates with an error over dialogs.

    A turn counts macro + weight · (passed - rate of its type), with the weight turns / (types · turns of its type). The
    mean of these numbers is the macro average, and their spread is that of its linearisation.
    """
    scored = _scored_outcomes(outcomes)
    groups = {kind: [outcome for outcome in scored if outcome.type == kind] for kind in OUTPUT_TYPES}
    groups = {kind: group for kind, group in groups.items() if group}
    rates: dict[str, float] = {
        kind: sum(outcome.passed is True for outcome in group) / len(group) for kind, group in groups.items()
    }
    if not rates:
        return _clustered_mean([], [])
    macro, _ = averages(rates, {kind: len(group) for kind, group in groups.items()})
    values = [
        macro
        + len(scored) / (len(groups) * len(groups[outcome.type])) * ((outcome.passed is True) - rates[outcome.type])
        for outcome in scored
    ]
    return _clustered_mean(values, [outcome.cluster for outcome in scored])


def _clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> dict[str, Any]:
    mean = clustered_mean(values, clusters)
    if mean is None:
        return {"mean": None, "se": None, "n": 0, "clusters": 0}
    return {"mean": round_figure(mean.mean), "se": round_figure(mean.se), "n": mean.n, "clusters": mean.clusters}


def judge_errors(outcomes: Iterable[GradedTurn], corrections: Mapping[str, Correction]) -> dict[str, Any]:
    """Count the verdicts of rules and of the judge that reviewers overruled, by subset and over `all` (Table 5).

    A false positive is an output that passed but should have failed. `of_judged` has shares of the judge's verdicts,
    not of all cases.
    """
    cases = list(outcomes)
    names: list[str] = ["singlecall", "dialog", *sorted({case.subset for case in cases} - {"singlecall", "dialog"})]
    parts = {name: [case for case in cases if case.subset == name] for name in names}
    return {name: _judge_errors(part, corrections) for name, part in {**parts, "all": cases}.items()}


def _judge_errors(outcomes: Sequence[GradedTurn], corrections: Mapping[str, Correction]) -> dict[str, Any]:
    scored = _scored_outcomes(outcomes)
    judged = [outcome for outcome in scored if outcome.judged]
    counts, of_judge = _wrong_verdicts(scored, corrections), _wrong_verdicts(judged, corrections)
    return {
        "cases": len(outcomes),
        "judged": len(judged),
        "reviewed": sum(outcome.key in corrections for outcome in scored),
        **counts,
        "by_rule": counts["both"] - of_judge["both"],
        "of_cases": {name: _rounded_share(count, len(outcomes)) for name, count in counts.items()},
        "of_judged": {name: _rounded_share(count, len(judged)) for name, count in of_judge.items()},
    }


def _wrong_verdicts(outcomes: Sequence[GradedTurn], corrections: Mapping[str, Correction]) -> dict[str, int]:
    reviewed = [(outcome.passed, corrections[outcome.key].passed) for outcome in outcomes if outcome.key in corrections]
    passed = sum(verdict is True and not right for verdict, right in reviewed)
    failed = sum(verdict is False and right for verdict, right in reviewed)
    return {"false_positives": passed, "false_negatives": failed, "both": passed + failed}


def singlecall_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return Table 3: passes by tool list, sum and average, from `singlecall_figures` by candidate."""
    header = ["candidate", *TOOL_LISTS, "sum", "average", "SE", "unscored"]
    cells = []
    for label, record in rows.items():
        lists = [record["lists"][name] for name in TOOL_LISTS]
        if any(part["n"] for part in lists):
            row = [label, *(str(part["passed"]) if part["n"] else DASH for part in lists), str(record["sum"])]
            error, tried = record["rate"]["se"], [part["n"] for part in lists if part["n"]]
            # The average counts the turns of a list, so its error is the rate's error times that number of turns.
            spread = None if error is None else error * sum(tried) / len(tried)
            row += [number(record["average"]), number(spread), str(sum(part["unscored"] for part in lists))]
            cells.append(row)
    return (title, header, cells)


def dialog_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return Table 4: pass rates by type, macro and micro average, from `dialog_figures` by candidate."""
    header = ["candidate", *(_TYPE_NAMES[kind] for kind in OUTPUT_TYPES), "macro", "SE", "micro", "SE", "unscored"]
    cells = []
    for label, record in rows.items():
        types = [record["types"][kind] for kind in OUTPUT_TYPES]
        if any(part["n"] for part in types):
            rates = [number((part["rate"] or {}).get("value"), 2) for part in types]
            means = [number(record[name][statistic], 2) for name in ("macro", "micro") for statistic in ("mean", "se")]
            cells.append([label, *rates, *means, str(sum(part["unscored"] for part in types))])
    return (title, header, cells)


def published_tables(suffix: str, rows: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return Tables 3 and 4 as published, from `published_figures` by candidate."""
    single = [
        [label, *(str(part["lists"].get(name, DASH)) for name in TOOL_LISTS), str(part["sum"]), number(part["average"])]
        for label, record in rows.items()
        if (part := record["singlecall"])["lists"]
    ]
    dialogs = [
        [label, *(number(value, 2) for value in [*map(part["types"].get, OUTPUT_TYPES), part["macro"], part["micro"]])]
        for label, record in rows.items()
        if (part := record["dialog"])["micro"] is not None
    ]
    return [
        (f"Pass count of single calls, as the authors count (Table 3){suffix}",
         ["candidate", *TOOL_LISTS, "SUM", "AVG"], single),
        (f"Pass rate of dialogs, as the authors count (Table 4){suffix}",
         ["candidate", *(_TYPE_NAMES[kind] for kind in OUTPUT_TYPES), "macro AVG", "micro AVG"], dialogs),
    ]  # fmt: skip


def category_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return passes and turns by category and in total, from one subset's `category_figures` by candidate."""
    names = sorted({name for record in rows.values() for name in record["categories"]})
    header = ["candidate", *names, "all", "rate", "SE", "unscored"]
    cells = []
    for label, record in rows.items():
        parts = [record["categories"].get(name) for name in names]
        counted = [part for part in parts if part is not None]
        row = [label, *(DASH if part is None else f"{part['passed']}/{part['n']}" for part in parts)]
        row.append(f"{sum(part['passed'] for part in counted)}/{sum(part['n'] for part in counted)}")
        row += [number(record["rate"][statistic], 2) for statistic in ("mean", "se")]
        cells.append([*row, str(sum(part["unscored"] for part in counted))])
    return (title, header, cells)


def judge_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return Table 5: cases, judged and reviewed, false positives and negatives, from `judge_errors` of a run."""
    header = ["subset", "cases", "judged", "reviewed", "FP", "FP %", "FN", "FN %", "FP+FN", "FP+FN %", "by rule"]
    cells = []
    for name, record in rows.items():
        if record["cases"]:
            row = [name, *(str(record[part]) for part in ("cases", "judged", "reviewed"))]
            for part in ("false_positives", "false_negatives", "both"):
                rate = record["of_cases"][part]
                row += [str(record[part]), number(None if rate is None else 100 * rate)]
            cells.append([*row, str(record["by_rule"])])
    return (title, header, cells)


def _rounded_share(part: int, total: int) -> float | None:
    return round_figure(part / total) if total else None


class CandidateTurns(ModelResults):
    """The turns of one candidate. They are added in any order; the report is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[GradedTurn] = []
        self.tags: dict[str, Tally] = {kind: Tally() for kind in OUTPUT_TYPES}
        self.unscored = self.judged = self.parse_failures = 0

    def add(self, key: str, result: dict[str, Any]) -> None:
        judge, passed = result["judge"], result["passed"]
        cluster = result.get("cluster") or result["item"].rpartition("/")[0]
        kind, part, category = result["type"], result["tool_list"], result.get("category")
        self.outcomes.append(
            GradedTurn(key, cluster, result["subset"], kind, part, passed, judge is not None, category)
        )
        self.unscored += passed is None
        if judge is not None:
            self.judged += 1
            self.parse_failures += judge["failures"]
        if passed is False and result["grade"] is not None:
            for tag in result["grade"]["tags"]:
                self.tags[kind].add(tag)
        if "stopped" in result:
            self.stops.add(result["stopped"])
        self.add_usage(result)

    def to_dict(
        self, prices: dict[str, list[float] | None], corrections: dict[str, Correction], *, as_published: bool = False
    ) -> dict[str, Any]:
        """Return all figures as plain data; corrected figures only if there are corrections of this candidate."""
        outcomes = sorted(self.outcomes, key=lambda outcome: outcome.key)
        turns, texts = len(outcomes), self.judged + self.parse_failures
        texts -= sum(
            outcome.judged and outcome.passed is None for outcome in outcomes
        )  # the last text of these turns was the second failure
        common = self.common_figures(prices)
        usage = common.pop("usage")
        data: dict[str, Any] = {
            "turns": turns,
            "decided_by_rule": turns - self.judged - sum(self.stops.counts.values()),
            "judged": self.judged,
            "unscored": self.unscored,
            "unscored_rate": _rounded_share(self.unscored, turns),
            "parse_failures": self.parse_failures,
            "parse_failure_rate": _rounded_share(self.parse_failures, texts),
            "stopped": self.stops.to_dict(),
            "failed": self.failures.total,
            **common,
            "singlecall": singlecall_figures(outcomes),
            "dialog": dialog_figures(outcomes),
            "tags": {
                kind: {name: tally.counts[name] for name in TAGS if name in tally.counts}
                for kind, tally in self.tags.items()
            },
            "usage": usage,
        }
        data |= _by_category(outcomes)
        if as_published:
            data[AS_PUBLISHED] = published_figures(outcomes)
        if any(outcome.key in corrections for outcome in outcomes):
            corrected = apply_corrections(outcomes, corrections)
            data["corrected"] = {"singlecall": singlecall_figures(corrected), "dialog": dialog_figures(corrected)}
            data["corrected"] |= _by_category(corrected)
            if as_published:
                data["corrected"][AS_PUBLISHED] = published_figures(corrected)
        return data


class TurnAggregate(FunctionChatAggregate[CandidateTurns]):
    """The candidates of a run in mode turns."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, CandidateTurns, "candidate")
        self._corrections: list[Correction] = []

    def beside(self, folder: Path) -> None:
        """Read the corrections; raise `DatasetError` if their file cannot be read."""
        self._corrections = recorded_corrections(folder)

    def add(self, key: str, result: Any) -> None:
        self.candidates[result["candidate"]].add(key, result)

    def in_brief(self, turns: CandidateTurns) -> str:
        return _share_text(
            sum(outcome.passed is True for outcome in turns.outcomes), len(turns.outcomes) - turns.unscored
        )

    def figures(self, label: str, turns: CandidateTurns) -> dict[str, Any]:
        corrections = effective_corrections(self._corrections)
        return turns.to_dict(self.prices(label), corrections, as_published=AS_PUBLISHED in self.manifest)

    def report(self) -> dict[str, Any]:
        report = super().report()
        if self._corrections:
            outcomes = sorted(
                (outcome for turns in self.candidates.values() for outcome in turns.outcomes),
                key=lambda outcome: outcome.key,
            )
            counting = effective_corrections(self._corrections)
            report["corrections"] = {
                "outputs": len(counting),
                "reviewers": sorted({correction.reviewer for correction in self._corrections}),
                "disputed": disputed_outputs(self._corrections),
                "judge_errors": judge_errors(outcomes, counting),
            }
        return report

    def tables(self) -> list[Table]:
        report = self.report()
        subject = f"{report['dataset']['name']}, seed {report['seed']}, {tier_name(report['tier'])}"
        variants = {"": report["candidates"]}
        if "corrections" in report:
            corrected = {label: record.get("corrected", record) for label, record in report["candidates"].items()}
            variants = {", as judged": report["candidates"], ", as corrected": corrected}
        tables = []
        for suffix, candidates in variants.items():
            single = {label: record["singlecall"] for label, record in candidates.items()}
            tables.append(singlecall_table(f"Passes in single calls, by tool list: {subject}{suffix}", single))
        for suffix, candidates in variants.items():
            dialogs = {label: record["dialog"] for label, record in candidates.items()}
            tables.append(dialog_table(f"Pass rates in dialogs, by type: {subject}{suffix}", dialogs))
        for subset in sorted(
            {name for record in report["candidates"].values() for name in record.get("categories", ())}
        ):
            for suffix, candidates in variants.items():
                rows = {label: record["categories"][subset] for label, record in candidates.items()
                        if subset in record.get("categories", ())}  # fmt: skip
                tables.append(category_table(f"Passes in {subset}, by category: {subject}{suffix}", rows))
        if AS_PUBLISHED in self.manifest:
            for suffix, candidates in variants.items():
                tables += published_tables(suffix, {label: each[AS_PUBLISHED] for label, each in candidates.items()})
        if "corrections" in report:
            tables.append(judge_table("Wrong verdicts among those reviewed", report["corrections"]["judge_errors"]))
        failed, *common = common_tables(report)
        return [*tables, self._tags(report), self._grading(report), failed, _unread_files(report["dataset"]), *common]

    def _tags(self, report: dict[str, Any]) -> Table:
        """Return the tags of failed outputs."""
        candidates = report["candidates"]
        rows = [
            [
                kind,
                name,
                *(str(record["tags"][kind].get(name, 0)) for record in candidates.values()),
                TAGS[name].meaning,
            ]
            for kind in OUTPUT_TYPES
            for name in TAGS
            if any(name in record["tags"][kind] for record in candidates.values())
        ]
        return ("Failure tags, by type of turn", ["type", "tag", *candidates, "meaning"], rows)

    def _grading(self, report: dict[str, Any]) -> Table:
        rows = []
        for label, record in report["candidates"].items():
            row = [label, *(str(record[name]) for name in ("turns", "decided_by_rule", "judged"))]
            row += [percent(record["unscored_rate"]), percent(record["parse_failure_rate"])]
            rows.append([*row, str(sum(record["stopped"].values())), str(record["failed"])])
        header = ["candidate", "turns", "by rule", "judged", "unscored", "unparsed", "stopped", "failed"]
        return ("How turns were graded", header, rows)


def _by_category(outcomes: list[GradedTurn]) -> dict[str, Any]:
    figures = category_figures(outcomes)
    return {"categories": figures} if figures else {}


def _unread_files(dataset: dict[str, Any]) -> Table:
    """Return the unread files in the data's folder, and the lines that were skipped."""
    rows = [[name, "", "not a known file of the benchmark"] for name in dataset.get("unread_files", ())]
    skipped = dataset.get("skipped_lines", {"count": 0, "first": []})
    rows += [[entry["file"], str(entry["line"]), entry["problem"]] for entry in skipped["first"]]
    more = skipped["count"] - len(skipped["first"])
    if more:
        rows.append([f"{more} more lines", "", ""])
    return ("Left out of the data", ["file", "line", "reason"], rows)
