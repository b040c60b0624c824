"""What a transcript says that each model was sent, held against what a recording endpoint received.

Each run is shown from its folder alone: the data is deleted and the endpoint is stopped before the first look.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from chaos_answers import echo
from process import running
from shown_runs import INTERVIEWS, LOOP, PLAN, SEED, Making, case_of
from typer.testing import CliRunner

from viva.cli.main import app
from viva.engine.journal_reader import History
from viva.engine.seeds import ConversationSeeds
from viva.scenarios.kieval.score import Interview


@dataclass
class Shown:
    """A run: its folder, what ``viva show --json --prompts`` prints of it, and what the endpoint received for it."""

    folder: Path
    lines: list[dict[str, Any]]
    received: list[dict[str, Any]]


def _viva(*arguments: str | Path) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["show", *map(str, arguments)])
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done.stdout, done.stderr


def _lines(*arguments: str | Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in _viva(*arguments, "--json", "--prompts")[0].splitlines()]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Shown]:
    """A case's run, shown when its data and the endpoint are gone."""
    place = tmp_path_factory.mktemp("shown")
    with running(PLAN) as server, ExitStack() as stack:
        making = Making(server, place)
        stack.callback(making.end)
        making.start(killed="kieval", probe_killed="probe", turns_killed="turns", user_killed="user")
        for case, more in INTERVIEWS.items():
            making.run(case, "kieval", **more)
        making.fork("finished", "fork", "evaluator-fork")
        making.run("probe", "probe")
        making.run("turns", "turns")
        making.run("turns-budget", "turns", conversation_calls=1)
        making.fork("turns", "turns-fork", "judge-turns-fork")
        making.run("user", "user")
        making.run("user-budget", "user", conversation_calls=3)
        making.kill_and_resume(*_RESUMED)
        log = server.log()
    for file in (*place.glob("*.jsonl"), *place.glob("*.yaml")):
        file.unlink()

    def of(case: str) -> Shown:
        cases = {"fork": ("finished", "evaluator"), "turns-fork": ("turns", "judge")}.get(case)
        received = [entry for entry in log if case_of(entry["model"]) == case]
        if cases is not None:
            source, judge = cases
            received += [e for e in log if case_of(e["model"]) == source and not e["model"].startswith(judge)]
        return Shown(making.folders[case], _lines(making.folders[case]), received)

    return of


_RESUMED = ("killed", "probe-killed", "turns-killed", "user-killed")
_FORKED = ("fork", "turns-fork")
_OTHERS = ("probe", "turns", "turns-budget", "user", "user-budget")


@pytest.mark.parametrize("case", [*INTERVIEWS, *_OTHERS, *_FORKED, *_RESUMED])
def test_what_each_model_was_sent_is_what_the_endpoint_received(shown: Callable[[str], Shown], case: str) -> None:
    run = shown(case)
    assert run.received
    chats: dict[int, list[dict[str, Any]]] = {}
    texts: dict[str, int] = {}
    for entry in run.received:
        if "messages" in entry["body"]:
            chats.setdefault(entry["body"]["seed"], []).append(entry)
        else:
            texts[entry["body"]["prompt"]] = texts.get(entry["body"]["prompt"], 0) + 1
    for line in run.lines:
        assert "prompts_unknown" not in line
        places: dict[str, list[int]] = {}
        for role, ordinal, said in _calls_of(line):
            if "messages" not in said["prompt"]:
                for continuation in said["prompt"]["continuations"]:
                    assert texts.pop(said["prompt"]["context"] + continuation) == 1 or case in _RESUMED
                continue
            first, *again = chats.pop(ConversationSeeds(SEED, line["key"]).seed(role, ordinal))
            assert all(one["body"] == first["body"] for one in again)  # what a kill or an error let be asked once more
            assert not again or case in (*_RESUMED, "failed")
            assert said["prompt"]["messages"] == first["body"]["messages"]
            assert said["prompt"].get("tools") == first["body"].get("tools")
            assert case_of(first["model"]) in (case, "finished", "turns")
            if "text" in said:
                assert said["text"] in _answers([first, *again][-1], cut=case == "detected")
            else:
                assert first["behaviour"] == "500"
            # Side by side, or in another run, roles are in order only one by one.
            places.setdefault(role if case in ("overlap", *_FORKED) else "", []).append(run.received.index(first))
        assert all(one < other for asked in places.values() for one, other in pairwise(asked)), "in the order of asking"
    assert (chats, texts) == ({}, {}), "each request stands in a transcript"


def _answers(entry: dict[str, Any], *, cut: bool) -> list[str]:
    """The texts that may stand for an endpoint's answer: a detector may have ``cut`` it."""
    text = entry["text"].rpartition("</think>")[2]
    calls = [f"{one['function']['name']}({one['function']['arguments']})" for one in entry["calls"] or ()]
    whole = "\n".join([*([text] if text or not calls else []), *calls])
    return [whole, *(whole[:end] for end in range(1, len(whole)) if cut)]


def _calls_of(line: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Each call of a conversation: role, ordinal within the role, entry of the transcript; those without answer too."""
    counts: dict[str, int] = {}
    for said in [*line["talk"], *line.get("unanswered", [])]:
        if "prompt" in said:
            number = counts[said["party"]] = counts.get(said["party"], -1) + 1
            yield said["party"], number, said


def _results(folder: Path) -> list[dict[str, Any]]:
    with History(folder / "journal.sqlite") as history:
        return [one.result for one in history.ended()]


def test_the_runs_are_what_they_are_called(shown: Callable[[str], Shown]) -> None:
    ends = {case: [end.get("ended_by") for end in _results(shown(case).folder)] for case in INTERVIEWS}
    assert "evaluator" in ends["stopped"]
    assert "evaluator" in ends["overlap"]
    assert ends["detected"][0] == "detector"
    assert set(ends["budget"]) == {"budget"}
    interviews = [Interview.from_record(one) for one in _results(shown("repaired").folder)]
    assert [held.failures for one in interviews for held in one.rounds] == [0, 1, 0, 0]
    [broken] = [one for one in _results(shown("failed").folder) if "ended_by" not in one]
    assert broken["type"] == "Unavailable"
    judged = [one["judge"] for one in _results(shown("turns").folder) if one["judge"] is not None]
    assert sorted(ruling["failures"] for ruling in judged)[-2:] == [0, 1]
    assert {ruling["failures"] for ruling in judged} <= {0, 1}
    assert [one["stopped"] for one in _results(shown("turns-budget").folder) if "stopped" in one]
    assert all(one["ended_by"] in ("user", "budget") for one in _results(shown("user-budget").folder))


def test_what_was_answered_stands_as_it_was_said(shown: Callable[[str], Shown]) -> None:
    said = [one for line in shown("user").lines for one in line["talk"] if one["party"] == "candidate"]
    assert 'next_tide({"harbour": "Oban"})' in [one["text"] for one in said]
    tools = [one for line in shown("user").lines for one in line["talk"] if one["party"] == "tool next_tide"]
    assert {one["text"] for one in tools} == {'{"high":"06:10"}'}
    assert not any("prompt" in one for one in tools), "no model was asked for what a tool said"
    ended = [one for line in shown("detected").lines for one in line["talk"] if "round and round" in one["text"]]
    assert all(LOOP.startswith(one["text"]) for one in ended if one["party"] == "candidate")
    assert len(ended) == 1
    for line in shown("probe").lines:
        reading = [one for one in line["talk"] if "continuations" in one.get("prompt", {})]
        assert [one["text"].partition(" ")[0] for one in reading] == ["log-probabilities:", "log-probabilities:", "the"]
        letters = reading[0]["text"].removeprefix("log-probabilities: ").split(", ")
        context, sums = reading[0]["prompt"]["context"], dict(letter.split(" ") for letter in letters)
        for letter, value in sums.items():
            told = echo(f"{context} {letter}", True)["choices"][0]["logprobs"]
            assert told["tokens"][-2] == f" {letter}"
            assert float(value) == pytest.approx(told["token_logprobs"][-2], abs=1e-4)


def test_thoughts_are_shown_where_they_are_asked_for_and_were_told_to_nobody(shown: Callable[[str], Shown]) -> None:
    run = shown("thinking")
    [first, *_] = [one for one in run.lines[0]["talk"] if one["party"] == "candidate"]
    assert first["text"] == "A."
    [thought, *_] = [one for one in _lines(run.folder, "--thoughts")[0]["talk"] if one["party"] == "candidate"]
    assert "Is it A?" in thought["text"]
    assert thought["text"].endswith("A.")
    assert thought["prompt"] == first["prompt"]
    assert not any("Is it A?" in orjson.dumps(entry["body"]).decode() for entry in run.received)


def test_overlapping_roles_stand_in_the_order_of_speech(shown: Callable[[str], Shown]) -> None:
    for case in ("overlap", "repaired"):
        for line in shown(case).lines:
            parties = [one["party"] for one in line["talk"]]
            assert parties[:4] == ["benchmark", "candidate", "interactor", "candidate"]
            told = " ".join(parties[2:]).replace("evaluator evaluator", "evaluator")
            turns = told.removesuffix(" interactor").split(" interactor ")  # the last question may be thrown away
            assert turns == ["interactor candidate evaluator", *["candidate evaluator"] * (len(turns) - 1)]


def test_a_failed_conversation_shows_what_was_sent_before_it_failed(shown: Callable[[str], Shown]) -> None:
    run = shown("failed")
    [line] = [line for line in run.lines if "failed" in line]
    [broken] = [entry for entry in run.received if entry["behaviour"] == "500"]
    [unanswered] = line["unanswered"]
    assert unanswered == {"party": "candidate", "prompt": {"messages": broken["body"]["messages"]}}
    printed, _ = _viva(run.folder, "--conversation", str(line["number"]), "--prompts")
    assert printed.index("[candidate]\n(no answer)") < printed.index("[failed]")
    asked = broken["body"]["messages"][-1]["content"]
    assert "".join(asked.split()) in "".join(printed.replace("│", "").split())
    assert "(no answer)" not in _viva(run.folder, "--conversation", str(line["number"]))[0]


def _copy(run: Shown, place: Path) -> Path:
    return Path(shutil.copytree(run.folder, place / "copy"))


def _edit(folder: Path, **fields: Any) -> None:
    file = folder / "manifest.json"
    file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes()) | fields))


def _change(folder: Path, sql: str) -> None:
    with sqlite3.connect(folder / "journal.sqlite") as connection:
        connection.execute(sql)
    connection.close()


def _texts(line: dict[str, Any]) -> list[str]:
    """What models said in a conversation."""
    models = ("candidate", "interactor", "evaluator")
    return [f"{one['party']}: {one['text']}" for one in line["talk"] if one["party"] in models]


def _texts_alone(run: Shown, folder: Path, problem: str) -> None:
    """Every answer is shown in its place, no prompt is, and it is said why."""
    lines = _lines(folder)
    assert [_texts(line) for line in lines] == [_texts(line) for line in run.lines]
    for line in lines:
        assert problem in line["prompts_unknown"]
        assert not any("prompt" in one for one in line["talk"])
    printed, noted = _viva(folder, "--conversation", "0", "--prompts")
    assert "not all prompts are known" in noted
    assert problem in noted
    assert "[evaluator]" in printed


def test_other_words_than_the_recorded_ones_are_not_taken_for_them(
    shown: Callable[[str], Shown], tmp_path: Path
) -> None:
    run = shown("repaired")
    folder = _copy(run, tmp_path)
    prompts = orjson.loads((folder / "manifest.json").read_bytes())["prompts"]
    assert "You grade an oral examination" in prompts
    _edit(folder, prompts=prompts.replace("You grade an oral examination", "You are grading an exam"))
    for line, before in zip(_lines(folder), run.lines, strict=True):
        assert line["prompts_unknown"] == "the request evaluator #0 differs from the recorded one"
        known = [one for one in before["talk"] if one["party"] != "evaluator"]
        assert [one for one in line["talk"] if one["party"] != "evaluator"] == known, "others were asked as recorded"
        assert _texts(line) == _texts(before)
        assert not any("prompt" in one for one in line["talk"] if one["party"] == "evaluator")
    _edit(folder, prompts="name: nothing")
    _texts_alone(run, folder, "this version cannot replay its conversations")


def test_a_scenario_that_is_not_here_or_another_version_s_leaves_the_recorded_texts(
    shown: Callable[[str], Shown], tmp_path: Path
) -> None:
    run = shown("stopped")
    folder = _copy(run, tmp_path)
    _edit(folder, scenario="viva-of-tomorrow")
    _texts_alone(run, folder, "the scenario 'viva-of-tomorrow' cannot be used here")
    manifest = orjson.loads((run.folder / "manifest.json").read_bytes())
    versions = manifest["versions"] | {"viva": "99.0"}
    _edit(folder, scenario="kieval", settings=manifest["settings"] | {"tomorrow": 1}, versions=versions)
    _texts_alone(run, folder, "recorded by another version of viva")


def test_damaged_records_leave_what_is_whole(shown: Callable[[str], Shown], tmp_path: Path) -> None:
    run = shown("finished")
    folder = _copy(run, tmp_path)
    _change(folder, "update started set item = replace(item, 'Which', 'What') where number = 0")
    _change(folder, "update calls set text = text || '!' where conversation = 1 and role = 'evaluator' and ordinal = 1")
    first, second = _lines(folder)
    assert (first["key"], first["prompts_unknown"]) == ("", "the record of its task is damaged")
    assert _texts(first) == _texts(run.lines[0])
    assert second["damaged"]
    assert "prompts_unknown" not in second
    whole = run.lines[1]["talk"]
    assert second["talk"] == whole[: len(second["talk"])], "as far as it is whole, with its prompts"
    assert len(second["talk"]) == len(whole) - 1
    printed, _ = _viva(folder, "--conversation", "0")
    assert printed.count("[evaluator]") == 2
