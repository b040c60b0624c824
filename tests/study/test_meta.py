"""Scores beside human ratings: published figures from real files, fields found and named, ratings joined or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from viva.engine.errors import ConfigurationError
from viva.study.meta.choices import Choices
from viva.study.meta.columns import Named
from viva.study.meta.figures import meta_report
from viva.study.meta.sheet import Sheet, check_scored, joined, read_sheet
from viva.study.meta.tables import answer, meta_tables

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()
FEW = Choices(resamples=100)


def real(name: str) -> Path:
    """A file of the data folder; skips where it is not there."""
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return DATA / name


def _item_figures(report: dict[str, Any]) -> dict[str, list[float]]:
    return {one["criterion"]: [figure["value"] for figure in one["judges"][0]["levels"]["item"].values()]
            for one in report["criteria"]}  # fmt: skip


def test_unievals_published_figures() -> None:
    report = meta_report(read_sheet(real("topicalchat/unieval_predictions.json")), FEW)
    found = _item_figures(report)
    assert found["naturalness"] == pytest.approx([0.443666, 0.513986, 0.373973], abs=1e-5)
    assert found["coherence"] == pytest.approx([0.595143, 0.612942, 0.465915], abs=1e-5)
    assert found["engagingness"] == pytest.approx([0.55651, 0.604739, 0.455941], abs=1e-5)
    assert found["groundedness"] == pytest.approx([0.536209, 0.574954, 0.451533], abs=1e-5)
    assert (report["rows"], report["groups"], report["systems"]) == (360, 60, 6)
    assert answer(report).startswith("Of 6 criteria, predict_scores follows people best on overall, 0.663 (")
    for title, header, rows in meta_tables(report):  # as they are printed: a gap of three beside each column
        if rows:
            wide = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
            assert sum(wide) + 3 * (len(wide) - 1) + 4 <= 80, title


def test_pandalms_published_kappas() -> None:
    report = meta_report(read_sheet(real("pandalm/testset-v1.json")), FEW)
    [one] = report["criteria"]
    assert [round(pair["kappa"]["value"], 3) for pair in one["agreement"]["pairs"]] == [0.852, 0.879, 0.862]
    assert (one["scale"], one["n"], one["annotators"]) == ("nominal", 999, ["annotator1", "annotator2", "annotator3"])
    assert "at a mean Cohen's κ of 0.864 (pairs 0.852, 0.879, 0.862) over 999 rows" in answer(report)


def test_mt_benchs_means() -> None:
    sheet = read_sheet(real("mt_bench/judgments_gpt-4_single.jsonl"))
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
    report = meta_report(read_sheet(_write(tmp_path / "judged.jsonl", records)), FEW)
    [system] = report["judgments"][0]["systems"]
    means = [(mean["mean"], mean["n"], mean["unparsed"]) for mean in (system["overall"], *system["turns"].values())]
    assert means == [(6.0, 5, 3), (7.0, 3, 1), (4.5, 2, 2)]
    assert "turn 1 7.000, turn 2 4.500), 3 of 8 judgments unparsable" in answer(report)


def test_minus_one_is_a_score_where_others_are_negative_too(tmp_path: Path) -> None:
    records = [{"item": at, "human": at, "judge_x": score} for at, score in enumerate([-2, -1, 0, 1])]
    sheet = read_sheet(_write(tmp_path / "signed.jsonl", records))
    assert [row.scores["judge_x", ""] for row in sheet.rows] == [-2.0, -1.0, 0.0, 1.0]


def test_two_judges_a_jury_and_labels_in_one_table(tmp_path: Path) -> None:
    lines = ["id,model,annotator_1,annotator_2,judge_a,judge_b"]
    for at in range(30):
        truth = at * 7 % 5
        lines.append(
            f"{at // 2},m{at % 2},{truth},{truth},{min(4, truth + at % 2)},{(truth + at) % 5 if at % 3 else ''}"
        )
    (tmp_path / "two.csv").write_text("\n".join(lines))
    sheet = read_sheet(tmp_path / "two.csv")
    report = meta_report(sheet, Choices(resamples=100, juries=("mean", "fitted")))
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
    assert "judge_a follows people best" in answer(report)


def test_fields_are_named_where_names_say_nothing(tmp_path: Path) -> None:
    records = [{"a": at, "b": at % 4, "c": at % 5, "d": f"s{at % 2}"} for at in range(12)]
    path = _write(tmp_path / "plain.jsonl", records)
    with pytest.raises(ConfigurationError, match=r"neither human ratings nor scores .* \(a, b, c, d\).*--human"):
        read_sheet(path)
    sheet = read_sheet(path, Named(item="a", system="d", human=["b"], score=["c"]))
    assert (sheet.judges, sheet.rows[5].human, sheet.rows[5].system) == (["c"], {"": [1.0]}, "s1")
    with pytest.raises(ConfigurationError, match="field 'x': no record has this field; there are: a, b, c, d"):
        read_sheet(path, Named(human=["x"], score=["c"]))
    with pytest.raises(ConfigurationError, match="field 'c': is named as a human rating and as a judge's score"):
        read_sheet(path, Named(human=["c"], score=["c"]))
    people = Sheet("x", read_sheet(path, Named(human=["b"])).rows, {"": ["b"]})
    with pytest.raises(ConfigurationError, match="human ratings of one annotator and no score beside them"):
        check_scored(people)


def test_the_lines_at_fault_are_named(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text('[\n {"human": 1, "judge": 2},\n\n {"human": 2,\n  "judge": "good"}\n]')
    with pytest.raises(ConfigurationError, match=r"array.json:4: field 'judge': expected a number as in the other"):
        read_sheet(path, Named(human=["human"], score=["judge"]))
    path.write_text('[\n {"human": 1, "judge": 2},\n {"human": 2 "judge": 2}\n]')
    with pytest.raises(ConfigurationError, match=r"array.json:3: not valid JSON: Expecting ',' delimiter"):
        read_sheet(path)
    path.write_text('[{"human": 1},\n]')
    with pytest.raises(ConfigurationError, match=r"array.json:2: not valid JSON"):
        read_sheet(path)


def _joined(tmp_path: Path, scores: list[dict[str, Any]], ratings: list[dict[str, Any]]) -> Sheet:
    named = Named()
    return joined(
        read_sheet(_write(tmp_path / "scores.jsonl", scores), named.of_scores()),
        read_sheet(_write(tmp_path / "ratings.jsonl", ratings), named.of_people()),
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
            "s:2: item 'i7', system 'q' is not in .*, which has i0",
        ),
        (
            {"item": "i1", "system": "r"},
            "s:2: item 'i1', system 'r' is not in .* has item 'i1', system 'p'",
        ),
        ({"item": "i1"}, "s:2: item 'i1' is 2 rows of .*name system and turn"),
        (
            {"item": "i0", "system": "p"},
            r"s:2: rates item 'i0', system 'p' once more \(line 1 does already",
        ),
    ],
)
def test_ratings_that_do_not_join_are_refused(tmp_path: Path, rating: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("s:2", "ratings.jsonl:2")):
        _joined(tmp_path, SCORES, [{"item": "i0", "system": "p", "rating": 1}, rating | {"rating": 2}])
