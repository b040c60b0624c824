"""Requests of load tests: what a judge was sent, from runs and files of every kind; mistakes told with their place."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st
from scripted import scripted_models
from small_sweeps import dataset, swept, write_file

import viva
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, VivaError
from viva.loadtest.workload import Workload, WorkloadOptions, open_workload

_X = [{"role": "user", "content": "x"}]
_INSTRUCTION = 'Please act as a judge and rate the answer in this form: "[[rating]]".'


def lines(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def told(work: Workload) -> list[tuple[str, ...]]:
    return sorted(tuple(message.content for message in request.messages) for request in work.requests)


def _asked(request: Any) -> tuple[Any, ...]:
    return tuple((one.role, one.content) for one in request.messages), request.sampling.digest


@pytest.fixture(scope="module")
def interviews(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run of two candidates on three items, and the requests that its evaluator got."""
    folder = tmp_path_factory.mktemp("interviews")
    garbage = {("evaluator", 1): {"text": "no verdict"}}
    with scripted_models(garbage) as requests:
        viva.run_sync(
            "kieval",
            models={"candidate": ["scripted:a?label=a", "scripted:b?label=b"], "interactor": "scripted:i",
                    "evaluator": "scripted:e"},
            dataset=str(dataset(folder / "items.jsonl", 3)),
            rounds=2,
            out=folder / "run",
            clock=VirtualClock(),
        )  # fmt: skip
        return folder / "run", [request for request in requests if request.role == "evaluator"]


def test_the_requests_of_a_run_are_those_that_its_judge_got(interviews: tuple[Path, list[Any]]) -> None:
    folder, received = interviews
    work = open_workload(str(folder))
    sent, held = (Counter(map(_asked, requests)) for requests in (received, work.requests))
    assert held == sent
    assert {request.reader for request in work.requests} == {"schema"}
    assert {request.role for request in work.requests} == {"evaluator"}, "models that play several parts go by it"
    assert work.to_record()["items"] == 3, "both candidates' interviews on an item are about one thing"
    by_talk: dict[str, list[Any]] = {}
    for request in work.requests:
        by_talk.setdefault(request.affinity, []).append(request)
    for talk in by_talk.values():
        talk.sort(key=lambda request: len(request.messages))
        first = talk[0].messages
        assert all(request.messages[: len(first)] == first for request in talk), "real prefixes are shared"


def test_another_role_may_be_asked_for_and_a_part_is_drawn(interviews: tuple[Path, list[Any]]) -> None:
    folder, received = interviews
    few = open_workload(str(folder), WorkloadOptions(limit=4, seed=1, max_tokens=99, temperature=0.5, reader="object"))
    again = open_workload(str(folder), WorkloadOptions(limit=4, seed=1))
    assert [request.id for request in few.requests] == [request.id for request in again.requests]
    assert {(one.sampling.max_tokens, one.sampling.temperature, one.reader) for one in few.requests} == {
        (99, 0.5, "object")
    }
    assert len(open_workload(str(folder), WorkloadOptions(role="interactor")).requests) < len(received)
    with pytest.raises(ConfigurationError, match="no role 'jury'; there are: candidate, interactor, evaluator"):
        open_workload(str(folder), WorkloadOptions(role="jury"))


def test_a_sweep_gives_the_requests_of_all_its_cells(tmp_path: Path) -> None:
    swept(write_file(tmp_path, items=2), tmp_path / "out", VirtualClock())
    work = open_workload(str(tmp_path / "out"))
    assert len({request.id for request in work.requests}) == len(work.requests) == 8
    assert work.to_record()["items"] == 2


def test_judgments_have_their_prompt_and_what_was_said_of_it_as_reference(tmp_path: Path) -> None:
    plain = {"question_id": 81, "model": "m", "judge": ["gpt-4", "single-v1"], "turn": 1, "score": 7,
             "user_prompt": f"{_INSTRUCTION}\n\nWhat is salt?"}  # fmt: skip
    second = plain | {"turn": 2, "user_prompt": "And pepper?", "score": -1, "judge": ["gpt-4", "multi-turn"]}
    file = lines(tmp_path / "judgments.jsonl", plain, second)
    work = open_workload(file)
    by_turn = {request.id: request for request in work.requests}
    first, other = by_turn["81/m/1"], by_turn["81/m/2"]
    assert [message.content for message in first.messages] == [plain["user_prompt"]]
    assert (first.reference, first.item, other.reference, other.item) == (7.0, "81", None, "81")
    assert other.messages[0].role == "system"
    assert "[[rating]]" in other.messages[0].content
    assert "1 of 2 prompts contain no instruction" in work.notes[0]
    prompts = lines(tmp_path / "prompts.jsonl", {"name": "multi-turn", "system_prompt": "Judge the second turn."})
    given = open_workload(file, WorkloadOptions(prompts=Path(prompts)))
    assert ("Judge the second turn.", "And pepper?") in told(given)
    assert given.notes == []


def test_pairwise_judgments_are_requests_in_both_orders(tmp_path: Path) -> None:
    row = {"question_id": 1, "model_1": "x", "model_2": "y", "g1_user_prompt": "X, then Y. [[A]] or [[B]]",
           "g2_user_prompt": "Y, then X. [[A]] or [[B]]", "g1_winner": "model_1", "g2_winner": "model_1"}  # fmt: skip
    work = open_workload(lines(tmp_path / "pairs.jsonl", row, row | {"question_id": 2, "g2_winner": "tie"}))
    by_id = {request.id: request for request in work.requests}
    assert by_id["1/x-y/1"].pair == "1/y-x/1"
    assert by_id["1/y-x/1"].pair == "1/x-y/1"
    assert [by_id[id_].reference for id_ in ("1/x-y/1", "1/y-x/1", "2/y-x/1")] == ["A", "B", "tie"]
    places = {request.id: place for place, request in enumerate(work.requests)}
    assert abs(places["1/x-y/1"] - places["1/y-x/1"]) == 1, "so that a step of few requests has whole pairs"


def test_a_file_of_answers_becomes_what_the_grading_judge_is_sent(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "qa.jsonl", *({"id": f"q{at}", "question": f"Why {at}?", "answer": "So."} for at in range(3))
    )
    with scripted_models({}) as received:
        viva.run_sync("grading", models={"judge": "scripted:j"}, tasks=Path(file), scale="1-5", out=tmp_path / "run")
        sent = set(map(_asked, received))
    options = WorkloadOptions(settings={"scale": "1-5"})
    for source in (file, f"grading:{file}"):
        work = open_workload(source, options)
        assert set(map(_asked, work.requests)) == sent
        assert work.scales == {"score": (1.0, 5.0)}


def test_a_file_of_pairs_becomes_both_orders_with_what_people_prefer(tmp_path: Path) -> None:
    cases = [{"id": f"c{at}", "question": "Why?", "answers": [f"One {at}.", f"Two {at}.\nReally."],
              "preferred": (0, 1, "tie", None)[at]} for at in range(4)]  # fmt: skip
    work = open_workload(lines(tmp_path / "pairs.jsonl", *cases), WorkloadOptions(settings={"audit": ["position"]}))
    assert work.to_record()["pairs"] == 4
    by_id = {request.id: request for request in work.requests}
    for case in cases:
        orders = [one for one in work.requests if one.item == f"pair/{case['id']}"]
        assert {one.pair for one in orders} == {one.id for one in orders}
        labels = {one.reference for one in orders}
        assert labels == ({"A", "B"} if isinstance(case["preferred"], int) else {case["preferred"]})
    better = by_id["pair/c1:judge0"]
    shown = better.messages[-1].content
    assert (shown.index("One 1") < shown.index("Two 1")) == (better.reference == "B")


def test_chat_requests_keep_their_times_and_form(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 3}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    said = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    body = {"model": "any", "messages": said, "max_tokens": 5, "temperature": 0, "response_format": form}
    work = open_workload(
        lines(
            tmp_path / "log.jsonl",
            {"custom_id": "b", "body": body, "timestamp": "2024-05-01T10:00:02Z", "reference": 3, "item": "i"},
            {"custom_id": "a", "body": body, "timestamp": "2024-05-01T10:00:00+00:00"},
        )
    )
    assert [(request.id, request.at, request.reader) for request in work.requests] == [
        ("a", 0.0, "schema"),
        ("b", 2.0, "schema"),
    ]
    assert (work.requests[1].reference, work.requests[1].item, work.requests[1].sampling.max_tokens) == (3.0, "i", 5)
    assert work.scales == {"score": (1.0, 3.0)}


@case_table(
    ("records", "message"),
    [
        ([{"messages": []}], "jsonl:1: field 'messages': expected a list of messages"),
        ([{"messages": _X}, {"messages": [{"role": "cat", "content": "x"}]}],
         "jsonl:2: field 'messages.0': expected a message with one of the roles"),
        ([{"messages": _X, "reasoning_effort": "high"}],
         "jsonl:1: field 'reasoning_effort': is not supported; leave it out"),
        ([{"messages": _X, "temperature": 3}], "field 'temperature': expected a number from 0"),
        ([{"messages": _X, "pair": "gone"}], "field 'pair': there is no request 'gone'"),
        ([{"id": "a", "messages": _X}] * 2, "jsonl:2: field 'id': 'a' is in line 1 already"),
        ([{"id": "a", "messages": _X, "timestamp": 1},
          {"id": "b", "messages": _X}], "jsonl:2: field 'timestamp': is missing"),
        ([{"body": {"messages": _X, "n": 4}}], "field 'body.n': expected 1, found 4"),
        ([{"user_prompt": "x"}], "jsonl:1: field 'question_id': is missing"),
        ([{"question_id": 1, "user_prompt": "x", "score": "good"}], "field 'score': expected a number, found 'good'"),
        ([{"question": "x", "answer": ""}, {"question": "x", "reply": "y"}], "jsonl:2: field 'answer'"),
        ([{"colour": "red"}], "(fields: colour)"),
        ([], "contains no record"),
    ],
)  # fmt: skip
def test_mistakes_in_files_are_told_with_their_place(tmp_path: Path, records: list[Any], message: str) -> None:
    with pytest.raises(VivaError) as found:
        open_workload(lines(tmp_path / "work.jsonl", *records))
    assert message in str(found.value)
    assert "work.jsonl" in str(found.value)


@case_table(
    ("source", "message"),
    [
        ("nowhere", "no such run folder or file"),
        ("kieval:x.jsonl", "give the folder of a run instead"),
        ("nothing:x.jsonl", "unknown scenario 'nothing'"),
        ("synthetic:prompt=10", "synthetic:output: is missing"),
        ("synthetic:prompt=normal(1,2),output=5", "prompt=normal(1,2): expected a number, constant(N)"),
        ("synthetic:prompt=10,output=5,shared=2", "shared=2: expected a number from 0 to 1"),
        ("synthetic:prompt=10,output=uniform(9,3)", "output=uniform(9,3): expected"),
    ],
)
def test_mistakes_in_names_are_told(source: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        open_workload(source)
    assert message in str(found.value)


def test_a_load_test_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is a load test, not a run; `viva judge load --resume"):
        open_workload(str(tmp_path))


@given(st.integers(0, 5), st.integers(1, 300), st.integers(1, 50), st.floats(0.0, 1.0), st.integers(1, 3))
def test_drawn_requests_have_their_lengths_and_shared_prefixes(
    seed: int, prompt: int, output: int, shared: float, groups: int
) -> None:
    source = f"synthetic:prompt=lognormal({prompt},0.4),output={output},shared={shared},groups={groups},count=6"
    requests = open_workload(source, WorkloadOptions(seed=seed)).requests
    assert requests == open_workload(source, WorkloadOptions(seed=seed)).requests
    assert {request.sampling.max_tokens for request in requests} == {output}
    for one in requests:
        for other in requests:
            if one.affinity and one.affinity == other.affinity:
                texts = sorted((request.messages[0].content for request in (one, other)), key=len)
                assert texts[1].startswith(texts[0]), "a server's prefix cache finds the shorter one"


def test_the_mean_of_drawn_lengths_is_that_of_their_distribution() -> None:
    requests = open_workload("synthetic:prompt=uniform(50,150),output=lognormal(100,0.5),count=400").requests
    words = [len(request.messages[-1].content.split()) - 17 for request in requests]
    assert sum(words) / 400 == pytest.approx(100, rel=0.05)
    tokens = sorted(request.sampling.max_tokens for request in requests)
    assert tokens[200] == pytest.approx(100, rel=0.1), "the median"
