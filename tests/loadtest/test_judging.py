"""Answers of judges: read by schema, rating, letter or ruling; what is no verdict is told apart by why it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st

from viva.agents.forms import form_schema
from viva.agents.judge import RULING_SCHEMA, SCALES, PairVerdict, grade_form
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Sampling
from viva.loadtest.load_records import Judgement, LoadRequest, SentRequest
from viva.loadtest.verdict_readers import READERS, check_reader, choose_reader, read_judgement, score_scales
from viva.scenarios.kieval.verdicts import bare_verdict, verdict_schema

_PAIR, _GRADE = form_schema(PairVerdict), form_schema(grade_form(SCALES["1-10"]))


def said(text: str, reader: str = "schema", schema: Any = None, finish: str = "stop", error: str = "") -> Judgement:
    request = LoadRequest("r", (Message("user", "?"),), Sampling(schema=schema), reader=reader)
    sent = SentRequest(0, "j", 0, "r", 0, 7, 0.0, 0.0, 0.1, 0.2, text, finish, 10, 5, error)
    return read_judgement(request, sent)


@case_table(
    ("text", "reader", "schema", "scores", "label"),
    [
        ('{"reasoning": "good", "score": 7}', "schema", _GRADE, {"score": 7.0}, ""),
        ('Well: ```json\n{"reasoning": "good", "score": "7"}\n```', "schema", _GRADE, {"score": 7.0}, ""),
        ('{"reasoning": "", "score": "B"}', "schema", form_schema(grade_form(SCALES["letters"])), {"score": 4.0}, ""),
        ('{"reasoning": "", "verdict": "tie"}', "schema", _PAIR, {}, "tie"),
        ('{"reasoning": "", "verdict": "fail"}', "schema", RULING_SCHEMA, {"verdict": 0.0}, "fail"),
        ("The answer is fine.\n\nRating: [[8]]", "rating", None, {"rating": 8.0}, ""),
        ("A is better. [[A]]", "pair", None, {}, "A"),
        ("Both are alike. [[C]]", "pair", None, {}, "tie"),
        ("It holds.\n**PASS**", "ruling", None, {"verdict": 1.0}, "pass"),
        ('{"quality": {"score": 3}, "verdict": "a", "why": "x"}', "object", None, {"quality": 3.0}, "A"),
        ("<think>[[2]]</think>[[9]]", "rating", None, {"rating": 9.0}, ""),
        ("Anything.", "text", None, {}, ""),
    ],
)
def test_verdicts_are_read(text: str, reader: str, schema: Any, scores: dict[str, float], label: str) -> None:
    found = said(text, reader, schema)
    assert (found.failure, found.scores, found.label) == ("", scores, label)


@case_table(
    ("text", "reader", "finish", "failure"),
    [
        ('{"reasoning": "good", "sco', "schema", "length", "truncated"),
        ('{"reasoning": "good", "sco', "schema", "stop", "truncated"),
        ('{"reasoning": "good", "score": 11}', "schema", "stop", "parse"),
        ('{"reasoning": "good"}', "schema", "stop", "parse"),
        ('{"score": true}', "schema", "stop", "parse"),
        ("I'm sorry, but I can't grade this.", "schema", "stop", "refused"),
        ("", "schema", "content_filter", "refused"),
        ("  ", "schema", "stop", "empty"),
        ("", "text", "stop", "empty"),
        ("", "rating", "length", "truncated"),
        ("I give it 7 of 10.", "rating", "stop", "parse"),
        ("[[7]] or rather [[8]]", "rating", "stop", "parse"),
        ("[[12]]", "rating", "stop", "parse"),
        ('{"part": {"score": 3}, "verdict": {', "object", "stop", "truncated"),
    ],
)
def test_what_is_no_verdict_says_why(text: str, reader: str, finish: str, failure: str) -> None:
    found = said(text, reader, _GRADE if reader == "schema" else None, finish)
    assert (found.failure, found.scores, found.label) == (failure, {}, "")


def test_a_failed_request_has_no_verdict_whatever_text_it_got() -> None:
    assert said("[[8]]", "rating", error="TimedOut").failure == "error"
    assert said("[[8]]", "rating", finish="length").scores == {"rating": 8.0}, "it was cut behind the verdict"


def test_a_verdict_of_many_aspects_has_a_score_of_each() -> None:
    found = said(bare_verdict(3), schema=verdict_schema(600))
    aspects = ("accuracy", "logic", "relevance", "coherence", "conciseness", "overall_score")
    assert found.scores == dict.fromkeys(aspects, 3.0) | {"stop_conversation": 0.0}
    request = LoadRequest("r", (), Sampling(schema=verdict_schema(600)), reader="schema")
    assert score_scales(request)["accuracy"] == (1.0, 4.0)


@given(st.text(max_size=200), st.sampled_from(sorted(READERS)), st.sampled_from(["stop", "length", "content_filter"]))
def test_no_text_is_too_odd_to_be_read(text: str, reader: str, finish: str) -> None:
    found = said(text, reader, _GRADE, finish)
    if found.failure:
        assert (found.scores, found.label) == ({}, "")
    else:
        assert found.scores or found.label or (reader == "text" and text.strip())


@given(st.integers(1, 10), st.integers(0, 60))
def test_a_cut_verdict_is_never_read_for_another_one(score: int, kept: int) -> None:
    whole = json.dumps({"reasoning": 'he said {"score": 3}', "score": score})
    expected = {""} if kept >= len(whole) else {"truncated", "parse"} if kept else {"empty"}
    assert said(whole[:kept], schema=_GRADE).failure in expected


def test_the_reader_is_found_by_schema_or_by_what_was_recorded() -> None:
    free = Sampling()
    assert choose_reader(Sampling(schema=_PAIR), "[[3]]") == "schema"
    assert [choose_reader(free, text) for text in ("x [[3]]", "[[B]]", "so:\nfail", '{"n": 1}', "words")] == [
        "rating", "pair", "ruling", "object", "text",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="expected one of schema, rating"):
        check_reader("stars")
