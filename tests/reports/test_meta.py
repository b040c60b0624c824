"""Scores beside human ratings: published figures from real files, fields found and named, ratings joined or refused."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError, DatasetError
from viva.reports.studies.judge_comparison import ComparisonOptions, meta_report
from viva.reports.studies.judge_comparison_page import meta_tables, summary_sentences
from viva.reports.studies.rating_files import NamedColumns
from viva.reports.studies.rating_sheet import Sheet, check_scored, join_ratings, read_rating_sheet

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()
FEW = ComparisonOptions(resamples=100)


def real(name: str) -> Path:
    """A file of the data folder; skips where it is not there."""
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return DATA / name


def _item_figures(report: dict[str, Any]) -> dict[str, list[float]]:
    return {one["criterion"]: [figure["value"] for figure in one["judges"][0]["levels"]["item"].values()]
            for one in report["criteria"]}  # fmt: skip


def test_unievals_published_figures() -> None:
    report = meta_report(read_rating_sheet(real("topicalchat/unieval_predictions.json")), FEW)
    found = _item_figures(report)
    assert found["naturalness"] == pytest.approx([0.443666, 0.513986, 0.373973], abs=1e-5)
    assert found["coherence"] == pytest.approx([0.595143, 0.612942, 0.465915], abs=1e-5)
    assert found["engagingness"] == pytest.approx([0.55651, 0.604739, 0.455941], abs=1e-5)
    assert found["groundedness"] == pytest.approx([0.536209, 0.574954, 0.451533], abs=1e-5)
    assert (report["rows"], report["groups"], report["systems"]) == (360, 60, 6)
    assert summary_sentences(report).startswith(
        "Of 6 criteria, Spearman's ρ of predict_scores with people is highest on overall, 0.663 ("
    )
    for title, header, rows in meta_tables(report):  # as they are printed: a gap of three beside each column
        if rows:
            wide = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
            assert sum(wide) + 3 * (len(wide) - 1) + 4 <= 80, title


def test_pandalms_published_kappas() -> None:
    report = meta_report(read_rating_sheet(real("pandalm/testset-v1.json")), FEW)
    [one] = report["criteria"]
    assert [round(pair["kappa"]["value"], 3) for pair in one["agreement"]["pairs"]] == [0.852, 0.879, 0.862]
    assert (one["scale"], one["n"], one["annotators"]) == ("nominal", 999, ["annotator1", "annotator2", "annotator3"])
    assert "at a mean Cohen's κ of 0.864 (pairs 0.852, 0.879, 0.862) over 999 rows" in summary_sentences(report)


def test_mt_benchs_means() -> None:
    sheet = read_rating_sheet(real("mt_bench/judgments_gpt-4_single.jsonl"))
    [one] = meta_report(sheet, FEW)["judgments"]
    [system] = one["systems"]
    assert (one["judge"], system["system"]) == ("gpt-4", "phi-3-dpo")
    assert [system["overall"]["mean"], *(mean["mean"] for mean in system["turns"].values())] == [8.2, 8.3625, 8.0375]
    assert (system["overall"]["n"], system["overall"]["unparsed"]) == (160, 0)


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_unparsable_judgments_are_counted_and_never_averaged(tmp_path: Path) -> None:
    scores = [[8, -1], [6, 4], [-1, -1], [7, 5]]
    records = [
        {"question_id": number, "model": "m", "judge": ["j", "single-v1"], "turn": turn, "score": score}
        for number, both in enumerate(scores)
        for turn, score in enumerate(both, 1)
    ]
    report = meta_report(read_rating_sheet(_write(tmp_path / "judged.jsonl", records)), FEW)
    [system] = report["judgments"][0]["systems"]
    means = [(mean["mean"], mean["n"], mean["unparsed"]) for mean in (system["overall"], *system["turns"].values())]
    assert means == [(6.0, 5, 3), (7.0, 3, 1), (4.5, 2, 2)]
    assert "turn 1 7.000, turn 2 4.500), 3 of 8 judgments unparsable" in summary_sentences(report)


def test_minus_one_is_a_score_where_others_are_negative_too(tmp_path: Path) -> None:
    records = [{"item": at, "human": at, "judge_x": score} for at, score in enumerate([-2, -1, 0, 1])]
    sheet = read_rating_sheet(_write(tmp_path / "signed.jsonl", records))
    assert [row.scores["judge_x", ""] for row in sheet.rows] == [-2.0, -1.0, 0.0, 1.0]


def test_two_judges_a_jury_and_labels_in_one_table(tmp_path: Path) -> None:
    lines = ["id,model,annotator_1,annotator_2,judge_a,judge_b"]
    for at in range(30):
        truth = at * 7 % 5
        lines.append(
            f"{at // 2},m{at % 2},{truth},{truth},{min(4, truth + at % 2)},{(truth + at) % 5 if at % 3 else ''}"
        )
    (tmp_path / "two.csv").write_text("\n".join(lines))
    sheet = read_rating_sheet(tmp_path / "two.csv")
    report = meta_report(sheet, ComparisonOptions(resamples=100, juries=("mean", "fitted")))
    [one] = report["criteria"]
    assert [(judge["judge"], judge["n"], judge["unscored"]) for judge in one["judges"]] == [
        ("judge_a", 30, 0),
        ("judge_b", 20, 10),
    ]
    assert [(pair["first"], pair["second"], pair["n"]) for pair in one["differences"]] == [("judge_a", "judge_b", 20)]
    assert one["differences"][0]["levels"]["item"]["spearman"]["p_corrected"] is not None
    assert [jury["how"] for jury in one["juries"]] == ["mean", "fitted"]
    assert one["confusions"][0]["kappa"]["value"] > 0.4
    assert one["agreement"]["kappa"] == 1.0
    assert report["groups"] == 15  # two models answered each item
    assert "judge_a has the highest Spearman's ρ with people of" in summary_sentences(report)


def test_fields_are_named_where_names_say_nothing(tmp_path: Path) -> None:
    records = [{"a": at, "b": at % 4, "c": at % 5, "d": f"s{at % 2}"} for at in range(12)]
    path = _write(tmp_path / "plain.jsonl", records)
    with pytest.raises(ConfigurationError, match=r"neither human ratings nor scores .* \(a, b, c, d\).*--human"):
        read_rating_sheet(path)
    sheet = read_rating_sheet(path, NamedColumns(item="a", system="d", human=["b"], score=["c"]))
    assert (sheet.judges, sheet.rows[5].human, sheet.rows[5].system) == (["c"], {"": [1.0]}, "s1")
    with pytest.raises(ConfigurationError, match="field 'x': no record has this field; the fields are: a, b, c, d"):
        read_rating_sheet(path, NamedColumns(human=["x"], score=["c"]))
    with pytest.raises(ConfigurationError, match="field 'c': is named as a human rating and as a judge's score"):
        read_rating_sheet(path, NamedColumns(human=["c"], score=["c"]))
    people = Sheet("x", read_rating_sheet(path, NamedColumns(human=["b"])).rows, {"": ["b"]})
    with pytest.raises(ConfigurationError, match="human ratings of one annotator and no scores; name"):
        check_scored(people)


def test_the_lines_at_fault_are_named(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text('[\n {"human": 1, "judge": 2},\n\n {"human": 2,\n  "judge": "good"}\n]')
    with pytest.raises(ConfigurationError, match=r"array.json:4: field 'judge': expected a number as in the other"):
        read_rating_sheet(path, NamedColumns(human=["human"], score=["judge"]))
    path.write_text('[\n {"human": 1, "judge": 2},\n {"human": 2 "judge": 2}\n]')
    with pytest.raises(ConfigurationError, match=r"array.json:3: not valid JSON: Expecting ',' delimiter"):
        read_rating_sheet(path)
    path.write_text('[{"human": 1},\n]')
    with pytest.raises(ConfigurationError, match=r"array.json:2: not valid JSON"):
        read_rating_sheet(path)


def _joined(tmp_path: Path, scores: list[dict[str, Any]], ratings: list[dict[str, Any]]) -> Sheet:
    named = NamedColumns()
    return join_ratings(
        read_rating_sheet(_write(tmp_path / "scores.jsonl", scores), named.of_scores()),
        read_rating_sheet(_write(tmp_path / "ratings.jsonl", ratings), named.of_people()),
    )


SCORES = [{"item": f"i{at}", "system": name, "judge_x": at} for at in range(3) for name in ("p", "q")]


def test_ratings_join_by_item_and_system(tmp_path: Path) -> None:
    sheet = _joined(
        tmp_path, SCORES, [{"item": "i1", "system": "q", "rating": 4}, {"item": "i2", "system": "p", "rating": 5}]
    )
    assert [(row.item, row.system, row.human[""], row.scores["judge_x", ""]) for row in sheet.rows] == [
        ("i1", "q", [4.0], 1.0),
        ("i2", "p", [5.0], 2.0),
    ]
    assert sheet.notes == ["4 of 6 scored rows have no human rating and are left out"]


@pytest.mark.parametrize(
    ("rating", "said"),
    [
        (
            {"item": "i7", "system": "q"},
            "s:2: item 'i7', system 'q' is not in .*, which has, for example, i0",
        ),
        (
            {"item": "i1", "system": "r"},
            "s:2: item 'i1', system 'r' is not in .* has, for example, item 'i1', system 'p'",
        ),
        ({"item": "i1"}, "s:2: item 'i1' matches 2 rows of .*add the rating's system or turn"),
        (
            {"item": "i0", "system": "p"},
            r"s:2: rates item 'i0', system 'p' again \(first in line 1",
        ),
    ],
)
def test_ratings_that_do_not_join_are_refused(tmp_path: Path, rating: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("s:2", "ratings.jsonl:2")):
        _joined(tmp_path, SCORES, [{"item": "i0", "system": "p", "rating": 1}, rating | {"rating": 2}])


# -- shapes of public data sets ---------------------------------------------------------------------------------------

_FED = [
    {"context": "User: Hi!", "response": "Hello.", "system": "Meena",
     "annotations": {"Interesting": [1, 2, 0, 2, 1], "Fluent": [2, 2, 1, 2, "N/A"], "Overall": [3, 4, 2, 3, 3]}},
    {"context": "User: Why?", "response": "Because.", "system": "Mitsuku",
     "annotations": {"Interesting": [0, 0, 1, 0, 0], "Fluent": [2, 1, 2, 2, 2], "Overall": [1, 1, 2, 0, 1]}},
    {"context": "User: Hi! System: Hello.", "system": "Meena",
     "annotations": {"Coherent": [2, 2, 1, 2, 2], "Overall": [4, 3, 4, 4, 3]}},
]  # fmt: skip
_USR = {
    "context": "c",
    "fact": "f",
    "model": "GPT-2",
    "Natural": [3, 2, 3],
    "Engaging": [1, 2, 2],
    "Overall": [4, 3, 4],
}
_SUMMEVAL = {"id": "d1", "model_id": "M1", "expert_annotations": [{"coherence": 4, "fluency": 5}] * 3}


def test_a_criterion_with_a_list_of_ratings_is_one_criterion_with_as_many_annotators(tmp_path: Path) -> None:
    sheet = read_rating_sheet(_write(tmp_path / "fed.jsonl", _FED))
    names = {criterion: len(fields) for criterion, fields in sheet.annotators.items()}
    assert names == {"Interesting": 5, "Fluent": 5, "Overall": 5, "dialog.Coherent": 5, "dialog.Overall": 5}
    assert sheet.rows[0].human["Fluent"] == [2.0, 2.0, 1.0, 2.0, None]
    assert sheet.rows[2].human["Interesting"] == [None] * 5
    found = {one["criterion"]: (len(one["annotators"]), one["n"]) for one in meta_report(sheet, FEW)["criteria"]}
    dialogs = {"dialog.Coherent": (5, 1), "dialog.Overall": (5, 1)}
    assert found == {"Interesting": (5, 2), "Fluent": (5, 2), "Overall": (5, 2), **dialogs}


def test_lists_that_are_named_are_criteria_of_their_own(tmp_path: Path) -> None:
    path = _write(tmp_path / "usr.jsonl", [_USR, _USR])
    sheet = read_rating_sheet(path, NamedColumns(human=["Natural", "Engaging", "Overall"]))
    assert sheet.rows[1].human == {"Natural": [3.0, 2.0, 3.0], "Engaging": [1.0, 2.0, 2.0], "Overall": [4.0, 3.0, 4.0]}


def test_experts_in_a_list_rate_criteria_by_name(tmp_path: Path) -> None:
    sheet = read_rating_sheet(_write(tmp_path / "summeval.jsonl", [_SUMMEVAL, _SUMMEVAL | {"id": "d2"}]))
    assert sheet.rows[0].human == {"coherence": [4.0] * 3, "fluency": [5.0] * 3}


def test_several_outputs_in_one_record_are_refused(tmp_path: Path) -> None:
    raw = {"context": "c", "responses": [{"response": "a", "Natural": [1, 2]}, {"response": "b", "Natural": [3, 3]}]}
    path = _write(tmp_path / "usr.jsonl", [raw])
    with pytest.raises(ConfigurationError, match=r"'responses.1.Natural.1': has nested lists.*one record per"):
        read_rating_sheet(path, NamedColumns(human=["responses.1.Natural", "responses.2.Natural"]))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(["json", "text", "python", "numpy", "objects", "csv", "experts"]))
def test_the_same_ratings_are_read_from_every_shape(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, shape: str
) -> None:
    criteria = data.draw(st.lists(st.sampled_from(["fluency", "tone", "Over all"]), min_size=1, unique=True))
    width = data.draw(st.integers(2, 4))
    one = st.lists(st.sampled_from([0, 1, 2, 3.5, "N/A"]), min_size=width, max_size=width)
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(criteria, one)), min_size=1, max_size=4))
    rows[0] = {name: [1, 2, 3.5, 0][:width] for name in criteria}  # numbers in every place
    path = tmp_path_factory.mktemp("shape") / ("ratings.csv" if shape == "csv" else "ratings.jsonl")
    if shape == "csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, [f"annotations.{name}" for name in criteria])
            table.writeheader()
            table.writerows({f"annotations.{name}": str(given_) for name, given_ in row.items()} for row in rows)
    else:
        _write(path, [{"annotations": _shaped(row, shape)} for row in rows])
    sheet = read_rating_sheet(path)
    wanted = [{name: [None if value == "N/A" else float(value) for value in row[name]] for name in criteria}
              for row in rows]  # fmt: skip
    assert [row.human for row in sheet.rows] == wanted


def _shaped(row: dict[str, list[Any]], shape: str) -> Any:
    if shape == "text":
        return json.dumps(row)
    if shape == "python":
        return {name: str(ratings) for name, ratings in row.items()}
    if shape == "numpy":
        return {name: f"[{' '.join(map(str, ratings)).replace('N/A', 'nan')}]" for name, ratings in row.items()}
    if shape == "objects":
        return {name: {f"rater_{at}": one for at, one in enumerate(ratings)} for name, ratings in row.items()}
    if shape == "experts":
        places = range(len(next(iter(row.values()))))
        return [{name: ratings[at] for name, ratings in row.items()} for at in places]
    return row


def test_a_single_rating_among_lists_is_a_list_of_one(tmp_path: Path) -> None:
    records = [{"rating": "[4, 5]"}, {"rating": 3}, {"rating": "N/A"}, {"rating": "[2]"}, {"rating": []}]
    sheet = read_rating_sheet(_write(tmp_path / "mixed.jsonl", records))
    assert [row.human[""] for row in sheet.rows] == [[4, 5], [3, None], [None, None], [2, None], [None, None]]


@pytest.mark.parametrize("missing", ["N/A", "n/a", "NA", "NaN", "null", "None", "", "#N/A", None, "n.a."])
def test_a_missing_value_among_numbers_is_no_score(tmp_path: Path, missing: Any) -> None:
    records = [{"human": 1, "judge_a": 2}, {"human": missing, "judge_a": 3}, {"human": 2, "judge_a": missing}]
    sheet = read_rating_sheet(_write(tmp_path / "few.jsonl", records))
    assert [(row.human[""], row.scores["judge_a", ""]) for row in sheet.rows] == [([1], 2), ([None], 3), ([2], None)]


@pytest.mark.parametrize(
    "value", ["4, 5", "4;5", "4|5", "4/5", "4,5", "4 5", "80%", "good", "4 stars", {"a": "x"}, [[4]]]
)
def test_what_is_no_number_among_numbers_is_refused_by_its_line(tmp_path: Path, value: Any) -> None:
    path = _write(tmp_path / "odd.jsonl", [{"human": 1, "judge_a": 2}, {"human": 2, "judge_a": value}])
    with pytest.raises(ConfigurationError, match=r"odd\.jsonl:[12]: field 'judge_a(\.\w+)*'"):
        read_rating_sheet(path)
    path = _write(tmp_path / "odd.jsonl", [{"human": 1, "judge_a": 2}, {"human": value, "judge_a": 1}])
    with pytest.raises(ConfigurationError, match=r"odd\.jsonl:[12]: field 'human(\.\w+)*'"):
        read_rating_sheet(path)


@pytest.mark.parametrize(
    "name", ["judge_name", "judge_model_version", "judge_id", "metric_name", "predicted_by", "auto_tag"]
)
def test_a_constant_text_is_never_a_score(tmp_path: Path, name: str) -> None:
    records = [{"item": at, "human": at % 3, "judge_score": at % 4, name: "gpt-4"} for at in range(8)]
    path = _write(tmp_path / "named.jsonl", records)
    sheet = read_rating_sheet(path)
    assert len({score for row in sheet.rows for score in row.scores}) == 1
    assert all(isinstance(score, float) for row in sheet.rows for score in row.scores.values())
    with pytest.raises(ConfigurationError, match=f"field '{name}': contains texts that cannot be scores"):
        read_rating_sheet(path, NamedColumns(score=[name]))


def test_explanations_are_no_scores_and_labels_are(tmp_path: Path) -> None:
    records = [
        {
            "human": "AB"[at % 2],
            "judge_verdict": "AB"[at % 3 % 2],
            "judge_reason": f"Because of {at}.",
            "judge_name": "g",
        }
        for at in range(20)
    ]
    sheet = read_rating_sheet(_write(tmp_path / "labels.jsonl", records))
    assert list(sheet.rows[0].scores) == [("g", "")]
    assert sheet.fields == ["judge judge_name; human ratings human; scores judge_verdict; "
                          "not a score: judge_reason (texts that are not labels)"]  # fmt: skip


def test_scores_of_one_criterion_in_several_fields_stay_apart(tmp_path: Path) -> None:
    records = [{"item": at, "human": at, "judge": "g", "judge_a": at, "judge_b": -at} for at in range(4)]
    sheet = read_rating_sheet(_write(tmp_path / "two.jsonl", records))
    assert sheet.rows[3].scores == {("g: judge_a", ""): 3.0, ("g: judge_b", ""): -3.0}


def test_a_judge_asked_several_times_of_each_criterion(tmp_path: Path) -> None:
    record = {"annotations": {"tone": [1, 2], "fluency": [3, 3]}, "predictions": {"tone": [1, 1], "fluency": [2, 3]}}
    sheet = read_rating_sheet(_write(tmp_path / "several.jsonl", [record, record]))
    assert sheet.rows[0].scores == {
        ("predictions.1", "tone"): 1.0, ("predictions.2", "tone"): 1.0,
        ("predictions.1", "fluency"): 2.0, ("predictions.2", "fluency"): 3.0,
    }  # fmt: skip


# -- sentences --------------------------------------------------------------------------------------------------------


def _answer(path: Path, records: list[dict[str, Any]], named: NamedColumns | None = None) -> tuple[str, dict[str, Any]]:
    report = meta_report(read_rating_sheet(_write(path, records), named), FEW)
    return summary_sentences(report), report


@pytest.mark.parametrize(
    ("pairs", "said", "unsaid"),
    [
        (
            [(at % 2, (at + 1) % 2 if at % 5 else at % 2) for at in range(20)],
            "do not agree significantly beyond chance: κ = -0",
            "beyond chance at",
        ),
        ([(at % 3, at % 2) for at in range(20)], "do not agree significantly beyond chance", "beyond chance at"),
        ([(at % 2, at % 2 if at % 7 else 0) for at in range(40)], "agree beyond chance at κ = 0", "not seen"),
        ([(1, 1)] * 20, "gave the same label throughout (20 rows): κ is undefined", "–"),
        ([(1, 1)] * 20, "all scores, or all ratings, are the same", "–"),
        ([(1, 2)], "is 0.000 over 1 row, without an interval", "(0.00 to 0.00)"),
        ([(1, 2)], "cannot be correlated with ratings over 1 row: fewer than three", "–"),
        ([(0, 0), (1, 1)], "gave the same labels to all of 2 rows (κ = 1.000)", "beyond chance"),
        ([(at % 3, at % 3) for at in range(30)], "is 1.000 over 30 rows, without an interval", "(1.00 to 1.00)"),
        ([(at, 20 - at) for at in range(20)], "Spearman's ρ of judge_a with people is -1.000", "follows"),
        ([(at, 20 - at + at % 3) for at in range(20)], "judge_a correlates negatively with people", "correlates with"),
        (
            [(at, at * 7 % 20) for at in range(20)],
            "judge_a does not correlate significantly with people: Spearman",
            "judge_a correlates with people",
        ),
        (
            [(at, at + at % 3) for at in range(20)],
            "judge_a correlates with people: Spearman's ρ is 0.9",
            "not seen",
        ),
    ],
)
def test_a_sentence_on_agreement_follows_from_the_figure_and_its_interval(
    tmp_path: Path, pairs: list[tuple[int, int]], said: str, unsaid: str
) -> None:
    told, _ = _answer(tmp_path / "r.jsonl", [{"human": one, "judge_a": other} for one, other in pairs])
    assert said in told
    assert unsaid not in told


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(*[st.sampled_from([None, 1, 2, 3])] * 4), min_size=1, max_size=9))
def test_no_sentence_on_agreement_claims_more_than_its_interval(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int | None, ...]]
) -> None:
    names = ("annotator1", "annotator2", "judge_a", "judge_b")
    rows = [*rows, (1, None, 1, 1)]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    told, report = _answer(tmp_path_factory.mktemp("few") / "r.jsonl", records)
    [one] = report["criteria"]
    assert "–" not in told
    assert ("beyond chance at" in told) <= any((found["kappa"]["low"] or 0) > 0 for found in one["confusions"])
    follows = any((judge["levels"]["item"]["spearman"]["low"] or 0) > 0 for judge in one["judges"])
    assert ("has the highest Spearman's ρ with people" in told) == follows
    pairs = [found["kappa"] for found in one["agreement"]["pairs"] if found["kappa"]["value"] is not None]
    assert ("annotators agree" in told) <= all(found["value"] == 1 or (found["low"] or 0) > 0 for found in pairs)
    for figure in (found["kappa"] for found in (*one["confusions"], *one["agreement"]["pairs"])):
        assert figure["low"] is None or figure["low"] < figure["high"]


def test_criteria_that_a_judge_does_not_follow_are_not_said_to_be_followed_best(tmp_path: Path) -> None:
    records = [{"annotations": {name: (at * step) % 11 for name, step in (("a", 3), ("b", 5), ("c", 7))},
                "judge": {"a": -at % 5, "b": at % 4, "c": 2}} for at in range(12)]  # fmt: skip
    told, _ = _answer(tmp_path / "r.jsonl", records)
    assert told.startswith("Of 3 criteria, judge correlates significantly with people on none: Spearman's ρ is")


@pytest.mark.parametrize(
    ("human", "score", "said"),
    [
        (["good", "bad"], [1, 0], "its scores are numbers (1, 0), but the ratings are texts (good, bad)"),
        ([True, False], ["true", "false"], "its scores are texts (true, false), but the ratings are numbers (1, 0)"),
        ([1, None], [None, 2], "no row has both a score and a rating"),
    ],
)
def test_why_a_judge_is_not_compared_with_people_is_said(
    tmp_path: Path, human: list[Any], score: list[Any], said: str
) -> None:
    records = [{"human": one, "judge_a": other} for one, other in zip(human, score, strict=True)]
    told, _ = _answer(tmp_path / "r.jsonl", records)
    assert told.startswith(f"Overall, judge_a cannot be compared with people: {said}.")


def test_a_row_that_one_annotator_rated_is_not_unanimous(tmp_path: Path) -> None:
    records = [{"annotations": [1, 2]}, {"annotations": [3, 1]}, *[{"annotations": [2]}] * 8]
    told, report = _answer(tmp_path / "r.jsonl", records)
    assert report["criteria"][0]["agreement"]["unanimous"] == 0.0
    assert "over 2 rows" in told


# -- shapes that people have ------------------------------------------------------------------------------------------


def _long(rows: int = 4) -> list[dict[str, Any]]:
    return [
        {"item": at, "criterion": name, "annotator": who, "rating": 1 + (at + place) % 5, "judge_score": at % 5}
        for at in range(rows)
        for name in ("tone", "fluency")
        for place, who in enumerate(("ann", "bob"))
    ]


_FLAT = [{"human_tone": at % 3, "human_fluency": at % 4, "judge_tone": at % 5, "judge_fluency": 1} for at in range(6)]
_COMPOUND = [{"tone_annotator_1": at % 3, "tone_annotator_2": 1, "tone_judge": at % 5} for at in range(6)]
_OBJECTS = [
    {
        "annotations": [
            {"annotator": "ann", "comment": f"because {at}", "tone": at % 3},
            {"annotator": "bob", "tone": 1},
        ],
        "judge": {"tone": at % 5},
    }
    for at in range(6)
]


@pytest.mark.parametrize(
    ("records", "annotators", "scores"),
    [
        (
            _long(),
            {"tone": ["ann", "bob"], "fluency": ["ann", "bob"]},
            [("judge_score", "tone"), ("judge_score", "fluency")],
        ),
        (_FLAT, {"tone": ["human_tone"], "fluency": ["human_fluency"]}, [("judge", "tone"), ("judge", "fluency")]),
        (_COMPOUND, {"tone": ["tone_annotator_1", "tone_annotator_2"]}, [("judge", "tone")]),
        (_OBJECTS, {"tone": ["annotations.1.tone", "annotations.2.tone"]}, [("judge", "tone")]),
        (
            [{"ID": at, "Human Rating": at, "Judge Score": at} for at in range(4)],
            {"": ["Human Rating"]},
            [("Judge Score", "")],
        ),
        (
            [{"id": at, "humanRating": at, "judgeScore": at} for at in range(4)],
            {"": ["humanRating"]},
            [("judgeScore", "")],
        ),
        (
            [{"human": "['A', 'b']", "judge_a": "a"}, {"human": "['B', 'B']", "judge_a": "B"}],
            {"": ["human.1", "human.2"]},
            [("judge_a", "")],
        ),
        ([{"human": "array([1, 2])", "judge_a": 1}] * 2, {"": ["human.1", "human.2"]}, [("judge_a", "")]),
        (
            [{"human": 1, "human_answer": f"text {at}", "judge_a": 1} for at in range(20)],
            {"": ["human"]},
            [("judge_a", "")],
        ),
    ],
    ids=["long", "flat", "compound", "objects", "titles", "camel", "labels", "numpy", "answer"],
)
def test_criteria_and_annotators_are_told_apart_in_every_shape(
    tmp_path: Path, records: list[dict[str, Any]], annotators: dict[str, list[str]], scores: list[tuple[str, str]]
) -> None:
    sheet = read_rating_sheet(_write(tmp_path / "shape.jsonl", records))
    assert sheet.annotators == annotators
    assert list(dict.fromkeys(key for row in sheet.rows for key in row.scores)) == scores
    assert all(len(row.human[name]) == len(annotators[name]) for row in sheet.rows for name in row.human)


def test_a_row_for_each_rating_is_the_same_as_a_row_for_each_item(tmp_path: Path) -> None:
    sheet = read_rating_sheet(_write(tmp_path / "long.jsonl", _long()))
    assert sheet.rows[1].human == {"tone": [2.0, 3.0], "fluency": [2.0, 3.0]}
    scores = [{"item": at, "criterion": name, "score": at} for at in range(4) for name in ("tone", "fluency")]
    people = [{key: value for key, value in row.items() if key != "judge_score"} for row in _long()]
    both = join_ratings(
        read_rating_sheet(_write(tmp_path / "s.jsonl", scores)), read_rating_sheet(_write(tmp_path / "p.jsonl", people))
    )
    assert [row.human for row in both.rows] == [row.human for row in sheet.rows]
    with pytest.raises(DatasetError, match=r"long\.jsonl:17: people have already rated item '0' in line 1"):
        read_rating_sheet(_write(tmp_path / "long.jsonl", [*_long(), _long()[0] | {"rating": 5}]))


def test_labels_in_other_letter_case_are_the_same(tmp_path: Path) -> None:
    records = [
        {"human": one, "judge_a": other} for one, other in (("Pass", "pass"), ("FAIL", "fail"), ("pass", "Pass"))
    ]
    _, report = _answer(tmp_path / "r.jsonl", records)
    assert report["criteria"][0]["confusions"][0]["labels"] == ["FAIL", "Pass"]
    assert report["criteria"][0]["confusions"][0]["agreement"] == 1.0


def test_fields_named_as_annotators_rate_one_criterion(tmp_path: Path) -> None:
    records = [{"ann": at, "bob": {"x": 1}, "ratings": {"cy": at, "di": at}, "judge_a": 1} for at in range(3)]
    path = _write(tmp_path / "named.jsonl", records)
    assert read_rating_sheet(path, NamedColumns(annotator=["ann", "ratings.cy"])).annotators == {
        "": ["ann", "ratings.cy"]
    }
    assert read_rating_sheet(path, NamedColumns(annotator=["ratings", "bob"])).annotators == {
        "cy": ["ratings.cy"], "di": ["ratings.di"], "x": ["bob.x"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "id;human;judge_a\n1;2;3\n", "a.csv:1: the columns are separated by semicolons"),
        ("a.json", '{"data": [{"human": 1, "judge_a": 2}]}', "a list 'data' of 1 objects: save only that list"),
        ("a.json", '{"x": {"human": 1}, "y": {"human": 2}}', "2 named objects: save them as a list"),
        ("a.json", '{"human": [1, 2, 3], "judge_a": [1, 2, 3]}', "has a column in each field"),
        (
            "a.json",
            '{"human": {"0": 1, "1": 2, "2": 3}, "judge_a": {"0": 1, "1": 2, "2": 3}}',
            "has a column in each",
        ),
        ("a.jsonl", '{"human": NaN, "judge_a": 1}\n', r"a.jsonl:1: .*\(NaN is no JSON; write null\)"),
    ],
)
def test_a_file_in_another_form_is_told_how_to_save_it(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=said):
        read_rating_sheet(tmp_path / name)
