"""The words of a run: its prompt pack, rubrics from a folder in their place, and the questions made with them.

What never belongs here: asking models (``talk``) and what an answer is worth (``grading``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from viva.agents.prompts import PromptPack, load_pack, read_pack
from viva.engine.errors import ConfigurationError
from viva.engine.tools import ToolCall
from viva.engine.yamlfile import parse_yaml

from .settings import DATA, PACK, FunctionChatSettings
from .turns import Turn

_RULE = frozenset({"language_rule"})
_JUDGED = _RULE | {"tools", "query", "ground_truth", "response"}
RUBRICS = ("call", "completion", "slot", "relevance")
SIGNATURE = {
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
_SYSTEM_PROMPT = "system_prompt.txt"


class Words:
    """What models are told in a run. ``free`` is set where rubrics came from a folder: they say themselves in which
    form a verdict is to come, so no schema is asked for.
    """

    def __init__(self, settings: FunctionChatSettings, language: str) -> None:
        """``language``: that of replies, empty for any.

        :raises ConfigurationError: the pack, a rubric or the system prompt cannot be used; the message names it.
        """
        self.free = settings.rubrics is not None
        self.pack = load_pack(settings.pack, SIGNATURE)
        if settings.rubrics is not None:
            self.pack = _with_rubrics(self.pack, Path(settings.rubrics))
        self.language = language
        self.system = self._system(settings)

    def _system(self, settings: FunctionChatSettings) -> str:
        if settings.system == PACK:
            return self.render("candidate.system")
        place = Path(settings.data) if settings.system == DATA else Path(settings.system)
        if settings.system == DATA:
            place = (place if place.is_dir() else place.parent) / _SYSTEM_PROMPT
        return _read(place, "system").strip()

    def render(self, template: str, **values: str) -> str:
        """A template filled in, with the language rule of its own section where the run names a language."""
        section = template.partition(".")[0]
        rule = self.pack.render(f"{section}.language", language=self.language) if self.language else ""
        return self.pack.render(template, language_rule=rule, **values).strip()

    def question(self, turn: Turn, content: str, calls: Sequence[ToolCall]) -> str:
        """What the judge is asked about a candidate's answer to ``turn``."""
        return self.render(
            f"judge.{turn.type}",
            tools="\n".join(map(_json, turn.tools)),
            query=turn.query(),
            ground_truth=_json(turn.ground_truth),
            acceptable_arguments=turn.acceptable.text or "(none given)",
            response=_json(message(content, calls)),
        )


def message(content: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """A candidate's answer as an assistant's message in OpenAI's form; what it has not is None."""
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [call.to_openai() for call in calls] or None,
    }


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _with_rubrics(pack: PromptPack, folder: Path) -> PromptPack:
    """The pack with the rubrics of a folder, which speak for themselves: no other words are put before them."""
    data = parse_yaml(pack.text, f"prompt pack {pack.name}")
    for name in RUBRICS:
        data["judge"][name] = _read(folder / f"rubric_{name}.txt", "rubrics")
    data["judge"]["system"] = ""
    data["name"] = f"{pack.name} with rubrics of {folder.name}"
    text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
    return read_pack(text, str(folder), SIGNATURE)


def _read(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{setting}: {path}: cannot be read: {error}") from None
