"""Verification: planted changes of a scenario's code are found and named, and unchanged code fits its records."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from case_tables import case_table
from command import viva as command

import viva
from viva.engine.errors import JournalNotice, Throttled
from viva.engine.journal_format import call_checksum, short_checksum
from viva.orchestration.python_api import run_blocking
from viva.scenarios import registry

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
DEBATE = """
import asyncio
import viva

TOOLS = viva.Toolbox([{"name": "look_up", "description": "Look up a word."}])


def count_words(text: str) -> int:
    return len(text.split())


@viva.scenario(compare="pupil", one=["tutor", "critic"])
async def debate(conversation: viva.Conversation, task: dict[str, str]) -> dict[str, float]:
    topic = task["id"]
    tutor = viva.Agent(conversation, "tutor", "You teach children.")
    question = await tutor.ask(f"Open with {topic}.")
    hint = await tutor.ask("Add a hint.")

    async def argue(part: viva.Conversation, side: str) -> str:
        pupil = viva.Agent(part, "pupil", "You argue.")
        await pupil.ask(question.text + hint.text)
        return (await pupil.ask(f"Argue {side}.")).text

    parts = [conversation.branch(side) for side in ("for", "against")]
    texts = await asyncio.gather(*(argue(part, part.path) for part in parts))
    view = viva.View()
    view.append("user", " ".join(texts))
    verdict = await conversation.generate("critic", view, viva.Sampling(temperature=0.0), tools=TOOLS)
    words = await conversation.compute("words", count_words, verdict.text)
    return {"score": float(words.value), "length": float(len(verdict.text))}
"""
MODELS: dict[str, Any] = {"pupil": ["simulated:a", "simulated:b"], "tutor": "simulated:t", "critic": "simulated:c"}
TASKS = [{"id": topic} for topic in ("tides", "rust", "salt")]
# What is changed, how it differs, and where: role, ordinal, branch.
PLANTED: list[tuple[str, str, str, tuple[str, int, str]]] = [
    ('f"Open with {topic}."', 'f"Begin with {topic}."', "request", ("tutor", 0, "")),  # a word of a prompt
    ("You argue.", "You argue well.", "request", ("pupil", 0, "for")),  # a system prompt
    (
        '    question = await tutor.ask(f"Open with {topic}.")\n    hint = await tutor.ask("Add a hint.")\n',
        '    hint = await tutor.ask("Add a hint.")\n    question = await tutor.ask(f"Open with {topic}.")\n',
        "request",
        ("tutor", 0, ""),
    ),  # another order of two calls
    ('    hint = await tutor.ask("Add a hint.")\n', "    hint = question\n", "request", ("pupil", 0, "for")),
    (
        '    words = await conversation.compute("words", count_words, verdict.text)\n',
        "    words = viva.Computed(float(count_words(verdict.text)))\n",
        "missing",
        ("compute:words", 0, ""),
    ),  # a step left out
    (
        '    return {"score"',
        '    await tutor.ask("Well done.")\n    return {"score"',
        "added",
        ("tutor", 2, ""),
    ),  # a call added
    ("temperature=0.0", "temperature=0.7", "request", ("critic", 0, "")),
    ('"critic", view', '"tutor", view', "added", ("tutor", 2, "")),  # another role
    ('("for", "against")', '("pro", "against")', "added", ("pupil", 0, "pro")),  # another name of a branch
    ("float(len(verdict.text))}", "float(len(verdict.text) + 1)}", "result", ("", 0, "")),
    ('    return {"score"', '    raise ValueError("mine")\n    return {"score"', "error", ("", 0, "")),
    ("Look up a word.", "Look up words.", "request", ("critic", 0, "")),  # a tool
    ("count_words, verdict.text)", 'count_words, verdict.text + " end")', "request", ("compute:words", 0, "")),
    ("task: dict[str, str]", "task: list[str]", "task", ("", 0, "")),
]


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be read anew, as another process would."""
    for name in [name for name in sys.modules if name.startswith("viva_file_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(registry, "_registered", {})


def _recorded(folder: Path, text: str = DEBATE, models: dict[str, Any] = MODELS, **settings: Any) -> Path:
    (folder / "debate.py").write_text(text)
    viva.run_sync(folder / "debate.py", tasks=TASKS, models=models, out=folder / "run", **settings)
    return folder / "run"


def _edited(run: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> viva.Verification:
    file = run.parent / "debate.py"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    _forget(monkeypatch)
    return viva.verify(run)


def test_unchanged_code_fits(tmp_path: Path) -> None:
    verification = viva.verify(viva.load(_recorded(tmp_path)))
    assert verification.fits
    assert verification.file == str(tmp_path / "debate.py")
    assert verification.sentences() == ["All 6 recorded conversations fit."]


@case_table("old, new, how, position", PLANTED)
def test_a_planted_change_is_found_and_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, how: str, position: tuple[str, int, str]
) -> None:
    _forget(monkeypatch)
    verification = _edited(_recorded(tmp_path), old, new, monkeypatch)
    first = verification.kinds[0].first
    assert (first.change, (first.role, first.ordinal, first.branch)) == (how, position)
    assert (verification.differing, verification.fits) == (6, False)
    assert verification.kinds[0].key == "a/tides"


def test_each_kind_of_difference_has_a_paragraph_with_what_is_sent_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verification = _edited(_recorded(tmp_path), "You argue.", "You argue well.", monkeypatch)
    answer, first, second = verification.sentences()
    assert answer == (
        "6 of 6 conversations no longer fit: another request of pupil in the branch 'for', first call (6); another "
        "request of pupil in the branch 'against', first call (6)."
    )
    assert first.startswith("Another request of pupil in the branch 'for', first call: 6 conversations, the first "
                            'a/tides, pupil #0. Now: system "You argue well.", user "')  # fmt: skip
    assert re.search(r"\(The recorded request is not stored, only its hash [0-9a-f]{12}\.\)$", first)
    assert "against" in second


def test_a_run_that_was_interrupted_fits_and_what_it_has_recorded_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for calls in range(1, 20, 2):
        folder = tmp_path / str(calls)
        folder.mkdir()
        _forget(monkeypatch)
        run = _recorded(folder, concurrency=2, max_calls=calls)
        assert viva.verify(run).fits, calls
    assert not _edited(run, "You argue.", "You argue well.", monkeypatch).fits


def _cut(run: Path, calls: int) -> None:
    """Leave a journal as a kill does after so many calls: what was recorded later is not there."""
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        journal.execute("delete from ended where number in (select conversation from calls where rowid > ?)", (calls,))
        journal.execute("delete from calls where rowid > ?", (calls,))


def test_a_run_that_was_killed_after_any_call_fits(
    tmp_path: Path, interviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget(monkeypatch)
    for number, run in enumerate((_recorded(tmp_path), interviews)):
        with closing(sqlite3.connect(run / "journal.sqlite")) as journal:
            (total,) = journal.execute("select count(*) from calls").fetchone()
        for calls in range(total, -1, -7):
            copy = tmp_path / f"{number}-{calls}"
            shutil.copytree(run, copy)
            _cut(copy, calls)
            with closing(sqlite3.connect(copy / "journal.sqlite")) as journal:
                (ended,) = journal.execute("select count(*) from ended").fetchone()
            verification = viva.verify(copy)
            assert verification.fits, calls
            assert verification.unfinished == (6, 12)[number] - ended
            assert ("have not ended" in verification.sentences()[0]) is (verification.unfinished > 1)
            shutil.rmtree(copy)


def test_calls_of_an_unfinished_conversation_that_are_no_longer_made_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _recorded(tmp_path, concurrency=1, max_calls=2)
    verification = _edited(run, 'await tutor.ask("Add a hint.")', "question", monkeypatch)
    assert [(kind.first.change, kind.first.role, kind.first.ordinal) for kind in verification.kinds] == [
        ("added", "pupil", 0)
    ]


class _Failing(viva.Backend):
    """A critic that fails in some conversations."""

    label = "c"

    async def generate(self, request: viva.Request) -> viva.Completion:
        await asyncio.sleep(0)
        if "tides" in request.conversation:
            raise Throttled("busy", model="c")
        return viva.Completion("yes, well")


def test_a_conversation_that_failed_at_a_model_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _recorded(tmp_path, models=MODELS | {"critic": _Failing()})
    assert sum(result.error is not None for result in viva.load(run).results()) == 2
    assert viva.verify(run).fits
    assert viva.verify(run).conversations == 6
    assert _edited(run, "You argue.", "You argue well.", monkeypatch).differing == 6


CAUGHT = DEBATE.replace(
    '    verdict = await conversation.generate("critic", view, viva.Sampling(temperature=0.0), tools=TOOLS)\n',
    "    try:\n"
    '        verdict = await conversation.generate("critic", view, viva.Sampling(temperature=0.0), tools=TOOLS)\n'
    "    except viva.BackendError:\n"
    '        verdict = viva.Completion("none")\n',
)


def test_a_call_whose_failure_the_protocol_caught_is_not_an_added_one(tmp_path: Path) -> None:
    assert CAUGHT != DEBATE
    run = _recorded(tmp_path, CAUGHT, models=MODELS | {"critic": _Failing()})
    assert all(result.error is None for result in viva.load(run).results())
    assert viva.verify(run).fits


def test_conversations_that_a_budget_or_a_caller_stopped_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _recorded(tmp_path, conversation_calls=3)
    assert "stopped" in orjson.loads(_ended(run)[0])
    assert viva.verify(run).fits

    async def stopping(folder: Path) -> None:
        (folder / "debate.py").write_text(DEBATE)
        async with viva.start(folder / "debate.py", tasks=TASKS, models=MODELS, out=folder / "run") as live:
            async for event in live.events():
                if isinstance(event, viva.CallFinished) and event.role == "tutor" and event.ordinal == 1:
                    live.stop(event.conversation, "enough")

    (tmp_path / "stopped").mkdir()
    _forget(monkeypatch)
    asyncio.run(stopping(tmp_path / "stopped"))
    assert any("operator" in result for result in _ended(tmp_path / "stopped" / "run"))
    assert viva.verify(tmp_path / "stopped" / "run").fits


GROUPED = """
import asyncio
import viva

class Long:
    def feed(self, text):
        return None
    def finish(self, text):
        return "long" if len(text) > 10 else None

@viva.scenario(compare="pupil")
async def debate(conversation: viva.Conversation, task: dict[str, str]) -> float:
    async def argue(part: viva.Conversation, turns: int, watch) -> None:
        pupil = viva.Agent(part, "pupil")
        for turn in range(turns):
            for _ in range(3 * (turns - 2)):
                await asyncio.sleep(0)  # the other branch is ahead
            pupil.view.append("user", f"Turn {turn}.")
            await part.generate("pupil", pupil.view, viva.Sampling(), watch=watch if turn else ())
        if task["id"] == "salt" and part.path == "first":
            raise ValueError("mine")

    async with asyncio.TaskGroup() as group:
        group.create_task(argue(conversation.branch("first"), 2, [Long]))
        group.create_task(argue(conversation.branch("second"), 3, []))
    return 1.0
"""


class _SlowFirst(viva.Backend):
    """A pupil whose answers in one branch come late, so that the other branch is ahead in the run."""

    label = "a"

    async def generate(self, request: viva.Request) -> viva.Completion:
        for _ in range(100 if request.branch == "first" else 1):
            await asyncio.sleep(0)
        return viva.Completion("yes, well")


def test_an_ending_of_one_branch_leaves_the_calls_of_the_others_to_be_compared(tmp_path: Path) -> None:
    watched = _recorded(tmp_path, GROUPED, models={"pupil": "simulated:a"})
    assert "detector" in _ended(watched)[0]
    assert viva.verify(watched).fits
    for name, settings in (("unwatched", {}), ("budget", {"conversation_calls": 1})):
        (tmp_path / name).mkdir()
        text = GROUPED.replace("[Long]", "[]")
        run = _recorded(tmp_path / name, text, models={"pupil": _SlowFirst()}, **settings)
        assert ("stopped" in _ended(run)[0]) == (name == "budget")
        assert viva.verify(run).fits, name


def _ended(run: Path) -> list[str]:
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal:
        return [result for (result,) in journal.execute("select result from ended order by number")]


def test_a_failure_of_the_protocol_is_expected_to_happen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _recorded(tmp_path, DEBATE.replace('task["id"]\n', 'task["name"] if task["id"] == "rust" else task["id"]\n'))
    assert viva.verify(run).fits
    verification = _edited(run, 'task["name"]', 'task["id"]', monkeypatch)
    assert [(kind.first.change, kind.conversations) for kind in verification.kinds] == [("added", 2)]
    assert "failed with KeyError" in verification.kinds[0].sentences()


def test_the_command_says_the_answer_first_and_exits_with_1_if_conversations_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _recorded(tmp_path)
    done = command("verify", run)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["All 6 recorded conversations fit.", ""])
    (tmp_path / "debate.py").write_text(DEBATE.replace("Open with", "Begin with"))
    _forget(monkeypatch)
    done = command("verify", run)
    assert done.returncode == 1
    file, answer = done.stdout.splitlines()[:2]
    assert file == f"Scenario file: {tmp_path / 'debate.py'}"
    assert answer == "6 of 6 conversations no longer fit: another request of tutor, first call (6)."
    done = command("verify", run, "--json")
    record = orjson.loads(done.stdout)
    assert (done.returncode, record["fits"], record["kinds"][0]["change"]) == (1, False, "request")
    assert 'user "Begin with tides."' in record["kinds"][0]["now"]


def test_what_the_scenario_prints_is_no_part_of_the_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _recorded(tmp_path)
    said = DEBATE.replace('    topic = task["id"]', '    print("the topic")\n    topic = task["id"]')
    (tmp_path / "debate.py").write_text(f'print("the file")\n{said}')
    _forget(monkeypatch)
    done = command("verify", run, "--json")
    assert orjson.loads(done.stdout)["fits"] is True
    assert "the file\nthe topic\n" in done.stderr


def test_a_copied_run_is_checked_with_the_file_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _recorded(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy / "run")
    (copy / "debate.py").write_text(DEBATE.replace("Open with", "Begin with"))
    _forget(monkeypatch)
    assert command("verify", copy / "run").stdout.startswith(f"Scenario file: {tmp_path / 'debate.py'}\nAll 6 ")
    _forget(monkeypatch)
    done = command("verify", copy / "run", "--scenario", "debate.py", cwd=copy)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "Scenario file: debate.py")
    (tmp_path / "debate.py").unlink()
    _forget(monkeypatch)
    done = command("verify", copy / "run")
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert f"error: {tmp_path / 'debate.py'}: no such Python file" in said
    assert "put it back, or name another file with --scenario FILE.py" in said
    done = command("verify", copy / "run", "--scenario", copy / "debate.py", "--json")
    assert orjson.loads(done.stdout)["file"] == str(copy / "debate.py")
    assert "no such Python file" in command("verify", copy / "run", "--scenario", "nowhere.py").stderr


@case_table(
    "old, new, sentences",
    [
        ('one=["tutor", "critic"]', 'one=["teacher", "critic"]',
         ["the roles of 'debate' have changed since", "were critic, pupil (compared), tutor;",
          "are critic, pupil (compared), teacher"]),
        ('compare="pupil", one=["tutor", "critic"]', 'compare=["pupil", "tutor"], one="critic"',
         ["are critic, pupil (compared), tutor (compared)"]),
        ("import asyncio\n", "import asyncio asyncio\n", ["SyntaxError: invalid syntax (debate.py, line 2)"]),
        ("import asyncio\n", "import asyncio, no_such_module\n", ["ModuleNotFoundError: No module named 'no_such_"]),
        ("async def debate", "async def dispute", ["has no scenario 'debate'"]),
    ],
)  # fmt: skip
def test_a_changed_scenario_is_no_damaged_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, sentences: list[str]
) -> None:
    run = _recorded(tmp_path)
    (tmp_path / "debate.py").write_text(DEBATE.replace(old, new, 1))
    for verb in ("verify", "report", "resume"):
        _forget(monkeypatch)
        done = command(verb, run)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2
        assert said.startswith(f"viva: error: {tmp_path / 'debate.py'}: "), said
        assert all(sentence in said for sentence in sentences), said
        assert "manifest.json" not in said
        assert "restore the file from a copy" not in said
        assert "imports.py" not in said


@pytest.mark.parametrize("change", ["renamed", "added"])
def test_changed_settings_of_a_scenario_are_no_damaged_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    settings = "class Depth(viva.RunSettings):\n    depth: int\n\n\n@viva.scenario(settings=Depth, "
    text = DEBATE.replace("@viva.scenario(", settings)
    run = _recorded(tmp_path, text, depth=3)
    new = "height: int" if change == "renamed" else "depth: int\n    height: int"
    (tmp_path / "debate.py").write_text(text.replace("depth: int", new))
    _forget(monkeypatch)
    said = " ".join(command("verify", run).stderr.split())
    assert said.startswith(f"viva: error: {tmp_path / 'debate.py'}: field 'settings.height': missing")
    assert "The settings of 'debate' have changed since" in said


@pytest.fixture(scope="module")
def interviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("interviews") / "run"
    models = {"candidate": ["simulated:a", "simulated:b?knowledge=0.3"], "interactor": "simulated:i"}
    models |= {"evaluator": "simulated:e?malformed=0.2"}
    viva.run_sync("kieval", models=models, dataset=str(ITEMS), n=6, rounds=3, overlap=True, out=run)
    return run


def test_recorded_interviews_fit_the_shipped_code(interviews: Path) -> None:
    assert viva.verify(interviews).sentences() == ["All 12 recorded conversations fit."]


def test_with_another_pack_the_recorded_and_the_new_prompt_are_shown_where_they_differ(
    interviews: Path, tmp_path: Path
) -> None:
    pack = yaml.safe_load(viva.load(interviews).manifest["prompts"])
    pack["candidate"]["question"] = f"Think twice. {pack['candidate']['question']}"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(pack))
    verification = viva.verify(interviews, pack=tmp_path / "mine.yaml")
    assert verification.pack == (
        f"The prompt pack {tmp_path / 'mine.yaml'} differs from the recorded one in candidate.question."
    )
    assert verification.sentences()[0] == verification.pack
    [kind] = verification.kinds
    assert (kind.first.change, kind.first.role, kind.conversations) == ("request", "candidate", 12)
    assert kind.first.now.startswith('user "Think twice. ')
    assert kind.first.recorded.startswith('user "')
    assert "Think twice" not in kind.first.recorded


def test_a_pack_file_that_has_changed_is_mentioned_and_the_recorded_prompts_are_used(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nbase: kieval\n")
    models = {"candidate": "simulated:a", "interactor": "simulated:i", "evaluator": "simulated:e"}
    viva.run_sync("kieval", models=models, dataset=str(ITEMS), n=1, rounds=1, pack=str(file), out=tmp_path / "run")
    file.write_text("name: mine\nbase: kieval\ninteractor:\n  reply: 'Reply: {reply}'\n")
    verification = viva.verify(tmp_path / "run")
    assert verification.fits
    assert verification.pack.startswith(
        f"The prompt pack {file} now differs from the recorded one in interactor.reply;"
    )


def test_a_pack_for_a_scenario_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(viva.ConfigurationError, match="pack kieval: debate has no prompt pack"):
        viva.verify(_recorded(tmp_path), pack="kieval")


def test_a_run_without_conversations_is_refused(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        for table in ("started", "calls", "ended"):
            journal.execute(f"delete from {table}")
    with pytest.raises(viva.ConfigurationError, match="no conversation is recorded yet"):
        viva.verify(run)


DAMAGE: dict[str, str] = {
    "call": "update calls set text = 'other' where rowid = 3",
    "role": "update calls set role = x'ff00' where rowid = 1",
    "item": "update started set item = '{' where number = 1",
    "missing item": "update started set item = '=77' where number = 1",
    "end": "update ended set result = '[' where number = 2",
    "type": "update calls set digest = 7, ordinal = 'x' where rowid = 2",
}


@case_table("name", list(DAMAGE))
def test_a_damaged_row_is_named_and_the_other_conversations_are_checked(tmp_path: Path, name: str) -> None:
    run = _recorded(tmp_path)
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        journal.execute(DAMAGE[name])
    done = command("verify", run, "--json")
    record = orjson.loads(done.stdout)
    assert (done.returncode, record["differing"], record["conversations"]) == (1, 0, 6)
    assert len(record["unreadable"]) == 1
    assert record["damaged"]
    assert "Traceback" not in done.stderr


def _forged(run: Path, table: str, checksum: Callable[..., int], change: Callable[[list[Any]], None]) -> None:
    """Change the first row of a table and give it a valid checksum, as somebody might who knows how."""
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        row = list(journal.execute(f"select * from {table} order by rowid").fetchone())[:-1]
        change(row)
        marks = ", ".join("?" * (len(row) + 1))
        journal.execute(f"delete from {table} where rowid = (select min(rowid) from {table})")
        journal.execute(f"insert into {table} values ({marks})", (*row, checksum(tuple(row))))


HOSTILE: list[tuple[str, Callable[..., int], int, Any]] = [
    ("ended", short_checksum, 2, "null"),
    ("ended", short_checksum, 2, '{"stopped": {"by": 3}}'),
    ("ended", short_checksum, 1, "failed"),
    ("started", short_checksum, 2, "[1, 2]"),
    ("calls", call_checksum, 3, b""),
    ("calls", call_checksum, 1, "/x:/y:compute:"),
]


@case_table("table, checksum, column, value", HOSTILE)
def test_a_forged_row_is_a_difference(
    tmp_path: Path, table: str, checksum: Callable[..., int], column: int, value: Any
) -> None:
    run = _recorded(tmp_path)
    _forged(run, table, checksum, lambda row: row.__setitem__(column, value))
    verification = viva.verify(run)
    on_item = 2 if table == "started" else 1  # the next conversation has the same item
    assert (verification.differing, verification.conversations) == (on_item, 6)
    assert len(verification.sentences()) == 2


def test_a_resumed_run_fits_the_code_that_resumed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _recorded(tmp_path, concurrency=1, max_calls=5)
    (tmp_path / "debate.py").write_text(DEBATE.replace("Add a hint", "Add two hints"))
    _forget(monkeypatch)
    run_blocking(lambda: viva.resume(run, max_calls=None))
    assert viva.verify(run).fits


def test_damage_is_a_warning_in_python(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        journal.execute(DAMAGE["call"])
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", JournalNotice)
        verification = viva.verify(run)
    assert not verification.fits
    assert "1 cannot be verified to their end. Damaged: call 2 of conversation 0." in verification.sentences()[0]
    assert notices


def test_a_journal_with_a_broken_structure_is_refused(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    data = bytearray((run / "journal.sqlite").read_bytes())
    data[4096 * 6 : 4096 * 6 + 2000] = b"\xff" * 2000
    (run / "journal.sqlite").write_bytes(data)
    done = command("verify", run)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing can be verified; restore it from a copy" in done.stderr
    assert "Traceback" not in done.stderr
