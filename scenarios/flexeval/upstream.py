"""Reads suites and rubrics of FlexEval's own forms (upstream) as ours, as far as they map; the rest is named in notes.

Two forms: suites by name (``NAME: {data, metrics, do_completion, grader_llm, completion_llm}``), and one run
(``data_sources``, ``eval``, ``config``, ``rubric_paths``, ``function_modules``). What never belongs here: metrics one
by one (``upstream_metrics``), and checking what comes out (``suite_file``, ``graph``).

Source: FlexEval's ``schema/evalrun_schema.py``, ``eval_schema.py`` and ``configuration/completion_functions.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from viva.engine.errors import ConfigurationError
from viva.engine.yamlfile import read_yaml

from .upstream_metrics import mapped_metrics

_SUITE = {"data", "metrics", "do_completion", "grader_llm", "completion_llm", "name", "notes"}
_RUN = {"data_sources", "eval", "rubric_paths", "function_modules", "add_default_functions", "config"}
_FIXED = {"no_completion_fn": "hello world", "placeholder_completion": "hi"}


def is_upstream(value: Any) -> bool:
    """Whether a file's value has one of upstream's forms."""
    return isinstance(value, Mapping) and (isinstance(value.get("eval"), Mapping) or bool(suite_names(value)))


def suite_names(value: Any) -> list[str]:
    """The names of the suites in a file's value of the first form."""
    if not isinstance(value, Mapping):
        return []
    return [
        str(name)
        for name, one in value.items()
        if isinstance(one, Mapping)
        and isinstance(one.get("metrics"), Mapping)
        and one["metrics"].keys() & {"function", "rubric"}
    ]


def from_upstream(value: Mapping[str, Any], path: Path, name: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """The suite of a file in our form, and what did not map, a sentence each.

    :param name: which suite, where the file holds several.
    :raises ConfigurationError: there is none of that name, it has no conversations that can be read, or a dependency
        of its metrics names none or several.
    """
    if isinstance(value.get("eval"), Mapping):
        if name is not None and name != value["eval"].get("name"):
            raise ConfigurationError(f"{path}: holds one suite; leave '#{name}' out")
        suite, own = dict(value["eval"]), dict(value)
        found_name = str(suite.get("name") or path.stem)
    else:
        found_name = _chosen(suite_names(value), path, name)
        suite, own = dict(value[found_name]), {}
    where = f"{path}: suite '{found_name}'"
    notes: list[str] = []
    found: dict[str, Any] = {"name": found_name}
    found["conversations"] = _conversations(suite.get("data"), own.get("data_sources"), path, where, notes)
    found["complete"] = "last" if suite.get("do_completion") else "none"
    if suite.get("do_completion") and (model := _model(suite.get("completion_llm"), "completion_llm", where, notes)):
        found["system"] = model
    if suite.get("completion_llm") and not suite.get("do_completion"):
        notes.append("completion_llm: not asked, for do_completion is off")
    if model := _model(suite.get("grader_llm"), "grader_llm", where, notes):
        found["grader"] = model
    files = _files(own.get("function_modules"), "function_modules", path, notes)
    rubrics = _files(own.get("rubric_paths"), "rubric_paths", path, notes)
    names = [one for file in files for one in _functions_of(path.parent / file)]
    known = [str(one) for file in rubrics for one in read_yaml(path.parent / file) or ()]
    found["metrics"] = mapped_metrics(suite.get("metrics"), names, known, where, notes)
    if not found["metrics"]:
        raise ConfigurationError(f"{where}: none of its metrics maps: {'; '.join(notes)}")
    found |= {key: of for key, of in (("functions", files), ("rubrics", rubrics)) if of}
    _settle(own, suite, found, notes)
    return found, [f"{found_name}: {note}" for note in notes]


def upstream_rubrics(value: Mapping[str, Any]) -> dict[str, Any]:
    """The rubrics of a rubric file in our form: those that say nothing else have their choice on a line, as their
    prompts ask for it.
    """
    found: dict[str, Any] = {}
    for name, body in value.items():
        if isinstance(body, Mapping) and "choice_scores" in body:
            body = {"answer": "line", **{key: one for key, one in body.items() if one is not None and key != "name"}}
        found[str(name)] = body
    return found


def _chosen(names: Sequence[str], path: Path, name: str | None) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    problem = "holds several suites" if name is None else f"holds no suite '{name}'"
    raise ConfigurationError(f"{path}: {problem}; name one of them as {path.name}#NAME: {', '.join(names)}")


def _conversations(data: Any, sources: Any, path: Path, where: str, notes: list[str]) -> list[str]:
    """The files of conversations, those that are not read named."""
    found: list[str] = []
    for field, values in (("data", data), ("data_sources", sources)):
        if values is not None and not isinstance(values, list):
            raise ConfigurationError(f"{where}: {field}: expected a list, found {values!r:.60}")
        for number, one in enumerate(values or ()):
            at = f"{field}[{number}]"
            named = one.get("path") if isinstance(one, Mapping) else one
            if not isinstance(named, str):
                kind = one.get("type") if isinstance(one, Mapping) else one
                notes.append(f"{at}: {kind!r:.60} names no file; left out")
            elif Path(named).suffix in (".db", ".sqlite") or (
                isinstance(one, Mapping) and one.get("format") == "langgraph_sqlite"
            ):
                notes.append(f"{at}: {named}: checkpoints of LangGraph are not read; left out")
            else:
                found.append(_found(named, path, at, notes))
    if not found:
        told = f": {'; '.join(notes)}" if notes else ""
        raise ConfigurationError(f"{where}: names no conversations that can be read{told}")
    return list(dict.fromkeys(found))


def _found(named: str, path: Path, at: str, notes: list[str]) -> str:
    """A path as it is found from the suite's file. Upstream's paths begin at the folder in which it is started: that
    may be any folder above the file.
    """
    folder = path.parent.absolute()
    if Path(named).is_absolute() or (folder / named).exists():
        return named
    above = next((one for one in folder.parents if (one / named).exists()), None)
    if above is not None:
        return str(above / named)
    beside = Path(named).name
    if (folder / beside).exists():
        notes.append(f"{at}: {named} is not there; {beside} beside the suite's file is read")
        return beside
    return named


def _files(values: Any, field: str, path: Path, notes: list[str]) -> list[str]:
    """The files of a list that are there."""
    found = []
    for number, one in enumerate(values if isinstance(values, list) else []):
        at = f"{field}[{number}]"
        if not isinstance(one, str):
            notes.append(f"{at}: {one!r:.60} is no file; left out")
            continue
        file = _found(one, path, at, notes)
        if (path.parent / file).is_file():
            found.append(file)
        else:
            notes.append(f"{at}: {one} is not there; left out")
    return found


def _functions_of(file: Path) -> list[str]:
    """The functions that a Python file defines, by its text: nothing is run."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{file}: cannot be read as Python: {error}") from None
    return [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def _model(value: Any, field: str, where: str, notes: list[str]) -> str | None:
    """The model that stands for one of upstream's completion functions; None where none does."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("function_name"), str):
        raise ConfigurationError(f"{where}: {field}: expected function_name and kwargs, found {value!r:.60}")
    function, kwargs = value["function_name"], dict(value.get("kwargs") or {})
    if value.get("include_system_prompt") is False:
        notes.append(f"{field}: include_system_prompt: the system is sent system messages here")
    text = _FIXED.get(function)
    if function == "echo_completion" and isinstance(kwargs.get("response"), str):
        # Their suites write \n in plain YAML scalars, where it stays two characters.
        text = kwargs.pop("response").replace("\\n", "\n")
    model = kwargs.pop("model_name", None) if function != "gpt_3p5_turbo" else "gpt-3.5-turbo"
    found = None
    if text is not None:
        found = f"fixed:?label=echo&text={quote(text, safe='')}"
    elif function in ("open_ai_completion", "open_ai_completion_async", "gpt_3p5_turbo") and model:
        key = kwargs.pop("api_key_name", None) or kwargs.pop("key_name", None)
        found = f"openai:{model}" + (f"?key_env={key}" if key not in (None, "OPENAI_API_KEY") else "")
    elif function in ("jan_completion", "lm_studio_completion") and model and isinstance(kwargs.get("endpoint"), str):
        found = f"openai:{kwargs.pop('endpoint')}#{model}"
    if found is None:
        notes.append(f"{field}: {function}: nothing here stands for it; name a model as `system` or `grader`")
        return None
    notes += [f"{field}: {key}: left out; options of models stand in their names or in the suite" for key in kwargs]
    return found


def _settle(own: Mapping[str, Any], suite: Mapping[str, Any], found: dict[str, Any], notes: list[str]) -> None:
    """Take over what maps of the rest, and name what does not."""
    config = own.get("config")
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key == "nb_evaluations_per_thread" and isinstance(value, int) and value > 0:
            found["repeats"] = value
        elif key == "random_seed_conversation_sampling" and isinstance(value, int):
            found["seed"] = value
        else:
            notes.append(f"config.{key}: has no counterpart here; left out")
    unknown = [key for key in own if key not in _RUN] + [key for key in suite if key not in _SUITE]
    notes += [f"{key}: has no counterpart here; left out" for key in unknown]
