"""Transcript of a conversation for the terminal, with the prompts if requested.

A prompt is printed with a bar before each line, and its answer follows. Prompts grow turn by turn, so messages that a
role has already received or sent are only counted, unless whole prompts are requested.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import orjson
from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text

from viva.reports.tables import DASH, escape_controls

from .output import print_rich

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from viva.orchestration.transcripts import Speech

_COLOURS = {"candidate": "green", "interactor": "cyan", "evaluator": "yellow", "failed": "red"}
_WIDTH = 120  # if the output is no terminal
_BAR = "  │ "
_ONE_LINE = 60  # maximum characters of continuations that are printed side by side


class _Prompt:
    """Text with a bar before each line."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = console.get_style("dim")
        for line in self._text.wrap(console, max(1, options.max_width - len(_BAR))):
            line.rstrip()
            yield Segment(_BAR, style)
            yield from line.render(console)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(len(_BAR) + 20, options.max_width)


def print_conversation(
    number: int, key: str, speeches: Iterable[Speech], judges: Container[str] = (), *, prompts: bool, is_whole: bool
) -> None:
    """Print a transcript; with `prompts`, print the new messages of each prompt or, if `is_whole`, all of them.

    `judges` are the parties whose answers are verdicts.
    """
    parts: list[RenderableType] = [Rule(Text(escape_controls(f"{number}: {key}")), align="left")]
    before: dict[tuple[str, str], Speech] = {}
    for speech in speeches:
        if prompts and speech.prompt is not None:
            messages = [*_prompt_parts(speech.prompt, None if is_whole else before.get((speech.branch, speech.party)))]
            parts.append(Text(f"  to {_party(speech)}:", style="bold"))
            parts += [_Prompt(_labelled(kind, text)) for kind, text in messages]
            before[speech.branch, speech.party] = speech
        parts.append(Text(f"[{_party(speech)}]", style=f"bold {_COLOURS.get(speech.party, 'white')}"))
        text = _verdict_lines(speech.text) if speech.party in judges else speech.text
        parts.append(Text(escape_controls(text) + "\n"))
    print_rich(*parts, width=_WIDTH)


def _verdict_lines(text: str) -> str:
    """Return a verdict with one line per field, such as `logic: 3, sound`; a text that is no JSON object unchanged."""
    try:
        verdict = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if not isinstance(verdict, dict) or not verdict:
        return text
    return "\n".join(f"{name}: {_field_text(value)}" for name, value in verdict.items())


def _field_text(value: Any) -> str:
    """Return a field's value on one line; of a score with its comment, the score comes first."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
        return ", ".join(filter(None, map(_field_text, sorted(value.values(), key=lambda part: isinstance(part, str)))))
    return DASH if value is None else orjson.dumps(value).decode()


def _party(speech: Speech) -> str:
    """Return the speaker and its branch of the conversation."""
    return escape_controls(f"{speech.party} in {speech.branch}" if speech.branch else speech.party)


def _labelled(kind: str, text: str) -> Text:
    return Text.assemble((f"{kind}: " if kind else "", "bold"), (escape_controls(text), "dim"))


def _prompt_parts(prompt: Any, before: Speech | None) -> Iterator[tuple[str, str]]:
    """Yield the messages of a prompt as (kind, text), except messages that are already in `before`."""
    if "messages" not in prompt:
        yield from _reading_lines(prompt)
        return
    messages, count = prompt["messages"], 0 if before is None else _count_known(prompt["messages"], before)
    if count:
        yield "", f"… {count} message{'s' if count > 1 else ''} as before"
    for message in messages[count:]:
        yield message["role"], _message_text(message)
    tools = prompt.get("tools")
    if tools and (before is None or tools != before.prompt.get("tools")):
        yield "tools", ", ".join(tool["function"]["name"] for tool in tools)


def _count_known(messages: list[dict[str, Any]], before: Speech) -> int:
    """Count the leading messages of a prompt that the role has already received or sent."""
    count = 0
    earlier = before.prompt.get("messages", [])
    while count < len(earlier) and count < len(messages) and messages[count] == earlier[count]:
        count += 1
    if count < len(messages) and messages[count]["role"] == "assistant":
        text = _message_text(messages[count])
        # The answer may begin with reasoning, which prompts leave out.
        count += before.text.endswith(text) if text else not before.text
    return count


def _message_text(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())]
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def _reading_lines(prompt: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts whose likelihood was computed."""
    if prompt["context"]:
        yield "text", prompt["context"]
    texts = prompt["continuations"]
    if len(texts) > 1 and sum(map(len, texts)) <= _ONE_LINE and not any("\n" in text for text in texts):
        yield "continuations", " | ".join(text.strip() for text in texts)
    else:
        for text in texts:
            yield "continuation" if prompt["context"] else "text", text.strip()
