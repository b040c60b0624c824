"""A project in the form of FlexEval's paper (section 2): a folder of four files, which runs without a change."""

from __future__ import annotations

import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from command import viva
from small_suites import run_suite

from viva.engine.errors import ConfigurationError
from viva.engine.permissions import grant
from viva.scenarios.flexeval.result_files import write_results
from viva.scenarios.flexeval.suite_file import find_suite_file, read_suite

_TALK = '{"input": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello there!"}]}\n'
_EVALS = """
polite:
  data: [talks.jsonl]
  do_completion: true
  config: {max_workers: 4, nb_evaluations_per_thread: 2, max_n_conversation_threads: 9}
  metrics:
    function:
      - {name: is_role, kwargs: {role: assistant}}
      - {name: exclamations}
      - {name: per_role}
      - {name: string_length}
      - {name: count_turns, metric_level: Thread}
    rubric:
      - name: is_polite
        depends_on: [{name: is_role, kwargs: {role: assistant}, metric_min_value: 1}]
  completion_llm: {function_name: shout, kwargs: {suffix: '?!', model_name: m}}
  grader_llm: {function_name: echo_completion, kwargs: {response: 'Because.\\nYES'}}
other:
  data: [talks.jsonl]
  metrics: {function: [{name: exclamations}]}
"""
_FUNCTIONS = """
    def exclamations(turn: str) -> int:
        return turn.count("!")

    def per_role(conversation: list) -> list:
        roles = sorted({message["role"] for message in conversation})
        return [{"role": role, "value": sum(m["role"] == role for m in conversation)} for role in roles]

    def string_length(turn: str) -> int:
        return 7

    def unused(object: Elsewhere) -> int:
        return 1
"""
_RUBRICS = """
is_polite:
  prompt: "Is this polite? {completion} Print YES or NO on a line by itself."
  choice_scores: {"YES": 1, "NO": 0}
  notes: Ours.
"""
_COMPLETIONS = """
    def shout(conversation_history, suffix, **kwargs):
        text = conversation_history[-1]["content"].upper() + suffix + kwargs["model_name"]
        return {
            "choices": [{"message": {"content": text, "role": "assistant"}}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3},
        }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of four files, and its conversations."""
    folder = tmp_path / "configuration"
    folder.mkdir()
    texts = {"evals.yaml": _EVALS, "function_metrics.py": _FUNCTIONS, "rubric_metrics.yaml": _RUBRICS,
             "completion_functions.py": _COMPLETIONS, "talks.jsonl": _TALK}  # fmt: skip
    for name, text in texts.items():
        code = textwrap.dedent(text).replace("object: Elsewhere", "object")
        (folder / name).write_text(code)
    return folder


def _figures(run: Path) -> dict[str, list[Any]]:
    sql = "SELECT metric, group_concat(coalesce(category, value), ' ') FROM (SELECT * FROM metrics ORDER BY key, unit) "
    with closing(sqlite3.connect(write_results(run))) as database:
        return {metric: values.split() for metric, values in database.execute(sql + "GROUP BY metric")}


def test_the_folder_runs_as_it_is(project: Path, tmp_path: Path) -> None:
    grant(project / "function_metrics.py", project / "completion_functions.py")
    outcome, _ = run_suite(Path(f"{project}#polite"), tmp_path / "run")
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 2, 0)
    # Two evaluations of one conversation; only the new turn, "HELLO THERE!?!m", is measured.
    assert _figures(tmp_path / "run") == {
        "is_role.assistant": ["1.0"] * 2,
        "exclamations": ["2.0"] * 2,
        "per_role.assistant": ["1.0"] * 2, "per_role.system": ["1.0"] * 2, "per_role.user": ["1.0"] * 2,
        "string_length": ["7.0"] * 2,
        "count_turns": ["2.0"] * 2,
        "is_polite": ["YES"] * 2,
    }  # fmt: skip
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as database:
        [text] = database.execute("SELECT DISTINCT content FROM messages WHERE role = 'assistant'").fetchone()
    assert text == "HELLO THERE!?!m"


def test_without_permission_no_code_runs_and_the_other_metrics_do(project: Path, tmp_path: Path) -> None:
    for name in ("function_metrics.py", "completion_functions.py"):
        code = project / name
        code.write_text(code.read_text() + f"\nopen({str(tmp_path / 'mark')!r}, 'w')\n")
    done = viva("suite", "check", f"{project}#polite", cwd=tmp_path)
    assert done.returncode == 2
    assert "completion_functions.py is named in a file" in done.stderr
    assert "--python-tools" in done.stderr
    evals = project / "evals.yaml"
    evals.write_text(evals.read_text().replace("do_completion: true", "do_completion: false"))
    done = viva("suite", "check", f"{project}#polite", cwd=tmp_path)
    assert done.returncode == 0
    notes = " ".join(done.stderr.split())
    assert f"(exclamations, Turn): left out: function_metrics.py is not run without --python-tools {project}" in notes
    assert "built-in functions measure instead: string_length (`length`)" in notes
    assert "per_role" not in done.stdout
    assert "count_turns: function turns, each conversation" in done.stdout
    assert "config.max_n_conversation_threads: all conversations are tested; -n 9 tests the first 9" in notes
    with pytest.raises(ConfigurationError, match=r"no metric could be converted: .*exclamations.*--python-tools"):
        read_suite(project, "other")
    assert not (tmp_path / "mark").exists()


@case_table("code, told", [
    ("import flexeval_is_absent\ndef exclamations(turn: str): return 1", "No module named 'flexeval_is_absent'"),
    ("raise SystemExit('no')\ndef exclamations(turn: str): return 1", "SystemExit"),
    ("class Turn: pass\ndef exclamations(object: Turn): return 1", "its first argument is a Turn; use str"),
    ("def exclamations(): return 1", "takes no argument"),
    ("def exclamations(turn: str): yield 1", "is a generator, not a function"),
])  # fmt: skip
def test_a_function_that_cannot_be_used_is_named_and_the_rest_is_measured(tmp_path: Path, code: str, told: str) -> None:
    (tmp_path / "talks.jsonl").write_text(_TALK)
    metrics = "{function: [{name: exclamations}, {name: string_length}]}"
    (tmp_path / "evals.yaml").write_text(f"one: {{data: [talks.jsonl], metrics: {metrics}}}\n")
    (tmp_path / "function_metrics.py").write_text(code)
    grant(tmp_path / "function_metrics.py")
    found = read_suite(tmp_path)
    assert [metric.function for metric in found.suite.metrics] == ["length"]
    [note] = [note for note in found.notes if "left out" in note]
    assert told in note


@case_table("function, model", [
    ("generic_rest_api_completion, kwargs: {endpoint: 'http://127.0.0.1:9/c', api_key_name: K}",
     'http:{"url":"http://127.0.0.1:9/c","headers":{"Authorization":"Bearer ${K}"},"body":"{messages}",'
     '"answer":"completion"}'),
    ("open_ai_completion, kwargs: {model_name: gpt-4o, api_key_name: OPENAI_API_KEY}", "openai:gpt-4o"),
    ("lm_studio_completion, kwargs: {model_name: m, endpoint: 'http://127.0.0.1:9/v1'}",
     "openai:http://127.0.0.1:9/v1#m"),
    ("placeholder_completion", "fixed:?label=echo&text=hi"),
    ("litellm_completion, kwargs: {model: x}", None),
    ("gone", None),
])  # fmt: skip
def test_completion_functions_that_they_ship(tmp_path: Path, function: str, model: str | None) -> None:
    (tmp_path / "talks.jsonl").write_text(_TALK)
    metrics = "{function: [{name: string_length}]}"
    llm = f"{{function_name: {function}}}"
    text = f"one: {{data: [talks.jsonl], do_completion: true, completion_llm: {llm}, metrics: {metrics}}}\n"
    (tmp_path / "evals.yaml").write_text(text)
    found = read_suite(tmp_path)
    assert found.suite.system == (model or {})
    if model is None:
        assert any("completion_functions.py beside the suites" in note for note in found.notes)


def test_data_beside_the_folder_is_found_from_where_their_code_starts(tmp_path: Path) -> None:
    # Their program starts in src/llm-evals, from where ../../data is the project's data.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "talks.jsonl").write_text(_TALK)
    folder = tmp_path / "configuration"
    folder.mkdir()
    text = "one: {data: [../../data/talks.jsonl], metrics: {function: [{name: string_length}]}}\n"
    (folder / "evals.yaml").write_text(text)
    assert read_suite(folder).suite.conversations == [str(tmp_path / "data" / "talks.jsonl")]


def test_a_folder_stands_for_its_suite(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"expected a suite \(YAML, or a folder with suite\.yaml or evals\.yaml"
    ):
        read_suite(tmp_path)
    suite = "{conversations: [x], metrics: [{function: words}]}"
    (tmp_path / "a.yaml").write_text(suite)
    (tmp_path / "broken.yaml").write_text("{")
    assert find_suite_file(tmp_path).name == "a.yaml"
    (tmp_path / "b.yml").write_text("eval: {metrics: {function: []}}")
    with pytest.raises(ConfigurationError, match=r"several other suites: a\.yaml, b\.yml"):
        find_suite_file(tmp_path)
    for name in ("evals.yaml", "suite.yaml"):
        (tmp_path / name).write_text(suite)
        assert find_suite_file(tmp_path).name == name
    assert find_suite_file(tmp_path / ("long" * 100)).name == "long" * 100
