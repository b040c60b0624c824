"""Published outputs of pairwise judges, read without rewriting, and the verdicts of recorded runs.

| form | verdicts | preferred answer | category |
|---|---|---|---|
| JudgeBench | `judgments[].decision`: `A>B`, `B>A`, `A=B`, of the answers as shown | `label` | `source` |
| LLMBar | `results[-1]`, either `swap`: `winner` 1 or 2, of the answers as listed | `label` | folder |
| MT-Bench, pairs | `g1_winner`, `g2_winner`: `model_1`, `model_2`, `tie`, of the answers as listed | `winner` | – |
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from viva.data.items import FieldError, preview
from viva.data.record_files import located_errors, read_records, sound_records
from viva.engine.errors import ConfigurationError, VivaError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.scenarios.contract import SupportsPairVerdicts
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scoring.pairwise import TIE, PairVerdicts

from ..pair_figures import pair_record, pair_sentence, pair_tables
from ..tables import Table
from .judge_votes import judges_for, vote_table, votes_record, votes_sentence, votes_tables
from .rating_sheet import Sheet, SheetRow

_LONGEST_NAME = 60  # characters of a judge's or a category's name
_DECISIONS = {"A>B": 1, "A>>B": 1, "B>A": 2, "B>>A": 2, "A=B": TIE, "TIE": TIE}
_WINNERS = {"1": 1, "2": 2, "MODEL_1": 1, "MODEL_2": 2, "MODEL_A": 1, "MODEL_B": 2, "TIE": TIE, "0": TIE}
_FLIPPED = {1: 2, 2: 1, TIE: TIE}
Named = tuple[str, PairVerdicts]


@dataclass(slots=True)
class PairSheet:
    """Verdicts on pairs, by judge."""

    source: str
    judges: dict[str, list[PairVerdicts]]
    form: str

    def to_sheet(self) -> Sheet:
        """Return a row for each pair: its preferred answer as a human label, each judge's vote as a score."""
        rows: dict[str, SheetRow] = {}
        for judge, judged in self.judges.items():
            for pair in judged:
                row = rows.setdefault(pair.pair, SheetRow(len(rows) + 1, pair.pair, group=pair.group))
                if pair.preferred is not None:
                    row.human[""] = [_vote_name(pair.preferred)]
                row.scores[judge, ""] = None if pair.vote is None else _vote_name(pair.vote)
        fields = [f"{self.form}: pairs of answers; a vote is the answer that a judge prefers in both orders"]
        return Sheet(self.source, list(rows.values()), {"": ["preferred"]}, fields)


def _vote_name(vote: int) -> str:
    return {1: "answer 1", 2: "answer 2", TIE: "tie"}.get(vote, "inconsistent")


def pair_form(path: Path) -> str | None:
    """Return the form of a file of pairwise verdicts by its first record; None for other files."""
    try:
        for _, record in sound_records(islice(read_records(path), 1)):
            return next((name for name, (fields, *_) in _FORMS.items() if fields <= set(record)), None)
    except (VivaError, OSError, TypeError):  # the reader of other files reports the error
        pass
    return None


def read_pair_file(path: Path) -> PairSheet | None:
    """Return the verdicts of a published file; None if the file has none of the known forms.

    Raises:
        DatasetError: if a line is wrong, or a judge judged a pair twice; the message names file, line and field.
    """
    form = pair_form(path)
    if form is None:
        return None
    fields, parse, identified = _FORMS[form]
    times = Counter[tuple[str, str]]()
    judges: dict[str, list[PairVerdicts]] = {}
    lines: dict[tuple[str, str], int] = {}
    for line, raw in sound_records(read_records(path)):
        with located_errors(path, line):
            if missing := fields - set(raw):
                raise FieldError(sorted(missing)[0], f"is missing; the first record has the form of {form}")
            judge, pair = parse(raw, path, line)
            if not identified:
                times[judge, pair.pair] += 1
                pair = replace(pair, pair=f"{pair.pair}#{times[judge, pair.pair]}")
            before = lines.setdefault((judge, pair.pair), line)
            if before != line:
                raise FieldError("pair", f"{judge} has judged '{pair.pair}' in line {before} already; keep one of them")
            judges.setdefault(judge, []).append(pair)
    return PairSheet(str(path), judges, form)


def _judgebench(raw: Mapping[str, Any], path: Path, line: int) -> Named:
    judgments = raw["judgments"]
    if not isinstance(judgments, list) or not 1 <= len(judgments) <= 2:
        raise FieldError("judgments", f"expected a list of one or two judgments, found {preview(judgments)}")
    verdicts: list[int | None] = []
    judge = None
    for at, judgment in enumerate(judgments):
        entry = judgment if isinstance(judgment, Mapping) else {}
        verdict = _read(entry.get("decision"), _DECISIONS, f"judgments.{at}.decision")
        verdicts.append(verdict if at == 0 or verdict is None else _FLIPPED[verdict])
        detail = entry.get("judgment")
        judge = judge or (detail.get("judge_model") if isinstance(detail, Mapping) else None)
    judge = judge or path.stem.rpartition("judge_model=")[2] or raw.get("judge_name")
    preferred = _read_label(raw, "label", _DECISIONS)
    question = str(raw.get("question") or raw.get("original_id") or line)
    pair = PairVerdicts(
        str(raw["pair_id"]), _question_key(question), tuple(verdicts), preferred, _name(raw.get("source"))
    )
    return _name(judge) or "judge", pair


def _llmbar(raw: Mapping[str, Any], path: Path, line: int) -> Named:
    results = raw["results"]
    last = results[-1] if isinstance(results, list) and results else None
    if not isinstance(last, Mapping):
        raise FieldError("results", f"expected a list of objects, found {preview(results)}")
    verdicts = []
    for order in ("swap = False", "swap = True"):
        if order in last:
            entry = last[order]
            winner = entry.get("winner") if isinstance(entry, Mapping) else None
            verdicts.append(_read(winner, _WINNERS, f"results.{order}.winner"))
    if not verdicts:
        raise FieldError("results", "has neither 'swap = False' nor 'swap = True'")
    folders = path.parts[:-1]
    judge, category = path.stem, None
    if "evaluators" in folders:
        at = len(folders) - 1 - folders[::-1].index("evaluators")
        judge, category = "/".join(folders[at + 1 :]) or judge, "".join(folders[at - 1 : at])
    preferred = _read_label(raw, "label", _WINNERS)
    texts = "\n".join(str(raw[name]) for name in ("input", "output_1", "output_2"))
    pair = PairVerdicts(
        _question_key(texts), _question_key(str(raw["input"])), tuple(verdicts), preferred, _name(category)
    )
    return _name(judge) or "judge", pair


def _mt_bench(raw: Mapping[str, Any], path: Path, line: int) -> Named:
    verdicts = tuple(_read(raw[name], _WINNERS, name) for name in ("g1_winner", "g2_winner"))
    judge = raw.get("judge")
    name = "/".join(map(str, judge)) if isinstance(judge, list) else judge
    question, turn = raw.get("question_id", line), raw.get("turn", 1)
    preferred = _read_label(raw, "winner", _WINNERS)
    pair = PairVerdicts(
        f"{question}/{turn}: {raw['model_1']} – {raw['model_2']}", str(question), verdicts, preferred,
        _name(raw.get("category")),
    )  # fmt: skip
    return _name(name) or path.stem, pair


Parser = Callable[[Mapping[str, Any], Path, int], Named]
# Fields by which a form is recognised, its parser, and whether its pairs have ids.
_FORMS: dict[str, tuple[set[str], Parser, bool]] = {
    "JudgeBench": ({"pair_id", "judgments", "label"}, _judgebench, True),
    "LLMBar": ({"input", "output_1", "output_2", "results"}, _llmbar, False),
    "MT-Bench": ({"g1_winner", "g2_winner", "model_1", "model_2"}, _mt_bench, True),
}


def _read(value: Any, names: Mapping[str, int], field: str) -> int | None:
    """Return the answer that a verdict or label names; None if there is none, or the judge's text was unreadable.

    Raises:
        FieldError: if the value is no text and no number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(field, f"expected a text or a number, found {preview(value)}")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return names.get(text.strip().upper())


def _read_label(raw: Mapping[str, Any], field: str, names: Mapping[str, int]) -> int | None:
    """Return the preferred answer; None if the field is missing or empty."""
    preferred = _read(raw.get(field), names, field)
    if preferred is None and raw.get(field) not in (None, ""):
        raise FieldError(field, f"expected one of {', '.join(names)}, found {preview(raw[field])}")
    return preferred


def _name(value: Any) -> str | None:
    """Return a name of bounded length; None if there is none."""
    text = " ".join(str(value).split()) if isinstance(value, str | int | float) else ""
    return text[:_LONGEST_NAME] or None


def _question_key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pair_verdicts_of_run(path: Path) -> PairSheet | None:
    """Return the verdicts of a run's judges on pairs; None if its scenario does not compare pairs, or made no verdicts.

    Raises:
        ConfigurationError: if the folder holds no readable run.
    """
    folder = RunFolder.open(path)
    scenario, settings = recorded_settings(folder)
    if not isinstance(scenario, SupportsPairVerdicts):
        return None
    folder.require_journal()
    labels = lineup_labels(scenario.roles_of(settings), folder.manifest)
    judges: dict[str, list[PairVerdicts]] = {}
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed and (pair := scenario.pair_verdicts(ended.result)) is not None:
                judges.setdefault(label_of_key(ended.key, labels), []).append(pair)
    return PairSheet(str(path), judges, "recorded run") if judges else None


def read_pairs(paths: Sequence[Path]) -> dict[str, list[PairVerdicts]] | None:
    """Return the verdicts of several files and runs, by judge; None if the first is no source of pairwise verdicts.

    Raises:
        ConfigurationError: if another source has no pairwise verdicts, or two have the same judge.
        DatasetError: if a file cannot be read.
    """
    judges: dict[str, list[PairVerdicts]] = {}
    for number, path in enumerate(paths):
        sheet = pair_verdicts_of_run(path) if path.is_dir() else read_pair_file(path)
        if sheet is None:
            if not number:
                return None
            raise ConfigurationError(f"{path} has no verdicts on pairs, but the first source has")
        for judge, judged in sheet.judges.items():
            if judge in judges:
                raise ConfigurationError(f"{path}: another source has verdicts of '{judge}' too; give one of them")
            judges[judge] = judged
    return judges


def pair_report(
    judges: Mapping[str, Sequence[PairVerdicts]], seed: int = 7, resamples: int = 1_000, level: float = 0.95
) -> dict[str, Any]:
    """Return each judge's figures on pairs, and with several judges what their votes are worth, as plain data."""
    report: dict[str, Any] = {"pairs": {judge: pair_record(judged, level) for judge, judged in judges.items()}}
    sheet = PairSheet("", {judge: list(judged) for judge, judged in judges.items()}, "").to_sheet()
    labelled = [row for row in sheet.rows if row.human]
    table = vote_table(labelled, "", judges_for(sheet, ""))
    return report | {"votes": None if table is None else votes_record(table, seed, resamples, level)}


def pair_answer(report: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each judge, and what their votes are worth."""
    sentences = [pair_sentence(judge, record) for judge, record in report["pairs"].items()]
    return sentences + ([] if report["votes"] is None else [votes_sentence(report["votes"])])


def pair_report_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a report."""
    votes = [] if report["votes"] is None else votes_tables(report["votes"])
    return [*pair_tables(report["pairs"]), *votes]
