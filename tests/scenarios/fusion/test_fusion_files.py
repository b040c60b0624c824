"""Task files, plans and data that cannot be used: refused with file, line and field, before any model is asked."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from small_fusion import PLAN, TASK, make_files

from viva.agents.assistants.registry import open_assistants
from viva.engine.errors import ConfigurationError
from viva.orchestration.launch import new_run
from viva.scenarios.fusion.fusion_settings import FusionSettings
from viva.scenarios.fusion.judge_plan import read_plan
from viva.scenarios.fusion.scenario import SCENARIO
from viva.scenarios.fusion.task_files import SHIPPED_TASKS, open_examples, read_task, task_text

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve()
TOPICAL = DATA / "topicalchat" / "unieval_predictions.json"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "range: [1, 5]",
            "range: [5, 1]",
            r"t\.yaml:15: criteria\.depth\.range: expected two numbers, the lower one f",
        ),
        ("range: [0, 1]", "range: [0]", r"t\.yaml:16: criteria\.style\.range\.1: is missing"),
        ("range: [0, 1]", "scale: [0, 1]", r"t\.yaml:16: criteria\.style\.(range: is missing|scale: unknown field)"),
        (
            "response: answer",
            "response: reply",
            r"t\.yaml:9: response: there is no text 'reply'; texts: question, g",
        ),
        ("against: question", "against: answer", r"t\.yaml:10: against: 'answer' is the response itself"),
        ("context: [question]", "context: [talk]", r"t\.yaml:11: context: there is no text 'talk'"),
        ("style:", "Style here:", r"t\.yaml:16: criteria\.Style here: String should match pattern"),
        ("name: essays", "name: essays\nname: essays", r"t\.yaml:3:1: cannot be read: the key 'name' is given twice"),
        (TASK, "- a\n- b\n", r"t\.yaml:1: expected fields, found a list"),
    ],
)
def test_a_task_that_is_none_is_refused_with_its_line(old: str, new: str, what: str) -> None:
    assert old in TASK
    with pytest.raises(ConfigurationError, match=what):
        read_task(TASK.replace(old, new), "t.yaml")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("depth:", "deepness:", r"p\.yaml:4: use\.deepness: the task 'essays' has no such criterion; it has depth, st"),
        ("[good]", "[good, bleurt]", r"p\.yaml:4: use\.depth\.1: the run has no assistant 'bleurt'; it has good, bleu"),
        ("text:", "txt:", r"p\.yaml:\d: (txt: unknown field|text: is missing)"),
        ("[good]", "good", r"p\.yaml:4: use\.depth: Input should be a valid list, found 'good'"),
    ],
)
def test_a_plan_that_names_what_there_is_not_is_refused_with_its_line(old: str, new: str, what: str) -> None:
    asked = open_assistants(["mine.py#good", "bleu"])
    with pytest.raises(ConfigurationError, match=what):
        read_plan(PLAN.replace(old, new), "p.yaml", read_task(TASK, "t.yaml"), asked)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"answer": None}, r"x\.jsonl:2: field 'answer': is missing"),
        ({"question": " "}, r"x\.jsonl:2: field 'question': expected text, found ' '"),
        (
            {"depth": 7},
            r"x\.jsonl:2: field 'depth': the rating 7 is outside the range of the criterion 'depth', 1 to 5; "
            r".*open t\.yaml, set criteria\.depth\.range to it, and pass the file with --task",
        ),
        ({"depth": "deep"}, r"x\.jsonl:2: field 'depth': expected a number, found 'deep'"),
        ({"id": "e0"}, r"x\.jsonl:2: field 'id': a second example has the id 'e0'"),
        ({"by": None}, r"x\.jsonl:2: field 'by': is missing"),
    ],
)
def test_an_example_that_cannot_be_judged_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, object], what: str
) -> None:
    make_files(tmp_path, 3)
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    rows[1] |= change
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigurationError, match=what):
        open_examples(tmp_path / "x.jsonl", read_task(TASK, "t.yaml"), limit=None, seed=1, source="t.yaml")
    (tmp_path / "x.json").write_text(json.dumps(rows))
    with pytest.raises(ConfigurationError, match=r"\(entry 2\)|second example"):
        open_examples(tmp_path / "x.json", read_task(TASK, "t.yaml"), limit=None, seed=1)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"mode": "plan", "assistant": ["bleu"]}, "plan: mode plan needs a file; add --plan FILE"),
        ({"mode": "noplan"}, "assistant: mode noplan needs at least one"),
        ({"mode": "direct", "planner": "simulated:p"}, "planner: needs --plan FILE"),
        ({"mode": "noplan", "assistant": ["rouge"]}, "assistant 'rouge': unknown; did you mean 'rouge-"),
    ],
)
def test_settings_that_lack_a_part_say_which(tmp_path: Path, settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        FusionSettings.model_validate({**make_files(tmp_path, 1), "judge": ["simulated:j"], **settings})


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"assistant": ["bleu@answer"]}, r"'bleu@answer': .*task\.yaml has no text 'answer' besides the response"),
        (
            {"assistant": ["bleu"], "mode": "plan", "plan": "none.yaml"},
            "none.yaml: cannot be read: No such file.*--pla",
        ),
        ({"task": "essay"}, "essay: cannot be read: .*; shipped tasks: dialogue, summarisation"),
        ({"assistant": ["nli:/nowhere"]}, r"needs the package transformers|holds no model"),
    ],
)
def test_what_cannot_be_used_leaves_no_folder(tmp_path: Path, settings: dict[str, object], what: str) -> None:
    base = {"mode": "noplan" if "assistant" in settings else "direct", "judge": ["simulated:j"]}
    made = FusionSettings.model_validate({**make_files(tmp_path, 1), **base, **settings})
    with pytest.raises(ConfigurationError, match=what):
        new_run(SCENARIO, made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ratings_on_another_scale_need_a_copy_of_a_shipped_task(tmp_path: Path) -> None:
    row = {"source": "Hi!", "context": "Whales sing.", "system_output": "Whales sing.", "system_id": "a"}
    (tmp_path / "x.json").write_text(json.dumps([{**row, "scores": {"naturalness": 5}}]))
    settings = {"data": str(tmp_path / "x.json"), "judge": ["simulated:j"], "mode": "direct"}
    with pytest.raises(ConfigurationError, match=r"copy the task \((.*)\), set criteria\.naturalness") as refused:
        new_run(SCENARIO, FusionSettings.model_validate({"task": "dialogue", **settings}), tmp_path / "run")
    shipped = re.search(r"copy the task \((.*?)\)", str(refused.value))
    assert shipped is not None
    own = tmp_path / "own.yaml"
    own.write_text(
        Path(shipped[1]).read_text().replace("naturalness:\n    range: [1, 3]", "naturalness:\n    range: [1, 5]")
    )
    made = FusionSettings.model_validate({"task": str(own), **settings})
    assert new_run(SCENARIO, made, tmp_path / "run").folder.path.is_dir()


def test_expected_scores_need_few_whole_numbers(tmp_path: Path) -> None:
    files = make_files(tmp_path, 1)
    Path(files["task"]).write_text(TASK.replace("range: [1, 5]", "range: [0, 100]"))
    made = FusionSettings.model_validate({**files, "judge": ["simulated:j"], "mode": "direct", "scores": "expected"})
    with pytest.raises(ConfigurationError, match="'depth' goes from 0 to 100; change the task file"):
        new_run(SCENARIO, made, tmp_path / "run")


def test_shipped_tasks_are_tasks_and_the_dialogue_fits_topicalchat() -> None:
    tasks = {name: read_task(task_text(name), name) for name in SHIPPED_TASKS}
    assert set(tasks) == {"dialogue", "summarisation"}
    if not TOPICAL.is_file():
        pytest.skip(f"{TOPICAL} is not there")
    examples = list(open_examples(TOPICAL, tasks["dialogue"], limit=None, seed=1))
    assert len(examples) == 360
    assert len({one.group for one in examples}) == 60
    assert len({one.system for one in examples}) == 6
    assert all(one.ratings.keys() == tasks["dialogue"].criteria.keys() for one in examples)
