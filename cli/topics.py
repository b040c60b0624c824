"""The list of commands by topic, as ``viva --help`` prints it.

What never belongs here: any particular command's work.
"""

from __future__ import annotations

from typing import Any

from viva.engine.permissions import OPTION, begin_command

from .lazy_command import CommandGroup

_RUNNING = "Running"
_TOPICS = {
    "run": _RUNNING,
    "resume": _RUNNING,
    "sweep": _RUNNING,
    "demo": _RUNNING,
    "plan": _RUNNING,
    "compact": _RUNNING,
    "report": "Looking",
    "show": "Looking",
    "view": "Looking",
    "score": "Looking",
    "list": "Looking",
    "judge": "Judging",
    "bench": "Judging",
    "review": "Judging",
    "meta": "Judging",
    "correlate": "Judging",
    "serve": "Serving",
    "export": "Exchange",
    "import": "Exchange",
    "data": "Data",
    "validate": "Data",
    "lab": "Data",
}
_ORDER = (_RUNNING, "Looking", "Judging", "Serving", "Exchange", "Data")


class Topics(CommandGroup):
    """Commands by topic, and within one in the order of the topic's; what systems bring of their own is running."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Permit the code that the words of the command name; ``--python-tools`` may stand behind whichever verb."""
        begin_command(args, _taken_out(OPTION, args))
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:
        known = list(_TOPICS)

        def place(name: str) -> tuple[int, int]:
            return _ORDER.index(_topic(name)), known.index(name) if name in known else len(known)

        return sorted(super().list_commands(ctx), key=place)

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.list_commands(ctx):
            if not self.commands[name].hidden:
                found.setdefault(_topic(name), []).append(name)
        return found


def _taken_out(option: str, words: list[str]) -> list[str]:
    """Remove an option from a command's words, wherever it stands; returns its values."""
    values, at = [], 0
    while at < len(words) and words[at] != "--":
        if words[at].startswith(f"{option}="):
            values.append(words.pop(at).partition("=")[2])
        elif words[at] == option and at + 1 < len(words):
            values.append(words[at + 1])
            del words[at : at + 2]
        else:
            at += 1
    return values


def _topic(name: str) -> str:
    return _TOPICS.get(name, _RUNNING)
