"""Advice on a panel of judges: votes from files and runs, the next step, what it costs, and which items to label."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine import seeds
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import recorded_report
from viva.orchestration.launch import recorded_settings
from viva.scenarios.contract import SupportsPairVerdicts, judge_role
from viva.scoring.panels import PanelAdvice, advise_panel

from ..figures import estimate_record, round_figure, round_significant
from ..page import count_of, join_names
from ..tables import DASH, Table, number, signed, spreadsheet_cell
from .judge_votes import VoteTable, judges_for, vote_table, votes_record, votes_sentence, votes_tables
from .pair_files import pair_verdicts_of_run, read_pair_file
from .rating_files import NamedColumns
from .rating_sheet import Sheet, SheetRow, join_ratings, read_rating_sheet, run_sheet

ADVICE_VERSION = 1
_MOST_ADDITIONS = 10  # rows of the table
_ORDERS = 2  # calls for a vote on a pair


@dataclass(frozen=True, slots=True)
class AdviceOptions:
    """Options of the advice.

    `present`: judges of the present panel. `prices`: USD for a vote by judge. `label_price`: USD for a label. `items`:
    how many items the panel will judge, None: as many as have votes. `criterion`: None if the ratings have only one.
    """

    present: tuple[str, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    label_price: float | None = None
    items: int | None = None
    criterion: str | None = None
    seed: int = 7
    resamples: int = 1_000
    level: float = 0.95


def read_votes(
    sources: Sequence[Path],
    ratings: Sequence[Path],
    columns: NamedColumns,
    unscored: Sequence[str] = (),
    form: str | None = None,
    *,
    keep_unrated: bool = True,
) -> Sheet:
    """Return the votes of all judges of files and runs, joined by item, system and turn, with people's labels.

    `form` is that of the files with ratings, None to recognise it.

    Raises:
        ConfigurationError: if two sources have votes of one judge, or a source is unreadable.
        DatasetError: if a file is wrong.
    """
    sheets = [_read_source(path, columns.of_scores() if ratings else columns, unscored) for path in sources]
    sheet = merge_sheets(sheets)
    for path in ratings:
        people = read_rating_sheet(path, columns.of_people(), unscored, form, of_people=True)
        sheet = join_ratings(sheet, people, keep_unrated=keep_unrated)
    return sheet


def _read_source(path: Path, columns: NamedColumns, unscored: Sequence[str]) -> Sheet:
    if path.is_dir():
        pairs = pair_verdicts_of_run(path)
        return run_sheet(path) if pairs is None else pairs.to_sheet()
    pairs = read_pair_file(path)
    return read_rating_sheet(path, columns, unscored) if pairs is None else pairs.to_sheet()


def merge_sheets(sheets: Sequence[Sheet]) -> Sheet:
    """Return one sheet with the rows of all, those of one item, system and turn merged.

    Raises:
        ConfigurationError: if two sheets have scores of one judge.
    """
    first, *others = sheets
    if not others:
        return first
    rows = {row.key: row for row in first.rows}
    merged = Sheet(first.source, list(first.rows), dict(first.annotators), list(first.fields), list(first.notes))
    for sheet in others:
        if shared := [judge for judge in sheet.judges if judge in merged.judges]:
            raise ConfigurationError(f"{sheet.source}: another source has votes of '{shared[0]}' too; give one of them")
        for row in sheet.rows:
            same = rows.get(row.key)
            if same is None:
                rows[row.key] = row
                merged.rows.append(row)
                continue
            same.scores |= row.scores
            same.human = row.human | same.human
            same.group = same.group or row.group
        merged.annotators = sheet.annotators | merged.annotators
        merged.fields += [entry for entry in sheet.fields if entry not in merged.fields]
        merged.notes += sheet.notes
    merged.source = ", ".join(sheet.source for sheet in sheets)
    return merged


def vote_prices(sources: Sequence[Path]) -> dict[str, float]:
    """Return what a vote has cost in USD, by judge, for the judges of runs whose prices are known."""
    prices: dict[str, float] = {}
    for path in sources:
        if path.is_dir():
            prices |= _run_prices(path)
    return prices


def _run_prices(path: Path) -> dict[str, float]:
    folder = RunFolder.open(path)
    scenario, settings = recorded_settings(folder)
    candidates = recorded_report(folder).get("candidates", {})
    roles = scenario.roles_of(settings)
    if isinstance(scenario, SupportsPairVerdicts):
        compared = [role.name for role in roles if role.many]
        used = {label: [record["usage"].get(name) for name in compared] for label, record in candidates.items()}
        costs = {label: _cost_of_call(usages) for label, usages in used.items()}
        return {label: _ORDERS * cost for label, cost in costs.items() if cost}
    judge, role = run_sheet(path).judges, judge_role(roles)
    if role is None or not judge:
        return {}
    cost = _cost_of_call([record.get("usage", {}).get(role.name) for record in candidates.values()])
    return {judge[0]: cost} if cost else {}


def _cost_of_call(usages: Sequence[Mapping[str, Any] | None]) -> float | None:
    """Return the mean cost of a call; None if unknown, or without calls."""
    known = [usage for usage in usages if usage is not None]
    calls = sum(usage["calls"] for usage in known)
    if not calls or any(usage["cost"] is None for usage in known):
        return None
    return float(sum(usage["cost"] for usage in known) / calls)


def advice_record(
    sheet: Sheet, options: AdviceOptions, known_prices: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the next step for the panel as plain data; `known_prices` yield to those of `options`.

    Raises:
        ConfigurationError: if there are no labels, fewer than two judges vote with such labels, or a name is unknown.
    """
    table = _labelled_votes(sheet, options)
    judges = table.ballots.judges
    for option, names in (("--panel", options.present), ("--price", tuple(options.prices))):
        if unknown := [name for name in names if name not in judges]:
            raise ConfigurationError(f"{option}: no judge '{unknown[0]}'{did_you_mean(unknown[0], judges, 'judges')}")
    prices = {**(known_prices or {}), **options.prices}
    missing = [judge for judge in judges if judge not in prices]
    costs = dict.fromkeys(judges, 1.0) if missing else {judge: prices[judge] for judge in judges}
    advice = advise_panel(
        table.ballots, options.present, costs, share=table.share, seed=options.seed, level=options.level
    )
    record = _step_record(advice, table, options, in_dollars=not missing)
    record["costs"] = {
        "unit": "votes" if missing else "USD",
        "judges": {judge: round_significant(cost) for judge, cost in costs.items()},
        "label": options.label_price,
        "unknown": missing,
    }
    record["votes"] = votes_record(table, options.seed, options.resamples, options.level)
    record["fields"], record["notes"] = sheet.fields, [*sheet.notes, *_notes(table, record, prices)]
    return {"answer": advice_sentences(record), **record}


def _labelled_votes(sheet: Sheet, options: AdviceOptions) -> VoteTable:
    criteria = list(dict.fromkeys(criterion for row in sheet.rows for criterion in row.human))
    if not criteria:
        raise ConfigurationError(
            f"{sheet.source}: no labels by people; name their field with --human, or their file with --ratings"
        )
    if options.criterion is not None and options.criterion not in criteria:
        near = did_you_mean(options.criterion, criteria, "criteria")
        raise ConfigurationError(f"--criterion: the ratings have no criterion '{options.criterion}'{near}")
    if options.criterion is None and len(criteria) > 1:
        raise ConfigurationError(
            f"the ratings have {len(criteria)} criteria; choose one with --criterion: {', '.join(criteria)}"
        )
    criterion = criteria[0] if options.criterion is None else options.criterion
    table = vote_table(sheet.rows, criterion, judges_for(sheet, criterion))
    if table is None:
        raise ConfigurationError(
            f"{sheet.source}: fewer than two judges vote on shared items with labels like people's (few whole numbers, "
            f"or texts); the scores are of: {', '.join(sheet.judges) or 'nobody'}"
        )
    return table


def _step_record(advice: PanelAdvice, table: VoteTable, options: AdviceOptions, *, in_dollars: bool) -> dict[str, Any]:
    items = options.items or len(table.rows)
    available = int((table.contested & ~table.labelled).sum())
    labels: dict[str, Any] | None = None
    if advice.labels is not None:
        plan = advice.labels
        price = options.label_price if in_dollars else None
        cost = None if price is None else plan.items * price
        worth = None if plan.expected_gain is None else plan.expected_gain * items
        labels = {
            "items": plan.items,
            "available": available,
            "expected_gain": round_figure(plan.expected_gain),
            "cost": round_significant(cost),
            "right_votes_per_cost": round_significant(worth / cost) if cost and worth is not None else None,
        }
    return {
        "advice": ADVICE_VERSION,
        "criterion": table.criterion,
        "action": advice.action,
        "present": sorted(options.present, key=table.ballots.judges.index),
        "base": list(advice.base),
        "added": list(advice.added),
        "panel": list(advice.panel),
        "rival": advice.rival,
        "gain": None if advice.gain is None else estimate_record(advice.gain),
        "p": round_significant(advice.p),
        "stability": round_figure(advice.stability),
        "labels": labels,
        "additions": [
            {
                "added": list(addition.added),
                "gain": round_figure(addition.gain),
                "cost": round_significant(addition.cost),
                "right_votes_per_cost": round_significant(addition.per_cost),
            }
            for addition in advice.additions
        ],
        "judges": list(table.ballots.judges),
        "labelled": advice.n,
        "items": len(table.rows),
        "planned_items": items,
        "contested": round_figure(advice.share),
        "contested_labelled": advice.contested,
        "contested_unlabelled": available,
    }


def _notes(table: VoteTable, record: Mapping[str, Any], prices: Mapping[str, float]) -> list[str]:
    notes = []
    if table.left_out:
        notes.append(f"{table.left_out:,} labelled items have no readable vote of some judge and are left out")
    if record["votes"] is None and len(table.ballots.truth):
        notes.append(
            "contested items are labelled more often than others, so accuracies and effective votes are not shown"
        )
    if (unknown := record["costs"]["unknown"]) and prices:
        notes.append(f"costs are counted in votes, because prices are unknown for {', '.join(unknown)}; see --price")
    return notes


# -- sentences and tables ---------------------------------------------------------------------------------------------


def advice_sentences(record: Mapping[str, Any]) -> list[str]:
    """Return the answer, then what the votes are worth."""
    sentences = [_step_sentence(record)]
    if record["present"] and record["present"] != record["base"]:
        sentences.append(
            f"{join_names(record['base'])} alone is right on more of the labelled items than the present panel, "
            f"{join_names(record['present'])}."
        )
    if record["votes"] is not None:
        sentences.append(votes_sentence(record["votes"]))
    return sentences


def _step_sentence(record: Mapping[str, Any]) -> str:
    base, added, gain = join_names(record["base"]), join_names(record["added"]), record["gain"]
    over = f"over {count_of(record['labelled'], 'label')}, out of fold"
    if record["action"] == "add":
        return (
            f"Add {added} next: their majority with {base} is {_points(gain['value'])} points more accurate than "
            f"{record['rival']} ({_ends(gain)}; {over})."
        )
    if record["action"] == "label":
        return _label_sentence(record, base, added)
    if gain is None:
        why = "there is no other judge to add" if record["base"] else "a panel needs three judges"
        return f"Keep {base or 'a single judge'}: {why}."
    return (
        f"Keep {base}: no addition is significantly better, and more labels are unlikely to change that. With {added}, "
        f"accuracy would change by {signed(100 * gain['value'], 1)} points against {record['rival']} ({_ends(gain)}; "
        f"{over})."
    )


def _label_sentence(record: Mapping[str, Any], base: str, added: str) -> str:
    labels, gain = record["labels"], record["gain"]
    more = count_of(labels["items"], "contested item")
    lacking = labels["items"] - labels["available"]
    supply = ""
    if lacking > 0 and labels["available"]:
        supply = f" Only {labels['available']:,} are at hand, so let the judges vote on more items too."
    elif lacking > 0:
        supply = " All that are at hand have labels, so let the judges vote on more items."
    if gain is None:
        disputed = count_of(record["contested_labelled"], "labelled item")
        return f"Label {more} first: too few to tell, because the judges disagree on only {disputed}.{supply}"
    return (
        f"Label {more} first: too few to tell whether to add {added} to {base} "
        f"({signed(100 * gain['value'], 1)} points, {_ends(gain)}, against {record['rival']}).{supply}"
    )


def _points(value: float) -> str:
    return number(100 * value, 1)


def _ends(gain: Mapping[str, float]) -> str:
    return f"{signed(100 * gain['low'], 1)} to {signed(100 * gain['high'], 1)}"


def advice_tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables of next steps, accuracies and shared errors."""
    unit = record["costs"]["unit"]
    per = "USD" if unit == "USD" else "vote"
    rows = [
        [f"add {join_names(addition['added'])}", signed(100 * addition["gain"], 1), _amount(addition["cost"]),
         _amount(addition["right_votes_per_cost"])]
        for addition in record["additions"][:_MOST_ADDITIONS]
    ]  # fmt: skip
    labels = record["labels"]
    if labels is not None and labels["expected_gain"] is not None:
        gain = signed(100 * labels["expected_gain"], 1)
        cost = f"{_amount(labels['cost'])} once" if labels["cost"] is not None else f"{labels['items']:,} labels once"
        rows.append([f"label {labels['items']:,} contested items", gain, cost, _amount(labels["right_votes_per_cost"])])
    base = join_names(record["base"])
    title = f"Next steps from {base}: gains on all labels, before the test" if base else "Next steps"
    header = ["step", "gain, points", f"cost per item, {unit}", f"right votes per {per}"]
    votes = [] if record["votes"] is None else votes_tables(record["votes"])
    return [(title, header, rows), *votes]


def _amount(value: float | None) -> str:
    return DASH if value is None else f"{value:,.3g}"


# -- items to label ---------------------------------------------------------------------------------------------------


def items_to_label(sheet: Sheet, options: AdviceOptions, number_of_items: int) -> list[SheetRow]:
    """Return an even draw of contested items without a label."""
    table = _labelled_votes(sheet, options)
    free = [row for row, open_ in zip(table.rows, table.contested & ~table.labelled, strict=True) if open_]
    return sorted(free, key=lambda row: seeds.uniform(options.seed, "label", *map(str, row.key)))[:number_of_items]


def label_file(rows: Sequence[SheetRow], criterion: str) -> bytes:
    """Return a CSV file of items to label, to be filled in and given as ratings."""
    header = [name for name in ("item", "system", "turn") if any(getattr(row, name) is not None for row in rows)]
    texts = list(dict.fromkeys(name for row in rows for name in row.texts if name not in header))
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([*header, f"human.{criterion}" if criterion else "label", *texts])
    for row in rows:
        cells = [spreadsheet_cell(getattr(row, name) or "") for name in header]
        writer.writerow([*cells, "", *(spreadsheet_cell(row.texts.get(name, ""), lines=True) for name in texts)])
    return out.getvalue().encode()
