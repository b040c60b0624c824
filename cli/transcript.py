"""Transcript of a conversation for the terminal: what was said, and, on request, what each model was sent for it.

A prompt stands behind a bar, the answer to it below without one. As prompts grow by a turn at a time, messages
that the same role was sent before, or has said itself, are counted and not printed again unless they are asked
for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text

from viva.reports.tables import escape_controls

from .output import print_rich

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from viva.orchestration.transcripts import Speech

_COLOURS = {"candidate": "green", "interactor": "cyan", "evaluator": "yellow", "failed": "red"}
_WIDTH = 120  # where the output is no terminal
_BAR = "  │ "
_ONE_LINE = 60  # characters of continuations that stand side by side


class _Prompt:
    """Text behind a bar, on each of its lines."""

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


def print_conversation(number: int, key: str, speeches: Iterable[Speech], *, prompts: bool, whole: bool) -> None:
    """Print a transcript, with ``prompts`` what models were sent, ``whole`` or only what was new in it."""
    parts: list[RenderableType] = [Rule(Text(escape_controls(f"{number}: {key}")), align="left")]
    before: dict[tuple[str, str], Speech] = {}
    for one in speeches:
        if prompts and one.prompt is not None:
            sent = [*_sent(one.prompt, None if whole else before.get((one.branch, one.party)))]
            parts.append(Text(f"  to {_party(one)}:", style="bold"))
            parts += [_Prompt(_labelled(kind, text)) for kind, text in sent]
            before[one.branch, one.party] = one
        parts.append(Text(f"[{_party(one)}]", style=f"bold {_COLOURS.get(one.party, 'white')}"))
        parts.append(Text(escape_controls(one.text) + "\n"))
    print_rich(*parts, width=_WIDTH)


def _party(one: Speech) -> str:
    """Who speaks, and in which branch of the conversation."""
    return escape_controls(f"{one.party} in {one.branch}" if one.branch else one.party)


def _labelled(kind: str, text: str) -> Text:
    return Text.assemble((f"{kind}: " if kind else "", "bold"), (escape_controls(text), "dim"))


def _sent(prompt: Any, before: Speech | None) -> Iterator[tuple[str, str]]:
    """What a model was sent, as (kind, text); less what it had ``before``, if that is given."""
    if "messages" not in prompt:
        yield from _reading_lines(prompt)
        return
    messages, known = prompt["messages"], 0 if before is None else _count_known(prompt["messages"], before)
    if known:
        yield "", f"… {known} message{'s' if known > 1 else ''} as before"
    for message in messages[known:]:
        yield message["role"], _message_text(message)
    tools = prompt.get("tools")
    if tools and (before is None or tools != before.prompt.get("tools")):
        yield "tools", ", ".join(tool["function"]["name"] for tool in tools)


def _count_known(messages: list[dict[str, Any]], before: Speech) -> int:
    """How many messages a prompt begins with that the role was sent before, or answered to that."""
    known = 0
    earlier = before.prompt.get("messages", [])
    while known < len(earlier) and known < len(messages) and messages[known] == earlier[known]:
        known += 1
    if known < len(messages) and messages[known]["role"] == "assistant":
        said = _message_text(messages[known])
        # The answer may begin with thoughts, which nobody is told.
        known += before.text.endswith(said) if said else not before.text
    return known


def _message_text(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())]
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def _reading_lines(prompt: Any) -> Iterator[tuple[str, str]]:
    """The texts whose likelihood was asked for."""
    if prompt["context"]:
        yield "text", prompt["context"]
    texts = prompt["continuations"]
    if len(texts) > 1 and sum(map(len, texts)) <= _ONE_LINE and not any("\n" in text for text in texts):
        yield "continuations", " | ".join(text.strip() for text in texts)
    else:
        for text in texts:
            yield "continuation" if prompt["context"] else "text", text.strip()
