"""Types that functions of a suite may take: a dialog, a turn, a message, a tool call (docs/suites.md)."""

from viva.scenarios.flexeval.dialog import Dialog, Message, ToolCall, Turn

__all__ = ["Dialog", "Message", "ToolCall", "Turn"]
