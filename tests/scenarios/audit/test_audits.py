"""Audits of simulated judges: what is planted is found, a fair judge is left alone; cases, variants, readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from direct_audits import audited, drawn_cases
from scipy.stats import binomtest

from viva.agents.judge import SCALES, PairVerdict, grade_form
from viva.engine.backends.registry import build
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.orchestration.launch import new_run
from viva.orchestration.python_api import load
from viva.reports.studies.rating_sheet import run_sheet
from viva.scenarios.audit.audit_cases import AuditCase, AuditSettings, open_cases, reply_cases
from viva.scenarios.audit.audit_protocol import pad_answer, split_sentences, to_markdown_list
from viva.scenarios.audit.audit_report import JudgeVerdicts, findings, summary_sentence
from viva.scenarios.audit.scenario import Audit, families_of
from viva.scenarios.contract import RecordedReply
from viva.scenarios.grading.scenario import GradingSettings, SingleAnswerGrading


def _found(count: int, audit: str, **options: Any) -> list[dict[str, Any]]:
    """The findings of one audit over so many seeds."""
    every = [audited(drawn_cases(40, seed), seed, **options) for seed in range(count)]
    return [max((one for one in found if one["audit"] == audit), key=lambda one: one["found"]) for found in every]


@pytest.mark.parametrize(
    ("audit", "traits", "sign"),
    [
        ("position", {"position": 0.5}, 1),
        ("position", {"position": -0.5}, -1),
        ("verbosity", {"length": 0.5}, 1),
        ("format", {"format": 0.5}, 1),
        ("self", {"family": 0.5}, 1),
        ("labels", {"labels": 0.15}, 1),
        ("retest", {"unsteady": 0.5}, 1),
    ],
)
def test_a_planted_bias_is_found_by_its_audit(audit: str, traits: dict[str, float], sign: int) -> None:
    found = _found(8, audit, traits=traits)
    assert sum(one["found"] for one in found) >= 7
    assert all(one["effect"]["value"] * sign > 0 for one in found)
    assert all(one["cases"] and one["cases"][0][1] * sign > 0 for one in found)


def test_a_fair_judge_is_left_alone() -> None:
    count = 50
    false = sum(any(one["found"] for one in audited(drawn_cases(30, seed), seed)) for seed in range(count))
    assert binomtest(false, count, 0.05, alternative="greater").pvalue > 0.01


def test_an_audit_names_its_cases_and_says_its_answer() -> None:
    found = audited(drawn_cases(40, 1), 1, noise=0.0, traits={"position": 1.0})
    [position] = [one for one in found if one["audit"] == "position"]
    assert position["effect"]["value"] == 1.0
    assert (position["consistent"], position["showing"]) == (0.0, 40)
    assert summary_sentence("judge", found) == (
        "judge prefers the answer shown first (+1.00, 0.82 to 1.00). No effect found: verbosity, format, self, "
        "labels, retest."
    )


def test_verdicts_that_cannot_be_read_leave_cases_out() -> None:
    found = audited(drawn_cases(40, 2), 2, malformed=0.6)
    [position] = [one for one in found if one["audit"] == "position"]
    assert 0 < position["n"] < 40


def test_self_preference_without_people_or_other_judges_says_so() -> None:
    cases = [AuditCase(case.id, case.question, case.answers, case.families) for case in drawn_cases(20, 3)]
    [own] = [one for one in audited(cases, 3) if one["audit"] == "self"]
    assert own["beyond"] is None


def test_variants_keep_every_sentence() -> None:
    text = "First point. Second point!\nThird point without a mark"
    longer = pad_answer(text, ["Well now."], "Again: {sentence}.", "key")
    assert longer.startswith("Well now. First point. Again: First point. Well now. Second point! Again: Second point.")
    assert split_sentences(text) == ["First point.", "Second point!", "Third point without a mark"]
    assert to_markdown_list(text, "Answer").splitlines()[2:] == [
        "- **First** point.",
        "- **Second** point!",
        "- **Third** point without a mark",
    ]
    assert pad_answer(text, ["a.", "b."], "{sentence}.", "k") == pad_answer(text, ["a.", "b."], "{sentence}.", "k")


@pytest.mark.parametrize(
    ("scale", "value", "grade"),
    [
        ("1-10", 7, 6 / 9),
        ("1-10", "10", 1.0),
        ("1-5", 3.0, 0.5),
        ("letters", " b. ", 0.75),
        ("words", "Very Poor", 0.0),
    ],
)
def test_grades_are_read_as_models_write_them(scale: str, value: Any, grade: float) -> None:
    found: Any = grade_form(SCALES[scale]).model_validate({"reasoning": "", "score": value})
    assert SCALES[scale].grade(found.score) == pytest.approx(grade)
    with pytest.raises(ValueError, match="score"):
        grade_form(SCALES[scale]).model_validate({"score": "eleven"})


def test_verdicts_are_read_as_models_write_them() -> None:
    words = ["A", " b ", "[[A]]", "Tie", "C"]
    assert [PairVerdict.model_validate({"verdict": word}).verdict for word in words] == ["A", "B", "A", "tie", "tie"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"answers": ["a"]}', r":1: field 'question': is missing"),
        ('{"question": "q", "answers": "a"}', r":1: field 'answers': expected a list of 1 to 20 texts, found 'a'"),
        ('{"question": "q", "answers": ["a", ""]}', r":1: field 'answers.1': expected text, found ''"),
        ('{"question": "q", "answers": ["a"], "families": ["x", "y"]}', r":1: field 'families': expected one per"),
        (
            '{"question": "q", "answers": ["a", "b"], "preferred": 2}',
            r":1: field 'preferred': expected an index",
        ),
        (
            '{"id": 1, "question": "q", "answers": ["a"]}\n{"id": 1, "question": "q", "answers": ["a"]}',
            r":2: field 'id'",
        ),
    ],
)
def test_cases_that_cannot_be_used_are_refused_with_their_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigurationError, match=said):
        open_cases(str(path), None, 7)


def test_many_answers_are_a_case_for_each_two(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"id": "x", "question": "q", "answers": ["a", "b", "c"], "preferred": 2}')
    found = [(case.id, case.answers, case.preferred) for case in open_cases(str(path), None, 7)]
    assert found == [("x:0-1", ("a", "b"), None), ("x:0-2", ("a", "c"), 1), ("x:1-2", ("b", "c"), 1)]
    assert len(open_cases("examples", 10, 7)) == 10


def test_answers_of_a_run_pair_up_where_the_question_is_the_same() -> None:
    said = [
        ("m", 0, "q", "yes"),
        ("n", 0, "q", "no"),
        ("m", 1, "other", "x"),
        ("n", 1, "another", "y"),
        ("o", 0, "q", " "),
    ]
    [case] = reply_cases(RecordedReply(label, "item", number, asked, reply) for label, number, asked, reply in said)
    assert (case.question, case.answers, case.families) == ("q", ("yes", "no"), ("m", "n"))


def test_a_judges_family_is_named_or_part_of_its_label() -> None:
    cases = drawn_cases(4, 1)
    settings = AuditSettings(judge=["simulated:aster-large", "simulated:x"], family=["x=birch"])
    assert families_of(settings, cases) == {"aster-large": "aster", "x": "birch"}
    with pytest.raises(ConfigurationError, match="there is no judge 'y'; judges: x"):
        families_of(AuditSettings(judge=["simulated:x"], family=["y=birch"]), cases)
    with pytest.raises(ConfigurationError, match="of the family 'oak'; families in the cases: aster, birch"):
        families_of(AuditSettings(judge=["simulated:x"], family=["x=oak"]), cases)


def test_a_trait_that_audits_do_not_know_is_refused() -> None:
    settings = AuditSettings(judge=["simulated:x?traits=position:0.5,lenght:0.2"])
    with pytest.raises(ConfigurationError, match=r"no trait 'lenght'; did you mean 'length'\? known: position, "):
        Audit().prepare(settings)


@pytest.mark.parametrize("traits", ["position", "position:much", "position:1.5", ":0.5"])
def test_habits_that_cannot_be_planted_are_refused(traits: str) -> None:
    with pytest.raises(ConfigurationError, match="expected NAME:AMOUNT, from -1 to 1"):
        build(f"simulated:j?traits={traits}", VirtualClock())


def test_single_answer_grading_is_reported_by_judge(tmp_path: Path) -> None:
    tasks = [{"id": str(at), "question": f"q{at}", "answer": "a", "reference": "r" * (at % 2)} for at in range(5)]
    which, out = SingleAnswerGrading(tasks), tmp_path / "run"
    settings = GradingSettings(tasks=str(out / "tasks.jsonl"), judge=["simulated:g", "simulated:h"], scale="letters")
    assert which.inline_tasks is not None
    launch = new_run(which, settings, out, VirtualClock(), files={"tasks.jsonl": which.inline_tasks.to_lines()})
    assert launch.clock.run(launch.run).how == "done"
    report = load(out).report()
    assert {label: one["measures"]["score"]["n"] for label, one in report["candidates"].items()} == {"g": 5, "h": 5}
    assert all(1 <= one["measures"]["score"]["mean"] <= 5 for one in report["candidates"].values())
    [row, *_] = run_sheet(out).rows
    assert (row.item, row.system, list(row.scores)) == ("0", "g", [("grading", "score")])


def test_no_interval_of_an_effect_excludes_0_beside_a_p_that_does_not_refute_it() -> None:
    """Six verdicts that all go one way have p = 0.03, of two judges together 0.06."""

    def said(count: int) -> JudgeVerdicts:
        verdicts: dict[str, float | None] = {"first": 1.0, "second": -1.0}
        return JudgeVerdicts(by_question={"verbosity": {f"case {at}": verdicts for at in range(count)}})

    [alone] = findings({"six": said(6)}, {}, ["verbosity"])
    assert (alone["found"], alone["effect"]["low"] > 0.0) == (True, True)
    for one in findings({"six": said(6), "five": said(5)}, {}, ["verbosity"]):
        assert not one["found"]
        assert one["effect"]["low"] == 0.0 < one["effect"]["value"]
