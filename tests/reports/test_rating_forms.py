"""Published files of human ratings: each form is read as it is, from a list or from lines, and no text in it is run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from command import viva

from viva.engine.errors import ConfigurationError
from viva.reports.studies.judge_comparison import ComparisonOptions, meta_report
from viva.reports.studies.rating_files import NamedColumns
from viva.reports.studies.rating_forms import FORMS
from viva.reports.studies.rating_sheet import Sheet, join_ratings, read_rating_sheet

_FED: list[dict[str, Any]] = [
    {"context": "User: Hi!\nSystem: Hello.\nUser: Why?", "response": "System: So.", "system": "A",
     "annotations": {"Fluent": [2, 1, "N/A (it is no sentence)", 0, 2], "Overall": [3, 4, 2, 3, 3]}},
    {"context": "User: Hi!\nSystem: Hello.\nUser: Why?\nSystem: So.\nUser: Bye.", "system": "A",
     "annotations": {"Coherent": [2, 2, "N/A (short)", 1, 2], "Overall": [4, 4, 4, 4, 3]}},
    {"context": "User: Hi!\nSystem: Hello.", "response": "System: What?", "system": "B",
     "annotations": {"Fluent": [0, 0, 0, 1, 1], "Overall": [1, 0, 0, 1, 2]}},
]  # fmt: skip
_GRADE = {"ID": 7, "Dataset": "talks", "DialogModel": "M", "Context": "Hi.|||Hello.", "Response": "So.",
          "HumanScores": "[3, 5, 4]"}  # fmt: skip
_GRADES = [_GRADE, _GRADE | {"ID": 8, "DialogModel": "N", "HumanScores": "[1, 2, 2, 1]"}, _GRADE | {"ID": 9}]
_PAIR = {"source": "maths", "question": "1 + 1?", "response_A": "2", "response_B": "3", "label": "A>B"}
_JUDGED = {"judge_name": "pairwise", "judgments": [
    {"judgment": {"judge_model": "j-1.5", "response": "…"}, "decision": "A>B"},
    {"judgment": {"judge_model": "j-1.5", "response": "…"}, "decision": "A>B"},
]}  # fmt: skip
_PAIRS: list[dict[str, Any]] = [
    _PAIR | _JUDGED | {"pair_id": "p1", "original_id": 4},
    _PAIR | {"pair_id": "p2", "original_id": 4, "label": "B>A", "judge_name": "pairwise",
             "judgments": [{"judgment": {"judge_model": "j-1.5"}, "decision": "B>A"}, None]},
    _PAIR | {"pair_id": "p3", "original_id": None, "judge_name": "j-1.5",
             "judgments": [{"judgment": {}, "decision": "A=B"}, {"judgment": {}, "decision": "A=B"}]},
    _PAIR | {"pair_id": "p4", "original_id": 5},
]  # fmt: skip
_BAR: list[dict[str, Any]] = [
    {"input": "Say yes.", "output_1": "Yes.", "output_2": "No.", "label": "1",
     "results": [["a note", "stop"], {"swap = False": {"winner": "1"}, "swap = True": {"winner": "2"}}]},
    {"input": "Say no.", "output_1": "Yes.", "output_2": "No.", "label": "2",
     "results": [{"score_1": ["3", "stop"], "swap = False": {"winner": "2"}, "swap = True": {"winner": None}}]},
    {"input": "Say so.", "output_1": "Yes.", "output_2": "So.", "label": 2},
]  # fmt: skip
_SUMMARY: dict[str, Any] = {
    "id": "d1", "model_id": "M1", "decoded": "A summary.", "references": ["One.", "Two."], "filepath": "cnn/d1.story",
    "expert_annotations": [{"coherence": 4, "fluency": 5}, {"coherence": 3, "fluency": 5}],
    "turker_annotations": [{"coherence": 1, "fluency": 1}] * 5,
    "metric_scores_1": {"rouge": {"rouge_1_f_score": 0.25}, "bert_score_f1": 0.5},
}  # fmt: skip
_SUMMARIES = [_SUMMARY, _SUMMARY | {"model_id": "M2"}, _SUMMARY | {"id": "d2"}]
_UNIEVAL: list[dict[str, Any]] = [
    {"source": "Hi.", "system_id": "S", "system_output": "Hello.", "context": "", "scores": {"tone": 2.5, "use": 1.0}},
    {"source": "Hi.", "system_id": "T", "system_output": "What?", "context": "", "scores": {"tone": 1.0, "use": 0.5}},
]

# For each form: its records, and of a row: item, group, system, ratings, scores.
_READ: dict[str, tuple[list[dict[str, Any]], dict[int, tuple[Any, ...]]]] = {
    "fed": (_FED, {
        0: ("1", _FED[1]["context"], "A", {"Fluent": [2, 1, None, 0, 2], "Overall": [3, 4, 2, 3, 3]}, {}),
        1: ("2", _FED[1]["context"], "A", {"dialog.Coherent": [2, 2, None, 1, 2], "dialog.Overall": [4, 4, 4, 4, 3]},
            {}),
        2: ("3", _FED[2]["context"], "B", {"Fluent": [0, 0, 0, 1, 1], "Overall": [1, 0, 0, 1, 2]}, {}),
    }),
    "grade": (_GRADES, {
        0: ("7", "talks: Hi.|||Hello.", "M", {"coherence": [3, 5, 4, None]}, {}),
        1: ("8", "talks: Hi.|||Hello.", "N", {"coherence": [1, 2, 2, 1]}, {}),
    }),
    "judgebench": (_PAIRS, {
        0: ("p1", "maths 4", None, {"": ["A>B"]},
            {"verdict.j-1.5, first order": "A>B", "verdict.j-1.5, swapped order": "B>A"}),
        1: ("p2", "maths 4", None, {"": ["B>A"]},
            {"verdict.j-1.5, first order": "B>A", "verdict.j-1.5, swapped order": None}),
        2: ("p3", "p3", None, {"": ["A>B"]},
            {"verdict.j-1.5, first order": "A=B", "verdict.j-1.5, swapped order": "A=B"}),
        3: ("p4", "maths 5", None, {"": ["A>B"]},
            {"verdict.j-1.5, first order": None, "verdict.j-1.5, swapped order": None}),
    }),
    "llmbar": (_BAR, {
        0: ("1", "Say yes.", None, {"": [1]}, {"verdict.first order": 1, "verdict.swapped order": 2}),
        1: ("2", "Say no.", None, {"": [2]}, {"verdict.first order": 2, "verdict.swapped order": None}),
        2: ("3", "Say so.", None, {"": [2]}, {"verdict.first order": None, "verdict.swapped order": None}),
    }),
    "summeval": (_SUMMARIES, {
        0: ("d1", "d1", "M1", {"coherence": [4, 3], "fluency": [5, 5]},
            {"metric_scores_1.rouge.rouge_1_f_score": 0.25, "metric_scores_1.bert_score_f1": 0.5}),
        1: ("d1", "d1", "M2", {"coherence": [4, 3], "fluency": [5, 5]},
            {"metric_scores_1.rouge.rouge_1_f_score": 0.25, "metric_scores_1.bert_score_f1": 0.5}),
    }),
    "unieval": (_UNIEVAL, {
        0: ("1", "Hi.", "S", {"tone": [2.5], "use": [1.0]}, {}),
        1: ("2", "Hi.", "T", {"tone": [1.0], "use": [0.5]}, {}),
    }),
}  # fmt: skip


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    """A file of these records: a JSON list, or a record a line."""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(json.dumps(records, indent=2) if path.suffix == ".json" else lines)
    return path


def _rows(sheet: Sheet) -> list[tuple[Any, ...]]:
    rows = []
    for row in sheet.rows:
        human = {name: ratings for name, ratings in row.human.items() if set(ratings) != {None}}
        rows.append((row.item, row.group, row.system, human, {judge: one for (judge, _), one in row.scores.items()}))
    return rows


@case_table("form, suffix", [(form, suffix) for form in _READ for suffix in ("json", "jsonl")])
def test_each_form_is_read_as_it_is_published(tmp_path: Path, form: str, suffix: str) -> None:
    records, wanted = _READ[form]
    path = _write(tmp_path / f"published.{suffix}", records)
    sheet = read_rating_sheet(path, of_people=FORMS[form].by_people)
    rows = _rows(sheet)
    assert {at: rows[at] for at in wanted} == wanted
    assert f"read in the form of {form} (--form plain" in sheet.fields[1]
    assert _rows(read_rating_sheet(path, form=form)) == rows


def test_turns_and_dialogs_are_compared_apart(tmp_path: Path) -> None:
    report = meta_report(read_rating_sheet(_write(tmp_path / "fed.json", _FED)), ComparisonOptions(resamples=100))
    assert {one["criterion"]: one["n"] for one in report["criteria"]} == {
        "Fluent": 2, "Overall": 2, "dialog.Coherent": 1, "dialog.Overall": 1,
    }  # fmt: skip


def test_where_a_guess_would_be_wrong_the_form_must_be_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "data.json", _UNIEVAL)
    assert read_rating_sheet(path).judges == ["scores.tone", "scores.use"]  # a judge's, for all that the file says
    assert read_rating_sheet(path, form="unieval").judges == []
    predicted = [record | {"predict_scores": record["scores"]} for record in _UNIEVAL]
    assert read_rating_sheet(_write(tmp_path / "predicted.json", predicted)).judges == ["predict_scores"]
    fed = _write(tmp_path / "fed.json", _FED)
    assert "Overall" in read_rating_sheet(fed, form="plain").annotators
    assert "dialog.Overall" not in read_rating_sheet(fed, form="plain").annotators
    crowd = NamedColumns(human=["turker_annotations"])
    sheet = read_rating_sheet(_write(tmp_path / "summaries.jsonl", _SUMMARIES), crowd)
    assert sheet.rows[0].human == {"coherence": [1] * 5, "fluency": [1] * 5}
    named = NamedColumns(human=["annotations.Overall"])  # who names fields means those of the file
    assert list(read_rating_sheet(fed, named).annotators) == ["Overall"]


def test_ratings_join_a_judges_scores(tmp_path: Path) -> None:
    scores = _write(
        tmp_path / "scores.jsonl", [{"item": n, "system": s, "judge_tone": n} for n, s in ((2, "T"), (1, "S"))]
    )
    people = read_rating_sheet(_write(tmp_path / "data.json", _UNIEVAL), of_people=True)
    sheet = join_ratings(read_rating_sheet(scores), people)
    assert [(row.human["tone"], list(row.scores.values())) for row in sheet.rows] == [([1.0], [2.0]), ([2.5], [1.0])]
    done = viva("judge", "compare", scores, "--ratings", tmp_path / "data.json", "--resamples", "100", "--csv",
                tmp_path / "out.csv")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open() as file:
        assert {row["criterion"] for row in csv.DictReader(file)} >= {"tone"}


def test_a_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    done = viva("judge", "compare", _write(tmp_path / "fed.json", _FED), "--form", "feed")
    assert done.returncode == 2
    assert "--form: there is no form 'feed'; did you mean 'fed'?" in done.stderr
    assert viva("judge", "compare", tmp_path / "fed.json", "--form", "fed", "--resamples", "100").returncode == 0


_CODE = "[__import__('os').system('touch MARK')]"


@case_table("form, change, told", [
    ("grade", {"HumanScores": _CODE}, "field 'HumanScores': expected a list of up to 64 ratings as text"),
    ("grade", {"HumanScores": "[" * 3000 + "]" * 3000}, "field 'HumanScores': expected a list"),
    ("grade", {"HumanScores": "[" + "1, " * 5000 + "1]"}, "field 'HumanScores': expected a list"),
    ("grade", {"HumanScores": "[" + "1, " * 200 + "1]"}, "field 'HumanScores': expected a list"),
    ("grade", {"HumanScores": "[9**9**9]"}, "field 'HumanScores': expected a list"),
    ("grade", {"HumanScores": "{'a': 1}"}, "field 'HumanScores': expected a list"),
    ("grade", {"HumanScores": [3, 4]}, "field 'HumanScores': expected text"),
    ("grade", {"Context": None}, "field 'Context': expected text, found None"),
    ("fed", {"response": "So.", "annotations": {"Overall": _CODE}}, "field 'annotations.Overall"),
    ("fed", {"annotations": [1]}, "field 'annotations': expected an object"),
    ("fed", {"annotations": {"Overall": ["4 or so", 1, 2, 3, 4]}}, "field 'annotations.dialog.Overall.1'"),
    ("judgebench", {"judgments": [{}] * 3}, "field 'judgments': expected one or two judgments, found 3"),
    ("judgebench", {"judgments": ["A>B"]}, "field 'judgments': expected an object with a decision"),
    ("judgebench", {"judgments": "A>B"}, "field 'judgments': expected a list"),
    ("llmbar", {"results": {"winner": 1}}, "field 'results': expected a list"),
    ("summeval", {"expert_annotations": "x"}, "field 'expert_annotations': expected a list"),
    ("unieval", {"scores": 3}, "field 'scores': expected an object"),
])  # fmt: skip
def test_a_record_of_another_shape_is_refused_by_line_and_field(
    tmp_path: Path, form: str, change: dict[str, Any], told: str
) -> None:
    records = _READ[form][0]
    text = json.dumps(records[1] | change).replace("MARK", str(tmp_path / "mark"))
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join([json.dumps(records[0]), text]))
    with pytest.raises(ConfigurationError) as refused:
        read_rating_sheet(path, form=form)
    assert "odd.jsonl:2: " in str(refused.value)
    assert told in str(refused.value)
    assert not (tmp_path / "mark").exists()
