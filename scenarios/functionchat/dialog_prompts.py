"""Prompts of a FunctionChat run: its prompt pack, rubrics from a folder, and the judge's questions.

The texts are in `prompts/functionchat.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import permissions
from viva.engine.tools import ToolCall
from viva.engine.yaml_file import parse_yaml

from .functionchat_settings import DATA, PACK, FunctionChatSettings
from .turns import DialogTurn, readable_json

_RULE = frozenset({"language_rule"})
_JUDGED = _RULE | {"tools", "query", "ground_truth", "response"}
RUBRICS = ("call", "completion", "slot", "relevance")
_NEEDED = {
    "candidate.system": _RULE,
    "candidate.language": frozenset({"language"}),
    "judge.system": frozenset[str](),
    "judge.language": frozenset({"language"}),
    "judge.call": _JUDGED | {"acceptable_arguments"},
    "judge.completion": _JUDGED,
    "judge.slot": _JUDGED,
    "judge.relevance": _JUDGED,
    "judge.again": frozenset({"problem"}),
    "user.system": _RULE | {"goal", "done"},
    "user.language": frozenset({"language"}),
    "user.opening": frozenset[str](),
}
TEMPLATES = PackTemplates(_NEEDED)
_SYSTEM_PROMPT = "system_prompt.txt"


@dataclass(slots=True)
class DialogPrompts:
    """The prompts of a run.

    `system` is the candidate's system prompt; all others come from the `pack`. `language` is the language of replies,
    empty for any.
    """

    pack: PromptPack
    language: str
    system: str = ""

    def render(self, template: str, **values: str) -> str:
        """Render a template, with the language rule of its section if the run names a language."""
        section = template.partition(".")[0]
        rule = self.pack.render(f"{section}.language", language=self.language) if self.language else ""
        return self.pack.render(template, language_rule=rule, **values).strip()

    def question(self, turn: DialogTurn, content: str, calls: Sequence[ToolCall]) -> str:
        """Return the judge's question about a candidate's answer to `turn`."""
        return self.render(
            f"judge.{turn.type}",
            tools="\n".join(map(_json_text, turn.tools)),
            query=turn.query(),
            ground_truth=_json_text(_without_call_ids(turn.ground_truth)),
            acceptable_arguments=turn.acceptable.text or "(none given)",
            response=_json_text(_without_call_ids(assistant_message(content, calls))),
        )

    def published_question(self, turn: DialogTurn, content: str, calls: Sequence[ToolCall]) -> str:
        """Return the judge's question as the authors' code fills in its rubrics.

        Each part is one JSON value; the query begins with the candidate's system prompt, and a single call's ground
        truth is the bare function.
        """
        truth = _without_call_ids(turn.ground_truth)
        truth.setdefault("tool_calls", None)
        if turn.subset == "singlecall":
            [expected] = turn.expected()
            truth = {"name": expected.name, "arguments": expected.arguments, "tool_calls": None}
        system = [] if turn.has_system else [{"role": "system", "content": self.system}]
        return self.render(
            f"judge.{turn.type}",
            tools=readable_json(turn.tools),
            query=readable_json([*system, *map(_in_published_order, turn.messages)]),
            ground_truth=readable_json(truth),
            acceptable_arguments=json.dumps(turn.acceptable.text or None, ensure_ascii=False),
            response=readable_json(_without_call_ids(assistant_message(content, calls))),
        )


def open_prompts(settings: FunctionChatSettings, language: str) -> DialogPrompts:
    """Return the prompts of a run by its settings; for a recorded run, a shipped pack as it was recorded.

    Raises:
        ConfigurationError: The pack, a rubric or the system prompt cannot be used; the message names it.
    """
    recorded = None if settings.rubrics is not None else settings.recorded_prompts
    pack = TEMPLATES.open(settings.pack, recorded)
    if settings.rubrics is not None:
        pack = _with_rubrics(pack, Path(settings.rubrics))
    prompts = DialogPrompts(pack, language)
    prompts.system = _system_prompt(settings, prompts)
    return prompts


def _system_prompt(settings: FunctionChatSettings, prompts: DialogPrompts) -> str:
    if settings.system == PACK:
        return prompts.render("candidate.system")
    path = Path(settings.data) if settings.system == DATA else Path(settings.system)
    if settings.system == DATA:
        path = (path if path.is_dir() else path.parent) / _SYSTEM_PROMPT
    return _read_file(path, "system").strip()


def assistant_message(content: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return a candidate's answer as an assistant message in OpenAI's form, with None for missing parts."""
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [call.to_openai() for call in calls] or None,
    }


def _without_call_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an assistant message without the ids of its calls, which the model did not write."""
    calls = [{name: part for name, part in call.items() if name != "id"} for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls or None} if "tool_calls" in message else dict(message)


_PUBLISHED_ORDER = ("role", "tool_call_id", "name", "content", "tool_calls")


def _in_published_order(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its fields in the order of the published files."""
    first = {name: message[name] for name in _PUBLISHED_ORDER if name in message}
    return first | {name: value for name, value in message.items() if name not in first}


def _json_text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _with_rubrics(pack: PromptPack, folder: Path) -> PromptPack:
    """Return the pack with the rubrics of a folder and without the judge's system prompt."""
    data = parse_yaml(pack.text, f"prompt pack {pack.name}")
    for name in RUBRICS:
        data["judge"][name] = _read_file(folder / f"rubric_{name}.txt", "rubrics")
    data["judge"]["system"] = ""
    data["name"] = f"{pack.name} with rubrics of {folder.name}"
    text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
    return TEMPLATES.read(text, str(folder))


def _read_file(path: Path, setting: str) -> str:
    permissions().check_file(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{setting}: {path}: cannot be read: {error}") from None
