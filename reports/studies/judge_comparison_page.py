"""Comparison of judges in sentences, tables, forest plot, page and CSV, made from its report alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.engine.errors import ConfigurationError

from ..page import Page, PageSection, Plot, Record, count_of, join_names, percentage
from ..row_plots import NamedBar, forest_plot
from ..tables import DASH, Table, number, p_value, percent, signed
from .judge_votes import votes_sentence, votes_tables

COEFFICIENTS = (("pearson", "r"), ("spearman", "ρ"), ("kendall", "τ"))
_LEVELS = ("item", "group", "system")
_MAX_PAIRS = 6  # pairs of annotators listed one by one
UNNAMED = "rating"  # a criterion without a name


def criterion_name(criterion: Record) -> str:
    """Return the criterion's name in tables."""
    return criterion["criterion"] or UNNAMED


def summary_sentences(report: Record) -> str:
    """Summarise the report in sentences, the main finding first."""
    criteria = report["criteria"]
    alone = {judge["judge"] for record in criteria for judge in record["judges"]}
    combined = len(criteria) > 2 and len(alone) == 1 and all(len(record["judges"]) == 1 for record in criteria)
    sentences = [_criteria_sentence(criteria)] if combined else []
    sentences += [
        sentence
        for record in criteria
        for sentence in _criterion_sentences(record, len(criteria), "scorers" if report["one_judge"] else "judges",
                                             judged=not combined)
    ]  # fmt: skip
    if not report["criteria"]:
        sentences = [_judged_sentence(record) for record in report["judgments"]]
    unparsed = sum(system["overall"]["unparsed"] for record in report["judgments"] for system in record["systems"])
    if report["criteria"] and unparsed:
        sentences.append(
            f"{count_of(unparsed, 'score')} {'is' if unparsed == 1 else 'are'} missing or unreadable and not counted."
        )
    return " ".join(sentences)


def _criteria_sentence(criteria: Sequence[Record]) -> str:
    """Compare one judge's criteria: the best and the worst correlation."""
    [judge] = criteria[0]["judges"]
    comparable = [record for record in criteria if _spearman(record["judges"][0])["value"] is not None]
    if not comparable:
        return f"On none of {len(criteria)} criteria can the scores of {judge['judge']} be correlated with ratings."
    ranked = sorted(comparable, key=lambda record: _value(_spearman(record["judges"][0])))
    best, worst = (
        f"{criterion_name(record)}, {_format_figure(_spearman(record['judges'][0]))}"
        for record in (ranked[-1], ranked[0])
    )
    rows = {record["judges"][0]["n"] for record in comparable}
    over = count_of(max(rows), "row") if len(rows) == 1 else f"{min(rows):,} to {max(rows):,} rows"
    if (_spearman(ranked[-1]["judges"][0])["low"] or 0.0) <= 0.0:
        return (
            f"Of {len(criteria)} criteria, {judge['judge']} correlates significantly with people on none: Spearman's ρ "
            f"is highest on {best}, and lowest on {worst}, over {over}."
        )
    return (
        f"Of {len(criteria)} criteria, Spearman's ρ of {judge['judge']} with people is highest on {best}, and lowest "
        f"on {worst}, over {over}."
    )


def _criterion_sentences(criterion: Record, criteria: int, kind: str, *, judged: bool) -> Iterator[str]:
    """Yield the sentences of a criterion, claiming only what figure and interval support."""
    scope = f"On {criterion_name(criterion)}" if criteria > 1 or criterion["criterion"] else "Overall"
    if criterion["confusions"]:
        yield f"{scope}, {_label_sentence(max(criterion['confusions'], key=lambda record: _value(record['kappa'])))}"
    if criterion["votes"] is not None:
        sentence = votes_sentence(criterion["votes"])
        yield f"{scope}, {sentence[0].lower()}{sentence[1:]}"
    if criterion["judges"] and judged:
        best = max(criterion["judges"], key=lambda judge: _value(_spearman(judge)))
        yield f"{scope}, {_correlation_sentence(best, len(criterion['judges']), kind)}"
    yield from (
        f"{scope}, {name} cannot be compared with people: {why}." for name, why in criterion["incomparable"].items()
    )
    if criterion["agreement"] is not None:
        yield f"{scope}, {_annotator_sentence(criterion)}"


def _label_sentence(confusion: Record) -> str:
    """Describe the agreement of a judge's labels with the majority of people."""
    pair, kappa = f"{confusion['judge']} and the majority of people", confusion["kappa"]
    same = f"{percent(confusion['agreement'])} of labels are the same"
    over = count_of(confusion["n"], "row")
    if not confusion["n"]:
        return f"{pair} have no labelled row in common."
    if kappa["value"] is None:
        return f"{pair} gave the same label throughout ({over}): κ is undefined."
    if confusion["agreement"] == 1.0:
        return f"{pair} gave the same labels to all of {over} (κ = {number(kappa['value'], 3)})."
    if kappa["low"] is None:
        return f"κ of {pair} is {number(kappa['value'], 3)} over {over}, without an interval ({same})."
    if kappa["low"] > 0.0:
        return f"{pair} agree beyond chance at κ = {_format_figure(kappa)} ({same})."
    return f"{pair} do not agree significantly beyond chance: κ = {_format_figure(kappa)} ({same}, over {over})."


def _correlation_sentence(best: Record, judges: int, kind: str) -> str:
    """Describe the best correlation of scores with people's ratings; `kind` is judges, or scorers of one judge."""
    judge, figure, over = best["judge"], _spearman(best), count_of(best["n"], "row")
    if figure["value"] is None:
        why = "fewer than three" if best["n"] < 3 else "all scores, or all ratings, are the same"
        return f"the scores of {judge} cannot be correlated with ratings over {over}: {why}."
    if figure["low"] is None:
        return f"Spearman's ρ of {judge} with people is {number(figure['value'], 3)} over {over}, without an interval."
    if figure["low"] > 0.0 and judges > 1:
        rho = f"{_format_figure(figure)} over {over}"
        return f"{judge} has the highest Spearman's ρ with people of {judges} {kind}: {rho}."
    if figure["low"] > 0.0:
        return f"{judge} correlates with people: Spearman's ρ is {_format_figure(figure)} over {over}."
    if judges > 1:
        return (
            f"none of {judges} {kind} correlates significantly with people: the highest Spearman's ρ is "
            f"{_format_figure(figure)} over {over}, by {judge}."
        )
    if figure["high"] < 0.0:
        return f"{judge} correlates negatively with people: Spearman's ρ is {_format_figure(figure)} over {over}."
    return (
        f"{judge} does not correlate significantly with people: Spearman's ρ is {_format_figure(figure)} over {over}."
    )


def _annotator_sentence(criterion: Record) -> str:
    """Describe the agreement between annotators."""
    agreed, annotators = criterion["agreement"], f"{len(criterion['annotators'])} annotators"
    over = count_of(agreed["alpha_n"], "row")
    if not agreed["alpha_n"]:
        return f"{annotators} have no row that two of them have rated."
    if agreed["kappa"] is not None:
        kappas = [pair["kappa"] for pair in agreed["pairs"] if pair["kappa"]["value"] is not None]
        values = [number(figure["value"], 3) for figure in kappas]
        listed = join_names(values) if len(values) <= _MAX_PAIRS else f"{len(values)} of them"
        suffix = f" (pairs {listed})" if len(values) > 1 else ""
        beyond_chance = all((figure["low"] or 0.0) > 0.0 or figure["value"] == 1.0 for figure in kappas)
        verb = "agree" if beyond_chance else "do not agree significantly beyond chance,"
        return f"{annotators} {verb} at a mean Cohen's κ of {number(agreed['kappa'], 3)}{suffix} over {over}."
    if agreed["alpha"] is not None:
        return f"{annotators} have a Krippendorff's α of {number(agreed['alpha'], 3)} over {over}."
    return f"{annotators} gave the same rating throughout ({over}): κ and α are undefined."


def _judged_sentence(judgment: Record) -> str:
    parts = []
    for system in judgment["systems"]:
        overall = system["overall"]
        total = overall["n"] + overall["unparsed"]
        turns = join_names(f"turn {turn} {number(mean['mean'], 3)}" for turn, mean in system["turns"].items())
        parts.append(
            f"{system['system'] or 'all rows'} {number(overall['mean'], 3)}"
            + (f" ({turns})" if turns else "")
            + f", {overall['unparsed']:,} of {total:,} judgments unparsable"
        )
    return f"{judgment['judge']}'s mean scores: {'; '.join(parts)}."


def meta_tables(report: Record) -> list[Table]:
    """Build all tables; those without rows are skipped when printing."""
    return [
        _human_difference_table(report),
        _level_table(report),
        _interval_table(report),
        _aspect_table(report),
        _difference_table(report),
        _jury_table(report),
        _annotator_table(report),
        *_confusion_tables(report),
        *_vote_tables(report),
        _mean_table(report),
    ]


def _level_table(report: Record) -> Table:
    """Build the table of values without intervals: three values with intervals are too wide for a terminal."""
    rows = []
    for name, judge in _records(report, "judges"):
        for level in _LEVELS:
            if figures := judge["levels"].get(level):
                values = [number(figures[coefficient]["value"], 3) for coefficient, _ in COEFFICIENTS]
                rows.append([name, judge["judge"], level, *values, f"{figures['pearson']['n']:,}"])
    header = ["criterion", "judge", "level", *(sign for _, sign in COEFFICIENTS), "n"]
    return ("Correlation with people: Pearson r, Spearman ρ, Kendall τ-b", *_drop_constant_columns(header, rows))


def _interval_table(report: Record) -> Table:
    rows = []
    has_unscored = any(judge["unscored"] for _, judge in _records(report, "judges"))
    for name, judge in _records(report, "judges"):
        figures, variance = judge["levels"]["item"], judge["variance"]
        row = [name, judge["judge"], *(_format_interval(figures[coefficient]) for coefficient, _ in COEFFICIENTS)]
        row += [DASH if variance is None else f"{variance:.3g}", *([f"{judge['unscored']:,}"] if has_unscored else [])]
        rows.append(row)
    header = [
        "criterion",
        "judge",
        *(sign for _, sign in COEFFICIENTS),
        "variance",
        *(["unscored"] if has_unscored else []),
    ]
    title = f"{100 * report['how']['level']:g}% intervals at item level, and the variance of the scores"
    return (title, *_drop_constant_columns(header, rows))


def _aspect_table(report: Record) -> Table:
    rows = []
    for name, judge in _records(report, "aspects"):
        figures = judge["levels"]["item"]
        row = [name, judge["judge"], judge["aspect"]]
        for coefficient, _ in COEFFICIENTS:
            row += [number(figures[coefficient]["value"], 3), _format_interval(figures[coefficient])]
        rows.append([*row, f"{judge['n']:,}"])
    header = ["criterion", "judge", "aspect", *(name for _, sign in COEFFICIENTS for name in (sign, "interval")), "n"]
    return ("Each aspect of a judge against the one score of people", *_drop_constant_columns(header, rows))


def _difference_table(report: Record) -> Table:
    rows = []
    for name, pair in _records(report, "differences"):
        for level in _LEVELS:
            if figures := pair["levels"].get(level):
                figure = figures["spearman"]
                row = [name, pair["first"], pair["second"], level, signed(figure["value"], 3), _format_interval(figure)]
                rows.append([*row, p_value(figure["p"]), p_value(figure["p_corrected"])])
    header = ["criterion", "first", "second", "level", "first − second", "interval", "p", "corrected p"]
    title = f"Difference of Spearman correlations ({report['how']['permutation']})"
    return (title, *_drop_constant_columns(header, rows))


def _jury_table(report: Record) -> Table:
    rows = []
    for name, jury in _records(report, "juries"):
        for coefficient, sign in COEFFICIENTS:
            figure = jury["levels"].get("item", {}).get(coefficient)
            if figure is not None:
                row = [name, jury["how"], sign, number(figure["value"], 3), figure["best"] or DASH]
                rows.append([*row, signed(figure["gain"]["value"], 3), _format_interval(figure["gain"])])
    header = ["criterion", "jury", "coefficient", "value", "best judge", "gain", "interval"]
    return ("Juries and the best single judge, item level", *_drop_constant_columns(header, rows))


def _annotator_table(report: Record) -> Table:
    rows = []
    for criterion in report["criteria"]:
        name, agreed = criterion_name(criterion), criterion["agreement"]
        if agreed is None:
            continue
        rows += [[name, f"{pair['first']} – {pair['second']}", *_kappa_cells(pair), f"{pair['n']:,}"]
                 for pair in agreed["pairs"]]  # fmt: skip
        totals = [("mean κ", "kappa", "alpha_n"), ("Fleiss' κ", "fleiss", "fleiss_n")]
        for label, field, n in [*totals, (f"α, {criterion['scale']}", "alpha", "alpha_n")]:
            same = percent(agreed["unanimous"]) if field == "kappa" else DASH
            rows.append([name, f"all: {label}", number(agreed[field], 3), DASH, DASH, same, f"{agreed[n]:,}"])
    header = ["criterion", "annotators", "κ", "interval", "quadratic κ", "agreement", "n"]
    return ("Agreement between annotators, corrected for chance", *_drop_constant_columns(header, rows))


def _human_difference_table(report: Record) -> Table:
    rows = [
        [
            name,
            confusion["judge"],
            *_kappa_cells(confusion),
            *(f"{confusion[count]:,}" for count in ("n", "tied", "unscored")),
        ]
        for name, confusion in _records(report, "confusions")
    ]
    header = ["criterion", "judge", "κ", "interval", "quadratic κ", "agreement", "n", "tied", "unscored"]
    return (
        "Agreement of judges with the majority of people, corrected for chance",
        *_drop_constant_columns(header, rows),
    )


def _kappa_cells(record: Record) -> list[str]:
    """Return kappa with its interval, quadratic kappa, and the fraction of equal labels."""
    kappa, quadratic = record["kappa"], record["kappa_quadratic"]
    weighted = number(None if quadratic is None else quadratic["value"], 3)
    return [number(kappa["value"], 3), _format_interval(kappa), weighted, percent(record["agreement"])]


def _confusion_tables(report: Record) -> Iterator[Table]:
    for name, confusion in _records(report, "confusions"):
        rows = [[label, *(f"{count:,}" for count in counts)]
                for label, counts in zip(confusion["labels"], confusion["counts"], strict=True)]  # fmt: skip
        title = f"{name}: labels of {confusion['judge']} (rows) and of the majority (columns)"
        yield (title, ["judge \\ people", *confusion["labels"]], rows)


def _vote_tables(report: Record) -> Iterator[Table]:
    for criterion in report["criteria"]:
        if criterion["votes"] is not None:
            several = len(report["criteria"]) > 1
            yield from votes_tables(criterion["votes"], f": {criterion_name(criterion)}" if several else "")


def _mean_table(report: Record) -> Table:
    rows = []
    for judgment in report["judgments"]:
        for system in judgment["systems"]:
            parts = [("all", system["overall"]), *system["turns"].items()]
            for turn, mean in parts if len(parts) > 2 or len(parts) == 1 else parts[:1]:
                total = mean["n"] + mean["unparsed"]
                row = [judgment["judge"], judgment["criterion"] or UNNAMED, system["system"] or DASH, turn]
                row += [number(mean["mean"], 3), _format_interval(mean), f"{mean['n']:,}"]
                rows.append([*row, f"{mean['unparsed']:,} ({percentage(mean['unparsed'], total)})"])
    if report["criteria"] and not any(system["overall"]["unparsed"] for judgment in report["judgments"]
                                      for system in judgment["systems"]):  # fmt: skip
        rows = []  # correlations are more informative, and nothing is missing
    header = ["judge", "criterion", "system", "turn", "mean", "interval", "n", "unparsable"]
    return ("Mean scores of judges", *_drop_constant_columns(header, rows))


def _records(report: Record, kind: str) -> Iterator[tuple[str, Record]]:
    """Yield all records of a kind with the name of their criterion."""
    for criterion in report["criteria"]:
        yield from ((criterion_name(criterion), record) for record in criterion[kind])


def _level_figures(record: Record) -> Iterator[tuple[dict[str, str], Record]]:
    """Yield the figures of all levels, each with its level and coefficient."""
    for level, figures in record["levels"].items():
        yield from (({"level": level, "measure": name}, figure) for name, figure in figures.items())


def _drop_constant_columns(header: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Drop columns of names that are the same in every row, because the sentences above the table name them."""
    names = ("criterion", "judge", "system", "first", "second")
    indices = [at for at, name in enumerate(header)
            if name not in names or len({row[at] for row in rows}) > 1 or (at == 0 and len(rows) < 2)]  # fmt: skip
    return [header[at] for at in indices], [[row[at] for at in indices] for row in rows]


def _format_interval(figure: Mapping[str, Any]) -> str:
    return DASH if figure["low"] is None else f"{figure['low']:.2f} to {figure['high']:.2f}"


def _format_figure(figure: Mapping[str, Any]) -> str:
    value = number(figure["value"], 3)
    return value if figure["low"] is None else f"{value} ({_format_interval(figure)})"


def _value(figure: Mapping[str, Any]) -> float:
    return -2.0 if figure["value"] is None else float(figure["value"])


def _spearman(judge: Record) -> Record:
    figure: Record = judge["levels"]["item"]["spearman"]
    return figure


CSV_COLUMNS = ("criterion", "part", "judge", "against", "level", "measure", "value", "low", "high", "p", "n")
CSV_TEXTS = ("criterion", "part", "judge", "against", "level", "measure")


def forest_rows(report: Record) -> tuple[str, list[NamedBar]]:
    """Return the axis label and the rows to draw: item-level Spearman correlations, else kappas."""
    rows = []
    several = len({judge["judge"] for criterion in report["criteria"] for judge in criterion["judges"]}) > 1
    for criterion in report["criteria"]:
        for judge in criterion["judges"]:
            name = criterion_name(criterion) + (f", {judge['judge']}" if several else "")
            rows += _forest_row(name, judge["levels"]["item"]["spearman"])
    if rows:
        return "Spearman ρ with people (95%)", rows
    for criterion in report["criteria"]:
        for confusion in criterion["confusions"]:
            rows += _forest_row(confusion["judge"], confusion["kappa"])
        for pair in (criterion["agreement"] or {}).get("pairs", ()):
            rows += _forest_row(f"{pair['first']} – {pair['second']}", pair["kappa"])
    return "Cohen's κ (95%)", rows


def _forest_row(name: str, figure: Record) -> list[NamedBar]:
    if figure["value"] is None:
        return []
    return [NamedBar(name, figure["value"], figure["low"], figure["high"])]


def meta_page(report: Record) -> Page:
    """Build the page: the answer first, the forest plot, then all tables."""
    axis, rows = forest_rows(report)
    axis = axis.replace("95", f"{100 * report['how']['level']:g}")
    plots, no_plots = [], ""
    if rows:
        try:
            svg = forest_plot("Judges and people", rows, axis)
            values = join_names(f"{row.name} {row.value:.3f}" for row in rows)
            plots = [Plot("forest", axis, "Dots are estimates, bars are intervals.", "", [(svg, f"{axis}: {values}")])]
        except ConfigurationError as error:
            no_plots = str(error)
    tables = [table for table in meta_tables(report) if table[2]]
    sections = [PageSection("figures", "Figures", plots=bool(no_plots), tables=tables)]
    facts = [("Rows", f"{report['rows']:,}")]
    facts += [(name, count_of(report[field], name[:-1].lower())) for name, field in (("Groups", "groups"),
              ("Systems", "systems")) if report[field]]  # fmt: skip
    facts += [("Read as", "; ".join(report["fields"]))]
    facts += [("Notes", " ".join(f"{note}." for note in report["notes"]))] if report["notes"] else []
    heading = f"Meta-evaluation of {report['source']}"
    decisive = plots[0] if plots else None
    return Page(heading, facts, [], sections, [], no_plots, {}, _methods(report), [summary_sentences(report)], decisive)


def _methods(report: Record) -> list[tuple[str, str]]:
    method = report["how"]
    return [
        ("Levels", "item: over all rows; group: within each group, averaged over groups; system: between means."),
        (
            "Intervals",
            f"{100 * method['level']:g}% percentiles of {method['resamples']:,} resamples of whole groups "
            f"(BOOT-INPUTS), seed {method['seed']}.",
        ),
        (
            "Tests of two judges",
            f"{method['permutation']}: the judges' standardised scores are exchanged {method['resamples']:,} times at "
            "random (Deutsch, Dror and Roth 2021); Holm over all pairs and criteria.",
        ),
        ("Labels", "Cohen's κ corrects agreement for chance; people's label is the majority of annotators, without "
                   "ties."),
        ("Juries", "mean and median of standardised scores; fitted weights are out of fold; the best judge is chosen "
                   "anew in each resample."),
    ]  # fmt: skip


def csv_rows(report: Record) -> Iterator[dict[str, Any]]:
    """Yield every figure, one a row."""
    for record in report["criteria"]:
        columns = {"criterion": criterion_name(record)}
        for judge in record["judges"]:
            for labels, figure in _level_figures(judge):
                yield _csv_row(columns, figure, part="correlation", judge=judge["judge"], **labels)
        for judge in record["aspects"]:
            for labels, figure in _level_figures(judge):
                more = {"judge": f"{judge['judge']}.{judge['aspect']}"}
                yield _csv_row(columns, figure, part="aspect", **labels, **more)
        for pair in record["differences"]:
            more = {"judge": pair["first"], "against": pair["second"], "n": pair["n"]}
            for labels, figure in _level_figures(pair):
                yield _csv_row(columns, figure, part="difference", **labels, **more)
        for jury in record["juries"]:
            more = {"judge": f"jury, {jury['how']}", "n": jury["n"]}
            for labels, figure in _level_figures(jury):
                yield _csv_row(columns, figure, part="jury", **labels, **more)
                yield _csv_row(columns, figure["gain"], part="jury gain", against=figure["best"], **labels, **more)
        for confusion in record["confusions"]:
            more = {"part": "labels", "judge": confusion["judge"], "n": confusion["n"]}
            for name in ("kappa", "kappa_quadratic"):
                if confusion[name] is not None:
                    yield _csv_row(columns, confusion[name], measure=name, **more)
            yield _csv_row(columns, {"value": confusion["agreement"]}, measure="same", **more)
        if (agreed := record["agreement"]) is not None:
            for pair in agreed["pairs"]:
                more = {"judge": pair["first"], "against": pair["second"], "n": pair["n"]}
                yield _csv_row(columns, pair["kappa"], part="annotators", measure="kappa", **more)
            for name, n in (("kappa", "alpha_n"), ("fleiss", "fleiss_n"), ("alpha", "alpha_n")):
                yield _csv_row(columns, {"value": agreed[name]}, part="annotators", measure=f"all.{name}", n=agreed[n])
    for record in report["judgments"]:
        for system in record["systems"]:
            for turn, mean in (("all", system["overall"]), *system["turns"].items()):
                labels = {"judge": record["judge"], "against": system["system"], "level": turn, "n": mean["n"]}
                criterion = {"criterion": record["criterion"]}
                yield _csv_row(criterion, {**mean, "value": mean["mean"]}, part="judgments", measure="mean", **labels)
                yield _csv_row(criterion, {"value": mean["unparsed"]}, part="judgments", measure="unparsable", **labels)


def _csv_row(columns: Record, figure: Record, **more: Any) -> dict[str, Any]:
    numbers = {name: figure.get(name) for name in ("value", "low", "high", "p", "n")}
    return dict.fromkeys(CSV_COLUMNS) | numbers | dict(columns) | more
