"""Qualification: simulated models of known quality are told apart, the exchanges give nothing away but the truth."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from command import viva as viva_here
from direct_qualification import qualified
from viva_process import killed, started

from viva.engine.messages import Completion
from viva.scenarios.kieval.qualification.qualification_cases import RoleName, qualification_tasks, shipped_cases
from viva.scenarios.kieval.qualification.qualification_protocol import question_flaws, reply_flaws
from viva.scenarios.kieval.qualification.qualification_report import fitness
from viva.scoring.contamination import auc

SOUND = {"noise": 0.2, "traits": {"random": 0.15}}


def _verdicts(role: RoleName, seeds: int, **options: object) -> list[tuple[str, str]]:
    every = [qualified(role, seed, **options) for seed in range(seeds)]  # type: ignore[arg-type]
    outcomes = [fitness(role, one.figures(role)) for one in every]
    return [(outcome.verdict, outcome.sentence) for outcome in outcomes]


def test_a_sound_judge_is_usable_and_never_called_unfit() -> None:
    verdicts = [verdict for verdict, _ in _verdicts("evaluator", 15, **SOUND)]
    assert "not_usable" not in verdicts
    assert verdicts.count("usable") >= 14
    assert "not_usable" not in [verdict for verdict, _ in _verdicts("evaluator", 15, brief=True, **SOUND)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"noise": 0.0, "traits": {"constant": 1.0}}, r"gives 100% of all replies the same score, 3"),
        ({"noise": 0.2, "traits": {"random": 1.0}}, r"does not tell right from wrong \(AUC 0\.\d\d, 95% interval"),
        ({"traits": {"copy": 1.0}}, r"100% of its verdicts copy an earlier one"),
        (
            {"noise": 0.1, "traits": {"position": 0.8}},
            r"grades earlier replies higher \(by \d\.\d points, 99% interval",
        ),
        ({"noise": 0.1, "traits": {"position": -0.8}}, r"grades later replies higher"),
        ({"noise": 0.1, "traits": {"length": 0.8}}, r"grades longer replies higher"),
        ({"noise": 0.1, "traits": {"length": -0.8}}, r"grades shorter replies higher"),
        ({"malformed": 1.0, "traits": {"constant": 0.0}}, r"\d+ of 60 verdicts cannot be read"),
    ],
)
def test_each_unfit_judge_is_told_by_its_own_fault(options: dict[str, object], reason: str) -> None:
    verdicts = _verdicts("evaluator", 8, **options)
    assert (
        sum(verdict == "not_usable" and re.search(reason, sentence) is not None for verdict, sentence in verdicts) >= 6
    )


@pytest.mark.parametrize(
    ("role", "traits", "reason"),
    [
        ("interactor", {"statement": 1.0}, r"0 of 20 questions have no flaw .* 10 without a question"),
        ("interactor", {"echo": 1.0}, r"0 of 10 questions have no flaw .* 10 that echo what it was told"),
        ("candidate", {"silent": 1.0}, r"10 of 30 answers have no flaw .*: 20 empty"),
    ],
)
def test_unfit_interactors_and_candidates(role: RoleName, traits: dict[str, float], reason: str) -> None:
    [(verdict, sentence)] = _verdicts(role, 1, traits=traits)
    assert verdict == "not_usable"
    assert re.search(reason, sentence), sentence
    assert _verdicts(role, 1)[0][0] == "usable"


def test_no_cue_but_the_truth_tells_right_from_wrong() -> None:
    # What a judge could go by without reading: a high AUC of one of these would pass for judgement.
    cues: dict[str, list[float]] = {"length": [], "words": [], "place": [], "first answer": [], "question": []}
    right = []
    for task in qualification_tasks(shipped_cases(), ["evaluator"], brief=False):
        for place, index in enumerate(task.exchanges, 1):
            exchange = task.case.exchanges[index]
            if exchange.kind in ("right", "wrong") and task.forced:
                values = (exchange.length == "long", len(exchange.reply.split()), place)
                values += (task.case.first == task.case.answer, len(exchange.question.split()))
                for cue, value in zip(cues.values(), values, strict=True):
                    cue.append(float(value))
                right.append(exchange.kind == "right")
    for name, values_of_cue in cues.items():
        area = auc(values_of_cue, right)
        assert 0.38 <= area.value <= 0.62, name


def test_the_exchanges_are_what_their_fields_say() -> None:
    exchanges = [exchange for case in shipped_cases() for exchange in case.exchanges]
    kinds = [exchange.kind for exchange in exchanges]
    assert (len(exchanges), kinds.count("right"), kinds.count("wrong")) == (40, 15, 15)
    assert {"partial", "evasive", "empty", "off_topic", "repeated"} < set(kinds)
    for exchange in exchanges:
        words = len(exchange.reply.split())
        assert words >= 45 if exchange.length == "long" else words <= 30
        assert {"right": exchange.grade == 4, "wrong": exchange.grade == 1}.get(exchange.kind, exchange.grade < 4)
    assert all(0 <= case.answer < len(case.choices) and 0 <= case.first < len(case.choices) for case in shipped_cases())


@pytest.mark.parametrize(
    ("text", "flaws"),
    [
        ("Why does the lit half change its direction?", []),
        ("Explain what would follow if the Moon did not rotate.", []),
        ("为什么月亮会有阴晴圆缺？", []),
        ("The Moon is lit by the Sun.", ["no_question"]),
        ("", ["empty"]),
        ("B. Clouds of the Earth hide it", ["echo"]),
        ("And WHY is that so?", ["repeated_question"]),
        ("Is it not true that we see changing parts of its sunlit half?", ["leak"]),
        (
            "Why is that so? It is so since the light comes from the Sun and meets the Moon from one side only.",
            ["answers_itself"],
        ),
        ("Why, why is it dark? " * 12, ["loop"]),
    ],
)
def test_flaws_of_questions(text: str, flaws: list[str]) -> None:
    secret, replies = "We see changing parts of its sunlit half", ["b. clouds of the earth hide it"]
    prompts, earlier = ["The examinee answered: b. clouds of the earth hide it"], ["And why is that so?"]
    assert question_flaws(Completion(text), prompts, replies, earlier, secret) == flaws
    cut = question_flaws(Completion(text, "length"), prompts, replies, earlier, None)
    assert cut[-1] == ("cut" if text else "empty")


def test_flaws_of_replies() -> None:
    assert reply_flaws(Completion("Because it is warm."), ["Since it is cold."]) == []
    assert reply_flaws(Completion("because it is WARM"), ["Because it is warm."]) == ["repeated"]
    assert reply_flaws(Completion("Yes.\nUser: and why?"), []) == ["role_shift"]
    assert reply_flaws(Completion(" \n"), []) == ["empty"]


def test_the_verdict_is_the_first_thing_printed_and_survives_a_kill(tmp_path: Path) -> None:
    models = ["simulated:good", "simulated:bad?traits=constant:1&noise=0&latency=0.02&sigma=0"]
    qualify = ["qualify", *models, "--role", "evaluator", "--role", "interactor", "--concurrency", "4"]
    whole = viva_here(*qualify, "--out", tmp_path / "whole", "--html", tmp_path / "page.html")
    assert whole.returncode == 0, whole.stderr
    answer = " ".join(whole.stdout.split("\n\n")[0].split())
    assert answer.startswith("good: usable as evaluator: tells right from wrong (AUC ")
    assert "bad: not usable as evaluator: gives 100% of all replies the same score, 3;" in answer
    assert "bad: not usable as evaluator: gives 100%" in (tmp_path / "page.html").read_text()

    killed(started(*qualify, "--out", tmp_path / "killed"), tmp_path / "killed", 20)
    resumed = viva_here("resume", tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout
    assert viva_here("report", tmp_path / "killed").stdout == whole.stdout
    report = orjson.loads(viva_here("report", tmp_path / "killed", "--json").stdout)
    assert report["candidates"]["bad"]["roles"]["evaluator"]["verdict"] == "not_usable"
    assert list(report["candidates"]["good"]["roles"]) == ["evaluator", "interactor"]
