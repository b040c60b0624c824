"""The question bank: files in and out, states and their history, what stands out, and drawing from it."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path

import pytest
from grade_projects import PROJECT, accepted, lines, pair, project, viva
from hypothesis import example, given
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError
from viva.scenarios.lalaeval.question_bank import (
    Bank,
    GoldAnswer,
    Pair,
    compare_with_plan,
    find_near_duplicates,
    read_pairs,
    write_pairs,
)
from viva.scenarios.lalaeval.rounds import sample_gold_questions, sample_questions

DAY = date(2026, 6, 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip).filter(bool)


@example(asked=['["a"]'], answer="=1+1", source="'-", gold=[])
@given(
    asked=st.lists(TEXTS, min_size=1, max_size=3),
    answer=TEXTS,
    source=TEXTS,
    gold=st.lists(st.tuples(TEXTS, st.integers(0, 3)), max_size=2),
)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_what_is_exported_is_imported_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    ending: str,
    asked: list[str],
    answer: str,
    source: str,
    gold: list[tuple[str, int]],
) -> None:
    folder = tmp_path_factory.mktemp("bank")
    made = Pair("a", tuple(asked), answer, "facts/dates", "simple", source, "", "a/b", "2026-01-01", "",
                tuple(GoldAnswer(*one) for one in gold))  # fmt: skip
    file = folder / f"pairs{ending}"
    assert write_pairs(file, [(made, "accepted")]) == 1
    assert read_pairs(file, project(folder)) == [made]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (
            {"dimension": "facts/date"},
            r"jsonl:2: field 'dimension': there is no 'facts/date'; did you mean 'facts/dates'",
        ),
        (
            {"difficulty": "hard"},
            r"jsonl:2: field 'difficulty': there is no 'hard'; there are: simple, intermediate, difficult",
        ),
        ({"domain": "a/c"}, r"jsonl:2: field 'domain': there is no 'a/c'; .*there are: a, a/b"),
        ({"question": ""}, r"jsonl:2: field 'question': expected a text"),
        ({"question": ["one", 2]}, r"jsonl:2: field 'question': expected a text, or a list of texts"),
        ({"standard_answer": None}, r"jsonl:2: field 'standard_answer': is missing"),
        ({"valid_until": "soon"}, r"jsonl:2: field 'valid_until': expected a day such as 2026-06-30, found 'soon'"),
        (
            {"valid_from": "2026-02-01", "valid_until": "2026-01-01"},
            r"jsonl:2: field 'valid_until': 2026-01-01 is before",
        ),
        ({"gold": [{"answer": "x", "grade": 7}]}, r"jsonl:2: field 'gold': grade 7: the rubric has 0, 1, 2, 3"),
        ({"answer": "x"}, r"jsonl:2: field 'answer': unknown field; known: id, question"),
        ({"id": "a"}, r"jsonl:2: field 'id': 'a' is in line 1 already"),
    ],
)
def test_a_row_that_is_no_pair_is_told_with_line_and_field(
    tmp_path: Path, changed: dict[str, object], what: str
) -> None:
    made = project(tmp_path)
    file = lines(tmp_path / "pairs.jsonl", [pair("a"), pair("b", **changed)])
    with pytest.raises(ConfigurationError, match=what):
        read_pairs(file, made)


def test_a_broken_csv_line_is_told_with_the_others_and_nothing_is_imported(tmp_path: Path) -> None:
    made, file = project(tmp_path), tmp_path / "pairs.csv"
    file.write_text(
        "question,standard_answer,dimension,difficulty\n"
        "Which year?,1900,facts/dates,simple\n"
        "Which year again?,1901,facts/dates\n"
        "Who?,Somebody,facts/name,simple\n"
    )
    _, said = viva("grade", "bank", "import", tmp_path, file, code=2)
    assert "pairs.csv:3: field 'difficulty': expected 4 columns" in said
    assert "pairs.csv:4: field 'dimension'" in said
    assert "did you mean 'facts/names'" in said
    with Bank.open(made) as bank:
        assert bank.entries() == []


def test_a_pair_goes_from_draft_to_accepted_and_back_with_everything_kept(tmp_path: Path) -> None:
    made = project(tmp_path)
    file = lines(tmp_path / "a.jsonl", [pair("a"), pair("b", source=None)])
    viva("grade", "bank", "import", tmp_path, file, "--by", "Ada")
    _, said = viva("grade", "bank", "accept", tmp_path, "a", code=2)
    assert "question 'a': is draft; only inspected questions can become accepted" in said
    printed, _ = viva("grade", "bank", "inspect", tmp_path, "--all", "--by", "Ben")
    assert printed == "1 inspected\n"  # the one without a source is left out
    viva("grade", "bank", "inspect", tmp_path, "b", "--by", "Ben")
    _, said = viva("grade", "bank", "accept", tmp_path, "--all", "--by", "Ben", code=2)
    assert "question 'b': has no source, so it cannot be accepted; return it to Ada" in said
    with Bank.open(made) as bank:
        assert [one.state for one in bank.entries()] == ["inspected", "inspected"]  # all or none
    viva("grade", "bank", "accept", tmp_path, "a", "--by", "Ben")
    viva("grade", "bank", "return", tmp_path, "b", "--reason", "name the source", "--by", "Ben")

    changed = lines(tmp_path / "b.jsonl", [pair("a"), pair("b", source="page 4")])
    printed, _ = viva("grade", "bank", "import", tmp_path, changed, "--by", "Ada")
    assert "0 new, 1 changed, 1 unchanged" in printed
    with Bank.open(made) as bank:
        assert {one.pair.id: one.state for one in bank.entries()} == {"a": "accepted", "b": "draft"}
        deeds = bank.history("b")
    assert [(one.actor, one.action, one.reason) for one in deeds] == [
        ("Ada", "new", ""),
        ("Ben", "inspected", ""),
        ("Ben", "returned", "name the source"),
        ("Ada", "changed", ""),
    ]
    assert [one.pair.source for one in deeds] == ["", "", "", "page 4"]
    printed, _ = viva("grade", "bank", "show", tmp_path, "b")
    assert "returned by Ben: name the source" in printed


def test_near_duplicates_expired_questions_and_the_plan_are_pointed_out(tmp_path: Path) -> None:
    plan = PROJECT + "plan: {facts/dates: {simple: 2, difficult: 1}}\n"
    rows = [
        pair("year", question="In which year was the old bridge over the river built?"),
        pair("again", question="In which year was the bridge over the old river built?", dimension="facts/names"),
        pair("late", question="Who is the mayor?", valid_until="2020-12-31"),
        pair("other", question="What colour does the town hall have?", dimension="talk"),
    ]
    made = project(tmp_path, plan)
    _, said = viva("grade", "bank", "import", tmp_path, lines(tmp_path / "a.jsonl", rows), "--by", "Ada")
    assert "year and again are nearly the same question" in said
    assert "late: expired on 2020-12-31" in said
    assert "other" not in said
    with Bank.open(made) as bank:
        names = [one.pair.id for one in bank.entries()]
        bank.inspect(names, "Ben")
        bank.accept(names, "Ben")
        entries = bank.entries()
    wanted = [(row.difficulty, row.wanted, row.accepted) for row in compare_with_plan(entries, made, DAY)
              if row.dimension == "facts/dates"]  # fmt: skip
    assert wanted == [("simple", 2, 1), ("difficult", 1, 0)]
    printed, _ = viva("grade", "bank", "list", tmp_path, "--day", "2026-06-01", "--dimension", "facts")
    assert "other" not in printed.split("Plan")[0]
    assert "expired on 2020-12-31" in printed
    twice = find_near_duplicates([one.pair for one in entries], 0.75)
    assert [{one.first, one.second} for one in twice] == [{"year", "again"}]
    for name in ("year", "again"):
        assert find_near_duplicates([one.pair for one in entries], 0.75, {name}) == twice
    assert find_near_duplicates([one.pair for one in entries], 0.75, {"other"}) == []


def _pairs(count: int) -> list[Pair]:
    kinds = [("facts/dates", "simple"), ("facts/names", "simple"), ("facts/names", "difficult")]
    return [Pair(f"q{n}", (f"Question {n}",), "x", *kinds[n % 3], "s") for n in range(count)]  # type: ignore[arg-type]


@given(seed=st.integers(0, 10**6), shuffle=st.randoms(use_true_random=False), n=st.integers(1, 29))
def test_a_draw_depends_on_seed_and_ids_alone_and_grows_with_its_size(
    seed: int, shuffle: random.Random, n: int
) -> None:
    pairs = _pairs(30)
    drawn = sample_questions(pairs, seed, DAY, n=n)
    shuffle.shuffle(pairs)
    assert sample_questions(pairs, seed, DAY, n=n) == drawn
    assert {one.id for one in drawn} < {one.id for one in sample_questions(pairs, seed, DAY, n=n + 1)}


def test_a_quota_is_kept_and_one_that_cannot_be_met_names_what_is_missing() -> None:
    pairs = _pairs(30)
    drawn = sample_questions(
        pairs, 1, DAY, quota={"facts/dates": {"simple": 4}, "facts/names": {"difficult": 2, "simple": 0}}
    )
    assert [(one.dimension, one.difficulty) for one in drawn] == [
        *[("facts/dates", "simple")] * 4,
        *[("facts/names", "difficult")] * 2,
    ]
    missing = (
        r"quota cannot be met.*names, simple: 11 needed, 10 available; talk, difficult: 1 needed, 0 available; accept"
    )
    with pytest.raises(ConfigurationError, match=missing):
        sample_questions(
            pairs, 1, DAY, quota={"facts/names": {"simple": 11, "difficult": 10}, "talk": {"difficult": 1}}
        )
    with pytest.raises(ConfigurationError, match="-n 31: only 30 accepted"):
        sample_questions(pairs, 1, DAY, n=31)


def test_only_valid_questions_are_drawn_and_gold_ones_are_others_than_those(tmp_path: Path) -> None:
    gold = [{"answer": "right", "grade": 2}]
    rows = [pair(f"q{n}", gold=gold) for n in range(4)]
    rows += [pair("past", valid_until="2026-05-31"), pair("future", valid_from="2026-06-02"),
             pair("today", valid_from="2026-06-01", valid_until="2026-06-01")]  # fmt: skip
    with Bank.open(accepted(tmp_path, rows)) as bank:
        pairs = [one.pair for one in bank.entries("accepted")]
    assert {one.id for one in sample_questions(pairs, 1, DAY)} == {"q0", "q1", "q2", "q3", "today"}
    drawn = sample_questions(pairs, 1, DAY, n=3)
    extra = sample_gold_questions(pairs, 2, {one.id for one in drawn}, 1, DAY)
    assert len(extra) == 2
    assert not {one.id for one in extra[:1]} & {one.id for one in drawn}
