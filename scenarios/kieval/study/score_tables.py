"""The paper's tables of scores: results and aspects (Tables 2, 13-17), static figures (3), ablations (8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.reports import row_plots as drawings
from viva.reports.figures import round_figure, round_significant
from viva.reports.page import Plot, Record, join_names, number_range
from viva.reports.tables import (
    Row,
    Table,
    figure_row,
    interval,
    mean,
    mean_and_error,
    mean_and_interval,
    mean_row,
    number,
    percent,
    record_rows,
)
from viva.scoring.correlation import pearson

from ...study_sections import Section, StaticFigures, Subject
from ..score import ASPECT_TITLE, ASPECTS, Scorer
from .interview_pools import SWITCHES, InterviewMaterial
from .methods import (
    FIRST_ANSWER,
    Drawing,
    accuracy_of,
    accuracy_titles,
    interval_reach,
    is_too_seldom_answered,
    of_interviews,
    plot_group,
    row_prefix,
    rows_by_dataset,
    short_dataset_name,
    title_facts,
)
from .rounds_and_stops import round_plots

# For tables that also have the benchmark's accuracy.
ASPECT_HEADERS = ("evaluator: accuracy", *ASPECTS[1:-1])
_LABEL_FIELDS = ("scenario", "candidate", "dataset", "datasets", "seeds", "evaluators", "by_round")


class Results(Section[InterviewMaterial]):
    """Accuracy, score and rounds (Table 2), and each aspect's score (Tables 13-17)."""

    key, subject, heading, anchor = "pooled", Subject.RESULTS, "Results", "results"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [pool.record(material.scorer) for pool in material.pools]

    def tables(self, report: Record) -> list[Table]:
        return [_main_table(report), _aspect_table(report)]

    def rows(self, report: Record) -> Iterator[Row]:
        for record in report["pooled"]:
            prefix = {name: record[name] for name in ("scenario", "candidate", "dataset")} | {
                "scorer": report["scorer"]
            }
            yield from record_rows(
                prefix, "", {name: value for name, value in record.items() if name not in _LABEL_FIELDS}
            )
            for round_record in record["by_round"]:
                yield from round_rows(prefix, round_record)

    def plots(self, report: Record) -> list[Plot]:
        return [*_aspect_plots(report), *round_plots(report)]


def round_rows(prefix: Row, record: Record) -> Iterator[Row]:
    name = f"round.{record['round']}"
    yield figure_row(prefix, f"{name}.score", **mean_row(record))
    yield figure_row(prefix, f"{name}.share_held", value=record["share_held"], n=record["held"])


def _main_table(report: Record) -> Table:
    """Return accuracy, KIEval score and rounds by dataset and over all of them.

    Datasets are columns. If cells on one dataset are in several groups, these are rows, because their names are long.
    """
    rows, correlations = of_interviews(report), report["correlations"]
    kinds = {**correlations["accuracies"], None: correlations["accuracy"]}
    datasets = list(dict.fromkeys(row["dataset"] for row in rows if row["dataset"] is not None))
    names = list(dict.fromkeys(cell["dataset"] for cell in report["cells"]))
    if set(datasets) <= set(names):
        header, cells, names = *_dataset_columns(rows, datasets, kinds), datasets
    else:
        header, cells = _group_rows(rows, datasets, kinds)
    title = f"KIEval on {', '.join(names)}: {title_facts(report)}"
    if any(accuracy_of(row, kinds[row["dataset"]])["mean"] is not None for row in rows) or not any(
        row.get("free") for row in rows
    ):
        return (f"{title}; accuracy {accuracy_titles(correlations)}", header, cells)
    columns = [index for index, name in enumerate(header) if not name.endswith(("accuracy", "no answer"))]
    title += "; questions without choices have no accuracy"
    return (title, [header[at] for at in columns], [[line[at] for at in columns] for line in cells])


_SCORE_HEADER = ["accuracy", "KIEval", "SE", "rounds"]
_COUNT_HEADER = ["n", "no answer", "no score", "not parsed", "failed"]


def _dataset_columns(
    rows: Sequence[Record], datasets: Sequence[str], kinds: Mapping[str | None, str]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with one row per candidate."""
    several = len(datasets) > 1
    header = ["candidate"]
    for name in datasets if several else []:
        header += [f"{name} accuracy", f"{name} KIEval", f"{name} rounds"]
    header += [f"overall {name}" if several and name != "SE" else name for name in _SCORE_HEADER] + _COUNT_HEADER
    cells = []
    for candidate in dict.fromkeys(row["candidate"] for row in rows):
        own = {row["dataset"]: row for row in rows if row["candidate"] == candidate}
        line = [candidate]
        for name in datasets if several else []:
            accuracy, score, _, rounds = _score_cells(own[name], kinds[name]) if name in own else ["–"] * 4
            line += [accuracy, score, rounds]
        overall = own.get(None if several else datasets[0])
        summary = overall or next(iter(own.values()))
        is_whole = overall is not None and _is_whole(own, datasets)
        line += _score_cells(summary, kinds[None if several else datasets[0]]) if is_whole else ["–"] * 4
        cells.append(line + _count_cells(summary))
    return header, cells


def _group_rows(
    rows: Sequence[Record], groups: Sequence[str], kinds: Mapping[str | None, str]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with one row per candidate and group."""
    cells = []
    for row in rows:
        own = {other["dataset"]: other for other in rows if other["candidate"] == row["candidate"]}
        if row["dataset"] is not None or _is_whole(own, groups):
            scores = _score_cells(row, kinds[row["dataset"]])
            cells.append([row["candidate"], row["dataset"] or "all", *scores, *_count_cells(row)])
    return ["candidate", "dataset", *_SCORE_HEADER, *_COUNT_HEADER], cells


def _is_whole(own: Mapping[str | None, Record], datasets: Sequence[str]) -> bool:
    """Return True if a candidate has interviews on all datasets: means over fewer must not be compared with others."""
    return all(name in own and own[name]["score"]["n"] for name in datasets)


def _score_cells(row: Record, source: str) -> list[str]:
    score = mean_and_error(row["score"])
    return [number(accuracy_of(row, source)["mean"]), *score, number(row["rounds"]["mean"], 2)]


def _count_cells(row: Record) -> list[str]:
    rates = (row["unanswered_rate"], row["unscored_rate"], row["parse_failure_rate"])
    return [str(row["score"]["n"]), *map(percent, rates), str(row["failed"])]


def _aspect_table(report: Record) -> Table:
    lines = []
    for row in of_interviews(report):
        values = [number(row["aspects"][name]["mean"]) for name in ASPECTS[:-1]]
        lines.append(
            [row["candidate"], row["dataset"] or "all", *values, *mean_and_error(row["score"]), str(row["score"]["n"])]
        )
    header = ["candidate", "dataset", *ASPECTS, "SE", "n"]
    return (f"{ASPECT_TITLE}: {title_facts(report)}", header, lines)


def _aspect_plots(report: Record) -> list[Plot]:
    panels: list[Drawing] = []
    everywhere = list(rows_by_dataset(report))
    records = [
        record
        for _, pooled in everywhere
        for row in pooled
        if row["score"].get("mean") is not None
        for record in (row["score"], *row["aspects"].values())
    ]
    dots = [dot for record in records if (dot := _plot_point(record)) is not None]
    for name, pooled in everywhere:
        overall = {row["candidate"]: dot for row in pooled if (dot := _plot_point(row["score"])) is not None}
        marks = {
            row["candidate"]: {aspect: dot for aspect, record in row["aspects"].items() if (dot := _plot_point(record))}
            for row in pooled
            if row["candidate"] in overall
        }
        if overall:
            n = [row["score"].get("n", row["n_observations"]) for row in pooled if row["candidate"] in overall]
            title = f"{short_dataset_name(name)} (n = {number_range(n)} interviews each)"
            means = [f"{candidate} {dot.value:.1f}" for candidate, dot in overall.items()]
            panels.append(
                (drawings.aspect_plot(title, overall, marks, dots), f"{name}: overall score of {join_names(means)}")
            )
    caption = (
        "Means over interviews of the evaluator's scores for the five aspects, and of the overall score with its 95% "
        "interval, errors clustered by item. In aspects far from the bar, a candidate is much stronger or "
        "weaker than overall."
    )
    return plot_group(report, "aspects", ASPECT_TITLE, caption, panels)


def _plot_point(record: Record | None) -> drawings.AspectMean | None:
    if not record or record.get("mean") is None:
        return None
    return drawings.AspectMean(record["mean"], interval_reach(record), record.get("n"))


_DETECTOR = "min_k_20"  # k = 20, as Shi et al. 2024 recommend


class Contamination(Section[InterviewMaterial]):
    """Recall of a benchmark's texts beside the interviews about it."""

    subject, heading, anchor = Subject.CONTAMINATION, "Contamination", "contamination"

    def __init__(self, lent: StaticFigures | None) -> None:
        self._preferred = () if lent is None else lent.preferred

    def tables(self, report: Record) -> list[Table]:
        return [self._beside(report), _by_item(report)]

    def _beside(self, report: Record) -> Table:
        """Return accuracy, losses and Min-K% beside the interview scores of candidates with losses.

        Accuracy is the preferred static accuracy if there is one, else the first answers'.
        """
        lines = []
        for row in report["pooled"]:
            static = row["probe"]
            if row["dataset"] is None or static is None or static["loss"] is None:
                continue
            detector = (static["detectors"] or {}).get(_DETECTOR)
            source = next((name for name in self._preferred if name in static["accuracy"]), FIRST_ANSWER)
            loss = [number((static[name] or {}).get("mean"), 2) for name in ("loss", "loss_against")]
            line = [row["candidate"], row["dataset"], number(accuracy_of(row, source)["mean"]), *loss]
            line += [interval(static["loss_gap"], 2), interval(detector, 2)]
            line += [number(row["aspects"][name]["mean"]) for name in ASPECTS[:-1]]
            lines.append([*line, *mean_and_error(row["score"])])
        header = ["candidate", "dataset", "accuracy", "loss", "loss of the other set", "gap", "AUC Min-20%"]
        title = f"Contamination: {title_facts(report)}; losses in nats per token; gap: members vs. non-members"
        return (title, [*header, *ASPECT_HEADERS, "KIEval", "SE"], lines)


def _by_item(report: Record) -> Table:
    """Return static accuracies, and the scores of interviews about items answered correctly and incorrectly."""
    rows = [row for row in report["pooled"] if row["probe"] is not None and row["probe"]["accuracy"]]
    methods = list(dict.fromkeys(name for row in rows for name in row["probe"]["accuracy"]))
    lines = []
    for row in rows:
        static = row["probe"]
        line = [row["candidate"], row["dataset"] or "all"]
        line += [mean_and_interval(static["accuracy"].get(name)) for name in methods]
        joined = static.get("joined")
        line += ["–"] * 3 if joined is None else [str(joined["n"]), mean(joined["right"]), mean(joined["wrong"])]
        lines.append(line)
    header = ["candidate", "dataset", *(name.replace("_", " ") for name in methods)]
    header += ["items in both", "KIEval where right", "KIEval where wrong"]
    return (f"Probed accuracy, and KIEval on the same items: {title_facts(report)}", header, lines)


class Ablation(Section[InterviewMaterial]):
    """Score variants: the mean score of each candidate over all datasets, and its correlation with accuracy."""

    key, subject, heading, anchor = "ablation", Subject.VARIANTS, "Scorer variants", "ablation"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the scores by variant.

        A candidate has a score without early stop only if all of its interviews were recorded without it.
        """
        pools, accuracy = material.overall_pools, _candidate_accuracies(material, report)
        variants = []
        for decay, early_stop in SWITCHES:
            scores = {pool.candidate: pool.variant(decay, early_stop) for pool in pools}
            pairs = [
                (accuracy[name], score["mean"])
                for name, score in scores.items()
                if name in accuracy and score["mean"] is not None
            ]
            correlation = pearson([x for x, _ in pairs], [y for _, y in pairs])
            variants.append(
                {
                    "scorer": Scorer(material.scorer.name, decay, early_stop).describe(),
                    "decay": decay,
                    "early_stop": early_stop,
                    "candidates": scores,
                    "accuracy": None
                    if correlation is None
                    else {"r": round_figure(correlation[0]), "p": round_significant(correlation[1]), "n": len(pairs)},
                }
            )
        return variants

    def tables(self, report: Record) -> list[Table]:
        variants = report["ablation"]
        header = ["candidate", *(_switch_names(variant) for variant in variants)]
        candidates = list(dict.fromkeys(name for variant in variants for name in variant["candidates"]))
        rows = [[name, *(mean(variant["candidates"].get(name)) for variant in variants)] for name in candidates]
        if any(variant["accuracy"] is not None for variant in variants):
            rows.append(
                [
                    "r with accuracy",
                    *(number(variant["accuracy"] and variant["accuracy"]["r"], 3) for variant in variants),
                ]
            )
        note = "only interviews that were run without early stop have a score without it"
        title = f"KIEval with and without decaying weights and early stop: {title_facts(report)}; {note}"
        return [(title, header, rows)]

    def rows(self, report: Record) -> Iterator[Row]:
        for variant in report["ablation"]:
            for candidate, score in variant["candidates"].items():
                prefix = row_prefix(report, candidate=candidate) | {"scorer": variant["scorer"]}
                yield figure_row(prefix, "ablation", **mean_row(score))


def _candidate_accuracies(material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy over all datasets of candidates that answer often enough."""
    source, pool_ids = report["correlations"]["accuracy"], {id(pool) for pool in material.overall_pools}
    return {
        row["candidate"]: record["mean"]
        for pool, row in zip(material.pools, report["pooled"], strict=True)
        if id(pool) in pool_ids
        and (record := accuracy_of(row, source))["mean"] is not None
        and not is_too_seldom_answered(row, source)
    }


def _switch_names(variant: Mapping[str, Any]) -> str:
    on = [name for name, switch in (("decay", variant["decay"]), ("early stop", variant["early_stop"])) if switch]
    return " + ".join(on) or "neither"
