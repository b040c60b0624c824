"""The list of commands by topic, as ``viva --help`` prints it.

What never belongs here: any particular command's work.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

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
_LONGEST = 1000  # letters of a summary: all of it, over as many lines as it takes


class Topics(TyperGroup):
    """Commands by topic, and within one in the order of the topic's; what systems bring of their own is running."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = list(_TOPICS)

        def place(name: str) -> tuple[int, int]:
            return _ORDER.index(_topic(name)), known.index(name) if name in known else len(known)

        return sorted(super().list_commands(ctx), key=place)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.setdefault(_topic(name), []).append((name, command.get_short_help_str(_LONGEST)))
        for topic, listed in rows.items():
            with formatter.section(topic):
                formatter.write_dl(listed)


def _topic(name: str) -> str:
    return _TOPICS.get(name, _RUNNING)
