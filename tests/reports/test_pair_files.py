"""Published outputs of pairwise judges: read as they are, joined over files, refused with file, line and field."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from pair_outputs import judgebench, llmbar

from viva.engine.errors import ConfigurationError, DatasetError
from viva.reports.studies.pair_files import pair_answer, pair_report, read_pair_file, read_pairs
from viva.reports.studies.rating_sheet import read_rating_sheet
from viva.scenarios.audit.audit_cases import TIE, AuditCase, open_cases

DATA = Path(os.environ.get("VIVA_DATA", Path(__file__).parents[3] / "shared" / "data"))


def test_judgebench_decisions_are_of_the_answers_as_shown(tmp_path: Path) -> None:
    said: list[tuple[str, str | None, str | None]] = [
        ("A>B", "A>B", "B>A"),  # right in both orders
        ("B>A", "A>B", "A>B"),  # the answer shown first, twice
        ("A>B", "A>B", "A=B"),  # a tie in one order
        ("B>A", None, "A>B"),  # an unreadable decision
    ]
    sheet = read_pair_file(judgebench(tmp_path / "o.jsonl", "judge-x", said))
    assert sheet is not None
    pairs = sheet.judges["judge-x"]
    assert [pair.verdicts for pair in pairs] == [(1, 1), (1, 2), (1, 0), (None, 2)]
    assert [pair.preferred for pair in pairs] == [1, 2, 1, 2]
    [figures] = pair_report(sheet.judges)["pairs"].values()
    assert (figures["strict"]["value"], figures["net"]["value"]) == (0.25, 0.75)
    assert figures["accuracy"]["value"] == 0.625
    assert figures["unreadable"] == 1
    assert sorted(figures["categories"]) == ["subject-0", "subject-1"]


def test_llmbar_winners_are_of_the_answers_as_listed(tmp_path: Path) -> None:
    sheet = read_pair_file(llmbar(tmp_path, "GPT-4/CoT", [(1, "1", "1"), (2, "1", "2"), (1, None, "1")]))
    assert sheet is not None
    [(judge, pairs)] = sheet.judges.items()
    assert judge == "GPT-4/CoT"
    assert [pair.verdicts for pair in pairs] == [(1, 1), (1, 2), (None, 1)]
    assert {pair.category for pair in pairs} == {"Natural"}


def test_mt_bench_pairs_have_consistency_without_labels(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "turn": turn, "model_1": "a", "model_2": "b", "judge": ["gpt-4", "pair-v2"],
         "g1_winner": first, "g2_winner": second}
        for turn, first, second in ((1, "model_1", "model_1"), (2, "tie", "model_2"), (3, "error", "tie"))
    ]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sheet = read_pair_file(tmp_path / "pairs.jsonl")
    assert sheet is not None
    report = pair_report(sheet.judges)
    [figures] = report["pairs"].values()
    assert figures["strict"] is None
    assert figures["consistent"]["value"] == 0.5
    assert "no pair has a preferred answer" in pair_answer(report)[0]


def test_other_files_are_left_to_their_reader(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("id,human,judge\n1,4,3\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    assert read_pair_file(tmp_path / "plain.csv") is None
    assert read_pair_file(tmp_path / "broken.jsonl") is None
    assert read_pairs([tmp_path / "plain.csv"]) is None
    assert read_rating_sheet(tmp_path / "plain.csv").judges == ["judge"]


_GOOD: dict[str, Any] = {
    "pair_id": "p",
    "label": "A>B",
    "judgments": [{"decision": "A>B"}, {"decision": "B>A"}],
}


@case_table(
    "change, message",
    [
        ({"label": "first"}, "field 'label': expected one of A>B"),
        ({"label": ["A>B"]}, "field 'label': expected a text or a number"),
        ({"judgments": "A>B"}, "field 'judgments': expected a list of one or two judgments"),
        ({"judgments": [{"decision": {"x": 1}}]}, "field 'judgments.0.decision': expected a text or a number"),
        ({"pair_id": "first"}, "has judged 'first' in line 1 already"),
        ({"label": None, "pair_id": None, "judgments": None}, "field 'judgments'"),
    ],
)
def test_a_wrong_line_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    lines = [{**_GOOD, "pair_id": "first"}, {**_GOOD, **change}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DatasetError) as error:
        read_pair_file(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)


def test_one_judge_in_two_files_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    a, b = (judgebench(tmp_path / f"{name}.jsonl", "same", [("A>B", "A>B", "B>A")]) for name in "ab")
    with pytest.raises(ConfigurationError, match="another source has verdicts of 'same' too"):
        read_pairs([a, b])
    (tmp_path / "plain.csv").write_text("id,human,judge\n1,4,3\n")
    with pytest.raises(ConfigurationError, match="has no verdicts on pairs"):
        read_pairs([a, tmp_path / "plain.csv"])


# -- audit cases in public forms --------------------------------------------------------------------------------------


@case_table(
    "record, question, preferred",
    [
        ({"input": "Why?", "output_1": "a", "output_2": "b", "label": 1}, "Why?", 0),
        ({"input": "Why?", "output_1": "a", "output_2": "b", "label": "2"}, "Why?", 1),
        ({"input": "Why?", "output_1": "a", "output_2": "b"}, "Why?", None),
        ({"instruction": "Say.", "input": "x", "output_1": "a", "output_2": "b", "label": 0}, "Say.\n\nx", TIE),
        ({"instruction": " ", "input": "x", "response1": "a", "response2": "b", "annotator1": 2, "annotator2": 2,
          "annotator3": 1}, "x", 1),
        ({"instruction": "Say.", "response1": "a", "response2": "b", "annotator1": 2, "annotator2": 1}, "Say.", None),
        ({"question": "Why?", "response_A": "a", "response_B": "b", "label": "B>A"}, "Why?", 1),
        ({"prompt": "Why?", "chosen": "a", "rejected": "b"}, "Why?", 0),
        ({"question": "Why?", "answers": ["a", "b"], "preferred": 1}, "Why?", 1),
    ],
)  # fmt: skip
def test_cases_in_public_forms_are_read_as_they_are(
    record: dict[str, Any], question: str, preferred: int | str | None, tmp_path: Path
) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([record, {**record, "subset": "hard", "idx": 7}]))
    first, second = open_cases(str(tmp_path / "cases.json"), None, 0)
    assert (first.question, first.answers, first.preferred) == (question, ("a", "b"), preferred)
    assert (second.id, second.category) == ("7", "hard")
    assert AuditCase.from_record(first.to_record()) == first
    assert AuditCase.from_record(second.to_record()) == second


@case_table(
    "record, message",
    [
        (
            {"input": "Why?", "output_1": "a", "output_2": "b", "label": 3},
            "field 'label': expected 1, 2, or 0 for a tie",
        ),
        ({"input": "Why?", "output_1": "a", "output_2": "b", "label": True}, "field 'label': expected 1, 2"),
        ({"input": "Why?", "output_1": "a", "output_2": ["b"], "label": 1}, "field 'output_2': expected text"),
        ({"input": " ", "output_1": "a", "output_2": "b", "label": 1}, "field 'input': expected text"),
        ({"question": "Why?", "response_A": "a", "response_B": "b", "label": "A"}, "expected A>B, B>A, or A=B"),
    ],
)
def test_a_wrong_case_is_named(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(DatasetError) as error:
        open_cases(str(path), None, 0)
    assert str(error.value).startswith(f"{path}:1: ")
    assert message in str(error.value)


def test_an_empty_answer_is_judged_in_pairs_and_no_answer_of_a_single_audit(tmp_path: Path) -> None:
    rows = [{"id": f"c{at}", "input": "Why?", "output_1": "", "output_2": "b", "label": 2} for at in range(8)]
    (tmp_path / "cases.json").write_text(json.dumps(rows))
    cases = open_cases(str(tmp_path / "cases.json"), None, 0)
    assert {case.single for case in cases} == {1}


@pytest.mark.skipif(not (DATA / "pandalm").is_dir(), reason="PandaLM's test set is not in VIVA_DATA")
def test_pandalms_test_set_is_a_file_of_cases() -> None:
    cases = open_cases(str(DATA / "pandalm" / "testset-v1.json"), None, 0)
    assert len(cases) == 999
    assert all(case.paired for case in cases)
    assert sum(case.preferred is None for case in cases) < 20  # three annotators seldom disagree completely
